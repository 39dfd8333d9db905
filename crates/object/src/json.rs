//! Reads single values of JSON text, and words them for faults.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// A member of an object.
pub(crate) struct Field<'a> {
    pub name: Cow<'a, str>,
    pub value: &'a RawValue,
}

/// Checks that a text has at most `longest` characters. The error is the message of a fault.
pub(crate) fn within(text: &str, longest: usize) -> Result<(), String> {
    if text.contains('\0') {
        // PostgreSQL cannot store such a text, and no client needs one.
        return Err("cannot contain the character U+0000".to_owned());
    }
    // Bytes are counted first: most texts need no more.
    if text.len() <= longest || text.chars().count() <= longest {
        return Ok(());
    }
    Err(format!("must be at most {longest} characters long"))
}

/// A JSON string as text. Borrowed where it has no escapes.
pub fn text(json: &str) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    serde_json::from_str(json).ok().map(|Text(text)| text)
}

/// The members of an object in their order, their values as text; `None` of what is no object.
pub fn entries(value: &RawValue) -> Option<Vec<(Cow<'_, str>, &RawValue)>> {
    let Entries(entries) = serde_json::from_str(value.get()).ok()?;
    let pairs = entries.into_iter().map(|entry| (entry.name, entry.value));
    Some(pairs.collect())
}

/// The members of an object, in their order.
pub(crate) struct Entries<'a>(pub Vec<Field<'a>>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyObject;

        impl<'de> Visitor<'de> for AnyObject {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                #[derive(Deserialize)]
                struct Name<'a>(#[serde(borrow)] Cow<'a, str>);
                let mut entries = Vec::new();
                while let Some((Name(name), value)) = map.next_entry()? {
                    entries.push(Field { name, value });
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(AnyObject)
    }
}

/// A name as a part of a JSON pointer.
pub fn escape(name: &str) -> Cow<'_, str> {
    if name.contains(['~', '/']) {
        name.replace('~', "~0").replace('/', "~1").into()
    } else {
        name.into()
    }
}

pub(crate) fn kind(value: &RawValue) -> &'static str {
    match value.get().as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

/// Returns the value found, short enough to repeat in a message.
pub(crate) fn excerpt(value: &RawValue) -> &str {
    const SHOWN: usize = 60;
    match value.get() {
        json if json.len() <= SHOWN && !json.contains('\n') => json,
        _ => kind(value),
    }
}
