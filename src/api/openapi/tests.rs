//! Tests of the document as it is served.

use std::collections::HashSet;

use serde_json::Value;

use super::words::STATUS_NAME;
use crate::{api::extract::evaluated_preconditions, domain::definition::StatusPattern};

fn document() -> Value {
    serde_json::to_value(crate::api::openapi()).unwrap()
}

#[test]
fn the_document_in_the_tree_is_the_one_that_is_served() {
    let served = super::super::openapi().to_pretty_json().unwrap();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi/openapi.json");
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        kept.trim_end() == served,
        "openapi/openapi.json is out of date: cargo run -- openapi > openapi/openapi.json"
    );
}

fn operations(document: &Value) -> impl Iterator<Item = (String, &Value)> {
    let paths = document["paths"].as_object().unwrap();
    paths.iter().flat_map(|(path, item)| {
        let item = item.as_object().unwrap();
        item.iter()
            .map(move |(method, operation)| (format!("{method} {path}"), operation))
    })
}

#[test]
fn every_operation_says_what_it_is_for() {
    let document = document();
    let tags: HashSet<_> = super::TAGS.iter().map(|(name, _)| *name).collect();
    let mut ids = HashSet::new();
    for (name, operation) in operations(&document) {
        for field in ["summary", "description"] {
            let text = operation[field].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{name} has no {field}");
        }
        assert!(
            tags.contains(operation["tags"][0].as_str().unwrap()),
            "{name}"
        );
        assert!(
            ids.insert(operation["operationId"].as_str().unwrap()),
            "{name}"
        );
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            assert!(parameter["description"].is_string(), "{name}: {parameter}");
        }
        for (status, response) in operation["responses"].as_object().unwrap() {
            let described = response["description"]
                .as_str()
                .is_some_and(|text| !text.is_empty());
            assert!(described || response["$ref"].is_string(), "{name} {status}");
        }
    }
}

#[test]
fn every_reference_leads_somewhere() {
    fn visit(document: &Value, value: &Value) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(target)) = members.get("$ref") {
                    let found = document.pointer(target.trim_start_matches('#'));
                    assert!(found.is_some(), "{target} is not there");
                }
                members.values().for_each(|member| visit(document, member));
            }
            Value::Array(items) => items.iter().for_each(|item| visit(document, item)),
            _ => {}
        }
    }
    let document = document();
    visit(&document, &document);
}

#[test]
fn a_change_lists_the_conditions_that_it_judges_and_no_others() {
    let document = document();
    for (name, operation) in operations(&document) {
        let (method, path) = name.split_once(' ').unwrap();
        let method = method.to_uppercase().parse::<axum::http::Method>().unwrap();
        let listed: Vec<_> = operation["parameters"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|parameter| parameter["in"] == "header")
            .filter_map(|parameter| parameter["name"].as_str())
            .filter(|name| ["If-Match", "If-None-Match"].contains(name))
            .map(str::to_lowercase)
            .collect();
        if method.is_safe() {
            assert!(!listed.contains(&"if-match".to_owned()), "{name}");
        } else {
            let judged = evaluated_preconditions(&method, path).iter();
            let judged: Vec<_> = judged.map(|name| name.as_str().to_owned()).collect();
            assert_eq!(listed, judged, "{name}");
        }
    }
}

/// Checks the constructs that client generators were seen to fail on.
#[test]
fn schemas_are_such_as_generators_understand() {
    let document = document();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for (name, schema) in schemas {
        assert!(schema.get("allOf").is_none(), "{name} is put together");
        assert!(!name.contains('_'), "{name} is named after a generic type");
        let properties = schema["properties"].as_object();
        for (field, property) in properties.into_iter().flatten() {
            let place = format!("{name}.{field}");
            // Generated clients assume that a field with a default is always present.
            assert!(property.get("default").is_none(), "{place}");
            let choices = property["oneOf"].as_array();
            for part in choices.into_iter().flatten().chain([property]) {
                let is_object = part["type"].to_string().contains("\"object\"");
                let says_what = part["additionalProperties"].is_object();
                assert!(
                    !is_object || says_what,
                    "{place} is any object: is it any JSON?"
                );
            }
        }
    }
    for input in ["Submission", "Task"] {
        let input = &schemas[input]["properties"]["input"]["$ref"];
        assert_eq!(*input, "#/components/schemas/Json");
    }
    assert_eq!(schemas["Json"].get("type"), None);
    assert_eq!(schemas["Submission"]["additionalProperties"], false);
    assert_eq!(schemas["StepRequest"].get("required"), None);
}

