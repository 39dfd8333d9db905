//! SQLite: the embedded default. One writer connection, a few readers that never write, one process.

mod backup;
mod clock;
mod connection;
pub mod examine;
mod file;
mod files;
mod keeper;
mod migrate;
#[cfg(test)]
mod migrate_tests;
mod multiply;
mod pool;
mod read;
mod rescue;
mod reserve;
mod rows;
mod save;
mod shrink;
#[cfg(test)]
mod shrink_tests;
mod space;
mod transaction;
#[cfg(test)]
mod upgrade_tests;
mod wal;

use std::{
    path::Path,
    sync::{Arc, LazyLock},
    time::Duration,
};

use async_trait::async_trait;
use sqlx::migrate::Migration;
use tokio::sync::RwLock;

pub use backup::backup;
pub use clock::StoreClock;
pub use keeper::Keeper;
pub use multiply::multiply;
use read::SqliteSource;
pub use shrink::{ShrinkError, shrink};

pub use self::rows::SqliteRow;
#[cfg(test)]
pub use self::transaction::JSON_ITEMS;
use self::{
    connection::{ConnectionThread, connect_first},
    file::{DatabaseFile, FileState},
    files::DatabaseFiles,
    migrate::MigrationError,
    pool::ReaderPool,
    reserve::{Disk, Reserve},
    transaction::SqliteTransaction,
};
use super::{
    Backend, CompiledDefinitions, Health, OpenError, Reader, Readers, SharedReader,
    StoreConnections, StoreError, Transaction, migrations, open::note_migration,
};
use crate::clock::instant;

static MIGRATIONS: LazyLock<Vec<Migration>> = LazyLock::new(migrations::sqlite);

/// In bytes. Payloads of a few KiB still share a page, and checkpoints write fewer, larger blocks.
const PAGE_SIZE: u32 = 8192;
/// The number of connections for readers, which take turns. Each costs a thread and its page cache.
const READERS: usize = 4;
/// The number of connections for housekeeping, see [`Readers`].
const HOUSEKEEPERS: usize = 1;

/// The time for which SQLite waits for a lock.
const BUSY: Duration = Duration::from_secs(10);

/// The database file, locked for this process.
#[derive(Clone, Debug)]
pub struct SqliteBackend {
    /// The connection of both committers: while it saves one batch, the next is decided and sent to it.
    writer: Arc<ConnectionThread>,
    /// A transaction of several jobs holds this lock exclusively.
    jobs: Arc<RwLock<()>>,
    definitions: Arc<CompiledDefinitions>,
    files: DatabaseFiles,
    clock: StoreClock,
    /// The most pages that the file may have.
    max_pages: Option<u64>,
}

pub struct OpenedSqlite {
    pub backend: SqliteBackend,
    pub readers: Readers,
    pub keeper: Keeper,
}

impl OpenedSqlite {
    pub fn connections(self) -> (StoreConnections, Keeper) {
        let connections = StoreConnections {
            writers: vec![Box::new(self.backend.clone()), Box::new(self.backend)],
            leases: None,
            purging: None,
            readers: self.readers,
            // The lock on the file keeps every other process out.
            is_shared: false,
        };
        (connections, self.keeper)
    }
}

/// Opens the file, creates it if it does not exist, and brings its schema up to date. If the disk is full, the reserve
/// is released, so that the next attempt may find room.
pub async fn open(
    path: &Path,
    max_size: Option<u64>,
    definitions: Arc<CompiledDefinitions>,
    health: Health,
) -> Result<OpenedSqlite, OpenError> {
    let opened = async {
        let file = DatabaseFile::open(path).await?;
        open_file(file, max_size, definitions, health).await
    };
    let opened = opened.await;
    if let (Err(OpenError::Full { .. }), Ok(path)) = (&opened, file::resolve(path)) {
        Reserve::beside(&path).release();
    }
    opened
}

/// Opens the file while a service uses it. The tasks that this process has read may be stale at any time.
pub async fn open_beside(
    path: &Path,
    definitions: Arc<CompiledDefinitions>,
) -> Result<OpenedSqlite, OpenError> {
    let file = DatabaseFile::open_beside(path)?;
    open_file(file, None, definitions, Health::default()).await
}

