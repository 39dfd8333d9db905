//! Connections to the database file, each on a thread of its own.
//!
//! The unit of work of a connection is a job: a whole batch to save, or a whole view to read. The thread receives it
//! once and responds once, for any number of statements, because each hand-over between threads costs more than a row.

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
#[cfg(test)]
use crate::host;

/// The number of statements that are kept prepared.
const STATEMENTS: usize = 128;

type Job = Box<dyn FnOnce(&mut Connection) + Send>;
/// The result of a job, or its panic.
type Outcome<R> = Result<R, Box<dyn Any + Send>>;

/// A connection and its thread. The connection is closed when this is dropped and all its jobs are done.
#[derive(Debug)]
pub struct ConnectionThread {
    jobs: JobSender,
    closed: oneshot::Receiver<()>,
}

#[derive(Debug)]
enum JobSender {
    Thread(mpsc::Sender<Job>),
    /// In a simulation the jobs are done by a task of their host.
    #[cfg(test)]
    Task(
        tokio::sync::mpsc::UnboundedSender<Job>,
        std::sync::Arc<host::DatabaseTurn>,
    ),
}

impl ConnectionThread {
    pub async fn start(
        open: impl FnOnce() -> rusqlite::Result<Connection> + Send + 'static,
    ) -> rusqlite::Result<Self> {
        #[cfg(test)]
        if let Some(host) = host::current() {
            return Self::start_simulated(&host, open()?);
        }
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
        let jobs = JobSender::Thread(jobs);
        Ok(Self { jobs, closed })
    }

    #[cfg(test)]
    fn start_simulated(host: &host::Host, mut connection: Connection) -> rusqlite::Result<Self> {
        let only_reads: bool = connection.query_row("PRAGMA query_only", [], |row| row.get(0))?;
        let turn = host::DatabaseTurn::new(host.surroundings.clone(), !only_reads);
        let turn = std::sync::Arc::new(turn);
        let turn_of_jobs = turn.clone();
        let (jobs, mut taken) = tokio::sync::mpsc::unbounded_channel::<Job>();
        let (open_end, closed) = oneshot::channel();
        tokio::spawn(async move {
            let _open_end = open_end;
            while let Some(job) = taken.recv().await {
                turn.wait().await;
                job(&mut connection);
                turn.note(!connection.is_autocommit());
            }
        });
        let jobs = JobSender::Task(jobs, turn_of_jobs);
        Ok(Self { jobs, closed })
    }

    /// Runs the job, even if its caller no longer waits. A panic of the job continues in the caller.
    pub async fn run<R: Send + 'static, E: From<rusqlite::Error> + Send + 'static>(
        &self,
        job: impl FnOnce(&mut Connection) -> Result<R, E> + Send + 'static,
    ) -> Result<R, E> {
        #[cfg(test)]
        if let (Some(host), JobSender::Task(_, turn)) = (host::current(), &self.jobs) {
            let lost = || simulated_loss().into();
            return host.job(self.run_one(job), turn, lost).await;
        }
        self.run_one(job).await
    }

    async fn run_one<R: Send + 'static, E: From<rusqlite::Error> + Send + 'static>(
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

    /// Runs the job, which must not panic, after the jobs before it. There is no response.
    pub fn post(&self, job: impl FnOnce(&mut Connection) + Send + 'static) {
        // A thread that has ended runs no job.
        match &self.jobs {
            JobSender::Thread(jobs) => drop(jobs.send(Box::new(job))),
            #[cfg(test)]
            JobSender::Task(jobs, _) => drop(jobs.send(Box::new(job))),
        }
    }

    /// Waits until the connection is closed.
    pub async fn close(self) {
        drop(self.jobs);
        // The connection is closed in either case.
        let _ = self.closed.await;
    }
}

/// The code of the error of a lost connection to a simulated database. SQLite itself has no such connections.
#[cfg(test)]
pub const LOST: i32 = 9999;

#[cfg(test)]
fn simulated_loss() -> rusqlite::Error {
    let reason = "the simulation has cut the connection";
    rusqlite::Error::SqliteFailure(ffi::Error::new(LOST), Some(reason.to_owned()))
}

fn no_thread(reason: String) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_ABORT), Some(reason))
}

