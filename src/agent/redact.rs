//! Finds the secrets of an agent in what its service responds. A service that echoes the request, in an error above all,
//! must not get them into the record, where many may read them.

use std::fmt::Write as _;

use base64::{Engine, engine::general_purpose::STANDARD};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::domain::HIDDEN;

/// Of a secret that was cut off at the end of an excerpt, so many bytes may remain.
const LONGEST_REST: usize = 3;

/// The texts that are not for the record.
#[derive(Clone, Default)]
pub(super) struct Redactor {
    /// Longest first: one may contain another.
    forms: Vec<Box<[u8]>>,
    /// By byte: whether a form begins with it.
    begins: Option<Box<[bool; 256]>>,
}

impl Redactor {
    pub fn of<'t>(secrets: impl IntoIterator<Item = &'t str>) -> Self {
        let mut forms: Vec<Box<[u8]>> = secrets.into_iter().flat_map(forms).collect();
        forms.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        forms.dedup();
        let mut begins = Box::new([false; 256]);
        for first in forms.iter().filter_map(|form| form.first()) {
            begins[usize::from(*first)] = true;
        }
        Self {
            forms,
            begins: Some(begins),
        }
    }

    /// How much more of a text must be read than is kept, so that no part of a secret is left at its end.
    pub fn longest(&self) -> usize {
        self.forms.first().map_or(0, |form| form.len())
    }

    /// `None` where nothing is to be hidden.
    pub fn hide(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let begins = self.begins.as_ref()?;
        let mut hidden: Option<Vec<u8>> = None;
        let mut done = 0;
        let mut at = 0;
        while let Some(found) = bytes[at..]
            .iter()
            .position(|byte| begins[usize::from(*byte)])
        {
            at += found;
            let rest = &bytes[at..];
            let Some(form) = self.forms.iter().find(|form| rest.starts_with(form)) else {
                at += 1;
                continue;
            };
            let out = hidden.get_or_insert_default();
            out.extend_from_slice(&bytes[done..at]);
            out.extend_from_slice(HIDDEN.as_bytes());
            at += form.len();
            done = at;
        }
        let mut out = hidden?;
        out.extend_from_slice(&bytes[done..]);
        Some(out)
    }

    /// As [`Redactor::hide`], of a text that may be cut off anywhere, of which `most` bytes are kept.
    pub fn hide_in_start(&self, mut bytes: Vec<u8>, most: usize) -> Vec<u8> {
        if let Some(hidden) = self.hide(&bytes) {
            bytes = hidden;
        }
        let is_cut_off = |at: &usize| {
            let end = &bytes[*at..];
            end.len() > LONGEST_REST && self.forms.iter().any(|form| form.starts_with(end))
        };
        let last = bytes.len().saturating_sub(self.longest());
        let cut = (last..bytes.len()).find(is_cut_off);
        bytes.truncate(cut.unwrap_or(bytes.len()));
        bytes.truncate(most);
        bytes
    }

    pub fn hide_in_text(&self, text: String) -> String {
        match self.hide(text.as_bytes()) {
            // Only whole characters were replaced.
            Some(hidden) => String::from_utf8_lossy(&hidden).into_owned(),
            None => text,
        }
    }
}

/// How a service may write a text: in JSON, in a URL, in HTML, and as RFC 7617 has it.
fn forms(secret: &str) -> Vec<Box<[u8]>> {
    let json = serde_json::to_string(secret).unwrap_or_default();
    let json = json.trim_start_matches('"').strip_suffix('"').unwrap_or("");
    let json_slashes = json.replace('/', "\\/");
    let percent = utf8_percent_encode(secret, NON_ALPHANUMERIC).to_string();
    let query: String = url::form_urlencoded::byte_serialize(secret.as_bytes()).collect();
    let html = secret
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;");
    let html_apostrophe = html.replace('\'', "&#39;");
    let base64 = STANDARD.encode(secret);
    let all = [
        secret.to_owned(),
        json.to_owned(),
        with_unicode_escapes(json),
        json_slashes,
        with_lowercase_escapes(&percent),
        percent,
        query,
        html,
        html_apostrophe,
        base64.replace('/', "\\/"),
        base64,
    ];
    let filled = all.into_iter().filter(|form| !form.is_empty());
    filled.map(|form| form.into_bytes().into()).collect()
}

/// `%2f` instead of `%2F`.
fn with_lowercase_escapes(percent: &str) -> String {
    let mut parts = percent.split('%');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (hex, rest) = part.split_at(part.len().min(2));
        text.push('%');
        text.push_str(&hex.to_ascii_lowercase());
        text.push_str(rest);
    }
    text
}

/// As services write JSON that may go into HTML.
fn with_unicode_escapes(json: &str) -> String {
    let mut text = String::new();
    let mut units = [0; 2];
    for c in json.chars() {
        if c.is_ascii() && !matches!(c, '<' | '>' | '&') {
            text.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut units) {
            // Writing to a string cannot fail.
            let _ = write!(text, "\\u{unit:04x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "s3/cr\"et+&<ü>=";

    fn hidden(text: &str) -> String {
        Redactor::of([SECRET, "another-one"]).hide_in_text(text.to_owned())
    }

    #[test]
    fn a_secret_is_found_in_every_usual_form() {
        let json = serde_json::to_string(SECRET).unwrap();
        let inner = json.trim_matches('"');
        for form in [
            SECRET.to_owned(),
            "s3/cr\\\"et+&<ü>=".to_owned(),
            "s3/cr\\\"et+\\u0026\\u003c\\u00fc\\u003e=".to_owned(),
            inner.replace('/', "\\/"),
            "s3%2Fcr%22et%2B%26%3C%C3%BC%3E%3D".to_owned(),
            "s3%2fcr%22et%2b%26%3c%c3%bc%3e%3d".to_owned(),
            "s3/cr&quot;et+&amp;&lt;ü&gt;=".to_owned(),
            STANDARD.encode(SECRET),
        ] {
            let text = format!("you sent {form} and {form}.");
            assert_eq!(hidden(&text), "you sent *** and ***.", "{form}");
        }
    }

    #[test]
    fn other_text_stays_as_it_is() {
        for text in ["", "s3/cr", "nothing here", "anotherone"] {
            let redactor = Redactor::of([SECRET, "another-one"]);
            assert_eq!(redactor.hide(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Redactor::default().hide(b"anything"), None);
    }

    #[test]
    fn a_longer_secret_is_hidden_whole_although_it_contains_another() {
        let redactor = Redactor::of(["s3cret-one", "s3cret-one-and-more"]);
        let text = "s3cret-one-and-more s3cret-one".to_owned();
        assert_eq!(redactor.hide_in_text(text), "*** ***");
    }

    #[test]
    fn a_secret_that_is_cut_off_leaves_nothing_to_guess_from() {
        let redactor = Redactor::of(["s3cret-one"]);
        let start = |text: &str, most| {
            String::from_utf8(redactor.hide_in_start(text.as_bytes().to_vec(), most)).unwrap()
        };
        assert_eq!(start("you sent s3cret-on", 100), "you sent ");
        assert_eq!(start("you sent s3cret-one", 100), "you sent ***");
        assert_eq!(start("you sent s3c", 100), "you sent s3c");
        assert_eq!(start("you sent s3cret-one", 14), "you sent ***");
        assert_eq!(start("s3cret-one is mine", 6), "*** is");
    }
}
