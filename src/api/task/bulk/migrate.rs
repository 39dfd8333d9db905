//! Moves many tasks to another version. Unlike other bulk commands, the command differs between tasks: it depends on
//! the steps that each one has.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use utoipa::ToSchema;

use super::{
    outcome::{load, refusal},
    request::{BulkMigration, TaskSelection},
    send::JobRun,
};
use crate::{
    api::{
        App, Problem,
        definition::workflows::{self, CompiledWorkflow},
        problem::ProblemKind,
        task::migrate::{input_faults, prepare},
    },
    domain::{
        task::{BulkOutcome, Command, Refusal, Task},
        values::{FieldFault, TaskId, WorkflowName},
    },
    store::CommandError,
};

/// The most reasons in a response.
const MOST_REASONS: usize = 100;
/// The most different reasons that are counted for a response.
const MOST_COUNTED: usize = 10_000;

/// A step that prevented tasks from moving.
#[derive(Serialize, ToSchema)]
pub struct UnmappedCount {
    #[schema(example = "charge")]
    step: String,
    #[schema(example = "its `request` differs, and the step is processed")]
    reason: String,
    /// The number of tasks that it prevented from moving.
    #[schema(example = 3)]
    tasks: u64,
}

pub(super) struct BulkMove<'r> {
    app: &'r App,
    migration: &'r BulkMigration,
    /// The versions by workflow, each resolved when a task of the workflow first needs it: so `active` is the same
    /// version for the whole dry run.
    versions: HashMap<WorkflowName, Option<CompiledWorkflow>>,
    unmapped: BTreeMap<(String, String), u64>,
}

impl<'r> BulkMove<'r> {
    pub fn new(app: &'r App, migration: &'r BulkMigration) -> Self {
        Self {
            app,
            migration,
            versions: HashMap::new(),
            unmapped: BTreeMap::new(),
        }
    }

    /// Refuses a version that the named workflow does not have. Otherwise returns the version, if a workflow is named.
    pub async fn check(&mut self, selection: &TaskSelection) -> Result<Option<u32>, Problem> {
        let TaskSelection::Filter(filter) = selection else {
            return Ok(None);
        };
        let Some(name) = filter.workflow.as_deref().map(WorkflowName::new) else {
            return Ok(None);
        };
        if let Some(found) = self.version(&name).await? {
            return Ok(Some(found.workflow.version));
        }
        let message = format!(
            "workflow {name:?} does not exist or has no such version: GET /v1/workflows/{name}/versions lists them"
        );
        Err(Problem::invalid(vec![FieldFault::new(
            "/to_version",
            message,
        )]))
    }

    async fn version(&mut self, name: &WorkflowName) -> Result<Option<CompiledWorkflow>, Problem> {
        if let Some(known) = self.versions.get(name) {
            return Ok(known.clone());
        }
        let found = workflows::resolve(self.app, name, self.migration.to).await?;
        self.versions.insert(name.clone(), found.clone());
        Ok(found)
    }

    /// Moves these tasks. A task that the command does not apply to has no outcome.
    pub async fn run(
        &mut self,
        ids: &[TaskId],
        job: &JobRun<'_>,
    ) -> Result<Vec<BulkOutcome>, Problem> {
        let (mut outcomes, commands) = self.commands(ids).await?;
        let commands = commands.into_iter();
        let commands = commands.map(|(task, command)| (task.id(), command));
        outcomes.extend(job.send(commands.collect()).await?);
        Ok(outcomes)
    }

    /// Returns the commands for these tasks, and the outcomes of those that get none.
    pub async fn commands(
        &mut self,
        ids: &[TaskId],
    ) -> Result<(Vec<BulkOutcome>, Vec<(Task, Command)>), Problem> {
        let (mut outcomes, tasks) = load(self.app, ids).await?;
        let mut commands = Vec::new();
        for task in tasks {
            match self.command(&task).await? {
                None => {}
                Some(Err(problem)) => outcomes.push(refusal(task.id(), &problem)),
                Some(Ok(command)) => commands.push((task, command)),
            }
        }
        Ok((outcomes, commands))
    }

    /// Returns `None` for a task that the command does not apply to, and the problem of a task that cannot move.
    async fn command(&mut self, task: &Task) -> Result<Option<Result<Command, Problem>>, Problem> {
        let Some(workflow) = &task.details.workflow else {
            let detail = "the task has inline steps, and no workflow";
            let problem = Problem::new(ProblemKind::WrongTaskState, detail);
            return Ok(Some(Err(problem)));
        };
        if self
            .migration
            .from
            .is_some_and(|from| from != workflow.version)
        {
            return Ok(None);
        }
        let Some(to) = self.version(&workflow.name).await? else {
            let detail = format!("workflow {:?} has no such version", workflow.name);
            let problem = Problem::new(ProblemKind::NoSuchWorkflow, detail);
            return Ok(Some(Err(problem)));
        };
        if to.workflow == *workflow {
            return Ok(None);
        }
        // A task that has ended is not checked: it is refused because it has ended.
        if !task.is_ended() && !input_faults(self.app, task, &to).await?.is_empty() {
            let version = to.workflow.version;
            let detail = format!(
                "the task cannot move to version {version}: its input does not match the input_schema of that version"
            );
            let problem = Problem::new(ProblemKind::CannotMigrate, detail);
            return Ok(Some(Err(problem)));
        }
        Ok(Some(prepare(self.app, task, &to).map(|to| {
            Command::Migrate {
                to,
                reason: self.migration.reason.clone(),
            }
        })))
    }

    /// Counts the steps that prevented a move.
    pub fn count(&mut self, outcome: &Result<(), CommandError>) {
        if let Err(CommandError::Refused {
            refusal: Refusal::Unmapped { steps, .. },
            ..
        }) = outcome
        {
            for unmapped in steps.iter() {
                let reason = (unmapped.step.to_string(), unmapped.reason.clone());
                if self.unmapped.len() < MOST_COUNTED || self.unmapped.contains_key(&reason) {
                    *self.unmapped.entry(reason).or_default() += 1;
                }
            }
        }
    }

    /// Returns the steps that prevented moves, those of the most tasks first.
    pub fn unmapped(self) -> Vec<UnmappedCount> {
        let counts = self.unmapped.into_iter();
        let mut counts: Vec<_> = counts
            .map(|((step, reason), tasks)| UnmappedCount {
                step,
                reason,
                tasks,
            })
            .collect();
        counts.sort_by_key(|count| std::cmp::Reverse(count.tasks));
        counts.truncate(MOST_REASONS);
        counts
    }
}
