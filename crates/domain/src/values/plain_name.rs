//! The names that people give to things: safe in a URL, a header, a log line and a file name. Workflows, agents, schedules and
//! readers, which are paths of the API, have plain names; receivers, secrets, intakes and instances have plain words.

/// The rule that [`is_plain_word`] checks, as a text.
pub const PLAIN_WORD: &str = "1 to 64 of the characters a-z A-Z 0-9 . _ -";

/// The rule that [`is_plain_name`] checks, as a text.
pub const PLAIN_NAME: &str =
    "1 to 64 of the characters a-z A-Z 0-9 . _ -, the first one a letter or a digit";
/// The same rule, as a regular expression.
pub const PLAIN_NAME_PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._-]*$";
/// In bytes.
pub const LONGEST_PLAIN_NAME: usize = 64;

pub fn is_plain_word(word: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=LONGEST_PLAIN_NAME).contains(&word.len()) && word.bytes().all(plain)
}

pub fn is_plain_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric()) && is_plain_word(name)
}

/// Returns the fault of a name, if it has one. `what`: the thing that has the name, such as `a workflow`.
pub fn plain_name_fault(what: &str, name: &str) -> Option<String> {
    (!is_plain_name(name))
        .then(|| format!("the name of {what} is {name:?}, but must be {PLAIN_NAME}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_plain_and_starts_with_a_letter_or_digit() {
        let long = "x".repeat(LONGEST_PLAIN_NAME);
        for name in ["payments", "a", "9-lives", "a.b_c-D", &long] {
            assert!(is_plain_name(name), "{name}");
            assert_eq!(plain_name_fault("an agent", name), None);
        }
        let longer = "x".repeat(LONGEST_PLAIN_NAME + 1);
        for name in [".", "..", "-a", "_a"] {
            assert!(!is_plain_name(name) && is_plain_word(name), "{name}");
        }
        for name in ["", "a b", "a:b", "a/b", "ä", &longer] {
            assert!(!is_plain_name(name) && !is_plain_word(name), "{name}");
        }
        assert_eq!(
            plain_name_fault("an agent", "a b").unwrap(),
            format!("the name of an agent is \"a b\", but must be {PLAIN_NAME}")
        );
    }
}
