//! Two instances on one PostgreSQL: it makes no difference to callers and steps which instance does what.

use serde_json::{Value, json};

use crate::{
    cluster,
    harness::{Act, Gate, Provost, Remote, Setup, binary, kinds, pipeline, sql},
};

async fn new_database() -> String {
    tokio::task::spawn_blocking(cluster::new_database)
        .await
        .unwrap()
}

fn on(url: &str) -> Setup {
    Provost::setup().database_url(url)
}

async fn pair(url: &str) -> (Provost, Provost) {
    tokio::join!(on(url).start(), on(url).start())
}

#[tokio::test]
async fn a_task_submitted_to_one_is_waited_for_and_followed_at_the_other() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!(1)), Act::Ok(json!(2))]).await;
    let (a, b) = pair(&new_database().await).await;
    let id = a.submit(&pipeline(&remote.url(), &["one", "two"])).await;
    let mut events = b.events(&id).await;
    remote.requests(1).await;
    let waiting = tokio::spawn({
        let (b, id) = (b.api().clone(), id.clone());
        async move { b.settled(&id).await }
    });
    gate.open();
    let task = waiting.await.unwrap();
    assert_eq!(task["state"], "processed");
    let seen = events.rest().await;
    let seen: Vec<_> = seen.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(seen, kinds(&a.history(&id).await));
    assert_eq!(remote.count(), 2);
}

#[tokio::test]
async fn what_is_registered_at_one_is_known_at_the_other() {
    let (old, new) = (Remote::quick().await, Remote::quick().await);
    let (a, b) = pair(&new_database().await).await;
    a.register("payments", &old.url(), 4).await;
    let charge = json!({ "steps": [{ "name": "charge", "agent": "payments" }] });
    assert_eq!(b.run(&charge).await["state"], "processed");
    b.register("payments", &new.url(), 4).await;
    // The other instance is notified of the change, which takes effect without a request.
    while a.get("/v1/agents/payments").await.expect(200)["spec"]["endpoints"][0]["url"] != new.url()
    {
    }
    assert_eq!(a.run(&charge).await["state"], "processed");
    assert_eq!((old.count(), new.count()), (1, 1));
}

#[tokio::test]
async fn an_instance_works_off_the_line_that_another_left() {
    let remote = Remote::script([Act::Hang, Act::Ok(json!(1))]).await;
    let url = new_database().await;
    let mut a = on(&url).start().await;
    a.register("narrow", &remote.url(), 1).await;
    let step = json!({ "steps": [{ "name": "only", "agent": "narrow", "complete_within": "1h" }] });
    a.submit(&step).await;
    remote.requests(1).await;
    let waiting = a.submit(&step).await;
    a.kill().await;
    let b = on(&url).start().await;
    assert_eq!(b.settled(&waiting).await["state"], "processed");
}

#[tokio::test]
async fn sessions_that_end_under_load_cost_no_task() {
    let remote = Remote::quick().await;
    let url = new_database().await;
    let a = on(&url).start().await;
    let mut ids = Vec::new();
    for _ in 0..20 {
        let answer = a
            .post("/v1/tasks", &pipeline(&remote.url(), &["one", "two"]))
            .await;
        match answer.status {
            202 => ids.push(answer.body["id"].as_str().unwrap().to_owned()),
            503 => assert!(answer.headers.contains_key("retry-after"), "{answer:?}"),
            _ => panic!("{answer:?}"),
        }
        end_sessions(&url);
    }
    assert!(ids.len() > 10, "{}", ids.len());
    for id in ids {
        let task = loop {
            let answer = a.get(&format!("/v1/tasks/{id}?wait=60s")).await;
            if answer.status == 200 {
                break answer.body;
            }
        };
        assert_eq!(task["state"], "processed", "{task:#}");
    }
}

fn end_sessions(url: &str) {
    sql(
        url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'provost'
         AND datname = current_database()",
    );
}

#[tokio::test]
async fn migrate_says_what_it_did_and_serve_can_leave_it_to_it() {
    let url = new_database().await;
    let (code, said) = on(&url).set("POSTGRES__MIGRATE", "false").refused().await;
    assert_eq!(code, Some(1));
    assert!(said.contains("provost migrate"), "{said}");
    let migrate = async |url: &str| {
        let run = binary()
            .args(["migrate", "--database-url", url])
            .current_dir(std::env::temp_dir())
            .output()
            .await
            .unwrap();
        assert!(run.status.success(), "{run:?}");
        String::from_utf8(run.stdout).unwrap()
    };
    assert!(migrate(&url).await.contains("from migration 0 to"));
    assert!(migrate(&url).await.contains("up to date"));
    let started = on(&url).set("POSTGRES__MIGRATE", "false").start().await;
    let ready: Value = started.get("/readyz").await.expect(200);
    assert_eq!(ready["status"], "ready");
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite://{}/p.db", folder.path().display());
    assert!(migrate(&file).await.contains("from migration 0 to"));
    assert!(migrate(&file).await.contains("up to date"));
}

/// Moves the clock of the database an hour ahead for all of its clients, so that the clocks of the instances differ
/// from it.
const CLOCK_MOVED: [&str; 3] = [
    "CREATE SCHEMA moved",
    "CREATE FUNCTION moved.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
        $$ SELECT pg_catalog.clock_timestamp() + interval '1 hour' $$",
    "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = moved, pg_catalog', current_database()); END $$",
];

#[tokio::test]
async fn time_is_the_database_s_also_in_the_order_of_ids() {
    let remote = Remote::script([Act::Hang, Act::Ok(json!("again"))]).await;
    let url = new_database().await;
    for statement in CLOCK_MOVED {
        sql(&url, statement);
    }
    let (a, b) = pair(&url).await;
    let submission = json!({ "steps": [
        { "name": "only", "url": remote.url(), "complete_within": "500ms" }] });
    let id = a.submit(&submission).await;
    let task = b.settled(&id).await;
    assert_eq!(task["steps"][0]["attempt"], 2, "{task:#}");
    let by_database = "SELECT abs(extract(epoch FROM clock_timestamp()) * 1000 - created_at) < 120000
        AND abs(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint - created_at) < 2000 FROM tasks";
    assert_eq!(sql(&url, by_database), "t", "{task:#}");
}

#[tokio::test]
async fn two_that_run_at_once_may_not_share_an_id() {
    let named = on(&new_database().await)
        .set("INSTANCE_ID", "twin")
        .set("INSTANCE__LEASE", "1s");
    let first = named.clone().start().await;
    let (code, said) = named.refused().await;
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("twin is in use by another running process"),
        "{said}"
    );
    assert!(!said.contains("ended unexpectedly"), "{said}");
    assert_eq!(first.get("/readyz").await.status, 200);
}
