//! The steps that run once when all others have ended, however the task ends.

use serde_json::{Value, json};

use crate::harness::{Act, Gate, Provost, Remote, Seen, id_of, setups, step, until};

/// One step that can be undone, one that may fail, and two that run whatever the end.
fn task(url: &str) -> Value {
    json!({
        "steps": [
            { "name": "charge", "url": url, "request": { "path": "/charge" },
              "undo": { "request": { "method": "DELETE", "path": "/charge" } } },
            { "name": "ship", "url": url, "request": { "path": "/ship" }, "on_permanent": "undo" },
        ],
        "finally": [
            { "name": "unlock", "url": url, "request": { "path": "/unlock", "body": {
                "ends": "{{ task.state }}",
                "why": "{{ task.error.message if task.error else none }}",
                "ship": "{{ steps.ship.state }}",
            } } },
            { "name": "tell", "url": url, "request": { "path": "/tell" } },
        ],
    })
}

/// `/ship` replies with this status; the path in `gated` replies once the gate is open.
async fn service(ship: u16, gated: &'static str, gate: &Gate) -> Remote {
    let gate = gate.clone();
    Remote::with(move |seen: &Seen| match seen.path.as_str() {
        path if path == gated => gate.then(json!({ "path": path })),
        "/ship" if ship != 200 => Act::status(ship),
        path => Act::Ok(json!({ "path": path })),
    })
    .await
}

fn paths(remote: &Remote) -> Vec<String> {
    let ledger = remote.ledger().into_iter();
    ledger
        .map(|seen| format!("{} {}", seen.method, seen.path))
        .collect()
}

fn unlocked(remote: &Remote) -> Vec<Value> {
    let mut ledger = remote.ledger();
    ledger.retain(|seen| seen.path == "/unlock");
    ledger.into_iter().map(|seen| seen.body).collect()
}

#[tokio::test]
async fn they_follow_the_last_step_of_a_processed_task_and_the_last_undo_of_an_undone_one() {
    for setup in setups().await {
        let provost = setup.start().await;
        for (ship, state) in [(200, "processed"), (422, "undone")] {
            let remote = service(ship, "", &Gate::closed()).await;
            let task = provost.run(&task(&remote.url())).await;
            assert_eq!(task["state"], state, "{task:#}");
            let mut expected = vec!["POST /charge", "POST /ship"];
            if state == "undone" {
                expected.push("DELETE /charge");
            }
            expected.extend(["POST /unlock", "POST /tell"]);
            assert_eq!(paths(&remote), expected);
            let seen = &unlocked(&remote)[0];
            assert_eq!(seen["ends"], state);
            assert_eq!(seen["why"].is_null(), state == "processed", "{seen}");
            assert_eq!(step(&task, "unlock")["after"], json!(["ship"]));
        }
    }
}

#[tokio::test]
async fn a_cancelled_task_waits_for_them_although_its_instance_is_killed() {
    for setup in setups().await {
        let gate = Gate::closed();
        let remote = service(200, "/ship", &gate).await;
        let mut provost = setup.start().await;
        let id = provost.submit(&task(&remote.url())).await;
        remote.paths("/ship", 1).await;
        provost.kill().await;
        provost.restart().await;
        let cancel = format!("/v1/tasks/{id}/cancel");
        provost.post(&cancel, &json!({})).await.expect(200);
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "cancelled", "{task:#}");
        assert_eq!(unlocked(&remote).len(), 1);
        assert_eq!(unlocked(&remote)[0]["ends"], "cancelled");
        let states =
            ["charge", "ship", "unlock", "tell"].map(|name| step(&task, name)["state"].clone());
        assert_eq!(states, ["processed", "cancelled", "processed", "processed"]);
        // A cancellation undoes nothing.
        assert!(!paths(&remote).contains(&"DELETE /charge".to_owned()));
        gate.open();
    }
}

