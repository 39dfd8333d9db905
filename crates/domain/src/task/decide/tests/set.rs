//! Steps that name values, and steps that end the task on purpose.

use super::*;
use crate::task::output::task_output;

#[test]
fn values_are_named_without_a_call() {
    let steps = json!([
        { "name": "sum", "set": { "net": "{{ input.total * 2 }}", "list": [1, "{{ task.key }}"] } },
        { "name": "send", "agent": "x", "request": { "body": "{{ steps.sum.output }}" } },
    ]);
    let mut bench = Bench::new(steps);
    assert_eq!(bench.status("sum"), StepStatus::Processed);
    assert_eq!(bench.task(), TaskStatus::Processing);
    assert_eq!(
        bench.events(),
        [
            "task.accepted",
            "step.ready",
            "step.processed",
            "step.ready",
            "task.processing"
        ]
    );
    let step = bench.step("send");
    let by = Claimant::Instance(InstanceId::new("node-1"));
    let CommandOutput::Call(call) = bench.apply(Command::Claim { step, by }).unwrap() else {
        panic!("no call");
    };
    let body: Value = serde_json::from_str(&call.body.unwrap()).unwrap();
    assert_eq!(body, json!({ "net": 60, "list": [1, "order-1"] }));
}

#[test]
fn values_are_named_for_each_item() {
    let steps = json!([
        { "name": "double", "for_each": [1, 2, 3], "set": { "value": "{{ item * 2 }}" } },
    ]);
    let bench = Bench::new(steps);
    assert_eq!(bench.task(), TaskStatus::Processed);
    let output = bench.record("double").output().unwrap();
    assert_eq!(output.as_json(), r#"[{"value":2},{"value":4},{"value":6}]"#);
}

#[test]
fn values_that_cannot_be_made_follow_the_policy() {
    for (policy, state) in [("error", StepStatus::Error), ("skip", StepStatus::Skipped)] {
        let steps = json!([
            { "name": "sum", "set": { "net": "{{ input.missing }}" }, "on_permanent": policy },
        ]);
        let bench = Bench::new(steps);
        assert_eq!(bench.status("sum"), state);
    }
}

#[test]
fn a_paused_task_names_no_values() {
    let steps = json!([
        { "name": "first", "agent": "x" },
        { "name": "sum", "set": { "net": 1 } },
    ]);
    let mut bench = Bench::new(steps);
    let attempt = bench.claim("first").unwrap();
    bench.apply(Command::Pause { reason: None }).unwrap();
    bench.reply("first", attempt, success(json!(1))).unwrap();
    assert_eq!(bench.status("sum"), StepStatus::Pending);
    bench.apply(Command::Resume { reason: None }).unwrap();
    assert_eq!(bench.task(), TaskStatus::Processed);
}

fn stopping(stop: Value) -> Value {
    json!([
        { "name": "charge", "agent": "x", "after": [], "undo": { "request": { "method": "DELETE" } } },
        { "name": "long", "agent": "x", "after": [] },
        { "name": "end", "after": ["charge"], "stop": stop },
        { "name": "never", "agent": "x", "after": ["end"] },
    ])
}

#[test]
fn a_task_ends_as_processed_on_purpose() {
    let stop = json!({
        "state": "processed", "message": "enough",
        "output": { "paid": "{{ steps.charge.output.id }}" },
    });
    let mut bench = Bench::new(stopping(stop));
    bench.claim("long").unwrap();
    bench.process("charge");
    assert_eq!(bench.task(), TaskStatus::Processing);
    bench.confirm_drop("long");
    assert_eq!(bench.task(), TaskStatus::Processed);
    assert_eq!(bench.status("long"), StepStatus::Cancelled);
    assert_eq!(bench.status("never"), StepStatus::Cancelled);
    assert_eq!(bench.draft.dropped.len(), 1);
    let output = task_output(&bench.draft.task).unwrap().unwrap();
    assert_eq!(output.as_json(), r#"{"paid":"charge"}"#);
    let end = bench.draft.events.iter().rfind(|event| {
        event
            .step
            .as_ref()
            .is_some_and(|step| step.as_str() == "end")
    });
    assert_eq!(end.unwrap().reason.as_deref(), Some("enough"));
    changes_are_told(&bench.draft).unwrap();
    // It can be undone as any other.
    bench.apply(Command::Undo { reason: None }).unwrap();
    bench.process("charge.undo");
    assert_eq!(bench.task(), TaskStatus::Undone);
}

#[test]
fn an_operator_who_resolves_the_stop_ends_the_task() {
    let mut steps = stopping(json!({ "state": "processed" }));
    steps[2]["when"] = json!("input.missing > 1");
    let mut bench = Bench::new(steps);
    bench.process("charge");
    assert_eq!(bench.status("end"), StepStatus::Error);
    let step = bench.step("end");
    bench
        .apply(Command::Resolve {
            step,
            output: Payload::null(),
            reason: None,
        })
        .unwrap();
    assert_eq!(bench.status("long"), StepStatus::Cancelled);
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn a_task_is_undone_on_purpose() {
    let stop = json!({ "state": "undone", "message": "no stock for {{ input.total }}" });
    let mut bench = Bench::new(stopping(stop));
    bench.process("charge");
    assert_eq!(bench.task(), TaskStatus::Undoing);
    let undo = bench.draft.task.undo.as_ref().unwrap();
    assert_eq!(undo.error.as_ref().unwrap().message, "no stock for 30");
    bench.process("charge.undo");
    assert_eq!(bench.task(), TaskStatus::Undone);
}

#[test]
fn a_message_that_cannot_be_evaluated_keeps_no_task_from_its_end() {
    let stop = json!({ "state": "undone", "message": "no stock for {{ input.missing.name }}" });
    let mut bench = Bench::new(stopping(stop));
    bench.process("charge");
    assert_eq!(bench.task(), TaskStatus::Undoing);
    let undo = bench.draft.task.undo.as_ref().unwrap();
    let cause = &undo.error.as_ref().unwrap().message;
    assert!(
        cause.starts_with("`stop.message` could not be evaluated"),
        "{cause}"
    );
}

#[test]
fn a_task_is_in_error_on_purpose() {
    let stop = json!({ "state": "error", "message": "a person must look" });
    let mut bench = Bench::new(stopping(stop));
    bench.process("charge");
    assert_eq!(bench.task(), TaskStatus::Error);
    let step = bench.step("end");
    bench
        .apply(Command::Skip {
            step,
            output: None,
            reason: None,
        })
        .unwrap();
    assert_eq!(bench.status("never"), StepStatus::Pending);
}

#[test]
fn the_losers_of_a_race_are_undone_although_the_task_is_stopped() {
    let undo = json!({ "request": { "method": "DELETE" } });
    let steps = json!([
        { "name": "a", "agent": "x", "after": [], "undo": undo },
        { "name": "b", "agent": "x", "after": [], "undo": undo },
        { "name": "join", "agent": "x", "after": { "any": 1, "of": ["a", "b"], "rest": "undo" } },
        { "name": "other", "agent": "x", "after": [] },
        { "name": "end", "stop": { "state": "processed" } },
    ]);
    let mut bench = Bench::new(steps);
    let b = bench.claim("b").unwrap();
    bench.process("a");
    bench.process("other");
    assert_eq!(bench.status("join"), StepStatus::Cancelled);
    assert_eq!(
        bench.status("b"),
        StepStatus::Processing,
        "its outcome is waited for"
    );
    assert_eq!(bench.task(), TaskStatus::Processing);
    bench.reply("b", b, success(json!({ "id": 1 }))).unwrap();
    bench.process("b.revert");
    assert_eq!(bench.task(), TaskStatus::Processed);
    assert_eq!(bench.status("b"), StepStatus::Undone);
}

#[test]
fn a_pivot_in_flight_is_waited_for_although_the_task_is_stopped() {
    let steps = json!([
        { "name": "charge", "agent": "x", "after": [], "pivot": true },
        { "name": "other", "agent": "x", "after": [] },
        { "name": "end", "after": ["other"], "stop": { "state": "processed" } },
    ]);
    let mut bench = Bench::new(steps);
    let charge = bench.claim("charge").unwrap();
    bench.process("other");
    assert_eq!(bench.status("end"), StepStatus::Processed);
    assert_eq!(bench.status("charge"), StepStatus::Processing);
    assert_eq!(bench.task(), TaskStatus::Processing);
    bench.reply("charge", charge, success(json!({}))).unwrap();
    assert_eq!(bench.status("charge"), StepStatus::Processed);
    assert_eq!(bench.task(), TaskStatus::Processed);
    assert_eq!(bench.draft.task.passed_pivot(), Some(bench.step("charge")));
}

#[test]
fn mistakes_say_what_to_do() {
    let fault = |step: Value| {
        let steps = Payload::from_value(&json!([step]));
        let (policies, limits) = (Policies::default(), Limits::default());
        let parsed = parse_steps(&steps, "", &policies, &limits, &Accepted);
        let faults = parsed.err().unwrap();
        format!("{} {}", faults[0].pointer, faults[0].message)
    };
    for (step, expected) in [
        (
            json!({ "name": "a", "set": 1 }),
            r#"/0/set must be an object of values, such as { "total": "{{ input.price * 2 }}" }"#,
        ),
        (
            json!({ "name": "a", "stop": {} }),
            r#"/0/stop/state is missing: give "processed", "undone" or "error""#,
        ),
        (
            json!({ "name": "a", "set": {}, "stop": { "state": "error" } }),
            "/0/stop give either `set` or `stop`, not both",
        ),
        (
            json!({ "name": "a", "stop": { "state": "error", "output": 1 } }),
            r#"/0/stop/output is that of a task that ends as processed: remove it, or set `state` to "processed""#,
        ),
        (
            json!({ "name": "a", "set": {}, "undo": { "request": {} } }),
            "/0/undo belongs to steps that call a service: remove it, or remove `set`",
        ),
        (
            json!({ "name": "a", "for_each": [1], "stop": { "state": "error" } }),
            "/0/stop ends the task, so it cannot be run several times: remove `for_each` or `repeat`",
        ),
    ] {
        assert_eq!(fault(step), expected);
    }
}

#[test]
fn the_undo_of_a_task_that_was_ended_on_purpose_is_tried_again() {
    let mut bench = Bench::new(stopping(json!({ "state": "processed" })));
    bench.claim("long").unwrap();
    bench.process("charge");
    bench.confirm_drop("long");
    assert_eq!(bench.task(), TaskStatus::Processed);
    bench.apply(Command::Undo { reason: None }).unwrap();
    bench.defer("charge.undo", 503, Duration::ZERO);
    assert_eq!(bench.status("charge.undo"), StepStatus::Pending);
    bench.later(Span::from_secs(60));
    let attempt = bench.claim("charge.undo").unwrap();
    bench.lose("charge.undo", attempt).unwrap();
    assert_eq!(bench.status("charge.undo"), StepStatus::Pending);
    bench.claim("charge.undo").unwrap();
    bench.later(Span::from_secs(60));
    bench.expire("charge.undo").unwrap();
    assert_eq!(bench.status("charge.undo"), StepStatus::Pending);
    bench.later(Span::from_secs(600));
    bench.process("charge.undo");
    assert_eq!(bench.task(), TaskStatus::Undone);
}

#[test]
fn a_rerun_from_before_the_end_on_purpose_lets_the_rest_of_the_task_run() {
    let steps = json!([
        { "name": "a", "agent": "x", "after": [] },
        { "name": "long", "agent": "x", "after": [] },
        { "name": "b", "agent": "x", "after": ["long"] },
        { "name": "end", "after": ["a"], "when": "steps.a.attempts == 1", "stop": { "state": "processed" } },
    ]);
    let mut bench = Bench::new(steps);
    bench.claim("long").unwrap();
    bench.process("a");
    assert_eq!(bench.status("b"), StepStatus::Cancelled);
    // The task ends once the call of the other step has ended.
    let step = bench.step("a");
    let again = Command::RetryFrom { step, reason: None };
    bench.apply(again).unwrap();
    assert_eq!(bench.status("b"), StepStatus::Waiting);
    bench.process("a");
    assert_eq!(bench.status("end"), StepStatus::Skipped);
    // It is needed again, and its call was dropped.
    bench.confirm_drop("long");
    bench.process("long");
    bench.process("b");
    assert_eq!(bench.task(), TaskStatus::Processed);
    changes_are_told(&bench.draft).unwrap();
}
