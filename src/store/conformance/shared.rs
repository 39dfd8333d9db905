//! Tests for a database that several instances share: two stores with a writer each work on one PostgreSQL, whose
//! sessions are ended and whose connections are cut.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use futures::future::join_all;
use serde_json::json;
use sqlx::{Connection, PgConnection, Row};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

use super::{
    PATIENCE, cluster,
    harness::{Harness, New, TestDatabase, postgres, postgres_at, postgres_with, refusal, success},
    untouched::{pipeline, spares_rows},
};
use crate::{
    domain::{
        task::{Actor, Command, Expiry, TaskStatus},
        values::{AgentName, Attempt, StepIndex},
    },
    store::{Apply, CommandError, Idempotency, OpenError, Submitted, TaskFilter, postgres as pg},
};

pub(super) async fn pair() -> (Arc<Harness>, Arc<Harness>) {
    let first = Harness::new(postgres().await).await;
    let second = Harness::new(postgres_at(url(&first)).await).await;
    (Arc::new(first), Arc::new(second))
}

pub(super) fn url(h: &Harness) -> String {
    match &h.database {
        TestDatabase::Postgres(url) => url.clone(),
        TestDatabase::Sqlite(_) => panic!("not shared"),
    }
}

pub(super) async fn outside(h: &Harness) -> PgConnection {
    PgConnection::connect(&url(h)).await.unwrap()
}

/// Ends every session of the database except the one that runs it.
const END_ALL: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
     WHERE datname = current_database() AND pid <> pg_backend_pid()";

#[tokio::test]
async fn two_instances_that_finish_two_branches_open_the_join_once() {
    let (a, b) = pair().await;
    for h in [&a, &b] {
        h.slots("x", 1000);
        h.slots("y", 1000);
    }
    let steps = json!([
        { "name": "left", "agent": "x" },
        { "name": "right", "agent": "x", "after": [] },
        { "name": "join", "agent": "y", "after": ["left", "right"] },
    ]);
    let tasks = join_all((0..40).map(|_| {
        a.submit(New {
            steps: steps.clone(),
            ..New::default()
        })
    }));
    let ids: Vec<_> = tasks.await.iter().map(|task| task.id()).collect();
    a.calls();
    let replies = ids.iter().map(|id| {
        let left = a.reply(*id, 0, 1, success(json!("left")));
        let right = b.reply(*id, 1, 1, success(json!("right")));
        async { tokio::join!(left, right) }
    });
    for (left, right) in join_all(replies).await {
        left.unwrap();
        right.unwrap();
    }
    let mut joins: Vec<_> = [a.calls(), b.calls()].concat();
    joins.sort_unstable();
    let once: Vec<_> = ids.iter().map(|id| (*id, 2, 1)).collect();
    assert_eq!(joins, once);
}

/// The known head of a queue is a hint: a step that another instance has claimed in the meantime is called once.
#[tokio::test]
async fn a_queued_step_that_another_instance_has_claimed_is_not_claimed_with_a_reply() {
    let (a, b) = pair().await;
    let x = vec![AgentName::new("x")];
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(a.submit(New::default()).await.id());
    }
    a.slots("x", 1);
    assert_eq!(a.store.claim_queued(x.clone()).await.unwrap(), 1);
    assert_eq!(a.calls(), [(ids[0], 0, 1)]);
    b.slots("x", 2);
    assert_eq!(b.store.claim_queued(x).await.unwrap(), 2);
    assert_eq!(b.calls(), [(ids[1], 0, 1), (ids[2], 0, 1)]);
    // The slots of attempts that failed because of other instances are not freed here.
    a.slots("x", 8);
    a.reply(ids[0], 0, 1, success(json!(1))).await.unwrap();
    assert_eq!(a.calls(), [(ids[3], 0, 1)]);
    for id in &ids[1..] {
        assert_eq!(a.read(*id).await.step(StepIndex(0)).attempt, Attempt(1));
    }
}

