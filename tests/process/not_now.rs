//! A PostgreSQL that is reachable but cannot be written: another session holds a lock, or it is read-only. Callers get
//! a problem that says so, the log says it now and then, and everything continues once it is over.

use std::time::Duration;

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, raw_sql};

use crate::harness::{Gate, PATIENCE, Postgres, Provost, Remote, new_database, pipeline, sql};

/// Submits until a submission is refused, or accepted.
async fn until_submission(provost: &Provost, url: &str, status: u16) -> serde_json::Value {
    let submitted = async {
        loop {
            let answer = provost.post("/v1/tasks", &pipeline(url, &["one"])).await;
            if answer.status == status {
                return answer.expect(status);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let submitted = tokio::time::timeout(PATIENCE, submitted).await;
    submitted.unwrap_or_else(|_| panic!("no submission got {status}:\n{}", provost.log()))
}

/// The number of requests at once. The last of them would get its response after [`PATIENCE`] if each waited for the
/// database only when the one before it has been refused, which takes at least 700 ms.
const AT_ONCE: usize = 120;

fn pauses() -> Vec<(Method, String, Value)> {
    let pause = || (Method::POST, "/v1/agents/known/pause".to_owned(), json!({}));
    (0..AT_ONCE).map(|_| pause()).collect()
}

fn submissions(url: &str) -> Vec<(Method, String, Value)> {
    let mut body = pipeline(url, &["one"]);
    body["labels"] = json!({ "turned": "away" });
    let submission = || (Method::POST, "/v1/tasks".to_owned(), body.clone());
    (0..10).map(|_| submission()).collect()
}

/// Sends all requests at once. Each is refused, and none waits for those before it.
async fn all_are_turned_away(provost: &Provost, requests: Vec<(Method, String, Value)>) {
    let sent = requests.iter().map(async |(method, path, body)| {
        let answer = provost.call(method.clone(), path).json(body).await;
        assert!(answer.header("retry-after").is_some(), "{path}: {answer:?}");
        answer.expect_problem(503, "store-unavailable");
    });
    let all = tokio::time::timeout(PATIENCE, join_all(sent)).await;
    assert!(
        all.is_ok(),
        "the requests waited in series: {}",
        provost.log()
    );
}

/// Checks that no refused request was carried out later: a request that is sent after them is carried out after them.
async fn none_was_carried_out(provost: &Provost, url: &str) {
    provost.register("after", url, 1).await;
    let agents = provost.get("/v1/agents?limit=500").await.expect(200);
    let names: Vec<_> = agents["items"].as_array().unwrap().iter().collect();
    let names: Vec<_> = names.iter().map(|agent| &agent["name"]).collect();
    assert_eq!(names, ["after", "known"]);
    let known = provost.get("/v1/agents/known").await.expect(200);
    assert_eq!(known["pause"], Value::Null, "{known:#}");
    let schedules = provost.get("/v1/schedules").await.expect(200);
    assert_eq!(schedules["items"], json!([]));
    let tasks = provost.get("/v1/tasks?label=turned:away").await.expect(200);
    assert_eq!(tasks["items"], json!([]));
}

/// Checks that the log says that nothing can be saved, that it does not say so often, and that it reports no lost
/// commit.
fn check_log(provost: &Provost) {
    let log = provost.log();
    assert!(!log.contains("the response to a commit was lost"), "{log}");
    let complaints = log
        .lines()
        .filter(|line| line.contains("WARN") || line.contains("ERROR"));
    assert!(complaints.count() < 30, "{log}");
}

#[tokio::test]
async fn while_somebody_locks_a_table_callers_hear_that_it_is_not_possible_now() {
    let url = new_database().await;
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("done"))]).await;
    let provost = Provost::setup().database_url(&url).start().await;
    let running = provost.submit(&pipeline(&remote.url(), &["one"])).await;
    remote.requests(1).await;
    let mut dba = PgConnection::connect(&url).await.unwrap();
    for table in ["tasks", "steps"] {
        let lock = format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE");
        dba.execute(raw_sql(AssertSqlSafe(lock))).await.unwrap();
        gate.open();
        let read = provost.get(&format!("/v1/tasks/{running}")).await;
        let problem = read.expect_problem(503, "store-unavailable");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("holds a lock on a table"), "{detail}");
        // The steps of a new task have no rows yet.
        for _ in 0..if table == "tasks" { 5 } else { 0 } {
            let submission = pipeline(&remote.url(), &["one", "two"]);
            let answer = provost.post("/v1/tasks", &submission).await;
            assert!(answer.header("retry-after").is_some(), "{answer:?}");
            let problem = answer.expect_problem(503, "store-unavailable");
            let detail = problem["detail"].as_str().unwrap();
            assert!(detail.contains("lock"), "{detail}");
        }
        dba.execute("ROLLBACK").await.unwrap();
        until_submission(&provost, &remote.url(), 202).await;
    }
    // A reply of its service during this time is not lost.
    assert_eq!(provost.settled(&running).await["state"], "processed");
    check_log(&provost);
}

