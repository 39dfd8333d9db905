//! The bytes that a task keeps, by each way on which they come.

use super::*;
use crate::task::{
    ask::AskAnswer,
    child_record::{Child, ChildEnd, ChildReport},
    open_reply::{Progress, ReplyDigest},
};

/// So many bytes are kept in the tests.
const MOST: usize = 100_000;

fn text(length: usize) -> Payload {
    // The length includes the quotes.
    Payload::from_string(&"x".repeat(length - 2))
}

fn keeping(steps: Value) -> Bench {
    let mut bench = Bench::new(steps);
    bench.draft.most_kept = MOST;
    bench
}

fn give(bench: &mut Bench, name: &str, length: usize) {
    let attempt = bench.claim(name).unwrap();
    let outcome = CallOutcome::Success(text(length));
    bench.reply(name, attempt, outcome).unwrap();
}

fn refused(result: Result<CommandOutput, Refusal>) {
    match result.map(|_| ()) {
        Err(Refusal::NoRoom { why, .. }) => {
            assert!(why.contains("limits.max_task_outputs"), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

fn fault_of(bench: &Bench, name: &str) -> String {
    match &bench.record(name).state {
        StepState::Error(fault) => fault.message.clone(),
        state => panic!("{name}: {state:?}"),
    }
}

/// A task whose step `first` has left this much room.
fn nearly_full(room: usize, others: Value) -> Bench {
    let mut steps = vec![json!({ "name": "first", "agent": "x" })];
    steps.extend(others.as_array().unwrap().clone());
    let mut bench = keeping(Value::from(steps));
    give(&mut bench, "first", MOST - room);
    assert!(bench.draft.task.kept_bytes() >= MOST - room);
    bench
}

#[test]
fn a_reply_that_finds_no_room_fails_its_step_and_a_small_one_always_fits() {
    let others = json!([
        { "name": "fits", "agent": "x", "after": [] },
        { "name": "large", "agent": "x", "after": [] },
        { "name": "small", "agent": "x", "after": [] },
    ]);
    let mut bench = nearly_full(5_000, others);
    give(&mut bench, "fits", 5_000);
    assert_eq!(bench.status("fits"), StepStatus::Processed);
    give(&mut bench, "large", 1_025);
    let message = fault_of(&bench, "large");
    assert!(message.contains("limits.max_task_outputs"), "{message}");
    // It took effect all the same.
    assert_eq!(bench.record("large").effect, Effect::Unknown);
    give(&mut bench, "small", 1_024);
    assert_eq!(bench.status("small"), StepStatus::Processed);
}

#[test]
fn a_later_reply_that_finds_no_room_fails_its_step() {
    let mut bench = nearly_full(2_000, json!([{ "name": "b", "agent": "x" }]));
    let attempt = bench.claim("b").unwrap();
    bench.reply("b", attempt, CallOutcome::Deferred).unwrap();
    let step = bench.step("b");
    let outcome = CallOutcome::Success(text(2_001));
    let digest = ReplyDigest("1".to_owned());
    bench
        .apply(Command::LaterReply {
            step,
            attempt,
            outcome,
            digest,
        })
        .unwrap();
    assert!(fault_of(&bench, "b").contains("2001 bytes"));
}

#[test]
fn a_heartbeat_whose_details_find_no_room_is_a_sign_of_life_without_them() {
    let mut bench = nearly_full(2_000, json!([{ "name": "b", "agent": "x" }]));
    let attempt = bench.claim("b").unwrap();
    bench.reply("b", attempt, CallOutcome::Deferred).unwrap();
    let step = bench.step("b");
    let progress = |details| Progress {
        fraction: Some(0.5),
        message: None,
        details,
    };
    bench
        .apply(Command::Heartbeat {
            step,
            attempt,
            progress: progress(Some(text(2_001))),
        })
        .unwrap();
    assert_eq!(bench.draft.task.kept_bytes(), MOST - 2_000);
    let StepState::Processing { held_by, .. } = &bench.record("b").state else {
        panic!("it is held");
    };
    let open = held_by.open_reply().unwrap();
    assert_eq!(open.progress, progress(None));
}

#[test]
fn commands_whose_bodies_find_no_room_are_refused_and_change_nothing() {
    let others = json!([
        { "name": "s", "signal": { "within": "1h" }, "after": [] },
        { "name": "late", "signal": { "within": "1h" } },
        { "name": "b", "agent": "x", "after": [] },
    ]);
    let mut bench = nearly_full(4_000, others);
    let attempt = bench.claim("b").unwrap();
    bench.reply("b", attempt, refusal(422)).unwrap();
    let before = bench.draft.task.clone();
    for name in ["s", "late"] {
        let signal = Command::Signal {
            step: bench.step(name),
            payload: text(4_001),
            digest: ReplyDigest("1".to_owned()),
        };
        refused(bench.apply(signal));
    }
    let (step, reason) = (bench.step("b"), None);
    let output = text(4_001);
    refused(bench.apply(Command::Resolve {
        step,
        output: output.clone(),
        reason: None,
    }));
    let output = Some(output);
    refused(bench.apply(Command::Skip {
        step,
        output: output.clone(),
        reason: None,
    }));
    refused(bench.apply(Command::SkipFailed {
        step: None,
        output: output.clone(),
        reason: None,
    }));
    refused(bench.apply(Command::Retry {
        step: Some(step),
        body: output,
        reason: None,
    }));
    assert_eq!(bench.draft.task, before);
    // An output that fits is taken, and so is one that needs no room.
    let output = text(4_000);
    bench
        .apply(Command::Resolve {
            step,
            output,
            reason,
        })
        .unwrap();
    assert_eq!(bench.draft.task.kept_bytes(), MOST);
}

#[test]
fn an_output_for_several_steps_in_error_needs_room_in_all_of_them() {
    let others = json!([
        { "name": "a", "agent": "x", "after": [] },
        { "name": "b", "agent": "x", "after": [] },
    ]);
    let mut bench = nearly_full(5_000, others);
    for name in ["a", "b"] {
        let attempt = bench.claim(name).unwrap();
        bench.reply(name, attempt, refusal(422)).unwrap();
    }
    let before = bench.draft.task.clone();
    let skip = |length| Command::SkipFailed {
        step: None,
        output: Some(text(length)),
        reason: None,
    };
    refused(bench.apply(skip(3_000)));
    assert_eq!(bench.draft.task, before);
    bench.apply(skip(2_500)).unwrap();
    assert_eq!(bench.status("b"), StepStatus::Skipped);
}

#[test]
fn outputs_of_items_leave_room_for_the_list_of_their_group() {
    let group = json!({ "name": "all", "agent": "x", "for_each": [1, 2, 3], "max_parallel": 3 });
    let mut bench = nearly_full(20_000, json!([group]));
    let list = bench.draft.task.kept_bytes() + 20_000 - MOST;
    give(&mut bench, "all[0]", 4_000);
    give(&mut bench, "all[1]", 4_000);
    assert_eq!(bench.draft.task.kept_bytes(), MOST - 20_000 + list + 16_000);
    give(&mut bench, "all[2]", 3_000);
    let message = fault_of(&bench, "all[2]");
    assert!(message.contains("limits.max_task_outputs"), "{message}");
    retry_with(&mut bench, "all[2]", 1_500);
    assert_eq!(bench.status("all"), StepStatus::Processed);
    assert!(bench.draft.task.kept_bytes() <= MOST);
}

fn retry_with(bench: &mut Bench, name: &str, length: usize) {
    let step = Some(bench.step(name));
    bench
        .apply(Command::Retry {
            step,
            body: None,
            reason: None,
        })
        .unwrap();
    give(bench, name, length);
}

#[test]
fn a_list_that_finds_no_room_does_not_begin() {
    let group = json!({ "name": "all", "agent": "x", "for_each": "{{ steps.first.output }}" });
    let mut bench = keeping(json!([{ "name": "first", "agent": "x" }, group]));
    let attempt = bench.claim("first").unwrap();
    let items: Vec<_> = (0..60).map(|_| "x".repeat(1_000)).collect();
    bench
        .reply("first", attempt, success(json!(items)))
        .unwrap();
    assert!(fault_of(&bench, "all").contains("limits.max_task_outputs"));
}

#[test]
fn the_output_of_a_child_that_finds_no_room_fails_its_step() {
    let others = json!([{ "name": "child", "task": { "workflow": "w" }, "complete_within": "1h" }]);
    let mut bench = nearly_full(2_000, others);
    let (step, attempt) = (bench.step("child"), bench.record("child").attempt);
    let child = Child {
        id: TaskId(Uuid::from_u128(8)),
        state: TaskStatus::Processed,
    };
    bench
        .apply(Command::ChildReport {
            step,
            attempt,
            report: ChildReport::Ended {
                child: Some(child),
                end: ChildEnd::Processed(text(2_001)),
            },
        })
        .unwrap();
    assert!(fault_of(&bench, "child").contains("limits.max_task_outputs"));
    assert_eq!(bench.record("child").effect, Effect::Unknown);
}

#[test]
fn a_decision_that_finds_no_room_is_refused() {
    let ask = json!({ "name": "ask", "signal": { "within": "1h", "ask": { "title": "Ok?", "of": ["ada"],
        "choices": ["yes", "no"], "fields": [{ "name": "why", "label": "Why" }, { "name": "how", "label": "How" }] } } });
    let mut bench = nearly_full(1_000, json!([ask]));
    let (step, attempt) = (bench.step("ask"), bench.record("ask").attempt);
    let decide = |length: usize| Command::Decide {
        step,
        attempt,
        person: 0,
        answer: AskAnswer {
            choice: "yes".to_owned(),
            comment: Some("x".repeat(length)),
            fields: BTreeMap::new(),
        },
    };
    refused(bench.apply(decide(600)));
    bench.apply(decide(400)).unwrap();
    assert_eq!(bench.status("ask"), StepStatus::Processed);
}

#[test]
fn what_a_service_says_of_an_undo_is_left_out_where_it_finds_no_room() {
    let others = json!([
        { "name": "b", "agent": "x", "undo": { "request": { "path": "/undo" } } },
    ]);
    let mut bench = nearly_full(2_000, others);
    give(&mut bench, "b", 1_900);
    bench.apply(Command::Undo { reason: None }).unwrap();
    give(&mut bench, "b.undo", 3_000);
    assert_eq!(bench.task(), TaskStatus::Undone);
    let last = bench.draft.events.iter().rev();
    let mut reasons = last.filter_map(|event| event.reason.as_deref());
    assert!(reasons.any(|reason| reason.contains("limits.max_task_outputs")));
}

#[test]
fn a_task_that_keeps_too_much_already_goes_on() {
    let others = json!([{ "name": "b", "agent": "x" }, { "name": "c", "agent": "x" }]);
    let mut bench = nearly_full(2_000, others);
    bench.draft.most_kept = 1_000;
    give(&mut bench, "b", 900);
    give(&mut bench, "c", 1_000);
    assert_eq!(bench.task(), TaskStatus::Processed);
}
