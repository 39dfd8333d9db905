//! An attempt of a step: claimed, answered, tried again, handed back.

use std::time::Duration;

use super::{Draft, Secrets, call, poll::excerpt};
use crate::{
    definition::{Method, Policy},
    task::{
        call::{Call, CallOutcome},
        command::{Claimant, Refusal, Release},
        kept_response::KeptResponse,
        missing_result,
        open_reply::{OpenReply, StepHolder},
        retry_budget::RetryWait,
        step::{Step, StepState},
    },
    template::{Scope, payload::Payload},
    values::{
        fault::{Effect, Fault, FaultKind},
        ids::{Attempt, StepIndex, StepRef},
        time::{Span, Timestamp},
    },
};

impl Draft {
    /// Takes a ready step for an instance or a worker. `None`: its request could not be made, and the step's policy for
    /// permanent errors has been applied instead.
    pub(super) fn claim(
        &mut self,
        index: StepIndex,
        claimant: Claimant,
    ) -> Result<Option<Call>, Refusal> {
        if self.task.is_awaited(index) {
            return self.claim_poll(index, claimant);
        }
        let Some(due_at) = self.task.due_at(index) else {
            return Err(self.refuse_step(
                index,
                "only a pending step of a running task can be claimed",
            ));
        };
        if due_at > self.now {
            return Err(Refusal::NotDue {
                step: self.task.definition(index).name.clone(),
                at: due_at,
            });
        }
        if self.task.limit().is_some_and(|limit| limit <= self.now) {
            return Err(self.refuse_step(index, "the task's complete-by has passed"));
        }
        let probed = self.task.probe_before(index).is_some();
        let whole = self.time_to_complete(index);
        let step = self.task.step_mut(index);
        let within = step.time_left.take().unwrap_or(whole);
        step.attempt = step.attempt.next();
        step.started_at.get_or_insert(self.now);
        if probed {
            step.begin_probe();
        }
        self.count_attempt(index, probed);
        if !probed && let Err(message) = self.task.time_of_attempt(index) {
            self.apply_policy(index, Fault::permanent(message, self.now));
            return Ok(None);
        }
        let complete_by = match self.task.limit() {
            Some(limit) => limit.min(self.now + within),
            None => self.now + within,
        };
        let reply_url = self.reply_url(index);
        let shown = Secrets::Sent {
            reply_url: reply_url.as_deref(),
        };
        match call(
            &self.task,
            index,
            complete_by,
            self.now,
            &self.budget,
            shown,
        ) {
            Ok(call) => {
                if !probed {
                    // From now on the undo reads the request of this attempt.
                    self.task.step_mut(index).sent_request = None;
                }
                let probing =
                    probed.then(|| "its probe runs to find out whether it took effect".to_owned());
                let (held_by, reason) = match claimant {
                    Claimant::Instance(instance) => (StepHolder::Instance(instance), probing),
                    Claimant::Worker(worker) => {
                        let reason = match probing {
                            Some(probing) => format!("fetched by worker {worker}: {probing}"),
                            None => format!("fetched by worker {worker}"),
                        };
                        let open = OpenReply::fetched(self.now, call.heartbeat_within, worker);
                        (StepHolder::Service(Box::new(open)), Some(reason))
                    }
                };
                let state = StepState::Processing {
                    held_by,
                    complete_by,
                };
                self.change(index, "step.claimed", state, reason);
                if due_at < self.now
                    && let Some(claimed) = self.events.last_mut()
                {
                    // The history shows from this how long the step waited in the queue.
                    claimed.ready_at = Some(due_at);
                }
                self.settle(None);
                Ok(Some(call))
            }
            Err(error) => {
                let why = missing_result::reason(&self.task, index, &error).unwrap_or_default();
                let message = format!("its request could not be made: {error}{why}");
                let fault = Fault::permanent(message, self.now);
                if probed {
                    self.probe_failed(index, fault);
                } else {
                    self.apply_policy(index, fault);
                }
                Ok(None)
            }
        }
    }

    /// Returns the address for the reply if the request reads it. The attempts of a step have the same address until a
    /// reply is accepted, because they have the same key: a service may refuse another request under it.
    fn reply_url(&self, index: StepIndex) -> Option<String> {
        let step = StepRef {
            task: self.task.id(),
            step: index,
        };
        let addresses = self.reply_addresses.as_ref();
        addresses
            .filter(|_| self.task.definition(index).reads_reply)
            .map(|addresses| addresses.of(step, self.last_accepted(index).any_after()))
    }

