//! A PostgreSQL that is there and lets nobody write: somebody holds a lock, or it is set read-only. Callers hear so, the log
//! says it once in a while, and all goes on as before once it is over.

use std::time::Duration;

use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, raw_sql};

use crate::harness::{Gate, PATIENCE, Postgres, Provost, Remote, new_database, pipeline, sql};

/// Until a submission is refused, or accepted.
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

/// The log says that nothing can be saved, and neither often nor that a commit was lost.
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
        // Steps of a new task have no rows yet.
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
    // What its service has replied meanwhile is not lost.
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
