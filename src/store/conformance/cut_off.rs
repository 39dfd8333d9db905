//! The reactions of an instance to a database that is cut off, blocked or lost in a crash.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use futures::future::join_all;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};

use super::{
    PATIENCE,
    cluster::{self, Proxy, Server},
    harness::{Harness, New, postgres, postgres_at, postgres_with, sqlite},
    leases,
};
use crate::{
    domain::{
        task::{Command, Task},
        values::Span,
    },
    store::{Backend, CommandError, CompiledDefinitions, StoreError, Transaction, postgres as pg},
};

async fn outside(url: &str) -> PgConnection {
    PgConnection::connect(url).await.unwrap()
}

/// A backend whose first `interrupted` transactions are interrupted, and which cannot be reached after that.
struct Leaving {
    begun: Arc<AtomicUsize>,
    interrupted: usize,
}

#[async_trait]
impl Backend for Leaving {
    async fn begin(&mut self) -> Result<Box<Transaction<'_>>, StoreError> {
        let begun = self.begun.fetch_add(1, Ordering::SeqCst);
        Err(if begun < self.interrupted {
            StoreError::Retryable("as the test wants it".to_owned())
        } else {
            StoreError::Unavailable("as the test wants it".to_owned())
        })
    }
}

#[tokio::test]
async fn of_a_batch_that_goes_one_by_one_nobody_waits_for_a_connection_in_turn() {
    let begun = Arc::new(AtomicUsize::new(0));
    let mut opened = sqlite().await;
    let interrupted = 16;
    opened.connections.is_shared = true;
    opened.connections.writers = vec![Box::new(Leaving {
        begun: begun.clone(),
        interrupted,
    })];
    let h = Harness::new(opened).await;
    let submitted = (0..50).map(|_| h.store.submit(h.details(&New::default()), None, None));
    for answer in join_all(submitted).await {
        assert!(
            matches!(answer, Err(CommandError::Store(StoreError::Unavailable(_)))),
            "{answer:?}"
        );
    }
    let begun = begun.load(Ordering::SeqCst);
    assert_eq!(begun, interrupted + 1, "the first is an answer for all");
}

#[tokio::test]
async fn an_instance_that_waits_for_a_locked_row_renews_its_lease_all_the_same() {
    let h = Arc::new(Harness::new(postgres().await).await);
    let task = h.submit(New::default()).await;
    let mut other = outside(&super::shared::url(&h)).await;
    let mut holds = other.begin().await.unwrap();
    sqlx::query("SELECT FROM tasks WHERE id = $1 FOR UPDATE")
        .bind(task.id().0)
        .execute(&mut *holds)
        .await
        .unwrap();
    let pausing = tokio::spawn({
        let (h, id) = (h.clone(), task.id());
        async move { h.apply(id, Command::Pause { reason: None }).await }
    });
    let waits = "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let mut waiting = 0_i64;
    while waiting == 0 {
        let asked = sqlx::query_scalar(waits).fetch_one(&mut *holds).await;
        waiting = asked.unwrap();
    }
    let process = leases::process("x", Span::from_secs(10));
    for _ in 0..3 {
        let renewed = timeout(PATIENCE, h.store.renew(process.clone()));
        assert!(renewed.await.unwrap().unwrap().outcome.is_ok());
    }
    assert!(!pausing.is_finished());
    holds.rollback().await.unwrap();
    assert_eq!(pausing.await.unwrap().unwrap().version, 2);
}

