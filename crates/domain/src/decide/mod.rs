//! Decisions: what a command does to a task. Every transition of the pattern is made here and
//! nowhere else, for every database.
//!
//! A [`Draft`] is the working copy of one task in one batch. Commands are applied to it in turn; a
//! refused one leaves it as it was. What must be saved and announced afterwards is gathered in it.

mod ask;
mod attempt;
mod children;
mod events;
mod graph;
mod items;
mod later;
mod marks;
mod operator;
mod poll;
mod probe;
mod repeat;
mod rerun;
mod room;
mod supervisor;
#[cfg(test)]
mod tests;
mod undo;
mod version_move;

use std::sync::Arc;

pub(crate) use attempt::{Secrets, call};
use marks::Marks;
pub(crate) use probe::response;
pub use room::MOST_OF_TASK;

use crate::{
    alert::{AlertChange, AlertKind},
    alert_cause::{AlertCause, alert_text},
    ask::AskChange,
    call::Call,
    command::{Command, Expiry, Refusal},
    fault::{Effect, Fault, FaultKind},
    history::{Actor, Event},
    ids::{Attempt, InstanceId, StepIndex},
    step::{Step, StepState, StepStatus},
    step_list::StepList,
    task::{Details, Task, TaskState, TaskStatus},
    task_output::output_cost,
    template::Budget,
    time::Timestamp,
    transitions::{allows_step, allows_task},
};

#[derive(Debug)]
pub struct Draft {
    pub task: Task,
    /// How many steps the task had before: those after them are new.
    pub known_steps: usize,
    /// The steps whose records changed, without repeats.
    pub changed: Vec<StepIndex>,
    /// Those of them that had no rows, because nothing had happened in them.
    pub first_touched: Vec<StepIndex>,
    pub events: Vec<Event>,
    pub alerts: Vec<AlertChange>,
    /// What people are asked, and are no longer asked.
    pub asks: Vec<AskChange>,
    /// Steps that became ready to be claimed at once.
    pub ready: Vec<StepIndex>,
    pub dropped: Vec<Dropped>,
    /// How many steps the task had before it moved to another version of its workflow, if it did.
    pub had_steps: Option<usize>,
    changed_marks: Marks,
    ready_marks: Marks,
    /// What the expressions of one command may cost.
    budget: Budget,
    /// What those of the commands before have cost.
    spent: u64,
    /// See [`Draft::keeping`].
    most_kept: usize,
    /// See [`Draft::undoing_paused_tasks`].
    undoes_paused: bool,
}

/// A call that may be in flight, and is to end although there is no response.
#[derive(Clone, PartialEq, Debug)]
pub struct Dropped {
    pub step: StepIndex,
    pub attempt: Attempt,
    pub held_by: InstanceId,
    /// The attempt is not over yet. The instance that holds it ends its call, and confirms that with
    /// [`Release::Dropped`](super::Release::Dropped): only then is the step undone or probed.
    pub confirm: bool,
}

/// What an accepted command hands back besides the changed draft.
#[derive(Debug)]
pub enum CommandOutput {
    Done,
    /// The step was claimed: this is to be called once the claim is saved.
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

