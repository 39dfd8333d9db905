//! Saving a batch: one statement, see [`save_sql`](super::save_sql), and one more for each thing that is
//! rare.

use sqlx::{PgConnection, Postgres, Row, postgres::PgArguments, query::Query};
use uuid::Uuid;

use super::{prepared::Prepared, save_sql::SaveShape};
use crate::{
    domain::{Message, Task, Timestamp},
    store::{
        Batch, Saved, StoreError,
        batch::{NewKey, TaskChange},
        record::{self, DetailsRecord, StepRecord, TaskRecord, step_columns},
    },
};

const INSERT_MESSAGES: &str = r#"
INSERT INTO messages (id, receiver, subject, place, task_id, kind, url, body, created_at, state, tries)
SELECT new.*, 'pending', 0
FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::bigint[], $5::uuid[], $6::text[], $7::text[],
            $8::text[], $9::bigint[]) AS new"#;

/// In the order of queues, in which each row's lock is taken: a transaction that takes a message out of one waits.
const ADD_TO_QUEUES: &str = r#"
INSERT INTO queues (receiver, subject, destination, due_at, waits_since, tries)
SELECT receiver, subject, destination, at, at, 0
FROM unnest($1::text[], $2::uuid[], $3::text[], $4::bigint[]) AS new (receiver, subject, destination, at)
ON CONFLICT (receiver, subject) DO UPDATE SET tries = queues.tries"#;

/// Saves all but alerts and messages. `wait`: whether rows that another instance has locked are waited for.
pub(super) async fn save(
    tx: &mut PgConnection,
    batch: &Batch,
    now: Timestamp,
    wait: bool,
    prepared: Prepared,
) -> Result<Saved, StoreError> {
    let changes = &batch.changes;
    let known: Vec<_> = changes
        .iter()
        .filter_map(|change| Some((&*change.task, change.base?)))
        .collect();
    let new: Vec<_> = changes
        .iter()
        .filter(|change| change.base.is_none())
        .map(|change| &*change.task)
        .collect();
    let steps = StepRecords::of(changes, now);
    let labels = labels(&new);
    // In the order of keys, because the second of two instances that insert one key waits for the first.
    let mut keys: Vec<_> = batch.keys.iter().collect();
    keys.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    let parts = SaveShape {
        known: !known.is_empty(),
        wait,
        new: !new.is_empty(),
        undos: !steps.undos.is_empty(),
        labels: !labels.is_empty(),
        keys: !keys.is_empty(),
    };
    let mut statement = prepared.query(parts.sql());
    if parts.known {
        statement = bind_known(statement, &known);
        statement = bind_steps(statement, &steps.known);
    }
    if parts.new {
        statement = bind_new(statement, &new);
        statement = bind_new_steps(statement, &steps.new);
    }
    if parts.undos {
        statement = bind_new_steps(statement, &steps.undos);
    }
    if parts.labels {
        statement = bind_labels(statement, &labels);
    }
    if parts.keys {
        statement = bind_keys(statement, &keys, now);
    }
    let row = bind_history(statement, changes).fetch_one(&mut *tx).await?;
    if !row.try_get::<bool, _>("saved")? {
        return Ok(Saved::Conflict);
    }
    Ok(Saved::All)
}

/// Whether [`save`] asks no more than one statement of the server for it.
pub(super) fn is_one_statement(batch: &Batch) -> bool {
    let mut changes = batch.changes.iter();
    batch.messages.is_empty() && changes.all(|change| change.alerts.is_empty())
}

type SaveQuery = Query<'static, Postgres, PgArguments>;

fn column<'r, R, V>(rows: &'r [R], value: impl FnMut(&'r R) -> V) -> Vec<V> {
    rows.iter().map(value).collect()
}

/// The columns that known and new tasks begin with.
fn bind_tasks(statement: SaveQuery, tasks: &[&Task], versions: Vec<i64>) -> SaveQuery {
    let tasks: Vec<_> = tasks.iter().map(|task| TaskRecord::of(task)).collect();
    statement
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

fn bind_known(statement: SaveQuery, known: &[(&Task, u64)]) -> SaveQuery {
    let tasks = column(known, |(task, _)| *task);
    bind_tasks(statement, &tasks, column(known, |(_, base)| *base as i64))
}

fn bind_new(statement: SaveQuery, new: &[&Task]) -> SaveQuery {
    let details = column(new, |task| DetailsRecord::of(task));
    let details = &details[..];
    bind_tasks(statement, new, column(new, |task| task.version as i64))
        .bind(column(details, |task| task.key.map(|key| &**key)))
        .bind(column(details, |task| task.workflow.map(|name| &**name)))
        .bind(column(details, |task| task.workflow_version.map(i64::from)))
        .bind(column(details, |task| task.labels.as_str()))
        .bind(column(details, |task| task.priority))
        .bind(column(details, |task| task.complete_within))
        .bind(column(details, |task| task.created_at))
        .bind(column(details, |task| task.trace_id.as_deref()))
        .bind(column(details, |task| task.trace_flags))
        .bind(column(details, |task| {
            task.tracestate.map(|state| &**state)
        }))
        .bind(column(new, |task| task.id().0))
        .bind(column(details, |task| task.steps))
        .bind(column(details, |task| task.policies))
        .bind(column(details, |task| task.input))
        .bind(column(new, |task| record::reply_to(task)))
}

/// The steps that changed.
#[derive(Default)]
struct StepRecords<'c> {
    known: Vec<StepRecord<'c>>,
    new: Vec<StepRecord<'c>>,
    /// Their rows come when what they undo is to be undone.
    undos: Vec<StepRecord<'c>>,
}

