use std::collections::BTreeMap;

use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::template::Budget;
use crate::{
    definition::{Accepted, Limits, Policies, parse_steps},
    template::payload::Payload,
    values::ids::TaskId,
};

fn render(request: Value, input: Value) -> Result<Rendered, String> {
    let steps = json!([{ "name": "a", "agent": "x", "request": request }]);
    let source = Payload::from_value(&steps);
    let definition = parse_steps(
        &source,
        "",
        &Policies::default(),
        &Limits::default(),
        &Accepted,
    )
    .unwrap();
    let budget = Budget::evaluation();
    let scope = Scope {
        task_id: TaskId(Uuid::nil()),
        key: None,
        labels: &BTreeMap::new(),
        input: Some(&Payload::from_value(&input)),
        ..Scope::empty(&budget)
    };
    render_request(definition.steps[0].request().unwrap(), &scope, None)
        .map_err(|error| error.to_string())
}

#[test]
fn a_request_is_made_of_its_templates() {
    let rendered = render(
        json!({
            "method": "PUT",
            "path": "/orders/{{ input.id }}?by={{ input.who }}",
            "headers": { "X-Who": "{{ input.who }}" },
            "body": { "n": "{{ input.n }}", "t": "n is {{ input.n }}" }
        }),
        json!({ "id": "a/b", "who": "me & you", "n": 2 }),
    );
    assert_eq!(
        rendered,
        Ok(Rendered {
            method: Method::Put,
            path: "/orders/a%2Fb?by=me%20%26%20you".to_owned(),
            headers: vec![("x-who".to_owned(), "me & you".to_owned())],
            body: Some(CallBody::Rendered(r#"{"n":2,"t":"n is 2"}"#.to_owned())),
        })
    );
}

#[test]
fn the_body_is_the_input_unless_the_step_says_otherwise() {
    let body = |request| render(request, json!({ "x": 1 })).unwrap().body;
    assert_eq!(body(json!({})).as_deref(), Some(r#"{"x":1}"#));
    assert_eq!(body(json!({ "body": null })), None);
    assert_eq!(body(json!({ "method": "GET" })), None);
    assert_eq!(
        body(json!({ "body": "{{ input }}" })).as_deref(),
        Some(r#"{"x":1}"#)
    );
}

#[test]
fn data_cannot_climb_out_of_a_path() {
    for (path, data) in [
        ("/orders/{{ input }}", ".."),
        ("/orders/{{ input }}/items", "."),
        ("/orders/.{{ input }}", "."),
        ("/orders/%2{{ input }}", "e"),
        // The separators in the following values are encoded, and many services decode a path before they examine it.
        ("/orders/{{ input }}", "../admin"),
        ("/orders/{{ input }}", "..\\admin"),
        ("/orders/{{ input }}", "..%2f"),
        ("/orders/{{ input }}", "%2e%2e"),
        ("/orders/{{ input }}", "..;x"),
        ("/orders/{{ input }}", "..%c0%af"),
        ("/orders/{{ input }}", "..\t/admin"),
        ("/orders/{{ input }}", "．．/admin"),
        ("/orders/{{ input }}", "..?x"),
        ("/orders/{{ input }}", "..#"),
        ("/orders/{{ input }}", ".\u{200b}."),
    ] {
        let error = render(json!({ "path": path }), json!(data)).unwrap_err();
        assert!(error.contains("segments"), "{path} {data}: {error}");
    }
    let path = |data: &str| {
        render(json!({ "path": "/orders/{{ input }}" }), json!(data))
            .unwrap()
            .path
    };
    assert_eq!(path("a../admin"), "/orders/a..%2Fadmin");
    assert_eq!(path("50%..."), "/orders/50%25...");
    assert_eq!(path("?a#b"), "/orders/%3Fa%23b");
}

#[test]
fn a_header_cannot_be_split_and_its_value_is_not_repeated() {
    let error = render(
        json!({ "headers": { "authorization": "Bearer {{ input }}" } }),
        json!("secret\r\nx: y"),
    )
    .unwrap_err();
    assert!(
        error.contains("authorization") && !error.contains("secret"),
        "{error}"
    );
}
