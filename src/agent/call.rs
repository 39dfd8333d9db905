//! One call: the stack of layers that a request goes down, and the deadline around all of it.

use std::{sync::Arc, time::Duration};

use ::http::StatusCode;
use async_trait::async_trait;
use futures::future::BoxFuture;
use tokio::time::Instant;
use tower::{
    Service, ServiceBuilder, ServiceExt,
    retry::{Retry, RetryLayer},
};
use tracing::Instrument;

use super::{
    address,
    answer::{self, Verdict},
    body::{self, Unread},
    connections::{Answer, Connector, Unanswered},
    http,
    meters::Meters,
    registry::{Agent, Agents},
    retry::Backoff,
    routing::{Endpoint, Endpoints},
};
use crate::domain::{
    AgentName, Call, Certainty, Fault, FaultKind, Outcome, Purpose, RetrySpec, Target, Timestamp,
};

/// Told of what happens inside a call, so that an operator can read it later; and asked before each try.
#[async_trait]
pub trait Notes: Send + Sync {
    /// Comes back when the try `number`, counted from 1, may be made; never where the attempt is known to be
    /// over, or to be dropped.
    async fn may_try(&self, call: &Call, number: u32);

    /// The try `try_number`, counted from 1, met a transient fault; the next comes in `next_try_in`
    /// unless complete-by comes first. Waited for, so it should be quick.
    async fn transient(&self, call: &Call, try_number: u32, fault: Fault, next_try_in: Duration);
}

/// What goes down the stack: one try of a call. Small and copied freely.
#[derive(Clone, Copy)]
pub(super) struct Try<'a> {
    pub call: &'a Call,
    pub number: u32,
    pub deadline: Instant,
    pub notes: &'a dyn Notes,
}

impl Try<'_> {
    /// The store's clock, without asking the store: complete-by is known on both clocks.
    fn store_time(&self) -> Timestamp {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let left = i64::try_from(left.as_millis()).unwrap_or(i64::MAX);
        Timestamp::from_millis(self.call.complete_by.as_millis().saturating_sub(left))
    }

    fn fault(&self, kind: FaultKind, message: String) -> Fault {
        Fault {
            kind,
            message,
            status: None,
            body: None,
            at: self.store_time(),
            outcome: None,
            step: None,
        }
    }

    /// Nothing was sent.
    fn permanent(&self, message: String) -> Outcome {
        Outcome::Failed(self.fault(FaultKind::Permanent, message))
    }

    /// An answer that is no success. It says what it leaves open; asking a probe leaves nothing.
    fn answered(&self, kind: FaultKind, message: String, status: StatusCode) -> Fault {
        let mut fault = self.fault(kind, message);
        fault.status = Some(status.as_u16());
        let probes = matches!(self.call.purpose, Purpose::Probe(_));
        fault.outcome = (!probes && answer::leaves_doubt(status)).then_some(Certainty::Unknown);
        fault
    }

    fn transient(&self, message: String) -> Transient {
        Transient {
            fault: self.fault(FaultKind::Transient, message),
            retry_after: None,
        }
    }
}

/// The error of the stack: what is worth another try. A service's final refusal is no error here but
/// an outcome, so that whatever counts errors (a breaker) counts only signs of ill health.
#[derive(Debug)]
pub(super) struct Transient {
    pub fault: Fault,
    pub retry_after: Option<Duration>,
}

/// A concrete type, cloned per call for the price of a few reference counts.
pub(super) type Stack = Retry<Backoff, Tries>;

pub(super) fn stack(retry: RetrySpec, tries: Tries) -> Stack {
    let backoff = Backoff {
        spec: retry,
        meters: Arc::clone(&tries.0.meters),
    };
    ServiceBuilder::new()
        .layer(RetryLayer::new(backoff))
        // Here, inside the retry so that every try passes them: first the rate limit, then the breaker.
        // An open breaker answers with a `Transient` whose `retry_after` is the time until it half-opens.
        .service(tries)
}

/// The bottom of the stack: sends one try to the least loaded endpoint and weighs the answer.
#[derive(Clone)]
pub(super) struct Tries(Arc<Wire>);

pub(super) struct Wire {
    pub agent: AgentName,
    pub connector: Connector,
    pub endpoints: Endpoints,
    pub max_output: usize,
    pub meters: Arc<Meters>,
}

impl Tries {
    pub fn new(wire: Arc<Wire>) -> Self {
        Self(wire)
    }
}

impl<'a> Service<Try<'a>> for Tries {
    type Response = Outcome;
    type Error = Transient;
    type Future = BoxFuture<'a, Result<Outcome, Transient>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Transient>> {
        // Capacity was taken as a slot before the call was claimed.
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Try<'a>) -> Self::Future {
        let wire = Arc::clone(&self.0);
        let call = request.call;
        let span = tracing::debug_span!(
            "try",
            agent = %wire.agent,
            task = %call.step.task,
            step = %call.step_name,
            attempt = call.attempt.0,
            number = request.number,
        );
        let work = async move {
            let mut meter = wire.meters.begin_try();
            let result = wire.send(request).await;
            match &result {
                Ok(Outcome::Success(_) | Outcome::Probed { .. }) => meter.success(),
                Ok(Outcome::Failed(_)) => meter.permanent(),
                Ok(Outcome::Unknown(_)) | Err(_) => meter.transient(),
            }
            drop(meter);
            result
        };
        Box::pin(work.instrument(span))
    }
}

