//! Undo, by example.

use super::*;
use crate::{values::fault::Effect, view::blocked::Blocked};

/// A step that can be undone.
fn undoable(name: &str, more: Value) -> Value {
    let mut step = json!({
        "name": name,
        "agent": "x",
        "undo": { "request": { "method": "DELETE", "path": format!("/{name}/{{{{ output.id }}}}") } },
    });
    let Value::Object(more) = more else {
        panic!("{more} is not an object")
    };
    step.as_object_mut().unwrap().extend(more);
    step
}

fn saga() -> Value {
    json!([
        undoable("reserve", json!({})),
        undoable(
            "charge",
            json!({ "on_permanent": "undo", "on_exhausted": "undo", "max_failures": 0 })
        ),
        undoable("ship", json!({})),
    ])
}

/// `start`, then `left` and `right` side by side, then `join`.
fn diamond(more: Value) -> Value {
    let mut join = json!({ "after": ["left", "right"], "on_permanent": "undo" });
    let Value::Object(more) = more else {
        panic!("{more} is not an object")
    };
    join.as_object_mut().unwrap().extend(more);
    json!([
        undoable("start", json!({})),
        undoable("left", json!({ "after": ["start"] })),
        undoable("right", json!({ "after": ["start"] })),
        undoable("join", join),
    ])
}

fn refuse(bench: &mut Bench, name: &str) {
    let attempt = bench.claim(name).unwrap();
    bench.reply(name, attempt, refusal(402)).unwrap();
}

fn raised(bench: &Bench) -> Vec<(AlertKind, &str)> {
    let alerts = bench.draft.alerts.iter();
    let raised = alerts.filter_map(|alert| match alert {
        AlertChange::Raise { kind, message, .. } => Some((*kind, message.as_str())),
        AlertChange::Close { .. } => None,
    });
    raised.collect()
}

fn call_of(bench: &mut Bench, name: &str) -> Call {
    let step = bench.step(name);
    let by = Claimant::Instance(InstanceId::new("node-1"));
    match bench.apply(Command::Claim { step, by }).unwrap() {
        CommandOutput::Call(call) => *call,
        _ => panic!("{name} was not called"),
    }
}

#[test]
fn what_was_done_is_undone_and_what_was_refused_is_not() {
    let mut bench = Bench::new(saga());
    bench.process("reserve");
    refuse(&mut bench, "charge");
    assert_eq!(bench.task(), TaskStatus::Undoing);
    assert_eq!(bench.status("charge"), StepStatus::Error);
    assert_eq!(bench.status("ship"), StepStatus::Cancelled);
    assert_eq!(bench.status("charge.undo"), StepStatus::Skipped);
    let call = call_of(&mut bench, "reserve.undo");
    assert_eq!(call.path, "/reserve/reserve");
    assert_eq!(call.method, crate::definition::Method::Delete);
    let task = bench.draft.task.id();
    assert_eq!(call.idempotency_key, format!("{task}:reserve.undo"));
    assert_eq!(
        call.purpose,
        crate::task::call::Purpose::Undo(format!("{task}:reserve"))
    );
    bench
        .reply("reserve.undo", call.attempt, success(json!(null)))
        .unwrap();
    assert_eq!(bench.status("reserve"), StepStatus::Undone);
    assert_eq!(bench.task(), TaskStatus::Undone);
    let undo = bench.draft.task.undo.as_ref().unwrap();
    assert_eq!(undo.error.as_ref().unwrap().status, Some(402));
    assert_eq!(
        undo.error.as_ref().unwrap().step.as_ref().unwrap().as_str(),
        "charge"
    );
    assert!(raised(&bench).is_empty(), "nobody has to do anything");
}

#[test]
fn undo_goes_backward_with_branches_side_by_side() {
    let mut bench = Bench::new(diamond(json!({})));
    for step in ["start", "left", "right"] {
        bench.process(step);
    }
    refuse(&mut bench, "join");
    assert_eq!(bench.status("start.undo"), StepStatus::Waiting);
    assert_eq!(bench.status("left.undo"), StepStatus::Pending);
    assert_eq!(bench.status("right.undo"), StepStatus::Pending);
    bench.process("right.undo");
    assert_eq!(bench.status("start.undo"), StepStatus::Waiting);
    bench.process("left.undo");
    assert_eq!(bench.status("start.undo"), StepStatus::Pending);
    bench.process("start.undo");
    assert_eq!(bench.task(), TaskStatus::Undone);
}

