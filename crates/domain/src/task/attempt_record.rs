//! The record of an attempt that has ended: what was sent, what came back, and what followed.
//!
//! Failed attempts are always recorded. An attempt that succeeded leaves the output of its step, and its request can be
//! rendered again from the record of the task; so it is recorded only if the settings ask for that.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use crate::{
    task::call::{Call, CallOutcome, Purpose},
    values::{
        fault::Fault,
        hidden::hide_secrets,
        ids::{Attempt, InstanceId, StepIndex},
        time::Timestamp,
    },
};

/// One attempt of a step, or one poll of an attempt, that has ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// Stored beside the record, in columns of its row, as `attempt` is.
    #[serde(skip)]
    pub step: StepIndex,
    #[serde(skip)]
    pub attempt: Attempt,
    pub purpose: AttemptPurpose,
    pub result: AttemptResult,
    pub ended_at: Timestamp,
    /// The reason in words, if the attempt has not succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
    /// The earliest time of the attempt that follows, if one follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
    /// `None`: nothing is known of a request, because none could be made, or because it could not be rendered again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<Box<AttemptExchange>>,
}

/// The purpose of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttemptPurpose {
    Work,
    Undo,
    Probe,
    Poll,
    Cancel,
}

impl From<&Purpose> for AttemptPurpose {
    fn from(purpose: &Purpose) -> Self {
        match purpose {
            Purpose::Work => Self::Work,
            Purpose::Undo(_) => Self::Undo,
            Purpose::Probe(_) => Self::Probe,
            Purpose::Poll => Self::Poll,
            Purpose::Cancel(_) => Self::Cancel,
        }
    }
}

/// The way in which an attempt has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttemptResult {
    Succeeded,
    /// A fault after which another attempt may succeed.
    Transient,
    /// A fault after which another attempt would fail as well.
    Permanent,
    /// Its complete-by passed, or its heartbeats stopped.
    Expired,
    /// The instance that held it was lost, or failed during the call.
    Lost,
    /// It was handed back without a failure: its instance stopped, had no free slot, or dropped the call.
    Released,
    /// A command ended it: a cancel, an undo, a skip or a resolve.
    Abandoned,
}

impl AttemptResult {
    /// Returns how an attempt with this outcome ends, unless its step refuses the response.
    pub fn of(outcome: &CallOutcome) -> Self {
        match outcome {
            CallOutcome::Success(_)
            | CallOutcome::Kept { .. }
            | CallOutcome::Deferred
            | CallOutcome::PollAt { .. }
            | CallOutcome::Polled { .. }
            | CallOutcome::Probed { .. } => Self::Succeeded,
            CallOutcome::Transient { .. } => Self::Transient,
            CallOutcome::Failed(_) => Self::Permanent,
            CallOutcome::Crashed(_) => Self::Lost,
        }
    }
}

/// Says which attempts that succeed are recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordSuccesses {
    None,
    /// One of a hundred.
    #[default]
    Sampled,
    All,
}

impl RecordSuccesses {
    /// Returns whether an attempt is recorded. `random` is from 0 to 1.
    pub fn takes(self, random: f64) -> bool {
        match self {
            Self::None => false,
            Self::Sampled => random < 0.01,
            Self::All => true,
        }
    }
}

/// A request and its response, without secrets.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AttemptExchange {
    /// False if the request was rendered again when the attempt had ended, because the instance that sent it did not
    /// say what it sent.
    pub is_as_sent: bool,
    /// The instance that made the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// The URL of the endpoint that was called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    pub request: RecordedRequest,
    /// True if the request had a body that its instance did not keep. The decision renders it again.
    #[serde(skip)]
    pub is_body_left_out: bool,
    #[serde(default)]
    pub times: ExchangeTimes,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<ReceivedResponse>,
}

