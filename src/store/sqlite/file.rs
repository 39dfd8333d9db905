//! The database file itself: one process at a time opens it, under one name, and it stays where it is.
//!
//! SQLite itself would let a second process in, and two writers that each trust their cache would decide on stale
//! tasks. SQLite also finds a database's newest changes by name (`-wal`, `-shm`): under another name, or in a folder
//! where another file has taken the name, they are not found, or are taken for another database's. So the lock is on
//! the file, whichever name it has, and the name must lead to the file as long as anything is written.
//!
//! **No code may open and close the database file by itself while this process uses it.** Closing any descriptor of a
//! file drops all POSIX locks that the process has on it, and SQLite relies on them. Checks use `stat`, which opens
//! nothing.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, ErrorKind, Read, Seek, Write},
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Duration,
};

use rustix::fs::{Gid, Uid};
use tracing::warn;

use super::wal::Wal;
use crate::{
    clock::{self, sleep},
    store::OpenError,
};

/// The suffix of the copy that was made because the file was deleted. It follows the name of the database.
pub const RESCUED: &str = ".rescued";

/// The mode of the files that Provost creates.
pub(super) const PRIVATE: u32 = 0o600;
/// The bits of a mode for users other than the owner and the group.
const OTHERS: u32 = 0o007;

/// The time for which a start waits for a process that is just ending.
const LOCK_WITHIN: Duration = Duration::from_secs(1);
const LOCK_AGAIN: Duration = Duration::from_millis(20);
/// The most symbolic links in a chain.
const MOST_LINKS: usize = 32;

/// The database file, locked for this process until this is dropped, which is not before SQLite has closed the file.
#[derive(Debug)]
pub struct DatabaseFile {
    /// The name in the settings.
    name: String,
    /// The path without symbolic links. SQLite gets it, and finds `-wal` and `-shm` by it.
    path: PathBuf,
    /// Dropped before `lock_beside`: a process that finds that lock free may open and close this file.
    file: File,
    /// `None` if a running service has locked both files.
    lock_beside: Option<File>,
    /// The files that SQLite has open: the database, `-wal` and `-shm`.
    parts: OnceLock<Vec<FilePart>>,
    wal: Wal,
}

#[derive(Debug)]
struct FilePart {
    kind: FileKind,
    path: PathBuf,
    identity: Identity,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Identity {
    device: u64,
    inode: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FileKind {
    Database,
    Wal,
    Index,
}

/// The state of the files that are in use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FileState {
    /// All files are where they were.
    Kept,
    /// The file does not exist any more.
    Missing(PathBuf),
    /// Another file has the name.
    Replaced(PathBuf),
    /// The file is shorter than the data that was written to it.
    Cut(PathBuf),
}

impl DatabaseFile {
    /// Opens the file, or creates it if it does not exist. `name` may lead to it by symbolic links.
    pub async fn open(name: &Path) -> Result<Self, OpenError> {
        let until = clock::instant() + LOCK_WITHIN;
        loop {
            match Self::try_open(name) {
                Err(OpenError::InUse { .. }) if clock::instant() < until => sleep(LOCK_AGAIN).await,
                opened => return opened,
            }
        }
    }

    /// Opens a file that another process has locked, for work that two processes may do at once.
    pub fn open_beside(name: &Path) -> Result<Self, OpenError> {
        let failed = |error: io::Error| OpenError::Unusable {
            database: name.display().to_string(),
            reason: error.to_string(),
        };
        let path = resolve(name).map_err(failed)?;
        let file = OpenOptions::new().read(true).write(true).open(&path);
        Ok(Self {
            name: name.display().to_string(),
            file: file.map_err(failed)?,
            path,
            lock_beside: None,
            parts: OnceLock::new(),
            wal: Wal::default(),
        })
    }

