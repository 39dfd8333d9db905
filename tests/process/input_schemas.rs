//! Inputs that must match a schema.

use std::time::Instant;

use serde_json::{Value, json};

use crate::harness::{Act, Api, Broker, PATIENCE, Provost, Remote, new_database, setups, until};

async fn remote() -> Remote {
    Remote::with(|_| Act::Ok(json!({}))).await
}

fn schema() -> Value {
    json!({
        "type": "object",
        "required": ["sku"],
        "additionalProperties": false,
        "properties": {
            "sku": { "type": "string", "pattern": "^[a-z]+-[0-9]+$" },
            "lines": { "items": { "type": "integer" } },
        }
    })
}

fn workflow(url: &str, schema: &Value) -> Value {
    json!({ "steps": [{ "name": "only", "url": url }], "input_schema": schema })
}

fn order(input: &Value) -> Value {
    json!({ "workflow": "order", "input": input })
}

async fn count(api: &Api) -> usize {
    let tasks = api.get("/v1/tasks?limit=100").await.expect(200);
    tasks["items"].as_array().unwrap().len()
}

#[tokio::test]
async fn an_input_that_does_not_match_is_refused_by_whatever_way_it_comes() {
    for setup in setups().await {
        let remote = remote().await;
        let mut provost = setup.start().await;
        let registered = workflow(&remote.url(), &schema());
        let put = provost.put("/v1/workflows/order", &registered).await;
        assert_eq!(put.expect(201)["input_schema"], schema());
        for round in 0..2 {
            let api = provost.api();
            let good = api.submit(&order(&json!({ "sku": "book-7" }))).await;
            assert_eq!(api.settled(&good).await["state"], "processed");
            let before = count(api).await;
            let wrong = json!({ "lines": [1, "2"], "skü": 1 });
            let mut inline = workflow(&remote.url(), &schema());
            inline["input"] = wrong.clone();
            for submission in [&order(&wrong), &inline] {
                for path in ["/v1/tasks", "/v1/tasks?dry_run=true"] {
                    let mut faults = api.post(path, submission).await.expect_faults();
                    faults.sort();
                    assert_eq!(faults, ["/input/lines/1", "/input/sku", "/input/skü"]);
                }
            }
            let none = api.post("/v1/tasks", &json!({ "workflow": "order" })).await;
            assert_eq!(none.expect_faults(), ["/input"]);
            let clone = format!("/v1/tasks/{good}/clone");
            let patch = json!({ "input_patch": { "sku": null } });
            assert_eq!(
                api.post(&clone, &patch).await.expect_faults(),
                ["/input/sku"]
            );
            let whole = json!({ "input": { "sku": "Book" } });
            assert_eq!(
                api.post(&clone, &whole).await.expect_faults(),
                ["/input/sku"]
            );
            assert_eq!(count(api).await, before);
            api.post(&clone, &json!({ "input_patch": { "lines": [1] } }))
                .await
                .expect(202);
            api.command(&clone).await.expect(202);
            inline["input"] = json!({ "sku": "pen-1" });
            assert_eq!(api.run(&inline).await["state"], "processed");
            if round == 0 {
                provost.kill().await;
                provost.restart().await;
            }
        }
    }
}

#[tokio::test]
async fn a_clone_to_a_version_with_another_schema_must_match_that() {
    let remote = remote().await;
    let provost = Provost::start().await;
    let api = provost.api();
    let put = async |schema: &Value| {
        let workflow = workflow(&remote.url(), schema);
        api.put("/v1/workflows/order", &workflow).await.expect(201)
    };
    put(&json!(true)).await;
    let id = api.submit(&order(&json!({}))).await;
    put(&schema()).await;
    let clone = format!("/v1/tasks/{id}/clone");
    api.command(&clone).await.expect(202);
    let latest = json!({ "workflow_version": "latest" });
    assert_eq!(
        api.post(&clone, &latest).await.expect_faults(),
        ["/input/sku"]
    );
}

#[tokio::test]
async fn a_schema_that_is_none_is_refused_with_its_workflow() {
    let remote = remote().await;
    let provost = Provost::start().await;
    let api = provost.api();
    for (schema, pointer) in [
        (json!({ "type": "strng" }), "/input_schema/type"),
        (
            json!({ "properties": { "a": { "$ref": "#/$defs/b" } } }),
            "/input_schema/properties/a/$ref",
        ),
        (
            json!({ "$ref": "http://127.0.0.1:1/schema.json" }),
            "/input_schema/$ref",
        ),
        (
            json!({ "$ref": "file:///etc/passwd" }),
            "/input_schema/$ref",
        ),
        (json!("string"), "/input_schema"),
    ] {
        let body = workflow(&remote.url(), &schema);
        let put = api.put("/v1/workflows/order", &body).await;
        assert_eq!(put.expect_faults(), [pointer]);
        let validated = api.post("/v1/workflows/order/validate", &body).await;
        assert_eq!(validated.expect_faults(), [pointer]);
        assert_eq!(
            api.post("/v1/tasks", &body).await.expect_faults(),
            [pointer]
        );
    }
    let both = json!({ "workflow": "order", "input_schema": {} });
    assert_eq!(
        api.post("/v1/tasks", &both).await.expect_faults(),
        ["/workflow", "/workflow"]
    );
    api.get("/v1/workflows/order").await.expect(404);
    // White space makes no new version.
    let body = workflow(&remote.url(), &schema());
    api.put("/v1/workflows/order", &body).await.expect(201);
    let spaced = serde_json::to_string_pretty(&body).unwrap();
    let put = api
        .call(reqwest::Method::PUT, "/v1/workflows/order")
        .text("application/json", spaced);
    put.await.expect(200);
}

