//! The record of a task is damaged: the task is not touched and is named in an alert, all others continue, and an
//! operator can cancel it.

use std::{collections::BTreeSet, path::Path};

use serde_json::{Value, json};

use crate::{
    cluster,
    harness::{Act, Database, PATIENCE, Provost, Remote, Setup, one_step, sql, until},
};

/// Damaged inputs, as SQL expressions of each database.
const NOT_UTF8: &str = "CAST(x'7b2262223a22ff227d' AS TEXT)";
const NOT_JSON: &str = "'{\"b\":'";

const PAGE: usize = 8192;
/// The first byte of a page with rows of a table without rowid.
const LEAF: u8 = 0x0a;

fn with_webhook(setup: Setup, ops: &Remote) -> Setup {
    let config = format!(
        "[[alert_webhooks]]\nname = \"ops\"\nurl = \"{}/ops\"\n",
        ops.url()
    );
    setup.config(&config).set("SCHEDULER__POLL", "50ms")
}

/// Returns a task with a step of an agent with one slot: the first step of its queue would take the slot again and
/// again.
fn of(agent: &str) -> Value {
    json!({ "input": { "mark": "good" }, "steps": [{ "name": "only", "agent": agent }] })
}

/// Submits the tasks while the service holds its calls, so that all of them are in the queue when the damage is done,
/// the damaged one first.
async fn queued(provost: &Provost, remote: &Remote) -> (String, Vec<String>) {
    for agent in ["one", "two"] {
        provost.register(agent, &remote.url(), 1).await;
    }
    let mut bad = of("one");
    bad["input"]["mark"] = json!("bad");
    // The last two steps have not begun.
    for name in ["second", "third"] {
        let steps = bad["steps"].as_array_mut().unwrap();
        steps.push(json!({ "name": name, "agent": "two" }));
    }
    let bad = provost.submit(&bad).await;
    let mut good = Vec::new();
    for agent in ["one", "two", "one", "two"] {
        good.push(provost.submit(&of(agent)).await);
    }
    (bad, good)
}

/// Checks what must be true of a service with such a task, on each database.
async fn expect_others_to_go_on(provost: &Provost, ops: &Remote, bad: &str, good: &[String]) {
    for id in good {
        assert_eq!(provost.settled(id).await["state"], "processed");
    }
    for agent in ["one", "two", "one"] {
        assert_eq!(provost.run(&of(agent)).await["state"], "processed");
    }
    assert_eq!(provost.get("/readyz").await.status, 200);
    let page = provost.get(&format!("/v1/alerts?task={bad}")).await;
    let alerts = page.expect(200)["items"].as_array().unwrap().clone();
    assert_eq!(alerts.len(), 1, "{alerts:#?}");
    assert_eq!(alerts[0]["kind"], "task.unreadable");
    let message = alerts[0]["message"].as_str().unwrap();
    for word in [bad, "cancel", "docs/deploy.md"] {
        assert!(message.contains(word), "{message}");
    }
    let told = ops.requests(1).await.remove(0);
    let told: Value = serde_json::from_str(&told.raw).unwrap();
    assert_eq!(told["data"]["alert"]["kind"], "task.unreadable");
    assert_eq!(told["data"]["alert"]["task"], bad);
    let metrics = provost.get("/metrics").await.body.to_string();
    assert!(metrics.contains("provost_tasks_unreadable 1"), "{metrics}");
    let log = provost.log();
    assert_eq!(log.matches("agent queues could not be read").count(), 0);
    let named = |line: &&str| line.contains("cannot be read") && line.contains(bad);
    assert!(log.lines().any(|line| named(&line)), "{log}");
}

/// Counts the steps that a cancelled task has on record.
const CANCELLED: &str = "SELECT count(*) FROM steps WHERE state = 'cancelled'";

