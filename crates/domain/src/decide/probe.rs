//! Probes: a step that may have taken effect is asked about before it is tried again, and before it is
//! undone, so that nothing done is repeated and nothing is undone that did not happen.

use super::{Draft, fault};
use crate::{
    definition::{Finding, Probe},
    fault::{Effect, Fault, FaultKind},
    history::Actor,
    ids::StepIndex,
    payload::Payload,
    step::StepState,
    task::Task,
    time::Timestamp,
};

impl Task {
    /// The probe that the next attempt asks instead of doing the step's work.
    pub fn probe_before(&self, index: StepIndex) -> Option<&Probe> {
        let subject = self.subject(index);
        let probe = self.definition(subject).probe.as_ref()?;
        (self.step(subject).effect == Effect::Unknown).then_some(probe)
    }
}

/// What expressions see as `response`.
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

    /// A probe was answered.
    pub(super) fn probed(
        &mut self,
        index: StepIndex,
        status: u16,
        body: &Payload,
        by: &Actor,
        now: Timestamp,
    ) {
        match self.judge(index, status, body) {
            Ok(Finding::Done(output)) => self.found_done(index, output, by, now),
            Ok(Finding::NotDone) => self.found_not_done(index, by, now),
            Ok(Finding::InProgress) => {
                let reason = "its probe returned in_progress".to_owned();
                self.unanswered(index, reason, by, now);
            }
            Err(message) => {
                let fault = Fault {
                    status: Some(status),
                    ..fault(FaultKind::Permanent, message, now)
                };
                self.probe_failed(index, fault, by, now);
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

    fn found_done(&mut self, index: StepIndex, output: Payload, by: &Actor, now: Timestamp) {
        let subject = self.task.subject(index);
        if subject == index
            && let Some(fault) = self.overlong(index, &output, now)
        {
            self.refuse_output(index, fault, by, now);
            return;
        }
        self.took_effect(subject, output, by, now);
        if subject == index {
            self.after_success(index, by, now);
        } else {
            let reason = format!(
                "the probe found that {} took effect",
                self.task.definition(subject).name
            );
            self.go_on_after_probe(index, reason, by, now);
        }
        self.settle(by, None, now);
    }

    fn found_not_done(&mut self, index: StepIndex, by: &Actor, now: Timestamp) {
        let subject = self.task.subject(index);
        self.task.step_mut(subject).set_effect(Effect::Known);
        if subject != index {
            self.task.step_mut(index).set_effect(Effect::Known);
            let reason = format!(
                "the probe found that {} never took effect",
                self.task.definition(subject).name
            );
            self.pass_over(index, reason, by, now);
            self.open_undos(by, now);
        } else if self.is_left_behind(index) {
            self.abandon(
                index,
                "its probe found that it did not take effect",
                by,
                now,
            );
            self.open_undos(by, now);
        } else {
            let reason = "its probe found that it did not take effect".to_owned();
            self.go_on_after_probe(index, reason, by, now);
        }
        self.settle(by, None, now);
    }

    /// Now the work itself, at once.
    fn go_on_after_probe(&mut self, index: StepIndex, reason: String, by: &Actor, now: Timestamp) {
        self.task.step_mut(index).set_effect(Effect::Known);
        let pending = StepState::Pending { ready_at: now };
        self.change(index, "step.probed", pending, by, Some(reason));
        self.offer(index);
    }

    /// The probe refused, or said what nobody understands. Whatever the policies say, a person must look:
    /// it is not known whether there is anything to undo.
    pub(super) fn probe_failed(
        &mut self,
        index: StepIndex,
        fault: Fault,
        by: &Actor,
        now: Timestamp,
    ) {
        self.effect_is_unknown(index);
        if self.is_left_behind(index) {
            self.change(index, "step.error", StepState::Error(fault), by, None);
            self.open_undos(by, now);
        } else {
            self.fail(index, "step.error", fault, by);
            self.item_ended(index, by, now);
        }
        self.settle(by, None, now);
    }
}
