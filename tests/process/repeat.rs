//! Steps with `repeat`, which run until a condition is true.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use crate::harness::{
    Act, Api, Gate, Provost, Remote, Seen, Setup, alerts, new_database, setups, step, until,
};

/// Returns a task that fetches pages until there is no further one, and counts them.
fn pages(url: &str, repeat: &Value, fields: &Value) -> Value {
    let mut fetch = json!({
        "name": "fetch", "url": url,
        "request": { "path": "/pages/{{ previous.next if previous else 0 }}", "body": { "at": "{{ index }}" } },
        "repeat": { "until": "output.next is none", "at_most": 50, "output": "all" },
        "undo": { "request": { "method": "DELETE", "path": "/pages/{{ output.page }}/{{ index }}" } },
    });
    let repeat = repeat.as_object().unwrap();
    let own = fetch["repeat"].as_object_mut().unwrap();
    own.extend(repeat.clone());
    let fields = fields.as_object().unwrap();
    fetch.as_object_mut().unwrap().extend(fields.clone());
    json!({ "steps": [
        fetch,
        { "name": "count", "url": url,
          "request": { "path": "/count", "body": "{{ steps.fetch.output }}" },
          "undo": { "request": { "path": "/uncount" } } },
    ] })
}

fn page(seen: &Seen, count: u64) -> Act {
    let Some(page) = seen.path.strip_prefix("/pages/") else {
        return Act::Ok(json!({}));
    };
    match page.parse::<u64>() {
        Ok(page) => {
            let next = (page + 1 < count).then_some(page + 1);
            Act::Ok(json!({ "page": page, "next": next }))
        }
        Err(_) => Act::Ok(json!({})),
    }
}

async fn command(api: &Api, id: &str, path: &str, body: &Value) -> Value {
    let path = format!("/v1/tasks/{id}{path}");
    api.post(&path, body).await.expect(200)
}

/// Returns the paths that were called with this method, in order.
fn paths(remote: &Remote, method: &str) -> Vec<String> {
    let ledger = remote.ledger().into_iter();
    let of_method = ledger.filter(|seen| seen.method == method);
    of_method.map(|seen| seen.path).collect()
}

