//! Polling: the attempt is held by no instance between two polls. A poll is claimed from the agent's queue when it is
//! due, as a step is, and under the same attempt.

use std::{sync::Arc, time::Duration};

use super::{Draft, Secrets, call};
use crate::{
    definition::{Method, PollFinding, ReplyRule, Target},
    task::{
        call::{Call, CallOutcome, DroppedBy, Purpose},
        command::{Claimant, Refusal},
        open_reply::{OpenReply, PollState, StepHolder},
        render::render_request,
        step::StepState,
    },
    template::payload::Payload,
    values::{
        fault::{Effect, Fault},
        ids::{AgentName, StepIndex},
        time::{Span, Timestamp},
        web_address::WebAddress,
    },
};

/// The longest that one poll may take.
const POLL_WITHIN: Span = Span::from_secs(30);
/// Between two polls, or two tries of a cancellation, whatever the service asks for.
const SHORTEST_WAIT: Span = Span::from_secs(1);

impl Draft {
    /// Takes a poll that is due for an instance. `None`: its request could not be made, or its agent is not called any
    /// more.
    pub(super) fn claim_poll(
        &mut self,
        index: StepIndex,
        claimant: Claimant,
    ) -> Result<Option<Call>, Refusal> {
        let Some(due_at) = self.task.due_at(index) else {
            return Err(self.refuse_step(index, "its service replies by itself"));
        };
        if due_at > self.now {
            return Err(Refusal::NotDue {
                step: self.task.definition(index).name.clone(),
                at: due_at,
            });
        }
        let StepState::Processing {
            held_by: StepHolder::Service(open),
            complete_by,
        } = self.task.step(index).state.clone()
        else {
            return Err(self.refuse_step(index, "another instance polls"));
        };
        if complete_by <= self.now {
            return Err(self.refuse_step(index, "its complete-by has passed"));
        }
        let until = complete_by.min(self.now + POLL_WITHIN);
        let call = match claimant {
            Claimant::Instance(instance) => self
                .poll_call(index, &open, until)
                .map(|call| (call, instance)),
            Claimant::Worker(_) => Err("its agent has the mode pull now".to_owned()),
        };
        match call {
            Ok((call, instance)) => {
                self.task.step_mut(index).state = StepState::Processing {
                    held_by: StepHolder::Poll(instance, open),
                    complete_by,
                };
                self.touch(index);
                Ok(Some(call))
            }
            // There is nothing to cancel by; so the undo goes on.
            Err(_) if open.is_cancelled() => {
                self.end_cancel(index);
                Ok(None)
            }
            Err(error) => {
                let message = format!("its reply could not be polled: {error}");
                self.poll_failed(index, Fault::permanent(message, self.now));
                Ok(None)
            }
        }
    }

    fn poll_call(
        &self,
        index: StepIndex,
        open: &OpenReply,
        until: Timestamp,
    ) -> Result<Call, String> {
        let secrets = Secrets::Sent { reply_url: None };
        let call = call(&self.task, index, until, self.now, &self.budget, secrets);
        let mut call = call.map_err(|error| error.to_string())?;
        let address = open.poll.as_ref().and_then(|poll| poll.address.clone());
        if !open.is_cancelled() {
            return poll_of(call, address);
        }
        let rule = self.task.definition(index).cancel.as_ref();
        let purpose = Purpose::Cancel(call.idempotency_key.clone());
        call.dropped_by = DroppedBy::Nothing;
        let Some(request) = rule.and_then(|rule| rule.request.as_ref()) else {
            let address = address.ok_or("the service has named no address")?;
            let call = poll_of(call, Some(address))?;
            return Ok(Call {
                purpose,
                method: Method::Delete,
                ..call
            });
        };
        let scope = self.task.scope(index, &self.budget);
        let rendered = render_request(request, &scope, None).map_err(|error| error.to_string())?;
        Ok(Call {
            purpose,
            method: rendered.method,
            path: rendered.path,
            headers: rendered.headers,
            body: rendered.body,
            ..call
        })
    }

