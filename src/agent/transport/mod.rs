//! Sends one call to a remote service: selects the endpoint, makes the request, and classifies the response. A
//! transient fault ends the call, and the retry is a separate call, so that nothing is held between them.
//!
//! `attempt` is one attempt with its deadline. This file selects the endpoint and makes the request. `outcome`
//! interprets the response, `operation` the addresses in it, and `unanswered` is for calls without one. `redaction`
//! hides secrets in both.

mod attempt;
mod operation;
mod outcome;
mod redaction;
mod unanswered;

use std::sync::{Arc, OnceLock};

use ::http::{Request, StatusCode};

pub use self::attempt::Permission;
pub(super) use self::{
    attempt::{CallAttempt, Transient},
    redaction::{text_without_secrets, without_secrets},
};
use self::{
    redaction::{without_address, without_secrets_in_messages},
    unanswered::broken,
};
use super::{
    client::{
        connections::{ResponseStream, Reuse},
        connector::{CallConnector, RequestBody},
        http,
    },
    guard::{Guard, WatchedCall},
    meters::{self, CallMetrics},
    notes::{CallReport, has_failed},
    retry::{self, AgentRetryBudget},
    routing::{EndpointTarget, Endpoints, RoutedEndpoint},
    secret::{access::AgentAccess, credentials::Credentials},
    settings::QueueCalls,
};
use crate::{
    chance, clock,
    domain::{
        agent::{LoadSample, RetrySpec, is_ill_health},
        definition::Target,
        task::{CallBody, CallOutcome, ReplyAddresses},
        values::{AgentName, Fault, FaultKind},
    },
};

/// Sends a call to the least loaded endpoint and weighs the answer.
pub(super) struct Transport {
    pub agent: AgentName,
    pub connector: CallConnector,
    /// Only where the agent adds something to its requests.
    pub access: Option<Arc<AgentAccess>>,
    pub endpoints: Endpoints,
    pub retry: RetrySpec,
    /// Only where the retries of the agent are limited.
    pub budget: Option<Arc<AgentRetryBudget>>,
    pub max_output: usize,
    pub replies: Arc<OnceLock<Arc<ReplyAddresses>>>,
    pub queues: Arc<OnceLock<QueueCalls>>,
    pub meters: Arc<CallMetrics>,
    /// Only where it matters how calls go.
    pub guard: Option<Arc<Guard>>,
    /// Only where the rate of the agent is limited: what the service asks one call for holds for all.
    pub throttled: Option<Arc<Guard>>,
}

/// Has what was sent noted if the call is dropped before it has ended.
struct NotesOfDrop<'a> {
    transport: &'a Transport,
    request: CallAttempt<'a>,
    endpoint: &'a RoutedEndpoint,
    credentials: Option<&'a Credentials>,
    is_over: bool,
}

impl NotesOfDrop<'_> {
    fn note(&self) {
        let replies = self.transport.replies.get().map(Arc::as_ref);
        let CallAttempt { call, notes, .. } = self.request;
        notes.request(self.endpoint, call, replies, self.credentials);
    }
}

impl Drop for NotesOfDrop<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.note();
        }
    }
}

