//! A reply that comes later.

use super::*;
use crate::open_reply::{Progress, ReplyDigest, StepHolder};

fn one(extra: Value) -> Value {
    let mut step = json!({ "name": "a", "agent": "x", "complete_within": "1h" });
    step.as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    json!([step, { "name": "b", "agent": "x" }])
}

/// Its service has promised to reply later.
fn deferred(extra: Value) -> (Bench, Attempt) {
    let mut bench = Bench::new(one(extra));
    let attempt = bench.claim("a").unwrap();
    bench.reply("a", attempt, CallOutcome::Deferred).unwrap();
    (bench, attempt)
}

impl Bench {
    fn later_reply(
        &mut self,
        attempt: Attempt,
        outcome: CallOutcome,
        digest: &str,
    ) -> CommandOutput {
        let step = self.step("a");
        let digest = ReplyDigest(digest.to_owned());
        self.apply(Command::LaterReply {
            step,
            attempt,
            outcome,
            digest,
        })
        .unwrap()
    }

    fn heartbeat(&mut self, attempt: Attempt, fraction: Option<f64>) -> CommandOutput {
        let step = self.step("a");
        let progress = Progress {
            fraction,
            ..Progress::default()
        };
        self.apply(Command::Heartbeat {
            step,
            attempt,
            progress,
        })
        .unwrap()
    }

    fn is_held_by_nobody(&self) -> bool {
        match &self.record("a").state {
            StepState::Processing { held_by, .. } => held_by.instance().is_none(),
            other => panic!("{other:?}"),
        }
    }
}

fn ok() -> CallOutcome {
    success(json!({ "id": 7 }))
}

#[test]
fn the_attempt_stays_open_and_no_instance_holds_it() {
    let (mut bench, attempt) = deferred(json!({}));
    assert_eq!(bench.status("a"), StepStatus::Processing);
    assert!(bench.is_held_by_nobody());
    assert!(matches!(
        bench.later_reply(attempt, ok(), "1"),
        CommandOutput::Done
    ));
    assert_eq!(bench.status("a"), StepStatus::Processed);
    assert_eq!(bench.status("b"), StepStatus::Pending);
}

#[test]
fn the_same_reply_again_changes_nothing_and_another_is_late() {
    let (mut bench, attempt) = deferred(json!({}));
    bench.later_reply(attempt, ok(), "1");
    let before = bench.draft.task.clone();
    let again = bench.later_reply(attempt, ok(), "1");
    assert!(matches!(again, CommandOutput::Unchanged), "{again:?}");
    assert_eq!(bench.draft.task, before);
    for _ in 0..3 {
        let other = bench.later_reply(attempt, ok(), "2");
        assert!(matches!(other, CommandOutput::Late(_)), "{other:?}");
    }
    assert_eq!(bench.record("a").state, before.steps[0].state);
    let late = bench
        .events()
        .iter()
        .filter(|kind| **kind == "step.late_reply")
        .count();
    assert_eq!(late, 1, "the history has one entry for each attempt");
}

#[test]
fn a_reply_before_the_promise_counts_and_the_promise_opens_nothing_again() {
    let mut bench = Bench::new(one(json!({})));
    let attempt = bench.claim("a").unwrap();
    assert!(matches!(
        bench.later_reply(attempt, ok(), "1"),
        CommandOutput::Done
    ));
    let promise = bench.reply("a", attempt, CallOutcome::Deferred);
    assert!(matches!(promise, Err(Refusal::Late { .. })), "{promise:?}");
    assert_eq!(bench.status("a"), StepStatus::Processed);
}

#[test]
fn an_attempt_that_ends_without_its_reply_is_a_failure_like_any_other() {
    let (mut bench, attempt) = deferred(json!({}));
    bench.later(Span::from_secs(3599));
    assert!(bench.expire("a").is_err());
    bench.later(Span::from_secs(1));
    bench.expire("a").unwrap();
    assert_eq!(bench.status("a"), StepStatus::Pending);
    assert_eq!(bench.record("a").failure_count, 1);
    assert!(matches!(
        bench.later_reply(attempt, ok(), "1"),
        CommandOutput::Late(_)
    ));
    assert_eq!(bench.status("a"), StepStatus::Pending);
    bench.later(Span::from_secs(60));
    let next = bench.claim("a").unwrap();
    assert!(matches!(
        bench.later_reply(next, ok(), "1"),
        CommandOutput::Done
    ));
}

#[test]
fn silence_is_a_failure_long_before_complete_by() {
    let (mut bench, attempt) = deferred(json!({ "heartbeat_within": "20s" }));
    bench.later(Span::from_secs(19));
    assert!(matches!(
        bench.heartbeat(attempt, None),
        CommandOutput::Done
    ));
    bench.later(Span::from_secs(20));
    assert!(
        bench.expire("a").is_err(),
        "a heartbeat that was not saved may have come since"
    );
    bench.later(Span::from_secs(5));
    bench.expire("a").unwrap();
    let reason = bench.draft.events.last().unwrap().reason.clone();
    assert!(reason.unwrap().contains("no heartbeat within 20s"));
    assert_eq!(bench.status("a"), StepStatus::Pending);
    let late = bench.heartbeat(attempt, None);
    assert!(matches!(late, CommandOutput::Late(_)), "{late:?}");
}

