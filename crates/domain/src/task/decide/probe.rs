//! Probes: a step that may have taken effect is asked about before it is tried again, and before it is
//! undone, so that nothing done is repeated and nothing is undone that did not happen.

use super::Draft;
use crate::{
    definition::{Finding, Probe},
    task::{aggregate::Task, call::CallOutcome, step::StepState},
    template::payload::Payload,
    values::{
        fault::{Effect, Fault},
        ids::StepIndex,
    },
};

impl Task {
    /// The probe that the next attempt asks instead of doing the step's work.
    pub fn probe_before(&self, index: StepIndex) -> Option<&Probe> {
        let subject = self.subject(index);
        let probe = self.definition(subject).probe.as_ref()?;
        (self.step(subject).effect == Effect::Unknown).then_some(probe)
    }
}

/// Returns the value of `response` in expressions.
pub fn response(status: u16, body: &Payload) -> Option<Payload> {
    // A number and JSON under fixed names are JSON.
    Payload::parse(format!(
        r#"{{"status":{status},"body":{}}}"#,
        body.as_json()
    ))
}

impl Draft {
    pub(super) fn is_probing(&self, index: StepIndex) -> bool {
        self.task.step(index).is_probing
    }

    /// From now on the current attempt may have taken effect. Probing has no effect.
    pub(super) fn effect_is_unknown(&mut self, index: StepIndex) {
        if !self.task.definition(index).is_call() {
            return;
        }
        let asked_for_another = self.is_probing(index) && self.task.subject(index) != index;
        let effect = Effect::unknown_if(!asked_for_another);
        self.task.step_mut(index).set_effect(effect);
    }

    /// The probe of the attempt has ended.
    pub(super) fn reply_to_probe(&mut self, index: StepIndex, outcome: CallOutcome) {
        match outcome {
            CallOutcome::Success(body) | CallOutcome::Kept { output: body, .. } => {
                self.probed(index, 200, &body);
            }
            CallOutcome::Probed { status, body } => self.probed(index, status, &body),
            CallOutcome::Failed(fault) => {
                let fault = Fault {
                    message: format!("its probe failed: {}", fault.message),
                    ..self.final_fault(fault)
                };
                self.probe_failed(index, fault);
            }
            CallOutcome::Transient { fault, wait } => self.try_later(index, fault, wait),
            CallOutcome::Crashed(fault) => self.crashed(index, fault),
            CallOutcome::Deferred | CallOutcome::PollAt { .. } | CallOutcome::Polled { .. } => {
                self.defer(index);
            }
        }
    }

    /// A probe was answered.
    pub(super) fn probed(&mut self, index: StepIndex, status: u16, body: &Payload) {
        match self.judge(index, status, body) {
            Ok(Finding::Done(output)) => self.found_done(index, output),
            Ok(Finding::NotDone) => self.found_not_done(index),
            Ok(Finding::InProgress) => {
                let reason = "its probe returned in_progress".to_owned();
                self.unanswered(index, reason);
            }
            Err(message) => {
                let fault = Fault {
                    status: Some(status),
                    ..Fault::permanent(message, self.now)
                };
                self.probe_failed(index, fault);
            }
        }
    }

    fn judge(&self, index: StepIndex, status: u16, body: &Payload) -> Result<Finding, String> {
        let subject = self.task.subject(index);
        let Some(probe) = &self.task.definition(subject).probe else {
            return Err("it has no probe".to_owned());
        };
        let response = response(status, body);
        let mut scope = self.task.scope(subject, &self.budget);
        scope.response = response.as_ref();
        probe.judge(status, body, &scope)
    }

    fn found_done(&mut self, index: StepIndex, output: Payload) {
        let subject = self.task.subject(index);
        if subject == index
            && let Some(fault) = self.overlong(index, &output)
        {
            self.refuse_output(index, fault);
            return;
        }
        self.took_effect(subject, output);
        if subject == index {
            self.after_success(index);
        } else {
            let reason = format!(
                "the probe found that {} took effect",
                self.task.definition(subject).name
            );
            self.go_on_after_probe(index, reason);
        }
        self.settle(None);
    }

    fn found_not_done(&mut self, index: StepIndex) {
        let subject = self.task.subject(index);
        self.task.step_mut(subject).set_effect(Effect::Known);
        self.task.step_mut(index).counts.probes = 0;
        if subject != index {
            self.task.step_mut(index).set_effect(Effect::Known);
            let reason = format!(
                "the probe found that {} never took effect",
                self.task.definition(subject).name
            );
            self.pass_over(index, reason);
            self.go_on_after_undo(index);
        } else if self.is_left_behind(index) {
            self.abandon(index, "its probe found that it did not take effect");
            self.open_undos();
            self.open_reverts(index);
        } else {
            let reason = "its probe found that it did not take effect".to_owned();
            self.go_on_after_probe(index, reason);
        }
        self.settle(None);
    }

    /// Begins the work itself at once, now that the probe is over.
    fn go_on_after_probe(&mut self, index: StepIndex, reason: String) {
        let step = self.task.step_mut(index);
        step.set_effect(Effect::Known);
        step.counts.probes = 0;
        if self.has_used_up_attempts(index, &reason) {
            return;
        }
        let pending = StepState::Pending { ready_at: self.now };
        self.change(index, "step.probed", pending, Some(reason));
        self.offer(index);
    }

    /// The probe refused, or its answer cannot be read. A person must look, regardless of the policies: it is not known
    /// whether there is anything to undo.
    pub(super) fn probe_failed(&mut self, index: StepIndex, fault: Fault) {
        self.effect_is_unknown(index);
        if self.task.undo.is_none() && self.task.is_lost(index) {
            self.lose_with(index, fault);
        } else if self.is_left_behind(index) {
            self.change(index, "step.error", StepState::Error(fault), None);
            self.open_undos();
        } else {
            self.fail(index, "step.error", fault);
            self.item_ended(index);
        }
        self.settle(None);
    }
}
