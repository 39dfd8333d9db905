//! The worlds that are explored. Each allows only the trouble that its rules are about: what is allowed everywhere would
//! leave no world deep enough.

use serde_json::{Value, json};

use crate::{
    action::{Trouble, Troubles},
    world::SmallWorld,
};

/// Returns all worlds.
pub fn worlds() -> Vec<SmallWorld> {
    vec![
        steps(),
        undo(),
        probe(),
        race(),
        lane(),
        timeout(),
        limit(),
        child(),
        rival(),
        list(),
        enough(),
        signal(),
        later(),
        deadline(),
        rerun(),
        repeat(),
        pivot(),
        finally(),
        milestone(),
        block(),
    ]
}

/// Returns a step that fails after its second failure, and is undone by a step that does.
fn call(name: &str, more: Value) -> Value {
    let mut step =
        json!({ "name": name, "agent": "x", "max_failures": 1, "complete_within": "10s" });
    extend(&mut step, more);
    step
}

fn undoable(name: &str, more: Value) -> Value {
    let mut step = call(name, more);
    step["undo"] =
        json!({ "request": { "path": "/undo" }, "max_failures": 1, "complete_within": "10s" });
    step
}

fn extend(step: &mut Value, more: Value) {
    if let (Some(step), Value::Object(more)) = (step.as_object_mut(), more) {
        step.extend(more);
    }
}

fn steps() -> SmallWorld {
    let workflow = json!({ "steps": [call("a", json!({})), call("b", json!({}))] });
    let troubles = Troubles::none()
        .with(Trouble::Crash, 1)
        .with(Trouble::LostMessage, 1)
        .with(Trouble::Refusal, 1)
        .with(Trouble::UnseenClaim, 1)
        .with(Trouble::Command, 2);
    SmallWorld::new(
        "steps",
        "two steps, and instances whose copies of the record are stale",
        &workflow,
    )
    .with_troubles(troubles)
    .with_caches()
}

fn undo() -> SmallWorld {
    let workflow = json!({ "steps": [
        undoable("a", json!({})),
        undoable("b", json!({ "on_permanent": "undo", "on_exhausted": "undo", "on_undo": "drop" })),
    ] });
    let troubles = Troubles::none()
        .with(Trouble::Crash, 1)
        .with(Trouble::WrongGuess, 1)
        .with(Trouble::LostMessage, 1)
        .with(Trouble::Refusal, 2)
        .with(Trouble::Command, 2);
    SmallWorld::new(
        "undo",
        "two steps that are undone, one of which is dropped by an undo",
        &workflow,
    )
    .with_troubles(troubles)
}

fn probe() -> SmallWorld {
    let probe = json!({ "request": { "path": "/probe" }, "complete_within": "5s" });
    let workflow = json!({ "steps": [
        undoable("a", json!({ "probe": probe, "max_failures": 2 })),
        undoable("b", json!({ "probe": probe, "on_permanent": "undo", "on_exhausted": "undo" })),
    ] });
    let troubles = Troubles::none()
        .with(Trouble::Crash, 1)
        .with(Trouble::LostMessage, 2)
        .with(Trouble::Refusal, 1)
        .with(Trouble::Unavailable, 1)
        .with(Trouble::Command, 1);
    SmallWorld::new(
        "probe",
        "two steps whose outcome is probed before they are repeated or undone",
        &workflow,
    )
    .with_troubles(troubles)
}

fn race() -> SmallWorld {
    let workflow = json!({ "steps": [
        undoable("a", json!({ "after": [], "max_failures": 0, "on_permanent": "skip" })),
        undoable("b", json!({ "after": [], "max_failures": 0, "on_exhausted": "skip" })),
        undoable("c", json!({ "after": { "any": 1, "of": ["a", "b"], "rest": "undo" }, "max_failures": 0, "on_permanent": "undo" })),
    ] });
    let troubles = Troubles::none()
        .with(Trouble::Crash, 1)
        .with(Trouble::LostMessage, 1)
        .with(Trouble::Refusal, 2)
        .with(Trouble::Command, 1);
    SmallWorld::new(
        "race",
        "the first of two steps wins, and the other one is undone",
        &workflow,
    )
    .with_troubles(troubles)
}

