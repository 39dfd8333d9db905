//! From a step's definition and the task's data to the request that its agent sends.

use http::HeaderValue;
use icu_normalizer::ComposingNormalizer;
use icu_properties::{CodePointSetData, props::DefaultIgnorableCodePoint};

use crate::{
    call::CallBody,
    definition::{Body, Method, RequestTemplate},
    hidden::is_secret_header,
    payload::Payload,
    template::{RenderError, Scope},
};

/// A request, apart from where it goes and what Provost adds.
#[derive(Clone, PartialEq, Debug)]
pub struct Rendered {
    pub method: Method,
    /// Empty, or from the first `/` on, with its query.
    pub path: String,
    /// Lower-case names.
    pub headers: Vec<(String, String)>,
    /// JSON.
    pub body: Option<CallBody>,
}

impl Rendered {
    /// As an undo sees it.
    pub fn as_payload(&self) -> Payload {
        let headers: serde_json::Map<_, _> = self
            .headers
            .iter()
            .map(|(name, value)| (name.clone(), value.as_str().into()))
            .collect();
        let text = |text: &str| serde_json::Value::from(text);
        let json = format!(
            r#"{{"method":{},"path":{},"headers":{},"body":{}}}"#,
            text(self.method.as_str()),
            text(&self.path),
            serde_json::Value::Object(headers),
            self.body.as_deref().unwrap_or("null"),
        );
        // Each part is JSON.
        Payload::parse(json).unwrap_or_else(Payload::null)
    }
}

/// `body` is what an operator had sent instead of the definition's: that is not rendered then.
///
/// Values in the path are percent-encoded, and the path as a whole cannot climb: whatever the data
/// holds, the request stays below the endpoint and under the segments that the definition wrote.
pub fn render_request(
    request: &RequestTemplate,
    scope: &Scope<'_>,
    body: Option<&Payload>,
) -> Result<Rendered, RenderError> {
    let path = request.path.render_path(scope)?;
    if let Some(fault) = path_fault(&path) {
        return Err(RenderError::new(&path, fault));
    }
    let headers = request
        .headers
        .iter()
        .map(|(name, template)| {
            let value = template.render_text(scope).map_err(|error| {
                // What it is made of may be a secret as well.
                match is_secret_header(name) {
                    true => RenderError {
                        steps: error.steps,
                        ..RenderError::new(&format!("headers.{name}"), error.reason)
                    },
                    false => error,
                }
            })?;
            match HeaderValue::from_str(&value) {
                Ok(_) => Ok((name.clone(), value)),
                // The value may be a secret, so the fault contains only the name.
                Err(_) => Err(RenderError::new(
                    name,
                    "its value contains a line break or another character that is not allowed in a header",
                )),
            }
        })
        .collect::<Result<_, _>>()?;
    let body = match (body, &request.body) {
        (Some(body), _) => Some(CallBody::Whole(body.clone())),
        (None, Body::None) => None,
        (None, Body::Input) => Some(CallBody::Whole(scope.whole_input()?)),
        (None, Body::Json(template)) => Some(CallBody::Rendered(template.render(scope)?)),
    };
    Ok(Rendered {
        method: request.method,
        path,
        headers,
        body,
    })
}

/// The most times that a path is decoded.
const MOST_DECODED: usize = 5;

/// What no path may contain, from a definition or from data.
pub fn path_fault(path: &str) -> Option<&'static str> {
    if !path.is_empty() && !path.starts_with('/') {
        return Some("a path starts with `/`, or is empty");
    }
    if path.contains('#') {
        return Some("a path has no `#`: fragments are never sent");
    }
    if path.contains(|c: char| c.is_ascii_control() || c == ' ' || c == '\\') {
        return Some(
            "a path has no spaces, control characters or backslashes: percent-encode them",
        );
    }
    let whole = path.split_once('?').map_or(path, |(path, _)| path);
    let has_dots = match whole.is_ascii() && !whole.contains('%') {
        // No parser finds in it what is not there.
        true => has_plain_dots(whole),
        false => has_dots(whole),
    };
    has_dots.then_some(
        "a path has no `.` or `..` segments, also none that are percent-encoded: they would change the path",
    )
}

