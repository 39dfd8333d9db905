//! The iterations of a step with `repeat`: each of them is an item of its group, which comes to be when it begins. After one
//! has ended, `until` says whether another follows. A command begins one iteration at most, so that none takes long.

use std::sync::Arc;

use super::{Draft, items::NO_END};
use crate::{
    definition::{Policy, RepeatOutput},
    task::{
        aggregate::Task,
        alert::AlertChange,
        command::Refusal,
        expansion::{ItemGroup, KnownItems},
        positions::Positions,
        step::{Step, StepState, StepStatus},
    },
    template::{Scope, payload::Payload},
    values::{
        fault::{Fault, FaultKind},
        ids::StepIndex,
        time::{Span, Timestamp},
    },
};

/// The ways for an operator to continue where `at_most` iterations are used up.
const TO_GO_ON: &str = "retry the step for as many more, or skip or resolve it";

impl Draft {
    /// A pending group begins: its first iteration does, also where it has had some before. True if it is done already.
    pub(super) fn begin_repeat(&mut self, group: StepIndex) -> bool {
        let at_most = self.task.iterations_at_once(group).and_then(|at_most| {
            self.set_most_iterations(group, at_most)?;
            Ok(at_most)
        });
        let at_most = match at_most {
            Ok(at_most) => at_most,
            Err(message) => return self.cannot_begin(group, message),
        };
        self.hold_group(group, &format!("it is repeated, at most {at_most} times"));
        self.go_on(group)
    }

    /// So many iterations may begin, with those that have. The error says why not.
    fn set_most_iterations(&mut self, group: StepIndex, at_most: u16) -> Result<(), String> {
        let items = self.task.group(group).map(|group| group.items.clone());
        self.record_iterations(group, at_most, items.unwrap_or_default())
    }

    fn record_iterations(
        &mut self,
        group: StepIndex,
        at_most: u16,
        items: Positions,
    ) -> Result<(), String> {
        let known = KnownItems::Iterations { at_most };
        let iterations = ItemGroup::new(group, known, items);
        self.check_items(&iterations)
            .map_err(|message| format!("it may be repeated {at_most} times{message}"))?;
        let saved = iterations.to_record(None);
        let expansion = self.expanded(iterations);
        self.task.expansion = Some(Arc::new(expansion.ok_or("it has too many iterations")?));
        self.task.step_mut(group).body = Some(saved);
        self.touch(group);
        Ok(())
    }

    /// Adds an iteration to the task.
    fn add_iteration(&mut self, group: StepIndex) -> Result<StepIndex, String> {
        let known = self.task.group(group);
        let at_most = known.and_then(ItemGroup::at_most).unwrap_or_default();
        let mut items = known.map_or_else(Positions::default, |known| known.items.clone());
        let at = self.task.steps.len();
        items.push(at..at + 1);
        self.record_iterations(group, at_most, items)?;
        self.task.steps.push_items([Step::new()]);
        // Counted by `Expansion::of`.
        let index = StepIndex(at as u16);
        self.touch(index);
        Ok(index)
    }

    /// Begins the next iteration, if none is running. True if the group is done.
    pub(super) fn go_on(&mut self, group: StepIndex) -> bool {
        if self.task.undo.is_some() {
            return false;
        }
        let next = self.task.next_iteration(group);
        let is_free = |index: &StepIndex| self.task.step(*index).status() == StepStatus::Waiting;
        if !next.as_ref().is_none_or(is_free) {
            return false;
        }
        match self.task.step(group).status() {
            StepStatus::Processing => self.set_next_begin(group, NO_END),
            StepStatus::Error => self.hold_group_again(group, "it goes on"),
            _ => return false,
        }
        let next = match next {
            Some(next) => next,
            None => match self.add_iteration(group) {
                Ok(next) => next,
                Err(message) => {
                    return self.end_badly(group, None, FaultKind::Permanent, message);
                }
            },
        };
        let pending = StepState::Pending { ready_at: self.now };
        self.change(next, "step.ready", pending, None);
        if self.task.definition(next).is_call() {
            self.offer(next);
            return false;
        }
        self.await_event(next);
        match self.task.step(next).status() {
            StepStatus::Error | StepStatus::Processed | StepStatus::Skipped => {
                self.iteration_ended(next, true)
            }
            _ => false,
        }
    }

