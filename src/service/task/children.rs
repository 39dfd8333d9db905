//! Keeps steps consistent with their child tasks: creates children, has them undone or cancelled with their parents,
//! and reports their state to their parents. The store contains everything that decides the action, and marks the
//! steps to look at; it does not matter how often, or by which instances, this is done.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::future::join_all;
use tracing::{debug, warn};

use crate::service::loops::{NextRound, PeriodicLoop};
use crate::{
    api::WorkflowCache,
    blocking,
    domain::{
        definition::{ChildSource, SchemaOwner},
        task::{
            Actor, ChildAction, ChildEnd, ChildReport, ChildWorkflow, Command, Details,
            MOST_DESCENDANTS, News, Task, TaskStatus, child_actions, task_output,
        },
        template::Payload,
        values::{Attempt, InstanceId, Span, StepIndex, TaskId},
    },
    instance::Hold,
    store::{Apply, ChildMark, CommandError, SharedFeature, Store, StoreError},
};

/// The most steps in one round.
const AT_ONCE: usize = 64;
/// The interval while no step is known to be marked. Changes that are saved by this instance wake the loop.
const IDLE: Duration = Duration::from_secs(10);
/// The delay after which a step is looked at again after a failure.
const AGAIN_AFTER: Span = Span::from_millis(2000);

pub(in crate::service) struct ChildrenLoop {
    store: Store,
    workflows: Arc<WorkflowCache>,
    hold: Arc<Hold>,
    actor: Actor,
}

struct Parents {
    tasks: HashMap<TaskId, Task>,
    unreadable: Vec<TaskId>,
}

/// The result of a look at a step.
enum MarkResult {
    Agrees,
    /// The step changed in the meantime, or an action was not possible at present.
    Later,
}

impl ChildrenLoop {
    pub fn new(
        store: Store,
        workflows: Arc<WorkflowCache>,
        hold: Arc<Hold>,
        instance: &InstanceId,
    ) -> Self {
        Self {
            store,
            workflows,
            hold,
            actor: Actor::scheduler(instance.as_str()),
        }
    }

    async fn marks(&self) -> Result<Vec<ChildMark>, StoreError> {
        let (steps, is_due) = self.store.marked.take(AT_ONCE);
        let reader = &self.store.housekeeping;
        let known = steps
            .iter()
            .map(|(task, step)| reader.child_mark(*task, *step));
        let mut marks = Vec::new();
        for mark in join_all(known).await {
            marks.extend(mark?);
        }
        if is_due {
            let due = reader.due_child_marks(reader.now().await?, AT_ONCE).await?;
            if due.len() == AT_ONCE {
                self.store.marked.expect_due();
            }
            for mark in due {
                if !marks
                    .iter()
                    .any(|known| known.is_of(mark.parent, mark.step))
                {
                    marks.push(mark);
                }
            }
        }
        Ok(marks)
    }

    /// Returns the parent tasks of the steps. Each is read once, no matter how many of its steps are marked.
    async fn parents(&self, marks: &[ChildMark]) -> Result<Parents, StoreError> {
        let mut ids: Vec<_> = marks.iter().map(|mark| mark.parent).collect();
        ids.sort_unstable();
        ids.dedup();
        let loaded = self.store.housekeeping.tasks_of(&ids).await?;
        for unreadable in &loaded.unreadable {
            warn!(task = %unreadable.task, reason = unreadable.reason, "a task cannot be compared with its children");
        }
        let unreadable = loaded.unreadable.iter().map(|task| task.task);
        Ok(Parents {
            unreadable: unreadable.collect(),
            tasks: { loaded.tasks.into_iter() }
                .map(|task| (task.id(), task))
                .collect(),
        })
    }

    /// Compares the state of a step with that of its children. The children are read after the parent.
    async fn compare(&self, mark: &ChildMark, parents: &Parents) -> Result<MarkResult, StoreError> {
        if parents.unreadable.contains(&mark.parent) {
            return Ok(MarkResult::Later);
        }
        let Some(parent) = parents.tasks.get(&mark.parent) else {
            return Ok(MarkResult::Agrees);
        };
        let children = self
            .store
            .housekeeping
            .children_of_step(mark.parent, mark.step);
        let children = children.await?;
        let mut looked = MarkResult::Agrees;
        let undoes_paused = !self.store.features.has(SharedFeature::HeldUndos);
        for action in child_actions(parent, mark.step, &children, undoes_paused) {
            if let MarkResult::Later = self.act(parent, mark.step, action).await? {
                looked = MarkResult::Later;
            }
        }
        Ok(looked)
    }