/// The instance that enqueued the step has its task in memory, and its callers wait there. If it does not claim the
/// step in time, any instance may.
#[tokio::test]
async fn a_step_that_was_just_enqueued_is_left_to_its_instance_for_a_moment() {
    let (a, b) = pair().await;
    let x = vec![AgentName::new("x")];
    let id = a.submit(New::default()).await.id();
    b.notes.leaves_to_others.store(true, Ordering::Relaxed);
    b.slots("x", 2);
    let due = |sql| a.database.execute(sql);
    // The step looks as if it were enqueued in a moment.
    due("UPDATE steps SET due_at = due_at + 8000").await;
    assert_eq!(b.store.claim_queued(x.clone()).await.unwrap(), 0);
    assert!(b.notes.drained.lock().is_empty(), "it is still queued");
    due("UPDATE steps SET due_at = due_at - 8025").await;
    assert_eq!(b.store.claim_queued(x.clone()).await.unwrap(), 1);
    assert_eq!(b.calls(), [(id, 0, 1)]);
    assert_eq!(b.store.claim_queued(x.clone()).await.unwrap(), 0);
    assert_eq!(*b.notes.drained.lock(), x);
}

/// While a worker waits at an instance, nothing is left to others: there may be no other worker. Nor are steps that
/// were enqueued before the clock of the database was set back, and delayed steps, which no instance has in its known
/// heads.
#[tokio::test]
async fn a_step_that_nobody_may_be_about_to_claim_is_left_to_nobody() {
    let (a, b) = pair().await;
    let x = vec![AgentName::new("x")];
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(a.submit(New::default()).await.id());
    }
    let due = |sql| a.database.execute(sql);
    due("UPDATE steps SET due_at = due_at + 8000").await;
    b.slots("x", 1);
    assert_eq!(b.store.claim_queued(x.clone()).await.unwrap(), 1);
    assert_eq!(b.calls(), [(ids[0], 0, 1)]);
    b.notes.leaves_to_others.store(true, Ordering::Relaxed);
    b.slots("x", 1);
    assert_eq!(b.store.claim_queued(x.clone()).await.unwrap(), 0);
    assert_eq!(b.store.claim_all_queued(x.clone()).await.unwrap(), 1);
    assert_eq!(b.calls(), [(ids[1], 0, 1)]);
    due("UPDATE steps SET due_at = due_at + 3600000").await;
    b.slots("x", 1);
    assert_eq!(b.store.claim_queued(x).await.unwrap(), 1);
    assert_eq!(b.calls(), [(ids[2], 0, 1)]);
}

/// An instance whose task in memory is older than its steps in a lane reads the task again.
#[tokio::test]
async fn a_step_in_a_lane_that_a_stale_task_lacks_is_claimed_as_the_record_has_it() {
    let (a, b) = pair().await;
    for h in [&a, &b] {
        h.divide("{{ task.id }}");
    }
    let steps = json!([
        { "name": "first", "agent": "x", "undo": { "request": {} } },
        { "name": "second", "agent": "x" },
    ]);
    let new = New {
        steps,
        ..New::default()
    };
    let id = a.submit(new).await.id();
    a.slots("x", 1);
    let x = vec![AgentName::new("x")];
    assert_eq!(a.store.claim_queued(x.clone()).await.unwrap(), 1);
    a.reply(id, 0, 1, success(json!(1))).await.unwrap();
    assert_eq!(a.calls(), [(id, 0, 1)]);
    b.apply(id, Command::Undo { reason: None }).await.unwrap();
    a.slots("x", 8);
    assert_eq!(a.store.claim_queued(x).await.unwrap(), 1);
    assert_eq!(a.calls(), [(id, 2, 1)]);
}

/// A cached task refuses nothing by itself, because this instance may be the only one left.
#[tokio::test]
async fn what_another_instance_has_moved_on_is_not_refused_because_of_what_is_remembered() {
    let (a, b) = pair().await;
    let (waits, runs) = (
        a.submit(New::default()).await.id(),
        b.submit(New::default()).await.id(),
    );
    let lost = |attempt| Command::Expire {
        step: StepIndex(0),
        attempt: Attempt(attempt),
        cause: Expiry::InstanceLost,
    };
    let x = vec![AgentName::new("x")];
    b.slots("x", 10);
    assert_eq!(b.store.claim_queued(x.clone()).await.unwrap(), 2);
    // In the cache of this instance, this step was never claimed.
    a.apply(waits, lost(1)).await.unwrap();

    // In the cache of this instance, this step is still claimed.
    a.apply(runs, lost(1)).await.unwrap();
    b.slots("x", 10);
    b.calls();
    assert_eq!(b.store.claim_queued(x).await.unwrap(), 2);
    let mut calls = b.calls();
    calls.sort_unstable();
    assert_eq!(calls, [(waits, 0, 2), (runs, 0, 2)]);

    // And here it has another version.
    let pause = Apply::new(
        runs,
        Command::Pause { reason: None },
        Actor::operator("test"),
    )
    .at_version(Some(b.read(runs).await.version));
    a.store.apply(pause).await.unwrap();
}

