//! No statement reads through the alerts or the causes: each follows an index that contains only the rows that it needs.

use rusqlite::Connection;

use super::{ADD, BY_QUARTER, CAUSES, COUNT, UNCLOSED, missing, purge};

#[test]
fn every_statement_about_causes_follows_an_index() {
    let database = Connection::open_in_memory().unwrap();
    for migration in crate::store::migrations::sqlite() {
        database.execute_batch(migration.sql.as_str()).unwrap();
    }
    let plan = |sql: &str| {
        let sql = sql.replace("{fingerprints}", "$8, $9");
        let mut explain = database
            .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
            .unwrap();
        // Parameters that are not bound are null.
        let lines = explain
            .raw_query()
            .mapped(|line| line.get::<_, String>("detail"));
        let lines: Vec<_> = lines.map(Result::unwrap).collect();
        for line in &lines {
            // The causes of the recursion, and rows that were found and limited before.
            let is_small = ["causes", "counted", "CONSTANT ROW", "(subquery-"];
            let is_scan = line.starts_with("SCAN ") && !is_small.iter().any(|of| line.contains(of));
            assert!(!is_scan, "{line} in {sql}");
        }
        lines.join("\n")
    };
    for sql in [ADD, COUNT].into_iter().chain(purge::STATEMENTS) {
        plan(sql);
    }
    for sql in missing::STATEMENTS {
        plan(sql);
    }
    let unclosed = plan(UNCLOSED);
    assert_eq!(
        unclosed
            .matches("COVERING INDEX alerts_unclosed_of_failure")
            .count(),
        2,
        "{unclosed}"
    );
    let causes = plan(CAUSES);
    let of_failure = "INDEX alerts_unclosed_of_failure (fingerprint=?)";
    assert_eq!(causes.matches(of_failure).count(), 3, "{causes}");
    assert!(
        causes.contains("SEARCH causes USING PRIMARY KEY"),
        "{causes}"
    );
    let quarters = plan(BY_QUARTER);
    assert!(
        quarters.contains("SEARCH failure_quarters USING PRIMARY KEY"),
        "{quarters}"
    );
}
