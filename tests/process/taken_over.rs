//! Instances on one PostgreSQL that lose what they hold: their steps, while they are suspended, and their sessions at
//! the server.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    cluster,
    harness::{Act, Api, Gate, PATIENCE, Provost, Remote, Setup, id_of, pipeline, step},
    record::Records,
};

async fn new_database() -> String {
    let made = tokio::task::spawn_blocking(cluster::new_database);
    made.await.unwrap()
}

fn on(url: &str) -> Setup {
    Provost::setup()
        .database_url(url)
        .set("INSTANCE__LEASE", "1s")
        .set("LOG", "info,provost::scheduler=debug")
}

/// The first attempt gets no response, or is asked to come later; further attempts get a response at once.
fn by_attempt(gate: &Gate, seen_path: &str, attempt: u32) -> Act {
    let output = json!({ "attempt": attempt });
    match (attempt, seen_path) {
        (1, "/held") => gate.then(output),
        (1, "/tried-again") => Act::answer(503, &[("retry-after", "1")], ""),
        _ => Act::Ok(output),
    }
}

#[tokio::test]
async fn what_a_suspended_instance_held_is_taken_over_once_and_its_late_answers_change_nothing() {
    let gate = Gate::closed();
    let remote = {
        let gate = gate.clone();
        Remote::with(move |seen| by_attempt(&gate, &seen.path, seen.attempt())).await
    };
    let url = new_database().await;
    let paused = on(&url).start().await;
    let mut ids = Vec::new();
    for number in 0..10 {
        let path = if number < 5 { "/held" } else { "/tried-again" };
        let one = json!({ "name": "only", "url": remote.url(), "complete_within": "1h",
                          "request": { "path": path } });
        let two = json!({ "name": "next", "url": remote.url() });
        ids.push(paused.submit(&json!({ "steps": [one, two] })).await);
    }
    remote.requests(10).await;
    for id in &ids[5..] {
        paused.events(id).await.until("step.retrying").await;
    }
    paused.suspend();

    let other = on(&url).start().await;
    let mut histories = Vec::new();
    for id in &ids {
        let task = other.settled(id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        assert_eq!(step(&task, "only")["output"]["attempt"], 2, "{task:#}");
        histories.push(other.history(id).await);
    }
    let made = remote.count();
    gate.open();
    paused.resume();

    // Each of the calls that it held has ended: its reply was refused, or it was dropped.
    let over = |log: &str| {
        let of_answer = log.matches("a late reply changed nothing").count();
        of_answer + log.matches("its attempt is over in the record").count()
    };
    let all_over = async {
        while over(&paused.log()) < 5 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let told = timeout(PATIENCE, all_over).await;
    assert!(told.is_ok(), "only {} calls are over", over(&paused.log()));
    for (id, history) in ids.iter().zip(&histories) {
        assert_eq!(&other.history(id).await, history, "its record changed");
    }
    assert_eq!(
        remote.count(),
        made,
        "what was recorded is not called again"
    );

    // The instance continues to claim, under its old name, as soon as it has a lease.
    let claimed_by = |history: &[Value]| {
        let claim = history.iter().find(|entry| entry["type"] == "step.claimed");
        claim.unwrap()["by"].clone()
    };
    let works = async {
        let again = pipeline(&remote.url(), &["after"]);
        loop {
            let id = paused.submit(&again).await;
            assert_eq!(paused.settled(&id).await["state"], "processed");
            if claimed_by(&paused.history(&id).await) == claimed_by(&histories[0]) {
                return;
            }
        }
    };
    timeout(PATIENCE, works).await.expect("it claims nothing");
}

/// The output of each of the three steps names its attempt, as [`Records`] requires it.
async fn submitter(number: usize, api: Api, remote: String) -> BTreeMap<String, String> {
    let mut accepted = BTreeMap::new();
    for order in 0..25 {
        let key = format!("order-{number}-{order}");
        let mut submission = pipeline(&remote, &["one", "two", "three"]);
        submission["key"] = json!(key);
        let id = loop {
            let submitted = api.post("/v1/tasks", &submission);
            let answer = submitted.header("idempotency-key", &key).await;
            match answer.status {
                202 => break id_of(&answer.body),
                _ => assert_eq!(answer.status, 503, "{answer:?}"),
            }
        };
        accepted.insert(key, id);
    }
    accepted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_whose_session_ends_in_the_middle_of_a_transaction_loses_nothing() {
    let answer = |attempt: u32| Act::Ok(json!({ "attempt": attempt }));
    let remote = Remote::with(move |seen| answer(seen.attempt())).await;
    let url = new_database().await;
    let provost = on(&url).start().await;
    let mut submitters = JoinSet::new();
    for number in 0..8 {
        submitters.spawn(submitter(number, provost.api().clone(), remote.url()));
    }
    let mut database = PgConnection::connect(&url).await.unwrap();
    // Only a session in the middle of a writing transaction has a transaction id.
    const END: &str = "
        SELECT coalesce(bool_or(pg_terminate_backend(pid)), false) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'provost'
          AND backend_xid IS NOT NULL AND query NOT LIKE '%pg_notify%'";
    for round in 1..=15 {
        // Each round comes at another moment of the load.
        remote.requests(round * 20).await;
        // The query is repeated without a pause, because a batch is usually one statement and takes milliseconds.
        let ended = async {
            while !sqlx::query_scalar::<_, bool>(END)
                .fetch_one(&mut database)
                .await
                .unwrap()
            {}
        };
        timeout(PATIENCE, ended).await.expect("nobody writes");
    }
    let tasks: BTreeMap<String, String> =
        submitters.join_all().await.into_iter().flatten().collect();
    for id in tasks.values() {
        let ended = async {
            while provost.get(&format!("/v1/tasks/{id}?wait=60s")).await.body["state"]
                != "processed"
            {}
        };
        timeout(PATIENCE, ended).await.unwrap();
    }
    let mut records = Records::open(&url).await;
    records.judge(&tasks, &remote.ledger()).await;
}

/// Returns the sessions of two instances that listen, once there are two besides those that were ended.
async fn listeners(database: &mut PgConnection, ended: &[i32]) -> Vec<i32> {
    const LISTENERS: &str = "SELECT pid FROM pg_stat_activity
        WHERE datname = current_database() AND query LIKE 'LISTEN%' AND pid <> ALL ($1)";
    let both = async {
        loop {
            let found = sqlx::query_scalar(LISTENERS).bind(ended);
            let found: Vec<i32> = found.fetch_all(&mut *database).await.unwrap();
            if found.len() == 2 {
                return found;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, both).await.expect("nobody listens")
}

#[tokio::test]
async fn news_flow_again_after_the_session_that_listened_was_ended() {
    let remote = Remote::script([Act::Hang, Act::Ok(json!(1))]).await;
    let url = new_database().await;
    // No instance finds the work by polling.
    let deaf = || {
        let setup = on(&url).set("SCHEDULER__POLL", "1h");
        setup.set("SUPERVISOR__INTERVAL", "1h")
    };
    let (a, b) = tokio::join!(deaf().start(), deaf().start());
    a.register("narrow", &remote.url(), 1).await;
    while b.get("/v1/agents/narrow").await.status != 200 {}
    let mut database = PgConnection::connect(&url).await.unwrap();
    let ended = listeners(&mut database, &[]).await;
    sqlx::query("SELECT pg_terminate_backend(pid) FROM unnest($1) AS pid")
        .bind(&ended)
        .execute(&mut database)
        .await
        .unwrap();
    listeners(&mut database, &ended).await;
    let work = json!({ "steps": [{ "name": "only", "agent": "narrow", "complete_within": "1h" }] });
    a.submit(&work).await;
    remote.requests(1).await;
    // The instance that got the work has no free slot.
    let waiting = a.submit(&work).await;
    let task: Value = b.settled(&waiting).await;
    assert_eq!(task["state"], "processed");
}

/// Makes an instance's report of its agents fail, and nothing else.
const REFUSE_REPORTS: &str = "
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused by a test'; END $$;
CREATE TRIGGER refuse BEFORE UPDATE OF configured_agents ON instances FOR EACH ROW EXECUTE FUNCTION refuse()";

#[tokio::test]
async fn a_killed_instance_is_recovered_although_reports_of_agents_fail() {
    let remote = Remote::script([Act::Hang, Act::Ok(json!("done"))]).await;
    let url = new_database().await;
    let mut killed = on(&url).start().await;
    sqlx::raw_sql(REFUSE_REPORTS)
        .execute(&mut PgConnection::connect(&url).await.unwrap())
        .await
        .unwrap();
    let setup = on(&url).set("LOG", "info,provost::service=debug");
    let other = setup.start().await;
    let id = killed.submit(&pipeline(&remote.url(), &["only"])).await;
    remote.requests(1).await;
    killed.kill().await;
    let task = other.settled(&id).await;
    assert_eq!(step(&task, "only")["output"], "done", "{task:#}");
    assert_eq!(step(&task, "only")["attempt"], 2, "{task:#}");
    other.says("could not report the configured agents").await;
}
