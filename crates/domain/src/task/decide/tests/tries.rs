//! Tries after transient faults: what is held between them, and how their time is counted.

use super::*;
use crate::values::fault::Effect;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn one(step: Value) -> Bench {
    let mut whole = json!({ "name": "a", "agent": "x", "complete_within": "30s" });
    for (field, value) in step.as_object().unwrap() {
        whole[field] = value.clone();
    }
    Bench::new(json!([whole]))
}

fn complete_by(bench: &Bench, name: &str) -> Timestamp {
    match bench.record(name).state {
        StepState::Processing { complete_by, .. } => complete_by,
        ref other => panic!("not processing: {other:?}"),
    }
}

fn ready_at(bench: &Bench, name: &str) -> Timestamp {
    match bench.record(name).state {
        StepState::Pending { ready_at } => ready_at,
        ref other => panic!("not pending: {other:?}"),
    }
}

#[test]
fn between_two_tries_nobody_holds_the_step_and_no_failure_is_counted() {
    let mut bench = one(json!({}));
    bench.defer("a", 503, SECOND);
    assert_eq!(ready_at(&bench, "a"), bench.now + Span::from_secs(1));
    let record = bench.record("a");
    assert_eq!((record.failure_count, record.tries), (0, 1));
    assert_eq!(record.last_fault.as_ref().unwrap().status, Some(503));
    assert_eq!(record.effect, Effect::Known);
    let event = bench.draft.events.last().unwrap();
    assert_eq!(event.kind, "step.retrying");
    assert_eq!(event.reason.as_deref(), Some("retried in 1s"));
    assert!(matches!(bench.claim("a"), Err(Refusal::NotDue { .. })));
}

#[test]
fn the_next_try_goes_on_with_the_time_that_is_left() {
    let mut bench = one(json!({}));
    let end = bench.now + Span::from_secs(30);
    for tries in 0..3 {
        assert_eq!(bench.record("a").tries, tries);
        bench.defer("a", 503, 5 * SECOND);
        bench.later(Span::from_secs(5));
    }
    bench.claim("a").unwrap();
    assert_eq!(complete_by(&bench, "a"), end);
    assert_eq!(bench.record("a").attempt, Attempt(4));
}

#[test]
fn waiting_for_a_free_slot_uses_none_of_the_time() {
    let mut bench = one(json!({}));
    bench.defer("a", 503, 5 * SECOND);
    bench.later(Span::from_secs(3600));
    bench.claim("a").unwrap();
    assert_eq!(complete_by(&bench, "a"), bench.now + Span::from_secs(25));
}

#[test]
fn a_wait_beyond_complete_by_is_a_failure_at_once_and_is_kept() {
    let mut bench = one(json!({ "max_failures": 1 }));
    bench.defer("a", 503, HOUR);
    assert_eq!(bench.record("a").failure_count, 1);
    assert_eq!(ready_at(&bench, "a"), bench.now + Span::from_secs(3600));
    assert_eq!(bench.record("a").tries, 0);
    bench.later(Span::from_secs(3600));
    bench.claim("a").unwrap();
    let whole = bench.now + Span::from_secs(30);
    assert_eq!(complete_by(&bench, "a"), whole);
    let attempt = bench.record("a").attempt;
    let outcome = bench.transient(503, HOUR);
    bench.reply("a", attempt, outcome).unwrap();
    assert_eq!(bench.status("a"), StepStatus::Error);
    let error = bench.draft.task.error().unwrap();
    assert_eq!(error.kind, FaultKind::Exhausted);
    assert_eq!(
        error.effect,
        Effect::Known,
        "the service said that it did nothing"
    );
    assert_eq!(
        error.message,
        "failed 2 times; it did not succeed within 30s; its last fault: the service responded 503; \
         the next attempt, in 1h, would be too late"
    );
}

#[test]
fn the_wait_that_a_service_asked_for_is_kept_where_more_time_is_granted_too() {
    let mut bench = one(json!({ "max_failures": 0,
        "on_exhausted": { "extend": "10m", "times": 1, "then": "error" } }));
    bench.defer("a", 503, HOUR);
    assert_eq!(ready_at(&bench, "a"), bench.now + Span::from_secs(3600));
    assert_eq!(bench.record("a").extensions_used, 1);
}

#[test]
fn an_expired_attempt_begins_anew() {
    let mut bench = one(json!({}));
    bench.defer("a", 503, 20 * SECOND);
    bench.later(Span::from_secs(20));
    bench.claim("a").unwrap();
    bench.later(Span::from_secs(10));
    bench.expire("a").unwrap();
    let record = bench.record("a");
    assert_eq!((record.failure_count, record.tries), (1, 0));
    assert_eq!(record.time_left, None);
}

#[test]
fn an_answer_of_the_try_before_is_late() {
    let mut bench = one(json!({}));
    bench.defer("a", 503, SECOND);
    let outcome = bench.transient(503, SECOND);
    let again = bench.reply("a", Attempt(1), outcome.clone());
    assert!(matches!(again, Err(Refusal::Late { .. })), "{again:?}");
    bench.later(Span::from_secs(1));
    bench.claim("a").unwrap();
    let again = bench.reply("a", Attempt(1), outcome);
    assert!(matches!(again, Err(Refusal::Late { .. })), "{again:?}");
}

