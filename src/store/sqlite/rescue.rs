//! The last copy of a database that was deleted: what this process has open still holds all that was accepted,
//! until it ends.

use std::{fs, io, path::PathBuf, sync::Arc};

use thiserror::Error;

use super::{
    backup::{BackupError, copy_whole},
    file::{DatabaseFile, RESCUED},
    pool::ReaderPool,
};
use crate::store::StoreError;

#[derive(Debug, Error)]
pub enum RescueError {
    #[error("{0} already exists")]
    Exists(PathBuf),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Backup(#[from] BackupError),
}

/// Writes a whole copy beside the place where the database was. What is left there of `-wal` and `-shm` is in the
/// copy too, and would be played back into it under its next name: it is removed.
pub async fn rescue(file: &DatabaseFile, pool: &Arc<ReaderPool>) -> Result<PathBuf, RescueError> {
    let to = file.beside(RESCUED);
    if fs::symlink_metadata(&to).is_ok() {
        return Err(RescueError::Exists(to));
    }
    let (copy, permissions) = (to.clone(), file.permissions()?);
    let copied = pool.run(move |connection| {
        // The copy is written by the same connection.
        connection.execute_batch("PRAGMA query_only = off")?;
        let copied = copy_whole(connection, &copy, permissions);
        connection.execute_batch("PRAGMA query_only = on")?;
        Ok(copied)
    });
    copied.await??;
    file.remove_parts();
    Ok(to)
}
