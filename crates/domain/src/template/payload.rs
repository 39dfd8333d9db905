//! JSON that passes through Provost: kept as text, indexed at most once, and only if a template reads its values.

use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::template::Document;

/// An immutable JSON document, cheap to clone.
#[derive(Clone)]
pub struct Payload(Arc<Document>);

impl Payload {
    pub fn new(json: Box<RawValue>) -> Self {
        Self(Arc::new(Document::new(json)))
    }

    /// Returns `None` if the text is not exactly one JSON document.
    pub fn parse(json: String) -> Option<Self> {
        RawValue::from_string(json).ok().map(Self::new)
    }

    pub fn null() -> Self {
        Self::new(RawValue::NULL.to_owned())
    }

    pub fn from_value(value: &serde_json::Value) -> Self {
        // `Value` has string keys and finite numbers only, so it always serialises.
        serde_json::value::to_raw_value(value).map_or_else(|_| Self::null(), Self::new)
    }

    pub fn from_string(text: &str) -> Self {
        serde_json::value::to_raw_value(text).map_or_else(|_| Self::null(), Self::new)
    }

    /// Returns the document with changes by RFC 7396 (JSON Merge Patch): members of the patch replace members of the
    /// same name or are added, and null removes one. All other members stay as they were written.
    pub fn merged(&self, patch: &RawValue) -> Self {
        // Parts that are JSON make a document that is JSON.
        Self::parse(merge(self.as_json(), patch.get())).unwrap_or_else(Self::null)
    }

    pub fn as_json(&self) -> &str {
        self.0.json()
    }

    pub fn raw(&self) -> &RawValue {
        self.0.raw()
    }

    /// Returns the document that templates read. It is indexed on first use, and the index is shared by every clone.
    pub fn document(&self) -> &Document {
        &self.0
    }
}

/// Recursion is as deep as the patch, and no request is nested deeper than its reader allows.
fn merge(target: &str, patch: &str) -> String {
    type Members<'a> = BTreeMap<String, &'a RawValue>;
    let Ok(changes) = serde_json::from_str::<Members<'_>>(patch) else {
        return patch.to_owned();
    };
    let members: Members<'_> = serde_json::from_str(target).unwrap_or_default();
    let mut merged: BTreeMap<String, Cow<'_, str>> = members
        .into_iter()
        .map(|(name, value)| (name, value.get().into()))
        .collect();
    for (name, change) in changes {
        if change.get() == "null" {
            merged.remove(&name);
        } else {
            let before = merged.get(&name).map_or("null", |before| &**before);
            let after = merge(before, change.get());
            merged.insert(name, after.into());
        }
    }
    let members = merged.into_iter().map(|(name, value)| {
        let name = serde_json::Value::from(name);
        format!("{name}:{value}")
    });
    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.as_json() == other.as_json()
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_json())
    }
}

/// A payload can only be deserialised from JSON text.
impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Self::new)
    }
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(input: &str, patch: &str) -> String {
        let patch = RawValue::from_string(patch.to_owned()).unwrap();
        let input = Payload::parse(input.to_owned()).unwrap();
        input.merged(&patch).as_json().to_owned()
    }

    /// These cases include the examples of RFC 7396, appendix A.
    #[test]
    fn a_patch_replaces_adds_and_takes_away() {
        for (input, patch, result) in [
            (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
            (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
            (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (
                r#"{"a":{"b":"c"}}"#,
                r#"{"a":{"b":"d","c":null}}"#,
                r#"{"a":{"b":"d"}}"#,
            ),
            (r#"["a","b"]"#, r#"["c","d"]"#, r#"["c","d"]"#),
            (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"a":1,"e":null}"#),
            ("[1,2]", r#"{"a":"b","c":null}"#, r#"{"a":"b"}"#),
            ("{}", r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
            (r#"{"a":"foo"}"#, "null", "null"),
        ] {
            assert_eq!(merged(input, patch), result, "{input} {patch}");
        }
    }

    #[test]
    fn what_a_patch_does_not_name_stays_as_it_was_written() {
        let input = r#"{"n":1.50,"big":123456789012345678901234567890,"q\"":"\u00fc"}"#;
        let result = merged(input, r#"{"x":2.0}"#);
        assert_eq!(
            result,
            r#"{"big":123456789012345678901234567890,"n":1.50,"q\"":"\u00fc","x":2.0}"#
        );
    }
}
