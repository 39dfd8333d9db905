//! Schedules with the real binary: each fire time fires once over several instances, crashes and downtime. The fire
//! times themselves are tested in the domain.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};

use crate::harness::{
    Act, Api, Database, Gate, Provost, Remote, Setup, alerts, id_of, new_database, setups, sql,
    until,
};

async fn register(api: &Api, name: &str, url: &str) {
    let workflow = json!({ "steps": [{ "name": "only", "url": url, "request": { "body": {
        "fire_time": "{{ task.labels.fire_time }}", "n": "{{ input.n }}" } } }] });
    let put = api.put(&format!("/v1/workflows/{name}"), &workflow).await;
    assert!(put.status < 300, "{put:?}");
}

async fn put(api: &Api, name: &str, schedule: &Value) -> Value {
    let put = api.put(&format!("/v1/schedules/{name}"), schedule).await;
    assert!(put.status < 300, "{put:?}");
    put.body
}

async fn schedule(api: &Api, name: &str) -> Value {
    api.get(&format!("/v1/schedules/{name}")).await.expect(200)
}

async fn runs(api: &Api, name: &str) -> Vec<Value> {
    let page = api
        .get(&format!("/v1/schedules/{name}/runs?limit=500"))
        .await;
    page.expect(200)["items"].as_array().unwrap().clone()
}

/// Returns the open alerts of schedules.
async fn failing(provost: &Provost) -> Vec<Value> {
    let open = alerts(provost, "open").await.into_iter();
    open.filter(|alert| alert["kind"] == "schedule.failing")
        .collect()
}

/// Returns the tasks of a schedule, the latest first.
async fn tasks(api: &Api, name: &str) -> Vec<Value> {
    let page = api
        .get(&format!("/v1/tasks?label=schedule:{name}&limit=500"))
        .await;
    page.expect(200)["items"].as_array().unwrap().clone()
}

async fn until_tasks(api: &Api, name: &str, count: usize) {
    until(true, || async { tasks(api, name).await.len() >= count }).await;
}

/// Returns a schedule that fires every second, and may run tasks in parallel.
fn tick(workflow: &str) -> Value {
    json!({ "every": "1s", "workflow": workflow, "input": { "n": 7 }, "overlap": "allow", "catch_up": "all" })
}

/// Returns a schedule that never fires during a test.
fn yearly(workflow: &str) -> Value {
    json!({ "cron": "0 0 29 2 *", "workflow": workflow, "input": { "n": 7 } })
}

/// Returns setups for both databases, with a way to change their rows while no instance runs.
async fn databases() -> [(Setup, Option<String>); 2] {
    let url = new_database().await;
    [
        (Provost::setup(), None),
        (Provost::setup().database_url(&url), Some(url)),
    ]
}

/// Executes a statement in the form of the database.
fn change(provost: &Provost, url: Option<&str>, sqlite: &str, postgres: &str) {
    match url {
        None => Database::open(&provost.database()).execute(sqlite),
        Some(url) => drop(sql(url, postgres)),
    }
}

/// Changes the schedule as if it had been handled last at this time.
fn handle_until(provost: &Provost, url: Option<&str>, time: &str, millis: i64) {
    let sqlite = format!(
        "UPDATE schedules SET state = json_set(state, '$.handled_at', '{time}'), handled_at = {millis}, next_at = 1"
    );
    let postgres = format!(
        "UPDATE schedules SET state = jsonb_set(state::jsonb, '{{handled_at}}', '\"{time}\"')::text, handled_at = {millis}, next_at = 1"
    );
    change(provost, url, &sqlite, &postgres);
}

/// Checks the fire times of the schedule's tasks: each occurs once, and none between them is missing. Returns their
/// number.
pub async fn each_second_once(api: &Api, name: &str) -> usize {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for task in tasks(api, name).await {
        let label = task["labels"]["fire_time"].as_str().unwrap().to_owned();
        *counts.entry(label).or_default() += 1;
    }
    let twice: Vec<_> = counts.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    let second = |time: &str| {
        let (date, time) = time.split_once('T').unwrap();
        let mut parts = time[..8]
            .split(':')
            .map(|part| part.parse::<u32>().unwrap());
        let (h, m, s) = (
            parts.next().unwrap(),
            parts.next().unwrap(),
            parts.next().unwrap(),
        );
        (date.to_owned(), h * 3600 + m * 60 + s)
    };
    let times: Vec<_> = counts.keys().map(|time| second(time)).collect();
    for pair in times.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
        assert_eq!(pair[0].1 + 1, pair[1].1, "none is missing: {counts:?}");
    }
    counts.len()
}

