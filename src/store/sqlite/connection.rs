//! Connections to the database file, each on a thread of its own.
//!
//! What is done on one is a job: a whole batch to save, or a whole view to read. It is handed over once and answered
//! once, however many statements it takes, because each hand-over between threads costs more than a row.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
    sync::{Arc, mpsc},
    thread,
};

use rusqlite::{
    Batch, Connection, OpenFlags, config::DbConfig, fallible_iterator::FallibleIterator, ffi,
};
use tokio::sync::oneshot;

use super::{BUSY, PAGE_SIZE, file::DatabaseFile, reserve::Disk};

/// Statements that are kept prepared.
const STATEMENTS: usize = 128;

type Job = Box<dyn FnOnce(&mut Connection) + Send>;
/// What a job came to, or what it panicked with.
type Outcome<R> = Result<R, Box<dyn Any + Send>>;

/// A connection and its thread. It is closed when this is dropped and what it was given is done.
#[derive(Debug)]
pub struct ConnectionThread {
    jobs: mpsc::Sender<Job>,
    closed: oneshot::Receiver<()>,
}

impl ConnectionThread {
    pub async fn start(
        open: impl FnOnce() -> rusqlite::Result<Connection> + Send + 'static,
    ) -> rusqlite::Result<Self> {
        let (jobs, taken) = mpsc::channel::<Job>();
        let (opened, answer) = oneshot::channel();
        let (open_end, closed) = oneshot::channel();
        let work = move || {
            let mut connection = match open() {
                Ok(connection) => connection,
                Err(error) => {
                    let _ = opened.send(Err(error));
                    return;
                }
            };
            let _ = opened.send(Ok(()));
            for job in taken {
                job(&mut connection);
            }
            drop(connection);
            drop(open_end);
        };
        let thread = thread::Builder::new().name("sqlite".to_owned());
        let started = thread.spawn(work);
        started.map_err(|error| no_thread(format!("no thread for it: {error}")))?;
        answer
            .await
            .map_err(|_| no_thread("its thread ended".to_owned()))??;
        Ok(Self { jobs, closed })
    }

    /// Does the job, even where nobody waits for the answer any more. A panic of the job is one of the caller.
    pub async fn run<R: Send + 'static, E: From<rusqlite::Error> + Send + 'static>(
        &self,
        job: impl FnOnce(&mut Connection) -> Result<R, E> + Send + 'static,
    ) -> Result<R, E> {
        let (answer, outcome) = oneshot::channel::<Outcome<Result<R, E>>>();
        self.post(move |connection| {
            let done = catch_unwind(AssertUnwindSafe(|| job(connection)));
            let _ = answer.send(done);
        });
        match outcome.await {
            Ok(Ok(done)) => done,
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => Err(no_thread("its thread ended".to_owned()).into()),
        }
    }

    /// Does the job, which must not panic, after those that were given before it. Nobody is answered.
    pub fn post(&self, job: impl FnOnce(&mut Connection) + Send + 'static) {
        // A thread that ended has dropped what would have answered.
        let _ = self.jobs.send(Box::new(job));
    }

    /// Waits until it is closed.
    pub async fn close(self) {
        drop(self.jobs);
        // Either way it is gone.
        let _ = self.closed.await;
    }
}

fn no_thread(reason: String) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_ABORT), Some(reason))
}

/// What a connection may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectionAccess {
    Write,
    Read,
}

/// Opens the database before any other connection of this process, to write, and makes it where the file is empty.
/// `max_pages`: how many the file may have.
pub fn connect_first(
    file: &Arc<DatabaseFile>,
    max_pages: Option<u64>,
) -> rusqlite::Result<Connection> {
    let connection = open_locked(file)?;
    make(&connection, file)?;
    configure(&connection, file, max_pages, ConnectionAccess::Write)?;
    Ok(connection)
}

/// Opens the database that is in use here. `max_pages`: how many the file may have.
pub fn connect(
    file: &Arc<DatabaseFile>,
    max_pages: Option<u64>,
    access: ConnectionAccess,
) -> rusqlite::Result<Connection> {
    let connection = open_locked(file)?;
    configure(&connection, file, max_pages, access)?;
    Ok(connection)
}