/// Opens the file for a simulated host: for all hosts, if several use it.
#[cfg(test)]
pub async fn open_simulated(
    path: &Path,
    definitions: Arc<CompiledDefinitions>,
    health: Health,
) -> Result<StoreConnections, OpenError> {
    let is_shared = crate::host::current().is_some_and(|host| host.shares_database);
    let opened = match is_shared {
        true => open_file(DatabaseFile::open_beside(path)?, None, definitions, health).await?,
        false => open(path, None, definitions, health).await?,
    };
    let (connections, _) = opened.connections();
    Ok(StoreConnections {
        is_shared,
        ..connections
    })
}

async fn open_file(
    file: DatabaseFile,
    max_size: Option<u64>,
    definitions: Arc<CompiledDefinitions>,
    health: Health,
) -> Result<OpenedSqlite, OpenError> {
    let files = DatabaseFiles {
        file: Arc::new(file),
        health,
    };
    let file = &files.file;
    let unusable = |reason: String| OpenError::Unusable {
        database: file.name().to_owned(),
        reason,
    };
    let max_pages = max_size.map(pages_of);
    let writer = open_writer(file, max_pages).await?;
    match file.is_locked() {
        true => {
            let (before, began) = (last_applied(&writer, file).await?, instant());
            bring_up_to_date(&writer, file).await?;
            note_migration(file.name(), before, known(), began);
        }
        false => check_schema(&writer, file).await?,
    }
    let state = file.remember_parts();
    match state.map_err(|error| unusable(error.to_string()))? {
        FileState::Kept => {}
        FileState::Missing(path) | FileState::Replaced(path) | FileState::Cut(path) => {
            let path = path.display();
            return Err(unusable(format!(
                "{path} was moved while it was being opened"
            )));
        }
    }
    let record = writer.run(|writer| clock::record(writer)).await;
    let record = record.map_err(|error| unopened(file, &error))?;
    let clock = StoreClock::begin(record.as_ref());
    let pool = async |connections| {
        let pool = ReaderPool::open(&files, max_pages, connections).await;
        pool.map_err(|error| unopened(file, &error))
    };
    let reader = |pool: &Arc<ReaderPool>| -> SharedReader {
        Arc::new(Reader::new(SqliteSource {
            pool: pool.clone(),
            definitions: definitions.clone(),
            files: files.clone(),
            clock: clock.clone(),
        }))
    };
    let (callers, housekeeping) = (pool(READERS).await?, pool(HOUSEKEEPERS).await?);
    let readers = Readers {
        callers: reader(&callers),
        housekeeping: reader(&housekeeping),
    };
    let reserve = Reserve::beside(file.path());
    let keeper = Keeper::new(files.clone(), reserve, housekeeping, max_pages);
    let backend = SqliteBackend {
        writer: Arc::new(writer),
        jobs: Arc::default(),
        definitions,
        files,
        clock,
        max_pages,
    };
    Ok(OpenedSqlite {
        backend,
        readers,
        keeper,
    })
}

/// Returns at least one.
fn pages_of(bytes: u64) -> u64 {
    (bytes / u64::from(PAGE_SIZE)).max(1)
}

/// Creates the database if the file is empty.
async fn open_writer(
    file: &Arc<DatabaseFile>,
    max_pages: Option<u64>,
) -> Result<ConnectionThread, OpenError> {
    let opened = file.clone();
    let open = move || connect_first(&opened, max_pages);
    let writer = ConnectionThread::start(open).await;
    writer.map_err(|error| unopened(file, &error))
}

/// Creates the file if it does not exist and brings its schema up to date. Returns its migration before and after.
pub async fn migrate(path: &Path) -> Result<(i64, i64), OpenError> {
    let file = Arc::new(DatabaseFile::open(path).await?);
    let writer = open_writer(&file, None).await?;
    let before = last_applied(&writer, &file).await?;
    bring_up_to_date(&writer, &file).await?;
    writer.close().await;
    Ok((before, known()))
}

