//! The steps that run when all others have ended.

use super::*;
use crate::{
    task::{aggregate::TaskState, child::child_actions},
    values::fields::FieldFault,
    view::blocked::Blocked,
};

fn parse(steps: &Value, policies: &Value) -> Result<Definition, Vec<FieldFault>> {
    let policies = Policies::parse(&policies.to_string()).unwrap();
    parse_steps(
        &Payload::from_value(steps),
        "/steps",
        &policies,
        &Limits::default(),
        &Accepted,
    )
}

fn bench_of(steps: &Value, policies: &Value, complete_within: Option<Span>) -> Bench {
    let definition = Arc::new(parse(steps, policies).unwrap_or_else(|faults| panic!("{faults:?}")));
    let details = Details {
        definition,
        ..Arc::into_inner(details(steps, complete_within)).unwrap()
    };
    let now = Timestamp::from_millis(1_000_000);
    Bench {
        draft: Draft::submit(Arc::new(details), now),
        now,
        by: Actor::operator("test"),
    }
}

/// A step that can be undone, one that follows it, and two that run when both have ended.
fn bench() -> Bench {
    let steps = json!([
        { "name": "charge", "agent": "x", "undo": { "request": { "method": "DELETE" } } },
        { "name": "ship", "agent": "x", "on_permanent": "undo" },
    ]);
    let finally = json!([
        { "name": "unlock", "agent": "x", "request": {
            "body": { "ends": "{{ task.state }}", "why": "{{ task.error.message if task.error else none }}", "ship": "{{ steps.ship.state }}" } } },
        { "name": "tell", "agent": "x" },
    ]);
    bench_of(&steps, &json!({ "finally": finally }), None)
}

fn sent(bench: &mut Bench, name: &str) -> Value {
    let step = bench.step(name);
    let by = Claimant::Instance(InstanceId::new("node-1"));
    let CommandOutput::Call(call) = bench.apply(Command::Claim { step, by }).unwrap() else {
        panic!("no call");
    };
    serde_json::from_str(&call.body.unwrap()).unwrap()
}

fn finish(bench: &mut Bench, name: &str) {
    let attempt = bench.record(name).attempt;
    bench.reply(name, attempt, success(json!(1))).unwrap();
}

#[test]
fn they_run_after_the_last_step_and_the_task_ends_after_them() {
    let mut bench = bench();
    bench.process("charge");
    assert_eq!(bench.status("unlock"), StepStatus::Waiting);
    bench.process("ship");
    assert_eq!(bench.task(), TaskStatus::Processing);
    assert_eq!(
        bench.draft.ready,
        [
            bench.step("charge"),
            bench.step("ship"),
            bench.step("unlock")
        ]
    );
    let body = sent(&mut bench, "unlock");
    assert_eq!(
        body,
        json!({ "ends": "processed", "why": null, "ship": "processed" })
    );
    finish(&mut bench, "unlock");
    assert_eq!(bench.task(), TaskStatus::Processing);
    bench.process("tell");
    assert_eq!(bench.task(), TaskStatus::Processed);
    changes_are_told(&bench.draft).unwrap();
}

#[test]
fn they_run_after_the_undo_and_are_not_undone() {
    let mut bench = bench();
    bench.process("charge");
    let attempt = bench.claim("ship").unwrap();
    bench.reply("ship", attempt, refusal(402)).unwrap();
    assert_eq!(bench.task(), TaskStatus::Undoing);
    assert_eq!(bench.status("unlock"), StepStatus::Waiting);
    let blocked = bench.draft.task.blocked_by(bench.step("unlock"), bench.now);
    let Some(Blocked::Steps { steps, .. }) = blocked else {
        panic!("{blocked:?}");
    };
    assert_eq!(
        steps,
        [bench
            .draft
            .task
            .definition(bench.step("charge.undo"))
            .name
            .clone()]
    );
    bench.process("charge.undo");
    assert_eq!(bench.task(), TaskStatus::Undoing);
    let body = sent(&mut bench, "unlock");
    assert_eq!(
        body,
        json!({ "ends": "undone", "why": "the service refused with 402", "ship": "error" })
    );
    finish(&mut bench, "unlock");
    bench.process("tell");
    assert_eq!(bench.task(), TaskStatus::Undone);
    changes_are_told(&bench.draft).unwrap();
}

#[test]
fn a_cancelled_task_is_cancelled_once_they_have_ended() {
    let mut bench = bench();
    bench.process("charge");
    bench
        .apply(Command::Cancel {
            reason: Some("enough".to_owned()),
        })
        .unwrap();
    assert_eq!(bench.task(), TaskStatus::Undoing);
    assert_eq!(bench.status("ship"), StepStatus::Cancelled);
    assert_eq!(bench.status("charge"), StepStatus::Processed);
    let body = sent(&mut bench, "unlock");
    assert_eq!(body["ends"], "cancelled");
    finish(&mut bench, "unlock");
    bench.process("tell");
    assert_eq!(bench.task(), TaskStatus::Cancelled);
    assert_eq!(bench.status("charge.undo"), StepStatus::Cancelled);
    changes_are_told(&bench.draft).unwrap();
}

