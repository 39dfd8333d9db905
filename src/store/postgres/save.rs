//! Saving a batch: one statement, see [`save_sql`](super::save_sql), and one more for each thing that is
//! rare.

use std::sync::LazyLock;

use sqlx::{PgConnection, Postgres, Row, postgres::PgArguments, query::Query};

use super::{
    prepared::Prepared,
    save_sql::{SaveShape, insert},
};
use crate::{
    domain::{Message, Timestamp},
    store::{
        Batch, StoreError,
        batch::TaskChange,
        record::{
            DetailsRow, HistoryRow, KeyRow, LabelRow, MessageRow, NewStepRow, NewTaskRow, QueueRow,
            StepRow, TaskRow, saved_rows,
        },
    },
};

/// In the order of queues, in which each row's lock is taken: a transaction that takes a message out of one waits.
const CONFLICT_OF_QUEUES: &str =
    " ON CONFLICT (receiver, subject) DO UPDATE SET tries = queues.tries";

/// How the statement went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RowsSaved {
    All,
    /// A task is gone, has another version, or is locked and was not waited for. Nothing was changed.
    Stale,
    /// A row was there and was not changed. Nothing else was either: the statement failed.
    ///
    /// The statement sees rows as they were when it began, and takes its locks later. Whatever is written of a task in
    /// between shows in its version, but for a promotion: it leaves the version as it is, and what was seen of the
    /// step is then an old row, which an update by its `ctid` leaves alone. All is decided again, with the locks
    /// taken first; a row that is missed after that is a fault.
    Missed,
}

/// How the statement fails that misses a row: see `end` in `save_sql`.
const DIVISION_BY_ZERO: &str = "22012";

/// In the order of the batch, as a save does it.
const LOCK_TASKS: &str = "
SELECT FROM unnest($1::uuid[]) AS known (id)
CROSS JOIN LATERAL (SELECT FROM tasks WHERE tasks.id = known.id FOR NO KEY UPDATE) AS locked";

const LOCK_FREE_TASKS: &str = "
SELECT FROM unnest($1::uuid[]) AS known (id)
CROSS JOIN LATERAL (SELECT FROM tasks WHERE tasks.id = known.id FOR NO KEY UPDATE SKIP LOCKED) AS locked";

/// Locks the tasks of a batch that are there already. Returns whether all of them are locked; `wait`: as of [`save`].
pub(super) async fn lock_tasks(
    tx: &mut PgConnection,
    batch: &Batch,
    wait: bool,
    prepared: Prepared,
) -> Result<bool, StoreError> {
    let known = batch.changes.iter().filter(|change| change.base.is_some());
    let ids: Vec<_> = known.map(|change| change.task.id().0).collect();
    let lock = match wait {
        true => LOCK_TASKS,
        false => LOCK_FREE_TASKS,
    };
    let locked = prepared.query(lock).bind(&ids).execute(tx).await?;
    Ok(usize::try_from(locked.rows_affected()).is_ok_and(|locked| locked == ids.len()))
}

