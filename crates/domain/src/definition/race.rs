//! A join that needs fewer than all of the steps before it: `"after": { "any": 1, "of": ["eu", "us"], "rest": "cancel" }`.
//! These steps compete. Once enough of them have succeeded, the join begins, and `rest` says what becomes of the others.

use std::sync::Arc;

use super::{StepDefinition, StepRule, step::ParsedStep};
use crate::values::{
    fields::{FieldFault, Fields},
    ids::{StepIndex, StepName},
};

/// The suffix of the name of the step that undoes one that has lost, after that step's name.
pub(super) const REVERT: &str = ".revert";

/// What becomes of the competitors that are not needed any more.
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
pub enum Rest {
    /// They are cancelled, and their calls dropped. An effect that they had stays until the task is undone.
    #[default]
    Cancel,
    /// They go on, and the task ends after them.
    Let,
    /// They are cancelled, calls in flight are waited for, and what took effect is undone.
    Undo,
}

impl Rest {
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
    pub rest: Rest,
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
    rest: Rest,
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
    if let (Some(any), Some(of)) = (any, &of)
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
    let rest = fields.choice("rest", Rest::ALL);
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

/// The races of a definition, by the position of their joins.
pub(super) struct Races {
    /// For each join its competitors, with the steps that only each of them needs.
    lanes: Vec<(usize, Rest, Vec<(usize, Vec<usize>)>)>,
}

impl Races {
    /// Finds the lanes of all competitors, and checks that nothing waits for a step that may be cancelled.
    pub fn of(
        drafts: &[ParsedStep],
        after: &[Vec<usize>],
        followers: &[Vec<usize>],
        order: &[usize],
        faults: &mut Vec<FieldFault>,
    ) -> Self {
        let mut lanes = Vec::new();
        for (join, draft) in drafts.iter().enumerate() {
            let Some(race) = &draft.race else {
                continue;
            };
            if race.rest == Rest::Let {
                continue;
            }
            let pointer = format!("{}/after", draft.pointer);
            let mut own = Vec::new();
            for competitor in after[join].iter().copied() {
                if let Some(other) = followers[competitor].iter().find(|other| **other != join) {
                    faults.push(FieldFault::new(
                        &pointer,
                        format!(
                            "`{}` also comes before `{}`, which would never begin once it is cancelled: let that step follow `{}`, or set `rest` to \"let\"",
                            drafts[competitor].label(),
                            drafts[*other].label(),
                            draft.label(),
                        ),
                    ));
                }
                let lane = lane(competitor, followers, order);
                for step in &lane {
                    if let Some(why) = drafts[*step].is_no_competitor(race.rest) {
                        faults.push(FieldFault::new(
                            &pointer,
                            format!("`{}` {why}", drafts[*step].label()),
                        ));
                    }
                }
                own.push((competitor, lane));
            }
            lanes.push((join, race.rest, own));
        }
        Self { lanes }
    }

    /// Returns the lanes that a step belongs to.
    pub fn of_step(&self, step: usize) -> Arc<[Lane]> {
        let mut found = Vec::new();
        for (join, _, own) in &self.lanes {
            for (competitor, lane) in own {
                if lane.contains(&step) {
                    // There are at most as many steps as an index can count.
                    found.push(Lane {
                        join: StepIndex(*join as u16),
                        competitor: StepIndex(*competitor as u16),
                    });
                }
            }
        }
        found.into()
    }

    /// Returns whether a race says that the effects of the step are undone where it loses.
    pub fn has_undone(&self, step: usize) -> bool {
        self.lanes.iter().any(|(_, rest, own)| {
            *rest == Rest::Undo && own.iter().any(|(_, lane)| lane.contains(&step))
        })
    }
}

/// Returns the competitor and the steps that nothing but it needs.
fn lane(competitor: usize, followers: &[Vec<usize>], order: &[usize]) -> Vec<usize> {
    let mut is_in = vec![false; followers.len()];
    is_in[competitor] = true;
    for step in order.iter().rev().copied() {
        let own = &followers[step];
        if !own.is_empty() && own.iter().all(|follower| is_in[*follower]) {
            is_in[step] = true;
        }
    }
    (0..followers.len()).filter(|step| is_in[*step]).collect()
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
