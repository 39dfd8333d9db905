//! Builds the statement that saves a batch. It is one statement for any number of rows, because each statement costs a
//! round trip and two wake-ups on either side. Each column is sent as an array, and `unnest` makes rows of the arrays.
//! The statement has only the parts that a batch needs, in a few forms that stay prepared.

use std::{fmt::Write, sync::OnceLock};

use crate::store::record::{
    DetailsRow, HistoryRow, KeyRow, LabelRow, NewStepRow, NewTaskRow, SqlColumn, StepRow, TaskRow,
    names, set_all,
};

/// The parts of the statement; its parameters are in the order of the parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SaveShape {
    /// True if there are tasks that exist already.
    pub known: bool,
    /// True if the statement waits for a task's row that another instance has locked. If false, such a row counts as
    /// stale.
    pub wait: bool,
    pub new: bool,
    /// True if there are steps of known tasks that have rows. Most steps are written once, when they have ended.
    pub changed: bool,
    /// True if there are steps that have no rows yet.
    pub added: bool,
    /// True if there are labels of new tasks.
    pub labels: bool,
    /// True if there are idempotency keys.
    pub keys: bool,
    /// True if a task has a value in one of the columns that few tasks use.
    pub rare_of_tasks: bool,
    /// True if a step has a value in one of the columns that few steps use.
    pub rare_of_steps: bool,
}

const FORMS: usize = 1 << 9;

/// A row of a save.
pub(super) trait SavedRow: Sized {
    const COLUMNS: &'static [SqlColumn];
    /// The SQL values of the last columns, which are the rare ones, if they are empty.
    const EMPTY: &'static [&'static str];
}

/// Columns of the rows of a statement, one array each. If none of the rows has a value in a rare column, the statement
/// contains the empty value itself, because each array costs both sides something for every row.
#[derive(Clone, Copy)]
struct RowColumns {
    bound: &'static [SqlColumn],
    empty: &'static [SqlColumn],
    /// The SQL values of the columns in `empty`.
    values: &'static [&'static str],
}

impl RowColumns {
    fn of<R: SavedRow>(with_rare: bool) -> Self {
        let values = if with_rare { &[] } else { R::EMPTY };
        let (bound, empty) = R::COLUMNS.split_at(R::COLUMNS.len() - values.len());
        Self {
            bound,
            empty,
            values,
        }
    }

    fn all_of<R: SavedRow>() -> Self {
        Self::of::<R>(true)
    }

    fn all(self) -> impl Iterator<Item = SqlColumn> {
        self.bound.iter().chain(self.empty).copied()
    }
}

impl SaveShape {
    pub fn sql(self) -> &'static str {
        static WRITTEN: [OnceLock<String>; FORMS] = [const { OnceLock::new() }; FORMS];
        let Self {
            known,
            wait,
            new,
            changed,
            added,
            labels,
            keys,
            rare_of_tasks,
            rare_of_steps,
        } = self;
        let parts = [
            known,
            wait,
            new,
            changed,
            added,
            labels,
            keys,
            rare_of_tasks,
            rare_of_steps,
        ];
        let number = parts
            .iter()
            .fold(0, |number, part| (number << 1) | usize::from(*part));
        WRITTEN[number].get_or_init(|| self.write())
    }

    fn write(self) -> String {
        let mut form = SaveBuilder::default();
        let tasks = RowColumns::of::<TaskRow>(self.rare_of_tasks);
        let steps = RowColumns::of::<StepRow>(self.rare_of_steps);
        if self.known {
            form.known_tasks(tasks, self.wait);
        }
        if self.changed {
            form.changed_steps(steps);
        }
        if self.new {
            form.new_tasks(tasks);
        }
        if self.added {
            form.added_steps(steps);
        }
        if self.labels {
            form.insert(
                "new_labels",
                "task_labels",
                &[RowColumns::all_of::<LabelRow>()],
                "",
            );
        }
        if self.keys {
            form.insert(
                "new_keys",
                "idempotency_keys",
                &[RowColumns::all_of::<KeyRow>()],
                "",
            );
        }
        form.insert(
            "new_history",
            "history",
            &[RowColumns::all_of::<HistoryRow>()],
            "",
        );
        form.ledger_row();
        form.end()
    }
}

/// Returns a separate statement that inserts rows.
pub(super) fn insert<R: SavedRow>(table: &str, end: &str) -> String {
    SaveBuilder::default().insertion(table, &[RowColumns::all_of::<R>()], end)
}

#[derive(Default)]
struct SaveBuilder {
    sql: String,
    parameters: usize,
    /// A condition of every write, as SQL.
    condition: &'static str,
    /// The number of the parameter with the ids of known tasks.
    known: Option<usize>,
    /// The parts that must write as many rows as the parameter of this number has ids.
    counted: Vec<(&'static str, usize)>,
}

impl SaveBuilder {
    fn part(&mut self, name: &str, body: &str) {
        let joint = if self.sql.is_empty() { "WITH " } else { ",\n" };
        // Writing to a string does not fail.
        let _ = write!(self.sql, "{joint}{name} AS {body}");
    }

    /// Returns a FROM item of rows, made of an array for each column that is bound. In a SELECT list, `unnest` returns
    /// one row after the other. As a FROM item it would first write each array to a tuplestore, which was seen to cost
    /// the server a fifth of the whole statement.
    fn rows(&mut self, parts: &[RowColumns]) -> String {
        let mut list = Vec::new();
        for part in parts {
            for (name, kind) in part.bound {
                self.parameters += 1;
                list.push(format!("unnest(${}::{kind}[]) AS {name}", self.parameters));
            }
            for ((name, kind), value) in part.empty.iter().zip(part.values) {
                list.push(format!("{value}::{kind} AS {name}"));
            }
        }
        format!("(SELECT {}) AS new", list.join(", "))
    }

