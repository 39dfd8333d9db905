//! Tasks that an operator has paused: no policy begins their undo, and their `start_at` does not begin them.

use super::*;
use crate::view::blocked::Blocked;

/// Each of these has the policy of a step ask for an undo while the task is paused.
fn failures() -> Vec<(&'static str, Value, Policies)> {
    let signal = json!({ "name": "x", "signal": { "within": "2s", "on_timeout": "undo" } });
    let wait = json!({ "name": "x", "wait": { "for": "2s" } });
    let long = json!({ "name": "x", "wait": { "for": "10h" } });
    let failing =
        json!({ "name": "y", "agent": "x", "when": "input.missing > 1", "on_permanent": "undo" });
    let next = json!({ "name": "y", "agent": "x" });
    let undo = json!({ "request": { "path": "/undo" } });
    let done = json!({ "name": "done", "agent": "x", "undo": undo });
    let refused = json!({ "name": "x", "agent": "x", "on_permanent": "undo" });
    let exhausted = json!({ "name": "x", "agent": "x", "max_failures": 0, "on_exhausted": "undo" });
    let list = json!({ "name": "x", "agent": "x", "for_each": [1, 2], "on_item_error": "undo" });
    let pivot = json!({ "name": "x", "agent": "x", "pivot": true, "on_permanent": "undo" });
    let plain = Policies::default;
    let mut late = Policies::default();
    late.on_deadline = Some(crate::definition::Policy::Undo);
    vec![
        ("signal", json!([signal]), plain()),
        ("signal before a step", json!([signal, next]), plain()),
        (
            "signal after an effect",
            json!([done, signal, next]),
            plain(),
        ),
        ("condition after a wait", json!([wait, failing]), plain()),
        (
            "condition after a wait and an effect",
            json!([done, wait, failing]),
            plain(),
        ),
        ("refusal", json!([done, refused, next]), plain()),
        ("only refusal", json!([refused]), plain()),
        ("exhausted", json!([done, exhausted]), plain()),
        ("item", json!([done, list]), plain()),
        ("refused pivot", json!([done, pivot]), plain()),
        ("deadline", json!([done, long]), late),
    ]
}

/// Has the task reach the moment at which it is paused: its calls run, its waits have begun.
fn paused(steps: &Value, policies: &Policies) -> Bench {
    let parsed = parse_steps(
        &Payload::from_value(steps),
        "/steps",
        policies,
        &Limits::default(),
        &Accepted,
    );
    let definition = Arc::new(parsed.unwrap_or_else(|faults| panic!("{faults:?}")));
    let within = policies.on_deadline.map(|_| Span::from_secs(1));
    let plain = Arc::into_inner(details(steps, within)).unwrap();
    let now = Timestamp::from_millis(1_000_000);
    let details = Details {
        definition,
        workflow: Some(WorkflowRef {
            name: WorkflowName::new("order"),
            version: 1,
        }),
        ..plain
    };
    let mut bench = Bench {
        draft: Draft::submit(Arc::new(details), now),
        now,
        by: Actor::operator("test"),
    };
    if bench.draft.task.find("done").is_some() {
        bench.process("done");
    }
    for name in ["x", "x[0]", "x[1]"] {
        if bench.draft.task.find(name).is_some() {
            let _ = bench.claim(name);
        }
    }
    bench.apply(Command::Pause { reason: None }).unwrap();
    bench
}

/// Time goes on, and services refuse.
fn fail(bench: &mut Bench) {
    bench.later(Span::from_secs(3600));
    if bench
        .draft
        .task
        .overdue_at()
        .is_some_and(|due| due <= bench.now)
    {
        bench.apply(Command::Overdue).unwrap();
    }
    for step in bench.draft.task.indexes().collect::<Vec<_>>() {
        let record = bench.draft.task.step(step);
        if !matches!(record.state, StepState::Processing { .. }) {
            continue;
        }
        let attempt = record.attempt;
        let definition = bench.draft.task.definition(step);
        let is_refused = definition.is_call() && definition.max_failures > 0;
        let command = match is_refused {
            true => Command::Reply {
                step,
                attempt,
                outcome: refusal(400),
            },
            false => Command::Expire {
                step,
                attempt,
                cause: Expiry::CompleteBy,
            },
        };
        let _ = bench.apply(command);
    }
}