#[test]
fn a_call_under_way_is_waited_for_and_then_undone() {
    let mut bench = Bench::new(diamond(json!({})));
    bench.process("start");
    let left = bench.claim("left").unwrap();
    bench
        .apply(Command::Undo {
            reason: Some("withdrawn".to_owned()),
        })
        .unwrap();
    assert_eq!(bench.status("left"), StepStatus::Processing);
    assert_eq!(
        bench.status("right.undo"),
        StepStatus::Skipped,
        "it never began"
    );
    assert_eq!(
        bench.status("start.undo"),
        StepStatus::Waiting,
        "left is under way"
    );
    bench
        .reply("left", left, success(json!({ "id": 7 })))
        .unwrap();
    assert_eq!(bench.status("join"), StepStatus::Cancelled);
    assert_eq!(call_of(&mut bench, "left.undo").path, "/left/7");
}

#[test]
fn a_call_under_way_is_dropped_where_the_step_says_so() {
    let mut bench = Bench::new(json!([undoable(
        "charge",
        json!({ "on_undo": "drop", "undo": { "request": { "path": "/void/{{ task.key }}" } } })
    )]));
    let attempt = bench.claim("charge").unwrap();
    bench.apply(Command::Undo { reason: None }).unwrap();
    let dropped: Vec<_> = bench.draft.dropped.iter().collect();
    assert!(
        matches!(dropped[..], [dropped] if dropped.attempt == attempt && dropped.confirm),
        "{dropped:?}"
    );
    assert_eq!(
        (bench.status("charge"), bench.status("charge.undo")),
        (StepStatus::Processing, StepStatus::Waiting),
        "a try may follow until its holder has said that none can"
    );
    let (charge, undo) = (bench.step("charge"), bench.step("charge.undo"));
    let blocked = bench.draft.task.blocked_by(undo, bench.now);
    assert!(matches!(blocked, Some(Blocked::Drop { .. })), "{blocked:?}");
    let confirmed = Command::Release {
        step: charge,
        attempt,
        why: Release::Dropped,
    };
    bench.apply(confirmed).unwrap();
    assert_eq!(bench.status("charge"), StepStatus::Cancelled);
    assert_eq!(bench.record("charge").effect, Effect::Unknown);
    assert_eq!(call_of(&mut bench, "charge.undo").path, "/void/order-1");
    let late = bench.reply("charge", attempt, success(json!({})));
    assert!(matches!(late, Err(Refusal::Late { .. })), "{late:?}");
}

#[test]
fn a_step_of_unknown_outcome_is_undone_too() {
    let mut steps = saga();
    steps[1]["undo"]["request"]["path"] = json!("/void/{{ task.id }}");
    let mut bench = Bench::new(steps);
    bench.process("reserve");
    bench.claim("charge").unwrap();
    bench.later(Span::from_secs(31));
    bench.expire("charge").unwrap();
    assert_eq!(bench.task(), TaskStatus::Undoing);
    assert_eq!(bench.record("charge").effect, Effect::Unknown);
    assert_eq!(bench.status("charge.undo"), StepStatus::Pending);
    let attempt = bench.claim("charge.undo").unwrap();
    bench.reply("charge.undo", attempt, refusal(404)).unwrap();
    assert_eq!(
        bench.status("charge.undo"),
        StepStatus::Processed,
        "nothing there is nothing left to undo"
    );
    assert_eq!(bench.status("charge"), StepStatus::Undone);
}

