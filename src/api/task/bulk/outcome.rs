//! The outcomes of a bulk command for single tasks.

use crate::{
    api::{App, Problem},
    domain::{
        task::{BulkOutcome, Task, TaskRefusal},
        values::TaskId,
    },
    store::{CommandError, StoreError},
};

/// Tasks that are loaded together: they may be large.
pub(super) const LOAD_BATCH: usize = 10;

/// Loads tasks. Those that do not exist or cannot be read have outcomes instead.
pub(super) async fn load(
    app: &App,
    ids: &[TaskId],
) -> Result<(Vec<BulkOutcome>, Vec<Task>), StoreError> {
    let loaded = app.store.reader.tasks_of(ids).await?;
    let mut outcomes = Vec::new();
    for id in ids {
        let is_loaded = loaded.tasks.iter().any(|task| task.id() == *id);
        let is_unreadable = loaded.unreadable.iter().any(|task| task.task == *id);
        if !is_loaded && !is_unreadable {
            outcomes.push(outcome(*id, Err(CommandError::NoTask)));
        }
    }
    for unreadable in loaded.unreadable {
        let id = unreadable.task;
        outcomes.push(outcome(id, Err(StoreError::Task(unreadable).into())));
    }
    Ok((outcomes, loaded.tasks))
}

/// Returns the outcome of a command.
pub(super) fn outcome(task: TaskId, result: Result<(), CommandError>) -> BulkOutcome {
    match result {
        Ok(()) => BulkOutcome {
            task,
            refusal: None,
        },
        Err(error) => refusal(task, &error.into()),
    }
}

pub(super) fn refusal(task: TaskId, problem: &Problem) -> BulkOutcome {
    BulkOutcome {
        task,
        refusal: Some(TaskRefusal {
            kind: problem.kind().slug().to_owned(),
            reason: problem.detail().to_owned(),
        }),
    }
}
