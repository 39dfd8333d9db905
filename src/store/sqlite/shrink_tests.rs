//! Shrinking a database keeps its content, even if the process is killed.

use std::{
    num::NonZeroUsize,
    path::PathBuf,
    process::{Command, Stdio},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use rusqlite::{Connection, OpenFlags};
use tempfile::TempDir;

use super::{shrink::Shrunk, *};

/// Makes ended tasks with inputs of 8 KB, and deletes the first ones.
const FILL: &str = r#"
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 3000)
INSERT INTO tasks (id, labels, priority, created_at, version, state, paused, ended_at)
SELECT CAST(printf('%016d', n) AS BLOB), '{}', 0, 1, 2, 'processed', 0, n FROM numbers;
INSERT INTO task_details (task_id, input)
SELECT id, '"' || hex(randomblob(4000)) || '"' FROM tasks;
DELETE FROM tasks WHERE ended_at <= 2000"#;
const KEPT: i64 = 1000;
const MIB: u64 = 1 << 20;

/// Makes a database as older versions did, which returns no space to the disk.
fn older(folder: &TempDir) -> PathBuf {
    let path = folder.path().join("provost.db");
    let mut database = Connection::open(&path).unwrap();
    let made = format!("PRAGMA page_size = {PAGE_SIZE}; PRAGMA journal_mode = wal");
    database.execute_batch(&made).unwrap();
    migrate::migrate(&mut database, &MIGRATIONS).unwrap();
    database.execute_batch(FILL).unwrap();
    drop(database);
    assert_eq!(number(&path, "PRAGMA auto_vacuum"), 0);
    path
}

fn number(path: &Path, sql: &str) -> i64 {
    value(path, sql)
}

fn value<V: rusqlite::types::FromSql>(path: &Path, sql: &str) -> V {
    let database = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
    database.query_row(sql, [], |row| row.get(0)).unwrap()
}

fn assert_whole(path: &Path) {
    assert_eq!(value::<String>(path, "PRAGMA integrity_check"), "ok");
    for kept in [
        "SELECT count(*) FROM tasks",
        "SELECT count(*) FROM task_details WHERE length(input) = 8002",
    ] {
        assert_eq!(number(path, kept), KEPT);
    }
}

#[tokio::test]
async fn a_file_of_an_older_version_gets_small_and_gives_back_space_from_then_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = older(&folder);
    let Shrunk {
        before_bytes,
        after_bytes,
    } = shrink(&path).await.unwrap();
    assert!(before_bytes > 24 * MIB, "{before_bytes}");
    assert!(after_bytes < before_bytes * 2 / 5, "{after_bytes}");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), after_bytes);
    assert!(!folder.path().join("provost.db-wal").exists());
    assert_eq!(number(&path, "PRAGMA auto_vacuum"), 2);
    assert_eq!(number(&path, "PRAGMA freelist_count"), 0);
    assert_whole(&path);
    let again = shrink(&path).await.unwrap();
    assert_eq!(
        (again.before_bytes, again.after_bytes),
        (after_bytes, after_bytes)
    );
}

#[tokio::test]
async fn a_new_database_gives_back_space_and_so_does_its_copy_and_no_connection_writes_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("provost.db");
    let definitions = || Arc::new(CompiledDefinitions::new(NonZeroUsize::MIN));
    drop(open(&path, None, definitions(), Health::default()).await);
    assert_eq!(number(&path, "PRAGMA auto_vacuum"), 2);
    let copy = folder.path().join("copy.db");
    backup(&path, &copy).await.unwrap();
    assert_eq!(number(&copy, "PRAGMA auto_vacuum"), 2);
    assert_eq!(value::<String>(&copy, "PRAGMA journal_mode"), "delete");
    shrink(&copy).await.unwrap();
    let migrated = folder.path().join("migrated.db");
    super::migrate(&migrated).await.unwrap();
    assert_eq!(number(&migrated, "PRAGMA auto_vacuum"), 2);
    for made in [&path, &migrated, &copy] {
        assert_eq!(number(made, "PRAGMA page_size"), i64::from(PAGE_SIZE));
        assert_eq!(value::<String>(made, "PRAGMA journal_mode"), "wal");
    }

    // Opening the database again adds nothing to an empty `-wal`, with all its readers. The file can be locked once its
    // former users have closed it, and the last one that closes it leaves no `-wal`.
    drop(DatabaseFile::open(&path).await.unwrap());
    assert_eq!(number(&path, "SELECT count(*) FROM tasks"), 0);
    assert!(!folder.path().join("provost.db-wal").exists());
    let opened = open(&path, None, definitions(), Health::default()).await;
    let opened = opened.unwrap();
    opened.readers.callers.now().await.unwrap();
    let wal = std::fs::metadata(folder.path().join("provost.db-wal"));
    assert_eq!(wal.unwrap().len(), 0);
}