/// Checks the problem that names the task, and that an operator can cancel it.
async fn expect_it_can_be_cancelled(provost: &Provost, ops: &Remote, bad: &str) {
    for path in ["", "/undo-plan", "/graph"] {
        let read = provost.get(&format!("/v1/tasks/{bad}{path}")).await;
        let problem = read.expect_problem(500, "unreadable-record");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(bad) && detail.contains("input"), "{detail}");
        assert!(detail.contains("cancel"), "{detail}");
    }
    for command in ["undo", "retry", "pause"] {
        let asked = provost.command(&format!("/v1/tasks/{bad}/{command}"));
        asked.await.expect_problem(500, "unreadable-record");
    }
    let bulk = json!({ "ids": [bad] });
    let undone = provost.bulk("undo", &bulk).await;
    assert_eq!(undone["refusals"]["unreadable-record"], 1, "{undone:#}");
    let cancelled = provost.bulk("cancel", &bulk).await;
    assert_eq!(cancelled["accepted"], 1, "{cancelled:#}");
    let listed = provost.get("/v1/tasks?state=cancelled").await.expect(200);
    assert_eq!(listed["items"][0]["id"], bad, "{listed:#}");
    let again = provost.command(&format!("/v1/tasks/{bad}/cancel")).await;
    again.expect_problem(409, "task-ended");
    let closed = provost.get(&format!("/v1/alerts?task={bad}")).await;
    assert_eq!(closed.expect(200)["items"][0]["state"], "closed");
    let told = ops.requests(2).await.remove(1);
    assert!(told.raw.contains("alert.closed"), "{}", told.raw);
}

#[tokio::test]
async fn a_task_whose_input_is_damaged_is_left_alone_and_can_be_cancelled() {
    for damage in [NOT_UTF8, NOT_JSON] {
        let (ops, remote) = (Remote::quick().await, Remote::quick().await);
        let mut provost = with_webhook(Provost::setup(), &ops)
            .set("HOLD", "true")
            .start()
            .await;
        let (bad, good) = queued(&provost, &remote).await;
        provost.terminate();
        assert!(provost.ended().await.success());
        let database = Database::open(&provost.database());
        database.execute(&format!(
            "UPDATE task_details SET input = {damage} WHERE input LIKE '%bad%'"
        ));
        drop(database);
        provost
            .restart_with(|setup| setup.set("HOLD", "false"))
            .await;
        expect_others_to_go_on(&provost, &ops, &bad, &good).await;
        expect_it_can_be_cancelled(&provost, &ops, &bad).await;
        provost.terminate();
        assert!(provost.ended().await.success());
        assert_eq!(Database::open(&provost.database()).number(CANCELLED), 3);
    }
}

#[tokio::test]
async fn a_damaged_task_in_postgresql_stops_no_instance() {
    let (ops, remote) = (Remote::quick().await, Remote::quick().await);
    let url = tokio::task::spawn_blocking(cluster::new_database)
        .await
        .unwrap();
    let on = || with_webhook(Provost::setup(), &ops).database_url(&url);
    let mut first = on().set("HOLD", "true").start().await;
    let (bad, good) = queued(&first, &remote).await;
    first.terminate();
    assert!(first.ended().await.success());
    let damage = format!("UPDATE task_details SET input = {NOT_JSON} WHERE input LIKE '%bad%'");
    sql(&url, &damage);
    first.restart_with(|setup| setup.set("HOLD", "false")).await;
    let second = on().start().await;
    for id in &good {
        assert_eq!(second.settled(id).await["state"], "processed");
    }
    expect_others_to_go_on(&first, &ops, &bad, &good).await;
    expect_it_can_be_cancelled(&first, &ops, &bad).await;
    let closed = first.get("/v1/alerts?state=open").await.expect(200);
    assert_eq!(closed["items"], json!([]), "{closed:#}");
}

