//! The lanes of a definition's races: the steps that only one competitor of a race needs, and which end where it loses.

use std::sync::Arc;

use super::{
    race::{Lane, RaceRest},
    step::ParsedStep,
};
use crate::values::{fields::FieldFault, ids::StepIndex};

/// The races of a definition, by the position of their joins.
pub(super) struct Races {
    /// For each join its competitors, with the steps that only each of them needs.
    lanes: Vec<(usize, RaceRest, Vec<(usize, Vec<usize>)>)>,
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
            *rest == RaceRest::Undo && own.iter().any(|(_, lane)| lane.contains(&step))
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