#[test]
fn a_second_cancellation_changes_nothing() {
    let mut bench = bench();
    bench.process("charge");
    bench.apply(Command::Cancel { reason: None }).unwrap();
    let attempt = bench.claim("unlock").unwrap();
    let again = bench.apply(Command::Cancel { reason: None }).unwrap();
    assert!(matches!(again, CommandOutput::Unchanged), "{again:?}");
    bench.reply("unlock", attempt, success(json!(1))).unwrap();
    bench.process("tell");
    assert_eq!(bench.task(), TaskStatus::Cancelled);
    changes_are_told(&bench.draft).unwrap();
}

#[test]
fn a_task_that_has_ended_but_for_them_is_not_cancelled_any_more() {
    let mut bench = bench();
    bench.process("charge");
    bench.process("ship");
    let refused = bench.apply(Command::Cancel { reason: None }).unwrap_err();
    assert!(matches!(refused, Refusal::TaskState { .. }), "{refused:?}");
    bench.process("unlock");
    bench.process("tell");
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn an_undo_that_is_cancelled_runs_them_too() {
    let mut bench = bench();
    bench.process("charge");
    bench.apply(Command::Undo { reason: None }).unwrap();
    let undo = bench.claim("charge.undo").unwrap();
    bench.apply(Command::Cancel { reason: None }).unwrap();
    assert_eq!(bench.status("charge.undo"), StepStatus::Cancelled);
    bench
        .reply("charge.undo", undo, success(json!(1)))
        .unwrap_err();
    bench.process("unlock");
    bench.process("tell");
    assert_eq!(bench.task(), TaskStatus::Cancelled);
}

#[test]
fn an_undo_that_failed_is_over_when_its_task_is_cancelled() {
    let mut bench = bench();
    bench.process("charge");
    bench.apply(Command::Undo { reason: None }).unwrap();
    let undo = bench.claim("charge.undo").unwrap();
    bench.reply("charge.undo", undo, refusal(400)).unwrap();
    assert_eq!(bench.task(), TaskStatus::Error);
    bench.apply(Command::Cancel { reason: None }).unwrap();
    assert_eq!(bench.task(), TaskStatus::Undoing);
    let (step, body, reason) = (None, None, None);
    bench
        .apply(Command::Retry { step, body, reason })
        .unwrap_err();
    bench.process("unlock");
    bench.process("tell");
    assert_eq!(bench.task(), TaskStatus::Cancelled);
}

#[test]
fn one_in_error_needs_an_operator_and_then_the_task_ends_as_it_would_have() {
    for is_undone in [false, true] {
        let mut bench = bench();
        bench.process("charge");
        if is_undone {
            bench.apply(Command::Undo { reason: None }).unwrap();
            bench.process("charge.undo");
        } else {
            bench.process("ship");
        }
        let attempt = bench.claim("unlock").unwrap();
        bench.reply("unlock", attempt, refusal(400)).unwrap();
        assert_eq!(bench.task(), TaskStatus::Error);
        let TaskState::Error(fault) = &bench.draft.task.state else {
            panic!();
        };
        assert_eq!(fault.kind, FaultKind::Permanent);
        let refused = bench.apply(Command::Undo { reason: None }).unwrap_err();
        assert!(matches!(refused, Refusal::TaskState { .. }), "{refused:?}");
        let step = bench.step("unlock");
        bench
            .apply(Command::Skip {
                step,
                output: None,
                reason: None,
            })
            .unwrap();
        bench.process("tell");
        let end = match is_undone {
            true => TaskStatus::Undone,
            false => TaskStatus::Processed,
        };
        assert_eq!(bench.task(), end);
        changes_are_told(&bench.draft).unwrap();
    }
}

#[test]
fn they_run_once_although_the_processed_task_is_undone_later() {
    let mut bench = bench();
    for step in ["charge", "ship", "unlock", "tell"] {
        bench.process(step);
    }
    bench.apply(Command::Undo { reason: None }).unwrap();
    bench.process("charge.undo");
    assert_eq!(bench.task(), TaskStatus::Undone);
    assert_eq!(bench.record("unlock").attempt.0, 1);
}

#[test]
fn a_rerun_has_them_run_again_after_it() {
    let mut bench = bench();
    bench.process("charge");
    bench.process("ship");
    let attempt = bench.claim("unlock").unwrap();
    bench.reply("unlock", attempt, refusal(400)).unwrap();
    let step = bench.step("charge");
    bench
        .apply(Command::RetryFrom { step, reason: None })
        .unwrap();
    assert_eq!(bench.status("unlock"), StepStatus::Waiting);
    for step in ["charge", "ship", "unlock", "tell"] {
        bench.process(step);
    }
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn a_stop_is_followed_by_them() {
    for state in ["processed", "undone"] {
        let steps = json!([
            { "name": "charge", "agent": "x", "undo": { "request": { "method": "DELETE" } } },
            { "name": "end", "stop": { "state": state } },
            { "name": "never", "agent": "x" },
        ]);
        let finally = json!({ "finally": [{ "name": "unlock", "agent": "x" }] });
        let mut bench = bench_of(&steps, &finally, None);
        bench.process("charge");
        if state == "undone" {
            bench.process("charge.undo");
        }
        assert_eq!(bench.status("never"), StepStatus::Cancelled);
        bench.process("unlock");
        assert_eq!(bench.task().as_str(), state);
    }
}

#[test]
fn the_limit_of_the_task_does_not_end_them() {
    let steps = json!([{ "name": "charge", "agent": "x" }]);
    let policies =
        json!({ "on_deadline": "undo", "finally": [{ "name": "unlock", "agent": "x" }] });
    let mut bench = bench_of(&steps, &policies, Some(Span::from_secs(60)));
    bench.process("charge");
    bench.later(Span::from_secs(120));
    assert_eq!(bench.draft.task.overdue_at(), None);
    bench.apply(Command::Overdue).unwrap_err();
    bench.process("unlock");
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn a_task_that_never_began_has_nothing_for_them_to_do() {
    let commands = [
        Command::Cancel { reason: None },
        Command::Undo { reason: None },
    ];
    for (command, end) in commands
        .into_iter()
        .zip([TaskStatus::Cancelled, TaskStatus::Undone])
    {
        let mut bench = bench();
        bench.draft.task.waits = true;
        bench.apply(command).unwrap();
        assert_eq!(bench.task(), end);
        assert_eq!(bench.status("unlock"), StepStatus::Cancelled);
        changes_are_told(&bench.draft).unwrap();
    }
}

#[test]
fn the_children_of_a_cancelled_task_are_cancelled_while_they_run() {
    let steps = json!([{ "name": "part", "task": { "workflow": "w" } }]);
    let finally = json!({ "finally": [{ "name": "unlock", "agent": "x" }] });
    let mut bench = bench_of(&steps, &finally, None);
    bench.apply(Command::Cancel { reason: None }).unwrap();
    assert_eq!(bench.task(), TaskStatus::Undoing);
    let child = crate::task::child_record::ChildRecord {
        id: TaskId(Uuid::from_u128(9)),
        attempt: bench.record("part").attempt,
        state: TaskStatus::Processing,
        version: 1,
        is_undo_requested: false,
    };
    let actions = child_actions(&bench.draft.task, bench.step("part"), &[child], false);
    assert_eq!(actions.len(), 1);
    assert!(
        matches!(actions[0], crate::task::child::ChildAction::Cancel(_)),
        "{actions:?}"
    );
}

#[test]
fn what_they_cannot_have_is_refused() {
    let steps = json!([
        { "name": "charge", "agent": "x", "request": { "body": "{{ task.state }}" } },
        { "name": "ship", "agent": "x", "after": ["unlock"] },
    ]);
    let finally = json!([
        { "name": "unlock", "agent": "x", "after": ["charge"], "on_permanent": "undo" },
        { "name": "tell", "agent": "x", "undo": { "request": { "method": "DELETE" } } },
        { "name": "all", "for_each": [1], "agent": "x" },
        { "name": "child", "task": { "workflow": "w" } },
        { "name": "end", "stop": { "state": "processed" } },
        { "name": "last", "agent": "x", "pivot": true },
        { "name": "charge", "agent": "x" },
    ]);
    let faults = parse(&steps, &json!({ "finally": finally })).unwrap_err();
    let pointers: Vec<_> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
    for pointer in [
        "/steps/0/request/body",
        "/steps/1/after/0",
        "/finally/0/after/0",
        "/finally/0/on_permanent",
        "/finally/1/undo",
        "/finally/2/for_each",
        "/finally/3/task",
        "/finally/4/stop",
        "/finally/5/pivot",
        "/finally/6/name",
    ] {
        assert!(
            pointers.contains(&pointer),
            "{pointer} is not in {faults:#?}"
        );
    }
    assert_eq!(faults.len(), 10, "{faults:#?}");
    for wrong in [json!([]), json!({}), json!("x")] {
        let faults = Policies::parse(&json!({ "finally": wrong }).to_string());
        assert_eq!(faults.unwrap_err()[0].pointer, "/finally");
    }
}
