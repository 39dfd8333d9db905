//! Tasks that move to another version of their workflow.

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::harness::{
    Act, Answer, Api, Database, Gate, Provost, Remote, Seen, kinds, new_database, setups, step,
    until,
};

fn call(name: &str, url: &str, path: &str) -> Value {
    json!({ "name": name, "url": url, "request": { "path": path },
            "undo": { "request": { "path": format!("{path}/undo") } } })
}

fn order(url: &str) -> Value {
    json!([
        call("reserve", url, "/reserve"),
        call("charge", url, "/charge"),
        call("ship", url, "/ship")
    ])
}

/// Returns the next version: `check` is new before `ship`, which calls another path, and `reserve` has another undo.
fn next_order(url: &str) -> Value {
    let mut reserve = call("reserve", url, "/reserve");
    reserve["undo"]["request"]["path"] = json!("/release");
    json!([
        reserve,
        call("charge", url, "/charge"),
        call("check", url, "/check"),
        call("ship", url, "/v2/ship")
    ])
}

/// Changes the steps to those of an agent with slots for all of them.
fn at_agent(mut steps: Value) -> Value {
    for step in steps.as_array_mut().unwrap() {
        let step = step.as_object_mut().unwrap();
        step.remove("url");
        step.insert("agent".to_owned(), json!("wide"));
    }
    steps
}

async fn put(api: &Api, steps: &Value) {
    let put = api
        .put("/v1/workflows/order", &json!({ "steps": steps }))
        .await;
    assert!(put.status < 300, "{put:?}");
}

async fn migrate(api: &Api, id: &str, body: Value) -> Answer {
    api.post(&format!("/v1/tasks/{id}/migrate"), &body).await
}

fn to(version: u32) -> Value {
    json!({ "to_version": version, "reason": "the carrier has a new API" })
}

fn names(task: &Value) -> Vec<&str> {
    let steps = task["steps"].as_array().unwrap().iter();
    steps.map(|step| step["name"].as_str().unwrap()).collect()
}

fn paths(remote: &Remote) -> Vec<String> {
    remote.ledger().into_iter().map(|seen| seen.path).collect()
}

/// Returns a service that blocks the calls of `/charge`.
async fn holding(gate: &Gate) -> Remote {
    let gate = gate.clone();
    Remote::with(move |seen| match seen.path.as_str() {
        "/charge" => gate.then(json!({ "id": "ch_1" })),
        path => Act::Ok(json!({ "path": path })),
    })
    .await
}

