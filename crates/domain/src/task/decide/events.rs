//! Steps that call no service: they begin as soon as they are ready, and wait for a time or a signal.

use super::{CommandOutput, Draft};
use crate::{
    definition::{EarlySignal, Policy, StepWork},
    task::{
        command::Refusal,
        open_reply::{ReplyDigest, Signal, StepHolder},
        step::{StepState, StepStatus},
    },
    template::{Scope, payload::Payload},
    values::{
        fault::Fault,
        ids::StepIndex,
        time::{Span, Timestamp},
    },
};

impl Draft {
    /// A pending step begins to wait for its event, if its task may go on. True if it is done already, so that the steps that
    /// follow it may go on.
    pub(super) fn await_event(&mut self, index: StepIndex) -> bool {
        if !self.task.may_begin() {
            return false;
        }
        let (end, awaited) = match &self.task.definition(index).work {
            StepWork::Call { .. } => return false,
            StepWork::Group(_) => return self.begin_group(index),
            StepWork::Wait(rule) => {
                let end = rule.end(&self.task.scope(index, &self.budget), self.now);
                (end, "waits until")
            }
            StepWork::Signal(_) => {
                let within = self.task.time_of_signal(index);
                (
                    within.map(|within| self.now + within),
                    "awaits its signal until",
                )
            }
            StepWork::Set(_) | StepWork::Stop(_) => return self.give_values(index),
            // Its task has a time limit.
            StepWork::Task(_) => (Ok(self.now + Span::LONGEST), ""),
        };
        let asked = self.asked(index);
        let step = self.task.step_mut(index);
        step.attempt = step.attempt.next();
        step.started_at.get_or_insert(self.now);
        step.child = None;
        match end.and_then(|end| Ok((end, asked?))) {
            Ok((complete_by, asked)) => {
                let reason = match self.task.definition(index) {
                    definition if !definition.has_child() => format!("{awaited} {complete_by}"),
                    definition if definition.undoes.is_some() => "its task is undone".to_owned(),
                    _ => "its task is made".to_owned(),
                };
                let begun = StepState::Processing {
                    held_by: StepHolder::Event,
                    complete_by,
                };
                self.change(index, "step.began", begun, Some(reason));
                if let Some(asked) = asked {
                    self.ask(index, asked);
                }
                self.has_happened(index, complete_by)
            }
            Err(message) => self.cannot_begin(index, message),
        }
    }

    /// A step ends that only names values, or that ends the task. True if it is done.
    fn give_values(&mut self, index: StepIndex) -> bool {
        if let Some(fault) = self.task.fault_of_block(index).cloned() {
            let reason = format!("none of its steps has succeeded: {}", fault.message);
            self.task.step_mut(index).last_fault = Some(fault);
            self.pass_over(index, reason);
            return true;
        }
        let definition = self.task.definition(index);
        let scope = self.task.scope(index, &self.budget);
        let given = match &definition.work {
            StepWork::Set(rule) => rule.values(&scope).map(|values| (values, None, None)),
            StepWork::Stop(rule) => rule.output(&scope).map(|output| {
                // An end on purpose does not fail for want of its words.
                let message = rule.message(&scope).unwrap_or_else(|fault| fault);
                (output, Some(message), rule.state.policy())
            }),
            _ => return false,
        };
        let (output, message, policy) = match given {
            Ok(given) => given,
            Err(message) => return self.cannot_begin(index, message),
        };
        if let Some(policy) = policy {
            let fault = Fault::permanent(message.unwrap_or_default(), self.now);
            self.give_up_alone(index, policy, fault);
            return false;
        }
        if let Some(fault) = self.overlong(index, &output) {
            return self.cannot_begin(index, fault.message);
        }
        let processed = StepState::Processed {
            output,
            at: self.time_of_success(index),
        };
        self.change(index, "step.processed", processed, message);
        self.end_by_stop(index);
        true
    }

    /// The definition or the data do not let it begin: its policy decides. True if it is passed over.
    pub(super) fn cannot_begin(&mut self, index: StepIndex, message: String) -> bool {
        let fault = Fault::permanent(message, self.now);
        match self.task.definition(index).on_permanent {
            Policy::Skip => {
                let reason = format!("its policy is skip: {}", fault.message);
                self.task.step_mut(index).last_fault = Some(fault);
                self.pass_over(index, reason);
                true
            }
            policy @ (Policy::Error | Policy::Undo) => {
                self.give_up_alone(index, policy, fault);
                false
            }
        }
    }

