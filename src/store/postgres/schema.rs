//! Migrations, under an advisory lock: instances that start together bring the schema up to date once.

use std::{sync::LazyLock, time::Duration};

use sqlx::{
    Connection, Executor, PgConnection, Row,
    migrate::{MigrateError, Migrator},
};
use tracing::warn;

use super::{OpenError, connect, fault, prepared::Prepared, servers};
use crate::{chance, clock::sleep, store::migrations};

/// The crate's own lock is off, because it belongs to a connection, and a pooler gives out connections for one
/// transaction.
static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    let mut migrations = migrations::postgres();
    migrations.set_locking(false);
    migrations
});

/// `server_version_num` of PostgreSQL 15.
const OLDEST_SERVER: u32 = 150_000;

/// Takes the lock, whose number is arbitrary and must only stay the same. Notices, such as that a table exists already,
/// are not shown.
///
/// A migration locks one table after the other while instances use them in their own order. It gives up before the
/// server looks for deadlocks, which is after a second by default: otherwise the server might cancel an instance's
/// transaction. Nor do the instances wait longer than that while the migration waits for the end of a backup.
const LOCK: &str = "SELECT pg_advisory_xact_lock(7306920155338694); SET LOCAL client_min_messages = warning; SET LOCAL lock_timeout = '500ms'";

/// The most attempts of `provost migrate` while other sessions use the tables.
const TRIES: u32 = 30;

/// Removes the named statements that the crate prepares: through a pooler, none may exist before nor remain afterwards.
const FORGET: &str = "DEALLOCATE ALL";

/// Brings the schema up to date. Returns its migration before and after.
pub async fn migrate(url: &str) -> Result<(i64, i64), OpenError> {
    let mut tries = 1;
    loop {
        match migrate_once(url).await {
            Err(error @ OpenError::Busy { .. }) if tries < TRIES => {
                warn!("{error}; trying again, {tries} of {TRIES}");
                sleep(Duration::from_secs(1).mul_f64(chance::random())).await;
                tries += 1;
            }
            done => return done,
        }
    }
}

async fn migrate_once(url: &str) -> Result<(i64, i64), OpenError> {
    let servers = servers(url, Prepared::Named)?;
    let name = servers.describe();
    let mut connection = connect(&servers).await?;
    check_server(&mut connection, &name).await?;
    let before = applied(&mut connection, &name).await?;
    run(&mut connection, &name).await?;
    Ok((before, known()))
}

/// Applies all missing migrations, or none, in one transaction that holds the lock. After an error the connection
/// cannot be used.
pub(super) async fn run(connection: &mut PgConnection, name: &str) -> Result<(), OpenError> {
    let failed = |error| fault(name, error);
    let mut transaction = connection.begin().await.map_err(failed)?;
    transaction.execute(LOCK).await.map_err(failed)?;
    transaction.execute(FORGET).await.map_err(failed)?;
    MIGRATIONS
        .run(&mut *transaction)
        .await
        .map_err(|error| match error {
            MigrateError::VersionMissing(found) => newer(name, found),
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
                match error.as_database_error().and_then(|error| error.code()) {
                    // A deadlock, or a lock that was not acquired within `lock_timeout`.
                    Some(code) if matches!(&*code, "40P01" | "55P03") => OpenError::Busy {
                        database: name.to_owned(),
                    },
                    _ => failed(error),
                }
            }
            error => unusable(name, error),
        })?;
    transaction.execute(FORGET).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)
}

/// Refuses a schema that this version does not know.
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
    let asked = connection.fetch_one("SELECT current_setting('server_encoding') AS encoding");
    let encoding: String = asked
        .await
        .and_then(|row| row.try_get("encoding"))
        .map_err(|error| fault(name, error))?;
    if encoding != "UTF8" {
        let reason = format!("its encoding is {encoding}: create it with ENCODING 'UTF8'");
        return Err(unusable(name, reason));
    }
    Ok(())
}

