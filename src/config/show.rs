//! Formats a setting for a person: in the form of the file, with secrets hidden.

use serde_json::Value;

use super::{allow_list, tokens::HIDDEN};
use crate::store::postgres;

/// Returns the value that was found for a wrong setting, without secrets.
pub fn found(path: &str, value: &Value) -> String {
    if path == "calls.allow" {
        return allow_list::faults(value).join("; ");
    }
    match value {
        Value::String(text) if path == "database_url" => database_without_secrets(text),
        // If a password has a special character that is not encoded, parts of it may be anywhere in the URL.
        Value::String(text) if path == "broker.url" => match text.split_once("://") {
            Some((scheme, _)) => quoted(&format!("{scheme}://{HIDDEN}")),
            None => quoted(HIDDEN),
        },
        Value::String(text) => url_without_secrets(text),
        value => toml(value),
    }
}

/// Hides all but the scheme of a URL: that of another kind of database may contain a password anywhere.
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

/// Hides the part of a URL before its `@`, which may be a password; any other text is not changed.
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

/// Quotes a text for TOML: a JSON string is a valid basic string of TOML.
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
