//! The filters that could multiply data, bounded. Fuel counts instructions, and one filter is one
//! instruction however much it builds.

use minijinja::{Environment, Error, ErrorKind, Value};

use super::{MAX_RENDERED, write};

/// Replaces the filters that have a bounded form here and takes out those that have none.
pub(super) fn bound(environment: &mut Environment<'static>) {
    environment.add_filter("join", join);
    environment.add_filter("replace", replace);
    environment.add_filter("tojson", to_json);
    for multiplying in ["batch", "format", "indent", "pprint", "slice"] {
        environment.remove_filter(multiplying);
    }
    // It prints the whole context, and keeps state.
    for global in ["debug", "namespace"] {
        environment.remove_global(global);
    }
}

fn too_large() -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("the result is larger than {MAX_RENDERED} bytes"),
    )
}

fn join(values: &Value, separator: Option<&str>) -> Result<String, Error> {
    let separator = separator.unwrap_or_default();
    let mut out = String::new();
    for (index, value) in values.try_iter()?.enumerate() {
        if index > 0 {
            push(&mut out, separator)?;
        }
        if value.is_undefined() {
            return Err(ErrorKind::UndefinedError.into());
        }
        match value.as_str() {
            Some(text) => push(&mut out, text)?,
            None => push(&mut out, &to_json(&value)?)?,
        }
    }
    Ok(out)
}

fn replace(text: &str, from: &str, to: &str) -> Result<String, Error> {
    let found = text.matches(from).count();
    if found.saturating_mul(to.len()).saturating_add(text.len()) > MAX_RENDERED {
        return Err(too_large());
    }
    Ok(text.replace(from, to))
}

fn to_json(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write::json(value, "tojson", &mut out)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.reason))?;
    Ok(out)
}

fn push(out: &mut String, text: &str) -> Result<(), Error> {
    if out.len() + text.len() > MAX_RENDERED {
        return Err(too_large());
    }
    out.push_str(text);
    Ok(())
}
