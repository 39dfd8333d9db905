//! Undo of a processed task: it is possible later, as long as its `undoable_for` allows it.

use serde_json::{Value, json};

use crate::harness::{
    Act, Api, Gate, Provost, Remote, Setup, kinds, new_database, one_step, setups, until,
};

/// Returns a task of two steps that can be undone, one after the other.
fn booking(url: &str, more: &Value) -> Value {
    let step = |name: &str| {
        json!({ "name": name, "url": url, "request": { "path": format!("/{name}") },
                "undo": { "request": { "method": "DELETE", "path": format!("/{name}/{{{{ output.id }}}}") } } })
    };
    let mut booking = json!({ "steps": [step("hotel"), step("flight")] });
    for (name, value) in more.as_object().unwrap() {
        booking[name] = value.clone();
    }
    booking
}

async fn service() -> Remote {
    Remote::with(|seen| Act::Ok(json!({ "id": seen.path.len() }))).await
}

fn calls(remote: &Remote) -> Vec<String> {
    let calls = remote.ledger().into_iter();
    calls
        .map(|seen| format!("{} {}", seen.method, seen.path))
        .collect()
}

async fn undo(api: &Api, id: &str) -> crate::harness::Answer {
    let body = json!({ "reason": "the price was wrong" });
    api.post(&format!("/v1/tasks/{id}/undo"), &body).await
}

async fn processed(api: &Api, submission: &Value) -> String {
    let task = api.run(submission).await;
    assert_eq!(task["state"], "processed", "{task:#}");
    task["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn what_is_done_is_undone_backward_and_everybody_hears_of_it() {
    for setup in setups().await {
        let (remote, shop) = (service().await, Remote::quick().await);
        let provost = setup.set("COURIER__RETRY_INITIAL", "20ms").start().await;
        let told = json!({ "reply_to": { "url": shop.url(), "events": ["task.processed", "task.undoing", "task.undone"] } });
        let id = processed(provost.api(), &booking(&remote.url(), &told)).await;
        let before = provost.task(&id).await;
        let heard = provost.events(&id).await.rest().await;
        assert_eq!(heard.last().unwrap().kind, "task.processed");

        let plan = provost.get(&format!("/v1/tasks/{id}/undo-plan")).await;
        let plan = plan.expect(200);
        assert_eq!(plan["possible"], true, "{plan:#}");
        let planned = plan["calls"].as_array().unwrap().iter();
        let planned: Vec<_> = planned.map(|call| &call["step"]).collect();
        assert_eq!(planned, ["flight.undo", "hotel.undo"]);
        let stale = provost.post(&format!("/v1/tasks/{id}/undo"), &json!({}));
        let stale = stale.header("if-match", "\"1\"").await;
        stale.expect_problem(412, "version-mismatch");
        let asked = undo(provost.api(), &id).await.expect(200);
        assert_eq!(
            (&asked["state"], &asked["ended_at"]),
            (&json!("undoing"), &Value::Null)
        );

        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "undone", "{task:#}");
        assert!(task["ended_at"].as_str() > before["ended_at"].as_str());
        assert_eq!(task["undo"]["reason"], "the price was wrong");
        assert_eq!(
            calls(&remote),
            [
                "POST /hotel",
                "POST /flight",
                "DELETE /flight/7",
                "DELETE /hotel/6"
            ]
        );
        let history = provost.history(&id).await;
        let of_task: Vec<_> = { kinds(&history).into_iter() }
            .filter(|kind| kind.starts_with("task."))
            .collect();
        let expected = [
            "task.accepted",
            "task.processing",
            "task.processed",
            "task.undoing",
            "task.undone",
        ];
        assert_eq!(of_task, expected);
        // The stream continues after the first end of the task, which was not the last one.
        let all = provost.events(&id).await.rest().await;
        assert_eq!(all.len(), history.len());
        assert_eq!(all.last().unwrap().kind, "task.undone");
        let messages = shop.requests(3).await;
        let messages: Vec<_> = messages.iter().map(|seen| &seen.body["type"]).collect();
        assert_eq!(messages, ["task.processed", "task.undoing", "task.undone"]);
        undo(provost.api(), &id)
            .await
            .expect_problem(409, "task-ended");
        let retry = provost
            .post(&format!("/v1/tasks/{id}/retry"), &json!({}))
            .await;
        retry.expect_problem(409, "task-ended");
        let counted = || async {
            let metrics = provost.get("/metrics").await.expect(200);
            let text = metrics.as_str().unwrap();
            ["processed\"} 0", "undone\"} 1"]
                .map(|part| text.contains(&format!("provost_tasks{{state=\"{part}\n")))
        };
        until([true, true], counted).await;
    }
}

#[tokio::test]
async fn what_is_done_stays_behind_a_pivot_and_after_its_time() {
    for setup in setups().await {
        let remote = service().await;
        let provost = setup.start().await;
        let mut behind = booking(&remote.url(), &json!({}));
        let flight = behind["steps"][1].as_object_mut().unwrap();
        flight.remove("undo");
        flight.insert("pivot".to_owned(), json!(true));
        let id = processed(provost.api(), &behind).await;
        undo(provost.api(), &id)
            .await
            .expect_problem(409, "past-pivot");

        let workflow = booking(&remote.url(), &json!({ "undoable_for": "1s" }));
        let registered = provost
            .put("/v1/workflows/trip", &workflow)
            .await
            .expect(201);
        assert_eq!(registered["undoable_for"], "1s");
        let id = processed(provost.api(), &json!({ "workflow": "trip" })).await;
        let possible = || async {
            let plan = provost.get(&format!("/v1/tasks/{id}/undo-plan")).await;
            plan.expect(200)["possible"].clone()
        };
        until(json!(false), possible).await;
        let late = undo(provost.api(), &id).await;
        late.expect_problem(409, "undo-expired");
        assert_eq!(provost.task(&id).await["state"], "processed");
        assert_eq!(remote.count(), 4);
        for (given, word) in [
            (json!("never"), "undoable_for"),
            (json!("11y"), "undoable_for"),
            (json!(30), "undoable_for"),
        ] {
            let faulty = booking(&remote.url(), &json!({ "undoable_for": given }));
            let refused = provost.put("/v1/workflows/trip", &faulty).await;
            let refused = refused.expect_problem(422, "invalid");
            assert!(refused.to_string().contains(word), "{refused}");
        }
    }
}