fn lane() -> SmallWorld {
    let workflow = json!({ "steps": [
        undoable("a", json!({ "after": [], "max_failures": 0 })),
        undoable("b", json!({ "after": [], "max_failures": 0 })),
        undoable("d", json!({ "after": ["b"], "max_failures": 0, "on_permanent": "skip" })),
        call("c", json!({ "after": { "any": 1, "of": ["a", "d"], "rest": "undo" }, "max_failures": 0, "on_permanent": "undo" })),
    ] });
    let troubles = Troubles::none()
        .with(Trouble::WrongGuess, 1)
        .with(Trouble::LostMessage, 1)
        .with(Trouble::Refusal, 2)
        .with(Trouble::Command, 2);
    SmallWorld::new(
        "lane",
        "a step races with two steps, one after the other, and the loser is undone",
        &workflow,
    )
    .with_troubles(troubles)
}

fn timeout() -> SmallWorld {
    let workflow = json!({ "steps": [
        undoable("a", json!({ "after": [], "max_failures": 0, "on_permanent": "skip" })),
        { "name": "t", "after": [], "wait": { "for": "5s" } },
        undoable("c", json!({ "after": { "any": 1, "of": ["a", "t"], "rest": "cancel" }, "on_permanent": "undo" })),
    ] });
    let troubles = Troubles::none()
        .with(Trouble::Crash, 1)
        .with(Trouble::WrongGuess, 1)
        .with(Trouble::LostMessage, 1)
        .with(Trouble::Refusal, 2)
        .with(Trouble::Command, 2);
    SmallWorld::new(
        "timeout",
        "a step races with a time, and is cancelled if it loses",
        &workflow,
    )
    .with_troubles(troubles)
}

fn limit() -> SmallWorld {
    let workflow = json!({
        "limits": [{ "by": "{{ task.key }}", "max_running": 1 }],
        "steps": [undoable("a", json!({})), call("b", json!({ "on_permanent": "undo" }))],
    });
    let troubles = Troubles::none()
        .with(Trouble::Crash, 1)
        .with(Trouble::LostMessage, 1)
        .with(Trouble::Refusal, 1)
        .with(Trouble::Command, 2);
    SmallWorld::new(
        "limit",
        "two tasks of which one may run at a time",
        &workflow,
    )
    .with_second_task(&workflow)
    .with_troubles(troubles)
}

fn child() -> SmallWorld {
    let workflow = json!({ "steps": [
        { "name": "a", "task": { "workflow": "child" }, "on_permanent": "undo" },
        undoable("b", json!({ "on_permanent": "undo" })),
    ] });
    let child = json!({ "steps": [
        undoable("c", json!({})),
        undoable("d", json!({ "on_permanent": "undo" })),
    ] });
    let troubles = Troubles::none()
        .with(Trouble::Crash, 1)
        .with(Trouble::LostMessage, 1)
        .with(Trouble::Refusal, 2)
        .with(Trouble::Command, 2);
    SmallWorld::new("child", "a step that has a task of its own", &workflow)
        .with_child(&child)
        .with_troubles(troubles)
}

fn rival() -> SmallWorld {
    let workflow = json!({ "steps": [
        undoable("a", json!({ "after": [], "max_failures": 0, "on_permanent": "skip" })),
        { "name": "b", "after": [], "task": { "workflow": "child" }, "on_permanent": "skip" },
        call("c", json!({ "after": { "any": 1, "of": ["a", "b"], "rest": "undo" }, "max_failures": 0, "on_permanent": "undo" })),
    ] });
    let child =
        json!({ "steps": [undoable("d", json!({ "max_failures": 0, "on_permanent": "undo" }))] });
    let troubles = Troubles::none()
        .with(Trouble::Crash, 1)
        .with(Trouble::LostMessage, 1)
        .with(Trouble::Refusal, 2)
        .with(Trouble::Command, 2);
    SmallWorld::new(
        "rival",
        "a step races with a task, and what the loser did is undone",
        &workflow,
    )
    .with_child(&child)
    .with_troubles(troubles)
}

