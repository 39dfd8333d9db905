//! Saving a batch: a statement for each table, whatever the number of rows. Each column travels as an
//! array, and `unnest` makes rows of them again.

use sqlx::{PgConnection, Postgres, postgres::PgArguments, query::Query};
use uuid::Uuid;

use crate::{
    domain::{AlertChange, AlertNotice, Message, Sender, Task, Timestamp},
    store::{
        Batch, Saved, StoreError,
        batch::TaskChange,
        outbox::closed_alert,
        record::{self, DetailsRecord, StepRecord, TaskRecord},
    },
};

const INSERT_TASKS: &str = r#"
INSERT INTO tasks (id, version, state, paused, complete_by, overdue_at, ended_at, error, undo, "key", workflow,
                   workflow_version, labels, priority, complete_within, created_at, trace_id)
SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::boolean[], $5::bigint[], $6::bigint[],
                     $7::bigint[], $8::text[], $9::text[], $10::text[], $11::text[], $12::bigint[],
                     $13::text[], $14::bigint[], $15::bigint[], $16::bigint[], $17::text[])"#;

const INSERT_DETAILS: &str = r#"
INSERT INTO task_details (task_id, steps, policies, input)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[])"#;

/// For those who are told: all others need no more than [`INSERT_DETAILS`].
const INSERT_DETAILS_AND_REPLY: &str = r#"
INSERT INTO task_details (task_id, steps, policies, input, reply_to)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[])"#;

/// Compare-and-set on the version; relies on the primary key. The rows are locked first, one after the
/// other in the order of the batch, which is that of ids: an update by itself promises no order. A row
/// whose version moved on while its lock was waited for is left out, because the condition is looked at
/// again then.
///
/// The form leaves no choice of a plan: a LATERAL that locks is run for each row, and only a TID scan
/// finds a row by its `ctid`. A plain join was seen to read the whole primary key, when it was planned for
/// a table that was small at that moment.
macro_rules! update_tasks {
    ($locked:literal) => {
        concat!(
            r#"
WITH mine AS MATERIALIZED (
    SELECT new.*, locked.place
    FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::boolean[], $5::bigint[], $6::bigint[],
                $7::bigint[], $8::text[], $9::text[])
         AS new (id, base, state, paused, complete_by, overdue_at, ended_at, error, undo)
    CROSS JOIN LATERAL (
        SELECT tasks.ctid AS place FROM tasks WHERE tasks.id = new.id AND tasks.version = new.base
        FOR NO KEY UPDATE "#,
            $locked,
            r#") AS locked)
UPDATE tasks
SET version = version + 1, state = mine.state, paused = mine.paused, complete_by = mine.complete_by,
    overdue_at = mine.overdue_at, ended_at = mine.ended_at, error = mine.error,
    undo = mine.undo
FROM mine
WHERE tasks.ctid = mine.place"#
        )
    };
}

const UPDATE_TASKS: &str = update_tasks!("");
/// What another instance is writing is as good as stale.
const UPDATE_TASKS_OR_SKIP: &str = update_tasks!("SKIP LOCKED");

/// Relies on the primary key.
const SAVE_STEPS: &str = r#"
INSERT INTO steps (task_id, idx, name, agent, priority, state, attempt, failure_count, extended, locked_by,
                   complete_by, ready_at, due_at, queued, started_at, ended_at, body, output, error, last_fault,
                   doubt)
SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::bigint[], $6::text[],
                     $7::bigint[], $8::bigint[], $9::bigint[], $10::text[], $11::bigint[], $12::bigint[],
                     $13::bigint[], $14::smallint[], $15::bigint[], $16::bigint[], $17::text[], $18::text[],
                     $19::text[], $20::text[], $21::text[])