    fn try_open(name: &Path) -> Result<Self, OpenError> {
        let database = || name.display().to_string();
        let failed = |error: io::Error| match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => OpenError::Full {
                database: database(),
                reason: error.to_string(),
            },
            _ => OpenError::Unusable {
                database: database(),
                reason: error.to_string(),
            },
        };
        let in_use = |holder: String| OpenError::InUse {
            database: database(),
            holder,
        };
        let path = resolve(name).map_err(failed)?;
        // SQL makes a copy of the database, and SQL is text.
        if path.to_str().is_none() {
            let reason = "its name is not UTF-8, which SQLite requires";
            return Err(failed(io::Error::other(reason)));
        }
        // The separate lock file is locked first: it names the process that uses the database, and it keeps older
        // versions of provost out, which know no other lock.
        let lock = with_suffix(&path, ".lock");
        let mut beside = open_lock(&lock, &path).map_err(|error| {
            let reason = format!("its lock {}: {error}", lock.display());
            failed(io::Error::new(error.kind(), reason))
        })?;
        match beside.try_lock() {
            Ok(()) => say_holder(&mut beside),
            Err(TryLockError::WouldBlock) => return Err(in_use(holder(&mut beside))),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        for file in readable_by_others(&path) {
            let file = file.display();
            warn!(
                %file,
                "other users of this machine can read a file of the database, which holds the input of all tasks and the key of all links: run chmod o= {file}"
            );
        }
        refuse_leftovers(&path, &database())?;
        let file = open_or_create(&path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            let reason = match metadata.file_type().is_block_device() {
                true => "it is a device, not a file",
                false => "it is not a file",
            };
            return Err(failed(io::Error::other(reason)));
        }
        // On Linux this lock and those of SQLite are independent. Elsewhere they are of one kind, and SQLite would be
        // kept out too.
        #[cfg(target_os = "linux")]
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(in_use("it has opened it under another name".to_owned()));
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        if metadata.nlink() > 1 {
            return Err(OpenError::SeveralNames {
                database: database(),
                names: metadata.nlink(),
            });
        }
        if is_mounted(&path) {
            return Err(OpenError::Mounted {
                database: database(),
            });
        }
        if Identity::at(&path).map_err(failed)? != Some(Identity::of(&metadata)) {
            let reason = "it was moved or replaced while it was being opened";
            return Err(failed(io::Error::other(reason)));
        }
        Ok(Self {
            name: database(),
            path,
            file,
            lock_beside: Some(beside),
            parts: OnceLock::new(),
            wal: Wal::default(),
        })
    }

    /// Returns whether no other process may use the database in the meantime.
    pub fn is_locked(&self) -> bool {
        self.lock_beside.is_some()
    }

    /// Returns the name in the settings.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path that SQLite opens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the file contains no database yet.
    pub fn is_empty(&self) -> bool {
        self.file.metadata().is_ok_and(|found| found.len() == 0)
    }

    /// Returns the path of a file next to the database, with this suffix.
    pub fn beside(&self, suffix: &str) -> PathBuf {
        with_suffix(&self.path, suffix)
    }

    /// Remembers which files SQLite has opened, after it has; or returns what has happened to the files in the
    /// meantime.
    pub fn remember_parts(&self) -> io::Result<FileState> {
        let identity = Identity::of(&self.file.metadata()?);
        let mut parts = vec![FilePart {
            kind: FileKind::Database,
            path: self.path.clone(),
            identity,
        }];
        for (kind, suffix) in [(FileKind::Wal, "-wal"), (FileKind::Index, "-shm")] {
            let path = self.beside(suffix);
            // A file system without shared memory has neither file.
            if let Some(identity) = Identity::at(&path)? {
                parts.push(FilePart {
                    kind,
                    path,
                    identity,
                });
            }
        }
        if parts.iter().any(|part| part.kind == FileKind::Index) {
            self.wal.open(self.beside("-wal"), self.beside("-shm"))?;
        }
        let _ = self.parts.set(parts);
        Ok(self.state())
    }

    /// Checks that the files are where they were. Takes some microseconds.
    pub fn state(&self) -> FileState {
        self.state_of(|_| true)
    }

    /// Returns the [`DatabaseFile::state`] right after a commit. `-shm` is not checked, because it contains no accepted
    /// data.
    pub fn state_after_commit(&self) -> FileState {
        self.state_of(|kind| kind != FileKind::Index)
    }

