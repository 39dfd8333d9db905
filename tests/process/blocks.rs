//! Blocks: several steps in the place of one, a branch of several, and an agent of several.

use serde_json::{Value, json};

use crate::harness::{Act, Gate, Remote, Seen, id_of, setups, step};

/// A block behind a condition, whose second step fails until it is told otherwise, and a step that reads its output.
fn checkout(url: &str) -> Value {
    let call = |name: &str| json!({ "name": name, "url": url, "request": { "path": format!("/{name}"), "body": { "for": "{{ input.total }}" } } });
    let mut charge = call("charge");
    charge["request"]["body"] = json!({ "score": "{{ steps.check.output.path }}" });
    charge["undo"] = json!({ "request": { "method": "DELETE", "path": "/charge" } });
    let mut ship = call("ship");
    ship["request"]["body"] = json!("{{ steps.pay.output }}");
    json!([
        { "name": "pay", "when": "input.total > 0", "steps": [call("check"), charge],
          "output": { "paid": "{{ steps.charge.output.path }}" } },
        { "name": "way", "switch": [
            { "when": "input.total > 100", "steps": [call("large")] },
            { "else": [call("small")] } ] },
        ship,
    ])
}

fn calls(remote: &Remote) -> Vec<String> {
    let ledger = remote.ledger().into_iter();
    ledger
        .map(|seen| format!("{} {}", seen.method, seen.path))
        .collect()
}

fn body(remote: &Remote, path: &str) -> Value {
    let mut ledger = remote.ledger().into_iter();
    ledger.find(|seen| seen.path == path).unwrap().body
}

#[tokio::test]
async fn the_steps_of_blocks_are_steps_of_the_task() {
    for setup in setups().await {
        let provost = setup.start().await;
        for (total, expected) in [
            (
                30,
                vec!["POST /check", "POST /charge", "POST /small", "POST /ship"],
            ),
            (
                300,
                vec!["POST /check", "POST /charge", "POST /large", "POST /ship"],
            ),
            (0, vec!["POST /small", "POST /ship"]),
        ] {
            let remote = Remote::with(|seen: &Seen| Act::Ok(json!({ "path": seen.path }))).await;
            let task = json!({ "steps": checkout(&remote.url()), "input": { "total": total } });
            let task = provost.run(&task).await;
            assert_eq!(task["state"], "processed", "{task:#}");
            assert_eq!(calls(&remote), expected);
            let names: Vec<_> = task["steps"]
                .as_array()
                .unwrap()
                .iter()
                .map(|step| &step["name"])
                .collect();
            assert_eq!(
                names,
                [
                    "pay.check",
                    "pay.charge",
                    "pay",
                    "way.large",
                    "way.small",
                    "way",
                    "ship"
                ]
            );
            assert_eq!(step(&task, "pay")["kind"], "block");
            let paid = match total {
                0 => Value::Null,
                _ => json!({ "paid": "/charge" }),
            };
            assert_eq!(body(&remote, "/ship"), paid);
            if total > 0 {
                assert_eq!(body(&remote, "/charge"), json!({ "score": "/check" }));
                let undo = format!("/v1/tasks/{}/undo", id_of(&task));
                provost.post(&undo, &json!({})).await.expect(200);
                remote.paths("/charge", 2).await;
            }
        }
    }
}

