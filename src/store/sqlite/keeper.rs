//! Watches the database file while it is in use: its name must lead to it, and it must have room.

use std::{fs, sync::Arc, time::Duration};

use rusqlite::Connection;
use tracing::{debug, info, warn};

use super::{
    BUSY, PAGE_SIZE,
    file::FileState,
    files::DatabaseFiles,
    pool::ReaderPool,
    rescue::rescue,
    reserve::{Disk, LEAST, Reserve},
};
use crate::{
    blocking,
    clock::{self, Instant},
    store::{StoreError, StoreFault},
};

/// The bytes that must become free after the disk was full before anything new is accepted: a share of the reserve
/// within these bounds. Without this margin, each few bytes that are freed would be used and then refused again.
const MARGIN: std::ops::RangeInclusive<u64> = (64 << 10)..=(512 << 10);

/// The largest number of pages that SQLite supports.
const MOST_PAGES: u64 = 4_294_967_294;

/// The time between two attempts to save data that is only in files which this process has open.
const SAVE_AGAIN: Duration = Duration::from_secs(10);

/// Watches the database file. Each check is short.
#[derive(Debug)]
pub struct Keeper {
    files: DatabaseFiles,
    /// One connection of the pool is open as long as this object exists.
    pool: Arc<ReaderPool>,
    reserve: Reserve,
    /// The most pages that the file may have.
    max_pages: Option<u64>,
    is_lost: bool,
    /// True if the data that is only in open files has been saved. `save_at` is the time of the next attempt.
    is_saved: bool,
    save_at: Instant,
    /// The least room since the disk became full, in bytes.
    lowest: Option<u64>,
}

impl Keeper {
    pub(super) fn new(
        files: DatabaseFiles,
        reserve: Reserve,
        pool: Arc<ReaderPool>,
        max_pages: Option<u64>,
    ) -> Self {
        Self {
            files,
            pool,
            reserve,
            max_pages,
            is_lost: false,
            is_saved: false,
            save_at: clock::instant(),
            lowest: None,
        }
    }

    pub async fn look(&mut self) {
        let state = self.files.look();
        if state != FileState::Kept || self.files.health.has(StoreFault::Cut) {
            return self.lose(state).await;
        }
        self.is_saved = false;
        if !self.files.health.has(StoreFault::Full) {
            self.keep_room().await;
        }
        if self.files.health.has(StoreFault::Full) {
            self.make_room().await;
        }
    }

    /// Saves data that could not be saved before at once, because no process can after this one.
    pub async fn look_a_last_time(&mut self) {
        self.save_at = clock::instant();
        self.look().await;
    }

    async fn lose(&mut self, state: FileState) {
        if !std::mem::replace(&mut self.is_lost, true) {
            // When the last connection closes, it removes `-wal` by its name, which may be that of another database
            // now. It would also fold a cut `-wal` back into the database, without the lost part. So one connection is
            // never closed.
            std::mem::forget(self.pool.clone());
        }
        let is_due = !self.is_saved && clock::instant() >= self.save_at;
        if is_due && matches!(state, FileState::Missing(_)) {
            self.is_saved = match self.files.file.is_kept() {
                true => self.save_wal().await,
                false if self.files.file.is_deleted() => self.save_all().await,
                // The database was only moved.
                false => false,
            };
            self.save_at = clock::instant() + SAVE_AGAIN;
        }
    }

    /// Saves the latest commits if they are only in a `-wal` that has lost its name: as long as this process has it
    /// open, it can write it into the database. Returns whether it did.
    async fn save_wal(&self) -> bool {
        let fold = |connection: &mut Connection| {
            let is_busy = "PRAGMA wal_checkpoint(FULL)";
            Ok(connection.query_row(is_busy, [], |row| row.get("busy"))?)
        };
        match self.pool.run::<bool>(fold).await {
            Ok(false) => {
                info!("all accepted data is in the database file itself");
                return true;
            }
            Ok(true) => warn!(
                "the latest accepted data could not be written to the database file yet: a read blocks it"
            ),
            Err(error) => {
                warn!(%error, "the latest accepted data could not be written to the database file");
            }
        }
        false
    }