#[tokio::test]
async fn two_instances_take_different_steps_off_one_line() {
    let (a, b) = pair().await;
    let tasks = join_all((0..200).map(|_| a.submit(New::default())));
    let mut ids: Vec<_> = tasks.await.iter().map(|task| (task.id(), 0, 1)).collect();
    ids.sort_unstable();
    let x = AgentName::new("x");
    // The share of either instance is random: a claim skips the tasks that the other has locked.
    let claimed = AtomicUsize::new(0);
    let claim = async |h: &Harness| {
        while claimed.load(Ordering::Relaxed) < ids.len() {
            h.slots("x", 10);
            let now = h.store.claim_queued(vec![x.clone()]).await.unwrap();
            claimed.fetch_add(now, Ordering::Relaxed);
        }
    };
    let both = async { tokio::join!(claim(&a), claim(&b)) };
    let in_time = tokio::time::timeout(PATIENCE, both).await;
    assert!(in_time.is_ok(), "{claimed:?} of {} are claimed", ids.len());
    let mut calls: Vec<_> = [a.calls(), b.calls()].concat();
    calls.sort_unstable();
    assert_eq!(calls, ids, "each step once");
}

/// Both orders of locking occur at once: tasks in batches, and agent queues.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn instances_that_work_on_the_same_tasks_never_wait_in_a_circle() {
    let (a, b) = pair().await;
    let steps: Vec<_> = (0..8)
        .map(|n| json!({ "name": format!("s{n}"), "agent": "x", "after": [] }))
        .collect();
    let tasks = join_all((0..20).map(|_| {
        a.submit(New {
            steps: json!(steps),
            ..New::default()
        })
    }));
    let ids: Vec<_> = tasks.await.iter().map(|task| task.id()).collect();
    let work = async |h: Arc<Harness>| {
        let x = AgentName::new("x");
        let mut done = 0;
        let mut idle = 0;
        while idle < 20 {
            h.slots("x", 7);
            let claim = h.store.claim_queued(vec![x.clone()]);
            let calls = h.calls();
            let replies = calls
                .iter()
                .map(|(id, step, attempt)| h.reply(*id, *step, *attempt, success(json!(1))));
            let (claimed, replied) = tokio::join!(claim, join_all(replies));
            replied.into_iter().for_each(|reply| {
                reply.unwrap();
                done += 1;
            });
            idle = if claimed.unwrap() + calls.len() == 0 {
                idle + 1
            } else {
                0
            };
        }
        done
    };
    let (first, second) =
        tokio::join!(tokio::spawn(work(a.clone())), tokio::spawn(work(b.clone())),);
    assert_eq!(first.unwrap() + second.unwrap(), 160);
    for id in ids {
        assert_eq!(b.read(id).await.status(), TaskStatus::Processed);
    }
    let row =
        sqlx::query("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
            .fetch_one(&mut outside(&a).await)
            .await
            .unwrap();
    assert_eq!(row.get::<i64, _>("deadlocks"), 0);
}

/// A promotion changes steps and not the versions of their tasks: a save that began before its commit finds the old
/// rows.
#[tokio::test]
async fn a_step_that_is_enqueued_while_it_is_saved_is_saved_all_the_same() {
    // The save is one statement, or a transaction of several.
    for listen in [true, false] {
        let h = Arc::new(Harness::new(postgres_with(cluster::new_database(), listen).await).await);
        let id = h.submit(New::default()).await.id();
        let mut other = postgres_at(url(&h)).await.connections.writers.remove(0);
        for (version, command) in [
            (2, Command::Pause { reason: None }),
            (3, Command::Resume { reason: None }),
        ] {
            h.database
                .execute("UPDATE steps SET due_at = 1, queued = 0")
                .await;
            let mut promotion = other.begin().await.unwrap();
            let promoted = promotion.promote().await.unwrap();
            assert_eq!(promoted.agents, [AgentName::new("x")]);
            let saving = tokio::spawn({
                let h = h.clone();
                async move { h.apply(id, command).await }
            });
            one_waits_for_a_lock(&h).await;
            promotion.commit().await.unwrap();
            assert_eq!(saving.await.unwrap().unwrap().version, version);
            assert_eq!(h.read(id).await.version, version);
        }
        let x = AgentName::new("x");
        h.slots("x", 1);
        assert_eq!(h.store.claim_queued(vec![x]).await.unwrap(), 1);
    }
}