async fn bring_up_to_date(writer: &ConnectionThread, file: &DatabaseFile) -> Result<(), OpenError> {
    let migrated = writer.run(|writer| migrate::migrate(writer, &MIGRATIONS));
    migrated.await.map_err(|error| match error {
        MigrationError::Sqlite(error) => unopened(file, &error),
        MigrationError::Unknown(found) => OpenError::NewerSchema {
            database: file.name().to_owned(),
            found,
            known: known(),
        },
        error @ (MigrationError::Modified(_) | MigrationError::Partial(_)) => OpenError::Unusable {
            database: file.name().to_owned(),
            reason: error.to_string(),
        },
    })
}

/// Checks the schema, because another process uses the database and relies on it.
async fn check_schema(writer: &ConnectionThread, file: &DatabaseFile) -> Result<(), OpenError> {
    let found = last_applied(writer, file).await?;
    match found == known() {
        true => Ok(()),
        false => Err(OpenError::OtherSchema {
            database: file.name().to_owned(),
            found,
            known: known(),
        }),
    }
}

async fn last_applied(writer: &ConnectionThread, file: &DatabaseFile) -> Result<i64, OpenError> {
    let found = writer.run(|writer| migrate::last_applied(writer)).await;
    found.map_err(|error| unopened(file, &error))
}

/// Converts an error that prevented a start.
fn unopened(file: &DatabaseFile, error: &rusqlite::Error) -> OpenError {
    let code = match error {
        rusqlite::Error::SqliteFailure(code, _) => Some(code.extended_code),
        _ => None,
    };
    let reason = error.to_string();
    let database = file.name().to_owned();
    let is_full = match code.map(|code| code & 0xff) {
        Some(FULL) => true,
        // These errors occur if `-shm` cannot be created, for example.
        Some(IOERR | CANTOPEN) => Disk::of(file.path()).is_full(),
        _ => false,
    };
    if is_full {
        return OpenError::Full { database, reason };
    }
    match code.is_some_and(is_damage) {
        true => OpenError::Damaged { database, reason },
        false => OpenError::Unusable { database, reason },
    }
}

fn known() -> i64 {
    MIGRATIONS.iter().map(|m| m.version).max().unwrap_or(0)
}

#[async_trait]
impl Backend for SqliteBackend {
    async fn begin(&mut self) -> Result<Box<Transaction<'_>>, StoreError> {
        self.files.health.check_write()?;
        Ok(Box::new(SqliteTransaction {
            connection: &self.writer,
            definitions: &self.definitions,
            files: &self.files,
            moment: self.clock.moment(),
            max_pages: self.max_pages,
            jobs: &self.jobs,
            begun: None,
        }))
    }

    fn failed(&self, error: &StoreError) {
        if matches!(error, StoreError::Full) {
            self.files.raise_full();
        }
    }
}

// Primary codes of SQLite.
const IOERR: i32 = 10;
const FULL: i32 = 13;
const CANTOPEN: i32 = 14;

/// `SQLITE_CORRUPT` and `SQLITE_NOTADB`, the primary codes.
const DAMAGED: [i32; 2] = [11, 26];
/// `SQLITE_IOERR_READ`, `_SHORT_READ`, `_DATA` and `_CORRUPTFS`: the disk does not return the data that was written.
/// Other errors of input and output, such as those of a full disk, are no sign of damage.
const NOT_READ: [i32; 4] = [266, 522, 8202, 8458];

/// Converts an error of SQLite by its code.
pub(super) fn error(code: i32, message: String) -> StoreError {
    #[cfg(test)]
    if code == connection::LOST {
        return StoreError::Lost(message);
    }
    if code & 0xff == FULL {
        return StoreError::Full;
    }
    if is_damage(code) {
        return StoreError::Unreadable(message);
    }
    StoreError::Unavailable(message)
}

fn is_damage(code: i32) -> bool {
    DAMAGED.contains(&(code & 0xff)) || NOT_READ.contains(&code)
}