#[tokio::test]
async fn many_are_undone_by_one_command_that_says_so() {
    for setup in setups().await {
        let remote = service().await;
        let provost = setup.start().await;
        let workflow = booking(&remote.url(), &json!({}));
        provost
            .put("/v1/workflows/trip", &workflow)
            .await
            .expect(201);
        let mut ids = Vec::new();
        for _ in 0..20 {
            ids.push(processed(provost.api(), &json!({ "workflow": "trip" })).await);
        }
        let bulk = async |body: Value| provost.bulk("undo", &body).await;
        // The command selects only running tasks.
        let found = bulk(json!({ "workflow": "trip" })).await;
        assert_eq!(found["matched"], 0, "{found}");
        let all = bulk(json!({ "all": true })).await;
        assert_eq!(all["matched"], 0, "{all}");
        let of_done = json!({ "workflow": "trip", "state": "processed", "dry_run": true });
        let dry = bulk(of_done.clone()).await;
        assert_eq!(
            (&dry["accepted"], &dry["total"]),
            (&json!(20), &json!(20)),
            "{dry}"
        );
        assert_eq!(remote.count(), 40);
        let named = bulk(json!({ "ids": [ids[0]], "reason": "this one" })).await;
        assert_eq!(named["accepted"], 1, "{named}");
        let mut wet = of_done;
        wet["dry_run"] = json!(false);
        let done = bulk(wet).await;
        assert_eq!(done["accepted"], 19, "{done}");
        for id in &ids {
            assert_eq!(provost.settled(id).await["state"], "undone");
        }
        assert_eq!(remote.count(), 80);
    }
}

/// One instance is killed while it undoes, and two get the request at the same time: each effect is undone once.
#[tokio::test]
async fn a_kill_and_a_second_instance_undo_what_is_done_once() {
    let url = new_database().await;
    let start = || {
        let setup: Setup = Provost::setup().database_url(&url);
        setup.set("INSTANCE__LEASE", "2s").start()
    };
    let gate = Gate::closed();
    let remote = Remote::with({
        let gate = gate.clone();
        move |seen| match seen.method.as_str() {
            "DELETE" if seen.attempt() == 1 => gate.then(json!(null)),
            _ => Act::Ok(json!({ "id": 1 })),
        }
    });
    let remote = remote.await;
    let (mut one, two) = (start().await, start().await);
    let id = processed(one.api(), &booking(&remote.url(), &json!({}))).await;
    // Both instances have the ended task in memory.
    assert_eq!(two.task(&id).await["state"], "processed");
    let (a, b) = tokio::join!(undo(one.api(), &id), undo(two.api(), &id));
    let mut statuses = [a.status, b.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409]);
    remote.requests(3).await;
    one.kill().await;
    gate.open();
    let task = two.settled(&id).await;
    assert_eq!(task["state"], "undone", "{task:#}");
    let keys = |name: &str| {
        let calls = remote.ledger().into_iter();
        let mut keys: Vec<_> = { calls.filter(|seen| seen.path.starts_with(name)) }
            .map(|seen| seen.header("idempotency-key").to_owned())
            .collect();
        keys.dedup();
        keys
    };
    assert_eq!(keys("/flight/"), [format!("{id}:flight.undo")]);
    assert_eq!(keys("/hotel/"), [format!("{id}:hotel.undo")]);
}

/// A task that is being undone no longer counts as one that ended long ago.
#[tokio::test]
async fn what_is_being_undone_is_not_deleted_meanwhile() {
    for setup in setups().await {
        let gate = Gate::closed();
        let remote = Remote::with({
            let gate = gate.clone();
            move |seen| match seen.method.as_str() {
                "DELETE" => gate.then(json!(null)),
                _ => Act::Ok(json!({ "id": 1 })),
            }
        });
        let remote = remote.await;
        let mut provost = setup.set("RETENTION__INTERVAL", "10ms").start().await;
        let id = processed(provost.api(), &booking(&remote.url(), &json!({}))).await;
        undo(provost.api(), &id).await.expect(200);
        remote.requests(3).await;
        let other = processed(provost.api(), &one_step(&remote.url(), "/x")).await;
        provost.kill().await;
        let short = |setup: Setup| setup.set("RETENTION__KEEP", "0s");
        provost.restart_with(short).await;
        // The retention worker has run.
        until(404, || async {
            provost.get(&format!("/v1/tasks/{other}")).await.status
        })
        .await;
        assert_eq!(provost.task(&id).await["state"], "undoing");
        gate.open();
        until(404, || async {
            provost.get(&format!("/v1/tasks/{id}")).await.status
        })
        .await;
        let undone = { remote.ledger().into_iter() }.filter(|seen| seen.path == "/hotel/1");
        assert!(undone.count() >= 1);
    }
}
