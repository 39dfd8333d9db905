//! Bounds on the number of attempts: `max_attempts` of a step, of its undo, and of its probe. Only steps with such a
//! bound count anything here.

use std::collections::BTreeMap;

use super::Draft;
use crate::{
    definition::{AttemptRules, StatusPolicy, output_of_error},
    task::{aggregate::Task, kept_response::KeptResponse, step::Step},
    values::{fault::Fault, ids::StepIndex},
};

impl Task {
    fn rules(&self, index: StepIndex) -> Option<&AttemptRules> {
        self.definition(index).attempts.as_deref()
    }

    fn max_attempts(&self, index: StepIndex) -> Option<u32> {
        self.rules(index)?.max_attempts
    }

    /// Returns the bound of the probe that the next attempt runs.
    fn max_probes(&self, index: StepIndex) -> Option<u32> {
        self.probe_before(index)?.attempts.as_ref()?.max_attempts
    }

    /// Returns whether the current attempt is the last one that the step may have.
    pub(super) fn has_last_attempt(&self, index: StepIndex) -> bool {
        let most = self.max_attempts(index);
        most.is_some_and(|most| self.step(index).counted_attempts() >= most)
    }
}

impl Step {
    /// Returns the number of its attempts that count for `max_attempts`, the current one included.
    fn counted_attempts(&self) -> u32 {
        self.attempt.0.saturating_sub(self.counts.uncounted)
    }
}

impl Draft {
    /// Returns whether a number bounds the attempts of the step, and not only the time for them.
    pub(super) fn are_attempts_bounded(&self, index: StepIndex) -> bool {
        self.task.max_attempts(index).is_some() || self.task.max_probes(index).is_some()
    }

    /// Counts an attempt that is claimed now. One that runs the probe counts for the probe alone.
    pub(super) fn count_attempt(&mut self, index: StepIndex, probed: bool) {
        if !probed {
            return;
        }
        let (is_bounded, has_bounded_probe) = (
            self.task.max_attempts(index).is_some(),
            self.task.max_probes(index).is_some(),
        );
        let counts = &mut self.task.step_mut(index).counts;
        counts.uncounted = counts.uncounted.saturating_add(is_bounded.into());
        counts.probes = counts.probes.saturating_add(has_bounded_probe.into());
    }

    /// Nothing was sent under the current attempt, so it does not count.
    pub(super) fn discount_attempt(&mut self, index: StepIndex, probed: bool) {
        let is_bounded = self.task.max_attempts(index).is_some();
        let counts = &mut self.task.step_mut(index).counts;
        match probed {
            true => counts.probes = counts.probes.saturating_sub(1),
            false => counts.uncounted = counts.uncounted.saturating_add(is_bounded.into()),
        }
    }

    /// The step may have all its attempts again, as if it had had none.
    pub(super) fn grant_attempts(&mut self, index: StepIndex) {
        let is_bounded = self.task.max_attempts(index).is_some();
        let step = self.task.step_mut(index);
        step.counts.probes = 0;
        step.counts.uncounted = match is_bounded {
            true => step.attempt.0,
            false => 0,
        };
    }

    /// Ends the step if it may have no further attempt: neither one of its own nor, while its effect is unknown, one of its
    /// probe. `reason` says how the current attempt has ended. True if the step has ended.
    pub(super) fn has_used_up_attempts(&mut self, index: StepIndex, reason: &str) -> bool {
        let step = self.task.step(index);
        if self.task.probe_before(index).is_some() {
            let Some(most) = self.task.max_probes(index) else {
                return false;
            };
            if step.counts.probes < most {
                return false;
            }
            let message = match most {
                1 => format!("its probe had its only attempt; {reason}"),
                most => format!("its probe had its {most} attempts; {reason}"),
            };
            self.probe_failed(index, Fault::exhausted(message, self.now));
            return true;
        }
        if !self.task.has_last_attempt(index) {
            return false;
        }
        let message = match step.counted_attempts() {
            1 => format!("failed in its only attempt; {reason}"),
            count => format!("failed in {count} attempts; {reason}"),
        };
        self.exhaust(index, message);
        true
    }

    /// The step is not tried again: the policy decides, by the status of the last fault where the step says so.
    pub(super) fn exhaust(&mut self, index: StepIndex, message: String) {
        let step = self.task.step(index);
        let (last, effect) = (step.last_fault.as_ref(), step.effect);
        let fault = Fault {
            status: last.and_then(|fault| fault.status),
            body: last.and_then(|fault| fault.body.clone()),
            effect,
            ..Fault::exhausted(message, self.now)
        };
        let definition = self.task.definition(index);
        let policy = definition.policy_for_exhausted(fault.status);
        self.follow(index, policy, fault);
        self.settle(None);
    }

    /// Does what the policy for a fault says.
    pub(super) fn follow(&mut self, index: StepIndex, policy: StatusPolicy, fault: Fault) {
        match policy {
            StatusPolicy::Policy(policy) => self.give_up(index, policy, fault),
            StatusPolicy::Success => {
                let output = output_of_error(&fault);
                let reason = format!("its policy is success: {}", fault.message);
                let rules = self.task.definition(index).attempts.as_ref();
                let is_kept = rules.is_some_and(|rules| rules.keep_headers.is_some());
                let status = fault.status.filter(|_| is_kept);
                let step = self.task.step_mut(index);
                step.last_fault = Some(fault);
                // The record of a fault has no headers.
                step.response = status.map(|status| {
                    Box::new(KeptResponse {
                        status,
                        headers: BTreeMap::new(),
                    })
                });
                self.succeed(index, output, Some(reason));
            }
        }
    }
}