#[tokio::test]
async fn a_task_moves_while_a_step_runs_and_goes_on_in_the_new_version() {
    for setup in setups().await {
        let gate = Gate::closed();
        let remote = holding(&gate).await;
        let mut provost = setup.start().await;
        put(&provost, &order(&remote.url())).await;
        let id = provost.submit(&json!({ "workflow": "order" })).await;
        remote.paths("/charge", 1).await;
        put(&provost, &next_order(&remote.url())).await;

        let dry = migrate(
            &provost,
            &id,
            json!({ "to_version": "active", "dry_run": true }),
        )
        .await;
        let tag = dry.header("etag").unwrap().to_owned();
        let report = dry.expect(200);
        assert_eq!(report["can_migrate"], true, "{report:#}");
        assert_eq!(
            (&report["from_version"], &report["to_version"]),
            (&json!(1), &json!(2))
        );
        let steps = report["steps"].as_array().unwrap().iter();
        let steps: Vec<_> = steps
            .map(|step| {
                (
                    step["name"].as_str().unwrap(),
                    step["change"].as_str().unwrap(),
                    step["differs"].clone(),
                )
            })
            .collect();
        assert_eq!(
            steps,
            [
                ("reserve", "changed", json!(["undo"])),
                ("charge", "same", json!([])),
                ("check", "added", json!([])),
                ("ship", "changed", json!(["after", "request", "undo"])),
            ]
        );
        assert_eq!(provost.task(&id).await["workflow_version"], 1);

        let moved = provost
            .post(&format!("/v1/tasks/{id}/migrate"), &to(2))
            .header("if-match", &tag)
            .await
            .expect(200);
        assert_eq!(moved["workflow_version"], 2);
        assert_eq!(names(&moved), ["reserve", "charge", "check", "ship"]);
        assert_eq!(step(&moved, "charge")["state"], "processing");
        assert_eq!(step(&moved, "check")["state"], "waiting");
        // The task has this version already.
        let again = migrate(&provost, &id, to(2)).await.expect(200);
        assert_eq!(again["version"], moved["version"]);
        gate.open();
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        assert_eq!(
            paths(&remote),
            ["/reserve", "/charge", "/check", "/v2/ship"]
        );
        let history = provost.history(&id).await;
        let event = history
            .iter()
            .find(|event| event["type"] == "task.migrated")
            .unwrap();
        assert_eq!(event["versions"], json!({ "from": 1, "to": 2 }));
        assert_eq!(event["reason"], "the carrier has a new API");
        assert_eq!(event["by"], "operator:anonymous");

        // The task is read from the record with the same steps, and a clone of it is an ordinary task.
        provost.kill().await;
        provost.restart().await;
        let read = provost.task(&id).await;
        assert_eq!(names(&read), ["reserve", "charge", "check", "ship"]);
        let graph = provost
            .get(&format!("/v1/tasks/{id}/graph"))
            .await
            .expect(200);
        assert!(graph.as_str().unwrap().contains("check"), "{graph}");
        let clone = provost
            .post(&format!("/v1/tasks/{id}/clone"), &json!({}))
            .await
            .expect(202);
        let clone = provost.settled(clone["id"].as_str().unwrap()).await;
        assert_eq!(
            (&clone["workflow_version"], &clone["state"]),
            (&json!(2), &json!("processed"))
        );
        // Completed steps are undone as the new version says.
        provost
            .command(&format!("/v1/tasks/{id}/undo"))
            .await
            .expect(200);
        until(json!("undone"), async || {
            provost.task(&id).await["state"].clone()
        })
        .await;
        let undone = paths(&remote);
        assert_eq!(
            undone[undone.len() - 4..],
            ["/v2/ship/undo", "/check/undo", "/charge/undo", "/release"]
        );
        migrate(&provost, &id, to(1))
            .await
            .expect_problem(409, "task-ended");
    }
}

#[tokio::test]
async fn each_step_that_does_not_map_is_named_and_nothing_changes() {
    for setup in setups().await {
        let gate = Gate::closed();
        let remote = holding(&gate).await;
        let provost = setup.start().await;
        let url = remote.url();
        put(&provost, &order(&url)).await;
        let id = provost.submit(&json!({ "workflow": "order" })).await;
        remote.paths("/charge", 1).await;
        put(
            &provost,
            &json!([
                call("charge", &url, "/v2/charge"),
                call("ship", &url, "/ship")
            ]),
        )
        .await;
        let before = provost.task(&id).await;
        let problem = migrate(&provost, &id, to(2))
            .await
            .expect_problem(409, "cannot-migrate");
        assert_eq!(
            problem["steps"],
            json!([
                { "step": "charge", "state": "processing", "reason": "its `request` differs, and the step is running" },
                { "step": "reserve", "state": "processed", "reason": "version 2 has no such step, and the step is processed" },
            ])
        );
        let detail = problem["detail"].as_str().unwrap();
        assert!(
            detail.starts_with(
                "the task cannot move to version 2: step charge: its `request` differs"
            ),
            "{detail}"
        );
        let dry = json!({ "to_version": 2, "dry_run": true });
        let report = migrate(&provost, &id, dry).await.expect(200);
        assert_eq!(report["can_migrate"], false);
        assert_eq!(report["refusal"], problem["detail"]);
        assert_eq!(
            report["steps"][0]["reason"],
            "its `request` differs, and the step is running"
        );
        assert_eq!(report["steps"][0]["change"], Value::Null);
        let after = provost.task(&id).await;
        assert_eq!(after["version"], before["version"]);

        let missing = migrate(&provost, &id, to(7)).await;
        assert_eq!(missing.expect_faults(), ["/to_version"]);
        for wrong in [
            json!({}),
            json!({ "to_version": 0 }),
            json!({ "to_version": "newest" }),
        ] {
            assert_eq!(
                migrate(&provost, &id, wrong).await.expect_faults(),
                ["/to_version"]
            );
        }
        let stale = provost
            .post(&format!("/v1/tasks/{id}/migrate"), &to(2))
            .header("if-match", "\"1\"")
            .await;
        stale.expect_problem(412, "version-mismatch");
        let inline = provost.submit(&json!({ "steps": order(&url) })).await;
        migrate(&provost, &inline, to(1))
            .await
            .expect_problem(409, "wrong-task-state");
        gate.open();
        assert_eq!(provost.settled(&id).await["state"], "processed");
    }
}