ON CONFLICT (task_id, idx) DO UPDATE
SET state = excluded.state, attempt = excluded.attempt, failure_count = excluded.failure_count,
    extended = excluded.extended, locked_by = excluded.locked_by, complete_by = excluded.complete_by,
    ready_at = excluded.ready_at, due_at = excluded.due_at, queued = excluded.queued,
    started_at = excluded.started_at, ended_at = excluded.ended_at, body = excluded.body,
    output = excluded.output, error = excluded.error, last_fault = excluded.last_fault,
    doubt = excluded.doubt"#;

const INSERT_HISTORY: &str = r#"
INSERT INTO history (task_id, version, at, events)
SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[])"#;

const INSERT_LABELS: &str = r#"
INSERT INTO task_labels (label, value, task_id)
SELECT * FROM unnest($1::text[], $2::text[], $3::uuid[])"#;

/// In the order of keys, because the second of two instances that insert one key waits for the first.
const INSERT_KEYS: &str = r#"
INSERT INTO idempotency_keys ("key", fingerprint, task_id, created_at)
SELECT new.*, $4 FROM unnest($1::text[], $2::text[], $3::uuid[]) AS new"#;

/// Relies on alerts_unclosed: an alert that is not closed yet stands for this one too.
const RAISE_ALERT: &str = r#"
INSERT INTO alerts (id, task_id, idx, step, kind, message, state, raised_at)
VALUES ($1, $2, $3, $4, $5, $6, 'open', $7)
ON CONFLICT DO NOTHING"#;

/// Relies on alerts_unclosed.
const CLOSE_ALERT: &str = r#"
UPDATE alerts SET state = 'closed', closed_at = $3
WHERE task_id = $1 AND idx = $2 AND state <> 'closed'
RETURNING id, kind, message, raised_at"#;

const INSERT_MESSAGES: &str = r#"
INSERT INTO messages (id, receiver, subject, place, task_id, kind, url, body, created_at, state, tries)
SELECT new.*, 'pending', 0
FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::bigint[], $5::uuid[], $6::text[], $7::text[],
            $8::text[], $9::bigint[]) AS new"#;

/// In the order of queues, which each row's lock is taken in: whoever takes a message out of one waits.
const ADD_TO_QUEUES: &str = r#"
INSERT INTO queues (receiver, subject, due_at, tries)
SELECT new.*, 0 FROM unnest($1::text[], $2::uuid[], $3::bigint[]) AS new
ON CONFLICT (receiver, subject) DO UPDATE SET tries = queues.tries"#;

/// `wait`: whether rows that another instance has locked are waited for.
pub(super) async fn save(
    tx: &mut PgConnection,
    batch: &Batch,
    now: Timestamp,
    wait: bool,
) -> Result<Saved, StoreError> {
    let changes = &batch.changes;
    let known: Vec<_> = changes
        .iter()
        .filter_map(|change| Some((&*change.task, change.base?)))
        .collect();
    if !known.is_empty() {
        let updated = update_tasks(&known, wait).execute(&mut *tx).await?;
        if updated.rows_affected() < known.len() as u64 {
            return Ok(Saved::Stale);
        }
    }
    let new: Vec<_> = changes
        .iter()
        .filter(|change| change.base.is_none())
        .map(|change| &*change.task)
        .collect();
    if !new.is_empty() {
        insert_tasks(&new).execute(&mut *tx).await?;
        let is_told = |task: &&Task| task.details.reply_to.is_some();
        let (told, untold): (Vec<_>, Vec<_>) = new.iter().copied().partition(is_told);
        if !untold.is_empty() {
            insert_details(INSERT_DETAILS, &untold)
                .execute(&mut *tx)
                .await?;
        }
        if !told.is_empty() {
            insert_details(INSERT_DETAILS_AND_REPLY, &told)
                .bind(column(&told, |task| record::reply_to(task)))
                .execute(&mut *tx)
                .await?;
        }
    }
    let steps: Vec<_> = changes
        .iter()
        .flat_map(|change| {
            let steps = change.steps.iter();
            steps.map(|index| StepRecord::of(&change.task, *index, now))
        })
        .collect();
    if !steps.is_empty() {
        save_steps(&steps).execute(&mut *tx).await?;
    }
    insert_history(tx, changes).await?;
    insert_labels(tx, &new).await?;
    insert_keys(tx, batch, now).await?;
    let mut alerts = Vec::new();
    for change in changes {
        alerts.extend(save_alerts(tx, change, &batch.sender).await?);
    }
    save_messages(tx, &batch.messages, &alerts).await?;
    Ok(Saved::All)
}