    /// The time that a step has when an attempt starts from the beginning, either for its own call or for its
    /// probe.
    pub(super) fn time_to_complete(&self, index: StepIndex) -> Span {
        match self.task.probe_before(index) {
            Some(probe) => probe.complete_within,
            None => self.own_time(index),
        }
    }

    /// The time that an attempt of the step itself has. One whose time cannot be evaluated does not begin.
    pub(super) fn own_time(&self, index: StepIndex) -> Span {
        let within = self.task.time_of_attempt(index);
        within.unwrap_or(self.task.definition(index).complete_within)
    }

    /// Ends the attempt with what has come of it, by what the step was doing. An undo is work like any other.
    pub(super) fn reply(
        &mut self,
        index: StepIndex,
        attempt: Attempt,
        outcome: CallOutcome,
    ) -> Result<(), Refusal> {
        self.check_fence(index, attempt)?;
        if self.is_cancelling(index) {
            self.reply_to_cancel(index, outcome);
        } else if self.is_probing(index) && self.task.is_withdrawn(index) {
            self.end_withdrawn(index, None);
        } else if self.is_probing(index) {
            self.reply_to_probe(index, outcome);
        } else if self.is_polled(index) {
            self.reply_to_poll(index, outcome);
        } else {
            self.reply_to_work(index, outcome);
        }
        Ok(())
    }

    fn reply_to_work(&mut self, index: StepIndex, outcome: CallOutcome) {
        match outcome {
            CallOutcome::Success(output) | CallOutcome::Probed { body: output, .. } => {
                self.received(index, output, None);
            }
            CallOutcome::Kept { output, response } => match self.overlong_headers(&response) {
                Some(fault) => self.refuse_output(index, fault),
                None => self.received(index, output, Some(response)),
            },
            CallOutcome::Failed(fault) => self.refused(index, self.final_fault(fault)),
            CallOutcome::Transient { fault, wait } => self.try_later(index, fault, wait),
            CallOutcome::Crashed(fault) => self.crashed(index, fault),
            CallOutcome::Deferred => self.defer(index),
            CallOutcome::PollAt {
                address,
                retry_after,
            } => {
                let wait = retry_after.unwrap_or_default();
                self.poll_again(index, Some(address.into()), wait);
            }
            CallOutcome::Polled {
                status,
                body,
                retry_after,
            } => self.polled(index, status, body, retry_after),
        }
    }

    /// The service has sent its reply. Where the step says so, the reply itself tells whether it is an error.
    pub(super) fn received(
        &mut self,
        index: StepIndex,
        output: Payload,
        response: Option<Box<KeptResponse>>,
    ) {
        match self.error_in(index, &output, response.as_deref()) {
            Some(fault) => self.refused(index, fault),
            None => {
                self.task.step_mut(index).response = response;
                self.succeed(index, output, None);
            }
        }
    }

    /// Returns the fault of a reply that is an error by the rule of the step.
    fn error_in(
        &self,
        index: StepIndex,
        output: &Payload,
        response: Option<&KeptResponse>,
    ) -> Option<Fault> {
        let rules = self.task.definition(index).attempts.as_ref()?;
        let scope = Scope {
            output: Some(output),
            ..self.task.scope(index, &self.budget)
        };
        let (message, effect) = match rules.failed.as_ref()?.judge(&scope) {
            Ok(None) => return None,
            Ok(Some(message)) => (message, Effect::Known),
            Err(message) => (message, Effect::Unknown),
        };
        Some(Fault {
            status: response.map(|response| response.status),
            body: Some(excerpt(output)),
            effect,
            ..Fault::permanent(message, self.now)
        })
    }

    /// Returns a fault that ends the attempt now.
    pub(super) fn final_fault(&self, fault: Fault) -> Fault {
        Fault {
            kind: FaultKind::Permanent,
            at: self.now,
            ..fault
        }
    }

    /// This service failed during the call, so its effect is unknown.
    pub(super) fn crashed(&mut self, index: StepIndex, fault: Fault) {
        let reason = fault.message.clone();
        if self.task.is_withdrawn(index) {
            self.end_withdrawn(index, Some(reason));
            return;
        }
        self.task.step_mut(index).last_fault = Some(fault);
        self.unanswered(index, reason);
    }

    pub(super) fn succeed(&mut self, index: StepIndex, output: Payload, reason: Option<String>) {
        let (mut output, mut reason) = (output, reason);
        if let Some(fault) = self.overlong(index, &output) {
            if self.task.definition(index).undoes.is_none() {
                self.refuse_output(index, fault);
                return;
            }
            // The undo is done: that its service said much must not leave it open.
            output = Payload::null();
            reason = Some(fault.message);
        }
        self.task.step_mut(index).set_effect(Effect::Known);
        let processed = StepState::Processed {
            output,
            at: self.time_of_success(index),
        };
        self.change(index, "step.processed", processed, reason);
        self.after_success(index);
        self.settle(None);
    }

