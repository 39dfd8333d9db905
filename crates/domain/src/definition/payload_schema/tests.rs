use serde_json::{Value, json};

use super::*;
use crate::template::Budget;

fn read(schema: &Value) -> Result<PayloadSchema, Vec<FieldFault>> {
    let source = Payload::from_value(schema);
    let budget = Budget::evaluation();
    PayloadSchema::read(source.raw(), "/input_schema", Origin::Submitted(&budget))
}

fn accepted(schema: &Value) -> PayloadSchema {
    read(schema).unwrap_or_else(|faults| panic!("{schema}: {faults:?}"))
}

/// Returns the fault of a schema that is refused.
fn refused(schema: &Value) -> String {
    let faults = read(schema).map(|_| ()).unwrap_err();
    assert_eq!(faults.len(), 1);
    faults[0].to_string()
}

fn faults(schema: &PayloadSchema, payload: &Value) -> Vec<String> {
    let payload = Payload::from_value(payload);
    let checked = [SchemaOwner::Task, SchemaOwner::Workflow]
        .map(|owner| schema.check(&payload, "/input", owner));
    assert_eq!(checked[0], checked[1]);
    let [_, checked] = checked;
    let faults = checked.err().unwrap_or_default();
    faults.iter().map(ToString::to_string).collect()
}

#[test]
fn each_fault_is_named_with_its_place_and_without_the_value() {
    let schema = accepted(&json!({
        "type": "object",
        "required": ["sku", "a/b"],
        "additionalProperties": false,
        "properties": {
            "sku": { "type": "string" },
            "quantity": { "type": "integer", "minimum": 1 },
            "card": { "pattern": "^tok_[a-z]+$" },
            "way": { "enum": ["post", "courier"] },
        }
    }));
    assert_eq!(
        faults(
            &schema,
            &json!({ "sku": "book-7", "a/b": 1, "quantity": 2 })
        )
        .len(),
        1
    );
    let wrong = json!({ "quantity": 0, "card": "4111-1111", "way": "boat", "x~": 1, "sku": 7 });
    assert_eq!(
        faults(&schema, &wrong),
        [
            "/input/a~1b: is missing",
            "/input/quantity: is less than the minimum of 1",
            "/input/card: does not match \"^tok_[a-z]+$\"",
            "/input/way: is not one of \"post\" or \"courier\"",
            "/input/sku: is not of type \"string\"",
            "/input/x~0: is not allowed by the schema: remove it",
        ]
    );
}

#[test]
fn only_so_many_faults_are_named_each_in_so_many_characters() {
    let schema = accepted(&json!({
        "items": { "enum": (0..100).collect::<Vec<_>>() },
        "properties": { "a": true },
        "additionalProperties": false,
    }));
    let many = faults(&schema, &json!(vec!["x"; 500]));
    assert_eq!(many.len(), 21);
    assert!(many[0].chars().count() < 350, "{}", many[0]);
    assert_eq!(many[20], "/input: has 480 more faults");
    let names: serde_json::Map<_, _> = (0..500).map(|at| (format!("n{at}"), json!(1))).collect();
    let many = faults(&schema, &Value::Object(names));
    assert_eq!(many.len(), 21, "{many:?}");
    let long = faults(&schema, &json!({ "n".repeat(5000): 1 }));
    assert!(long[0].len() < 300);
}