#[tokio::test]
async fn the_input_must_match_what_the_new_version_asks_for() {
    let gate = Gate::closed();
    let remote = holding(&gate).await;
    let provost = Provost::start().await;
    let steps = order(&remote.url());
    put(&provost, &steps).await;
    let schema = json!({ "type": "object", "required": ["sku"] });
    let next = json!({ "steps": steps, "input_schema": schema });
    provost.put("/v1/workflows/order", &next).await.expect(201);
    let submit = async |input: Value| {
        let order = json!({ "workflow": "order", "workflow_version": 1, "input": input });
        provost.submit(&order).await
    };
    let (good, bad) = (submit(json!({ "sku": 1 })).await, submit(json!({})).await);
    remote.paths("/charge", 2).await;
    migrate(&provost, &good, to(2)).await.expect(200);
    let problem = migrate(&provost, &bad, to(2))
        .await
        .expect_problem(409, "cannot-migrate");
    assert_eq!(problem["errors"][0]["pointer"], "/input/sku");
    let report = migrate(&provost, &bad, json!({ "to_version": 2, "dry_run": true }))
        .await
        .expect(200);
    assert_eq!(report["can_migrate"], false);
    assert_eq!(report["input_errors"], problem["errors"]);
    gate.open();
}

fn reply_path(seen: &Seen) -> String {
    let address = seen.header("provost-reply-to");
    address[address.find("/v1/replies/").unwrap()..].to_owned()
}

#[tokio::test]
async fn a_promised_reply_finds_its_step_after_a_move_and_a_kill() {
    for setup in setups().await {
        let remote = Remote::with(|seen| match seen.path.as_str() {
            "/slow" => Act::status(202),
            path => Act::Ok(json!({ "path": path })),
        })
        .await;
        let mut provost = setup.start().await;
        let url = remote.url();
        let slow = json!({ "name": "slow", "url": url, "request": { "path": "/slow" }, "reply": "callback",
                           "complete_within": "1h", "after": [] });
        let last = json!({ "name": "last", "url": url, "after": ["slow"],
                           "request": { "path": "/last", "body": "{{ steps.slow.output }}" } });
        put(&provost, &json!([slow, last])).await;
        let id = provost.submit(&json!({ "workflow": "order" })).await;
        provost.events(&id).await.until("step.deferred").await;
        let path = reply_path(&remote.ledger()[0]);
        // The step is the third one of the new version.
        let first = json!({ "name": "first", "url": url, "request": { "path": "/first" } });
        let second = json!({ "name": "second", "url": url, "request": { "path": "/second" } });
        put(&provost, &json!([first, second, slow, last])).await;
        migrate(&provost, &id, to(2)).await.expect(200);
        provost.kill().await;
        provost.restart().await;
        provost
            .post(&path, &json!({ "output": 7 }))
            .await
            .expect(204);
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        assert_eq!(names(&task), ["first", "second", "slow", "last"]);
        assert_eq!(step(&task, "slow")["output"], 7);
        assert_eq!(
            remote
                .ledger()
                .iter()
                .find(|seen| seen.path == "/last")
                .unwrap()
                .body,
            7
        );
        let late = provost.post(&path, &json!({ "output": 8 })).await;
        late.expect_problem(409, "late-reply");
    }
}

