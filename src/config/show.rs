//! Formats a setting for a person: in the form of the file, with secrets hidden.

use serde_json::Value;

use super::{allow_list, tokens::HIDDEN};
use crate::store::postgres;

/// The value that was found for a wrong setting.
pub fn found(path: &str, value: &Value) -> String {
    if path == "calls.allow" {
        return allow_list::faults(value).join("; ");
    }
    match value {
        Value::String(text) if path == "database_url" => database_without_secrets(text),
        // A password with a special character that is not encoded may be anywhere in it.
        Value::String(text) if path == "broker.url" => match text.split_once("://") {
            Some((scheme, _)) => quoted(&format!("{scheme}://{HIDDEN}")),
            None => quoted(HIDDEN),
        },
        Value::String(text) => url_without_secrets(text),
        value => toml(value),
    }
}

/// The URL of another kind of database may contain a password anywhere.
fn database_without_secrets(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, _)) if scheme != "sqlite" => {
            let shown = quoted(&format!("{scheme}://{HIDDEN}"));
            let fault = postgres::is_url(url).then(|| postgres::fault_of_url(url));
            match fault.flatten() {
                Some(fault) => format!("{shown}: {fault}"),
                None => shown,
            }
        }
        _ => quoted(url),
    }
}

/// A URL may hold a password before its `@`; other text stays as it is.
pub fn url_without_secrets(text: &str) -> String {
    match text
        .split_once("://")
        .map(|(scheme, rest)| (scheme, rest.rsplit_once('@')))
    {
        Some((scheme, Some((_, rest)))) => quoted(&format!("{scheme}://{HIDDEN}@{rest}")),
        _ => quoted(text),
    }
}

pub fn toml(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(toml).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(fields) if fields.is_empty() => "{}".to_owned(),
        Value::Object(fields) => {
            let fields: Vec<_> = fields
                .iter()
                // TOML cannot express a setting without a value.
                .filter(|(_, value)| !value.is_null())
                .map(|(name, value)| format!("{} = {}", key(name), toml(value)))
                .collect();
            format!("{{ {} }}", fields.join(", "))
        }
        other => other.to_string(),
    }
}

/// A JSON string is a valid basic string of TOML.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn key(name: &str) -> String {
    let is_bare = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    if is_bare {
        name.to_owned()
    } else {
        quoted(name)
    }
}
