//! Copies the database while a service uses it. The copy is one snapshot: a read transaction, which neither waits for
//! the writer nor makes it wait, and needs no lock of the file.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rusqlite::{Connection, OpenFlags};
use thiserror::Error;

use super::{
    connection::{self, ConnectionThread},
    file::PRIVATE,
};

const OWNER_AND_GROUP: u32 = 0o660;

/// The size of a backup.
#[derive(Debug)]
pub struct Backup {
    pub tasks: u64,
    pub bytes: u64,
}

#[derive(Debug, Error)]
pub enum BackupError {
    #[error("{0} already exists, and a backup overwrites nothing: choose another name")]
    Exists(PathBuf),
    #[error(
        "{0} already exists: another backup is writing it, or was killed; if none is running, remove it"
    )]
    Unfinished(PathBuf),
    #[error("{0} cannot be written: {1}")]
    Unwritable(PathBuf, io::Error),
    #[error(
        "{0} has several names (hard links), and its latest data may not be found under this one: remove all names but the one that the service uses"
    )]
    SeveralNames(PathBuf),
    #[error("{0}: its name is not UTF-8, which SQLite requires")]
    Name(PathBuf),
    #[error(
        "{0} cannot be read as a database of provost: {1}; is it the service's database, and does this user have access to it?"
    )]
    Unreadable(PathBuf, rusqlite::Error),
    #[error("{0} cannot be copied to {1}: {2}")]
    Failed(PathBuf, PathBuf, rusqlite::Error),
}

/// Copies `database` to the new file `to`, which is complete and on the disk when this returns. A copy that fails or is
/// cancelled leaves no file.
pub async fn backup(database: &Path, to: &Path) -> Result<Backup, BackupError> {
    let unwritable = |error| BackupError::Unwritable(to.to_owned(), error);
    // SQLite takes a relative name for a URI if it looks like one.
    let to = std::path::absolute(to).map_err(unwritable)?;
    // If the file cannot be read, the next step returns that error.
    if fs::metadata(database).is_ok_and(|metadata| metadata.nlink() > 1) {
        return Err(BackupError::SeveralNames(database.to_owned()));
    }
    let source = open(database).await?;
    source
        .run(|source| count_tasks(source))
        .await
        .map_err(|error| BackupError::Unreadable(database.to_owned(), error))?;
    refuse_existing(&to)?;
    let permissions = fs::metadata(database).map_err(unwritable)?.permissions();
    let partial = Partial::create(&to, permissions)?;
    let name = partial.0.text.clone();
    source
        .run(move |source| copy(source, &name))
        .await
        .map_err(|error| BackupError::Failed(database.to_owned(), to.clone(), error))?;
    source.close().await;
    let tasks = tasks_in(&partial.0.path).await?;
    let bytes = partial.publish(&to)?;
    Ok(Backup { tasks, bytes })
}

/// Copies the database of this connection, even if its name is gone, to the new file `to`.
pub(super) fn copy_whole(
    source: &Connection,
    to: &Path,
    permissions: Permissions,
) -> Result<(), BackupError> {
    let partial = Partial::create(to, permissions)?;
    let failed = |error| BackupError::Failed(PathBuf::from("the database"), to.to_owned(), error);
    copy(source, &partial.0.text).map_err(failed)?;
    partial.publish(to)?;
    Ok(())
}

/// Opens the database read-only: a missing database is not created, and its schema is not changed.
async fn open(path: &Path) -> Result<ConnectionThread, BackupError> {
    let database = path.to_owned();
    let open = move || connection::open(&database, OpenFlags::SQLITE_OPEN_READ_ONLY);
    let opened = ConnectionThread::start(open).await;
    opened.map_err(|error| BackupError::Unreadable(path.to_owned(), error))
}