#[tokio::test]
async fn a_queued_step_leaves_the_queue_of_the_agent_that_it_does_not_call_any_more() {
    for setup in setups().await {
        let gate = Gate::closed();
        let (narrow, wide) = (
            Remote::script([gate.then(json!(1))]).await,
            Remote::quick().await,
        );
        let provost = setup.start().await;
        provost.register("narrow", &narrow.url(), 1).await;
        provost.register("wide", &wide.url(), 8).await;
        let steps =
            |agent: &str| json!([{ "name": "only", "agent": agent, "complete_within": "10m" }]);
        put(&provost, &steps("narrow")).await;
        let first = provost.submit(&json!({ "workflow": "order" })).await;
        narrow.requests(1).await;
        let mut queued = Vec::new();
        for _ in 0..5 {
            queued.push(provost.submit(&json!({ "workflow": "order" })).await);
        }
        put(&provost, &steps("wide")).await;
        for id in &queued[..4] {
            migrate(&provost, id, to(2)).await.expect(200);
        }
        for id in &queued[..4] {
            assert_eq!(provost.settled(id).await["state"], "processed");
        }
        assert_eq!((narrow.count(), wide.count()), (1, 4));
        migrate(&provost, &first, to(2))
            .await
            .expect_problem(409, "cannot-migrate");
        gate.open();
        for id in [&first, &queued[4]] {
            assert_eq!(provost.settled(id).await["state"], "processed");
        }
        assert_eq!((narrow.count(), wide.count()), (2, 4));
        let by_agent = provost.get("/v1/tasks?agent=wide").await.expect(200);
        assert_eq!(by_agent["items"].as_array().unwrap().len(), 4);
    }
}

#[tokio::test]
async fn a_step_that_is_gone_is_gone_and_comes_back() {
    for setup in setups().await {
        let gate = Gate::closed();
        let remote = holding(&gate).await;
        let mut provost = setup.start().await;
        let url = remote.url();
        put(&provost, &order(&url)).await;
        let id = provost.submit(&json!({ "workflow": "order" })).await;
        remote.paths("/charge", 1).await;
        put(&provost, &json!([order(&url)[0], order(&url)[1]])).await;
        let moved = migrate(&provost, &id, to(2)).await.expect(200);
        assert_eq!(names(&moved), ["reserve", "charge"]);
        let list = provost.get(&format!("/v1/tasks/{id}/steps")).await;
        let list = json!({ "steps": list.expect(200)["items"] });
        assert_eq!(names(&list), ["reserve", "charge"]);
        let skip = provost
            .command(&format!("/v1/tasks/{id}/steps/ship/skip"))
            .await;
        let problem = skip.expect_problem(404, "no-such-step");
        assert!(
            problem["detail"]
                .as_str()
                .unwrap()
                .ends_with("its steps are reserve, charge"),
            "{problem}"
        );
        provost.kill().await;
        provost.restart().await;
        let back = migrate(&provost, &id, to(1)).await.expect(200);
        assert_eq!(names(&back), ["reserve", "charge", "ship"]);
        let plan = provost
            .get(&format!("/v1/tasks/{id}/undo-plan"))
            .await
            .expect(200);
        assert_eq!(plan["calls"].as_array().map(Vec::len), Some(2), "{plan:#}");
        gate.open();
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        assert_eq!(remote.ledger().last().unwrap().path, "/ship");
        let history = provost.history(&id).await;
        let kinds = kinds(&history);
        for kind in ["step.removed", "step.reset"] {
            assert!(kinds.contains(&kind), "{kinds:?}");
        }
    }
}

