//! The plan of an undo says what the undo then does.

use super::*;
use crate::{
    definition::OnUndo,
    task::call::Purpose,
    view::undo_plan::{
        AvailableAfter, NotUndoneReason, PlannedCall, PlannedRequest, PlannedUndo, RenderedCall,
        UndoPlan, UndoReason, undo_plan,
    },
};

fn planned(bench: &Bench) -> UndoPlan {
    undo_plan(&bench.draft.task, bench.now)
}

fn request(call: &PlannedCall) -> &PlannedRequest {
    match call {
        PlannedCall::Request(request) => request,
        PlannedCall::CannotRender(why) => panic!("{why:?}"),
        PlannedCall::Task(task) => panic!("{task:?}"),
    }
}

fn probe_request(planned: &PlannedUndo) -> &PlannedRequest {
    match &planned.probe.as_ref().unwrap().call {
        RenderedCall::Request(request) => request,
        RenderedCall::CannotRender(why) => panic!("{why:?}"),
    }
}

fn order(plan: &UndoPlan) -> Vec<(&str, usize)> {
    let calls = plan.calls.iter();
    calls.map(|call| (call.step.as_str(), call.stage)).collect()
}

fn passed_over(plan: &UndoPlan) -> Vec<(&str, NotUndoneReason)> {
    let steps = plan.passed_over.iter();
    steps.map(|over| (over.step.as_str(), over.why)).collect()
}

/// A step that is undone by its id.
fn deletable(name: &str, after: &[&str]) -> Value {
    json!({ "name": name, "agent": name, "after": after,
            "request": { "body": { "of": name } },
            "undo": { "request": { "method": "DELETE", "path": "/{{ output.id }}" } } })
}

/// `start`, then `left` and `right` side by side, then `join`; `told` cannot be undone.
fn diamond() -> Value {
    let mut right = deletable("right", &["start"]);
    right["undo"]["request"] = json!({ "path": "/undo", "headers": { "x-api-key": "s3cret", "x-of": "{{ task.key }}" },
        "body": { "sent": "{{ request.body.of }}", "id": "{{ output.id }}" } });
    json!([
        deletable("start", &[]),
        deletable("left", &["start"]),
        right,
        deletable("join", &["left", "right"]),
        { "name": "told", "agent": "x", "after": ["start"] },
        { "name": "never", "agent": "x", "after": ["join"], "when": "input.total > 100" },
    ])
}

#[test]
fn the_plan_shows_the_calls_in_their_order_and_what_is_passed_over() {
    let mut bench = Bench::new(diamond());
    for step in ["start", "left", "right", "told"] {
        bench.process(step);
    }
    let plan = planned(&bench);
    assert!(plan.possible && !plan.under_way && plan.reason.is_none());
    assert_eq!(
        order(&plan),
        [("right.undo", 1), ("left.undo", 1), ("start.undo", 2)]
    );
    let mut over = passed_over(&plan);
    over.sort_by_key(|(step, _)| *step);
    assert_eq!(
        over,
        [
            ("join", NotUndoneReason::NeverBegan),
            ("never", NotUndoneReason::NeverBegan),
            ("told", NotUndoneReason::NoUndo)
        ]
    );
    let right = &plan.calls[0];
    assert_eq!(right.because, UndoReason::Processed);
    assert_eq!(right.probe, None);
    let shown = request(&right.call);
    assert_eq!((shown.method, shown.path.as_str()), ("POST", "/undo"));
    assert_eq!(shown.headers["x-api-key"], "***", "it may be a secret");
    assert_eq!(shown.headers["x-of"], "order-1");
    assert_eq!(
        shown.body.as_ref().unwrap().as_json(),
        r#"{"sent":"right","id":"right"}"#
    );
    let names: Vec<_> = plan.calls[2].after.iter().map(|a| a.as_str()).collect();
    assert_eq!(names, ["left.undo", "right.undo"]);
    assert_eq!(bench.task(), TaskStatus::Processing, "nothing was changed");
}

/// Claims whatever can be claimed, compares it with the plan, and has it succeed.
fn follow(bench: &mut Bench, plan: &UndoPlan) {
    let mut called = Vec::new();
    while bench.task() == TaskStatus::Undoing {
        let task = &bench.draft.task;
        let next = task.indexes().find(|index| task.due_at(*index).is_some());
        let step = next.expect("something is to be done");
        let by = Claimant::Instance(InstanceId::new("node-1"));
        let CommandOutput::Call(call) = bench.apply(Command::Claim { step, by }).unwrap() else {
            panic!("{step:?} could not be called");
        };
        let name = call.step_name.as_str();
        let planned = plan
            .calls
            .iter()
            .find(|planned| planned.step.as_str() == name);
        let planned = planned.unwrap_or_else(|| panic!("{name} is not in the plan"));
        let (shown, outcome) = match &call.purpose {
            Purpose::Probe(key) => {
                let shown = probe_request(planned);
                assert_eq!(shown.probes_key.as_ref(), Some(key));
                (
                    shown,
                    CallOutcome::Probed {
                        status: 200,
                        body: Payload::from_value(&json!({ "id": "found" })),
                    },
                )
            }
            Purpose::Undo(key) => {
                for before in &planned.after {
                    assert!(called.contains(before), "{before} comes before {name}");
                }
                called.push(call.step_name.clone());
                let PlannedCall::Request(shown) = &planned.call else {
                    assert_eq!(call.path, "/found", "only the probe could tell");
                    bench
                        .reply(name, call.attempt, success(json!(null)))
                        .unwrap();
                    continue;
                };
                assert_eq!(shown.undoes_key.as_ref(), Some(key));
                assert_eq!(shown.idempotency_key.as_ref(), Some(&call.idempotency_key));
                (&**shown, success(json!(null)))
            }
            Purpose::Work | Purpose::Poll | Purpose::Cancel(_) => {
                panic!("{name} is done although the task is undone")
            }
        };
        assert_eq!(shown.path, call.path);
        assert_eq!(shown.method, call.method.as_str());
        assert_eq!(
            shown.body.as_ref().map(Payload::as_json),
            call.body.as_deref()
        );
        bench.reply(name, call.attempt, outcome).unwrap();
    }
    let planned: Vec<_> = plan.calls.iter().map(|call| &call.step).collect();
    assert_eq!(
        called.len(),
        planned.len(),
        "{called:?} instead of {planned:?}"
    );
}

