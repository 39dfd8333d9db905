//! SQLite: the embedded default. One writer connection, a few readers that never write, one process.

mod backup;
mod leases;
mod read;
mod rows;
mod save;
mod statement;
mod transaction;
#[cfg(test)]
mod upgrade_tests;

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read, Seek, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use sqlx::{
    ConnectOptions, Connection, SqliteConnection,
    migrate::{MigrateError, Migrator},
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use thiserror::Error;

pub use backup::backup;
pub use read::SqliteReader;

use self::transaction::SqliteTransaction;
use super::{Backend, Definitions, StoreError, Transaction};
use crate::domain::Timestamp;

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/sqlite");

/// Bytes. Payloads of a few KiB still share a page, and checkpoints write fewer, larger blocks.
const PAGE_SIZE: u32 = 8192;
/// Readers take turns on these; each costs a thread and its page cache.
const READERS: u32 = 4;

#[derive(Debug, Error)]
pub enum OpenError {
    #[error(
        "{path} is in use by another process ({holder}): stop that one, or give this one a database of its own with --database-url"
    )]
    InUse { path: String, holder: String },
    #[error(
        "{path} was written by a newer version of provost (its schema has migration {found}, this version knows up to {known}): start the newer version again, or restore a backup made before the upgrade"
    )]
    NewerSchema {
        path: String,
        found: i64,
        known: i64,
    },
    #[error("{path} cannot be opened: {reason}")]
    Unusable { path: String, reason: String },
}

/// The database file, locked for this process.
#[derive(Debug)]
pub struct SqliteBackend {
    writer: SqliteConnection,
    options: SqliteConnectOptions,
    definitions: Arc<Definitions>,
    /// Held as long as the database is open: the lock goes with the file handle.
    _lock: File,
}

/// Opens the file, making it if it is not there, and brings its schema up to date.
pub async fn open(
    path: &Path,
    max_size: Option<u64>,
    definitions: Arc<Definitions>,
) -> Result<(SqliteBackend, SqliteReader), OpenError> {
    let name = path.display().to_string();
    let unusable = |reason: String| OpenError::Unusable {
        path: name.clone(),
        reason,
    };
    let lock = lock(path)?;
    let mut options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .page_size(PAGE_SIZE)
        .journal_mode(SqliteJournalMode::Wal)
        // Once writes are grouped, FULL costs no more than NORMAL, and survives a power cut.
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(Duration::from_secs(10))
        .pragma("cache_size", "-4096")
        // A checkpoint of 4,000 pages stalls the writer for about 5 ms; of 10,000 for over 30.
        .pragma("wal_autocheckpoint", "4000")
        .pragma("journal_size_limit", "67108864")
        // Every statement in each of its sizes.
        .statement_cache_capacity(200)
        .disable_statement_logging();
    if let Some(bytes) = max_size {
        let pages = (bytes / u64::from(PAGE_SIZE)).max(1);
        options = options.pragma("max_page_count", pages.to_string());
    }
    let mut writer = SqliteConnection::connect_with(&options)
        .await
        .map_err(|error| unusable(error.to_string()))?;
    migrate(&mut writer, &name).await?;
    let pool = SqlitePoolOptions::new()
        .max_connections(READERS)
        .acquire_timeout(Duration::from_secs(10))
        .connect_with(
            options
                .clone()
                .pragma("query_only", "on")
                .pragma("cache_size", "-1024"),
        )
        .await
        .map_err(|error| unusable(error.to_string()))?;
    let backend = SqliteBackend {
        writer,
        options,
        definitions: definitions.clone(),
        _lock: lock,
    };
    Ok((backend, SqliteReader::new(pool, definitions)))
}

/// Takes the lock file beside the database. SQLite itself would let a second process in, and two
/// writers that each believe their cache would decide on stale tasks.
fn lock(path: &Path) -> Result<File, OpenError> {
    let mut lock_path = PathBuf::from(path).into_os_string();
    lock_path.push(".lock");
    let failed = |error: std::io::Error| OpenError::Unusable {
        path: path.display().to_string(),
        reason: error.to_string(),
    };
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&lock_path)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {
            // The holder's name is for the message of the next one only.
            file.set_len(0).map_err(failed)?;
            file.rewind().map_err(failed)?;
            write!(file, "process {}", std::process::id()).map_err(failed)?;
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            file.read_to_string(&mut holder).map_err(failed)?;
            Err(OpenError::InUse {
                path: path.display().to_string(),
                holder,
            })
        }
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

async fn migrate(writer: &mut SqliteConnection, path: &str) -> Result<(), OpenError> {
    MIGRATIONS
        .run(&mut *writer)
        .await
        .map_err(|error| match error {
            MigrateError::VersionMissing(found) => OpenError::NewerSchema {
                path: path.to_owned(),
                found,
                known: MIGRATIONS.iter().map(|m| m.version).max().unwrap_or(0),
            },
            error => OpenError::Unusable {
                path: path.to_owned(),
                reason: error.to_string(),
            },
        })
}

impl SqliteBackend {
    /// SQLite may roll back by itself when the disk is full or fails. sqlx cannot roll back a second
    /// time, takes the transaction for open from then on, and begins no other on that connection.
    async fn replace_stuck_writer(&mut self) -> Result<(), StoreError> {
        if self.writer.is_in_transaction() {
            // A dropped transaction is rolled back behind our back, but before this is answered.
            self.writer.ping().await?;
        }
        if self.writer.is_in_transaction() {
            self.writer = SqliteConnection::connect_with(&self.options).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Backend for SqliteBackend {
    async fn begin(&mut self) -> Result<Box<dyn Transaction + '_>, StoreError> {
        self.replace_stuck_writer().await?;
        // A deferred transaction that later wants to write can fail whatever the busy timeout.
        let tx = self.writer.begin_with("BEGIN IMMEDIATE").await?;
        Ok(Box::new(SqliteTransaction::new(
            tx,
            &self.definitions,
            now(),
        )))
    }

    /// The lock beside the file keeps every other process out.
    fn is_shared(&self) -> bool {
        false
    }
}

/// SQLite runs on this machine: its clock is the store's.
fn now() -> Timestamp {
    Timestamp::from_millis(jiff::Timestamp::now().as_millisecond())
}

/// `SQLITE_FULL`, the primary code.
const FULL: i32 = 13;

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let code = match &error {
            sqlx::Error::Database(database) => database.code(),
            _ => None,
        };
        let code = code.and_then(|code| code.parse::<i32>().ok());
        if code.is_some_and(|code| code & 0xff == FULL) {
            return StoreError::Full;
        }
        match error {
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => {
                StoreError::Corrupt(error.to_string())
            }
            error => StoreError::Unavailable(error.to_string()),
        }
    }
}
