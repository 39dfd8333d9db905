//! Templates: how the data of a task reaches its requests.
//!
//! A [`Template`] is a string with `{{ expressions }}`, a [`JsonTemplate`] a JSON document whose strings
//! are templates, an [`Expression`] a bare condition. The language is that of Jinja's expressions;
//! `docs/expressions.md` describes it whole. Statements (`{% … %}`) are left out, because variables and
//! loops can multiply data past any bound.
//!
//! Each is parsed once and evaluated by an interpreter of this module, which charges a [`Budget`] for every
//! node, item and byte before it touches it: nothing is evaluated while it is parsed, and no filter, operator
//! or comparison is free. Why there is an own interpreter: `docs/decisions/0009-bounded-expressions.md`.
//! Reading what is not there is an error that names it, never an empty text.
//!
//! From source to text: `scan` splits a template, `lexer` and `parser` make an `ast` of each expression,
//! `reads` says what it looks at, `eval` gives a `value`, and `write` puts it into what is rendered.

mod ast;
mod attribute;
mod budget;
mod calls;
mod code;
mod compare;
mod convert;
mod document;
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
mod registry;
mod scan;
mod scope;
mod text;
mod texts;
mod value;
mod write;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

pub use budget::Budget;
pub use document::Document;
pub use json::{JsonTemplate, look_alikes};
pub use scope::{Scope, SeenItem};
pub use text::Template;

use crate::payload::Payload;
use code::Code;
use write::Out;

/// No rendered text or JSON document is longer, in bytes.
pub const MAX_RENDERED: usize = 1 << 20;

/// No expression is longer, in bytes.
pub const MAX_EXPRESSION: usize = 2000;

/// Why a template could not be rendered, in the words an operator reads.
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

/// What a template looks at, known before it is ever evaluated.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reads {
    /// Top-level names, such as `input`.
    pub names: BTreeSet<String>,
    /// The steps read as `steps.<name>` or `steps['<name>']`.
    pub steps: BTreeSet<String>,
    /// Those of the steps and the members of `input` that are read as if they were there: without a default,
    /// and without a look at whether they are.
    pub unguarded: Unguarded,
    /// Names after a `-` that may be the end of a name with a hyphen: that name, and how to write what was probably
    /// meant.
    pub hyphens: BTreeMap<String, (String, String)>,
}

/// What an expression needs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unguarded {
    pub steps: BTreeSet<String>,
    pub inputs: BTreeSet<String>,
    /// What an expression asks about, or gives a default for.
    pub guarded: BTreeSet<String>,
}

impl Reads {
    pub fn extend(&mut self, other: &Reads) {
        self.names.extend(other.names.iter().cloned());
        self.steps.extend(other.steps.iter().cloned());
        let (unguarded, more) = (&mut self.unguarded, &other.unguarded);
        unguarded.steps.extend(more.steps.iter().cloned());
        unguarded.inputs.extend(more.inputs.iter().cloned());
        unguarded.guarded.extend(more.guarded.iter().cloned());
        let hyphens = other.hyphens.iter();
        self.hyphens
            .extend(hyphens.map(|(name, meant)| (name.clone(), meant.clone())));
    }
}

/// Calls `see` with the name of each member of a document that is an object, as far as the budget goes. Whether it
/// went far enough.
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

/// Where a definition comes from.
#[derive(Clone, Copy, Debug)]
pub enum Origin<'b> {
    /// It is handed in now: what is wrong with it is refused, and so is what costs more than the budget to
    /// read.
    Submitted(&'b Budget),
    /// It was accepted before, perhaps by a version that took more. An expression that is wrong today must not
    /// keep its task from being read: it fails when it is evaluated.
    Stored,
}

/// A bare condition such as `input.total > 0`.
#[derive(Debug)]
pub struct Expression(Code);

impl Expression {
    /// The error says what is wrong with the source and what to write instead.
    pub fn parse(source: &str, origin: Origin<'_>) -> Result<Self, String> {
        if source.trim_start().starts_with("{{") || source.contains("{%") {
            return Err("a condition has no braces: remove them".to_owned());
        }
        Code::parse(source, origin).map(Self)
    }

    /// By truthiness: false, null, zero and what is empty are false.
    pub fn truth(&self, scope: &Scope<'_>) -> Result<bool, RenderError> {
        self.0.with(scope, |value| value.truth())
    }

    /// What it gives, as JSON.
    pub fn payload(&self, scope: &Scope<'_>) -> Result<Payload, RenderError> {
        if let Some(whole) = self.0.whole(scope) {
            return Ok(whole.clone());
        }
        let json = self.0.with(scope, |value| {
            let mut out = Out::new(scope.budget);
            out.json(&value)?;
            Ok(out.text)
        })?;
        // What was written as JSON is JSON.
        Ok(Payload::parse(json).unwrap_or_else(Payload::null))
    }

    /// As it was written.
    pub fn source(&self) -> &str {
        self.0.source()
    }

    pub fn reads(&self) -> &Reads {
        self.0.reads()
    }
}
