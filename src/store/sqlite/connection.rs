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

use rusqlite::{Connection, OpenFlags, ffi};
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
pub enum Access {
    Write,
    Read,
}

/// Opens the database that is in use here. `max_pages`: how many the file may have.
pub fn connect(
    file: &Arc<DatabaseFile>,
    max_pages: Option<u64>,
    access: Access,
) -> rusqlite::Result<Connection> {
    // It is there already. One that is gone must not be made again.
    let connection = open(file.path(), OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let lock = file.clone();
    // Nothing sorts by it. SQLite drops a collation after it has closed the files of its connection: so the lock is
    // held until the last one has.
    connection.create_collation("provost_lock", move |a, b| {
        let _held = &lock;
        a.cmp(b)
    })?;
    let wal_pages = Disk::of(file.path()).wal_pages();
    let wal_bytes = wal_pages * u64::from(PAGE_SIZE);
    let (cache, only_reads) = match access {
        Access::Write => (4096, "off"),
        Access::Read => (1024, "on"),
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
    if access == Access::Write {
        // It stays so in the file. A backup is a file that has it not.
        connection.execute_batch("PRAGMA journal_mode = wal")?;
    }
    if let Some(pages) = max_pages {
        connection.execute_batch(&format!("PRAGMA max_page_count = {pages}"))?;
    }
    Ok(connection)
}

/// Opens a database as it is.
pub fn open(path: &Path, access: OpenFlags) -> rusqlite::Result<Connection> {
    let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
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

    #[tokio::test]
    async fn what_cannot_be_opened_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing.db");
        let open_missing = move || open(&missing, OpenFlags::SQLITE_OPEN_READ_WRITE);
        let refused = ConnectionThread::start(open_missing).await.unwrap_err();
        assert!(refused.to_string().contains("unable to open"), "{refused}");
    }
}
