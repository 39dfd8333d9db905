//! Compares JSON with what was expected: an object may have more members than expected, and all else must be equal.

use serde_json::Value;

/// Returns the first difference, with its path; `None` if there is none.
pub fn difference(expected: &Value, actual: &Value) -> Option<String> {
    differs(expected, actual, "", false)
}

/// Does the same as [`difference`], but objects must have the same members.
pub fn exact_difference(expected: &Value, actual: &Value) -> Option<String> {
    differs(expected, actual, "", true)
}

/// Recurses as deep as the JSON is nested, which is bounded because deeper JSON was refused.
fn differs(expected: &Value, actual: &Value, path: &str, exact: bool) -> Option<String> {
    let path_of = |name: &str| match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    match (expected, actual) {
        (Value::Object(expected), Value::Object(actual)) => {
            let missing = expected.iter().find_map(|(name, value)| {
                let path = path_of(name);
                match actual.get(name) {
                    Some(found) => differs(value, found, &path, exact),
                    None => Some(format!("{path} is missing: expected {}", excerpt(value))),
                }
            });
            missing.or_else(|| {
                let mut more = actual
                    .iter()
                    .filter(|(name, _)| !expected.contains_key(*name));
                let (name, value) = more.next().filter(|_| exact)?;
                Some(format!(
                    "{} is {}: nothing was expected",
                    path_of(name),
                    excerpt(value)
                ))
            })
        }
        (Value::Array(expected), Value::Array(actual)) => {
            let pairs = expected.iter().zip(actual).enumerate();
            let mut found = pairs.filter_map(|(index, (expected, actual))| {
                differs(expected, actual, &format!("{path}[{index}]"), exact)
            });
            found.next().or_else(|| {
                (expected.len() != actual.len()).then(|| {
                    let (wanted, got) = (expected.len(), actual.len());
                    let path = if path.is_empty() { "the list" } else { path };
                    format!("{path} has {got} items: expected {wanted}")
                })
            })
        }
        _ if is_equal(expected, actual) => None,
        _ => {
            let is = format!("is {}: expected {}", excerpt(actual), excerpt(expected));
            Some(match path {
                "" => format!("it {is}"),
                path => format!("{path} {is}"),
            })
        }
    }
}

fn is_equal(expected: &Value, actual: &Value) -> bool {
    match (expected.as_f64(), actual.as_f64()) {
        // 1 and 1.0 are the same number. Two whole numbers are compared exactly.
        (Some(one), Some(other)) if expected.is_f64() || actual.is_f64() => one == other,
        _ => expected == actual,
    }
}

const LONGEST_EXCERPT: usize = 200;

/// Returns the value as JSON, cut to the length of a message.
pub fn excerpt(value: &Value) -> String {
    let json = value.to_string();
    match json.char_indices().nth(LONGEST_EXCERPT) {
        Some((end, _)) => format!("{}…", &json[..end]),
        None => json,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_may_have_more_members_and_a_list_may_not() {
        let actual = json!({ "a": 1, "b": [{ "c": 2, "d": 3 }], "e": null });
        for expected in [
            json!({}),
            json!({ "a": 1.0 }),
            json!({ "b": [{ "c": 2 }] }),
            json!({ "e": null }),
        ] {
            assert_eq!(difference(&expected, &actual), None, "{expected}");
        }
        for (expected, message) in [
            (json!({ "a": 2 }), "a is 1: expected 2"),
            (json!({ "a": "1" }), "a is 1: expected \"1\""),
            (json!({ "x": null }), "x is missing: expected null"),
            (json!({ "b": [{ "c": 9 }] }), "b[0].c is 2: expected 9"),
            (json!({ "b": [] }), "b has 1 items: expected 0"),
            (
                json!([1]),
                "it is {\"a\":1,\"b\":[{\"c\":2,\"d\":3}],\"e\":null}: expected [1]",
            ),
        ] {
            assert_eq!(difference(&expected, &actual).as_deref(), Some(message));
        }
        let more = exact_difference(&json!({ "a": 1 }), &json!({ "a": 1, "z": 2 }));
        assert_eq!(more.as_deref(), Some("z is 2: nothing was expected"));
        assert!(difference(&json!(9007199254740993_i64), &json!(9007199254740992_i64)).is_some());
    }
}
