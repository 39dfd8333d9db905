//! Notes on an attempt under way. They cost little while all goes well, and become an [`AttemptExchange`] if the attempt is
//! recorded.

use ::http::{HeaderMap, HeaderName, header};
use bytes::Bytes;
use parking_lot::Mutex;

use super::{
    client::{body, connections::ResponseStream, http, response, times::ExchangeClock},
    routing::RoutedEndpoint,
    secret::credentials::Credentials,
};
use crate::{
    clock::{self, Instant},
    domain::{
        definition::Target,
        task::{
            AttemptExchange, BodyRecord, Call, CallOutcome, ExchangeTimes, Purpose,
            ReceivedResponse, RecordedRequest, Redactor, ReplyAddresses,
        },
        values::{HIDDEN, Timestamp, is_secret_header, without_query},
    },
};

/// The longest value of a header of a response that is recorded, in characters.
const LONGEST_VALUE: usize = 1_000;

/// The headers of a response that are recorded.
const OF_INTEREST: [HeaderName; 12] = [
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::CONTENT_ENCODING,
    header::DATE,
    header::SERVER,
    header::VIA,
    header::LOCATION,
    header::RETRY_AFTER,
    header::WWW_AUTHENTICATE,
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("ratelimit"),
    HeaderName::from_static("operation-location"),
];

/// Headers that Provost sets itself, and that hold no secret although their names suggest one.
const OPEN: [&str; 2] = ["idempotency-key", "provost-task-key"];

/// The result of a call, with what is recorded of it.
#[derive(Debug)]
pub struct CallReport {
    pub outcome: CallOutcome,
    pub exchange: Option<Box<AttemptExchange>>,
}

impl From<CallOutcome> for CallReport {
    fn from(outcome: CallOutcome) -> Self {
        Self {
            outcome,
            exchange: None,
        }
    }
}

pub(super) struct CallNotes {
    /// True if the attempt is recorded even if it succeeds.
    is_sampled: bool,
    pub clock: ExchangeClock,
    noted: Mutex<Noted>,
}

#[derive(Default)]
struct Noted {
    /// The body of the request, if it is short enough to be kept until the response has come.
    body: Option<Bytes>,
    /// True if the request has a body that is not kept.
    is_body_left_out: bool,
    response: Option<ReceivedResponse>,
    request: Option<RecordedRequest>,
    endpoint: Option<String>,
}

impl CallNotes {
    pub fn new(is_sampled: bool) -> Self {
        Self {
            is_sampled,
            clock: ExchangeClock::default(),
            noted: Mutex::default(),
        }
    }

    /// Returns whether the attempt is recorded.
    pub fn is_wanted(&self, has_failed: bool) -> bool {
        has_failed || self.is_sampled
    }

    /// Keeps a short body, which costs no copy.
    pub fn body(&self, body: Option<&Bytes>) {
        let Some(body) = body else {
            return;
        };
        match body.len() <= BodyRecord::LONGEST {
            true => self.noted.lock().body = Some(body.clone()),
            false => self.leave_out_body(),
        }
    }

    /// The body is not kept: if it is recorded, it is rendered again.
    pub fn leave_out_body(&self) {
        self.noted.lock().is_body_left_out = true;
    }

    /// Notes the head of a response that is not a success, or of one that is recorded in any case.
    pub fn response(&self, status: u16, headers: &HeaderMap, redactor: Option<&Redactor>) {
        let names = OF_INTEREST;
        let headers = names.iter().filter_map(|name| {
            let value = String::from_utf8_lossy(headers.get(name)?.as_bytes()).into_owned();
            let value = match redactor {
                Some(redactor) => redactor.hide_in_text(value),
                None => value,
            };
            Some((name.as_str().to_owned(), cut(value)))
        });
        self.noted.lock().response = Some(ReceivedResponse {
            status,
            headers: headers.collect(),
            body: None,
        });
    }

    /// Notes the beginning of a response's body, from which secrets were removed.
    pub fn response_body(&self, body: &[u8]) {
        if let Some(response) = &mut self.noted.lock().response
            && !body.is_empty()
        {
            response.body = Some(BodyRecord::start_of(body));
        }
    }

    /// Reads the beginning of a response's body without secrets, notes it, and returns the excerpt of it that a fault
    /// has.
    pub async fn start(
        &self,
        answer: ResponseStream,
        redactor: Option<&Redactor>,
    ) -> Option<String> {
        let start = body::start_without(answer, redactor).await;
        self.response_body(&start);
        response::excerpt(&start)
    }

