//! The text of a file as JSON, with the line and column of each value, so that an editor can show where a fault is.

use serde_json::value::RawValue;

use provost_domain::{
    template::Payload,
    values::{FieldFault, too_deep},
};

use crate::{
    location::{SourceFault, SourceLocation, nested_too_deeply},
    pointer::offset_of,
    yaml,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourceFormat {
    Json,
    Yaml,
}

/// A text that was read.
#[derive(Debug)]
pub struct SourceText {
    json: Payload,
    locations: Locations,
}

#[derive(Debug)]
enum Locations {
    /// The text is the JSON, after `begin` bytes of white space.
    Json { text: String, begin: usize },
    /// For offsets into the JSON, in ascending order: the location in the YAML.
    Yaml(Vec<(usize, SourceLocation)>),
}

impl SourceText {
    pub fn parse(text: String, format: SourceFormat) -> Result<Self, SourceFault> {
        // Editors of some systems begin a file with the mark of its encoding, which is no part of the text.
        let text = match text.strip_prefix('\u{feff}') {
            Some(rest) => rest.to_owned(),
            None => text,
        };
        match format {
            SourceFormat::Json => Self::parse_json(text),
            SourceFormat::Yaml => Self::parse_yaml(&text),
        }
    }

    fn parse_json(text: String) -> Result<Self, SourceFault> {
        if let Some(at) = too_deep(text.as_bytes()) {
            return Err(SourceFault::new(
                location_at(&text, at),
                nested_too_deeply(),
            ));
        }
        let raw: Box<RawValue> = serde_json::from_str(&text).map_err(|error| {
            let location = SourceLocation {
                line: error.line().max(1),
                column: error.column().max(1),
            };
            let message = error.to_string();
            let cause = message.split(" at line ").next().unwrap_or(&message);
            SourceFault::new(location, format!("is not JSON: {cause}"))
        })?;
        let begin = text.len() - text.trim_start_matches([' ', '\t', '\n', '\r']).len();
        Ok(Self {
            json: Payload::new(raw),
            locations: Locations::Json { text, begin },
        })
    }

    fn parse_yaml(text: &str) -> Result<Self, SourceFault> {
        let (json, locations) = yaml::to_json(text)?;
        let json = Payload::parse(json).ok_or_else(|| {
            SourceFault::new(
                SourceLocation::START,
                "cannot be written as JSON: write it as JSON",
            )
        })?;
        Ok(Self {
            json,
            locations: Locations::Yaml(locations),
        })
    }

    pub fn json(&self) -> &Payload {
        &self.json
    }

    /// Returns the location of the value that a JSON pointer refers to, or of the value that should contain it if it is
    /// missing.
    pub fn location(&self, pointer: &str) -> SourceLocation {
        let offset = offset_of(self.json.as_json(), pointer);
        match &self.locations {
            Locations::Json { text, begin } => location_at(text, begin + offset),
            Locations::Yaml(locations) => {
                let after = locations.partition_point(|(at, _)| *at <= offset);
                let found = after.checked_sub(1).and_then(|at| locations.get(at));
                found.map_or(SourceLocation::START, |(_, location)| *location)
            }
        }
    }

    /// Returns the same fault with its location instead of its pointer alone.
    pub fn locate(&self, fault: &FieldFault) -> SourceFault {
        SourceFault::new(self.location(&fault.pointer), fault.to_string())
    }
}

fn location_at(text: &str, offset: usize) -> SourceLocation {
    let before = &text[..text.floor_char_boundary(offset)];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    SourceLocation {
        line: before.bytes().filter(|byte| *byte == b'\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = "\n{\n  \"steps\": [\n    { \"name\": \"a\", \"ä/~\": [1, { \"x\\\"]\": 2 }] }\n  ],\n  \"n\": null\n}\n";

    fn at(source: &SourceText, pointer: &str) -> (usize, usize) {
        let location = source.location(pointer);
        (location.line, location.column)
    }

    #[test]
    fn a_pointer_leads_to_the_line_and_column_of_the_name() {
        let source = SourceText::parse(JSON.to_owned(), SourceFormat::Json).unwrap();
        assert_eq!(at(&source, ""), (2, 1));
        assert_eq!(at(&source, "/steps"), (3, 3));
        assert_eq!(at(&source, "/steps/0"), (4, 5));
        assert_eq!(at(&source, "/steps/0/name"), (4, 7));
        assert_eq!(at(&source, "/steps/0/ä~1~0/1"), (4, 31));
        assert_eq!(at(&source, "/steps/0/ä~1~0/1/x\"]"), (4, 33));
        assert_eq!(at(&source, "/n"), (6, 3));
    }

    #[test]
    fn the_mark_of_an_encoding_is_no_part_of_the_text() {
        let text = format!("\u{feff}{JSON}");
        let source = SourceText::parse(text, SourceFormat::Json).unwrap();
        assert_eq!(at(&source, "/steps"), (3, 3));
        let source = SourceText::parse("\u{feff}a: 1".to_owned(), SourceFormat::Yaml).unwrap();
        assert_eq!(source.json().raw().get(), "{\"a\":1}");
    }

    #[test]
    fn what_is_missing_is_where_it_should_be() {
        let source = SourceText::parse(JSON.to_owned(), SourceFormat::Json).unwrap();
        assert_eq!(at(&source, "/steps/0/agent"), (4, 5));
        assert_eq!(at(&source, "/steps/7/agent"), (3, 3));
        assert_eq!(at(&source, "/n/x/y"), (6, 3));
        assert_eq!(at(&source, "/none"), (2, 1));
    }

    #[test]
    fn broken_json_is_refused_with_its_place() {
        let fault =
            SourceText::parse("{\n  \"a\": 1,\n}".to_owned(), SourceFormat::Json).unwrap_err();
        assert_eq!(fault.location.line, 3);
        assert!(fault.message.starts_with("is not JSON: "), "{fault}");
        assert!(!fault.message.contains("line"), "{fault}");
        let deep = format!("{}{}", "[".repeat(101), "]".repeat(101));
        let fault = SourceText::parse(deep, SourceFormat::Json).unwrap_err();
        assert_eq!(fault.location.column, 101);
    }

    #[test]
    fn the_place_in_a_yaml_text_is_found() {
        let text =
            "cases:\n  - name: ä\n    services:\n      a: [{ status: 503 }, { status: 200 }]\n";
        let source = SourceText::parse(text.to_owned(), SourceFormat::Yaml).unwrap();
        assert_eq!(at(&source, "/cases"), (1, 1));
        assert_eq!(at(&source, "/cases/0/name"), (2, 5));
        assert_eq!(at(&source, "/cases/0/services/a/1/status"), (4, 30));
        assert_eq!(at(&source, "/cases/0/services/b"), (3, 5));
        assert_eq!(at(&source, "/cases/0/expect"), (2, 5));
    }
}