/// [`has_dots`] for a path of ASCII without percent signs, control characters, blanks and backslashes: nearly every path is one, and each
/// request has its path looked at.
fn has_plain_dots(path: &str) -> bool {
    path.split('/').any(|segment| {
        let segment = segment
            .split_once(';')
            .map_or(segment, |(segment, _)| segment);
        matches!(segment, "." | "..")
    })
}

/// Returns whether a path climbs, or stays where it is, for some parser: parsers decode it, some of them several times or with UTF-8 that
/// is longer than it may be, take a backslash for a slash and a letter for one of its compatible forms, end at a semicolon, U+0000, or a
/// `#` or `?` that was encoded, and leave out blanks, control characters, characters that nobody sees and what is no UTF-8.
fn has_dots(path: &str) -> bool {
    let ignorable = CodePointSetData::new::<DefaultIgnorableCodePoint>();
    let is_left_out = |c: char| {
        c.is_control()
            || c.is_whitespace()
            || c == char::REPLACEMENT_CHARACTER
            || ignorable.contains(c)
    };
    let is_dots = |segment: &str| {
        let left: String = segment.chars().filter(|c| !is_left_out(*c)).collect();
        matches!(&*left, "." | "..")
    };
    let mut bytes = path.as_bytes().to_vec();
    for _ in 0..MOST_DECODED {
        let path = lenient_text(&bytes);
        let mut segments = path.split(['/', '\\']);
        let climbs = |segment: &str| {
            let segment = segment.split([';', '?', '#']).next().unwrap_or_default();
            is_dots(segment) || segment.split('\0').next().is_some_and(is_dots)
        };
        if segments.any(climbs) {
            return true;
        }
        bytes = percent_decoded(&path);
        if bytes == path.as_bytes() {
            return false;
        }
    }
    // Encoded again and again, it is nothing that anybody means.
    true
}

/// Returns the text that some parser may read in these bytes: UTF-8, also where a character takes more bytes than it may, in its form NFKC.
fn lenient_text(bytes: &[u8]) -> String {
    let mut text = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((lead, following)) = rest.split_first() {
        // The ones that a byte begins with are the length of its character.
        let (most, length) = match lead.leading_ones() {
            ones @ 2..=6 => (0x7f_u32 >> ones, ones as usize),
            _ => (0, 1),
        };
        let others = following
            .get(..length - 1)
            .filter(|others| !others.is_empty());
        let number = others.map(|others| {
            let lead = u32::from(*lead) & most;
            others
                .iter()
                .fold(lead, |number, byte| number << 6 | u32::from(byte & 0x3f))
        });
        let is_utf8 = others.is_some_and(|others| others.iter().all(|byte| byte & 0xc0 == 0x80));
        // Old parsers do not look at the first two bits of the bytes that follow.
        let letter = number
            .filter(|number| is_utf8 || *number < 0x80)
            .and_then(char::from_u32);
        match letter {
            Some(letter) => {
                text.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                rest = &rest[length..];
            }
            None => {
                text.push(*lead);
                rest = following;
            }
        }
    }
    let text = String::from_utf8_lossy(&text);
    ComposingNormalizer::new_nfkc()
        .normalize(&text)
        .into_owned()
}

/// `%2E`, and `%u002E` as old servers read it.
fn percent_decoded(path: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        decoded.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at + 1..];
        let (start, length) = match rest.starts_with(['u', 'U']) {
            true => (1, 4),
            false => (0, 2),
        };
        let digits = rest.get(start..start + length);
        let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let number = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        match (number, number.and_then(char::from_u32)) {
            // Two digits are a byte.
            (Some(byte), _) if length == 2 => decoded.push(byte as u8),
            (_, Some(letter)) => {
                decoded.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes())
            }
            _ => {
                decoded.push(b'%');
                continue;
            }
        }
        rest = &rest[start + length..];
    }
    decoded.extend_from_slice(rest.as_bytes());
    decoded
}

#[cfg(test)]
mod tests;
