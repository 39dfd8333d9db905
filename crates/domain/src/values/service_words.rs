//! The words of a service about a refusal, shortened and without the parts that differ between tasks: refusals for one
//! reason have equal words.

use std::borrow::Cow;

use serde_json::{Map, Value};
use uuid::Uuid;

/// The longest words, in bytes.
pub const LONGEST: usize = 100;

/// The longest code of an error, in bytes. A longer text is not a code.
const LONGEST_CODE: usize = 60;

/// The longest run of digits in a code. A longer run is an id.
const LONGEST_NUMBER: usize = 6;

/// The longest run of letters and digits that is a word.
const LONGEST_WORD: usize = 40;

/// The deepest nesting of members that are searched.
const DEEPEST: usize = 5;

/// Replaces a number, an id or a quotation.
const VARIES: &str = "#";

/// The names of members that usually have a code in APIs.
const CODES: [&str; 4] = ["code", "error_code", "errorCode", "type"];
/// The names of members that have a text, or an object with such members. The first one with usable words counts.
const TEXTS: [&str; 8] = [
    "error",
    "title",
    "message",
    "detail",
    "error_description",
    "reason",
    "description",
    "errors",
];

/// Codes that say no more than that the request was wrong, with `_` for everything that is no letter: the text beside one says what
/// was.
const GENERIC_CODES: [&str; 18] = [
    "api_error",
    "bad_request",
    "business_error",
    "client_error",
    "error",
    "invalid",
    "invalid_argument",
    "invalid_input",
    "invalid_parameter",
    "invalid_params",
    "invalid_request",
    "invalid_request_error",
    "request_invalid",
    "unprocessable",
    "unprocessable_entity",
    "validation_error",
    "validation_failed",
    "validationerror",
];

/// Returns the words in the body of a refusal with this status and reason phrase, `None` if the body says no more than
/// these.
pub fn of_body(body: &str, status: u16, reason: Option<&str>) -> Option<String> {
    let known = KnownResponse { status, reason };
    // Some libraries begin JSON with a byte order mark.
    let body = body.trim().trim_start_matches('\u{feff}').trim_start();
    match serde_json::from_str(body) {
        Ok(value) => known.of_value(&value, DEEPEST),
        // The body is truncated JSON, or a page for a browser.
        Err(_) if body.starts_with(['{', '[', '<']) => None,
        Err(_) => known.text(body),
    }
}

/// Returns a text by Provost or a worker without the parts that differ between tasks. Text between backticks is from a
/// definition, and stays.
pub fn of_message(message: &str) -> String {
    normalised(message, true, 2 * LONGEST)
}

/// Returns a name that a caller has chosen, without the parts that differ between tasks. A word with a number at its end
/// stays, without the number: `page-17` and `page18` are `page-#` and `page#`. Another word with digits is an id.
pub fn of_name(name: &str) -> String {
    if Uuid::try_parse(name).is_ok() {
        return VARIES.to_owned();
    }
    let mut pattern = String::with_capacity(name.len());
    for part in name.split_inclusive(|letter: char| !letter.is_alphanumeric()) {
        let word = part.trim_end_matches(|letter: char| !letter.is_alphanumeric());
        let bare = word.trim_end_matches(char::is_numeric);
        let is_id = bare.contains(char::is_numeric) || word.len() > LONGEST_WORD;
        pattern.push_str(if is_id { "" } else { bare });
        if is_id || bare.len() < word.len() {
            pattern.push_str(VARIES);
        }
        pattern.push_str(&part[word.len()..]);
    }
    pattern
}

/// The parts of the response that are known without its body.
struct KnownResponse<'a> {
    status: u16,
    reason: Option<&'a str>,
}

