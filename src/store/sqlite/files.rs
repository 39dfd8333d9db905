//! Checks that the files in use are where they were: at each commit, for each new connection, and every second by the
//! keeper.

use std::{fmt::Display, path::Path, sync::Arc};

use super::{
    file::RESCUED,
    file::{DatabaseFile, FileState},
};
use crate::store::{Health, StoreError, StoreFault};

/// The files in use, and the health that reports their faults.
#[derive(Clone, Debug)]
pub struct DatabaseFiles {
    pub file: Arc<DatabaseFile>,
    pub health: Health,
}

impl DatabaseFiles {
    /// Checks where the files are, and raises or clears the fault.
    pub fn look(&self) -> FileState {
        self.found(self.file.state())
    }

    fn found(&self, state: FileState) -> FileState {
        match &state {
            // The data that was written to the other file, or read from it into this one, is unknown.
            _ if self.health.has(StoreFault::Replaced) => {}
            FileState::Cut(path) => self.raise_cut(path),
            FileState::Kept => self.health.clear(StoreFault::Missing),
            // The keeper reports what it did about the missing file.
            FileState::Missing(_) if self.health.has(StoreFault::Missing) => {}
            FileState::Missing(path) => self.health.raise(StoreFault::Missing, self.missing(path)),
            FileState::Replaced(path) => {
                self.health.raise(StoreFault::Replaced, self.replaced(path));
                self.health.clear(StoreFault::Missing);
            }
        }
        state
    }

    /// Returns an error unless files may be opened and written.
    pub fn check(&self) -> Result<(), StoreError> {
        self.check_state(self.file.state())
    }

    fn check_state(&self, state: FileState) -> Result<(), StoreError> {
        if self.found(state) == FileState::Kept {
            // The file was put back, but another file may have had its name in the meantime.
            return self.health.check_write();
        }
        self.health.check_write()?;
        Err(StoreError::Unavailable("the database was moved".to_owned()))
    }

    /// Runs [`DatabaseFiles::check`] after a commit. Takes some microseconds for a whole batch.
    pub fn check_committed(&self) -> Result<(), StoreError> {
        let checked = self.check_state(self.file.state_after_commit());
        checked.map_err(|error| match error {
            StoreError::Unavailable(reason) => StoreError::CommitUnknown(reason),
            error => error,
        })
    }

    /// Checks right before a commit that the earlier commits still exist.
    pub fn check_before_commit(&self) -> Result<(), StoreError> {
        if self.file.is_cut() {
            self.raise_cut(&self.file.beside("-wal"));
        }
        self.health.check_write()
    }

    fn raise_cut(&self, wal: &Path) {
        let detail = format!(
            "{} is shorter than what was written to it: something truncated it while provost uses it, and the latest accepted data is lost. Provost accepts and writes nothing any more. Stop the service, keep a copy of all files of the database, and restore a backup; or start it on what is left: see docs/deploy.md, \"Files that are deleted or cut\"",
            wal.display()
        );
        self.health.raise(StoreFault::Cut, detail);
    }

    pub fn raise_full(&self) {
        let detail = format!(
            "the disk that holds {} is full, or the database has reached store.max_size. Provost accepts nothing new, and running tasks continue as long as a reserve lasts. Free some space, or delete ended tasks sooner (retention.keep); the service then continues automatically",
            self.file.name()
        );
        self.health.raise(StoreFault::Full, detail);
    }

    fn missing(&self, path: &Path) -> String {
        let gone = format!(
            "{} is gone: it was moved or deleted while provost uses it, and provost accepts nothing into a deleted file.",
            path.display()
        );
        match path == self.file.path() {
            true => format!(
                "{gone} Move it back, and the service continues automatically. If it was deleted, do not stop the service yet: it holds the last copy, and writes it to {}: see docs/deploy.md, \"Files that are deleted or cut\"",
                self.file.beside(RESCUED).display()
            ),
            false => format!(
                "{gone} All accepted data is kept: restart the service, which will find it; or move the file back, and the service continues automatically"
            ),
        }
    }

    /// Reports that the database was deleted, and that its data is in a copy.
    pub fn say_rescued(&self, copy: &Path) {
        let detail = format!(
            "{} was deleted while provost uses it, and provost accepts nothing into a deleted file. All accepted data is in {}: stop the service, rename that file to the name of the database, and start the service again",
            self.file.path().display(),
            copy.display()
        );
        self.health.raise(StoreFault::Missing, detail);
    }

    /// Reports that the database was deleted, and that no copy could be written.
    pub fn say_not_rescued(&self, error: &impl Display) {
        let detail = format!(
            "{} was deleted while provost uses it, and provost accepts nothing into a deleted file. This process holds the last copy, and could not write it to another file ({error}). Do not stop it before you have copied its open files, /proc/{}/fd: see docs/deploy.md, \"Files that are deleted or cut\"",
            self.file.path().display(),
            std::process::id()
        );
        self.health.raise(StoreFault::Missing, detail);
    }

    fn replaced(&self, path: &Path) -> String {
        format!(
            "{} is not the file that provost opened, and provost does not write to it: restart the service to use the file that is there now, together with its own -wal file, or without one",
            path.display()
        )
    }
}