#[tokio::test]
async fn a_schedule_submits_a_task_at_each_of_its_fire_times() {
    for setup in setups().await {
        let remote = Remote::quick().await;
        let provost = setup.start().await;
        register(&provost, "report", &remote.url()).await;
        let mut body = tick("report");
        body["labels"] = json!({ "team": "blue" });
        body["priority"] = json!(3);
        let created = provost.put("/v1/schedules/tick", &body).await;
        assert_eq!(created.header("location"), Some("/v1/schedules/tick"));
        let view = created.expect(201);
        assert_eq!(view["next"].as_array().unwrap().len(), 10, "{view:#}");
        assert_eq!(view["state"], "active");
        until_tasks(&provost, "tick", 3).await;
        let task = provost
            .settled(&id_of(&tasks(&provost, "tick").await[1]))
            .await;
        assert_eq!(task["state"], "processed");
        assert_eq!(task["labels"]["team"], "blue");
        assert_eq!(task["priority"], 3);
        let fire_time = task["labels"]["fire_time"].as_str().unwrap();
        assert_eq!(task["key"], format!("tick@{fire_time}"));
        let seen = remote.ledger();
        assert!(
            seen.iter().any(|seen| seen.body["fire_time"] == fire_time),
            "{seen:?}"
        );
        let history = json!(provost.history(&id_of(&task)).await).to_string();
        assert!(history.contains("schedule tick"), "{history}");
        let of_task = runs(&provost, "tick").await.into_iter();
        let run = { of_task }.find(|run| run["task"] == task["id"]).unwrap();
        assert_eq!(run["fire_time"], fire_time);
        assert_eq!(run["source"], "scheduled");
        assert_eq!(run["state"], "started");
        assert!(run["late_by"].is_string(), "{run}");
        assert!(each_second_once(&provost, "tick").await >= 3);
        let metrics = provost.get("/metrics").await.expect(200);
        for metric in [
            "provost_schedule_runs_total{state=\"started\",source=\"scheduled\"}",
            "provost_schedule_lateness_seconds_count",
        ] {
            assert!(metrics.as_str().unwrap().contains(metric), "{metric}");
        }
        let list = provost.get("/v1/schedules?limit=1").await.expect(200);
        assert_eq!(list["items"][0]["name"], "tick");
        assert_eq!(list["next_cursor"], json!(null));
        provost.delete("/v1/schedules/tick").await.expect(204);
        provost
            .get("/v1/schedules/tick")
            .await
            .expect_problem(404, "no-such-schedule");
        let alone = provost.get("/v1/schedules/tick/runs").await;
        alone.expect_problem(404, "no-such-schedule");
    }
}

#[tokio::test]
async fn a_supervisor_that_is_killed_neither_loses_nor_doubles_a_run() {
    let remote = Remote::quick().await;
    let url = new_database().await;
    let on = || {
        Provost::setup()
            .database_url(&url)
            .set("INSTANCE__LEASE", "1s")
    };
    let mut instances = vec![on().start().await, on().start().await, on().start().await];
    register(&instances[0], "report", &remote.url()).await;
    put(&instances[0], "tick", &tick("report")).await;
    until_tasks(&instances[2], "tick", 2).await;
    for _ in 0..2 {
        // The victim is the supervisor.
        let known = instances[0].get("/v1/instances").await.expect(200);
        let items = known["items"].as_array().unwrap();
        let supervisor = items.iter().find(|item| item["supervising"] == true);
        let supervisor = supervisor.map(|item| item["id"].as_str().unwrap().to_owned());
        let mut victim = 0;
        for (at, instance) in instances.iter().enumerate() {
            let ready = instance.get("/v1/hold").await.expect(200);
            if supervisor.as_deref() == ready["instance"].as_str() {
                victim = at;
            }
        }
        let mut killed = instances.remove(victim);
        killed.kill().await;
        let before = tasks(&instances[0], "tick").await.len();
        until_tasks(&instances[0], "tick", before + 3).await;
    }
    let last = instances.last().unwrap();
    assert!(each_second_once(last, "tick").await >= 8);
}

