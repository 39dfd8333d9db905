//! Finds the offset of the value in a JSON text that a JSON pointer (RFC 6901) refers to.

use std::borrow::Cow;

/// Returns the offset of the value that the pointer refers to, or of its name if it is a member. If the value is
/// missing, returns the offset of the value that should contain it. The text must be JSON.
pub(crate) fn offset_of(json: &str, pointer: &str) -> usize {
    let bytes = json.as_bytes();
    let mut value = after_space(bytes, 0);
    let mut found = value;
    for token in pointer.split('/').skip(1) {
        let token = unescaped(token);
        let next = match bytes.get(value) {
            Some(b'{') => member(json, value, &token),
            Some(b'[') => item(bytes, value, &token),
            _ => None,
        };
        let Some((at, its_value)) = next else {
            break;
        };
        (found, value) = (at, its_value);
    }
    found
}

fn unescaped(token: &str) -> Cow<'_, str> {
    match token.contains('~') {
        true => token.replace("~1", "/").replace("~0", "~").into(),
        false => token.into(),
    }
}

/// Returns the offsets of the name and of the value.
fn member(json: &str, object: usize, wanted: &str) -> Option<(usize, usize)> {
    let bytes = json.as_bytes();
    let mut at = after_space(bytes, object + 1);
    while bytes.get(at) == Some(&b'"') {
        let end = after_string(bytes, at);
        let name = provost_domain::values::text(json.get(at..end)?)?;
        // The value begins after the colon.
        let value = after_space(bytes, after_space(bytes, end) + 1);
        if name == wanted {
            return Some((at, value));
        }
        at = after_comma(bytes, after_value(bytes, value));
    }
    None
}

fn item(bytes: &[u8], array: usize, wanted: &str) -> Option<(usize, usize)> {
    let wanted: usize = wanted.parse().ok()?;
    let mut at = after_space(bytes, array + 1);
    for _ in 0..wanted {
        if bytes.get(at).is_none_or(|byte| *byte == b']') {
            return None;
        }
        at = after_comma(bytes, after_value(bytes, at));
    }
    bytes
        .get(at)
        .filter(|byte| **byte != b']')
        .map(|_| (at, at))
}

fn after_space(bytes: &[u8], mut at: usize) -> usize {
    while matches!(bytes.get(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

fn after_comma(bytes: &[u8], at: usize) -> usize {
    let at = after_space(bytes, at);
    match bytes.get(at) {
        Some(b',') => after_space(bytes, at + 1),
        _ => at,
    }
}

fn after_string(bytes: &[u8], begin: usize) -> usize {
    let mut at = begin + 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    at
}

fn after_value(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0usize;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at = after_string(bytes, at);
                if depth == 0 {
                    return at;
                }
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 0 => return at,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            b',' if depth == 0 => return at,
            _ => {}
        }
        at += 1;
    }
    at
}
