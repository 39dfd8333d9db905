//! Whether the files that are in use are where they were: asked at each commit, for each new connection, and
//! every second by the keeper.

use std::{path::Path, sync::Arc};

use super::file::{DatabaseFile, Place};
use crate::store::{Health, StoreError, StoreFault};

/// The files in use, and the health that speaks for them.
#[derive(Clone, Debug)]
pub struct Files {
    pub file: Arc<DatabaseFile>,
    pub health: Health,
}

impl Files {
    /// Looks where the files are, and raises or clears the fault.
    pub fn look(&self) -> Place {
        let place = self.file.place();
        match &place {
            // What was written to the other file, or read from it into this one, nobody knows.
            _ if self.health.has(StoreFault::Replaced) => {}
            Place::Kept => self.health.clear(StoreFault::Missing),
            Place::Missing(path) => self.health.raise(StoreFault::Missing, self.missing(path)),
            Place::Replaced(path) => {
                self.health.raise(StoreFault::Replaced, self.replaced(path));
                self.health.clear(StoreFault::Missing);
            }
        }
        place
    }

    /// Whether something may be opened or written.
    pub fn check(&self) -> Result<(), StoreError> {
        if self.look() == Place::Kept {
            // Put back, it may still be that another file had its place meanwhile.
            return self.health.check_write();
        }
        self.health.check_write()?;
        Err(StoreError::Unavailable("the database was moved".to_owned()))
    }

    /// [`Files::check`] of what is committed already: some microseconds for a whole batch.
    pub fn check_committed(&self) -> Result<(), StoreError> {
        self.check().map_err(|error| match error {
            StoreError::Unavailable(reason) => StoreError::Unclear(reason),
            error => error,
        })
    }

    pub fn raise_full(&self) {
        let detail = format!(
            "the disk that holds {} is full, or the database has reached store.max_size. Nothing new is accepted, and what was accepted goes on as far as a reserve lasts. Free some space, or let ended tasks be deleted sooner (retention.keep); the service goes on by itself",
            self.file.name()
        );
        self.health.raise(StoreFault::Full, detail);
    }

    fn missing(&self, path: &Path) -> String {
        format!(
            "{} is gone: it was moved or deleted while provost uses it, and nothing is accepted into a file that is gone. Move it back, and the service goes on by itself; where it was deleted, stop the service and restore a backup",
            path.display()
        )
    }

    fn replaced(&self, path: &Path) -> String {
        format!(
            "{} is another file than the one that provost opened, and it does not write to it: restart the service to use the file that is there now, together with the -wal file that belongs to it, or with none",
            path.display()
        )
    }
}