type Statement = Query<'static, Postgres, PgArguments>;

fn column<'r, R, V>(rows: &'r [R], value: impl FnMut(&'r R) -> V) -> Vec<V> {
    rows.iter().map(value).collect()
}

/// The columns that [`INSERT_TASKS`] and [`UPDATE_TASKS`] begin with.
fn bind_tasks(statement: &'static str, tasks: &[&Task], versions: Vec<i64>) -> Statement {
    let tasks: Vec<_> = tasks.iter().map(|task| TaskRecord::of(task)).collect();
    sqlx::query(statement)
        .bind(column(&tasks, |task| task.id))
        .bind(versions)
        .bind(column(&tasks, |task| task.state))
        .bind(column(&tasks, |task| task.paused))
        .bind(column(&tasks, |task| task.complete_by))
        .bind(column(&tasks, |task| task.overdue_at))
        .bind(column(&tasks, |task| task.ended_at))
        .bind(column(&tasks, |task| task.error.clone()))
        .bind(column(&tasks, |task| task.undo.clone()))
}

fn update_tasks(known: &[(&Task, u64)], wait: bool) -> Statement {
    let statement = if wait {
        UPDATE_TASKS
    } else {
        UPDATE_TASKS_OR_SKIP
    };
    let tasks = column(known, |(task, _)| *task);
    bind_tasks(statement, &tasks, column(known, |(_, base)| *base as i64))
}

fn insert_tasks(new: &[&Task]) -> Statement {
    let details = column(new, |task| DetailsRecord::of(task));
    let details = &details[..];
    bind_tasks(INSERT_TASKS, new, column(new, |task| task.version as i64))
        .bind(column(details, |task| task.key))
        .bind(column(details, |task| task.workflow))
        .bind(column(details, |task| task.workflow_version.map(i64::from)))
        .bind(column(details, |task| task.labels.as_str()))
        .bind(column(details, |task| task.priority))
        .bind(column(details, |task| task.complete_within))
        .bind(column(details, |task| task.created_at))
        .bind(column(details, |task| task.trace_id.as_deref()))
}

fn insert_details(statement: &'static str, new: &[&Task]) -> Statement {
    let details = column(new, |task| DetailsRecord::of(task));
    sqlx::query(statement)
        .bind(column(new, |task| task.id().0))
        .bind(column(&details, |task| task.steps))
        .bind(column(&details, |task| task.policies))
        .bind(column(&details, |task| task.input))
}

fn save_steps(steps: &[StepRecord]) -> Statement {
    sqlx::query(SAVE_STEPS)
        .bind(column(steps, |step| step.task))
        .bind(column(steps, |step| i64::from(step.idx)))
        .bind(column(steps, |step| step.name))
        .bind(column(steps, |step| step.agent))
        .bind(column(steps, |step| step.priority))
        .bind(column(steps, |step| step.state))
        .bind(column(steps, |step| i64::from(step.attempt)))
        .bind(column(steps, |step| i64::from(step.failure_count)))
        .bind(column(steps, |step| i64::from(step.extended)))
        .bind(column(steps, |step| step.locked_by))
        .bind(column(steps, |step| step.complete_by))
        .bind(column(steps, |step| step.ready_at))
        .bind(column(steps, |step| step.due_at))
        .bind(column(steps, |step| i16::from(step.queued)))
        .bind(column(steps, |step| step.started_at))
        .bind(column(steps, |step| step.ended_at))
        .bind(column(steps, |step| step.body))
        .bind(column(steps, |step| step.output))
        .bind(column(steps, |step| step.error.as_deref()))
        .bind(column(steps, |step| step.last_fault.as_deref()))
        .bind(column(steps, |step| step.doubt))
}

