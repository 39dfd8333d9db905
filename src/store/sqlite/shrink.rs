//! Makes the database file as small as its content, while no service uses it. From then on the service returns free
//! space to the disk, whichever version made the file.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rusqlite::{Connection, OptionalExtension};
use thiserror::Error;

use super::{
    BUSY,
    connection::{ConnectionAccess, ConnectionThread, connect, use_wal},
    file::{DatabaseFile, resolve},
    reserve::{Disk, Reserve},
    unopened,
};
use crate::{clock, store::OpenError};

/// One part in this number is added for the frames of `-wal`, each a page with 24 bytes before it, and for the few
/// pages more that the packed data may take.
const MARGIN: u64 = 64;
/// The environment variable with the folder for the temporary copy of SQLite.
const TEMPORARY: &str = "SQLITE_TMPDIR";
/// The longest time for which a read of another process may keep `-wal` from being folded back.
const READ_ENDS_WITHIN: Duration = Duration::from_secs(30);

/// The bytes of the database file with its `-wal`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shrunk {
    pub before_bytes: u64,
    pub after_bytes: u64,
}

#[derive(Debug, Error)]
pub enum ShrinkError {
    #[error("{0} does not exist: check database_url")]
    Missing(PathBuf),
    #[error(
        "{database} is in use by another process ({holder}), most likely the service: stop it and try again. A running service returns free space to the disk by itself, if the file was created for it: see docs/deploy.md, \"Space that ended tasks took\""
    )]
    InUse { database: String, holder: String },
    #[error(
        "{folder} has {available} bytes free, and shrinking {database} needs {needed} there until it is done ({what}): free some space, or put the temporary copy on another disk by setting {TEMPORARY} to a folder there. Nothing was changed"
    )]
    NoRoom {
        database: String,
        folder: PathBuf,
        available: u64,
        needed: u64,
        what: &'static str,
    },
    #[error("{0} is not a database of provost")]
    Foreign(String),
    #[error(
        "{0} was packed, but another process reads it, so its file could not be truncated yet: end that read (a backup, or a sqlite3 shell) and try again"
    )]
    Read(String),
    #[error("{TEMPORARY} is {0}, which cannot be used for the temporary copy: {1}")]
    Temporary(PathBuf, io::Error),
    #[error(transparent)]
    Open(OpenError),
}

/// Rewrites the whole database without its free pages, and returns the rest of the file to the disk. It needs the
/// database exclusively, so the service must not run, and it creates no database. A file of an older version returns
/// space while the service runs from then on.
///
/// In the meantime there is a temporary copy of the content, next to the database or in the folder `SQLITE_TMPDIR`, and
/// another one in `-wal`. Both must fit: [`ShrinkError::NoRoom`] says so with numbers before anything is changed. If
/// the process is killed at any moment, nothing is lost, and the next start or the next call finds a whole database. It
/// takes about as long as copying the file three times.
pub async fn shrink(path: &Path) -> Result<Shrunk, ShrinkError> {
    match resolve(path).map(fs::metadata) {
        Ok(Ok(_)) => {}
        Ok(Err(error)) if error.kind() != io::ErrorKind::NotFound => {}
        _ => return Err(ShrinkError::Missing(path.to_owned())),
    }
    let file = Arc::new(DatabaseFile::open(path).await?);
    let (opened, packed) = (file.clone(), file.clone());
    let open = move || connect(&opened, None, ConnectionAccess::Write);
    let database = ConnectionThread::start(open).await;
    let database = database.map_err(|error| ShrinkError::from(unopened(&file, &error)))?;
    let shrunk = database.run(move |database| Ok(shrink_open(database, &packed)));
    let shrunk = shrunk
        .await
        .map_err(|error: rusqlite::Error| ShrinkError::from(unopened(&file, &error)));
    // The last connection that closes removes `-wal`.
    database.close().await;
    Ok(Shrunk {
        before_bytes: shrunk??,
        after_bytes: bytes(&file),
    })
}

/// Returns the size before.
fn shrink_open(database: &Connection, file: &DatabaseFile) -> Result<u64, ShrinkError> {
    let unusable = |error: rusqlite::Error| ShrinkError::from(unopened(file, &error));
    let known = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'tasks'";
    let known = database.query_row(known, [], |_| Ok(())).optional();
    if known.map_err(unusable)?.is_none() {
        return Err(ShrinkError::Foreign(file.name().to_owned()));
    }
    use_wal(database).map_err(unusable)?;
    // Otherwise the data that an earlier process left in `-wal` would take room in addition to what this one writes
    // there.
    fold(database, file)?;
    let before = bytes(file);
    let folder = temporary_folder(file);
    see_room(file, &folder, live_bytes(database).map_err(unusable)?)?;
    // Without this setting SQLite uses `TMPDIR` or /var/tmp, which may be a small disk, or memory.
    let directory = folder.to_string_lossy().replace('\'', "''");
    let pack = format!(
        "PRAGMA temp_store_directory = '{directory}'; PRAGMA cache_size = -65536; PRAGMA auto_vacuum = incremental; VACUUM"
    );
    database.execute_batch(&pack).map_err(unusable)?;
    fold(database, file)?;
    Ok(before)
}

