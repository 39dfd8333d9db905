//! Steps that are run once for each item of a list.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
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

/// Returns a task that gets a list, imports each item, and counts.
fn import(url: &str, more: &Value) -> Value {
    let mut import = json!({
        "name": "import", "url": url, "for_each": "{{ steps.list.output.items }}",
        "request": { "path": "/import/{{ item.sku }}", "body": { "at": "{{ index }}", "item": "{{ item }}" } },
        "undo": { "request": { "method": "DELETE", "path": "/import/{{ item.sku }}/{{ index }}/{{ output.id }}" } },
    });
    let fields = more.as_object().unwrap();
    import.as_object_mut().unwrap().extend(fields.clone());
    json!({ "input": { "first": 0 }, "steps": [
        { "name": "list", "url": url, "request": { "method": "GET", "path": "/list" } },
        import,
        { "name": "count", "url": url,
          "request": { "path": "/count", "body": "{{ steps.import.output }}" },
          "undo": { "request": { "path": "/uncount" } } },
    ] })
}

fn listed(count: usize) -> Act {
    let items: Vec<_> = (0..count)
        .map(|at| json!({ "sku": format!("s{at}") }))
        .collect();
    Act::Ok(json!({ "items": items }))
}

/// Responds to `/list` with `count` items, and to each item with its index.
fn imports(seen: &Seen, count: usize) -> Act {
    match seen.path.as_str() {
        "/list" => listed(count),
        path if path.starts_with("/import/") && seen.method == "POST" => {
            Act::Ok(json!({ "id": format!("i{}", seen.body["at"]) }))
        }
        _ => Act::Ok(json!({})),
    }
}

async fn page(api: &Api, id: &str, query: &str) -> (Vec<Value>, Option<String>) {
    let page = api.get(&format!("/v1/tasks/{id}/steps?{query}")).await;
    let page = page.expect(200);
    let items = page["items"].as_array().unwrap().clone();
    let next = page["next_cursor"].as_str().map(str::to_owned);
    (items, next)
}

fn names(steps: &[Value]) -> Vec<&str> {
    steps
        .iter()
        .map(|step| step["name"].as_str().unwrap())
        .collect()
}

async fn command(api: &Api, id: &str, path: &str, body: &Value) -> Value {
    let path = format!("/v1/tasks/{id}{path}");
    api.post(&path, body).await.expect(200)
}

