//! Operations that a service reports on later, at an address that it names: the address for polling, and that of the
//! result.

use ::http::{HeaderMap, StatusCode};

use super::{
    Transport,
    attempt::{CallAttempt, Transient},
    redaction::without_secrets,
    unanswered::broken,
};
use crate::agent::{
    client::{
        body::{self, BodyError},
        connections::ResponseStream,
        http,
        response::{self, ResponseClass},
    },
    retry,
    routing::RoutedEndpoint,
    secret::credentials::{Credentials, SECRET_IN_ADDRESS},
};
use crate::domain::{
    agent::answer::LONGEST_POLL_WAIT,
    definition::{Method, ReplyMode, Target},
    task::{Call, CallOutcome},
    values::FaultKind,
};

impl Transport {
    /// The operation is over, and its result is elsewhere (303): fetched once, from the origin that was polled.
    pub(super) async fn result(
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
        let Ok(way) = &endpoint.target else {
            return Ok(refused("the agent has no endpoint".to_owned(), status));
        };
        let made = http::url(&way.base, request.call)
            .and_then(|called| response::result_address(headers, &called))
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
        match response::classify(status, headers, ReplyMode::Poll, request.store_time()) {
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
                Ok(match response::output(&answer.head.headers, &body) {
                    Ok(output) => CallOutcome::Success(output),
                    Err(why) => refused(why, status),
                })
            }
            Err(BodyError::Broken(error)) => broken(endpoint, request, &error),
            Err(BodyError::TooLarge) => Ok(refused(response::too_large(self.max_output), status)),
        }
    }

    /// The promise of a service that is polled. `None`: its response is the reply, or the first poll.
    pub(super) fn operation(
        &self,
        endpoint: &RoutedEndpoint,
        request: CallAttempt<'_>,
        answer: &ResponseStream,
        credentials: Option<&Credentials>,
    ) -> Result<Option<CallOutcome>, String> {
        let (status, headers) = (answer.head.status, &answer.head.headers);
        let Ok(way) = &endpoint.target else {
            return Ok(None);
        };
        let called = http::url(&way.base, request.call)?;
        match response::operation_address(status, headers, &called) {
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

/// Says why an address that the service named is not called. The reason may quote the host in lower case, in which no secret is
/// found.
fn refused_address(headers: &HeaderMap, why: String, credentials: Option<&Credentials>) -> String {
    let names = response::ADDRESS_HEADERS.into_iter();
    let mut named = names.filter_map(|name| headers.get(name));
    match credentials {
        Some(credentials) if named.any(|named| credentials.redactor.finds(named.as_bytes())) => {
            SECRET_IN_ADDRESS.to_owned()
        }
        _ => why,
    }
}
