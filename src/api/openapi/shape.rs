//! Adapts the schemas to client generators. What serde and the handlers declare is correct, but generators do not
//! understand all of it: each function here explains what it works around.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use utoipa::openapi::{
    AllOf, AllOfBuilder, Array, Object, OneOf, OneOfBuilder, OpenApi, Ref, RefOr, Schema, Type,
    path::{Operation, ParameterIn},
    schema::{AdditionalProperties, SchemaType},
};

use super::operations_of;

type Schemas = BTreeMap<String, RefOr<Schema>>;

pub const PREFIX: &str = "#/components/schemas/";
/// The names that utoipa gives to generic pages, without their items.
const PAGE: &str = "Page_";

/// Applies all adaptations.
pub fn arrange(document: &mut OpenApi) {
    let webhooks = document.webhooks.iter_mut();
    let all = webhooks.chain([&mut document.paths]);
    for item in all.flat_map(|paths| paths.paths.values_mut()) {
        for (_, operation) in operations_of(item) {
            parameters_are_not_null(operation);
        }
    }
    name_pages(document);
    let bodies = request_bodies(document);
    let schemas = &mut document.components.get_or_insert_default().schemas;
    join_parts(schemas);
    move_defaults_inside(schemas);
    refuse_other_fields(schemas, bodies);
    drop_unused(document);
}

/// An `Option` parameter may be left out; it can never be sent as null.
fn parameters_are_not_null(operation: &mut Operation) {
    for parameter in operation.parameters.iter_mut().flatten() {
        let RefOr::T(parameter) = parameter else {
            continue;
        };
        if parameter.parameter_in != ParameterIn::Path
            && let Some(schema) = &mut parameter.schema
        {
            let present = without_null(schema.clone());
            *schema = present;
        }
    }
}

/// Pages are generic, so utoipa names them `Page_Task` and copies the schema of their items into them. This renames
/// a page of tasks to `TaskPage` and makes its items references to `Task`.
fn name_pages(document: &mut OpenApi) {
    let schemas = &mut document.components.get_or_insert_default().schemas;
    let generic = schemas.extract_if(.., |name, _| name.starts_with(PAGE));
    let pages: Vec<_> = generic.collect();
    for (name, mut page) in pages {
        let item = name.trim_start_matches(PAGE);
        if let RefOr::T(Schema::Object(object)) = &mut page {
            let items = Array::new(Ref::from_schema_name(item));
            object.properties.insert("items".to_owned(), items.into());
        }
        schemas.insert(format!("{item}Page"), page);
    }
    for item in document.paths.paths.values_mut() {
        let operations = operations_of(item).map(|(_, operation)| operation);
        let responses = operations.flat_map(|operation| operation.responses.responses.values_mut());
        for response in responses {
            let RefOr::T(response) = response else {
                continue;
            };
            for content in response.content.values_mut() {
                if let RefOr::T(content) = content
                    && let Some(RefOr::Ref(named)) = &mut content.schema
                    && let Some(item) = named.ref_location.strip_prefix(&format!("{PREFIX}{PAGE}"))
                {
                    *named = Ref::from_schema_name(format!("{item}Page"));
                }
            }
        }
    }
}

fn is_null(schema: &RefOr<Schema>) -> bool {
    let RefOr::T(Schema::Object(object)) = schema else {
        return false;
    };
    matches!(object.schema_type, SchemaType::Type(Type::Null))
}

fn never_null(schema_type: &mut SchemaType) {
    if let SchemaType::Array(types) = schema_type {
        types.retain(|one| *one != Type::Null);
        if let [only] = types.as_slice() {
            *schema_type = SchemaType::Type(only.clone());
        }
    }
}

fn without_null(schema: RefOr<Schema>) -> RefOr<Schema> {
    match schema {
        RefOr::T(Schema::Object(mut object)) => {
            never_null(&mut object.schema_type);
            RefOr::T(Schema::Object(object))
        }
        RefOr::T(Schema::Array(mut array)) => {
            never_null(&mut array.schema_type);
            RefOr::T(Schema::Array(array))
        }
        RefOr::T(Schema::OneOf(mut choice)) => {
            choice.items.retain(|item| !is_null(item));
            match choice.items.len() {
                1 => choice.items.remove(0),
                _ => RefOr::T(Schema::OneOf(choice)),
            }
        }
        other => other,
    }
}

/// Merges an object that is composed of parts (`allOf`) into one object: a generator that makes a class of each
/// part drops fields that it cannot inherit, and a composed object cannot reject fields that none of its parts
/// knows.
fn join_parts(schemas: &mut Schemas) {
    let before = schemas.clone();
    for schema in schemas.values_mut() {
        if let RefOr::T(Schema::AllOf(parts)) = schema
            && let Some(whole) = joined(parts, &before)
        {
            *schema = RefOr::T(Schema::Object(whole));
        }
    }
}