    async fn act(
        &self,
        parent: &Task,
        step: StepIndex,
        action: ChildAction,
    ) -> Result<MarkResult, StoreError> {
        let id = parent.id();
        match action {
            ChildAction::Make(attempt) => self.make(parent, step, attempt).await,
            ChildAction::Cancel(child) => {
                let reason = Some(format!("its parent, task {id}, was cancelled"));
                let cancelled = self.apply(child, Command::Cancel { reason }, None).await;
                mark_result(cancelled)
            }
            ChildAction::Undo {
                child,
                if_version,
                blocks,
            } => {
                let name = &parent.definition(step).name;
                let reason = match parent.undo {
                    Some(_) => format!("its parent, task {id}, is undone"),
                    None if parent.is_lost(step) => {
                        format!("step {name} of its parent, task {id}, is not needed any more")
                    }
                    None => format!("it is in error, and step {name} of task {id} has it undone"),
                };
                let undo = Command::Undo {
                    reason: Some(reason),
                };
                match (self.apply(child, undo, if_version).await, blocks) {
                    (Err(CommandError::Refused { refusal, .. }), Some((undo, attempt)))
                        if refusal.prevents_undo() =>
                    {
                        let message = format!("its task {child} cannot be undone: {refusal}");
                        self.report(id, undo, attempt, ChildReport::Refused(message))
                            .await
                    }
                    (undone, _) => mark_result(undone),
                }
            }
            ChildAction::Report {
                step,
                attempt,
                news,
            } => match self.report_of(news).await? {
                Some(report) => self.report(id, step, attempt, report).await,
                None => Ok(MarkResult::Later),
            },
        }
    }

    /// Returns `None` if the child has changed in the meantime.
    async fn report_of(&self, news: News) -> Result<Option<ChildReport>, StoreError> {
        let child = match news {
            News::State(child) => return Ok(Some(ChildReport::State(child))),
            News::Lost(child) => {
                let message =
                    format!("its task {child} was deleted, so it can no longer be undone");
                return Ok(Some(ChildReport::Refused(message)));
            }
            News::Ended(None) => {
                let end = ChildEnd::Undone(None);
                return Ok(Some(ChildReport::Ended { child: None, end }));
            }
            News::Ended(Some(child)) => child,
        };
        let Some(task) = self.store.housekeeping.task(child.id).await? else {
            return Ok(None);
        };
        let end = match task.status() {
            TaskStatus::Processed => {
                let output = task_output(&task).and_then(Result::ok);
                ChildEnd::Processed(output.unwrap_or_else(Payload::null))
            }
            TaskStatus::Undone => ChildEnd::Undone(task.undo.as_ref().and_then(|undo| {
                let error = undo.error.as_ref().map(|fault| match &fault.step {
                    Some(step) => format!("step {step}: {}", fault.message),
                    None => fault.message.clone(),
                });
                error.or_else(|| undo.reason.clone())
            })),
            TaskStatus::Cancelled => ChildEnd::Cancelled,
            _ => return Ok(None),
        };
        let child = Some(crate::domain::task::Child {
            state: task.status(),
            ..child
        });
        Ok(Some(ChildReport::Ended { child, end }))
    }

    async fn make(
        &self,
        parent: &Task,
        step: StepIndex,
        attempt: Attempt,
    ) -> Result<MarkResult, StoreError> {
        self.store.health.check_submission()?;
        let refuse = |message: String| {
            self.report(parent.id(), step, attempt, ChildReport::Refused(message))
        };
        let child = match self.details(parent, step).await? {
            Ok(details) => Arc::new(details),
            Err(message) => return refuse(message).await,
        };
        let begin = Command::BeginChild {
            step,
            attempt,
            child,
        };
        match self.apply(parent.id(), begin, None).await {
            Err(error @ CommandError::TaskLimit { .. }) => {
                refuse(format!("its task was refused: {error}")).await
            }
            begun => mark_result(begun),
        }
    }

