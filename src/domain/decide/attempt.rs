//! An attempt of a step: claimed, answered, noted, handed back.

use std::time::Duration;

use super::{Draft, fault};
use crate::domain::{
    Actor, Attempt, Call, Event, Fault, FaultKind, InstanceId, OnPermanent, Outcome, Refusal,
    Release, Span, StepIndex, StepRef, StepState, Task, Timestamp, render::render_request,
    template::RenderError,
};

impl Draft {
    pub(super) fn claim_step(
        &mut self,
        index: StepIndex,
        instance: InstanceId,
        by: &Actor,
        now: Timestamp,
    ) -> Result<Option<Call>, Refusal> {
        let Some(due_at) = self.task.due_at(index) else {
            return Err(self.refuse_step(index, "only a pending step of a running task is claimed"));
        };
        if due_at > now {
            return Err(Refusal::NotDue {
                step: self.task.definition(index).name.clone(),
                at: due_at,
            });
        }
        if self.task.complete_by.is_some_and(|limit| limit <= now) {
            return Err(self.refuse_step(index, "the task's complete-by has passed"));
        }
        let step = &mut self.task.steps[index.at()];
        step.attempt = step.attempt.next();
        step.started_at.get_or_insert(now);
        let within = self.task.definition(index).complete_within;
        let complete_by = match self.task.complete_by {
            Some(limit) => limit.min(now + within),
            None => now + within,
        };
        match call(&self.task, index, complete_by, now) {
            Ok(call) => {
                self.change(
                    index,
                    "step.claimed",
                    StepState::Processing {
                        locked_by: instance,
                        complete_by,
                    },
                    by,
                    None,
                );
                if due_at < now
                    && let Some(claimed) = self.events.last_mut()
                {
                    // How long it stood in line is worth knowing later.
                    claimed.ready_at = Some(due_at);
                }
                self.settle(by, None, now);
                Ok(Some(call))
            }
            Err(error) => {
                let message = format!("its request could not be made: {error}");
                self.refused(index, fault(FaultKind::Permanent, message, now), by, now);
                Ok(None)
            }
        }
    }

    pub(super) fn reply(
        &mut self,
        index: StepIndex,
        attempt: Attempt,
        outcome: Outcome,
        by: &Actor,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        self.check_fence(index, attempt)?;
        match outcome {
            Outcome::Success(output) => {
                self.change(
                    index,
                    "step.processed",
                    StepState::Processed { output, at: now },
                    by,
                    None,
                );
                self.open_followers(index, by, now);
                self.settle(by, None, now);
            }
            Outcome::Failed(fault) => self.refused(
                index,
                Fault {
                    kind: FaultKind::Permanent,
                    at: now,
                    ..fault
                },
                by,
                now,
            ),
        }
        Ok(())
    }

    /// A permanent error: the step's policy decides (P12).
    fn refused(&mut self, index: StepIndex, fault: Fault, by: &Actor, now: Timestamp) {
        match self.task.definition(index).on_permanent {
            OnPermanent::Error => self.fail(index, "step.error", fault, by),
            OnPermanent::Skip => {
                let reason = format!("on_permanent is skip: {}", fault.message);
                self.task.steps[index.at()].last_fault = Some(fault);
                self.change(
                    index,
                    "step.skipped",
                    StepState::Skipped {
                        output: None,
                        at: now,
                    },
                    by,
                    Some(reason),
                );
                self.open_followers(index, by, now);
            }
        }
        self.settle(by, None, now);
    }

    pub(super) fn note(
        &mut self,
        index: StepIndex,
        attempt: Attempt,
        fault: Fault,
        next_try_in: Duration,
        by: &Actor,
    ) -> Result<(), Refusal> {
        self.check_fence(index, attempt)?;
        let millis = u64::try_from(next_try_in.as_millis()).unwrap_or(u64::MAX);
        let step = &mut self.task.steps[index.at()];
        step.last_fault = Some(fault.clone());
        self.events.push(Event {
            kind: "step.retrying".into(),
            step: Some(self.task.definition(index).name.clone()),
            attempt: Some(attempt),
            from: Some("processing".into()),
            to: "processing".into(),
            by: by.clone(),
            reason: Some(format!("tried again in {}", Span::from_millis(millis))),
            ready_at: None,
            failure_count: None,
            error: Some(fault),
        });
        self.touch(index);
        Ok(())
    }

    pub(super) fn release(
        &mut self,
        index: StepIndex,
        attempt: Attempt,
        why: Release,
        by: &Actor,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        self.check_fence(index, attempt)?;
        self.change(
            index,
            "step.released",
            StepState::Pending { ready_at: now },
            by,
            Some(why.reason().to_owned()),
        );
        self.offer(index);
        Ok(())
    }
}

/// Renders what the agent needs to do the work (P9).
fn call(
    task: &Task,
    index: StepIndex,
    complete_by: Timestamp,
    now: Timestamp,
) -> Result<Call, RenderError> {
    let definition = task.definition(index);
    let step = task.step(index);
    let rendered = render_request(definition, &task.scope(index))?;
    Ok(Call {
        step: StepRef {
            task: task.id(),
            step: index,
        },
        step_name: definition.name.clone(),
        task_key: task.details.key.clone(),
        attempt: step.attempt,
        idempotency_key: task.idempotency_key(index),
        target: definition.target.clone(),
        method: rendered.method,
        path: rendered.path,
        headers: rendered.headers,
        body: match &step.body {
            Some(body) => Some(body.as_json().to_owned()),
            None => rendered.body,
        },
        complete_by,
        complete_within: Span::from_millis(complete_by.since(now).as_millis() as u64),
        traceparent: traceparent(task, index, step.attempt),
    })
}

/// W3C trace context: the submitter's trace or the task's own, and a span for this very attempt.
fn traceparent(task: &Task, index: StepIndex, attempt: Attempt) -> String {
    let trace = task.details.trace_id.unwrap_or(task.id().0.as_u128());
    let span = (u64::from(index.0) + 1) << 32 | u64::from(attempt.0);
    format!("00-{trace:032x}-{span:016x}-01")
}