impl AttemptExchange {
    /// A request that was rendered again from the record of the task.
    pub fn rendered(request: RecordedRequest, instance: Option<InstanceId>) -> Self {
        Self {
            is_as_sent: false,
            instance,
            endpoint: None,
            request,
            is_body_left_out: false,
            times: ExchangeTimes::default(),
            response: None,
        }
    }
}

/// A request as it was sent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RecordedRequest {
    pub method: String,
    /// The whole URL, or the path if the URL is not known.
    pub url: String,
    /// The headers in the order in which they were sent; `***` stands for a value that may be secret.
    pub headers: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<BodyRecord>,
}

impl RecordedRequest {
    /// The most bytes of a URL, and of the names and values of all headers together.
    pub const LONGEST: usize = 16 << 10;

    /// Returns the request within its bounds: data of the task may make a header of any length. A text that is cut ends with
    /// an ellipsis.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        cut(&mut self.url, Self::LONGEST);
        let mut room = Self::LONGEST;
        for (name, value) in &mut self.headers {
            cut(value, room.saturating_sub(name.len()));
            room = room.saturating_sub(name.len() + value.len());
        }
        self.headers.retain(|(_, value)| value != CUT);
        self
    }

    /// Returns the request of a call, as it was rendered. What the agent added to it is not known here.
    pub fn of(call: &Call) -> Self {
        let mut headers = call.headers.clone();
        hide_secrets(&mut headers);
        Self {
            method: call.method.as_str().to_owned(),
            url: call.path.clone(),
            headers,
            body: call
                .body
                .as_deref()
                .map(|body| BodyRecord::of(body.as_bytes())),
        }
        .bounded()
    }
}

/// The end of a text that was cut.
const CUT: &str = "\u{2026}";

fn cut(text: &mut String, most: usize) {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push_str(CUT);
    }
}

/// The status, the headers of interest and the beginning of the body of a response.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ReceivedResponse {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
}

/// The times of an attempt by the store's clock, as far as they are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ExchangeTimes {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_at: Option<Timestamp>,
    /// When the instance began to send, which is after the wait for a slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_at: Option<Timestamp>,
    /// The name of the endpoint's host was resolved. Left out where an open connection was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_at: Option<Timestamp>,
    /// The connection was open, before TLS. Left out where an open connection was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected_at: Option<Timestamp>,
    /// The connection was ready, TLS included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Timestamp>,
    /// The last byte of the request was handed to the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_at: Option<Timestamp>,
    /// The head of the response had come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub responded_at: Option<Timestamp>,
}

/// The beginning of a body, its length and its hash.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BodyRecord {
    /// The first [`BodyRecord::LONGEST`] bytes, as text. `None` if bodies are not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    /// The length of the whole body in bytes.
    pub bytes: u64,
    /// The SHA-256 of the whole body, in lower-case hexadecimal digits.
    pub sha256: String,
}

impl BodyRecord {
    /// The most bytes of a body that are recorded.
    pub const LONGEST: usize = 16 << 10;

    pub fn of(body: &[u8]) -> Self {
        let digest = Sha256::digest(body);
        let mut sha256 = String::with_capacity(2 * digest.len());
        for byte in digest {
            // Writing to a text cannot fail.
            let _ = write!(sha256, "{byte:02x}");
        }
        Self {
            start: Some(Self::start_of(body)),
            bytes: body.len() as u64,
            sha256,
        }
    }

    /// Returns the beginning of a body as text.
    pub fn start_of(body: &[u8]) -> String {
        let cut = &body[..body.len().min(Self::LONGEST)];
        match std::str::from_utf8(cut) {
            Ok(text) => text.to_owned(),
            // A character that the end cuts in two is left out.
            Err(error) if error.error_len().is_none() && body.len() > cut.len() => {
                String::from_utf8_lossy(&cut[..error.valid_up_to()]).into_owned()
            }
            Err(_) => {
                let mut text = String::from_utf8_lossy(cut).into_owned();
                // The character that replaces a byte takes three.
                text.truncate(text.floor_char_boundary(Self::LONGEST));
                text
            }
        }
    }
}

