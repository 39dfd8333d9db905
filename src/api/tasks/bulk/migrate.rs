//! Moves many tasks to another version. Unlike other commands it is made for each task by itself: by the steps that it has.

use std::collections::{BTreeMap, HashMap};

use futures::future::join_all;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    BulkResult,
    request::{BulkMigration, BulkRequest, TaskSelection},
};
use crate::{
    api::{
        App, Problem,
        extract::Caller,
        problem::ProblemKind,
        tasks::migrate::{input_faults, prepare},
        workflows::{self, CompiledWorkflow},
    },
    domain::{Command, Draft, FieldFault, Refusal, Task, TaskId, WorkflowName},
    store::{Apply, CommandError, StoreError},
};

/// The most reasons that a response names.
const MOST_REASONS: usize = 100;
/// The most that are counted on the way to it.
const MOST_COUNTED: usize = 10_000;

/// A step that prevented tasks from moving.
#[derive(Serialize, ToSchema)]
pub struct UnmappedCount {
    #[schema(example = "charge")]
    step: String,
    #[schema(example = "its `request` differs, and the step is processed")]
    reason: String,
    /// How many tasks it prevented.
    #[schema(example = 3)]
    tasks: u64,
}

pub(super) struct BulkMove<'r> {
    app: &'r App,
    caller: &'r Caller,
    migration: &'r BulkMigration,
    dry_run: bool,
    /// What each workflow's version was when it was first met: `active` means one and the same for the whole request.
    versions: HashMap<WorkflowName, Option<CompiledWorkflow>>,
    unmapped: BTreeMap<(String, String), u64>,
}

impl<'r> BulkMove<'r> {
    pub fn new(
        app: &'r App,
        caller: &'r Caller,
        migration: &'r BulkMigration,
        request: &BulkRequest,
    ) -> Self {
        Self {
            app,
            caller,
            migration,
            dry_run: request.dry_run,
            versions: HashMap::new(),
            unmapped: BTreeMap::new(),
        }
    }

    /// Refuses a version that the named workflow does not have.
    pub async fn check(&mut self, selection: &TaskSelection) -> Result<(), Problem> {
        let TaskSelection::Filter(filter) = selection else {
            return Ok(());
        };
        let Some(name) = filter.workflow.as_deref().map(WorkflowName::new) else {
            return Ok(());
        };
        if self.version(&name).await?.is_some() {
            return Ok(());
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

    /// Moves these tasks, or judges whether they would.
    pub async fn run(&mut self, ids: &[TaskId], result: &mut BulkResult) -> Result<(), Problem> {
        let reader = &self.app.store.reader;
        let now = reader.now().await?;
        let loaded = reader.tasks_of(ids).await?;
        for _ in loaded.tasks.len() + loaded.unreadable.len()..ids.len() {
            result.count(Err(CommandError::NoTask));
        }
        for unreadable in loaded.unreadable {
            result.count(Err(StoreError::Task(unreadable).into()));
        }
        let mut commands = Vec::new();
        for task in loaded.tasks {
            match self.command(&task).await? {
                None => {}
                Some(Err(kind)) => result.count_refusal(kind),
                Some(Ok(command)) if self.dry_run => {
                    let mut draft = Draft::on(task);
                    let decided = draft.apply(command, &self.caller.operator(), now);
                    let state = draft.task.status().as_str();
                    let decided = decided.map(drop);
                    let decided =
                        decided.map_err(|refusal| CommandError::Refused { refusal, state });
                    self.count(decided, result);
                }
                Some(Ok(command)) => commands.push((task.id(), command)),
            }
        }
        let applied = commands.into_iter().map(async |(task, command)| {
            let apply = Apply {
                task,
                command,
                by: self.caller.operator(),
                if_version: None,
                idempotency: None,
            };
            self.app.store.apply(apply).await.map(drop)
        });
        let mut broken = None;
        for outcome in join_all(applied).await {
            match outcome {
                // The rest may have been saved: all of them are counted.
                Err(CommandError::Store(error)) if !error.is_of_one_task() => broken = Some(error),
                outcome => self.count(outcome, result),
            }
        }
        broken.map_or(Ok(()), |error| Err(error.into()))
    }

    /// `None` for a task that this is not for; the kind of problem of one that has no such version.
    async fn command(
        &mut self,
        task: &Task,
    ) -> Result<Option<Result<Command, ProblemKind>>, Problem> {
        let Some(workflow) = &task.details.workflow else {
            return Ok(Some(Err(ProblemKind::WrongTaskState)));
        };
        if self
            .migration
            .from
            .is_some_and(|from| from != workflow.version)
        {
            return Ok(None);
        }
        let Some(to) = self.version(&workflow.name).await? else {
            return Ok(Some(Err(ProblemKind::NoSuchWorkflow)));
        };
        if to.workflow == *workflow {
            return Ok(None);
        }
        // A task that has ended is refused for that.
        if !task.is_ended() && !input_faults(self.app, task, &to).await?.is_empty() {
            return Ok(Some(Err(ProblemKind::CannotMigrate)));
        }
        Ok(Some(match prepare(self.app, task, &to) {
            Ok(to) => Ok(Command::Migrate {
                to,
                reason: self.migration.reason.clone(),
            }),
            Err(problem) => Err(problem.kind()),
        }))
    }

    fn count(&mut self, outcome: Result<(), CommandError>, result: &mut BulkResult) {
        if let Err(CommandError::Refused {
            refusal: Refusal::Unmapped { steps, .. },
            ..
        }) = &outcome
        {
            for unmapped in steps.iter() {
                let reason = (unmapped.step.to_string(), unmapped.reason.clone());
                if self.unmapped.len() < MOST_COUNTED || self.unmapped.contains_key(&reason) {
                    *self.unmapped.entry(reason).or_default() += 1;
                }
            }
        }
        result.count(outcome);
    }

    /// The steps that prevented moves, those of the most tasks first.
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