/// Writes all of `-wal` into the database and empties it. Only after that the file is as long as its content.
fn fold(database: &Connection, file: &DatabaseFile) -> Result<(), ShrinkError> {
    let unusable = |error: rusqlite::Error| ShrinkError::from(unopened(file, &error));
    let until = clock::instant() + READ_ENDS_WITHIN;
    loop {
        // The statement waits for the busy timeout by itself.
        let fold = "PRAGMA wal_checkpoint(TRUNCATE)";
        let is_busy: bool = database
            .query_row(fold, [], |row| row.get("busy"))
            .map_err(unusable)?;
        if !is_busy {
            return Ok(());
        }
        if clock::instant() + BUSY > until {
            return Err(ShrinkError::Read(file.name().to_owned()));
        }
        clock::block(Duration::from_millis(100));
    }
}

/// Returns the bytes of the database without its free pages.
fn live_bytes(database: &Connection) -> rusqlite::Result<u64> {
    let sizes = "SELECT page_count, freelist_count, page_size
         FROM pragma_page_count, pragma_freelist_count, pragma_page_size";
    let (pages, free, size): (i64, i64, i64) =
        database.query_row(sizes, [], |row| row.try_into())?;
    Ok(pages.saturating_sub(free).unsigned_abs() * size.unsigned_abs())
}

/// Returns the folder for the temporary copy.
fn temporary_folder(file: &DatabaseFile) -> PathBuf {
    let beside = || file.path().parent().unwrap_or(file.path()).to_owned();
    let chosen = std::env::var_os(TEMPORARY).filter(|chosen| !chosen.is_empty());
    chosen.map_or_else(beside, PathBuf::from)
}

/// Checks the room: SQLite copies the content to a temporary file, and from there, page by page, to `-wal`. The reserve
/// for a full disk is released if necessary; the service makes it again.
fn see_room(file: &DatabaseFile, temporary: &Path, live: u64) -> Result<(), ShrinkError> {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev());
    let unusable = |error| ShrinkError::Temporary(temporary.to_owned(), error);
    let is_same = device(temporary).map_err(unusable)?
        == file
            .path()
            .parent()
            .map_or(Ok(0), device)
            .map_err(unusable)?;
    let copy = live + live / MARGIN + (1 << 20);
    let lacks = |folder: &Path, disk: Disk, needed, what| ShrinkError::NoRoom {
        database: file.name().to_owned(),
        folder: folder.to_owned(),
        available: disk.available,
        needed,
        what,
    };
    let (needed, what) = match is_same {
        true => (2 * copy, "a temporary copy of its contents, and its -wal"),
        false => (copy, "its -wal, with all its contents"),
    };
    // `Disk::of` measures the folder that contains the file.
    if !is_same {
        let disk = Disk::of(&temporary.join("copy"));
        if !disk.has(copy) {
            let what = "a temporary copy of its contents";
            return Err(lacks(temporary, disk, copy, what));
        }
    }
    let mut disk = Disk::of(file.path());
    if !disk.has(needed) {
        let reserve = Reserve::beside(file.path());
        if disk.has(needed.saturating_sub(reserve.kept())) {
            reserve.release();
            disk = Disk::of(file.path());
        }
    }
    if !disk.has(needed) {
        let folder = file.path().parent().unwrap_or(file.path());
        return Err(lacks(folder, disk, needed, what));
    }
    Ok(())
}

fn bytes(file: &DatabaseFile) -> u64 {
    let length = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
    length(file.path()) + length(&file.beside("-wal"))
}

impl From<OpenError> for ShrinkError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::InUse { database, holder } => Self::InUse { database, holder },
            error => Self::Open(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_room_for_the_copy_it_says_how_much_it_needs_and_keeps_the_reserve() {
        let folder = tempfile::tempdir().unwrap();
        let file = DatabaseFile::open(&folder.path().join("provost.db")).await;
        let file = file.unwrap();
        let reserve = Reserve::beside(file.path());
        reserve.make(1 << 20).unwrap();
        let temporary = folder.path();
        see_room(&file, temporary, 1 << 20).unwrap();
        let live = 1 << 50;
        let refused = see_room(&file, temporary, live).unwrap_err();
        let ShrinkError::NoRoom {
            available, needed, ..
        } = &refused
        else {
            panic!("{refused}");
        };
        assert!(*needed > 2 * live && *available < live);
        assert!(refused.to_string().contains(&needed.to_string()));
        assert_eq!(reserve.kept(), 1 << 20);
        let nowhere = folder.path().join("nowhere");
        let refused = see_room(&file, &nowhere, 1).unwrap_err();
        assert!(matches!(refused, ShrinkError::Temporary(..)), "{refused}");
    }
}