#[tokio::test]
async fn a_failed_step_is_retried_with_what_the_new_version_says() {
    for setup in setups().await {
        let remote = Remote::with(|seen| match seen.path.as_str() {
            "/charge" => Act::status(400),
            path => Act::Ok(json!({ "path": path })),
        })
        .await;
        let provost = setup.start().await;
        let url = remote.url();
        put(&provost, &order(&url)).await;
        let task = provost.run(&json!({ "workflow": "order" })).await;
        let id = task["id"].as_str().unwrap();
        assert_eq!(task["state"], "error");
        let fixed = json!([
            order(&url)[0],
            call("charge", &url, "/v2/charge"),
            order(&url)[2]
        ]);
        put(&provost, &fixed).await;
        let moved = migrate(&provost, id, to(2)).await.expect(200);
        assert_eq!(moved["state"], "error");
        provost
            .command(&format!("/v1/tasks/{id}/retry"))
            .await
            .expect(200);
        let task = provost.settled(id).await;
        assert_eq!(task["state"], "processed");
        let charges = remote.ledger();
        let charges: Vec<_> = charges
            .iter()
            .filter(|seen| seen.path.ends_with("charge"))
            .collect();
        assert_eq!(charges[0].key(), charges[1].key());
        assert_eq!(
            (charges[1].path.as_str(), charges[1].attempt()),
            ("/v2/charge", 2)
        );
        until(json!(0), async || {
            let open = provost.get("/v1/alerts?state=open").await.expect(200);
            json!(open["items"].as_array().unwrap().len())
        })
        .await;
    }
}

#[tokio::test]
async fn an_instance_with_an_older_cache_goes_on_with_the_moved_task() {
    let gate = Gate::closed();
    let remote = holding(&gate).await;
    let url = new_database().await;
    let on = || Provost::setup().database_url(&url);
    let (a, b) = tokio::join!(on().start(), on().start());
    put(&a, &order(&remote.url())).await;
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(a.submit(&json!({ "workflow": "order" })).await);
    }
    remote.paths("/charge", 20).await;
    put(&b, &next_order(&remote.url())).await;
    // Each instance has tasks in memory that the other one moves.
    let moves = ids.iter().enumerate().map(|(at, id)| {
        let api = if at % 2 == 0 { b.api() } else { a.api() };
        migrate(api, id, to(2))
    });
    let moves = join_all(moves);
    let (moved, ()) = tokio::join!(moves, async { gate.open() });
    let mut moved: Vec<_> = moved.into_iter().map(|answer| answer.status).collect();
    moved.dedup();
    for (at, id) in ids.iter().enumerate() {
        let api = if at % 3 == 0 { a.api() } else { b.api() };
        let task = api.settled(id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        let attempts = task["steps"].as_array().unwrap().iter();
        assert!(
            attempts.clone().all(|step| step["attempt"] == 1),
            "{task:#}"
        );
        let last = if task["workflow_version"] == 2 { 4 } else { 3 };
        assert_eq!(attempts.count(), last);
    }
    // Every call was made once.
    let mut seen: Vec<_> = remote
        .ledger()
        .iter()
        .map(|seen| seen.key().to_owned())
        .collect();
    let calls = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), calls);
}

#[tokio::test]
async fn a_kill_leaves_each_task_whole_in_one_version() {
    for setup in setups().await {
        let gate = Gate::closed();
        let remote = holding(&gate).await;
        let mut provost = setup.start().await;
        put(&provost, &order(&remote.url())).await;
        let mut ids = Vec::new();
        for _ in 0..60 {
            ids.push(provost.submit(&json!({ "workflow": "order" })).await);
        }
        remote.paths("/charge", 60).await;
        put(&provost, &next_order(&remote.url())).await;
        let api = provost.api().clone();
        let moving = ids.clone();
        let moves = tokio::spawn(async move {
            let mut confirmed = Vec::new();
            for id in moving {
                let path = format!("/v1/tasks/{id}/migrate");
                match api.post(&path, &to(2)).attempt().await {
                    Ok(answer) if answer.status == 200 => confirmed.push(id),
                    _ => {}
                }
            }
            confirmed
        });
        until(json!(true), async || {
            let moved = provost.task(&ids[20]).await["workflow_version"] == 2;
            json!(moved)
        })
        .await;
        provost.kill().await;
        let confirmed = moves.await.unwrap();
        provost.restart().await;
        let mut counts = [0, 0];
        for id in &ids {
            let task = provost.task(id).await;
            let is_moved = task["workflow_version"] == 2;
            counts[usize::from(is_moved)] += 1;
            assert!(
                is_moved || !confirmed.contains(id),
                "a confirmed move is lost"
            );
            assert_eq!(names(&task).len(), if is_moved { 4 } else { 3 });
        }
        assert!(counts[1] > 20, "{counts:?}");
        let bulk = json!({ "workflow": "order", "to_version": 2 });
        let answer = provost.bulk("migrate", &bulk).await;
        assert_eq!(answer["accepted"], counts[0], "{answer}");
        gate.open();
        for id in &ids {
            let task = provost.settled(id).await;
            assert_eq!(task["state"], "processed", "{task:#}");
            assert_eq!(names(&task), ["reserve", "charge", "check", "ship"]);
        }
    }
}

