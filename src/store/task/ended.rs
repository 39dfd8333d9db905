//! Counts the ended tasks that are kept, by state. They may be many millions, so they are counted in pages, each a
//! short range of an index, with pauses between them. No index contains the processed tasks alone: they are the ended
//! tasks that are neither undone nor cancelled.

use uuid::Uuid;

use crate::domain::task::TaskStatus;
use crate::store::{StoreError, rows::Columns, statement::Statement};

/// Relies on tasks_ended, which covers it. Pages end at a time, not at a time and an id: on PostgreSQL the index has no
/// id, and each id would be read from the table.
const ENDED: &str = r#"
WITH page AS MATERIALIZED (
    SELECT ended_at FROM {tasks}
    WHERE ended_at IS NOT NULL AND ended_at >= $1 ORDER BY ended_at LIMIT $2)
SELECT count(*) AS count, max(ended_at) AS last,
       (SELECT count(*) FROM page WHERE ended_at = (SELECT max(ended_at) FROM page)) AS at_last
FROM page"#;

/// Relies on tasks_ended, which covers it. This may be longer than a page. But that number of tasks ends at one time
/// only if the clock of the database does not advance.
const ENDED_AT: &str = r#"
SELECT count(*) AS count FROM {tasks} WHERE ended_at IS NOT NULL AND ended_at = $1"#;

/// Relies on tasks_by_state, which covers it.
const IN_STATE: &str = r#"
WITH page AS MATERIALIZED (
    SELECT id FROM {tasks}
    WHERE state = $1 AND state <> 'processed' AND id > $2 ORDER BY id LIMIT $3)
SELECT count(*) AS count, (SELECT id FROM page ORDER BY id DESC LIMIT 1) AS last FROM page"#;

/// A running or complete count. Tasks that end or are purged in the meantime may be counted or not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedCount {
    ended: u64,
    undone: u64,
    cancelled: u64,
    /// The next page; `None` when all tasks are counted.
    next: Option<CountedRange>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CountedRange {
    /// Tasks that ended at this time or later.
    From(i64),
    /// Tasks that ended at this time, which are more than a page.
    At(i64),
    Undone(Uuid),
    Cancelled(Uuid),
}

impl Default for EndedCount {
    fn default() -> Self {
        Self {
            ended: 0,
            undone: 0,
            cancelled: 0,
            next: Some(CountedRange::From(i64::MIN)),
        }
    }
}

impl EndedCount {
    #[cfg(test)]
    pub fn of_all(ended: u64, undone: u64, cancelled: u64) -> Self {
        Self {
            ended,
            undone,
            cancelled,
            next: None,
        }
    }

    /// Returns the number of tasks in each final state, once all are counted.
    pub fn complete(&self) -> Option<[(TaskStatus, u64); 3]> {
        if self.next.is_some() {
            return None;
        }
        let others = self.undone + self.cancelled;
        Some([
            (TaskStatus::Processed, self.ended.saturating_sub(others)),
            (TaskStatus::Undone, self.undone),
            (TaskStatus::Cancelled, self.cancelled),
        ])
    }

    /// Returns the statement that finds the next page, or `None` when all tasks are counted.
    pub fn statement(
        &self,
        by_index: impl Fn(&'static str, &'static str) -> String,
        limit: usize,
    ) -> Option<Statement> {
        let of =
            |sql: &str, index| Statement::new(sql.replace("{tasks}", &by_index("tasks", index)));
        let in_state = |state: TaskStatus, after: Uuid| {
            let statement = of(IN_STATE, "tasks_by_state").bind(state.as_str());
            statement.bind(after).bind(limit)
        };
        Some(match self.next? {
            CountedRange::From(at) => of(ENDED, "tasks_ended").bind(at).bind(limit),
            CountedRange::At(at) => of(ENDED_AT, "tasks_ended").bind(at),
            CountedRange::Undone(after) => in_state(TaskStatus::Undone, after),
            CountedRange::Cancelled(after) => in_state(TaskStatus::Cancelled, after),
        })
    }

    /// Adds the result of [`EndedCount::statement`].
    pub fn add(mut self, row: &impl Columns, limit: usize) -> Result<Self, StoreError> {
        let count: u64 = row.get("count")?;
        let is_last = count < limit as u64;
        self.next = match self.next {
            Some(CountedRange::From(_)) if is_last => {
                self.ended += count;
                Some(CountedRange::Undone(Uuid::nil()))
            }
            Some(CountedRange::From(from)) => {
                let last: i64 = row.get("last")?;
                if last == from {
                    Some(CountedRange::At(last))
                } else {
                    // Further tasks may have ended at the same time as the last one, so all tasks of that time are
                    // counted with the next page.
                    let at_last: u64 = row.get("at_last")?;
                    self.ended += count.saturating_sub(at_last);
                    Some(CountedRange::From(last))
                }
            }
            Some(CountedRange::At(at)) => {
                self.ended += count;
                Some(CountedRange::From(at.saturating_add(1)))
            }
            Some(CountedRange::Undone(_)) => {
                self.undone += count;
                Some(match is_last {
                    true => CountedRange::Cancelled(Uuid::nil()),
                    false => CountedRange::Undone(row.get("last")?),
                })
            }
            Some(CountedRange::Cancelled(_)) => {
                self.cancelled += count;
                match is_last {
                    true => None,
                    false => Some(CountedRange::Cancelled(row.get("last")?)),
                }
            }
            None => None,
        };
        Ok(self)
    }
}
