//! Untouched steps have no rows. A task that is read has them nevertheless.

use std::time::Duration;

use serde_json::json;
use sqlx::Connection;
use tokio::time::timeout;

use super::{
    PATIENCE,
    harness::{Harness, New, postgres, postgres_at, refusal, success},
    shared::{outside, pair, url},
};
use crate::{
    domain::{
        definition::Policies,
        task::{Command, StepStatus, Task, TaskStatus},
        values::{AgentName, Span, StepIndex, TaskId, Timestamp},
    },
    store::{SharedFeature, StoreError, TaskFilter, TaskQuery},
};

const ROWS: &str = "SELECT count(*) FROM steps";

/// Returns a task of three steps, one after the other, at three agents.
pub(super) fn pipeline() -> New {
    New {
        steps: json!([
            { "name": "a", "agent": "x" },
            { "name": "b", "agent": "y" },
            { "name": "c", "agent": "z" },
        ]),
        complete_within: Some(Span::from_millis(3_600_000)),
        ..New::default()
    }
}

/// Waits until the store may save steps without rows.
pub(super) async fn spares_rows(h: &Harness) {
    known_by_all(h, SharedFeature::StepsWithoutRows).await;
}

/// Waits until the store knows that every instance knows of the feature.
pub(super) async fn known_by_all(h: &Harness, feature: SharedFeature) {
    let known = async {
        while !h.store.features.has(feature) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let known = timeout(PATIENCE, known).await;
    known.expect("older instances are still on record");
}

/// Asserts that the task is read as it was saved, and has this number of rows and the recorded number of untouched
/// steps.
pub(super) async fn expect_rows(h: &Harness, saved: &Task, rows: i64) {
    assert_eq!(h.read(saved.id()).await, *saved);
    assert_eq!(h.database.count(ROWS).await, rows);
    let untouched = h.database.count("SELECT untouched FROM tasks").await;
    assert_eq!(untouched, saved.untouched.len() as i64);
}

pub async fn a_step_has_a_row_once_something_happens_in_it(h: Harness) {
    spares_rows(&h).await;
    for agent in ["x", "y", "z"] {
        h.slots(agent, 1);
    }
    let task = h.submit(pipeline()).await;
    let id = task.id();
    assert_eq!(task.untouched, [StepIndex(1), StepIndex(2)]);
    expect_rows(&h, &task, 0).await;
    let mut counts = h.store.reader.counts().await.unwrap();
    assert_eq!((counts.waiting, counts.held), (2, 1));
    let task = h.reply(id, 0, 1, success(json!(1))).await.unwrap();
    expect_rows(&h, &task, 1).await;
    counts = h.store.reader.counts().await.unwrap();
    assert_eq!((counts.waiting, counts.held), (1, 1));
    let task = h.reply(id, 1, 1, success(json!(2))).await.unwrap();
    expect_rows(&h, &task, 2).await;
    let task = h.reply(id, 2, 1, success(json!(3))).await.unwrap();
    assert_eq!(task.status(), TaskStatus::Processed);
    expect_rows(&h, &task, 3).await;
}

/// No step has a row before it begins or ends.
pub async fn a_task_that_has_not_begun_has_no_rows_of_steps(h: Harness) {
    spares_rows(&h).await;
    let mut details = h.details(&pipeline());
    details.start_at = Some(h.store.reader.now().await.unwrap() + Span::from_millis(3_600_000));
    let task = h.store.submit(details, None, None).await.unwrap();
    let task = super::harness::now(task);
    expect_rows(&h, &task, 0).await;
    assert_eq!(h.store.reader.counts().await.unwrap().waiting, 3);
    let cancelled = h.apply(task.id(), Command::Cancel { reason: None }).await;
    expect_rows(&h, &cancelled.unwrap(), 3).await;
}

pub async fn an_undo_and_items_leave_what_is_untouched_in_its_place(h: Harness) {
    spares_rows(&h).await;
    h.slots("x", 100);
    let undo = json!({ "request": { "path": "/undo" } });
    let steps = json!([
        { "name": "list", "agent": "x", "undo": undo },
        { "name": "import", "agent": "x", "for_each": "{{ steps.list.output }}", "undo": undo },
        { "name": "report", "agent": "y" },
        { "name": "archive", "agent": "y" },
    ]);
    let task = h
        .submit(New {
            steps,
            policies: Policies::parse(r#"{"on_permanent":"undo"}"#).unwrap(),
            ..New::default()
        })
        .await;
    let id = task.id();
    expect_rows(&h, &task, 0).await;
    let task = h.reply(id, 0, 1, success(json!([1, 2]))).await.unwrap();
    assert_eq!(task.untouched, [StepIndex(2), StepIndex(3)]);
    // The rows are those of the first step, the group and its two items.
    expect_rows(&h, &task, 4).await;
    h.reply(id, 4, 1, success(json!(1))).await.unwrap();
    let task = h.reply(id, 5, 1, refusal()).await.unwrap();
    assert_eq!(task.status(), TaskStatus::Undoing);
    let read = h.read(id).await;
    assert_eq!(read, *task);
    assert_eq!(read.step(StepIndex(3)).status(), StepStatus::Cancelled);
}

fn of_agent(agent: &str) -> TaskQuery {
    TaskQuery {
        filter: TaskFilter {
            agent: Some(agent.to_owned()),
            ..TaskFilter::default()
        },
        before: None,
        limit: 100,
    }
}

async fn found(h: &Harness, agent: &str) -> Vec<TaskId> {
    let query = of_agent(agent);
    let page = h.store.reader.tasks(&query).await.unwrap();
    let look = h
        .store
        .reader
        .count_tasks(&query.filter, None, 100)
        .await
        .unwrap();
    assert_eq!(look.found, page.tasks.len() as u64);
    page.tasks.iter().map(|task| task.id).collect()
}

async fn in_danger(h: &Harness, agent: &str) -> u64 {
    let reader = &h.store.reader;
    let agent = AgentName::new(agent);
    let danger = reader.tasks_in_danger(&agent, Timestamp::MAX, 100);
    let danger = danger.await.unwrap();
    assert_eq!(danger.looked_at, 1);
    danger.tasks
}

pub async fn a_task_is_found_by_the_agents_of_steps_without_rows(h: Harness) {
    spares_rows(&h).await;
    h.slots("x", 2);
    h.slots("y", 1);
    let mut new = pipeline();
    new.steps = json!([
        { "name": "a", "agent": "x" },
        { "name": "b", "agent": "y" },
        { "name": "again", "agent": "x" },
        { "name": "c", "agent": "z" },
    ]);
    let id = h.submit(new).await.id();
    for agent in ["x", "y", "z"] {
        assert_eq!(found(&h, agent).await, [id], "{agent}");
        assert_eq!(in_danger(&h, agent).await, 1, "{agent}");
    }
    for agent in ["", ",", "\"", "\",\"", "a", "y\",\"z", "%", "\\"] {
        assert_eq!(found(&h, agent).await, [], "{agent}");
        assert_eq!(in_danger(&h, agent).await, 0, "{agent}");
    }
    // The second step, which had no row at submission, is done, and the last has none yet.
    h.reply(id, 0, 1, success(json!(1))).await.unwrap();
    h.reply(id, 1, 1, success(json!(2))).await.unwrap();
    for (agent, is_in_danger) in [("x", 1), ("y", 0), ("z", 1)] {
        assert_eq!(found(&h, agent).await, [id], "{agent}");
        assert_eq!(in_danger(&h, agent).await, is_in_danger, "{agent}");
    }
}

pub async fn a_row_that_is_lost_is_not_taken_for_an_untouched_step(h: Harness) {
    spares_rows(&h).await;
    h.slots("x", 1);
    let id = h.submit(pipeline()).await.id();
    h.reply(id, 0, 1, success(json!(1))).await.unwrap();
    h.database.execute("DELETE FROM steps").await;
    let read = h.store.reader.task(id).await;
    let Err(StoreError::Task(unreadable)) = read else {
        panic!("{read:?}");
    };
    assert!(unreadable.reason.contains("missing"), "{unreadable:?}");
}

const DAMAGES: [&str; 5] = [
    "UPDATE tasks SET untouched = 1",
    "UPDATE tasks SET untouched = 32767",
    "UPDATE tasks SET untouched = 9223372036854775807",
    "UPDATE tasks SET untouched = -1",
    r#"UPDATE tasks SET untouched = 1, agents = '{"1":"y","2'"#,
];

/// Lists, counts and claims of other tasks continue, and the damaged task can be cancelled.
pub async fn a_damaged_number_of_untouched_steps_costs_its_task_alone(h: Harness) {
    spares_rows(&h).await;
    for damage in DAMAGES {
        let bad = h.submit(pipeline()).await.id();
        h.database.execute(damage).await;
        let good = h.submit(pipeline()).await.id();
        // These tasks evict both from the cache.
        for _ in 0..100 {
            h.submit(New::default()).await;
        }
        let read = h.store.reader.task(bad).await;
        assert!(
            matches!(read, Err(StoreError::Task(_))),
            "{damage}: {read:?}"
        );
        h.store.reader.counts().await.unwrap();
        let agent = AgentName::new("y");
        let danger = h.store.reader.tasks_in_danger(&agent, Timestamp::MAX, 100);
        danger.await.unwrap();
        h.store.reader.tasks(&of_agent("y")).await.unwrap();
        h.slots("x", 300);
        let agents = || vec![AgentName::new("x")];
        // The budget of a batch may be used up by the damaged task.
        while h.store.claim_queued(agents()).await.unwrap() > 0 {}
        let claimed = h.calls();
        assert!(claimed.contains(&(good, 0, 1)), "{damage}");
        assert!(!claimed.iter().any(|(task, _, _)| *task == bad), "{damage}");
        h.slots("x", 0);
        let cancelled = h.apply(bad, Command::Cancel { reason: None }).await;
        assert_eq!(
            cancelled.unwrap().status(),
            TaskStatus::Cancelled,
            "{damage}"
        );
        for (task, _, _) in claimed {
            h.apply(task, Command::Cancel { reason: None })
                .await
                .unwrap();
        }
    }
}

/// The definition is damaged, and with it the names of the steps that have no rows.
pub async fn a_damaged_task_with_untouched_steps_can_be_cancelled(h: Harness) {
    spares_rows(&h).await;
    h.slots("x", 1);
    let steps = json!([
        { "name": "untouched-at-1", "agent": "x" },
        { "name": "b", "agent": "y" },
        { "name": "c", "agent": "z" },
    ]);
    let id = h
        .submit(New {
            steps,
            ..New::default()
        })
        .await
        .id();
    let damage = "UPDATE task_details SET steps = '['";
    h.database.execute(damage).await;
    // These tasks evict the damaged one from the cache.
    for _ in 0..100 {
        h.submit(New::default()).await;
    }
    let cancelled = h.apply(id, Command::Cancel { reason: None }).await.unwrap();
    assert_eq!(cancelled.status(), TaskStatus::Cancelled);
    let rows = "SELECT count(*) FROM steps
        WHERE state = 'cancelled' AND task_id = (SELECT id FROM tasks ORDER BY id LIMIT 1)";
    assert_eq!(h.database.count(rows).await, 3);
    let names = "SELECT count(DISTINCT name) FROM steps WHERE state = 'cancelled'";
    assert_eq!(h.database.count(names).await, 3);
}

/// The record of an instance that joined before steps could have no rows.
const OLDER: &str = "INSERT INTO instances (id, incarnation, term, until, started_at, version, process, reads_claims,
        reads_key_prefix, completes_links, holds_undos, writes_ledger, reads_attempt_rules)
    VALUES ('older', '00000000-0000-0000-0000-000000000001', 1, 1, 1, '0.0.9', 'p', NULL, NULL, NULL, NULL, NULL, NULL)";
const RENEWED: &str = "UPDATE instances SET incarnation = '00000000-0000-0000-0000-000000000002', term = 2, until = 2,
    started_at = 2, version = '0.0.9', process = 'q' WHERE id = 'older'";
/// The record of an older instance that joins after that.
const LATE: &str =
    "INSERT INTO instances (id, incarnation, term, until, started_at, version, process)
    VALUES ('late', '00000000-0000-0000-0000-000000000001', 1, 1, 1, '0.0.9', 'p')";

#[tokio::test]
async fn while_an_older_instance_is_on_record_every_step_has_a_row() {
    let first = Harness::new(postgres().await).await;
    spares_rows(&first).await;
    first.database.execute(OLDER).await;
    let h = Harness::new(postgres_at(url(&first)).await).await;
    h.slots("x", 1);
    let task = h.submit(pipeline()).await;
    assert_eq!(task.untouched, []);
    assert_eq!(task.own_claim, None);
    assert_eq!(task.step(StepIndex(0)).status(), StepStatus::Processing);
    expect_rows(&h, &task, 3).await;
    // The older instance renews its lease.
    h.database.execute(RENEWED).await;
    h.database.execute("DELETE FROM instances").await;
    spares_rows(&h).await;
    let task = h.submit(pipeline()).await;
    assert_eq!(task.untouched.len(), 2);
    assert_eq!(h.database.count(ROWS).await, 3 + 1);
    let joined = sqlx::query(LATE).execute(&mut outside(&h).await).await;
    let refused = joined.unwrap_err().to_string();
    assert!(refused.contains("older_instances_cannot_join"), "{refused}");
}

#[tokio::test]
async fn an_older_cache_adds_no_row_that_is_there() {
    let (a, b) = pair().await;
    spares_rows(&a).await;
    a.slots("x", 1);
    let id = a.submit(pipeline()).await.id();
    b.reply(id, 0, 1, success(json!(1))).await.unwrap();
    // In the memory of this instance, the second step is untouched.
    let cancelled = a.apply(id, Command::Cancel { reason: None }).await.unwrap();
    assert_eq!(cancelled.step(StepIndex(0)).status(), StepStatus::Processed);
    expect_rows(&a, &cancelled, 3).await;
    assert_eq!(b.read(id).await, *cancelled);
}

/// Adds the second step's row, between the two statements of a read.
const TOUCH_SECOND: [&str; 5] = [
    "CREATE TEMPORARY TABLE second AS SELECT * FROM steps",
    "UPDATE second SET idx = 1, name = 'b', agent = 'y', state = 'waiting', ready_at = NULL, due_at = NULL, queued = 0",
    "UPDATE tasks SET version = version + 1, untouched = 1",
    "INSERT INTO steps SELECT * FROM second",
    "COMMIT",
];
const WAITS_FOR_STEPS: &str =
    "SELECT count(*) FROM pg_locks WHERE relation = 'steps'::regclass AND NOT granted";

#[tokio::test]
async fn a_task_that_changes_while_it_is_read_is_read_again() {
    let (a, b) = pair().await;
    spares_rows(&a).await;
    let id = a.submit(pipeline()).await.id();
    let mut other = outside(&a).await;
    for sql in ["BEGIN", "LOCK TABLE steps IN ACCESS EXCLUSIVE MODE"] {
        sqlx::query(sql).execute(&mut other).await.unwrap();
    }
    // The task is not in the cache of the instance b.
    let asked = tokio::spawn({
        let b = b.clone();
        async move { b.ask(id, Command::Pause { reason: None }).await }
    });
    let mut tries = 0;
    while a.database.count(WAITS_FOR_STEPS).await == 0 {
        tries += 1;
        assert!(tries < 2_000, "the read never came to the steps");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for sql in TOUCH_SECOND {
        sqlx::query(sql).execute(&mut other).await.unwrap();
    }
    other.close().await.unwrap();
    asked.await.unwrap().unwrap();
    let read = a.read(id).await;
    assert_eq!((read.version, read.status()), (3, TaskStatus::Paused));
    assert_eq!(read.untouched, [StepIndex(2)]);
}