impl Transport {
    pub async fn call(&self, request: CallAttempt<'_>, body: Option<CallBody>) -> CallReport {
        let mut meter = self.meters.begin_attempt();
        if let Some(budget) = &self.budget {
            budget.add_call();
        }
        let result = self.send(request, body).await;
        match &result {
            Ok(
                CallOutcome::Success(_)
                | CallOutcome::Kept { .. }
                | CallOutcome::Deferred
                | CallOutcome::PollAt { .. }
                | CallOutcome::Polled { .. }
                | CallOutcome::Probed { .. },
            ) => meter.success(),
            Ok(CallOutcome::Failed(_)) => meter.permanent(),
            Ok(CallOutcome::Crashed(_) | CallOutcome::Transient { .. }) | Err(_) => {
                meter.transient()
            }
        }
        drop(meter);
        if let (Err(transient), Some(guard)) = (&result, &self.throttled)
            && let Some(wait) = transient.retry_after
        {
            guard.throttle(wait, &transient.fault.message);
        }
        let result = match result {
            // The rules of the step decide after which faults the call is made again.
            Err(transient) if request.call.retries(&transient.fault) == Some(false) => {
                Ok(CallOutcome::Failed(transient.fault))
            }
            Ok(CallOutcome::Failed(fault)) if request.call.retries(&fault) == Some(true) => {
                let kind = FaultKind::Transient;
                Err(Transient {
                    fault: Fault { kind, ..fault },
                    retry_after: None,
                })
            }
            result => result,
        };
        let outcome = result.unwrap_or_else(|Transient { fault, retry_after }| {
            let (call, chance) = (request.call, chance::random());
            let backoff = retry::call_wait(call, &self.retry, retry_after, chance);
            let wait = match &self.budget {
                Some(budget) => budget.reserve(&self.retry, backoff),
                None => backoff.into(),
            };
            if !wait.parked.is_zero() {
                meters::count_parked_retry(&self.agent);
            }
            CallOutcome::Transient {
                fault,
                wait: wait.within_attempts(request.call.attempt_rules()),
            }
        });
        let is_recorded = request.notes.is_wanted(has_failed(&outcome));
        CallReport {
            exchange: is_recorded
                .then(|| request.notes.exchange(request.call, request.store_time()))
                .flatten(),
            outcome,
        }
    }

    async fn send(
        &self,
        request: CallAttempt<'_>,
        body: Option<CallBody>,
    ) -> Result<CallOutcome, Transient> {
        request.permission.granted(request.call).await;
        request.notes.clock.begin();
        // A process that was suspended wakes up with a call to begin and complete-by both due, and this is
        // looked at first; a claim may have taken longer to save than the step has.
        if clock::instant() >= request.deadline {
            return std::future::pending().await;
        }
        let endpoint = match &request.call.target {
            Target::Operation { url, .. } => self.endpoints.lease_at(url),
            Target::Agent(_) | Target::Url { .. } => self.endpoints.lease(),
        };
        let Some(endpoint) = endpoint else {
            return Ok(request.permanent(format!(
                "the agent {} has no endpoint that this could be sent to",
                self.agent
            )));
        };
        // Without them the endpoint is not called: that says nothing of it.
        let credentials = self.credentials(request).await?;
        let mut noting = NotesOfDrop {
            transport: self,
            request,
            endpoint: &endpoint,
            credentials: credentials.as_deref(),
            is_over: false,
        };
        let guard = self.guard.as_deref();
        let watched = guard.and_then(|guard| guard.begin(&endpoint.url, request.deadline));
        let result = self
            .send_to(&endpoint, request, body, credentials.as_deref())
            .await;
        noting.is_over = true;
        let redactor = credentials.as_deref().map(Credentials::redactor);
        let result = match redactor {
            Some(redactor) => without_secrets_in_messages(result, redactor),
            None => result,
        };
        let result = match request.call.address_redactor() {
            Some(address) => without_address(result, &address),
            None => result,
        };
        if request
            .notes
            .is_wanted(result.as_ref().map_or(true, has_failed))
        {
            noting.note();
        }
        let health = match &result {
            Err(transient) if is_ill_health(&transient.fault) => Err(&*transient.fault.message),
            _ => Ok(()),
        };
        // One that may be left out must get enough calls to show that it fails.
        let may_be_left_out = watched.as_ref().is_some_and(WatchedCall::leaves_out);
        if health.is_err() && !may_be_left_out {
            endpoint.failed();
        }
        if let Some(watched) = watched {
            let load = match &result {
                Ok(outcome) => LoadSample::of_outcome(outcome),
                Err(transient) => LoadSample::of_transient(&transient.fault),
            };
            watched.ended(health, load);
        }
        result
    }