/// Copies one snapshot, packed. Unlike SQLite's page by page backup it does not begin again with each write of another
/// process.
fn copy(source: &Connection, to: &str) -> rusqlite::Result<()> {
    source.execute("VACUUM INTO ?", [to])?;
    Ok(())
}

async fn tasks_in(path: &Path) -> Result<u64, BackupError> {
    let connection = open(path).await?;
    let counted = connection.run(|connection| count_tasks(connection)).await;
    connection.close().await;
    counted.map_err(|error| BackupError::Unreadable(path.to_owned(), error))
}

fn count_tasks(connection: &Connection) -> rusqlite::Result<u64> {
    let count = "SELECT count(*) FROM tasks";
    let count: i64 = connection.query_row(count, [], |row| row.get(0))?;
    Ok(count.unsigned_abs())
}

fn refuse_existing(to: &Path) -> Result<(), BackupError> {
    match fs::symlink_metadata(to) {
        Ok(_) => Err(BackupError::Exists(to.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(BackupError::Unwritable(to.to_owned(), error)),
    }
}

struct Utf8Path {
    path: PathBuf,
    text: String,
}

impl Utf8Path {
    /// Removes the journal that SQLite makes while it writes. If it stayed, it would be applied to another file.
    fn remove_journal(&self) -> io::Result<()> {
        match fs::remove_file(format!("{}-journal", self.text)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// The incomplete copy, under another name: a file with the final name is always a complete backup. It is removed when
/// this is dropped.
struct Partial(Utf8Path);

impl Partial {
    /// Creates the file, empty and with the permissions of the database, because it contains the same secrets, but
    /// never readable for all users of the machine.
    fn create(to: &Path, permissions: Permissions) -> Result<Self, BackupError> {
        let Some(text) = to.to_str().map(|to| format!("{to}.partial")) else {
            return Err(BackupError::Name(to.to_owned()));
        };
        let path = PathBuf::from(&text);
        let unwritable = |error| BackupError::Unwritable(path.clone(), error);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(PRIVATE);
        let file = match options.open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(BackupError::Unfinished(path));
            }
            Err(error) => return Err(unwritable(error)),
        };
        let partial = Self(Utf8Path {
            path: path.clone(),
            text,
        });
        partial
            .0
            .remove_journal()
            .and_then(|()| {
                let mode = permissions.mode() & OWNER_AND_GROUP;
                file.set_permissions(Permissions::from_mode(mode))
            })
            .map_err(unwritable)?;
        Ok(partial)
    }

    /// Renames the file to the requested name once all of it is on the disk. Returns its size in bytes.
    fn publish(self, to: &Path) -> Result<u64, BackupError> {
        let unwritable = |error| BackupError::Unwritable(to.to_owned(), error);
        let file = File::open(&self.0.path).map_err(unwritable)?;
        file.sync_all().map_err(unwritable)?;
        let bytes = file.metadata().map_err(unwritable)?.len();
        // The partial file has prevented another backup to the same name.
        refuse_existing(to)?;
        fs::rename(&self.0.path, to).map_err(unwritable)?;
        // The name is on the disk when its folder is synchronized.
        if let Some(folder) = to.parent() {
            File::open(folder)
                .and_then(|folder| folder.sync_all())
                .map_err(unwritable)?;
        }
        Ok(bytes)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // After the rename the file is gone already. If it cannot be removed, the next backup reports it.
        let _ = fs::remove_file(&self.0.path);
        let _ = self.0.remove_journal();
    }
}

#[cfg(test)]
mod tests {
    use std::{num::NonZeroUsize, sync::Arc};

    use tempfile::TempDir;

    use super::{super::open as open_store, *};
    use crate::store::{CompiledDefinitions, Health};

    /// Creates an empty database, which no process has open, and its folder.
    async fn database() -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("provost.db");
        let definitions = Arc::new(CompiledDefinitions::new(NonZeroUsize::MIN));
        let opened = open_store(&path, None, definitions, Health::default()).await;
        drop(opened.unwrap());
        (folder, path)
    }

    fn names(folder: &TempDir) -> Vec<String> {
        let names = fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<String> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with("provost.db"))
            .collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn a_file_that_is_there_is_left_as_it_is() {
        let (folder, database) = database().await;
        let to = folder.path().join("copy.db");
        fs::write(&to, "dear").unwrap();
        let refused = backup(&database, &to).await.unwrap_err();
        assert!(matches!(refused, BackupError::Exists(_)), "{refused}");
        assert_eq!(fs::read_to_string(&to).unwrap(), "dear");
        assert_eq!(names(&folder), ["copy.db"]);
        let itself = backup(&database, &database).await.unwrap_err();
        assert!(matches!(itself, BackupError::Exists(_)), "{itself}");
    }

    #[tokio::test]
    async fn a_backup_under_way_to_the_same_name_is_not_disturbed() {
        let (folder, database) = database().await;
        fs::write(folder.path().join("copy.db.partial"), "half").unwrap();
        let refused = backup(&database, &folder.path().join("copy.db")).await;
        let refused = refused.unwrap_err();
        assert!(matches!(refused, BackupError::Unfinished(_)), "{refused}");
        assert_eq!(names(&folder), ["copy.db.partial"]);
    }

    #[tokio::test]
    async fn what_a_killed_backup_left_beside_its_file_does_not_get_into_the_next() {
        let (folder, database) = database().await;
        fs::write(folder.path().join("copy.db.partial-journal"), "half").unwrap();
        let to = folder.path().join("copy.db");
        backup(&database, &to).await.unwrap();
        assert_eq!(names(&folder), ["copy.db"]);
    }

    #[tokio::test]
    async fn a_backup_that_is_given_up_leaves_nothing() {
        let (folder, database) = database().await;
        let to = folder.path().join("copy.db");
        let permissions = fs::metadata(&database).unwrap().permissions();
        let partial = Partial::create(&to, permissions).unwrap();
        fs::write(folder.path().join("copy.db.partial-journal"), "half").unwrap();
        drop(partial);
        assert_eq!(names(&folder), [""; 0]);
    }

    #[tokio::test]
    async fn no_database_is_no_backup_and_none_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("copy.db");
        let missing = folder.path().join("missing.db");
        let refused = backup(&missing, &to).await.unwrap_err();
        assert!(matches!(refused, BackupError::Unreadable(..)), "{refused}");
        // This is a SQLite database, but not one of Provost.
        let other = folder.path().join("other.db");
        let made = Connection::open(&other).unwrap();
        made.execute_batch("CREATE TABLE things (thing TEXT)")
            .unwrap();
        drop(made);
        let refused = backup(&other, &to).await.unwrap_err();
        assert!(matches!(refused, BackupError::Unreadable(..)), "{refused}");
        assert_eq!(names(&folder), ["other.db"]);
    }

    #[tokio::test]
    async fn a_database_with_a_second_name_is_not_copied_from_a_state_that_may_be_old() {
        let (folder, database) = database().await;
        let other = folder.path().join("other.db");
        fs::hard_link(&database, &other).unwrap();
        let refused = backup(&other, &folder.path().join("copy.db")).await;
        let refused = refused.unwrap_err();
        assert!(matches!(refused, BackupError::SeveralNames(_)), "{refused}");
        assert_eq!(names(&folder), ["other.db"]);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn who_may_not_read_the_database_may_not_read_its_copy() {
        use std::os::unix::fs::PermissionsExt;

        let (folder, database) = database().await;
        fs::set_permissions(&database, fs::Permissions::from_mode(0o600)).unwrap();
        let to = folder.path().join("copy.db");
        let written = backup(&database, &to).await.unwrap();
        let metadata = fs::metadata(&to).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        assert_eq!((written.tasks, written.bytes), (0, metadata.len()));
        assert_eq!(names(&folder), ["copy.db"]);
    }
}
