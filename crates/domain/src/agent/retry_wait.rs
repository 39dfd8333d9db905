//! The wait before the next attempt after a transient fault: with full jitter, so that calls that failed together do
//! not come back together, and never shorter than the wait that the service requested.

use std::time::Duration;

use http::{HeaderMap, header};

use crate::{
    agent::spec::RetrySpec, definition::AttemptRules, task::call::Call, values::time::Timestamp,
};

/// The longest wait that a service can request: an error in its response must not delay a step for years.
const LONGEST_ASKED: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns the wait after attempt number `made`: uniform between zero and `initial * factor^(made - 1)`, at most `max`.
/// `chance` is a random number from 0 to 1. The wait that the service requested is added, so that callers that all got
/// the same second are still spread.
pub fn retry_wait(
    spec: &RetrySpec,
    made: u32,
    asked_for: Option<Duration>,
    chance: f64,
) -> Duration {
    let asked = asked_for.unwrap_or_default().min(LONGEST_ASKED);
    asked + spec.backoff().full_jitter(made, chance)
}

/// Returns the wait before a call is made again: by the rule of its step, or else by that of the agent.
pub fn call_wait(
    call: &Call,
    agent: &RetrySpec,
    asked_for: Option<Duration>,
    chance: f64,
) -> Duration {
    let made = call.transient_faults.saturating_add(1);
    match call.attempt_rules().and_then(AttemptRules::waits) {
        Some(waits) => {
            let asked = asked_for.unwrap_or_default().min(LONGEST_ASKED);
            asked + waits.wait(made, chance)
        }
        None => retry_wait(agent, made, asked_for, chance),
    }
}

/// Reads `Retry-After` in either of its forms (RFC 9110 section 10.2.3). A date is compared with the response's own
/// `Date` if it has one: then an error of the service's clock does not matter.
pub fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let asked = text(header::RETRY_AFTER)?;
    if let Ok(seconds) = asked.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let their_now = text(header::DATE).and_then(http_date).unwrap_or(now);
    Some(http_date(asked)?.since(their_now))
}

/// Parses an HTTP-date in the form that RFC 9110 requires senders to use, which is also a date of RFC 2822.
pub fn http_date(text: &str) -> Option<Timestamp> {
    let date = jiff::fmt::rfc2822::parse(text).ok()?;
    Some(Timestamp::from_millis(date.timestamp().as_millisecond()))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::values::time::Span;

    const SPEC: RetrySpec = RetrySpec {
        initial: Span::from_millis(100),
        max: Span::from_millis(1_000),
        factor: 3,
        budget_percent: None,
    };

    #[test]
    fn the_longest_wait_grows_by_the_factor_up_to_the_maximum() {
        let longest = |made| retry_wait(&SPEC, made, None, 1.0).as_millis();
        assert_eq!(
            [1, 2, 3, 4, u32::MAX].map(longest),
            [100, 300, 900, 1_000, 1_000]
        );
    }

    #[test]
    fn the_wait_is_anywhere_between_zero_and_the_longest() {
        let drawn = |chance| retry_wait(&SPEC, 2, None, chance).as_millis();
        assert_eq!([0.0, 0.5, 1.0].map(drawn), [0, 150, 300]);
    }

    #[test]
    fn the_service_is_left_alone_for_as_long_as_it_asked() {
        let asked = Duration::from_secs(7);
        assert_eq!(retry_wait(&SPEC, 1, Some(asked), 0.0), asked);
        assert_eq!(
            retry_wait(&SPEC, 1, Some(asked), 1.0),
            asked + Duration::from_millis(100)
        );
        assert_eq!(
            retry_wait(&SPEC, 1, Some(Duration::MAX), 0.0),
            Duration::from_secs(86_400),
            "no longer than a day"
        );
    }

    fn read(retry_after_header: &str, date: Option<&str>) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(
            "retry-after",
            HeaderValue::from_str(retry_after_header).unwrap(),
        );
        if let Some(date) = date {
            headers.insert("date", HeaderValue::from_str(date).unwrap());
        }
        let now = Timestamp::parse("1994-11-06T08:49:30Z").unwrap();
        retry_after(&headers, now)
    }

    #[test]
    fn retry_after_is_read_as_seconds_or_as_a_date() {
        assert_eq!(read("120", None), Some(Duration::from_secs(120)));
        let at = "Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(read(at, None), Some(Duration::from_secs(7)));
        let their_now = "Sun, 06 Nov 1994 08:49:07 GMT";
        assert_eq!(read(at, Some(their_now)), Some(Duration::from_secs(30)));
        assert_eq!(
            read("Sun, 06 Nov 1994 08:00:00 GMT", None),
            Some(Duration::ZERO)
        );
        assert_eq!(read("soon", None), None);
        assert_eq!(read("-1", None), None);
    }
}