#[test]
fn a_schema_that_is_none_is_refused_where_it_is_wrong() {
    let deep = (0..150).fold(json!({}), |schema, _| json!({ "items": schema }));
    for (schema, fault) in [
        (json!([]), "/input_schema: is not valid"),
        (
            json!({ "type": "strng" }),
            "/input_schema/type: must be array, boolean,",
        ),
        (
            json!({ "properties": { "a/b": { "minLength": -1 } } }),
            "/input_schema/properties/a~1b/minLength: is not valid in JSON Schema",
        ),
        (
            json!({ "items": { "pattern": "(?=a)b" } }),
            "/input_schema/items/pattern: is not a regular expression that is supported",
        ),
        (
            json!({ "pattern": "(a)\\1" }),
            "/input_schema/pattern: is not a regular expression",
        ),
        (
            json!({ "patternProperties": { "(": {} } }),
            "/input_schema/patternProperties/(: is not a regular",
        ),
        (
            json!({ "$schema": "http://json-schema.org/draft-07/schema#" }),
            "/input_schema/$schema: must be",
        ),
        (
            json!({ "items": { "$id": "x" } }),
            "/input_schema/items/$id: is only allowed at the top",
        ),
        (
            json!({ "$dynamicRef": "#x" }),
            "/input_schema/$dynamicRef: is not supported",
        ),
        (
            json!({ "$ref": "https://example.com/x.json" }),
            "/input_schema/$ref: must lead to a place in this schema",
        ),
        (
            json!({ "$ref": "file:///etc/passwd" }),
            "/input_schema/$ref: must lead to a place",
        ),
        (
            json!({ "items": { "$ref": "#/$defs/x" } }),
            "/input_schema/items/$ref: leads to \"#/$defs/x\", which is not",
        ),
        (
            json!({ "$ref": "#" }),
            "/input_schema: refers to itself for the same value",
        ),
        (
            json!({ "$defs": { "a": { "anyOf": [{ "$ref": "#/$defs/b" }] }, "b": { "not": { "$ref": "#/$defs/a" } } }, "items": { "$ref": "#/$defs/a" } }),
            "refers to itself for the same value",
        ),
        (
            json!({ "pattern": "((a{1,50}){1,50}){1,50}" }),
            "/input_schema/pattern: is too large",
        ),
        (
            json!({ "pattern": "[ab]*a[ab]{1000000}" }),
            "/input_schema/pattern: is too large",
        ),
        (
            json!({ "properties": (0..200).map(|at| (at.to_string(), json!({ "pattern": "^a$" }))).collect::<serde_json::Map<_, _>>() }),
            "makes the patterns of the schema too many",
        ),
        (
            json!({ "enum": ["x".repeat(LONGEST_SCHEMA)] }),
            "/input_schema: is 65",
        ),
        (
            json!({ "allOf": vec![json!({}); 3000] }),
            "/input_schema: has more than 2000 subschemas",
        ),
        (deep, "nested too deeply"),
    ] {
        let message = refused(&schema);
        let shown = schema.to_string();
        let shown = shown.chars().take(100).collect::<String>();
        assert!(message.contains(fault), "{shown}: {message}");
    }
}

#[test]
fn what_generators_write_is_accepted() {
    let schema = accepted(&json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/order.json",
        "title": "Order",
        "$defs": {
            "Line": { "type": "object", "required": ["sku"], "properties": {
                "sku": { "type": "string", "format": "uuid", "minLength": 1 },
                "price": { "type": "number", "multipleOf": 0.01 },
            } },
            "Json": { "anyOf": [
                { "type": "string" }, { "type": "number" }, { "type": "null" }, { "type": "boolean" },
                { "type": "array", "items": { "$ref": "#/$defs/Json" } },
                { "type": "object", "additionalProperties": { "$ref": "#/$defs/Json" } },
            ] },
            "A B": { "$anchor": "named", "type": "integer" },
        },
        "allOf": [{ "properties": { "lines": { "items": { "$ref": "#/$defs/Line" } } } }],
        "properties": { "extra": { "$ref": "#/$defs/Json" }, "n": { "$ref": "#named" }, "m": { "$ref": "#/$defs/A%20B" } },
        "unevaluatedProperties": false,
    }));
    let extra = (0..90).fold(json!([1, "x", { "y": null }]), |inner, _| json!([inner, 1]));
    let order = json!({ "lines": [{ "sku": "1", "price": 1.25 }], "extra": extra, "n": 1 });
    assert_eq!(faults(&schema, &order), Vec::<String>::new());
    let wrong = json!({ "lines": [{}], "n": "1", "m": "2", "o": 1 });
    let wrong = faults(&schema, &wrong);
    assert_eq!(wrong.len(), 5, "{wrong:?}");
}

