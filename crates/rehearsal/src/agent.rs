//! The agent of a rehearsal, which decides how a mocked response counts. It follows the order of the agents that make
//! calls, and the rule for statuses is the same for both.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, StatusCode, header};
use provost_domain::{
    agent::{
        RetrySpec,
        answer::{self, LONGEST_POLL_WAIT, ResponseClass},
        call_wait, retry_after,
    },
    definition::{Method, ReplyMode, Target},
    task::{Call, CallOutcome, Purpose, RetryWait},
    template::Payload,
    values::{Effect, Fault, FaultKind, Timestamp},
};

use crate::mock::MockResponse;

/// The result of each draw of chance: each backoff is as long as it can be.
const CHANCE: f64 = 1.0;

/// A call that gets a response now.
pub(crate) struct MockedAgent<'a> {
    pub call: &'a Call,
    pub retry: &'a RetrySpec,
    /// The time at which the response comes.
    pub now: Timestamp,
}

impl MockedAgent<'_> {
    fn fault(&self, kind: FaultKind, message: String) -> Fault {
        Fault::new(kind, message, self.now)
    }

    fn answered(&self, kind: FaultKind, message: String, status: StatusCode) -> Fault {
        let probes = matches!(self.call.purpose, Purpose::Probe(_));
        Fault {
            status: Some(status.as_u16()),
            effect: Effect::unknown_if(!probes && answer::leaves_effect_unknown(status)),
            ..self.fault(kind, message)
        }
    }

    fn transient(&self, fault: Fault, asked: Option<Duration>) -> CallOutcome {
        if self.call.retries(&fault) == Some(false) {
            return CallOutcome::Failed(fault);
        }
        let wait = RetryWait::from(call_wait(self.call, self.retry, asked, CHANCE));
        CallOutcome::Transient {
            fault,
            wait: wait.within_attempts(self.call.attempt_rules()),
        }
    }

    pub fn unreachable(&self) -> CallOutcome {
        let message = format!("could not connect to {}", self.called());
        self.transient(self.fault(FaultKind::Transient, message), None)
    }

    pub fn dropped(&self) -> CallOutcome {
        let message = format!("the call to {} broke off", self.called());
        let mut fault = self.fault(FaultKind::Transient, message);
        fault.effect = Effect::Unknown;
        self.transient(fault, None)
    }

    fn called(&self) -> &str {
        match &self.call.target {
            Target::Agent(agent) | Target::Operation { agent, .. } => agent.as_str(),
            Target::Url { url, .. } => url,
        }
    }

    /// Returns the outcome of a poll that got no response in the time that one poll has.
    pub fn poll_timed_out(&self) -> CallOutcome {
        let message = "a poll got no response in time".to_owned();
        CallOutcome::Transient {
            fault: self.fault(FaultKind::Transient, message),
            wait: RetryWait::default(),
        }
    }

    /// Returns the outcome of a response. The error says what cannot be simulated.
    pub fn responded(&self, response: &MockResponse) -> Result<CallOutcome, String> {
        let MockResponse {
            status,
            headers,
            body,
            ..
        } = response;
        let status = *status;
        let probes = matches!(self.call.purpose, Purpose::Probe(_));
        let polls = matches!(self.call.purpose, Purpose::Poll | Purpose::Cancel(_));
        let mode = self.call.reply_mode;
        let repeats = !probes && mode == ReplyMode::Poll && self.call.method == Method::Get;
        if status == StatusCode::SEE_OTHER && repeats {
            return Err(
                "a 303 to a poll is not simulated: respond with 200 and the result instead"
                    .to_owned(),
            );
        }
        let class = match status {
            StatusCode::NOT_FOUND | StatusCode::GONE if probes => ResponseClass::Success,
            _ if polls && status.is_success() => ResponseClass::Success,
            _ => answer::classify(status, headers, mode, self.now),
        };
        let sent = body.as_ref().map_or("", Payload::as_json);
        Ok(match class {
            ResponseClass::Success => {
                if mode == ReplyMode::Poll && !probes && !polls {
                    match self.operation(status, headers) {
                        Ok(Some(outcome)) => return Ok(outcome),
                        Ok(None) => {}
                        Err(why) => {
                            let fault = self.answered(FaultKind::Permanent, why, status);
                            return Ok(CallOutcome::Failed(fault));
                        }
                    }
                }
                match answer::output(headers, sent.as_bytes()) {
                    Ok(body) if probes => CallOutcome::Probed {
                        status: status.as_u16(),
                        body,
                    },
                    Ok(body) if repeats => CallOutcome::Polled {
                        status: status.as_u16(),
                        body,
                        retry_after: self.asked_wait(headers),
                    },
                    Ok(output) => self.call.success(output, status, headers, |text| text),
                    Err(why) => {
                        let mut fault = self.answered(FaultKind::Permanent, why, status);
                        fault.body = answer::excerpt(sent.as_bytes());
                        CallOutcome::Failed(fault)
                    }
                }
            }
            ResponseClass::Deferred => CallOutcome::Deferred,
            ResponseClass::Transient {
                message,
                retry_after,
            } => {
                let mut fault = self.answered(FaultKind::Transient, message, status);
                fault.body = answer::excerpt(sent.as_bytes());
                self.transient(fault, retry_after)
            }
            ResponseClass::Permanent { message } => {
                let mut fault = self.answered(FaultKind::Permanent, message, status);
                fault.body = answer::excerpt(sent.as_bytes());
                match self.call.retries(&fault) {
                    Some(true) => {
                        fault.kind = FaultKind::Transient;
                        self.transient(fault, None)
                    }
                    _ => CallOutcome::Failed(fault),
                }
            }
        })
    }

    fn asked_wait(&self, headers: &HeaderMap) -> Option<Duration> {
        retry_after(headers, self.now).map(|wait| wait.min(LONGEST_POLL_WAIT))
    }

    /// Returns the promise of a service that is polled. `None`: its response is the reply, or is the first poll.
    fn operation(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> Result<Option<CallOutcome>, String> {
        let promises = status == StatusCode::ACCEPTED;
        let named = headers
            .get("operation-location")
            .or_else(|| headers.get(header::LOCATION).filter(|_| promises))
            .or_else(|| headers.get(header::CONTENT_LOCATION).filter(|_| promises));
        match named {
            Some(address) => Ok(Some(CallOutcome::PollAt {
                address: self.absolute(address)?,
                retry_after: self.asked_wait(headers),
            })),
            None if promises && self.call.method != Method::Get => Err(
                "the service responded 202, but named no address for polling: send Operation-Location or Location".to_owned(),
            ),
            None => Ok(None),
        }
    }

    /// Returns the address for polling as a whole URL, with the origin that was called. The origin of an agent is not
    /// known here.
    fn absolute(&self, named: &HeaderValue) -> Result<String, String> {
        let named = named
            .to_str()
            .map_err(|_| "the address for polling that the service named is not a URL")?;
        if named.contains("://") {
            return Ok(named.to_owned());
        }
        let origin = match &self.call.target {
            Target::Url { origin, .. } | Target::Operation { origin, .. } => origin.as_str(),
            Target::Agent(_) => "http://agent.invalid",
        };
        Ok(format!("{origin}/{}", named.trim_start_matches('/')))
    }
}
