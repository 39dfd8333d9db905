//! Decisions: what a command does to a task. Every transition of the pattern is made here and
//! nowhere else, for every database.
//!
//! A [`Draft`] is the working copy of one task in one batch. Commands are applied to it in turn; a
//! refused one leaves it as it was. What must be saved and announced afterwards is gathered in it.

mod ask;
mod attempt;
mod bounds;
mod children;
mod events;
mod finally;
mod graph;
mod items;
mod later;
mod marks;
mod milestone;
mod operator;
mod poll;
mod probe;
mod race;
mod record;
mod repeat;
mod request;
mod rerun;
mod room;
mod supervisor;
#[cfg(test)]
mod tests;
mod undo;
mod version_move;
mod withdraw;

use std::sync::Arc;

use marks::Marks;
pub(crate) use probe::response;
use record::Ending;
pub(crate) use request::{Secrets, call};
pub use room::MOST_OF_TASK;

use crate::{
    task::{
        aggregate::{Details, Task, TaskState},
        alert::AlertChange,
        alert_cause::alert_text,
        alert_kind::AlertKind,
        ask::AskChange,
        attempt_record::{AttemptExchange, AttemptRecord},
        call::Call,
        command::{Command, Expiry, Refusal},
        failure_cause::{FailureCause, alert_of},
        history::{Actor, Event},
        output::output_cost,
        reply_token::ReplyAddresses,
        status::TaskStatus,
        step::{Step, StepState, StepStatus},
        step_list::StepList,
        transitions::{allows_step, allows_task},
    },
    template::Budget,
    values::{
        fault::Fault,
        ids::{Attempt, InstanceId, StepIndex},
        time::Timestamp,
    },
};

#[derive(Debug)]
pub struct Draft {
    pub task: Task,
    /// The actor of the current command. Before the first one it is the submitter, who made the task.
    by: Actor,
    /// The time of the current command on the store's clock: all that one command changes happens then. Before the first
    /// one it is the time at which the task was submitted.
    now: Timestamp,
    /// The number of steps that the task had before: the steps at later positions are new.
    pub known_steps: usize,
    /// The steps whose records changed, without repeats.
    pub changed: Vec<StepIndex>,
    /// The changed steps that had no rows, because nothing had happened in them.
    pub first_touched: Vec<StepIndex>,
    pub events: Vec<Event>,
    pub alerts: Vec<AlertChange>,
    /// The questions that were put to people, or taken back.
    pub asks: Vec<AskChange>,
    /// The attempts that have ended and are to be recorded.
    pub attempts: Vec<AttemptRecord>,
    /// Steps that became ready to be claimed at once.
    pub ready: Vec<StepIndex>,
    pub dropped: Vec<Dropped>,
    /// The number of steps that the task had before it moved to another version of its workflow, if it did.
    pub had_steps: Option<usize>,
    changed_marks: Marks,
    ready_marks: Marks,
    /// The cost that the expressions of one command may have.
    budget: Budget,
    /// The cost of the expressions of the earlier commands.
    spent: u64,
    /// See [`Draft::keeping`].
    most_kept: usize,
    /// See [`Draft::undoing_paused_tasks`].
    undoes_paused: bool,
    /// See [`Draft::replying_to`].
    reply_addresses: Option<Arc<ReplyAddresses>>,
    /// The attempt that the current command ends, if it names one.
    ending: Option<Ending>,
    /// The number of requests that were rendered again for the record of the current command.
    rendered: usize,
}

/// A call that may be in flight, and is to end although there is no response.
#[derive(Clone, PartialEq, Debug)]
pub struct Dropped {
    pub step: StepIndex,
    pub attempt: Attempt,
    pub held_by: InstanceId,
    /// The attempt is not over yet. The instance that holds it ends its call, and confirms that with
    /// [`Release::Dropped`](super::command::Release::Dropped): only then is the step undone or probed.
    pub confirm: bool,
}

/// The result of an accepted command, besides the changed draft.
#[derive(Debug)]
pub enum CommandOutput {
    Done,
    /// The step was claimed: the call is to be made once the claim is saved.
    Call(Box<Call>),
    /// The command was repeated, or not worth a record: nothing changed.
    Unchanged,
    /// The attempt is over, and nothing but the history changed.
    Late(Refusal),
}

impl Draft {
    /// The initial state of a task and of each of its steps.
    pub fn submit(details: Arc<Details>, now: Timestamp) -> Self {
        Self::submit_keeping(details, false, MOST_OF_TASK, now)
    }

