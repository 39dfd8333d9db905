//! How one call goes to a remote service: the endpoint, the request, and what its answer counts as. A transient fault
//! ends the call, and the next try is a call of its own, so that nothing is held between them.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use ::http::{HeaderMap, Request, StatusCode, header};
use async_trait::async_trait;
use tokio::time::Instant;

use super::{
    access::AgentAccess,
    address,
    answer::{self, ResponseClass},
    body::{self, BodyError},
    connections::{ResponseStream, Reuse},
    connector::{CallConnector, RequestBody, Unanswered, root_cause},
    credentials::{Credentials, SECRET_IN_ADDRESS},
    guard::{Guard, WatchedCall},
    http,
    meters::{self, CallMetrics},
    quota,
    retry::{self, AgentRetryBudget},
    routing::{EndpointTarget, Endpoints, RoutedEndpoint},
    settings::{QueueCalls, ReplyAddress},
};
use crate::domain::{
    AgentName, Call, CallBody, CallOutcome, Effect, Fault, FaultKind, LoadSample, Method, Purpose,
    Redactor, ReplyMode, RetrySpec, Target, Timestamp, answer::LONGEST_POLL_WAIT,
};

/// Asked before a call is made.
#[async_trait]
pub trait Permission: Send + Sync {
    /// Comes back when the call may be made; never where its attempt is known to be over, or to be dropped.
    async fn granted(&self, call: &Call);
}

/// A call with its deadline, and who is asked before it is made.
#[derive(Clone, Copy)]
pub(super) struct CallAttempt<'a> {
    pub call: &'a Call,
    pub deadline: Instant,
    pub permission: &'a dyn Permission,
}

impl CallAttempt<'_> {
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
            effect: Effect::Known,
            step: None,
            undo_on_resume: false,
        }
    }

    /// Nothing was sent.
    pub fn permanent(&self, message: String) -> CallOutcome {
        CallOutcome::Failed(self.fault(FaultKind::Permanent, message))
    }

    /// An answer that is no success. It says what it leaves open; asking a probe leaves nothing.
    fn answered(&self, kind: FaultKind, message: String, status: StatusCode) -> Fault {
        let mut fault = self.fault(kind, message);
        fault.status = Some(status.as_u16());
        let probes = matches!(self.call.purpose, Purpose::Probe(_));
        fault.effect = Effect::unknown_if(!probes && answer::leaves_effect_unknown(status));
        fault
    }

    pub fn transient(&self, message: String) -> Transient {
        Transient {
            fault: self.fault(FaultKind::Transient, message),
            retry_after: None,
        }
    }
}

/// What is worth another try. A service's final refusal is no error here but an outcome, so that whatever
/// counts errors (a breaker) counts only signs of ill health.
#[derive(Debug)]
pub(super) struct Transient {
    pub fault: Fault,
    retry_after: Option<Duration>,
}

impl Transient {
    /// A service that asks for fewer calls, or for another token, is well.
    fn is_ill_health(&self) -> bool {
        const WELL: [StatusCode; 2] = [StatusCode::TOO_MANY_REQUESTS, StatusCode::UNAUTHORIZED];
        let status = self.fault.status;
        !WELL.iter().any(|well| status == Some(well.as_u16()))
    }
}

/// What the result of a call shows of how much its endpoint can take.
fn load(result: &Result<CallOutcome, Transient>) -> LoadSample<'_> {
    const FULL: [StatusCode; 4] = [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::BAD_GATEWAY,
        StatusCode::SERVICE_UNAVAILABLE,
        StatusCode::GATEWAY_TIMEOUT,
    ];
    match result {
        Ok(
            CallOutcome::Success(_)
            | CallOutcome::Deferred
            | CallOutcome::PollAt { .. }
            | CallOutcome::Polled { .. }
            | CallOutcome::Probed { .. },
        ) => LoadSample::Served,
        Ok(CallOutcome::Failed(_) | CallOutcome::Crashed(_) | CallOutcome::Transient { .. }) => {
            LoadSample::Unclear
        }
        Err(Transient { fault, .. }) => match fault.status {
            Some(status) if !FULL.iter().any(|full| status == full.as_u16()) => LoadSample::Unclear,
            // Without one there was no connection, or it broke.
            Some(_) | None => LoadSample::Refused(&fault.message),
        },
    }
}

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
    pub replies: Arc<OnceLock<ReplyAddress>>,
    pub queues: Arc<OnceLock<QueueCalls>>,
    pub meters: Arc<CallMetrics>,
    /// Only where it matters how calls go.
    pub guard: Option<Arc<Guard>>,
    /// Only where the rate of the agent is limited: what the service asks one call for holds for all.
    pub throttled: Option<Arc<Guard>>,
}