/// Saves all but alerts and messages. `wait`: whether rows that another instance has locked are waited for.
pub(super) async fn save(
    tx: &mut PgConnection,
    batch: &Batch,
    now: Timestamp,
    wait: bool,
    prepared: Prepared,
) -> Result<RowsSaved, StoreError> {
    let changes = &batch.changes;
    let known = changes
        .iter()
        .filter_map(|change| Some(TaskRow::of(&change.task, change.base?)));
    let known: Vec<_> = known.collect();
    let new = changes.iter().filter(|change| change.base.is_none());
    let new: Vec<_> = new.map(|change| &*change.task).collect();
    let steps = ChangedSteps::of(changes, now);
    let labels: Vec<_> = new.iter().flat_map(|task| LabelRow::of(task)).collect();
    // In the order of keys, because the second of two instances that insert one key waits for the first.
    let mut keys = column(&batch.keys, |new| KeyRow::of(new, now));
    keys.sort_unstable_by_key(|row| row.key);
    let parts = SaveShape {
        known: !known.is_empty(),
        wait,
        new: !new.is_empty(),
        undos: !steps.undos.0.is_empty(),
        labels: !labels.is_empty(),
        keys: !keys.is_empty(),
    };
    let mut statement = prepared.query(parts.sql());
    if parts.known {
        statement = TaskRow::bind(&known, statement);
        statement = StepRow::bind(&steps.known, statement);
    }
    if parts.new {
        let tasks = column(&new, |task| TaskRow::of(task, task.version));
        statement = TaskRow::bind(&tasks, statement);
        statement = NewTaskRow::bind(&column(&new, |task| NewTaskRow::of(task)), statement);
        statement = DetailsRow::bind(&column(&new, |task| DetailsRow::of(task)), statement);
        statement = bind_new_steps(&steps.new, statement);
    }
    if parts.undos {
        statement = bind_new_steps(&steps.undos, statement);
    }
    if parts.labels {
        statement = LabelRow::bind(&labels, statement);
    }
    if parts.keys {
        statement = KeyRow::bind(&keys, statement);
    }
    let with_events = changes.iter().filter(|change| !change.events.is_empty());
    let history: Vec<_> = with_events.map(HistoryRow::of).collect();
    statement = HistoryRow::bind(&history, statement);
    match statement.fetch_one(&mut *tx).await {
        Ok(row) if row.try_get("saved")? => Ok(RowsSaved::All),
        Ok(_) => Ok(RowsSaved::Stale),
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(DIVISION_BY_ZERO) => {
            Ok(RowsSaved::Missed)
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether [`save`] asks no more than one statement of the server for it.
pub(super) fn is_one_statement(batch: &Batch) -> bool {
    let mut changes = batch.changes.iter();
    batch.messages.is_empty()
        && changes
            .all(|change| change.alerts.is_empty() && change.asks.is_empty() && !change.is_move())
}

type SaveQuery = Query<'static, Postgres, PgArguments>;

fn column<'r, R, V>(rows: &'r [R], value: impl FnMut(&'r R) -> V) -> Vec<V> {
    rows.iter().map(value).collect()
}

macro_rules! bind_rows {
    ($($(#[$doc:meta])* $Row:ident $(<$a:lifetime>)? { $($column:ident: $kind:ident),* })*) => { $(
        impl $(<$a>)? $Row $(<$a>)? {
            fn bind(rows: &[Self], statement: SaveQuery) -> SaveQuery {
                statement$(.bind(column(rows, |row| bind_value!(row.$column, $kind))))*
            }
        }
    )* };
}

macro_rules! bind_value {
    ($value:expr, flag) => {
        i16::from($value)
    };
    ($value:expr, shared) => {
        &**$value
    };
    ($value:expr, maybe_shared) => {
        $value.map(|text| &**text)
    };
    ($value:expr, owned) => {
        $value.as_str()
    };
    ($value:expr, maybe_owned) => {
        $value.as_deref()
    };
    ($value:expr, $kind:ident) => {
        $value
    };
}

saved_rows!(bind_rows);

/// The steps that changed. Those without rows have what never changes of them, too.
#[derive(Default)]
struct ChangedSteps<'c> {
    known: Vec<StepRow<'c>>,
    new: (Vec<StepRow<'c>>, Vec<NewStepRow<'c>>),
    /// Their rows come later than the task's: those of items, of what undoes a step, and of another version of the workflow.
    undos: (Vec<StepRow<'c>>, Vec<NewStepRow<'c>>),
}

impl<'c> ChangedSteps<'c> {
    fn of(changes: &'c [TaskChange], now: Timestamp) -> Self {
        let mut changed = Self::default();
        for change in changes {
            for index in &change.steps {
                let row = StepRow::of(&change.task, *index, change.lane(*index), now);
                let is_added = index.at() >= change.known_rows;
                let rows = match (change.base, is_added) {
                    (None, _) => &mut changed.new,
                    (Some(_), true) => &mut changed.undos,
                    (Some(_), false) => {
                        changed.known.push(row);
                        continue;
                    }
                };
                rows.0.push(row);
                rows.1.push(NewStepRow::of(&change.task, *index));
            }
        }
        changed
    }
}

fn bind_new_steps(
    (steps, new): &(Vec<StepRow>, Vec<NewStepRow>),
    statement: SaveQuery,
) -> SaveQuery {
    NewStepRow::bind(new, StepRow::bind(steps, statement))
}

pub(super) async fn add_messages(
    tx: &mut PgConnection,
    messages: &[&Message],
    prepared: Prepared,
) -> Result<(), StoreError> {
    static INSERT: LazyLock<&str> =
        LazyLock::new(|| insert("messages", &[MessageRow::COLUMNS], "").leak());
    static ADD_TO_QUEUES: LazyLock<&str> =
        LazyLock::new(|| insert("queues", &[QueueRow::COLUMNS], CONFLICT_OF_QUEUES).leak());
    if messages.is_empty() {
        return Ok(());
    }
    let rows = column(messages, |message| MessageRow::of(message));
    let inserted = MessageRow::bind(&rows, prepared.query(*INSERT));
    inserted.execute(&mut *tx).await?;
    let queues = QueueRow::of(messages);
    let added = QueueRow::bind(&queues, prepared.query(*ADD_TO_QUEUES));
    added.execute(&mut *tx).await?;
    Ok(())
}
