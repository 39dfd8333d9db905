//! The faults that the validator finds, in the words of the API.

use jsonschema::{ValidationError, error::ValidationErrorKind};
use serde_json::Value;

use crate::values::fields::{FieldFault, escape};

/// The largest number of faults of a payload that are reported.
const MOST_FAULTS: usize = 20;
/// The longest message, in characters. A message may repeat what the schema allows.
const LONGEST_MESSAGE: usize = 300;
/// The longest name of a member in a message or a pointer, in characters.
const LONGEST_NAME: usize = 100;

/// Returns the fault of a schema that is not valid.
pub(super) fn of_schema(error: &ValidationError<'_>) -> FieldFault {
    let pointer = error.instance_path().as_str();
    let keyword = pointer.rsplit('/').next().unwrap_or_default();
    let is_pattern = matches!(error.kind(), ValidationErrorKind::Format { .. });
    let message = match keyword {
        _ if is_pattern => {
            "is not a regular expression that is supported: without lookaround and backreferences, and not too large".to_owned()
        }
        "type" => {
            "must be array, boolean, integer, null, number, object or string, or an array of these"
                .to_owned()
        }
        _ => format!("is not valid in JSON Schema 2020-12: {}", in_words(error)),
    };
    FieldFault::new(pointer, message)
}

/// Returns the faults of a payload whose JSON pointer is `pointer`.
pub(super) fn of_payload<'e>(
    errors: impl Iterator<Item = ValidationError<'e>>,
    pointer: &str,
) -> Vec<FieldFault> {
    let mut faults = Vec::new();
    let mut more = 0;
    for error in errors {
        let at = format!("{pointer}{}", error.instance_path().as_str());
        let mut named = |name: &str, message: String| match faults.len() < MOST_FAULTS {
            true => {
                let name: String = name.chars().take(LONGEST_NAME).collect();
                faults.push(FieldFault::new(format!("{at}/{}", escape(&name)), message));
            }
            false => more += 1,
        };
        match error.kind() {
            ValidationErrorKind::Required {
                property: Value::String(name),
            } => named(name, "is missing".to_owned()),
            ValidationErrorKind::AdditionalProperties { unexpected } => {
                for name in unexpected {
                    named(name, "is not allowed by the schema: remove it".to_owned());
                }
            }
            ValidationErrorKind::UnevaluatedProperties { unexpected } => {
                for name in unexpected {
                    let message = "is not allowed by the schema, or what allows it does not match";
                    named(name, message.to_owned());
                }
            }
            ValidationErrorKind::FalseSchema if faults.len() < MOST_FAULTS => {
                faults.push(FieldFault::new(at, "is not allowed by the schema"));
            }
            _ if faults.len() < MOST_FAULTS => faults.push(FieldFault::new(at, in_words(&error))),
            _ => more += 1,
        }
    }
    if more > 0 {
        faults.push(FieldFault::new(pointer, format!("has {more} more faults")));
    }
    faults
}

/// Returns the message without the value: the sender knows it, and it may be large.
fn in_words(error: &ValidationError<'_>) -> String {
    let whole = error.masked_with("it").to_string();
    let whole = whole.strip_prefix("it ").unwrap_or(&whole);
    let mut message: String = whole.chars().take(LONGEST_MESSAGE).collect();
    if message.len() < whole.len() {
        message.push('…');
    }
    message
}
