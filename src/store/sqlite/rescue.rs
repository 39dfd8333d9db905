//! The last copy of a database that was deleted: what this process has open still holds all that was accepted,
//! until it ends.

use std::{fs, io, path::PathBuf};

use sqlx::SqlitePool;
use thiserror::Error;

use super::{
    backup::{BackupError, copy_whole},
    file::{DatabaseFile, RESCUED},
};

#[derive(Debug, Error)]
pub enum RescueError {
    #[error("{0} already exists")]
    Exists(PathBuf),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Sqlite(#[from] sqlx::Error),
    #[error(transparent)]
    Backup(#[from] BackupError),
}

/// Writes a whole copy beside the place where the database was. What is left there of `-wal` and `-shm` is in the
/// copy too, and would be played back into it under its next name: it is removed.
pub async fn rescue(file: &DatabaseFile, pool: &SqlitePool) -> Result<PathBuf, RescueError> {
    let to = file.beside(RESCUED);
    if fs::symlink_metadata(&to).is_ok() {
        return Err(RescueError::Exists(to));
    }
    let mut connection = pool.acquire().await?;
    // The copy is written by the same connection.
    sqlx::query("PRAGMA query_only = off")
        .execute(&mut *connection)
        .await?;
    let copied = copy_whole(&mut connection, &to, file.permissions()?).await;
    sqlx::query("PRAGMA query_only = on")
        .execute(&mut *connection)
        .await?;
    copied?;
    file.remove_parts();
    Ok(to)
}