#[tokio::test]
async fn each_item_is_a_step_of_its_own_and_their_outputs_are_a_list() {
    for setup in setups().await {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (running, peak) = (now.clone(), most.clone());
        let remote = Remote::with(move |seen| {
            if !seen.path.starts_with("/import/") {
                return imports(seen, 23);
            }
            peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let running = running.clone();
            let ends = Arc::new(move || {
                running.fetch_sub(1, Ordering::SeqCst);
            });
            Act::Then(Duration::from_millis(20), ends, Box::new(imports(seen, 23)))
        })
        .await;
        let provost = setup.start().await;
        let api = provost.api();
        let id = api
            .submit(&import(&remote.url(), &json!({ "max_parallel": 4 })))
            .await;
        let task = api.settled(&id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        assert!(most.load(Ordering::SeqCst) <= 4, "{most:?}");
        let outputs: Vec<_> = (0..23)
            .map(|at| json!({ "id": format!("i{at}") }))
            .collect();
        let group = step(&task, "import");
        assert_eq!(group["output"], json!(outputs));
        assert_eq!(group["items"]["total"], 23);
        assert_eq!(group["items"]["states"], json!({ "processed": 23 }));
        assert_eq!(group["idempotency_key"], Value::Null);
        assert_eq!(group["complete_by"], Value::Null);
        let steps = task["steps"].as_array().unwrap();
        assert_eq!(names(steps), ["list", "import", "count"]);
        let ledger = remote.ledger();
        assert_eq!(ledger.last().unwrap().body, json!(outputs));
        let calls: Vec<_> = ledger
            .iter()
            .filter(|seen| seen.path.starts_with("/import/"))
            .collect();
        assert_eq!(calls.len(), 23);
        for seen in calls {
            let at = seen.body["at"].as_u64().unwrap();
            assert_eq!(seen.path, format!("/import/s{at}"));
            assert_eq!(seen.body["item"], json!({ "sku": format!("s{at}") }));
            assert_eq!(seen.key(), format!("{id}:import[{at}]"));
            assert_eq!(seen.header("provost-step"), format!("import[{at}]"));
        }
        let (first, next) = page(api, &id, "of=import&limit=20").await;
        let (rest, none) = page(
            api,
            &id,
            &format!("of=import&limit=20&cursor={}", next.unwrap()),
        )
        .await;
        assert_eq!((first.len(), rest.len(), none), (20, 3, None));
        assert_eq!(names(&rest), ["import[20]", "import[21]", "import[22]"]);
        assert_eq!(rest[1]["item"], json!({ "sku": "s21" }));
        assert_eq!(rest[1]["output"], json!({ "id": "i21" }));
        assert_eq!(rest[1]["attempt"], 1);
        assert_eq!(page(api, &id, "of=import&state=error").await.0.len(), 0);
        assert_eq!(page(api, &id, "limit=500").await.0.len(), 26);
        api.get(&format!("/v1/tasks/{id}/steps?of=list"))
            .await
            .expect_problem(404, "no-such-step");
    }
}

#[tokio::test]
async fn items_in_error_have_one_alert_and_are_retried_skipped_and_resolved_one_by_one() {
    for setup in setups().await {
        let works = Arc::new(AtomicBool::new(false));
        let repaired = works.clone();
        let remote = Remote::with(move |seen| {
            let fails = ["/import/s1", "/import/s2", "/import/s3"].contains(&seen.path.as_str());
            match fails && !repaired.load(Ordering::Relaxed) {
                true => Act::status(422),
                false => imports(seen, 6),
            }
        })
        .await;
        let provost = setup.start().await;
        let api = provost.api();
        let id = api.submit(&import(&remote.url(), &json!({}))).await;
        let task = api.settled(&id).await;
        assert_eq!(task["state"], "error", "{task:#}");
        assert!(
            task["error"]["step"]
                .as_str()
                .unwrap()
                .starts_with("import["),
            "{task:#}"
        );
        let group = step(&task, "import");
        assert_eq!(group["state"], "error");
        assert_eq!(group["error"]["message"], "3 of its 6 items are in error");
        assert_eq!(
            group["items"]["states"],
            json!({ "processed": 3, "error": 3 })
        );
        assert_eq!(group["items"]["errors"].as_array().unwrap().len(), 3);
        let (failed, _) = page(api, &id, "of=import&state=error").await;
        assert_eq!(names(&failed), ["import[1]", "import[2]", "import[3]"]);
        until(json!(3), async || {
            let open = alerts(&provost, "open").await;
            assert_eq!(open.len(), 1, "{open:?}");
            open[0]["count"].clone()
        })
        .await;
        let refused = api.post(&format!("/v1/tasks/{id}/steps/import/skip"), &json!({}));
        refused.await.expect_problem(409, "wrong-step-state");
        command(api, &id, "/steps/import%5B1%5D/skip", &json!({})).await;
        command(
            api,
            &id,
            "/steps/import%5B2%5D/resolve",
            &json!({ "output": "by hand" }),
        )
        .await;
        works.store(true, Ordering::Relaxed);
        command(
            api,
            &id,
            "/steps/import/retry",
            &json!({ "reason": "repaired" }),
        )
        .await;
        let task = api.settled(&id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        let expected = json!([{ "id": "i0" }, null, "by hand", { "id": "i3" }, { "id": "i4" }, { "id": "i5" }]);
        assert_eq!(step(&task, "import")["output"], expected);
        until(0, async || alerts(&provost, "open").await.len()).await;
    }
}

#[tokio::test]
async fn an_undo_undoes_the_items_that_took_effect_after_what_followed_and_before_what_came_before()
{
    for setup in setups().await {
        let remote = Remote::with(|seen| match seen.path.as_str() {
            "/import/s2" => Act::status(422),
            _ => imports(seen, 5),
        })
        .await;
        let provost = setup.start().await;
        let api = provost.api();
        let mut submission = import(&remote.url(), &json!({ "on_item_error": "skip" }));
        submission["steps"][0]["undo"] = json!({ "request": { "path": "/unlist" } });
        let id = api.submit(&submission).await;
        let task = api.settled(&id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        assert_eq!(step(&task, "import")["output"][2], Value::Null);
        let plan = api
            .get(&format!("/v1/tasks/{id}/undo-plan"))
            .await
            .expect(200);
        let planned: Vec<_> = plan["calls"]
            .as_array()
            .unwrap()
            .iter()
            .map(|call| {
                (
                    call["stage"].as_u64().unwrap(),
                    call["undoes"].as_str().unwrap(),
                )
            })
            .collect();
        assert_eq!(planned[0], (1, "count"), "{plan:#}");
        assert_eq!(planned.len(), 6, "{plan:#}");
        assert!(
            planned[1..5].iter().all(|(stage, _)| *stage == 2),
            "{plan:#}"
        );
        assert_eq!(planned[5], (3, "list"), "{plan:#}");
        let before = remote.count();
        command(api, &id, "/undo", &json!({})).await;
        let task = api.settled(&id).await;
        assert_eq!(task["state"], "undone", "{task:#}");
        let calls: Vec<_> = remote.ledger()[before..]
            .iter()
            .map(|seen| seen.path.clone())
            .collect();
        assert_eq!(calls.first().unwrap(), "/uncount");
        assert_eq!(calls.last().unwrap(), "/unlist");
        let items: BTreeSet<_> = calls[1..calls.len() - 1]
            .iter()
            .map(String::as_str)
            .collect();
        let expected = [0, 1, 3, 4].map(|at| format!("/import/s{at}/{at}/i{at}"));
        assert_eq!(items, expected.iter().map(String::as_str).collect());
        assert_eq!(calls.len(), 6);
        let items = &step(&task, "import")["items"];
        assert_eq!(items["states"], json!({ "undone": 4, "skipped": 1 }));
        assert_eq!(
            items["undo_states"],
            json!({ "processed": 4, "skipped": 1 })
        );
        let (undos, _) = page(api, &id, "of=import.undo&state=processed").await;
        assert_eq!(undos.len(), 4);
        assert_eq!(undos[0]["undoes"], "import[0]");
    }
}

#[tokio::test]
async fn the_undo_of_a_list_names_the_items_that_it_waits_for() {
    for setup in setups().await {
        let gate = Gate::closed();
        let undone = gate.clone();
        let remote = Remote::with(move |seen| match seen.method.as_str() {
            "DELETE" => undone.then(json!({})),
            _ => imports(seen, 12),
        })
        .await;
        let provost = setup.start().await;
        let api = provost.api();
        let mut submission = import(&remote.url(), &json!({}));
        submission["steps"][0]["undo"] = json!({ "request": { "path": "/unlist" } });
        let id = api.submit(&submission).await;
        assert_eq!(api.settled(&id).await["state"], "processed");
        command(api, &id, "/undo", &json!({})).await;
        let blocked = || async { step(&api.task(&id).await, "list.undo")["blocked_by"].clone() };
        until(json!(2), async || blocked().await["more"].clone()).await;
        let blocked = blocked().await;
        assert_eq!(blocked["reason"], "steps", "{blocked}");
        let named = blocked["steps"].as_array().unwrap();
        assert_eq!(named.len(), 10, "{blocked}");
        let is_item = |name: &Value| name.as_str().unwrap().starts_with("import[");
        assert!(named.iter().all(is_item), "{blocked}");
        gate.open();
        assert_eq!(api.settled(&id).await["state"], "undone");
    }
}

#[tokio::test]
async fn an_item_can_have_the_whole_task_undone_at_once() {
    for setup in setups().await {
        let remote = Remote::with(|seen| match seen.path.as_str() {
            "/import/s3" => Act::status(422),
            _ => imports(seen, 1000),
        })
        .await;
        let provost = setup.start().await;
        let api = provost.api();
        let more = json!({ "on_item_error": "undo", "max_parallel": 2 });
        let id = api.submit(&import(&remote.url(), &more)).await;
        let task = api.settled(&id).await;
        assert_eq!(task["state"], "undone", "{task:#}");
        let ledger = remote.ledger();
        let done: BTreeSet<_> = ledger
            .iter()
            .filter(|seen| seen.path.starts_with("/import/") && seen.method == "POST")
            .map(|seen| seen.path.clone())
            .collect();
        let undone = ledger.iter().filter(|seen| seen.method == "DELETE").count();
        assert!(done.len() <= 8, "{done:?}");
        assert_eq!(undone, done.len() - 1, "{done:?}");
        // The history has no entry for each item that never began.
        let history = api.history(&id).await;
        assert!(history.len() < 100, "{}", history.len());
        let told = history
            .iter()
            .find(|event| event["type"] == "step.items_cancelled");
        assert!(told.is_some());
    }
}

#[tokio::test]
async fn waits_and_signals_are_run_for_each_item_too() {
    for setup in setups().await {
        let provost = setup.start().await;
        let api = provost.api();
        let task = api
            .run(&json!({ "input": { "waits": ["10ms", "20ms", "30ms"] }, "steps": [
                { "name": "pause", "for_each": "{{ input.waits }}", "wait": { "for": "{{ item }}" } },
                { "name": "none", "for_each": "{{ input.waits[:0] }}", "wait": { "for": "{{ item }}" } },
            ] }))
            .await;
        assert_eq!(task["state"], "processed", "{task:#}");
        assert_eq!(step(&task, "pause")["output"], json!([null, null, null]));
        assert_eq!(step(&task, "none")["output"], json!([]));
        let id = api
            .submit(&json!({ "steps": [
                { "name": "approve", "for_each": ["ann", "bob"], "max_parallel": 1,
                  "signal": { "within": "1h", "match": "signal.by == item" } }] }))
            .await;
        let signal = async |at: u32, by: &str| {
            let path = format!("/v1/tasks/{id}/signals/approve%5B{at}%5D");
            api.post(&path, &json!({ "by": by })).await
        };
        signal(0, "bob")
            .await
            .expect_problem(422, "signal-mismatch");
        // The second signal comes early, and is kept until its item begins.
        signal(1, "bob").await.expect(200);
        signal(0, "ann").await.expect(200);
        let task = api.settled(&id).await;
        assert_eq!(
            step(&task, "approve")["output"],
            json!([{ "by": "ann" }, { "by": "bob" }])
        );
    }
}

#[tokio::test]
async fn what_gives_no_list_is_an_error_that_says_so() {
    let provost = Provost::start().await;
    let api = provost.api();
    let many: Vec<_> = (0..10_001).collect();
    for (list, says) in [
        (json!(null), "but gives null"),
        (json!({ "a": 1 }), "but gives an object"),
        (json!("abc"), "but gives a text"),
        (json!(many), "gives 10001 items"),
    ] {
        let submission = |policy: &str| {
            json!({ "input": { "list": list }, "steps": [
                { "name": "all", "for_each": "{{ input.list }}", "wait": { "for": "0s" }, "on_permanent": policy }] })
        };
        let task = api.run(&submission("error")).await;
        assert_eq!(task["state"], "error", "{task:#}");
        let message = task["error"]["message"].as_str().unwrap();
        assert!(message.contains(says), "{message}");
        assert_eq!(api.run(&submission("skip")).await["state"], "processed");
    }
    for (step, fault) in [
        (
            json!({ "name": "a", "wait": { "for": "{{ item }}" } }),
            "only in what a step with `for_each`",
        ),
        (
            json!({ "name": "a", "for_each": "{{ item }}", "wait": { "for": "1s" } }),
            "only in what a step with `for_each`",
        ),
        (
            json!({ "name": "a", "for_each": "plain", "wait": { "for": "1s" } }),
            "must be an array",
        ),
        (
            json!({ "name": "a", "for_each": 3, "wait": { "for": "1s" } }),
            "must be an array",
        ),
        (
            json!({ "name": "a", "max_parallel": 3, "wait": { "for": "1s" } }),
            "belongs to steps with `for_each`",
        ),
        (
            json!({ "name": "a", "for_each": [1], "max_parallel": 0, "wait": { "for": "1s" } }),
            "1 to 1000",
        ),
    ] {
        let refused = api.post("/v1/tasks", &json!({ "steps": [step] })).await;
        let problem = refused.expect_problem(422, "invalid");
        assert!(problem["errors"].to_string().contains(fault), "{problem}");
    }
}

/// Counts the effects of each key. Each must take effect at most once, whatever its attempts are.
#[derive(Default)]
struct Effects(Mutex<HashMap<String, usize>>);

async fn survives(mut provost: Provost, seed: u64) {
    const ITEMS: usize = 60;
    let effects = Arc::new(Effects::default());
    let known = effects.clone();
    let remote = Remote::with(move |seen| {
        if seen.method == "POST" {
            *known.0.lock().entry(seen.key().to_owned()).or_default() += 1;
        }
        let act = imports(seen, ITEMS);
        match (seen.path.as_str(), seen.attempt()) {
            ("/import/s7" | "/import/s41", 1) => Act::status(503),
            _ => Act::Then(Duration::from_millis(3), Arc::new(|| {}), Box::new(act)),
        }
    })
    .await;
    let mut random = StdRng::seed_from_u64(seed);
    let more = json!({ "max_parallel": 5 });
    let id = provost.submit(&import(&remote.url(), &more)).await;
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(random.random_range(5..120))).await;
        provost.kill().await;
        provost.restart().await;
    }
    let task = provost.settled(&id).await;
    assert_eq!(task["state"], "processed", "seed {seed}: {task:#}");
    let outputs: Vec<_> = (0..ITEMS)
        .map(|at| json!({ "id": format!("i{at}") }))
        .collect();
    assert_eq!(
        step(&task, "import")["output"],
        json!(outputs),
        "seed {seed}"
    );
    assert_eq!(effects.0.lock().len(), ITEMS + 1);
    command(provost.api(), &id, "/undo", &json!({})).await;
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(random.random_range(5..60))).await;
        provost.kill().await;
        provost.restart().await;
    }
    let task = provost.settled(&id).await;
    assert_eq!(task["state"], "undone", "seed {seed}: {task:#}");
    let undone: BTreeSet<_> = remote
        .ledger()
        .iter()
        .filter(|seen| seen.method == "DELETE")
        .map(|seen| seen.path.clone())
        .collect();
    assert_eq!(undone.len(), ITEMS, "seed {seed}");
}

