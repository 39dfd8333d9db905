//! See [`crate::store::multiply`].

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};

use super::{StoreError, prepared::Prepared, servers};
use crate::store::multiply::{MultiplyPlan, TABLES, TEMPLATES};

const COLUMNS: &str = "SELECT column_name::text AS name FROM information_schema.columns
WHERE table_schema = current_schema() AND table_name = $1 AND column_name <> $2";

fn make_id(millis: &str, table: u8, number: &str) -> String {
    format!(
        "CAST(lpad(to_hex({millis}), 12, '0') || '7000800{table}' || lpad(to_hex({number}), 12, '0') AS uuid)"
    )
}

/// Runs the plan. The database must not be in use.
pub async fn multiply(url: &str, plan: MultiplyPlan) -> Result<(), StoreError> {
    let servers = servers(url, Prepared::Named);
    let servers = servers.map_err(|error| StoreError::Unavailable(error.to_string()))?;
    let connected = servers.connect().await;
    let mut connection = connected.map_err(|none| StoreError::Unavailable(none.to_string()))?;
    connection.execute("SET synchronous_commit = off").await?;
    connection.execute(TEMPLATES).await?;
    let templates = connection.fetch_one("SELECT count(*) FROM templates");
    let templates: i64 = templates.await?.try_get(0)?;
    let mut inserts = Vec::new();
    for (table, task_id, numbered) in TABLES {
        let columns = columns(&mut connection, table, numbered).await?;
        inserts.push(plan.insert((table, task_id), &columns, make_id));
    }
    for (from, until) in plan.chunks() {
        for insert in &inserts {
            // The statement consists of the store's own text and the names of its columns.
            sqlx::query(AssertSqlSafe(insert.clone()))
                .bind(from)
                .bind(until)
                .bind(templates)
                .execute(&mut connection)
                .await?;
        }
    }
    // Autovacuum would do the same later, and the next measurement would wait for it and for the checkpoint. Not every
    // role may run these statements.
    connection.execute("VACUUM (ANALYZE)").await?;
    let _refused = connection.execute("CHECKPOINT").await;
    connection.close().await?;
    Ok(())
}

async fn columns(
    connection: &mut PgConnection,
    table: &str,
    numbered: &str,
) -> Result<Vec<String>, StoreError> {
    let found = sqlx::query(COLUMNS).bind(table).bind(numbered);
    let found = found.fetch_all(connection).await?;
    let names = found.iter().map(|row| row.try_get("name"));
    Ok(names.collect::<Result<_, _>>()?)
}
