//! Looks after the database file while it is in use.

use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::SqlitePool;
use tracing::{info, warn};

use super::{file::Place, files::Files};

/// Looks after the database file. Each look is short.
#[derive(Debug)]
pub struct Keeper {
    files: Files,
    /// One connection, open for as long as this is.
    pool: SqlitePool,
    is_lost: AtomicBool,
}

impl Keeper {
    pub(super) fn new(files: Files, pool: SqlitePool) -> Self {
        Self {
            files,
            pool,
            is_lost: AtomicBool::new(false),
        }
    }

    pub async fn look(&self) {
        if self.files.look() == Place::Kept || self.is_lost.swap(true, Ordering::Relaxed) {
            return;
        }
        // The last connection that closes removes `-wal`, by its name: it may be another database's by now. So
        // one is never closed.
        std::mem::forget(self.pool.clone());
        if self.files.file.is_kept() {
            self.rescue().await;
        }
    }

    /// What was committed last is only in a `-wal` that has lost its name: it is still open here, and is
    /// written into the database while it is.
    async fn rescue(&self) {
        let folded = sqlx::query("PRAGMA wal_checkpoint(FULL)");
        match folded.fetch_one(&self.pool).await {
            Ok(_) => info!("all that was accepted is in the database file itself"),
            Err(error) => {
                warn!(%error, "what was accepted last could not be written into the database file");
            }
        }
    }
}
