//! See [`crate::store::multiply`].

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::connection::{open, run_script};
use crate::store::{
    StoreError,
    multiply::{MultiplyPlan, TABLES, TEMPLATES},
};

fn make_id(millis: &str, table: u8, number: &str) -> String {
    format!("unhex(printf('%012x7000800{table}%012x', {millis}, {number}))")
}

/// Runs the plan. The database must not be in use. A crash may damage it.
pub fn multiply(path: &Path, plan: MultiplyPlan) -> Result<(), StoreError> {
    let mut connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    run_script(
        &connection,
        "PRAGMA synchronous = off; PRAGMA cache_size = -500000; PRAGMA temp_store = memory",
    )?;
    connection.execute(TEMPLATES, [])?;
    let templates: i64 =
        connection.query_row("SELECT count(*) FROM templates", [], |row| row.get(0))?;
    let mut inserts = Vec::new();
    for (table, task_id, numbered) in TABLES {
        let columns = columns(&connection, table, numbered)?;
        inserts.push(plan.insert((table, task_id), &columns, make_id));
    }
    for (from, until) in plan.chunks() {
        let transaction = connection.transaction()?;
        for insert in &inserts {
            let mut insert = transaction.prepare_cached(insert)?;
            insert.execute((from, until, templates))?;
        }
        transaction.commit()?;
    }
    Ok(run_script(&connection, "PRAGMA wal_checkpoint(TRUNCATE)")?)
}

fn columns(
    connection: &Connection,
    table: &str,
    numbered: &str,
) -> Result<Vec<String>, StoreError> {
    let mut find = connection.prepare("SELECT name FROM pragma_table_info($1) WHERE name <> $2")?;
    let found = find.query_map((table, numbered), |row| row.get(0))?;
    Ok(found.collect::<Result<_, _>>()?)
}