    /// An iteration has ended, or failed: `until` says whether another follows. `at_once`: it began with the same command.
    /// True if the group is done.
    pub(super) fn iteration_ended(&mut self, index: StepIndex, at_once: bool) -> bool {
        let definition = self.task.definition(index);
        let Some(group) = definition.item.map(|item| item.group) else {
            return false;
        };
        if self.task.undo.is_some() {
            return false;
        }
        let name = definition.name.clone();
        match (
            self.task.step(index).status(),
            self.task.step(group).status(),
        ) {
            (StepStatus::Error, StepStatus::Processing) => {
                let message =
                    format!("its iteration {name} is in error: retry, skip or resolve that one");
                let fault = Fault::permanent(message, self.now);
                self.change(group, "step.error", StepState::Error(fault), None);
                return false;
            }
            (StepStatus::Processed | StepStatus::Skipped, StepStatus::Processing) => {}
            (StepStatus::Processed | StepStatus::Skipped, StepStatus::Error) => {
                self.hold_group_again(group, "it goes on");
            }
            _ => return false,
        }
        let every = self.task.definition(group).repeat();
        let every = every.map(|rule| rule.every).unwrap_or_default();
        match self.is_last_iteration(group, index) {
            Ok(true) => {
                let output = self.output_of_repeat(group, index);
                self.leave_out_items(group, "it is not repeated again");
                self.event_came(group, output.unwrap_or_else(Payload::null));
                true
            }
            Ok(false) if !self.task.has_iterations_left(group) => {
                let at_most = self.task.group(group).and_then(ItemGroup::at_most);
                let message = match at_most {
                    Some(1) => format!("`until` was not true after 1 iteration: {TO_GO_ON}"),
                    at_most => {
                        let at_most = at_most.unwrap_or_default();
                        format!("`until` was not true after {at_most} iterations: {TO_GO_ON}")
                    }
                };
                self.end_badly(group, Some(index), FaultKind::Exhausted, message)
            }
            Ok(false) if every == Span::default() && !at_once => self.go_on(group),
            Ok(false) => {
                self.set_next_begin(group, self.now + every);
                false
            }
            Err(message) => {
                let message = format!("after {name}: {message}");
                self.end_badly(group, Some(index), FaultKind::Permanent, message)
            }
        }
    }

    /// Returns whether `until` is true of an iteration. An iteration that was left out decides nothing.
    fn is_last_iteration(&self, group: StepIndex, index: StepIndex) -> Result<bool, String> {
        let (Some(rule), Some(iterations), Some(item)) = (
            self.task.definition(group).repeat(),
            self.task.group(group),
            self.task.definition(index).item,
        ) else {
            return Err("it has no `repeat`".to_owned());
        };
        let Some(output) = self.task.step(index).output() else {
            return Ok(false);
        };
        rule.is_over(&Scope {
            output: Some(output),
            item: Some(self.task.seen_iteration(iterations, item.number)),
            ..self.task.scope(group, &self.budget)
        })
    }

    /// `last`: the last iteration.
    fn output_of_repeat(&self, group: StepIndex, last: StepIndex) -> Option<Payload> {
        let rule = self.task.definition(group).repeat()?;
        match rule.output {
            RepeatOutput::Last => self.task.step(last).output().cloned(),
            RepeatOutput::All => {
                let number = self.task.definition(last).item?.number;
                Some(self.outputs_of(group, usize::from(number) + 1))
            }
        }
    }

    /// It ends without `until` being true. `last`: the last iteration. True if the steps after it may go on.
    fn end_badly(
        &mut self,
        group: StepIndex,
        last: Option<StepIndex>,
        kind: FaultKind,
        message: String,
    ) -> bool {
        let definition = self.task.definition(group);
        let policy = match (kind, definition.repeat()) {
            (FaultKind::Exhausted, Some(rule)) => rule.on_exhausted,
            // The value that `until` would have had is not known.
            _ if definition.on_permanent == Policy::Undo => Policy::Undo,
            _ => Policy::Error,
        };
        let fault = Fault::new(kind, message, self.now);
        if policy != Policy::Skip {
            self.give_up_alone(group, policy, fault);
            return false;
        }
        let output = last.and_then(|last| self.output_of_repeat(group, last));
        let reason = format!("its policy is skip: {}", fault.message);
        self.task.step_mut(group).last_fault = Some(fault);
        self.leave_out_items(group, "its group is skipped");
        let skipped = StepState::Skipped {
            output,
            at: self.now,
        };
        self.change(group, "step.skipped", skipped, Some(reason));
        true
    }

    /// When the next iteration begins. What ends the wait is the supervisor, as with a step that waits for a time.
    fn set_next_begin(&mut self, group: StepIndex, at: Timestamp) {
        if let StepState::Processing { complete_by, .. } = &mut self.task.step_mut(group).state
            && *complete_by != at
        {
            *complete_by = at;
            self.touch(group);
        }
    }

    /// The time has come at which the next iteration begins.
    pub(super) fn iteration_is_due(&mut self, group: StepIndex) {
        self.set_next_begin(group, NO_END);
        if self.task.is_repeated(group) && self.go_on(group) {
            self.open_followers(group);
        }
    }

    /// Skips the items and iterations that do not begin, or do not continue, because their group has ended. What a group did
    /// before a rerun may leave some.
    pub(super) fn leave_out_items(&mut self, group: StepIndex, reason: &str) {
        let items = self.task.group(group).map(|group| group.items.clone());
        for at in items.unwrap_or_default().iter() {
            // There are at most as many steps as an index can count.
            let index = StepIndex(at as u16);
            match self.task.step(index).status() {
                StepStatus::Processed
                | StepStatus::Skipped
                | StepStatus::Cancelled
                | StepStatus::Undone => continue,
                StepStatus::Processing if self.task.definition(index).is_call() => continue,
                StepStatus::Error => self.alerts.push(AlertChange::Close { step: index }),
                StepStatus::Waiting | StepStatus::Pending | StepStatus::Processing => {}
            }
            self.ready.retain(|ready| *ready != index);
            let skipped = StepState::Skipped {
                output: None,
                at: self.now,
            };
            self.change(index, "step.skipped", skipped, Some(reason.to_owned()));
        }
    }

