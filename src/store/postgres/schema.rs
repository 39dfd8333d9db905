//! Migrations, under an advisory lock: instances that start together bring the schema up to date once.

use sqlx::{
    PgConnection, Row,
    migrate::{MigrateError, Migrator},
};

use super::{OpenError, connection, describe, options};

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/postgres");

/// `server_version_num` of PostgreSQL 15.
const OLDEST_SERVER: u32 = 150_000;

/// Brings the schema up to date; answers its migration before and after.
pub async fn migrate(url: &str) -> Result<(i64, i64), OpenError> {
    let options = options(url, true)?;
    let name = describe(&options);
    let mut connection =
        connection::connect(&options)
            .await
            .map_err(|error| OpenError::Unusable {
                database: name.clone(),
                reason: error.to_string(),
            })?;
    check_server(&mut connection, &name).await?;
    let before = applied(&mut connection, &name).await?;
    run(&mut connection, &name).await?;
    Ok((before, known()))
}

pub(super) async fn run(connection: &mut PgConnection, name: &str) -> Result<(), OpenError> {
    // That a table exists already is no news to an operator.
    sqlx::query("SET client_min_messages = warning")
        .execute(&mut *connection)
        .await
        .map_err(|error| unusable(name, error))?;
    MIGRATIONS
        .run(&mut *connection)
        .await
        .map_err(|error| match error {
            MigrateError::VersionMissing(found) => newer(name, found),
            error => unusable(name, error),
        })
}

/// Refuses a schema that is not the one that this version knows.
pub(super) async fn check(connection: &mut PgConnection, name: &str) -> Result<(), OpenError> {
    let (found, known) = (applied(connection, name).await?, known());
    match found.cmp(&known) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(newer(name, found)),
        std::cmp::Ordering::Less => Err(OpenError::OlderSchema {
            database: name.to_owned(),
            found,
            known,
        }),
    }
}

/// Refuses a server that is too old, or whose text is not UTF-8.
pub(super) async fn check_server(
    connection: &mut PgConnection,
    name: &str,
) -> Result<(), OpenError> {
    if connection
        .server_version_num()
        .is_some_and(|version| version < OLDEST_SERVER)
    {
        return Err(unusable(name, "PostgreSQL 15 or newer is needed"));
    }
    let encoding: String = sqlx::query_scalar("SELECT current_setting('server_encoding')")
        .fetch_one(connection)
        .await
        .map_err(|error| unusable(name, error))?;
    if encoding != "UTF8" {
        let reason = format!("its encoding is {encoding}: make it with ENCODING 'UTF8'");
        return Err(unusable(name, reason));
    }
    Ok(())
}

/// The last migration that was applied; 0 before the first.
async fn applied(connection: &mut PgConnection, name: &str) -> Result<i64, OpenError> {
    let found = async {
        let row = sqlx::query("SELECT to_regclass('_sqlx_migrations') IS NOT NULL AS there")
            .fetch_one(&mut *connection)
            .await?;
        if !row.try_get::<bool, _>("there")? {
            return Ok(0);
        }
        let row = sqlx::query(
            "SELECT coalesce(max(version), 0) AS version FROM _sqlx_migrations WHERE success",
        )
        .fetch_one(&mut *connection)
        .await?;
        row.try_get("version")
    };
    found
        .await
        .map_err(|error: sqlx::Error| unusable(name, error))
}

fn known() -> i64 {
    let versions = MIGRATIONS.iter().map(|migration| migration.version);
    versions.max().unwrap_or(0)
}

fn newer(name: &str, found: i64) -> OpenError {
    OpenError::NewerSchema {
        database: name.to_owned(),
        found,
        known: known(),
    }
}

fn unusable(name: &str, reason: impl ToString) -> OpenError {
    OpenError::Unusable {
        database: name.to_owned(),
        reason: reason.to_string(),
    }
}
