//! The errors of opening a database.

use std::time::Duration;

use thiserror::Error;
use tracing::info;

use crate::{clock::Instant, domain::values::Backoff};

/// The waits between attempts to reach a database. A session that was ended is replaced within milliseconds.
pub const RECONNECT: Backoff = Backoff::doubling(Duration::from_millis(20), Duration::from_secs(2));

/// Logs that a start has migrated the database. `from` is 0 if there was no schema.
pub fn note_migration(database: &str, from: i64, to: i64, began: Instant) {
    if from != to {
        info!(
            database,
            from,
            to,
            took_seconds = began.elapsed().as_secs_f64(),
            "the schema of the database was migrated"
        );
    }
}

#[derive(Debug, Error)]
pub enum OpenError {
    #[error(
        "{database} is in use by another process ({holder}): stop that process, or use another database with --database-url"
    )]
    InUse { database: String, holder: String },
    #[error(
        "{database} has {names} names (hard links): SQLite finds its latest data by the name, so the other names would lead to an old state; keep the name that its -wal and -shm are next to, or if there are none the one that the service used, and remove the others (`find / -xdev -samefile {database}` lists them)"
    )]
    SeveralNames { database: String, names: u64 },
    #[error(
        "{database} is mounted as a single file: SQLite keeps its latest data in files next to it, which would be left out; mount the folder that contains them all"
    )]
    Mounted { database: String },
    /// There may be room again in a moment.
    #[error("{database} cannot be opened because its disk is full ({reason}): free some space")]
    Full { database: String, reason: String },
    #[error(
        "{database} was written by a newer version of provost (its schema has migration {found}, this version supports up to {known}): start the newer version again, or restore a backup made before the upgrade"
    )]
    NewerSchema {
        database: String,
        found: i64,
        known: i64,
    },
    #[error(
        "{database} has an older schema (migration {found}, this version needs {known}) and migrations at start are off: run `provost migrate` first, or set postgres.migrate"
    )]
    OlderSchema {
        database: String,
        found: i64,
        known: i64,
    },
    #[error(
        "{database} is in use by a service of another version (its schema has migration {found}, this version has {known}): run the same version of provost as the service, or stop the service"
    )]
    OtherSchema {
        database: String,
        found: i64,
        known: i64,
    },
    /// The database may be reachable again in a moment.
    #[error(
        "{database} cannot be reached: {reason}; check that it runs, accepts writes, and has this address"
    )]
    Unreachable { database: String, reason: String },
    /// The sessions that use the tables may end in a moment.
    #[error(
        "{database} cannot be migrated while other sessions use its tables; nothing was changed. It only takes a moment between their transactions: if this goes on, end the one that holds the locks, such as a backup or a manual query (pg_stat_activity shows it)"
    )]
    Busy { database: String },
    #[error(
        "{database} is damaged and cannot be opened ({reason}): check the disk, keep a copy of all files that begin with its name, then restore a backup, or rescue what can be read with `sqlite3 {database} .recover`: see docs/deploy.md, \"A part that cannot be read\""
    )]
    Damaged { database: String, reason: String },
    /// The remains of a database show that one existed.
    #[error(
        "{database} is {lost}, but {leftovers} of it exists: provost creates no new database next to the remains of another. Restore a backup in its place: see docs/deploy.md, \"Restore, step by step\". To start with an empty database, move all files that begin with its name elsewhere"
    )]
    Lost {
        database: String,
        /// `missing` or `empty`.
        lost: &'static str,
        leftovers: String,
    },
    /// The database was deleted while the service used it, and the service has saved a copy.
    #[error(
        "{database} is missing, but {rescued} exists: a copy of all accepted tasks, which provost wrote when the database was deleted while it ran. Rename it to continue with it (mv {rescued} {database}), or move it elsewhere"
    )]
    Rescued { database: String, rescued: String },
    #[error("{database} cannot be opened: {reason}")]
    Unusable { database: String, reason: String },
}
