//! The schemas of request bodies and the parser declare the same things: the fields of each object, required fields,
//! words, ranges and defaults. Each body is probed with values that its schema allows, and with values that it does
//! not.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::harness::{Act, Answer, Provost, Remote, one_step};

/// The request bodies of the document.
struct Body {
    method: String,
    path: String,
    schema: Value,
    /// The fields that must be present before the parser reads the rest.
    base: Value,
}

/// An object inside a body, and the path to it.
struct Object {
    way: Vec<String>,
    properties: Map<String, Value>,
    required: BTreeSet<String>,
}

fn bodies(document: &Value, task: &str, token: &str) -> Vec<Body> {
    let mut bodies = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            // The body of a signal is any JSON.
            if !schema.is_null() && !path.contains("/signals/") {
                bodies.push(Body {
                    method: method.clone(),
                    path: path
                        .replace("{id}", task)
                        .replace("{name}", "some")
                        .replace("{token}", token),
                    schema: schema.clone(),
                    base: match method == "put" && path.starts_with("/v1/agents/") {
                        true => json!({ "endpoints": [{ "url": "http://127.0.0.1:9", "max_in_flight": 100_000 }] }),
                        false => json!({}),
                    },
                });
            }
        }
    }
    bodies
}

/// Returns the schemas that a value may match, without null: one, or several of which one must match.
fn alternatives(document: &Value, schema: &Value) -> Vec<Value> {
    if let Some(name) = schema["$ref"].as_str() {
        let named = document.pointer(name.trim_start_matches('#')).unwrap();
        return alternatives(document, named);
    }
    for choice in ["oneOf", "anyOf", "allOf"] {
        if let Some(parts) = schema[choice].as_array() {
            let parts = parts.iter();
            let mut parts: Vec<_> = parts
                .flat_map(|part| alternatives(document, part))
                .filter(|part| part["type"] != "null")
                .collect();
            if let (Some(default), [only]) = (schema.get("default"), parts.as_mut_slice()) {
                only["default"] = default.clone();
            }
            return parts;
        }
    }
    vec![schema.clone()]
}

fn objects(document: &Value, schema: &Value, way: &[String], found: &mut Vec<Object>) {
    for schema in alternatives(document, schema) {
        if let Some(items) = schema.get("items") {
            objects(document, items, &[way, &["0".to_owned()]].concat(), found);
        }
        let Some(properties) = schema["properties"].as_object() else {
            continue;
        };
        let lists = ["steps", "switch", "else"];
        let is_in_step = way.iter().any(|part| lists.contains(&part.as_str()));
        for (name, property) in properties {
            // A step in a block is a step as those of `steps` are, and so is one of `finally`.
            if name == "finally" || is_in_step && lists.contains(&name.as_str()) {
                continue;
            }
            objects(
                document,
                property,
                &[way, std::slice::from_ref(name)].concat(),
                found,
            );
        }
        let required = schema["required"].as_array().into_iter().flatten();
        found.push(Object {
            way: way.to_vec(),
            properties: properties.clone(),
            required: required
                .map(|name| name.as_str().unwrap().to_owned())
                .collect(),
        });
    }
}

/// Returns a body that contains only `value`, at this path.
fn body(way: &[String], value: Value) -> Value {
    way.iter()
        .rev()
        .fold(value, |inner, part| match part.as_str() {
            "0" => json!([inner]),
            name => json!({ name: inner }),
        })
}

/// Returns `over` with the members that only `base` has.
fn merged(base: &Value, over: &Value) -> Value {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            let mut both = over.clone();
            for (name, value) in base {
                let value = over
                    .get(name)
                    .map_or(value.clone(), |over| merged(value, over));
                both.insert(name.clone(), value);
            }
            both.into()
        }
        (Value::Array(base), Value::Array(over)) if base.len() == over.len() => base
            .iter()
            .zip(over)
            .map(|(base, over)| merged(base, over))
            .collect(),
        _ => over.clone(),
    }
}

fn pointer(way: &[String], name: &str) -> String {
    let parts = way.iter().map(String::as_str).chain([name]);
    parts.map(|part| format!("/{part}")).collect()
}

async fn send(provost: &Provost, of: &Body, body: &Value) -> Answer {
    match of.method.as_str() {
        "put" => provost.api().put(&of.path, body).await,
        _ => provost.api().post(&of.path, body).await,
    }
}

/// Returns the messages at a pointer or below it.
async fn faults(provost: &Provost, of: &Body, body: &Value, pointer: &str) -> Vec<String> {
    let answer = send(provost, of, body).await;
    assert!(
        answer.status < 500,
        "{} {}: {}",
        of.path,
        body,
        answer.status
    );
    // If the items of the request are checked one by one, the faults are in the results.
    let of_result = &answer.body["results"][0]["problem"]["errors"];
    let errors = [&answer.body["errors"], of_result];
    let errors = errors.into_iter().filter_map(Value::as_array).flatten();
    let below = format!("{pointer}/");
    errors
        .filter(|error| {
            let at = error["pointer"].as_str().unwrap();
            at == pointer || at.starts_with(&below)
        })
        .map(|error| error["message"].as_str().unwrap().to_owned())
        .collect()
}

/// Returns whether the message asks for one of several fields.
fn is_a_choice(said: &str) -> bool {
    said.starts_with("is missing: ") && said.contains(", or ")
}

/// Returns the start of a text that has the form of the example: a URL, a path or a template. Other texts have none.
fn start_of(example: &Value) -> String {
    let example = example.as_str().unwrap_or_default();
    let has_form = ["http://", "/", "{{"]
        .iter()
        .any(|form| example.starts_with(form));
    match has_form {
        true => format!("{example}/"),
        false => String::new(),
    }
}

