//! Saves a batch by one statement, see [`save_sql`](super::save_sql), and by one more for each rare kind of row.

use std::sync::LazyLock;

use sqlx::{PgConnection, Postgres, Row, postgres::PgArguments, query::Query};

use super::{
    prepared::Prepared,
    save_sql::{SaveShape, SavedRow, insert},
};
use crate::{
    domain::{message::Message, values::Timestamp},
    store::{
        Batch, StoreError,
        batch::TaskChange,
        record::{
            DetailsRow, HistoryRow, KeyRow, LabelRow, MessageRow, NewStepRow, NewTaskRow, QueueRow,
            SqlColumn, StepRow, TaskRow, saved_rows,
        },
        view::ledger::LedgerRow,
    },
};

/// Rows are inserted in the order of queues, in which each row's lock is taken. A transaction that removes a message
/// from one of the queues waits.
const CONFLICT_OF_QUEUES: &str =
    " ON CONFLICT (receiver, subject) DO UPDATE SET tries = queues.tries";

/// The result of the statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RowsSaved {
    All,
    /// A task was deleted, has another version, or is locked and was not waited for. Nothing was changed.
    Stale,
    /// A row existed and was not changed. Nothing else was changed either, because the statement failed.
    ///
    /// The statement sees rows as they were when it began, and takes its locks later. A change of a task in between is
    /// detected by its version, except a promotion: that leaves the version as it is, so the statement has an old row
    /// of the step, which an update by `ctid` leaves alone. The batch is decided again, with the locks taken first. A
    /// row that is missed after that is a bug.
    Missed,
}

/// The error of a statement that misses a row, see `end` in `save_sql`.
const DIVISION_BY_ZERO: &str = "22012";

/// Locks the tasks in the order of the batch, as a save does.
const LOCK_TASKS: &str = "
SELECT FROM unnest($1::uuid[]) AS known (id)
CROSS JOIN LATERAL (SELECT FROM tasks WHERE tasks.id = known.id FOR NO KEY UPDATE) AS locked";

const LOCK_FREE_TASKS: &str = "
SELECT FROM unnest($1::uuid[]) AS known (id)
CROSS JOIN LATERAL (SELECT FROM tasks WHERE tasks.id = known.id FOR NO KEY UPDATE SKIP LOCKED) AS locked";

/// Locks the tasks of a batch that exist already. Returns whether all of them are locked. `wait` is that of [`save`].
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

