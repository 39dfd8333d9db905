//! The values of all sources, merged, each with the name of its source.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

pub struct Layers {
    values: Value,
    /// The source of each value that is not a table, and of each empty table, by its path.
    origins: BTreeMap<String, String>,
}

impl Default for Layers {
    fn default() -> Self {
        Self {
            values: Value::Object(Map::new()),
            origins: BTreeMap::new(),
        }
    }
}

impl Layers {
    pub fn values(&self) -> &Value {
        &self.values
    }

    /// Sets the value at a path whose parts are joined by dots. With an empty path, the value is the whole file.
    pub fn set(&mut self, origin: &str, path: &str, value: Value) {
        let parts = path.split('.').filter(|part| !part.is_empty());
        let mut way = parts.map(str::to_owned).collect();
        self.merge(origin, &mut way, value);
    }

    /// Merges a value into the layers: tables are merged; any other value replaces that of a weaker source. A name may
    /// contain dots.
    fn merge(&mut self, origin: &str, way: &mut Vec<String>, value: Value) {
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                for (name, value) in fields {
                    way.push(name);
                    self.merge(origin, way, value);
                    way.pop();
                }
            }
            // An empty file sets no value.
            _ if way.is_empty() => {}
            value => {
                let slot = slot(&mut self.values, way);
                let is_kept = slot.is_object() && value.is_object();
                let path = way.join(".");
                if !is_kept {
                    *slot = value;
                    let below = format!("{path}.");
                    self.origins.retain(|known, _| !known.starts_with(&below));
                }
                self.origins.insert(path, origin.to_owned());
            }
        }
    }

    /// Returns the source of exactly this value, or of a value in it.
    pub fn origin(&self, path: &str) -> Option<&str> {
        let at = self.origins.get(path).map(String::as_str);
        at.or_else(|| self.origin_below(path))
    }

    /// Returns the source of this value, or of the table or list that contains it.
    pub fn nearest_origin(&self, path: &str) -> &str {
        let parents = std::iter::successors(Some(path), |path| Some(path.rsplit_once('.')?.0));
        let named = parents.filter_map(|path| self.origin(path)).next();
        named.unwrap_or("default")
    }

    fn origin_below(&self, path: &str) -> Option<&str> {
        let below = format!("{path}.");
        let (first, origin) = self.origins.range(below.clone()..).next()?;
        first.starts_with(&below).then_some(origin)
    }
}

/// Returns the value at a path whose parts are joined by dots. A part may be the index of an item.
pub fn find<'v>(values: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(values, |value, part| match value {
        Value::Object(fields) => fields.get(part),
        Value::Array(items) => items.get(part.parse::<usize>().ok()?),
        _ => None,
    })
}

/// Returns the value at this path, and makes the tables that contain it.
fn slot<'v>(values: &'v mut Value, way: &[String]) -> &'v mut Value {
    way.iter().fold(values, |value, part| {
        if !value.is_object() {
            *value = Value::Object(Map::new());
        }
        &mut value[part.as_str()]
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tables_are_merged_and_other_values_replaced() {
        let mut layers = Layers::default();
        let file = json!({"log": "warn", "calls": {"allow": ["a", "b"], "url": true}, "tls": {}});
        layers.set("file", "", file);
        layers.set("environment", "calls.allow", json!(["c"]));
        layers.set("flag", "store.bytes", json!(7));
        assert_eq!(
            layers.values(),
            &json!({"log": "warn", "calls": {"allow": ["c"], "url": true}, "tls": {}, "store": {"bytes": 7}})
        );
        for (path, origin) in [
            ("log", Some("file")),
            ("calls.allow", Some("environment")),
            ("calls.url", Some("file")),
            ("tls", Some("file")),
            ("store", Some("flag")),
            ("store.other", None),
        ] {
            assert_eq!(layers.origin(path), origin, "{path}");
        }
        assert_eq!(layers.nearest_origin("calls.allow.0"), "environment");
        assert_eq!(layers.nearest_origin("store.other"), "flag");
        assert_eq!(layers.nearest_origin("other"), "default");
    }

    #[test]
    fn a_value_takes_the_place_of_a_table_with_all_its_origins() {
        let mut layers = Layers::default();
        layers.set("file", "", json!({"calls": {"url": true}}));
        layers.set("environment", "calls", json!("none"));
        assert_eq!(layers.values(), &json!({"calls": "none"}));
        assert_eq!(layers.origin("calls.url"), None);
        layers.set("flag", "calls.url", json!(false));
        assert_eq!(layers.values(), &json!({"calls": {"url": false}}));
    }

    #[test]
    fn a_path_leads_through_tables_and_lists() {
        let values = json!({"a": [{"b": 1}]});
        assert_eq!(find(&values, "a.0.b"), Some(&json!(1)));
        assert_eq!(find(&values, "a.1.b"), None);
        assert_eq!(find(&values, "a.0.b.c"), None);
    }
}
