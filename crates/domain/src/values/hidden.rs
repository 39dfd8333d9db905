//! Hides values that not every reader may see: values of headers whose names suggest a secret, and the queries of
//! addresses, which often contain one.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::values::fields::entries;

/// The placeholder for a value that is not shown.
pub const HIDDEN: &str = "***";

/// Returns whether a header's value must be hidden from readers of tasks. It hides rather too many values than too few.
pub fn is_secret_header(name: &str) -> bool {
    const PARTS: [&str; 7] = [
        "auth",
        "cookie",
        "token",
        "secret",
        "password",
        "key",
        "signature",
    ];
    let name = name.to_ascii_lowercase();
    PARTS.iter().any(|part| name.contains(part))
}

/// Hides the links with which people decide: each link is the credential of one person.
pub fn without_links(text: &str) -> Cow<'_, str> {
    const PATH: &str = "/v1/asks/";
    if !text.contains(PATH) {
        return Cow::Borrowed(text);
    }
    let mut parts = text.split(PATH);
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_of_token = |letter: char| letter.is_ascii_alphanumeric() || "_-".contains(letter);
        shown.push_str(PATH);
        shown.push_str(HIDDEN);
        shown.push_str(part.trim_start_matches(is_of_token));
    }
    Cow::Owned(shown)
}

/// Replaces the values of secret headers by [`HIDDEN`].
pub fn hide_secrets(headers: &mut [(String, String)]) {
    for (name, value) in headers {
        if is_secret_header(name) {
            HIDDEN.clone_into(value);
        }
    }
}

/// Returns an address as it is shown: [`HIDDEN`] replaces its query.
pub fn without_query(url: &str) -> Cow<'_, str> {
    match url.split_once('?') {
        None | Some((_, "")) => url.into(),
        Some((before, _)) => format!("{before}?{HIDDEN}").into(),
    }
}

/// Returns the steps of a definition, as text, without the hidden values. `None` if nothing is hidden.
pub fn without_secrets(steps: &RawValue) -> Option<Box<RawValue>> {
    RawValue::from_string(of_steps(steps, MOST_DEPTH)?).ok()
}

/// Does the same for one step.
pub fn step_without_secrets(step: &RawValue) -> Option<Box<RawValue>> {
    RawValue::from_string(of_step(step, MOST_DEPTH)?).ok()
}

/// Does the same for the fields beside the steps of a definition, of which `finally` has steps.
pub fn policies_without_secrets(policies: &RawValue) -> Option<Box<RawValue>> {
    let shown = with_changes(policies, |name, value| match name {
        "finally" => of_steps(value, MOST_DEPTH),
        _ => None,
    });
    RawValue::from_string(shown?).ok()
}

/// Blocks that lie deeper in blocks are not shown. No definition has any.
const MOST_DEPTH: usize = 20;

fn of_steps(steps: &RawValue, depth: usize) -> Option<String> {
    of_list(steps, |step| of_step(step, depth))
}

fn of_list(list: &RawValue, change: impl Fn(&RawValue) -> Option<String>) -> Option<String> {
    let items: Vec<&RawValue> = serde_json::from_str(list.get()).ok()?;
    let shown: Vec<Option<String>> = items.iter().map(|item| change(item)).collect();
    if shown.iter().all(Option::is_none) {
        return None;
    }
    let parts = shown.iter().zip(&items);
    let parts: Vec<&str> = parts
        .map(|(shown, item)| shown.as_deref().unwrap_or(item.get()))
        .collect();
    Some(format!("[{}]", parts.join(",")))
}

fn of_step(step: &RawValue, depth: usize) -> Option<String> {
    let of_steps = |steps: &RawValue| match depth.checked_sub(1) {
        Some(depth) => of_steps(steps, depth),
        None => Some(format!("\"{HIDDEN}\"")),
    };
    with_changes(step, |name, value| match name {
        "request" => of_request(value),
        "steps" => of_steps(value),
        "switch" => of_list(value, |branch| {
            with_changes(branch, |name, value| match name {
                "steps" | "else" => of_steps(value),
                _ => None,
            })
        }),
        "task" => with_changes(value, |name, value| match name {
            "steps" | "finally" => of_steps(value),
            _ => None,
        }),
        "undo" | "probe" | "cancel" => with_changes(value, |name, value| match name {
            "request" => of_request(value),
            _ => None,
        }),
        "url" => {
            let url: String = serde_json::from_str(value.get()).ok()?;
            match without_query(&url) {
                Cow::Borrowed(_) => None,
                Cow::Owned(shown) => serde_json::to_string(&shown).ok(),
            }
        }
        _ => None,
    })
}