#[test]
fn an_undo_that_fails_needs_an_operator_and_goes_on_after_it_was_mended() {
    let mut bench = Bench::new(saga());
    bench.process("reserve");
    refuse(&mut bench, "charge");
    refuse(&mut bench, "reserve.undo");
    assert_eq!(bench.task(), TaskStatus::Error);
    let error = bench.draft.task.error().unwrap();
    assert_eq!(error.kind, FaultKind::UndoFailed);
    assert_eq!(error.step.as_ref().unwrap().as_str(), "reserve.undo");
    assert!(matches!(raised(&bench)[..], [(AlertKind::UndoFailed, _)]));
    let forward = bench.step("charge");
    let refused = bench.apply(Command::Retry {
        step: Some(forward),
        body: None,
        reason: None,
    });
    assert!(
        matches!(refused, Err(Refusal::StepState { .. })),
        "{refused:?}"
    );
    bench
        .apply(Command::Retry {
            step: None,
            body: None,
            reason: None,
        })
        .unwrap();
    assert_eq!(bench.task(), TaskStatus::Undoing);
    assert_eq!(
        bench.status("charge"),
        StepStatus::Error,
        "only the undo is retried"
    );
    bench.process("reserve.undo");
    assert_eq!(bench.task(), TaskStatus::Undone);
}

#[test]
fn an_undo_that_an_operator_skipped_leaves_its_step_as_it_is() {
    let mut bench = Bench::new(saga());
    bench.process("reserve");
    refuse(&mut bench, "charge");
    refuse(&mut bench, "reserve.undo");
    let step = bench.step("reserve.undo");
    bench
        .apply(Command::Skip {
            step,
            output: None,
            reason: None,
        })
        .unwrap();
    assert_eq!(bench.task(), TaskStatus::Undone);
    assert_eq!(bench.status("reserve"), StepStatus::Processed);
}

#[test]
fn a_step_without_undo_is_passed_over_and_named() {
    let mut bench = Bench::new(json!([
        undoable("reserve", json!({})),
        { "name": "notify", "agent": "mail" },
        { "name": "charge", "agent": "x", "on_permanent": "undo" },
    ]));
    bench.process("reserve");
    bench.process("notify");
    refuse(&mut bench, "charge");
    assert_eq!(
        bench.status("reserve.undo"),
        StepStatus::Pending,
        "nothing stands in its way"
    );
    let passed: Vec<_> = bench.draft.task.passed_over().collect();
    assert_eq!(passed, [StepIndex(1)]);
}

#[test]
fn behind_the_pivot_nothing_is_undone() {
    let mut bench = Bench::new(json!([
        undoable("reserve", json!({})),
        { "name": "charge", "agent": "x", "pivot": true },
        { "name": "ship", "agent": "x" },
    ]));
    bench.process("reserve");
    bench.process("charge");
    let refused = bench.apply(Command::Undo { reason: None });
    assert!(
        matches!(refused, Err(Refusal::PastPivot { .. })),
        "{refused:?}"
    );
    refuse(&mut bench, "ship");
    assert_eq!(bench.task(), TaskStatus::Error);
}

#[test]
fn a_refused_pivot_undoes_what_was_before_it() {
    let mut bench = Bench::new(json!([
        undoable("reserve", json!({})),
        { "name": "charge", "agent": "x", "pivot": true, "on_permanent": "undo" },
    ]));
    bench.process("reserve");
    refuse(&mut bench, "charge");
    assert_eq!(bench.task(), TaskStatus::Undoing);
}

#[test]
fn a_pivot_of_unknown_outcome_lets_nothing_be_undone() {
    let mut bench = Bench::new(json!([
        undoable("reserve", json!({})),
        { "name": "charge", "agent": "x", "pivot": true, "on_exhausted": "undo", "max_failures": 0 },
    ]));
    bench.process("reserve");
    bench.claim("charge").unwrap();
    bench.later(Span::from_secs(31));
    bench.expire("charge").unwrap();
    assert_eq!(bench.task(), TaskStatus::Error);
    assert!(matches!(
        raised(&bench)[..],
        [(AlertKind::TaskError, message)] if message.contains("can no longer be undone")
    ));
}

fn probed(more: Value) -> Value {
    let mut step = json!({ "probe": { "request": { "path": "/charges/{{ task.id }}" } } });
    let Value::Object(more) = more else {
        panic!("{more} is not an object")
    };
    step.as_object_mut().unwrap().extend(more);
    json!([undoable("charge", step)])
}

fn answer(status: u16, body: Value) -> CallOutcome {
    CallOutcome::Probed {
        status,
        body: Payload::from_value(&body),
    }
}

/// Has the step expire and makes its next attempt due.
fn expire(bench: &mut Bench, name: &str) {
    bench.claim(name).unwrap();
    bench.later(Span::from_secs(31));
    bench.expire(name).unwrap();
    bench.later(Span::from_secs(60));
}