impl KnownResponse<'_> {
    fn of_value(&self, value: &Value, depth: usize) -> Option<String> {
        let depth = depth.checked_sub(1)?;
        match value {
            Value::String(text) => self.text(text),
            Value::Array(items) => self.of_value(items.first()?, depth),
            Value::Object(members) => self.of_members(members, depth),
            _ => None,
        }
    }

    fn of_members(&self, members: &Map<String, Value>, depth: usize) -> Option<String> {
        let codes = CODES.iter().filter_map(|name| members.get(*name));
        let codes = codes.filter_map(|value| self.code(value));
        let texts = TEXTS.iter().filter_map(|name| members.get(*name));
        let texts = texts.filter_map(|value| self.of_value(value, depth));
        let mut words = codes.chain(texts);
        let first = words.next()?;
        match is_generic(&first) {
            false => Some(first),
            true => Some(match words.find(|words| !is_generic(words)) {
                Some(more) => shortened(format!("{first}: {more}"), LONGEST),
                None => first,
            }),
        }
    }

    fn code(&self, value: &Value) -> Option<String> {
        let code = match value {
            Value::String(code) => Cow::Borrowed(code.as_str()),
            Value::Number(code) => Cow::Owned(code.to_string()),
            _ => return None,
        };
        if code == "about:blank" || code == self.status.to_string() {
            return None;
        }
        let is_of_code = |letter: char| letter.is_ascii_alphanumeric() || "_-./: ".contains(letter);
        let mut numbers = code.split(|letter: char| !letter.is_ascii_digit());
        let is_code = code.len() <= LONGEST_CODE
            && code.chars().all(is_of_code)
            && numbers.all(|number| number.len() <= LONGEST_NUMBER)
            && Uuid::try_parse(&code).is_err();
        match is_code && !code.contains("//") {
            true => self.says_more(&code).then(|| code.into_owned()),
            false => self.text(&code),
        }
    }

    fn text(&self, text: &str) -> Option<String> {
        let text = normalised(text, false, LONGEST);
        let has_word = text.contains(char::is_alphabetic);
        (has_word && self.says_more(&text)).then_some(text)
    }

    fn says_more(&self, text: &str) -> bool {
        let says_less = ["error", "failed", "failure", "fail", "unknown"];
        let text = text.trim();
        !text.is_empty()
            && !says_less.iter().any(|word| text.eq_ignore_ascii_case(word))
            && !self
                .reason
                .is_some_and(|reason| text.eq_ignore_ascii_case(reason))
    }
}

fn is_generic(words: &str) -> bool {
    let name: String = words
        .to_lowercase()
        .replace(|letter: char| !letter.is_alphanumeric(), "_");
    GENERIC_CODES.contains(&name.trim_matches('_'))
}

/// Returns the text, or its beginning with an ellipsis if it is longer in bytes.
fn shortened(mut words: String, longest: usize) -> String {
    let end = words.floor_char_boundary(longest);
    let is_cut = end < words.len();
    words.truncate(end);
    let mut words = words.trim_end().to_owned();
    if is_cut {
        words.push('…');
    }
    words
}

/// Returns the first line of a text, with [`VARIES`] in place of the parts that differ between tasks.
fn normalised(text: &str, keeps_code: bool, longest: usize) -> String {
    let line = text.trim_start().lines().next().unwrap_or_default();
    // PostgreSQL accepts no text with this character.
    let line = line.replace('\0', "\u{fffd}");
    let mut words = String::new();
    let mut rest = &*line;
    while let Some(letter) = rest.chars().next() {
        let word = rest.split(char::is_whitespace).next().unwrap_or_default();
        if word.is_empty() {
            if !words.ends_with(' ') {
                words.push(' ');
            }
            rest = &rest[letter.len_utf8()..];
        } else if let Some((quoted, length)) = quotation(rest, letter) {
            match keeps_code && letter == '`' {
                true => words.push_str(quoted),
                false => words.push_str(VARIES),
            }
            rest = &rest[length..];
        } else {
            // A quotation may begin within a word, as after a parenthesis.
            let begins = word.char_indices().skip(1);
            let mut begins = begins.filter(|(at, letter)| {
                let after = word[..*at].chars().next_back();
                after.is_some_and(|after| !after.is_alphanumeric())
                    && quotation(&rest[*at..], *letter).is_some()
            });
            let end = begins.next().map_or(word.len(), |(at, _)| at);
            push_word(&mut words, &word[..end]);
            rest = &rest[end..];
        }
        if words.len() > longest {
            break;
        }
    }
    shortened(words, longest)
}

