//! The place of a step: the blocks that it is in, and the steps that it follows.

use std::sync::Arc;

use super::{condition::ConditionPart, inline::Nesting};
use crate::template::Reads;

/// The place of a step in its definition.
#[derive(Clone, Debug)]
pub(super) struct StepPlace {
    /// The JSON pointer in the request's body.
    pub pointer: String,
    /// The JSON pointer in the list that has it.
    pub in_list: Arc<str>,
    pub nesting: Nesting,
    /// True for a step that runs when all others have ended.
    pub is_finally: bool,
    /// The names of the blocks that it is in, each with a dot behind it: the first part of its name.
    pub prefix: Arc<str>,
    /// The same for the names that its expressions read. The end of a block reads those of the steps in it.
    pub block: Arc<str>,
    /// The conditions of these blocks.
    pub conditions: Vec<ConditionPart>,
    /// The names that these conditions read.
    pub outer_reads: Vec<OuterReads>,
}

impl StepPlace {
    /// Returns the place of the steps that lie in no block.
    pub fn outside(nesting: Nesting) -> Self {
        Self {
            nesting,
            pointer: String::new(),
            in_list: Arc::default(),
            is_finally: false,
            prefix: Arc::default(),
            block: Arc::default(),
            conditions: Vec::new(),
            outer_reads: Vec::new(),
        }
    }
}

/// The names that the condition of a block reads, and the prefix of the steps beside the block.
pub(super) type OuterReads = (Arc<str>, Arc<[(String, Reads)]>);

pub(super) enum After {
    StepAbove,
    /// The names, each with its JSON pointer.
    Named(Vec<(String, String)>),
}
