//! Saving a batch: a statement for each table, whatever the number of rows, because behind an
//! asynchronous driver a statement costs two thread wake-ups and a row in it next to nothing. The rows of
//! each are written while the connection's thread runs the statement before.

use sqlx::SqliteConnection;

use super::rows_statement::{Rows, RowsStatement, run, run_and};
use crate::{
    domain::{Message, StepIndex, Task, Timestamp},
    store::{
        Batch, Saved, StoreError,
        batch::TaskChange,
        record::{self, DetailsRecord, StepRecord, TaskRecord, step_columns},
    },
};

/// Relies on the primary key.
static INSERT_TASKS: RowsStatement<19> = RowsStatement::new(
    r#"
INSERT INTO tasks (id, "key", workflow, workflow_version, labels, priority, complete_within, created_at,
                   trace_id, trace_flags, tracestate, version, state, paused, complete_by, overdue_at, ended_at, error, undo)
SELECT * FROM (VALUES"#,
    ") WHERE column1 IS NOT NULL",
);

static INSERT_DETAILS: RowsStatement<4> = RowsStatement::new(
    "INSERT INTO task_details (task_id, steps, policies, input) SELECT * FROM (VALUES",
    ") WHERE column1 IS NOT NULL",
);

/// For tasks with a `reply_to`: all others need only [`INSERT_DETAILS`].
static INSERT_DETAILS_AND_REPLY: RowsStatement<5> = RowsStatement::new(
    "INSERT INTO task_details (task_id, steps, policies, input, reply_to) SELECT * FROM (VALUES",
    ") WHERE column1 IS NOT NULL",
);

/// Compare-and-set on the version; relies on the primary key.
static UPDATE_TASKS: RowsStatement<9> = RowsStatement::new(
    r#"
UPDATE tasks
SET version = version + 1, state = new.column3, paused = new.column4, complete_by = new.column5,
    overdue_at = new.column6, ended_at = new.column7, error = new.column8, undo = new.column9
FROM (VALUES"#,
    ") AS new WHERE tasks.id = new.column1 AND tasks.version = new.column2",
);

macro_rules! save_steps {
    ($first:ident: $kind:ident $(, $name:ident: $_:ident)*) => {
        RowsStatement::new(
            concat!(
                "INSERT INTO steps (task_id, idx, name, agent, priority, ", stringify!($first),
                $(", ", stringify!($name),)* ") SELECT * FROM (VALUES"
            ),
            concat!(
                ") WHERE column1 IS NOT NULL ON CONFLICT (task_id, idx) DO UPDATE SET ",
                stringify!($first), " = excluded.", stringify!($first)
                $(, ", ", stringify!($name), " = excluded.", stringify!($name))*
            ),
        )
    };
}

/// Relies on the primary key.
static SAVE_STEPS: RowsStatement<22> = step_columns!(save_steps);

static INSERT_HISTORY: RowsStatement<4> = RowsStatement::new(
    "INSERT INTO history (task_id, version, at, events) SELECT * FROM (VALUES",
    ") WHERE column1 IS NOT NULL",
);

static INSERT_LABELS: RowsStatement<3> = RowsStatement::new(
    "INSERT INTO task_labels (label, value, task_id) SELECT * FROM (VALUES",
    ") WHERE column1 IS NOT NULL",
);

static INSERT_KEYS: RowsStatement<4> = RowsStatement::new(
    r#"INSERT INTO idempotency_keys ("key", fingerprint, task_id, created_at) SELECT * FROM (VALUES"#,
    ") WHERE column1 IS NOT NULL",
);

static INSERT_MESSAGES: RowsStatement<9> = RowsStatement::new(
    r#"
INSERT INTO messages (id, receiver, subject, place, task_id, kind, url, body, created_at, state, tries)
SELECT *, 'pending', 0 FROM (VALUES"#,
    ") WHERE column1 IS NOT NULL",
);

/// Relies on the primary key.
static ADD_TO_QUEUES: RowsStatement<4> = RowsStatement::new(
    "INSERT INTO queues (receiver, subject, destination, due_at, waits_since, tries) SELECT *, column4, 0 FROM (VALUES",
    ") WHERE column1 IS NOT NULL ON CONFLICT (receiver, subject) DO NOTHING",
);

/// Saves all but alerts and messages.
pub(super) async fn save(
    tx: &mut SqliteConnection,
    batch: &Batch,
    now: Timestamp,
) -> Result<Saved, StoreError> {
    let changes = || batch.changes.iter();
    let created = || changes().filter(|change| change.base.is_none());
    let moved = || changes().filter_map(|change| Some((&change.task, change.base?)));
    let inserts = || INSERT_TASKS.over(created(), |rows, change| new_task(rows, &change.task));
    // Tasks with a `reply_to` use another form, so that all others need not carry it.
    let is_told = |change: &&TaskChange| change.task.details.reply_to.is_some();
    let details = || {
        let mut inserted =
            INSERT_DETAILS.over(created().filter(move |change| !is_told(change)), details);
        let told = created().filter(is_told);
        inserted.extend(INSERT_DETAILS_AND_REPLY.over(told, details_and_reply));
        inserted
    };
    let updates = || UPDATE_TASKS.over(moved(), |rows, (moved, base)| task(rows, moved, base));
    let steps = || {
        let steps =
            changes().flat_map(|change| change.steps.iter().map(move |at| (&change.task, *at)));
        SAVE_STEPS.over(steps, |rows, (task, at)| step(rows, task, at, now))
    };
    let history = || {
        let told = changes().filter(|change| !change.events.is_empty());
        INSERT_HISTORY.over(told, history)
    };

    let (_, next) = run_and(tx, inserts(), details).await?;
    let (_, next) = run_and(tx, next, updates).await?;
    let (matched, next) = run_and(tx, next, steps).await?;
    if matched < moved().count() as u64 {
        return Ok(Saved::Conflict);
    }
    let (_, next) = run_and(tx, next, history).await?;
    run(tx, next).await?;
    let labels = created().flat_map(|change| {
        let labels = change.task.details.labels.iter();
        labels.map(move |label| (change.task.id(), label))
    });
    let labels = INSERT_LABELS.over(labels, |rows, (task, (label, value))| {
        rows.text(label.as_str());
        rows.text(value.as_str());
        rows.id(task.0);
    });
    run(tx, labels).await?;
    let keys = INSERT_KEYS.over(batch.keys.iter(), |rows, new| {
        rows.text(new.key.as_str());
        rows.text(new.fingerprint.as_str());
        rows.id(new.task.0);
        rows.integer(now.as_millis());
    });
    run(tx, keys).await?;
    Ok(Saved::All)
}

/// Does nothing if there are no messages.
pub(super) async fn save_messages(
    tx: &mut SqliteConnection,
    replies: &[Message],
    alerts: &[Message],
) -> Result<(), StoreError> {
    let messages: Vec<_> = replies.iter().chain(alerts).collect();
    let inserted = INSERT_MESSAGES.over(messages.iter(), |rows, message| {
        rows.id(message.id);
        rows.text(message.receiver.as_str());
        rows.id(message.subject);
        rows.integer(message.position);
        rows.maybe_id(message.task.map(|task| task.0));
        rows.text(message.kind.as_str());
        rows.maybe_text(message.url.as_deref());
        rows.text(message.body.as_str());
        rows.integer(message.at.as_millis());
    });
    run(tx, inserted).await?;
    let queues = Batch::queues(&messages);
    let queues = ADD_TO_QUEUES.over(queues.iter(), |rows, queue| {
        rows.text(queue.receiver.as_str());
        rows.id(queue.subject);
        rows.text(queue.destination.as_str());
        rows.integer(queue.at.as_millis());
    });
    run(tx, queues).await?;
    Ok(())
}

fn new_task(rows: &mut Rows, task: &Task) {
    let details = DetailsRecord::of(task);
    rows.id(task.id().0);
    rows.maybe_text(details.key.cloned());
    rows.maybe_text(details.workflow.cloned());
    rows.maybe_integer(details.workflow_version.map(i64::from));
    rows.text(details.labels);
    rows.integer(details.priority);
    rows.maybe_integer(details.complete_within);
    rows.integer(details.created_at);
    rows.maybe_text(details.trace_id);
    rows.maybe_integer(details.trace_flags);
    rows.maybe_text(details.tracestate.cloned());
    rows.integer(task.version as i64);
    state(rows, task);
}

fn details(rows: &mut Rows, change: &TaskChange) {
    let details = DetailsRecord::of(&change.task);
    rows.id(change.task.id().0);
    rows.maybe_text(details.steps);
    rows.maybe_text(details.policies);
    rows.text(details.input);
}

fn details_and_reply(rows: &mut Rows, change: &TaskChange) {
    details(rows, change);
    rows.maybe_text(record::reply_to(&change.task));
}

fn task(rows: &mut Rows, task: &Task, base: u64) {
    rows.id(task.id().0);
    rows.integer(base as i64);
    state(rows, task);
}

/// The columns in which both forms of a task's record end.
fn state(rows: &mut Rows, task: &Task) {
    let record = TaskRecord::of(task);
    rows.word(record.state);
    rows.integer(i64::from(record.paused));
    rows.maybe_integer(record.complete_by);
    rows.maybe_integer(record.overdue_at);
    rows.maybe_integer(record.ended_at);
    rows.maybe_text(record.error);
    rows.maybe_text(record.undo);
}

fn step(rows: &mut Rows, task: &Task, index: StepIndex, now: Timestamp) {
    let record = StepRecord::of(task, index, now);
    rows.id(record.task);
    rows.integer(i64::from(record.idx));
    rows.text(record.name.clone());
    rows.text(record.agent.clone());
    rows.integer(record.priority);
    macro_rules! bind {
        ($($name:ident: $kind:ident),*) => { $(value!(record.$name, $kind);)* };
    }
    macro_rules! value {
        ($value:expr, word) => {
            rows.word($value)
        };
        ($value:expr, number) => {
            rows.integer($value)
        };
        ($value:expr, maybe_number) => {
            rows.maybe_integer($value)
        };
        ($value:expr, flag) => {
            rows.integer(i64::from($value))
        };
        ($value:expr, maybe_shared) => {
            rows.maybe_text($value.cloned())
        };
        ($value:expr, $text:ident) => {
            rows.maybe_text($value)
        };
    }
    step_columns!(bind);
}

fn history(rows: &mut Rows, change: &TaskChange) {
    rows.id(change.task.id().0);
    rows.integer(change.task.version as i64);
    rows.integer(change.at.as_millis());
    rows.text(record::events(change));
}
