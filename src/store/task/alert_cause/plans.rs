//! No statement reads through the alerts: each follows an index that contains only the rows that it needs.

use rusqlite::Connection;

use super::{ANY_PART, CLOSE, COUNT_ALL, FIND, LOOK, upkeep};
use crate::store::{AlertId, AlertQuery, AlertState, sqlite::JSON_ITEMS, task::alert};

#[test]
fn every_statement_about_alerts_of_causes_follows_an_index() {
    let database = Connection::open_in_memory().unwrap();
    for migration in crate::store::migrations::sqlite() {
        database.execute_batch(migration.sql.as_str()).unwrap();
    }
    let plan = |sql: &str, scans: &str| {
        let explain = format!("EXPLAIN QUERY PLAN {sql}");
        let mut explain = database.prepare(&explain).unwrap();
        // Parameters that are not bound are null.
        let lines = explain
            .raw_query()
            .mapped(|line| line.get::<_, String>("detail"));
        let lines: Vec<_> = lines.map(Result::unwrap).collect();
        for line in &lines {
            let is_scan = line.starts_with("SCAN al") || line.starts_with("SCAN part");
            let is_meant = !scans.is_empty() && line.ends_with(scans);
            assert!(!is_scan || is_meant, "{line} in {sql}");
            // Only a set that is bounded by a limit is sorted.
            let sorts = line.contains("TEMP B-TREE") && !sql.contains("DISTINCT");
            assert!(!sorts, "{line} in {sql}");
        }
        lines.join("\n")
    };
    for sql in [FIND, ANY_PART, COUNT_ALL, CLOSE, upkeep::PURGE] {
        plan(sql, "");
    }
    let look = plan(&LOOK.replace("{items}", JSON_ITEMS), "");
    let of_cause = "SEARCH alerts USING INDEX alerts_unclosed_of_cause";
    assert_eq!(look.matches(of_cause).count(), 2, "{look}");
    let unclosed = "USING COVERING INDEX alerts_unclosed_parts (part_of=?)";
    assert!(plan(upkeep::COUNT, "").contains(unclosed));
    assert!(plan(upkeep::UNCLOSED, "").contains(unclosed));
    assert!(plan(upkeep::CLOSED, "").contains("INDEX alerts_closed_of_cause"));
    let listed = |query: AlertQuery, scans: &str| plan(&alert::page(&query).sql, scans);
    let state = Some(AlertState::Open);
    let (all, part_of) = (
        AlertQuery::default(),
        Some(AlertId(uuid::Uuid::from_u128(1))),
    );
    let by_id = "USING INDEX alerts_listed";
    assert!(listed(all.clone(), by_id).contains(unclosed));
    let by_state = "SEARCH alert USING INDEX alerts_listed_by_state (state=?)";
    let query = AlertQuery {
        state,
        ..all.clone()
    };
    assert!(listed(query, "").contains(by_state));
    for state in [None, state] {
        let query = AlertQuery {
            part_of,
            state,
            ..all.clone()
        };
        assert!(listed(query, "").contains("(part_of=?)"));
    }
}
