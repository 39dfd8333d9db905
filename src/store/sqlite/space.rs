//! How much of the database file is free, and giving it back.

use std::fs;

use sqlx::{AssertSqlSafe, SqliteConnection};

use super::{PAGE_SIZE, file::DatabaseFile, reserve::Disk};
use crate::domain::FileSpace;

const PAGES: &str = "
SELECT page_size, page_count, freelist_count, auto_vacuum
FROM pragma_page_size, pragma_page_count, pragma_freelist_count, pragma_auto_vacuum";

/// `-wal` is folded back when it has so many pages; where it is this many times as long, something is in the way.
const HELD_UP: u64 = 2;

/// SQLite's name for a file that gives pages back when it is asked to.
const INCREMENTAL: i64 = 2;

/// Some microseconds.
pub async fn measure(
    connection: &mut SqliteConnection,
    file: &DatabaseFile,
) -> Result<FileSpace, sqlx::Error> {
    let (page_size, pages, free, auto_vacuum): (i64, i64, i64, i64) =
        sqlx::query_as(PAGES).fetch_one(connection).await?;
    let bytes = |path| fs::metadata(path).map_or(0, |found: fs::Metadata| found.len());
    let disk = Disk::of(file.path());
    let wal = disk.wal_pages() * u64::from(PAGE_SIZE);
    Ok(FileSpace {
        page_size: page_size.unsigned_abs(),
        pages: pages.unsigned_abs(),
        free_pages: free.unsigned_abs(),
        file_bytes: bytes(file.path().to_owned()),
        can_give_back: auto_vacuum == INCREMENTAL,
        is_held_up: bytes(file.beside("-wal")) > HELD_UP * wal,
        is_disk_short: !disk.has(wal),
    })
}

/// Within a transaction. SQLite takes the last pages of the file, moves each that is in use to one that is free, and
/// so needs no more room than `-wal` takes for that.
pub async fn give_back(
    connection: &mut SqliteConnection,
    pages: u32,
    max_pages: Option<u64>,
) -> Result<(), sqlx::Error> {
    // Each page is a row of the answer: only a statement that is read to its end gives back all of them. It is not
    // worth a place among the statements that are kept.
    let mut vacuum = format!("PRAGMA incremental_vacuum({pages})");
    if let Some(most) = max_pages {
        // A file that was larger than it may be has the size that it had as its limit, until it is told again.
        vacuum += &format!("; PRAGMA max_page_count = {most}");
    }
    sqlx::raw_sql(AssertSqlSafe(vacuum))
        .execute(connection)
        .await?;
    Ok(())
}

/// Writes what is in `-wal` into the database, as far as nobody reads or writes what is in the way.
pub async fn fold(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    sqlx::query("PRAGMA wal_checkpoint(PASSIVE)")
        .execute(connection)
        .await?;
    Ok(())
}
