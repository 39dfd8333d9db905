//! The number of tasks of a workflow that run at once for each key (`limits` of a workflow).

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    Act, Api, Gate, Provost, Remote, id_of, kinds, new_database, setups, step, until,
};

async fn register(api: &Api, url: &str, limit: Value) {
    let workflow = json!({
        "limits": [limit],
        "steps": [{ "name": "first", "url": url, "request": { "body": { "n": "{{ input.n }}" } } },
                  { "name": "second", "url": url, "request": { "body": { "n": "{{ input.n }}" } } }] });
    let put = api.put("/v1/workflows/sync", &workflow).await;
    assert!(put.status < 300, "{put:?}");
}

fn one_of(customer: &str) -> Value {
    json!({ "workflow": "sync", "labels": { "customer": customer }, "input": { "n": customer } })
}

fn by_customer(more: Value) -> Value {
    let mut limit = json!({ "by": "{{ task.labels.customer }}" });
    for (name, value) in more.as_object().unwrap() {
        limit[name] = value.clone();
    }
    limit
}

/// Returns a service that notes which calls overlap.
async fn service() -> (Remote, Gate) {
    let gate = Gate::closed();
    (Remote::script([gate.then(json!("done"))]).await, gate)
}

#[tokio::test]
async fn one_task_of_a_key_runs_at_a_time_and_the_oldest_goes_first() {
    for setup in setups().await {
        let remote = Remote::with(|_| Act::After(Duration::from_millis(10), json!("done")));
        let remote = remote.await;
        let provost = setup.start().await;
        register(provost.api(), &remote.url(), by_customer(json!({}))).await;
        let mut ids = Vec::new();
        for _ in 0..5 {
            for customer in ["a", "b"] {
                ids.push((customer, provost.submit(&one_of(customer)).await));
            }
        }
        for (_, id) in &ids {
            assert_eq!(provost.settled(id).await["state"], "processed");
        }
        for customer in ["a", "b"] {
            let calls = remote.ledger().into_iter();
            let of_customer = calls.filter(|seen| seen.body["n"] == customer);
            let tasks: Vec<String> = of_customer
                .map(|seen| seen.header("provost-task").to_owned())
                .collect();
            let submitted = ids.iter().filter(|(of, _)| *of == customer);
            let expected: Vec<String> = submitted
                .flat_map(|(_, id)| [id.clone(), id.clone()])
                .collect();
            assert_eq!(tasks, expected, "one after the other, in order");
        }
    }
}

#[tokio::test]
async fn a_task_that_waits_says_for_what_and_can_be_cancelled() {
    for setup in setups().await {
        let (remote, gate) = service().await;
        let provost = setup.start().await;
        register(provost.api(), &remote.url(), by_customer(json!({}))).await;
        let first = provost.submit(&one_of("a")).await;
        remote.requests(1).await;
        let second = provost.submit(&one_of("a")).await;
        let third = provost.submit(&one_of("a")).await;
        let task = provost.task(&second).await;
        assert_eq!(task["state"], "pending");
        let waits = json!({ "reason": "task_limit", "keys": [
            { "by": "{{ task.labels.customer }}", "key": "a", "max_running": 1, "on_conflict": "wait" }] });
        assert_eq!(step(&task, "first")["blocked_by"], waits);
        provost
            .post(&format!("/v1/tasks/{second}/cancel"), &json!({}))
            .await
            .expect(200);
        gate.open();
        assert_eq!(provost.settled(&first).await["state"], "processed");
        assert_eq!(provost.settled(&third).await["state"], "processed");
        assert!(kinds(&provost.history(&third).await).contains(&"task.admitted"));
        assert_eq!(remote.count(), 4, "nothing of the second was called");
    }
}

