//! Text of a server or a service as it may be shown in a terminal.

/// Returns the text with its control characters escaped, so that text of a service cannot send commands to the
/// terminal.
pub fn plain(text: &str) -> String {
    let shown = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(shown).collect()
}

/// Returns the text as one word of a shell, for commands that people copy.
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./:@%+=,".contains(c);
    match !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", plain(text).replace('\'', r"'\''")),
    }
}

/// Returns a number with its noun: `1 task`, `12 tasks`.
pub fn counted(number: u64, noun: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{s}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_a_shell_is_quoted_only_if_the_shell_would_read_something_else() {
        for plain in ["order-1001", "größe", "a/b:c@d=1,2"] {
            assert_eq!(shell_word(plain), plain);
        }
        assert_eq!(shell_word("a $(b)"), "'a $(b)'");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
        assert_eq!(shell_word("-n"), "'-n'");
        assert_eq!(shell_word(""), "''");
    }
}