fn list() -> SmallWorld {
    let workflow = json!({ "steps": [
        undoable("a", json!({ "for_each": [1, 2], "max_parallel": 1 })),
        undoable("b", json!({ "on_permanent": "undo" })),
    ] });
    let troubles = Troubles::none()
        .with(Trouble::Crash, 1)
        .with(Trouble::LostMessage, 1)
        .with(Trouble::Refusal, 2)
        .with(Trouble::Command, 2);
    SmallWorld::new(
        "list",
        "a step that is run for each item of a list, and one after it",
        &workflow,
    )
    .with_troubles(troubles)
}

fn enough() -> SmallWorld {
    let workflow = json!({ "steps": [
        undoable("a", json!({ "for_each": [1, 2], "max_parallel": 2, "enough": 1, "max_failures": 0 })),
        undoable("b", json!({ "max_failures": 0, "on_permanent": "undo" })),
    ] });
    let troubles = Troubles::none()
        .with(Trouble::WrongGuess, 1)
        .with(Trouble::LostMessage, 1)
        .with(Trouble::Refusal, 2)
        .with(Trouble::Command, 2);
    SmallWorld::new(
        "enough",
        "a list of which one item must succeed, and a step after it",
        &workflow,
    )
    .with_troubles(troubles)
}

fn signal() -> SmallWorld {
    let workflow = json!({ "steps": [
        undoable("a", json!({ "max_failures": 0 })),
        { "name": "s", "signal": { "within": "10s", "on_timeout": "undo" } },
        undoable("b", json!({})),
    ] });
    let troubles = Troubles::none()
        .with(Trouble::Crash, 1)
        .with(Trouble::LostMessage, 1)
        .with(Trouble::Refusal, 1)
        .with(Trouble::Signal, 2)
        .with(Trouble::Command, 2);
    SmallWorld::new(
        "signal",
        "a step that awaits a signal between two others",
        &workflow,
    )
    .with_troubles(troubles)
    .with_caches()
}

fn later() -> SmallWorld {
    let workflow = json!({ "steps": [
        undoable("a", json!({ "reply": "callback", "on_undo": "drop" })),
        undoable("b", json!({ "reply": "callback", "on_exhausted": "undo" })),
    ] });
    let troubles = Troubles::none()
        .with(Trouble::Crash, 1)
        .with(Trouble::LostMessage, 1)
        .with(Trouble::Repetition, 1)
        .with(Trouble::Command, 2);
    SmallWorld::new(
        "later",
        "services that reply at once or later, once or twice",
        &workflow,
    )
    .with_troubles(troubles)
    .with_promises()
}

fn deadline() -> SmallWorld {
    let workflow = json!({
        "complete_within": 15,
        "on_deadline": "undo",
        "steps": [
            undoable("a", json!({ "on_undo": "drop" })),
            undoable("b", json!({ "max_failures": 2 })),
        ],
    });
    let troubles = Troubles::none()
        .with(Trouble::Crash, 1)
        .with(Trouble::WrongGuess, 1)
        .with(Trouble::LostMessage, 2)
        .with(Trouble::Unavailable, 1)
        .with(Trouble::Command, 2);
    SmallWorld::new(
        "deadline",
        "a task that is undone once its time is over",
        &workflow,
    )
    .with_troubles(troubles)
}

fn rerun() -> SmallWorld {
    let workflow = json!({ "steps": [
        undoable("a", json!({})),
        undoable("b", json!({ "on_permanent": "undo" })),
    ] });
    let troubles = Troubles::none()
        .with(Trouble::Crash, 1)
        .with(Trouble::LostMessage, 1)
        .with(Trouble::Refusal, 1)
        .with(Trouble::Command, 3);
    SmallWorld::new(
        "rerun",
        "steps that an operator runs again, and undoes",
        &workflow,
    )
    .with_troubles(troubles)
}