#[test]
fn no_policy_undoes_a_paused_task_before_it_is_resumed() {
    for (failure, steps, policies) in failures() {
        let mut bench = paused(&steps, &policies);
        fail(&mut bench);
        let kinds = bench.events().join(" ");
        assert_eq!(bench.task(), TaskStatus::Paused, "{failure}: {kinds}");
        assert!(!kinds.contains("undo"), "{failure}: {kinds}");
        let now = bench.now;
        let task = &bench.draft.task;
        assert!(task.overdue_at().is_none_or(|due| due > now), "{failure}");
        bench.apply(Command::Resume { reason: None }).unwrap();
        let has_effect = bench.draft.task.find("done").is_some();
        let expected = match has_effect {
            true => TaskStatus::Undoing,
            false => TaskStatus::Undone,
        };
        let kinds = bench.events().join(" ");
        assert_eq!(bench.task(), expected, "{failure}: {kinds}");
        let undo = bench.draft.task.undo.as_ref().unwrap();
        let cause = undo.error.as_ref().unwrap();
        assert!(!cause.undo_on_resume, "{failure}");
        if has_effect {
            bench.process("done.undo");
        }
        assert_eq!(bench.task(), TaskStatus::Undone, "{failure}");
        for kind in ["task.paused", "task.resumed", "task.undoing", "task.undone"] {
            let told = bench.events();
            let count = told.iter().filter(|told| **told == kind).count();
            assert_eq!(count, 1, "{failure}: {kind} of {told:?}");
        }
        changes_are_told(&bench.draft).unwrap();
    }
}

#[test]
fn while_an_older_instance_is_there_the_undo_of_a_paused_task_begins_at_once() {
    let mut failures = failures();
    // Nothing on record says that a deadline has passed: an older instance looks at the clock too.
    failures.retain(|(failure, ..)| *failure != "deadline");
    for (failure, steps, policies) in failures {
        let mut bench = paused(&steps, &policies);
        bench.draft = bench.draft.undoing_paused_tasks(true);
        fail(&mut bench);
        assert!(bench.draft.task.undo.is_some(), "{failure}");
        assert_eq!(bench.draft.task.faults_that_undo_on_resume().count(), 0);
        changes_are_told(&bench.draft).unwrap();
    }
}

/// The deadline passes during the pause, after an operator has resolved a pivot.
#[test]
fn the_deadline_of_a_paused_task_whose_pivot_was_passed_is_looked_at_when_it_is_resumed() {
    let steps = json!([
        { "name": "pivot", "agent": "x", "after": [], "pivot": true },
        { "name": "x", "wait": { "for": "10h" }, "after": [] },
    ]);
    let mut policies = Policies::default();
    policies.on_deadline = Some(crate::definition::Policy::Undo);
    let mut bench = paused(&steps, &policies);
    let resolve = Command::Resolve {
        step: bench.step("pivot"),
        output: Payload::from_value(&json!({})),
        reason: None,
    };
    bench.apply(resolve).unwrap();
    bench.later(Span::from_secs(3600));
    assert!(bench.draft.task.overdue_at().is_none());
    bench.apply(Command::Resume { reason: None }).unwrap();
    assert_eq!(bench.task(), TaskStatus::Error);
    assert_eq!(bench.record("x").status(), StepStatus::Error);
    let blocked = |bench: &Bench| bench.draft.task.blocked_by(bench.step("x"), bench.now);
    assert_eq!(blocked(&bench), Some(Blocked::Operator));
    bench.apply(Command::Cancel { reason: None }).unwrap();
    assert_eq!(blocked(&bench), None);
    changes_are_told(&bench.draft).unwrap();
}

