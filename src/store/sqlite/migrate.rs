//! Brings the schema of the database up to date.
//!
//! Earlier versions of provost left this to sqlx, and an operator may go back to one of them. So this code keeps the
//! table that sqlx keeps, with the same rows, and refuses the same states.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, params};
use sqlx::migrate::Migration;
use thiserror::Error;

use super::connection::run_script;
use crate::clock;

/// Has a row for each migration that was applied: `checksum` is the SHA-384 of its script, `execution_time` is in
/// nanoseconds.
const TABLE: &str = "
CREATE TABLE IF NOT EXISTS _sqlx_migrations (
    version BIGINT PRIMARY KEY,
    description TEXT NOT NULL,
    installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    success BOOLEAN NOT NULL,
    checksum BLOB NOT NULL,
    execution_time BIGINT NOT NULL
)";

#[derive(Debug, Error)]
pub enum MigrationError {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error("migration {0} was applied by a newer version of provost")]
    Unknown(i64),
    #[error("migration {0} was previously applied but has been modified")]
    Modified(i64),
    #[error("migration {0} is partially applied; fix and remove row from `_sqlx_migrations` table")]
    Partial(i64),
}

/// Applies the migrations that were not applied yet, in this order, each in a transaction of its own.
pub fn migrate(
    connection: &mut Connection,
    migrations: &[Migration],
) -> Result<(), MigrationError> {
    connection.execute_batch(TABLE)?;
    let partial =
        "SELECT version FROM _sqlx_migrations WHERE success = FALSE ORDER BY version LIMIT 1";
    let partial = connection.query_row(partial, [], |row| row.get(0));
    if let Some(version) = partial.optional()? {
        return Err(MigrationError::Partial(version));
    }
    let applied = checksums(connection)?;
    let is_unknown = |version: &i64| migrations.iter().all(|known| known.version != *version);
    if let Some(version) = applied.keys().copied().filter(is_unknown).min() {
        return Err(MigrationError::Unknown(version));
    }
    for migration in migrations {
        match applied.get(&migration.version) {
            Some(checksum) if *checksum == *migration.checksum => {}
            Some(_) => return Err(MigrationError::Modified(migration.version)),
            None => apply(connection, migration)?,
        }
    }
    Ok(())
}

/// Returns the last migration that was applied; 0 before the first.
pub fn last_applied(connection: &Connection) -> rusqlite::Result<i64> {
    let table = "SELECT 1 FROM sqlite_schema WHERE name = '_sqlx_migrations'";
    let table = connection.query_row(table, [], |_| Ok(())).optional()?;
    if table.is_none() {
        return Ok(0);
    }
    let last = "SELECT coalesce(max(version), 0) FROM _sqlx_migrations WHERE success";
    connection.query_row(last, [], |row| row.get(0))
}

/// Returns the checksums of the migrations that were applied, by version.
fn checksums(connection: &Connection) -> rusqlite::Result<HashMap<i64, Vec<u8>>> {
    let mut applied = connection.prepare("SELECT version, checksum FROM _sqlx_migrations")?;
    let applied = applied.query_map([], |row| row.try_into())?;
    applied.collect()
}

fn apply(connection: &mut Connection, migration: &Migration) -> rusqlite::Result<()> {
    let started = clock::instant();
    let transaction = connection.transaction()?;
    run_script(&transaction, migration.sql.as_str())?;
    let took = i64::try_from(started.elapsed().as_nanos()).unwrap_or(i64::MAX);
    transaction.execute(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES (?1, ?2, TRUE, ?3, ?4)",
        params![
            migration.version,
            migration.description,
            migration.checksum,
            took
        ],
    )?;
    transaction.commit()
}
