//! Templates put the data of a task into its requests.
//!
//! A [`Template`] is a string with `{{ expressions }}`, a [`JsonTemplate`] a JSON document whose strings
//! are templates, an [`Expression`] a bare condition. The language is that of Jinja's expressions;
//! `docs/expressions.md` describes it whole. Statements (`{% … %}`) are left out, because variables and
//! loops can multiply data past any bound.
//!
//! Each is parsed once and evaluated by an interpreter of this module, which charges a [`Budget`] for every node, item
//! and byte before it is touched: nothing is evaluated while it is parsed, and no filter, operator or comparison is
//! free. The reason for an interpreter of our own is in `docs/decisions/0009-bounded-expressions.md`. A template that
//! reads a value which does not exist fails with an error that names the value; it never renders an empty text.
//!
//! From source to text: `scan` splits a template, `lexer` and `parser` make an `ast` of each expression, `reads` finds
//! the names that it reads, `eval` returns a `value`, and `write` puts the value into the rendered text. `difference`
//! compares two documents.

pub(crate) mod payload;

mod arguments;
mod ast;
mod attribute;
mod budget;
mod calls;
mod code;
mod compare;
mod convert;
mod difference;
mod document;
mod encodings;
mod eval;
mod eval_error;
mod indexing;
mod json;
mod judging;
mod lexer;
mod lists;
mod number;
mod parser;
mod reads;
mod record;
mod registry;
mod scan;
mod scope;
mod text;
mod texts;
mod times;
mod value;
mod write;

#[cfg(test)]
mod tests;

pub use payload::Payload;

use std::collections::{BTreeMap, BTreeSet};

pub use budget::Budget;
pub use difference::{JsonDifference, each_difference};
pub use document::Document;
pub use json::{JsonTemplate, look_alikes};
pub use record::{ResponseFacts, StepFacts, TaskRecord};
pub use scope::{ItemScope, Scope};
pub use text::Template;

use code::Code;
use write::Out;

/// The longest rendered text or JSON document, in bytes.
pub const MAX_RENDERED: usize = 1 << 20;

/// The longest expression, in bytes.
pub const MAX_EXPRESSION: usize = 2000;

/// The reason why a template could not be rendered, in words for an operator.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{expression}` cannot be rendered: {reason}")]
pub struct RenderError {
    pub expression: String,
    pub reason: String,
    /// The steps that the expression reads.
    pub steps: BTreeSet<String>,
}

impl RenderError {
    pub(super) fn new(expression: &str, reason: impl Into<String>) -> Self {
        const SHOWN: usize = 200;
        let mut shown: String = expression.chars().take(SHOWN).collect();
        if shown.len() < expression.len() {
            shown.push('…');
        }
        Self {
            expression: shown,
            reason: reason.into(),
            steps: BTreeSet::new(),
        }
    }
}

/// The names that a template reads, known before it is ever evaluated.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reads {
    /// Top-level names, such as `input`.
    pub names: BTreeSet<String>,
    /// The steps read as `steps.<name>` or `steps['<name>']`.
    pub steps: BTreeSet<String>,
    /// The steps and the members of `input` that are read as if they existed: without a default, and without a test
    /// that they do.
    pub unguarded: Unguarded,
    /// The steps whose kept response is read: its status or its headers.
    pub responses: BTreeSet<String>,
    /// The steps of which more is read than who has won the race before them.
    pub records: BTreeSet<String>,
    /// Names after a `-` that may be the end of a name with a hyphen: that name, and the form that was probably meant.
    pub hyphens: BTreeMap<String, (String, String)>,
}

/// The steps and inputs that an expression needs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unguarded {
    pub steps: BTreeSet<String>,
    pub inputs: BTreeSet<String>,
    /// The names that an expression tests, or has a default for.
    pub guarded: BTreeSet<String>,
}

impl Reads {
    pub fn extend(&mut self, other: &Reads) {
        self.names.extend(other.names.iter().cloned());
        self.steps.extend(other.steps.iter().cloned());
        self.responses.extend(other.responses.iter().cloned());
        self.records.extend(other.records.iter().cloned());
        let (unguarded, more) = (&mut self.unguarded, &other.unguarded);
        unguarded.steps.extend(more.steps.iter().cloned());
        unguarded.inputs.extend(more.inputs.iter().cloned());
        unguarded.guarded.extend(more.guarded.iter().cloned());
        let hyphens = other.hyphens.iter();
        self.hyphens
            .extend(hyphens.map(|(name, meant)| (name.clone(), meant.clone())));
    }
}

/// Calls `see` with the name of each member of a document that is an object, as far as the budget allows. Returns
/// whether all members were reached.
pub fn each_name(document: &Payload, budget: &Budget, mut see: impl FnMut(&str)) -> bool {
    let mut names = || {
        let root = document.document().root(budget)?;
        if root.kind() == document::NodeKind::Object {
            for member in root.members(budget) {
                see(&member?.0.text(budget)?);
            }
        }
        eval_error::EvalResult::Ok(())
    };
    names().is_ok()
}

/// The origin of a definition.
#[derive(Clone, Copy, Debug)]
pub enum Origin<'b> {
    /// The definition is submitted now: a faulty one is refused, and so is one that costs more than the budget to read.
    Submitted(&'b Budget),
    /// The definition was accepted before, perhaps by a version that accepted more. An expression that is invalid today
    /// must not make its task unreadable: it fails when it is evaluated.
    Stored,
}

/// A bare condition such as `input.total > 0`.
#[derive(Debug)]
pub struct Expression(Code);

impl Expression {
    /// Parses a condition. The error describes the fault of the source, and the remedy.
    pub fn parse(source: &str, origin: Origin<'_>) -> Result<Self, String> {
        if source.trim_start().starts_with("{{") || source.contains("{%") {
            return Err("a condition has no braces: remove them".to_owned());
        }
        Code::parse(source, origin).map(Self)
    }

    /// Evaluates the condition to its truth: false, null, zero and empty values are false.
    pub fn truth(&self, scope: &Scope<'_>) -> Result<bool, RenderError> {
        self.0.with(scope, |value| value.truth())
    }

    /// Returns the value of the expression, as JSON.
    pub fn payload(&self, scope: &Scope<'_>) -> Result<Payload, RenderError> {
        if let Some(whole) = self.0.whole(scope) {
            return Ok(whole.clone());
        }
        let json = self.0.with(scope, |value| {
            let mut out = Out::new(scope.budget);
            out.json(&value)?;
            Ok(out.text)
        })?;
        // The text was written as JSON, so it is valid.
        Ok(Payload::parse(json).unwrap_or_else(Payload::null))
    }

    /// Returns the source as it was written.
    pub fn source(&self) -> &str {
        self.0.source()
    }

    pub fn reads(&self) -> &Reads {
        self.0.reads()
    }
}
