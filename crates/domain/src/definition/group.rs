//! A step that is run more than once: for each item of a list, or until a condition is true. The step of the definition
//! is the group of its items: it calls nothing, and holds the rule that every item follows.

use std::sync::Arc;

use super::{
    ForEachRule, Policy, RepeatRule, StepRule,
    for_each::{self, ForEachDraft},
    repeat::{self, RepeatDraft},
};
use crate::{
    template::{Origin, Reads},
    values::fields::Fields,
};

#[derive(Debug)]
pub struct GroupRule {
    pub items: GroupItems,
    /// The rule that each item follows.
    pub item: Arc<StepRule>,
    /// The undo of an item.
    pub undo: Option<Arc<StepRule>>,
}

/// The source of the items.
#[derive(Debug)]
pub enum GroupItems {
    ForEach(ForEachRule),
    /// Each item is an iteration.
    Repeat(RepeatRule),
}

/// The fields of a group as they were read.
pub(super) enum GroupDraft {
    ForEach(ForEachDraft),
    Repeat(RepeatDraft),
}

/// Collects the names and steps that the expressions of a group read.
pub(super) struct GroupReads<'r> {
    /// The reads of the list.
    pub list: &'r mut Vec<(String, Reads)>,
    /// The reads of `until`, which also sees an output.
    pub until: &'r mut Vec<(String, Reads)>,
}

/// Reads `for_each` or `repeat`, and the fields that belong to them.
pub(super) fn read(
    step: &mut Fields<'_>,
    origin: Origin<'_>,
    reads: GroupReads<'_>,
) -> Option<GroupDraft> {
    let has_both = ["for_each", "repeat"].map(|field| step.peek(field).is_some()) == [true; 2];
    let for_each = for_each::read(step, origin, reads.list);
    let repeat = repeat::read(step, origin, reads.until);
    if has_both {
        step.fault(
            "repeat",
            "give either `for_each` or `repeat`, not both: to repeat each item, put the step with `repeat` into a workflow of its own, and give this step a `task` of that workflow",
        );
    }
    match (for_each, repeat) {
        (Some(for_each), _) => Some(GroupDraft::ForEach(for_each)),
        (None, repeat) => repeat.map(GroupDraft::Repeat),
    }
}

impl GroupDraft {
    /// Returns the names that the expressions of an item see besides the usual ones.
    pub fn seen_by_item(&self) -> &'static [&'static str] {
        match self {
            GroupDraft::ForEach(_) => &for_each::SEEN_BY_ITEM,
            GroupDraft::Repeat(_) => &repeat::SEEN_BY_ITERATION,
        }
    }

    /// Returns whether the input gives a limit of the group.
    pub fn reads_input(&self) -> bool {
        match self {
            GroupDraft::ForEach(for_each) => {
                for_each.max_parallel_from.is_some() || for_each.enough.is_some()
            }
            GroupDraft::Repeat(repeat) => repeat.at_most_from.is_some(),
        }
    }

    pub fn on_item_error(&self) -> Option<Policy> {
        match self {
            GroupDraft::ForEach(for_each) => for_each.on_item_error,
            GroupDraft::Repeat(_) => None,
        }
    }

    /// Returns the policy that the group itself sets, with its field.
    pub fn own_policy(&self) -> (&'static str, Option<Policy>) {
        match self {
            GroupDraft::ForEach(for_each) => ("on_item_error", for_each.on_item_error),
            GroupDraft::Repeat(repeat) => ("repeat/on_exhausted", repeat.on_exhausted),
        }
    }

    /// `on_exhausted` is the policy of the step.
    pub fn finish(
        self,
        item: Arc<StepRule>,
        undo: Option<Arc<StepRule>>,
        on_exhausted: Policy,
    ) -> Option<GroupRule> {
        Some(GroupRule {
            items: match self {
                GroupDraft::ForEach(for_each) => GroupItems::ForEach(for_each.finish()?),
                GroupDraft::Repeat(repeat) => GroupItems::Repeat(repeat.finish(on_exhausted)?),
            },
            item,
            undo,
        })
    }
}

impl GroupRule {
    /// Returns the largest number of items that run at once.
    pub fn max_parallel(&self) -> u16 {
        match &self.items {
            GroupItems::ForEach(rule) => rule.max_parallel,
            GroupItems::Repeat(_) => 1,
        }
    }

    pub fn for_each(&self) -> Option<&ForEachRule> {
        match &self.items {
            GroupItems::ForEach(rule) => Some(rule),
            GroupItems::Repeat(_) => None,
        }
    }

    pub fn repeat(&self) -> Option<&RepeatRule> {
        match &self.items {
            GroupItems::ForEach(_) => None,
            GroupItems::Repeat(rule) => Some(rule),
        }
    }
}
