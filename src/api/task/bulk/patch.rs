//! Makes the commands of a retry with a patched request body: each task has its own body.

use super::{
    outcome::{load, refusal},
    request::BulkPatch,
};
use crate::{
    api::{App, Problem, problem::ProblemKind},
    domain::{
        task::{BulkOutcome, Command, PatchFault, PatchedBody, Task},
        values::TaskId,
    },
};

/// A task with its command.
pub(super) struct TaskCommand {
    pub task: Task,
    pub command: Command,
    /// The request body before and after a patch.
    pub bodies: Option<PatchedBody>,
}

impl TaskCommand {
    pub fn new(task: Task, command: Command) -> Self {
        Self {
            task,
            command,
            bodies: None,
        }
    }
}

/// The commands for tasks, and the outcomes of those that get none.
pub(super) struct PatchedTasks {
    pub refused: Vec<BulkOutcome>,
    pub commands: Vec<TaskCommand>,
}

/// The use of the patched bodies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PatchFor {
    Services,
    /// A dry run, whose examples people read.
    People,
}

pub(super) async fn commands(
    app: &App,
    patch: &BulkPatch,
    ids: &[TaskId],
    patch_for: PatchFor,
) -> Result<PatchedTasks, Problem> {
    let now = app.store.reader.now().await?;
    // The permit is taken before the tasks are loaded: otherwise many loaded tasks could queue here.
    let permit = app.bulkhead.enter().await?;
    let (mut refused, tasks) = load(app, ids).await?;
    let mut commands = Vec::with_capacity(tasks.len());
    for task in tasks {
        let patched = permit.run(|| {
            let step = patch.step.as_deref();
            match patch_for {
                PatchFor::Services => patch.patch.patch(&task, step, now),
                PatchFor::People => patch.patch.preview(&task, step, now),
            }
        });
        match patched {
            Ok(bodies) => commands.push(TaskCommand {
                command: bodies.retry(patch.reason.clone()),
                bodies: Some(bodies),
                task,
            }),
            Err(fault) => refused.push(refusal(task.id(), &problem(&fault))),
        }
    }
    Ok(PatchedTasks { refused, commands })
}

fn problem(fault: &PatchFault) -> Problem {
    let kind = match fault {
        PatchFault::NoneInError(state) if state.is_ended() => ProblemKind::TaskEnded,
        PatchFault::NoneInError(_) => ProblemKind::WrongTaskState,
        PatchFault::SeveralInError => ProblemKind::WrongStepState,
        PatchFault::Request(_) | PatchFault::Patch(_) => ProblemKind::Invalid,
    };
    Problem::new(kind, fault.to_string())
}
