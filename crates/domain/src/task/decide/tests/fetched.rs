//! Steps that workers fetch.

use super::*;
use crate::{
    task::{
        call::Purpose,
        open_reply::{Progress, ReplyDigest, StepHolder},
    },
    values::ids::WorkerName,
};

fn bench(extra: Value) -> Bench {
    let mut step = json!({ "name": "a", "agent": "x", "complete_within": "1h" });
    step.as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    Bench::new(json!([step, { "name": "b", "agent": "x" }]))
}

impl Bench {
    fn fetch(&mut self, name: &str) -> Box<Call> {
        let step = self.step(name);
        let by = Claimant::Worker(WorkerName::new("w-1"));
        match self.apply(Command::Claim { step, by }).unwrap() {
            CommandOutput::Call(call) => call,
            other => panic!("{other:?}"),
        }
    }

    fn answer(&mut self, name: &str, attempt: Attempt, outcome: CallOutcome) -> CommandOutput {
        let step = self.step(name);
        let digest = ReplyDigest("1".to_owned());
        self.apply(Command::LaterReply {
            step,
            attempt,
            outcome,
            digest,
        })
        .unwrap()
    }

    fn take_back(&mut self, attempt: Attempt) -> Result<(), Refusal> {
        let step = self.step("a");
        let why = Release::Undelivered;
        self.apply(Command::Release { step, attempt, why })
            .map(|_| ())
    }
}

#[test]
fn a_worker_holds_what_it_fetched_and_no_instance_does() {
    let mut bench = bench(json!({}));
    let call = bench.fetch("a");
    let StepState::Processing { held_by, .. } = &bench.record("a").state else {
        panic!("not fetched");
    };
    assert_eq!(held_by.worker().unwrap().as_str(), "w-1");
    assert_eq!(held_by.instance(), None);
    let claimed = bench.draft.events.iter().find(|e| e.kind == "step.claimed");
    assert_eq!(
        claimed.unwrap().reason.as_deref(),
        Some("fetched by worker w-1")
    );
    let lost = bench.lose("a", call.attempt);
    assert!(matches!(lost, Err(Refusal::Deferred { .. })), "{lost:?}");
    bench.answer("a", call.attempt, success(json!({ "id": 7 })));
    assert_eq!(bench.status("a"), StepStatus::Processed);
    assert_eq!(bench.status("b"), StepStatus::Pending);
}

#[test]
fn a_worker_that_is_silent_has_failed_and_another_gets_the_step() {
    let mut bench = bench(json!({ "heartbeat_within": "20s" }));
    let first = bench.fetch("a");
    assert_eq!(first.heartbeat_within, Some(Span::from_secs(20)));
    bench.later(Span::from_secs(19));
    let step = bench.step("a");
    bench
        .apply(Command::Heartbeat {
            step,
            attempt: first.attempt,
            progress: Progress::default(),
        })
        .unwrap();
    bench.later(Span::from_secs(19));
    assert!(bench.expire("a").is_err());
    bench.later(Span::from_secs(20));
    bench.expire("a").unwrap();
    assert_eq!(bench.record("a").failure_count, 1);
    bench.later(Span::from_secs(60));
    let second = bench.fetch("a");
    assert_eq!(second.idempotency_key, first.idempotency_key);
    let late = bench.answer("a", first.attempt, success(json!({})));
    assert!(matches!(late, CommandOutput::Late(_)), "{late:?}");
}

#[test]
fn what_a_worker_never_got_was_not_done_and_can_be_fetched_at_once() {
    let mut bench = bench(json!({}));
    let call = bench.fetch("a");
    bench.take_back(call.attempt).unwrap();
    let record = bench.record("a");
    assert_eq!(record.status(), StepStatus::Pending);
    assert_eq!(record.failure_count, 0);
    assert_eq!(record.effect, Effect::Known);
    let again = bench.fetch("a");
    assert!(again.attempt > call.attempt);
    let late = bench.take_back(call.attempt);
    assert!(matches!(late, Err(Refusal::Late { .. })), "{late:?}");
}

#[test]
fn a_call_is_not_taken_back_as_if_a_worker_had_fetched_it() {
    let mut bench = bench(json!({}));
    let attempt = bench.claim("a").unwrap();
    assert!(bench.take_back(attempt).is_err());
    bench.reply("a", attempt, CallOutcome::Deferred).unwrap();
    assert!(bench.take_back(attempt).is_err());
}

#[test]
fn a_worker_asks_the_probe_and_its_reply_is_what_the_probe_found() {
    let probe = json!({ "probe": { "request": { "path": "/charges" } }, "complete_within": "1m" });
    let mut bench = bench(probe);
    bench.fetch("a");
    bench.later(Span::from_secs(61));
    bench.expire("a").unwrap();
    bench.later(Span::from_secs(60));
    let call = bench.fetch("a");
    assert!(matches!(call.purpose, Purpose::Probe(_)), "{call:?}");
    bench.take_back(call.attempt).unwrap();
    assert_eq!(bench.record("a").effect, Effect::Unknown);
    let call = bench.fetch("a");
    assert!(matches!(call.purpose, Purpose::Probe(_)), "{call:?}");
    bench.answer("a", call.attempt, success(json!({ "id": 7 })));
    assert_eq!(bench.status("a"), StepStatus::Processed);
}

#[test]
fn an_undo_that_drops_the_step_does_not_wait_for_its_worker() {
    let mut bench = bench(json!({
        "on_undo": "drop",
        "cancel": { "request": { "method": "DELETE", "path": "/jobs/1" } },
        "undo": { "request": { "path": "/undo" } },
    }));
    let call = bench.fetch("a");
    bench.apply(Command::Undo { reason: None }).unwrap();
    assert!(!matches!(
        bench.record("a").state,
        StepState::Processing { .. }
    ));
    let late = bench.answer("a", call.attempt, success(json!({})));
    assert!(matches!(late, CommandOutput::Late(_)), "{late:?}");
    let undo = bench.draft.task.definition(bench.step("a")).undo.unwrap();
    assert!(bench.draft.task.due_at(undo).is_some());
}

#[test]
fn a_promised_reply_cannot_be_polled_once_the_agent_is_not_called_any_more() {
    let poll = json!({ "reply": { "poll": { "until": "response.body.done == true" } } });
    let mut bench = bench(poll);
    let attempt = bench.claim("a").unwrap();
    let address = CallOutcome::PollAt {
        address: "http://x/jobs/1".to_owned(),
        retry_after: None,
    };
    bench.reply("a", attempt, address).unwrap();
    bench.later(Span::from_secs(6));
    let step = bench.step("a");
    let by = Claimant::Worker(WorkerName::new("w-1"));
    let claimed = bench.apply(Command::Claim { step, by }).unwrap();
    assert!(matches!(claimed, CommandOutput::Done), "{claimed:?}");
    let StepState::Error(fault) = &bench.record("a").state else {
        panic!("{:?}", bench.record("a").state);
    };
    assert!(fault.message.contains("mode pull"), "{fault:?}");
    assert!(!matches!(
        bench.record("a").state,
        StepState::Processing {
            held_by: StepHolder::Poll(..),
            ..
        }
    ));
}