#[tokio::test]
async fn a_task_without_room_is_refused_where_that_is_asked_for() {
    for setup in setups().await {
        let (remote, gate) = service().await;
        let provost = setup.start().await;
        let limit = by_customer(json!({ "max_running": 2, "on_conflict": "reject" }));
        register(provost.api(), &remote.url(), limit).await;
        let first = provost.submit(&one_of("a")).await;
        let second = provost.submit(&one_of("a")).await;
        let other = provost.submit(&one_of("b")).await;
        let refused = provost.post("/v1/tasks", &one_of("a")).await.expect(409);
        assert_eq!(refused["type"], "/problems/task-limit", "{refused}");
        gate.open();
        for id in [&first, &second, &other] {
            assert_eq!(provost.settled(id).await["state"], "processed");
        }
        provost.submit(&one_of("a")).await;
    }
}

#[tokio::test]
async fn a_later_task_replaces_those_that_are_there() {
    for setup in setups().await {
        let (remote, gate) = service().await;
        let provost = setup.start().await;
        let limit = by_customer(json!({ "on_conflict": "replace" }));
        register(provost.api(), &remote.url(), limit).await;
        let mut ids = vec![provost.submit(&one_of("a")).await];
        remote.requests(1).await;
        for _ in 0..3 {
            ids.push(provost.submit(&one_of("a")).await);
        }
        let last = ids.pop().unwrap();
        for id in &ids {
            assert_eq!(provost.settled(id).await["state"], "cancelled", "{id}");
        }
        gate.open();
        assert_eq!(provost.settled(&last).await["state"], "processed");
        let history = json!(provost.history(&ids[0]).await).to_string();
        assert!(history.contains("replaced by task"), "{history}");
    }
}

/// A task that fails before it has begun, or is paused at that time, does not prevent others from beginning.
#[tokio::test]
async fn a_task_that_cannot_begin_leaves_its_turn_to_others() {
    for setup in setups().await {
        let (remote, gate) = service().await;
        let provost = setup.start().await;
        register(provost.api(), &remote.url(), by_customer(json!({}))).await;
        let first = provost.submit(&one_of("a")).await;
        remote.requests(1).await;
        let mut short = one_of("a");
        short["complete_within"] = json!("1s");
        let overdue = provost.submit(&short).await;
        let paused = provost.submit(&one_of("a")).await;
        let pause = format!("/v1/tasks/{paused}/pause");
        provost.post(&pause, &json!({})).await.expect(200);
        let last = provost.submit(&one_of("a")).await;
        assert_eq!(provost.settled(&overdue).await["state"], "error");
        gate.open();
        for id in [&first, &last] {
            assert_eq!(provost.settled(id).await["state"], "processed");
        }
        let resume = format!("/v1/tasks/{paused}/resume");
        provost.post(&resume, &json!({})).await.expect(200);
        assert_eq!(provost.settled(&paused).await["state"], "processed");
    }
}

/// With two limits, a task that waits for one key does not block the other key.
#[tokio::test]
async fn a_task_is_not_refused_because_others_wait_for_another_key() {
    for setup in setups().await {
        let (remote, gate) = service().await;
        let provost = setup.start().await;
        let workflow = json!({
            "limits": [{ "by": "{{ input.region }}", "max_running": 3, "on_conflict": "reject" },
                       { "by": "{{ task.labels.customer }}" }],
            "steps": [{ "name": "only", "url": remote.url() }] });
        provost
            .put("/v1/workflows/sync", &workflow)
            .await
            .expect(201);
        let task = |customer: &str| json!({ "workflow": "sync", "labels": { "customer": customer }, "input": { "region": "eu" } });
        let mut ids = Vec::new();
        for customer in ["x", "x", "y", "z"] {
            ids.push(provost.submit(&task(customer)).await);
        }
        let refused = provost.post("/v1/tasks", &task("w")).await.expect(409);
        assert!(
            refused["detail"].as_str().unwrap().contains("input.region"),
            "{refused}"
        );
        gate.open();
        for id in &ids {
            assert_eq!(provost.settled(id).await["state"], "processed");
        }
    }
}