#[tokio::test]
async fn an_instance_that_is_killed_again_and_again_neither_loses_nor_doubles_a_run() {
    let remote = Remote::quick().await;
    let mut provost = Provost::start().await;
    register(&provost, "report", &remote.url()).await;
    put(&provost, "tick", &tick("report")).await;
    for round in 0..6 {
        let before = tasks(&provost, "tick").await.len();
        until_tasks(&provost, "tick", before + 1).await;
        // Each kill comes at another moment of the second.
        tokio::time::sleep(Duration::from_millis(170 * round)).await;
        provost.kill().await;
        provost.restart().await;
    }
    assert!(each_second_once(&provost, "tick").await >= 6);
}

#[tokio::test]
async fn what_was_missed_while_nothing_ran_is_caught_up_once() {
    for (setup, url) in databases().await {
        let remote = Remote::quick().await;
        let mut provost = setup.start().await;
        register(&provost, "report", &remote.url()).await;
        let hourly = json!({ "cron": "0 * * * *", "workflow": "report", "input": { "n": 1 } });
        put(&provost, "hourly", &hourly).await;
        provost.kill().await;
        handle_until(
            &provost,
            url.as_deref(),
            "2026-01-01T00:30:00.000Z",
            1_767_227_400_000,
        );
        provost.restart().await;
        until(true, || async {
            let runs = runs(&provost, "hourly").await;
            runs.iter().any(|run| run["state"] == "started")
        })
        .await;
        let runs = runs(&provost, "hourly").await;
        let started: Vec<_> = runs
            .iter()
            .filter(|run| run["state"] == "started")
            .collect();
        assert_eq!(started.len(), 1, "{runs:#?}");
        // A run of the last hour may be on time if less than a minute has passed since then.
        assert_ne!(started[0]["source"], "triggered");
        let skipped = runs.iter().filter(|run| run["skipped"] == "missed");
        let skipped: Vec<_> = skipped.collect();
        assert_eq!(
            skipped.len(),
            1,
            "one run on record stands for all of them: {runs:#?}"
        );
        assert_eq!(skipped[0]["fire_time"], "2026-01-01T01:00:00.000Z");
        assert!(skipped[0]["count"].as_u64().unwrap() >= 99);
        assert!(
            skipped[0]["reason"]
                .as_str()
                .unwrap()
                .contains("no instance ran")
        );
    }
}

#[tokio::test]
async fn a_clock_that_was_ahead_silences_no_schedule() {
    for (setup, url) in databases().await {
        let remote = Remote::quick().await;
        let mut provost = setup.start().await;
        register(&provost, "report", &remote.url()).await;
        put(&provost, "tick", &tick("report")).await;
        until_tasks(&provost, "tick", 1).await;
        provost.kill().await;
        handle_until(
            &provost,
            url.as_deref(),
            "2099-01-01T00:00:00.000Z",
            4_070_908_800_000,
        );
        let later = "UPDATE schedules SET next_at = 4070908801000";
        change(&provost, url.as_deref(), later, later);
        let before = 1;
        provost.restart().await;
        until_tasks(&provost, "tick", before + 2).await;
        provost.says("the clock of the store was set back").await;
    }
}

