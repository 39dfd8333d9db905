//! What can go wrong when a database is opened.

use thiserror::Error;

#[derive(Debug, Error)]
pub enum OpenError {
    #[error(
        "{database} is in use by another process ({holder}): stop that one, or give this one a database of its own with --database-url"
    )]
    InUse { database: String, holder: String },
    #[error(
        "{database} has {names} names (hard links): SQLite finds what was written last by the name, so the others would lead to an old state; remove all but one (`find -samefile {database}` lists them)"
    )]
    SeveralNames { database: String, names: u64 },
    #[error(
        "{database} is mounted as a single file: SQLite keeps what was written last in files beside it, which would stay behind; mount the folder that holds them all"
    )]
    Mounted { database: String },
    /// There may be room again in a moment.
    #[error("{database} cannot be opened because its disk is full ({reason}): free some space")]
    Full { database: String, reason: String },
    #[error(
        "{database} was written by a newer version of provost (its schema has migration {found}, this version knows up to {known}): start the newer version again, or restore a backup made before the upgrade"
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
    /// It may be there again in a moment.
    #[error(
        "{database} cannot be reached: {reason}; see that it runs, takes writes, and is at this address"
    )]
    Unreachable { database: String, reason: String },
    #[error("{database} cannot be opened: {reason}")]
    Unusable { database: String, reason: String },
}
