//! The bound on the nesting of JSON from outside.

/// Less than the depth at which the parsers that read it later fail, with room for the levels that a template adds
/// around a value.
pub const DEEPEST: usize = 100;

/// Returns the index at which the nesting passes [`DEEPEST`]. The parser checks that brackets match.
pub fn too_deep(json: &[u8]) -> Option<usize> {
    let opens = |byte: &&u8| matches!(byte, b'{' | b'[');
    // This is nearly always the case, and much quicker to find out.
    if json.len() <= DEEPEST || json.iter().filter(opens).count() <= DEEPEST {
        return None;
    }
    let mut depth = 0usize;
    let mut in_string = false;
    let mut escaped = false;
    for (at, byte) in json.iter().enumerate() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => {
                depth += 1;
                if depth > DEEPEST {
                    return Some(at);
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_counts_and_brackets_in_strings_do_not() {
        let nested = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
        assert_eq!(too_deep(nested(DEEPEST).as_bytes()), None);
        assert_eq!(too_deep(nested(DEEPEST + 1).as_bytes()), Some(DEEPEST));
        let string = format!("\"{}\\\"{}\"", "[".repeat(200), "[".repeat(200));
        assert_eq!(too_deep(string.as_bytes()), None);
        let wide = format!("[{}[]]", "[],".repeat(1000));
        assert_eq!(too_deep(wide.as_bytes()), None);
    }
}