async fn insert_history(tx: &mut PgConnection, changes: &[TaskChange]) -> Result<(), StoreError> {
    let told: Vec<_> = changes.iter().filter(|c| !c.events.is_empty()).collect();
    if !told.is_empty() {
        sqlx::query(INSERT_HISTORY)
            .bind(column(&told, |change| change.task.id().0))
            .bind(column(&told, |change| change.task.version as i64))
            .bind(column(&told, |change| change.at.as_millis()))
            .bind(column(&told, |change| record::events(change)))
            .execute(tx)
            .await?;
    }
    Ok(())
}

async fn insert_labels(tx: &mut PgConnection, new: &[&Task]) -> Result<(), StoreError> {
    let labels: Vec<(&str, &str, Uuid)> = new
        .iter()
        .flat_map(|task| {
            let labels = task.details.labels.iter();
            labels.map(|(label, value)| (label.as_str(), value.as_str(), task.id().0))
        })
        .collect();
    if !labels.is_empty() {
        sqlx::query(INSERT_LABELS)
            .bind(column(&labels, |(label, ..)| *label))
            .bind(column(&labels, |(_, value, _)| *value))
            .bind(column(&labels, |(.., task)| *task))
            .execute(tx)
            .await?;
    }
    Ok(())
}

async fn insert_keys(
    tx: &mut PgConnection,
    batch: &Batch,
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut keys: Vec<_> = batch.keys.iter().collect();
    keys.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    if !keys.is_empty() {
        sqlx::query(INSERT_KEYS)
            .bind(column(&keys, |new| new.key.as_str()))
            .bind(column(&keys, |new| new.fingerprint.as_str()))
            .bind(column(&keys, |new| new.task.0))
            .bind(now.as_millis())
            .execute(tx)
            .await?;
    }
    Ok(())
}

async fn save_messages(
    tx: &mut PgConnection,
    replies: &[Message],
    alerts: &[Message],
) -> Result<(), StoreError> {
    let messages: Vec<_> = replies.iter().chain(alerts).collect();
    if messages.is_empty() {
        return Ok(());
    }
    let queues = Batch::queues(&messages);
    sqlx::query(INSERT_MESSAGES)
        .bind(column(&messages, |message| message.id))
        .bind(column(&messages, |message| message.receiver.as_str()))
        .bind(column(&messages, |message| message.subject))
        .bind(column(&messages, |message| message.place))
        .bind(column(&messages, |message| message.task.map(|task| task.0)))
        .bind(column(&messages, |message| message.kind.as_str()))
        .bind(column(&messages, |message| message.url.as_deref()))
        .bind(column(&messages, |message| message.body.as_str()))
        .bind(column(&messages, |message| message.at.as_millis()))
        .execute(&mut *tx)
        .await?;
    sqlx::query(ADD_TO_QUEUES)
        .bind(column(&queues, |(receiver, ..)| receiver.as_str()))
        .bind(column(&queues, |(_, subject, _)| *subject))
        .bind(column(&queues, |(.., at)| at.as_millis()))
        .execute(&mut *tx)
        .await?;
    Ok(())
}

/// Alerts are rare: a statement for each is no cost that matters. Answers what is told of them.
async fn save_alerts(
    tx: &mut PgConnection,
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
                    .bind(*alert_id)
                    .bind(task.id().0)
                    .bind(i64::from(step.0))
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
                    .bind(task.id().0)
                    .bind(i64::from(step.0))
                    .bind(change.at.as_millis())
                    .fetch_optional(&mut *tx)
                    .await?;
                let closed = closed.map(|row| closed_alert(&row, change.at));
                closed.transpose()?.map(|alert| change.notice(*step, alert))
            }
        };
        if let Some(notice) = notice {
            told.extend(sender.alert(&notice, task.version, change.at, Uuid::now_v7));
        }
    }
    Ok(told)
}
