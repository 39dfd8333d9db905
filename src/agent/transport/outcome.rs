//! The outcome of a response: a success, a promise, or a fault with an excerpt of the body.

use ::http::{StatusCode, header};

use super::{
    Transport,
    attempt::{CallAttempt, Transient},
    redaction::{text_without_secrets, without_secrets},
    unanswered::broken,
};
use crate::agent::{
    client::{
        body::{self, BodyError},
        connections::ResponseStream,
        response::{self, ResponseClass},
    },
    queue::quota,
    retry,
    routing::RoutedEndpoint,
    secret::credentials::Credentials,
};
use crate::domain::{
    agent::answer::LONGEST_POLL_WAIT,
    definition::{Method, ReplyMode},
    task::{CallOutcome, Purpose},
    values::FaultKind,
};

impl Transport {
    /// Returns the outcome of a response, whose body is read as far as its class needs.
    pub(super) async fn interpret(
        &self,
        endpoint: &RoutedEndpoint,
        request: CallAttempt<'_>,
        mut answer: ResponseStream,
        credentials: Option<&Credentials>,
    ) -> Result<CallOutcome, Transient> {
        let redactor = credentials.map(Credentials::redactor);
        let status = answer.head.status;
        let headers = &answer.head.headers;
        if request.notes.is_wanted(!status.is_success()) {
            request.notes.response(status.as_u16(), headers, redactor);
        }
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
                response::classify(status, headers, mode, request.store_time())
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
                        let headers = &answer.head.headers;
                        request.notes.response(status.as_u16(), headers, redactor);
                        let why = response::too_large(self.max_output);
                        let fault = request.answered(FaultKind::Permanent, why, status);
                        return Ok(CallOutcome::Failed(fault));
                    }
                };
                let output = response::output(&answer.head.headers, &body);
                if request.notes.is_wanted(output.is_err()) {
                    let headers = &answer.head.headers;
                    request.notes.response(status.as_u16(), headers, redactor);
                    if response::encoding(headers).is_none() {
                        request.notes.response_body(&body);
                    }
                }
                Ok(match output {
                    Ok(body) if probes => CallOutcome::Probed {
                        status: status.as_u16(),
                        body,
                    },
                    Ok(body) if repeats => CallOutcome::Polled {
                        status: status.as_u16(),
                        body,
                        retry_after: retry_after.map(|wait| wait.min(LONGEST_POLL_WAIT)),
                    },
                    Ok(output) => {
                        request
                            .call
                            .success(output, status, &answer.head.headers, |text| {
                                text_without_secrets(text, redactor)
                            })
                    }
                    Err(why) => {
                        let mut fault = request.answered(FaultKind::Permanent, why, status);
                        let is_text = response::encoding(&answer.head.headers).is_none();
                        fault.body = response::excerpt(&body).filter(|_| is_text);
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
                fault.body = request.notes.start(answer, redactor).await;
                Err(Transient { fault, retry_after })
            }
            ResponseClass::Permanent { message } => {
                let mut fault = request.answered(FaultKind::Permanent, message, status);
                fault.body = request.notes.start(answer, redactor).await;
                Ok(CallOutcome::Failed(fault))
            }
        }
    }
}