pub(super) async fn one_waits_for_a_lock(h: &Harness) {
    let mut outside = outside(h).await;
    let waits = "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let mut waiting = 0_i64;
    while waiting == 0 {
        let asked = sqlx::query_scalar(waits).fetch_one(&mut outside).await;
        waiting = asked.unwrap();
    }
}

/// A transaction that changes a step has locked its task, so that no transaction waits for a step, in any order.
#[tokio::test]
async fn a_promotion_locks_the_tasks_of_its_steps_and_passes_over_locked_ones() {
    let h = Harness::new(postgres().await).await;
    let mut other = postgres_at(url(&h)).await.connections.writers.remove(0);
    let (first, second) = (
        h.submit(New::default()).await,
        h.submit(New::default()).await,
    );
    h.database
        .execute("UPDATE steps SET due_at = 1, queued = 0")
        .await;
    let mut outside = outside(&h).await;
    let mut holds = outside.begin().await.unwrap();
    let lock = "SELECT id FROM tasks WHERE id = ANY ($1) FOR NO KEY UPDATE SKIP LOCKED";
    let ids = [first.id().0, second.id().0];
    let locked = sqlx::query(lock).bind(&ids[..1]).execute(&mut *holds);
    assert_eq!(locked.await.unwrap().rows_affected(), 1);

    let queued = async || -> Vec<uuid::Uuid> {
        let queued = "SELECT task_id FROM steps WHERE queued = 1 ORDER BY task_id";
        let mut outside = PgConnection::connect(&url(&h)).await.unwrap();
        let queued = sqlx::query_scalar(queued).fetch_all(&mut outside).await;
        queued.unwrap()
    };
    let mut promotion = other.begin().await.unwrap();
    let promoted = promotion.promote().await.unwrap();
    assert!(promoted.next_due.is_some(), "one is left");
    let locked = sqlx::query(lock).bind(&ids[..]).execute(&mut *holds).await;
    assert_eq!(locked.unwrap().rows_affected(), 1, "only its own");
    promotion.commit().await.unwrap();
    assert_eq!(queued().await, ids[1..]);

    // A step that the holder of the lock has changed is read again after that.
    sqlx::query("UPDATE steps SET due_at = NULL WHERE task_id = $1")
        .bind(ids[0])
        .execute(&mut *holds)
        .await
        .unwrap();
    holds.commit().await.unwrap();
    let promoted = h.store.promote().await.unwrap();
    assert_eq!(promoted.next_due, None);
    assert_eq!(queued().await, ids[1..]);

    // Promoting the steps one by one has the same results.
    h.database
        .execute("UPDATE steps SET due_at = 1, queued = 0")
        .await;
    let mut holds = outside.begin().await.unwrap();
    let locked = sqlx::query(lock).bind(&ids[1..]).execute(&mut *holds);
    assert_eq!(locked.await.unwrap().rows_affected(), 1);
    h.store.promote_each().await.unwrap();
    assert_eq!(queued().await, ids[..1]);
    holds.commit().await.unwrap();
    h.store.promote_each().await.unwrap();
    assert_eq!(queued().await, ids);
}