    /// Returns the details of the child task of a step, or the reason why it cannot be created.
    async fn details(
        &self,
        parent: &Task,
        step: StepIndex,
    ) -> Result<Result<Details, String>, StoreError> {
        let reader = &self.store.housekeeping;
        let Some(rule) = parent.definition(step).child_rule() else {
            return Ok(Err("the step has no task".to_owned()));
        };
        let workflow = match &rule.source {
            ChildSource::Steps(definition) => ChildWorkflow {
                workflow: None,
                definition: definition.clone(),
                complete_within: None,
            },
            ChildSource::Workflow { name, version } => {
                let found = self.workflows.resolve(&self.store, reader, name, *version);
                let Some(found) = found.await? else {
                    return Ok(Err(match version {
                        None => format!(
                            "workflow {name:?} does not exist: register it with PUT /v1/workflows/{name}, and retry the step"
                        ),
                        Some(version) => format!(
                            "workflow {name:?} has no version {version}; GET /v1/workflows/{name} shows the latest"
                        ),
                    }));
                };
                ChildWorkflow {
                    workflow: Some(found.workflow),
                    definition: found.definition,
                    complete_within: found.complete_within,
                }
            }
        };
        if reader.descendants(parent.root()).await? >= MOST_DESCENDANTS {
            return Ok(Err(format!(
                "there are {MOST_DESCENDANTS} tasks below task {} already, which is the most",
                parent.root()
            )));
        }
        let (id, now) = (self.store.new_task_id(), reader.now().await?);
        let prefixes = self.store.key_prefixes();
        let details = match parent.child_details(step, &workflow, id, prefixes, now) {
            Ok(details) => details,
            Err(message) => return Ok(Err(message)),
        };
        Ok(match input_faults(&details).await {
            None => Ok(details),
            Some(faults) => Err(match rule.source.workflow() {
                Some(name) => {
                    format!("its input does not match the schema of workflow {name:?}: {faults}")
                }
                None => format!("its input does not match its `input_schema`: {faults}"),
            }),
        })
    }

    async fn report(
        &self,
        parent: TaskId,
        step: StepIndex,
        attempt: Attempt,
        report: ChildReport,
    ) -> Result<MarkResult, StoreError> {
        let command = report.to(step, attempt);
        mark_result(self.apply(parent, command, None).await)
    }

    async fn apply(
        &self,
        task: TaskId,
        command: Command,
        if_version: Option<u64>,
    ) -> Result<(), CommandError> {
        let apply = Apply::new(task, command, self.actor.clone()).at_version(if_version);
        self.store.apply(apply).await.map(|_| ())
    }
}

/// Converts the result of a command. A refusal is no fault: the task has changed, and that change has marked the step
/// again if it matters.
fn mark_result(applied: Result<(), CommandError>) -> Result<MarkResult, StoreError> {
    match applied {
        Ok(()) => Ok(MarkResult::Agrees),
        Err(CommandError::Store(error)) => Err(error),
        Err(CommandError::VersionMismatch { .. } | CommandError::Panicked) => Ok(MarkResult::Later),
        Err(error) => {
            debug!(%error, "a step or its task has moved on");
            Ok(MarkResult::Agrees)
        }
    }
}

/// The most faults in the message, because it is stored in the history of the parent.
const MOST_FAULTS: usize = 5;

async fn input_faults(details: &Details) -> Option<String> {
    let schema = details.definition.input_schema.as_ref()?;
    let checked = match schema.is_costly(&details.input, SchemaOwner::Workflow) {
        false => schema.check(&details.input, "/input", SchemaOwner::Workflow),
        true => {
            let (definition, input) = (details.definition.clone(), details.input.clone());
            let check = move || match &definition.input_schema {
                Some(schema) => schema.check(&input, "/input", SchemaOwner::Workflow),
                None => Ok(()),
            };
            match blocking::spawn(check).await {
                Ok(checked) => checked,
                Err(_) => return Some("it could not be checked".to_owned()),
            }
        }
    };
    let faults = checked.err()?;
    let words = faults.iter().take(MOST_FAULTS).map(ToString::to_string);
    Some(words.collect::<Vec<_>>().join("; "))
}

impl PeriodicLoop for ChildrenLoop {
    const NAME: &'static str = "children";
    const LONGEST_REST: Duration = Duration::from_secs(5);

    fn interval(&self) -> Duration {
        Duration::from_millis(200)
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        if self.hold.is_held() {
            return Ok(NextRound::AfterInterval);
        }
        let marks = self.marks().await?;
        if marks.is_empty() {
            return Ok(NextRound::After(IDLE));
        }
        let (mut done, mut later) = (Vec::new(), Vec::new());
        let mut failed = None;
        let parents = self.parents(&marks).await?;
        let looks = marks.iter().map(|mark| self.compare(mark, &parents));
        for (mark, looked) in marks.iter().zip(join_all(looks).await) {
            match looked {
                Ok(MarkResult::Agrees) => done.push(*mark),
                Ok(MarkResult::Later) => later.push(*mark),
                Err(error) => {
                    if error.is_of_one_task() {
                        warn!(task = %mark.parent, %error, "a step cannot be compared with its task");
                    } else {
                        failed = Some(error);
                    }
                    later.push(*mark);
                }
            }
        }
        self.store
            .clear_child_marks(done, later, AGAIN_AFTER)
            .await?;
        match failed {
            Some(error) => Err(error),
            None => Ok(NextRound::AfterInterval),
        }
    }

    async fn wait_for_wake(&mut self) {
        self.store.marked.woken().await;
    }
}