/// A firewall drops the connections, while a read is running whose caller gives up.
#[tokio::test]
async fn readers_come_back_after_a_cut_that_nobody_reports() {
    let url = tokio::task::spawn_blocking(cluster::new_database)
        .await
        .unwrap();
    let (before, name) = url.rsplit_once('/').unwrap();
    let server = before.rsplit_once(':').unwrap().1.parse().unwrap();
    let proxy = Proxy::before(server).await;
    let settings = pg::Settings {
        max_connections: 1,
        listen: false,
        migrate: true,
    };
    let url = cluster::url(proxy.port()).replace("/postgres?", &format!("/{name}?"));
    let definitions = Arc::new(CompiledDefinitions::new(NonZeroUsize::MIN));
    let opened = pg::open(&url, settings, definitions).await.unwrap();
    let reader = opened.connections.readers.callers;
    // Each round hits another moment of a read.
    for _ in 0..4 {
        let (tell, mut told) = mpsc::unbounded_channel();
        let reading = tokio::spawn({
            let reader = reader.clone();
            async move {
                loop {
                    reader.queued_agents().await.unwrap();
                    tell.send(()).unwrap();
                }
            }
        });
        for _ in 0..10 {
            told.recv().await.unwrap();
        }
        proxy.hang();
        reading.abort();
        let _ = reading.await;
        proxy.heal_for_new_ones();
        let well = async { while reader.queued_agents().await.is_err() {} };
        timeout(PATIENCE, well).await.unwrap();
    }
}

/// The server crashes before any part of the transaction is on its disk, and gives its id to another transaction, which
/// commits.
#[tokio::test]
async fn what_a_crash_has_undone_is_not_taken_for_done_because_another_has_its_id() {
    let server = Server::start().await;
    let shown = async { while !loses_and_sees_the_id_again(&server).await {} };
    let shown = timeout(PATIENCE, shown).await;
    shown.expect("the server never gave an id a second time: nothing was shown");
}

async fn loses_and_sees_the_id_again(server: &Server) -> bool {
    let proxy = Proxy::before(server.port()).await;
    let h = Harness::new(postgres_at(cluster::url(proxy.port())).await).await;
    let h = Arc::new(h);
    let task = h.submit(New::default()).await;
    let mut outside = outside(&server.url()).await;
    for statement in [
        "CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM pg_sleep(600); RETURN NULL; END $$",
        "CREATE CONSTRAINT TRIGGER linger AFTER UPDATE ON tasks DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION linger()",
        "CREATE TABLE another ()",
    ] {
        sqlx::query(statement).execute(&mut outside).await.unwrap();
    }
    let pausing = tokio::spawn({
        let (h, id) = (h.clone(), task.id());
        async move { h.apply(id, Command::Pause { reason: None }).await }
    });
    let in_commit = "SELECT backend_xid::text FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    let lost: String = loop {
        let found = sqlx::query_scalar(in_commit)
            .fetch_optional(&mut outside)
            .await;
        if let Some(id) = found.unwrap() {
            break id;
        }
    };
    proxy.cut();
    server.restart_at_once().await;
    let mut outside = self::outside(&server.url()).await;
    let taken = sqlx::query(
        "WITH inserted AS (INSERT INTO another DEFAULT VALUES) SELECT pg_current_xact_id()::text AS id",
    );
    let taken: String = taken.fetch_one(&mut outside).await.unwrap().get("id");
    for statement in [
        "DROP TRIGGER linger ON tasks",
        "DROP FUNCTION linger()",
        "DROP TABLE another",
    ] {
        sqlx::query(statement).execute(&mut outside).await.unwrap();
    }
    proxy.heal();
    match pausing.await.unwrap() {
        Ok(paused) => assert_eq!(h.read(task.id()).await, *paused, "what was answered"),
        Err(CommandError::Store(StoreError::Unavailable(_))) => {
            assert_eq!(h.read(task.id()).await, *task, "nothing was done");
        }
        Err(other) => panic!("{other}"),
    }
    taken == lost
}

/// Makes commits wait until the test releases an advisory lock.
const COMMITS_WAIT: [&str; 2] = [
    "CREATE FUNCTION wait_for_test() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM set_config('lock_timeout', '0', true), pg_advisory_xact_lock(7); RETURN NULL; END $$",
    "CREATE CONSTRAINT TRIGGER wait_for_test AFTER UPDATE ON tasks DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION wait_for_test()",
];
/// The number of sessions that still save a task or commit it.
const COMMITTING: &str = "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid()
    AND state <> 'idle' AND query LIKE '%saved_tasks%'";
const LOCK: &str = "SELECT pg_advisory_lock(7)";
const UNLOCK: &str = "SELECT pg_advisory_unlock(7)";

/// A command whose commit waits, sent through a proxy.
struct Waiting {
    h: Arc<Harness>,
    proxy: Proxy,
    outside: PgConnection,
    task: Arc<Task>,
    pausing: JoinHandle<Result<Arc<Task>, CommandError>>,
}