#[tokio::test]
async fn what_is_in_use_is_left_alone_and_what_is_not_there_is_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.db");
    let refused = shrink(&missing).await.unwrap_err();
    assert!(matches!(refused, ShrinkError::Missing(_)), "{refused}");
    let nowhere = shrink(&folder.path().join("no/such.db")).await.unwrap_err();
    assert!(matches!(nowhere, ShrinkError::Missing(_)), "{nowhere}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);

    let path = older(&folder);
    let held = DatabaseFile::open(&path).await.unwrap();
    let refused = shrink(&path).await.unwrap_err();
    assert!(matches!(refused, ShrinkError::InUse { .. }), "{refused}");
    drop(held);
    assert_eq!(number(&path, "PRAGMA auto_vacuum"), 0);

    let other = folder.path().join("other.db");
    for others in ["", "CREATE TABLE things (thing TEXT)"] {
        Connection::open(&other)
            .unwrap()
            .execute_batch(others)
            .unwrap();
        let bytes = std::fs::read(&other).unwrap();
        let refused = shrink(&other).await.unwrap_err();
        assert!(matches!(refused, ShrinkError::Foreign(_)), "{refused}");
        assert!(std::fs::read(&other).unwrap() == bytes, "it was written to");
    }
    std::fs::write(&other, "no database").unwrap();
    let refused = shrink(&other).await.unwrap_err();
    let is_damaged = matches!(refused, ShrinkError::Open(OpenError::Damaged { .. }));
    assert!(is_damaged, "{refused}");
}

#[tokio::test]
async fn a_damaged_page_ends_it_and_nothing_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = older(&folder);
    let root = "SELECT rootpage FROM sqlite_schema WHERE name = 'task_details'";
    let root = number(&path, root).unsigned_abs();
    let mut bytes = std::fs::read(&path).unwrap();
    let at = ((root - 1) * u64::from(PAGE_SIZE)) as usize;
    bytes[at..at + 100].fill(0xff);
    std::fs::write(&path, &bytes).unwrap();
    let refused = shrink(&path).await.unwrap_err();
    let is_damaged = matches!(refused, ShrinkError::Open(OpenError::Damaged { .. }));
    assert!(is_damaged, "{refused}");
    assert!(std::fs::read(&path).unwrap() == bytes, "it was written to");
}

/// Names the database for the process that this test starts of itself.
const CHILD: &str = "PROVOST_TEST_SHRINK";
const THIS: &str =
    "store::sqlite::shrink_tests::a_process_that_is_killed_while_it_shrinks_loses_nothing";

#[tokio::test]
async fn a_process_that_is_killed_while_it_shrinks_loses_nothing() {
    if let Some(path) = std::env::var_os(CHILD) {
        shrink(Path::new(&path)).await.unwrap();
        return;
    }
    let seed = std::env::var("PROVOST_TEST_SEED")
        .map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("PROVOST_TEST_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().unwrap();
    let path = older(&folder);
    let run = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", THIS]).env(CHILD, &path);
        command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let original = std::fs::read(&path).unwrap();
    let started = std::time::Instant::now();
    assert!(run().wait().unwrap().success());
    let took = started.elapsed();
    let (mut killed, mut interrupted) = (0, 0);
    for _ in 0..8 {
        std::fs::write(&path, &original).unwrap();
        let mut child = run();
        // The child is killed at a random moment of its run. The sleep is that fault, and waits for nothing.
        std::thread::sleep(took.mul_f64(random.random_range(0.05..1.0)));
        killed += usize::from(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        interrupted += usize::from(number(&path, "PRAGMA freelist_count") > 0);
        assert_whole(&path);
    }
    println!("killed {killed}, {interrupted} of them before it was packed");
    assert!(killed > 0, "none was killed in time");
    shrink(&path).await.unwrap();
    assert_whole(&path);
}
