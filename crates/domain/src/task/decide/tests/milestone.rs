//! Steps that run only as long as a condition is true.

use super::*;
use crate::task::alert::AlertChange;

/// A payment, a reminder beside it, and a step after both.
fn bench(reminder: Value) -> Bench {
    Bench::new(steps(reminder))
}

fn steps(reminder: Value) -> Value {
    let mut step =
        json!({ "name": "remind", "after": [], "while": "steps.pay.state != 'processed'" });
    let Value::Object(more) = reminder else {
        panic!("{reminder} is not an object")
    };
    step.as_object_mut().unwrap().extend(more);
    json!([
        { "name": "pay", "agent": "x", "after": [] },
        step,
        { "name": "ship", "agent": "x", "after": ["pay", "remind"] },
    ])
}

#[test]
fn a_wait_ends_as_soon_as_its_condition_is_false_and_the_task_goes_on() {
    let mut bench = bench(json!({ "wait": { "for": "3d" } }));
    assert_eq!(bench.status("remind"), StepStatus::Processing);
    bench.process("pay");
    assert_eq!(bench.status("remind"), StepStatus::Skipped);
    assert_eq!(bench.status("ship"), StepStatus::Pending);
    let told = bench
        .draft
        .events
        .iter()
        .find(|event| event.kind == "step.skipped")
        .unwrap();
    assert_eq!(
        told.reason.as_deref(),
        Some("its `while` is not true any more")
    );
}

#[test]
fn a_call_in_flight_is_dropped_and_what_it_did_is_undone_with_the_task() {
    let undo = json!({ "request": { "method": "DELETE" } });
    let mut bench = bench(json!({ "agent": "x", "undo": undo }));
    let attempt = bench.claim("remind").unwrap();
    bench.process("pay");
    // The instance that makes the call has yet to confirm that it has ended.
    assert_eq!(bench.status("remind"), StepStatus::Processing);
    assert_eq!(bench.status("ship"), StepStatus::Waiting);
    let dropped: Vec<_> = { bench.draft.dropped.iter() }
        .map(|dropped| (dropped.step, dropped.confirm))
        .collect();
    assert_eq!(dropped, [(bench.step("remind"), true)]);
    bench.confirm_drop("remind");
    assert_eq!(bench.status("remind"), StepStatus::Skipped);
    assert_eq!(bench.status("ship"), StepStatus::Pending);
    assert_eq!(bench.record("remind").last_fault, None);
    assert_eq!(bench.record("remind").effect, Effect::Unknown);
    bench
        .reply("remind", attempt, success(json!(1)))
        .unwrap_err();
    bench.apply(Command::Undo { reason: None }).unwrap();
    assert_eq!(bench.status("remind.undo"), StepStatus::Pending);
}

#[test]
fn what_comes_before_the_drop_is_confirmed_counts_or_is_no_failure() {
    for (outcome, state) in [
        (success(json!(1)), StepStatus::Processed),
        (refusal(400), StepStatus::Skipped),
    ] {
        let mut bench = bench(json!({ "agent": "x" }));
        let attempt = bench.claim("remind").unwrap();
        bench.process("pay");
        bench.reply("remind", attempt, outcome).unwrap();
        assert_eq!(bench.status("remind"), state);
        assert_eq!(bench.record("remind").last_fault, None);
        assert_eq!(bench.status("ship"), StepStatus::Pending);
    }
    // An undo waits for the confirmation as well, and its instance may be lost.
    let undo = json!({ "request": { "method": "DELETE" } });
    let mut bench = bench(json!({ "agent": "x", "undo": undo }));
    let attempt = bench.claim("remind").unwrap();
    bench.process("pay");
    bench.apply(Command::Undo { reason: None }).unwrap();
    assert_eq!(bench.status("remind.undo"), StepStatus::Waiting);
    bench.lose("remind", attempt).unwrap();
    assert_eq!(bench.status("remind"), StepStatus::Cancelled);
    assert_eq!(bench.status("remind.undo"), StepStatus::Pending);
}

#[test]
fn an_operator_who_cancels_a_step_that_is_not_needed_any_more_makes_it_no_failure() {
    let mut bench = bench(json!({ "agent": "x" }));
    bench.claim("remind").unwrap();
    bench.process("pay");
    let step = bench.step("remind");
    let cancel = Command::CancelStep { step, reason: None };
    bench.apply(cancel).unwrap();
    bench.confirm_drop("remind");
    assert_eq!(bench.status("remind"), StepStatus::Skipped);
    assert_eq!(bench.record("remind").error(), None);
}

