//! `calls.allow`: private addresses that steps and messages may call although others are not allowed.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

use crate::domain::values::AllowedAddress;

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct AllowList(pub Vec<AllowedAddress>);

impl Serialize for AllowList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(ToString::to_string))
    }
}

impl<'de> Deserialize<'de> for AllowList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let entries = Vec::<String>::deserialize(deserializer)?;
        let parsed = entries.iter().map(|entry| AllowedAddress::parse(entry));
        let parsed = parsed
            .collect::<Result<_, _>>()
            .map_err(de::Error::custom)?;
        Ok(Self(parsed))
    }
}

/// Returns each invalid entry with its fault, or one fault if the value is not a list.
pub fn faults(value: &Value) -> Vec<String> {
    let Value::Array(entries) = value else {
        return vec![match value.as_str() {
            Some(text) => format!("{text:?}, which is not a list; did you mean [{text:?}]?"),
            None => "a value that is not a list".to_owned(),
        }];
    };
    let fault = |entry: &Value| match entry.as_str() {
        None => Some("an entry that is not text: put quotation marks around it".to_owned()),
        Some(text) => AllowedAddress::parse(text)
            .err()
            .map(|why| format!("{text:?}, which {why}")),
    };
    entries.iter().filter_map(fault).collect()
}