    /// Returns whether a step that begins to wait has nothing to wait for: its time has passed, or its signal came
    /// before.
    fn has_happened(&mut self, index: StepIndex, complete_by: Timestamp) -> bool {
        let signal = self.task.step_mut(index).signal.as_mut();
        if let Some(payload) = signal.and_then(|signal| signal.payload.take()) {
            // It came when the outputs of the steps before were not known.
            match self.check_match(index, &payload) {
                Ok(()) => {
                    self.event_came(index, payload);
                    return true;
                }
                Err(reason) => {
                    self.task.step_mut(index).signal = None;
                    let reason = format!("the signal that was kept for it is dropped: {reason}");
                    self.note_signal(index, "step.signal_dropped", reason);
                }
            }
        }
        let is_over = complete_by <= self.now;
        if is_over {
            self.event_came(index, Payload::null());
        }
        is_over
    }

    /// The steps begin that were ready while the task was not to go on.
    pub(super) fn await_pending_events(&mut self) {
        for index in self.task.indexes() {
            let is_pending = self.task.step(index).status() == StepStatus::Pending;
            if is_pending && self.task.is_current(index) && !self.task.definition(index).is_call() {
                if self.await_event(index) {
                    self.open_followers(index);
                } else if self.task.step(index).status() == StepStatus::Error {
                    self.item_ended(index);
                }
            }
        }
    }

    /// The time has come until which a step waits.
    pub(super) fn event_is_due(&mut self, index: StepIndex) {
        match &self.task.definition(index).work {
            StepWork::Signal(rule) => {
                let within = self.task.time_of_signal(index).unwrap_or(rule.within);
                let message = match &rule.ask {
                    Some(_) => format!("nobody decided within {within}"),
                    None => format!("no signal came within {within}"),
                };
                let policy = rule.on_timeout;
                let fault = Fault::exhausted(message, self.now);
                self.give_up(index, policy, fault);
            }
            StepWork::Task(_) => self.renew_wait_for_child(index),
            StepWork::Group(_) => self.iteration_is_due(index),
            StepWork::Call { .. } | StepWork::Wait(_) | StepWork::Set(_) | StepWork::Stop(_) => {
                self.event_came(index, Payload::null());
                self.after_success(index);
            }
        }
        self.settle(None);
    }

    pub(super) fn event_came(&mut self, index: StepIndex, output: Payload) {
        let processed = StepState::Processed {
            output,
            at: self.time_of_success(index),
        };
        self.change(index, "step.processed", processed, None);
    }

    /// Returns the step that a signal to this one is for. One to a repeated step is for the iteration that awaits it, or
    /// for the last one, if that has got this very signal and no other has begun.
    fn signalled_iteration(
        &self,
        index: StepIndex,
        digest: &ReplyDigest,
    ) -> Result<StepIndex, Refusal> {
        if !self.task.is_repeated(index) || self.task.is_ended() {
            return Ok(index);
        }
        if let Some(open) = self.task.next_iteration(index) {
            return Ok(open);
        }
        let group = self.task.group(index);
        let last = group.and_then(|group| group.items.iter().next_back());
        // There are at most as many steps as an index can count.
        let last = last.map(|at| StepIndex(at as u16));
        let has_got = |step: &StepIndex| {
            let signal = self.task.step(*step).signal.as_ref();
            signal.is_some_and(|signal| signal.digest == *digest)
        };
        last.filter(has_got).ok_or_else(|| {
            self.refuse_step(
                index,
                "none of its iterations awaits a signal now: send it again once one does",
            )
        })
    }

