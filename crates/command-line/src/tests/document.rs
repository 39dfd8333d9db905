//! Compares every operation and every field that the crate uses with the document of the API.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{operations, shapes};

fn document() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../openapi/openapi.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns what a reference leads to.
fn resolve<'d>(document: &'d Value, value: &'d Value) -> &'d Value {
    match value["$ref"].as_str() {
        Some(path) => document.pointer(path.strip_prefix('#').unwrap()).unwrap(),
        None => value,
    }
}

/// Returns the names of all members of a schema, also of those that it consists of.
fn members(document: &Value, schema: &Value, names: &mut BTreeSet<String>) {
    let schema = resolve(document, schema);
    for name in schema["properties"]
        .as_object()
        .into_iter()
        .flat_map(|properties| properties.keys())
    {
        names.insert(name.clone());
    }
    for part in ["allOf", "oneOf", "anyOf"] {
        for schema in schema[part].as_array().into_iter().flatten() {
            members(document, schema, names);
        }
    }
}

#[test]
fn every_operation_is_in_the_document_with_the_names_that_are_sent() {
    let document = document();
    for operation in operations::ALL {
        let id = operation.id;
        let found = &document["paths"][operation.path][operation.method.as_str().to_lowercase()];
        assert_eq!(
            found["operationId"], id,
            "{} {}",
            operation.method, operation.path
        );
        let parameters: Vec<_> = found["parameters"]
            .as_array()
            .into_iter()
            .flatten()
            .collect();
        let parameters: Vec<_> = parameters
            .iter()
            .map(|parameter| resolve(&document, parameter))
            .collect();
        for name in operation.query {
            let is_known = parameters
                .iter()
                .any(|known| known["name"] == *name && known["in"] == "query");
            assert!(is_known, "{id} has no parameter {name}");
        }
        let mut names = BTreeSet::new();
        for content in found["requestBody"]["content"]
            .as_object()
            .into_iter()
            .flat_map(|content| content.values())
        {
            members(&document, &content["schema"], &mut names);
        }
        for name in operation.body {
            assert!(
                names.contains(*name),
                "the body of {id} has no member {name}: {names:?}"
            );
        }
    }
}

#[test]
fn every_field_that_is_read_is_in_the_document() {
    let document = document();
    for (schema, fields) in shapes::ALL {
        let found = &document["components"]["schemas"][schema];
        assert!(found.is_object(), "{schema} is not in the document");
        let mut names = BTreeSet::new();
        members(&document, found, &mut names);
        for field in *fields {
            assert!(
                names.contains(*field),
                "{schema} has no field {field}: {names:?}"
            );
        }
    }
}
