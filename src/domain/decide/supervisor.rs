//! Recovery, as the supervisor asks for it (P23 to P26).

use super::{Draft, fault};
use crate::domain::{
    Actor, Attempt, Fault, FaultKind, OnExhausted, Refusal, Span, StepIndex, StepState, Timestamp,
    backoff,
};

impl Draft {
    /// An attempt's complete-by has passed: counts the failure, then pending again with backoff, or
    /// what the step's policy says.
    pub(super) fn expire(
        &mut self,
        index: StepIndex,
        attempt: Attempt,
        by: &Actor,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        self.check_fence(index, attempt)?;
        if let StepState::Processing { complete_by, .. } = self.task.step(index).state
            && complete_by > now
        {
            return Err(Refusal::NotDue {
                step: self.task.definition(index).name.clone(),
                at: complete_by,
            });
        }
        self.drop_call(index);
        let step = &mut self.task.steps[index.at()];
        step.failure_count += 1;
        let definition = &self.task.details.definition.steps[index.at()];
        let expired = format!(
            "attempt {attempt} did not finish within {}",
            definition.complete_within
        );
        let reason = match &step.last_fault {
            Some(fault) => format!("{expired}; last fault: {}", fault.message),
            None => expired,
        };
        if step.failure_count <= definition.max_failures {
            let wait = backoff(step.failure_count);
            self.try_again(index, "step.expired", wait, by, reason, now);
            return Ok(());
        }
        match definition.on_exhausted {
            OnExhausted::Extend { wait, times } if step.extended < times => {
                step.extended += 1;
                let reason = format!(
                    "{reason}; failed more than {} times, extended for the {} of {times} times",
                    definition.max_failures, step.extended
                );
                self.try_again(index, "step.extended", wait, by, reason, now);
            }
            OnExhausted::Error | OnExhausted::Extend { .. } => {
                let last = step.last_fault.clone();
                let fault = Fault {
                    status: last.as_ref().and_then(|fault| fault.status),
                    body: last.and_then(|fault| fault.body),
                    ..fault(
                        FaultKind::Exhausted,
                        format!("failed {} times; {reason}", step.failure_count),
                        now,
                    )
                };
                self.fail(index, "step.error", fault, by);
                self.settle(by, None, now);
            }
        }
        Ok(())
    }

    /// The instance that held the attempt is lost. It counts as a failure (P23), and the step is
    /// pending again at once: its service did nothing wrong. Alone it never uses the attempts up, or
    /// machines that come and go would end healthy steps in error; what it would have been the last
    /// straw for waits as after any failure, in case the step is what kills its instances.
    pub(super) fn lose(
        &mut self,
        index: StepIndex,
        attempt: Attempt,
        by: &Actor,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        self.check_fence(index, attempt)?;
        let reason = match &self.task.step(index).state {
            StepState::Processing { locked_by, .. } => {
                format!("instance {locked_by}, which held attempt {attempt}, was lost")
            }
            _ => format!("the instance that held attempt {attempt} was lost"),
        };
        self.drop_call(index);
        let most = self.task.definition(index).max_failures;
        let step = &mut self.task.steps[index.at()];
        let wait = if step.failure_count < most {
            step.failure_count += 1;
            Span::default()
        } else {
            backoff(most.saturating_add(1))
        };
        self.try_again(index, "step.expired", wait, by, reason, now);
        if wait == Span::default() {
            self.offer(index);
        }
        Ok(())
    }

    fn try_again(
        &mut self,
        index: StepIndex,
        kind: &'static str,
        wait: Span,
        by: &Actor,
        reason: String,
        now: Timestamp,
    ) {
        let pending = StepState::Pending {
            ready_at: now + wait,
        };
        self.change(index, kind, pending, by, Some(reason));
    }

    /// The task's own complete-by has passed: what is live ends in error.
    pub(super) fn overdue(&mut self, by: &Actor, now: Timestamp) -> Result<(), Refusal> {
        if self.task.overdue_at().is_none_or(|limit| limit > now) {
            return Err(Refusal::TaskState {
                status: self.task.status(),
                needed: "its complete-by has not passed, or nothing of it is left to run",
            });
        }
        let within = self.task.details.complete_within.unwrap_or_default();
        for index in self.task.indexes() {
            if self.task.step(index).is_live() {
                self.drop_call(index);
                let message = format!("the task did not finish within {within}");
                let fault = fault(FaultKind::Deadline, message, now);
                self.fail(index, "step.error", fault, by);
            }
        }
        self.settle(by, None, now);
        Ok(())
    }
}