/// Saves everything except alerts and messages. `wait`: the statement waits for rows that another instance has locked.
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
    let tasks = column(&new, |task| TaskRow::of(task, task.version));
    let labels: Vec<_> = new.iter().flat_map(|task| LabelRow::of(task)).collect();
    // The keys are in order, because the second of two instances that insert one key waits for the first.
    let mut keys = column(&batch.keys, |new| KeyRow::of(new, now));
    keys.sort_unstable_by_key(|row| row.key);
    let parts = SaveShape {
        known: !known.is_empty(),
        wait,
        new: !new.is_empty(),
        changed: !steps.changed.is_empty(),
        added: !steps.added.is_empty(),
        labels: !labels.is_empty(),
        keys: !keys.is_empty(),
        rare_of_tasks: !known.iter().chain(&tasks).all(TaskRow::is_common),
        rare_of_steps: !steps.all().all(StepRow::is_common),
    };
    let bind_tasks = |rows: &[TaskRow], statement| bind(rows, parts.rare_of_tasks, statement);
    let bind_steps = |rows: &[StepRow], statement| bind(rows, parts.rare_of_steps, statement);
    let mut statement = prepared.query(parts.sql());
    if parts.known {
        statement = bind_tasks(&known, statement);
    }
    if parts.changed {
        statement = bind_steps(&steps.changed, statement);
    }
    if parts.new {
        statement = bind_tasks(&tasks, statement);
        let rest = column(&new, |task| NewTaskRow::of(task));
        statement = bind_all(&rest, statement);
        let details = column(&new, |task| DetailsRow::of(task));
        statement = bind_all(&details, statement);
    }
    if parts.added {
        statement = bind_steps(&steps.added, statement);
        statement = bind_all(&steps.rest_of_added, statement);
    }
    if parts.labels {
        statement = bind_all(&labels, statement);
    }
    if parts.keys {
        statement = bind_all(&keys, statement);
    }
    let with_events = changes.iter().filter(|change| !change.events.is_empty());
    let history: Vec<_> = with_events.map(HistoryRow::of).collect();
    statement = bind_all(&history, statement);
    let ledger = LedgerRow::of(batch, now);
    let (at, changes, records, audited) = match ledger {
        Some(row) => (Some(row.at), row.changes, row.records, row.audited),
        None => (None, None, None, None),
    };
    statement = statement.bind(at).bind(changes).bind(records).bind(audited);
    match statement.fetch_one(&mut *tx).await {
        Ok(row) if row.try_get("saved")? => Ok(RowsSaved::All),
        Ok(_) => Ok(RowsSaved::Stale),
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(DIVISION_BY_ZERO) => {
            Ok(RowsSaved::Missed)
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns whether [`save`] needs only one statement for the batch.
pub(super) fn is_one_statement(batch: &Batch) -> bool {
    batch.messages.is_empty() && !batch.needs_more_statements()
}

type SaveQuery = Query<'static, Postgres, PgArguments>;

/// Binds the rows of a save as parameters of the statement.
trait BoundRow: SavedRow {
    /// Returns whether the rare columns of the row are empty.
    fn is_common(&self) -> bool;
    fn bind_common(rows: &[Self], statement: SaveQuery) -> SaveQuery;
    fn bind_rare(_rows: &[Self], statement: SaveQuery) -> SaveQuery {
        statement
    }
}

fn bind<R: BoundRow>(rows: &[R], with_rare: bool, statement: SaveQuery) -> SaveQuery {
    let statement = R::bind_common(rows, statement);
    match with_rare {
        true => R::bind_rare(rows, statement),
        false => statement,
    }
}

fn bind_all<R: BoundRow>(rows: &[R], statement: SaveQuery) -> SaveQuery {
    bind(rows, true, statement)
}

fn column<'r, R, V>(rows: &'r [R], value: impl FnMut(&'r R) -> V) -> Vec<V> {
    rows.iter().map(value).collect()
}

macro_rules! bind_rows {
    ($($(#[$doc:meta])* $Row:ident $(<$a:lifetime>)? {
        $($column:ident: $kind:ident),* $(; $($rare:ident: $rare_kind:ident),*)?
    })*) => { $(
        impl $(<$a>)? SavedRow for $Row $(<$a>)? {
            const COLUMNS: &'static [SqlColumn] = Self::COLUMNS;
            const EMPTY: &'static [&'static str] = &[$($(empty!($rare_kind)),*)?];
        }

        impl $(<$a>)? BoundRow for $Row $(<$a>)? {
            fn is_common(&self) -> bool {
                true $($(&& is_empty!(self.$rare, $rare_kind))*)?
            }

            fn bind_common(rows: &[Self], statement: SaveQuery) -> SaveQuery {
                statement$(.bind(column(rows, |row| bind_value!(row.$column, $kind))))*
            }

            $(fn bind_rare(rows: &[Self], statement: SaveQuery) -> SaveQuery {
                statement$(.bind(column(rows, |row| bind_value!(row.$rare, $rare_kind))))*
            })?
        }
    )* };
}

macro_rules! empty {
    (number) => {
        "0"
    };
    (flag) => {
        "0"
    };
    (boolean) => {
        "false"
    };
    (text) => {
        "''"
    };
    ($maybe:ident) => {
        "NULL"
    };
}

macro_rules! is_empty {
    ($value:expr, number) => {
        $value == 0
    };
    ($value:expr, flag) => {
        !$value
    };
    ($value:expr, boolean) => {
        !$value
    };
    ($value:expr, text) => {
        $value.is_empty()
    };
    ($value:expr, $maybe:ident) => {
        $value.is_none()
    };
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

/// The steps that changed.
#[derive(Default)]
struct ChangedSteps<'c> {
    /// The steps that have rows.
    changed: Vec<StepRow<'c>>,
    /// The steps that have no rows yet: those of new tasks, untouched steps, items, undos, and steps of another version
    /// of the workflow.
    added: Vec<StepRow<'c>>,
    /// The columns of these steps that never change.
    rest_of_added: Vec<NewStepRow<'c>>,
}

impl<'c> ChangedSteps<'c> {
    fn all(&self) -> impl Iterator<Item = &StepRow<'c>> {
        self.changed.iter().chain(&self.added)
    }

    fn of(changes: &'c [TaskChange], now: Timestamp) -> Self {
        let mut steps = Self::default();
        for change in changes {
            for index in change.step_rows() {
                let row = StepRow::of(&change.task, index, change.lane(index), now);
                if change.has_row(index) {
                    steps.changed.push(row);
                    continue;
                }
                steps.added.push(row);
                steps
                    .rest_of_added
                    .push(NewStepRow::of(&change.task, index));
            }
        }
        steps
    }
}

