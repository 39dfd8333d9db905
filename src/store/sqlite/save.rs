//! Saves a batch: a prepared statement for each table, run once for each row.

use std::{fmt::Write, sync::LazyLock};

use rusqlite::{CachedStatement, Connection, ToSql};

use crate::{
    domain::{message::Message, values::Timestamp},
    store::{
        Batch, Saved, StoreError,
        record::{
            DetailsRow, HistoryRow, KeyRow, LabelRow, MessageRow, NewStepRow, NewTaskRow, QueueRow,
            SqlColumn, StepRow, TaskRow, names, saved_rows,
        },
        view::ledger::LedgerRow,
    },
};

static INSERT_TASK: LazyLock<String> =
    LazyLock::new(|| insert("tasks", &[TaskRow::COLUMNS, NewTaskRow::COLUMNS]));

/// Compare-and-set on the version; relies on the primary key.
static UPDATE_TASK: LazyLock<String> = LazyLock::new(|| {
    let set = set(&TaskRow::COLUMNS[2..], 3);
    format!("UPDATE tasks SET version = ?2 + 1, {set} WHERE id = ?1 AND version = ?2")
});

/// SQLite rewrites the entries of every index that has a column of the SET list, even if its value does not change.
const UPDATE_VERSION: &str = "
UPDATE tasks SET version = ?2 + 1, untouched = ?3, claim_step = ?4, claimed_at = ?5, claim_until = ?6
WHERE id = ?1 AND version = ?2";

static INSERT_DETAILS: LazyLock<String> =
    LazyLock::new(|| insert("task_details", &[DetailsRow::COLUMNS]));

static INSERT_STEP: LazyLock<String> =
    LazyLock::new(|| insert("steps", &[StepRow::COLUMNS, NewStepRow::COLUMNS]));

/// Relies on the primary key.
static UPDATE_STEP: LazyLock<String> = LazyLock::new(|| {
    let set = set(&StepRow::COLUMNS[2..], 3);
    format!("UPDATE steps SET {set} WHERE task_id = ?1 AND idx = ?2")
});

static INSERT_HISTORY: LazyLock<String> =
    LazyLock::new(|| insert("history", &[HistoryRow::COLUMNS]));

const INSERT_LEDGER: &str =
    "INSERT INTO ledger (at, changes, records, audited) VALUES (?1, ?2, ?3, ?4)";

static INSERT_LABEL: LazyLock<String> =
    LazyLock::new(|| insert("task_labels", &[LabelRow::COLUMNS]));

static INSERT_KEY: LazyLock<String> =
    LazyLock::new(|| insert("idempotency_keys", &[KeyRow::COLUMNS]));

static INSERT_MESSAGE: LazyLock<String> =
    LazyLock::new(|| insert("messages", &[MessageRow::COLUMNS]));

/// Relies on the primary key.
static ADD_TO_QUEUE: LazyLock<String> = LazyLock::new(|| {
    let insert = insert("queues", &[QueueRow::COLUMNS]);
    format!("{insert} ON CONFLICT (receiver, subject) DO NOTHING")
});

fn insert(table: &str, columns: &[&[SqlColumn]]) -> String {
    let width = columns.iter().map(|columns| columns.len()).sum();
    let values = vec!["?"; width].join(", ");
    format!("INSERT INTO {table} ({}) VALUES ({values})", names(columns))
}

/// Sets columns to the parameters from number `from` on.
fn set(columns: &[SqlColumn], from: usize) -> String {
    let mut set = String::new();
    for (at, (name, _)) in columns.iter().enumerate() {
        let comma = if at > 0 { ", " } else { "" };
        // Writing to a string does not fail.
        let _ = write!(set, "{comma}{name} = ?{}", from + at);
    }
    set
}

/// A prepared statement that is run for row after row.
struct RowsStatement<'c>(CachedStatement<'c>);

impl<'c> RowsStatement<'c> {
    fn prepare(connection: &'c Connection, sql: &str) -> Result<Self, StoreError> {
        Ok(Self(connection.prepare_cached(sql)?))
    }

    fn bind(&mut self, at: usize, value: impl ToSql) -> Result<(), StoreError> {
        Ok(self.0.raw_bind_parameter(at, value)?)
    }

    /// Returns how many rows were affected.
    fn run(&mut self) -> Result<usize, StoreError> {
        Ok(self.0.raw_execute()?)
    }
}