/// Steps that ran when the service ended, expired attempts and messages are all processed without waiting for a damaged
/// task.
#[tokio::test]
async fn damaged_tasks_and_messages_hold_up_no_other_loop() {
    let gone = Remote::with(|_| Act::Hang).await;
    let told = Remote::quick().await;
    let remote = Remote::with(|seen| match seen.attempt() {
        1 => Act::Hang,
        _ => Act::Ok(json!("done")),
    })
    .await;
    let setup = Provost::setup()
        .set("SCHEDULER__POLL", "50ms")
        .set("SUPERVISOR__BATCH", "1")
        .set("SHUTDOWN_GRACE", "100ms");
    let mut provost = setup.start().await;
    let hanging = |mark: &str| {
        let mut submission = one_step(&remote.url(), "/work");
        submission["input"] = json!({ "mark": mark });
        submission["steps"][0]["complete_within"] = json!("2s");
        submission
    };
    let overdue = |mark: &str| {
        let mut submission = one_step(&gone.url(), "/work");
        submission["input"] = json!({ "mark": mark });
        submission["complete_within"] = json!("2s");
        submission
    };
    let mut bad = BTreeSet::new();
    bad.insert(provost.submit(&hanging("bad")).await);
    bad.insert(provost.submit(&overdue("bad")).await);
    let good = [
        provost.submit(&hanging("good")).await,
        provost.submit(&overdue("good")).await,
    ];
    remote.requests(2).await;
    gone.requests(2).await;
    // There are two messages to one receiver, and neither was delivered before the end.
    let receiver = format!("{}/told", told.url());
    let mut ended = one_step(&Remote::quick().await.url(), "/work");
    ended["reply_to"] = json!({ "url": receiver });
    provost.kill().await;
    let database = Database::open(&provost.database());
    database.execute(&format!(
        "UPDATE task_details SET input = {NOT_UTF8} WHERE input LIKE '%bad%'"
    ));
    drop(database);
    provost.restart().await;
    assert_eq!(provost.settled(&good[0]).await["state"], "processed");
    assert_eq!(provost.settled(&good[1]).await["state"], "error");
    let task = provost.run(&ended).await;
    assert_eq!(task["state"], "processed");
    told.requests(1).await;
    let named = async || {
        let page = provost.get("/v1/alerts?state=open").await.expect(200);
        let alerts = page["items"].as_array().unwrap().clone();
        let unreadable = alerts.iter().filter(|a| a["kind"] == "task.unreadable");
        unreadable
            .filter_map(|alert| alert["task"].as_str().map(str::to_owned))
            .collect::<BTreeSet<_>>()
    };
    until(bad, named).await;
}

#[tokio::test]
async fn a_message_that_cannot_be_read_is_a_dead_letter_and_others_are_delivered() {
    let told = Remote::with(|seen| match seen.body["id"].is_null() {
        _ if seen.path == "/told" => Act::Ok(json!(null)),
        _ => Act::status(503),
    })
    .await;
    let remote = Remote::quick().await;
    let mut provost = Provost::setup().set("HOLD", "true").start().await;
    let submission = |mark: &str| {
        let mut submission = one_step(&remote.url(), "/work");
        submission["key"] = json!(mark);
        submission["reply_to"] = json!({ "url": format!("{}/told", told.url()) });
        submission
    };
    for mark in ["bad", "good"] {
        let id = provost.submit(&submission(mark)).await;
        provost
            .command(&format!("/v1/tasks/{id}/cancel"))
            .await
            .expect(200);
    }
    provost.terminate();
    assert!(provost.ended().await.success());
    let database = Database::open(&provost.database());
    database
        .execute("UPDATE messages SET body = CAST(x'7bff7d' AS TEXT) WHERE body LIKE '%\"bad\"%'");
    drop(database);
    provost
        .restart_with(|setup| setup.set("HOLD", "false"))
        .await;
    told.requests(1).await;
    let dead = async || {
        let page = provost.get("/v1/messages?state=dead").await.expect(200);
        let reasons = page["items"].as_array().unwrap().clone();
        let of = |m: &Value| {
            m["error"]
                .as_str()
                .unwrap_or_default()
                .contains("cannot be read")
        };
        reasons.iter().any(of)
    };
    until(true, dead).await;
    let page = provost.get("/v1/messages?state=dead").await.expect(200);
    let id = page["items"][0]["id"].as_str().unwrap().to_owned();
    let read = provost.get(&format!("/v1/messages/{id}")).await;
    read.expect_problem(500, "unreadable-record");
}