#[test]
fn the_probe_is_asked_before_another_try_and_its_word_counts() {
    let mut bench = Bench::new(probed(json!({})));
    expire(&mut bench, "charge");
    let asks = call_of(&mut bench, "charge");
    assert!(matches!(asks.purpose, crate::task::call::Purpose::Probe(_)));
    assert_eq!(asks.method, crate::definition::Method::Get);
    assert_eq!(asks.body, None);
    bench
        .reply("charge", asks.attempt, answer(200, json!({ "id": "ch_1" })))
        .unwrap();
    assert_eq!(bench.task(), TaskStatus::Processed);
    assert_eq!(
        bench.record("charge").output().unwrap().as_json(),
        r#"{"id":"ch_1"}"#
    );
}

#[test]
fn what_the_probe_says_did_not_happen_is_done_at_once() {
    let mut bench = Bench::new(probed(json!({})));
    expire(&mut bench, "charge");
    let asks = call_of(&mut bench, "charge");
    bench
        .reply("charge", asks.attempt, answer(404, json!(null)))
        .unwrap();
    assert_eq!(bench.status("charge"), StepStatus::Pending);
    let works = call_of(&mut bench, "charge");
    assert_eq!(works.purpose, crate::task::call::Purpose::Work);
    assert_eq!(works.idempotency_key, asks.idempotency_key);
}

#[test]
fn an_outcome_in_progress_is_asked_for_again_later() {
    let mut bench = Bench::new(probed(json!({
        "probe": { "request": { "path": "/" }, "outcome": "response.body.state", "output": "response.body.charge" }
    })));
    expire(&mut bench, "charge");
    let asks = call_of(&mut bench, "charge");
    bench
        .reply(
            "charge",
            asks.attempt,
            answer(200, json!({ "state": "in_progress" })),
        )
        .unwrap();
    assert_eq!(bench.status("charge"), StepStatus::Pending);
    assert_eq!(bench.record("charge").failure_count, 2);
    bench.later(Span::from_secs(60));
    let asks = call_of(&mut bench, "charge");
    let done = json!({ "state": "done", "charge": { "id": 7 } });
    bench
        .reply("charge", asks.attempt, answer(200, done))
        .unwrap();
    assert_eq!(
        bench.record("charge").output().unwrap().as_json(),
        r#"{"id":7}"#
    );
}

#[test]
fn a_probe_that_nobody_understands_needs_an_operator() {
    let mut bench = Bench::new(probed(json!({
        "on_permanent": "skip",
        "probe": { "request": { "path": "/" }, "outcome": "response.body.state" }
    })));
    expire(&mut bench, "charge");
    let asks = call_of(&mut bench, "charge");
    bench
        .reply(
            "charge",
            asks.attempt,
            answer(200, json!({ "state": "maybe" })),
        )
        .unwrap();
    assert_eq!(bench.task(), TaskStatus::Error);
    let message = &bench.draft.task.error().unwrap().message;
    assert!(message.contains("\"maybe\""), "{message}");
}

#[test]
fn before_an_undo_the_probe_says_whether_there_is_anything_to_undo() {
    for (status, undone) in [(404, false), (200, true)] {
        let mut bench = Bench::new(probed(json!({})));
        expire(&mut bench, "charge");
        bench.apply(Command::Undo { reason: None }).unwrap();
        let asks = call_of(&mut bench, "charge.undo");
        assert!(matches!(asks.purpose, crate::task::call::Purpose::Probe(_)));
        let body = json!({ "id": "ch_1" });
        bench
            .reply("charge.undo", asks.attempt, answer(status, body))
            .unwrap();
        if undone {
            let call = call_of(&mut bench, "charge.undo");
            assert_eq!(call.path, "/charge/ch_1", "the probe gave the output");
            bench
                .reply("charge.undo", call.attempt, success(json!(null)))
                .unwrap();
        }
        assert_eq!(bench.task(), TaskStatus::Undone);
        let expected = if undone {
            StepStatus::Undone
        } else {
            StepStatus::Cancelled
        };
        assert_eq!(bench.status("charge"), expected);
    }
}

