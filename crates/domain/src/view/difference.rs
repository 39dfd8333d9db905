//! Two tasks beside each other: why one failed and the other did not. And a clone beside its original, before it is
//! submitted.
//!
//! `documents` makes JSON documents of the parts of a task, `list` compares them within bounds, `steps` pairs the steps
//! and their last attempts, and `sentence` says in one sentence what is the case.

mod documents;
mod list;
mod sentence;
mod steps;
#[cfg(test)]
mod tests;

pub use self::{
    list::{ComparedValue, DifferenceList, MemberChange, ValueDifference},
    steps::{ComparedAttempt, ComparedSide, ComparedStep, StepPart},
};

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use self::{
    list::{Comparer, TaskNames},
    sentence::{DefinitionPart, SubmissionParts},
    steps::StepPair,
};
use crate::{
    task::{
        aggregate::{Details, Task},
        attempt_record::AttemptRecord,
        status::TaskStatus,
    },
    values::{
        ids::{StepIndex, WorkflowRef},
        time::{Span, Timestamp},
    },
    view::words::DurationSchema,
};

/// Two tasks beside each other. `added` means that only `b` has a value, `removed` that only `a` has it.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct TaskDifference {
    /// One sentence about the difference that matters most.
    #[schema(
        example = "order-20871 failed at charge, order-20866 did not; the versions of order are 14 and 13 at /steps/charge/request/body/currency, the requests of charge differ at /body/currency"
    )]
    pub sentence: String,
    pub a: ComparedTask,
    pub b: ComparedTask,
    pub definition: DefinitionDifference,
    /// Priority, labels, `complete_within`, `start_at` and `reply_to`.
    pub submission: DifferenceList,
    pub input: DifferenceList,
    /// The steps of both tasks by their names, at most 100, those that differ first. Of items, those that are in error
    /// are listed, up to five of each list. Empty before a clone is submitted.
    pub steps: Vec<ComparedStep>,
    /// True if there are more steps.
    #[schema(example = false)]
    pub more_steps: bool,
}

/// One of two tasks that are compared.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct ComparedTask {
    /// Null before it is submitted.
    #[schema(required)]
    pub id: Option<Uuid>,
    #[schema(required, example = "order-20871")]
    pub key: Option<String>,
    /// Null if the task has inline steps.
    #[schema(required, example = "order")]
    pub workflow: Option<String>,
    #[schema(required, example = 14)]
    pub workflow_version: Option<u32>,
    /// Null before it is submitted.
    #[schema(value_type = Option<TaskStatus>, required)]
    pub state: Option<&'static str>,
    /// Null before it is submitted.
    #[schema(required)]
    pub created_at: Option<Timestamp>,
    #[schema(required)]
    pub ended_at: Option<Timestamp>,
    /// From its submission to its end; null until then.
    #[schema(value_type = Option<DurationSchema>, required)]
    pub duration: Option<Span>,
}

/// The difference of two definitions.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct DefinitionDifference {
    /// True if both tasks have one version of one workflow.
    #[schema(example = false)]
    pub same_version: bool,
    /// True if nothing differs.
    #[schema(example = false)]
    pub same: bool,
    /// Steps are members by their names, as in `/steps/charge/request/body/currency`, each with `after` as it applies.
    /// Values that readers of workflows do not see are equal here. Empty for callers that may not read workflows.
    pub differences: DifferenceList,
}

impl ComparedTask {
    fn of_details(details: &Details) -> Self {
        let workflow = details.workflow.as_ref();
        Self {
            id: None,
            key: details.key.as_deref().map(str::to_owned),
            workflow: workflow.map(|workflow| workflow.name.to_string()),
            workflow_version: workflow.map(|workflow| workflow.version),
            state: None,
            created_at: None,
            ended_at: None,
            duration: None,
        }
    }

    fn of(task: &Task) -> Self {
        let ended_at = task.ended_at();
        Self {
            id: Some(task.id().0),
            state: Some(task.status().as_str()),
            created_at: Some(task.created_at),
            ended_at,
            duration: ended_at.map(|at| at.since(task.created_at).into()),
            ..Self::of_details(&task.details)
        }
    }
}