    /// A caller says that what a step awaits has happened. The first one counts; one that comes before the step is ready
    /// is kept for it.
    pub(super) fn signal(
        &mut self,
        index: StepIndex,
        payload: Payload,
        digest: ReplyDigest,
    ) -> Result<CommandOutput, Refusal> {
        let index = self.signalled_iteration(index, &digest)?;
        let step = self.task.step(index);
        if !matches!(self.task.definition(index).work, StepWork::Signal(_)) {
            return Err(self.refuse_step(
                index,
                match self.task.has_items(index) {
                    true => "its items await signals: add the number of one of them in brackets, such as [0]",
                    false => "it awaits no signal",
                },
            ));
        }
        if self.task.definition(index).work.ask().is_some() {
            return Err(self.refuse_step(
                index,
                "it asks people, and only their links decide: an operator can skip or resolve it",
            ));
        }
        if let Some(known) = &step.signal {
            return match known.digest == digest {
                true => Ok(CommandOutput::Unchanged),
                false => Err(self.refuse_step(
                    index,
                    "it has got another signal already, and the first one counts",
                )),
            };
        }
        if self.task.is_ended() {
            return Err(Refusal::Ended(self.task.status().as_str()));
        }
        self.check_room(index, Some(&payload))?;
        match step.status() {
            StepStatus::Processing => {
                self.refuse_mismatch(index, &payload)?;
                let signal = Signal {
                    digest,
                    payload: None,
                };
                self.task.step_mut(index).signal = Some(Box::new(signal));
                self.event_came(index, payload);
                self.after_success(index);
                self.settle(None);
                Ok(CommandOutput::Done)
            }
            StepStatus::Waiting | StepStatus::Pending
                if self.early_signals(index) == EarlySignal::Refuse =>
            {
                Err(self.refuse_step(
                    index,
                    "it does not await its signal yet, and keeps none that comes early: send it again later",
                ))
            }
            StepStatus::Waiting | StepStatus::Pending => {
                if self.knows_match(index) {
                    self.refuse_mismatch(index, &payload)?;
                }
                let signal = Signal {
                    digest,
                    payload: Some(payload),
                };
                self.task.step_mut(index).signal = Some(Box::new(signal));
                let reason = "its signal came before the step was ready, and is kept for it";
                self.note_signal(index, "step.signalled", reason.to_owned());
                Ok(CommandOutput::Done)
            }
            StepStatus::Error => Err(self.refuse_step(
                index,
                "no signal came in time: an operator can retry or resolve it",
            )),
            StepStatus::Processed
            | StepStatus::Skipped
            | StepStatus::Cancelled
            | StepStatus::Undone => Err(self.refuse_step(index, "it awaits no signal any more")),
        }
    }

    fn early_signals(&self, index: StepIndex) -> EarlySignal {
        match &self.task.definition(index).work {
            StepWork::Signal(rule) => rule.early,
            _ => EarlySignal::Keep,
        }
    }

    /// Returns whether the steps that the condition of a signal reads are done.
    fn knows_match(&self, index: StepIndex) -> bool {
        let StepWork::Signal(rule) = &self.task.definition(index).work else {
            return false;
        };
        let Some(condition) = &rule.matches else {
            return false;
        };
        let mut steps = condition.reads().steps.iter();
        steps.all(|name| {
            let read = self.task.find(name);
            read.is_some_and(|read| self.task.step(read).is_done())
        })
    }

    fn refuse_mismatch(&self, index: StepIndex, payload: &Payload) -> Result<(), Refusal> {
        self.check_match(index, payload)
            .map_err(|reason| Refusal::SignalMismatch {
                step: self.task.definition(index).name.clone(),
                reason,
            })
    }

    /// Checks that this is the signal that the step awaits. The error is the reason why it is not.
    fn check_match(&self, index: StepIndex, payload: &Payload) -> Result<(), String> {
        let StepWork::Signal(rule) = &self.task.definition(index).work else {
            return Ok(());
        };
        let Some(condition) = &rule.matches else {
            return Ok(());
        };
        let scope = Scope {
            signal: Some(payload),
            ..self.task.scope(index, &self.budget)
        };
        match condition.truth(&scope) {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("`match` is false for it: {}", condition.source())),
            Err(error) => Err(format!("`match` could not be evaluated: {error}")),
        }
    }

    /// Records what became of a signal, while the step stays as it is.
    pub(super) fn note_signal(&mut self, index: StepIndex, kind: &'static str, reason: String) {
        self.note(index, kind, reason);
        self.touch(index);
    }
}
