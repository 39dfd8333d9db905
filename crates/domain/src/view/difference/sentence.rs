//! The sentence that says how two tasks differ, the failure first.

use super::{list::DifferenceList, steps::ComparedStep};
use crate::{
    task::{
        aggregate::{Details, Task},
        status::TaskStatus,
        step::StepState,
    },
    values::{
        ids::{StepIndex, StepName, WorkflowRef},
        shortened::shortened,
    },
};

/// The most pointers that the sentence has of one part.
const MOST_NAMED: usize = 3;
/// The longest name of a task in the sentence, in bytes.
const LONGEST_LABEL: usize = 80;

/// The parts of two submissions that differ.
pub(super) struct SubmissionParts<'d> {
    pub definition: &'d DefinitionPart,
    pub submission: &'d DifferenceList,
    pub input: &'d DifferenceList,
}

/// The way in which two definitions differ.
pub(super) struct DefinitionPart {
    pub workflows: [Option<WorkflowRef>; 2],
    pub is_same: bool,
    /// The pointers, if they are known.
    pub differences: DifferenceList,
}

/// Describes two tasks.
pub(super) fn of_tasks(
    tasks: [&Task; 2],
    parts: &SubmissionParts<'_>,
    steps: &[ComparedStep],
) -> String {
    let keys = tasks.map(|task| task.details.key.as_deref());
    let labels = tasks.map(|task| label(&task.details, keys[0] == keys[1]));
    let failed = tasks.map(failed_step);
    let what = outcome(tasks, &labels, failed);
    let mut why = differences(parts);
    // The requests of the step that failed tell more than those of others.
    let requests = steps.iter().filter(|step| {
        let request = step.request.as_ref();
        request.is_some_and(DifferenceList::is_telling)
    });
    let of_failed = |step: &&ComparedStep| failed.iter().flatten().any(|name| **name == step.name);
    let mut requests: Vec<_> = requests.collect();
    requests.sort_by_key(|step| !of_failed(step));
    if let Some(step) = requests.first()
        && let Some(list) = &step.request
    {
        let name = &step.name;
        why.push(format!("the requests of {name} differ{}", pointers(list)));
    }
    match why.is_empty() {
        true if parts.input.is_empty() => {
            format!("{what}; their definitions and inputs are the same")
        }
        true => format!(
            "{what}; their definitions are the same, and their inputs differ only in ids and keys"
        ),
        false => format!("{what}; {}", why.join(", ")),
    }
}

/// Describes a clone before it is submitted.
pub(super) fn of_clone(task: &Details, parts: &SubmissionParts<'_>) -> String {
    let label = label(task, false);
    let why = differences(parts);
    match why.is_empty() {
        true => format!("The clone of {label} would be the same as the original"),
        false => format!(
            "The clone of {label} would differ from the original: {}",
            why.join(", ")
        ),
    }
}

/// Returns the key of a task if it has one that tells it from the other task, otherwise its id.
fn label(details: &Details, have_same_key: bool) -> String {
    match details.key.as_deref() {
        Some(key) if !have_same_key => shortened(key, LONGEST_LABEL),
        _ => details.id.to_string(),
    }
}

fn outcome(tasks: [&Task; 2], labels: &[String; 2], failed: [Option<&StepName>; 2]) -> String {
    let [a, b] = labels;
    match failed {
        [Some(step), None] => format!("{a} failed at {step}, {b} did not"),
        [None, Some(step)] => format!("{b} failed at {step}, {a} did not"),
        [Some(one), Some(other)] if one == other => format!("{a} and {b} failed at {one}"),
        [Some(one), Some(other)] => format!("{a} failed at {one}, {b} at {other}"),
        [None, None] => {
            let [one, other] = tasks.map(|task| match task.status() {
                TaskStatus::Error => "in error",
                status => status.as_str(),
            });
            match one == other {
                true => format!("{a} and {b} are {one}"),
                false => format!("{a} is {one}, {b} is {other}"),
            }
        }
    }
}

/// Returns the step that failed: the one that the fault of the task names, or the first in error.
fn failed_step(task: &Task) -> Option<&StepName> {
    let undo = task.undo.as_ref();
    let fault = task.error().or(undo.and_then(|undo| undo.error.as_ref()));
    let named = fault.and_then(|fault| task.find(fault.step.as_ref()?.as_str()));
    let is_in_error = |at: &StepIndex| matches!(task.step(*at).state, StepState::Error(_));
    let failed = named.or_else(|| task.own_indexes().find(is_in_error));
    failed.map(|at| &task.definition(at).name)
}

fn differences(parts: &SubmissionParts<'_>) -> Vec<String> {
    let mut found = Vec::new();
    let pointers_of_definition = pointers(&parts.definition.differences);
    match &parts.definition.workflows {
        [Some(a), Some(b)] if a.name != b.name => {
            found.push(format!("the workflows are {} and {}", a.name, b.name));
        }
        [Some(a), Some(b)] if a.version != b.version => {
            let (name, a, b) = (&a.name, a.version, b.version);
            let and = match parts.definition.is_same {
                true => ", which are the same",
                false => &pointers_of_definition,
            };
            found.push(format!("the versions of {name} are {a} and {b}{and}"));
        }
        [Some(workflow), None] | [None, Some(workflow)] => {
            found.push(format!(
                "one is a task of workflow {}, the other has inline steps",
                workflow.name
            ));
        }
        _ if !parts.definition.is_same => {
            found.push(format!("the definitions differ{pointers_of_definition}"));
        }
        _ => {}
    }
    for (name, list) in [("inputs", parts.input), ("submissions", parts.submission)] {
        if list.is_telling() {
            found.push(format!("the {name} differ{}", pointers(list)));
        }
    }
    found
}

/// Returns the pointers of the first differences that follow from no others.
fn pointers(list: &DifferenceList) -> String {
    let telling = list.items.iter().filter(|item| item.is_telling());
    let items: Vec<_> = telling.collect();
    let named = items.iter().take(MOST_NAMED);
    let named: Vec<_> = named
        .map(|item| match item.pointer.as_str() {
            "" => "as a whole",
            pointer => pointer,
        })
        .collect();
    let more = items.len() - named.len();
    match (named.as_slice(), list.more) {
        ([], _) => String::new(),
        (["as a whole"], _) => " as a whole".to_owned(),
        (_, true) => format!(" at {} and more", named.join(", ")),
        (_, false) if more > 0 => format!(" at {} and {more} more", named.join(", ")),
        (_, false) => format!(" at {}", named.join(", ")),
    }
}