#[test]
fn a_pause_holds_the_deadline_whatever_its_policy_is() {
    let steps = json!([
        { "name": "x", "wait": { "for": "10h" }, "after": [] },
        { "name": "y", "agent": "x", "after": [] },
    ]);
    let mut policies = Policies::default();
    policies.on_deadline = Some(crate::definition::Policy::Error);
    let mut bench = paused(&steps, &policies);
    bench.later(Span::from_secs(3600));
    assert_eq!(bench.draft.task.overdue_at(), None);
    // An earlier version of Provost has recorded the time.
    bench.apply(Command::Overdue).unwrap();
    assert_eq!(bench.task(), TaskStatus::Paused);
    bench.apply(Command::Resume { reason: None }).unwrap();
    assert_eq!(bench.task(), TaskStatus::Error);
    for step in ["x", "y"] {
        assert_eq!(bench.status(step), StepStatus::Error);
    }
    changes_are_told(&bench.draft).unwrap();
}

#[test]
fn a_task_in_error_that_is_paused_is_said_to_be_paused_once_in_each_way() {
    let mut bench = Bench::new(json!([{ "name": "x", "agent": "x" }]));
    bench.claim("x").unwrap();
    bench.reply("x", Attempt(1), refusal(400)).unwrap();
    assert_eq!(bench.task(), TaskStatus::Error);
    bench.apply(Command::Pause { reason: None }).unwrap();
    assert_eq!(bench.task(), TaskStatus::Error);
    let retry = Command::Retry {
        step: None,
        body: None,
        reason: None,
    };
    bench.apply(retry).unwrap();
    assert_eq!(bench.task(), TaskStatus::Paused);
    let of_pause = |bench: &Bench| -> Vec<String> {
        let told = bench
            .draft
            .events
            .iter()
            .map(|event| event.kind.to_string());
        told.filter(|kind| kind.starts_with("task.pause")).collect()
    };
    assert_eq!(of_pause(&bench), ["task.pause_began", "task.paused"]);
    changes_are_told(&bench.draft).unwrap();
}

#[test]
fn a_move_to_another_version_leaves_what_was_to_be_undone_to_an_operator() {
    let (_, steps, policies) = failures().swap_remove(5);
    let mut bench = paused(&steps, &policies);
    fail(&mut bench);
    assert_eq!(bench.draft.task.faults_that_undo_on_resume().count(), 1);
    let mut corrected = steps.clone();
    corrected[1].as_object_mut().unwrap().remove("on_permanent");
    let to = Arc::new(bench.version(&corrected, 2));
    bench.apply(Command::Migrate { to, reason: None }).unwrap();
    assert_eq!(bench.draft.task.faults_that_undo_on_resume().count(), 0);
    let is_told = bench.draft.alerts.iter();
    assert!(
        is_told
            .clone()
            .any(|alert| matches!(alert, AlertChange::Raise { .. }))
    );
    bench.apply(Command::Resume { reason: None }).unwrap();
    assert_eq!(bench.task(), TaskStatus::Error);
    assert!(bench.draft.task.undo.is_none());
    changes_are_told(&bench.draft).unwrap();
}

#[test]
fn a_pivot_that_is_passed_before_the_resumption_leaves_the_task_in_error() {
    let steps = json!([
        { "name": "x", "agent": "x", "after": [], "on_permanent": "undo" },
        { "name": "pivot", "agent": "x", "after": [], "pivot": true },
    ]);
    let mut bench = paused(&steps, &Policies::default());
    fail(&mut bench);
    assert_eq!(bench.draft.task.faults_that_undo_on_resume().count(), 1);
    let resolve = Command::Resolve {
        step: bench.step("pivot"),
        output: Payload::from_value(&json!({})),
        reason: None,
    };
    bench.apply(resolve).unwrap();
    bench.apply(Command::Resume { reason: None }).unwrap();
    assert_eq!(bench.task(), TaskStatus::Error);
    assert!(bench.draft.task.undo.is_none());
    assert_eq!(bench.draft.task.faults_that_undo_on_resume().count(), 0);
    assert!(bench.draft.alerts.iter().any(|alert| matches!(
        alert,
        AlertChange::Raise { message, .. } if message.contains("can no longer be undone")
    )));
    changes_are_told(&bench.draft).unwrap();
}