    /// Returns whether `-wal` has been cut. This is checked right before a commit, which would hide the cut.
    pub fn is_cut(&self) -> bool {
        self.wal.is_cut_now()
    }

    fn state_of(&self, looked_at: impl Fn(FileKind) -> bool) -> FileState {
        let parts = self.parts.get().map_or(&[][..], Vec::as_slice);
        let mut state = FileState::Kept;
        for part in parts.iter().filter(|part| looked_at(part.kind)) {
            match metadata(&part.path) {
                Ok(Some(found)) if Identity::of(&found) == part.identity => {
                    if part.kind == FileKind::Wal && self.wal.is_cut(found.len()) {
                        return FileState::Cut(part.path.clone());
                    }
                }
                Ok(Some(_)) => return FileState::Replaced(part.path.clone()),
                // A file that cannot be checked counts as missing.
                Ok(None) | Err(_) if state == FileState::Kept => {
                    state = FileState::Missing(part.path.clone());
                }
                Ok(None) | Err(_) => {}
            }
        }
        state
    }

    /// Returns whether the database was deleted, and not only moved: no name leads to it any more.
    pub fn is_deleted(&self) -> bool {
        self.file.metadata().is_ok_and(|file| file.nlink() == 0)
    }

    pub fn permissions(&self) -> io::Result<fs::Permissions> {
        Ok(self.file.metadata()?.permissions())
    }

    /// Removes the `-wal` and `-shm` that remain, if they are the files that this process opened.
    pub fn remove_parts(&self) {
        let parts = self.parts.get().map_or(&[][..], Vec::as_slice);
        for part in parts {
            if matches!(Identity::at(&part.path), Ok(Some(found)) if found == part.identity) {
                let _ = fs::remove_file(&part.path);
            }
        }
    }

    /// Returns whether the database file itself is where it was, even if `-wal` or `-shm` is not.
    pub fn is_kept(&self) -> bool {
        let database = self.parts.get().and_then(|parts| parts.first());
        database.is_some_and(
            |part| matches!(Identity::at(&part.path), Ok(Some(found)) if found == part.identity),
        )
    }
}

impl Identity {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }

    fn at(path: &Path) -> io::Result<Option<Self>> {
        Ok(metadata(path)?.as_ref().map(Self::of))
    }
}

fn metadata(path: &Path) -> io::Result<Option<fs::Metadata>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Refuses to create a database if the file is missing or empty while its other files are not: the database was lost,
/// and a new one would hide that. At the first start there are no other files, because the database is created first.
fn refuse_leftovers(path: &Path, database: &str) -> Result<(), OpenError> {
    let length = |suffix: &str| metadata(&with_suffix(path, suffix)).ok().flatten();
    let length = |suffix: &str| length(suffix).map(|found| found.len());
    let lost = match length("") {
        None => "missing",
        Some(0) => "empty",
        Some(_) => return Ok(()),
    };
    if length(RESCUED).is_some() {
        return Err(OpenError::Rescued {
            database: database.to_owned(),
            rescued: with_suffix(path, RESCUED).display().to_string(),
        });
    }
    let is_left = |suffix: &&str| match *suffix {
        // The reserve is created with the database, and made empty when there is no room.
        ".reserve" => lost == "missing" && length(suffix).is_some(),
        suffix => length(suffix).is_some_and(|length| length > 0),
    };
    let left = ["-wal", ".reserve"].into_iter().find(is_left);
    match left {
        Some(suffix) => Err(OpenError::Lost {
            database: database.to_owned(),
            lost,
            leftovers: with_suffix(path, suffix).display().to_string(),
        }),
        None => Ok(()),
    }
}