#[tokio::test]
async fn pages_are_fetched_until_there_is_none_and_undone_the_last_one_first() {
    for setup in setups().await {
        let remote = Remote::with(|seen| page(seen, 4)).await;
        let provost = setup.start().await;
        let api = provost.api();
        let submission = pages(&remote.url(), &json!({}), &json!({}));
        let id = api.submit(&submission).await;
        let task = api.settled(&id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        let fetch = step(&task, "fetch");
        assert_eq!(
            fetch["items"],
            json!({ "total": 4, "at_most": 50, "max_parallel": 1, "states": { "processed": 4 }, "errors": [] })
        );
        assert_eq!(fetch["output"].as_array().unwrap().len(), 4);
        assert_eq!(fetch["output"][3], json!({ "page": 3, "next": null }));
        let list = api.get(&format!("/v1/tasks/{id}/steps?of=fetch&limit=3"));
        let list = list.await.expect(200);
        assert_eq!(list["items"][2]["name"], "fetch[2]");
        assert_eq!(list["items"][2]["after"], json!([]));
        let cursor = list["next_cursor"].as_str().unwrap();
        let rest = format!("/v1/tasks/{id}/steps?of=fetch&limit=3&cursor={cursor}");
        let rest = api.get(&rest).await.expect(200);
        assert_eq!(rest["items"][0]["name"], "fetch[3]");
        let plan = api.get(&format!("/v1/tasks/{id}/undo-plan")).await;
        let plan = plan.expect(200);
        let stages: Vec<_> = plan["calls"].as_array().unwrap().iter().collect();
        let stages: Vec<_> = stages
            .iter()
            .map(|call| (call["undoes"].as_str().unwrap(), call["stage"].as_u64()))
            .collect();
        assert_eq!(
            stages,
            [
                ("count", Some(1)),
                ("fetch[3]", Some(2)),
                ("fetch[2]", Some(3)),
                ("fetch[1]", Some(4)),
                ("fetch[0]", Some(5)),
            ]
        );
        command(api, &id, "/undo", &json!({})).await;
        let task = api.settled(&id).await;
        assert_eq!(task["state"], "undone", "{task:#}");
        assert_eq!(
            paths(&remote, "DELETE"),
            ["/pages/3/3", "/pages/2/2", "/pages/1/1", "/pages/0/0"]
        );
        let (keys, undone): (Vec<_>, Vec<_>) = remote
            .ledger()
            .into_iter()
            .partition(|seen| seen.method == "POST");
        assert!(keys[2].key().ends_with(":fetch[2]"), "{}", keys[2].key());
        assert!(undone[0].key().ends_with(":fetch[3].undo"));
    }
}

#[tokio::test]
async fn the_next_iteration_begins_after_a_while_and_survives_a_kill_before_that() {
    for setup in setups().await {
        let remote = Remote::with(|seen| page(seen, 3)).await;
        let mut provost = setup.start().await;
        let every = json!({ "every": "2s", "output": "last" });
        let submission = pages(&remote.url(), &every, &json!({}));
        let id = provost.submit(&submission).await;
        remote.requests(1).await;
        until(json!("repeat"), async || {
            let task = provost.api().task(&id).await;
            step(&task, "fetch")["blocked_by"]["reason"].clone()
        })
        .await;
        let task = provost.api().task(&id).await;
        let fetch = step(&task, "fetch");
        assert_eq!(fetch["items"]["next_at"], fetch["blocked_by"]["until"]);
        assert_eq!(fetch["complete_by"], Value::Null);
        let early = provost.api().post(
            &format!("/v1/tasks/{id}/steps/fetch%5B1%5D/skip"),
            &json!({}),
        );
        let problem = early.await.expect_problem(409, "wrong-step-state");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("fetch[1] has not come to be"), "{detail}");
        provost
            .api()
            .post(
                &format!("/v1/tasks/{id}/steps/fetch%5B50%5D/skip"),
                &json!({}),
            )
            .await
            .expect_problem(404, "no-such-step");
        provost.kill().await;
        provost.restart().await;
        let task = provost.api().settled(&id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        assert_eq!(
            step(&task, "fetch")["output"],
            json!({ "page": 2, "next": null })
        );
        let times: Vec<_> = remote.ledger().iter().map(|seen| seen.at).collect();
        for pair in times[..3].windows(2) {
            let waited = pair[1].duration_since(pair[0]);
            assert!(waited >= Duration::from_millis(1900), "{waited:?}");
        }
        let events = provost.api().history(&id).await;
        let begun = events.iter().filter(|event| {
            event["type"] == "step.ready"
                && event["step"]
                    .as_str()
                    .is_some_and(|step| step.contains('['))
        });
        assert_eq!(begun.count(), 3, "each begins once");
    }
}

#[tokio::test]
async fn a_condition_that_is_never_true_ends_in_error_and_an_operator_decides() {
    for setup in setups().await {
        let done = Arc::new(AtomicBool::new(false));
        let is_done = done.clone();
        let remote = Remote::with(move |seen| match seen.path.as_str() {
            "/count" => Act::Ok(json!({})),
            _ => Act::Ok(json!({ "done": is_done.load(Ordering::Relaxed), "next": 1, "page": 1 })),
        })
        .await;
        let provost = setup.start().await;
        let api = provost.api();
        let repeat = json!({ "until": "output.done", "at_most": 3 });
        let submission = pages(&remote.url(), &repeat, &json!({}));
        let id = api.submit(&submission).await;
        let task = api.settled(&id).await;
        assert_eq!(task["state"], "error", "{task:#}");
        assert_eq!(task["error"]["step"], "fetch");
        assert_eq!(task["error"]["kind"], "exhausted");
        assert_eq!(
            task["error"]["message"],
            "`until` was not true after 3 iterations: retry the step for as many more, or skip or resolve it"
        );
        until(json!(1), async || {
            json!(alerts(&provost, "open").await.len())
        })
        .await;
        done.store(true, Ordering::Relaxed);
        command(api, &id, "/retry", &json!({})).await;
        let task = api.settled(&id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        assert_eq!(step(&task, "fetch")["items"]["total"], 4);
        assert_eq!(step(&task, "fetch")["items"]["at_most"], 6);
        until(json!(0), async || {
            json!(alerts(&provost, "open").await.len())
        })
        .await;
        let missing = json!({ "until": "output.state == 'done'", "at_most": 3 });
        let submission = pages(&remote.url(), &missing, &json!({}));
        let id = api.submit(&submission).await;
        let task = api.settled(&id).await;
        let message = task["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("after fetch[0]: `until`"), "{message}");
        let output = json!({ "output": ["by hand"] });
        command(api, &id, "/steps/fetch/resolve", &output).await;
        let task = api.settled(&id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        let counted = remote.ledger().into_iter();
        let counted: Vec<_> = counted.filter(|seen| seen.path == "/count").collect();
        assert_eq!(counted[1].body, json!(["by hand"]));
    }
}

/// Checks that each key takes effect at most once, while the process is killed at any moment.
async fn survives(mut provost: Provost, seed: u64) {
    const PAGES: u64 = 40;
    let effects = Arc::new(Mutex::new(std::collections::HashMap::<String, usize>::new()));
    let known = effects.clone();
    let remote = Remote::with(move |seen| {
        *known.lock().entry(seen.key().to_owned()).or_default() += 1;
        let act = page(seen, PAGES);
        match (seen.path.as_str(), seen.attempt()) {
            ("/pages/7" | "/pages/21", 1) => Act::status(503),
            _ => Act::Then(Duration::from_millis(3), Arc::new(|| {}), Box::new(act)),
        }
    })
    .await;
    let mut random = StdRng::seed_from_u64(seed);
    let submission = pages(&remote.url(), &json!({}), &json!({}));
    let id = provost.submit(&submission).await;
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(random.random_range(5..120))).await;
        provost.kill().await;
        provost.restart().await;
    }
    let task = provost.settled(&id).await;
    assert_eq!(task["state"], "processed", "seed {seed}: {task:#}");
    let outputs = step(&task, "fetch")["output"].as_array().unwrap();
    let fetched: Vec<_> = outputs
        .iter()
        .map(|output| output["page"].as_u64())
        .collect();
    let expected: Vec<_> = (0..PAGES).map(Some).collect();
    assert_eq!(fetched, expected, "seed {seed}");
    assert_eq!(effects.lock().len() as u64, PAGES + 1, "one key each");
    command(provost.api(), &id, "/undo", &json!({})).await;
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(random.random_range(5..60))).await;
        provost.kill().await;
        provost.restart().await;
    }
    let task = provost.settled(&id).await;
    assert_eq!(task["state"], "undone", "seed {seed}: {task:#}");
    let mut undone = paths(&remote, "DELETE");
    // An undo that was in flight at a kill may come twice, and none comes before that of a later iteration.
    undone.dedup();
    let expected = (0..PAGES).rev();
    let expected: Vec<_> = expected.map(|at| format!("/pages/{at}/{at}")).collect();
    assert_eq!(undone, expected, "seed {seed}");
}