fn seed() -> u64 {
    let given = std::env::var("PROVOST_TEST_SEED").ok();
    let seed = given
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(rand::random);
    println!("PROVOST_TEST_SEED={seed}");
    seed
}

#[tokio::test]
async fn no_item_is_lost_or_forgotten_when_the_process_is_killed_at_any_moment() {
    let seed = seed();
    for setup in setups().await {
        survives(setup.set("INSTANCE_ID", "node-1").start().await, seed).await;
    }
}

fn on(url: &str) -> Setup {
    Provost::setup().database_url(url)
}

#[tokio::test]
async fn an_instance_that_knew_the_task_without_its_items_decides_on_them_all_the_same() {
    let gate = Gate::closed();
    let list = gate.clone();
    let works = Arc::new(AtomicBool::new(false));
    let repaired = works.clone();
    let remote = Remote::with(move |seen| match seen.path.as_str() {
        "/list" => Act::Gated(list.clone(), Box::new(listed(20))),
        "/import/s11" if !repaired.load(Ordering::Relaxed) => Act::status(422),
        _ => imports(seen, 20),
    })
    .await;
    let url = new_database().await;
    let (a, b) = (on(&url).start().await, on(&url).start().await);
    let id = a.submit(&import(&remote.url(), &json!({}))).await;
    remote.requests(1).await;
    // Both instances have the task in memory now.
    command(b.api(), &id, "/pause", &json!({})).await;
    command(b.api(), &id, "/resume", &json!({})).await;
    gate.open();
    let task = a.settled(&id).await;
    assert_eq!(task["state"], "error", "{task:#}");
    works.store(true, Ordering::Relaxed);
    command(b.api(), &id, "/steps/import%5B11%5D/retry", &json!({})).await;
    let task = b.settled(&id).await;
    assert_eq!(task["state"], "processed", "{task:#}");
    assert_eq!(
        step(&task, "import")["items"]["states"],
        json!({ "processed": 20 })
    );
    let calls: BTreeMap<String, usize> =
        remote
            .ledger()
            .iter()
            .fold(BTreeMap::new(), |mut calls, seen| {
                *calls.entry(seen.path.clone()).or_default() += 1;
                calls
            });
    assert_eq!(calls["/import/s11"], 2);
    assert!(
        calls
            .iter()
            .all(|(path, count)| *count == 1 || path == "/import/s11")
    );
}