/// If a row is not saved, for any reason, no caller gets a response that it was.
#[tokio::test]
async fn a_step_whose_row_cannot_be_found_is_not_saved_and_its_task_neither() {
    for listen in [true, false] {
        let h = Harness::new(postgres_with(cluster::new_database(), listen).await).await;
        spares_rows(&h).await;
        let id = h.submit(New::default()).await.id();
        h.database
            .execute(
                "CREATE FUNCTION ignore() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                    RETURN NULL; END $$",
            )
            .await;
        h.database
            .execute(
                "CREATE TRIGGER ignore BEFORE UPDATE ON steps
                    FOR EACH ROW EXECUTE FUNCTION ignore()",
            )
            .await;
        for _ in 0..2 {
            let lost = h.apply(id, Command::Pause { reason: None }).await.err();
            let lost = lost.unwrap().to_string();
            assert!(lost.contains("step"), "{lost}");
            assert_eq!(h.read(id).await.version, 1);
        }
        h.database.execute("DROP TRIGGER ignore ON steps").await;
        let paused = h.apply(id, Command::Pause { reason: None }).await;
        assert_eq!(paused.unwrap().version, 2);
        // The same is true for a row that must be added, that of the second step.
        h.slots("x", 1);
        let id = h.submit(pipeline()).await.id();
        h.database
            .execute(
                "CREATE TRIGGER ignore BEFORE INSERT ON steps
                    FOR EACH ROW EXECUTE FUNCTION ignore()",
            )
            .await;
        for _ in 0..2 {
            let lost = h.reply(id, 0, 1, success(json!(1))).await.err();
            let lost = lost.unwrap().to_string();
            assert!(lost.contains("step"), "{lost}");
            assert_eq!(h.read(id).await.version, 1);
        }
        h.database.execute("DROP TRIGGER ignore ON steps").await;
        let replied = h.reply(id, 0, 1, success(json!(1))).await;
        assert_eq!(replied.unwrap().version, 2);
    }
}

#[tokio::test]
async fn one_idempotency_key_sent_to_two_instances_makes_one_task() {
    let (a, b) = pair().await;
    for n in 0..20 {
        let key = || {
            Some(Idempotency {
                key: format!("k-{n}"),
                fingerprint: "same".to_owned(),
            })
        };
        let submit = async |h: &Harness| match h
            .store
            .submit(h.details(&New::default()), None, key())
            .await
            .unwrap()
        {
            Submitted::New(task) => task.id(),
            Submitted::Replayed(id) => id,
        };
        let (one, other) = tokio::join!(submit(&a), submit(&b));
        assert_eq!(one, other);
    }
}

/// The writer finds that its session was ended, and no caller gets an error.
#[tokio::test]
async fn a_session_that_is_ended_is_replaced_before_anybody_notices() {
    let h = Harness::new(postgres().await).await;
    h.slots("x", 100);
    let mut outside = outside(&h).await;
    for _ in 0..10 {
        sqlx::query(END_ALL).execute(&mut outside).await.unwrap();
        let task = h.submit(New::default()).await;
        let read = loop {
            // A reader may use a session that was just ended. It returns an error, and the next attempt succeeds.
            if let Ok(read) = h.store.reader.task(task.id()).await {
                break read.unwrap();
            }
        };
        assert_eq!(read, *task);
    }
    assert_eq!(h.calls().len(), 10);
}

/// Sessions end at any moment, also during a commit: every task that was accepted exists, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_was_answered_is_there_once_however_often_sessions_end() {
    let h = Arc::new(Harness::new(postgres().await).await);
    let mut outside = outside(&h).await;
    let over = Arc::new(AtomicBool::new(false));
    let (tell, mut told) = mpsc::unbounded_channel();
    let submitters = (0..8).map(|_| {
        let (h, over, tell) = (h.clone(), over.clone(), tell.clone());
        tokio::spawn(async move {
            let mut accepted = Vec::new();
            while !over.load(Ordering::SeqCst) {
                match h.store.submit(h.details(&New::default()), None, None).await {
                    Ok(Submitted::New(task)) => accepted.push(task),
                    Ok(Submitted::Replayed(id)) => panic!("{id} was accepted before"),
                    Err(CommandError::Store(_)) => {}
                    Err(other) => panic!("{other}"),
                }
                tell.send(()).unwrap();
            }
            accepted
        })
    });
    let submitters: Vec<_> = submitters.collect();
    for round in 0..60 {
        // The number of responses varies, so that the session ends at another moment of a transaction each time.
        for _ in 0..=round % 7 {
            told.recv().await.unwrap();
        }
        sqlx::query(END_ALL).execute(&mut outside).await.unwrap();
    }
    over.store(true, Ordering::SeqCst);
    let mut accepted = 0;
    for submitter in submitters {
        for task in submitter.await.unwrap() {
            let found = sqlx::query(
                "SELECT (SELECT count(*) FROM steps WHERE task_id = $1) AS steps,
                        (SELECT count(*) FROM history WHERE task_id = $1) AS changes
                 FROM tasks WHERE id = $1",
            )
            .bind(task.id().0)
            .fetch_one(&mut outside)
            .await
            .unwrap();
            assert_eq!(found.get::<i64, _>("steps"), 1);
            assert_eq!(found.get::<i64, _>("changes"), 1);
            accepted += 1;
        }
    }
    assert!(accepted > 30, "only {accepted} were accepted");
}

