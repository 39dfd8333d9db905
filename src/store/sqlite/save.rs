//! Saving a batch: a statement for each table, whatever the number of rows, because behind an
//! asynchronous driver a statement costs two thread wake-ups and a row in it next to nothing. The rows of
//! each are written while the connection's thread runs the statement before.

use sqlx::SqliteConnection;
use uuid::Uuid;

use super::rows_statement::{Rows, RowsStatement, run, run_and};
use crate::{
    domain::{AlertChange, AlertNotice, Message, Sender, StepIndex, Task, Timestamp},
    store::{
        Batch, Saved, StoreError,
        batch::TaskChange,
        outbox::closed_alert,
        record::{self, DetailsRecord, StepRecord, TaskRecord},
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

/// For those who are told: all others need no more than [`INSERT_DETAILS`].
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

/// Relies on the primary key.
static SAVE_STEPS: RowsStatement<22> = RowsStatement::new(
    r#"
INSERT INTO steps (task_id, idx, name, agent, priority, state, attempt, failure_count, extended, locked_by,
                   complete_by, ready_at, due_at, queued, started_at, ended_at, body, output, error, last_fault,
                   doubt, tries)
SELECT * FROM (VALUES"#,
    r#") WHERE column1 IS NOT NULL
ON CONFLICT (task_id, idx) DO UPDATE
SET state = excluded.state, attempt = excluded.attempt, failure_count = excluded.failure_count,
    extended = excluded.extended, locked_by = excluded.locked_by, complete_by = excluded.complete_by,
    ready_at = excluded.ready_at, due_at = excluded.due_at, queued = excluded.queued,
    started_at = excluded.started_at, ended_at = excluded.ended_at, body = excluded.body,
    output = excluded.output, error = excluded.error, last_fault = excluded.last_fault,
    doubt = excluded.doubt, tries = excluded.tries"#,
);

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

/// Relies on alerts_unclosed: an alert that is not closed yet stands for this one too.
const RAISE_ALERT: &str = r#"
INSERT INTO alerts (id, task_id, idx, step, kind, message, state, raised_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'open', ?7)
ON CONFLICT DO NOTHING"#;

/// Relies on alerts_unclosed.
const CLOSE_ALERT: &str = r#"
UPDATE alerts SET state = 'closed', closed_at = ?3
WHERE task_id = ?1 AND idx = ?2 AND state <> 'closed'
RETURNING id, kind, message, raised_at"#;

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

pub(super) async fn save(
    tx: &mut SqliteConnection,
    batch: &Batch,
    now: Timestamp,
) -> Result<Saved, StoreError> {
    let changes = || batch.changes.iter();
    let created = || changes().filter(|change| change.base.is_none());
    let moved = || changes().filter_map(|change| Some((&change.task, change.base?)));
    let inserts = || INSERT_TASKS.over(created(), |rows, change| new_task(rows, &change.task));
    // Those who are told take another form, so that all others need not carry it.
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
    let mut alerts = Vec::new();
    for change in changes() {
        alerts.extend(save_alerts(tx, change, &batch.sender).await?);
    }
    save_messages(tx, &batch.messages, &alerts).await?;
    Ok(Saved::All)
}

/// Where nobody is told anything, this does nothing.
async fn save_messages(
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

/// Alerts are rare: a statement for each is no cost that matters. Answers what is told of them.
async fn save_alerts(
    tx: &mut SqliteConnection,
    change: &TaskChange,
    sender: &Sender,
) -> Result<Vec<Message>, StoreError> {
    let task = &change.task;
    let mut told = Vec::new();
    for (alert_id, alert) in &change.alerts {
        let notice = match alert {
            AlertChange::Raise {
                step,
                kind,
                message,
            } => {
                let raised = sqlx::query(RAISE_ALERT)
                    .bind(alert_id.as_bytes().as_slice())
                    .bind(task.id().0.as_bytes().as_slice())
                    .bind(step.0)
                    .bind(task.definition(*step).name.as_str())
                    .bind(kind.as_str())
                    .bind(message)
                    .bind(change.at.as_millis())
                    .execute(&mut *tx)
                    .await?;
                let alert = AlertNotice::raised(*alert_id, kind.as_str(), message, change.at);
                (raised.rows_affected() > 0).then(|| change.notice(*step, alert))
            }
            AlertChange::Close { step } => {
                let closed = sqlx::query(CLOSE_ALERT)
                    .bind(task.id().0.as_bytes().as_slice())
                    .bind(step.0)
                    .bind(change.at.as_millis())
                    .fetch_all(&mut *tx)
                    .await?;
                let closed = closed.first().map(|row| closed_alert(row, change.at));
                closed.transpose()?.map(|alert| change.notice(*step, alert))
            }
        };
        if let Some(notice) = notice {
            told.extend(sender.alert(&notice, task.version, change.at, Uuid::now_v7));
        }
    }
    Ok(told)
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
    rows.word(record.state);
    rows.integer(i64::from(record.attempt));
    rows.integer(i64::from(record.failure_count));
    rows.integer(i64::from(record.extended));
    rows.maybe_text(record.locked_by.cloned());
    rows.maybe_integer(record.complete_by);
    rows.maybe_integer(record.ready_at);
    rows.maybe_integer(record.due_at);
    rows.integer(i64::from(record.queued));
    rows.maybe_integer(record.started_at);
    rows.maybe_integer(record.ended_at);
    rows.maybe_text(record.body);
    rows.maybe_text(record.output);
    rows.maybe_text(record.error);
    rows.maybe_text(record.last_fault);
    rows.maybe_text(record.doubt);
    rows.integer(i64::from(record.tries));
}

fn history(rows: &mut Rows, change: &TaskChange) {
    rows.id(change.task.id().0);
    rows.integer(change.task.version as i64);
    rows.integer(change.at.as_millis());
    rows.text(record::events(change));
}
