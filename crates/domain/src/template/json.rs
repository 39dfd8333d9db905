//! A JSON document with templates in its strings, compiled to a flat sequence of pieces: JSON text that is copied
//! unchanged, and values that are rendered into it. Rendering builds no tree.

use super::{
    Origin, Reads, RenderError, Scope, Template, document::end_of_string, scan, text::is_template,
    write::Out,
};
use crate::{template::payload::Payload, values::fields::escape};

/// A JSON value whose strings (not keys) are templates.
#[derive(Debug)]
pub struct JsonTemplate(Box<[JsonPiece]>);

#[derive(Debug)]
enum JsonPiece {
    Raw(Box<str>),
    Value {
        /// The JSON pointer to the string in the document.
        pointer: Box<str>,
        template: Template,
    },
}

/// The approximate longest JSON pointer that a fault contains, in characters.
const LONGEST_POINTER: usize = 200;

/// The fault of one string of the document.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JsonFault {
    /// The JSON pointer, relative to the document.
    pub pointer: String,
    pub message: String,
}

impl JsonTemplate {
    pub fn parse(document: &Payload, origin: Origin<'_>) -> Result<Self, Vec<JsonFault>> {
        let json = document.as_json();
        if !may_hold_templates(json) {
            return Ok(Self(Box::new([JsonPiece::Raw(json.into())])));
        }
        let mut pieces = Vec::new();
        let mut faults = Vec::new();
        let mut copied = 0;
        for string in Strings::new(json, may_hold_templates) {
            let Some(text) = string.template() else {
                continue;
            };
            let pointer = string.pointer;
            match Template::parse(&text, origin) {
                Ok(template) => {
                    pieces.push(JsonPiece::Raw(json[copied..string.start].into()));
                    pieces.push(JsonPiece::Value {
                        pointer: pointer.into(),
                        template,
                    });
                    copied = string.end;
                }
                Err(message) => faults.push(JsonFault { pointer, message }),
            }
        }
        pieces.push(JsonPiece::Raw(json[copied..].into()));
        if faults.is_empty() {
            Ok(Self(pieces.into()))
        } else {
            Err(faults)
        }
    }

    /// Returns the document as JSON text.
    pub fn render(&self, scope: &Scope<'_>) -> Result<String, RenderError> {
        let mut out = Out::new(scope.budget);
        for piece in &self.0 {
            match piece {
                JsonPiece::Raw(json) => {
                    let spent = scope.budget.spent();
                    out.push(json).map_err(|trouble| {
                        RenderError::new("the document", trouble.in_words(scope.budget, spent))
                    })?;
                }
                JsonPiece::Value { template, .. } => template.render_json(scope, &mut out)?,
            }
        }
        Ok(out.text)
    }

    /// Returns whether each of its templates is a text with expressions in it, and none is a single expression.
    pub fn mixes_texts(&self) -> bool {
        self.0.iter().all(|piece| match piece {
            JsonPiece::Raw(_) => true,
            JsonPiece::Value { template, .. } => template.is_text(),
        })
    }

    /// Returns the values that each template reads, with its JSON pointer relative to the document.
    pub fn reads(&self) -> impl Iterator<Item = (&str, Reads)> {
        self.0.iter().filter_map(|piece| match piece {
            JsonPiece::Raw(_) => None,
            JsonPiece::Value { pointer, template } => Some((&**pointer, template.reads())),
        })
    }
}

/// A text that is sent unchanged, although its author may have meant an expression.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LookAlike {
    /// The JSON pointer, relative to the document.
    pub pointer: String,
    pub message: &'static str,
}

/// Returns the first `most` of a document: `${…}` beside the expressions of a text, and expressions in the name of a
/// member.
pub fn look_alikes(document: &Payload, most: usize) -> Vec<LookAlike> {
    let json = document.as_json();
    let strings = Strings::new(json, |text| is_template(text) || text.contains("${"));
    let found = strings.with_names().filter_map(|string| {
        let text: String = serde_json::from_str(string.json).ok()?;
        let message = match string.is_name {
            true => is_template(&text).then_some(
                "`{{ … }}` in a name is sent literally: only values can contain expressions",
            ),
            false => holds_other_language(&text)
                .then_some("`${…}` is sent literally: write an expression as `{{ … }}`"),
        };
        Some(LookAlike {
            pointer: string.pointer,
            message: message?,
        })
    });
    found.take(most).collect()
}