#[tokio::test]
async fn a_server_that_is_set_read_only_and_back_loses_nothing_and_says_so_once() {
    let database = Postgres::start().await;
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("done"))]).await;
    let setup = Provost::setup().database_url(&database.url());
    let provost = setup.start().await;
    let running = provost.submit(&pipeline(&remote.url(), &["one"])).await;
    remote.requests(1).await;
    database
        .sql("ALTER SYSTEM SET default_transaction_read_only = on")
        .await;
    database.sql("SELECT pg_reload_conf()").await;
    gate.open();
    let problem = until_submission(&provost, &remote.url(), 503).await;
    assert_eq!(problem["type"], "/problems/store-unavailable");
    provost.says("default_transaction_read_only").await;
    let read = provost.get(&format!("/v1/tasks/{running}")).await;
    assert_eq!(read.expect(200)["state"], "processing");
    database
        .sql("ALTER SYSTEM RESET default_transaction_read_only")
        .await;
    database.sql("SELECT pg_reload_conf()").await;
    until_submission(&provost, &remote.url(), 202).await;
    assert_eq!(provost.settled(&running).await["state"], "processed");
    check_log(&provost);
}

#[tokio::test]
async fn while_the_database_is_read_only_no_request_waits_for_those_before_it() {
    let database = Postgres::start().await;
    let remote = Remote::quick().await;
    let provost = Provost::setup().database_url(&database.url()).start().await;
    provost.register("known", &remote.url(), 1).await;
    database
        .sql("ALTER SYSTEM SET default_transaction_read_only = on")
        .await;
    database.sql("SELECT pg_reload_conf()").await;
    until_submission(&provost, &remote.url(), 503).await;
    provost.says("default_transaction_read_only").await;
    let requests = [pauses(), submissions(&remote.url())];
    all_are_turned_away(&provost, requests.concat()).await;
    database
        .sql("ALTER SYSTEM RESET default_transaction_read_only")
        .await;
    database.sql("SELECT pg_reload_conf()").await;
    until_submission(&provost, &remote.url(), 202).await;
    none_was_carried_out(&provost, &remote.url()).await;
    check_log(&provost);
}

#[tokio::test]
async fn while_the_server_is_stopped_no_request_waits_for_those_before_it() {
    let database = Postgres::start().await;
    let remote = Remote::quick().await;
    let provost = Provost::setup().database_url(&database.url()).start().await;
    provost.register("known", &remote.url(), 1).await;
    database.crash().await;
    let requests = [pauses(), submissions(&remote.url())];
    all_are_turned_away(&provost, requests.concat()).await;
    database.start_again().await;
    until_submission(&provost, &remote.url(), 202).await;
    none_was_carried_out(&provost, &remote.url()).await;
}

#[tokio::test]
async fn while_a_table_is_locked_no_command_waits_for_those_before_it() {
    let url = new_database().await;
    let remote = Remote::quick().await;
    let provost = Provost::setup().database_url(&url).start().await;
    provost.register("known", &remote.url(), 1).await;
    let spec = json!({ "endpoints": [{ "url": remote.url() }] });
    let schedule = json!({ "every": "1h", "workflow": "report" });
    let workflow = pipeline(&remote.url(), &["one"]);
    let registered = provost.put("/v1/workflows/report", &workflow).await;
    registered.expect(201);
    let puts = |kind: &str, body: &Value| {
        let put = |number| {
            let path = format!("/v1/{kind}/another-{number}");
            (Method::PUT, path, body.clone())
        };
        (0..AT_ONCE).map(put).collect::<Vec<_>>()
    };
    let mut dba = PgConnection::connect(&url).await.unwrap();
    for (table, requests) in [
        ("agents", pauses()),
        ("agents", puts("agents", &spec)),
        ("schedules", puts("schedules", &schedule)),
        ("tasks", submissions(&remote.url())),
    ] {
        let lock = format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE");
        dba.execute(raw_sql(AssertSqlSafe(lock))).await.unwrap();
        all_are_turned_away(&provost, requests).await;
        dba.execute("ROLLBACK").await.unwrap();
    }
    until_submission(&provost, &remote.url(), 202).await;
    none_was_carried_out(&provost, &remote.url()).await;
}

#[tokio::test]
async fn a_user_who_may_only_read_is_refused_at_the_start_with_the_remedy() {
    let url = new_database().await;
    drop(Provost::setup().database_url(&url).start().await);
    let user = format!("reader_{:08x}", rand::random::<u32>());
    let grant = format!(
        "CREATE ROLE {user} LOGIN; GRANT USAGE ON SCHEMA public TO {user}; \
         GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}"
    );
    let owner = url.clone();
    let granted = tokio::task::spawn_blocking(move || sql(&owner, &grant));
    granted.await.unwrap();
    let url = url.replace("//provost@", &format!("//{user}@"));
    let (code, said) = Provost::setup().database_url(&url).refused().await;
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("GRANT SELECT, INSERT, UPDATE, DELETE"),
        "{said}"
    );
}
