//! The text of a question to people, and the people who are asked.

use icu_normalizer::ComposingNormalizer;
use icu_properties::{
    CodePointMapData, CodePointSetData,
    props::{DefaultIgnorableCodePoint, GeneralCategory},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The most people that one step asks.
pub const MOST_ASKED: usize = 20;
/// The longest title of a question, in characters.
pub(crate) const LONGEST_TITLE: usize = 200;
/// The longest text below the title, in characters.
pub(crate) const LONGEST_TEXT: usize = 4000;
/// The longest name or address of a person, in characters.
pub(crate) const LONGEST_PERSON: usize = 255;

/// The question, and the people who are asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AskText {
    pub title: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The people. No two are equal. The index of a person in this list identifies the person.
    pub of: Vec<String>,
}

impl AskText {
    pub(crate) fn new(title: &Value, text: &Value, of: &Value) -> Result<Self, String> {
        let title = shown("title", title, LONGEST_TITLE)?.trim().to_owned();
        if let Some(fault) = title_fault(&title) {
            return Err(format!("`ask.title` {fault}"));
        }
        let text = match text {
            Value::Null => None,
            text => Some(shown("text", text, LONGEST_TEXT)?).filter(|text| !text.is_empty()),
        };
        Ok(Self {
            title,
            text,
            of: people(of)?,
        })
    }
}

/// Returns the fault of a title, in words that follow the name of its field.
pub(crate) fn title_fault(title: &str) -> Option<&'static str> {
    let title = title.trim();
    if title.is_empty() {
        return Some("must not be empty: say what is asked");
    }
    let has_lines = title.contains(char::is_control);
    has_lines.then_some("must give one line: put the rest into `ask.text`")
}

/// Returns the text that is shown to people. It is never cut, because a person must not decide about a text that is not
/// shown.
fn shown(name: &str, value: &Value, longest: usize) -> Result<String, String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return Err(format!("`ask.{name}` must give a text")),
    };
    if text.contains('\0') {
        return Err(format!(
            "`ask.{name}` gives a text with the character U+0000"
        ));
    }
    let length = text.chars().count();
    match length <= longest {
        true => Ok(text),
        false => Err(format!(
            "`ask.{name}` gives {length} characters: at most {longest} are shown"
        )),
    }
}

/// Returns whether a character is invisible or has no meaning: with such a character one person could pass for two.
fn is_invisible(c: char) -> bool {
    const BIDIRECTIONAL: std::ops::RangeInclusive<char> = '\u{202a}'..='\u{202e}';
    const ANNOTATIONS: std::ops::RangeInclusive<char> = '\u{fff9}'..='\u{fffb}';
    const BRAILLE_BLANK: char = '\u{2800}';
    let category = CodePointMapData::<GeneralCategory>::new().get(c);
    let has_no_glyph = matches!(
        category,
        GeneralCategory::Unassigned
            | GeneralCategory::PrivateUse
            | GeneralCategory::LineSeparator
            | GeneralCategory::ParagraphSeparator
    );
    has_no_glyph
        || CodePointSetData::new::<DefaultIgnorableCodePoint>().contains(c)
        || BIDIRECTIONAL.contains(&c)
        || ANNOTATIONS.contains(&c)
        || c == BRAILLE_BLANK
}

/// Returns the form in which names are compared: it ignores composition, width and case of letters, and how wide a
/// blank is.
fn folded(person: &str) -> String {
    let nfkc = ComposingNormalizer::new_nfkc();
    let normal = nfkc.normalize(person);
    // Each letter is converted by itself, so that a sigma is the same at the end of a word. The first conversion is for
    // `ẞ`, whose upper case is itself; the upper case of `ß` is `SS`.
    let lower = normal.chars().flat_map(char::to_lowercase);
    let upper = lower.flat_map(char::to_uppercase);
    let folded: String = upper.flat_map(char::to_lowercase).collect();
    // The lower case may be composed differently.
    let folded = nfkc.normalize(&folded);
    let words: Vec<&str> = folded.split_whitespace().collect();
    words.join(" ")
}

/// Returns the fault of the name or the address of a person, in words that follow the name of its field.
pub(crate) fn person_fault(person: &str) -> Option<String> {
    let person = person.trim();
    if let Some(hidden) = hidden_letter(person) {
        return Some(hidden);
    }
    (person.is_empty() || person.chars().count() > LONGEST_PERSON).then(|| {
        format!(
            "must give names or addresses of 1 to {LONGEST_PERSON} visible characters in one line"
        )
    })
}

/// Returns the fault of the first invisible letter, in words. Blanks at the ends are ignored.
pub(crate) fn hidden_letter(text: &str) -> Option<String> {
    let mut letters = text.trim().chars();
    let hidden = letters.find(|c| c.is_control() || is_invisible(*c))?;
    Some(format!(
        "must give names or addresses of visible characters in one line, and this one has U+{:04X}: remove it",
        u32::from(hidden)
    ))
}

pub(crate) fn people(of: &Value) -> Result<Vec<String>, String> {
    let mut people = Vec::new();
    // An expression in a list may return a list.
    let mut left = vec![(of, 0)];
    while let Some((value, depth)) = left.pop() {
        match value {
            Value::String(person) => {
                let person = person.trim();
                if let Some(fault) = person_fault(person) {
                    return Err(format!("`ask.of` {fault}"));
                }
                let same = |known: &String| folded(known) == folded(person);
                if !people.iter().any(same) {
                    people.push(person.to_owned());
                }
            }
            Value::Array(items) if depth < 2 && items.len() <= 2 * MOST_ASKED => {
                left.extend(items.iter().rev().map(|item| (item, depth + 1)));
            }
            Value::Array(_) => {
                return Err(format!("`ask.of` must give at most {MOST_ASKED} people"));
            }
            _ => return Err("`ask.of` must give strings: names or addresses".to_owned()),
        }
        if people.len() > MOST_ASKED {
            return Err(format!("`ask.of` must give at most {MOST_ASKED} people"));
        }
    }
    match people.is_empty() {
        true => Err("`ask.of` names nobody".to_owned()),
        false => Ok(people),
    }
}