    /// Saves the data of a deleted database, which is only in the files that this process has open. Returns whether it
    /// did.
    async fn save_all(&self) -> bool {
        match rescue(&self.files.file, &self.pool).await {
            Ok(copy) => {
                info!(copy = %copy.display(), "all accepted data is in a copy of the database");
                self.files.say_rescued(&copy);
                true
            }
            Err(error) => {
                warn!(%error, "the database was deleted, and no copy of it could be written");
                self.files.say_not_rescued(&error);
                false
            }
        }
    }

    /// Checks, while there is no fault, that there is a reserve, and room in addition to it.
    async fn keep_room(&mut self) {
        self.lowest = None;
        let disk = self.disk();
        let (size, kept) = (self.reserve.size, self.reserve.kept());
        // Without a reserve, its room is not available for anything new: a process that was killed on a full disk
        // leaves no reserve.
        let has_room = kept > 0 || disk.has(size + self.margin());
        if disk.is_full() || !has_room {
            return self.files.raise_full();
        }
        let has_grown = kept < size && disk.available >= 2 * size;
        if kept == 0 || has_grown {
            self.make_reserve(disk).await;
        }
    }

    /// While there is no room: releases the reserve for accepted tasks, folds `-wal` back, and checks whether room was
    /// freed.
    async fn make_room(&mut self) {
        if self.disk().available < self.reserve.size {
            self.reserve.release();
        }
        self.fold().await;
        let Some(room) = self.room().await else {
            return;
        };
        let lowest = self.lowest.map_or(room, |lowest| lowest.min(room));
        self.lowest = Some(lowest);
        let disk = self.disk();
        // If there is more room than a reserve and a whole `-wal` release, the disk is not full, whatever the room was
        // before.
        let enough = 2 * (self.reserve.size + self.margin());
        let is_more = room >= enough.min(lowest + self.margin());
        if is_more && !disk.is_full() {
            if self.reserve.kept() == 0 {
                self.make_reserve(disk).await;
            }
            self.lowest = None;
            self.files.health.clear(StoreFault::Full);
        }
    }

    fn disk(&self) -> Disk {
        Disk::of(self.files.file.path())
    }

    fn margin(&self) -> u64 {
        (self.reserve.size / 4).clamp(*MARGIN.start(), *MARGIN.end())
    }

    /// Makes the reserve, or as much of it as leaves a margin free.
    async fn make_reserve(&self, disk: Disk) {
        let beside = disk.available.saturating_sub(self.margin());
        let bytes = self.reserve.size.min(beside) / 4096 * 4096;
        if bytes < LEAST {
            return;
        }
        let reserve = self.reserve.clone();
        let made = blocking::spawn(move || reserve.make(bytes)).await;
        if let Ok(Err(error)) = made {
            debug!(%error, bytes, "could not create the reserve");
        }
    }

    /// Writes `-wal` into the database and releases its room. A long read prevents that.
    async fn fold(&self) {
        let wal = fs::metadata(self.files.file.beside("-wal"));
        if !wal.is_ok_and(|wal| wal.len() > 0) {
            return;
        }
        let folded = self.pool.run(|connection| {
            // In the meantime nothing can be written.
            connection.busy_timeout(Duration::from_secs(1))?;
            let folded = connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
            connection.busy_timeout(BUSY)?;
            Ok(folded?)
        });
        if let Err(error) = folded.await {
            debug!(%error, "could not checkpoint the WAL");
        }
    }

    /// Returns how many bytes the database can take: the room by which it may still grow, and the free pages in it.
    async fn room(&self) -> Option<u64> {
        let measured = self.pool.run(|connection| {
            let pages = |pragma| -> Result<u64, StoreError> {
                let pages: i64 = connection.query_row(pragma, [], |row| row.get(0))?;
                Ok(pages.unsigned_abs() * u64::from(PAGE_SIZE))
            };
            Ok((pages("PRAGMA page_count")?, pages("PRAGMA freelist_count")?))
        });
        match measured.await {
            Ok((taken, free)) => {
                // The limit of this connection is not used: if the file was larger when it was opened, that is the size
                // of the file.
                let most = self.max_pages.unwrap_or(MOST_PAGES) * u64::from(PAGE_SIZE);
                let growth = most.saturating_sub(taken);
                Some(growth.min(self.disk().available) + free)
            }
            Err(error) => {
                debug!(%error, "could not measure the free space in the database");
                None
            }
        }
    }
}
