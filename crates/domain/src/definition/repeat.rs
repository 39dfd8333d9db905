//! `repeat`: a step that is run again until a condition is true. Each run is an iteration, which is an item of the
//! group that the step of the definition is.

use std::ops::RangeInclusive;

use super::{FromInput, Policy, from_input};
use crate::{
    template::{Expression, Origin, Reads, Scope},
    values::{fields::Fields, time::Span},
};

/// The largest number of iterations that a step can ask for.
pub(crate) const MOST_ITERATIONS: u16 = 1000;
/// The limits of the time between two iterations.
const EVERY: RangeInclusive<Span> = Span::from_secs(0)..=Span::LONGEST;

/// The names that the expressions of an iteration see besides the usual ones.
pub(super) const SEEN_BY_ITERATION: [&str; 2] = ["previous", "index"];
/// The names that `until` sees.
pub(super) const SEEN_BY_UNTIL: [&str; 6] =
    ["input", "task", "steps", "output", "previous", "index"];

#[derive(Debug)]
pub struct RepeatRule {
    /// Evaluated with the output of each iteration. If it is true, there is no further iteration.
    pub until: Expression,
    /// The largest number of iterations. An operator can allow more when they are used up.
    pub at_most: u16,
    /// Gives the number by the input; `at_most` is the maximum then.
    pub at_most_from: Option<FromInput<u16>>,
    /// The time from the end of an iteration to the begin of the next.
    pub every: Span,
    /// The policy for the case that `at_most` iterations have ended, and `until` was not true.
    pub on_exhausted: Policy,
    pub output: RepeatOutput,
}

/// The output of the group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum RepeatOutput {
    /// The output of the last iteration.
    #[default]
    Last,
    /// The list of the outputs of all iterations.
    All,
}

impl RepeatOutput {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// The field `repeat` as it was read.
pub(super) struct RepeatDraft {
    until: Option<Expression>,
    at_most: Option<u16>,
    pub at_most_from: Option<FromInput<u16>>,
    every: Span,
    pub on_exhausted: Option<Policy>,
    output: RepeatOutput,
}

/// Reads `repeat`, and collects the names that its condition reads.
pub(super) fn read(
    step: &mut Fields<'_>,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
) -> Option<RepeatDraft> {
    let mut fields = step.object("repeat")?;
    for (field, remedy) in [
        (
            "until",
            "give the condition under which it is not repeated again, such as \"output.state == 'done'\"",
        ),
        ("at_most", "say how often it is run at most, from 1 to 1000"),
    ] {
        if fields.peek(field).is_none() {
            fields.missing(field, remedy);
        }
    }
    let source = fields.string("until", usize::MAX);
    let until = source.and_then(|source| match Expression::parse(&source, origin) {
        Ok(expression) => {
            reads.push((fields.pointer("until"), expression.reads().clone()));
            Some(expression)
        }
        Err(message) => {
            fields.fault("until", message);
            None
        }
    });
    let (at_most, at_most_from) =
        from_input::number(&mut fields, "at_most", 1..=MOST_ITERATIONS, origin);
    let draft = RepeatDraft {
        until,
        at_most,
        at_most_from,
        every: fields.span("every", EVERY).unwrap_or_default(),
        on_exhausted: fields.choice("on_exhausted", Policy::ALL),
        output: fields
            .choice("output", RepeatOutput::ALL)
            .unwrap_or_default(),
    };
    if let Err(faults) = fields.finish() {
        step.extend(faults);
    }
    Some(draft)
}

impl RepeatDraft {
    pub fn finish(self, on_exhausted: Policy) -> Option<RepeatRule> {
        Some(RepeatRule {
            until: self.until?,
            at_most: self.at_most?,
            at_most_from: self.at_most_from,
            every: self.every,
            on_exhausted: self.on_exhausted.unwrap_or(on_exhausted),
            output: self.output,
        })
    }
}

impl RepeatRule {
    /// Returns whether the iteration whose output is in the scope was the last one. The error text is for an operator:
    /// the definition or the data is wrong.
    pub fn is_over(&self, scope: &Scope<'_>) -> Result<bool, String> {
        let truth = self.until.truth(scope);
        truth.map_err(|error| format!("`until` could not be evaluated: {error}"))
    }
}