impl Wire {
    async fn send(&self, request: Try<'_>) -> Result<Outcome, Transient> {
        request.notes.may_try(request.call, request.number).await;
        // A process that was suspended wakes up with the next try and complete-by both due, and this is
        // looked at first; a claim may have taken longer to save than the step has.
        if Instant::now() >= request.deadline {
            return std::future::pending().await;
        }
        let Some(endpoint) = self.endpoints.lease() else {
            return Ok(request.permanent(format!("the agent {} has no endpoint", self.agent)));
        };
        let way = match &endpoint.way {
            Ok(way) => way,
            Err(why) => return Ok(request.permanent(why.clone())),
        };
        let traceparent = request.call.trace.parent(request.number);
        let made = match http::request(&way.base, &way.host, request.call, &traceparent) {
            Ok(made) => made,
            Err(why) => return Ok(request.permanent(why)),
        };
        match way.connections.send(&self.connector, made).await {
            Ok(answer) => self.weigh(&endpoint, request, answer).await,
            Err(error) => broken(&endpoint, request, &error),
        }
    }

    async fn weigh(
        &self,
        endpoint: &Endpoint,
        request: Try<'_>,
        mut answer: Answer,
    ) -> Result<Outcome, Transient> {
        let status = answer.head.status;
        let probes = matches!(request.call.purpose, Purpose::Probe(_));
        let verdict = match status {
            // To a probe this is an answer like any other.
            StatusCode::NOT_FOUND | StatusCode::GONE if probes => Verdict::Success,
            _ => answer::verdict(status, &answer.head.headers, request.store_time()),
        };
        match verdict {
            Verdict::Success => {
                let body = match body::whole(&mut answer, self.max_output).await {
                    Ok(body) => body,
                    Err(Unread::Broken(error)) => return broken(endpoint, request, &error),
                    Err(Unread::TooLarge) => {
                        let why = answer::too_large(self.max_output);
                        let fault = request.answered(FaultKind::Permanent, why, status);
                        return Ok(Outcome::Failed(fault));
                    }
                };
                Ok(match answer::output(&answer.head.headers, &body) {
                    Ok(body) if probes => Outcome::Probed {
                        status: status.as_u16(),
                        body,
                    },
                    Ok(output) => Outcome::Success(output),
                    Err(why) => {
                        let mut fault = request.answered(FaultKind::Permanent, why, status);
                        fault.body = answer::excerpt(&body);
                        Outcome::Failed(fault)
                    }
                })
            }
            Verdict::Transient {
                message,
                retry_after,
            } => {
                let mut fault = request.answered(FaultKind::Transient, message, status);
                fault.body = answer::excerpt(&body::start(answer).await);
                Err(Transient { fault, retry_after })
            }
            Verdict::Permanent { message } => {
                let mut fault = request.answered(FaultKind::Permanent, message, status);
                fault.body = answer::excerpt(&body::start(answer).await);
                Ok(Outcome::Failed(fault))
            }
        }
    }
}

/// What a call without a whole answer counts as.
fn broken(
    endpoint: &Endpoint,
    request: Try<'_>,
    unanswered: &Unanswered,
) -> Result<Outcome, Transient> {
    let error = unanswered.error();
    if let Some(refusal) = address::refusal_in(error) {
        return Ok(request.permanent(refusal.to_string()));
    }
    let cause = http::root_cause(error);
    let url = &endpoint.url;
    if let Unanswered::Unconnected(_) = unanswered {
        return Err(request.transient(format!("could not connect to {url}: {cause}")));
    }
    let mut broken = request.transient(format!("the call to {url} broke off: {cause}"));
    broken.fault.outcome = Some(Certainty::Unknown);
    // Where the service can be asked whether the call took effect, it is asked before the next try.
    if request.call.has_probe && request.call.purpose == Purpose::Work {
        return Ok(Outcome::Unknown(broken.fault));
    }
    Err(broken)
}

impl Agent {
    /// Makes the call with all its tries. `None` when `deadline`, the complete-by on this machine's
    /// monotonic clock, came first: whatever was under way is dropped and nothing is reported, because
    /// another instance may be running the step by then (P18).
    pub async fn call(&self, call: Call, deadline: Instant, notes: &dyn Notes) -> Option<Outcome> {
        let _meter = self.meters().begin_call();
        let first = Try {
            call: &call,
            number: 1,
            deadline,
            notes,
        };
        let answered = tokio::time::timeout_at(deadline, self.stack().oneshot(first)).await;
        match answered {
            Ok(Ok(outcome)) if Instant::now() < deadline => Some(outcome),
            // An answer that was there but came to light after complete-by is late all the same. The
            // retry layer never gives up, so an error cannot come out of it.
            _ => None,
        }
    }
}

impl Agents {
    /// [`Agent::call`] on the agent that the call is for.
    pub async fn call(&self, call: Call, deadline: Instant, notes: &dyn Notes) -> Option<Outcome> {
        let name = match &call.target {
            Target::Agent(name) => name,
            Target::Url { origin, .. } => origin,
        };
        match self.get(name) {
            Some(agent) => agent.call(call, deadline, notes).await,
            None => {
                let message =
                    format!("the agent {name} is not registered; register it, then retry the step");
                let unsent = Try {
                    call: &call,
                    number: 1,
                    deadline,
                    notes,
                };
                Some(unsent.permanent(message))
            }
        }
    }
}
