//! The output of a task, which its definition makes of the outputs of its steps.

use serde_json::{Value, json};

use crate::harness::{Act, Api, Gate, Remote, setups, until};

fn definition(url: &str) -> Value {
    json!({
        "steps": [
            { "name": "charge", "url": url, "request": { "path": "/charge" } },
            { "name": "gift", "url": url, "when": "input.gift", "request": { "path": "/gift" } },
            { "name": "ship-it", "url": url, "after": ["charge"], "request": { "path": "/ship" } },
        ],
        "output": {
            "charge": "{{ steps.charge.output.id }}",
            "whole": "{{ steps['ship-it'].output }}",
            "text": "{{ task.key }} for {{ input.total }}",
            "gift": "{{ steps.gift.output }}",
            "fixed": [1, null],
        },
    })
}

async fn remote() -> Remote {
    Remote::with(|seen| match seen.path.as_str() {
        "/charge" => Act::Ok(json!({ "id": "ch_1" })),
        "/ship" => Act::Ok(json!({ "parcel": [1, 2] })),
        _ => Act::Ok(json!({})),
    })
    .await
}

fn expected() -> Value {
    json!({ "charge": "ch_1", "whole": { "parcel": [1, 2] }, "text": "k for 30", "gift": null, "fixed": [1, null] })
}

async fn waited(api: &Api, submission: &Value) -> Value {
    let call = api.post("/v1/tasks", submission);
    call.header("prefer", "wait=10").await.expect(200)
}

#[tokio::test]
async fn a_processed_task_shows_its_output_wherever_it_is_shown() {
    for setup in setups().await {
        let remote = remote().await;
        let mut provost = setup.set("COURIER__RETRY_INITIAL", "20ms").start().await;
        let receiver = Remote::with(|_| Act::Ok(json!({}))).await;
        let definition = definition(&remote.url());
        provost
            .put("/v1/workflows/order", &definition)
            .await
            .expect(201);
        let asked = json!({
            "key": "k",
            "input": { "gift": false, "total": 30 },
            "reply_to": { "url": receiver.url(), "events": ["task.accepted", "task.processed"] },
        });
        let mut inline = definition.clone();
        inline
            .as_object_mut()
            .unwrap()
            .extend(asked.as_object().unwrap().clone());
        let mut named = asked.clone();
        named["workflow"] = json!("order");
        let mut ids = Vec::new();
        for submission in [&inline, &named] {
            let task = waited(provost.api(), submission).await;
            assert_eq!(task["output"], expected(), "{task}");
            assert!(task.get("output_error").is_none());
            ids.push(task["id"].as_str().unwrap().to_owned());
        }
        until(true, async || receiver.count() >= 4).await;
        for message in receiver.ledger() {
            let output = &message.body["data"]["task"]["output"];
            match message.body["type"] == "task.processed" {
                true => assert_eq!(*output, expected()),
                false => assert_eq!(*output, Value::Null),
            }
        }
        provost.kill().await;
        provost.restart().await;
        for id in &ids {
            assert_eq!(provost.task(id).await["output"], expected());
        }
    }
}

#[tokio::test]
async fn there_is_no_output_before_the_end_nor_without_a_template() {
    for setup in setups().await {
        let gate = Gate::closed();
        let opened = gate.clone();
        let remote = Remote::with(move |_| opened.then(json!({ "id": 1 }))).await;
        let provost = setup.start().await;
        let api = provost.api();
        let mut submission = json!({
            "steps": [{ "name": "charge", "url": remote.url() }],
            "output": "{{ steps.charge.output.id }}",
        });
        let id = api.submit(&submission).await;
        remote.requests(1).await;
        let running = api.task(&id).await;
        assert_eq!(running.get("output"), Some(&Value::Null), "{running}");
        assert!(running.get("output_error").is_none());
        let cancelled = api.command(&format!("/v1/tasks/{id}/cancel")).await;
        assert_eq!(cancelled.expect(200)["output"], Value::Null);
        gate.open();
        assert_eq!(api.run(&submission).await["output"], 1);
        submission.as_object_mut().unwrap().remove("output");
        assert!(api.run(&submission).await.get("output").is_none());
    }
}

#[tokio::test]
async fn an_output_that_cannot_be_evaluated_costs_the_output_alone() {
    for setup in setups().await {
        let remote = Remote::with(|_| Act::Ok(json!({ "items": [1] }))).await;
        let provost = setup.start().await;
        let api = provost.api();
        let costly = "{{ range(1000000) | map('string') | join }}";
        for (output, reason) in [
            ("{{ steps.charge.output.id }}", "id"),
            (
                "{{ steps.charge.output.items[0] / 0 }}",
                "cannot be rendered",
            ),
            (costly, "cannot be rendered"),
        ] {
            let submission = json!({
                "steps": [{ "name": "charge", "url": remote.url() }],
                "output": { "x": output },
            });
            let answer = api.post("/v1/tasks", &submission).await;
            if answer.status == 422 {
                assert_eq!(answer.expect_faults(), ["/output/x"]);
                continue;
            }
            let id = answer.expect(202)["id"].as_str().unwrap().to_owned();
            let task = api.settled(&id).await;
            assert_eq!(task["state"], "processed", "{task}");
            assert_eq!(task["output"], Value::Null);
            let error = task["output_error"].as_str().unwrap();
            assert!(error.contains(reason), "{error}");
        }
        for (output, pointer) in [
            (json!({ "a": ["{{ steps.chrge.output }}"] }), "/output/a/0"),
            (json!("{{ output.id }}"), "/output"),
            (json!({ "b": "{{ input. }}" }), "/output/b"),
        ] {
            let wrong =
                json!({ "steps": [{ "name": "charge", "url": remote.url() }], "output": output });
            let faults = api.post("/v1/tasks", &wrong).await.expect_faults();
            assert_eq!(faults, [pointer]);
            let faults = api.put("/v1/workflows/wrong", &wrong).await.expect_faults();
            assert_eq!(faults, [pointer]);
        }
    }
}