#[tokio::test]
async fn hundreds_move_by_one_command_with_a_dry_run_and_a_cursor() {
    for setup in setups().await {
        let gate = Gate::closed();
        let remote = holding(&gate).await;
        let provost = setup.start().await;
        let url = remote.url();
        provost.register("wide", &url, 512).await;
        put(&provost, &at_agent(order(&url))).await;
        let paused = async |count: usize, labels: Value| {
            let mut ids = Vec::new();
            for _ in 0..count {
                let task = json!({ "workflow": "order", "workflow_version": 1, "labels": labels });
                ids.push(provost.submit(&task).await);
            }
            ids
        };
        let ids = paused(250, json!({ "group": "a" })).await;
        remote.paths("/charge", 250).await;
        put(&provost, &at_agent(next_order(&url))).await;
        let other = json!([
            call("reserve", &url, "/reserve"),
            call("charge", &url, "/other")
        ]);
        put(&provost, &at_agent(other)).await;
        let bulk = json!({ "workflow": "order", "to_version": 2, "dry_run": true });
        let answer = provost.bulk("migrate", &bulk).await;
        assert_eq!(
            (&answer["accepted"], &answer["total"]),
            (&json!(250), &json!(250)),
            "{answer}"
        );
        assert_eq!(provost.task(&ids[0]).await["workflow_version"], 1);
        // None of the tasks can move.
        let bulk = json!({ "workflow": "order", "to_version": "latest" });
        let answer = provost.bulk("migrate", &bulk).await;
        assert_eq!(
            answer["refusals"],
            json!({ "cannot-migrate": 250 }),
            "{answer}"
        );
        let job = answer["id"].as_str().unwrap();
        let refused = provost.get(&format!("/v1/bulk/{job}/tasks?result=refused&limit=1"));
        let refused = refused.await.expect(200)["items"][0].clone();
        let reason = refused["reason"].as_str().unwrap();
        assert!(
            reason.contains("step charge: its `request` differs, and the step is running"),
            "{reason}"
        );
        let mut dry = bulk.clone();
        dry["dry_run"] = json!(true);
        let answer = provost.bulk("migrate", &dry).await;
        assert_eq!(
            answer["unmapped"],
            json!([{ "step": "charge", "reason": "its `request` differs, and the step is running", "tasks": 250 }])
        );
        let mut dry = json!({ "workflow": "order", "to_version": 2, "from_version": 1, "limit": 100, "dry_run": true });
        let mut movable = 0;
        loop {
            let answer = provost.bulk("migrate", &dry).await;
            movable += answer["accepted"].as_u64().unwrap();
            match &answer["next_cursor"] {
                Value::Null => break,
                cursor => dry["cursor"] = cursor.clone(),
            }
        }
        assert_eq!(movable, 250);
        let body = json!({ "workflow": "order", "to_version": 2, "from_version": 1 });
        let answer = provost.bulk("migrate", &body).await;
        assert_eq!(
            (&answer["accepted"], &answer["refused"]),
            (&json!(250), &json!(0)),
            "{answer}"
        );
        let again = json!({ "workflow": "order", "to_version": 2 });
        let answer = provost.bulk("migrate", &again).await;
        assert_eq!(answer["matched"], 0, "{answer}");
        let by_ids = json!({ "ids": [ids[0], ids[1]], "to_version": 1 });
        let answer = provost.bulk("migrate", &by_ids).await;
        assert_eq!(answer["accepted"], 2, "{answer}");
        let without = json!({ "all": true, "to_version": 1 });
        let faults = provost
            .post("/v1/tasks/migrate", &without)
            .await
            .expect_faults();
        assert_eq!(faults, ["/workflow"]);
        let missing = json!({ "workflow": "order", "to_version": 9 });
        let faults = provost
            .post("/v1/tasks/migrate", &missing)
            .await
            .expect_faults();
        assert_eq!(faults, ["/to_version"]);
        gate.open();
        for id in &ids {
            assert_eq!(provost.settled(id).await["state"], "processed");
        }
    }
}