impl Transport {
    pub async fn call(&self, request: CallAttempt<'_>, body: Option<CallBody>) -> CallOutcome {
        let mut meter = self.meters.begin_try();
        if let Some(budget) = &self.budget {
            budget.add_call();
        }
        let result = self.send(request, body).await;
        match &result {
            Ok(
                CallOutcome::Success(_)
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
        result.unwrap_or_else(|Transient { fault, retry_after }| {
            if let (Some(guard), Some(wait)) = (&self.throttled, retry_after) {
                guard.throttle(wait, &fault.message);
            }
            let made = request.call.tries.saturating_add(1);
            let backoff = retry::retry_wait(&self.retry, made, retry_after, rand::random());
            let wait = match &self.budget {
                Some(budget) => budget.reserve(&self.retry, backoff),
                None => backoff.into(),
            };
            if !wait.parked.is_zero() {
                meters::count_parked_retry(&self.agent);
            }
            CallOutcome::Transient { fault, wait }
        })
    }

    async fn send(
        &self,
        request: CallAttempt<'_>,
        body: Option<CallBody>,
    ) -> Result<CallOutcome, Transient> {
        request.permission.granted(request.call).await;
        // A process that was suspended wakes up with a call to begin and complete-by both due, and this is
        // looked at first; a claim may have taken longer to save than the step has.
        if Instant::now() >= request.deadline {
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
        let guard = self.guard.as_deref();
        let watched = guard.and_then(|guard| guard.begin(&endpoint.url, request.deadline));
        let result = self
            .send_to(&endpoint, request, body, credentials.as_deref())
            .await;
        let result = match &credentials {
            Some(credentials) => without_secrets_in_messages(result, credentials.redactor()),
            None => result,
        };
        let health = match &result {
            Err(transient) if transient.is_ill_health() => Err(&*transient.fault.message),
            _ => Ok(()),
        };
        // One that may be left out must get enough calls to show that it fails.
        let may_be_left_out = watched.as_ref().is_some_and(WatchedCall::leaves_out);
        if health.is_err() && !may_be_left_out {
            endpoint.failed();
        }
        if let Some(watched) = watched {
            watched.ended(health, load(&result));
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
        let way = match &endpoint.way {
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
            .send_over(self.connector(credentials), made, reuse)
            .await
        {
            Ok(answer) if self.has_refused_token(&answer, credentials) => {
                let why =
                    "the service refused the access token (401); the next attempt gets another one";
                let status = answer.head.status;
                let mut fault = request.answered(FaultKind::Transient, why.to_owned(), status);
                let redactor = credentials.map(Credentials::redactor);
                fault.body = answer::excerpt(&body::start_without(answer, redactor).await);
                Err(Transient {
                    fault,
                    retry_after: None,
                })
            }
            Ok(answer) => self.interpret(endpoint, request, answer, credentials).await,
            Err(error) => broken(endpoint, request, &error),
        }
    }

    /// What the agent adds to the request. Without it nothing is sent, and the call is tried again.
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
        let (call, replies) = (request.call, self.replies.get());
        let traceparent = call.trace.parent();
        let Some(credentials) = credentials else {
            return http::request(&way.base, &way.host, call, body, &traceparent, replies);
        };
        credentials.check_target(call)?;
        let body = credentials.body(body)?;
        // Signed below.
        let text = body.clone();
        let mut made = http::request(&way.base, &way.host, call, body, &traceparent, replies)?;
        let text = text.as_deref().unwrap_or_default();
        credentials.add_to(&mut made, call, text, request.store_time())?;
        Ok(made)
    }

    async fn interpret(
        &self,
        endpoint: &RoutedEndpoint,
        request: CallAttempt<'_>,
        mut answer: ResponseStream,
        credentials: Option<&Credentials>,
    ) -> Result<CallOutcome, Transient> {
        let redactor = credentials.map(Credentials::redactor);
        let status = answer.head.status;
        let headers = &answer.head.headers;
        if let Some(guard) = &self.throttled
            && !headers.contains_key(header::RETRY_AFTER)
            && let Some(wait) = quota::used_up(headers)
        {
            guard.throttle(
                wait,
                "the service says in RateLimit that its quota is used up",
            );
        }
        let probes = matches!(request.call.purpose, Purpose::Probe(_));
        let polls = matches!(request.call.purpose, Purpose::Poll | Purpose::Cancel(_));
        let repeats = !probes
            && request.call.reply_mode == ReplyMode::Poll
            && request.call.method == Method::Get;
        if status == StatusCode::SEE_OTHER && repeats {
            return self.result(endpoint, request, &answer, credentials).await;
        }
        let class = match status {
            // To a probe this is an answer like any other.
            StatusCode::NOT_FOUND | StatusCode::GONE if probes => ResponseClass::Success,
            _ if polls && status.is_success() => ResponseClass::Success,
            _ => {
                let (headers, mode) = (&answer.head.headers, request.call.reply_mode);
                answer::classify(status, headers, mode, request.store_time())
            }
        };
        match class {
            ResponseClass::Success => {
                let is_polled = !probes && request.call.reply_mode == ReplyMode::Poll;
                if is_polled && !polls {
                    match self.operation(endpoint, request, &answer, credentials) {
                        Ok(Some(outcome)) => return Ok(outcome),
                        Ok(None) => {}
                        Err(why) => {
                            let fault = request.answered(FaultKind::Permanent, why, status);
                            return Ok(CallOutcome::Failed(fault));
                        }
                    }
                }
                let retry_after = retry::retry_after(&answer.head.headers, request.store_time());
                let body = match body::whole(&mut answer, self.max_output).await {
                    Ok(body) => without_secrets(body, redactor),
                    Err(BodyError::Broken(error)) => return broken(endpoint, request, &error),
                    Err(BodyError::TooLarge) => {
                        let why = answer::too_large(self.max_output);
                        let fault = request.answered(FaultKind::Permanent, why, status);
                        return Ok(CallOutcome::Failed(fault));
                    }
                };
                Ok(match answer::output(&answer.head.headers, &body) {
                    Ok(body) if probes => CallOutcome::Probed {
                        status: status.as_u16(),
                        body,
                    },
                    Ok(body) if repeats => CallOutcome::Polled {
                        status: status.as_u16(),
                        body,
                        retry_after: retry_after.map(|wait| wait.min(LONGEST_POLL_WAIT)),
                    },
                    Ok(output) => CallOutcome::Success(output),
                    Err(why) => {
                        let mut fault = request.answered(FaultKind::Permanent, why, status);
                        let is_text = answer::encoding(&answer.head.headers).is_none();
                        fault.body = answer::excerpt(&body).filter(|_| is_text);
                        CallOutcome::Failed(fault)
                    }
                })
            }
            ResponseClass::Deferred if self.replies.get().is_some() => Ok(CallOutcome::Deferred),
            ResponseClass::Deferred => {
                let why = "the service wants to reply later (202), but it got no address for that: set public_url to the URL under which services reach Provost".to_owned();
                let fault = request.answered(FaultKind::Permanent, why, status);
                Ok(CallOutcome::Failed(fault))
            }
            ResponseClass::Transient {
                message,
                retry_after,
            } => {
                let mut fault = request.answered(FaultKind::Transient, message, status);
                fault.body = answer::excerpt(&body::start_without(answer, redactor).await);
                Err(Transient { fault, retry_after })
            }
            ResponseClass::Permanent { message } => {
                let mut fault = request.answered(FaultKind::Permanent, message, status);
                fault.body = answer::excerpt(&body::start_without(answer, redactor).await);
                Ok(CallOutcome::Failed(fault))
            }
        }
    }
}

impl Transport {
    /// The operation is over, and its result is elsewhere (303): fetched once, from the origin that was polled.
    async fn result(
        &self,
        endpoint: &RoutedEndpoint,
        request: CallAttempt<'_>,
        answer: &ResponseStream,
        credentials: Option<&Credentials>,
    ) -> Result<CallOutcome, Transient> {
        let redactor = credentials.map(Credentials::redactor);
        let refused = |why: String, status| {
            CallOutcome::Failed(request.answered(FaultKind::Permanent, why, status))
        };
        let (status, headers) = (answer.head.status, &answer.head.headers);
        let Ok(way) = &endpoint.way else {
            return Ok(refused("the agent has no endpoint".to_owned(), status));
        };
        let made = http::url(&way.base, request.call)
            .and_then(|called| answer::result_address(headers, &called))
            .and_then(|address| {
                let call = Call {
                    target: Target::Url {
                        url: address.into(),
                        origin: self.agent.clone(),
                    },
                    path: String::new(),
                    ..request.call.clone()
                };
                let attempt = CallAttempt {
                    call: &call,
                    ..request
                };
                self.request(way, attempt, None, credentials)
            });
        let made = match made {
            Ok(made) => made,
            Err(why) => return Ok(refused(refused_address(headers, why, credentials), status)),
        };
        let mut answer = match way
            .connections
            .send(self.connector(credentials), made)
            .await
        {
            Ok(answer) => answer,
            Err(error) => return broken(endpoint, request, &error),
        };
        let (status, headers) = (answer.head.status, &answer.head.headers);
        match answer::classify(status, headers, ReplyMode::Poll, request.store_time()) {
            ResponseClass::Success | ResponseClass::Deferred => {}
            ResponseClass::Transient {
                message,
                retry_after,
            } => {
                let fault = request.answered(FaultKind::Transient, message, status);
                return Err(Transient { fault, retry_after });
            }
            ResponseClass::Permanent { message } => {
                let why = format!("its result could not be fetched: {message}");
                return Ok(refused(why, status));
            }
        }
        match body::whole(&mut answer, self.max_output).await {
            Ok(body) => {
                let body = without_secrets(body, redactor);
                Ok(match answer::output(&answer.head.headers, &body) {
                    Ok(output) => CallOutcome::Success(output),
                    Err(why) => refused(why, status),
                })
            }
            Err(BodyError::Broken(error)) => broken(endpoint, request, &error),
            Err(BodyError::TooLarge) => Ok(refused(answer::too_large(self.max_output), status)),
        }
    }

    /// The promise of a service that is polled. `None`: its response is the reply, or the first poll.
    fn operation(
        &self,
        endpoint: &RoutedEndpoint,
        request: CallAttempt<'_>,
        answer: &ResponseStream,
        credentials: Option<&Credentials>,
    ) -> Result<Option<CallOutcome>, String> {
        let (status, headers) = (answer.head.status, &answer.head.headers);
        let Ok(way) = &endpoint.way else {
            return Ok(None);
        };
        let called = http::url(&way.base, request.call)?;
        match answer::operation_address(status, headers, &called) {
            Some(Err(why)) => Err(refused_address(headers, why, credentials)),
            Some(address) => {
                let retry_after = retry::retry_after(headers, request.store_time());
                let address = match credentials {
                    Some(credentials) => credentials.address_without_secrets(address?)?,
                    None => address?,
                };
                Ok(Some(CallOutcome::PollAt {
                    address,
                    retry_after: retry_after.map(|wait| wait.min(LONGEST_POLL_WAIT)),
                }))
            }
            None if status == StatusCode::ACCEPTED && request.call.method != Method::Get => Err(
                "the service responded 202, but named no address for polling: send Operation-Location or Location".to_owned(),
            ),
            None => Ok(None),
        }
    }
}

pub(super) fn without_secrets(body: Vec<u8>, redactor: Option<&Redactor>) -> Vec<u8> {
    match redactor {
        Some(redactor) => redactor.hide_in_body(body),
        None => body,
    }
}

/// Hides secrets in messages about failures: they may quote the service, as a header, the name of a host, or an error of its TLS.
fn without_secrets_in_messages(
    result: Result<CallOutcome, Transient>,
    redactor: &Redactor,
) -> Result<CallOutcome, Transient> {
    let hidden = |mut fault: Fault| {
        fault.message = redactor.hide_in_text(fault.message);
        fault
    };
    match result {
        Ok(CallOutcome::Failed(fault)) => Ok(CallOutcome::Failed(hidden(fault))),
        Ok(CallOutcome::Crashed(fault)) => Ok(CallOutcome::Crashed(hidden(fault))),
        Err(Transient { fault, retry_after }) => Err(Transient {
            fault: hidden(fault),
            retry_after,
        }),
        other => other,
    }
}

pub(super) fn text_without_secrets(text: String, redactor: Option<&Redactor>) -> String {
    match redactor {
        Some(redactor) => redactor.hide_in_text(text),
        None => text,
    }
}

/// Says why an address that the service named is not called. The reason may quote the host in lower case, in which no secret is
/// found.
fn refused_address(headers: &HeaderMap, why: String, credentials: Option<&Credentials>) -> String {
    let names = answer::ADDRESS_HEADERS.into_iter();
    let mut named = names.filter_map(|name| headers.get(name));
    match credentials {
        Some(credentials) if named.any(|named| credentials.redactor.finds(named.as_bytes())) => {
            SECRET_IN_ADDRESS.to_owned()
        }
        _ => why,
    }
}

/// What a call without a whole answer counts as.
fn broken(
    endpoint: &RoutedEndpoint,
    request: CallAttempt<'_>,
    unanswered: &Unanswered,
) -> Result<CallOutcome, Transient> {
    let error = unanswered.error();
    if let Some(refusal) = address::refusal_in(error) {
        return Ok(request.permanent(refusal.to_string()));
    }
    let cause = root_cause(error);
    let url = &endpoint.url;
    if let Unanswered::Unconnected(_) = unanswered {
        return Err(request.transient(format!("could not connect to {url}: {cause}")));
    }
    if let Unanswered::Unprocessed(_) = unanswered {
        // Nothing was done, so the effect is known.
        return Err(request.transient(format!("the call to {url} failed: {cause}")));
    }
    let mut broken = request.transient(format!("the call to {url} broke off: {cause}"));
    broken.fault.effect = Effect::Unknown;
    Err(broken)
}