/// Three instances, of which two are killed: a task that was admitted by a killed instance begins, and two never run at
/// once.
#[tokio::test]
async fn the_limit_holds_over_instances_that_are_killed() {
    let url = new_database().await;
    let start = || {
        let setup = Provost::setup().database_url(&url);
        setup.set("INSTANCE__LEASE", "2s").start()
    };
    let remote = Remote::with(|_| Act::After(Duration::from_millis(15), json!("done"))).await;
    let (mut one, two, mut three) = (start().await, start().await, start().await);
    register(one.api(), &remote.url(), by_customer(json!({}))).await;
    until(200, || async { two.get("/v1/workflows/sync").await.status }).await;
    until(200, || async {
        three.get("/v1/workflows/sync").await.status
    })
    .await;
    let mut ids = Vec::new();
    for _ in 0..10 {
        for provost in [&one, &two, &three] {
            ids.push(id_of(
                &provost.post("/v1/tasks", &one_of("a")).await.expect(202),
            ));
        }
    }
    remote.requests(10).await;
    one.kill().await;
    remote.requests(20).await;
    three.kill().await;
    for id in &ids {
        assert_eq!(two.settled(id).await["state"], "processed");
    }
    // The calls of one task follow each other directly, so no other task began between them.
    let tasks = remote.ledger().into_iter();
    let mut tasks: Vec<String> = tasks
        .map(|seen| seen.header("provost-task").to_owned())
        .collect();
    tasks.dedup();
    assert_eq!(tasks.len(), 30, "{tasks:?}");
}

/// Three tasks come to three instances at the same time, and one is accepted.
#[tokio::test]
async fn instances_that_are_asked_at_once_accept_no_more_than_there_is_room_for() {
    let url = new_database().await;
    let start = || Provost::setup().database_url(&url).start();
    let remote = Remote::script([Act::Hang]).await;
    let (one, two, three) = (start().await, start().await, start().await);
    let limit = by_customer(json!({ "on_conflict": "reject" }));
    register(one.api(), &remote.url(), limit).await;
    for provost in [&two, &three] {
        until(200, || async {
            provost.get("/v1/workflows/sync").await.status
        })
        .await;
    }
    for round in 0..40 {
        let task = one_of(&format!("customer {round}"));
        let (a, b, c) = tokio::join!(
            one.post("/v1/tasks", &task),
            two.post("/v1/tasks", &task),
            three.post("/v1/tasks", &task)
        );
        let mut statuses = [a.status, b.status, c.status];
        statuses.sort_unstable();
        assert_eq!(statuses, [202, 409, 409], "round {round}");
    }
}

#[tokio::test]
async fn waiting_tasks_survive_a_restart() {
    for setup in setups().await {
        let (remote, gate) = service().await;
        let mut provost = setup.start().await;
        register(provost.api(), &remote.url(), by_customer(json!({}))).await;
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.push(provost.submit(&one_of("a")).await);
        }
        remote.requests(1).await;
        provost.kill().await;
        gate.open();
        provost.restart().await;
        for id in &ids {
            assert_eq!(provost.settled(id).await["state"], "processed");
        }
    }
}

#[tokio::test]
async fn faults_of_limits_are_named() {
    let provost = Provost::start().await;
    let steps = json!([{ "name": "one", "url": "http://127.0.0.1:9" }]);
    for (limits, pointer) in [
        (json!([{}]), "/limits/0/by"),
        (json!([{ "by": "customer" }]), "/limits/0/by"),
        (json!([{ "by": "{{ steps.one.output }}" }]), "/limits/0/by"),
        (by_customer(json!({ "max_running": 0 })), "/limits"),
        (
            json!([by_customer(json!({ "max_running": 0 }))]),
            "/limits/0/max_running",
        ),
        (
            json!([by_customer(json!({ "on_conflict": "queue" }))]),
            "/limits/0/on_conflict",
        ),
        (json!([by_customer(json!({ "max": 1 }))]), "/limits/0/max"),
    ] {
        let workflow = json!({ "steps": steps, "limits": limits });
        let refused = provost
            .put("/v1/workflows/bad", &workflow)
            .await
            .expect(422);
        assert_eq!(
            refused["errors"][0]["pointer"], pointer,
            "{limits} {refused}"
        );
    }
    // A task cannot have limits of its own.
    let inline = json!({ "steps": steps, "limits": [by_customer(json!({}))] });
    let refused = provost.post("/v1/tasks", &inline).await.expect(422);
    assert_eq!(refused["errors"][0]["pointer"], "/limits");
}