fn open_locked(file: &Arc<DatabaseFile>) -> rusqlite::Result<Connection> {
    // It is there already. One that is gone must not be made again.
    let connection = open(file.path(), OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let lock = file.clone();
    // Nothing sorts by it. SQLite drops a collation after it has closed the files of its connection: so the lock is
    // held until the last one has.
    connection.create_collation("provost_lock", move |a, b| {
        let _held = &lock;
        a.cmp(b)
    })?;
    Ok(connection)
}

/// What must be set before the first page is written.
fn make(connection: &Connection, file: &DatabaseFile) -> rusqlite::Result<()> {
    run_script(connection, &format!("PRAGMA page_size = {PAGE_SIZE}"))?;
    // The database gives pages back. Only one that is not there yet takes it. On any other the setting is written again
    // with each connection, which a full disk would refuse.
    if file.is_empty() {
        run_script(connection, "PRAGMA auto_vacuum = incremental")?;
    }
    use_wal(connection)
}

/// It stays so in the file. A backup is a file that has it not, and an empty file gets its first page by it.
pub fn use_wal(connection: &Connection) -> rusqlite::Result<()> {
    run_script(connection, "PRAGMA journal_mode = wal")
}

fn configure(
    connection: &Connection,
    file: &DatabaseFile,
    max_pages: Option<u64>,
    access: ConnectionAccess,
) -> rusqlite::Result<()> {
    let wal_pages = Disk::of(file.path()).wal_pages();
    let wal_bytes = wal_pages * u64::from(PAGE_SIZE);
    let (cache, only_reads) = match access {
        ConnectionAccess::Write => (4096, "off"),
        ConnectionAccess::Read => (1024, "on"),
    };
    // Once writes are grouped, FULL costs no more than NORMAL, and survives a power cut.
    connection.execute_batch(&format!(
        "PRAGMA synchronous = full;
         PRAGMA foreign_keys = on;
         PRAGMA cache_size = -{cache};
         PRAGMA wal_autocheckpoint = {wal_pages};
         PRAGMA journal_size_limit = {wal_bytes};
         PRAGMA query_only = {only_reads}"
    ))?;
    if let Some(pages) = max_pages {
        connection.execute_batch(&format!("PRAGMA max_page_count = {pages}"))?;
    }
    Ok(())
}

/// Runs each statement of the script to its end. `execute_batch` ends one that has rows at its first: what fails
/// afterwards, as the commit of `PRAGMA journal_mode` may, is lost.
pub fn run_script(connection: &Connection, script: &str) -> rusqlite::Result<()> {
    let mut statements = Batch::new(connection, script);
    while let Some(mut statement) = statements.next()? {
        let mut rows = statement.query([])?;
        while rows.next()?.is_some() {}
    }
    Ok(())
}

/// All that is read while it is there is of one moment. Its statements stay prepared, as those of
/// [`rusqlite::Transaction`] do not.
pub struct Snapshot<'c>(&'c Connection);

impl<'c> Snapshot<'c> {
    pub fn of(connection: &'c Connection) -> rusqlite::Result<Self> {
        connection.prepare_cached("BEGIN")?.execute([])?;
        Ok(Self(connection))
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        // SQLite may have ended it by itself. If it cannot be ended, the next one cannot begin, and says why.
        if !self.0.is_autocommit()
            && let Ok(mut end) = self.0.prepare_cached("ROLLBACK")
        {
            let _ = end.execute([]);
        }
    }
}

/// Opens a database as it is.
pub fn open(path: &Path, access: OpenFlags) -> rusqlite::Result<Connection> {
    let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    // A function that has effects is not called by anything that another program has put into the schema.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn in_memory() -> ConnectionThread {
        let thread = ConnectionThread::start(Connection::open_in_memory).await;
        thread.unwrap()
    }

    async fn count(thread: &ConnectionThread) -> i64 {
        let count = "SELECT count(*) FROM things";
        let counted = thread.run(|connection| connection.query_row(count, [], |row| row.get(0)));
        counted.await.unwrap()
    }

    #[tokio::test]
    async fn a_job_that_panics_is_its_callers_and_the_next_one_is_done() {
        let thread = in_memory().await;
        let table =
            |connection: &mut Connection| connection.execute_batch("CREATE TABLE things (a)");
        thread.run(table).await.unwrap();
        let panics = thread.run(|_| -> rusqlite::Result<()> { panic!("planted") });
        let panicked = AssertUnwindSafe(panics);
        assert!(futures::FutureExt::catch_unwind(panicked).await.is_err());
        assert_eq!(count(&thread).await, 0);
    }

    #[tokio::test]
    async fn a_job_is_done_although_nobody_waits_for_it_and_before_the_connection_closes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.db");
        let database = path.clone();
        let thread = ConnectionThread::start(|| Connection::open(database)).await;
        let thread = thread.unwrap();
        let fill = "CREATE TABLE things (a); INSERT INTO things VALUES (1)";
        let filled = thread.run(move |connection| connection.execute_batch(fill));
        // Polled once, it has handed the job over, and is dropped.
        let _ = futures::FutureExt::now_or_never(filled);
        thread.close().await;
        let thread = ConnectionThread::start(|| Connection::open(path)).await;
        assert_eq!(count(&thread.unwrap()).await, 1);
    }

    #[test]
    fn every_statement_of_a_script_is_run_and_each_to_its_end() {
        let database = Connection::open_in_memory().unwrap();
        let script = "-- First.
            CREATE TABLE things (a); ; /* Some rows. */ INSERT INTO things VALUES (1), (2) RETURNING a;
            INSERT INTO things VALUES (3) -- Last.";
        run_script(&database, script).unwrap();
        let sum = |sql| database.query_row::<i64, _, _>(sql, [], |row| row.get(0));
        assert_eq!(sum("SELECT sum(a) FROM things").unwrap(), 6);
        let fails_late = "SELECT 1 UNION ALL SELECT abs(-9223372036854775808)";
        database.execute_batch(fails_late).unwrap();
        let failed = run_script(&database, fails_late).unwrap_err();
        assert!(failed.to_string().contains("overflow"), "{failed}");
    }

    #[test]
    fn sqlite_is_built_with_the_flags_of_cargos_configuration() {
        let database = Connection::open_in_memory().unwrap();
        let count = |option: &str| {
            let find = "SELECT count(*) FROM pragma_compile_options WHERE compile_options = ?1";
            database.query_row::<i64, _, _>(find, [option], |row| row.get(0))
        };
        assert_eq!(count("ENABLE_DBSTAT_VTAB").unwrap(), 1);
        assert_eq!(
            count("ENABLE_MEMORY_MANAGEMENT").unwrap(),
            0,
            "see .cargo/config.toml"
        );
    }

    #[tokio::test]
    async fn what_cannot_be_opened_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing.db");
        let open_missing = move || open(&missing, OpenFlags::SQLITE_OPEN_READ_WRITE);
        let refused = ConnectionThread::start(open_missing).await.unwrap_err();
        assert!(refused.to_string().contains("unable to open"), "{refused}");
    }
}