/// Each of these would keep a validator without bounds busy for hours, or would need much memory.
#[tokio::test]
async fn a_hostile_schema_or_input_costs_little() {
    let remote = remote().await;
    let provost = Provost::start().await;
    let api = provost.api();
    let two = json!({ "$ref": "#/$defs/t", "$defs": { "t": { "anyOf": [
        { "required": ["a"], "properties": { "l": { "$ref": "#/$defs/t" } } },
        { "required": ["b"], "properties": { "l": { "$ref": "#/$defs/t" } } },
    ] } } });
    let mut defs: serde_json::Map<_, _> = (0..60)
        .map(|at| {
            let next = json!({ "$ref": format!("#/$defs/a{}", at + 1) });
            (format!("a{at}"), json!({ "allOf": [next, next] }))
        })
        .collect();
    defs.insert("a60".to_owned(), json!({ "type": "string" }));
    let nested = |depth| (0..depth).fold(json!({}), |inner, _| json!({ "l": inner }));
    let many: Vec<_> = (0..40_000u64).map(|at| (1u64 << 63) + at).collect();
    for (schema, input) in [
        (json!({ "enum": ["x".repeat(900_000)] }), json!(1)),
        (two, nested(90)),
        (json!({ "$ref": "#/$defs/a0", "$defs": defs }), json!("x")),
        (
            json!({ "pattern": "^[ab]*a[ab]{700}[cd]" }),
            json!("ab".repeat(400_000)),
        ),
        (
            json!({ "pattern": "^(a|a)*b$" }),
            json!("a".repeat(900_000)),
        ),
        (
            json!({ "items": { "enum": (0..5000).collect::<Vec<_>>() } }),
            json!(vec![5001; 100_000]),
        ),
        (json!({ "items": { "uniqueItems": true } }), json!([many])),
    ] {
        let mut body = workflow(&remote.url(), &schema);
        body["input"] = input;
        let start = Instant::now();
        let refused = api.post("/v1/tasks", &body).await;
        assert!(
            refused.status == 422 || refused.status == 202,
            "{refused:?}"
        );
        assert!(start.elapsed() < PATIENCE, "{schema:.200}");
    }
}

#[tokio::test]
async fn a_version_that_is_new_at_one_instance_is_never_used_unchecked_at_another() {
    let remote = remote().await;
    let url = new_database().await;
    let on = || Provost::setup().database_url(&url);
    let (a, b) = tokio::join!(on().start(), on().start());
    for strict in [2u32, 4, 6] {
        let any = workflow(&remote.url(), &json!({ "title": strict.to_string() }));
        a.put("/v1/workflows/order", &any).await.expect(201);
        b.put("/v1/workflows/order", &any).await.expect(200);
        b.submit(&order(&json!({}))).await;
        let body = workflow(&remote.url(), &json!({ "required": [strict.to_string()] }));
        let put = a.put("/v1/workflows/order", &body).await.expect(201);
        assert_eq!(put["version"], strict);
        let named = json!({ "workflow": "order", "workflow_version": strict, "input": {} });
        b.post("/v1/tasks", &named).await.expect_faults();
        until(422, async || {
            let answer = b.post("/v1/tasks", &order(&json!({}))).await;
            if answer.status == 202 {
                assert_eq!(answer.body["workflow_version"], strict - 1);
            }
            answer.status
        })
        .await;
    }
}

#[tokio::test]
async fn a_message_whose_input_does_not_match_is_refused() {
    let rabbit = Broker::shared().await;
    let client = rabbit.client().await;
    client.declare("orders").await;
    let remote = remote().await;
    let provost = crate::intake::reading(Provost::setup(), &rabbit.url())
        .start()
        .await;
    let put = workflow(&remote.url(), &schema());
    provost.put("/v1/workflows/order", &put).await.expect(201);
    for input in [json!({}), json!({ "sku": "pen-1" })] {
        let body = order(&input).to_string();
        let named = lapin::BasicProperties::default().with_message_id(input.to_string().into());
        client.publish("orders", body.as_bytes(), named).await;
    }
    let refused = client.take("orders.dead").await;
    assert_eq!(refused.headers["provost-problem-type"], "invalid");
    let detail = &refused.headers["provost-problem-detail"];
    assert!(detail.contains("/input/sku: is missing"), "{detail}");
    until(1, async || count(provost.api()).await).await;
}
