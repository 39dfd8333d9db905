//! The lanes of a definition's races: the steps that only one competitor of a race needs, and which end where it loses.

use std::sync::Arc;

use super::{
    race::{Lane, RaceRest},
    step::ParsedStep,
};
use crate::values::{fields::FieldFault, ids::StepIndex};

/// The races of a definition, by the position of their joins.
pub(super) struct Races {
    lanes: Vec<LaneSteps>,
}

/// A competitor with the steps that only it needs, in the order of their positions.
struct LaneSteps {
    join: usize,
    competitor: usize,
    rest: RaceRest,
    steps: Vec<usize>,
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
            if race.rest == RaceRest::Let {
                continue;
            }
            let pointer = format!("{}/after", draft.pointer);
            for competitor in after[join].iter().copied() {
                if let Some(other) = followers[competitor].iter().find(|other| **other != join) {
                    let is_race = drafts[*other].race.is_some();
                    if is_race {
                        faults.push(FieldFault::new(
                            &pointer,
                            format!(
                                "`{}` also competes before `{}`, and only one race can end it: set `rest` of both to \"let\"",
                                drafts[competitor].label(),
                                drafts[*other].label(),
                            ),
                        ));
                        continue;
                    }
                    faults.push(FieldFault::new(
                        &pointer,
                        format!(
                            "`{}` also comes before `{}`, which would never begin once it is cancelled: let that step follow `{}`, or set `rest` to \"let\"",
                            drafts[competitor].label(),
                            drafts[*other].label(),
                            draft.label(),
                        ),
                    ));
                    continue;
                }
                let steps = steps_of(competitor, followers, order);
                for step in &steps {
                    if let Some(why) = drafts[*step].is_no_competitor(race.rest) {
                        faults.push(FieldFault::new(
                            &pointer,
                            format!("`{}` {why}", drafts[*step].label()),
                        ));
                    }
                }
                lanes.push(LaneSteps {
                    join,
                    competitor,
                    rest: race.rest,
                    steps,
                });
            }
        }
        Self { lanes }
    }

    /// Returns the lanes that a step belongs to.
    pub fn of_step(&self, step: usize) -> Arc<[Lane]> {
        let own = self.lanes.iter().filter(|lane| lane.has(step));
        // There are at most as many steps as an index can count.
        let index = |position: usize| StepIndex(position as u16);
        own.map(|lane| Lane {
            join: index(lane.join),
            competitor: index(lane.competitor),
        })
        .collect()
    }

    /// Returns whether a race says that the effects of the step are undone where it loses.
    pub fn has_undone(&self, step: usize) -> bool {
        let mut own = self.lanes.iter().filter(|lane| lane.has(step));
        own.any(|lane| lane.rest == RaceRest::Undo)
    }
}

impl LaneSteps {
    fn has(&self, step: usize) -> bool {
        self.steps.binary_search(&step).is_ok()
    }
}

/// Returns the competitor and the steps that nothing but it needs.
fn steps_of(competitor: usize, followers: &[Vec<usize>], order: &[usize]) -> Vec<usize> {
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
