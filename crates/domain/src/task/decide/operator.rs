//! The commands of an operator, or of the submitter, for a task.

use super::{CommandOutput, Draft};
use crate::{
    task::{
        aggregate::TaskState,
        alert::AlertChange,
        command::Refusal,
        step::{StepState, StepStatus},
    },
    template::payload::Payload,
    values::{
        fault::{Effect, Fault},
        ids::{StepIndex, StepName},
    },
};

/// The message of the fault of a step that an operator has cancelled. It is one for all reasons, so that all have one cause.
const CANCELLED: &str = "an operator has cancelled it";

impl Draft {
    /// Resubmits a failed step with its failures forgotten, or one that waits for a later time.
    /// Without a step: every step in error.
    pub(super) fn retry(
        &mut self,
        step: Option<StepIndex>,
        body: Option<Payload>,
        reason: Option<String>,
    ) -> Result<(), Refusal> {
        let chosen: Vec<StepIndex> = match step {
            Some(index) => {
                self.check_current(index)?;
                if self.task.has_items(index) {
                    return self.retry_items(index, body.is_some(), reason);
                }
                let waits = matches!(self.task.step(index).state,
                    StepState::Pending { ready_at } if ready_at > self.now);
                if !waits && self.task.step(index).status() != StepStatus::Error {
                    return Err(self.refuse_step(
                        index,
                        "only a step in error, or one that waits for a retry, can be retried",
                    ));
                }
                self.check_may_win(index)?;
                vec![index]
            }
            None => {
                let failed = self
                    .task
                    .indexes()
                    .filter(|index| self.task.is_current(*index))
                    .filter(|index| self.task.step(*index).status() == StepStatus::Error)
                    // A group goes on when its items do.
                    .filter(|index| {
                        !self.task.has_items(*index)
                            || self.task.is_itself_in_error(*index)
                                && self.check_goes_on(*index).is_ok()
                    });
                let (chosen, lost): (Vec<_>, Vec<_>) =
                    failed.partition(|index| self.check_may_win(*index).is_ok());
                if let ([], [join, ..]) = (&*chosen, &*lost) {
                    self.check_may_win(*join)?;
                }
                chosen
            }
        };
        if let (Some(index), Some(_)) = (step, &body)
            && self.task.subject(index) == index
            && self.task.probe_before(index).is_some()
        {
            // An undo must match the request that took effect, which may be an earlier one.
            return Err(self.refuse_step(
                index,
                "its outcome is unknown, so its probe runs first: retry it without another body",
            ));
        }
        if let (Some(index), Some(_)) = (step, &body)
            && !self.takes_input(index)
        {
            return Err(self.refuse_step(
                index,
                "it calls no service, so it has no request body: skip or resolve it, or retry it without `input`",
            ));
        }
        if chosen.is_empty() {
            return Err(Refusal::TaskState {
                status: self.task.status(),
                needed: "only a task with a step in error can be retried",
            });
        }
        if let (Some(index), Some(body)) = (step, &body) {
            self.check_room_for_body(index, body)?;
        }
        self.renew_limit();
        for index in chosen {
            // One that fails again at once may have the task undone: the others are not to run then.
            if step.is_none() && !self.task.is_current(index) {
                break;
            }
            // One that succeeds at once may end the task, or a race: the others are cancelled then.
            if step.is_none() && self.task.step(index).status() != StepStatus::Error {
                continue;
            }
            if self.task.has_items(index) {
                self.have_go_on(index, reason.clone());
                continue;
            }
            let step = self.task.step_mut(index);
            step.failure_count = 0;
            step.extensions_used = 0;
            self.grant_attempts(index);
            let step = self.task.step_mut(index);
            let reason = match (&body, reason.as_deref()) {
                (Some(_), Some(reason)) => Some(format!("{reason} (with a changed request body)")),
                (Some(_), None) => Some("with a changed request body".to_owned()),
                (None, reason) => reason.map(str::to_owned),
            };
            if body.is_some() {
                step.body.clone_from(&body);
            }
            self.alerts.push(AlertChange::Close { step: index });
            // A step that failed before its condition could be judged is judged again, and a wait begins again.
            let judged = match &self.task.definition(index).when {
                _ if !self.task.definition(index).is_call() => false,
                Some(condition) => {
                    condition.truth(&self.task.scope(index, &self.budget)) == Ok(true)
                }
                None => true,
            };
            let waits = self.waits_its_turn(index) || self.waits_for_race(index);
            if judged && !waits {
                let pending = StepState::Pending { ready_at: self.now };
                self.change(index, "step.retried", pending, reason);
                self.offer(index);
            } else {
                self.change(index, "step.retried", StepState::Waiting, reason);
                self.open(index);
            }
        }
        self.settle(None);
        Ok(())
    }