#[tokio::test]
async fn no_iteration_is_lost_or_done_twice_when_the_process_is_killed_at_any_moment() {
    let given = std::env::var("PROVOST_TEST_SEED").ok();
    let seed = given.and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    println!("PROVOST_TEST_SEED={seed}");
    for setup in setups().await {
        survives(setup.set("INSTANCE_ID", "node-1").start().await, seed).await;
    }
}

#[tokio::test]
async fn two_instances_begin_each_iteration_once() {
    let remote = Remote::with(|seen| {
        let act = page(seen, 30);
        Act::Then(Duration::from_millis(5), Arc::new(|| {}), Box::new(act))
    })
    .await;
    let url = new_database().await;
    let on = |url: &str| -> Setup { Provost::setup().database_url(url) };
    let (a, b) = (on(&url).start().await, on(&url).start().await);
    let submission = pages(&remote.url(), &json!({}), &json!({}));
    let mut ids = Vec::new();
    for at in 0..6 {
        let instance = if at % 2 == 0 { &a } else { &b };
        ids.push(instance.submit(&submission).await);
    }
    for id in &ids {
        // Each instance has the task in memory with fewer iterations than it has now; the task may also have ended.
        for (instance, what) in [(&b, "pause"), (&a, "resume"), (&a, "pause"), (&b, "resume")] {
            let path = format!("/v1/tasks/{id}/{what}");
            instance.api().post(&path, &json!({})).await;
        }
    }
    for id in &ids {
        let task = b.settled(id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
    }
    let calls = remote.ledger();
    let keys: std::collections::HashSet<_> = calls.iter().map(|seen| seen.key()).collect();
    assert_eq!(keys.len(), calls.len(), "no iteration was called twice");
    assert_eq!(calls.len(), 6 * 31);
}

#[tokio::test]
async fn an_undo_a_cancel_and_a_rerun_in_the_middle_do_what_they_say() {
    let gate = Gate::closed();
    let hold = gate.clone();
    let works = Arc::new(AtomicBool::new(false));
    let repaired = works.clone();
    let remote = Remote::with(
        move |seen| match (seen.method.as_str(), seen.path.as_str()) {
            ("POST", "/pages/2") => Act::Gated(hold.clone(), Box::new(page(seen, 4))),
            ("POST", "/count") if !repaired.load(Ordering::Relaxed) => Act::status(422),
            _ => page(seen, 4),
        },
    )
    .await;
    let provost = Provost::start().await;
    let api = provost.api();
    let submission = pages(&remote.url(), &json!({}), &json!({}));
    let id = api.submit(&submission).await;
    remote.paths("/pages/2", 1).await;
    let refused = api.post(&format!("/v1/tasks/{id}/steps/fetch/skip"), &json!({}));
    refused.await.expect_problem(409, "wrong-step-state");
    command(api, &id, "/undo", &json!({})).await;
    gate.open();
    let task = api.settled(&id).await;
    assert_eq!(task["state"], "undone", "{task:#}");
    assert_eq!(
        paths(&remote, "DELETE"),
        ["/pages/2/2", "/pages/1/1", "/pages/0/0"]
    );
    let task = api.run(&submission).await;
    assert_eq!(task["state"], "error", "{task:#}");
    let id = task["id"].as_str().unwrap();
    works.store(true, Ordering::Relaxed);
    let from = json!({ "from": "fetch" });
    command(api, id, "/retry", &from).await;
    let task = api.settled(id).await;
    assert_eq!(task["state"], "processed", "{task:#}");
    assert_eq!(
        step(&task, "fetch")["items"]["states"],
        json!({ "processed": 4 })
    );
    let clone = api.post(&format!("/v1/tasks/{id}/clone"), &json!({})).await;
    assert!(clone.status < 300, "{clone:?}");
    let later = pages(&remote.url(), &json!({ "every": "1h" }), &json!({}));
    let id = api.submit(&later).await;
    until(json!("repeat"), async || {
        let task = api.task(&id).await;
        step(&task, "fetch")["blocked_by"]["reason"].clone()
    })
    .await;
    command(api, &id, "/steps/fetch/retry", &json!({})).await;
    until(json!(2), async || {
        let task = api.task(&id).await;
        step(&task, "fetch")["items"]["states"]["processed"].clone()
    })
    .await;
    let task = command(api, &id, "/cancel", &json!({})).await;
    assert_eq!(task["state"], "cancelled");
    let graph = api.get(&format!("/v1/tasks/{id}/graph")).await.expect(200);
    assert!(graph.to_string().contains("iteration 2 of 50"), "{graph}");
}

#[tokio::test]
async fn several_steps_are_repeated_together_as_a_task() {
    for setup in setups().await {
        let remote = Remote::with(|seen| match seen.path.as_str() {
            "/propose" => {
                Act::Ok(json!({ "price": 100 - seen.body["round"].as_i64().unwrap() * 10 }))
            }
            "/check" => Act::Ok(json!({ "accepted": seen.body["price"].as_i64().unwrap() <= 80 })),
            _ => Act::Ok(json!({})),
        })
        .await;
        let provost = setup.start().await;
        let api = provost.api();
        let round = json!({
            "output": { "price": "{{ steps.propose.output.price }}", "accepted": "{{ steps.check.output.accepted }}" },
            "steps": [
                { "name": "propose", "url": remote.url(), "request": { "path": "/propose", "body": { "round": "{{ input.round }}" } },
                  "undo": { "request": { "path": "/withdraw/{{ input.round }}" } } },
                { "name": "check", "url": remote.url(), "request": { "path": "/check", "body": { "price": "{{ steps.propose.output.price }}" } } },
            ],
        });
        api.put("/v1/workflows/round", &round).await.expect(201);
        let haggle = json!({ "steps": [
            { "name": "haggle", "task": { "workflow": "round", "input": { "round": "{{ index }}" } },
              "repeat": { "until": "output.accepted", "at_most": 5 } },
            { "name": "buy", "url": remote.url(), "on_permanent": "undo",
              "request": { "path": "/buy", "body": { "price": "{{ steps.haggle.output.price }}" } } },
        ] });
        let task = api.run(&haggle).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        assert_eq!(
            step(&task, "haggle")["output"],
            json!({ "price": 80, "accepted": true })
        );
        assert_eq!(step(&task, "haggle")["items"]["total"], 3);
        let id = task["id"].as_str().unwrap();
        command(api, id, "/undo", &json!({})).await;
        let task = api.settled(id).await;
        assert_eq!(task["state"], "undone", "{task:#}");
        let withdrawn = paths(&remote, "POST").into_iter();
        let withdrawn: Vec<_> = withdrawn.filter(|path| path.contains("withdraw")).collect();
        assert_eq!(withdrawn, ["/withdraw/2", "/withdraw/1", "/withdraw/0"]);
    }
}

#[tokio::test]
async fn waits_and_signals_are_repeated_within_the_bounds_of_a_command() {
    for setup in setups().await {
        let provost = setup.start().await;
        let api = provost.api();
        let submission = json!({ "steps": [
            { "name": "approve", "signal": { "within": "1h" },
              "repeat": { "until": "output.enough", "at_most": 5 } },
            { "name": "rest", "wait": { "for": "0s" }, "repeat": { "until": "index == 2", "at_most": 5 } },
        ] });
        let id = api.submit(&submission).await;
        for (at, enough) in [(0, false), (1, true)] {
            let signal = format!("/v1/tasks/{id}/signals/approve%5B{at}%5D");
            api.post(&signal, &json!({ "enough": enough }))
                .await
                .expect(200);
        }
        let task = api.settled(&id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        assert_eq!(step(&task, "rest")["items"]["total"], 3);
    }
}

#[tokio::test]
async fn a_task_moves_to_another_version_before_its_first_iteration_and_not_after() {
    for setup in setups().await {
        let gate = Gate::closed();
        let hold = gate.clone();
        let remote = Remote::with(move |seen| match seen.path.as_str() {
            "/first" => Act::Gated(hold.clone(), Box::new(Act::Ok(json!({})))),
            _ => Act::Ok(json!({ "done": false })),
        })
        .await;
        let provost = setup.start().await;
        let api = provost.api();
        let workflow = |at_most: u32| {
            json!({ "steps": [
                { "name": "first", "url": remote.url(), "request": { "path": "/first" } },
                { "name": "poll", "url": remote.url(), "repeat": { "until": "output.done", "at_most": at_most } },
            ] })
        };
        for at_most in [1, 2, 3] {
            let put = api.put("/v1/workflows/polling", &workflow(at_most)).await;
            assert!(put.status < 300, "{put:?}");
        }
        let id = api
            .submit(&json!({ "workflow": "polling", "workflow_version": 1 }))
            .await;
        remote.requests(1).await;
        command(api, &id, "/migrate", &json!({ "to_version": 2 })).await;
        gate.open();
        let task = api.settled(&id).await;
        assert_eq!(step(&task, "poll")["items"]["total"], 2, "{task:#}");
        let refused = api.post(
            &format!("/v1/tasks/{id}/migrate"),
            &json!({ "to_version": 3 }),
        );
        let problem = refused.await.expect_problem(409, "wrong-task-state");
        assert!(
            problem["detail"].as_str().unwrap().contains("repeat"),
            "{problem}"
        );
    }
}

/// A thousand iterations run in bounded time and memory. The others never come to exist.
#[tokio::test]
async fn a_thousand_iterations_are_run_within_bounds() {
    const ITERATIONS: usize = 1000;
    let count = Arc::new(AtomicUsize::new(0));
    let counter = count.clone();
    let remote = Remote::with(move |_| {
        let count = counter.fetch_add(1, Ordering::Relaxed) + 1;
        Act::Ok(json!({ "count": count, "text": "x".repeat(4000) }))
    })
    .await;
    let provost = Provost::start().await;
    let api = provost.api();
    let submission = json!({ "steps": [
        { "name": "poll", "url": remote.url(), "undo": { "request": { "path": "/undo" } },
          "repeat": { "until": format!("output.count == {ITERATIONS}"), "at_most": ITERATIONS } },
    ] });
    let id = api.submit(&submission).await;
    until(json!("processed"), async || {
        let task = api.get(&format!("/v1/tasks/{id}?wait=60s")).await;
        task.expect(200)["state"].clone()
    })
    .await;
    println!("{ITERATIONS} iterations: peak {:?}", provost.peak_memory());
    if let Some(peak) = provost.peak_memory() {
        assert!(peak < 250 << 20, "{peak}");
    }
}

/// The outputs of all iterations together have at most 8 MiB, whatever a service sends.
#[tokio::test]
async fn long_outputs_of_iterations_end_in_an_error_and_not_in_memory() {
    let remote = Remote::with(|seen| match seen.path.as_str() {
        "/undo" => Act::Ok(json!({})),
        _ => Act::Ok(json!({ "text": "x".repeat(200_000) })),
    })
    .await;
    let provost = Provost::start().await;
    let api = provost.api();
    let submission = json!({ "steps": [
        { "name": "poll", "url": remote.url(), "request": { "path": "/poll" }, "undo": { "request": { "path": "/undo" } },
          "repeat": { "until": "1 > 2", "at_most": 1000 } },
    ] });
    let task = api.run(&submission).await;
    assert_eq!(task["state"], "error", "{}", task["error"]);
    assert_eq!(task["error"]["step"], "poll[41]");
    let message = task["error"]["message"].as_str().unwrap();
    assert!(message.contains("8388608 bytes together"), "{message}");
    let id = task["id"].as_str().unwrap();
    command(api, id, "/undo", &json!({})).await;
    let task = api.settled(id).await;
    assert_eq!(task["state"], "undone", "{}", task["error"]);
    let undone = paths(&remote, "POST").into_iter();
    assert_eq!(undone.filter(|path| path == "/undo").count(), 42);
    if let Some(peak) = provost.peak_memory() {
        assert!(peak < 400 << 20, "{peak}");
    }
}
