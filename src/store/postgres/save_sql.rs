//! The statement that saves a batch: one, whatever the number of rows, because each costs a round trip and
//! two wake-ups on either side. Each column travels as an array, and `unnest` makes rows of them again. It
//! has only the parts that a batch needs, in a few forms that stay prepared.

use std::{fmt::Write, sync::OnceLock};

use crate::store::record::step_columns;

/// A column and its type.
type SqlColumn = (&'static str, &'static str);

/// What a save may change of a task.
const TASK: [SqlColumn; 7] = [
    ("state", "text"),
    ("paused", "boolean"),
    ("complete_by", "bigint"),
    ("overdue_at", "bigint"),
    ("ended_at", "bigint"),
    ("error", "text"),
    ("undo", "text"),
];

/// The rest of it.
const NEW_TASK: [SqlColumn; 10] = [
    ("\"key\"", "text"),
    ("workflow", "text"),
    ("workflow_version", "bigint"),
    ("labels", "text"),
    ("priority", "bigint"),
    ("complete_within", "bigint"),
    ("created_at", "bigint"),
    ("trace_id", "text"),
    ("trace_flags", "bigint"),
    ("tracestate", "text"),
];

const DETAILS: [SqlColumn; 5] = [
    ("task_id", "uuid"),
    ("steps", "text"),
    ("policies", "text"),
    ("input", "text"),
    ("reply_to", "text"),
];

const LABELS: [SqlColumn; 3] = [("label", "text"), ("value", "text"), ("task_id", "uuid")];

const KEYS: [SqlColumn; 4] = [
    ("\"key\"", "text"),
    ("fingerprint", "text"),
    ("task_id", "uuid"),
    ("created_at", "bigint"),
];

macro_rules! step_types {
    ($($name:ident: $kind:ident),*) => { [$((stringify!($name), type_of!($kind))),*] };
}

macro_rules! type_of {
    (number) => {
        "bigint"
    };
    (maybe_number) => {
        "bigint"
    };
    (flag) => {
        "smallint"
    };
    ($text:ident) => {
        "text"
    };
}

/// What a save may change of a step.
const STEP: [SqlColumn; 17] = step_columns!(step_types);

/// The rest of it.
const NEW_STEP: [SqlColumn; 3] = [("name", "text"), ("agent", "text"), ("priority", "bigint")];

const STEP_ID: [SqlColumn; 2] = [("task_id", "uuid"), ("idx", "bigint")];

const HISTORY: [SqlColumn; 4] = [
    ("task_id", "uuid"),
    ("version", "bigint"),
    ("at", "bigint"),
    ("events", "text"),
];

/// The parts of the statement; its parameters are in the order of the parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SaveShape {
    /// Tasks that are there, and their steps.
    pub known: bool,
    /// Whether a task's row that another instance has locked is waited for; else it is as good as stale.
    pub wait: bool,
    /// New tasks and their steps.
    pub new: bool,
    /// Steps of known tasks whose rows may not be there yet: those that undo others.
    pub undos: bool,
    /// Of new tasks.
    pub labels: bool,
    /// Idempotency keys.
    pub keys: bool,
}

const FORMS: usize = 1 << 6;

impl SaveShape {
    pub fn sql(self) -> &'static str {
        static WRITTEN: [OnceLock<String>; FORMS] = [const { OnceLock::new() }; FORMS];
        let Self {
            known,
            wait,
            new,
            undos,
            labels,
            keys,
        } = self;
        let parts = [known, wait, new, undos, labels, keys];
        let number = parts
            .iter()
            .fold(0, |number, part| (number << 1) | usize::from(*part));
        WRITTEN[number].get_or_init(|| self.write())
    }

    fn write(self) -> String {
        let mut form = SaveBuilder::default();
        if self.known {
            form.known_tasks(self.wait);
            form.known_steps();
        }
        if self.new {
            form.new_tasks();
            form.new_steps("new_steps", "");
        }
        if self.undos {
            let set = set(&STEP, "excluded");
            form.new_steps(
                "undo_steps",
                &format!(" ON CONFLICT (task_id, idx) DO UPDATE SET {set}"),
            );
        }
        if self.labels {
            form.insert("new_labels", "task_labels", &[&LABELS], "");
        }
        if self.keys {
            form.insert("new_keys", "idempotency_keys", &[&KEYS], "");
        }
        form.insert("new_history", "history", &[&HISTORY], "");
        form.end()
    }
}

#[derive(Default)]
struct SaveBuilder {
    sql: String,
    parameters: usize,
    /// Nothing is written unless this holds.
    condition: &'static str,
    /// The numbers of the parameters with the ids of known tasks and steps.
    known: Option<(usize, usize)>,
}

