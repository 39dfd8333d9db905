//! Texts of people on a page: the beginning of a long one, or a short form of it.

use super::record::clipped;
use crate::json::pretty;

/// The bytes of a text that a page shows before a person asks for all of it.
pub const SHOWN: usize = 16 * 1024;

/// Returns JSON text on one line, at most this many characters.
pub fn brief(text: &str, most: usize) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    clipped(&words, most)
}

/// A text, or its beginning.
pub struct Excerpt {
    pub text: String,
    /// The length of the whole, if this is only its beginning.
    pub whole: Option<usize>,
}

/// Returns the first 16 KiB of a text, or all of it.
pub fn excerpt(text: &str, wants_all: bool) -> Excerpt {
    if text.len() <= SHOWN || wants_all {
        return Excerpt {
            text: pretty(text),
            whole: None,
        };
    }
    let laid_out = pretty(text);
    let end = (0..=SHOWN.min(laid_out.len()))
        .rev()
        .find(|&at| laid_out.is_char_boundary(at));
    Excerpt {
        text: laid_out[..end.unwrap_or(0)].to_owned(),
        whole: Some(text.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_shows_its_beginning_until_all_is_asked_for() {
        let text = format!("\"{}\"", "ä".repeat(SHOWN));
        let start = excerpt(&text, false);
        assert!(start.text.len() <= SHOWN && start.whole == Some(text.len()));
        assert_eq!(excerpt(&text, true).text, text);
    }
}