/// Two tasks that are to be compared. Their last attempts are read in between.
pub struct TaskComparison<'t> {
    tasks: [&'t Task; 2],
    pairs: Vec<StepPair>,
    has_more: bool,
}

impl<'t> TaskComparison<'t> {
    pub fn new(a: &'t Task, b: &'t Task) -> Self {
        let tasks = [a, b];
        let (pairs, has_more) = steps::pairs(tasks);
        Self {
            tasks,
            pairs,
            has_more,
        }
    }

    /// Returns the steps of each task whose last recorded attempts [`TaskComparison::report`] needs.
    pub fn with_attempts(&self) -> [Vec<StepIndex>; 2] {
        steps::with_attempts(self.tasks, &self.pairs)
    }

    /// Compares the tasks. `attempts` are the last recorded attempts of the steps of each; a step may have none.
    pub fn report(self, attempts: [Vec<AttemptRecord>; 2], now: Timestamp) -> TaskDifference {
        let tasks = self.tasks;
        let [a, b] = tasks.map(|task| &*task.details);
        let mut comparer = Comparer::new([TaskNames::of(a), TaskNames::of(b)]);
        let (definition, submission, input) = submissions(a, b, &mut comparer, true);
        let records = attempts.map(|records| {
            let records = records.into_iter();
            records.map(|record| (record.step, record)).collect()
        });
        let steps = steps::compare(tasks, self.pairs, records, &mut comparer, now);
        let parts = SubmissionParts {
            definition: &definition,
            submission: &submission,
            input: &input,
        };
        TaskDifference {
            sentence: sentence::of_tasks(tasks, &parts, &steps),
            a: ComparedTask::of(tasks[0]),
            b: ComparedTask::of(tasks[1]),
            definition: definition.into(),
            submission,
            input,
            steps,
            more_steps: self.has_more,
        }
    }
}

/// The clone of a task, before it is submitted.
pub struct PlannedClone<'c> {
    /// The submission. Its id is not used.
    pub details: &'c Details,
    /// False for callers that may not read workflows.
    pub shows_definition: bool,
}

/// Compares a task with its clone before that is submitted: its steps have not begun.
pub fn clone_difference(task: &Task, clone: &PlannedClone<'_>) -> TaskDifference {
    let (a, b) = (&*task.details, clone.details);
    let names = TaskNames {
        id: None,
        ..TaskNames::of(b)
    };
    let mut comparer = Comparer::new([TaskNames::of(a), names]);
    let (definition, submission, input) = submissions(a, b, &mut comparer, clone.shows_definition);
    let parts = SubmissionParts {
        definition: &definition,
        submission: &submission,
        input: &input,
    };
    TaskDifference {
        sentence: sentence::of_clone(a, &parts),
        a: ComparedTask::of(task),
        b: ComparedTask::of_details(b),
        definition: definition.into(),
        submission,
        input,
        steps: Vec::new(),
        more_steps: false,
    }
}

/// Compares definition, submission and input. Requests may follow from the input, the others do not.
fn submissions(
    a: &Details,
    b: &Details,
    comparer: &mut Comparer<'_>,
    shows_definition: bool,
) -> (DefinitionPart, DifferenceList, DifferenceList) {
    let [of_a, of_b] = [a, b].map(documents::submission);
    let submission = comparer.list(&of_a, &of_b);
    let [of_a, of_b] = [a, b].map(documents::definition);
    let differences = match shows_definition {
        true => comparer.list(&of_a, &of_b),
        false => DifferenceList::default(),
    };
    let definition = DefinitionPart {
        workflows: [a, b].map(|details| details.workflow.clone()),
        is_same: of_a == of_b || (shows_definition && differences.is_empty()),
        differences,
    };
    let input = comparer.list(&a.input, &b.input);
    comparer.add_sources("/input", &input);
    (definition, submission, input)
}

impl From<DefinitionPart> for DefinitionDifference {
    fn from(part: DefinitionPart) -> Self {
        let [a, b]: [Option<WorkflowRef>; 2] = part.workflows;
        Self {
            same_version: a.is_some() && a == b,
            same: part.is_same,
            differences: part.differences,
        }
    }
}