/// The session ends while the commit is running, and the server rolls back.
#[tokio::test]
async fn a_commit_that_failed_is_no_success() {
    let h = Harness::new(postgres().await).await;
    let task = h.submit(New::default()).await;
    for statement in [
        "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$",
        "CREATE CONSTRAINT TRIGGER lose AFTER UPDATE ON tasks DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION lose()",
    ] {
        h.database.execute(statement).await;
    }
    let lost = h.apply(task.id(), Command::Pause { reason: None }).await;
    assert!(matches!(lost, Err(CommandError::Store(_))), "{lost:?}");
    h.database.execute("DROP TRIGGER lose ON tasks").await;
    let paused = h.apply(task.id(), Command::Pause { reason: None }).await;
    assert_eq!(paused.unwrap().version, 2);
}

/// Starts a proxy to the server that on request forwards one COMMIT and keeps the response.
async fn thief(server: u16) -> (u16, Arc<AtomicBool>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let armed = Arc::new(AtomicBool::new(false));
    let steal = armed.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let steal = steal.clone();
            tokio::spawn(async move {
                let address = (Ipv4Addr::LOCALHOST, server);
                let mut server = TcpStream::connect(address).await.unwrap();
                let (mut asked, mut answered) = ([0; 65536], [0; 65536]);
                loop {
                    tokio::select! {
                        read = client.read(&mut asked) => {
                            let Ok(count @ 1..) = read else { return };
                            let asked = &asked[..count];
                            server.write_all(asked).await.unwrap();
                            let commit = asked.windows(6).any(|word| word == b"COMMIT");
                            if commit && steal.swap(false, Ordering::SeqCst) {
                                server.readable().await.unwrap();
                                return;
                            }
                        }
                        read = server.read(&mut answered) => {
                            let Ok(count @ 1..) = read else { return };
                            if client.write_all(&answered[..count]).await.is_err() { return }
                        }
                    }
                }
            });
        }
    });
    (port, armed)
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_asked_after_and_done_once() {
    let url = cluster::new_database();
    let (before, name) = url.rsplit_once('/').unwrap();
    let port = before.rsplit_once(':').unwrap().1.parse().unwrap();
    let (proxy, steal) = thief(port).await;
    let proxied = format!("postgres://provost@127.0.0.1:{proxy}/{name}?sslmode=disable");
    let h = Harness::new(postgres_at(proxied).await).await;
    h.slots("x", 10);
    steal.store(true, Ordering::SeqCst);
    let task = h.submit(New::default()).await;
    assert!(!steal.load(Ordering::SeqCst), "no commit passed by");
    assert_eq!(h.calls(), [(task.id(), 0, 1)], "called once");
    assert_eq!(h.read(task.id()).await, *task);
    let all = h
        .store
        .reader
        .count_tasks(&TaskFilter::default(), None, 10)
        .await;
    assert_eq!(all.unwrap().found, 1);
}