    /// Saves tasks by compare-and-set on the version. Nothing is written unless all of them match: each write tests
    /// `unmoved`, so that the statement can be a transaction by itself. The rows are locked first, one after the other
    /// in the order of the batch, which is that of ids, because an update by itself guarantees no order. A row whose
    /// version changed while its lock was waited for is left out, because the condition is tested again then. If none
    /// is left out, no other transaction has written these tasks since, and the steps that are read are the current
    /// ones, except after a promotion: see [`RowsSaved::Missed`](super::save::RowsSaved::Missed).
    ///
    /// The form leaves the planner no choice: a LATERAL that locks, and a subquery in a list, are run for each row by
    /// the primary key, and only a TID scan finds a row by its `ctid`. A plain join was seen to read the whole primary
    /// key when it was planned for a table that was small at that moment.
    fn known_tasks(&mut self, columns: RowColumns, wait: bool) {
        let ids = self.parameters + 1;
        let rows = self.rows(&[columns]);
        let skip = if wait { "" } else { " SKIP LOCKED" };
        self.part(
            "mine",
            &format!(
                "MATERIALIZED (
    SELECT new.*, locked.place FROM {rows}
    CROSS JOIN LATERAL (
        SELECT tasks.ctid AS place FROM tasks WHERE tasks.id = new.id AND tasks.version = new.version
        FOR NO KEY UPDATE{skip}) AS locked)"
            ),
        );
        self.part(
            "unmoved",
            &format!(
                "MATERIALIZED (
    SELECT count(*) = cardinality(${ids}::uuid[]) AS \"all\" FROM mine)"
            ),
        );
        self.condition = " AND (SELECT \"all\" FROM unmoved)";
        let (set, condition) = (set_all(&TaskRow::COLUMNS[2..], "mine"), self.condition);
        self.part(
            "saved_tasks",
            &format!(
                "(
    UPDATE tasks SET version = mine.version + 1, {set}
    FROM mine WHERE tasks.ctid = mine.place{condition}
    RETURNING 1)"
            ),
        );
        self.known = Some(ids);
        self.counted.push(("saved_tasks", ids));
    }

    fn changed_steps(&mut self, columns: RowColumns) {
        self.counted.push(("saved_steps", self.parameters + 1));
        let rows = self.rows(&[columns]);
        let (set, condition) = (set_all(&StepRow::COLUMNS[2..], "known"), self.condition);
        self.part("saved_steps", &format!("(
    UPDATE steps SET {set}
    FROM (
        SELECT new.*, (
            SELECT steps.ctid FROM steps WHERE steps.task_id = new.task_id AND steps.idx = new.idx) AS place
        FROM {rows}) AS known
    WHERE steps.ctid = known.place{condition}
    RETURNING 1)"));
    }

    fn new_tasks(&mut self, tasks: RowColumns) {
        let tasks = [tasks, RowColumns::all_of::<NewTaskRow>()];
        self.insert("new_tasks", "tasks", &tasks, "");
        let details = [RowColumns::all_of::<DetailsRow>()];
        self.insert("new_details", "task_details", &details, "");
    }

    fn added_steps(&mut self, steps: RowColumns) {
        self.counted.push(("added_steps", self.parameters + 1));
        let steps = [steps, RowColumns::all_of::<NewStepRow>()];
        self.insert("added_steps", "steps", &steps, "\n    RETURNING 1");
    }

    fn insert(&mut self, name: &str, table: &str, columns: &[RowColumns], end: &str) {
        let body = self.insertion(table, columns, end);
        self.part(name, &format!("({body})"));
    }

    fn insertion(&mut self, table: &str, columns: &[RowColumns], end: &str) -> String {
        let all: Vec<_> = columns.iter().copied().flat_map(RowColumns::all).collect();
        let (names, rows, condition) = (names(&[&all]), self.rows(columns), self.condition);
        format!(
            "
    INSERT INTO {table} ({names})
    SELECT new.* FROM {rows} WHERE true{condition}{end}"
        )
    }

    /// Adds a row to the ledger, unless the first parameter is NULL. The epoch is read in the same statement: after a restore
    /// it may have grown, and an instance that remembered it would write rows that no reader finds.
    fn ledger_row(&mut self) {
        let (first, condition) = (self.parameters + 1, self.condition);
        self.parameters += 4;
        let (changes, records, audited) = (first + 1, first + 2, first + 3);
        self.part(
            "new_ledger",
            &format!(
                "(
    INSERT INTO ledger (at, epoch, changes, records, audited)
    SELECT ${first}::bigint, (SELECT epoch FROM ledger_state), ${changes}::bytea, ${records}::text, ${audited}::bigint
    WHERE ${first}::bigint IS NOT NULL{condition})"
            ),
        );
    }

    /// Makes the statement fail, without any change, if a row that is locked or existed was not found: it divides by
    /// zero in that case.
    fn end(self) -> String {
        let Self {
            mut sql,
            known,
            counted,
            ..
        } = self;
        if known.is_none() {
            return sql + "\nSELECT true AS saved";
        }
        let all: Vec<_> = counted
            .iter()
            .map(|(part, ids)| {
                format!("(SELECT count(*) FROM {part}) = cardinality(${ids}::uuid[])")
            })
            .collect();
        let all = all.join(" AND ");
        let _ = write!(
            sql,
            "
SELECT \"all\" AS saved, 1 / (NOT \"all\" OR {all})::int AS found FROM unmoved"
        );
        sql
    }
}