fn repeat() -> SmallWorld {
    let workflow = json!({ "steps": [
        undoable("a", json!({ "repeat": { "until": "index >= 1", "at_most": 2, "every": "2s", "on_exhausted": "undo" } })),
        undoable("b", json!({ "on_permanent": "undo" })),
    ] });
    let troubles = Troubles::none()
        .with(Trouble::Crash, 1)
        .with(Trouble::LostMessage, 1)
        .with(Trouble::Refusal, 2)
        .with(Trouble::Command, 2);
    SmallWorld::new(
        "repeat",
        "a step that is repeated, and one after it",
        &workflow,
    )
    .with_troubles(troubles)
}

fn pivot() -> SmallWorld {
    let workflow = json!({
        "complete_within": 25,
        "on_deadline": "undo",
        "steps": [
            undoable("a", json!({ "after": [], "max_failures": 0 })),
            call("p", json!({ "after": [], "pivot": true, "probe": { "request": { "path": "/probe" }, "complete_within": "5s" } })),
            undoable("b", json!({ "after": ["a"], "on_permanent": "undo", "on_exhausted": { "extend": "5s", "times": 1, "then": "undo" } })),
        ],
    });
    let troubles = Troubles::none()
        .with(Trouble::Crash, 1)
        .with(Trouble::WrongGuess, 1)
        .with(Trouble::LostMessage, 2)
        .with(Trouble::Unavailable, 1)
        .with(Trouble::Refusal, 2)
        .with(Trouble::Command, 2);
    SmallWorld::new(
        "pivot",
        "a point of no return beside steps that are undone",
        &workflow,
    )
    .with_troubles(troubles)
}

fn finally() -> SmallWorld {
    let workflow = json!({
        "steps": [
            undoable("a", json!({})),
            call("b", json!({ "on_permanent": "undo", "on_undo": "drop" })),
        ],
        "finally": [call("f", json!({ "max_failures": 0 }))],
    });
    let troubles = Troubles::none()
        .with(Trouble::Crash, 1)
        .with(Trouble::LostMessage, 1)
        .with(Trouble::Refusal, 2)
        .with(Trouble::Command, 3);
    SmallWorld::new(
        "finally",
        "a step that runs whatever the end of two others is",
        &workflow,
    )
    .with_troubles(troubles)
}

fn milestone() -> SmallWorld {
    let workflow = json!({ "steps": [
        undoable("a", json!({ "after": [], "max_failures": 0 })),
        undoable("b", json!({ "after": [], "while": "steps.a.state != 'processed'" })),
        call("c", json!({ "after": ["a", "b"], "on_permanent": "undo" })),
    ] });
    let troubles = Troubles::none()
        .with(Trouble::Crash, 1)
        .with(Trouble::LostMessage, 1)
        .with(Trouble::Refusal, 1)
        .with(Trouble::Command, 2);
    SmallWorld::new(
        "milestone",
        "a step that runs only until another one has succeeded",
        &workflow,
    )
    .with_troubles(troubles)
}

fn block() -> SmallWorld {
    let workflow = json!({ "steps": [
        undoable("a", json!({ "on_exhausted": "skip" })),
        { "name": "b", "switch": [
            { "when": "steps.a is skipped", "steps": [undoable("c", json!({}))] },
            { "else": [undoable("d", json!({ "on_permanent": "undo" }))] },
        ] },
    ] });
    let troubles = Troubles::none()
        .with(Trouble::Crash, 1)
        .with(Trouble::LostMessage, 2)
        .with(Trouble::Refusal, 1)
        .with(Trouble::Command, 2);
    SmallWorld::new(
        "block",
        "a step, and one of two in a block of branches behind it",
        &workflow,
    )
    .with_troubles(troubles)
}