#[tokio::test]
async fn text_that_this_database_cannot_hold_finds_nothing() {
    let h = Harness::new(postgres().await).await;
    let name = crate::domain::values::WorkflowName::new("a\0b");
    assert!(
        h.store
            .reader
            .workflow(&name, None)
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test]
async fn who_waits_at_one_instance_hears_what_another_did() {
    let (a, b) = pair().await;
    a.slots("x", 1);
    let task = a.submit(New::default()).await;
    let mut waiting = b.store.watchers.watch(task.id());
    b.store.watchers.look(&b.store.reader).await.unwrap();
    a.reply(task.id(), 0, 1, success(json!(1))).await.unwrap();
    b.store.watchers.look(&b.store.reader).await.unwrap();
    let heard = tokio::time::timeout(PATIENCE, waiting.changed()).await;
    assert_eq!(heard.unwrap().status(), TaskStatus::Processed);
    assert_eq!(task.step(StepIndex(0)).attempt.0, 1);
}

#[tokio::test]
async fn what_was_read_before_a_change_is_no_news_after_it() {
    let h = Harness::new(postgres().await).await;
    h.slots("x", 2);
    let id = h.submit(New::default()).await.id();
    let failed = h.reply(id, 0, 1, refusal()).await.unwrap();
    let retry = Command::Retry {
        step: None,
        body: None,
        reason: None,
    };
    let retried = h.apply(id, retry).await.unwrap();
    // A read that began before the retry is published after this watch began.
    let mut waiting = h.store.watchers.watch(id);
    h.store.watchers.tell(std::iter::once(&failed));
    h.reply(id, 0, 2, success(json!(1))).await.unwrap();
    let heard = tokio::time::timeout(PATIENCE, waiting.newer(retried.version)).await;
    assert_eq!(heard.unwrap().status(), TaskStatus::Processed);
}

fn settings(migrate: bool) -> pg::Settings {
    pg::Settings {
        max_connections: 2,
        listen: true,
        migrate,
    }
}

async fn open(url: &str, migrate: bool) -> Result<pg::OpenedPostgres, OpenError> {
    let definitions = crate::store::CompiledDefinitions::new(std::num::NonZeroUsize::MIN);
    pg::open(url, settings(migrate), Arc::new(definitions)).await
}

#[tokio::test]
async fn after_a_failed_read_a_transaction_writes_nothing() {
    let mut opened = postgres().await;
    let database = opened.database;
    let mut writer = opened.connections.writers.remove(0);
    // From here on the time is known, and a transaction begins on the server with its first write.
    writer.begin().await.unwrap().commit().await.unwrap();
    database
        .execute("ALTER TABLE idempotency_keys RENAME TO renamed")
        .await;
    let mut tx = writer.begin().await.unwrap();
    assert!(tx.idempotency(&["key"]).await.is_err());
    assert!(tx.heartbeat().await.is_err());
    assert!(tx.commit().await.is_err());
    // This statement divides by zero if a row exists.
    database
        .execute("SELECT 1 / (count(*) = 0)::int FROM heartbeat")
        .await;
}

#[tokio::test]
async fn instances_that_start_together_bring_the_schema_up_to_date_once() {
    let url = cluster::new_database();
    let refused = open(&url, false).await.err().unwrap();
    assert!(
        matches!(refused, OpenError::OlderSchema { found: 0, .. }),
        "{refused}"
    );
    for opened in join_all((0..6).map(|_| open(&url, true))).await {
        opened.unwrap();
    }
    open(&url, false).await.unwrap();
    let (before, after) = pg::migrate(&url).await.unwrap();
    assert_eq!(before, after);
}

#[tokio::test]
async fn a_newer_schema_is_refused_with_a_remedy() {
    let h = Harness::new(postgres().await).await;
    h.database
        .execute(
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
             VALUES (9999, 'of the future', true, '', 0)",
        )
        .await;
    for migrate in [true, false] {
        let refused = open(&url(&h), migrate).await.err().unwrap();
        assert!(
            matches!(refused, OpenError::NewerSchema { found: 9999, .. }),
            "{refused}"
        );
        assert!(
            refused
                .to_string()
                .contains("start the newer version again")
        );
    }
}

/// Without LISTEN there are no prepared statements either, as a transaction-mode pooler requires.
#[tokio::test]
async fn nothing_is_kept_on_a_connection_where_listening_is_off() {
    let url = cluster::new_database();
    let definitions = Arc::new(crate::store::CompiledDefinitions::new(
        std::num::NonZeroUsize::MIN,
    ));
    let off = pg::Settings {
        listen: false,
        ..settings(true)
    };
    let opened = pg::open(&url, off, definitions.clone()).await.unwrap();
    assert!(opened.listener.is_none());
    let h = Harness::new(super::harness::Opened {
        connections: opened.connections,
        definitions,
        database: TestDatabase::Postgres(url),
    })
    .await;
    h.slots("x", 1);
    let task = h.submit(New::default()).await;
    h.reply(task.id(), 0, 1, success(json!(1))).await.unwrap();
    assert_eq!(h.read(task.id()).await.status(), TaskStatus::Processed);
}