/// Returns the real path of a file that may not exist yet. A symbolic link to a missing file is followed too: the file
/// is created at its target.
pub(super) fn resolve(name: &Path) -> io::Result<PathBuf> {
    let mut name = std::path::absolute(name)?;
    for _ in 0..MOST_LINKS {
        match fs::canonicalize(&name) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            resolved => return resolved,
        }
        let (Some(folder), Some(file)) = (name.parent(), name.file_name()) else {
            return Err(ErrorKind::NotFound.into());
        };
        let folder = fs::canonicalize(folder).map_err(|error| {
            let reason = format!("its folder {}: {error}", folder.display());
            io::Error::new(error.kind(), reason)
        })?;
        let path = folder.join(file);
        match fs::read_link(&path) {
            Ok(target) => name = folder.join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// Returns whether the file is a mount point of its own, as containers have for single files. Returns false if that is
/// unknown.
#[cfg(target_os = "linux")]
fn is_mounted(path: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};

    let is_root = StatxAttributes::MOUNT_ROOT;
    statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS).is_ok_and(|found| {
        let known = found.stx_attributes_mask & found.stx_attributes;
        known.contains(is_root)
    })
}

#[cfg(not(target_os = "linux"))]
fn is_mounted(_: &Path) -> bool {
    false
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// Opens a lock file. A new one gets the owner of the database, as SQLite does it with `-wal`: a command that root runs
/// must not lock the service out.
fn open_lock(lock: &Path, database: &Path) -> io::Result<File> {
    let found = metadata(lock)?;
    let is_new = found.is_none();
    let file = open_or_create(lock)?;
    // Older versions made the file accessible for every user, and each user who can open it can lock it.
    if found.is_some_and(|found| found.permissions().mode() & OTHERS != 0) {
        let _ = file.set_permissions(fs::Permissions::from_mode(PRIVATE));
    }
    if let (true, Some(owner)) = (is_new, metadata(database)?) {
        let (user, group) = (Uid::from_raw(owner.uid()), Gid::from_raw(owner.gid()));
        // Only root may change the owner, and only for root it matters.
        let _ = rustix::fs::fchown(&file, Some(user), Some(group));
    }
    Ok(file)
}

/// Opens a file. A new one is accessible only for its owner from the beginning, because it contains the input of all
/// tasks, and the key of all links. SQLite gives `-wal` and `-shm` the mode of the database.
fn open_or_create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true);
    options.mode(PRIVATE).open(path)
}

/// Returns those files of the database that other users of this machine may read.
fn readable_by_others(path: &Path) -> Vec<PathBuf> {
    let suffixes = ["", "-wal", "-shm", ".lock", ".reserve", RESCUED];
    let files = suffixes.into_iter().map(|suffix| with_suffix(path, suffix));
    let is_readable = |file: &PathBuf| {
        let found = metadata(file).ok().flatten();
        found.is_some_and(|found| found.permissions().mode() & OTHERS != 0)
    };
    files.filter(is_readable).collect()
}

/// Writes the name of this process for the error message that another process shows. On a full disk the write fails,
/// which does no harm.
fn say_holder(file: &mut File) {
    let name = format!("process {}", std::process::id());
    let _ = file
        .write_all(name.as_bytes())
        .and_then(|()| file.set_len(name.len() as u64));
}

