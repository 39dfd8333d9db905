//! An attempt of a step: claimed, answered, tried again, handed back.

use std::time::Duration;

use super::{Draft, fault, poll::Polled};
use crate::{
    call::{Call, CallOutcome, Purpose},
    command::{Claimant, Refusal, Release},
    definition::{Method, Policy, RequestTemplate, StepWork},
    fault::{Effect, Fault, FaultKind},
    hidden::hide_secrets,
    history::Actor,
    ids::{Attempt, StepIndex, StepRef},
    missing_result,
    open_reply::{OpenReply, StepHolder},
    payload::Payload,
    render,
    retry_budget::RetryWait,
    step::{Step, StepState},
    task::Task,
    template::{Budget, RenderError},
    time::{Span, Timestamp},
    trace::CallTrace,
};

impl Draft {
    /// Takes a ready step for an instance or a worker. `None`: its request could not be made, and the step's policy for
    /// permanent errors has been applied instead.
    pub(super) fn claim(
        &mut self,
        index: StepIndex,
        claimant: Claimant,
        by: &Actor,
        now: Timestamp,
    ) -> Result<Option<Call>, Refusal> {
        if self.task.is_awaited(index) {
            return self.claim_poll(index, claimant, by, now);
        }
        let Some(due_at) = self.task.due_at(index) else {
            return Err(self.refuse_step(
                index,
                "only a pending step of a running task can be claimed",
            ));
        };
        if due_at > now {
            return Err(Refusal::NotDue {
                step: self.task.definition(index).name.clone(),
                at: due_at,
            });
        }
        if self.task.limit().is_some_and(|limit| limit <= now) {
            return Err(self.refuse_step(index, "the task's complete-by has passed"));
        }
        let probed = self.task.probe_before(index).is_some();
        let whole = self.time_to_complete(index);
        let step = self.task.step_mut(index);
        let within = step.time_left.take().unwrap_or(whole);
        step.attempt = step.attempt.next();
        step.started_at.get_or_insert(now);
        if probed {
            step.begin_probe();
        }
        let complete_by = match self.task.limit() {
            Some(limit) => limit.min(now + within),
            None => now + within,
        };
        let shown = Secrets::Sent;
        match call(&self.task, index, complete_by, now, &self.budget, shown) {
            Ok(call) => {
                let probing =
                    probed.then(|| "its probe runs to find out whether it took effect".to_owned());
                let (held_by, reason) = match claimant {
                    Claimant::Instance(instance) => (StepHolder::Instance(instance), probing),
                    Claimant::Worker(worker) => {
                        let reason = match probing {
                            Some(probing) => format!("fetched by worker {worker}: {probing}"),
                            None => format!("fetched by worker {worker}"),
                        };
                        let open = OpenReply::fetched(now, call.heartbeat_within, worker);
                        (StepHolder::Service(Box::new(open)), Some(reason))
                    }
                };
                let state = StepState::Processing {
                    held_by,
                    complete_by,
                };
                self.change(index, "step.claimed", state, by, reason);
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
                let why = missing_result::reason(&self.task, index, &error).unwrap_or_default();
                let message = format!("its request could not be made: {error}{why}");
                let fault = fault(FaultKind::Permanent, message, now);
                if probed {
                    self.probe_failed(index, fault, by, now);
                } else {
                    self.unmakeable(index, fault, by, now);
                }
                Ok(None)
            }
        }
    }

    /// The time that a step has when an attempt starts from the beginning, either for its own call or for its
    /// probe.
    pub(super) fn time_to_complete(&self, index: StepIndex) -> Span {
        match self.task.probe_before(index) {
            Some(probe) => probe.complete_within,
            None => self.task.definition(index).complete_within,
        }
    }

