//! Steps with tasks of their own that compete in a race: what the task of a loser has done is undone.

use super::{
    children::{Family, finish_calls},
    *,
};
use crate::view::blocked::Blocked;

/// A call and a task compete. The step `pack` of the task is done, and can be undone unless it is a pivot.
fn competing(is_pivot: bool) -> Family {
    let steps = json!([
        { "name": "call", "agent": "x", "after": [] },
        { "name": "task", "after": [], "task": { "workflow": "ship" } },
        { "name": "join", "agent": "x", "after": { "any": 1, "of": ["call", "task"], "rest": "undo" } },
    ]);
    let mut pack = json!({ "name": "pack", "agent": "y", "undo": { "request": {} } });
    if is_pivot {
        pack = json!({ "name": "pack", "agent": "y", "pivot": true });
    }
    let mut family = Family::new(&steps, &json!([pack, { "name": "send", "agent": "y" }]));
    family.agree();
    let (by, now) = (family.parent.by.clone(), family.parent.now);
    let child = &mut family.children[0].2;
    let step = StepIndex(0);
    let claimant = Claimant::Instance(InstanceId::new("node-1"));
    let claim = Command::Claim { step, by: claimant };
    child.apply(claim, &by, now).unwrap();
    let (attempt, outcome) = (Attempt(1), success(json!({})));
    let reply = Command::Reply {
        step,
        attempt,
        outcome,
    };
    child.apply(reply, &by, now).unwrap();
    family
}

fn run_child(family: &mut Family) -> TaskStatus {
    let (by, now) = (family.parent.by.clone(), family.parent.now);
    let child = &mut family.children[0].2;
    finish_calls(child, &by, now);
    child.task.status()
}

/// Returns the steps that an instance compares with their children because of the last command.
fn compared(family: &mut Family, command: impl FnOnce(&mut Bench)) -> Vec<StepIndex> {
    family.parent.draft.changed.clear();
    command(&mut family.parent);
    let draft = &family.parent.draft;
    draft.task.steps_to_compare(&draft.changed)
}

#[test]
fn the_task_of_a_loser_that_runs_is_undone_and_nothing_is_left_to_be_undone() {
    let mut family = competing(false);
    let task = family.parent.step("task");
    let marked = compared(&mut family, |parent| {
        parent.process("call");
    });
    assert_eq!(marked, [task]);
    family.agree();
    let child = &family.children[0].2;
    assert_eq!(child.task.status(), TaskStatus::Undoing);
    assert_eq!(run_child(&mut family), TaskStatus::Undone);
    family.agree();
    assert_eq!(family.parent.status("task"), StepStatus::Cancelled);
    assert_eq!(family.parent.status("task.revert"), StepStatus::Skipped);
    family.parent.process("join");
    assert_eq!(family.parent.task(), TaskStatus::Processed);
}

#[test]
fn the_task_of_a_loser_that_has_ended_before_its_step_knows_is_undone() {
    let mut family = competing(false);
    assert_eq!(run_child(&mut family), TaskStatus::Processed);
    family.parent.process("call");
    // The step learns of the end of its task when the race is over.
    let task = family.parent.step("task");
    let marked = compared(&mut family, |_| {});
    assert!(marked.is_empty());
    family.agree();
    assert_eq!(family.parent.status("task"), StepStatus::Processed);
    assert_eq!(family.parent.status("task.revert"), StepStatus::Processing);
    let draft = &family.parent.draft;
    assert_eq!(draft.task.steps_to_compare(&draft.changed), [task]);
    let revert = family.parent.step("task.revert");
    assert_eq!(
        draft.task.blocked_by(revert, family.parent.now),
        Some(Blocked::Child {
            task: Some(family.children[0].2.task.id().0),
            state: None
        })
    );
    family.parent.process("join");
    assert_eq!(family.parent.task(), TaskStatus::Processing);
    assert_eq!(run_child(&mut family), TaskStatus::Undone);
    family.agree();
    assert_eq!(family.parent.status("task"), StepStatus::Undone);
    assert_eq!(family.parent.status("task.revert"), StepStatus::Processed);
    assert_eq!(family.parent.task(), TaskStatus::Processed);
    changes_are_told(&family.parent.draft).unwrap();
}

#[test]
fn the_task_of_a_loser_that_is_past_its_pivot_needs_an_operator() {
    let mut family = competing(true);
    assert_eq!(run_child(&mut family), TaskStatus::Processed);
    family.parent.process("call");
    family.agree();
    assert_eq!(family.parent.status("task.revert"), StepStatus::Error);
    let step = family.parent.step("task.revert");
    let skip = Command::Skip {
        step,
        output: None,
        reason: None,
    };
    family.parent.apply(skip).unwrap();
    family.parent.process("join");
    assert_eq!(family.parent.task(), TaskStatus::Processed);
    assert_eq!(family.children[0].2.task.status(), TaskStatus::Processed);
}

#[test]
fn an_undo_of_the_parent_undoes_the_task_of_a_loser_once() {
    let mut family = competing(false);
    assert_eq!(run_child(&mut family), TaskStatus::Processed);
    family.parent.process("call");
    family.agree();
    assert_eq!(family.parent.status("task.revert"), StepStatus::Processing);
    family.parent.apply(Command::Undo { reason: None }).unwrap();
    family.agree();
    assert_eq!(run_child(&mut family), TaskStatus::Undone);
    family.finish();
    assert_eq!(family.parent.status("task"), StepStatus::Undone);
    assert_eq!(family.parent.task(), TaskStatus::Undone);
}