fn holder(file: &mut File) -> String {
    let mut holder = String::new();
    // A long text was not written by Provost.
    let _ = file
        .rewind()
        .and_then(|()| file.take(64).read_to_string(&mut holder));
    match holder.is_empty() {
        true => "an unknown process".to_owned(),
        false => holder,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[tokio::test]
    async fn new_files_are_for_their_owner_alone_and_others_are_named() {
        let (_folder, path) = folder();
        let lock = with_suffix(&path, ".lock");
        let opened = DatabaseFile::open(&path).await.unwrap();
        assert_eq!((mode(&path), mode(&lock)), (PRIVATE, PRIVATE));
        drop(opened);
        assert!(readable_by_others(&path).is_empty());
        // The files get the mode with which older versions made them.
        for file in [&path, &lock] {
            fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
        }
        assert_eq!(readable_by_others(&path), [path.clone(), lock.clone()]);
        let _opened = DatabaseFile::open(&path).await.unwrap();
        // An operator may have a reason for the mode of the database. The lock is Provost's own.
        assert_eq!((mode(&path), mode(&lock)), (0o644, PRIVATE));
        let group = fs::Permissions::from_mode(0o640);
        fs::set_permissions(&path, group).unwrap();
        assert!(readable_by_others(&path).is_empty());
    }

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("provost.db");
        (folder, path)
    }

    /// This test proves something only if root runs it, because other users cannot change the owner of a file.
    #[tokio::test]
    async fn a_lock_that_root_makes_belongs_to_the_owner_of_the_database() {
        let (_folder, path) = folder();
        fs::write(&path, "not empty").unwrap();
        let is_root = std::os::unix::fs::chown(&path, Some(65_534), Some(65_534)).is_ok();
        let owner = |path: &Path| fs::metadata(path).unwrap().uid();
        let _opened = DatabaseFile::open(&path).await.unwrap();
        assert_eq!(owner(&with_suffix(&path, ".lock")), owner(&path));
        assert_eq!(is_root, owner(&path) == 65_534);
    }

    #[test]
    fn every_way_to_the_file_leads_to_its_one_path() {
        let (folder, path) = folder();
        let inside = folder.path().join("inside");
        fs::create_dir(&inside).unwrap();
        symlink(&path, inside.join("absolute")).unwrap();
        symlink("../provost.db", inside.join("relative")).unwrap();
        symlink("relative", inside.join("twice")).unwrap();
        symlink(folder.path(), inside.join("folder")).unwrap();
        // In the first round the file does not exist yet.
        for _ in 0..2 {
            for way in [
                "absolute",
                "relative",
                "twice",
                "folder/provost.db",
                "./../provost.db",
            ] {
                assert_eq!(resolve(&inside.join(way)).unwrap(), path, "{way}");
            }
            fs::write(&path, "").unwrap();
        }
        symlink("round", inside.join("round")).unwrap();
        assert!(resolve(&inside.join("round")).is_err());
        let nowhere = resolve(&folder.path().join("no/such/provost.db")).unwrap_err();
        assert!(nowhere.to_string().contains("no/such"), "{nowhere}");
    }

    #[tokio::test]
    async fn a_file_with_a_second_name_is_refused_and_so_is_what_is_no_file() {
        let (folder, path) = folder();
        let other = folder.path().join("other.db");
        fs::write(&path, "").unwrap();
        fs::hard_link(&path, &other).unwrap();
        for name in [&path, &other] {
            let refused = DatabaseFile::open(name).await.unwrap_err();
            assert!(
                matches!(refused, OpenError::SeveralNames { names: 2, .. }),
                "{refused}"
            );
        }
        fs::remove_file(&other).unwrap();
        DatabaseFile::open(&path).await.unwrap();
        let refused = DatabaseFile::open(folder.path()).await.unwrap_err();
        assert!(matches!(refused, OpenError::Unusable { .. }), "{refused}");
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_name_that_is_not_utf_8_is_refused_and_nothing_is_made() {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

        let (folder, _) = folder();
        let name = folder.path().join(OsStr::from_bytes(b"provost\xff.db"));
        let refused = DatabaseFile::open(&name).await.unwrap_err();
        assert!(refused.to_string().contains("not UTF-8"), "{refused}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_file_that_was_moved_while_it_is_in_use_is_locked_under_its_new_name_too() {
        let (folder, path) = folder();
        let held = DatabaseFile::open(&path).await.unwrap();
        held.remember_parts().unwrap();
        let moved = folder.path().join("moved.db");
        fs::rename(&path, &moved).unwrap();
        assert_eq!(held.state(), FileState::Missing(path.clone()));
        let refused = DatabaseFile::open(&moved).await.unwrap_err();
        assert!(matches!(refused, OpenError::InUse { .. }), "{refused}");
        fs::write(&path, "").unwrap();
        assert_eq!(held.state(), FileState::Replaced(path.clone()));
        assert!(!held.is_kept());
        fs::rename(&moved, &path).unwrap();
        assert_eq!(held.state(), FileState::Kept);
        drop(held);
        DatabaseFile::open(&path).await.unwrap();
    }
}