pub(super) async fn add_messages(
    tx: &mut PgConnection,
    messages: &[&Message],
    prepared: Prepared,
) -> Result<(), StoreError> {
    static INSERT: LazyLock<&str> = LazyLock::new(|| insert::<MessageRow>("messages", "").leak());
    static ADD_TO_QUEUES: LazyLock<&str> =
        LazyLock::new(|| insert::<QueueRow>("queues", CONFLICT_OF_QUEUES).leak());
    if messages.is_empty() {
        return Ok(());
    }
    let rows = column(messages, |message| MessageRow::of(message));
    let inserted = bind_all(&rows, prepared.query(*INSERT));
    inserted.execute(&mut *tx).await?;
    let queues = QueueRow::of(messages);
    let added = bind_all(&queues, prepared.query(*ADD_TO_QUEUES));
    added.execute(&mut *tx).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, LazyLock};

    use uuid::Uuid;

    use super::*;

    static WORD: LazyLock<Arc<str>> = LazyLock::new(|| Arc::from("word"));

    fn task() -> TaskRow<'static> {
        TaskRow {
            id: Uuid::nil(),
            version: 3,
            state: "processed",
            ended_at: Some(1),
            untouched: 2,
            claim_step: Some(1),
            claimed_by: Some(&WORD),
            claimed_at: Some(1),
            claim_until: Some(1),
            claim_after: Some(0),
            paused: false,
            waits: false,
            start_at: None,
            complete_by: None,
            overdue_at: None,
            error: None,
            undo: None,
        }
    }

    fn step() -> StepRow<'static> {
        StepRow {
            task_id: Uuid::nil(),
            idx: 1,
            state: "processed",
            attempt: 1,
            locked_by: Some(&WORD),
            complete_by: Some(1),
            started_at: Some(1),
            ended_at: Some(1),
            output: Some("1"),
            failure_count: 0,
            extended: 0,
            doubt: None,
            tries: 0,
            ready_at: None,
            due_at: None,
            queued: false,
            lane: "",
            body: None,
            error: None,
            last_fault: None,
            reply: None,
            worker: None,
        }
    }

    /// Sets a column to a value.
    type Fill<R> = fn(&mut R);

    /// Checks that a row is not common any more once any one of the rare columns has a value, and that the list names
    /// all rare columns.
    fn check<R: BoundRow>(common: fn() -> R, rare: &[(&str, Fill<R>)]) {
        assert!(common().is_common());
        let columns = &R::COLUMNS[R::COLUMNS.len() - R::EMPTY.len()..];
        let names: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
        let listed: Vec<_> = rare.iter().map(|(name, _)| *name).collect();
        assert_eq!(listed, names);
        for (name, fill) in rare {
            let mut row = common();
            fill(&mut row);
            assert!(!row.is_common(), "{name}");
        }
    }

    /// A value in a column that is not bound would be lost.
    #[test]
    fn a_row_is_common_only_while_nothing_is_in_any_column_that_is_rare() {
        check(
            task,
            &[
                ("paused", |row| row.paused = true),
                ("waits", |row| row.waits = true),
                ("start_at", |row| row.start_at = Some(0)),
                ("complete_by", |row| row.complete_by = Some(0)),
                ("overdue_at", |row| row.overdue_at = Some(0)),
                ("error", |row| row.error = Some(String::new())),
                ("undo", |row| row.undo = Some(String::new())),
            ],
        );
        check(
            step,
            &[
                ("failure_count", |row| row.failure_count = 1),
                ("extended", |row| row.extended = 1),
                ("doubt", |row| row.doubt = Some("unknown")),
                ("tries", |row| row.tries = 1),
                ("ready_at", |row| row.ready_at = Some(0)),
                ("due_at", |row| row.due_at = Some(0)),
                ("queued", |row| row.queued = true),
                ("lane", |row| row.lane = "a"),
                ("body", |row| row.body = Some("")),
                ("error", |row| row.error = Some(String::new())),
                ("last_fault", |row| row.last_fault = Some(String::new())),
                ("reply", |row| row.reply = Some(String::new())),
                ("worker", |row| row.worker = Some(&WORD)),
            ],
        );
    }
}