/// Returns values that one of the alternatives allows, and values that none of them allows.
fn samples(alternatives: &[Value]) -> (Vec<Value>, Vec<Value>) {
    let (mut right, mut wrong) = (Vec::new(), Vec::new());
    for schema in alternatives {
        right.extend(schema["enum"].as_array().into_iter().flatten().cloned());
        right.extend(schema.get("default").cloned());
    }
    let [schema] = alternatives else {
        return (right, wrong);
    };
    if schema["enum"].is_array() {
        wrong.push(json!("zzz"));
    }
    for (limit, beyond) in [("minimum", -1), ("maximum", 1)] {
        if let Some(limit) = schema[limit].as_i64() {
            right.push(json!(limit));
            wrong.push(json!(limit + beyond));
        }
    }
    if let Some(longest) = schema["maxLength"].as_u64() {
        let start = start_of(&schema["example"]);
        let text = |length: usize| json!(format!("{start}{}", "x".repeat(length - start.len())));
        right.push(text(longest as usize));
        wrong.push(text(longest as usize + 1));
    }
    if let Some(most) = schema["maxItems"].as_u64() {
        wrong.push(json!(vec![Value::Null; most as usize + 1]));
    }
    if schema["minItems"].as_u64() == Some(1) {
        wrong.push(json!([]));
    }
    match schema["type"].as_str() {
        Some("string") => wrong.push(json!([])),
        Some("integer" | "number" | "boolean" | "array") => wrong.push(json!("zzz")),
        Some("object") => wrong.push(json!("zzz")),
        _ => {}
    }
    (right, wrong)
}

#[tokio::test]
async fn request_bodies_are_as_their_schemas_say() {
    // Nothing listens at this address, but with a broker `reply_to` may name a queue. The secret has the longest name
    // that is allowed.
    let secret = json!([{ "name": "x".repeat(64), "env": "PATH", "urls": ["http://127.0.0.1:9"] }]);
    let provost = Provost::setup()
        .set("BROKER__URL", "amqp://127.0.0.1:1")
        .set("SECRETS", &secret.to_string().replace("\":", "\"="));
    let provost = provost.start().await;
    let document = provost.get("/openapi.json").await.expect(200);
    let workflow = json!({ "steps": one_step("http://127.0.0.1:9", "/")["steps"] });
    let put = provost.api().put("/v1/workflows/kept", &workflow);
    put.await.expect(201);
    let task = provost.submit(&json!({ "workflow": "kept" })).await;
    let remote = Remote::script([Act::status(202)]).await;
    let mut slow = one_step(&remote.url(), "/");
    slow["steps"][0]["reply"] = json!("callback");
    provost.submit(&slow).await;
    let seen = remote.requests(1).await;
    let token = seen[0].header("provost-reply-to").rsplit('/').next();
    let mut differences = Vec::new();
    let mut probed = 0;
    for of in bodies(&document, &task, token.unwrap()) {
        let mut all = Vec::new();
        objects(&document, &of.schema, &[], &mut all);
        assert!(!all.is_empty(), "{}", of.path);
        for object in all {
            let at =
                |name: &str| format!("{} {}{}", of.method, of.path, pointer(&object.way, name));
            let unknown = pointer(&object.way, "zzz");
            let asked = merged(&of.base, &body(&object.way, json!({ "zzz": 1 })));
            let said = faults(&provost, &of, &asked, &unknown).await;
            let said = said.first().map_or("", String::as_str);
            let (_, known) = said.split_once("the fields are: ").unwrap_or_default();
            let known: BTreeSet<_> = known.split(", ").collect();
            let named: BTreeSet<_> = object.properties.keys().map(String::as_str).collect();
            if known != named {
                differences.push(format!("{}: {named:?} in the schema, but {said}", at("")));
            }
            for (name, property) in &object.properties {
                let pointer = pointer(&object.way, name);
                let (right, wrong) = samples(&alternatives(&document, property));
                for (value, is_right) in right
                    .iter()
                    .map(|value| (value, true))
                    .chain(wrong.iter().map(|value| (value, false)))
                {
                    probed += 1;
                    let asked = merged(&of.base, &body(&object.way, json!({ name: value })));
                    let said = faults(&provost, &of, &asked, &pointer).await;
                    // A command for many tasks accepts only some of the states, and its description says which.
                    let is_narrower = is_right && name == "state";
                    // The command needs `all` or a selection: `all: false` alone is neither.
                    let is_nothing = is_right && said.iter().all(|said| is_a_choice(said));
                    // The field qualifies another one, which is missing here.
                    let is_alone = |said: &String| said.starts_with("belongs to ");
                    let is_alone = is_right && said.iter().all(is_alone);
                    if said.is_empty() != is_right && !is_narrower && !is_nothing && !is_alone {
                        let value: String = value.to_string().chars().take(60).collect();
                        differences.push(format!("{} = {value}: {said:?}", at(name)));
                    }
                }
                let asked = body(&object.way, json!({}));
                let said = faults(&provost, &of, &asked, &pointer).await;
                let is_required = object.required.contains(name);
                let is_missed = said.iter().any(|said| !is_a_choice(said));
                if is_required != is_missed {
                    differences.push(format!(
                        "{} required: {is_required}, but {said:?}",
                        at(name)
                    ));
                }
            }
        }
    }
    assert!(differences.is_empty(), "\n{}", differences.join("\n"));
    assert!(probed > 200, "{probed}");
}
