//! Saves the last copy of a database that was deleted: the files that this process has open still contain all accepted
//! data until the process ends.

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

/// Writes a whole copy into the folder of the deleted database. The copy contains the data of the old `-wal` and
/// `-shm`, which would be applied to it when it gets the name of the database. So they are removed.
pub async fn rescue(file: &DatabaseFile, pool: &Arc<ReaderPool>) -> Result<PathBuf, RescueError> {
    let to = file.beside(RESCUED);
    if fs::symlink_metadata(&to).is_ok() {
        return Err(RescueError::Exists(to));
    }
    let (copy, permissions) = (to.clone(), file.permissions()?);
    let copied = pool.run(move |connection| {
        // The same connection writes the copy.
        connection.execute_batch("PRAGMA query_only = off")?;
        let copied = copy_whole(connection, &copy, permissions);
        connection.execute_batch("PRAGMA query_only = on")?;
        Ok(copied)
    });
    copied.await??;
    file.remove_parts();
    Ok(to)
}
