//! Shortens long texts in logs, messages and headers to their beginnings.

/// Returns the beginning of a text that is longer than `longest` bytes, with an ellipsis after it.
pub fn shortened(text: &str, longest: usize) -> String {
    match text.len() > longest {
        true => format!("{}…", &text[..text.floor_char_boundary(longest)]),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_before_the_character_that_does_not_fit() {
        assert_eq!(shortened("", 0), "");
        assert_eq!(shortened("abc", 3), "abc");
        assert_eq!(shortened("abcd", 3), "abc…");
        assert_eq!(shortened("aüü", 4), "aü…");
    }
}
