//! Measures the free space in the database file, and returns it to the disk.

use std::fs;

use rusqlite::Connection;

use super::{PAGE_SIZE, file::DatabaseFile, reserve::Disk};
use crate::domain::upkeep::FileSpace;

const PAGES: &str = "
SELECT page_size, page_count, freelist_count, auto_vacuum
FROM pragma_page_size, pragma_page_count, pragma_freelist_count, pragma_auto_vacuum";

/// `-wal` is folded back when it has a certain number of pages. If it is this many times as long, a read prevents that.
const HELD_UP: u64 = 2;

/// SQLite's number for a file that returns pages to the disk on request.
const INCREMENTAL: i64 = 2;

/// Measures the file. Takes some microseconds.
pub fn measure(connection: &Connection, file: &DatabaseFile) -> rusqlite::Result<FileSpace> {
    let numbers = |row: &rusqlite::Row<'_>| row.try_into();
    let mut pages = connection.prepare_cached(PAGES)?;
    let (page_size, pages, free, auto_vacuum): (i64, i64, i64, i64) =
        pages.query_row([], numbers)?;
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

/// Returns pages to the disk, within a transaction. SQLite takes the last pages of the file and moves each that is in
/// use to a free one, so it needs no more room than `-wal` takes for that.
pub fn give_back(
    connection: &Connection,
    pages: u32,
    max_pages: Option<u64>,
) -> rusqlite::Result<()> {
    // Each page is a row of the result: only a statement that is read to its end returns all of them. It is used too
    // rarely to be kept prepared.
    let mut vacuum = connection.prepare(&format!("PRAGMA incremental_vacuum({pages})"))?;
    let mut given = vacuum.query([])?;
    while given.next()?.is_some() {}
    if let Some(most) = max_pages {
        // If a file was larger than its limit when it was opened, its size is the limit until it is set again.
        connection.execute_batch(&format!("PRAGMA max_page_count = {most}"))?;
    }
    Ok(())
}

/// Writes the content of `-wal` into the database, as far as no other connection prevents it.
pub fn fold(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("PRAGMA wal_checkpoint(PASSIVE)")
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// Makes a database of at least 500 pages, nearly all of them free.
    fn mostly_free(folder: &TempDir) -> Connection {
        let database = Connection::open(folder.path().join("some.db")).unwrap();
        let fill = "PRAGMA auto_vacuum = incremental;
            CREATE TABLE things (thing BLOB);
            WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 500)
            INSERT INTO things SELECT randomblob(5000) FROM numbers;
            DELETE FROM things WHERE rowid % 50 <> 0";
        database.execute_batch(fill).unwrap();
        database
    }

    fn number(database: &Connection, sql: &str) -> u64 {
        let number: i64 = database.query_row(sql, [], |row| row.get(0)).unwrap();
        number.unsigned_abs()
    }

    #[test]
    fn all_pages_that_are_asked_for_are_given_back_and_none_before_the_commit() {
        let folder = tempfile::tempdir().unwrap();
        let database = mostly_free(&folder);
        let pages = number(&database, "PRAGMA page_count");
        for commits in [false, true] {
            database.execute_batch("BEGIN IMMEDIATE").unwrap();
            give_back(&database, 64, None).unwrap();
            let end = if commits { "COMMIT" } else { "ROLLBACK" };
            database.execute_batch(end).unwrap();
            let given = pages - number(&database, "PRAGMA page_count");
            assert_eq!(given, if commits { 64 } else { 0 });
        }
        // All free pages are returned, and the content stays whole.
        give_back(&database, u32::MAX, None).unwrap();
        assert_eq!(number(&database, "PRAGMA freelist_count"), 0);
        let kept = "SELECT sum(length(thing)) FROM things";
        assert_eq!(number(&database, kept), 50_000);
    }

    #[test]
    fn a_file_that_was_larger_than_it_may_be_does_not_get_as_large_again() {
        let folder = tempfile::tempdir().unwrap();
        let database = mostly_free(&folder);
        database
            .execute_batch("PRAGMA max_page_count = 100")
            .unwrap();
        let pages = number(&database, "PRAGMA page_count");
        assert_eq!(number(&database, "PRAGMA max_page_count"), pages);
        give_back(&database, 64, Some(100)).unwrap();
        assert_eq!(number(&database, "PRAGMA max_page_count"), pages - 64);
        give_back(&database, u32::MAX, Some(100)).unwrap();
        assert_eq!(number(&database, "PRAGMA max_page_count"), 100);
    }
}
