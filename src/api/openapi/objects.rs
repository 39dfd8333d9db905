//! Takes the JSON Schemas of the domain's objects into the document. OpenAPI refers to schemas by another path, and has one
//! example where JSON Schema has several.

use std::{borrow::Cow, marker::PhantomData};

use serde_json::Value;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{Ref, RefOr, Schema},
};

use super::shape::PREFIX;
use crate::domain::{
    agent::AgentSpec,
    values::{Bounds, Definitions, FieldValue, object::DEFINITIONS},
};

/// The schema of a type that the domain declares.
pub struct SchemaOf<T>(PhantomData<T>);

/// An alias without parameters, because utoipa accepts no type parameters in the path of a schema.
pub type AgentSpecSchema = SchemaOf<AgentSpec>;

/// Returns the definitions that the schema of the type needs: its own first, then those that it refers to.
fn definitions<T: FieldValue>() -> Vec<(String, Value)> {
    let mut definitions = Definitions::default();
    T::schema(&Bounds::ANY, &mut definitions);
    definitions.schemas
}

impl<T: FieldValue> PartialSchema for SchemaOf<T> {
    fn schema() -> RefOr<Schema> {
        let first = definitions::<T>().into_iter().next();
        schema(first.map(|(_, schema)| schema).unwrap_or_default())
    }
}

impl<T: FieldValue> ToSchema for SchemaOf<T> {
    fn name() -> Cow<'static, str> {
        let first = definitions::<T>().into_iter().next();
        first.map(|(name, _)| name).unwrap_or_default().into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        let others = definitions::<T>().into_iter().skip(1);
        schemas.extend(others.map(|(name, one)| (name, schema(one))));
    }
}

/// Converts a JSON Schema to a schema of utoipa.
fn schema(json: Value) -> RefOr<Schema> {
    let mut json = json;
    adapt(&mut json);
    let read = serde_json::from_value(json);
    // Every schema that the domain makes can be read: a test holds the document against the one in the tree.
    read.unwrap_or_else(|_| Ref::new("").into())
}

fn adapt(json: &mut Value) {
    match json {
        Value::Object(members) => {
            if let Some(Value::String(target)) = members.get_mut("$ref")
                && let Some(name) = target.strip_prefix(DEFINITIONS)
            {
                *target = format!("{PREFIX}{name}");
            }
            if let Some(Value::Array(examples)) = members.get_mut("examples")
                && let Some(example) = examples.pop()
            {
                members.remove("examples");
                members.insert("example".to_owned(), example);
            }
            members.values_mut().for_each(adapt);
        }
        Value::Array(items) => items.iter_mut().for_each(adapt),
        _ => {}
    }
}