impl AttemptRecord {
    pub fn has_succeeded(&self) -> bool {
        self.result == AttemptResult::Succeeded
    }

    /// Takes what the instance has sent, which it says after the attempt has ended. Returns false if the record has it already, or
    /// if the attempt had a response.
    pub fn complete(&mut self, sent: &AttemptExchange) -> bool {
        let is_known = self.exchange.as_ref().is_some_and(|known| known.is_as_sent);
        let had_response = matches!(
            self.result,
            AttemptResult::Succeeded | AttemptResult::Transient | AttemptResult::Permanent
        );
        if is_known || had_response {
            return false;
        }
        let rendered = self.exchange.take();
        let mut sent = Box::new(sent.clone());
        if sent.is_body_left_out {
            sent.request.body = rendered.and_then(|rendered| rendered.request.body);
            sent.is_body_left_out = false;
        }
        self.exchange = Some(sent);
        true
    }

    /// Returns about how many bytes the texts of the request and the response take.
    pub fn bytes(&self) -> usize {
        let Some(exchange) = &self.exchange else {
            return 0;
        };
        let (request, response) = (&exchange.request, exchange.response.as_ref());
        let body = request.body.as_ref().and_then(|body| body.start.as_ref());
        let received = response.and_then(|response| response.body.as_ref());
        let of_response = response.map(|response| &response.headers);
        let headers = request
            .headers
            .iter()
            .chain(of_response.into_iter().flatten());
        let headers = headers.map(|(name, value)| name.len() + value.len());
        request.url.len()
            + headers.sum::<usize>()
            + body.map_or(0, String::len)
            + received.map_or(0, String::len)
    }

    /// Removes what settings keep out of the record: the bodies of the request and of the response.
    pub fn without_bodies(&mut self) {
        if let Some(error) = &mut self.error {
            error.body = None;
        }
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        if let Some(body) = &mut exchange.request.body {
            body.start = None;
        }
        if let Some(response) = &mut exchange.response {
            response.body = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_recorded_by_its_beginning_its_length_and_its_hash() {
        let body = BodyRecord::of(b"{\"amount\":5}");
        assert_eq!(body.start.as_deref(), Some("{\"amount\":5}"));
        assert_eq!(body.bytes, 12);
        assert_eq!(
            body.sha256,
            "7e84cbf0f7a7c92c037058665d66152f8eb8580ab2534e52c877bccceb9cc7bf"
        );
    }

    #[test]
    fn headers_and_the_url_of_any_length_are_recorded_within_their_bounds() {
        let long = "\u{20ac}".repeat(RecordedRequest::LONGEST);
        let request = RecordedRequest {
            method: "POST".to_owned(),
            url: long.clone(),
            headers: ["a", "b", "c"]
                .map(|name| (name.to_owned(), long.clone()))
                .to_vec(),
            body: None,
        };
        let request = request.bounded();
        assert!(request.url.len() <= RecordedRequest::LONGEST + CUT.len());
        let [(name, value)] = request.headers.as_slice() else {
            panic!("{} headers", request.headers.len());
        };
        assert_eq!(name, "a");
        assert!(value.ends_with(CUT) && value.len() <= RecordedRequest::LONGEST + CUT.len());
    }

    #[test]
    fn the_beginning_of_a_body_is_text_within_its_bound() {
        let euros = "\u{20ac}".repeat(BodyRecord::LONGEST);
        let long = BodyRecord::of(euros.as_bytes());
        let start = long.start.unwrap();
        assert!(start.len() <= BodyRecord::LONGEST && start.len() > BodyRecord::LONGEST - 3);
        assert!(euros.starts_with(&start));
        assert_eq!(long.bytes, 3 * BodyRecord::LONGEST as u64);
        let noise = vec![0xff; 2 * BodyRecord::LONGEST];
        assert!(BodyRecord::start_of(&noise).len() <= BodyRecord::LONGEST);
    }
}
