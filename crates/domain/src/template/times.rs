//! Filters of times and durations. None of them reads a clock: the same data give the same request for every attempt.

use std::fmt::Write as _;

use jiff::{SignedDuration, civil};

use super::{
    Budget,
    arguments::{ArgumentValues, given},
    eval_error::{EvalResult, other},
    number::Number,
    value::Value,
};
use crate::values::time::{SPAN_FORMS, Span, Timestamp};

/// The cost of reading a time or a duration, or of writing one.
const TIME: u64 = 400;

/// The longest format and the longest duration, in bytes.
const LONGEST: usize = 100;

/// Returns the seconds since 1970, rounded down.
pub(super) fn timestamp<'v>(
    value: Value<'v>,
    _: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let time = time_of("timestamp", &value.present()?, budget)?;
    let seconds = time.as_millis().div_euclid(1000);
    Ok(Value::Number(Number::int(seconds.into())))
}

/// Returns the seconds that a duration takes.
pub(super) fn duration<'v>(
    value: Value<'v>,
    _: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let millis = span_of("duration", &value.present()?, budget)?;
    Ok(Value::Number(match millis % 1000 {
        0 => Number::int((millis / 1000).into()),
        // Durations are far below the numbers that floating point cannot represent.
        _ => Number::Float(millis as f64 / 1000.0),
    }))
}

/// Returns a time in RFC 3339 or in the given format, moved by the given duration.
pub(super) fn date<'v>(
    value: Value<'v>,
    args: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let mut time = time_of("date", &value.present()?, budget)?;
    if let Some(add) = given(args, 0) {
        let add = span_of("date", &add.clone().present()?, budget)?;
        let moved = time.as_millis().saturating_add(add);
        time = writable(moved)?;
    }
    let Some(format) = given(args, 1) else {
        budget.charge(TIME)?;
        return Value::built(&time.to_string(), budget);
    };
    match format.as_text() {
        Some(format) if format.len() <= LONGEST => {
            Value::built(&formatted(time, format, budget)?, budget)
        }
        _ => other(format!(
            "`date` takes a format of at most {LONGEST} bytes, such as '%Y-%m-%d'"
        )),
    }
}

/// Reads a text of RFC 3339, or a number of seconds since 1970.
fn time_of(filter: &str, value: &Value<'_>, budget: &Budget) -> EvalResult<Timestamp> {
    budget.charge(TIME)?;
    let found = match (value.as_text(), value) {
        (Some(text), _) if text.len() <= LONGEST => Timestamp::parse(text),
        (None, Value::Number(number)) => return writable(millis_of(*number)),
        _ => None,
    };
    match found {
        Some(time) => Ok(time),
        None => other(format!(
            "`{filter}` takes a time of RFC 3339 such as \"2026-01-31T09:30:00Z\", or a number of seconds since 1970, not {}",
            named(value)
        )),
    }
}

/// Reads a duration, or a number of seconds, as milliseconds. A `-` before a duration turns its sign.
fn span_of(filter: &str, value: &Value<'_>, budget: &Budget) -> EvalResult<i64> {
    budget.charge(TIME)?;
    let found = match (value.as_text(), value) {
        (Some(text), _) if text.len() <= LONGEST => {
            let (sign, text) = match text.strip_prefix('-') {
                Some(text) => (-1, text),
                None => (1, text),
            };
            Span::parse(text).map(|span| sign * span.as_millis())
        }
        (None, Value::Number(number)) => Some(millis_of(*number)),
        _ => None,
    };
    match found {
        Some(millis) => Ok(millis),
        None => other(format!(
            "`{filter}` takes {SPAN_FORMS}, or a number of seconds, not {}",
            named(value)
        )),
    }
}

/// A number that is too large for a time becomes one that no time has.
fn millis_of(seconds: Number) -> i64 {
    match seconds.as_int() {
        Some(seconds) => i64::try_from(seconds.saturating_mul(1000)).unwrap_or(i64::MAX),
        // The conversion saturates.
        None => (seconds.as_float() * 1000.0).round() as i64,
    }
}

fn writable(millis: i64) -> EvalResult<Timestamp> {
    match Timestamp::from_millis(millis) {
        time if time.is_writable() => Ok(time),
        _ => other("the time is not between the years 0000 and 9999"),
    }
}

fn named(value: &Value<'_>) -> String {
    match value.as_text() {
        Some(text) if text.len() <= LONGEST => format!("\"{text}\""),
        _ => value.kind().to_owned(),
    }
}

/// Writes a time in UTC. The letters are those of `strftime`.
fn formatted(time: Timestamp, format: &str, budget: &Budget) -> EvalResult<String> {
    budget.charge(TIME)?;
    // A letter becomes at most nine letters, as in "Wednesday" and "September".
    budget.allocate(format.len() * 9)?;
    let epoch = civil::date(1970, 1, 1).at(0, 0, 0, 0);
    let since = SignedDuration::from_millis(time.as_millis());
    let Ok(at) = epoch.checked_add(since) else {
        return other("the time is not between the years 0000 and 9999");
    };
    let mut text = String::new();
    let mut rest = format.chars();
    while let Some(letter) = rest.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        // Writing to a text cannot fail.
        let _ = match rest.next() {
            Some('Y') => write!(text, "{:04}", at.year()),
            Some('y') => write!(text, "{:02}", at.year() % 100),
            Some('m') => write!(text, "{:02}", at.month()),
            Some('d') => write!(text, "{:02}", at.day()),
            Some('H') => write!(text, "{:02}", at.hour()),
            Some('M') => write!(text, "{:02}", at.minute()),
            Some('S') => write!(text, "{:02}", at.second()),
            Some('j') => write!(text, "{:03}", at.date().day_of_year()),
            Some('u') => write!(text, "{}", at.weekday().to_monday_one_offset()),
            Some('%') => write!(text, "%"),
            _ => {
                return other(
                    "`date` takes a format of %Y, %y, %m, %d, %H, %M, %S, %j (day of the year), %u (day of the week from 1, Monday) and %%",
                );
            }
        };
    }
    Ok(text)
}