#[test]
fn the_undo_calls_exactly_what_the_plan_shows() {
    let mut steps = diamond();
    steps[1]["probe"] = json!({ "request": { "path": "/of/{{ task.key }}" } });
    let mut bench = Bench::new(steps);
    for step in ["start", "right", "told"] {
        bench.process(step);
    }
    bench.claim("left").unwrap();
    bench.later(Span::from_secs(31));
    bench.expire("left").unwrap();
    let plan = planned(&bench);
    let left = plan
        .calls
        .iter()
        .find(|call| call.step.as_str() == "left.undo")
        .unwrap();
    assert_eq!(left.because, UndoReason::Unknown);
    assert_eq!(probe_request(left).path, "/of/order-1");
    let PlannedCall::CannotRender(why) = &left.call else {
        panic!("its output is not known");
    };
    assert_eq!(why.until, AvailableAfter::ProbeAnswered);
    bench.apply(Command::Undo { reason: None }).unwrap();
    follow(&mut bench, &plan);
    assert_eq!(bench.task(), TaskStatus::Undone);
}

#[test]
fn calls_under_way_are_waited_for_or_dropped() {
    let mut steps = diamond();
    steps[2]["on_undo"] = json!("drop");
    steps[1]["probe"] = json!({ "request": { "path": "/" } });
    let mut bench = Bench::new(steps);
    bench.process("start");
    bench.claim("left").unwrap();
    bench.claim("right").unwrap();
    let plan = planned(&bench);
    let running: Vec<_> = plan
        .running
        .iter()
        .map(|r| (r.step.as_str(), r.on_undo))
        .collect();
    assert_eq!(running, [("left", OnUndo::Wait), ("right", OnUndo::Drop)]);
    assert_eq!(plan.running[0].complete_by, bench.now + Span::from_secs(30));
    let [right, left, start] = &plan.calls[..] else {
        panic!("{plan:#?}");
    };
    assert_eq!(
        (left.because, right.because),
        (UndoReason::Running, UndoReason::Unknown)
    );
    assert!(left.probe.as_ref().unwrap().only_if_unknown);
    assert!(
        matches!(&left.call, PlannedCall::CannotRender(why) if why.until == AvailableAfter::CallEnded)
    );
    assert!(
        matches!(&right.call, PlannedCall::CannotRender(why) if why.until == AvailableAfter::Never),
        "it has no probe and reads its output"
    );
    let after: Vec<_> = start.after.iter().map(|a| a.as_str()).collect();
    assert_eq!(after, ["left", "right.undo"]);
}

#[test]
fn an_undo_under_way_shows_what_is_left() {
    let mut bench = Bench::new(diamond());
    for step in ["start", "left", "right", "told"] {
        bench.process(step);
    }
    bench.apply(Command::Undo { reason: None }).unwrap();
    bench.process("left.undo");
    let attempt = bench.claim("right.undo").unwrap();
    bench.reply("right.undo", attempt, refusal(400)).unwrap();
    let plan = planned(&bench);
    assert!(!plan.possible && plan.under_way && plan.reason.is_some());
    assert_eq!(order(&plan), [("right.undo", 1), ("start.undo", 2)]);
    assert_eq!(plan.calls[0].state, "error");
    assert!(passed_over(&plan).contains(&("left", NotUndoneReason::Undone)));
    let undo = bench.step("right.undo");
    let skip = Command::Skip {
        step: undo,
        output: None,
        reason: None,
    };
    bench.apply(skip).unwrap();
    assert!(passed_over(&planned(&bench)).contains(&("right", NotUndoneReason::UndoSkipped)));
}

#[test]
fn what_cannot_be_undone_any_more_says_why() {
    let mut steps = diamond();
    steps[4]["pivot"] = json!(true);
    let mut bench = Bench::new(steps);
    bench.process("start");
    bench.process("told");
    let plan = planned(&bench);
    assert!(!plan.possible && !plan.under_way && plan.calls.is_empty());
    assert!(plan.reason.unwrap().contains("told is a pivot"));
    bench.apply(Command::Cancel { reason: None }).unwrap();
    let plan = planned(&bench);
    assert!(!plan.possible && plan.reason.unwrap().contains("cancelled"));
}

#[test]
fn steps_that_had_no_effect_say_which_kind_they_are() {
    let mut steps = diamond();
    steps[1]["when"] = json!("input.total > 100");
    let mut bench = Bench::new(steps);
    bench.process("start");
    let attempt = bench.claim("right").unwrap();
    bench.reply("right", attempt, refusal(402)).unwrap();
    let plan = planned(&bench);
    assert_eq!(order(&plan), [("start.undo", 1)]);
    let over = passed_over(&plan);
    assert!(over.contains(&("left", NotUndoneReason::Skipped)));
    assert!(over.contains(&("right", NotUndoneReason::TookNoEffect)));
}