    /// Has the service asked to cancel its work, where the step says how. Until it has responded, what undoes the step
    /// waits.
    pub(super) fn begin_cancel(&mut self, index: StepIndex) -> bool {
        // A worker learns by its heartbeats that the step is not awaited any more.
        if self.task.definition(index).cancel.is_none() || self.task.worker(index).is_some() {
            return false;
        }
        let StepState::Processing {
            held_by,
            complete_by,
        } = self.task.step(index).state.clone()
        else {
            return false;
        };
        let mut open = held_by
            .open_reply()
            .map_or_else(|| OpenReply::new(self.now, None), Clone::clone);
        if open.is_cancelled() || complete_by <= self.now {
            return false;
        }
        let address = open.poll.take().and_then(|poll| poll.address);
        open.silent_at = None;
        open.poll = Some(PollState {
            address,
            // The call that was dropped, or has ended just now, may not be over yet at its instance.
            next_at: self.now + SHORTEST_WAIT,
            cancels: true,
        });
        self.task.step_mut(index).state = StepState::Processing {
            held_by: StepHolder::Service(Box::new(open)),
            complete_by,
        };
        self.touch(index);
        true
    }

    /// Returns whether the service is to cancel its work, whether an instance asks for that just now or later.
    pub(super) fn asks_to_cancel(&self, index: StepIndex) -> bool {
        match &self.task.step(index).state {
            StepState::Processing { held_by, .. } => {
                held_by.open_reply().is_some_and(OpenReply::is_cancelled)
            }
            _ => false,
        }
    }

    /// Returns whether an instance asks the service to cancel its work.
    pub(super) fn is_cancelling(&self, index: StepIndex) -> bool {
        match &self.task.step(index).state {
            StepState::Processing {
                held_by: StepHolder::Poll(_, open),
                ..
            } => open.is_cancelled(),
            _ => false,
        }
    }

    /// Ends a cancellation, with any answer of the service: its work may have taken effect, and is undone.
    pub(super) fn end_cancel(&mut self, index: StepIndex) {
        if self.task.is_withdrawn(index) {
            let reason = "its service was asked to cancel the work";
            self.end_withdrawn(index, Some(reason.to_owned()));
            return;
        }
        self.effect_is_unknown(index);
        let reason = "the task is undone; the service was asked to cancel its work";
        self.abandon(index, reason);
        self.open_undos();
        self.settle(None);
    }

    /// Returns whether an instance is asking for the reply that the service has promised.
    pub(super) fn is_polled(&self, index: StepIndex) -> bool {
        matches!(
            &self.task.step(index).state,
            StepState::Processing {
                held_by: StepHolder::Poll(..),
                ..
            }
        )
    }

    /// An instance has asked for the reply.
    pub(super) fn reply_to_poll(&mut self, index: StepIndex, outcome: CallOutcome) {
        match outcome {
            CallOutcome::Success(output)
            | CallOutcome::Kept { output, .. }
            | CallOutcome::Probed { body: output, .. } => self.received(index, output, None),
            CallOutcome::Failed(fault) => {
                let fault = Fault {
                    message: format!("its reply could not be polled: {}", fault.message),
                    at: self.now,
                    ..fault
                };
                self.poll_failed(index, fault);
            }
            CallOutcome::Transient { fault, wait } => {
                self.task.step_mut(index).last_fault = Some(fault);
                self.poll_again(index, None, wait.backoff);
            }
            CallOutcome::Crashed(fault) => {
                self.task.step_mut(index).last_fault = Some(fault);
                self.poll_again(index, None, Duration::ZERO);
            }
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
            CallOutcome::Deferred => self.defer(index),
        }
    }

    /// An instance has asked the service to cancel its work.
    pub(super) fn reply_to_cancel(&mut self, index: StepIndex, outcome: CallOutcome) {
        match outcome {
            CallOutcome::Transient { wait, .. } => self.poll_again(index, None, wait.backoff),
            _ => self.end_cancel(index),
        }
    }