#[test]
fn an_operator_may_retry_skip_undo_or_cancel_what_is_to_be_undone_on_the_resumption() {
    let (_, steps, policies) = failures().swap_remove(5);
    for (command, expected) in [
        ("retry", TaskStatus::Paused),
        ("skip", TaskStatus::Paused),
        ("undo", TaskStatus::Undoing),
        ("cancel", TaskStatus::Cancelled),
    ] {
        let mut bench = paused(&steps, &policies);
        fail(&mut bench);
        let (reason, output, body) = (None, None, None);
        let step = bench.step("x");
        let command = match command {
            "retry" => Command::Retry {
                step: Some(step),
                body,
                reason,
            },
            "skip" => Command::Skip {
                step,
                output,
                reason,
            },
            "undo" => Command::Undo { reason },
            _ => Command::Cancel { reason },
        };
        bench.apply(command).unwrap();
        assert_eq!(bench.task(), expected);
        assert_eq!(bench.draft.task.faults_that_undo_on_resume().count(), 0);
        if expected == TaskStatus::Paused {
            bench.apply(Command::Resume { reason: None }).unwrap();
            assert_eq!(bench.task(), TaskStatus::Processing);
        }
        changes_are_told(&bench.draft).unwrap();
    }
}

#[test]
fn a_paused_task_does_not_start_by_itself_whatever_its_first_step_is() {
    for (first, ends) in [
        (json!({ "agent": "x" }), None),
        (
            json!({ "wait": { "for": "0s" } }),
            Some(TaskStatus::Processed),
        ),
        (json!({ "wait": { "for": "1h" } }), None),
        (json!({ "signal": { "within": "1h" } }), None),
        (json!({ "agent": "x", "for_each": [1, 2] }), None),
        (
            json!({ "agent": "x", "for_each": [] }),
            Some(TaskStatus::Processed),
        ),
        (
            json!({ "agent": "x", "when": "false" }),
            Some(TaskStatus::Processed),
        ),
        (
            json!({ "agent": "x", "when": "input.missing > 1" }),
            Some(TaskStatus::Error),
        ),
        (
            json!({ "agent": "x", "when": "input.missing > 1", "on_permanent": "undo" }),
            Some(TaskStatus::Undone),
        ),
    ] {
        let mut step = first.clone();
        step["name"] = json!("first");
        let now = Timestamp::from_millis(1_000_000);
        let start = now + Span::from_secs(60);
        let plain = Arc::into_inner(details(&json!([step]), None)).unwrap();
        let start_at = Some(start);
        let mut bench = Bench {
            draft: Draft::submit(Arc::new(Details { start_at, ..plain }), now),
            now,
            by: Actor::operator("test"),
        };
        bench.apply(Command::Pause { reason: None }).unwrap();
        assert_eq!(bench.draft.task.overdue_at(), None, "{first}");
        bench.later(Span::from_secs(61));
        bench.apply(Command::Overdue).unwrap();
        assert_eq!(bench.task(), TaskStatus::Paused, "{first}");
        assert_eq!(bench.events(), ["task.accepted", "task.paused"], "{first}");
        bench.apply(Command::Resume { reason: None }).unwrap();
        assert_eq!(bench.draft.task.start_at, None, "{first}");
        assert_eq!(bench.events()[2..4], ["task.resumed", "task.started"]);
        if let Some(end) = ends {
            assert_eq!(bench.task(), end, "{first}");
        }
        changes_are_told(&bench.draft).unwrap();
    }
}