/// Returns the quotation at the beginning of a text, with its quotes, and its length.
fn quotation(text: &str, quote: char) -> Option<(&str, usize)> {
    let end = match quote {
        '"' | '\'' | '`' => quote,
        '“' => '”',
        '‘' => '’',
        '«' => '»',
        _ => return None,
    };
    let inner = &text[quote.len_utf8()..];
    let length = quote.len_utf8() + inner.find(end)? + end.len_utf8();
    Some((&text[..length], length))
}

fn push_word(words: &mut String, word: &str) {
    let bare = word.trim_matches(|letter: char| !letter.is_alphanumeric());
    if bare.contains('@') || Uuid::try_parse(bare).is_ok() {
        let (before, after) = word.split_once(bare).unwrap_or((word, ""));
        words.push_str(before);
        words.push_str(VARIES);
        words.push_str(after);
        return;
    }
    for part in word.split_inclusive(|letter: char| !letter.is_alphanumeric()) {
        let run = part.trim_end_matches(|letter: char| !letter.is_alphanumeric());
        let varies = run.contains(char::is_numeric) || run.len() > LONGEST_WORD;
        match varies {
            false => words.push_str(part),
            true => {
                // `1.5`, `2026-01-31` and `a1-b2` are one value.
                let joined = words.strip_suffix(['-', '.', ',', ':', '_', '/', '+']);
                let joined = joined.filter(|before| before.ends_with(VARIES));
                match joined.map(str::len) {
                    Some(end) => words.truncate(end),
                    None => words.push_str(VARIES),
                }
                words.push_str(&part[run.len()..]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(body: &str) -> Option<String> {
        of_body(body, 422, Some("Unprocessable Entity"))
    }

    #[test]
    fn a_name_stays_without_its_numbers_and_ids() {
        let names = [
            ("charge", "charge"),
            ("send_mail", "send_mail"),
            ("page-17", "page-#"),
            ("page18", "page#"),
            ("3", "#"),
            ("order-5f1d0a7c", "order-#"),
            ("0197a2b4-6c1e-7d52-9a07-3f6f0c1d2e3f", "#"),
            ("charge (undo)", "charge (undo)"),
            ("größe-9", "größe-#"),
            ("", ""),
        ];
        for (name, pattern) in names {
            assert_eq!(of_name(name), pattern);
        }
        let long = "x".repeat(LONGEST_WORD + 1);
        assert_eq!(of_name(&long), VARIES);
    }

    #[test]
    fn the_code_or_else_the_text_of_an_error_is_found_where_apis_have_it() {
        for (body, expected) in [
            (
                r#"{"code":"card_declined","message":"Card 1 of Ann"}"#,
                "card_declined",
            ),
            (r#"{"error":{"code":"E-1042","message":"no"}}"#, "E-1042"),
            (r#"{"code":1042,"message":"no"}"#, "1042"),
            (r#"{"error":"address_unknown"}"#, "address_unknown"),
            (
                r#"{"statusCode":422,"error":"Unprocessable Entity","message":"stock is gone"}"#,
                "stock is gone",
            ),
            (
                r#"{"type":"https://api.example/problems/out-of-stock","title":"Out of stock"}"#,
                "https://api.example/problems/out-of-stock",
            ),
            (
                r#"{"type":"about:blank","title":"Unprocessable Entity","status":422,"detail":"too heavy"}"#,
                "too heavy",
            ),
            (
                r#"{"errors":[{"detail":"too heavy"},{"detail":"too long"}]}"#,
                "too heavy",
            ),
            (r#"["too heavy"]"#, "too heavy"),
            ("\u{feff}{\"code\":\"too_heavy\"}", "too_heavy"),
            ("too heavy\nat line 3", "too heavy"),
            (r#"{"error":"too\u0000heavy"}"#, "too\u{fffd}heavy"),
        ] {
            assert_eq!(said(body).as_deref(), Some(expected), "{body}");
        }
    }

    #[test]
    fn a_code_that_says_little_has_the_text_beside_it() {
        for (body, expected) in [
            (
                r#"{"error":"invalid_request","field":"currency","message":"currency is required"}"#,
                "invalid_request: currency is required",
            ),
            (
                r#"{"error":{"code":"VALIDATION-FAILED","message":"order 17 is unknown"}}"#,
                "VALIDATION-FAILED: order # is unknown",
            ),
            (r#"{"code":"invalid_request"}"#, "invalid_request"),
            (
                r#"{"type":"bad_request","title":"Bad request","detail":"no stock"}"#,
                "bad_request: no stock",
            ),
        ] {
            assert_eq!(said(body).as_deref(), Some(expected), "{body}");
        }
        let long = format!(r#"{{"code":"invalid","message":"{}"}}"#, "ü ".repeat(200));
        assert!(said(&long).unwrap().len() <= LONGEST + '…'.len_utf8());
    }

    #[test]
    fn a_body_that_says_no_more_than_the_status_has_no_words() {
        for body in [
            "",
            "{}",
            "null",
            "17",
            "422",
            "Unprocessable Entity",
            r#"{"error":"Unprocessable Entity"}"#,
            r#"{"code":422,"error":"error"}"#,
            r#"{"order":"7"}"#,
            r#"{"message":"cut of"#,
            "<html><title>422</title></html>",
        ] {
            assert_eq!(said(body), None, "{body}");
        }
    }

    #[test]
    fn numbers_ids_addresses_and_quotations_do_not_tell_refusals_apart() {
        for (text, expected) in [
            ("order 17 is closed", "order # is closed"),
            ("order A-17-b9 is closed.", "order A-# is closed."),
            ("costs 1,200.50 EUR", "costs # EUR"),
            ("since 2026-01-31T09:30:00Z", "since #"),
            ("no 550e8400-e29b-41d4-a716-446655440000", "no #"),
            ("no abcdefab-abcd-abcd-abcd-abcdefabcdef!", "no #!"),
            ("unknown customer 'Ann Lee'", "unknown customer #"),
            (
                "unknown customer (\"Ann Lee\") here",
                "unknown customer (#) here",
            ),
            ("mail to ann.lee@example.com failed", "mail to # failed"),
            ("the item can't be sent", "the item can't be sent"),
            ("cus_9f8aXyz does not exist", "cus_# does not exist"),
        ] {
            assert_eq!(said(text).as_deref(), Some(expected), "{text}");
        }
        let code = format!(r#"{{"code":"order_{}"}}"#, "1".repeat(20));
        assert_eq!(said(&code).as_deref(), Some("order_#"));
    }

    #[test]
    fn words_are_short_in_bytes_and_whole_characters() {
        for text in ["ü ".repeat(1000), "word ".repeat(1000), "ü".repeat(10_000)] {
            if let Some(words) = said(&text) {
                assert!(words.len() <= LONGEST + '…'.len_utf8(), "{words}");
            }
        }
        assert_eq!(said(&"x".repeat(10_000)), None);
    }

    #[test]
    fn expressions_stay_in_the_messages_of_provost() {
        assert_eq!(
            of_message("`steps.list2.output.id` does not exist, of 17"),
            "`steps.list2.output.id` does not exist, of #"
        );
    }
}