/// The permissions of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectionAccess {
    Write,
    Read,
}

/// Opens the database for writing before any other connection of this process does, and creates it if the file is
/// empty. `max_pages`: the most pages that the file may have.
pub fn connect_first(
    file: &Arc<DatabaseFile>,
    max_pages: Option<u64>,
) -> rusqlite::Result<Connection> {
    let connection = open_locked(file)?;
    make(&connection, file)?;
    configure(&connection, file, max_pages, ConnectionAccess::Write)?;
    Ok(connection)
}

/// Opens another connection to the database that this process uses. `max_pages`: the most pages that the file may have.
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
    // The file exists already. If it is gone, it must not be created again.
    let connection = open(file.path(), OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let lock = file.clone();
    // The collation is never used. SQLite drops it after it has closed the files of its connection, so that the lock is
    // held until the last connection has closed them.
    connection.create_collation("provost_lock", move |a, b| {
        let _held = &lock;
        a.cmp(b)
    })?;
    Ok(connection)
}

/// Applies the settings that must precede the first page.
fn make(connection: &Connection, file: &DatabaseFile) -> rusqlite::Result<()> {
    run_script(connection, &format!("PRAGMA page_size = {PAGE_SIZE}"))?;
    // The database returns free pages to the disk. The setting applies only to a new database. On any other it would be
    // written again with each connection, which a full disk would refuse.
    if file.is_empty() {
        run_script(connection, "PRAGMA auto_vacuum = incremental")?;
    }
    use_wal(connection)
}

/// The mode is stored in the file. A backup is a file without it, and an empty file gets its first page by this
/// setting.
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
    // Otherwise a statement with `LIMIT $1` is prepared again each time that it runs, because its plan might depend on the value.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // With group commits, FULL costs no more than NORMAL, and survives a power failure.
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

/// Runs each statement of the script to its end. `execute_batch` stops a statement with rows at its first row, so that
/// a later error is lost, such as one of the commit of `PRAGMA journal_mode`.
pub fn run_script(connection: &Connection, script: &str) -> rusqlite::Result<()> {
    let mut statements = Batch::new(connection, script);
    while let Some(mut statement) = statements.next()? {
        let mut rows = statement.query([])?;
        while rows.next()?.is_some() {}
    }
    Ok(())
}

/// Reads in one snapshot while this exists. Its statements stay prepared, unlike those of [`rusqlite::Transaction`].
pub struct Snapshot<'c>(&'c Connection);

impl<'c> Snapshot<'c> {
    pub fn of(connection: &'c Connection) -> rusqlite::Result<Self> {
        connection.prepare_cached("BEGIN")?.execute([])?;
        Ok(Self(connection))
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        // SQLite may have ended the transaction by itself. If it cannot be ended, the next one cannot begin, and
        // returns the reason.
        if !self.0.is_autocommit()
            && let Ok(mut end) = self.0.prepare_cached("ROLLBACK")
        {
            let _ = end.execute([]);
        }
    }
}

/// Opens a database without changing it.
pub fn open(path: &Path, access: OpenFlags) -> rusqlite::Result<Connection> {
    let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    // Objects that another program has added to the schema must not call a function with side effects.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

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
        // Polled once, the future has sent the job, and is dropped.
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

    #[tokio::test]
    async fn a_statement_with_a_limit_is_prepared_once_however_often_it_runs() {
        let folder = tempfile::tempdir().unwrap();
        let file = DatabaseFile::open(&folder.path().join("some.db")).await;
        let file = Arc::new(file.unwrap());
        for access in [ConnectionAccess::Write, ConnectionAccess::Read] {
            let connection = connect(&file, None, access).unwrap();
            let query = "SELECT name FROM sqlite_schema WHERE name > $1 LIMIT $2";
            let mut statement = connection.prepare(query).unwrap();
            for limit in 1..=5 {
                assert_eq!(
                    statement
                        .query(("a", limit))
                        .unwrap()
                        .mapped(|_| Ok(()))
                        .count(),
                    0
                );
            }
            assert_eq!(statement.get_status(StatementStatus::Run), 5);
            assert_eq!(statement.get_status(StatementStatus::RePrepare), 0);
        }
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