    /// Like [`Draft::submit`], for a task that keeps at most `most_kept` bytes. `waits`: the task waits until it is
    /// admitted.
    pub fn submit_keeping(
        details: Arc<Details>,
        waits: bool,
        most_kept: usize,
        now: Timestamp,
    ) -> Self {
        let start_at = details.start_at.filter(|start| *start > now);
        let definition = &details.definition;
        let steps = vec![Step::new(); definition.steps.len()].into();
        let untouched = definition.forward().collect();
        let mut draft = Self::on(Task {
            created_at: now,
            version: 0,
            state: TaskState::Pending,
            paused: false,
            waits,
            start_at,
            complete_by: details
                .complete_within
                .map(|span| start_at.unwrap_or(now) + span),
            steps,
            untouched,
            own_claim: None,
            undos: StepList::default(),
            expansion: None,
            undo: None,
            details,
        })
        .keeping(most_kept);
        let state = draft.task.status().as_str();
        draft.events.push(Event {
            ready_at: start_at,
            ..Event::submission(state, draft.by.clone())
        });
        if start_at.is_some() {
            return draft;
        }
        draft.open_ready_steps();
        if waits {
            draft.ready.clear();
        }
        draft
    }

    /// Says in the history why a task was submitted.
    pub fn because(mut self, reason: Option<String>) -> Self {
        if let Some(accepted) = self.events.first_mut() {
            accepted.reason = reason;
        }
        self
    }

    pub fn on(task: Task) -> Self {
        Self {
            by: Actor::submitter(),
            now: task.created_at,
            known_steps: task.steps.len() + task.undos.len(),
            task,
            changed: Vec::new(),
            first_touched: Vec::new(),
            events: Vec::new(),
            alerts: Vec::new(),
            asks: Vec::new(),
            attempts: Vec::new(),
            ready: Vec::new(),
            dropped: Vec::new(),
            had_steps: None,
            changed_marks: Marks::default(),
            ready_marks: Marks::default(),
            budget: Budget::evaluation(),
            spent: 0,
            most_kept: room::MOST_OF_TASK,
            undoes_paused: false,
            reply_addresses: None,
            ending: None,
            rendered: 0,
        }
    }

    /// Has requests name these addresses for the replies of their services.
    #[must_use]
    pub fn replying_to(mut self, addresses: Option<Arc<ReplyAddresses>>) -> Self {
        self.reply_addresses = addresses;
        self
    }

    /// Returns the cost of the expressions evaluated until now, in the units of [`Budget`].
    pub fn spent(&self) -> u64 {
        self.spent + self.budget.spent()
    }

    /// Applies a command made by `by` at `now` on the store's clock.
    pub fn apply(
        &mut self,
        command: Command,
        by: &Actor,
        now: Timestamp,
    ) -> Result<CommandOutput, Refusal> {
        self.apply_with(command, by, now, None)
    }

    /// Applies a command that ends an attempt. `exchange` is what its instance knows of it.
    pub fn apply_with(
        &mut self,
        command: Command,
        by: &Actor,
        now: Timestamp,
        exchange: Option<Box<AttemptExchange>>,
    ) -> Result<CommandOutput, Refusal> {
        let may_follow = match command {
            Command::Undo { .. } => self.task.status() == TaskStatus::Processed,
            _ => command.is_fenced(),
        };
        if self.task.is_ended() && !may_follow {
            return Err(Refusal::Ended(self.task.status().as_str()));
        }
        // Here for all commands: a cached task may be older than the one that the sender saw.
        if let Some(step) = command.step()
            && !self.task.has_step(step)
        {
            return Err(Refusal::NoStep(step));
        }
        // A command that names an attempt gets the answer that it is late instead.
        if let Some(step) = command.step()
            && !command.is_fenced()
            && self.task.is_removed(step)
        {
            return Err(Refusal::StepRemoved(
                self.task.definition(step).name.clone(),
            ));
        }
        self.by = by.clone();
        self.now = now;
        self.spent = self.spent();
        self.budget.refill();
        self.begin_record(&command, exchange);
        let output = self.carry_out(command)?;
        self.end_record();
        self.give_turns();
        Ok(output)
    }

