//! The paths of URLs that are sent: none may climb, whichever parser reads it.

use icu_normalizer::ComposingNormalizer;
use icu_properties::{CodePointSetData, props::DefaultIgnorableCodePoint};

/// The most times that a path is decoded.
const MOST_DECODED: usize = 5;

/// Returns the fault of a path, from a definition or from data.
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
        // In such a path every parser finds the same segments.
        true => has_plain_dots(whole),
        false => has_dots(whole),
    };
    has_dots.then_some(
        "a path has no `.` or `..` segments, also none that are percent-encoded: they would change the path",
    )
}

/// Returns the same as [`has_dots`] for a path of ASCII without percent signs, control characters, blanks and
/// backslashes. Nearly every path is one, and the path of each request is checked.
fn has_plain_dots(path: &str) -> bool {
    path.split('/').any(|segment| {
        let segment = segment
            .split_once(';')
            .map_or(segment, |(segment, _)| segment);
        matches!(segment, "." | "..")
    })
}

/// Returns whether a path climbs, or stays where it is, for some parser. Parsers decode the path, some of them several
/// times or with overlong UTF-8; they take a backslash for a slash and a letter for one of its compatible forms; they
/// end the path at a semicolon, U+0000, or an encoded `#` or `?`; and they leave out blanks, control characters,
/// invisible characters and invalid UTF-8.
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
    // A path that is encoded this many times has no legitimate use.
    true
}

/// Returns the text that some parser may read in these bytes: UTF-8, also overlong, in its form NFKC.
fn lenient_text(bytes: &[u8]) -> String {
    let mut text = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((lead, following)) = rest.split_first() {
        // The number of leading ones of the first byte is the length of the character.
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
        // Old parsers do not check the first two bits of the bytes that follow.
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

/// Decodes `%2E`, and also `%u002E`, as old servers do.
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
            // Two digits are one byte.
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
mod tests {
    use super::*;

    /// Checks every path of up to eight of these characters.
    #[test]
    fn plain_paths_have_the_dots_that_the_most_lenient_parser_finds() {
        let mut paths = vec![String::new()];
        let mut climbing = 0;
        for _ in 0..8 {
            paths = paths
                .iter()
                .flat_map(|path| ['/', '.', ';', 'a'].map(|c| format!("{path}{c}")))
                .collect();
            for path in &paths {
                assert_eq!(has_plain_dots(path), has_dots(path), "{path}");
                climbing += usize::from(has_plain_dots(path));
            }
        }
        assert!(climbing > 1000);
    }

    /// Checks every path of up to five of these parts. A part that ends a segment once it is decoded has the same effect as
    /// a semicolon.
    #[test]
    fn encoded_paths_have_the_dots_that_a_parser_finds_after_it_has_decoded_them() {
        let parts = [
            ("/", "/"),
            (".", "."),
            (";", ";"),
            ("a", "a"),
            ("%2e", "."),
            ("%23", ";"),
            ("%253F", ";"),
            ("%e2%80%8b", ""),
            ("\u{ad}", ""),
        ];
        let mut paths = vec![(String::new(), String::new())];
        let mut climbing = 0;
        for _ in 0..5 {
            let longer = paths.iter().flat_map(|(path, decoded)| {
                parts.map(|(part, means)| (format!("{path}{part}"), format!("{decoded}{means}")))
            });
            paths = longer.collect();
            for (path, decoded) in &paths {
                let is_climbing = has_plain_dots(decoded);
                assert_eq!(has_dots(path), is_climbing, "{path}");
                climbing += usize::from(is_climbing);
            }
        }
        assert!(climbing > 1000);
    }
}
