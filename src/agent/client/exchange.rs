//! One exchange with a service, made in the same way as a call, and shown in full for the check of an agent. It is not
//! counted for breakers, budgets and metrics, because it is not the usual work of the service.

use std::time::Duration;

use ::http::{StatusCode, header};
use async_trait::async_trait;

use super::{
    address,
    body::{self, BodyError},
    connections::ResponseStream,
    connector::{Unanswered, root_cause},
    response::{self, ResponseClass},
};
use crate::agent::{
    notes::CallNotes,
    retry,
    secret::credentials::Credentials,
    transport::{CallAttempt, Permission, Transport, text_without_secrets, without_secrets},
};
use crate::{
    clock::{self, Instant, timeout_at},
    domain::{
        agent::CheckAnswer,
        task::{Call, CallBody, Purpose},
        template::Payload,
        values::Timestamp,
    },
};

/// The longest text of an invalid Retry-After that is shown, in characters.
const LONGEST_WAIT_TEXT: usize = 100;

/// The response of a service, or the reason why there is none.
pub(in crate::agent) struct ServiceExchange {
    pub status: Option<u16>,
    /// The time that Retry-After asks for, or its text if it cannot be parsed.
    pub retry_after: Option<Result<Duration, String>>,
    /// The length of a body that was read to its end.
    pub length: Option<u64>,
    pub body: Option<String>,
    pub answer: ExchangeAnswer,
}

pub(in crate::agent) enum ExchangeAnswer {
    /// The status and output of a probe. The rule of the probe interprets them.
    Probed(u16, Payload),
    Known(CheckAnswer),
}

/// A permission that is always granted, because the call belongs to no task.
struct AlwaysGranted;

#[async_trait]
impl Permission for AlwaysGranted {
    async fn granted(&self, _: &Call) {}
}

/// The time for which the response is awaited.
#[derive(Clone, Copy)]
pub(in crate::agent) enum ResponseWait {
    Until(Instant),
    /// The connection is closed after the duration, even if no response has come. The instant is the end of the
    /// exchange.
    CloseAfter(Duration, Instant),
}

impl ServiceExchange {
    fn without_response(answer: CheckAnswer) -> Self {
        Self {
            status: None,
            retry_after: None,
            length: None,
            body: None,
            answer: ExchangeAnswer::Known(answer),
        }
    }
}

impl Transport {
    /// Makes the exchange. `now` is the time of the store.
    pub(in crate::agent) async fn exchange(
        &self,
        call: &Call,
        body: Option<CallBody>,
        now: Timestamp,
        patience: ResponseWait,
    ) -> ServiceExchange {
        let (ResponseWait::Until(end) | ResponseWait::CloseAfter(_, end)) = patience;
        let made = timeout_at(end, self.make_exchange(call, body, now, patience)).await;
        let made = made.unwrap_or(Ok(ServiceExchange::without_response(CheckAnswer::Silent)));
        made.unwrap_or_else(ServiceExchange::without_response)
    }

    async fn make_exchange(
        &self,
        call: &Call,
        body: Option<CallBody>,
        now: Timestamp,
        patience: ResponseWait,
    ) -> Result<ServiceExchange, CheckAnswer> {
        let attempt = CallAttempt {
            call,
            // The complete-by minus `now` is the time that remains.
            deadline: clock::instant() + call.complete_by.since(now),
            permission: &AlwaysGranted,
            notes: &CallNotes::new(false),
        };
        let credentials = self.credentials(attempt).await;
        let credentials =
            credentials.map_err(|transient| CheckAnswer::Broken(transient.fault.message))?;
        let credentials = credentials.as_deref();
        let endpoint = self.endpoints.lease();
        let endpoint = endpoint
            .ok_or_else(|| CheckAnswer::Unmakeable("the agent has no endpoint".to_owned()))?;
        let way = endpoint.target.as_ref();
        let way = way.map_err(|why| CheckAnswer::Unmakeable(why.clone()))?;
        let made = self.request(way, attempt, body, credentials);
        let made = made.map_err(CheckAnswer::Unmakeable)?;
        let connector = self.connector(credentials);
        if let ResponseWait::CloseAfter(after, _) = patience {
            let sent = way.connections.send_and_close(connector, made, after).await;
            sent.map_err(|error| broken(&error, credentials))?;
            let closed = "the connection was closed before the response".to_owned();
            return Err(CheckAnswer::Broken(closed));
        }
        let answer = way.connections.send(connector, made).await;
        let answer = answer.map_err(|error| broken(&error, credentials))?;
        Ok(self.read(call, answer, now, credentials).await)
    }