#[tokio::test]
async fn a_cancel_a_rerun_and_a_clone_of_a_task_with_items_do_what_they_say() {
    let gate = Gate::closed();
    let hold = gate.clone();
    let remote = Remote::with(move |seen| match seen.path.as_str() {
        "/import/s1" => Act::Gated(hold.clone(), Box::new(imports(seen, 4))),
        _ => imports(seen, 4),
    })
    .await;
    let provost = Provost::start().await;
    let api = provost.api();
    let more = json!({ "max_parallel": 1 });
    let id = api.submit(&import(&remote.url(), &more)).await;
    remote.paths("/import/s1", 1).await;
    let task = api.task(&id).await;
    let blocked = &step(&task, "import")["blocked_by"];
    assert_eq!(
        *blocked,
        json!({ "reason": "items", "waiting": 2, "running": 1, "error": 0 })
    );
    let (waiting, _) = page(api, &id, "of=import&state=waiting").await;
    assert_eq!(
        waiting[0]["blocked_by"],
        json!({ "reason": "max_parallel", "max_parallel": 1 })
    );
    let task = command(api, &id, "/cancel", &json!({})).await;
    assert_eq!(task["state"], "cancelled");
    assert_eq!(
        step(&task, "import")["items"]["states"],
        json!({ "processed": 1, "cancelled": 3 })
    );
    gate.open();
    let id = api.submit(&import(&remote.url(), &more)).await;
    let task = api.settled(&id).await;
    assert_eq!(task["state"], "processed", "{task:#}");
    let graph = api.get(&format!("/v1/tasks/{id}/graph")).await.expect(200);
    assert!(
        graph.to_string().contains("for each of 4#58; 4 processed"),
        "{graph}"
    );
}