/// Refuses a pooler that shares its connections between statements, because no batch can be saved through it.
pub(super) async fn check_transactions(
    connection: &mut PgConnection,
    name: &str,
) -> Result<(), OpenError> {
    let asked = async {
        for statement in ["BEGIN", "SELECT 1", "COMMIT"] {
            connection.execute(statement).await?;
        }
        Ok(())
    };
    asked.await.map_err(|error: sqlx::Error| {
        let said = error.as_database_error().map(|error| error.message());
        match said.is_some_and(|said| said.contains("statement pooling")) {
            true => unusable(name, STATEMENT_POOLING),
            false => fault(name, error),
        }
    })
}

const STATEMENT_POOLING: &str = "a pooler shares its connections between statements (pool_mode = statement), so no transaction is possible: set pool_mode = transaction for this database in the pooler, and postgres.listen = false here";

/// Tests these tables, because a user that lacks one right on them lacks it on the others as well.
const UNGRANTED: &str = "
SELECT coalesce(string_agg(DISTINCT wanted.name || ' on ' || found.name, ', '), '') AS missing
FROM unnest(ARRAY['tasks', 'steps', 'history', 'messages']) AS found (name)
CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS wanted (name)
WHERE NOT has_table_privilege(to_regclass(found.name), wanted.name)";

/// Refuses a user that may not write.
pub(super) async fn check_grants(
    connection: &mut PgConnection,
    name: &str,
) -> Result<(), OpenError> {
    let row = connection.fetch_one(UNGRANTED).await;
    let missing: String = row
        .and_then(|row| row.try_get("missing"))
        .map_err(|error| fault(name, error))?;
    if missing.is_empty() {
        return Ok(());
    }
    let reason = format!(
        "the user of the URL lacks rights ({missing}): as the owner of the tables, run GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO this user; see docs/deploy.md, \"Migrations and upgrades\""
    );
    Err(unusable(name, reason))
}

/// Begins another epoch of the ledger if it has a row of a transaction that this server has not begun yet: the database was
/// restored here from a dump of another server. Such a row can be found in no other case, because a row is visible only after
/// its transaction, whose number is smaller than that of the next.
const CONTINUE_LEDGER: &str = r#"
WITH restored AS (
    UPDATE ledger_state SET epoch = epoch + 1
    WHERE EXISTS (SELECT 1 FROM ledger
                  WHERE ledger.epoch = ledger_state.epoch AND ledger.xid >= pg_snapshot_xmax(pg_current_snapshot()))
    RETURNING epoch)
INSERT INTO ledger (epoch, at, records, audited)
SELECT epoch, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint,
       json_build_array(json_build_object(
           'type', 'ledger.restored', 'subject', 'ledger', 'name', epoch::text, 'by', 'provost',
           'reason', 'the database was restored on another server: what happened after its dump is not in it'))::text,
       1
FROM restored"#;

/// Has the order of the ledger go on after a restore.
pub(super) async fn continue_ledger(
    connection: &mut PgConnection,
    name: &str,
) -> Result<(), OpenError> {
    let continued = connection.execute(CONTINUE_LEDGER).await;
    let restored = continued.map_err(|error| fault(name, error))?;
    if restored.rows_affected() > 0 {
        warn!("the database was restored on another server; the ledger goes on in another epoch");
    }
    Ok(())
}

/// Returns the last migration that was applied; 0 before the first.
pub(super) async fn applied(connection: &mut PgConnection, name: &str) -> Result<i64, OpenError> {
    let found = async {
        let row = connection
            .fetch_one("SELECT to_regclass('_sqlx_migrations') IS NOT NULL AS there")
            .await?;
        if !row.try_get::<bool, _>("there")? {
            return Ok(0);
        }
        let row = connection
            .fetch_one(
                "SELECT coalesce(max(version), 0) AS version FROM _sqlx_migrations WHERE success",
            )
            .await?;
        row.try_get("version")
    };
    found.await.map_err(|error| fault(name, error))
}

pub(super) fn known() -> i64 {
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