    pub(super) fn reply(
        &mut self,
        index: StepIndex,
        attempt: Attempt,
        outcome: CallOutcome,
        by: &Actor,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        self.check_fence(index, attempt)?;
        if self.is_cancelling(index) {
            match outcome {
                CallOutcome::Transient { wait, .. } => {
                    self.poll_again(index, None, wait.backoff, by, now);
                }
                _ => self.end_cancel(index, by, now),
            }
            return Ok(());
        }
        match (outcome, self.is_probing(index)) {
            (CallOutcome::Success(body), true) => self.probed(index, 200, &body, by, now),
            (CallOutcome::Probed { status, body }, true) => {
                self.probed(index, status, &body, by, now)
            }
            (CallOutcome::Success(output) | CallOutcome::Probed { body: output, .. }, false) => {
                self.succeed(index, output, None, by, now);
            }
            (CallOutcome::Failed(fault), false) if self.is_polled(index) => {
                let message = format!("its reply could not be polled: {}", fault.message);
                let at = now;
                self.poll_failed(
                    index,
                    Fault {
                        message,
                        at,
                        ..fault
                    },
                    by,
                    now,
                );
            }
            (CallOutcome::Failed(fault), probing) => {
                let fault = Fault {
                    kind: FaultKind::Permanent,
                    at: now,
                    ..fault
                };
                if probing {
                    let message = format!("its probe failed: {}", fault.message);
                    self.probe_failed(index, Fault { message, ..fault }, by, now);
                } else {
                    self.refused(index, fault, by, now);
                }
            }
            (CallOutcome::Transient { fault, wait }, false) if self.is_polled(index) => {
                self.task.step_mut(index).last_fault = Some(fault);
                self.poll_again(index, None, wait.backoff, by, now);
            }
            (CallOutcome::Crashed(fault), false) if self.is_polled(index) => {
                self.task.step_mut(index).last_fault = Some(fault);
                self.poll_again(index, None, Duration::ZERO, by, now);
            }
            (CallOutcome::Transient { fault, wait }, _) => {
                self.try_later(index, fault, wait, by, now)
            }
            (
                CallOutcome::PollAt {
                    address,
                    retry_after,
                },
                false,
            ) => {
                let wait = retry_after.unwrap_or_default();
                self.poll_again(index, Some(address.into()), wait, by, now);
            }
            (
                CallOutcome::Polled {
                    status,
                    body,
                    retry_after,
                },
                false,
            ) => {
                let response = Polled {
                    status,
                    body,
                    retry_after,
                };
                self.polled(index, response, by, now);
            }
            (
                CallOutcome::Deferred | CallOutcome::PollAt { .. } | CallOutcome::Polled { .. },
                _,
            ) => self.defer(index, by, now),
            (CallOutcome::Crashed(fault), _) => {
                let reason = fault.message.clone();
                self.task.step_mut(index).last_fault = Some(fault);
                self.unanswered(index, reason, by, now);
            }
        }
        Ok(())
    }

    pub(super) fn succeed(
        &mut self,
        index: StepIndex,
        output: Payload,
        reason: Option<String>,
        by: &Actor,
        now: Timestamp,
    ) {
        let (mut output, mut reason) = (output, reason);
        if let Some(fault) = self.overlong(index, &output, now) {
            if self.task.definition(index).undoes.is_none() {
                self.refuse_output(index, fault, by, now);
                return;
            }
            // The undo is done: that its service said much must not leave it open.
            output = Payload::null();
            reason = Some(fault.message);
        }
        self.task.step_mut(index).set_effect(Effect::Known);
        let processed = StepState::Processed { output, at: now };
        self.change(index, "step.processed", processed, by, reason);
        self.after_success(index, by, now);
        self.settle(by, None, now);
    }

    /// The step took effect, and what it gave cannot be kept.
    pub(super) fn refuse_output(
        &mut self,
        index: StepIndex,
        fault: Fault,
        by: &Actor,
        now: Timestamp,
    ) {
        match self.task.definition(index).has_child() {
            // Its task is processed: what that did stands until it is undone.
            true => self.task.step_mut(index).set_effect(Effect::Unknown),
            false => self.effect_is_unknown(index),
        }
        let effect = self.task.step(index).effect;
        let fault = Fault { effect, ..fault };
        if self.is_left_behind(index) {
            self.change(index, "step.error", StepState::Error(fault), by, None);
            self.open_undos(by, now);
        } else {
            let policy = self.task.definition(index).on_permanent;
            self.give_up(index, policy, fault, by, now);
        }
        self.settle(by, None, now);
    }

