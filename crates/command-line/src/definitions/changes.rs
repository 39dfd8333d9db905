//! The differences between a definition in a file and on a server.

use serde_json::{Map, Value};

/// The longest value that is shown, in characters.
const LONGEST: usize = 120;

/// A value that differs.
#[derive(Clone, PartialEq, Debug)]
pub struct ValueChange {
    /// The place as people read it: `steps.charge.request.body.amount`. Items that have a name are found by it.
    pub place: String,
    pub before: Option<Value>,
    pub after: Option<Value>,
}

impl ValueChange {
    /// Returns the lines of the change, as `diff` marks them.
    pub fn lines(&self) -> Vec<(char, String)> {
        let line = |sign, value: &Option<Value>| {
            value
                .as_ref()
                .map(|value| (sign, format!("{}: {}", self.place, shown(value))))
        };
        [line('-', &self.before), line('+', &self.after)]
            .into_iter()
            .flatten()
            .collect()
    }
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

pub fn differences(before: &Map<String, Value>, after: &Map<String, Value>) -> Vec<ValueChange> {
    let mut changes = Vec::new();
    compare_members("", before, after, &mut changes);
    changes
}

fn compare_members(
    place: &str,
    before: &Map<String, Value>,
    after: &Map<String, Value>,
    changes: &mut Vec<ValueChange>,
) {
    let new = after.keys().filter(|name| !before.contains_key(*name));
    for name in before.keys().chain(new) {
        let place = match place.is_empty() {
            true => name.clone(),
            false => format!("{place}.{name}"),
        };
        compare(&place, before.get(name), after.get(name), changes);
    }
}

fn compare(
    place: &str,
    before: Option<&Value>,
    after: Option<&Value>,
    changes: &mut Vec<ValueChange>,
) {
    match (before, after) {
        (Some(before), Some(after)) if before == after => {}
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            compare_members(place, before, after, changes)
        }
        (Some(Value::Array(before)), Some(Value::Array(after))) => {
            let (before, after) = (by_name(before), by_name(after));
            compare_members(place, &before, &after, changes);
            let order = |items: &Map<String, Value>, others: &Map<String, Value>| {
                let common = items.keys().filter(|name| others.contains_key(*name));
                common.cloned().collect::<Vec<_>>()
            };
            let (was, is) = (order(&before, &after), order(&after, &before));
            if was != is {
                changes.push(ValueChange {
                    place: format!("{place} (order)"),
                    before: Some(was.into()),
                    after: Some(is.into()),
                });
            }
        }
        (before, after) => changes.push(ValueChange {
            place: place.to_owned(),
            before: before.cloned(),
            after: after.cloned(),
        }),
    }
}

/// Returns the items by their names, or by their numbers if one has none or two have the same.
fn by_name(items: &[Value]) -> Map<String, Value> {
    let named: Option<Vec<_>> = items
        .iter()
        .map(|item| Some((item["name"].as_str()?.to_owned(), item.clone())))
        .collect();
    if let Some(named) = named {
        let members = Map::from_iter(named);
        if members.len() == items.len() {
            return members;
        }
    }
    items
        .iter()
        .enumerate()
        .map(|(at, item)| (at.to_string(), item.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lines(before: Value, after: Value) -> Vec<String> {
        let changes = differences(before.as_object().unwrap(), after.as_object().unwrap());
        let lines = changes.iter().flat_map(ValueChange::lines);
        lines.map(|(sign, line)| format!("{sign} {line}")).collect()
    }

    #[test]
    fn steps_are_compared_by_their_names() {
        let before = json!({ "steps": [{ "name": "a", "x": 1 }, { "name": "b" }] });
        let after =
            json!({ "steps": [{ "name": "new" }, { "name": "b" }, { "name": "a", "x": 2 }] });
        assert_eq!(
            lines(before, after),
            [
                "- steps.a.x: 1",
                "+ steps.a.x: 2",
                "+ steps.new: {\"name\":\"new\"}",
                "- steps (order): [\"a\",\"b\"]",
                "+ steps (order): [\"b\",\"a\"]"
            ]
        );
    }

    #[test]
    fn items_without_names_are_compared_by_their_numbers() {
        assert_eq!(
            lines(json!({ "a": [1, 2] }), json!({ "a": [1, 3, 4] })),
            ["- a.1: 2", "+ a.1: 3", "+ a.2: 4"]
        );
        assert_eq!(
            lines(json!({ "a": [] }), json!({ "a": [] })),
            Vec::<String>::new()
        );
    }
}