impl<'c> StepRecords<'c> {
    fn of(changes: &'c [TaskChange], now: Timestamp) -> Self {
        let mut records = Self::default();
        for change in changes {
            for index in &change.steps {
                let record = StepRecord::of(&change.task, *index, now);
                let is_undo = usize::from(index.0) >= change.task.steps.len();
                match (change.base, is_undo) {
                    (None, _) => records.new.push(record),
                    (Some(_), false) => records.known.push(record),
                    (Some(_), true) => records.undos.push(record),
                }
            }
        }
        records
    }
}

fn bind_steps(statement: SaveQuery, steps: &[StepRecord]) -> SaveQuery {
    macro_rules! bound {
        ($($name:ident: $kind:ident),*) => {
            statement
                .bind(column(steps, |step| step.task))
                .bind(column(steps, |step| i64::from(step.idx)))
                $(.bind(column(steps, |step| value!(step.$name, $kind))))*
        };
    }
    macro_rules! value {
        ($value:expr, flag) => {
            i16::from($value)
        };
        ($value:expr, maybe_shared) => {
            $value.map(|text| &**text)
        };
        ($value:expr, maybe_owned) => {
            $value.as_deref()
        };
        ($value:expr, $kind:ident) => {
            $value
        };
    }
    step_columns!(bound)
}

fn bind_new_steps(statement: SaveQuery, steps: &[StepRecord]) -> SaveQuery {
    bind_steps(statement, steps)
        .bind(column(steps, |step| &**step.name))
        .bind(column(steps, |step| &**step.agent))
        .bind(column(steps, |step| step.priority))
}

/// Each label of each task.
fn labels<'t>(new: &[&'t Task]) -> Vec<(&'t str, &'t str, Uuid)> {
    new.iter()
        .flat_map(|task| {
            let labels = task.details.labels.iter();
            labels.map(|(label, value)| (label.as_str(), value.as_str(), task.id().0))
        })
        .collect()
}

fn bind_labels(statement: SaveQuery, labels: &[(&str, &str, Uuid)]) -> SaveQuery {
    statement
        .bind(column(labels, |(label, ..)| *label))
        .bind(column(labels, |(_, value, _)| *value))
        .bind(column(labels, |(.., task)| *task))
}

fn bind_keys(statement: SaveQuery, keys: &[&NewKey], now: Timestamp) -> SaveQuery {
    statement
        .bind(column(keys, |new| new.key.as_str()))
        .bind(column(keys, |new| new.fingerprint.as_str()))
        .bind(column(keys, |new| new.task.0))
        .bind(column(keys, |_| now.as_millis()))
}

fn bind_history(statement: SaveQuery, changes: &[TaskChange]) -> SaveQuery {
    let told: Vec<_> = changes.iter().filter(|c| !c.events.is_empty()).collect();
    statement
        .bind(column(&told, |change| change.task.id().0))
        .bind(column(&told, |change| change.task.version as i64))
        .bind(column(&told, |change| change.at.as_millis()))
        .bind(column(&told, |change| record::events(change)))
}

pub(super) async fn save_messages(
    tx: &mut PgConnection,
    replies: &[Message],
    alerts: &[Message],
    prepared: Prepared,
) -> Result<(), StoreError> {
    let messages: Vec<_> = replies.iter().chain(alerts).collect();
    if messages.is_empty() {
        return Ok(());
    }
    let queues = Batch::queues(&messages);
    prepared
        .query(INSERT_MESSAGES)
        .bind(column(&messages, |message| message.id))
        .bind(column(&messages, |message| message.receiver.as_str()))
        .bind(column(&messages, |message| message.subject))
        .bind(column(&messages, |message| message.position))
        .bind(column(&messages, |message| message.task.map(|task| task.0)))
        .bind(column(&messages, |message| message.kind.as_str()))
        .bind(column(&messages, |message| message.url.as_deref()))
        .bind(column(&messages, |message| message.body.as_str()))
        .bind(column(&messages, |message| message.at.as_millis()))
        .execute(&mut *tx)
        .await?;
    prepared
        .query(ADD_TO_QUEUES)
        .bind(column(&queues, |queue| queue.receiver.as_str()))
        .bind(column(&queues, |queue| queue.subject))
        .bind(column(&queues, |queue| queue.destination.as_str()))
        .bind(column(&queues, |queue| queue.at.as_millis()))
        .execute(&mut *tx)
        .await?;
    Ok(())
}
