//! A reply that comes later.

use super::*;
use crate::task::open_reply::{Progress, ReplyDigest, ReplyLog, StepHolder};
use crate::task::{
    reply_token::{ReplyAddresses, ReplyKey},
    retry_budget::RetryWait,
};

pub(super) fn one(extra: Value) -> Value {
    let mut step = json!({ "name": "a", "agent": "x", "complete_within": "1h" });
    step.as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    json!([step, { "name": "b", "agent": "x" }])
}

/// Its service has promised to reply later.
pub(super) fn deferred(extra: Value) -> (Bench, Attempt) {
    let mut bench = Bench::new(one(extra));
    let attempt = bench.claim("a").unwrap();
    bench.reply("a", attempt, CallOutcome::Deferred).unwrap();
    (bench, attempt)
}

impl Bench {
    pub(super) fn later_reply(
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

pub(super) fn ok() -> CallOutcome {
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
        fault: Fault::transient("busy", bench.now),
        wait: RetryWait::default(),
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
fn the_same_reply_to_an_earlier_attempt_is_known_too_and_what_is_kept_is_bounded() {
    let most = ReplyLog::MOST_ACCEPTED as u32;
    let (mut bench, first) = deferred(json!({ "complete_within": "30d" }));
    let busy = |now| CallOutcome::Transient {
        fault: Fault::transient("busy", now),
        wait: RetryWait::default(),
    };
    bench.later_reply(first, busy(bench.now), "1");
    for _ in 1..most {
        bench.later(Span::from_secs(3600));
        let attempt = bench.claim("a").unwrap();
        let again = bench.later_reply(first, busy(bench.now), "1");
        assert!(matches!(again, CommandOutput::Unchanged), "{again:?}");
        bench.reply("a", attempt, CallOutcome::Deferred).unwrap();
        bench.later_reply(attempt, busy(bench.now), "1");
    }
    bench.later(Span::from_secs(3600));
    let last = bench.claim("a").unwrap();
    bench.later_reply(last, ok(), "2");
    assert_eq!(bench.status("a"), StepStatus::Processed);
    assert_eq!(bench.record("a").reply_log.accepted.len(), most as usize);
    let second = Attempt(first.0 + 1);
    for (attempt, digest, is_known) in [(last, "2", true), (second, "1", true), (first, "1", false)]
    {
        let again = bench.later_reply(attempt, ok(), digest);
        assert_eq!(
            matches!(again, CommandOutput::Unchanged),
            is_known,
            "{again:?}"
        );
    }
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

fn polled(status: &str) -> CallOutcome {
    CallOutcome::Polled {
        status: 200,
        body: Payload::from_value(&json!({ "status": status, "pages": 3 })),
        retry_after: None,
    }
}

/// Its service has named an address for polling.
pub(super) fn polling(extra: Value) -> (Bench, Attempt) {
    let mut step = json!({ "reply": { "poll": { "until": "response.body.status == 'done'",
        "failed": "response.body.status == 'failed'", "output": "response.body.pages", "every": "10s" } } });
    let fields = step.as_object_mut().unwrap();
    fields.extend(extra.as_object().unwrap().clone());
    let mut bench = Bench::new(one(step));
    let attempt = bench.claim("a").unwrap();
    let promise = CallOutcome::PollAt {
        address: "http://x:1/jobs/7".to_owned(),
        retry_after: None,
    };
    bench.reply("a", attempt, promise).unwrap();
    (bench, attempt)
}

#[test]
fn a_poll_is_claimed_when_it_is_due_and_is_no_new_attempt() {
    let (mut bench, attempt) = polling(json!({}));
    assert!(bench.is_held_by_nobody());
    let early = bench.claim("a");
    assert!(matches!(early, Err(Refusal::NotDue { .. })), "{early:?}");
    for _ in 0..3 {
        bench.later(Span::from_secs(10));
        assert_eq!(bench.claim("a").unwrap(), attempt);
        assert!(!bench.is_held_by_nobody());
        let again = bench.claim("a");
        assert!(again.is_err(), "one instance polls");
        bench.reply("a", attempt, polled("running")).unwrap();
    }
    bench.later(Span::from_secs(10));
    bench.claim("a").unwrap();
    bench.reply("a", attempt, polled("done")).unwrap();
    assert_eq!(bench.record("a").output().unwrap().as_json(), "3");
    let claims = bench
        .events()
        .iter()
        .filter(|kind| **kind == "step.claimed")
        .count();
    assert_eq!(claims, 1, "the history has no polls");
}

#[test]
fn a_service_asks_for_more_time_and_a_fault_costs_nothing() {
    let (mut bench, attempt) = polling(json!({}));
    bench.later(Span::from_secs(10));
    bench.claim("a").unwrap();
    let busy = bench.transient(503, Duration::from_secs(60));
    bench.reply("a", attempt, busy).unwrap();
    bench.later(Span::from_secs(59));
    assert!(bench.claim("a").is_err());
    bench.later(Span::from_secs(1));
    bench.claim("a").unwrap();
    assert_eq!(bench.record("a").failure_count, 0);
    assert_eq!(bench.record("a").tries, 0);
    assert!(bench.record("a").last_fault.is_some());
}

#[test]
fn an_instance_that_is_lost_while_it_polls_leaves_the_promise_as_it_was() {
    let (mut bench, attempt) = polling(json!({}));
    bench.later(Span::from_secs(10));
    bench.claim("a").unwrap();
    bench.lose("a", attempt).unwrap();
    assert!(bench.is_held_by_nobody());
    assert_eq!(bench.record("a").failure_count, 0);
    bench.later(Span::from_secs(10));
    bench.claim("a").unwrap();
    let step = bench.step("a");
    let why = Release::Restart;
    bench
        .apply(Command::Release { step, attempt, why })
        .unwrap();
    assert!(bench.is_held_by_nobody());
    // A reply that the lost instance got comes late, and changes nothing.
    assert!(bench.reply("a", attempt, polled("done")).is_err());
    bench.later(Span::from_secs(10));
    bench.claim("a").unwrap();
    bench.reply("a", attempt, polled("done")).unwrap();
    assert_eq!(bench.status("a"), StepStatus::Processed);
}

#[test]
fn a_failed_operation_had_no_effect_and_a_poll_that_cannot_be_judged_leaves_it_unknown() {
    for (outcome, effect) in [
        (polled("failed"), Effect::Known),
        (refusal(404), Effect::Unknown),
        (success(json!({})), Effect::Unknown),
    ] {
        let (mut bench, attempt) = polling(json!({}));
        bench.later(Span::from_secs(10));
        bench.claim("a").unwrap();
        let outcome = match outcome {
            // No status at all.
            CallOutcome::Success(_) => CallOutcome::Polled {
                status: 200,
                body: Payload::null(),
                retry_after: None,
            },
            outcome => outcome,
        };
        bench.reply("a", attempt, outcome).unwrap();
        assert_eq!(bench.status("a"), StepStatus::Error);
        assert_eq!(bench.record("a").effect, effect);
    }
}

#[test]
fn polls_go_on_while_the_task_is_paused_or_its_undo_waits_and_end_if_the_undo_drops_them() {
    let undo = json!({ "request": { "path": "/undo" } });
    let (mut bench, attempt) = polling(json!({ "undo": undo }));
    bench.apply(Command::Pause { reason: None }).unwrap();
    bench.later(Span::from_secs(10));
    bench.claim("a").unwrap();
    bench.reply("a", attempt, polled("running")).unwrap();
    bench.apply(Command::Undo { reason: None }).unwrap();
    bench.later(Span::from_secs(10));
    bench.claim("a").unwrap();
    bench.reply("a", attempt, polled("done")).unwrap();
    assert_eq!(bench.status("a.undo"), StepStatus::Pending);

    // Between two polls, and during one.
    let (mut bench, _) = polling(json!({ "undo": undo, "on_undo": "drop" }));
    bench.apply(Command::Undo { reason: None }).unwrap();
    assert_eq!(bench.status("a"), StepStatus::Cancelled);
    let (mut bench, attempt) = polling(json!({ "undo": undo, "on_undo": "drop" }));
    bench.later(Span::from_secs(10));
    bench.claim("a").unwrap();
    bench.apply(Command::Undo { reason: None }).unwrap();
    assert_eq!(bench.draft.dropped.len(), 1);
    let step = bench.step("a");
    let why = Release::Dropped;
    bench
        .apply(Command::Release { step, attempt, why })
        .unwrap();
    assert_eq!(bench.status("a"), StepStatus::Cancelled);
    assert_eq!(bench.record("a").effect, Effect::Unknown);
}

#[test]
fn however_long_a_service_asks_to_wait_it_is_polled_once_more_before_complete_by() {
    let (mut bench, attempt) = polling(json!({}));
    bench.later(Span::from_secs(10));
    bench.claim("a").unwrap();
    let busy = bench.transient(503, Duration::from_secs(1_000_000));
    bench.reply("a", attempt, busy).unwrap();
    bench.later(Span::from_secs(3559));
    assert!(bench.claim("a").is_err());
    bench.later(Span::from_secs(1));
    bench.claim("a").unwrap();
    bench.reply("a", attempt, polled("done")).unwrap();
    assert_eq!(bench.status("a"), StepStatus::Processed);

    // The step itself is polled less often than it has time.
    let (mut bench, attempt) = polling(json!({ "complete_within": "6s" }));
    bench.later(Span::from_secs(5));
    bench.claim("a").unwrap();
    bench.reply("a", attempt, polled("running")).unwrap();
    bench.later(Span::from_secs(1));
    bench.expire("a").unwrap();
}

#[test]
fn a_reply_that_comes_while_an_instance_polls_is_the_reply() {
    let (mut bench, attempt) = polling(json!({}));
    bench.later(Span::from_secs(10));
    bench.claim("a").unwrap();
    let failed = bench.transient(500, Duration::ZERO);
    bench.later_reply(attempt, failed, "1");
    assert_eq!(bench.status("a"), StepStatus::Pending);
    let other = bench.later_reply(attempt, ok(), "2");
    assert!(matches!(other, CommandOutput::Late(_)));
    let found = bench.reply("a", attempt, polled("done"));
    assert!(found.is_err(), "{found:?}");

    let (mut bench, attempt) = polling(json!({}));
    bench.later(Span::from_secs(10));
    bench.claim("a").unwrap();
    bench.later_reply(attempt, refusal(422), "1");
    assert_eq!(bench.status("a"), StepStatus::Error);
    assert_eq!(bench.record("a").effect, Effect::Known);
}

#[test]
fn what_is_polled_for_too_long_expires() {
    let (mut bench, _) = polling(json!({}));
    bench.later(Span::from_secs(3600));
    let late = bench.claim("a");
    assert!(late.is_err(), "{late:?}");
    bench.expire("a").unwrap();
    assert_eq!(bench.record("a").failure_count, 1);
    assert_eq!(bench.status("a"), StepStatus::Pending);
}

/// Claims what cancels the work of the step.
pub(super) fn cancellation(bench: &mut Bench) -> (Attempt, Box<Call>) {
    bench.later(Span::from_secs(1));
    let step = bench.step("a");
    let by = Claimant::Instance(InstanceId::new("node-1"));
    match bench.apply(Command::Claim { step, by }).unwrap() {
        CommandOutput::Call(call) => (call.attempt, call),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_undo_that_drops_a_reply_asks_the_service_to_cancel_its_work_first() {
    let undo = json!({ "request": { "path": "/undo" } });
    let (mut bench, _) = polling(json!({ "undo": undo, "on_undo": "drop", "cancel": {} }));
    bench.apply(Command::Undo { reason: None }).unwrap();
    assert_eq!(bench.status("a.undo"), StepStatus::Waiting);
    let (attempt, call) = cancellation(&mut bench);
    assert_eq!(call.method, crate::definition::Method::Delete);
    assert!(
        matches!(&call.target, crate::definition::Target::Operation { url, .. } if **url == *"http://x:1/jobs/7")
    );
    assert_eq!(call.dropped_by, crate::task::DroppedBy::Nothing);
    // A fault that may pass, a lost instance: it is asked again soon, however seldom it is polled.
    let busy = bench.transient(503, Duration::ZERO);
    bench.reply("a", attempt, busy).unwrap();
    cancellation(&mut bench);
    bench.lose("a", attempt).unwrap();
    assert_eq!(bench.status("a.undo"), StepStatus::Waiting);
    cancellation(&mut bench);
    bench.reply("a", attempt, refusal(404)).unwrap();
    assert_eq!(bench.status("a"), StepStatus::Cancelled);
    assert_eq!(bench.record("a").effect, Effect::Unknown);
    assert_eq!(bench.status("a.undo"), StepStatus::Pending);

    let cancel = json!({ "request": { "path": "/jobs/{{ task.key }}/cancel", "method": "POST", "body": null } });
    let (mut bench, _) = deferred(json!({ "undo": undo, "on_undo": "drop", "cancel": cancel }));
    bench.apply(Command::Undo { reason: None }).unwrap();
    let (attempt, call) = cancellation(&mut bench);
    assert_eq!(call.path, "/jobs/order-1/cancel");
    assert_eq!(call.body, None);
    bench.reply("a", attempt, ok()).unwrap();
    assert_eq!(bench.status("a"), StepStatus::Cancelled);
    assert_eq!(bench.status("a.undo"), StepStatus::Pending);
}

#[test]
fn a_reply_that_comes_before_the_work_is_cancelled_counts() {
    let undo = json!({ "request": { "path": "/undo" } });
    let cancel = json!({ "request": { "path": "/cancel" } });
    let busy = |now| CallOutcome::Transient {
        fault: Fault::transient("busy", now),
        wait: RetryWait::default(),
    };
    // Before the service is asked to cancel its work, and while it is asked.
    for is_asked in [false, true] {
        for (outcome, status, undone) in [
            (ok(), StepStatus::Processed, StepStatus::Pending),
            (
                busy(Timestamp::from_millis(0)),
                StepStatus::Cancelled,
                StepStatus::Skipped,
            ),
            (refusal(400), StepStatus::Error, StepStatus::Skipped),
        ] {
            let (mut bench, attempt) =
                deferred(json!({ "undo": undo, "on_undo": "drop", "cancel": cancel }));
            bench.apply(Command::Undo { reason: None }).unwrap();
            if is_asked {
                cancellation(&mut bench);
            }
            bench.later_reply(attempt, outcome, "1");
            assert_eq!(bench.status("a"), status);
            assert_eq!(bench.status("a.undo"), undone);
            assert_eq!(bench.draft.dropped.len(), usize::from(is_asked));
            if is_asked {
                bench.reply("a", attempt, ok()).unwrap_err();
            }
        }
    }
}

#[test]
fn a_cancellation_that_never_succeeds_ends_with_complete_by() {
    let undo = json!({ "request": { "path": "/undo" } });
    let (mut bench, _) = polling(json!({ "undo": undo, "on_undo": "drop", "cancel": {} }));
    bench.apply(Command::Undo { reason: None }).unwrap();
    bench.later(Span::from_secs(3600));
    bench.expire("a").unwrap();
    assert_eq!(bench.status("a"), StepStatus::Cancelled);
    assert_eq!(bench.status("a.undo"), StepStatus::Pending);
}

/// Its request has the address for the reply.
fn with_address() -> Value {
    json!({
        "reply": "callback",
        "request": { "path": "/jobs?cb={{ reply.url }}", "body": { "callback": "{{ reply.url }}", "coded": "{{ reply.url | b64encode }}" } },
        "probe": { "request": { "path": "/jobs" } },
    })
}

fn addresses() -> ReplyAddresses {
    ReplyAddresses::new(
        "https://p.example",
        ReplyKey::new(b"0123456789abcdef").unwrap(),
    )
}

impl Bench {
    fn replying(extra: Value) -> Self {
        let mut bench = Self::new(one(extra));
        bench.draft.reply_addresses = Some(Arc::new(addresses()));
        bench
    }

    /// Claims the step and returns the address that its request has.
    fn claim_address(&mut self) -> String {
        let step = self.step("a");
        let by = Claimant::Instance(InstanceId::new("node-1"));
        let output = self.apply(Command::Claim { step, by }).unwrap();
        let CommandOutput::Call(call) = output else {
            panic!("{output:?}");
        };
        let body: Value = serde_json::from_str(call.body.as_deref().unwrap()).unwrap();
        let address = body["callback"].as_str().unwrap().to_owned();
        assert_eq!(call.reply_url.as_deref(), Some(&*address));
        address
    }

    fn named_reply(&mut self, address: &str, outcome: CallOutcome, digest: &str) -> CommandOutput {
        let token = address.rsplit('/').next().unwrap();
        let key = ReplyKey::new(b"0123456789abcdef").unwrap();
        let (step, attempt) = key.verify(token).unwrap();
        assert_eq!(step.step, self.step("a"));
        self.later_reply(attempt, outcome, digest)
    }
}

#[test]
fn the_address_in_a_request_is_that_of_all_attempts_until_a_reply_is_accepted() {
    let mut bench = Bench::replying(with_address());
    let first = bench.claim_address();
    assert!(
        first.starts_with("https://p.example/v1/replies/"),
        "{first}"
    );
    let attempt = bench.record("a").attempt;
    let outcome = bench.transient(503, Duration::ZERO);
    bench.reply("a", attempt, outcome).unwrap();
    // No attempt is running.
    assert!(matches!(
        bench.named_reply(&first, ok(), "1"),
        CommandOutput::Late(_)
    ));
    let second = bench.claim_address();
    assert_eq!(first, second, "the same request under the same key");
    let attempt = bench.record("a").attempt;
    bench.reply("a", attempt, CallOutcome::Deferred).unwrap();
    assert!(matches!(
        bench.named_reply(&first, ok(), "2"),
        CommandOutput::Done
    ));
    assert_eq!(bench.status("a"), StepStatus::Processed);
    // The same reply again, and another one.
    assert!(matches!(
        bench.named_reply(&first, ok(), "2"),
        CommandOutput::Unchanged
    ));
    assert!(matches!(
        bench.named_reply(&first, ok(), "3"),
        CommandOutput::Late(_)
    ));
}

#[test]
fn an_address_of_before_a_reply_does_not_reply_to_the_step_that_is_run_again() {
    let mut bench = Bench::replying(with_address());
    let first = bench.claim_address();
    let attempt = bench.record("a").attempt;
    bench.reply("a", attempt, CallOutcome::Deferred).unwrap();
    assert!(matches!(
        bench.named_reply(&first, ok(), "1"),
        CommandOutput::Done
    ));
    let step = bench.step("a");
    bench
        .apply(Command::RetryFrom { step, reason: None })
        .unwrap();
    let again = bench.claim_address();
    assert_ne!(first, again);
    let attempt = bench.record("a").attempt;
    bench.reply("a", attempt, CallOutcome::Deferred).unwrap();
    // A service that repeats the old reply learns that it is known, and nothing happens.
    assert!(matches!(
        bench.named_reply(&first, ok(), "1"),
        CommandOutput::Unchanged
    ));
    assert!(matches!(
        bench.named_reply(&first, ok(), "2"),
        CommandOutput::Late(_)
    ));
    assert_eq!(bench.status("a"), StepStatus::Processing);
    assert!(matches!(
        bench.named_reply(&again, ok(), "1"),
        CommandOutput::Done
    ));
}

#[test]
fn a_step_that_is_run_again_has_another_address_although_nothing_was_replied_to_the_first() {
    let mut bench = Bench::replying(with_address());
    let first = bench.claim_address();
    let attempt = bench.record("a").attempt;
    bench.reply("a", attempt, ok()).unwrap();
    let step = bench.step("a");
    bench
        .apply(Command::RetryFrom { step, reason: None })
        .unwrap();
    let again = bench.claim_address();
    assert_ne!(first, again);
    let attempt = bench.record("a").attempt;
    bench.reply("a", attempt, CallOutcome::Deferred).unwrap();
    let told = bench.draft.events.len();
    let CommandOutput::Late(refusal) = bench.named_reply(&first, ok(), "1") else {
        panic!("it was accepted");
    };
    assert!(
        refusal
            .to_string()
            .contains("is not that of the reply which step a awaits"),
        "{refusal}"
    );
    // The history of the running attempt says nothing of it.
    assert_eq!(bench.draft.events.len(), told);
    assert!(matches!(
        bench.named_reply(&again, ok(), "1"),
        CommandOutput::Done
    ));
}

#[test]
fn a_reply_does_not_end_a_probe() {
    let mut bench = Bench::replying(with_address());
    let address = bench.claim_address();
    let attempt = bench.record("a").attempt;
    let lost = CallOutcome::Crashed(Fault {
        effect: Effect::Unknown,
        ..Fault::transient("gone", bench.now)
    });
    bench.reply("a", attempt, lost).unwrap();
    bench.now = bench.now + Span::from_secs(1);
    bench.claim("a").unwrap();
    assert!(bench.draft.is_probing(bench.step("a")));
    assert!(matches!(
        bench.named_reply(&address, ok(), "1"),
        CommandOutput::Late(_)
    ));
    assert!(bench.draft.is_probing(bench.step("a")));
}

#[test]
fn what_is_shown_of_a_request_hides_its_address() {
    let mut bench = Bench::replying(with_address());
    let address = bench.claim_address();
    let token = address.rsplit('/').next().unwrap();
    let budget = Budget::evaluation();
    let shown = call(
        &bench.draft.task,
        bench.step("a"),
        bench.now,
        bench.now,
        &budget,
        Secrets::Hidden,
    );
    let shown = format!("{:?}", shown.unwrap());
    assert!(!shown.contains(token) && shown.contains("***"), "{shown}");
}