#[test]
fn a_failure_that_is_retried_is_none_once_the_step_is_not_needed() {
    let mut bench = bench(json!({ "agent": "x" }));
    bench.defer("remind", 503, Duration::from_secs(5));
    bench.process("pay");
    assert_eq!(bench.status("remind"), StepStatus::Skipped);
    assert_eq!(bench.record("remind").error(), None);
}

#[test]
fn a_step_in_error_is_not_needed_any_more_either() {
    let mut bench = bench(json!({ "agent": "x" }));
    let attempt = bench.claim("remind").unwrap();
    bench.reply("remind", attempt, refusal(400)).unwrap();
    assert_eq!(bench.task(), TaskStatus::Error);
    bench.process("pay");
    assert_eq!(bench.task(), TaskStatus::Processing);
    let closed = bench.draft.alerts.iter();
    let closed = closed.filter(|alert| matches!(alert, AlertChange::Close { .. }));
    assert_eq!(closed.count(), 1);
    changes_are_told(&bench.draft).unwrap();
}

#[test]
fn one_whose_condition_is_false_when_it_is_ready_never_begins() {
    let steps = json!([
        { "name": "pay", "agent": "x" },
        { "name": "remind", "agent": "x", "while": "steps.pay.state != 'processed'" },
    ]);
    let mut bench = Bench::new(steps);
    bench.process("pay");
    assert_eq!(bench.status("remind"), StepStatus::Skipped);
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn one_end_leads_to_the_next() {
    let steps = json!([
        { "name": "a", "agent": "x", "after": [] },
        { "name": "b", "after": [], "wait": { "for": "1d" }, "while": "steps.a.state == 'pending' or steps.a.state == 'processing'" },
        { "name": "c", "after": [], "wait": { "for": "1d" }, "while": "steps.b is not skipped" },
    ]);
    let mut bench = Bench::new(steps);
    bench.process("a");
    assert_eq!(bench.status("b"), StepStatus::Skipped);
    assert_eq!(bench.status("c"), StepStatus::Skipped);
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn what_cannot_have_such_a_condition_is_refused() {
    let steps = json!([
        { "name": "a", "agent": "x", "while": "steps.a.state == 'x'" },
        { "name": "b", "agent": "x", "while": "input.total > 1" },
        { "name": "c", "agent": "x", "while": "steps.missing.state == 'x'" },
        { "name": "d", "agent": "x", "pivot": true, "while": "steps.a.state == 'x'" },
        { "name": "e", "agent": "x", "for_each": [1], "while": "steps.a.state == 'x'" },
        { "name": "f", "set": { "x": 1 }, "while": "steps.a.state == 'x'" },
        { "name": "g", "task": { "workflow": "w" }, "while": "steps.a.state == 'x'" },
    ]);
    let parsed = parse_steps(
        &Payload::from_value(&steps),
        "/steps",
        &Policies::default(),
        &Limits::default(),
        &Accepted,
    );
    let faults = parsed.unwrap_err();
    let pointers: Vec<_> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
    let expected: Vec<_> = (0..7).map(|at| format!("/steps/{at}/while")).collect();
    let mut sorted = pointers.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, expected, "{faults:#?}");
}

#[test]
fn hundreds_of_steps_end_at_once_within_the_budget_of_one_command() {
    let wait = |name: String, condition: &str| json!({ "name": name, "after": [], "wait": { "for": "1d" }, "while": condition });
    let mut steps = vec![json!({ "name": "pay", "agent": "x", "after": [] })];
    steps.extend((0..240).map(|at| wait(format!("kept{at}"), "steps.pay is not failed")));
    steps.extend((0..240).map(|at| wait(format!("ended{at}"), "steps.pay.state != 'processed'")));
    let mut bench = Bench::new(Value::Array(steps));
    bench.process("pay");
    for at in [0, 239] {
        assert_eq!(bench.status(&format!("kept{at}")), StepStatus::Processing);
        assert_eq!(bench.status(&format!("ended{at}")), StepStatus::Skipped);
    }
}