    /// What a step that is done makes possible.
    pub(super) fn after_success(&mut self, index: StepIndex, by: &Actor, now: Timestamp) {
        if self.task.definition(index).undoes.is_some() {
            self.after_undo(index, by, now);
        } else if self.is_left_behind(index) {
            self.open_undos(by, now);
        } else {
            self.open_followers(index, by, now);
        }
    }

    /// The request could not be made, so nothing was sent by this attempt.
    fn unmakeable(&mut self, index: StepIndex, fault: Fault, by: &Actor, now: Timestamp) {
        let policy = self.task.definition(index).on_permanent;
        self.give_up(index, policy, fault, by, now);
        self.settle(by, None, now);
    }

    /// A permanent error: the step's policy decides.
    pub(super) fn refused(&mut self, index: StepIndex, fault: Fault, by: &Actor, now: Timestamp) {
        if self.is_gone_already(index, &fault) {
            let reason = format!("{}: there is nothing left to undo", fault.message);
            self.succeed(index, Payload::null(), Some(reason), by, now);
            return;
        }
        let step = self.task.step_mut(index);
        if fault.effect == Effect::Unknown {
            step.set_effect(Effect::Unknown);
        } else if speaks_for_all(&fault, step) {
            step.set_effect(Effect::Known);
        }
        let fault = Fault {
            effect: step.effect,
            ..fault
        };
        if self.is_left_behind(index) {
            self.change(index, "step.error", StepState::Error(fault), by, None);
            self.open_undos(by, now);
        } else {
            let policy = self.task.definition(index).on_permanent;
            self.give_up(index, policy, fault, by, now);
        }
        self.settle(by, None, now);
    }

    /// An undo finds nothing to undo: an earlier attempt deleted it, or it was never there.
    fn is_gone_already(&self, index: StepIndex, fault: &Fault) -> bool {
        let definition = self.task.definition(index);
        let Some(undone) = definition.undoes else {
            return false;
        };
        // One of unknown effect is about the operation that is polled, not about what it undoes.
        matches!(fault.status, Some(404 | 410))
            && fault.effect == Effect::Known
            && (definition.method() == Some(Method::Delete)
                || self.task.step(undone).effect == Effect::Unknown)
    }

    /// Trying is over: the policy decides what follows. After an item that is in error, others go on.
    pub(super) fn give_up(
        &mut self,
        index: StepIndex,
        policy: Policy,
        fault: Fault,
        by: &Actor,
        now: Timestamp,
    ) {
        self.give_up_alone(index, policy, fault, by, now);
        if policy != Policy::Skip {
            self.item_ended(index, by, now);
        }
    }

    /// [`Draft::give_up`] where what follows is looked at by the caller.
    pub(super) fn give_up_alone(
        &mut self,
        index: StepIndex,
        policy: Policy,
        fault: Fault,
        by: &Actor,
        now: Timestamp,
    ) {
        match policy {
            Policy::Error => self.fail(index, "step.error", fault, by),
            Policy::Undo => {
                let waits =
                    self.holds_undos() && self.task.passed_pivot_after(Some(index)).is_none();
                let reason = waits.then(|| "the task is undone when it is resumed".to_owned());
                let fault = Fault {
                    undo_on_resume: waits,
                    ..fault
                };
                let error = StepState::Error(fault.clone());
                self.change(index, "step.error", error, by, reason);
                if !waits {
                    self.undo_because_of(index, fault, by, now);
                }
            }
            Policy::Skip => {
                let reason = format!("its policy is skip: {}", fault.message);
                self.task.step_mut(index).last_fault = Some(fault);
                self.pass_over(index, reason, by, now);
                self.after_success(index, by, now);
            }
        }
    }