/// Returns whether `${…}` occurs outside of expressions. `${{ input.price }}` does not count: it is a price.
fn holds_other_language(text: &str) -> bool {
    let pieces = scan::pieces(text).unwrap_or_default();
    pieces.iter().any(|piece| match piece {
        scan::Piece::Literal(literal) => literal
            .split_once("${")
            .is_some_and(|(_, after)| after.contains('}')),
        scan::Piece::Code(_) => false,
    })
}

/// Returns whether any string of the text may be a template. In valid JSON the opening braces of an expression occur
/// only inside strings; a brace that is written as an escape is found as well.
fn may_hold_templates(json: &str) -> bool {
    is_template(json) || json.contains("\\u007")
}

/// One string of a document.
struct JsonString<'a> {
    /// The string as it is in the document, with its quotes.
    json: &'a str,
    start: usize,
    end: usize,
    pointer: String,
    /// True if it is the name of a member.
    is_name: bool,
}

impl JsonString<'_> {
    fn template(&self) -> Option<String> {
        if !may_hold_templates(self.json) {
            return None;
        }
        serde_json::from_str(self.json)
            .ok()
            .filter(|text: &String| is_template(text))
    }
}

/// Iterates over the strings of a valid JSON document that are wanted, as they are written; over names of members only
/// with [`Strings::with_names`]. It keeps its own stack, so that no document is too deep.
struct Strings<'a> {
    json: &'a str,
    /// Strings that are not wanted are skipped before their JSON pointer is made.
    wanted: fn(&str) -> bool,
    names: bool,
    at: usize,
    open: Vec<Open>,
}

enum Open {
    Array { index: usize },
    Object { key: Option<String> },
}

impl<'a> Strings<'a> {
    fn new(json: &'a str, wanted: fn(&str) -> bool) -> Self {
        Self {
            json,
            wanted,
            names: false,
            at: 0,
            open: Vec::new(),
        }
    }

    fn with_names(mut self) -> Self {
        self.names = true;
        self
    }

    /// Returns the JSON pointer. A long one is truncated: each of many strings may be deeply nested, under long names.
    fn pointer(&self) -> String {
        let mut pointer = String::new();
        for open in &self.open {
            if pointer.len() > LONGEST_POINTER {
                pointer.push_str("/…");
                break;
            }
            match open {
                Open::Array { index } => pointer.push_str(&format!("/{index}")),
                Open::Object { key } => {
                    pointer.push('/');
                    let key = key.as_deref().unwrap_or_default();
                    pointer.extend(escape(key).chars().take(LONGEST_POINTER));
                }
            }
        }
        pointer
    }
}

impl<'a> Iterator for Strings<'a> {
    type Item = JsonString<'a>;

    fn next(&mut self) -> Option<JsonString<'a>> {
        let json = self.json;
        let bytes = json.as_bytes();
        while let Some(byte) = bytes.get(self.at) {
            let start = self.at;
            self.at += 1;
            match byte {
                b'{' => self.open.push(Open::Object { key: None }),
                b'[' => self.open.push(Open::Array { index: 0 }),
                b'}' | b']' => {
                    self.open.pop();
                }
                b',' => match self.open.last_mut() {
                    Some(Open::Array { index }) => *index += 1,
                    Some(Open::Object { key }) => *key = None,
                    None => {}
                },
                b'"' => {
                    self.at = end_of_string(bytes, self.at);
                    let text = &json[start..self.at];
                    let mut is_name = false;
                    if let Some(Open::Object { key: key @ None }) = self.open.last_mut() {
                        *key = Some(serde_json::from_str(text).unwrap_or_default());
                        is_name = true;
                    }
                    if (self.names || !is_name) && (self.wanted)(text) {
                        return Some(JsonString {
                            json: text,
                            start,
                            end: self.at,
                            pointer: self.pointer(),
                            is_name,
                        });
                    }
                }
                _ => {}
            }
        }
        None
    }
}
