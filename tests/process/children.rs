//! Steps that have children.

use std::{collections::BTreeMap, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::harness::{
    Act, Api, Gate, Provost, Remote, Seen, kinds, new_database, setups, sql, step, until,
};

/// Returns a workflow with one call that can be undone. Its output names the order of its input.
fn shipping(url: &str) -> Value {
    json!({
        "output": { "parcel": "{{ steps.pack.output.id }}", "order": "{{ input.order }}" },
        "steps": [{
            "name": "pack", "url": url, "request": { "path": "/pack" },
            "on_permanent": "undo",
            "undo": { "request": { "method": "DELETE", "path": "/pack/{{ output.id }}" } },
        }],
    })
}

/// Returns a task of three steps: a call, a child, and a call that reads the output of the child.
fn order(url: &str) -> Value {
    json!({
        "input": { "order": 7 },
        "steps": [
            { "name": "reserve", "url": url, "request": { "path": "/reserve" }, "on_permanent": "undo",
              "undo": { "request": { "method": "DELETE", "path": "/reserve" } } },
            { "name": "ship", "on_permanent": "undo",
              "task": { "workflow": "ship", "key": "parcel-{{ input.order }}", "input": { "order": "{{ input.order }}" },
                        "labels": { "order": "{{ input.order }}" } } },
            { "name": "mail", "url": url, "on_permanent": "undo",
              "request": { "path": "/mail", "body": { "parcel": "{{ steps.ship.output.parcel }}" } } },
        ],
    })
}

async fn register(api: &Api, name: &str, workflow: &Value) {
    let answer = api.put(&format!("/v1/workflows/{name}"), workflow).await;
    assert!(answer.status < 300, "{answer:?}");
}

fn calls(remote: &Remote) -> Vec<String> {
    let calls = remote.ledger().into_iter();
    calls
        .map(|seen| format!("{} {}", seen.method, seen.path))
        .collect()
}

/// Returns a service that does what `act` returns, and succeeds at all other calls.
async fn service(act: impl Fn(&Seen) -> Option<Act> + Send + Sync + 'static) -> Remote {
    Remote::with(move |seen| act(seen).unwrap_or_else(|| Act::Ok(json!({ "id": "p1" })))).await
}

/// Returns the child of a step, once there is one.
async fn child(api: &Api, parent: &str, name: &str) -> String {
    until(true, async || {
        step(&api.task(parent).await, name)["child"].is_object()
    })
    .await;
    let task = api.task(parent).await;
    step(&task, name)["child"]["id"]
        .as_str()
        .unwrap()
        .to_owned()
}

async fn state(api: &Api, id: &str) -> String {
    api.task(id).await["state"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_end_of_its_task_is_the_result_of_a_step() {
    for setup in setups().await {
        let remote = service(|_| None).await;
        let provost = setup.start().await;
        let api = provost.api();
        register(api, "ship", &shipping(&remote.url())).await;
        let mut submission = order(&remote.url());
        submission["priority"] = json!(5);
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let parent = api.post("/v1/tasks", &submission);
        let parent = parent.header("traceparent", trace).await.expect(202);
        let id = parent["id"].as_str().unwrap();
        let task = api.settled(id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        assert_eq!(task.get("parent"), None);
        let ship = step(&task, "ship");
        assert_eq!(ship["kind"], "task");
        assert_eq!(ship["output"], json!({ "parcel": "p1", "order": 7 }));
        assert_eq!(ship["child"]["state"], "processed");
        let child = api.task(ship["child"]["id"].as_str().unwrap()).await;
        assert_eq!(
            child["parent"],
            json!({ "task": id, "step": "ship", "attempt": 1 })
        );
        assert_eq!(
            (&child["key"], &child["priority"], &child["labels"]),
            (&json!("parcel-7"), &json!(5), &json!({ "order": "7" }))
        );
        assert_eq!(child["workflow"], "ship");
        assert_eq!(
            calls(&remote),
            ["POST /reserve", "POST /pack", "POST /mail"]
        );
        let ledger = remote.ledger();
        assert_eq!(ledger[2].body, json!({ "parcel": "p1" }));
        for seen in &ledger {
            assert!(
                seen.header("traceparent")
                    .contains("4bf92f3577b34da6a3ce929d0e0e4736")
            );
        }
        let history = api.history(child["id"].as_str().unwrap()).await;
        assert_eq!(history[0]["reason"], format!("for step ship of task {id}"));
        let history = api.history(id).await;
        assert!(kinds(&history).contains(&"step.child"));
        let listed = api.get(&format!("/v1/tasks?parent={id}")).await.expect(200);
        assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{listed:#}");
        assert_eq!(listed["items"][0]["id"], child["id"]);
    }
}

#[tokio::test]
async fn a_child_is_undone_with_its_parent() {
    for setup in setups().await {
        // The last step fails, and everything before it is undone, the child as well as the call.
        let remote = service(|seen| (seen.path == "/mail").then(|| Act::status(400))).await;
        let provost = setup.start().await;
        let api = provost.api();
        register(api, "ship", &shipping(&remote.url())).await;
        let task = api.run(&order(&remote.url())).await;
        assert_eq!(task["state"], "undone", "{task:#}");
        assert_eq!(step(&task, "ship")["state"], "undone");
        assert_eq!(step(&task, "ship.undo")["state"], "processed");
        let id = step(&task, "ship")["child"]["id"].as_str().unwrap();
        let child = api.task(id).await;
        assert_eq!(child["state"], "undone");
        let reason = child["undo"]["reason"].as_str().unwrap();
        assert!(reason.contains("its parent, task"), "{reason}");
        let all = [
            "POST /reserve",
            "POST /pack",
            "POST /mail",
            "DELETE /pack/p1",
            "DELETE /reserve",
        ];
        assert_eq!(calls(&remote), all);
    }
}

#[tokio::test]
async fn an_undo_names_the_child_that_it_waits_for() {
    for setup in setups().await {
        let gate = Gate::closed();
        let undone = gate.clone();
        let remote = service(move |seen| {
            let is_undo = seen.path.starts_with("/pack/");
            is_undo.then(|| undone.then(json!({})))
        })
        .await;
        let provost = setup.start().await;
        let api = provost.api();
        register(api, "ship", &shipping(&remote.url())).await;
        let task = api.run(&order(&remote.url())).await;
        let id = task["id"].as_str().unwrap();
        let child = step(&task, "ship")["child"]["id"].clone();
        let undo = api.command(&format!("/v1/tasks/{id}/undo")).await;
        undo.expect(200);
        remote.paths("/pack/p1", 1).await;
        let task = api.task(id).await;
        let waiting = step(&task, "ship.undo");
        assert_eq!(waiting["state"], "processing", "{task:#}");
        assert_eq!(waiting["blocked_by"]["reason"], "child", "{task:#}");
        assert_eq!(waiting["blocked_by"]["task"], child, "{task:#}");
        let before = &step(&task, "reserve.undo")["blocked_by"];
        let expected = json!({ "reason": "steps", "steps": ["ship.undo"] });
        assert_eq!(*before, expected, "{task:#}");
        gate.open();
        assert_eq!(api.settled(id).await["state"], "undone");
    }
}

#[tokio::test]
async fn a_processed_task_is_undone_later_with_its_child() {
    for setup in setups().await {
        let remote = service(|_| None).await;
        let provost = setup.start().await;
        let api = provost.api();
        register(api, "ship", &shipping(&remote.url())).await;
        let task = api.run(&order(&remote.url())).await;
        let id = task["id"].as_str().unwrap();
        let plan = api.get(&format!("/v1/tasks/{id}/undo-plan")).await;
        let plan = plan.expect(200);
        let child = &step(&task, "ship")["child"]["id"];
        assert_eq!(plan["calls"][0]["step"], "ship.undo", "{plan:#}");
        assert_eq!(plan["calls"][0]["task"]["id"], *child);
        api.command(&format!("/v1/tasks/{id}/undo"))
            .await
            .expect(200);
        let task = api.settled(id).await;
        assert_eq!(task["state"], "undone", "{task:#}");
        assert_eq!(state(api, child.as_str().unwrap()).await, "undone");
    }
}

#[tokio::test]
async fn a_dry_run_warns_of_an_unknown_workflow_also_of_inline_steps() {
    let provost = Provost::start().await;
    let task = json!({ "workflow": "ship", "input": "{{ item }}" });
    let steps = json!([
        { "name": "one", "task": { "workflow": "ship" } },
        { "name": "each", "task": task, "for_each": "{{ input.orders }}" },
    ]);
    let submission = json!({ "steps": steps, "input": { "orders": null } });
    let report = provost.post("/v1/tasks?dry_run=true", &submission).await;
    let report = report.expect(200);
    let warnings = report["warnings"].as_array().unwrap().iter();
    let found: Vec<_> = warnings
        .map(|warning| [&warning["code"], &warning["pointer"]].map(|text| text.as_str().unwrap()))
        .collect();
    for expected in [
        ["unknown_workflow", "/steps/0/task/workflow"],
        ["unknown_workflow", "/steps/1/task/workflow"],
        ["cannot_render", "/steps/1/for_each"],
    ] {
        assert!(found.contains(&expected), "{found:?}");
    }
    assert_eq!(report["steps"][0]["worst_case"], Value::Null);
}

#[tokio::test]
async fn the_plan_of_an_undo_says_which_child_can_no_longer_be_undone() {
    for setup in setups().await {
        let remote = service(|_| None).await;
        let provost = setup.start().await;
        let api = provost.api();
        for (policy, says) in [("undoable_for", "it is too late"), ("pivot", "is a pivot")] {
            let mut ship = shipping(&remote.url());
            match policy {
                "pivot" => ship["steps"][0]["pivot"] = json!(true),
                _ => ship["undoable_for"] = json!("1s"),
            }
            if policy == "pivot" {
                ship["steps"][0].as_object_mut().unwrap().remove("undo");
            }
            register(api, "ship", &ship).await;
            let task = api.run(&order(&remote.url())).await;
            let id = task["id"].as_str().unwrap();
            let ship_undo = async || {
                let plan = api.get(&format!("/v1/tasks/{id}/undo-plan")).await;
                let plan = plan.expect(200);
                assert_eq!(plan["calls"][0]["step"], "ship.undo", "{plan:#}");
                plan["calls"][0]["task"]["cannot_be_undone"].clone()
            };
            // The child can be undone for one second after it was processed.
            until(true, async || {
                ship_undo()
                    .await
                    .as_str()
                    .is_some_and(|why| why.contains(says))
            })
            .await;
            let undo = api.command(&format!("/v1/tasks/{id}/undo")).await;
            undo.expect(200);
            let task = api.settled(id).await;
            assert_eq!(task["state"], "error", "{task:#}");
            let error = step(&task, "ship.undo")["error"]["message"].clone();
            let planned = ship_undo().await;
            assert!(
                error.as_str().unwrap().ends_with(planned.as_str().unwrap()),
                "{error}"
            );
        }
    }
}

#[tokio::test]
async fn a_child_that_is_undone_fails_its_step_by_policy() {
    for setup in setups().await {
        let remote = service(|seen| (seen.path == "/pack").then(|| Act::status(400))).await;
        let provost = setup.start().await;
        let api = provost.api();
        register(api, "ship", &shipping(&remote.url())).await;
        let task = api.run(&order(&remote.url())).await;
        assert_eq!(task["state"], "undone", "{task:#}");
        let error = task["undo"]["error"]["message"].as_str().unwrap();
        assert!(error.contains("was undone: step pack:"), "{error}");
        assert_eq!(
            calls(&remote),
            ["POST /reserve", "POST /pack", "DELETE /reserve"]
        );
        // A retry makes another child.
        let mut submission = order(&remote.url());
        submission["steps"][1]["on_permanent"] = json!("error");
        submission["steps"][2]["request"]["body"] = json!({});
        let task = api.run(&submission).await;
        assert_eq!(task["state"], "error", "{task:#}");
        let id = task["id"].as_str().unwrap();
        let first = step(&task, "ship")["child"]["id"].clone();
        register(
            api,
            "ship",
            &json!({ "steps": [{ "name": "pack", "url": remote.url() }] }),
        )
        .await;
        api.command(&format!("/v1/tasks/{id}/retry"))
            .await
            .expect(200);
        let task = api.settled(id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        let ship = step(&task, "ship");
        assert_ne!(ship["child"]["id"], first);
        assert_eq!(
            (&ship["attempt"], &ship["output"]),
            (&json!(2), &Value::Null)
        );
    }
}

#[tokio::test]
async fn a_step_waits_for_the_operator_of_its_task_or_has_it_undone() {
    for setup in setups().await {
        let remote = service(|seen| {
            let fails = seen.path == "/fails" && seen.attempt() < 2;
            fails.then(|| Act::status(400))
        })
        .await;
        let provost = setup.start().await;
        let api = provost.api();
        let mut failing = shipping(&remote.url());
        let then = json!({ "name": "then", "url": remote.url(), "request": { "path": "/fails" } });
        failing["steps"].as_array_mut().unwrap().push(then);
        register(api, "ship", &failing).await;
        let id = api.submit(&order(&remote.url())).await;
        let child = child(api, &id, "ship").await;
        until(
            json!({ "reason": "child", "task": child, "state": "error" }),
            async || step(&api.task(&id).await, "ship")["blocked_by"].clone(),
        )
        .await;
        for command in ["skip", "resolve"] {
            let path = format!("/v1/tasks/{id}/steps/ship/{command}");
            let refused = api.post(&path, &json!({ "output": 1 })).await;
            let problem = refused.expect_problem(409, "wrong-step-state");
            let detail = problem["detail"].as_str().unwrap();
            assert!(detail.contains("cancel or undo that task"), "{detail}");
        }
        api.command(&format!("/v1/tasks/{child}/retry"))
            .await
            .expect(200);
        let task = api.settled(&id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        let history = api.history(&id).await;
        let of_child: Vec<_> = { kinds(&history).into_iter() }
            .filter(|kind| kind.starts_with("step.child"))
            .collect();
        assert_eq!(of_child[..2], ["step.child", "step.child_error"]);

        let mut submission = order(&remote.url());
        submission["steps"][1]["task"]["on_error"] = json!("undo");
        let task = api.run(&submission).await;
        assert_eq!(task["state"], "undone", "{task:#}");
        let child = step(&task, "ship")["child"]["id"].as_str().unwrap();
        assert_eq!(state(api, child).await, "undone");
    }
}

#[tokio::test]
async fn a_pause_of_the_parent_holds_the_undo_of_its_task_in_error_until_it_is_resumed() {
    for setup in setups().await {
        let remote = service(|seen| (seen.path == "/fails").then(|| Act::status(422))).await;
        let provost = setup.start().await;
        let api = provost.api();
        let mut failing = shipping(&remote.url());
        let steps = failing["steps"].as_array_mut().unwrap();
        steps.push(json!({ "name": "go", "signal": { "within": "1h" } }));
        steps.push(json!({ "name": "then", "url": remote.url(), "request": { "path": "/fails" } }));
        register(api, "ship", &failing).await;
        let mut submission = order(&remote.url());
        submission["steps"][1]["task"]["on_error"] = json!("undo");
        let id = api.submit(&submission).await;
        let child = child(api, &id, "ship").await;
        until(json!("processing"), async || {
            step(&api.task(&child).await, "go")["state"].clone()
        })
        .await;
        api.command(&format!("/v1/tasks/{id}/pause"))
            .await
            .expect(200);
        let signal = format!("/v1/tasks/{child}/signals/go");
        api.post(&signal, &json!({})).await.expect(200);
        // The parent has been notified, so its policy would have been applied by now.
        until(
            json!({ "reason": "child", "task": child, "state": "error" }),
            async || step(&api.task(&id).await, "ship")["blocked_by"].clone(),
        )
        .await;
        assert_eq!(state(api, &child).await, "error");
        assert_eq!(state(api, &id).await, "paused");
        assert!(!calls(&remote).contains(&"DELETE /pack/p1".to_owned()));

        api.command(&format!("/v1/tasks/{id}/resume"))
            .await
            .expect(200);
        assert_eq!(api.settled(&id).await["state"], "undone");
        assert_eq!(state(api, &child).await, "undone");
    }
}

#[tokio::test]
async fn a_cancel_and_an_undo_go_down_to_running_tasks() {
    for setup in setups().await {
        let gate = Gate::closed();
        let remote = service({
            let gate = gate.clone();
            move |seen| (seen.path == "/pack").then(|| gate.then(json!({ "id": "p1" })))
        })
        .await;
        let provost = setup.start().await;
        let api = provost.api();
        register(api, "ship", &shipping(&remote.url())).await;
        // There is one level more.
        let between = json!({ "steps": [{ "name": "inner", "task": { "workflow": "ship", "input": { "order": 1 } } }] });
        register(api, "between", &between).await;
        let mut submission = order(&remote.url());
        submission["steps"][1]["task"]["workflow"] = json!("between");
        let mut ids = Vec::new();
        for _ in 0..2 {
            let id = api.submit(&submission).await;
            let middle = child(api, &id, "ship").await;
            let inner = child(api, &middle, "inner").await;
            ids.push((id, middle, inner));
        }
        remote.paths("/pack", 2).await;
        let (id, middle, inner) = &ids[0];
        api.command(&format!("/v1/tasks/{id}/cancel"))
            .await
            .expect(200);
        for task in [middle, inner] {
            assert_eq!(api.settled(task).await["state"], "cancelled");
        }
        let (id, middle, inner) = &ids[1];
        api.command(&format!("/v1/tasks/{id}/undo"))
            .await
            .expect(200);
        until("undoing".to_owned(), async || state(api, inner).await).await;
        gate.open();
        for task in [inner, middle, id] {
            let task = api.settled(task).await;
            assert_eq!(task["state"], "undone", "{task:#}");
        }
        let undone = calls(&remote)
            .into_iter()
            .filter(|call| call.starts_with("DELETE"));
        let undone: Vec<_> = undone.collect();
        assert_eq!(undone, ["DELETE /pack/p1", "DELETE /reserve"]);
    }
}

#[tokio::test]
async fn what_cannot_be_made_fails_its_step_with_the_reason() {
    for setup in setups().await {
        let remote = service(|_| None).await;
        let provost = setup.start().await;
        let api = provost.api();
        let mut submission = order(&remote.url());
        submission["steps"][1]["on_permanent"] = json!("error");
        let task = api.run(&submission).await;
        let message = task["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("workflow \"ship\" does not exist: register it"),
            "{message}"
        );
        let id = task["id"].as_str().unwrap();
        let mut strict = shipping(&remote.url());
        strict["input_schema"] = json!({ "required": ["order", "sku"] });
        register(api, "ship", &strict).await;
        api.command(&format!("/v1/tasks/{id}/retry"))
            .await
            .expect(200);
        let message = api.settled(id).await["error"]["message"].clone();
        let message = message.as_str().unwrap();
        assert!(message.contains("/input/sku: is missing"), "{message}");
        let skip = format!("/v1/tasks/{id}/steps/ship/skip");
        api.post(&skip, &json!({})).await.expect(200);
        let task = api.settled(id).await;
        // The step after it reads an output that does not exist.
        assert_eq!(step(&task, "ship")["state"], "skipped", "{task:#}");
        let listed = api.get(&format!("/v1/tasks?parent={id}")).await.expect(200);
        assert_eq!(listed["items"], json!([]));

        // A workflow that contains itself ends at a limited depth.
        let itself = json!({ "steps": [{ "name": "again", "on_permanent": "undo",
                                          "task": { "workflow": "loop" } }] });
        register(api, "loop", &itself).await;
        let task = api.run(&json!({ "workflow": "loop" })).await;
        assert_eq!(task["state"], "undone", "{task:#}");
        let message = task["undo"]["error"]["message"].as_str().unwrap();
        assert!(message.contains("was undone"), "{message}");
        let all = api
            .get("/v1/tasks?workflow=loop&limit=100")
            .await
            .expect(200);
        assert_eq!(all["items"].as_array().unwrap().len(), 9);
    }
}

/// Checks that each of these tasks has one child that is processed or undone, and that their effects are those that the
/// services saw.
async fn agree(api: &Api, remote: &Remote, ids: &[String]) {
    for id in ids {
        api.settled(id).await;
        let children = api.get(&format!("/v1/tasks?parent={id}")).await.expect(200);
        for child in children["items"].as_array().unwrap() {
            api.settled(child["id"].as_str().unwrap()).await;
        }
    }
    let mut kept: BTreeMap<String, i32> = BTreeMap::new();
    for seen in remote.ledger() {
        let task = seen.header("provost-task").to_owned();
        *kept.entry(task).or_default() |= match seen.method.as_str() {
            "DELETE" => 2,
            _ => 1,
        };
    }
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for id in ids {
        let task = api.settled(id).await;
        let end = task["state"].as_str().unwrap();
        *ends.entry(end.to_owned()).or_default() += 1;
        assert!(
            ["processed", "undone", "cancelled"].contains(&end),
            "{task:#}"
        );
        let children = api.get(&format!("/v1/tasks?parent={id}")).await.expect(200);
        let children = children["items"].as_array().unwrap().clone();
        assert!(children.len() <= 1, "{children:#?}");
        for child in &children {
            let child_id = child["id"].as_str().unwrap();
            let child = api.settled(child_id).await;
            match (end, child["state"].as_str().unwrap()) {
                ("processed", "processed") => assert_eq!(kept.get(child_id), Some(&1)),
                ("undone", "undone") => {
                    let did = kept.get(child_id).copied().unwrap_or_default();
                    assert_ne!(did, 1, "{child:#}");
                }
                // The child had another end before, or was asked for another end first.
                ("cancelled", "cancelled" | "processed" | "undone") => {}
                (_, other) => panic!("{end} has a child that is {other}: {task:#}\n{child:#}"),
            }
        }
        if end == "processed" {
            assert_eq!(children.len(), 1);
        }
    }
    println!("{ends:?}");
}

fn seed() -> u64 {
    let seed = match std::env::var("PROVOST_TEST_SEED") {
        Ok(seed) => seed.parse().expect("PROVOST_TEST_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("PROVOST_TEST_SEED={seed}");
    seed
}

/// Submits, undoes and cancels at random, while processes are killed at random.
async fn kill_at_random(mut instances: Vec<Provost>) {
    let mut random = StdRng::seed_from_u64(seed());
    let remote = Remote::with(|seen| match seen.path.as_str() {
        "/mail" if seen.body["fails"] == true => Act::status(400),
        _ => Act::Ok(json!({ "id": "p1" })),
    })
    .await;
    register(instances[0].api(), "ship", &shipping(&remote.url())).await;
    let mut ids: Vec<String> = Vec::new();
    for round in 0..12 {
        let at = random.random_range(0..instances.len());
        let api = instances[at].api().clone();
        for number in 0..12 {
            let mut submission = order(&remote.url());
            submission["steps"][2]["request"]["body"]["fails"] = json!(random.random_ratio(1, 4));
            let key = format!("order-{round}-{number}");
            let submitted = api.post("/v1/tasks", &submission);
            if let Ok(answer) = submitted.header("idempotency-key", &key).attempt().await
                && answer.status == 202
            {
                ids.push(answer.body["id"].as_str().unwrap().to_owned());
            }
            if random.random_ratio(1, 3) {
                let id = &ids[random.random_range(0..ids.len())];
                let command = ["undo", "cancel", "undo"][random.random_range(0..3)];
                let path = format!("/v1/tasks/{id}/{command}");
                let _ = api.post(&path, &json!({})).attempt().await;
            }
        }
        sleep(Duration::from_micros(random.random_range(0..60_000))).await;
        let victim = random.random_range(0..instances.len());
        instances[victim].kill().await;
        instances[victim].launch();
        instances[victim].ready().await;
    }
    assert!(ids.len() > 80, "{}", ids.len());
    agree(instances[0].api(), &remote, &ids).await;
    // No step is left to be compared with its children.
    let api = instances[0].api();
    until(0.0, async || {
        api.metric("provost_steps_waiting_for_event").await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_any_moment_parents_and_children_agree_in_the_end() {
    let provost = Provost::setup().set("INSTANCE_ID", "node-1").start().await;
    kill_at_random(vec![provost]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_three_instances_of_which_some_are_killed_parents_and_children_agree_in_the_end() {
    let url = new_database().await;
    let mut instances = Vec::new();
    for number in 0..3 {
        let setup = Provost::setup().database_url(&url);
        let setup = setup.set("INSTANCE_ID", &format!("node-{number}"));
        instances.push(setup.set("INSTANCE__LEASE", "2s").start().await);
    }
    kill_at_random(instances).await;
    let left = sql(&url, "SELECT count(*) FROM child_marks");
    assert_eq!(left.trim(), "0");
}

#[tokio::test]
async fn a_child_is_kept_as_long_as_its_parent() {
    for setup in setups().await {
        let remote = service(|_| None).await;
        let setup = setup.set("RETENTION__INTERVAL", "100ms");
        let setup = setup.config("[retention.workflows.ship]\nkeep = \"1s\"\n");
        let provost = setup.start().await;
        let api = provost.api();
        register(api, "ship", &shipping(&remote.url())).await;
        let mut submission = order(&remote.url());
        submission["steps"]
            .as_array_mut()
            .unwrap()
            .push(json!({ "name": "pause", "wait": { "for": "4s" } }));
        let id = api.submit(&submission).await;
        let own = api
            .run(&json!({ "workflow": "ship", "input": { "order": 1 } }))
            .await;
        let child = child(api, &id, "ship").await;
        api.until_deleted(&[own["id"].as_str().unwrap().to_owned()])
            .await;
        assert_eq!(api.settled(&id).await["state"], "processed");
        api.command(&format!("/v1/tasks/{id}/undo"))
            .await
            .expect(200);
        assert_eq!(api.settled(&id).await["state"], "undone");
        assert_eq!(state(api, &child).await, "undone");
    }
}

#[tokio::test]
async fn each_item_of_a_list_is_a_task_whose_steps_stand_in_the_step() {
    for setup in setups().await {
        let remote = service(|seen| {
            (seen.path == "/send" && seen.body == json!({ "of": 2 })).then(|| Act::status(422))
        })
        .await;
        let provost = setup.start().await;
        let api = provost.api();
        let url = remote.url();
        let parcels = json!({ "name": "parcels", "for_each": "{{ input }}", "on_permanent": "undo",
            "task": { "input": { "number": "{{ item }}" }, "key": "parcel-{{ item }}", "on_error": "undo",
                "output": { "sent": "{{ steps.send.output.id }}" },
                "steps": [
                    { "name": "pack", "url": url, "request": { "path": "/pack/{{ input.number }}", "headers": { "authorization": "Bearer s3cr3t" } },
                      "undo": { "request": { "method": "DELETE", "path": "/pack/{{ input.number }}" } } },
                    { "name": "send", "url": url, "request": { "path": "/send", "body": { "of": "{{ input.number }}" } } } ],
                "finally": [{ "name": "tell", "url": url, "request": { "path": "/tell/{{ task.state }}" } }] } });
        let id = provost
            .submit(&json!({ "input": [1, 3], "steps": [parcels] }))
            .await;
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        assert_eq!(
            step(&task, "parcels")["output"],
            json!([{ "sent": "p1" }, { "sent": "p1" }])
        );
        let children = api.get(&format!("/v1/tasks?parent={id}")).await.expect(200);
        assert_eq!(children["items"].as_array().unwrap().len(), 2);
        assert_eq!(children["items"][0]["workflow"], Value::Null);
        // Others see no secret of the steps in the step.
        let shown = format!(
            "{:#}",
            api.get(&format!("/v1/tasks/{id}/steps")).await.expect(200)
        );
        assert!(!shown.contains("s3cr3t"), "{shown}");

        // One of them is refused: it is undone, and so are the step and the others.
        let before = remote.count();
        let id = provost
            .submit(&json!({ "input": [1, 2], "steps": [parcels] }))
            .await;
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "undone", "{task:#}");
        let mut paths: Vec<_> = calls(&remote).split_off(before);
        paths.sort();
        let undone = [
            "DELETE /pack/1",
            "DELETE /pack/2",
            "POST /pack/1",
            "POST /pack/2",
        ];
        assert_eq!(paths[..4], undone, "{paths:?}");
        assert!(
            paths.iter().any(|path| path == "POST /tell/undone"),
            "{paths:?}"
        );

        let wrong =
            json!([{ "name": "a", "task": { "steps": [{ "name": "b", "agent": "nobody" }] } }]);
        let refused = api
            .post("/v1/tasks", &json!({ "steps": wrong }))
            .await
            .expect_problem(422, "invalid");
        assert_eq!(
            refused["errors"][0]["pointer"], "/steps/0/task/steps/0/agent",
            "{refused:#}"
        );
    }
}

#[tokio::test]
async fn a_child_that_nobody_waits_for_goes_on_or_ends_with_its_parent_as_its_step_says() {
    for setup in setups().await {
        let gate = Gate::closed();
        let held = gate.clone();
        let remote =
            service(move |seen| (seen.path == "/pack").then(|| held.then(json!({ "id": "p1" }))))
                .await;
        let provost = setup.start().await;
        let api = provost.api();
        register(api, "ship", &shipping(&remote.url())).await;
        let order = |on_undo: &str| {
            json!({ "input": { "order": 7 }, "steps": [
            { "name": "reserve", "url": remote.url(), "request": { "path": "/reserve" },
              "undo": { "request": { "method": "DELETE", "path": "/reserve" } } },
            { "name": "ship", "task": { "workflow": "ship", "input": { "order": 7 }, "await": false, "on_undo": on_undo } },
        ] })
        };
        let mut children = Vec::new();
        for on_undo in ["leave", "undo"] {
            let id = provost.submit(&order(on_undo)).await;
            let task = provost.settled(&id).await;
            assert_eq!(task["state"], "processed", "{task:#}");
            let ship = step(&task, "ship");
            let child = ship["child"]["id"].as_str().unwrap().to_owned();
            assert_eq!(
                ship["output"],
                json!({ "id": child, "workflow": "ship", "version": 1 })
            );
            assert_eq!(ship["child"]["state"], Value::Null);
            until("processing".to_owned(), async || state(api, &child).await).await;
            remote
                .requests(if on_undo == "leave" { 2 } else { 4 })
                .await;
            api.command(&format!("/v1/tasks/{id}/undo"))
                .await
                .expect(200);
            children.push((id, child));
        }
        // A cancelled parent takes the child along that it says.
        let mut order = order("undo");
        order["steps"]
            .as_array_mut()
            .unwrap()
            .push(json!({ "name": "hold", "signal": { "within": "1h" } }));
        let id = provost.submit(&order).await;
        let child = child(api, &id, "ship").await;
        until("processing".to_owned(), async || state(api, &child).await).await;
        api.command(&format!("/v1/tasks/{id}/cancel"))
            .await
            .expect(200);
        until("cancelled".to_owned(), async || state(api, &child).await).await;
        let (left, undone) = (&children[0], &children[1]);
        until("undone".to_owned(), async || state(api, &left.0).await).await;
        assert_eq!(state(api, &left.1).await, "processing");
        gate.open();
        until("processed".to_owned(), async || state(api, &left.1).await).await;
        until("undone".to_owned(), async || state(api, &undone.1).await).await;
        until("undone".to_owned(), async || state(api, &undone.0).await).await;
    }
}