#[test]
fn an_undo_sees_the_request_that_it_undoes() {
    let mut bench = Bench::new(json!([undoable(
        "charge",
        json!({
            "request": { "path": "/charges", "body": { "amount": "{{ input.total }}" } },
            "undo": { "request": { "path": "/refunds", "body": { "amount": "{{ request.body.amount }}", "of": "{{ output.id }}" } } }
        })
    )]));
    bench.process("charge");
    bench.apply(Command::Undo { reason: None }).unwrap();
    let call = call_of(&mut bench, "charge.undo");
    assert_eq!(call.body.as_deref(), Some(r#"{"amount":30,"of":"charge"}"#));
}

#[test]
fn what_is_processed_is_undone_as_what_is_under_way() {
    let mut bench = Bench::new(diamond(json!({})));
    for step in ["start", "left", "right", "join"] {
        bench.process(step);
    }
    assert_eq!(bench.task(), TaskStatus::Processed);
    bench.apply(Command::Undo { reason: None }).unwrap();
    assert_eq!(bench.task(), TaskStatus::Undoing);
    assert_eq!(bench.draft.task.ended_at(), None);
    bench.process("join.undo");
    bench.process("right.undo");
    bench.process("left.undo");
    bench.process("start.undo");
    assert_eq!(bench.task(), TaskStatus::Undone);
    assert_eq!(bench.draft.task.ended_at(), Some(bench.now));
    let again = bench.apply(Command::Undo { reason: None });
    assert!(matches!(again, Err(Refusal::Ended("undone"))), "{again:?}");
}

#[test]
fn behind_a_pivot_what_is_processed_stays() {
    let steps =
        json!([undoable("charge", json!({})), { "name": "ship", "agent": "x", "pivot": true }]);
    let mut bench = Bench::new(steps);
    bench.process("charge");
    bench.process("ship");
    let refused = bench.apply(Command::Undo { reason: None });
    assert!(
        matches!(refused, Err(Refusal::PastPivot { .. })),
        "{refused:?}"
    );
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn what_is_processed_is_undone_only_for_so_long() {
    let steps = json!([undoable("charge", json!({}))]);
    for (late, is_undone) in [(0, true), (1, false)] {
        let mut details = Arc::into_inner(details(&steps, None)).unwrap();
        let policies = Policies::parse(r#"{"undoable_for":"30d"}"#).unwrap();
        let source = Payload::from_value(&steps);
        details.definition =
            Arc::new(parse_steps(&source, "", &policies, &Limits::default(), &Accepted).unwrap());
        let mut bench = Bench::new(steps.clone());
        bench.draft = Draft::submit(Arc::new(details), bench.now);
        bench.process("charge");
        bench.later(Span::from_millis(30 * 86_400_000 + late));
        let undone = bench.apply(Command::Undo { reason: None });
        assert_eq!(undone.is_ok(), is_undone, "{undone:?}");
        if let Err(refusal) = undone {
            assert!(matches!(refusal, Refusal::UndoExpired { .. }));
            assert!(
                refusal.to_string().contains("for 30d after that"),
                "{refusal}"
            );
            assert_eq!(bench.task(), TaskStatus::Processed);
        }
    }
}

#[test]
fn the_tasks_own_complete_by_undoes_it_where_its_policy_says_so() {
    let steps = json!([undoable("reserve", json!({})), { "name": "wait", "agent": "x", "complete_within": "1h" }]);
    let mut details = Arc::into_inner(details(&steps, Some(Span::from_secs(60)))).unwrap();
    let policies = Policies::parse(r#"{"on_deadline":"undo"}"#).unwrap();
    let source = Payload::from_value(&steps);
    details.definition =
        Arc::new(parse_steps(&source, "", &policies, &Limits::default(), &Accepted).unwrap());
    let mut bench = Bench::new(steps);
    bench.draft = Draft::submit(Arc::new(details), bench.now);
    bench.process("reserve");
    bench.later(Span::from_secs(61));
    bench.apply(Command::Overdue).unwrap();
    assert_eq!(bench.task(), TaskStatus::Undoing);
    bench.process("reserve.undo");
    assert_eq!(bench.task(), TaskStatus::Undone);
}

/// Has `charge` expire and be tried again, then answered with `fault`; its policy is undo.
fn refused_after_doubt(fault: Fault) -> Bench {
    let mut bench = Bench::new(json!([undoable(
        "charge",
        json!({ "on_permanent": "undo", "undo": { "request": { "path": "/void/{{ task.key }}" } } })
    )]));
    expire(&mut bench, "charge");
    let attempt = bench.claim("charge").unwrap();
    bench
        .reply("charge", attempt, CallOutcome::Failed(fault))
        .unwrap();
    bench
}

fn permanent(status: Option<u16>) -> Fault {
    Fault {
        status,
        ..Fault::permanent(String::new(), Timestamp::from_millis(0))
    }
}

#[test]
fn a_refusal_speaks_for_the_attempts_before_it_only_if_the_service_looked_at_the_key() {
    for status in [400, 402, 404, 410, 422] {
        let bench = refused_after_doubt(permanent(Some(status)));
        assert_eq!(bench.record("charge").effect, Effect::Known, "{status}");
        assert_eq!(bench.task(), TaskStatus::Undone, "{status}");
    }
    for status in [Some(401), Some(403), Some(407), Some(409), Some(421), None] {
        let bench = refused_after_doubt(permanent(status));
        assert_eq!(bench.record("charge").effect, Effect::Unknown, "{status:?}");
        assert_eq!(
            bench.status("charge.undo"),
            StepStatus::Pending,
            "{status:?}"
        );
        let cause = bench.draft.task.undo.as_ref().unwrap().error.as_ref();
        assert_eq!(cause.unwrap().effect, Effect::Unknown, "{status:?}");
    }
}

#[test]
fn what_a_service_did_and_answered_badly_is_undone() {
    let mut bench = Bench::new(saga());
    bench.process("reserve");
    let attempt = bench.claim("charge").unwrap();
    let garbled = Fault {
        effect: Effect::Unknown,
        ..permanent(Some(200))
    };
    bench
        .reply("charge", attempt, CallOutcome::Failed(garbled))
        .unwrap();
    assert_eq!(bench.task(), TaskStatus::Undoing);
    assert_eq!(bench.status("charge.undo"), StepStatus::Pending);
}

fn retry_with_body(bench: &mut Bench, name: &str) -> Result<CommandOutput, Refusal> {
    let step = bench.step(name);
    bench.apply(Command::Retry {
        step: Some(step),
        body: Some(Payload::from_value(&json!({ "amount": 20 }))),
        reason: None,
    })
}

#[test]
fn a_key_refused_for_its_other_body_says_nothing_of_the_body_before() {
    let mut bench = Bench::new(json!([undoable(
        "charge",
        json!({ "max_failures": 0, "on_permanent": "undo" })
    ),]));
    expire(&mut bench, "charge");
    assert_eq!(bench.task(), TaskStatus::Error);
    retry_with_body(&mut bench, "charge").unwrap();
    let attempt = bench.claim("charge").unwrap();
    bench.reply("charge", attempt, refusal(422)).unwrap();
    assert_eq!(bench.status("charge.undo"), StepStatus::Pending);
}

#[test]
fn another_body_waits_until_the_probe_has_told_what_became_of_the_first() {
    let mut bench = Bench::new(probed(json!({ "max_failures": 0 })));
    expire(&mut bench, "charge");
    assert_eq!(bench.task(), TaskStatus::Error);
    let refused = retry_with_body(&mut bench, "charge");
    assert!(
        matches!(refused, Err(Refusal::StepState { needed, .. }) if needed.contains("probe")),
        "{refused:?}"
    );
    let step = bench.step("charge");
    bench
        .apply(Command::Retry {
            step: Some(step),
            body: None,
            reason: None,
        })
        .unwrap();
    let asks = call_of(&mut bench, "charge");
    bench
        .reply("charge", asks.attempt, answer(404, json!(null)))
        .unwrap();
    refuse(&mut bench, "charge");
    retry_with_body(&mut bench, "charge").unwrap();
    let works = call_of(&mut bench, "charge");
    assert_eq!(works.body.as_deref(), Some(r#"{"amount":20}"#));
}

#[test]
fn an_undo_that_a_policy_asks_for_waits_until_the_task_is_no_longer_paused() {
    let mut bench = Bench::new(saga());
    bench.process("reserve");
    let charge = bench.claim("charge").unwrap();
    bench.apply(Command::Pause { reason: None }).unwrap();
    let told = bench.draft.events.len();
    bench.reply("charge", charge, refusal(402)).unwrap();
    assert_eq!(bench.task(), TaskStatus::Paused);
    assert_eq!(
        bench.events()[told..],
        ["step.error"],
        "an operator holds it"
    );
    bench.apply(Command::Resume { reason: None }).unwrap();
    assert_eq!(bench.task(), TaskStatus::Undoing);
    bench.process("reserve.undo");
    assert_eq!(bench.task(), TaskStatus::Undone);
}

#[test]
fn an_undo_can_be_paused_and_goes_on() {
    let mut bench = Bench::new(diamond(json!({})));
    for step in ["start", "left", "right"] {
        bench.process(step);
    }
    refuse(&mut bench, "join");
    let left = bench.claim("left.undo").unwrap();
    bench.apply(Command::Pause { reason: None }).unwrap();
    bench
        .reply("left.undo", left, success(json!(null)))
        .unwrap();
    assert_eq!(bench.task(), TaskStatus::Paused);
    assert!(bench.claim("right.undo").is_err());
    bench.apply(Command::Resume { reason: None }).unwrap();
    bench.process("right.undo");
    bench.process("start.undo");
    assert_eq!(bench.task(), TaskStatus::Undone);
}

#[test]
fn a_probe_whose_instance_is_lost_is_asked_again() {
    let mut bench = Bench::new(probed(json!({})));
    expire(&mut bench, "charge");
    let asks = call_of(&mut bench, "charge");
    bench.lose("charge", asks.attempt).unwrap();
    let again = call_of(&mut bench, "charge");
    assert!(matches!(
        again.purpose,
        crate::task::call::Purpose::Probe(_)
    ));

    bench.apply(Command::Undo { reason: None }).unwrap();
    bench.lose("charge", again.attempt).unwrap();
    let asks = call_of(&mut bench, "charge.undo");
    bench.lose("charge.undo", asks.attempt).unwrap();
    assert_eq!(bench.record("charge.undo").effect, Effect::Known);
    let again = call_of(&mut bench, "charge.undo");
    assert!(matches!(
        again.purpose,
        crate::task::call::Purpose::Probe(_)
    ));
}

#[test]
fn a_task_cancelled_while_it_is_undone_stays_as_it_is() {
    let mut bench = Bench::new(saga());
    bench.process("reserve");
    refuse(&mut bench, "charge");
    let attempt = bench.claim("reserve.undo").unwrap();
    bench.apply(Command::Cancel { reason: None }).unwrap();
    assert_eq!(bench.task(), TaskStatus::Cancelled);
    assert_eq!(bench.record("reserve.undo").effect, Effect::Unknown);
    let late = bench.reply("reserve.undo", attempt, success(json!(null)));
    assert!(matches!(late, Err(Refusal::Late { .. })), "{late:?}");
    assert_eq!(bench.status("reserve"), StepStatus::Processed);
}

fn never_started(
    bench: &mut Bench,
    name: &str,
    attempt: Attempt,
) -> Result<CommandOutput, Refusal> {
    let step = bench.step(name);
    let why = Release::NeverStarted;
    bench.apply(Command::Release { step, attempt, why })
}

#[test]
fn a_call_that_was_dropped_at_its_complete_by_is_no_claim_that_never_started() {
    let mut bench = Bench::new(saga());
    bench.process("reserve");
    let attempt = bench.claim("charge").unwrap();
    bench.later(Span::from_secs(31));
    let refused = never_started(&mut bench, "charge", attempt);
    assert!(
        matches!(refused, Err(Refusal::StepState { .. })),
        "{refused:?}"
    );
    bench.expire("charge").unwrap();
    assert_eq!(bench.record("charge").failure_count, 1, "it counts");
    assert_eq!(bench.record("charge").effect, Effect::Unknown);
}

#[test]
fn a_claim_whose_call_was_not_seen_to_start_may_have_taken_effect() {
    let mut bench = Bench::new(saga());
    bench.process("reserve");
    let attempt = bench.claim("charge").unwrap();
    never_started(&mut bench, "charge", attempt).unwrap();
    assert_eq!(bench.status("charge"), StepStatus::Pending);
    assert_eq!(bench.record("charge").failure_count, 0);
    assert_eq!(bench.record("charge").effect, Effect::Unknown);
}