    /// A transient fault: the attempt is over, and nothing is held until the next one, which continues with
    /// the time to complete that this one leaves. Where it leaves none, a failure is counted now, without
    /// waiting for complete-by. One is also counted where the probe has to be asked first whether the call
    /// took effect.
    fn try_later(
        &mut self,
        index: StepIndex,
        fault: Fault,
        retry: RetryWait,
        by: &Actor,
        now: Timestamp,
    ) {
        if fault.effect == Effect::Unknown || self.is_probing(index) {
            self.effect_is_unknown(index);
        }
        self.task.step_mut(index).last_fault = Some(fault.clone());
        if self.is_left_behind(index) {
            self.abandon(index, &fault.message, by, now);
            self.open_undos(by, now);
            self.settle(by, None, now);
            return;
        }
        let wait = Span::from(retry.whole());
        if fault.effect == Effect::Unknown && self.task.probe_before(index).is_some() {
            let fault = fault.message;
            let reason = format!("{fault}; its probe runs before the next attempt");
            self.failed(index, reason, wait, by, now);
            return;
        }
        let next = now + wait;
        let complete_by = match self.task.step(index).state {
            StepState::Processing { complete_by, .. } => complete_by,
            _ => now,
        };
        // What it is parked for is not its own time.
        let left = complete_by.since(now + Span::from(retry.backoff));
        // The task's own limit ends it before the next attempt, by the policy for that.
        let overdue = self.task.limit().is_some_and(|limit| limit <= next);
        if left.is_zero() && !overdue {
            let whole = self.time_to_complete(index);
            let fault = fault.message;
            let reason = format!(
                "it did not succeed within {whole}; its last fault: {fault}; the next attempt, in {wait}, would be too late"
            );
            self.failed(index, reason, wait, by, now);
            return;
        }
        let pending = StepState::Pending { ready_at: next };
        let reason = match retry.parked.is_zero() {
            true => format!("retried in {wait}"),
            false => format!("retried in {wait}, within the retry budget of its agent"),
        };
        self.change(index, "step.retrying", pending, by, Some(reason));
        let step = self.task.step_mut(index);
        step.tries = step.tries.saturating_add(1);
        step.time_left = Some(Span::from_millis(left.as_millis() as u64));
        if let Some(event) = self.events.last_mut() {
            event.error = Some(fault);
        }
        if next <= now {
            self.offer(index);
        } else {
            self.item_ended(index, by, now);
            self.settle(by, None, now);
        }
    }

    pub(super) fn release(
        &mut self,
        index: StepIndex,
        attempt: Attempt,
        why: Release,
        by: &Actor,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        if why == Release::Undelivered {
            self.check_fence(index, attempt)?;
            if self.task.worker(index).is_none() {
                return Err(self.refuse_step(index, "no worker has fetched it"));
            }
            self.take_back(index, why, by, now);
            return Ok(());
        }
        if matches!(why, Release::Stopped | Release::NoSlot) {
            self.check_holder(index, attempt)?;
            if self.is_polled(index) {
                self.poll_again(index, None, Duration::ZERO, by, now);
            } else {
                self.take_back(index, why, by, now);
            }
            return Ok(());
        }
        self.check_holder(index, attempt)?;
        if let StepState::Processing { complete_by, .. } = self.task.step(index).state
            && why == Release::NeverStarted
            && complete_by <= now
        {
            // Its call was dropped then: not one that never began, but one that failed.
            return Err(self.refuse_step(
                index,
                "its complete-by has passed, so the supervisor will recover it",
            ));
        }
        let is_dropped = why == Release::Dropped || self.task.is_to_be_dropped(index);
        if self.is_polled(index) && (!is_dropped || self.is_cancelling(index)) {
            self.poll_again(index, None, Duration::ZERO, by, now);
            return Ok(());
        }
        let reason = why.reason();
        // Even a call that was not seen to start may start after the check that missed it.
        if self.is_polled(index) && self.begin_cancel(index, now) {
            return Ok(());
        }
        self.effect_is_unknown(index);
        if self.is_left_behind(index) {
            self.abandon(index, reason, by, now);
            self.open_undos(by, now);
            self.settle(by, None, now);
            return Ok(());
        }
        let pending = StepState::Pending { ready_at: now };
        self.change(index, "step.released", pending, by, Some(reason.to_owned()));
        self.offer(index);
        Ok(())
    }

    /// Nothing was sent under this attempt.
    fn take_back(&mut self, index: StepIndex, why: Release, by: &Actor, now: Timestamp) {
        if self.is_probing(index) {
            self.effect_is_unknown(index);
        }
        let reason = why.reason();
        if self.is_left_behind(index) {
            self.abandon(index, reason, by, now);
            self.open_undos(by, now);
            self.settle(by, None, now);
            return;
        }
        let pending = StepState::Pending { ready_at: now };
        self.change(index, "step.released", pending, by, Some(reason.to_owned()));
        self.offer(index);
    }
}

