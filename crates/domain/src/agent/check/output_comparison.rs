//! Compares two outputs of a service. A service that remembers a key returns the first output again, and work that is
//! done again has an output of its own. Times may differ although the work was done once, and an output that differs
//! between keys only because it repeats the key proves nothing.

use serde_json::Value;

use super::CheckedCall;
use crate::{
    agent::retry_wait::http_date,
    template::payload::Payload,
    values::{ids::TaskId, time::Timestamp},
};

/// The most differences that are named.
const NAMED: usize = 3;
/// The longest name of a difference, in characters.
const LONGEST_NAME: usize = 80;

/// The difference of two outputs under the same key.
#[derive(Debug, PartialEq, Eq)]
pub enum OutputDifference {
    None,
    /// The outputs differ only in times, at these JSON pointers.
    OnlyTimes(DifferentPlaces),
    Some(DifferentPlaces),
}

/// The first JSON pointers at which two outputs differ, and the number of all.
#[derive(Debug, PartialEq, Eq, Default)]
pub struct DifferentPlaces {
    pub pointers: Vec<String>,
    pub count: usize,
}

impl OutputDifference {
    pub fn between(one: &Payload, other: &Payload) -> Self {
        if one.as_json() == other.as_json() {
            return Self::None;
        }
        let (Some(one), Some(other)) = (value(one), value(other)) else {
            return Self::Some(DifferentPlaces::default());
        };
        let mut found = DifferenceSearch::default();
        found.compare(&one, &other, &mut String::new());
        match (found.others.count, found.times.count) {
            (0, 0) => Self::None,
            (0, _) => Self::OnlyTimes(found.times),
            (_, _) => Self::Some(found.others),
        }
    }
}

#[derive(Default)]
struct DifferenceSearch {
    times: DifferentPlaces,
    others: DifferentPlaces,
}

impl DifferenceSearch {
    /// The depth is that of a parsed payload, which is bounded.
    fn compare(&mut self, one: &Value, other: &Value, pointer: &mut String) {
        let length = pointer.len();
        match (one, other) {
            (Value::Object(one), Value::Object(other)) => {
                let added = other.iter().filter(|(name, _)| !one.contains_key(*name));
                let names = one.keys().chain(added.map(|(name, _)| name));
                for name in names {
                    pointer.push('/');
                    pointer.push_str(name);
                    match (one.get(name), other.get(name)) {
                        (Some(one), Some(other)) => self.compare(one, other, pointer),
                        _ => self.others.add(pointer),
                    }
                    pointer.truncate(length);
                }
            }
            (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
                for (index, (one, other)) in one.iter().zip(other).enumerate() {
                    pointer.push('/');
                    pointer.push_str(&index.to_string());
                    self.compare(one, other, pointer);
                    pointer.truncate(length);
                }
            }
            (one, other) if one == other => {}
            (one, other) if is_time(one) && is_time(other) => self.times.add(pointer),
            _ => self.others.add(pointer),
        }
    }
}

impl DifferentPlaces {
    fn add(&mut self, pointer: &str) {
        self.count += 1;
        if self.pointers.len() < NAMED {
            self.pointers
                .push(pointer.chars().take(LONGEST_NAME).collect());
        }
    }

    /// Returns a text such as ` at /a, /b and 5 more`; an empty one if the outputs differ as a whole.
    pub fn shown(&self) -> String {
        let named = self.pointers.join(", ");
        match self.count - self.pointers.len() {
            _ if named.is_empty() => String::new(),
            0 => format!(" at {named}"),
            more => format!(" at {named} and {more} more"),
        }
    }
}

/// Returns an output without its times, and without the task's id, which it may repeat from the key. `None` if it is
/// not JSON.
pub fn own_part(call: &CheckedCall, output: &Payload) -> Option<Value> {
    without_ids(&[call.task], output)
}

/// Returns whether a service has the same output for one request under two keys, apart from times and the keys: then
/// its outputs only repeat what it was sent.
pub fn repeats_request(calls: &[CheckedCall; 2]) -> bool {
    let ids = calls.each_ref().map(|call| call.task);
    let [one, other] = calls.each_ref().map(|call| {
        let output = call.output()?;
        without_ids(&ids, output)
    });
    one.is_some() && one == other
}

/// Returns an output without its times, and without these ids in any form. `None` if it is not JSON.
fn without_ids(ids: &[TaskId], output: &Payload) -> Option<Value> {
    let mut own = value(output)?;
    let forms = ids.iter().flat_map(|id| {
        let lower = [id.0.hyphenated().to_string(), id.0.simple().to_string()];
        let upper = lower.each_ref().map(|form| form.to_uppercase());
        lower.into_iter().chain(upper)
    });
    leave_out(&mut own, &forms.collect::<Vec<_>>());
    Some(own)
}

fn leave_out(value: &mut Value, forms: &[String]) {
    let without = |text: &str| {
        forms.iter().fold(text.to_owned(), |text, form| {
            text.replace(form.as_str(), "key")
        })
    };
    if is_time(value) {
        *value = Value::Null;
        return;
    }
    match value {
        Value::String(text) => *text = without(text),
        Value::Array(values) => values.iter_mut().for_each(|value| leave_out(value, forms)),
        Value::Object(fields) => {
            *fields = std::mem::take(fields)
                .into_iter()
                .map(|(name, mut value)| {
                    leave_out(&mut value, forms);
                    (without(&name), value)
                })
                .collect();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns whether a value is a time. A number is not: a number of seconds cannot be distinguished from an id.
fn is_time(value: &Value) -> bool {
    value
        .as_str()
        .is_some_and(|text| Timestamp::parse(text).is_some() || http_date(text).is_some())
}

fn value(payload: &Payload) -> Option<Value> {
    serde_json::from_str(payload.as_json()).ok()
}