    /// Checks that an operator can continue a group that has no iteration in error: at once instead of later, or
    /// although `until` was not true in time, or could not be evaluated.
    pub(super) fn check_goes_on(&self, group: StepIndex) -> Result<(), Refusal> {
        if !self.task.is_repeated(group) {
            return match self.skipped_items(group).is_empty() && !self.has_waiting_items(group) {
                true => Err(self.refuse_step(
                    group,
                    "none of its items can be tried again: skip or resolve the group itself",
                )),
                false => Ok(()),
            };
        }
        let is_due_later = matches!(self.task.step(group).state,
            StepState::Processing { complete_by, .. } if complete_by != NO_END);
        if !is_due_later && self.task.step(group).status() != StepStatus::Error {
            return Err(self.refuse_step(
                group,
                "no iteration of it is in error, and it does not wait for the next one",
            ));
        }
        let Some(iterations) = self.task.group(group) else {
            return Ok(());
        };
        let known = KnownItems::Iterations {
            at_most: self.task.more_iterations(group),
        };
        let more = ItemGroup::new(group, known, iterations.items.clone());
        self.check_items(&more).map_err(|_| {
            self.refuse_step(
                group,
                "a task has at most 10,000 items and iterations: skip or resolve it",
            )
        })
    }

    /// After [`Draft::check_goes_on`].
    pub(super) fn have_go_on(&mut self, group: StepIndex, reason: Option<String>) {
        if !self.task.is_repeated(group) {
            self.try_skipped_items_again(group, reason);
            return;
        }
        let at_most = self.task.more_iterations(group);
        // Checked before.
        let _ = self.set_most_iterations(group, at_most);
        if self.task.step(group).status() == StepStatus::Error {
            let reason = reason.unwrap_or_else(|| "it goes on".to_owned());
            self.hold_group_again(group, &reason);
        } else {
            let reason = reason.unwrap_or_else(|| "its next iteration begins now".to_owned());
            self.note(group, "step.retried", reason);
        }
        if self.go_on(group) {
            self.open_followers(group);
        }
    }
}

impl Task {
    /// Returns whether the step is one with `repeat`: its items are iterations.
    pub fn is_repeated(&self, index: StepIndex) -> bool {
        self.definition(index).repeat().is_some()
    }

    /// Returns the first iteration that is not done. `None`: it has not been made yet.
    pub(super) fn next_iteration(&self, group: StepIndex) -> Option<StepIndex> {
        let items = &self.group(group)?.items;
        // From the last one: only after a rerun there are iterations that were made before and are not done.
        let mut open = None;
        for at in items.iter().rev() {
            if self.steps[at].is_done() {
                break;
            }
            // There are at most as many steps as an index can count.
            open = Some(StepIndex(at as u16));
        }
        open
    }

    /// Returns whether another iteration may begin.
    fn has_iterations_left(&self, group: StepIndex) -> bool {
        let Some(iterations) = self.group(group) else {
            return false;
        };
        let at_most = usize::from(iterations.at_most().unwrap_or_default());
        self.iterations_done(group) < at_most
    }

    fn iterations_done(&self, group: StepIndex) -> usize {
        let counts = self
            .group(group)
            .map(|group| self.steps.counts_of(&group.items));
        counts.map_or(0, |counts| counts.done() as usize)
    }

    /// Returns the number of iterations that may begin after an operator's retry: as many again if they are used up.
    fn more_iterations(&self, group: StepIndex) -> u16 {
        let at_most = self.group(group).and_then(ItemGroup::at_most);
        let at_most = at_most.unwrap_or_default();
        match self.has_iterations_left(group) {
            true => at_most,
            false => {
                // A rerun may have added iterations to those that were used up. An index has 16 bits.
                let done = u16::try_from(self.iterations_done(group)).unwrap_or(u16::MAX);
                let more = self.iterations_at_once(group).unwrap_or(0);
                at_most.max(done).saturating_add(more)
            }
        }
    }

    /// Returns whether a group is in error although no item of it is: an operator retries, skips or resolves the group
    /// itself.
    pub(super) fn is_itself_in_error(&self, group: StepIndex) -> bool {
        let failed = |group: &ItemGroup| self.steps.counts_of(&group.items);
        self.step(group).status() == StepStatus::Error
            && self
                .group(group)
                .map(failed)
                .is_none_or(|counts| counts.count(StepStatus::Error) == 0 && counts.live() == 0)
    }

    /// When the next iteration of a step with `repeat` begins, while it waits for that.
    pub fn next_begin(&self, group: StepIndex) -> Option<Timestamp> {
        match self.step(group).state {
            StepState::Processing { complete_by, .. }
                if self.is_repeated(group) && complete_by != NO_END =>
            {
                Some(complete_by)
            }
            _ => None,
        }
    }
}