#[test]
fn without_a_wait_it_is_offered_at_once() {
    let mut bench = one(json!({}));
    bench.draft.ready.clear();
    bench.defer("a", 503, Duration::ZERO);
    assert_eq!(bench.draft.ready, [StepIndex(0)]);
}

#[test]
fn an_operator_need_not_wait() {
    for command in ["retry", "skip", "resolve", "cancel"] {
        let mut bench = one(json!({}));
        bench.defer("a", 503, 20 * SECOND);
        let step = bench.step("a");
        let command = match command {
            "retry" => Command::Retry {
                step: Some(step),
                body: None,
                reason: None,
            },
            "skip" => Command::Skip {
                step,
                output: None,
                reason: None,
            },
            "resolve" => Command::Resolve {
                step,
                output: Payload::null(),
                reason: None,
            },
            _ => Command::Cancel { reason: None },
        };
        let retries = matches!(command, Command::Retry { .. });
        bench.apply(command).unwrap();
        assert!(bench.draft.dropped.is_empty(), "there is no call to drop");
        if retries {
            bench.claim("a").unwrap();
            let whole = bench.now + Span::from_secs(30);
            assert_eq!(complete_by(&bench, "a"), whole, "with all of its time");
        } else {
            assert!(bench.draft.task.is_ended());
        }
    }
}

#[test]
fn an_undo_need_not_wait_and_passes_over_what_did_nothing() {
    for (status, undo) in [(503, StepStatus::Skipped), (500, StepStatus::Pending)] {
        let mut bench = one(json!({ "undo": { "request": { "path": "/undo" } } }));
        bench.defer("a", status, 20 * SECOND);
        bench.apply(Command::Undo { reason: None }).unwrap();
        assert_eq!(bench.status("a"), StepStatus::Cancelled);
        assert_eq!(bench.status("a.undo"), undo, "after {status}");
    }
}

#[test]
fn a_try_that_ends_while_the_task_is_undone_is_the_last() {
    let mut bench = one(json!({ "undo": { "request": { "path": "/undo" } } }));
    let attempt = bench.claim("a").unwrap();
    bench.apply(Command::Undo { reason: None }).unwrap();
    let outcome = bench.transient(503, SECOND);
    bench.reply("a", attempt, outcome).unwrap();
    assert_eq!(bench.status("a"), StepStatus::Cancelled);
    assert_eq!(bench.task(), TaskStatus::Undone, "nothing took effect");
}

#[test]
fn a_wait_beyond_the_limit_of_the_task_is_ended_by_the_limit() {
    let steps = json!([{ "name": "a", "agent": "x", "complete_within": "30s", "max_failures": 0 }]);
    let mut bench = Bench::limited(steps, Some(Span::from_secs(20)));
    bench.defer("a", 503, HOUR);
    assert_eq!(bench.status("a"), StepStatus::Pending);
    assert_eq!(bench.record("a").failure_count, 0);
    bench.later(Span::from_secs(20));
    bench.apply(Command::Overdue).unwrap();
    let error = bench.draft.task.error().unwrap();
    assert_eq!(error.kind, FaultKind::Deadline);
    assert_eq!(error.effect, Effect::Known);
}

/// The step is asked about before it is tried again wherever it may have taken effect.
#[test]
fn a_fault_that_leaves_the_outcome_open_is_asked_about_first() {
    let mut bench =
        one(json!({ "probe": { "request": { "path": "/" }, "complete_within": "10s" } }));
    bench.defer("a", 500, 3 * SECOND);
    assert_eq!(bench.record("a").failure_count, 1);
    assert_eq!(ready_at(&bench, "a"), bench.now + Span::from_secs(3));
    bench.later(Span::from_secs(3));
    // The probe is tried again within its own time.
    bench.defer("a", 503, 4 * SECOND);
    assert_eq!(bench.record("a").effect, Effect::Unknown);
    assert_eq!(bench.record("a").failure_count, 1);
    bench.later(Span::from_secs(4));
    let attempt = bench.claim("a").unwrap();
    assert!(bench.record("a").is_probing);
    assert_eq!(complete_by(&bench, "a"), bench.now + Span::from_secs(6));
    let not_done = CallOutcome::Probed {
        status: 404,
        body: Payload::null(),
    };
    bench.reply("a", attempt, not_done).unwrap();
    bench.claim("a").unwrap();
    assert_eq!(bench.record("a").effect, Effect::Known);
    let whole = bench.now + Span::from_secs(30);
    assert_eq!(complete_by(&bench, "a"), whole);
}

/// The undo of a step has done nothing while it only asks its probe.
#[test]
fn a_probe_before_an_undo_leaves_the_undo_itself_without_doubt() {
    let mut bench = one(json!({
        "probe": { "request": { "path": "/" }, "complete_within": "10s" },
        "undo": { "request": { "path": "/undo" } },
    }));
    let attempt = bench.claim("a").unwrap();
    bench.later(Span::from_secs(30));
    bench.expire("a").unwrap();
    assert_eq!(bench.record("a").attempt, attempt);
    bench.apply(Command::Undo { reason: None }).unwrap();
    bench.defer("a.undo", 503, 4 * SECOND);
    assert_eq!(bench.record("a.undo").effect, Effect::Known);
    bench.later(Span::from_secs(4));
    bench.claim("a.undo").unwrap();
    assert!(bench.record("a.undo").is_probing);
    assert_eq!(
        complete_by(&bench, "a.undo"),
        bench.now + Span::from_secs(6)
    );
}
