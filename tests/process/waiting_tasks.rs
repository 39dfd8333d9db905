//! Tasks that have not begun: none of their steps begins, whatever commands come, and each task ends once there is room
//! for it.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    Database, Gate, Provost, Remote, kinds, new_database, setups, sql, step, until,
};

/// Registers a workflow. The second step of its first task calls a service that does not respond yet, and the other
/// tasks wait for that task.
async fn register(provost: &Provost, workflow: &str, mut first: Value, service: &Remote) {
    first["name"] = json!("first");
    let steps = json!([first, { "name": "next", "after": ["first"], "url": service.url() }]);
    let definition = json!({ "limits": [{ "by": "{{ task.labels.lane }}" }], "steps": steps });
    let path = format!("/v1/workflows/{workflow}");
    provost.put(&path, &definition).await.expect(201);
}

async fn command(provost: &Provost, id: &str, command: &str) {
    let path = format!("/v1/tasks/{id}/{command}");
    provost.command(&path).await.expect(200);
}

async fn approve(provost: &Provost, id: &str) {
    let path = format!("/v1/tasks/{id}/signals/first");
    provost.post(&path, &json!("yes")).await.expect(200);
}

fn first_steps(url: &str) -> [(&'static str, Value); 8] {
    let repeat = json!({ "until": "index >= 1", "at_most": 2 });
    [
        ("call", json!({ "url": url })),
        ("left-out", json!({ "url": url, "when": "false" })),
        ("over", json!({ "wait": { "for": "0s" } })),
        ("signal", json!({ "signal": { "within": "1h" } })),
        ("empty", json!({ "url": url, "for_each": [] })),
        ("list", json!({ "url": url, "for_each": [1, 2] })),
        (
            "repeat",
            json!({ "wait": { "for": "0s" }, "repeat": repeat }),
        ),
        ("child", json!({ "task": { "workflow": "pack" } })),
    ]
}

#[tokio::test]
async fn nothing_of_a_task_that_waits_begins_and_it_ends_once_there_is_room() {
    for setup in setups().await {
        let gate = Gate::closed();
        let held = Remote::script([gate.then(json!("done"))]).await;
        let quick = Remote::quick().await;
        let provost = setup.start().await;
        let pack = json!({ "steps": [{ "name": "only", "url": quick.url() }] });
        provost.put("/v1/workflows/pack", &pack).await.expect(201);
        let mut ids = Vec::new();
        for (workflow, first) in first_steps(&quick.url()) {
            register(&provost, workflow, first, &held).await;
            let task = json!({ "workflow": workflow, "labels": { "lane": "a" } });
            let runs = provost.submit(&task).await;
            let waits = [provost.submit(&task).await, provost.submit(&task).await];
            for id in &waits {
                command(&provost, id, "pause").await;
                command(&provost, id, "resume").await;
            }
            let skip = format!("/v1/tasks/{}/steps/first/skip", waits[1]);
            let skipped = provost.command(&skip).await.status;
            assert_eq!(skipped, if workflow == "left-out" { 409 } else { 200 });
            if workflow == "signal" {
                approve(&provost, &runs).await;
                approve(&provost, &waits[0]).await;
            }
            for id in &waits {
                let task = provost.task(id).await;
                assert_eq!(task["state"], "pending", "{workflow}");
                for step in task["steps"].as_array().unwrap() {
                    assert_eq!(step["attempt"], 0, "{workflow}: {step}");
                }
            }
            ids.push((workflow, runs, waits));
        }
        held.requests(ids.len()).await;
        gate.open();
        for (workflow, runs, waits) in &ids {
            for id in [runs, &waits[0], &waits[1]] {
                assert_eq!(
                    provost.settled(id).await["state"],
                    "processed",
                    "{workflow}"
                );
            }
        }
    }
}

/// In earlier versions a task could be `processing` that waited for admission and had a completed step, and it was
/// never admitted.
#[tokio::test]
async fn tasks_that_were_stuck_on_record_begin_after_a_restart() {
    let url = new_database().await;
    for url in [None, Some(url)] {
        let gate = Gate::closed();
        let held = Remote::script([gate.then(json!("done"))]).await;
        let setup = match &url {
            Some(url) => Provost::setup().database_url(url),
            None => Provost::setup(),
        };
        let mut provost = setup.start().await;
        let first = json!({ "url": held.url(), "when": "false" });
        register(&provost, "stuck", first, &held).await;
        let task = json!({ "workflow": "stuck", "labels": { "lane": "a" } });
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.push(provost.submit(&task).await);
        }
        held.requests(1).await;
        provost.kill().await;
        let stuck = "UPDATE tasks SET state = 'processing' WHERE waits";
        match &url {
            Some(url) => drop(sql(url, stuck)),
            None => Database::open(&provost.database()).execute(stuck),
        }
        gate.open();
        provost.restart().await;
        for id in &ids {
            assert_eq!(provost.settled(id).await["state"], "processed");
        }
        assert!(kinds(&provost.history(&ids[2]).await).contains(&"task.admitted"));
    }
}

/// A task that ends at the moment of its admission, its start or its resumption has the same event as any other.
#[tokio::test]
async fn the_end_of_a_task_at_the_moment_in_which_it_begins_is_a_message_and_in_its_history() {
    for setup in setups().await {
        let receiver = Remote::quick().await;
        let provost = setup.start().await;
        let mut steps = json!([{ "name": "only", "wait": { "for": "0s" } }]);
        let definition = json!({ "limits": [{ "by": "{{ task.labels.lane }}" }], "steps": steps });
        provost
            .put("/v1/workflows/short", &definition)
            .await
            .expect(201);
        let reply_to = json!({ "url": receiver.url(), "events": ["task.processed", "task.error"] });
        let later = jiff::Timestamp::now() + Duration::from_secs(3600);
        let later = later.to_string();
        let labels = json!({ "lane": "a" });
        let of_limit = json!({ "workflow": "short", "labels": labels, "start_at": later, "reply_to": reply_to });
        let paused = json!({ "steps": steps, "start_at": later, "reply_to": reply_to });
        steps[0]["wait"]["for"] = json!("{{ input.missing }}");
        let failing = json!({ "steps": steps, "start_at": later, "reply_to": reply_to });
        for (submission, end) in [
            (&of_limit, "processed"),
            (&paused, "processed"),
            (&failing, "error"),
        ] {
            let id = provost.submit(submission).await;
            command(&provost, &id, "pause").await;
            command(&provost, &id, "start").await;
            command(&provost, &id, "resume").await;
            let task = provost.settled(&id).await;
            assert_eq!(task["state"], end);
            assert_eq!(step(&task, "only")["attempt"], 1);
            let history = provost.history(&id).await;
            let kind = format!("task.{end}");
            let told = kinds(&history).into_iter().filter(|told| *told == kind);
            assert_eq!(told.count(), 1, "{history:?}");
            let messages = || {
                let ledger = receiver.ledger().into_iter();
                let of_task = ledger.filter(|seen| seen.body["subject"] == id.as_str());
                let kinds = of_task.map(|seen| seen.body["type"].as_str().unwrap().to_owned());
                kinds.collect::<Vec<_>>()
            };
            until(vec![kind.clone()], || async { messages() }).await;
        }
    }
}