    fn carry_out(&mut self, command: Command) -> Result<CommandOutput, Refusal> {
        match command {
            Command::Claim { step, by: claimant } => {
                return Ok(match self.claim(step, claimant)? {
                    Some(call) => CommandOutput::Call(Box::new(call)),
                    None => CommandOutput::Done,
                });
            }
            Command::Reply {
                step,
                attempt,
                outcome,
            } => {
                self.check_holder(step, attempt)?;
                self.reply(step, attempt, outcome)?;
            }
            Command::LaterReply {
                step,
                attempt,
                outcome,
                digest,
            } => return self.later_reply(step, attempt, outcome, digest),
            Command::Heartbeat {
                step,
                attempt,
                progress,
            } => return self.heartbeat(step, attempt, &progress),
            Command::Release { step, attempt, why } => {
                self.release(step, attempt, why)?;
            }
            Command::Expire {
                step,
                attempt,
                cause,
            } => match cause {
                Expiry::CompleteBy => self.expire(step, attempt)?,
                Expiry::InstanceLost => self.lose(step, attempt)?,
                Expiry::GivenUp => self.call_given_up(step, attempt)?,
            },
            Command::Overdue => self.overdue()?,
            Command::Retry { step, body, reason } => self.retry(step, body, reason)?,
            Command::RetryFrom { step, reason } => self.retry_from(step, reason)?,
            Command::RetryFromName { step, reason } => self.retry_from_name(step, reason)?,
            Command::SkipFailed {
                step,
                output,
                reason,
            } => self.skip_failed(step.as_ref(), output, reason)?,
            Command::ResolveFailed {
                step,
                output,
                reason,
            } => self.resolve_failed(&step, output, reason)?,
            Command::Skip {
                step,
                output,
                reason,
            } => self.skip(step, output, reason)?,
            Command::Resolve {
                step,
                output,
                reason,
            } => self.resolve(step, output, reason)?,
            Command::CancelStep { step, reason } => self.cancel_step(step, reason)?,
            Command::Undo { reason } => self.undo(reason)?,
            Command::Cancel { reason } => return self.cancel(reason),
            Command::Pause { reason } => self.pause(reason)?,
            Command::Resume { reason } => self.resume(reason)?,
            Command::Start { reason } => self.start_now(reason)?,
            Command::Admit => {
                if !self.task.waits {
                    return Ok(CommandOutput::Unchanged);
                }
                self.admit();
            }
            Command::Signal {
                step,
                payload,
                digest,
            } => return self.signal(step, payload, digest),
            Command::Migrate { to, reason } => return self.migrate(&to, reason),
            Command::Decide {
                step,
                attempt,
                person,
                answer,
            } => return self.decide(step, attempt, person, answer),
            Command::BeginChild {
                step,
                attempt,
                child,
            } => self.begin_child(step, attempt, &child)?,
            Command::ChildReport {
                step,
                attempt,
                report,
            } => self.child_report(step, attempt, report)?,
            Command::ReportFault { step, message } => self.report_fault(step, message),
        }
        Ok(CommandOutput::Done)
    }

    /// Tells a person that the service failed while it decided on the task. The task stays as it was.
    fn report_fault(&mut self, step: StepIndex, message: String) {
        self.note_task("task.fault", Some(message.clone()));
        self.alerts.push(AlertChange::Raise {
            step,
            kind: AlertKind::ServiceFault,
            message,
            cause: None,
            failure: Box::new(FailureCause::of_service_fault(&self.task, step)),
        });
    }

    /// Puts a step into a new state and records the change.
    fn change(
        &mut self,
        index: StepIndex,
        kind: &'static str,
        state: StepState,
        reason: Option<String>,
    ) {
        let from = self.task.step(index).status();
        let record = self.record_of_ended(index, kind, &state, reason.as_deref());
        self.attempts.extend(record);
        let step = self.task.step_mut(index);
        let before = std::mem::replace(&mut step.state, state);
        if let StepState::Error(fault) = before
            && matches!(
                step.state,
                StepState::Skipped { .. } | StepState::Undone { .. }
            )
        {
            // Expressions read why it was skipped or undone.
            step.last_fault = Some(fault);
        }
        if !matches!(step.state, StepState::Processing { .. }) {
            // An attempt that is withdrawn is no failure.
            step.last_fault.take_if(|fault| fault.cancelled);
        }
        step.awaits_turn = false;
        if step.ask.is_some() && from == StepStatus::Processing {
            self.asks.push(AskChange::Closed(index));
        }
        if !matches!(kind, "step.claimed" | "step.deferred" | "step.retrying") {
            // Only after a transient fault it continues with the time that is left.
            step.tries = 0;
            step.time_left = None;
        }
        step.close_previous_output();
        let (attempt, failure_count, effect) = (step.attempt, step.failure_count, step.effect);
        let to = step.status();
        debug_assert!(allows_step(from, kind, to), "{from:?} {kind} {to:?}");
        let (ready_at, error) = match &step.state {
            StepState::Pending { ready_at } => (Some(*ready_at), None),
            StepState::Error(fault) => (None, Some(fault.clone())),
            _ => (None, None),
        };
        let name = self.task.definition(index).name.clone();
        self.events.push(Event {
            attempt: (attempt > Attempt::default()).then_some(attempt),
            reason,
            ready_at,
            failure_count: (failure_count > 0).then_some(failure_count),
            effect,
            error,
            ..Event::step_change(kind, name, from.as_str(), to.as_str(), self.by.clone())
        });
        self.touch(index);
    }

