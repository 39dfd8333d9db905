//! Saving a batch: a statement for each table, whatever the number of rows, because through an
//! asynchronous driver a statement costs two thread wake-ups and a row in it next to nothing. The rows of
//! each are written while the connection's thread runs the statement before.

use sqlx::SqliteConnection;

use super::rows_statement::{Rows, RowsStatement, run, run_and};
use crate::{
    domain::{Message, Timestamp},
    store::{
        Batch, Saved, StoreError,
        record::{
            DetailsRow, HistoryRow, KeyRow, LabelRow, MessageRow, NewStepRow, NewTaskRow, QueueRow,
            StepRow, TaskRow, saved_rows,
        },
    },
};

static INSERT_TASKS: RowsStatement = RowsStatement::new(
    "INSERT INTO tasks ({columns}) SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL",
    &[TaskRow::COLUMNS, NewTaskRow::COLUMNS],
);

static INSERT_DETAILS: RowsStatement = RowsStatement::new(
    "INSERT INTO task_details ({columns}) SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL",
    &[DetailsRow::COLUMNS],
);

/// Compare-and-set on the version; relies on the primary key.
static UPDATE_TASKS: RowsStatement = RowsStatement::new(
    "UPDATE tasks SET version = version + 1, {new} FROM (VALUES {rows}) AS new
WHERE tasks.id = new.column1 AND tasks.version = new.column2",
    &[TaskRow::COLUMNS],
);

/// Relies on the primary key.
static SAVE_STEPS: RowsStatement = RowsStatement::new(
    "INSERT INTO steps ({columns}) SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL
ON CONFLICT (task_id, idx) DO UPDATE SET {excluded}",
    &[StepRow::COLUMNS, NewStepRow::COLUMNS],
);

static INSERT_HISTORY: RowsStatement = RowsStatement::new(
    "INSERT INTO history ({columns}) SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL",
    &[HistoryRow::COLUMNS],
);

static INSERT_LABELS: RowsStatement = RowsStatement::new(
    "INSERT INTO task_labels ({columns}) SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL",
    &[LabelRow::COLUMNS],
);

static INSERT_KEYS: RowsStatement = RowsStatement::new(
    "INSERT INTO idempotency_keys ({columns}) SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL",
    &[KeyRow::COLUMNS],
);

static INSERT_MESSAGES: RowsStatement = RowsStatement::new(
    "INSERT INTO messages ({columns}) SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL",
    &[MessageRow::COLUMNS],
);

/// Relies on the primary key.
static ADD_TO_QUEUES: RowsStatement = RowsStatement::new(
    "INSERT INTO queues ({columns}) SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL
ON CONFLICT (receiver, subject) DO NOTHING",
    &[QueueRow::COLUMNS],
);

macro_rules! write_rows {
    ($($(#[$doc:meta])* $Row:ident $(<$a:lifetime>)? { $($column:ident: $kind:ident),* })*) => { $(
        impl $(<$a>)? $Row $(<$a>)? {
            fn write(self, rows: &mut Rows) {
                $(write_value!(rows, self.$column, $kind);)*
            }
        }
    )* };
}

macro_rules! write_value {
    ($rows:ident, $value:expr, boolean) => {
        $rows.number($value.into())
    };
    ($rows:ident, $value:expr, flag) => {
        $rows.number($value.into())
    };
    ($rows:ident, $value:expr, shared) => {
        $rows.text($value.clone())
    };
    ($rows:ident, $value:expr, maybe_shared) => {
        $rows.maybe_text($value.cloned())
    };
    ($rows:ident, $value:expr, owned) => {
        $rows.text($value)
    };
    ($rows:ident, $value:expr, maybe_owned) => {
        $rows.maybe_text($value)
    };
    ($rows:ident, $value:expr, maybe_word) => {
        $rows.maybe_text($value)
    };
    ($rows:ident, $value:expr, $kind:ident) => {
        $rows.$kind($value)
    };
}

saved_rows!(write_rows);

/// Saves all but alerts and messages.
pub(super) async fn save(
    tx: &mut SqliteConnection,
    batch: &Batch,
    now: Timestamp,
) -> Result<Saved, StoreError> {
    let changes = || batch.changes.iter();
    let created = || changes().filter(|change| change.base.is_none());
    let moved = || changes().filter_map(|change| Some((&change.task, change.base?)));
    let inserts = || {
        INSERT_TASKS.over(created(), |rows, change| {
            TaskRow::of(&change.task, change.task.version).write(rows);
            NewTaskRow::of(&change.task).write(rows);
        })
    };
    let details = || {
        let details = |rows: &mut Rows, task| DetailsRow::of(task).write(rows);
        INSERT_DETAILS.over(created().map(|change| &*change.task), details)
    };
    let updates = || {
        UPDATE_TASKS.over(moved(), |rows, (task, base)| {
            TaskRow::of(task, base).write(rows);
        })
    };
    let steps = || {
        let steps =
            changes().flat_map(|change| change.steps.iter().map(move |at| (&*change.task, *at)));
        SAVE_STEPS.over(steps, |rows, (task, at)| {
            StepRow::of(task, at, now).write(rows);
            NewStepRow::of(task, at).write(rows);
        })
    };
    let history = || {
        let with_events = changes().filter(|change| !change.events.is_empty());
        INSERT_HISTORY.over(with_events, |rows, change| {
            HistoryRow::of(change).write(rows)
        })
    };

    let (_, next) = run_and(tx, inserts(), details).await?;
    let (_, next) = run_and(tx, next, updates).await?;
    let (matched, next) = run_and(tx, next, steps).await?;
    if matched < moved().count() as u64 {
        return Ok(Saved::Conflict);
    }
    let (_, next) = run_and(tx, next, history).await?;
    run(tx, next).await?;
    let labels = created().flat_map(|change| LabelRow::of(&change.task));
    run(
        tx,
        INSERT_LABELS.over(labels, |rows, label| label.write(rows)),
    )
    .await?;
    let keys = INSERT_KEYS.over(batch.keys.iter(), |rows, new| {
        KeyRow::of(new, now).write(rows);
    });
    run(tx, keys).await?;
    Ok(Saved::All)
}

/// Does nothing if there are no messages.
pub(super) async fn add_messages(
    tx: &mut SqliteConnection,
    messages: &[&Message],
) -> Result<(), StoreError> {
    let inserted = INSERT_MESSAGES.over(messages.iter(), |rows, message| {
        MessageRow::of(message).write(rows);
    });
    run(tx, inserted).await?;
    let queues = QueueRow::of(messages).into_iter();
    run(
        tx,
        ADD_TO_QUEUES.over(queues, |rows, queue| queue.write(rows)),
    )
    .await?;
    Ok(())
}