/// Returns the schema that a reference points to, or the schema itself if it is not a reference.
fn resolved<'d>(document: &'d Value, schema: &'d Value) -> &'d Value {
    let target = schema["$ref"].as_str();
    let target = target.and_then(|target| document.pointer(target.trim_start_matches('#')));
    target.unwrap_or(schema)
}

/// Returns true if an object that matches `one` may match `other` as well.
fn may_be(document: &Value, one: &Value, other: &Value) -> bool {
    let (known, required) = (&one["properties"], &other["required"]);
    let mut required = required.as_array().into_iter().flatten();
    let has_all = required.all(|name| known.get(name.as_str().unwrap()).is_some());
    let words = |schema: &Value| resolved(document, schema)["enum"].clone();
    let properties = other["properties"].as_object();
    let mut properties = properties.into_iter().flatten();
    // Both have an enumeration in the same field, but with different words.
    let is_told_apart = properties.any(|(name, schema)| {
        let of_one = known.get(name).map_or(Value::Null, words);
        of_one.is_array() && words(schema).is_array() && of_one != words(schema)
    });
    // The names of the members of policies by status are no others.
    let is_named_otherwise = |names: &Value, of: &Value| {
        let required = of["required"].as_array().into_iter().flatten();
        let mut required = required.filter_map(Value::as_str);
        names["propertyNames"]["pattern"] == STATUS_NAME
            && required.any(|name| name != "else" && StatusPattern::parse(name).is_none())
    };
    has_all
        && other["additionalProperties"] != false
        && !is_told_apart
        && !is_named_otherwise(one, other)
        && !is_named_otherwise(other, one)
}

/// A generated client refuses an answer that is two of the parts of a choice by `oneOf`.
#[test]
fn what_is_one_part_of_a_choice_is_no_other() {
    let document = document();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let mut compared = 0;
    for (name, schema) in schemas {
        let parts = schema["oneOf"].as_array();
        let parts = parts.into_iter().flatten();
        let parts: Vec<_> = parts.map(|part| resolved(&document, part)).collect();
        let is_object = |part: &Value| part["type"] == "object";
        for (at, one) in parts.iter().enumerate() {
            for (other_at, other) in parts.iter().enumerate() {
                if at == other_at || !is_object(one) || !is_object(other) {
                    continue;
                }
                compared += 1;
                assert!(
                    !may_be(&document, one, other),
                    "{name}: parts {at} and {other_at}"
                );
            }
        }
    }
    assert!(compared > 0, "there is a choice of objects");
}

#[test]
fn a_link_leads_from_a_submission_to_its_task() {
    let document = document();
    let ids: HashSet<_> = operations(&document)
        .map(|(_, operation)| operation["operationId"].as_str().unwrap())
        .collect();
    for path in ["/v1/tasks", "/v1/tasks/{id}/clone"] {
        let links = &document["paths"][path]["post"]["responses"]["202"]["links"];
        let links = links.as_object().unwrap();
        assert_eq!(links["get_task"]["parameters"]["id"], "$response.body#/id");
        for link in links.values() {
            let target = link["operationId"].as_str().unwrap();
            assert!(ids.contains(target), "{target}");
        }
    }
}

#[test]
fn headers_and_webhooks_are_described() {
    let document = document();
    let get = &document["paths"]["/v1/tasks/{id}"]["get"];
    assert!(get["responses"]["304"]["headers"]["ETag"].is_object());
    let mut parameters = get["parameters"].as_array().unwrap().iter();
    assert!(parameters.any(|parameter| parameter["name"] == "If-None-Match"));
    let submitted = &document["paths"]["/v1/tasks"]["post"]["responses"]["202"]["headers"];
    for name in [
        "ETag",
        "Retry-After",
        "Location",
        "Preference-Applied",
        "Idempotency-Replayed",
        "Vary",
    ] {
        assert!(submitted[name].is_object(), "{name}");
    }
    let unavailable = &document["components"]["responses"]["Unavailable"];
    assert!(unavailable["headers"]["Retry-After"].is_object());
    let content = &document["webhooks"]["task_event"]["post"]["requestBody"]["content"];
    assert!(content["application/cloudevents+json"]["schema"].is_object());
}

#[test]
fn the_document_is_openapi_3_1_and_names_version_and_licence() {
    let document = document();
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(document["info"]["license"]["identifier"], "Apache-2.0");
    assert!(document["info"].get("contact").is_none());
}