    /// A step that succeeds after its race is over must not be taken for a winner.
    pub(super) fn time_of_success(&self, index: StepIndex) -> Timestamp {
        let earliest = self.task.earliest_success(index);
        earliest.map_or(self.now, |earliest| earliest.max(self.now))
    }

    /// The step took effect, and what it gave cannot be kept.
    pub(super) fn refuse_output(&mut self, index: StepIndex, fault: Fault) {
        match self.task.definition(index).has_child() {
            // Its task is processed: what that did stands until it is undone.
            true => self.task.step_mut(index).set_effect(Effect::Unknown),
            false => self.effect_is_unknown(index),
        }
        let effect = self.task.step(index).effect;
        let fault = Fault { effect, ..fault };
        self.apply_policy(index, fault);
    }

    /// Continues with the steps that the success of this step makes possible.
    pub(super) fn after_success(&mut self, index: StepIndex) {
        if self.task.definition(index).undoes.is_some() {
            self.after_undo(index);
        } else if self.task.undo.is_some() && !self.task.is_finally(index) {
            self.open_undos();
        } else {
            self.open_followers(index);
        }
    }

    /// A permanent error: the step's policy decides.
    pub(super) fn refused(&mut self, index: StepIndex, fault: Fault) {
        if self.is_gone_already(index, &fault) {
            let reason = format!("{}: there is nothing left to undo", fault.message);
            self.succeed(index, Payload::null(), Some(reason));
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
        self.apply_policy(index, fault);
    }

    /// The step has failed permanently: its policy decides what follows, unless the task only waits for it.
    fn apply_policy(&mut self, index: StepIndex, fault: Fault) {
        if self.task.undo.is_none() && self.task.is_lost(index) {
            self.lose_with(index, fault);
        } else if self.is_left_behind(index) {
            self.change(index, "step.error", StepState::Error(fault), None);
            self.open_undos();
        } else if self.task.is_unwanted(index)
            && self.task.is_still_wanted(index, &self.budget) != Ok(true)
        {
            self.end_withdrawn(index, None);
        } else if self.task.is_withdrawn(index) && !self.task.is_unwanted(index) {
            self.give_up(index, Policy::Error, fault);
        } else {
            let policy = self
                .task
                .definition(index)
                .policy_for_permanent(fault.status);
            self.follow(index, policy, fault);
        }
        self.settle(None);
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
    pub(super) fn give_up(&mut self, index: StepIndex, policy: Policy, fault: Fault) {
        self.give_up_alone(index, policy, fault);
        if policy != Policy::Skip {
            self.item_ended(index);
        }
    }

    /// [`Draft::give_up`] where what follows is looked at by the caller.
    pub(super) fn give_up_alone(&mut self, index: StepIndex, policy: Policy, fault: Fault) {
        match policy {
            Policy::Error => self.fail(index, "step.error", fault),
            Policy::Undo => {
                let waits =
                    self.holds_undos() && self.task.passed_pivot_after(Some(index)).is_none();
                let reason = waits.then(|| "the task is undone when it is resumed".to_owned());
                let fault = Fault {
                    undo_on_resume: waits,
                    ..fault
                };
                let error = StepState::Error(fault.clone());
                self.change(index, "step.error", error, reason);
                if !waits {
                    self.undo_because_of(index, fault);
                }
            }
            Policy::Skip => {
                let reason = format!("its policy is skip: {}", fault.message);
                self.task.step_mut(index).last_fault = Some(fault);
                self.pass_over(index, reason);
                self.after_success(index);
            }
        }
    }

    /// A transient fault: the attempt is over, and nothing is held until the next one, which continues with
    /// the time to complete that this one leaves. Where it leaves none, a failure is counted now, without
    /// waiting for complete-by. One is also counted where the probe has to be asked first whether the call
    /// took effect.
    pub(super) fn try_later(&mut self, index: StepIndex, fault: Fault, retry: RetryWait) {
        if fault.effect == Effect::Unknown || self.is_probing(index) {
            self.effect_is_unknown(index);
        }
        if self.task.is_withdrawn(index) {
            self.end_withdrawn(index, Some(fault.message));
            return;
        }
        self.task.step_mut(index).last_fault = Some(fault.clone());
        if self.leave_behind(index, &fault.message) {
            return;
        }
        let wait = Span::from(retry.whole());
        if fault.effect == Effect::Unknown && self.task.probe_before(index).is_some() {
            let fault = fault.message;
            let reason = format!("{fault}; its probe runs before the next attempt");
            self.failed(index, reason, wait);
            return;
        }
        if self.has_used_up_attempts(index, &fault.message) {
            return;
        }
        let next = self.now + wait;
        let complete_by = match self.task.step(index).state {
            StepState::Processing { complete_by, .. } => complete_by,
            _ => self.now,
        };
        // The time for which the step is parked does not count as its own.
        let left = complete_by.since(self.now + Span::from(retry.backoff));
        // The task's own limit ends it before the next attempt, by the policy for that.
        let overdue = self.task.limit().is_some_and(|limit| limit <= next);
        if left.is_zero() && !overdue {
            let whole = self.time_to_complete(index);
            let fault = fault.message;
            let reason = format!(
                "it did not succeed within {whole}; its last fault: {fault}; the next attempt, in {wait}, would be too late"
            );
            self.failed(index, reason, wait);
            return;
        }
        let pending = StepState::Pending { ready_at: next };
        let reason = match retry.parked.is_zero() || self.are_attempts_bounded(index) {
            true => format!("retried in {wait}"),
            false => format!("retried in {wait}, within the retry budget of its agent"),
        };
        self.change(index, "step.retrying", pending, Some(reason));
        let step = self.task.step_mut(index);
        step.tries = step.tries.saturating_add(1);
        step.time_left = Some(Span::from_millis(left.as_millis() as u64));
        if let Some(event) = self.events.last_mut() {
            event.error = Some(fault);
        }
        if next <= self.now {
            self.offer(index);
        } else {
            self.item_ended(index);
            self.settle(None);
        }
    }

    pub(super) fn release(
        &mut self,
        index: StepIndex,
        attempt: Attempt,
        why: Release,
    ) -> Result<(), Refusal> {
        if why == Release::Undelivered {
            self.check_fence(index, attempt)?;
            if self.task.worker(index).is_none() {
                return Err(self.refuse_step(index, "no worker has fetched it"));
            }
            self.take_back(index, why);
            return Ok(());
        }
        if matches!(why, Release::Stopped | Release::NoSlot) {
            self.check_holder(index, attempt)?;
            if self.is_polled(index) {
                self.poll_again(index, None, Duration::ZERO);
            } else {
                self.take_back(index, why);
            }
            return Ok(());
        }
        self.check_holder(index, attempt)?;
        if let StepState::Processing { complete_by, .. } = self.task.step(index).state
            && why == Release::NeverStarted
            && complete_by <= self.now
        {
            // Its call was dropped then: not one that never began, but one that failed.
            return Err(self.refuse_step(
                index,
                "its complete-by has passed, so the supervisor will recover it",
            ));
        }
        let is_dropped = why == Release::Dropped || self.task.is_to_be_dropped(index);
        if self.is_polled(index) && (!is_dropped || self.is_cancelling(index)) {
            self.poll_again(index, None, Duration::ZERO);
            return Ok(());
        }
        // Even a call that was not seen to start may start after the check that missed it.
        if self.is_polled(index) && self.begin_cancel(index) {
            return Ok(());
        }
        self.effect_is_unknown(index);
        self.hand_back(index, why);
        Ok(())
    }

    /// Nothing was sent under this attempt.
    fn take_back(&mut self, index: StepIndex, why: Release) {
        let probed = self.is_probing(index);
        self.discount_attempt(index, probed);
        if probed {
            self.effect_is_unknown(index);
        }
        self.hand_back(index, why);
    }

    /// The attempt is over without a failure: the step is pending again at once.
    fn hand_back(&mut self, index: StepIndex, why: Release) {
        let reason = why.reason();
        if self.task.is_withdrawn(index) {
            self.end_withdrawn(index, Some(reason.to_owned()));
            return;
        }
        if self.leave_behind(index, reason) || self.has_used_up_attempts(index, reason) {
            return;
        }
        let pending = StepState::Pending { ready_at: self.now };
        self.change(index, "step.released", pending, Some(reason.to_owned()));
        self.offer(index);
    }
}

/// Returns whether a refusal also means that the earlier attempts had no effect. A response of the service does,
/// because all attempts carry one key. But if nothing was sent, the service said nothing; a service that asks for a
/// login or redirects has not looked at the key; a conflict may be with an earlier attempt that is still running; and a
/// service returns 422 for a key that it knows with another body.
fn speaks_for_all(fault: &Fault, step: &Step) -> bool {
    match fault.status {
        None | Some(401 | 403 | 407 | 409 | 421) => false,
        Some(422) => step.body.is_none(),
        Some(_) => true,
    }
}
