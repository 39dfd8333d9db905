//! The questions that are open: saved and deleted with the changes that open and close them, and listed.

use super::{
    Batch, Reader, StoreError, Transaction,
    rows::{Columns, Row, json},
    statement::Statement,
};
use crate::domain::{
    AskChange, OpenAsk, SavedReplies, StepIndex, StepName, StepRef, Task, Timestamp,
};

const CLOSE: &str = "DELETE FROM open_asks WHERE task_id = $1 AND idx = $2";

const CLOSE_ALL: &str = "DELETE FROM open_asks WHERE task_id = $1";

const OPEN: &str = r#"
INSERT INTO open_asks (task_id, idx, place, person, workflow) VALUES ($1, $2, $3, $4, $5)"#;

/// Relies on the primary keys of steps and tasks. Those that are looked at are found along an index of open_asks.
const LISTED: &str = r#"
SELECT asked.task_id, asked.idx, steps.name, steps.complete_by, steps.reply, tasks."key", tasks.workflow
FROM (SELECT task_id, idx FROM open_asks WHERE "#;

const OF_LISTED: &str = r#") AS asked
JOIN steps ON steps.task_id = asked.task_id AND steps.idx = asked.idx
JOIN tasks ON tasks.id = asked.task_id
ORDER BY asked.task_id DESC, asked.idx DESC"#;

/// Which questions are listed, newest tasks first.
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
    /// `None`: its record is damaged.
    pub ask: Option<Box<OpenAsk>>,
}

impl Transaction<'_> {
    /// Most batches change no question, and cost nothing here.
    pub(super) async fn save_asks(&mut self, batch: &Batch) -> Result<(), StoreError> {
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

impl Reader {
    pub async fn open_asks(&self, query: &AskQuery) -> Result<Vec<ListedAsk>, StoreError> {
        let mut statement = Statement::new(LISTED);
        match &query.person {
            Some(person) => statement.push("person = ?", person.as_str()),
            // As the indexes say it.
            None => statement.sql.push_str("place = 0"),
        }
        if let Some(workflow) = &query.workflow {
            statement.push(" AND workflow = ?", workflow.as_str());
        }
        if let Some(before) = query.before {
            statement.push(" AND (task_id, idx) < (?", before.task.0);
            statement.push(", ?)", before.step);
        }
        statement.push(" ORDER BY task_id DESC, idx DESC LIMIT ?", query.limit);
        statement.sql.push_str(OF_LISTED);
        let found = self.fetch_along_indexes(statement).await?;
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
