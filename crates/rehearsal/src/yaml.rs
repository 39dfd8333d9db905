//! Converts YAML 1.2 to JSON. Refuses everything that has no equivalent in JSON, and everything that YAML readers
//! understand differently, because a test must not depend on that.

use std::collections::HashSet;

use provost_domain::values::DEEPEST;
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span as ScannedSpan};

use crate::location::{SourceFault, SourceLocation, nested_too_deeply};

/// The JSON, and for each value and each name its offset in the JSON and its location in the YAML.
type LocatedJson = (String, Vec<(usize, SourceLocation)>);

pub(crate) fn to_json(text: &str) -> Result<LocatedJson, SourceFault> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut writer = JsonWriter::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| unreadable(text, &error))?;
        let location = location_of(&span);
        writer.take(event, location)?;
    }
    match writer.json.is_empty() {
        true => Err(SourceFault::new(SourceLocation::START, "is empty")),
        false => Ok((writer.json, writer.locations)),
    }
}

fn location_of(span: &ScannedSpan) -> SourceLocation {
    SourceLocation {
        line: span.start.line().max(1),
        column: span.start.col() + 1,
    }
}

fn unreadable(text: &str, error: &ScanError) -> SourceFault {
    let mark = error.marker();
    let location = SourceLocation {
        line: mark.line().max(1),
        column: mark.col() + 1,
    };
    if error.info().contains("recursion limit") {
        return SourceFault::new(location, nested_too_deeply());
    }
    // The parser may report the tab some lines later.
    let lines = text.lines().enumerate().take(location.line);
    let tab = lines.filter(|(_, line)| {
        let indent = line.len() - line.trim_start().len();
        line[..indent].contains('\t')
    });
    match tab.last() {
        Some((line, _)) => SourceFault::new(
            SourceLocation {
                line: line + 1,
                column: 1,
            },
            "is indented with a tab: YAML allows only spaces",
        ),
        None => SourceFault::new(location, format!("is not YAML: {}", error.info())),
    }
}

#[derive(Default)]
struct JsonWriter {
    json: String,
    locations: Vec<(usize, SourceLocation)>,
    open: Vec<Collection>,
    documents: usize,
}

enum Collection {
    List,
    /// The names that were read, and whether a value comes next.
    Map(HashSet<String>, bool),
}

impl JsonWriter {
    fn take(&mut self, event: Event<'_>, location: SourceLocation) -> Result<(), SourceFault> {
        let refuse = |message: &str| Err(SourceFault::new(location, message));
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return refuse("begins a second document: put it into a file of its own");
                }
            }
            Event::Alias(_) => return refuse(ALIASES),
            Event::Scalar(_, _, anchor, _)
            | Event::SequenceStart(anchor, _)
            | Event::MappingStart(anchor, _)
                if anchor != 0 =>
            {
                return refuse(ALIASES);
            }
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, Some(_))
            | Event::MappingStart(_, Some(_)) => {
                return refuse("has a tag such as `!!str`: remove it, and quote what is text");
            }
            Event::Scalar(text, style, _, _) => return self.scalar(&text, style, location),
            Event::SequenceStart(..) => {
                self.begin(location)?;
                self.json.push('[');
                self.open.push(Collection::List);
            }
            Event::MappingStart(..) => {
                self.begin(location)?;
                self.json.push('{');
                self.open.push(Collection::Map(HashSet::new(), false));
            }
            Event::SequenceEnd => {
                self.open.pop();
                self.json.push(']');
            }
            Event::MappingEnd => {
                self.open.pop();
                self.json.push('}');
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        Ok(())
    }

    /// Begins a list or a map.
    fn begin(&mut self, location: SourceLocation) -> Result<(), SourceFault> {
        if self.open.len() >= DEEPEST {
            return Err(SourceFault::new(location, nested_too_deeply()));
        }
        if let Some(Collection::Map(_, false)) = self.open.last() {
            return Err(SourceFault::new(location, NOT_NAME));
        }
        self.separate(location);
        Ok(())
    }

    /// Writes the separator between the last value and the next.
    fn separate(&mut self, location: SourceLocation) {
        match self.open.last_mut() {
            None => {}
            Some(Collection::List) if self.json.ends_with('[') => {}
            Some(Collection::List) => self.json.push(','),
            Some(Collection::Map(_, has_name)) => {
                if *has_name {
                    self.json.push(':');
                } else if !self.json.ends_with('{') {
                    self.json.push(',');
                }
                *has_name = !*has_name;
            }
        }
        self.locations.push((self.json.len(), location));
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        location: SourceLocation,
    ) -> Result<(), SourceFault> {
        let is_name = matches!(self.open.last(), Some(Collection::Map(_, false)));
        let written = match style {
            _ if is_name => {
                if text.is_empty() {
                    return Err(SourceFault::new(location, NOT_NAME));
                }
                string(text)
            }
            ScalarStyle::Plain => {
                plain(text).map_err(|message| SourceFault::new(location, message))?
            }
            ScalarStyle::SingleQuoted
            | ScalarStyle::DoubleQuoted
            | ScalarStyle::Literal
            | ScalarStyle::Folded => string(text),
        };
        if let Some(Collection::Map(names, false)) = self.open.last_mut()
            && !names.insert(text.to_owned())
        {
            let message = format!("`{text}` is given twice: remove one");
            return Err(SourceFault::new(location, message));
        }
        self.separate(location);
        self.json.push_str(&written);
        Ok(())
    }
}

const ALIASES: &str =
    "uses an anchor or an alias (`&name`, `*name`), which is not supported: repeat the value";