    async fn send_to(
        &self,
        endpoint: &RoutedEndpoint,
        request: CallAttempt<'_>,
        body: Option<CallBody>,
        credentials: Option<&Credentials>,
    ) -> Result<CallOutcome, Transient> {
        if let Some(queue) = &endpoint.queue {
            return self.publish(queue, request, body).await;
        }
        let way = match &endpoint.target {
            Ok(way) => way,
            Err(why) => return Ok(request.permanent(why.clone())),
        };
        let made = match self.request(way, request, body, credentials) {
            Ok(made) => made,
            Err(why) => return Ok(request.permanent(why)),
        };
        let reuse = match request.call.needs_new_connection {
            true => Reuse::None,
            false => Reuse::Allowed,
        };
        match way
            .connections
            .send_over(
                self.connector(credentials),
                made,
                reuse,
                Some(&request.notes.clock),
            )
            .await
        {
            Ok(answer) if self.has_refused_token(&answer, credentials) => {
                let why =
                    "the service refused the access token (401); the next attempt gets another one";
                let status = answer.head.status;
                let mut fault = request.answered(FaultKind::Transient, why.to_owned(), status);
                let redactor = credentials.map(Credentials::redactor);
                let headers = &answer.head.headers;
                request.notes.response(status.as_u16(), headers, redactor);
                fault.body = request.notes.start(answer, redactor).await;
                Err(Transient {
                    fault,
                    retry_after: None,
                })
            }
            Ok(answer) => self.interpret(endpoint, request, answer, credentials).await,
            Err(error) => broken(endpoint, request, &error),
        }
    }

    /// Returns the credentials that the agent adds to the request. If they are not ready, nothing is sent, and the call
    /// is retried.
    pub(super) async fn credentials(
        &self,
        request: CallAttempt<'_>,
    ) -> Result<Option<Arc<Credentials>>, Transient> {
        let Some(access) = &self.access else {
            return Ok(None);
        };
        let ready = access.ready().await.map(Some);
        ready.map_err(|why| request.transient(format!("the service was not called: {why}")))
    }

    pub(super) fn connector<'c>(
        &'c self,
        credentials: Option<&'c Credentials>,
    ) -> &'c CallConnector {
        let own = credentials.and_then(|credentials| credentials.connector.as_ref());
        own.unwrap_or(&self.connector)
    }

    pub(super) fn has_refused_token(
        &self,
        answer: &ResponseStream,
        credentials: Option<&Credentials>,
    ) -> bool {
        let (Some(access), Some(credentials)) = (&self.access, credentials) else {
            return false;
        };
        answer.head.status == StatusCode::UNAUTHORIZED && access.has_refused_token(credentials)
    }

    pub(super) fn request(
        &self,
        way: &EndpointTarget,
        request: CallAttempt<'_>,
        body: Option<CallBody>,
        credentials: Option<&Credentials>,
    ) -> Result<Request<RequestBody>, http::Unmakeable> {
        let (call, replies) = (request.call, self.replies.get().map(Arc::as_ref));
        let traceparent = call.trace.parent();
        let Some(credentials) = credentials else {
            let body = body.map(http::bytes);
            request.notes.body(body.as_ref());
            return http::request(&way.base, &way.host, call, body, &traceparent, replies);
        };
        credentials.check_target(call)?;
        let body = credentials.body(body)?;
        // Signed below.
        let text = body.clone();
        let body = body.map(http::bytes);
        match credentials.adds_to_body() {
            // The record has the body without the secrets.
            true => request.notes.leave_out_body(),
            false => request.notes.body(body.as_ref()),
        }
        let mut made = http::request(&way.base, &way.host, call, body, &traceparent, replies)?;
        let text = text.as_deref().unwrap_or_default();
        credentials.add_to(&mut made, call, text, request.store_time())?;
        Ok(made)
    }
}