#[test]
fn the_validator_cannot_be_kept_busy() {
    let two = json!({ "$ref": "#/$defs/t", "$defs": { "t": { "anyOf": [
        { "required": ["a"], "properties": { "l": { "$ref": "#/$defs/t" }, "a": { "const": 1 } } },
        { "required": ["b"], "properties": { "l": { "$ref": "#/$defs/t" }, "b": { "const": 1 } } },
    ] } } });
    let nested = |depth| (0..depth).fold(json!({}), |inner, _| json!({ "l": inner }));
    let two = accepted(&two);
    assert!(faults(&two, &nested(3))[0].contains("is not valid under any"));
    assert!(faults(&two, &nested(14))[0].contains("too large, or the schema too involved"));
    assert!(faults(&two, &nested(80))[0].contains("would take too long"));

    // There are 2 to the power of 40 ways to one part.
    let mut defs: serde_json::Map<_, _> = (0..40)
        .map(|at| {
            let next = json!({ "$ref": format!("#/$defs/a{}", at + 1) });
            (format!("a{at}"), json!({ "allOf": [next, next] }))
        })
        .collect();
    defs.insert("a40".to_owned(), json!({ "type": "string" }));
    let many = accepted(&json!({ "$ref": "#/$defs/a0", "$defs": defs }));
    assert!(faults(&many, &json!("x"))[0].contains("would take too long"));

    let pattern = accepted(&json!({ "pattern": "^[ab]*a[ab]{500}[cd]" }));
    assert_eq!(faults(&pattern, &json!("ab".repeat(100))).len(), 1);
    assert!(faults(&pattern, &json!("ab".repeat(100_000)))[0].contains("would take too long"));
    let simple = accepted(&json!({ "items": { "pattern": "^[0-9a-f]{8}-[0-9a-f]{4}$" } }));
    assert!(faults(&simple, &json!(vec!["01234567-89ab"; 5000])).is_empty());

    // The items have equal hashes, but are not equal.
    let unique = accepted(&json!({ "uniqueItems": true }));
    let pairs =
        (0..20_000u64).map(|at| json!([(1u64 << 63) + at % 1000, (1u64 << 63) + at / 1000]));
    assert!(faults(&unique, &pairs.collect())[0].contains("would take too long"));
    assert!(faults(&unique, &(0..20_000).collect()).is_empty());
    assert_eq!(
        faults(&unique, &json!([[1], [1]])),
        ["/input: has non-unique elements"]
    );
}

#[test]
fn deep_payloads_leave_room_on_the_stack() {
    let mut part = json!({ "items": { "$ref": "#/$defs/t" }, "unevaluatedItems": false });
    for at in 0..20 {
        part = match at % 4 {
            0 => json!({ "allOf": [part] }),
            1 => json!({ "anyOf": [part] }),
            2 => json!({ "oneOf": [part] }),
            _ => json!({ "if": true, "then": part }),
        };
    }
    let schema = json!({ "$ref": "#/$defs/t", "$defs": { "t": part } });
    let check = move || {
        let schema = accepted(&schema);
        let nested = |depth| (0..depth).fold(json!([]), |inner, _| json!([inner]));
        let deepest = (1..DEEPEST).rev().find(|depth| {
            let found = faults(&schema, &nested(*depth));
            !found.iter().any(|fault| fault.contains("too long"))
        });
        deepest.unwrap()
    };
    // The stack is half of that of a worker thread of the runtime.
    let small = std::thread::Builder::new().stack_size(1 << 20);
    let deepest = small.spawn(check).unwrap().join().unwrap();
    assert!(deepest > 10, "{deepest}");
}

#[test]
fn a_payload_that_cannot_be_read_as_values_is_refused() {
    let schema = accepted(&json!(true));
    for (payload, fault) in [
        (
            format!("{}{}", "[".repeat(101), "]".repeat(101)),
            "is nested more than 100 levels",
        ),
        ("1e999".to_owned(), "has a number that is too large"),
    ] {
        let payload = Payload::parse(payload).unwrap();
        let found = schema.check(&payload, "", SchemaOwner::Task).unwrap_err();
        assert!(found[0].message.contains(fault), "{found:?}");
    }
}

#[test]
fn a_stored_schema_is_read_however_wrong_it_is_today_and_refuses_payloads() {
    let source = Payload::from_value(&json!({ "pattern": "(" }));
    let schema = PayloadSchema::read(source.raw(), "/input_schema", Origin::Stored).unwrap();
    for owner in [SchemaOwner::Task, SchemaOwner::Workflow] {
        let found = schema.check(&Payload::null(), "/input", owner).unwrap_err();
        assert!(
            found[0].message.contains("its schema cannot be used"),
            "{found:?}"
        );
    }
}
