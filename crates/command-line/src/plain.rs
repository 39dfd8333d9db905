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