impl SaveBuilder {
    fn part(&mut self, name: &str, body: &str) {
        let joint = if self.sql.is_empty() { "WITH " } else { ",\n" };
        // Writing to a string does not fail.
        let _ = write!(self.sql, "{joint}{name} AS {body}");
    }

    /// An array for each column: a FROM item of rows. In a list `unnest` hands out one row after the other;
    /// as a FROM item it would put each array into a store of its own first, which was seen to cost the
    /// server a fifth of the whole statement.
    fn rows(&mut self, columns: &[&[SqlColumn]]) -> String {
        let arrays: Vec<_> = columns
            .concat()
            .iter()
            .map(|(name, kind)| {
                self.parameters += 1;
                format!("unnest(${}::{kind}[]) AS {name}", self.parameters)
            })
            .collect();
        format!("(SELECT {}) AS new", arrays.join(", "))
    }

    /// By compare-and-set on the version, and nothing at all is written unless all of them match: `unmoved`
    /// is asked before each write, so that the statement can be a transaction by itself. The rows are locked
    /// first, one after the other in the order of the batch, which is that of ids: an update by itself
    /// promises no order. A row whose version moved on while its lock was waited for is left out, because
    /// the condition is looked at again then; where none is left out nobody has written anything of these
    /// tasks since, and the steps that are read are the current ones.
    ///
    /// The form leaves no choice of a plan: a LATERAL that locks, and a subquery in a list, are run for
    /// each row by the primary key, and only a TID scan finds a row by its `ctid`. A plain join was seen to
    /// read the whole primary key, when it was planned for a table that was small at that moment.
    fn known_tasks(&mut self, wait: bool) {
        let ids = self.parameters + 1;
        let rows = self.rows(&[&[("id", "uuid"), ("base", "bigint")], &TASK]);
        let skip = if wait { "" } else { " SKIP LOCKED" };
        self.part(
            "mine",
            &format!(
                "MATERIALIZED (
    SELECT new.*, locked.place FROM {rows}
    CROSS JOIN LATERAL (
        SELECT tasks.ctid AS place FROM tasks WHERE tasks.id = new.id AND tasks.version = new.base
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
        let (set, condition) = (set(&TASK, "mine"), self.condition);
        self.part(
            "saved_tasks",
            &format!(
                "(
    UPDATE tasks SET version = version + 1, {set}
    FROM mine WHERE tasks.ctid = mine.place{condition}
    RETURNING 1)"
            ),
        );
        self.known = Some((ids, self.parameters + 1));
    }

    fn known_steps(&mut self) {
        let rows = self.rows(&[&STEP_ID, &STEP]);
        let (set, condition) = (set(&STEP, "known"), self.condition);
        self.part("saved_steps", &format!("(
    UPDATE steps SET {set}
    FROM (
        SELECT new.*, (
            SELECT steps.ctid FROM steps WHERE steps.task_id = new.task_id AND steps.idx = new.idx) AS place
        FROM {rows}) AS known
    WHERE steps.ctid = known.place{condition}
    RETURNING 1)"));
    }

    fn new_tasks(&mut self) {
        let id: &[SqlColumn] = &[("id", "uuid"), ("version", "bigint")];
        self.insert("new_tasks", "tasks", &[id, &TASK, &NEW_TASK], "");
        self.insert("new_details", "task_details", &[&DETAILS], "");
    }

    fn new_steps(&mut self, name: &str, conflict: &str) {
        self.insert(name, "steps", &[&STEP_ID, &STEP, &NEW_STEP], conflict);
    }

    fn insert(&mut self, name: &str, table: &str, columns: &[&[SqlColumn]], conflict: &str) {
        let (names, rows, condition) = (names(columns), self.rows(columns), self.condition);
        self.part(
            name,
            &format!(
                "(
    INSERT INTO {table} ({names})
    SELECT new.* FROM {rows} WHERE true{condition}{conflict})"
            ),
        );
    }

    /// A row that is locked, or existed, and yet was not found, is an error that changes nothing.
    fn end(self) -> String {
        let Self { mut sql, known, .. } = self;
        sql.push_str(&match known {
            None => "\nSELECT true AS saved".to_owned(),
            Some((tasks, steps)) => format!(
                "
SELECT \"all\" AS saved,
    1 / (NOT \"all\" OR (SELECT count(*) FROM saved_tasks) = cardinality(${tasks}::uuid[])
                  AND (SELECT count(*) FROM saved_steps) = cardinality(${steps}::uuid[]))::int AS found
FROM unmoved"
            ),
        });
        sql
    }
}

fn names(columns: &[&[SqlColumn]]) -> String {
    let names: Vec<_> = columns.concat().iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

fn set(columns: &[SqlColumn], from: &str) -> String {
    let set: Vec<_> = columns
        .iter()
        .map(|(name, _)| format!("{name} = {from}.{name}"))
        .collect();
    set.join(", ")
}
