//! The open questions: saved and deleted with the changes that open and close them, and listed.

use std::ops::Range;

use crate::domain::{
    task::{AskChange, OpenAsk, SavedReplies, Task},
    values::{StepIndex, StepName, StepRef, Timestamp},
};
use crate::store::{
    Batch, Reader, StoreError, Transaction,
    rows::{Columns, Row, json},
    statement::{BindValue, Statement},
};

const CLOSE: &str = "DELETE FROM open_asks WHERE task_id = $1 AND idx = $2";

const CLOSE_ALL: &str = "DELETE FROM open_asks WHERE task_id = $1";

const OPEN: &str = r#"
INSERT INTO open_asks (task_id, idx, place, person, workflow) VALUES ($1, $2, $3, $4, $5)"#;

/// Relies on the primary keys of steps and tasks. The open asks are found along an index of open_asks.
const LISTED: &str = r#"
SELECT asked.task_id, asked.idx, steps.name, steps.complete_by, steps.reply, tasks."key", tasks.workflow
FROM (SELECT task_id, idx FROM open_asks WHERE "#;

const OF_LISTED: &str = r#") AS asked
JOIN steps ON steps.task_id = asked.task_id AND steps.idx = asked.idx
JOIN tasks ON tasks.id = asked.task_id
ORDER BY asked.task_id DESC, asked.idx DESC"#;

/// Selects the questions that are listed, newest tasks first.
#[derive(Clone, Debug, Default)]
pub struct AskQuery {
    pub person: Option<String>,
    pub workflow: Option<String>,
    pub before: Option<StepRef>,
    pub limit: usize,
}

/// An open question.
#[derive(Clone, PartialEq, Debug)]
pub struct ListedAsk {
    pub step: StepRef,
    pub name: StepName,
    pub key: Option<String>,
    pub workflow: Option<String>,
    pub until: Option<Timestamp>,
    /// `None` if its record is damaged.
    pub ask: Option<Box<OpenAsk>>,
}

impl Transaction<'_> {
    /// Saves the changed questions. Most batches change none, and cost nothing here.
    pub(in crate::store) async fn save_asks(&mut self, batch: &Batch) -> Result<(), StoreError> {
        for change in &batch.changes {
            for ask in &change.asks {
                self.save_ask(&change.task, *ask).await?;
            }
        }
        Ok(())
    }

    async fn save_ask(&mut self, task: &Task, change: AskChange) -> Result<(), StoreError> {
        let id = task.id().0;
        let index = match change {
            AskChange::Open(index) | AskChange::Closed(index) => index,
            AskChange::AllClosed => return self.run(Statement::new(CLOSE_ALL).bind(id)).await,
        };
        self.run(Statement::new(CLOSE).bind(id).bind(index)).await?;
        let ask = task.step(index).ask.as_ref();
        let (AskChange::Open(_), Some(ask)) = (change, ask) else {
            return Ok(());
        };
        let workflow = task.details.workflow.as_ref();
        let workflow = workflow.map_or("", |workflow| workflow.name.as_str());
        for (place, person) in (0_i64..).zip(&ask.text.of) {
            let open = Statement::new(OPEN)
                .bind(id)
                .bind(index)
                .bind(place)
                .bind(person.as_str())
                .bind(workflow);
            self.run(open).await?;
        }
        Ok(())
    }
}