/// Damages a page as a disk may lose it: the first page for which `of` is true gets half a page of zeros.
fn zero_page(path: &Path, of: impl Fn(&[u8]) -> bool) {
    let mut bytes = std::fs::read(path).unwrap();
    let page = bytes.chunks_mut(PAGE).find(|page| of(page));
    page.expect("no such page")[..4096].fill(0);
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn a_lost_page_of_inputs_costs_the_tasks_that_are_on_it_alone() {
    let remote = Remote::quick().await;
    let setup = Provost::setup()
        .set("SCHEDULER__POLL", "50ms")
        .set("HOLD", "true");
    let mut provost = setup.start().await;
    for agent in ["one", "two"] {
        provost.register(agent, &remote.url(), 2).await;
    }
    let mut ids = Vec::new();
    for number in 0..40 {
        let mut submission = of(["one", "two"][number % 2]);
        submission["input"] = json!({ "mark": format!("mark-{number}-"), "more": "x".repeat(900) });
        ids.push(provost.submit(&submission).await);
    }
    provost.terminate();
    assert!(provost.ended().await.success());
    let database = Database::open(&provost.database());
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)");
    drop(database);
    let holds = |page: &[u8], mark: &str| page.windows(mark.len()).any(|w| w == mark.as_bytes());
    zero_page(&provost.database(), |page| {
        page[0] == LEAF && holds(page, "mark-5-")
    });
    provost
        .restart_with(|setup| setup.set("HOLD", "false"))
        .await;
    for agent in ["one", "two"] {
        assert_eq!(provost.run(&of(agent)).await["state"], "processed");
    }
    let mut lost = Vec::new();
    for id in &ids {
        let read = provost.get(&format!("/v1/tasks/{id}")).await;
        if read.status == 500 {
            read.expect_problem(500, "unreadable-record");
            lost.push(id.clone());
        } else {
            assert_eq!(provost.settled(id).await["state"], "processed");
        }
    }
    assert!((1..20).contains(&lost.len()), "{} are lost", lost.len());
    let ready = provost.get("/readyz").await;
    let why = ready.expect_problem(503, "store-unavailable")["detail"].to_string();
    assert!(why.contains("Tasks in other parts continue"), "{why}");
    let alerts = async || {
        let page = provost.get("/v1/alerts?state=open&limit=100").await;
        page.expect(200)["items"].as_array().unwrap().len()
    };
    until(lost.len(), alerts).await;
    for id in &lost {
        provost
            .command(&format!("/v1/tasks/{id}/cancel"))
            .await
            .expect(200);
    }
    until(0, alerts).await;
    let _ = PATIENCE;
}

/// The service is killed while each of the tasks is called for the first time, so their rows have the claims.
#[tokio::test]
async fn a_lost_page_of_tasks_does_not_stop_the_recovery_of_others() {
    const TASKS: usize = 60;
    let remote = Remote::with(|_| Act::Hang).await;
    let mut provost = Provost::setup().start().await;
    let mut ids = Vec::new();
    for number in 0..TASKS {
        let mut submission = one_step(&remote.url(), "/held");
        submission["key"] = json!(format!("mark-{number}-"));
        // With these labels few tasks fit into a page.
        for label in ["more", "of", "it"] {
            submission["labels"][label] = json!("x".repeat(250));
        }
        ids.push(provost.submit(&submission).await);
    }
    remote.requests(TASKS).await;
    provost.kill().await;
    let database = Database::open(&provost.database());
    let claimed = "SELECT count(*) FROM tasks WHERE claimed_by IS NOT NULL";
    assert_eq!(database.number(claimed), TASKS as i64);
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)");
    drop(database);
    let holds = |page: &[u8], mark: &str| page.windows(mark.len()).any(|w| w == mark.as_bytes());
    zero_page(&provost.database(), |page| {
        page[0] == LEAF && holds(page, "mark-5-") && holds(page, "{\"it\"")
    });
    provost.restart().await;
    let mut lost = 0;
    for id in &ids {
        let read = provost.get(&format!("/v1/tasks/{id}")).await;
        if read.status == 500 {
            read.expect_problem(500, "unreadable-record");
            lost += 1;
        }
    }
    assert!((1..TASKS / 2).contains(&lost), "{lost} are lost");
    // A change of the tasks on the neighbouring pages may need the lost page.
    remote.requests(TASKS + TASKS / 3).await;
}