/// Each reference to a step by its index refers to the same step after a move.
#[tokio::test]
async fn no_row_of_a_moved_task_refers_to_another_step() {
    let gate = Gate::closed();
    let remote = holding(&gate).await;
    let provost = Provost::start().await;
    put(&provost, &order(&remote.url())).await;
    let id = provost.submit(&json!({ "workflow": "order" })).await;
    remote.paths("/charge", 1).await;
    put(&provost, &next_order(&remote.url())).await;
    migrate(&provost, &id, to(2)).await.expect(200);
    gate.open();
    provost.settled(&id).await;
    let database = Database::open(&provost.database());
    let places = "SELECT group_concat(name) = 'reserve,charge,ship,check' FROM (SELECT name FROM steps ORDER BY idx)";
    assert_eq!(database.number(places), 1);
    assert_eq!(
        database.number("SELECT count(*) FROM task_details WHERE layout IS NOT NULL"),
        1
    );
    assert_eq!(database.number("SELECT workflow_version FROM tasks"), 2);
}

/// Moves, calls and replies come in every order, at both instances.
#[tokio::test]
async fn tasks_move_back_and_forth_under_load_and_every_call_is_made_once() {
    // The service is so slow that there are tasks to move.
    let remote =
        Remote::with(|seen| Act::After(Duration::from_millis(50), json!({ "path": seen.path })))
            .await;
    let url = new_database().await;
    let on = || Provost::setup().database_url(&url);
    let (a, b) = tokio::join!(on().start(), on().start());
    a.register("wide", &remote.url(), 16).await;
    let step = |name: &str| json!({ "name": name, "agent": "wide", "request": { "path": format!("/{name}") } });
    let versions = [
        ["a", "b", "c", "d", "e", "f"].as_slice(),
        &["a", "b", "x", "c", "d", "y", "f"],
        &["a", "z", "b", "c", "f", "e"],
    ];
    for names in versions {
        let steps: Vec<_> = names.iter().map(|name| step(name)).collect();
        put(&a, &json!(steps)).await;
    }
    until(json!(["wide"]), async || {
        let agents = b.get("/v1/agents").await.expect(200);
        let names = agents["items"].as_array().unwrap().iter();
        names.map(|agent| agent["name"].clone()).collect()
    })
    .await;
    let tasks = (0..60).map(|at| {
        let (a, b) = (a.api(), b.api());
        async move {
            let submission = json!({ "workflow": "order", "workflow_version": 1 + at % 3 });
            let id = a.submit(&submission).await;
            let mut moved = 0;
            for turn in 0..12 {
                let api = if (at + turn) % 2 == 0 { a } else { b };
                let version = 1 + (at * 7 + turn * 5 + turn / 3) % 3;
                let answer = migrate(api, &id, to(version as u32)).await;
                match answer.status {
                    200 => moved += 1,
                    409 => {}
                    status => panic!("{status}: {answer:?}"),
                }
            }
            (b.settled(&id).await, moved)
        }
    });
    let mut moves = 0;
    for (task, moved) in join_all(tasks).await {
        assert_eq!(task["state"], "processed", "{task:#}");
        let version = task["workflow_version"].as_u64().unwrap() as usize;
        assert_eq!(names(&task), versions[version - 1]);
        for step in task["steps"].as_array().unwrap() {
            assert_eq!(step["state"], "processed", "{task:#}");
            assert_eq!(
                step["output"]["path"],
                json!(format!("/{}", step["name"].as_str().unwrap()))
            );
        }
        moves += moved;
    }
    assert!(moves > 60, "{moves}");
    let mut keys: Vec<_> = remote
        .ledger()
        .iter()
        .map(|seen| seen.key().to_owned())
        .collect();
    let calls = keys.len();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), calls, "a call was made twice");
}
