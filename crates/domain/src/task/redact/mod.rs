//! The room of the redactor: it finds the secrets of an agent in what its service sends, however they are encoded. A
//! service may echo a request, above all in an error, and its secrets must not get into the record, which many callers
//! may read.
//!
//! `letters.rs` reads one encoded letter, `digits.rs` finds base64 and hexadecimal, `matcher.rs` finds secrets in texts
//! with any mixture of them. Everything that a service sends passes a [`Redactor`].

mod digits;
mod layer;
mod letters;
mod matcher;
mod named_letters;
mod replies;
#[cfg(test)]
mod tests;

use std::{ops::Range, sync::Arc};

use serde_json::value::RawValue;

use crate::values::hidden::HIDDEN;

use self::matcher::Matcher;

/// The shortest secret that is looked for. A shorter one can be guessed, and cannot be distinguished from other text in
/// a response.
pub const SHORTEST_SECRET: usize = 8;

/// Hides the texts that must not be in the record.
#[derive(Clone, Default)]
pub struct Redactor {
    matcher: Option<Arc<Matcher>>,
}

impl Redactor {
    pub fn of<'t>(secrets: impl IntoIterator<Item = &'t str>) -> Self {
        let secrets: Vec<&[u8]> = secrets.into_iter().map(str::as_bytes).collect();
        Self {
            matcher: Matcher::of(&secrets).map(Arc::new),
        }
    }

    /// Returns the number of bytes of a text that must be read beyond the kept part, so that a secret is usually seen
    /// as a whole. A secret that is not seen as a whole does no harm: [`Redactor::hide_in_start`] leaves its beginning
    /// out.
    pub fn read_ahead_bytes(&self) -> usize {
        // Percent-encoding makes a secret three times as long; base64 is shorter.
        const MOST: usize = 64 << 10;
        let matcher = self.matcher.as_ref();
        matcher.map_or(0, |matcher| (matcher.longest() * 3).min(MOST))
    }

    /// Returns whether a secret is in the text.
    pub fn finds(&self, bytes: &[u8]) -> bool {
        !self.ranges(bytes).is_empty()
    }

    /// Returns the text without secrets; `None` if it has none.
    pub fn hide(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let ranges = self.ranges(bytes);
        (!ranges.is_empty()).then(|| replaced(bytes, &ranges))
    }

    /// Does the same as [`Redactor::hide`] for a text that may be cut off anywhere, and keeps `most` bytes of it.
    pub fn hide_in_start(&self, mut bytes: Vec<u8>, most: usize) -> Vec<u8> {
        if let Some(matcher) = &self.matcher {
            let findings = matcher.find(&bytes, true);
            let mut ranges = findings.ranges;
            if let Some(at) = findings.cut_off_at {
                // A secret that was found as a whole is replaced as a whole, even if the text may continue it.
                let end = |range: &Range<u32>| range.start <= at && at < range.end;
                let kept = ranges
                    .iter()
                    .find(|range| end(range))
                    .map_or(at, |range| range.end);
                bytes.truncate(kept as usize);
                ranges.retain(|range| range.end <= kept);
            }
            let ranges = merged(ranges);
            if !ranges.is_empty() {
                bytes = replaced(&bytes, &ranges);
            }
        }
        bytes.truncate(most);
        bytes
    }

    pub fn hide_in_text(&self, text: String) -> String {
        match self.hide(text.as_bytes()) {
            // Only whole characters were replaced.
            Some(hidden) => String::from_utf8_lossy(&hidden).into_owned(),
            None => text,
        }
    }

    /// Does the same as [`Redactor::hide`] for the whole body of a response. JSON stays JSON.
    pub fn hide_in_body(&self, body: Vec<u8>) -> Vec<u8> {
        let Some(hidden) = self.hide(&body) else {
            return body;
        };
        let json = serde_json::from_slice::<&RawValue>(&body).ok();
        let json = json.and_then(|json| self.hide_json_text(json.get()));
        json.map_or(hidden, |json| json.get().as_bytes().to_vec())
    }

    /// Returns JSON without secrets; `None` if it has none. It stays JSON: a number that is a secret becomes a string.
    fn hide_json_text(&self, json: &str) -> Option<Box<RawValue>> {
        let hidden = self.hide(json.as_bytes())?;
        let hidden = String::from_utf8_lossy(&hidden).into_owned();
        let whole = RawValue::from_string(hidden);
        whole
            .ok()
            .or_else(|| RawValue::from_string(in_numbers(json, &self.ranges(json.as_bytes()))).ok())
            .or_else(|| RawValue::from_string(format!("\"{HIDDEN}\"")).ok())
    }

    fn ranges(&self, bytes: &[u8]) -> Vec<Range<u32>> {
        match &self.matcher {
            Some(matcher) => merged(matcher.find(bytes, false).ranges),
            None => Vec::new(),
        }
    }

    #[cfg(test)]
    fn steps(&self, bytes: &[u8]) -> u64 {
        let matcher = self.matcher.as_ref();
        matcher.map_or(0, |matcher| matcher.find(bytes, true).steps)
    }
}

/// Returns the ranges in order, without overlaps.
fn merged(mut ranges: Vec<Range<u32>>) -> Vec<Range<u32>> {
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<u32>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start < last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

fn replaced(bytes: &[u8], ranges: &[Range<u32>]) -> Vec<u8> {
    let mut hidden = Vec::with_capacity(bytes.len());
    let mut done = 0;
    for range in ranges {
        hidden.extend_from_slice(&bytes[done..range.start as usize]);
        hidden.extend_from_slice(HIDDEN.as_bytes());
        done = range.end as usize;
    }
    hidden.extend_from_slice(&bytes[done..]);
    hidden
}

/// Replaces the numbers that these ranges are in with strings.
fn in_numbers(json: &str, ranges: &[Range<u32>]) -> String {
    let bytes = json.as_bytes();
    let is_of_number = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    let (mut hidden, mut done) = (String::new(), 0);
    let (mut is_in_text, mut looked) = (false, 0);
    for range in ranges {
        let (mut start, mut end) = (range.start as usize, range.end as usize);
        while looked < start {
            match bytes[looked] {
                b'"' => is_in_text = !is_in_text,
                b'\\' => looked += 1,
                _ => {}
            }
            looked += 1;
        }
        let shown = match is_in_text {
            true => HIDDEN.to_owned(),
            false => {
                start -= bytes[done..start]
                    .iter()
                    .rev()
                    .take_while(|byte| is_of_number(byte))
                    .count();
                end += bytes[end..]
                    .iter()
                    .take_while(|byte| is_of_number(byte))
                    .count();
                format!("\"{HIDDEN}\"")
            }
        };
        if start >= done {
            hidden.push_str(&String::from_utf8_lossy(&bytes[done..start]));
            hidden.push_str(&shown);
        }
        done = end.max(done);
        looked = looked.max(done);
    }
    hidden.push_str(&String::from_utf8_lossy(&bytes[done..]));
    hidden
}
