//! Looks at a PostgreSQL database for `provost doctor`. Changes nothing.

use sqlx::{Executor, PgConnection, Row, raw_sql};

use super::{OpenError, connect, fault, prepared::Prepared, schema, servers};
use crate::{
    clock::{self, Instant},
    store::examine::DatabaseFacts,
};

const SERVER: &str = "
SELECT current_setting('server_version') AS version, pg_database_size(current_database()) AS bytes,
       floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now";

/// The transactions of this database that have been open for more than a minute: they delay readers of the ledger, and what
/// vacuum may remove.
const LONG_TRANSACTIONS: &str = "
SELECT format('process %s (%s) for %s: %s', pid, coalesce(nullif(application_name, ''), usename),
              date_trunc('second', clock_timestamp() - xact_start), left(regexp_replace(query, '\\s+', ' ', 'g'), 80)) AS what
FROM pg_stat_activity
WHERE datname = current_database() AND xact_start < clock_timestamp() - interval '1 minute'
ORDER BY xact_start LIMIT 5";

const RECORDS_STATEMENTS: &str = "SELECT to_regclass('pg_stat_statements') IS NOT NULL AS is_there";

/// The statements of this database that take more than 50 ms on average.
const SLOW_STATEMENTS: &str = "
SELECT format('%s ms on average, %s times: %s', round(mean_exec_time::numeric, 1), calls,
              left(regexp_replace(query, '\\s+', ' ', 'g'), 80)) AS what
FROM pg_stat_statements
JOIN pg_database ON pg_database.oid = pg_stat_statements.dbid AND pg_database.datname = current_database()
WHERE mean_exec_time > 50 AND calls > 10
ORDER BY total_exec_time DESC LIMIT 5";

/// Returns the facts.
pub async fn examine(url: &str) -> Result<DatabaseFacts, OpenError> {
    let began = clock::instant();
    let servers = servers(url, Prepared::Named)?;
    let name = servers.describe();
    let mut connection = connect(&servers).await?;
    let applied = schema::applied(&mut connection, &name).await?;
    let facts = look(&mut connection, applied, began).await;
    facts.map_err(|error| fault(&name, error))
}

async fn look(
    connection: &mut PgConnection,
    schema: i64,
    began: Instant,
) -> Result<DatabaseFacts, sqlx::Error> {
    let server = connection.fetch_one(raw_sql(SERVER)).await?;
    let took = began.elapsed();
    let here = clock::wall().as_millis();
    let there: i64 = server.try_get("now")?;
    let bytes: i64 = server.try_get("bytes")?;
    let long_transactions = texts(connection, LONG_TRANSACTIONS).await?;
    let records = connection.fetch_one(raw_sql(RECORDS_STATEMENTS)).await?;
    let slow_statements = match records.try_get("is_there")? {
        // A user without the right to see them does not see why a statement is slow; that is no fault.
        true => texts(connection, SLOW_STATEMENTS).await.ok(),
        false => None,
    };
    Ok(DatabaseFacts {
        server: format!("PostgreSQL {}", server.try_get::<String, _>("version")?),
        schema,
        known_schema: schema::known(),
        bytes: bytes.unsigned_abs(),
        clock_ahead: Some(there - here),
        long_transactions,
        slow_statements,
        took,
        damage: None,
    })
}

async fn texts(
    connection: &mut PgConnection,
    statement: &'static str,
) -> Result<Vec<String>, sqlx::Error> {
    let rows = connection.fetch_all(raw_sql(statement)).await?;
    rows.iter().map(|row| row.try_get("what")).collect()
}
