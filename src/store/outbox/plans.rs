//! No statement reads through the backlogs of failing destinations: each follows an index that contains only the
//! rows that it needs.

use sqlx::{AssertSqlSafe, Connection, Row, SqliteConnection};

use super::{
    destinations::STATEMENTS,
    queues::{CLAIM, DUE_QUEUES},
};
use crate::domain::{Circuit, Timestamp};

async fn plan(database: &mut SqliteConnection, sql: &str) -> Vec<String> {
    let sql = sql
        .replace("{skip locked}", "")
        .replace("{share unlocked}", "");
    let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
    let lines = sqlx::query(explain).fetch_all(database).await.unwrap();
    lines.iter().map(|line| line.get("detail")).collect()
}

#[tokio::test]
async fn every_statement_of_delivery_follows_an_index() {
    let mut database = SqliteConnection::connect(":memory:").await.unwrap();
    crate::store::migrations::sqlite()
        .run(&mut database)
        .await
        .unwrap();
    for sql in STATEMENTS.into_iter().chain([DUE_QUEUES, CLAIM]) {
        let plan = plan(&mut database, sql).await;
        assert!(!plan.is_empty() || sql.contains("VALUES"), "{sql}");
        for line in plan {
            let scans = ["SCAN queues", "SCAN messages", "SCAN destinations"];
            let scans = scans.iter().any(|scan| line.starts_with(scan));
            let in_order = line.contains("USING INDEX") || line.contains("USING COVERING INDEX");
            assert!(!scans || in_order, "{line} in {sql}");
            assert!(!line.contains("TEMP B-TREE"), "{line} in {sql}");
        }
    }
}

/// The indexes of destinations rely on the condition in this form, so the statements cannot ask the domain.
#[tokio::test]
async fn the_statements_and_the_domain_agree_on_when_a_destination_fails() {
    let mut database = SqliteConnection::connect(":memory:").await.unwrap();
    for failures in [0, 1, 2, u32::MAX] {
        let circuit = Circuit {
            failures,
            ..Circuit::recovered(Timestamp::from_millis(0))
        };
        let failing = sqlx::query_scalar("SELECT failures > 0 FROM (SELECT $1 AS failures)");
        let failing: bool = failing
            .bind(failures)
            .fetch_one(&mut database)
            .await
            .unwrap();
        assert_eq!(failing, circuit.is_failing(), "{failures}");
    }
    let conditions = STATEMENTS
        .iter()
        .flat_map(|sql| sql.match_indices("failures ").map(|(at, _)| &sql[at..]));
    for condition in conditions {
        let is_known = ["failures > 0", "failures = 0", "failures = $2"];
        assert!(
            is_known.iter().any(|known| condition.starts_with(known)),
            "{condition}"
        );
    }
}
