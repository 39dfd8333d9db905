//! Calls that are not needed any more, because a race is over, the task is stopped, enough items have succeeded, or a
//! `while` is not true any more: nothing relies on their end before it is known.

use serde_json::{Value, json};

use crate::{
    harness::{Act, Api, Gate, Provost, Remote, new_database, step, until},
    workers,
};

/// The tasks, each with the name of the step whose call hangs. A signal to `go`, or an operator, makes the call needless.
fn needless(url: &str) -> [(Value, &'static str); 4] {
    let slow = |name: &str, more: Value| {
        let mut step = json!({ "name": name, "url": url, "after": [], "request": { "path": "/slow" }, "complete_within": "1h",
            "undo": { "request": { "path": "/undo" } } });
        step.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        step
    };
    let go = json!({ "name": "go", "after": [], "signal": { "within": "1h" } });
    let rest = json!({ "name": "rest", "after": ["go"], "wait": { "for": "1h" } });
    let join = json!({ "name": "join", "after": { "any": 1, "of": ["a", "go"], "rest": "cancel" }, "set": {} });
    let wanted = json!({ "while": "steps.go.state != 'processed'" });
    let stop = json!({ "name": "end", "after": ["go"], "stop": { "state": "processed" } });
    let list = json!({ "for_each": ["slow", "refused"], "enough": 1, "on_item_error": "error", "request": { "path": "/{{ item }}" } });
    let task = |steps: Value| json!({ "steps": steps });
    [
        (task(json!([slow("a", json!({})), go, join])), "a"),
        (task(json!([slow("a", wanted), go, rest])), "a"),
        (task(json!([slow("a", json!({})), go, stop])), "a"),
        (task(json!([slow("a", list), go])), "a[0]"),
    ]
}

/// Returns a step or an item of the task.
async fn record(api: &Api, id: &str, name: &str) -> Value {
    let list = match name.split_once('[') {
        Some((_, item)) if item.ends_with(".undo") => "?of=a.undo",
        Some(_) => "?of=a",
        None => "",
    };
    let steps = api.get(&format!("/v1/tasks/{id}/steps{list}")).await;
    let steps = steps.expect(200)["items"].as_array().unwrap().clone();
    let found = steps.iter().find(|step| step["name"] == name);
    found
        .unwrap_or_else(|| panic!("no {name} in {steps:#?}"))
        .clone()
}

/// The holder cannot confirm that its calls have ended, and could still make them: no undo is sent before its lease is over.
#[tokio::test]
async fn no_undo_overtakes_a_call_that_is_not_needed_any_more() {
    let gate = Gate::closed();
    let slow = gate.clone();
    let remote = Remote::with(move |seen| match seen.path.as_str() {
        "/slow" => slow.then(json!("late")),
        "/refused" => Act::status(422),
        _ => Act::Ok(json!(null)),
    })
    .await;
    let url = new_database().await;
    let one = Provost::setup().database_url(&url).start().await;
    let mut tasks = Vec::new();
    for (task, slow) in needless(&remote.url()) {
        tasks.push((one.submit(&task).await, slow));
    }
    // One of them is refused.
    remote.requests(tasks.len() + 1).await;
    let (list, _) = tasks[3].clone();
    let refused = async || record(&one, &list, "a[1]").await["state"].clone();
    until(json!("error"), refused).await;
    let other = Provost::setup().database_url(&url).start().await;
    one.suspend();
    for (id, name) in &tasks {
        let (path, body) = match *id == list {
            true => ("steps/a[1]/resolve", json!({ "output": 1 })),
            false => ("signals/go", json!({})),
        };
        let path = format!("/v1/tasks/{id}/{path}");
        other.post(&path, &body).await.expect(200);
        let needless = record(&other, id, name).await;
        assert_eq!(needless["state"], "processing", "{needless:#}");
        assert_eq!(needless["last_fault"]["cancelled"], true, "{needless:#}");
        let undo = format!("/v1/tasks/{id}/undo");
        other.command(&undo).await.expect(200);
        let undo = record(&other, id, &format!("{name}.undo")).await;
        assert_eq!(undo["blocked_by"]["reason"], "drop", "{undo:#}");
    }
    for (id, _) in &tasks {
        assert_eq!(other.settled(id).await["state"], "undone");
    }
    one.resume();
    gate.open();
}

#[tokio::test]
async fn a_service_that_has_promised_a_reply_is_asked_once_to_cancel_its_work() {
    let gate = Gate::closed();
    let slow = gate.clone();
    let remote = Remote::with(move |seen| match seen.method.as_str() {
        "POST" => Act::answer(202, &[("location", "/jobs/7")], ""),
        "GET" => Act::Ok(json!({ "status": "running" })),
        _ => slow.then(json!(null)),
    })
    .await;
    let setup = Provost::setup().set("INSTANCE__LEASE", "1s");
    let provost = setup.start().await;
    let poll = json!({ "poll": { "every": "1s", "until": "response.body.status == 'done'" } });
    let task = json!({ "steps": [
        { "name": "a", "url": remote.url(), "after": [], "reply": poll, "on_undo": "drop", "cancel": {},
          "request": { "path": "/jobs" }, "undo": { "request": { "path": "/undo" } } },
        { "name": "go", "after": [], "signal": { "within": "1h" } },
        { "name": "join", "after": { "any": 1, "of": ["a", "go"], "rest": "cancel" }, "set": {} },
    ] });
    let id = provost.submit(&task).await;
    provost.events(&id).await.until("step.deferred").await;
    let go = format!("/v1/tasks/{id}/signals/go");
    provost.post(&go, &json!({})).await.expect(200);
    let cancels = || {
        let mut ledger = remote.ledger();
        ledger.retain(|seen| seen.method == "DELETE");
        ledger
    };
    until(1, async || cancels().len()).await;
    // The instance compares its calls with the record when it renews its lease, and leaves this one alone.
    for _ in 0..5 {
        let before = lease(&provost).await;
        until(true, async || lease(&provost).await != before).await;
    }
    gate.open();
    let task = provost.settled(&id).await;
    assert_eq!(task["state"], "processed");
    assert_eq!(step(&task, "a")["state"], "cancelled");
    assert_eq!(step(&task, "a")["outcome"], "unknown");
    let cancels = cancels();
    assert_eq!(cancels.len(), 1);
    assert_eq!(cancels[0].path, "/jobs/7");
    assert!(cancels[0].header("provost-cancels").ends_with(":a"));
}

async fn lease(api: &Api) -> Value {
    let instances = api.get("/v1/instances").await.expect(200);
    instances["items"][0]["lease_until"].clone()
}

#[tokio::test]
async fn a_worker_learns_that_its_step_is_not_needed_any_more() {
    let provost = Provost::start().await;
    workers::pulled(provost.api()).await;
    let mut task = workers::render(1, json!({}));
    let steps = task["steps"].as_array_mut().unwrap();
    steps.push(json!({ "name": "go", "after": [], "signal": { "within": "1h" } }));
    steps.push(json!({ "name": "join", "after": { "any": 1, "of": ["render0", "go"], "rest": "cancel" }, "set": {} }));
    let id = provost.submit(&task).await;
    let fetched = workers::claim_one(provost.api(), "w-1").await;
    let go = format!("/v1/tasks/{id}/signals/go");
    provost.post(&go, &json!({})).await.expect(200);
    assert_eq!(provost.settled(&id).await["state"], "processed");
    let late = workers::reply(provost.api(), &fetched, json!({ "output": 1 })).await;
    late.expect_problem(409, "late-reply");
}