    /// Returns whether the step is an item in error, which may run again only if few enough other items run.
    fn waits_its_turn(&self, index: StepIndex) -> bool {
        let definition = self.task.definition(index);
        let is_item = definition.item.is_some() && definition.undoes.is_none();
        is_item && self.task.step(index).status() == StepStatus::Error
    }

    /// Refuses to retry a join before which too few steps can still succeed: it would run although nothing has won.
    fn check_may_win(&self, join: StepIndex) -> Result<(), Refusal> {
        let race = self.task.definition(join).race.as_ref();
        match race {
            Some(race) if !self.task.is_won(race) && self.task.cannot_be_won(race) => {
                Err(self.refuse_step(
                    join,
                    "too few of the steps that it needs can still succeed: rerun the task from one of these, or skip or resolve the step",
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the step is a join before which the race goes on.
    fn waits_for_race(&self, index: StepIndex) -> bool {
        let race = self.task.definition(index).race.as_ref();
        race.is_some_and(|race| !self.task.is_won(race))
    }

    /// The items of a group that are in error are retried.
    fn retry_items(
        &mut self,
        group: StepIndex,
        has_body: bool,
        reason: Option<String>,
    ) -> Result<(), Refusal> {
        if has_body {
            return Err(self.refuse_step(
                group,
                "it is a group: only one of its items can be retried with another body",
            ));
        }
        let failed = self.failed_items(group);
        let is_itself = self.task.is_itself_in_error(group);
        if failed.is_empty() && (self.task.is_repeated(group) || is_itself) {
            self.check_goes_on(group)?;
            self.renew_limit();
            self.have_go_on(group, reason);
            self.settle(None);
            return Ok(());
        }
        if failed.is_empty() {
            return Err(self.refuse_step(group, "it is a group, and no item of it is in error"));
        }
        for item in failed {
            // An item that fails again at once may have the task undone.
            if self.task.undo.is_none() && self.task.step(item).status() == StepStatus::Error {
                self.retry(Some(item), None, reason.clone())?;
            }
        }
        Ok(())
    }

    /// Returns whether an operator can replace the input that a step sends: to a service, or to its task.
    fn takes_input(&self, index: StepIndex) -> bool {
        let definition = self.task.definition(index);
        definition.is_call() || definition.has_child() && definition.undoes.is_none()
    }

    /// A task whose time is over gets the whole time again when an operator continues it.
    pub(super) fn renew_limit(&mut self) {
        if self.task.limit().is_some_and(|limit| limit <= self.now) {
            self.task.complete_by = self
                .task
                .details
                .complete_within
                .map(|span| self.now + span);
        }
    }

    pub(super) fn skip(
        &mut self,
        index: StepIndex,
        output: Option<Payload>,
        reason: Option<String>,
    ) -> Result<(), Refusal> {
        self.check_replaceable(
            index,
            "only a step in error, one that is ready to begin, or one that awaits a time or a signal can be skipped",
        )?;
        self.check_room(index, output.as_ref())?;
        let skipped = StepState::Skipped {
            output,
            at: self.now,
        };
        self.replace(index, "step.skipped", skipped, reason);
        Ok(())
    }

    /// Goes on without the steps in error. One skipped step may bring the next one to an end, or turn the
    /// task around: each is looked at again when it is its turn.
    pub(super) fn skip_failed(
        &mut self,
        name: Option<&StepName>,
        output: Option<Payload>,
        reason: Option<String>,
    ) -> Result<(), Refusal> {
        let needed = match name {
            Some(_) => "it has no step of that name in error",
            None => "only steps in error can be skipped, and it has none",
        };
        self.end_failed(name, output.as_ref(), needed, |draft, index| {
            let state = StepState::Skipped {
                output: output.clone(),
                at: draft.now,
            };
            draft.replace(index, "step.skipped", state, reason.clone());
        })
    }

    pub(super) fn resolve_failed(
        &mut self,
        name: &StepName,
        output: Payload,
        reason: Option<String>,
    ) -> Result<(), Refusal> {
        let needed = "it has no step of that name in error";
        self.end_failed(Some(name), Some(&output), needed, |draft, index| {
            draft.record_as_done(index, output.clone(), reason.clone());
        })
    }

    /// Ends the steps in error, or those of a name. A group whose items are in error is not ended itself.
    fn end_failed(
        &mut self,
        name: Option<&StepName>,
        output: Option<&Payload>,
        needed: &'static str,
        end: impl Fn(&mut Self, StepIndex),
    ) -> Result<(), Refusal> {
        let mut ended = false;
        let failed = self.task.indexes().filter(|index| {
            self.task.is_current(*index) && self.task.step(*index).status() == StepStatus::Error
        });
        let failed: Vec<_> = failed.filter(|index| self.is_meant(*index, name)).collect();
        self.check_room_of_all(&failed, output)?;
        for index in self.task.indexes() {
            let failed = self.task.step(index).status() == StepStatus::Error;
            let goes_on_with_items =
                self.task.has_items(index) && !self.task.is_itself_in_error(index);
            if !failed || !self.task.is_current(index) || goes_on_with_items {
                continue;
            }
            if self.is_meant(index, name) {
                end(self, index);
                ended = true;
            }
        }
        match ended {
            true => Ok(()),
            false => Err(Refusal::TaskState {
                status: self.task.status(),
                needed,
            }),
        }
    }

    /// Returns whether a command about steps of this name is about this one: the name of a group means all of its items.
    fn is_meant(&self, index: StepIndex, name: Option<&StepName>) -> bool {
        name.is_none_or(|name| {
            self.task.definition(index).name == *name
                || self.task.definition(index).undoes.is_none()
                    && self.task.common_name(index) == name
        })
    }

    pub(super) fn resolve(
        &mut self,
        index: StepIndex,
        output: Payload,
        reason: Option<String>,
    ) -> Result<(), Refusal> {
        self.check_replaceable(
            index,
            "only a step in error, a pending one or one that waits can be resolved",
        )?;
        self.check_room(index, Some(&output))?;
        self.record_as_done(index, output, reason);
        Ok(())
    }

    /// Records that a step was done outside Provost.
    fn record_as_done(&mut self, index: StepIndex, output: Payload, reason: Option<String>) {
        self.task.step_mut(index).set_effect(Effect::Known);
        let processed = StepState::Processed {
            output,
            at: self.time_of_success(index),
        };
        self.replace(index, "step.resolved", processed, reason);
    }

    /// A step whose turn has come, and that no agent holds.
    fn check_replaceable(&self, index: StepIndex, needed: &'static str) -> Result<(), Refusal> {
        self.check_current(index)?;
        if self.task.is_repeated(index) {
            self.check_iterations_end(index)?;
        } else if self.task.has_items(index) && !self.task.is_itself_in_error(index) {
            return Err(self.refuse_step(
                index,
                "it is the group of its items: skip or resolve those of them that are in error",
            ));
        }
        match self.task.step(index).status() {
            StepStatus::Error | StepStatus::Pending => Ok(()),
            StepStatus::Processing if self.task.waits_for_event(index) => Ok(()),
            StepStatus::Processing if self.task.waits_for_child(index) => Err(self.refuse_step(
                index,
                "its task is not over: cancel or undo that task first, or see to it that it ends",
            )),
            _ => Err(self.refuse_step(index, needed)),
        }
    }

    /// Checks that the iterations of a group can end with it.
    fn check_iterations_end(&self, group: StepIndex) -> Result<(), Refusal> {
        let items = self.task.group(group).map(|group| group.items.clone());
        let items = items.unwrap_or_default();
        let mut running = self.task.steps.find_in(&items, StepStatus::Processing);
        // There are at most as many steps as an index can count.
        let is_held = |at| !self.task.waits_for_event(StepIndex(at as u16));
        match running.any(is_held) {
            true => Err(self.refuse_step(
                group,
                "an iteration of it is running: wait until that has ended",
            )),
            false => Ok(()),
        }
    }

    /// While a task is undone, only what undoes its steps is run.
    fn check_current(&self, index: StepIndex) -> Result<(), Refusal> {
        if self.task.is_current(index) {
            return Ok(());
        }
        Err(self.refuse_step(
            index,
            "the task is being undone: only its undo steps can be changed",
        ))
    }

    fn replace(
        &mut self,
        index: StepIndex,
        kind: &'static str,
        state: StepState,
        reason: Option<String>,
    ) {
        self.ready.retain(|ready| *ready != index);
        self.alerts.push(AlertChange::Close { step: index });
        self.leave_out_items(index, "its group is skipped or resolved");
        self.change(index, kind, state, reason);
        self.end_by_stop(index);
        match self.task.definition(index).undoes {
            Some(_) => self.after_undo(index),
            None => self.open_followers(index),
        }
        self.settle(None);
    }

    /// Ends the attempt of a step that is under way. Its outcome is unknown, and no policy applies: the step is in error, and
    /// the operator decides. One that the task only waits for, because it is undone or a race is over, has ended. As for an
    /// undo, the instance that makes the call first confirms that this has ended, or the service is asked to cancel its work.
    pub(super) fn cancel_step(
        &mut self,
        index: StepIndex,
        reason: Option<String>,
    ) -> Result<(), Refusal> {
        self.check_cancellable(index)?;
        // One that is not needed any more ends as such.
        let known = self.task.withdrawal(index).cloned();
        let why = known.unwrap_or_else(|| Fault::permanent(CANCELLED, self.now));
        if self.withdraw(index, why.clone()) {
            self.end_for(index, why, reason);
        } else {
            self.note_withdrawal(index, reason.unwrap_or_else(|| CANCELLED.to_owned()));
        }
        Ok(())
    }

    /// Ends a step whose attempt was cancelled by an operator: it is in error.
    pub(super) fn end_cancelled(&mut self, index: StepIndex, reason: Option<String>) {
        let fault = Fault {
            effect: self.task.step(index).effect,
            ..Fault::permanent(CANCELLED, self.now)
        };
        self.raise(index, &fault);
        self.change(index, "step.error", StepState::Error(fault), reason);
        self.item_ended(index);
        self.settle(None);
    }

    fn check_cancellable(&self, index: StepIndex) -> Result<(), Refusal> {
        let definition = self.task.definition(index);
        let needed = match self.task.step(index).status() {
            StepStatus::Processing if self.task.has_items(index) => {
                "it is the group of its items: cancel those of them that run"
            }
            StepStatus::Processing if definition.has_child() => {
                "its task is not over: cancel or undo that task"
            }
            StepStatus::Processing if !definition.is_call() => {
                "it awaits a time or a signal: skip or resolve it"
            }
            StepStatus::Processing => return Ok(()),
            _ => {
                "only a step whose call is under way can be cancelled; skip, resolve or retry another one, or cancel the task"
            }
        };
        Err(self.refuse_step(index, needed))
    }

    /// Ends the task where it is. Running calls are dropped; it is unknown whether they took effect. The steps that run
    /// when all others have ended still run, and nothing cancels them.
    pub(super) fn cancel(&mut self, reason: Option<String>) -> Result<CommandOutput, Refusal> {
        if self.task.is_cancelled() {
            return Ok(CommandOutput::Unchanged);
        }
        if self.task.runs_finally() {
            return Err(Refusal::TaskState {
                status: self.task.status(),
                needed: "everything has ended but the steps of its `finally`: it ends with them; retry, resolve or skip those in error",
            });
        }
        self.end_unbegun_items("the task is cancelled");
        let remains: Vec<StepIndex> = { self.task.indexes() }
            .filter(|index| self.remains_at_the_end(*index))
            .collect();
        for index in self.task.indexes() {
            if remains.contains(&index) {
                continue;
            }
            match self.task.step(index).status() {
                StepStatus::Waiting | StepStatus::Pending | StepStatus::Processing => {
                    if let StepState::Processing { .. } = self.task.step(index).state {
                        self.drop_call(index);
                        self.effect_is_unknown(index);
                    }
                    let cancelled = StepState::Cancelled { at: self.now };
                    self.change(index, "step.cancelled", cancelled, None);
                }
                StepStatus::Error => self.alerts.push(AlertChange::Close { step: index }),
                StepStatus::Processed
                | StepStatus::Skipped
                | StepStatus::Cancelled
                | StepStatus::Undone => {}
            }
        }
        self.cancel_unawaited_children();
        self.take_waiting_undos();
        self.ready.clear();
        self.task.start_at = None;
        self.task.waits = false;
        self.task.paused &= remains.is_empty();
        if !remains.is_empty() && self.cancel_before_finally(reason.as_deref()) {
            return Ok(CommandOutput::Done);
        }
        let before = self.task.status().as_str();
        self.task.state = TaskState::Cancelled { at: self.now };
        self.record_task(before, reason);
        Ok(CommandOutput::Done)
    }

    pub(super) fn pause(&mut self, reason: Option<String>) -> Result<(), Refusal> {
        if self.task.paused {
            return Err(Refusal::TaskState {
                status: self.task.status(),
                needed: "it is already paused",
            });
        }
        self.task.paused = true;
        self.ready.clear();
        self.touch_pending();
        let status = self.task.status();
        self.settle(reason.clone());
        if self.task.status() == status {
            // A step in error keeps the task's state as it is. Once it does not, `task.paused` follows.
            self.note_task("task.pause_began", reason);
        }
        Ok(())
    }

    pub(super) fn resume(&mut self, reason: Option<String>) -> Result<(), Refusal> {
        if !self.task.paused {
            return Err(Refusal::TaskState {
                status: self.task.status(),
                needed: "only a paused task can be resumed",
            });
        }
        self.task.paused = false;
        self.note_task("task.resumed", reason);
        self.begin_waiting_undo();
        // The supervisor left expiries alone during the pause: they are decided before any step begins.
        if self.task.overdue_at().is_some_and(|due| due <= self.now) {
            self.overdue()?;
        }
        self.begin_pending();
        self.settle(None);
        Ok(())
    }

    /// The task begins that has waited for others of its key.
    pub(super) fn admit(&mut self) {
        self.task.waits = false;
        self.note_task("task.admitted", None);
        self.begin_pending();
        self.settle(None);
    }

    /// An operator does not want to wait for the task's `start_at`.
    pub(super) fn start_now(&mut self, reason: Option<String>) -> Result<(), Refusal> {
        if self.task.start_at.is_none() {
            return Err(Refusal::TaskState {
                status: self.task.status(),
                needed: "it has begun already: only a task that waits for its `start_at` can be started",
            });
        }
        self.start(reason);
        Ok(())
    }

    /// The task begins. Only now it counts for the limits of its workflow, so it waits until it is admitted.
    pub(super) fn start(&mut self, reason: Option<String>) {
        let details = self.task.details.clone();
        self.task.start_at = None;
        self.task.complete_by = details.complete_within.map(|span| self.now + span);
        self.task.waits = !details.definition.policies.limits.is_empty();
        self.note_task("task.started", reason);
        self.open_ready_steps();
    }

    /// Begins the work that the task may do now that it is resumed.
    fn begin_pending(&mut self) {
        self.await_pending_events();
        self.touch_pending();
        for index in self.task.indexes() {
            if self.task.due_at(index).is_some_and(|due| due <= self.now) {
                self.offer(index);
            }
        }
    }

    /// Marks the records of pending steps as changed: they contain whether the step may be claimed.
    fn touch_pending(&mut self) {
        for index in self.task.indexes() {
            if self.task.step(index).status() == StepStatus::Pending {
                self.touch(index);
            }
        }
    }
}
