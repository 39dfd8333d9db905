//! The tokens of an expression.

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Token<'a> {
    pub kind: TokenKind,
    /// The token as it is written; for a text, the part between the quotes, with its escapes.
    pub text: &'a str,
    pub start: usize,
    pub end: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TokenKind {
    Name,
    Text,
    /// A text without its closing quote.
    Unclosed,
    Number,
    Symbol,
}

impl Token<'_> {
    pub fn is(&self, symbol: &str) -> bool {
        self.kind == TokenKind::Symbol && self.text == symbol
    }

    pub fn is_word(&self, word: &str) -> bool {
        self.kind == TokenKind::Name && self.text == word
    }
}

/// Returns the token that begins at `at`, or after the white space there. `before` is the previous token.
pub(super) fn token_at<'a>(
    source: &'a str,
    at: usize,
    before: Option<Token<'a>>,
) -> Option<Token<'a>> {
    let start = at + source[at..].find(|c: char| !c.is_whitespace())?;
    let rest = &source[start..];
    let first = rest.chars().next()?;
    let word = |c: char| c == '_' || c.is_alphanumeric();
    let (kind, length, text) = if first == '_' || first.is_alphabetic() {
        let length = rest.find(|c| !word(c)).unwrap_or(rest.len());
        (TokenKind::Name, length, &rest[..length])
    } else if first.is_ascii_digit() {
        let is_index = before.is_some_and(|before| before.is("."));
        let length = if is_index { digits(rest) } else { number(rest) };
        (TokenKind::Number, length, &rest[..length])
    } else if first == '"' || first == '\'' {
        match quoted(rest, first) {
            Some(length) => (TokenKind::Text, length, &rest[1..length - 1]),
            None => (TokenKind::Unclosed, rest.len(), &rest[1..]),
        }
    } else {
        let two = ["**", "==", "!=", "<=", ">=", "//", "&&", "||"];
        let length = match two.iter().any(|symbol| rest.starts_with(symbol)) {
            true => 2,
            false => first.len_utf8(),
        };
        (TokenKind::Symbol, length, &rest[..length])
    };
    Some(Token {
        kind,
        text,
        start,
        end: start + length,
    })
}

fn digits(rest: &str) -> usize {
    rest.find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len())
}

/// Returns the length of a whole number, fraction or exponent form. It includes letters after the number, which the
/// parser refuses.
fn number(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let word = |c: char| c == '_' || c.is_alphanumeric();
    let mut length = rest.find(|c| !word(c)).unwrap_or(rest.len());
    if bytes.get(length) == Some(&b'.') && is_digit(length + 1) {
        length += 1;
        length += rest[length..]
            .find(|c| !word(c))
            .unwrap_or(rest.len() - length);
    }
    let is_exponent = matches!(bytes[length - 1], b'e' | b'E') && !rest.starts_with("0x");
    if is_exponent && matches!(bytes.get(length), Some(b'+' | b'-')) && is_digit(length + 1) {
        length += 1;
        length += digits(&rest[length..]);
    }
    length
}

/// Returns the length of a text with its quotes.
fn quoted(rest: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (index, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(index + 1),
            _ => {}
        }
    }
    None
}

/// Returns a text without its escapes. The error describes the fault.
pub(super) fn unescape(inside: &str) -> Result<String, String> {
    let mut text = String::with_capacity(inside.len());
    let mut rest = inside;
    while let Some((before, after)) = rest.split_once('\\') {
        text.push_str(before);
        let mut characters = after.chars();
        let escaped = characters.next();
        rest = characters.as_str();
        match escaped {
            Some('n') => text.push('\n'),
            Some('r') => text.push('\r'),
            Some('t') => text.push('\t'),
            Some('b') => text.push('\x08'),
            Some('f') => text.push('\x0c'),
            Some('u') => {
                // As in JSON, characters beyond the first 65,536 take two escapes.
                let mut escape = "\"\\u".to_owned();
                let pair = rest.get(4..6) == Some("\\u") && rest.starts_with(['d', 'D']);
                let length = if pair { 10 } else { 4 };
                escape.push_str(rest.get(..length).unwrap_or_default());
                escape.push('"');
                let read: String = serde_json::from_str(&escape).map_err(|_| {
                    let digits = rest.as_bytes().get(..4).unwrap_or_default();
                    match digits.len() == 4 && digits.iter().all(u8::is_ascii_hexdigit) {
                        true => {
                            "a `\\u` in a text is half of a surrogate pair: write both halves, as in `\\ud83d\\ude00`, or the character itself"
                        }
                        false => "a `\\u` in a text is followed by four hexadecimal digits",
                    }
                })?;
                text.push_str(&read);
                rest = &rest[length..];
            }
            Some(c @ ('"' | '\'' | '\\' | '/')) => text.push(c),
            Some(c) => {
                return Err(format!(
                    "`\\{c}` is not an escape: write a backslash as `\\\\`"
                ));
            }
            None => {}
        }
    }
    text.push_str(rest);
    Ok(text)
}