/// Returns a page of questions. The statement has ranges instead of `=`, and the order of the whole index, so that
/// PostgreSQL cannot choose the primary key and read the questions of others, whichever statistics it has of this
/// person or workflow.
fn page(query: &AskQuery) -> Statement {
    let mut columns = Vec::new();
    let mut values: Vec<BindValue> = Vec::new();
    for (column, value) in [("person", &query.person), ("workflow", &query.workflow)] {
        if let Some(value) = value {
            columns.push(column);
            values.push(value.as_str().into());
        }
    }
    let count = columns.len();
    let row = |parts: &[String]| format!("({})", parts.join(", "));
    let parameters =
        |range: Range<usize>| range.map(|at| format!("${}", at + 1)).collect::<Vec<_>>();
    let mut columns: Vec<String> = columns.into_iter().map(str::to_owned).collect();
    let mut conditions = Vec::new();
    if query.person.is_none() {
        // This is the condition of the indexes.
        conditions.push("place = 0".to_owned());
    }
    let given = row(&parameters(0..count));
    if count > 0 {
        conditions.push(format!("{} >= {given}", row(&columns)));
    }
    let of_all = row(&columns);
    columns.extend(["task_id", "idx"].map(str::to_owned));
    if let Some(before) = query.before {
        values.extend([before.task.0.into(), before.step.into()]);
        let upto = row(&parameters(0..count + 2));
        conditions.push(format!("{} < {upto}", row(&columns)));
    } else if count > 0 {
        conditions.push(format!("{of_all} <= {given}"));
    }
    let order: Vec<_> = columns
        .iter()
        .map(|column| format!("{column} DESC"))
        .collect();
    let (conditions, order) = (conditions.join(" AND "), order.join(", "));
    let mut statement = Statement::new(format!("{LISTED}{conditions} ORDER BY {order}"));
    statement.values = values;
    statement.push(" LIMIT ?", query.limit);
    statement.sql.push_str(OF_LISTED);
    statement
}

impl Reader {
    pub async fn open_asks(&self, query: &AskQuery) -> Result<Vec<ListedAsk>, StoreError> {
        let found = self.fetch_along_indexes(page(query)).await?;
        found.iter().map(listed).collect()
    }
}

fn listed(row: &Row) -> Result<ListedAsk, StoreError> {
    let saved: Option<SavedReplies> = json(row, "reply").ok().flatten();
    Ok(ListedAsk {
        step: StepRef {
            task: row.get("task_id")?,
            step: row.get::<StepIndex>("idx")?,
        },
        name: row.get("name")?,
        key: row.get("key")?,
        workflow: row.get("workflow")?,
        until: row.get("complete_by")?,
        ask: saved.and_then(|saved| saved.ask),
    })
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;
    use crate::domain::values::TaskId;

    #[test]
    fn a_page_of_open_questions_is_read_along_an_index_and_no_further() {
        let database = Connection::open_in_memory().unwrap();
        for migration in crate::store::migrations::sqlite() {
            database.execute_batch(migration.sql.as_str()).unwrap();
        }
        let first = StepRef {
            task: TaskId(uuid::Uuid::from_u128(1)),
            step: StepIndex(0),
        };
        for (person, workflow, index) in [
            (None, None, "open_asks_listed"),
            (None, Some("order"), "open_asks_of_workflow"),
            (Some("ann@x"), None, "open_asks_of_person"),
            (
                Some("ann@x"),
                Some("order"),
                "open_asks_of_person_by_workflow",
            ),
        ] {
            for before in [None, Some(first)] {
                let query = AskQuery {
                    person: person.map(str::to_owned),
                    workflow: workflow.map(str::to_owned),
                    before,
                    limit: 10,
                };
                let explain = format!("EXPLAIN QUERY PLAN {}", page(&query).sql);
                let mut explain = database.prepare(&explain).unwrap();
                // Parameters that are not bound are null.
                let lines = explain.raw_query().mapped(|line| line.get("detail"));
                let lines: Vec<String> = lines.map(Result::unwrap).collect();
                let along = |line: &&String| line.contains(&format!(" INDEX {index}"));
                assert_eq!(lines.iter().filter(along).count(), 1, "{lines:#?}");
                // Only the page is sorted.
                let sorted = lines.iter().position(|line| line.contains("TEMP B-TREE"));
                assert!(sorted.is_none_or(|at| at + 1 == lines.len()), "{lines:#?}");
                let others = ["SCAN steps", "SCAN tasks"];
                let scans = |line: &String| others.iter().any(|scan| line.starts_with(scan));
                assert!(!lines.iter().any(scans), "{lines:#?}");
            }
        }
    }
}