impl Waiting {
    async fn at(server: &Server, listen: bool) -> Self {
        let proxy = Proxy::before(server.port()).await;
        let opened = postgres_with(cluster::url(proxy.port()), listen).await;
        let h = Arc::new(Harness::new(opened).await);
        let task = h.submit(New::default()).await;
        let mut outside = outside(&server.url()).await;
        for statement in COMMITS_WAIT.into_iter().chain([LOCK]) {
            sqlx::query(statement).execute(&mut outside).await.unwrap();
        }
        let pausing = tokio::spawn({
            let (h, id) = (h.clone(), task.id());
            async move { h.apply(id, Command::Pause { reason: None }).await }
        });
        let mut waiting = Self {
            h,
            proxy,
            outside,
            task,
            pausing,
        };
        waiting.sees("wait_event = 'advisory'").await;
        waiting
    }

    /// Returns when the store has such a session.
    async fn sees(&mut self, session: &'static str) {
        let asked = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND {session}"
        );
        let seen = async {
            let mut seen = 0_i64;
            while seen == 0 {
                let query = sqlx::query_scalar(AssertSqlSafe(asked.clone()));
                seen = query.fetch_one(&mut self.outside).await.unwrap();
            }
        };
        timeout(PATIENCE, seen).await.unwrap();
    }

    /// Returns when the server has committed. Its session may have ended by then: on a slow machine the caller gives up
    /// waiting for the response, and closes the connection, before the commit is done.
    async fn sees_no_commit(&mut self) {
        let committing = async {
            loop {
                let query = sqlx::query_scalar(COMMITTING).fetch_one(&mut self.outside);
                let count: i64 = query.await.unwrap();
                if count == 0 {
                    break;
                }
            }
        };
        timeout(PATIENCE, committing).await.unwrap();
    }

    async fn let_commit(&mut self) {
        let unlocked = sqlx::query(UNLOCK).execute(&mut self.outside).await;
        unlocked.unwrap();
    }

    async fn was_done_once(self) {
        let paused = self.pausing.await.unwrap().unwrap();
        assert_eq!(paused.version, self.task.version + 1);
        assert_eq!(self.h.read(self.task.id()).await, *paused);
    }
}

/// The server only notices the loss of the connection when it sends the response.
#[tokio::test]
async fn a_commit_that_goes_on_after_the_connection_is_lost_is_waited_for_and_told_as_done() {
    let asked = [
        (true, "query LIKE '%pg_terminate_backend(pid)%'"),
        (false, "query LIKE '%pg_xact_status(%'"),
    ];
    for (listen, asks) in asked {
        let server = Server::start().await;
        let mut waiting = Waiting::at(&server, listen).await;
        waiting.proxy.cut();
        waiting.proxy.heal();
        waiting.sees(asks).await;
        assert!(!waiting.pausing.is_finished());
        waiting.let_commit().await;
        waiting.was_done_once().await;
    }
}

#[tokio::test]
async fn a_commit_whose_answer_the_network_swallows_is_told_as_done() {
    let server = Server::start().await;
    let mut waiting = Waiting::at(&server, true).await;
    waiting.proxy.hang();
    waiting.let_commit().await;
    waiting.sees_no_commit().await;
    waiting.proxy.heal_for_new_ones();
    waiting.was_done_once().await;
}

#[tokio::test]
async fn a_command_that_the_network_swallows_is_done_once_all_the_same() {
    let server = Server::start().await;
    let proxy = Proxy::before(server.port()).await;
    let h = Harness::new(postgres_with(cluster::url(proxy.port()), true).await).await;
    let task = h.submit(New::default()).await;
    proxy.hang();
    proxy.heal_for_new_ones();
    let paused = loop {
        match h.apply(task.id(), Command::Pause { reason: None }).await {
            // A busy machine may reconnect slowly; nothing was done in that case.
            Err(CommandError::Store(StoreError::Unavailable(_))) => {}
            paused => break paused.unwrap(),
        }
    };
    assert_eq!(paused.version, task.version + 1);
    assert_eq!(h.read(task.id()).await, *paused);
}
