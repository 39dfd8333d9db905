//! Fills a database with the history of many tasks, for measurements: the rows of some tasks that the service has saved
//! are inserted again, under new ids and times. It copies all columns that exist, so it follows the schema by itself.

use std::fmt::Write;

/// Describes the tasks to add.
#[derive(Clone, Copy, Debug)]
pub struct MultiplyPlan {
    /// The number of tasks that are added.
    pub tasks: u64,
    /// In milliseconds: the time at which the first task was created, and the time between two tasks.
    pub from: i64,
    pub step: i64,
    /// The number of values that [`MANY_VALUES`] gets.
    pub labels: u32,
}

/// The label that gets many values, and its value in the tasks that are copied.
pub const MANY_VALUES: (&str, &str) = ("tenant", "t-0");

/// The tables in the order in which they are filled, each with its column for the task's id, and a column that the
/// database numbers by itself.
pub(super) const TABLES: [(&str, &str, &str); 6] = [
    ("tasks", "id", ""),
    ("task_details", "task_id", ""),
    ("task_labels", "task_id", ""),
    ("steps", "task_id", ""),
    ("history", "task_id", "seq"),
    ("alerts", "task_id", ""),
];

/// The number of tasks that one statement adds.
pub(super) const CHUNK: u64 = 20_000;

/// The tasks that are copied, each with a number from 0.
pub(super) const TEMPLATES: &str = r#"
CREATE TEMPORARY TABLE templates AS
SELECT row_number() OVER (ORDER BY id) - 1 AS number, id FROM tasks
WHERE state IN ('processed', 'cancelled', 'error')"#;

/// Makes an id of a time, a digit for the table, and a number.
pub(super) type MakeId = fn(millis: &str, table: u8, number: &str) -> String;

impl MultiplyPlan {
    /// Adds the tasks from number `$1` up to `$2` to a table with these columns; `$3` is the number of templates.
    pub(super) fn insert(
        &self,
        (table, task_id): (&str, &str),
        columns: &[String],
        make_id: MakeId,
    ) -> String {
        let millis = format!("({} + n * {})", self.from, self.step);
        let (label, value) = MANY_VALUES;
        let many = format!("'t-' || CAST(n % {} AS text)", self.labels.max(1));
        let mut sql = format!("INSERT INTO {table} (");
        let mut values = String::new();
        for (at, column) in columns.iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            let from = format!("source.\"{column}\"");
            let made = match (table, column.as_str()) {
                (_, column) if column == task_id => make_id(&millis, 0, "n"),
                ("alerts", "id") => make_id(&millis, 1, "n"),
                ("tasks", "created_at") | ("alerts", "raised_at") => millis.clone(),
                ("tasks", "ended_at") => {
                    format!("CASE WHEN {from} IS NOT NULL THEN {millis} + 100 END")
                }
                ("tasks", "key") => {
                    format!("CASE WHEN {from} IS NOT NULL THEN 'key-' || CAST(n AS text) END")
                }
                ("tasks", "labels") => {
                    format!("replace({from}, '\"{value}\"', '\"' || {many} || '\"')")
                }
                ("task_labels", "value") => {
                    format!("CASE source.label WHEN '{label}' THEN {many} ELSE {from} END")
                }
                _ => from,
            };
            // Writing to a string does not fail.
            let _ = write!(sql, "{comma}\"{column}\"");
            let _ = write!(values, "{comma}{made}");
        }
        sql + &format!(
            r#")
WITH RECURSIVE numbers (n) AS (
    SELECT CAST($1 AS bigint) UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < CAST($2 AS bigint))
SELECT {values}
FROM numbers
JOIN templates ON templates.number = n % CAST($3 AS bigint)
JOIN {table} AS source ON source.{task_id} = templates.id
ORDER BY n"#
        )
    }

    /// Returns the numbers of each statement's tasks: the first, and the end.
    pub(super) fn chunks(&self) -> impl Iterator<Item = (i64, i64)> {
        let tasks = self.tasks;
        let chunks = 0..tasks.div_ceil(CHUNK);
        chunks.map(move |chunk| {
            let from = chunk * CHUNK;
            (from as i64, (from + CHUNK).min(tasks) as i64)
        })
    }
}