/// Whether a refusal also means that the earlier attempts had no effect. A response of the service does, because
/// all attempts carry one key. But if nothing was sent, the service said nothing; a service that asks for a login
/// or redirects has not looked at the key; a conflict may be with an earlier attempt that is still running; and a
/// service returns 422 for a key that it knows with another body.
fn speaks_for_all(fault: &Fault, step: &Step) -> bool {
    match fault.status {
        None | Some(401 | 403 | 407 | 409 | 421) => false,
        Some(422) => step.body.is_none(),
        Some(_) => true,
    }
}

/// Whether what undoes a step reads the secret headers of its request, or what stands instead where it
/// is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Secrets {
    Sent,
    Hidden,
}

/// Renders what the agent needs to do the work, or to ask whether it was done.
pub(crate) fn call(
    task: &Task,
    index: StepIndex,
    complete_by: Timestamp,
    now: Timestamp,
    budget: &Budget,
    secrets: Secrets,
) -> Result<Call, RenderError> {
    let definition = task.definition(index);
    let StepWork::Call { target, request } = &definition.work else {
        let reason = "it calls no service".to_owned();
        return Err(RenderError::new(definition.name.as_str(), reason));
    };
    let step = task.step(index);
    let subject = task.subject(index);
    let probe = task.probe_before(index);
    // The probe runs next, whether the work or the probe breaks off, and that counts as a failure.
    let needs_new_connection =
        task.definition(subject).probe.is_some() && step.failure_count >= definition.max_failures;
    let own = step.body.as_ref();
    let (rendered, purpose) = match (probe, definition.undoes) {
        (Some(probe), _) => (
            render::render_request(&probe.request, &task.scope(subject, budget), None)?,
            Purpose::Probe(task.idempotency_key(subject)),
        ),
        (None, Some(_)) => (
            undo_request(task, index, request, budget, secrets)?,
            Purpose::Undo(task.idempotency_key(subject)),
        ),
        (None, None) => (
            render::render_request(request, &task.scope(index, budget), own)?,
            Purpose::Work,
        ),
    };
    let at = StepRef {
        task: task.id(),
        step: index,
    };
    Ok(Call {
        step: at,
        step_name: definition.name.clone(),
        task_key: task.details.key.clone(),
        attempt: step.attempt,
        tries: step.tries,
        idempotency_key: task.idempotency_key(index),
        target: target.clone(),
        method: rendered.method,
        path: rendered.path,
        headers: rendered.headers,
        body: rendered.body,
        complete_by,
        wall_complete_by: complete_by,
        complete_within: Span::from_millis(complete_by.since(now).as_millis() as u64),
        trace: CallTrace::of(task.details.trace.as_ref(), at, step.attempt),
        purpose,
        needs_new_connection,
        is_dropped_by_undo: definition.is_dropped_by_undo(),
        reply_mode: definition.reply.mode(),
        heartbeat_within: definition.heartbeat_within,
    })
}

/// An undo may read the request that it undoes. That is rendered again: the definition, the input and the outputs
/// of the steps before it are on record, and only change if an operator reruns them.
fn undo_request(
    task: &Task,
    index: StepIndex,
    request: &RequestTemplate,
    budget: &Budget,
    secrets: Secrets,
) -> Result<render::Rendered, RenderError> {
    let definition = task.definition(index);
    let mut scope = task.scope(index, budget);
    let recorded;
    let subject = task.subject(index);
    if definition.reads_request
        && let Some(request) = task.definition(subject).request()
    {
        recorded = recorded_request(task, subject, request, budget, secrets)?;
        scope.request = Some(&recorded);
    }
    let own = task.step(index).body.as_ref();
    render::render_request(request, &scope, own)
}

fn recorded_request(
    task: &Task,
    index: StepIndex,
    request: &RequestTemplate,
    budget: &Budget,
    secrets: Secrets,
) -> Result<Payload, RenderError> {
    let own = task.step(index).body.as_ref();
    let mut rendered = render::render_request(request, &task.scope(index, budget), own)?;
    if secrets == Secrets::Hidden {
        hide_secrets(&mut rendered.headers);
    }
    Ok(rendered.as_payload())
}