/// Ten thousand items run in bounded time and memory.
#[tokio::test]
async fn ten_thousand_items_are_run_within_bounds() {
    const ITEMS: usize = 10_000;
    let remote = Remote::with(|seen| match seen.path.as_str() {
        "/list" => Act::Ok(json!({ "items": (0..ITEMS).collect::<Vec<_>>() })),
        _ => Act::Ok(json!({ "ok": true })),
    })
    .await;
    let provost = Provost::start().await;
    let api = provost.api();
    let submission = json!({ "steps": [
        { "name": "list", "url": remote.url(), "request": { "method": "GET", "path": "/list" } },
        { "name": "import", "url": remote.url(), "for_each": "{{ steps.list.output.items }}",
          "max_parallel": 64, "request": { "path": "/import", "body": "{{ item }}" } },
        { "name": "last", "url": remote.url() },
    ] });
    let id = api.submit(&submission).await;
    until(json!(ITEMS), async || {
        let task = api.get(&format!("/v1/tasks/{id}?wait=60s")).await;
        let task = task.expect(200);
        assert!(
            task.to_string().len() < 400_000,
            "{}",
            task.to_string().len()
        );
        step(&task, "import")["items"]["states"]["processed"].clone()
    })
    .await;
    let task = api.settled(&id).await;
    assert_eq!(task["state"], "processed", "{task:#}");
    println!("{ITEMS} items: peak {:?}", provost.peak_memory());
    if let Some(peak) = provost.peak_memory() {
        assert!(peak < 400 << 20, "{peak}");
    }
}

/// Two items are refused until the others have been called, and at most two may run at once.
#[tokio::test]
async fn items_that_wait_for_a_retry_let_others_run() {
    for setup in setups().await {
        let others = Arc::new(AtomicUsize::new(0));
        let called = others.clone();
        let remote = Remote::with(move |seen| match seen.body["at"].as_u64() {
            Some(0 | 1) if called.load(Ordering::Relaxed) < 4 => Act::answer(503, &[], ""),
            Some(2..) => {
                called.fetch_add(1, Ordering::Relaxed);
                Act::Ok(json!("done"))
            }
            _ => Act::Ok(json!("late")),
        });
        let remote = remote.await;
        let provost = setup.start().await;
        let all = json!({ "name": "all", "url": remote.url(), "for_each": [0, 1, 2, 3, 4, 5], "max_parallel": 2,
            "request": { "body": { "at": "{{ index }}" } } });
        let id = provost.submit(&json!({ "steps": [all] })).await;
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed");
        let expected = json!(["late", "late", "done", "done", "done", "done"]);
        assert_eq!(step(&task, "all")["output"], expected);
    }
}
