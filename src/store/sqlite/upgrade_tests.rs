//! Databases that an earlier version made stay usable.

use std::num::NonZeroUsize;

use rusqlite::Connection;

use super::{migrate::migrate, *};
use crate::domain::{task::Expiry, values::InstanceId};

/// A task with one step that a process of the first version was running when it was killed.
const LEFT_BEHIND: &str = r#"
INSERT INTO tasks (id, labels, priority, created_at, version, state, paused)
VALUES (x'0190f000000070008000000000000001', '{}', 0, 1, 2, 'processing', 0);
INSERT INTO task_details (task_id, steps, input)
VALUES (x'0190f000000070008000000000000001', '[{"name":"a","url":"http://127.0.0.1:1"}]', '{}');
INSERT INTO steps (task_id, idx, name, agent, priority, state, attempt, failure_count, extended, locked_by, complete_by, queued)
VALUES (x'0190f000000070008000000000000001', 0, 'a', 'http://127.0.0.1:1', 0, 'processing', 1, 0, 0, 'old-process', 9999999999999, 0);
INSERT INTO alerts (id, task_id, idx, step, kind, message, state, raised_at)
VALUES (x'0190f000000070008000000000000002', x'0190f000000070008000000000000001', 0, 'a', 'task.error', 'step a', 'open', 2)"#;

#[tokio::test]
async fn a_database_from_before_instances_had_leases_is_brought_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("provost.db");
    let mut before = Connection::open(&path).unwrap();
    migrate(&mut before, &MIGRATIONS[..1]).unwrap();
    before.execute_batch(LEFT_BEHIND).unwrap();
    drop(before);

    let definitions = Arc::new(CompiledDefinitions::new(NonZeroUsize::MIN));
    let opened = open(&path, None, definitions, Health::default()).await;
    let opened = opened.unwrap();
    let reader = &opened.readers.callers;
    let found = reader.expired(&InstanceId::new("new-process"), 10).await;
    let found = found.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].cause, Expiry::InstanceLost);
    assert!(reader.task(found[0].step.task).await.unwrap().is_some());
    let query = super::super::AlertQuery {
        state: Some(super::super::AlertState::Open),
        task: Some(found[0].step.task),
        part_of: None,
        cause: None,
        id: None,
        before: None,
        limit: 10,
    };
    let alerts = reader.alerts(&query).await.unwrap();
    assert_eq!(alerts.len(), 1);
    assert_eq!(alerts[0].message, "step a");
    let count = |database: &mut Connection| {
        let count = "SELECT count(*) FROM _sqlx_migrations";
        database.query_row(count, [], |row| row.get(0))
    };
    let migrations: rusqlite::Result<i64> = opened.backend.writer.run(count).await;
    let migrations = migrations.unwrap();
    assert_eq!(migrations, MIGRATIONS.len() as i64);
}

/// A message that was waiting when an earlier version was stopped.
const WAITING: &str = r#"
INSERT INTO messages (id, receiver, subject, place, kind, url, body, created_at, state, tries)
VALUES (x'01', 'http://shop:80', x'02', 1, 'task.accepted', 'http://shop:80/r', '{}', 1, 'pending', 3);
INSERT INTO queues (receiver, subject, due_at, tries) VALUES ('http://shop:80', x'02', 1, 3), ('ops', x'03', 2, 0)"#;

#[test]
fn messages_from_before_destinations_were_kept_have_theirs() {
    let mut database = Connection::open_in_memory().unwrap();
    migrate(&mut database, &MIGRATIONS[..5]).unwrap();
    database.execute_batch(WAITING).unwrap();
    migrate(&mut database, &MIGRATIONS).unwrap();
    let queues = "SELECT destination, waiting FROM queues ORDER BY due_at";
    let mut queues = database.prepare(queues).unwrap();
    let queues = queues.query_map([], |row| row.try_into()).unwrap();
    let queues: Vec<(String, i64)> = queues.map(Result::unwrap).collect();
    assert_eq!(
        queues,
        [("http://shop:80/r".to_owned(), 0), ("ops".to_owned(), 0)]
    );
}