#[tokio::test]
async fn they_run_once_although_the_instance_is_killed_while_they_run() {
    for setup in setups().await {
        let gate = Gate::closed();
        let remote = service(422, "/unlock", &gate).await;
        let mut provost = setup.start().await;
        let id = provost.submit(&task(&remote.url())).await;
        remote.paths("/unlock", 1).await;
        let undo = provost
            .post(&format!("/v1/tasks/{id}/undo"), &json!({}))
            .await;
        undo.expect_problem(409, "wrong-task-state");
        provost.kill().await;
        gate.open();
        provost.restart().await;
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "undone", "{task:#}");
        let mut keys: Vec<_> = { remote.ledger().into_iter() }
            .filter(|seen| seen.path == "/unlock")
            .map(|seen| seen.key().to_owned())
            .collect();
        keys.dedup();
        assert_eq!(keys.len(), 1, "the same key for both calls");
        assert!(
            unlocked(&remote)
                .iter()
                .all(|seen| seen["ends"] == "undone")
        );
    }
}

#[tokio::test]
async fn one_that_fails_waits_for_an_operator() {
    for setup in setups().await {
        let remote = Remote::with(|seen: &Seen| match seen.path.as_str() {
            "/unlock" => Act::status(400),
            path => Act::Ok(json!({ "path": path })),
        })
        .await;
        let provost = setup.start().await;
        let failed = provost.run(&task(&remote.url())).await;
        assert_eq!(failed["state"], "error", "{failed:#}");
        let skip = format!("/v1/tasks/{}/steps/unlock/skip", id_of(&failed));
        provost.post(&skip, &json!({})).await.expect(200);
        let task = provost.settled(&id_of(&failed)).await;
        assert_eq!(task["state"], "processed", "{task:#}");
    }
}

#[tokio::test]
async fn they_are_a_part_of_a_workflow_and_their_secrets_are_hidden() {
    let tokens = "eye:read:eye-secret-0123456789,root:admin:root-secret-0123456789";
    let provost = Provost::setup().set("TOKENS", tokens).start().await;
    let remote = Remote::quick().await;
    let step = json!({ "name": "unlock", "url": remote.url(),
        "request": { "headers": { "Authorization": "s3cret" } } });
    let workflow = json!({
        "steps": [{ "name": "block", "steps": [{ "name": "work", "url": remote.url(),
            "request": { "headers": { "Authorization": "s3cret" } } }] }],
        "finally": [step],
    });
    let bearer = |name: &str| format!("Bearer {name}-secret-0123456789");
    let put = provost.put("/v1/workflows/w", &workflow);
    put.header("authorization", &bearer("root"))
        .await
        .expect(201);
    for (role, is_shown) in [("root", true), ("eye", false)] {
        for path in ["/v1/workflows/w", "/v1/events?types=workflow.*"] {
            let get = provost.get(path).header("authorization", &bearer(role));
            let text = get.await.expect(200).to_string();
            let is_of_ledger = path.starts_with("/v1/events");
            assert_eq!(
                text.contains("s3cret"),
                is_shown && !is_of_ledger,
                "{role} {path} {text}"
            );
            assert!(text.contains("unlock"), "{path} {text}");
        }
    }
}

#[tokio::test]
async fn a_cached_workflow_and_a_schedule_make_tasks_that_have_them() {
    for setup in setups().await {
        let remote = Remote::quick().await;
        let provost = setup.start().await;
        let workflow = json!({
            "steps": [{ "name": "work", "url": remote.url(), "request": { "path": "/work" } }],
            "finally": [{ "name": "unlock", "url": remote.url(), "request": { "path": "/unlock" } }],
        });
        let put = provost.put("/v1/workflows/w", &workflow).await;
        put.expect(201);
        let task = provost.run(&json!({ "workflow": "w" })).await;
        assert_eq!(task["state"], "processed");
        let schedule = json!({ "every": "1h", "workflow": "w" });
        let put = provost.put("/v1/schedules/hourly", &schedule).await;
        put.expect(201);
        let trigger = provost.post("/v1/schedules/hourly/trigger", &json!({}));
        let run = trigger.await.expect(202);
        let id = run["task"].as_str().unwrap_or_else(|| panic!("{run}"));
        let task = provost.settled(id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        until(2, || async { unlocked(&remote).len() }).await;
    }
}