    /// Gives up an attempt whose call may still be in flight.
    fn drop_call(&mut self, index: StepIndex) {
        self.have_dropped(index, false);
    }

    fn have_dropped(&mut self, index: StepIndex, confirm: bool) {
        let step = self.task.step(index);
        if let StepState::Processing { held_by, .. } = &step.state
            && let Some(instance) = held_by.instance()
        {
            self.dropped.push(Dropped {
                step: index,
                attempt: step.attempt,
                held_by: instance.clone(),
                confirm,
            });
        }
    }

    /// Records something about a step that stays in its state.
    fn note(&mut self, index: StepIndex, kind: &'static str, reason: String) {
        let state = self.task.step(index).status().as_str();
        let name = self.task.definition(index).name.clone();
        self.events.push(Event {
            reason: Some(reason),
            ..Event::step_note(kind, name, state, self.by.clone())
        });
    }

    /// Records something about an attempt of a step that stays in its state.
    fn note_attempt(
        &mut self,
        index: StepIndex,
        kind: &'static str,
        attempt: Attempt,
        reason: String,
    ) {
        self.note(index, kind, reason);
        if let Some(event) = self.events.last_mut() {
            event.attempt = Some(attempt);
        }
    }

    /// Records what became of the task, while its state stays as it is. If the state changes because of it, [`Draft::settle`]
    /// records that afterwards, with an event of its own: messages are about those.
    fn note_task(&mut self, kind: &'static str, reason: Option<String>) {
        let state = self.task.status().as_str();
        self.events.push(Event {
            reason,
            ..Event::task_note(kind, state, self.by.clone())
        });
    }

    fn touch(&mut self, index: StepIndex) {
        self.changed_marks.add(&mut self.changed, index);
        if let Ok(at) = self.task.untouched.binary_search(&index) {
            self.task.untouched.remove(at);
            self.first_touched.push(index);
        } else if self.task.own_claim == Some(index) {
            self.task.own_claim = None;
            self.first_touched.push(index);
        }
    }

    /// Has all steps of the definition get their rows.
    pub fn touch_all(&mut self) {
        let without_rows = std::mem::take(&mut self.task.untouched);
        let own_claim = self.task.own_claim.take();
        for index in without_rows.into_iter().chain(own_claim) {
            self.changed_marks.add(&mut self.changed, index);
            self.first_touched.push(index);
        }
    }

    /// Has the first claim of a step without a row stand in the task's own record, if one of them says all that there is to say
    /// of its step. Of several steps one: each task has room for one claim.
    pub fn keep_claim(&mut self) {
        let may_be = self.had_steps.is_none() && self.task.undo.is_none();
        if may_be && self.task.own_claim.is_none() {
            let mut steps = self.first_touched.iter().copied();
            self.task.own_claim = steps.find(|step| self.task.is_bare_claim(*step));
        }
    }

    /// Ends a step in error and tells a person.
    fn fail(&mut self, index: StepIndex, kind: &'static str, fault: Fault) {
        self.raise(index, &fault);
        self.change(index, kind, StepState::Error(fault), None);
    }

    /// Raises the alert of a step in error.
    fn raise(&mut self, index: StepIndex, fault: &Fault) {
        let message = alert_text(&self.task.definition(index).name, fault);
        self.raise_with(index, fault, message);
    }

    /// Raises the alert of a step in error with this message.
    fn raise_with(&mut self, index: StepIndex, fault: &Fault, message: String) {
        let failure = FailureCause::of_step(&self.task, index, fault);
        self.alerts.push(AlertChange::Raise {
            step: index,
            kind: alert_of(&self.task, index),
            message,
            cause: failure.alert_cause(),
            failure: Box::new(failure),
        });
    }