#[test]
fn heartbeats_that_come_often_are_not_saved_each() {
    let (mut bench, attempt) = deferred(json!({ "heartbeat_within": "20s" }));
    let events = bench.draft.events.len();
    let mut saved = 0;
    for beat in 0..10_000 {
        bench.later(Span::from_millis(1));
        let fraction = Some(f64::from(beat) / 10_000.0);
        if let CommandOutput::Done = bench.heartbeat(attempt, fraction) {
            saved += 1;
        }
    }
    assert_eq!(saved, 10, "one a second");
    let recorded = bench.draft.events.len() - events;
    assert_eq!(recorded, 1, "one in a hundredth of an hour");
    let StepState::Processing {
        held_by: StepHolder::Service(open),
        ..
    } = &bench.record("a").state
    else {
        panic!("it is open");
    };
    assert!(open.progress.fraction.unwrap() > 0.8, "{open:?}");
}

#[test]
fn errors_count_as_those_of_a_response() {
    let (mut bench, attempt) = deferred(json!({}));
    let transient = CallOutcome::Transient {
        fault: fault(FaultKind::Transient, "busy".to_owned(), bench.now),
        wait: Duration::ZERO,
    };
    bench.later_reply(attempt, transient, "1");
    assert_eq!(bench.events().last(), Some(&"step.retrying"));
    let StepState::Pending { ready_at } = bench.record("a").state else {
        panic!("it waits");
    };
    assert!(ready_at > bench.now, "it waits before the next attempt");
    bench.later(Span::from_secs(60));
    let attempt = bench.claim("a").unwrap();
    bench.reply("a", attempt, CallOutcome::Deferred).unwrap();
    bench.later_reply(attempt, refusal(400), "2");
    assert_eq!(bench.status("a"), StepStatus::Error);
}

#[test]
fn an_undo_waits_for_the_reply_or_drops_it_as_the_step_says() {
    let undo = json!({ "request": { "path": "/undo" } });
    let (mut bench, attempt) = deferred(json!({ "undo": undo }));
    bench.apply(Command::Undo { reason: None }).unwrap();
    assert_eq!(bench.task(), TaskStatus::Undoing);
    assert_eq!(bench.status("a.undo"), StepStatus::Waiting);
    bench.later_reply(attempt, ok(), "1");
    assert_eq!(bench.status("a.undo"), StepStatus::Pending);

    let (mut bench, attempt) = deferred(json!({ "undo": undo, "on_undo": "drop" }));
    bench.apply(Command::Undo { reason: None }).unwrap();
    assert_eq!(bench.status("a"), StepStatus::Cancelled);
    assert_eq!(bench.record("a").effect, Effect::Unknown);
    assert_eq!(bench.status("a.undo"), StepStatus::Pending);
    assert_eq!(bench.draft.dropped, [], "no instance has a call to drop");
    assert!(matches!(
        bench.later_reply(attempt, ok(), "1"),
        CommandOutput::Late(_)
    ));
}

#[test]
fn a_promise_that_comes_while_the_call_is_dropped_is_not_waited_for() {
    let undo = json!({ "request": { "path": "/undo" } });
    let mut bench = Bench::new(one(json!({ "undo": undo, "on_undo": "drop" })));
    let attempt = bench.claim("a").unwrap();
    bench.apply(Command::Undo { reason: None }).unwrap();
    bench.reply("a", attempt, CallOutcome::Deferred).unwrap();
    assert_eq!(bench.status("a"), StepStatus::Cancelled);
    assert_eq!(bench.status("a.undo"), StepStatus::Pending);
}

#[test]
fn a_paused_or_cancelled_task_takes_replies_as_it_takes_responses() {
    let (mut bench, attempt) = deferred(json!({}));
    bench.apply(Command::Pause { reason: None }).unwrap();
    bench.later_reply(attempt, ok(), "1");
    assert_eq!(bench.status("a"), StepStatus::Processed);

    let (mut bench, attempt) = deferred(json!({}));
    bench.apply(Command::Cancel { reason: None }).unwrap();
    assert!(matches!(
        bench.later_reply(attempt, ok(), "1"),
        CommandOutput::Late(_)
    ));
    assert_eq!(bench.record("a").effect, Effect::Unknown);
}

#[test]
fn a_probe_cannot_be_answered_later() {
    let probe = json!({ "request": { "path": "/found" } });
    let mut bench = Bench::new(one(json!({ "probe": probe })));
    bench.claim("a").unwrap();
    bench.later(Span::from_secs(3600));
    bench.expire("a").unwrap();
    bench.later(Span::from_secs(60));
    let attempt = bench.claim("a").unwrap();
    bench.reply("a", attempt, CallOutcome::Deferred).unwrap();
    assert_eq!(bench.status("a"), StepStatus::Error);
}