    async fn read(
        &self,
        call: &Call,
        mut answer: ResponseStream,
        now: Timestamp,
        credentials: Option<&Credentials>,
    ) -> ServiceExchange {
        let redactor = credentials.map(Credentials::redactor);
        let status = answer.head.status;
        let headers = answer.head.headers.clone();
        let retry_after = headers.get(header::RETRY_AFTER).map(|text| {
            let shown = || String::from_utf8_lossy(text.as_bytes());
            let hidden = || text_without_secrets(shown().into_owned(), redactor);
            let cut = || hidden().chars().take(LONGEST_WAIT_TEXT).collect();
            retry::retry_after(&headers, now).ok_or_else(cut)
        });
        let probes = matches!(call.purpose, Purpose::Probe(_));
        let class = match status {
            StatusCode::NOT_FOUND | StatusCode::GONE if probes => ResponseClass::Success,
            _ => response::classify(status, &headers, call.reply_mode, now),
        };
        let status = status.as_u16();
        let (known, text, length) = match class {
            ResponseClass::Success => match body::whole(&mut answer, self.max_output).await {
                Err(BodyError::TooLarge) => {
                    let text = body::start_without(answer, redactor).await;
                    (ExchangeAnswer::Known(CheckAnswer::TooLarge), text, None)
                }
                Err(BodyError::Broken(error)) => {
                    let broken = broken(&error, credentials);
                    (ExchangeAnswer::Known(broken), Vec::new(), None)
                }
                Ok(body) => {
                    let length = body.len() as u64;
                    let body = without_secrets(body, redactor);
                    let answer = match response::output(&headers, &body) {
                        Ok(output) if probes => ExchangeAnswer::Probed(status, output),
                        Ok(output) => ExchangeAnswer::Known(CheckAnswer::Output(output)),
                        Err(why) => ExchangeAnswer::Known(CheckAnswer::Unusable(why)),
                    };
                    (answer, body, Some(length))
                }
            },
            other => {
                let has_refused_token = self.has_refused_token(&answer, credentials);
                let text = body::start_without(answer, redactor).await;
                let answer = match other {
                    ResponseClass::Deferred => CheckAnswer::Promised,
                    ResponseClass::Transient { .. } => CheckAnswer::Transient(status),
                    _ if has_refused_token => CheckAnswer::Transient(status),
                    _ => CheckAnswer::Refused(status),
                };
                (ExchangeAnswer::Known(answer), text, None)
            }
        };
        ServiceExchange {
            status: Some(status),
            retry_after,
            length,
            body: match response::encoding(&headers) {
                Some(encoding) => Some(format!("(encoded as {encoding})")),
                None => response::excerpt(&text),
            },
            answer: known,
        }
    }
}

fn broken(unanswered: &Unanswered, credentials: Option<&Credentials>) -> CheckAnswer {
    let error = unanswered.error();
    if let Some(refusal) = address::refusal_in(error) {
        return CheckAnswer::Unmakeable(refusal.to_string());
    }
    let redactor = credentials.map(Credentials::redactor);
    let cause = text_without_secrets(root_cause(error), redactor);
    CheckAnswer::Broken(match unanswered {
        Unanswered::Unconnected(_) => format!("it could not be connected to: {cause}"),
        Unanswered::Unprocessed(_) => format!("the call failed: {cause}"),
        Unanswered::Broken(_) => format!("the call broke off: {cause}"),
    })
}
