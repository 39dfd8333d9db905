//! Maps the steps of a task to the names that files use: the items of a list have the name of their group. A file is
//! written before any list is known, so its names are those of a definition in which each group is one step.

use std::sync::Arc;

use provost_domain::{
    definition::Definition,
    task::{StepCounts, StepStatus, Task},
    values::{StepIndex, StepName},
};

/// Returns the definition with each group as if it were one step.
pub fn names_of(definition: &Arc<Definition>) -> Arc<Definition> {
    match definition.with_one_item_each() {
        Some(names) => Arc::new(names),
        None => definition.clone(),
    }
}

/// Returns the step of `names` that stands for a step of the task, or for an item of a group.
pub fn named_step(names: &Definition, task: &Task, index: StepIndex) -> StepIndex {
    let subject = task.subject(index);
    let step = task.group_of(subject);
    match subject == index {
        true => step,
        false => names.step(step).undo.unwrap_or(step),
    }
}

/// Returns the step of the task for a step of `names`. Returns `None` for an undo before the task is being undone, and
/// for the undo of a group, which is not a single step.
pub fn in_task(names: &Definition, task: &Task, step: StepIndex) -> Option<StepIndex> {
    task.find(names.step(step).name.as_str())
}

/// Returns the state of a step of `names`. The undo of a group has the combined state of the undos of all items.
pub fn status(names: &Definition, task: &Task, step: StepIndex) -> StepStatus {
    if let Some(index) = in_task(names, task, step) {
        return task.step(index).status();
    }
    let group = names.step(step).undoes.and_then(|step| task.group(step));
    let counts = group.map(|group| task.undos.counts_of(&group.undos));
    let counts = counts.unwrap_or_else(|| StepCounts::of([]));
    let has = |status| counts.count(status) > 0;
    match counts.live() > 0 {
        _ if has(StepStatus::Error) => StepStatus::Error,
        true => StepStatus::Processing,
        false if has(StepStatus::Waiting) || counts.total() == 0 => StepStatus::Waiting,
        false if has(StepStatus::Processed) => StepStatus::Processed,
        false => StepStatus::Skipped,
    }
}

/// Returns whether the step of an event is the step with this name, or one of its items.
pub fn is_of(event: &StepName, name: &StepName) -> bool {
    let of_item = || {
        let rest = event
            .as_str()
            .strip_prefix(name.as_str().trim_end_matches(".undo"));
        rest.is_some_and(|rest| {
            let is_undo = name.as_str().ends_with(".undo");
            rest.starts_with('[') && rest.ends_with(".undo") == is_undo
        })
    };
    event == name || of_item()
}

/// Splits `import[17]` into the name of the group and the number of the item. Returns any other name as it is.
pub fn split_item(name: &str) -> (&str, Option<u16>) {
    let split = name.strip_suffix(']').and_then(|name| {
        let (group, number) = name.split_once('[')?;
        Some((group, number.parse().ok()?))
    });
    match split {
        Some((group, number)) => (group, Some(number)),
        None => (name, None),
    }
}
