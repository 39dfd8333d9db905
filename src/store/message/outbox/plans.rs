//! No statement reads through the backlogs of failing destinations: each follows an index that contains only the
//! rows that it needs.

use rusqlite::Connection;

use super::{
    destinations::STATEMENTS,
    queues::{CLAIM, DUE_QUEUES},
};
use crate::domain::{message::Circuit, values::Timestamp};

fn plan(database: &Connection, sql: &str) -> Vec<String> {
    let sql = sql
        .replace("{skip locked}", "")
        .replace("{share unlocked}", "");
    let explain = format!("EXPLAIN QUERY PLAN {sql}");
    let mut explain = database.prepare(&explain).unwrap();
    // Parameters that are not bound are null.
    let lines = explain.raw_query().mapped(|line| line.get("detail"));
    lines.map(Result::unwrap).collect()
}

#[test]
fn every_statement_of_delivery_follows_an_index() {
    let database = Connection::open_in_memory().unwrap();
    for migration in crate::store::migrations::sqlite() {
        database.execute_batch(migration.sql.as_str()).unwrap();
    }
    for sql in STATEMENTS.into_iter().chain([DUE_QUEUES, CLAIM]) {
        let plan = plan(&database, sql);
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
#[test]
fn the_statements_and_the_domain_agree_on_when_a_destination_fails() {
    let database = Connection::open_in_memory().unwrap();
    for failures in [0, 1, 2, u32::MAX] {
        let circuit = Circuit {
            failures,
            ..Circuit::recovered(Timestamp::from_millis(0))
        };
        let failing = "SELECT failures > 0 FROM (SELECT $1 AS failures)";
        let failing = database.query_row(failing, [failures], |row| row.get::<_, bool>(0));
        assert_eq!(failing.unwrap(), circuit.is_failing(), "{failures}");
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
