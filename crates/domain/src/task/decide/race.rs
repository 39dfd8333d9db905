//! The end of a race: the competitors that are not needed any more end, and what they did is undone where the race says so.

use super::Draft;
use crate::{
    definition::RaceRest,
    task::{
        alert::AlertChange,
        step::{StepState, StepStatus},
    },
    values::{fault::Fault, ids::StepIndex},
};

impl Draft {
    /// Ends what the race before a join leaves over. Returns the steps that undo some of it, which are to be opened.
    pub(super) fn end_race(&mut self, join: StepIndex) -> Vec<StepIndex> {
        if self.task.definition(join).race.is_none() || !self.task.is_race_over(join) {
            return Vec::new();
        }
        let definition = self.task.details.definition.clone();
        let is_in = |index: &StepIndex| {
            let lanes = definition.step(*index).lanes.iter();
            lanes.clone().any(|lane| lane.join == join)
        };
        let lanes: Vec<_> = definition.order.iter().copied().filter(is_in).collect();
        let name = &definition.step(join).name;
        let reason = format!("{name} does not need it any more");
        // Backward, so that no step is opened by the end of one before it.
        for index in lanes.iter().rev().copied() {
            if let Some(rest) = self.task.loss(index) {
                self.end_loser(index, rest, &reason);
            }
        }
        let reverts = lanes.iter().rev().flat_map(|index| {
            let followers = definition.step(*index).followers.iter().copied();
            followers.filter(|follower| definition.step(*follower).undoes.is_some())
        });
        reverts.collect()
    }

    /// Ends the steps of another version that are not needed from the beginning: their race is over, or a step has ended the
    /// task.
    pub(super) fn end_all_lost(&mut self) {
        for index in self.task.details.definition.forward() {
            for revert in self.end_race(index) {
                self.open(revert);
            }
            self.end_by_stop(index);
        }
    }

    /// The task ends as processed, because a step says so: the steps that have not ended are cancelled.
    pub(super) fn end_by_stop(&mut self, stop: StepIndex) {
        let is_done = self.task.step(stop).status() == StepStatus::Processed;
        if !is_done || !self.task.definition(stop).stops_as_processed() {
            return;
        }
        let definition = self.task.details.definition.clone();
        let reason = format!("{} has ended the task", definition.step(stop).name);
        for index in definition.order.iter().rev().copied() {
            // A race that ends with its join may have the step undone.
            if let Some(rest) = self.task.loss(index) {
                self.end_loser(index, rest, &reason);
            }
        }
        // The losers of races are still to be undone.
        for index in definition.order.iter().copied() {
            if self.task.is_revert(index) {
                self.open(index);
            }
        }
    }

    /// Ends the items of a list that are not needed any more.
    pub(super) fn end_items_left(&mut self, group: StepIndex) {
        let Some(items) = self.task.group(group).cloned() else {
            return;
        };
        let reason = "enough items have succeeded";
        self.end_unbegun_items_of(&items, reason);
        for item in items.items.iter() {
            // There are at most as many steps as an index can count.
            self.end_loser(StepIndex(item as u16), RaceRest::Cancel, reason);
        }
    }

    fn end_loser(&mut self, index: StepIndex, rest: RaceRest, reason: &str) {
        if let Some(group) = self.task.group(index).cloned() {
            self.end_unbegun_items_of(&group, reason);
            for item in group.items.iter() {
                // There are at most as many steps as an index can count.
                self.end_loser(StepIndex(item as u16), rest, reason);
            }
        }
        match self.task.step(index).status() {
            StepStatus::Waiting | StepStatus::Pending => {}
            StepStatus::Error => self.alerts.push(AlertChange::Close { step: index }),
            StepStatus::Processing if self.task.definition(index).is_call() => {
                if rest == RaceRest::Undo || self.task.definition(index).pivot {
                    // Its call is waited for, so that its outcome is known.
                    return;
                }
                if self.task.is_withdrawn(index) {
                    return;
                }
                let why = Fault {
                    unwanted: true,
                    ..Fault::permanent(reason, self.now)
                };
                if !self.withdraw(index, why) {
                    self.note_withdrawal(index, reason.to_owned());
                    return;
                }
                self.effect_is_unknown(index);
            }
            StepStatus::Processing
                if self.task.waits_for_child(index) && self.task.step(index).child.is_some() =>
            {
                // The child is undone first, whatever it has done by then.
                self.touch(index);
                return;
            }
            StepStatus::Processing => {}
            StepStatus::Processed
            | StepStatus::Skipped
            | StepStatus::Cancelled
            | StepStatus::Undone => return,
        }
        self.ready.retain(|ready| *ready != index);
        self.abandon(index, reason);
    }

    /// A step that has lost has ended: what undoes it may begin.
    pub(super) fn open_reverts(&mut self, lost: StepIndex) {
        let followers = self.task.definition(lost).followers.clone();
        for follower in &*followers {
            if self.task.is_revert(*follower) {
                self.open(*follower);
            }
        }
    }

    /// Ends a step that has lost and whose last attempt has failed.
    pub(super) fn lose_with(&mut self, index: StepIndex, fault: Fault) {
        let reason = fault.message.clone();
        self.task.step_mut(index).last_fault = Some(fault);
        self.abandon(index, &reason);
        self.open_reverts(index);
    }

    /// Begins to undo a step that has lost, or passes that over. Returns whether it is passed over.
    pub(super) fn begin_revert(&mut self, revert: StepIndex) -> bool {
        let subject = self.task.subject(revert);
        let name = &self.task.definition(subject).name;
        let why_not = match self.task.loss(subject) {
            Some(RaceRest::Undo) if self.task.step(subject).may_have_taken_effect() => None,
            Some(RaceRest::Undo) => Some(format!("{name} never took effect")),
            _ => Some(format!("{name} is needed")),
        };
        match why_not {
            Some(reason) => {
                self.pass_over(revert, reason);
                true
            }
            None => {
                let pending = StepState::Pending { ready_at: self.now };
                self.change(revert, "step.ready", pending, None);
                if self.task.definition(revert).is_call() {
                    self.offer(revert);
                } else {
                    self.await_event(revert);
                }
                false
            }
        }
    }

    /// Returns whether a join can no longer begin, and applies its policy then.
    pub(super) fn give_up_race(&mut self, join: StepIndex) -> bool {
        let Some(race) = self.task.definition(join).race.clone() else {
            return false;
        };
        if self.task.is_won(&race) || !self.task.cannot_be_won(&race) {
            return false;
        }
        let condition = self.task.definition(join).when.clone();
        let scope = self.task.scope(join, &self.budget);
        if condition.is_some_and(|condition| condition.truth(&scope) == Ok(false)) {
            // It is in a block that does not run, as its competitors are.
            self.pass_over(join, "its condition is false".to_owned());
            return true;
        }
        let message = match (race.any, race.of.len()) {
            (1, _) => "none of the steps that it needs one of can still succeed".to_owned(),
            (any, all) => format!("it needs {any} of {all} steps, and fewer can still succeed"),
        };
        let policy = self.task.definition(join).on_permanent;
        self.give_up(join, policy, Fault::permanent(message, self.now));
        true
    }
}
