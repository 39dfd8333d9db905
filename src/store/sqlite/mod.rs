//! SQLite: the embedded default. One writer connection, a few readers that never write, one process.

mod backup;
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
use tokio::time::Instant;

pub use backup::backup;
use read::{SqliteReader, SqliteSource};

use self::transaction::SqliteTransaction;
use super::{Backend, Definitions, OpenError, Readers, SharedReader, StoreError, Transaction};
use crate::domain::Timestamp;

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/sqlite");

/// Bytes. Payloads of a few KiB still share a page, and checkpoints write fewer, larger blocks.
const PAGE_SIZE: u32 = 8192;
/// Readers take turns on these; each costs a thread and its page cache.
const READERS: u32 = 4;
/// See [`Readers`].
const HOUSEKEEPERS: u32 = 1;

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
) -> Result<(SqliteBackend, Readers), OpenError> {
    let name = path.display().to_string();
    let unusable = |reason: String| OpenError::Unusable {
        database: name.clone(),
        reason,
    };
    let lock = lock(path)?;
    let options = options(path, max_size);
    let mut writer = SqliteConnection::connect_with(&options)
        .await
        .map_err(|error| unusable(error.to_string()))?;
    bring_up_to_date(&mut writer, &name).await?;
    let reader = async |connections| -> Result<SharedReader, OpenError> {
        let pool = SqlitePoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(Duration::from_secs(10))
            .connect_with(
                options
                    .clone()
                    .pragma("query_only", "on")
                    .pragma("cache_size", "-1024"),
            )
            .await
            .map_err(|error| unusable(error.to_string()))?;
        let definitions = definitions.clone();
        let reader: SharedReader = Arc::new(SqliteReader::new(SqliteSource { pool, definitions }));
        Ok(reader)
    };
    let readers = Readers {
        callers: reader(READERS).await?,
        housekeeping: reader(HOUSEKEEPERS).await?,
    };
    let backend = SqliteBackend {
        writer,
        options,
        definitions,
        _lock: lock,
    };
    Ok((backend, readers))
}

fn options(path: &Path, max_size: Option<u64>) -> SqliteConnectOptions {
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
    options
}

/// Makes the file if it is not there and brings its schema up to date; answers its migration before
/// and after.
pub async fn migrate(path: &Path) -> Result<(i64, i64), OpenError> {
    let name = path.display().to_string();
    let unusable = |error: sqlx::Error| OpenError::Unusable {
        database: name.clone(),
        reason: error.to_string(),
    };
    let _lock = lock(path)?;
    let options = options(path, None);
    let mut writer = SqliteConnection::connect_with(&options)
        .await
        .map_err(unusable)?;
    let before = applied(&mut writer).await.map_err(unusable)?;
    bring_up_to_date(&mut writer, &name).await?;
    Ok((before, known()))
}

/// Takes the lock file beside the database. SQLite itself would let a second process in, and two
/// writers that each believe their cache would decide on stale tasks.
fn lock(path: &Path) -> Result<File, OpenError> {
    let mut lock_path = PathBuf::from(path).into_os_string();
    lock_path.push(".lock");
    let failed = |error: std::io::Error| OpenError::Unusable {
        database: path.display().to_string(),
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
                database: path.display().to_string(),
                holder,
            })
        }
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

async fn bring_up_to_date(writer: &mut SqliteConnection, path: &str) -> Result<(), OpenError> {
    MIGRATIONS
        .run(&mut *writer)
        .await
        .map_err(|error| match error {
            MigrateError::VersionMissing(found) => OpenError::NewerSchema {
                database: path.to_owned(),
                found,
                known: known(),
            },
            error => OpenError::Unusable {
                database: path.to_owned(),
                reason: error.to_string(),
            },
        })
}

fn known() -> i64 {
    MIGRATIONS.iter().map(|m| m.version).max().unwrap_or(0)
}

/// The last migration that was applied; 0 before the first.
async fn applied(connection: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    let there = sqlx::query("SELECT 1 FROM sqlite_schema WHERE name = '_sqlx_migrations'")
        .fetch_optional(&mut *connection)
        .await?;
    if there.is_none() {
        return Ok(0);
    }
    sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM _sqlx_migrations WHERE success")
        .fetch_one(connection)
        .await
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
        let instant = Instant::now();
        Ok(Box::new(SqliteTransaction::new(
            tx,
            &self.definitions,
            now(),
            instant,
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

/// What an error of SQLite, by its code, means.
pub(super) fn error(code: &str, message: String) -> StoreError {
    let code = code.parse::<i32>().ok();
    if code.is_some_and(|code| code & 0xff == FULL) {
        return StoreError::Full;
    }
    StoreError::Unavailable(message)
}