    /// Brings the task's state in line with its steps. The one rule of what state a task is in.
    fn settle(&mut self, reason: Option<String>) {
        self.end_unwanted();
        self.begin_finally();
        let before = self.task.status();
        let task = &self.task;
        let state = if task.is_ended() {
            return;
        } else if task.undo.is_some() {
            self.undoing_state()
        } else if let Some(fault) = first_fault(task) {
            // A task whose undo waits for the resumption needs only the operator who has paused it.
            match task.paused && task.faults_that_undo_on_resume().next().is_some() {
                true => TaskState::Paused,
                false => TaskState::Error(fault),
            }
        } else if task.steps.all_ended() {
            TaskState::Processed { at: self.now }
        } else if task.paused {
            TaskState::Paused
        } else if task.steps_begun() && !task.has_not_begun() {
            TaskState::Processing
        } else {
            TaskState::Pending
        };
        self.task.state = state;
        // All of its steps may be left out before it is admitted.
        self.task.waits &= !self.task.is_ended();
        let after = self.task.status();
        if after != before {
            debug_assert!(allows_task(before, after), "{before:?} {after:?}");
            self.charge_output();
            self.record_task(before.as_str(), reason);
        }
    }

    /// The messages about the end of the task contain its output: what that costs counts as a cost of the command.
    fn charge_output(&mut self) {
        if self.task.status() == TaskStatus::Processed && self.task.details.reply_to.is_some() {
            self.spent += output_cost(&self.task);
        }
    }

    fn record_task(&mut self, from: &'static str, reason: Option<String>) {
        let status = self.task.status();
        let undo = self.task.undo.as_ref();
        let undone_for = undo
            .filter(|_| status == TaskStatus::Undoing)
            .and_then(|undo| undo.error.as_ref());
        self.events.push(Event {
            reason,
            error: self.task.error().or(undone_for).cloned(),
            ..Event::task_change(status.event(), from, status.as_str(), self.by.clone())
        });
    }

    fn refuse_step(&self, index: StepIndex, needed: &'static str) -> Refusal {
        Refusal::StepState {
            step: self.task.definition(index).name.clone(),
            status: self.task.step(index).status(),
            needed,
        }
    }

    /// The fence for what comes from the instance that runs the call: it does not hold the attempt any more once the
    /// service has promised to reply later.
    fn check_holder(&self, index: StepIndex, attempt: Attempt) -> Result<(), Refusal> {
        self.check_fence(index, attempt)?;
        match self.task.is_awaited(index) || self.task.is_event(index) {
            false => Ok(()),
            true => Err(Refusal::Deferred {
                step: self.task.definition(index).name.clone(),
                attempt,
            }),
        }
    }

    /// The fence: the step is processing under this very attempt.
    fn check_fence(&self, index: StepIndex, attempt: Attempt) -> Result<(), Refusal> {
        let step = self.task.step(index);
        match step.state {
            StepState::Processing { .. } if step.attempt == attempt => Ok(()),
            _ => Err(Refusal::Late {
                step: self.task.definition(index).name.clone(),
                attempt,
            }),
        }
    }
}

impl Task {
    /// Returns whether one of its steps was claimed or is done.
    fn steps_begun(&self) -> bool {
        let steps = self.steps.iter().zip(0..);
        let mut begun =
            steps.filter(|(step, _)| step.attempt > Attempt::default() || step.is_done());
        begun.any(|(_, index)| !self.is_removed(StepIndex(index)))
    }
}

impl Command {
    /// Returns whether the command has its own check once the task has ended: it names an attempt, and may be late, or
    /// it may be a repeated one.
    fn is_fenced(&self) -> bool {
        matches!(
            self,
            Command::Reply { .. }
                | Command::LaterReply { .. }
                | Command::Heartbeat { .. }
                | Command::Release { .. }
                | Command::Expire { .. }
                | Command::Signal { .. }
                | Command::Decide { .. }
                | Command::BeginChild { .. }
                | Command::ChildReport { .. }
        )
    }
}

/// The first fault of the steps that are run now, with the name of its step. Of a group that is in error because of its
/// items, the fault of an item.
fn first_fault(task: &Task) -> Option<Fault> {
    let (steps, first) = match task.undo {
        None => (&task.steps, 0),
        Some(_) => (&task.undos, task.steps.len()),
    };
    let is_cancelled = task.undo.as_ref().is_some_and(|undo| undo.cancels);
    let failed = steps.first_faults().filter(|_| !is_cancelled);
    let failed = failed.map(|at| first + at);
    let finally = task.details.definition.finally.iter();
    // There are at most as many steps as an index can count.
    let failed = { failed.map(|at| StepIndex(at as u16)) }.chain(finally.copied());
    let failed = failed.filter_map(|index| match &task.step(index).state {
        StepState::Error(fault) => Some((index, fault)),
        _ => None,
    });
    let (index, fault) =
        failed.min_by_key(|(index, fault)| (fault.at, task.has_items(*index), *index))?;
    Some(Fault {
        step: Some(task.definition(index).name.clone()),
        ..fault.clone()
    })
}