    /// [`Draft::submit`] of a task that keeps so many bytes at most. `waits`: until it is admitted.
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
        draft.events.push(Event {
            kind: "task.accepted".into(),
            step: None,
            attempt: None,
            from: None,
            to: draft.task.status().as_str().into(),
            by: Actor::submitter(),
            reason: None,
            ready_at: start_at,
            failure_count: None,
            effect: Effect::Known,
            error: None,
            versions: None,
        });
        if start_at.is_some() {
            return draft;
        }
        draft.open_ready_steps(&Actor::submitter(), now);
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
            known_steps: task.steps.len() + task.undos.len(),
            task,
            changed: Vec::new(),
            first_touched: Vec::new(),
            events: Vec::new(),
            alerts: Vec::new(),
            asks: Vec::new(),
            ready: Vec::new(),
            dropped: Vec::new(),
            had_steps: None,
            changed_marks: Marks::default(),
            ready_marks: Marks::default(),
            budget: Budget::evaluation(),
            spent: 0,
            most_kept: room::MOST_OF_TASK,
            undoes_paused: false,
        }
    }

    /// What evaluating expressions has cost so far, in the units of [`Budget`].
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
        let may_follow = match command {
            Command::Undo { .. } => self.task.status() == TaskStatus::Processed,
            _ => command.is_fenced(),
        };
        if self.task.is_ended() && !may_follow {
            return Err(Refusal::Ended(self.task.status().as_str()));
        }
        // Here for all commands: a cached task may be older than the one that the sender saw.
        if let Some(step) = command.step()
            && !self.task.has(step)
        {
            return Err(Refusal::NoStep(step));
        }
        // What names an attempt is late, and is told so.
        if let Some(step) = command.step()
            && !command.is_fenced()
            && self.task.is_removed(step)
        {
            return Err(Refusal::StepRemoved(
                self.task.definition(step).name.clone(),
            ));
        }
        self.spent = self.spent();
        self.budget.refill();
        let output = self.carry_out(command, by, now)?;
        self.give_turns(now);
        Ok(output)
    }

    fn carry_out(
        &mut self,
        command: Command,
        by: &Actor,
        now: Timestamp,
    ) -> Result<CommandOutput, Refusal> {
        match command {
            Command::Claim { step, by: claimant } => {
                return Ok(match self.claim(step, claimant, by, now)? {
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
                self.reply(step, attempt, outcome, by, now)?;
            }
            Command::LaterReply {
                step,
                attempt,
                outcome,
                digest,
            } => return self.later_reply(step, attempt, outcome, digest, by, now),
            Command::Heartbeat {
                step,
                attempt,
                progress,
            } => return self.heartbeat(step, attempt, &progress, by, now),
            Command::Release { step, attempt, why } => {
                self.release(step, attempt, why, by, now)?;
            }
            Command::Expire {
                step,
                attempt,
                cause,
            } => match cause {
                Expiry::CompleteBy => self.expire(step, attempt, by, now)?,
                Expiry::InstanceLost => self.lose(step, attempt, by, now)?,
                Expiry::GivenUp => self.call_given_up(step, attempt, by, now)?,
            },
            Command::Overdue => self.overdue(by, now)?,
            Command::Retry { step, body, reason } => self.retry(step, body, reason, by, now)?,
            Command::RetryFrom { step, reason } => self.retry_from(step, reason, by, now)?,
            Command::SkipFailed {
                step,
                output,
                reason,
            } => self.skip_failed(step.as_ref(), output, reason, by, now)?,
            Command::Skip {
                step,
                output,
                reason,
            } => self.skip(step, output, reason, by, now)?,
            Command::Resolve {
                step,
                output,
                reason,
            } => self.resolve(step, output, reason, by, now)?,
            Command::Undo { reason } => self.undo(reason, by, now)?,
            Command::Cancel { reason } => self.cancel(reason, by, now),
            Command::Pause { reason } => self.pause(reason, by, now)?,
            Command::Resume { reason } => self.resume(reason, by, now)?,
            Command::Start { reason } => self.start_now(reason, by, now)?,
            Command::Admit => {
                if !self.task.waits {
                    return Ok(CommandOutput::Unchanged);
                }
                self.admit(by, now);
            }
            Command::Signal {
                step,
                payload,
                digest,
            } => return self.signal(step, payload, digest, by, now),
            Command::Migrate { to, reason } => return self.migrate(&to, reason, by, now),
            Command::Decide {
                step,
                attempt,
                person,
                answer,
            } => return self.decide(step, attempt, person, answer, now),
            Command::BeginChild {
                step,
                attempt,
                child,
            } => self.begin_child(step, attempt, &child, by)?,
            Command::ChildReport {
                step,
                attempt,
                report,
            } => self.child_report(step, attempt, report, by, now)?,
            Command::ReportFault { step, message } => self.report_fault(step, message, by),
        }
        Ok(CommandOutput::Done)
    }

    /// Tells a person that the service failed while it decided on the task. The task stays as it was.
    fn report_fault(&mut self, step: StepIndex, message: String, by: &Actor) {
        self.say_task("task.fault", Some(message.clone()), by);
        self.alerts.push(AlertChange::Raise {
            step,
            kind: AlertKind::ServiceFault,
            message,
            cause: None,
        });
    }

    /// Puts a step into a new state and records the change.
    fn change(
        &mut self,
        index: StepIndex,
        kind: &'static str,
        state: StepState,
        by: &Actor,
        reason: Option<String>,
    ) {
        let from = self.task.step(index).status();
        let step = self.task.step_mut(index);
        step.state = state;
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
        self.events.push(Event {
            kind: kind.into(),
            step: Some(self.task.definition(index).name.clone()),
            attempt: (attempt > Attempt::default()).then_some(attempt),
            from: Some(from.as_str().into()),
            to: to.as_str().into(),
            by: by.clone(),
            reason,
            ready_at,
            failure_count: (failure_count > 0).then_some(failure_count),
            effect,
            error,
            versions: None,
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

    /// Records what became of a step, while it stays as it is.
    fn say(&mut self, index: StepIndex, kind: &'static str, reason: String, by: &Actor) {
        let status = self.task.step(index).status().as_str();
        self.events.push(Event {
            kind: kind.into(),
            step: Some(self.task.definition(index).name.clone()),
            attempt: None,
            from: Some(status.into()),
            to: status.into(),
            by: by.clone(),
            reason: Some(reason),
            ready_at: None,
            failure_count: None,
            effect: Effect::Known,
            error: None,
            versions: None,
        });
    }

    /// Records what became of the task, while its state stays as it is. If the state changes because of it, [`Draft::settle`]
    /// records that afterwards, with an event of its own: messages are about those.
    fn say_task(&mut self, kind: &'static str, reason: Option<String>, by: &Actor) {
        let status = self.task.status().as_str();
        self.events.push(Event {
            kind: kind.into(),
            step: None,
            attempt: None,
            from: Some(status.into()),
            to: status.into(),
            by: by.clone(),
            reason,
            ready_at: None,
            failure_count: None,
            effect: Effect::Known,
            error: None,
            versions: None,
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

    /// `None` for a step that calls no service: what it waited for is a matter of its task.
    fn cause_of(&self, index: StepIndex, fault: &Fault) -> Option<AlertCause> {
        let definition = self.task.definition(index);
        Some(match definition.agent() {
            Some(agent) => AlertCause::of(agent, self.task.common_name(index), fault),
            None => {
                let workflow = self.task.details.workflow.as_ref();
                let workflow = workflow.map(|workflow| &workflow.name);
                let is_repeated = definition.repeat().is_some();
                let name = self.task.common_name(index);
                AlertCause::of_uncalled(workflow, name, is_repeated, fault)
            }
        })
    }

    /// Ends a step in error and tells a person.
    fn fail(&mut self, index: StepIndex, kind: &'static str, fault: Fault, by: &Actor) {
        self.raise(index, &fault);
        self.change(index, kind, StepState::Error(fault), by, None);
    }

    /// Raises the alert of a step in error.
    fn raise(&mut self, index: StepIndex, fault: &Fault) {
        let message = alert_text(&self.task.definition(index).name, fault);
        self.alerts.push(AlertChange::Raise {
            step: index,
            kind: match self.task.definition(index).undoes {
                Some(_) => AlertKind::UndoFailed,
                None => AlertKind::TaskError,
            },
            message,
            cause: self.cause_of(index, fault),
        });
    }

    /// Brings the task's state in line with its steps. The one rule of what state a task is in.
    fn settle(&mut self, by: &Actor, reason: Option<String>, now: Timestamp) {
        let before = self.task.status();
        let task = &self.task;
        let state = if task.is_ended() {
            return;
        } else if task.undo.is_some() {
            self.undoing_state(now)
        } else if let Some(fault) = first_fault(task) {
            // A task whose undo waits for the resumption needs nobody but the operator who has paused it.
            match task.paused && task.faults_that_undo_on_resume().next().is_some() {
                true => TaskState::Paused,
                false => TaskState::Error(fault),
            }
        } else if task.steps.all_done() {
            TaskState::Processed { at: now }
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
            self.record_task(before.as_str(), by, reason);
        }
    }

    /// The messages about the end of the task contain its output: what that costs counts as a cost of the command.
    fn charge_output(&mut self) {
        if self.task.status() == TaskStatus::Processed && self.task.details.reply_to.is_some() {
            self.spent += output_cost(&self.task);
        }
    }

    fn record_task(&mut self, from: &'static str, by: &Actor, reason: Option<String>) {
        let status = self.task.status();
        let undo = self.task.undo.as_ref();
        let undone_for = undo
            .filter(|_| status == TaskStatus::Undoing)
            .and_then(|undo| undo.error.as_ref());
        self.events.push(Event {
            kind: status.event().into(),
            step: None,
            attempt: None,
            from: Some(from.into()),
            to: status.as_str().into(),
            by: by.clone(),
            reason,
            ready_at: None,
            failure_count: None,
            effect: Effect::Known,
            error: self.task.error().or(undone_for).cloned(),
            versions: None,
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
    /// Whether one of its steps was claimed or is done.
    fn steps_begun(&self) -> bool {
        let steps = self.steps.iter().zip(0..);
        let mut begun =
            steps.filter(|(step, _)| step.attempt > Attempt::default() || step.is_done());
        begun.any(|(_, index)| !self.is_removed(StepIndex(index)))
    }
}

impl Command {
    /// Whether the command decides itself what it is worth once the task has ended: it names an attempt, and may be late, or
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
    let failed = steps.first_faults().filter_map(|at| {
        // There are at most as many steps as an index can count.
        let index = StepIndex((first + at) as u16);
        match &task.step(index).state {
            StepState::Error(fault) => Some((index, fault)),
            _ => None,
        }
    });
    let (index, fault) =
        failed.min_by_key(|(index, fault)| (fault.at, task.has_items(*index), *index))?;
    Some(Fault {
        step: Some(task.definition(index).name.clone()),
        ..fault.clone()
    })
}

fn fault(kind: FaultKind, message: String, now: Timestamp) -> Fault {
    Fault {
        kind,
        message,
        status: None,
        body: None,
        at: now,
        effect: Effect::Known,
        step: None,
        undo_on_resume: false,
    }
}