#[tokio::test]
async fn runs_overlap_as_the_schedule_says() {
    for setup in setups().await {
        let gate = Gate::closed();
        let remote = Remote::script([gate.then(json!("done"))]).await;
        let provost = setup.start().await;
        register(&provost, "report", &remote.url()).await;
        for overlap in ["skip", "queue", "replace"] {
            let body = json!({ "every": "1s", "workflow": "report", "input": { "n": 1 }, "overlap": overlap });
            put(&provost, overlap, &body).await;
        }
        // The first task of each schedule runs until the gate opens.
        until(true, || async {
            let skip = schedule(&provost, "skip").await;
            let queue = schedule(&provost, "queue").await;
            let is_left_out = skip["runs"][0]["count"].as_u64() >= Some(2);
            is_left_out && queue["queued"].as_u64() >= Some(2)
        })
        .await;
        assert_eq!(tasks(&provost, "skip").await.len(), 1);
        assert_eq!(tasks(&provost, "queue").await.len(), 1);
        let skipped = schedule(&provost, "skip").await["runs"][0].clone();
        assert_eq!(skipped["skipped"], "overlap", "{skipped:#}");
        assert!(
            skipped["reason"]
                .as_str()
                .unwrap()
                .contains("has not ended")
        );
        until(true, || async {
            let replaced = tasks(&provost, "replace").await;
            replaced
                .iter()
                .filter(|task| task["state"] == "cancelled")
                .count()
                >= 2
        })
        .await;
        let live = tasks(&provost, "replace").await.into_iter();
        let live = live.filter(|task| task["state"] != "cancelled").count();
        assert!(live <= 1, "{live}");
        gate.open();
        until(true, || async { tasks(&provost, "queue").await.len() >= 3 }).await;
        until(true, || async { tasks(&provost, "skip").await.len() >= 2 }).await;
        for name in ["skip", "queue", "replace"] {
            provost
                .delete(&format!("/v1/schedules/{name}"))
                .await
                .expect(204);
        }
    }
}

