//! The payloads that callers with the role `read` do not see, because a workflow hides them: inputs, outputs, and the bodies
//! of requests, responses and messages. Everything else of a task remains, so that they see where it is and why.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    api::{
        App, Problem,
        definition::workflows::{VersionChoice, resolve},
        extract::Caller,
        problem::ProblemKind,
    },
    config::Role,
    domain::{
        task::Task,
        values::{TaskId, WorkflowName},
    },
};

/// Returns whether this caller sees no payloads of the task: its own version of the workflow hides them, or the active one.
pub(in crate::api) async fn hides_bodies(
    app: &App,
    caller: &Caller,
    task: &Task,
) -> Result<bool, Problem> {
    if caller.role != Role::Read {
        return Ok(false);
    }
    match &task.details.workflow {
        _ if task.details.definition.policies.hide_bodies => Ok(true),
        Some(workflow) => hides_bodies_of(app, caller, &workflow.name).await,
        None => Ok(false),
    }
}

/// Returns whether this caller sees no payloads of the tasks of a workflow, by its active version.
pub(in crate::api) async fn hides_bodies_of(
    app: &App,
    caller: &Caller,
    workflow: &WorkflowName,
) -> Result<bool, Problem> {
    if caller.role != Role::Read {
        return Ok(false);
    }
    let active = resolve(app, workflow, VersionChoice::Active).await?;
    Ok(active.is_some_and(|active| active.definition.policies.hide_bodies))
}

/// Returns whether this caller sees no payloads of a task without a workflow: its steps may stand in a step of a task that
/// hides them.
pub(in crate::api) async fn hides_bodies_of_task(
    app: &App,
    caller: &Caller,
    task: TaskId,
) -> Result<bool, Problem> {
    if caller.role != Role::Read {
        return Ok(false);
    }
    let task = app.store.reader.task(task).await?;
    Ok(task.is_some_and(|task| task.details.definition.policies.hide_bodies))
}

/// Refuses what consists of payloads.
pub(super) async fn must_see_bodies(
    app: &App,
    caller: &Caller,
    task: &Task,
) -> Result<(), Problem> {
    if !hides_bodies(app, caller, task).await? {
        return Ok(());
    }
    Err(Problem::new(
        ProblemKind::Forbidden,
        format!(
            "this needs the role operate, or one that includes it: the workflow of task {} has hide_bodies, and the token {:?} has the role {}",
            task.id(),
            caller.name,
            caller.role.as_str(),
        ),
    )
    .with("needed_role", "operate"))
}

/// Returns a view as JSON without what `hide` takes out of it.
pub(super) fn hidden<T: Serialize>(view: &T, hide: impl FnOnce(&mut Value)) -> Value {
    // Every view has string keys and finite numbers, and therefore always serialises.
    let mut value = serde_json::to_value(view).unwrap_or_default();
    hide(&mut value);
    value
}

pub(super) fn hide_in_task(task: &mut Value) {
    empty(task, &["input", "output", "output_error"]);
    hide_in_head(task);
    if let Some(undo) = task.get_mut("undo") {
        hide_in_fault(undo.get_mut("error"));
    }
    each(task.get_mut("steps"), hide_in_step);
}

/// Hides what the head of a task has, which lists show too.
pub(super) fn hide_in_head(task: &mut Value) {
    hide_in_fault(task.get_mut("error"));
}

/// Hides what a page of steps has.
pub(super) fn hide_in_steps(page: &mut Value) {
    each(page.get_mut("items"), hide_in_step);
}

/// Hides what a page of attempts has, or all records of one.
pub(super) fn hide_in_attempts(page: &mut Value) {
    each(page.get_mut("items"), hide_in_attempt);
}

fn hide_in_step(step: &mut Value) {
    empty(step, &["output", "item", "awaited_reply"]);
    hide_in_fault(step.get_mut("error"));
    hide_in_fault(step.get_mut("last_fault"));
    if let Some(ask) = step.get_mut("ask") {
        empty(ask, &["text"]);
    }
}

fn hide_in_attempt(attempt: &mut Value) {
    for part in ["request", "response"] {
        if let Some(part) = attempt.get_mut(part) {
            empty(part, &["body"]);
        }
    }
    hide_in_fault(attempt.get_mut("error"));
}

/// Hides the payload of an event of a history: that of its fault.
pub(in crate::api) fn hide_in_event(event: &mut Map<String, Value>) {
    hide_in_fault(event.get_mut("error"));
}

/// Hides the bodies of all requests of a plan, at any depth.
pub(super) fn hide_in_plan(plan: &mut Value) {
    match plan {
        Value::Object(members) => {
            if members.contains_key("method") {
                members.remove("body");
            }
            members.values_mut().for_each(hide_in_plan);
        }
        Value::Array(items) => items.iter_mut().for_each(hide_in_plan),
        _ => {}
    }
}

fn hide_in_fault(fault: Option<&mut Value>) {
    if let Some(fault) = fault {
        empty(fault, &["body"]);
    }
}

/// Sets those of these members to null that are present.
fn empty(value: &mut Value, names: &[&str]) {
    let Value::Object(members) = value else {
        return;
    };
    for name in names {
        if let Some(member) = members.get_mut(*name) {
            *member = Value::Null;
        }
    }
}

fn each(list: Option<&mut Value>, hide: impl Fn(&mut Value)) {
    if let Some(Value::Array(items)) = list {
        items.iter_mut().for_each(hide);
    }
}