macro_rules! bind_rows {
    ($($(#[$doc:meta])* $Row:ident $(<$a:lifetime>)? {
        $($column:ident: $kind:ident),* $(; $($rare:ident: $rare_kind:ident),*)?
    })*) => { $(
        impl $(<$a>)? $Row $(<$a>)? {
            /// Binds the columns to the parameters from number `at` on.
            fn bind_to(&self, rows: &mut RowsStatement<'_>, mut at: usize) -> Result<(), StoreError> {
                $(
                    rows.bind(at, bound!(self.$column, $kind))?;
                    at += 1;
                )*
                $($(
                    rows.bind(at, bound!(self.$rare, $rare_kind))?;
                    at += 1;
                )*)?
                let _ = at;
                Ok(())
            }
        }
    )* };
}

macro_rules! bound {
    ($value:expr, id) => {
        &$value.as_bytes()[..]
    };
    ($value:expr, maybe_id) => {
        $value.as_ref().map(|id| &id.as_bytes()[..])
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

/// Saves everything except alerts and messages.
pub(super) fn save(
    connection: &Connection,
    batch: &Batch,
    now: Timestamp,
) -> Result<Saved, StoreError> {
    let changes = || batch.changes.iter();
    let created = || changes().filter(|change| change.base.is_none());

    let mut task = RowsStatement::prepare(connection, &UPDATE_TASK)?;
    let mut version = RowsStatement::prepare(connection, UPDATE_VERSION)?;
    for change in changes() {
        let Some(base) = change.base else { continue };
        let row = TaskRow::of(&change.task, base);
        let saved = if change.is_row_kept {
            version.bind(1, &row.id.as_bytes()[..])?;
            version.bind(2, row.version)?;
            version.bind(3, row.untouched)?;
            version.bind(4, row.claim_step)?;
            version.bind(5, row.claimed_at)?;
            version.bind(6, row.claim_until)?;
            version.run()?
        } else {
            row.bind_to(&mut task, 1)?;
            task.run()?
        };
        if saved == 0 {
            return Ok(Saved::Conflict);
        }
    }
    let mut task = RowsStatement::prepare(connection, &INSERT_TASK)?;
    for change in created() {
        TaskRow::of(&change.task, change.task.version).bind_to(&mut task, 1)?;
        NewTaskRow::of(&change.task).bind_to(&mut task, 1 + TaskRow::COLUMNS.len())?;
        task.run()?;
    }
    let mut details = RowsStatement::prepare(connection, &INSERT_DETAILS)?;
    for change in created() {
        DetailsRow::of(&change.task).bind_to(&mut details, 1)?;
        details.run()?;
    }
    let mut update = RowsStatement::prepare(connection, &UPDATE_STEP)?;
    let mut insert = RowsStatement::prepare(connection, &INSERT_STEP)?;
    for change in changes() {
        for at in change.step_rows() {
            let row = StepRow::of(&change.task, at, change.lane(at), now);
            if change.has_row(at) {
                row.bind_to(&mut update, 1)?;
                update.run()?;
                continue;
            }
            row.bind_to(&mut insert, 1)?;
            NewStepRow::of(&change.task, at).bind_to(&mut insert, 1 + StepRow::COLUMNS.len())?;
            insert.run()?;
        }
    }
    let mut history = RowsStatement::prepare(connection, &INSERT_HISTORY)?;
    for change in changes().filter(|change| !change.events.is_empty()) {
        HistoryRow::of(change).bind_to(&mut history, 1)?;
        history.run()?;
    }
    if let Some(row) = LedgerRow::of(batch, now) {
        let mut ledger = RowsStatement::prepare(connection, INSERT_LEDGER)?;
        ledger.bind(1, row.at)?;
        ledger.bind(2, row.changes)?;
        ledger.bind(3, row.records)?;
        ledger.bind(4, row.audited)?;
        ledger.run()?;
    }
    let mut labels = RowsStatement::prepare(connection, &INSERT_LABEL)?;
    for label in created().flat_map(|change| LabelRow::of(&change.task)) {
        label.bind_to(&mut labels, 1)?;
        labels.run()?;
    }
    let mut keys = RowsStatement::prepare(connection, &INSERT_KEY)?;
    for key in &batch.keys {
        KeyRow::of(key, now).bind_to(&mut keys, 1)?;
        keys.run()?;
    }
    Ok(Saved::All)
}

/// Adds messages to their queues. Does nothing if there are none.
pub(super) fn add_messages(
    connection: &Connection,
    messages: &[&Message],
) -> Result<(), StoreError> {
    if messages.is_empty() {
        return Ok(());
    }
    let mut insert = RowsStatement::prepare(connection, &INSERT_MESSAGE)?;
    for message in messages {
        MessageRow::of(message).bind_to(&mut insert, 1)?;
        insert.run()?;
    }
    let mut add = RowsStatement::prepare(connection, &ADD_TO_QUEUE)?;
    for queue in QueueRow::of(messages) {
        queue.bind_to(&mut add, 1)?;
        add.run()?;
    }
    Ok(())
}