/// `None` if a part is not an object.
fn joined(parts: &AllOf, schemas: &Schemas) -> Option<Object> {
    let mut whole = Object::with_type(Type::Object);
    whole.description = parts.description.clone();
    whole.example = parts.example.clone();
    for part in &parts.items {
        let part = match part {
            RefOr::Ref(named) => schemas.get(named.ref_location.strip_prefix(PREFIX)?)?,
            part => part,
        };
        let part = match part {
            RefOr::T(Schema::Object(object)) => object.clone(),
            RefOr::T(Schema::AllOf(parts)) => joined(parts, schemas)?,
            RefOr::T(Schema::OneOf(choice)) => alternatives(choice)?,
            _ => return None,
        };
        whole.properties.extend(part.properties);
        whole.required.extend(part.required);
    }
    Some(whole)
}

/// Merges a choice between objects into one object, which requires none of their properties. `None` if an alternative
/// is not an object. An alternative with one property is a variant of an enum: its description is that of the property.
fn alternatives(choice: &OneOf) -> Option<Object> {
    let mut whole = Object::with_type(Type::Object);
    for alternative in &choice.items {
        let RefOr::T(Schema::Object(object)) = alternative else {
            return None;
        };
        let is_variant = object.properties.len() == 1;
        for (name, property) in &object.properties {
            let mut property = property.clone();
            if let RefOr::Ref(named) = &mut property
                && is_variant
                && named.description.is_empty()
            {
                named.description = object.description.clone().unwrap_or_default();
            }
            whole.properties.insert(name.clone(), property);
        }
    }
    Some(whole)
}

/// Moves a default from a nullable property to the alternative beside null. Generators treat a property with a
/// default as always present, in requests too, where it is optional.
fn move_defaults_inside(schemas: &mut Schemas) {
    for schema in schemas.values_mut() {
        let RefOr::T(Schema::Object(object)) = schema else {
            continue;
        };
        for property in object.properties.values_mut() {
            if let RefOr::T(inner) = property
                && let Some(choice) = with_default_inside(inner)
            {
                *property = choice;
            }
        }
    }
}

fn with_default_inside(property: &Schema) -> Option<RefOr<Schema>> {
    let mut choice = OneOfBuilder::new();
    let value: RefOr<Schema> = match property {
        Schema::Object(object) if object.default.is_some() => {
            choice = choice.description(object.description.clone());
            let mut object = object.clone();
            object.description = None;
            without_null(RefOr::T(Schema::Object(object)))
        }
        Schema::OneOf(before) if before.default.is_some() => {
            choice = choice.description(before.description.clone());
            let named = without_null(RefOr::T(Schema::OneOf(before.clone())));
            if let RefOr::Ref(named) = &named
                && !named.description.is_empty()
            {
                choice = choice.description(Some(named.description.clone()));
            }
            let mut value = AllOfBuilder::new().item(plain(named));
            value = value.default(before.default.clone());
            Schema::AllOf(value.build()).into()
        }
        _ => return None,
    };
    let null = Object::with_type(Type::Null);
    Some(Schema::OneOf(choice.item(value).item(null).build()).into())
}

fn plain(schema: RefOr<Schema>) -> RefOr<Schema> {
    match schema {
        RefOr::Ref(named) => RefOr::Ref(Ref::new(named.ref_location)),
        schema => schema,
    }
}

/// The schemas that request bodies are made of.
fn request_bodies(document: &OpenApi) -> BTreeSet<String> {
    let mut bodies = BTreeSet::new();
    for item in document.paths.paths.values() {
        for (_, operation) in operations_of(&mut item.clone()) {
            bodies.extend(references(&operation.request_body));
        }
    }
    bodies
}

/// The service rejects a body with an unknown field.
fn refuse_other_fields(schemas: &mut Schemas, bodies: BTreeSet<String>) {
    let mut open: Vec<_> = bodies.into_iter().collect();
    let mut closed = BTreeSet::new();
    while let Some(name) = open.pop() {
        let Some(schema) = schemas.get_mut(&name) else {
            continue;
        };
        if closed.insert(name) {
            open.extend(references(schema));
            if let RefOr::T(Schema::Object(object)) = schema
                && !object.properties.is_empty()
            {
                let none = AdditionalProperties::FreeForm(false);
                object.additional_properties = Some(Box::new(none));
            }
        }
    }
}

/// Removes schemas that only served as a part of others.
fn drop_unused(document: &mut OpenApi) {
    loop {
        let used: BTreeSet<_> = references(&*document).collect();
        let schemas = &mut document.components.get_or_insert_default().schemas;
        let before = schemas.len();
        schemas.retain(|name, _| used.contains(name));
        if schemas.len() == before {
            return;
        }
    }
}

/// The names of all referenced schemas.
fn references(part: &impl serde::Serialize) -> impl Iterator<Item = String> {
    fn collect(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(target)) = members.get("$ref") {
                    found.extend(target.strip_prefix(PREFIX).map(str::to_owned));
                }
                members.values().for_each(|member| collect(member, found));
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    // A document always serialises.
    collect(&serde_json::to_value(part).unwrap_or_default(), &mut found);
    found.into_iter()
}
