//! Applies the command of a job to a batch of tasks.

use super::{
    clone,
    migrate::BulkMove,
    outcome::LOAD_BATCH,
    patch::{self, PatchFor},
    request::{BulkCommand, BulkRequest},
    send::JobRun,
};
use crate::{
    api::Problem,
    domain::{task::BulkOutcome, values::TaskId},
};

pub(super) async fn apply(
    run: &JobRun<'_>,
    request: &BulkRequest,
    tasks: &[TaskId],
) -> Result<Vec<BulkOutcome>, Problem> {
    match &request.command {
        BulkCommand::Same(command) => {
            let commands = tasks.iter().map(|task| (*task, command.clone()));
            Ok(run.send(commands.collect()).await?)
        }
        BulkCommand::Patch(patch) => {
            let mut outcomes = Vec::with_capacity(tasks.len());
            for tasks in tasks.chunks(LOAD_BATCH) {
                let patched = patch::commands(run.app, patch, tasks, PatchFor::Services).await?;
                outcomes.extend(patched.refused);
                let commands = patched.commands.into_iter();
                let commands = commands.map(|patched| (patched.task.id(), patched.command));
                outcomes.extend(run.send(commands.collect()).await?);
            }
            Ok(outcomes)
        }
        BulkCommand::Clone(changes) => clone::run(run, changes, tasks).await,
        BulkCommand::Migrate(migration) => {
            let mut moves = BulkMove::new(run.app, migration);
            let mut outcomes = Vec::with_capacity(tasks.len());
            for tasks in tasks.chunks(LOAD_BATCH) {
                outcomes.extend(moves.run(tasks, run).await?);
            }
            Ok(outcomes)
        }
    }
}
