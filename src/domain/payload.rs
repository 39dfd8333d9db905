//! JSON that passes through: kept as text, parsed at most once, and only where a template looks inside.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// An immutable JSON document, cheap to clone.
#[derive(Clone)]
pub struct Payload(Arc<Inner>);

struct Inner {
    json: Box<RawValue>,
    value: OnceLock<minijinja::Value>,
}

impl Payload {
    pub fn new(json: Box<RawValue>) -> Self {
        Self(Arc::new(Inner {
            json,
            value: OnceLock::new(),
        }))
    }

    /// `None` where the text is not one JSON document.
    pub fn parse(json: String) -> Option<Self> {
        RawValue::from_string(json).ok().map(Self::new)
    }

    pub fn null() -> Self {
        Self::new(RawValue::NULL.to_owned())
    }

    #[cfg(test)]
    pub fn from_value(value: &serde_json::Value) -> Self {
        // `Value` has string keys and finite numbers only, so it always serialises.
        serde_json::value::to_raw_value(value).map_or_else(|_| Self::null(), Self::new)
    }

    pub fn from_string(text: &str) -> Self {
        serde_json::value::to_raw_value(text).map_or_else(|_| Self::null(), Self::new)
    }

    pub fn as_json(&self) -> &str {
        self.0.json.get()
    }

    pub fn raw(&self) -> &RawValue {
        &self.0.json
    }

    /// What templates see. Parsed on first use, then shared by every clone.
    pub fn value(&self) -> &minijinja::Value {
        self.0
            .value
            .get_or_init(|| serde_json::from_str(self.as_json()).unwrap_or_default())
    }
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

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.json.serialize(serializer)
    }
}
