//! Child tasks: the step that each is done for, and the steps that must be compared with their children.

use futures::FutureExt;

use crate::domain::{
    task::{ChildRecord, MOST_DESCENDANTS},
    values::{Span, StepIndex, TaskId, Timestamp},
};
use crate::{
    chance,
    store::{
        Batch, Reader, Store, StoreError, Transaction,
        rows::{Columns, Row},
        statement::Statement,
    },
};

const ADD_CHILD: &str =
    "INSERT INTO child_tasks (child, parent, idx, attempt, root) VALUES ($1, $2, $3, $4, $5)";

const MARK: &str = r#"
INSERT INTO child_marks (parent, idx, mark, due_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (parent, idx) DO UPDATE
SET mark = excluded.mark,
    due_at = CASE WHEN child_marks.due_at < excluded.due_at THEN child_marks.due_at ELSE excluded.due_at END"#;

const CLEAR: &str = "DELETE FROM child_marks WHERE parent = $1 AND idx = $2 AND mark = $3";

const POSTPONE: &str =
    "UPDATE child_marks SET due_at = $4 WHERE parent = $1 AND idx = $2 AND mark = $3";

const OF_STEP: &str = "SELECT mark FROM child_marks WHERE parent = $1 AND idx = $2";

/// Relies on child_marks_due.
const DUE: &str =
    "SELECT parent, idx, mark FROM child_marks WHERE due_at <= $1 ORDER BY due_at LIMIT $2";

/// Relies on child_tasks_of_step.
const CHILDREN: &str = r#"
SELECT child, attempt, state, version, CASE WHEN undo IS NULL THEN CAST(0 AS bigint) ELSE CAST(1 AS bigint) END AS undone
FROM child_tasks JOIN tasks ON tasks.id = child
WHERE parent = $1 AND idx = $2 ORDER BY attempt"#;

/// Relies on child_tasks_of_root.
const DESCENDANTS: &str = r#"
SELECT count(*) AS counted FROM (SELECT 1 FROM child_tasks WHERE root = $1 LIMIT $2) AS first"#;

/// The time that the instance which saved a change has to act on it, before the supervising instance does.
const OWN_TIME: Span = Span::from_millis(1000);

/// A step whose record must be compared with those of its children.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChildMark {
    pub parent: TaskId,
    pub step: StepIndex,
    mark: i64,
}

impl ChildMark {
    pub fn is_of(&self, parent: TaskId, step: StepIndex) -> bool {
        (self.parent, self.step) == (parent, step)
    }
}

impl Transaction<'_> {
    /// Saves the marks before the tasks of the batch, because every transaction locks tasks after marks.
    pub(in crate::store) async fn save_children(
        &mut self,
        batch: &Batch,
    ) -> Result<(), StoreError> {
        if batch.marks.is_empty() {
            return Ok(());
        }
        let new = batch.changes.iter().filter(|change| change.base.is_none());
        for change in new {
            if let Some(parent) = &change.task.details.parent {
                let add = Statement::new(ADD_CHILD)
                    .bind(change.task.id())
                    .bind(parent.task)
                    .bind(parent.index)
                    .bind(parent.attempt)
                    .bind(parent.root);
                self.run(add).await?;
            }
        }
        let due_at = self.now() + OWN_TIME;
        for (parent, step) in &batch.marks {
            let mark = Statement::new(MARK)
                .bind(*parent)
                .bind(*step)
                .bind(chance::random::<i64>())
                .bind(due_at);
            self.run(mark).await?;
        }
        Ok(())
    }
}

impl Reader {
    pub async fn child_mark(
        &self,
        parent: TaskId,
        step: StepIndex,
    ) -> Result<Option<ChildMark>, StoreError> {
        let of_step = Statement::new(OF_STEP).bind(parent).bind(step);
        let mark = |row: &Row| {
            let mark = row.get("mark")?;
            Ok(ChildMark { parent, step, mark })
        };
        Ok(self.all(of_step, mark).await?.pop())
    }

    /// Returns the marks on which no instance has acted in time, the oldest first.
    pub async fn due_child_marks(
        &self,
        now: Timestamp,
        most: usize,
    ) -> Result<Vec<ChildMark>, StoreError> {
        let due = Statement::new(DUE).bind(now).bind(most);
        let mark = |row: &Row| {
            Ok(ChildMark {
                parent: row.get("parent")?,
                step: row.get("idx")?,
                mark: row.get("mark")?,
            })
        };
        self.all(due, mark).await
    }

    /// Returns the children of all attempts of a step, the oldest first.
    pub async fn children_of_step(
        &self,
        parent: TaskId,
        step: StepIndex,
    ) -> Result<Vec<ChildRecord>, StoreError> {
        let children = Statement::new(CHILDREN).bind(parent).bind(step);
        let child = |row: &Row| {
            Ok(ChildRecord {
                id: row.get("child")?,
                attempt: row.get("attempt")?,
                state: row.get("state")?,
                is_undo_requested: row.get::<i64>("undone")? == 1,
                version: row.get("version")?,
            })
        };
        self.all(children, child).await
    }

    /// Returns how many descendants a submitted task has, up to the most that it may have.
    pub async fn descendants(&self, root: TaskId) -> Result<u64, StoreError> {
        let count = Statement::new(DESCENDANTS)
            .bind(root)
            .bind(MOST_DESCENDANTS);
        let counted = |row: &Row| row.get::<u64>("counted");
        let counted = self.all(count, counted).await?;
        Ok(counted.into_iter().sum())
    }
}

impl Store {
    /// Clears the marks of these steps, which agree with their children, unless they were marked again. The steps in
    /// `later` wait for the given time.
    pub async fn clear_child_marks(
        &self,
        mut done: Vec<ChildMark>,
        mut later: Vec<ChildMark>,
        wait: Span,
    ) -> Result<(), StoreError> {
        // The marks are in the order in which every transaction locks them.
        for marks in [&mut done, &mut later] {
            marks.sort_unstable_by_key(|mark| (mark.parent, mark.step));
        }
        self.send_write(true, None, move |tx| {
            let (done, later) = (done.clone(), later.clone());
            async move {
                let due_at = tx.now() + wait;
                for mark in done {
                    tx.run(of_mark(CLEAR, mark)).await?;
                }
                for mark in later {
                    tx.run(of_mark(POSTPONE, mark).bind(due_at)).await?;
                }
                Ok(())
            }
            .boxed()
        })
        .await
    }
}

fn of_mark(sql: &str, mark: ChildMark) -> Statement {
    Statement::new(sql)
        .bind(mark.parent)
        .bind(mark.step)
        .bind(mark.mark)
}