const NOT_NAME: &str = "stands where a name must be: quote text that begins with `{` or `[`, such as \"{{ input.id }}\"";

fn string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns the JSON of a text without quotes.
fn plain(text: &str) -> Result<String, String> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Ok("null".to_owned()),
        "true" | "True" | "TRUE" => return Ok("true".to_owned()),
        "false" | "False" | "FALSE" => return Ok("false".to_owned()),
        _ => {}
    }
    if is_json_number(text) {
        return Ok(text.to_owned());
    }
    let lower = text.to_ascii_lowercase();
    if matches!(&*lower, "yes" | "no" | "on" | "off") {
        return Err(format!(
            "`{text}` is text for some readers of YAML, and true or false for others: write true or false, or quote it"
        ));
    }
    if looks_like_number(&lower) {
        return Err(format!(
            "`{text}` is a number for some readers of YAML, and text for others: write it as in JSON, or quote it"
        ));
    }
    Ok(string(text))
}

fn is_json_number(text: &str) -> bool {
    let first = text.trim_start_matches('-').as_bytes().first();
    first.is_some_and(u8::is_ascii_digit)
        && serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok()
        && !text.contains(char::is_whitespace)
}

fn looks_like_number(lower: &str) -> bool {
    let digits = lower.trim_start_matches(['-', '+']);
    if matches!(digits, ".inf" | ".nan") {
        return true;
    }
    if let Some(rest) = digits.strip_prefix("0x").or(digits.strip_prefix("0o")) {
        return !rest.is_empty()
            && rest
                .bytes()
                .all(|byte| byte.is_ascii_hexdigit() || byte == b'_');
    }
    let (number, exponent) = digits.split_once('e').unwrap_or((digits, "0"));
    let exponent = exponent.trim_start_matches(['-', '+']);
    let is_numeric = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'_')
    };
    let parts: Vec<_> = number.split('.').collect();
    parts.len() <= 2
        && parts.iter().all(|part| is_numeric(part))
        && number.bytes().any(|byte| byte.is_ascii_digit())
        && !exponent.is_empty()
        && is_numeric(exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(yaml: &str) -> Result<String, String> {
        let converted = to_json(yaml).map_err(|fault| {
            let SourceLocation { line, column } = fault.location;
            format!("{line}:{column}: {}", fault.message)
        })?;
        Ok(converted.0)
    }

    fn refusal(yaml: &str) -> String {
        json(yaml).unwrap_err()
    }

    #[test]
    fn yaml_becomes_the_json_that_it_means() {
        let yaml = "a: 1\nb:\n  - x\n  - { c: true, d: ~ }\n  - []\n  - 1.5e3\n'e': \"{{ input.x }}\"\nf: |\n  two\n  lines\ng:\n200: 1h30m\nt: 2026-01-01T00:00:00Z\n";
        assert_eq!(
            json(yaml).unwrap(),
            r#"{"a":1,"b":["x",{"c":true,"d":null},[],1.5e3],"e":"{{ input.x }}","f":"two\nlines\n","g":null,"200":"1h30m","t":"2026-01-01T00:00:00Z"}"#
        );
        assert_eq!(
            json("\u{feff}a: 12345678901234567890123\n").unwrap(),
            r#"{"a":12345678901234567890123}"#
        );
        // JSON is valid YAML.
        let same = r#"{"a":["b",{"c":"d\n"}],"e":-0.5}"#;
        assert_eq!(json(same).unwrap(), same);
    }

    #[test]
    fn what_readers_of_yaml_disagree_about_is_refused() {
        for text in [
            "yes", "No", "on", "OFF", "007", "0x1F", "0o7", "+1", ".5", "1.", "1_000", ".inf",
            "-.INF", ".NaN",
        ] {
            let fault = refusal(&format!("a: {text}\n"));
            assert!(
                fault.starts_with("1:4: `") && fault.ends_with("or quote it"),
                "{fault}"
            );
        }
        for text in [
            "1.2.3",
            "10s",
            "e",
            "-",
            "a1",
            "2026-01-01",
            "1-2",
            "0xyz",
            "notes",
            ".",
        ] {
            assert!(json(&format!("a: {text}x\n")).is_ok(), "{text}");
        }
    }

    #[test]
    fn anchors_tags_documents_and_names_that_are_none_are_refused() {
        assert!(refusal("a: &x [1]\nb: *x\n").starts_with("1:"));
        assert!(refusal("a: !!str 1\n").contains("has a tag"));
        assert!(refusal("a: 1\n---\nb: 2\n").contains("second document"));
        assert!(refusal("a: 1\nb: 2\na: 3\n").starts_with("3:1: `a` is given twice"));
        assert!(refusal("a: {{ input.x }}\n").contains("quote text"));
        assert!(refusal("? [1]\n: 2\n").contains("where a name must be"));
        assert!(refusal("").contains("is empty"));
        assert!(refusal("# nothing\n").contains("is empty"));
    }

    #[test]
    fn a_tab_is_named_as_what_it_is() {
        let fault = refusal("cases:\n\t- name: x\n");
        assert_eq!(
            fault,
            "2:1: is indented with a tab: YAML allows only spaces"
        );
    }

    #[test]
    fn hostile_yaml_ends_soon() {
        for text in [
            "[".repeat(1 << 20),
            "{a: ".repeat(1 << 18),
            "- ".repeat(1 << 20),
            "? ".repeat(1 << 19),
        ] {
            let fault = refusal(&text);
            assert!(fault.len() < 300, "{fault}");
        }
        // The text is the second level of a "billion laughs" attack.
        assert!(refusal("a: &a [x, x]\nb: &b [*a, *a]\n").contains("not supported"));
    }
}