#[tokio::test]
async fn a_step_in_a_block_is_retried_by_its_name_after_a_kill() {
    for setup in setups().await {
        let gate = Gate::closed();
        let gated = gate.clone();
        let remote =
            Remote::with(
                move |seen: &Seen| match (seen.path.as_str(), &seen.body["score"]) {
                    ("/charge", Value::String(_)) => Act::status(422),
                    ("/small", _) => gated.then(json!({})),
                    (path, _) => Act::Ok(json!({ "path": path })),
                },
            )
            .await;
        let mut provost = setup.start().await;
        let task = json!({ "steps": checkout(&remote.url()), "input": { "total": 30 } });
        let failed = provost.run(&task).await;
        assert_eq!(failed["state"], "error", "{failed:#}");
        assert_eq!(failed["error"]["step"], "pay.charge");
        let id = id_of(&failed);
        provost.kill().await;
        provost.restart().await;
        let retry = format!("/v1/tasks/{id}/steps/pay.charge/retry");
        provost
            .post(&retry, &json!({ "input": { "score": 7 } }))
            .await
            .expect(200);
        remote.paths("/small", 1).await;
        provost.kill().await;
        gate.open();
        provost.restart().await;
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        let attempts = provost
            .get(&format!("/v1/tasks/{id}/steps/pay.charge/attempts"))
            .await;
        assert_eq!(attempts.expect(200)["items"].as_array().unwrap().len(), 2);
    }
}

#[tokio::test]
async fn the_data_choose_one_of_the_agents_that_the_definition_lists() {
    for setup in setups().await {
        let provost = setup.start().await;
        let mut remotes = Vec::new();
        for name in ["eu", "us"] {
            let remote = Remote::with(move |_: &Seen| Act::Ok(json!({ "from": name }))).await;
            provost.register(name, &remote.url(), 4).await;
            remotes.push(remote);
        }
        let steps = |one_of: Value| {
            json!([
                { "name": "ship", "agent": { "one_of": one_of, "by": "{{ input.region }}" },
                  "request": { "path": "/parcels" } },
                { "name": "last", "agent": "eu", "request": { "path": "/last", "body": "{{ steps.ship.output }}" } },
            ])
        };
        let submission = |region: &str| json!({ "steps": steps(json!(["eu", "us"])), "input": { "region": region } });
        let task = provost.run(&submission("us")).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        assert_eq!(calls(&remotes[1]), ["POST /parcels"]);
        assert_eq!(body(&remotes[0], "/last"), json!({ "from": "us" }));
        let task = provost.run(&submission("moon")).await;
        assert_eq!(task["state"], "error", "{task:#}");
        assert_eq!(task["error"]["step"], "ship");
        // All of them are checked before anything runs.
        let unknown = json!({ "steps": steps(json!(["eu", "asia"])), "input": { "region": "eu" } });
        let refused = provost.post("/v1/tasks", &unknown).await;
        let refused = refused.expect_problem(422, "invalid");
        let faults = refused["errors"].to_string();
        assert!(
            faults.contains("/steps/0/agent") && faults.contains("no agent `asia`"),
            "{faults}"
        );
    }
}

#[tokio::test]
async fn a_changed_condition_of_a_block_is_a_difference_of_its_steps() {
    for setup in setups().await {
        let remote = Remote::quick().await;
        let provost = setup.start().await;
        let workflow = |when: &str| {
            json!({ "steps": [
                { "name": "hold", "signal": { "within": "1h" } },
                { "name": "pay", "when": when, "steps": [{ "name": "charge", "url": remote.url() }] },
            ] })
        };
        provost
            .put("/v1/workflows/w", &workflow("input.total > 0"))
            .await
            .expect(201);
        let id = provost
            .submit(&json!({ "workflow": "w", "input": { "total": 5 } }))
            .await;
        provost
            .put("/v1/workflows/w", &workflow("input.total > 10"))
            .await
            .expect(201);
        let move_to = json!({ "to_version": 2, "dry_run": true });
        let report = provost
            .post(&format!("/v1/tasks/{id}/migrate"), &move_to)
            .await;
        let report = report.expect(200);
        let steps = report["steps"].as_array().unwrap();
        let differs = |name: &str| {
            let step = steps.iter().find(|step| step["name"] == name);
            step.map(|step| step["differs"].clone())
        };
        assert_eq!(differs("pay.charge"), Some(json!(["when"])), "{report:#}");
        assert_eq!(differs("pay"), Some(json!(["when"])), "{report:#}");
    }
}
