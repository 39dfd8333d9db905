//! A join that needs fewer than all of the steps before it: `"after": { "any": 1, "of": ["eu", "us"], "rest": "cancel" }`.
//! These steps compete. Once enough of them have succeeded, the join begins, and `rest` says what becomes of the others.

use std::sync::Arc;

use super::{StepDefinition, StepRule};
use crate::values::{
    fields::Fields,
    ids::{StepIndex, StepName},
};

/// The suffix of the name of the step that undoes one that has lost, after that step's name.
pub(super) const REVERT: &str = ".revert";

/// The fate of the competitors that are not needed any more.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Default,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum RaceRest {
    /// They are cancelled, and their calls dropped. An effect that they had stays until the task is undone.
    #[default]
    Cancel,
    /// They go on, and the task ends after them.
    Let,
    /// They are cancelled, calls in flight are waited for, and what took effect is undone.
    Undo,
}

impl RaceRest {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// The rule of a join that needs `any` of the steps `of`, which are the steps that it follows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RaceRule {
    pub any: u16,
    pub of: Arc<[StepIndex]>,
    pub rest: RaceRest,
}

/// A step that is needed by one competitor of a race alone: the competitor itself, or a step before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lane {
    pub join: StepIndex,
    pub competitor: StepIndex,
}

/// The field `after` of a join as it was read.
pub(super) struct RaceDraft {
    any: u16,
    pub rest: RaceRest,
}

/// Reads the object form of `after`. Returns the names of the competitors as well.
pub(super) fn read(
    step: &mut Fields<'_>,
    names: impl Fn(&mut Fields<'_>, &'static str) -> Option<Vec<(String, String)>>,
) -> Option<(RaceDraft, Vec<(String, String)>)> {
    let mut fields = step.object("after")?;
    for (field, remedy) in [
        (
            "any",
            "give the number of steps that must succeed, such as 1",
        ),
        ("of", "give the names of the steps that compete"),
    ] {
        if !fields.has(field) {
            fields.missing(field, remedy);
        }
    }
    let any = fields.integer("any", 1..=1000);
    let of = names(&mut fields, "of");
    if of.as_ref().is_some_and(Vec::is_empty) {
        fields.fault("of", "is empty: name the steps that compete");
    } else if let (Some(any), Some(of)) = (any, &of)
        && any > of.len() as i64
    {
        fields.fault(
            "any",
            format!(
                "needs {any} steps, and `of` names {}: name more, or need fewer",
                of.len()
            ),
        );
    }
    let rest = fields.choice("rest", RaceRest::ALL);
    if let Err(faults) = fields.finish() {
        step.extend(faults);
        return None;
    }
    let draft = RaceDraft {
        // The value is within 1 to 1000.
        any: any? as u16,
        rest: rest.unwrap_or_default(),
    };
    Some((draft, of?))
}

impl RaceDraft {
    pub fn finish(self, of: Arc<[StepIndex]>) -> RaceRule {
        RaceRule {
            any: self.any,
            of,
            rest: self.rest,
        }
    }
}

impl StepDefinition {
    /// Makes the step that undoes one where that has lost a race. It waits for the steps `after`.
    pub(super) fn of_revert(
        step: &StepName,
        undoes: StepIndex,
        after: Arc<[StepIndex]>,
        followers: Arc<[StepIndex]>,
        rule: Arc<StepRule>,
    ) -> Self {
        Self {
            after,
            followers,
            ..Self::of_undo(StepName::new(format!("{step}{REVERT}")), undoes, None, rule)
        }
    }
}