    /// A response that may be the reply.
    pub(super) fn polled(
        &mut self,
        index: StepIndex,
        status: u16,
        body: Payload,
        retry_after: Option<Duration>,
    ) {
        let definition = self.task.definition(index).clone();
        let ReplyRule::Poll(rule) = &definition.reply else {
            return self.received(index, body, None);
        };
        let response = super::probe::response(status, &body);
        let mut scope = self.task.scope(index, &self.budget);
        scope.response = response.as_ref();
        match rule.judge(&body, &scope) {
            Ok(PollFinding::Done(output)) => self.received(index, output, None),
            Ok(PollFinding::NotYet) => {
                self.poll_again(index, None, retry_after.unwrap_or_default());
            }
            Ok(PollFinding::Failed) => {
                let message = "the service reported that it failed".to_owned();
                let fault = Fault {
                    status: Some(status),
                    body: Some(excerpt(&body)),
                    ..Fault::permanent(message, self.now)
                };
                self.refused(index, fault);
            }
            Err(message) => {
                self.poll_failed(index, Fault::permanent(message, self.now));
            }
        }
    }

    /// The reply is not there yet, or could not be asked for: once more, when the time has come.
    pub(super) fn poll_again(
        &mut self,
        index: StepIndex,
        address: Option<Arc<str>>,
        wait: Duration,
    ) {
        let cancels = self.is_cancelling(index);
        if self.task.is_withdrawn(index) && !cancels {
            self.withdraw_promise(index);
            return;
        }
        if self.task.is_to_be_dropped(index) && !cancels {
            self.drop_open_reply(index);
            self.open_undos();
            self.settle(None);
            return;
        }
        let every = match &self.task.definition(index).reply {
            ReplyRule::Poll(rule) if !cancels => rule.every,
            _ => SHORTEST_WAIT,
        };
        let StepState::Processing {
            held_by,
            complete_by,
        } = self.task.step(index).state.clone()
        else {
            return;
        };
        let is_first = held_by.open_reply().is_none();
        let mut open = held_by
            .open_reply()
            .map_or_else(|| OpenReply::new(self.now, None), Clone::clone);
        let known = open.poll.take().and_then(|poll| poll.address);
        open.poll = Some(PollState {
            address: address.or(known),
            next_at: next_poll(self.now, every.max(Span::from(wait)), complete_by),
            cancels,
        });
        let state = StepState::Processing {
            held_by: StepHolder::Service(Box::new(open)),
            complete_by,
        };
        if is_first {
            let reason = "the service is polled for its reply".to_owned();
            self.change(index, "step.deferred", state, Some(reason));
        } else {
            self.task.step_mut(index).state = state;
            self.touch(index);
        }
    }

    /// Polling is over. What the service did is not known.
    pub(super) fn poll_failed(&mut self, index: StepIndex, fault: Fault) {
        let fault = Fault {
            effect: Effect::Unknown,
            ..fault
        };
        self.refused(index, fault);
    }
}

/// However long the wait is to be, there is one more poll before complete-by: the reply may be there.
fn next_poll(now: Timestamp, wait: Span, complete_by: Timestamp) -> Timestamp {
    let next_at = now + wait;
    if next_at < complete_by {
        return next_at;
    }
    let tenth = (complete_by.as_millis() - now.as_millis()).max(0) as u64 / 10;
    let before = Span::from_millis(tenth).clamp(SHORTEST_WAIT, POLL_WITHIN);
    let last = Timestamp::from_millis(complete_by.as_millis() - before.as_millis());
    last.max(now + SHORTEST_WAIT)
}

/// A GET at the address that the service named, or else the step's own request again.
fn poll_of(call: Call, address: Option<Arc<str>>) -> Result<Call, String> {
    let mut call = Call {
        purpose: Purpose::Poll,
        ..call
    };
    if let Some(address) = address {
        let address = WebAddress::parse(&address)?;
        call.method = Method::Get;
        call.path = String::new();
        call.body = None;
        call.headers.retain(|(name, _)| name != "content-type");
        let (url, origin) = (address.url, AgentName::new(address.origin));
        call.target = match call.target {
            Target::Agent(agent) | Target::Operation { agent, .. } => {
                Target::Operation { url, origin, agent }
            }
            Target::Url { .. } => Target::Url { url, origin },
        };
    }
    Ok(call)
}

/// The beginning of a response's body.
pub(super) fn excerpt(body: &Payload) -> String {
    let json = body.as_json();
    let end = json.floor_char_boundary(crate::values::fault::BODY_EXCERPT);
    json[..end].replace('\0', "\u{fffd}")
}