fn of_request(request: &RawValue) -> Option<String> {
    with_changes(request, |name, value| match name {
        "headers" => with_changes(value, |name, _| {
            is_secret_header(name).then(|| format!("\"{HIDDEN}\""))
        }),
        _ => None,
    })
}

/// Returns the object with the values that `change` returns for its members; `None` if it changes nothing.
fn with_changes(
    object: &RawValue,
    change: impl Fn(&str, &RawValue) -> Option<String>,
) -> Option<String> {
    let entries = entries(object)?;
    let changed: Vec<Option<String>> = entries
        .iter()
        .map(|(name, value)| change(name, value))
        .collect();
    if changed.iter().all(Option::is_none) {
        return None;
    }
    let members = entries
        .iter()
        .zip(&changed)
        .map(|((name, value), changed)| {
            let name = serde_json::Value::from(&**name);
            format!("{name}:{}", changed.as_deref().unwrap_or(value.get()))
        });
    let members: Vec<String> = members.collect();
    Some(format!("{{{}}}", members.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_people_are_not_shown_wherever_they_are_quoted() {
        let quoted = "mail to a: https://p.example/v1/asks/AbC-_9, and /v1/asks/x";
        assert_eq!(
            without_links(quoted),
            "mail to a: https://p.example/v1/asks/***, and /v1/asks/***"
        );
        assert_eq!(without_links("nothing"), "nothing");
    }

    #[test]
    fn the_query_of_an_address_is_not_shown() {
        assert_eq!(without_query("http://a/b?key=1#x"), "http://a/b?***");
        for plain in ["http://a/b", "http://a/b?", "http://a"] {
            assert_eq!(without_query(plain), plain);
        }
    }

    #[test]
    fn secret_headers_are_hidden_wherever_a_step_makes_a_request_and_all_else_stays_as_written() {
        let written = r#"[{"name":"a","request":{"headers":{"Authorization":"Bearer x","x-tenant":"t"},"body":{"n":1.50,"headers":{"token":"kept"}}},"undo":{"request":{"headers":{"X-Api-Key":"y"}}},"probe":{"request":{"path":"/","headers":{"cookie":["z"]}}}},{"name":"b","url":"http://b/?k=1"},{"name": "c"}]"#;
        let shown = without_secrets(&RawValue::from_string(written.to_owned()).unwrap()).unwrap();
        let expected = written
            .replace("Bearer x", "***")
            .replace("\"y\"", "\"***\"")
            .replace("[\"z\"]", "\"***\"")
            .replace("?k=1", "?***");
        assert_eq!(shown.get(), expected);
    }

    #[test]
    fn secret_headers_are_hidden_in_blocks_and_where_a_promise_is_taken_back() {
        let step =
            r#"{"name":"a","url":"http://a/?k=1","cancel":{"request":{"headers":{"Token":"t1"}}}}"#;
        let block = format!(r#"{{"name":"b","steps":[{step}]}}"#);
        let written = format!(
            r#"[{{"name":"c","switch":[{{"when":"1","steps":[{block}]}},{{"else":[{step}]}}]}}]"#
        );
        let raw = |json: &str| RawValue::from_string(json.to_owned()).unwrap();
        let shown = without_secrets(&raw(&written)).unwrap();
        let expected = written.replace("?k=1", "?***").replace("t1", "***");
        assert_eq!(shown.get(), expected);
        let policies = format!(r#"{{"output":1,"finally":[{step}]}}"#);
        let shown = policies_without_secrets(&raw(&policies)).unwrap();
        assert_eq!(
            shown.get(),
            policies.replace("?k=1", "?***").replace("t1", "***")
        );
    }

    #[test]
    fn where_nothing_is_secret_nothing_is_copied() {
        for written in [
            r#"[{"request":{"headers":{"x-tenant":"t"}}}]"#,
            "[]",
            "7",
            "[7]",
        ] {
            let raw = RawValue::from_string(written.to_owned()).unwrap();
            assert!(without_secrets(&raw).is_none(), "{written}");
        }
    }
}