    /// Notes what was sent to an endpoint: the request is made again, without what the credentials add to it.
    pub fn request(
        &self,
        endpoint: &RoutedEndpoint,
        call: &Call,
        replies: Option<&ReplyAddresses>,
        credentials: Option<&Credentials>,
    ) {
        let redactor = credentials.map(Credentials::redactor);
        let address = call.address_redactor();
        let hide = |text: String| {
            let redactors = redactor.into_iter().chain(&address);
            redactors.fold(text, |text, redactor| redactor.hide_in_text(text))
        };
        let mut sent = RecordedRequest::of(call);
        if let Ok(target) = &endpoint.target
            && let Ok(url) = http::url(&target.base, call)
            && let Ok(made) = http::request(
                &target.base,
                &target.host,
                call,
                None,
                &call.trace.parent(),
                replies,
            )
        {
            sent.url = match &call.target {
                // A query of the request's own path is part of what was sent.
                Target::Agent(_) => url.to_string(),
                _ if call.path.contains('?') => url.to_string(),
                Target::Url { .. } | Target::Operation { .. } => {
                    without_query(url.as_str()).into_owned()
                }
            };
            sent.headers = shown(made.headers());
            // In place of what the step has under these names, something else was sent.
            let is_replaced = |name: &str| credentials.is_some_and(|known| known.sets(name));
            sent.headers.retain(|(name, _)| !is_replaced(name));
        }
        sent.url = hide(sent.url);
        for (_, value) in &mut sent.headers {
            *value = hide(std::mem::take(value));
        }
        let mut sent = sent.bounded();
        let mut noted = self.noted.lock();
        sent.body = noted.body.take().map(|body| {
            let text = String::from_utf8_lossy(&body).into_owned();
            BodyRecord::of(hide(text).as_bytes())
        });
        if let (Some(address), Some(response)) = (&address, &mut noted.response) {
            let body = response.body.take();
            response.body = body.map(|body| address.hide_in_text(body));
            for (_, value) in &mut response.headers {
                *value = address.hide_in_text(std::mem::take(value));
            }
        }
        noted.request = Some(sent);
        noted.endpoint = Some(hide(endpoint.url.clone()));
    }

    /// Returns what is recorded of a call that ended at `ended` by the store's clock; `None` if nothing was sent.
    pub fn exchange(&self, call: &Call, ended: Timestamp) -> Option<Box<AttemptExchange>> {
        let mut noted = self.noted.lock();
        let request = noted.request.take()?;
        let now = clock::instant();
        let at = |instant: Instant| {
            let ago = now.saturating_duration_since(instant).as_millis();
            Timestamp::from_millis(ended.as_millis() - i64::try_from(ago).unwrap_or(0))
        };
        let is_poll = matches!(call.purpose, Purpose::Poll | Purpose::Cancel(_));
        let times = self.clock.noted();
        Some(Box::new(AttemptExchange {
            is_as_sent: true,
            instance: None,
            endpoint: noted.endpoint.take(),
            is_body_left_out: noted.is_body_left_out,
            request,
            times: ExchangeTimes {
                claimed_at: (!is_poll).then(|| {
                    let (complete_by, within) = (call.complete_by, call.complete_within);
                    Timestamp::from_millis(complete_by.as_millis() - within.as_millis())
                }),
                began_at: times.began.map(at),
                resolved_at: times.resolved.map(at),
                connected_at: times.connected.map(at),
                ready_at: times.ready.map(at),
                sent_at: times.sent.map(at),
                responded_at: times.responded.map(at),
            },
            response: noted.response.take(),
        }))
    }
}

/// Returns the headers as they are shown.
fn shown(headers: &HeaderMap) -> Vec<(String, String)> {
    let shown = headers.iter().map(|(name, value)| {
        let name = name.as_str();
        let is_secret = is_secret_header(name) && !OPEN.contains(&name);
        let value = match is_secret || value.is_sensitive() {
            true => HIDDEN.to_owned(),
            false => String::from_utf8_lossy(value.as_bytes()).into_owned(),
        };
        (name.to_owned(), value)
    });
    shown.collect()
}

fn cut(mut value: String) -> String {
    if let Some((end, _)) = value.char_indices().nth(LONGEST_VALUE) {
        value.truncate(end);
        value.push('\u{2026}');
    }
    value
}

/// Returns whether an attempt with this outcome is recorded in any case.
pub(super) fn has_failed(outcome: &CallOutcome) -> bool {
    matches!(
        outcome,
        CallOutcome::Failed(_) | CallOutcome::Crashed(_) | CallOutcome::Transient { .. }
    )
}

#[cfg(test)]
mod tests {
    use ::http::HeaderValue;

    use super::*;

    #[test]
    fn headers_are_shown_without_secrets() {
        let mut headers = HeaderMap::new();
        headers.insert("idempotency-key", HeaderValue::from_static("t:charge"));
        headers.insert("x-api-key", HeaderValue::from_static("s3cret"));
        let mut reply_to = HeaderValue::from_static("http://h/v1/replies/abc");
        reply_to.set_sensitive(true);
        headers.insert("provost-reply-to", reply_to);
        let shown = shown(&headers);
        let value = |name: &str| {
            let found = shown.iter().find(|(shown, _)| shown == name);
            found.map(|(_, value)| value.as_str())
        };
        assert_eq!(value("idempotency-key"), Some("t:charge"));
        assert_eq!(value("x-api-key"), Some(HIDDEN));
        assert_eq!(value("provost-reply-to"), Some(HIDDEN));
        assert_eq!(cut("a".repeat(2_000)).chars().count(), LONGEST_VALUE + 1);
    }
}
