//! The description of an object, for JSON Schema and for the documentation.

use serde_json::{Map, Value, json};

use crate::Object;

/// The prefix of references between schemas of one document.
pub const DEFINITIONS: &str = "#/$defs/";

/// The schemas that others refer to, and the tables of their fields, in the order in which they are met.
#[derive(Default)]
pub struct Definitions {
    pub schemas: Vec<(String, Value)>,
    pub tables: Vec<Table>,
}

/// The fields of an object, for the documentation.
pub struct Table {
    pub name: String,
    pub about: String,
    pub rows: Vec<DocsRow>,
}

/// A field, for the documentation.
pub struct DocsRow {
    pub field: String,
    /// Such as "whole number, 1 to 100".
    pub form: String,
    /// "required", the default as JSON, or nothing.
    pub default: String,
    pub about: String,
}

/// A field of an object, as its declaration has it.
pub struct Property {
    pub name: &'static str,
    pub about: &'static str,
    /// The schema of its type, with its bounds.
    pub schema: Value,
    pub form: String,
    pub default: Option<Value>,
    pub is_required: bool,
    pub example: Option<Value>,
    pub pattern: Option<&'static str>,
}

impl Definitions {
    /// Refers to a schema by its name, and makes it where it is not there yet.
    pub fn refer(&mut self, name: &str, make: impl FnOnce(&mut Self) -> Value) -> Value {
        if !self.schemas.iter().any(|(known, _)| known == name) {
            // It may refer to itself.
            let at = self.schemas.len();
            self.schemas.push((name.to_owned(), Value::Null));
            self.schemas[at].1 = make(self);
        }
        json!({ "$ref": format!("{DEFINITIONS}{name}") })
    }

    /// Refers to an object, as it is declared.
    pub fn object<T: Object>(&mut self) -> Value {
        self.refer(T::NAME, |definitions| {
            let at = definitions.tables.len();
            definitions.tables.push(Table {
                name: T::NAME.to_owned(),
                about: T::ABOUT.replace('\n', " "),
                rows: Vec::new(),
            });
            let properties = T::properties(definitions);
            definitions.tables[at].rows = properties.iter().map(Property::row).collect();
            let mut schema = object_schema(T::ABOUT, properties);
            if T::HAS_ONE_FIELD {
                schema["maxProperties"] = 1.into();
                schema["minProperties"] = 1.into();
            }
            schema
        })
    }

    /// Refers to words that stand for something.
    pub fn words(&mut self, name: &str, about: &str, words: &[&str]) -> Value {
        self.refer(
            name,
            |_| json!({ "type": "string", "description": about, "enum": words }),
        )
    }

    /// One document with the schema of the name at its root and all others below `$defs`.
    pub fn document(&self, name: &str) -> Value {
        let all = self.schemas.iter().cloned();
        let all: Map<_, _> = all.collect();
        json!({ "$ref": format!("{DEFINITIONS}{name}"), "$defs": all })
    }
}

fn object_schema(about: &str, properties: Vec<Property>) -> Value {
    let required = properties.iter().filter(|property| property.is_required);
    let required: Vec<_> = required.map(|property| property.name).collect();
    let members = properties.into_iter();
    let members: Map<_, _> = members
        .map(|property| (property.name.to_owned(), property.schema()))
        .collect();
    let mut schema = json!({ "type": "object" });
    if !about.is_empty() {
        schema["description"] = about.into();
    }
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    schema["properties"] = members.into();
    schema["additionalProperties"] = false.into();
    schema
}

impl Property {
    /// A field that may be left out may be null too.
    fn schema(self) -> Value {
        let mut schema = self.schema;
        if let Some(pattern) = self.pattern {
            schema["pattern"] = pattern.into();
        }
        if let Some(example) = self.example {
            schema["examples"] = json!([example]);
        }
        if !self.about.is_empty() {
            schema["description"] = self.about.into();
        }
        if !self.is_required {
            schema = match schema.get("type") {
                Some(kind) => {
                    schema["type"] = json!([kind, "null"]);
                    schema
                }
                None => json!({ "oneOf": [schema, { "type": "null" }] }),
            };
        }
        if let Some(default) = self.default {
            schema["default"] = default;
        }
        schema
    }

    fn row(&self) -> DocsRow {
        let default = match (&self.default, self.is_required) {
            (Some(default), _) => default.to_string(),
            (None, true) => "required".to_owned(),
            (None, false) => String::new(),
        };
        DocsRow {
            field: self.name.to_owned(),
            form: self.form.clone(),
            default,
            about: self.about.replace('\n', " "),
        }
    }
}
