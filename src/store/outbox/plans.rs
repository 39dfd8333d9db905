//! No statement reads through the backlogs of failing destinations: each follows an index that contains only the
//! rows that it needs.

use sqlx::{AssertSqlSafe, Connection, Row, SqliteConnection};

use super::{CLAIM, DUE_QUEUES, destinations::STATEMENTS};

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
    sqlx::migrate!("migrations/sqlite")
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
