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
    // worth keeping among the statements that are kept.
    let mut vacuum = format!("PRAGMA incremental_vacuum({pages})");
    if let Some(most) = max_pages {
        // A file that was larger than it may be has the size that it had as its limit, until it is set again.
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

#[cfg(test)]
mod tests {
    use sqlx::{
        ConnectOptions,
        sqlite::{SqliteAutoVacuum, SqliteConnectOptions},
    };
    use tempfile::TempDir;

    use super::*;

    /// Of 500 pages and more, nearly all of them free.
    async fn mostly_free(folder: &TempDir) -> SqliteConnection {
        let options = SqliteConnectOptions::new()
            .filename(folder.path().join("some.db"))
            .create_if_missing(true)
            .auto_vacuum(SqliteAutoVacuum::Incremental);
        let mut database = options.connect().await.unwrap();
        let fill = "CREATE TABLE things (thing BLOB);
            WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 500)
            INSERT INTO things SELECT randomblob(5000) FROM numbers;
            DELETE FROM things WHERE rowid % 50 <> 0";
        sqlx::raw_sql(fill).execute(&mut database).await.unwrap();
        database
    }

    async fn number(database: &mut SqliteConnection, sql: &'static str) -> u64 {
        let number: i64 = sqlx::query_scalar(sql).fetch_one(database).await.unwrap();
        number.unsigned_abs()
    }

    #[tokio::test]
    async fn all_pages_that_are_asked_for_are_given_back_and_none_before_the_commit() {
        let folder = tempfile::tempdir().unwrap();
        let mut database = mostly_free(&folder).await;
        let pages = number(&mut database, "PRAGMA page_count").await;
        for commits in [false, true] {
            let begin = sqlx::raw_sql("BEGIN IMMEDIATE");
            begin.execute(&mut database).await.unwrap();
            give_back(&mut database, 64, None).await.unwrap();
            let end = if commits { "COMMIT" } else { "ROLLBACK" };
            sqlx::raw_sql(end).execute(&mut database).await.unwrap();
            let given = pages - number(&mut database, "PRAGMA page_count").await;
            assert_eq!(given, if commits { 64 } else { 0 });
        }
        // As many as there are, and what is kept is whole.
        give_back(&mut database, u32::MAX, None).await.unwrap();
        assert_eq!(number(&mut database, "PRAGMA freelist_count").await, 0);
        let kept = "SELECT sum(length(thing)) FROM things";
        assert_eq!(number(&mut database, kept).await, 50_000);
    }

    #[tokio::test]
    async fn a_file_that_was_larger_than_it_may_be_does_not_get_as_large_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut database = mostly_free(&folder).await;
        let limit = "PRAGMA max_page_count = 100";
        sqlx::raw_sql(limit).execute(&mut database).await.unwrap();
        let pages = number(&mut database, "PRAGMA page_count").await;
        assert_eq!(number(&mut database, "PRAGMA max_page_count").await, pages);
        give_back(&mut database, 64, Some(100)).await.unwrap();
        assert_eq!(
            number(&mut database, "PRAGMA max_page_count").await,
            pages - 64
        );
        give_back(&mut database, u32::MAX, Some(100)).await.unwrap();
        assert_eq!(number(&mut database, "PRAGMA max_page_count").await, 100);
    }
}