#[tokio::test]
async fn operators_trigger_backfill_pause_and_resume_and_it_says_who() {
    for setup in setups().await {
        let gate = Gate::closed();
        let remote = Remote::script([gate.then(json!("done"))]).await;
        let provost = setup.start().await;
        register(&provost, "report", &remote.url()).await;
        put(&provost, "rare", &yearly("report")).await;
        let trigger = |key: &str, body: Value| {
            let call = provost.post("/v1/schedules/rare/trigger", &body);
            call.header("provost-actor", "ann")
                .header("idempotency-key", key)
        };
        let first = trigger("a", json!({ "reason": "asked for" }))
            .await
            .expect(202);
        assert_eq!(first["state"], "started", "{first:#}");
        assert_eq!(first["by"], "ann");
        assert_eq!(first["source"], "triggered");
        let again = trigger("a", json!({ "reason": "asked for" })).await;
        assert_eq!(again.header("idempotency-replayed"), Some("true"));
        assert_eq!(again.expect(202)["task"], first["task"]);
        trigger("a", json!({}))
            .await
            .expect_problem(422, "idempotency-key-reused");
        trigger("b", json!({}))
            .await
            .expect_problem(409, "schedule-busy");
        let beside = trigger("b", json!({ "overlap": "allow" }))
            .await
            .expect(202);
        assert_ne!(beside["task"], first["task"]);
        let task = beside["task"].as_str().unwrap();
        let history = json!(provost.history(task).await).to_string();
        assert!(history.contains("triggered by ann"), "{history}");

        let paused = provost.post("/v1/schedules/rare/pause", &json!({ "reason": "flood" }));
        let paused = paused.header("provost-actor", "bob").await.expect(200);
        assert_eq!(paused["state"], "paused");
        assert_eq!(paused["pause"]["by"], "bob");
        assert_eq!(paused["next"], json!([]));
        let range = json!({ "from": "2000-01-01T00:00:00Z", "to": "2021-01-01T00:00:00Z" });
        let dry = provost
            .post("/v1/schedules/rare/backfill?dry_run=true", &range)
            .await;
        let times = dry.expect(200)["fire_times"].as_array().unwrap().len();
        assert_eq!(times, 6, "2000 to 2020");
        let filled = provost
            .post("/v1/schedules/rare/backfill", &range)
            .await
            .expect(202);
        assert_eq!(filled["runs"].as_array().unwrap().len(), 6);
        assert_eq!(filled["runs"][0]["state"], "queued");
        // An operator discards a backfill of the wrong range.
        let discard = json!({ "discard_queued": true });
        let discarded = provost
            .post("/v1/schedules/rare/pause", &discard)
            .await
            .expect(200);
        assert_eq!(discarded["queued"], 0);
        assert_eq!(
            discarded["runs"][0]["skipped"], "discarded",
            "{discarded:#}"
        );
        let resumed = provost
            .command("/v1/schedules/rare/resume")
            .await
            .expect(200);
        assert_eq!(resumed["state"], "active");
        gate.open();
        let range = json!({ "from": "2016-02-29T00:00:00Z", "to": "2020-02-29T00:00:00Z" });
        for _ in 0..2 {
            provost
                .post("/v1/schedules/rare/backfill", &range)
                .await
                .expect(202);
        }
        until(0, || async {
            schedule(&provost, "rare").await["queued"].as_u64().unwrap()
        })
        .await;
        let of_years = tasks(&provost, "rare").await;
        let backfilled = of_years.iter().filter(|task| {
            let fire_time = task["labels"]["fire_time"].as_str().unwrap();
            fire_time.starts_with("2016") || fire_time.starts_with("2020")
        });
        assert_eq!(backfilled.count(), 2, "no fire time has two tasks");
        let runs = runs(&provost, "rare").await;
        let repeated = runs
            .iter()
            .filter(|run| run["skipped"] == "repeated")
            .count();
        assert_eq!(repeated, 2, "{runs:#?}");
        let view = schedule(&provost, "rare").await;
        let actions: Vec<_> = view["changes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|change| change["action"].clone())
            .collect();
        let expected = [
            "backfilled",
            "backfilled",
            "resumed",
            "paused",
            "backfilled",
            "paused",
            "triggered",
            "triggered",
            "put",
        ];
        assert_eq!(actions, expected);
        for (body, pointer) in [
            (json!({ "from": "2016-01-01T00:00:00Z" }), "/to"),
            (
                json!({ "from": "2016-01-01T00:00:00Z", "to": "2999-01-01T00:00:00Z" }),
                "/to",
            ),
            (
                json!({ "from": "2017-01-01T00:00:00Z", "to": "2016-01-01T00:00:00Z" }),
                "/to",
            ),
            (
                json!({ "from": "2017-01-01T00:00:00Z", "to": "2018-01-01T00:00:00Z" }),
                "/from",
            ),
            (
                json!({ "from": "2016-01-01T00:00:00Z", "to": "2018-01-01T00:00:00Z", "overlap": "skip" }),
                "/overlap",
            ),
        ] {
            let refused = provost.post("/v1/schedules/rare/backfill", &body).await;
            assert_eq!(refused.expect_faults(), [pointer], "{body}");
        }
    }
}

#[tokio::test]
async fn a_run_that_cannot_be_submitted_raises_one_alert_and_delays_no_other() {
    for (setup, url) in databases().await {
        let remote = Remote::quick().await;
        let mut provost = setup.start().await;
        register(&provost, "report", &remote.url()).await;
        register(&provost, "gone", &remote.url()).await;
        for (name, workflow) in [
            ("good", "report"),
            ("broken", "gone"),
            ("damaged", "report"),
        ] {
            put(&provost, name, &tick(workflow)).await;
        }
        until_tasks(&provost, "broken", 1).await;
        provost.kill().await;
        // A workflow is missing, as after the restore of another database, and a row cannot be read.
        let delete = "DELETE FROM workflows WHERE name = 'gone'; UPDATE schedules SET spec = '{' WHERE name = 'damaged'";
        change(&provost, url.as_deref(), delete, delete);
        provost.restart().await;
        // The missed fire times are caught up with at once, maybe before the other schedules were examined.
        until(2, || async { failing(&provost).await.len() }).await;
        let before = tasks(&provost, "good").await.len();
        until_tasks(&provost, "good", before + 4).await;
        let failed = schedule(&provost, "broken").await;
        assert!(
            failed["failing"]
                .as_str()
                .unwrap()
                .contains("does not exist"),
            "{failed:#}"
        );
        let of_broken = failed["runs"].as_array().unwrap();
        assert!(
            of_broken.iter().any(|run| run["state"] == "failed"),
            "{failed:#}"
        );
        let open = failing(&provost).await;
        let subjects: Vec<_> = open.iter().map(|alert| alert["receiver"].clone()).collect();
        assert_eq!(open.len(), 2, "one for each of the two: {open:#?}");
        assert!(subjects.contains(&json!("schedule:broken")), "{subjects:?}");
        assert!(
            subjects.contains(&json!("schedule:damaged")),
            "{subjects:?}"
        );
        assert_eq!(open[0]["kind"], "schedule.failing");
        let listed = provost.get("/v1/schedules").await.expect(200);
        let states: Vec<_> = listed["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["state"].clone())
            .collect();
        assert_eq!(states, ["active", "unreadable", "active"]);
        provost
            .get("/v1/schedules/damaged")
            .await
            .expect_problem(500, "unreadable-record");
        // The workflow exists again.
        register(&provost, "gone", &remote.url()).await;
        until(1, || async { failing(&provost).await.len() }).await;
        // An operator deletes the schedule that cannot be read.
        provost.delete("/v1/schedules/damaged").await.expect(204);
        until(0, || async { failing(&provost).await.len() }).await;
    }
}

#[tokio::test]
async fn a_run_has_the_latest_version_whatever_an_instance_remembers() {
    let remote = Remote::quick().await;
    let url = new_database().await;
    let on = || {
        Provost::setup()
            .database_url(&url)
            .set("POSTGRES__LISTEN", "false")
    };
    let (one, other) = (on().start().await, on().start().await);
    register(&one, "report", &remote.url()).await;
    put(&one, "rare", &yearly("report")).await;
    let pinned =
        json!({ "cron": "0 0 29 2 *", "workflow": "report", "workflow_version": 1, "input": {} });
    put(&one, "pinned", &pinned).await;
    for instance in [&one, &other] {
        let task = instance
            .run(&json!({ "workflow": "report", "input": { "n": 1 } }))
            .await;
        assert_eq!(task["workflow_version"], 1);
    }
    let second = json!({ "steps": [{ "name": "only", "url": remote.url(), "request": { "path": "/second" } }] });
    one.put("/v1/workflows/report", &second).await.expect(201);
    for (name, version) in [("rare", 2), ("pinned", 1)] {
        let run = other
            .command(&format!("/v1/schedules/{name}/trigger"))
            .await
            .expect(202);
        let task = other.settled(run["task"].as_str().unwrap()).await;
        assert_eq!(task["workflow_version"], version);
    }
}

#[tokio::test]
async fn a_held_instance_fires_nothing_until_it_is_released() {
    let remote = Remote::quick().await;
    let mut provost = Provost::start().await;
    register(&provost, "report", &remote.url()).await;
    put(&provost, "tick", &tick("report")).await;
    until_tasks(&provost, "tick", 1).await;
    provost.kill().await;
    provost.restart_with(|setup| setup.argument("--hold")).await;
    let before = tasks(&provost, "tick").await.len();
    // Nothing may happen during three looks of a supervisor; a slow machine makes fewer looks in this time.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(tasks(&provost, "tick").await.len(), before);
    provost.command("/v1/hold/release").await.expect(200);
    until_tasks(&provost, "tick", before + 3).await;
    each_second_once(&provost, "tick").await;
}

#[tokio::test]
async fn every_fault_of_a_schedule_is_named_when_it_is_put_and_when_it_fires() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let with_schema = |needs: &str| {
        json!({ "input_schema": { "type": "object", "required": [needs] },
                "steps": [{ "name": "only", "url": remote.url() }] })
    };
    provost
        .put("/v1/workflows/strict", &with_schema("n"))
        .await
        .expect(201);
    let body = json!({ "cron": "0 2 * * *", "workflow": "strict", "input": {}, "labels": { "schedule": "mine" },
                       "jitters": "1m", "overlap": "drop" });
    let refused = provost.put("/v1/schedules/x", &body).await.expect_faults();
    assert_eq!(refused.len(), 3, "{refused:?}");
    assert!(refused.contains(&"/jitters".to_owned()) && refused.contains(&"/overlap".to_owned()));
    let labels = json!({ "cron": "0 2 * * *", "workflow": "strict", "input": { "n": 1 }, "labels": { "schedule": "mine" } });
    let refused = provost
        .put("/v1/schedules/x", &labels)
        .await
        .expect_faults();
    assert_eq!(refused, ["/labels/schedule"]);
    for (body, pointer) in [
        (json!({ "cron": "0 2 * * *" }), "/workflow"),
        (
            json!({ "cron": "0 2 * * *", "workflow": "strikt" }),
            "/workflow",
        ),
        (
            json!({ "cron": "0 2 * * *", "workflow": "strict", "input": { "n": 1 }, "steps": [] }),
            "/steps",
        ),
        (
            json!({ "cron": "0 2 * * *", "workflow": "strict", "input": { "n": 1 }, "reply_to": { "url": "nowhere" } }),
            "/reply_to/url",
        ),
        (
            json!({ "cron": "0 2 * * *", "workflow": "strict", "workflow_version": 9, "input": { "n": 1 } }),
            "/workflow_version",
        ),
        (
            json!({ "cron": "0 2 * * *", "workflow": "quarterly", "workflow_version": 9 }),
            "/workflow",
        ),
    ] {
        let refused = provost.put("/v1/schedules/x", &body).await.expect_faults();
        assert_eq!(refused, [pointer], "{body}");
    }
    let unknown = json!({ "cron": "0 2 * * *", "workflow": "quarterly" });
    let unknown = provost.put("/v1/schedules/x", &unknown).await;
    let unknown = unknown.expect_problem(422, "invalid");
    let message = unknown["errors"][0]["message"].as_str().unwrap();
    assert!(
        message.ends_with("register it with PUT /v1/workflows/quarterly"),
        "{message}"
    );
    let named = provost.put("/v1/schedules/a%20b", &yearly("strict")).await;
    named.expect_problem(422, "invalid");
    put(&provost, "x", &yearly("strict")).await;
    provost
        .put("/v1/workflows/strict", &with_schema("m"))
        .await
        .expect(201);
    let run = provost.command("/v1/schedules/x/trigger").await.expect(202);
    assert_eq!(run["state"], "failed", "{run:#}");
    assert!(
        run["reason"].as_str().unwrap().contains("/input/m"),
        "{run:#}"
    );
    until(1, || async { alerts(&provost, "open").await.len() }).await;
    // Another specification closes the alert.
    let mut fixed = yearly("strict");
    fixed["input"] = json!({ "m": 1 });
    put(&provost, "x", &fixed).await;
    until(0, || async { alerts(&provost, "open").await.len() }).await;
}

#[tokio::test]
async fn a_schedule_is_changed_only_as_it_was_read() {
    for setup in setups().await {
        let remote = Remote::with(|_| Act::Ok(json!(1))).await;
        let provost = setup.start().await;
        register(&provost, "report", &remote.url()).await;
        let path = "/v1/schedules/rare";
        let only_new = || {
            provost
                .put(path, &yearly("report"))
                .header("if-none-match", "*")
        };
        let created = only_new().await;
        let tag = created.header("etag").unwrap().to_owned();
        created.expect(201);
        only_new().await.expect_problem(412, "precondition-failed");
        // Neither runs nor a repeated put of the same specification change the ETag.
        provost
            .command(&format!("{path}/trigger"))
            .await
            .expect(202);
        let same = provost.put(path, &yearly("report")).await;
        assert_eq!(same.header("etag"), Some(&*tag));
        let mut other = yearly("report");
        other["jitter"] = json!("5m");
        let changed = provost.put(path, &other).header("if-match", &tag).await;
        assert_ne!(changed.header("etag"), Some(&*tag));
        changed.expect(200);
        let stale = provost
            .put(path, &yearly("report"))
            .header("if-match", &tag)
            .await;
        stale.expect_problem(412, "precondition-failed");
        let stale = provost.delete(path).header("if-match", &tag).await;
        stale.expect_problem(412, "precondition-failed");
        // A put without the field `paused` leaves the pause.
        provost.command(&format!("{path}/pause")).await.expect(200);
        assert_eq!(
            put(&provost, "rare", &yearly("report")).await["state"],
            "paused"
        );
        other["paused"] = json!(false);
        assert_eq!(put(&provost, "rare", &other).await["state"], "active");
        let preview = provost
            .put(
                &format!("{path}?dry_run=true"),
                &json!({
            "cron": "30 2 * * *", "timezone": "Europe/Berlin", "workflow": "report" }),
            )
            .await;
        let preview = preview.expect(200);
        assert_eq!(preview["next"].as_array().unwrap().len(), 10);
        assert!(
            preview["next"][0]["local_time"]
                .as_str()
                .unwrap()
                .contains("T02:30:00+0")
        );
        assert_eq!(schedule(&provost, "rare").await["jitter"], "5m");
    }
}
