//! Steps that call no service.

use super::*;
use crate::{task::open_reply::ReplyDigest, view::blocked::Blocked};

/// A wait between two calls.
fn waiting(wait: Value) -> Bench {
    let mut bench = Bench::new(json!([
        { "name": "first", "agent": "x" },
        { "name": "pause", "wait": wait },
        { "name": "last", "agent": "x" },
    ]));
    bench.process("first");
    bench
}

fn end(bench: &Bench) -> Timestamp {
    match bench.record("pause").state {
        StepState::Processing { complete_by, .. } => complete_by,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn a_wait_begins_when_it_is_ready_and_nobody_holds_it() {
    let mut bench = waiting(json!({ "for": "1h" }));
    let pause = bench.step("pause");
    assert!(bench.draft.task.waits_for_event(pause));
    assert_eq!(end(&bench), bench.now + Span::from_secs(3600));
    assert_eq!(bench.draft.task.due_at(pause), None);
    assert!(!bench.draft.ready.contains(&pause));
    let until = end(&bench);
    assert_eq!(
        bench.draft.task.blocked_by(pause, bench.now),
        Some(Blocked::Wait { until })
    );
    bench.later(Span::from_secs(3599));
    let early = bench.expire("pause");
    assert!(matches!(early, Err(Refusal::NotDue { .. })), "{early:?}");
    bench.later(Span::from_secs(1));
    bench.expire("pause").unwrap();
    assert_eq!(bench.status("pause"), StepStatus::Processed);
    assert_eq!(bench.status("last"), StepStatus::Pending);
    assert!(bench.draft.ready.contains(&bench.step("last")));
    assert_eq!(bench.draft.alerts, []);
}

#[test]
fn neither_a_reply_nor_a_lost_instance_ends_a_wait() {
    let mut bench = waiting(json!({ "for": "1h" }));
    let step = bench.step("pause");
    let attempt = bench.record("pause").attempt;
    assert!(bench.claim("pause").is_err());
    assert!(bench.reply("pause", attempt, success(json!(1))).is_err());
    assert!(bench.lose("pause", attempt).is_err());
    let outcome = success(json!(1));
    let digest = ReplyDigest("d".to_owned());
    let later = bench.apply(Command::LaterReply {
        step,
        attempt,
        outcome,
        digest,
    });
    assert!(matches!(later, Ok(CommandOutput::Late(_))), "{later:?}");
    assert!(bench.draft.task.waits_for_event(step));
}

#[test]
fn a_wait_until_a_time_that_has_passed_is_over_at_once() {
    let bench = waiting(json!({ "until": "1970-01-01T00:00:01Z" }));
    assert_eq!(bench.status("pause"), StepStatus::Processed);
    assert_eq!(bench.status("last"), StepStatus::Pending);
}

/// Each opens the next one.
#[test]
fn a_long_chain_of_waits_that_are_over_ends_at_once() {
    let steps: Vec<_> = (0..500)
        .map(|at| json!({ "name": format!("w{at}"), "wait": { "for": "0s" } }))
        .collect();
    let bench = Bench::new(Value::Array(steps));
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn what_the_data_gives_decides_and_a_fault_in_it_is_an_error() {
    let bench = waiting(json!({ "for": "{{ input.total }}s" }));
    assert_eq!(end(&bench), bench.now + Span::from_secs(30));
    for (wait, said) in [
        (
            json!({ "for": "{{ input.total }}" }),
            "`wait.for` must give a duration such as",
        ),
        (
            json!({ "until": "{{ input.total }}" }),
            "`wait.until` must give a time such as",
        ),
        (
            json!({ "for": "{{ input.total }}000d" }),
            "of at most 3650d",
        ),
        (
            json!({ "until": "90{{ input.total }}-01-01T00:00:00Z" }),
            "more than 3650d away",
        ),
        (
            json!({ "for": "{{ input.missing }}" }),
            "`wait.for` could not be evaluated",
        ),
    ] {
        let mut bench = waiting(wait);
        assert_eq!(bench.status("pause"), StepStatus::Error, "{said}");
        let StepState::Error(fault) = &bench.record("pause").state else {
            panic!("{said}");
        };
        assert!(fault.message.contains(said), "{}", fault.message);
        assert_eq!(bench.draft.alerts.len(), 1);
        // Nothing has changed, so it fails again.
        let step = Some(bench.step("pause"));
        let retry = Command::Retry {
            step,
            body: None,
            reason: None,
        };
        bench.apply(retry).unwrap();
        assert_eq!(bench.status("pause"), StepStatus::Error);
    }
}

#[test]
fn what_cannot_be_evaluated_follows_the_policy() {
    let wait = json!({ "name": "pause", "wait": { "for": "{{ input.missing }}" },
                       "on_permanent": "skip" });
    let bench = Bench::new(json!([wait, { "name": "last", "agent": "x" }]));
    assert_eq!(bench.status("pause"), StepStatus::Skipped);
    assert_eq!(bench.status("last"), StepStatus::Pending);
}

#[test]
fn an_operator_can_end_a_wait() {
    let skip = |step| Command::Skip {
        step,
        output: None,
        reason: None,
    };
    let resolve = |step| Command::Resolve {
        step,
        output: Payload::from_value(&json!("enough")),
        reason: None,
    };
    for (command, status) in [
        (&skip as &dyn Fn(StepIndex) -> Command, StepStatus::Skipped),
        (&resolve, StepStatus::Processed),
    ] {
        let mut bench = waiting(json!({ "for": "1h" }));
        let attempt = bench.record("pause").attempt;
        bench.apply(command(bench.step("pause"))).unwrap();
        assert_eq!(bench.status("pause"), status);
        assert_eq!(bench.status("last"), StepStatus::Pending);
        // Its time comes all the same.
        bench.later(Span::from_secs(3600));
        assert!(bench.expire("pause").is_err());
        assert_eq!(bench.record("pause").attempt, attempt);
    }
}

#[test]
fn a_call_in_flight_cannot_be_skipped() {
    let mut bench = Bench::new(json!([{ "name": "first", "agent": "x" }]));
    bench.claim("first").unwrap();
    let step = bench.step("first");
    let skip = Command::Skip {
        step,
        output: None,
        reason: None,
    };
    assert!(bench.apply(skip).is_err());
}

#[test]
fn a_paused_task_begins_no_wait_and_ends_one() {
    let mut bench = Bench::new(json!([
        { "name": "first", "agent": "x" },
        { "name": "pause", "wait": { "for": "1h" } },
        { "name": "last", "agent": "x" },
    ]));
    let attempt = bench.claim("first").unwrap();
    bench.apply(Command::Pause { reason: None }).unwrap();
    bench.reply("first", attempt, success(json!(1))).unwrap();
    assert_eq!(bench.status("pause"), StepStatus::Pending);
    bench.later(Span::from_secs(7200));
    bench.apply(Command::Resume { reason: None }).unwrap();
    assert_eq!(end(&bench), bench.now + Span::from_secs(3600));
    bench.apply(Command::Pause { reason: None }).unwrap();
    bench.later(Span::from_secs(3600));
    bench.expire("pause").unwrap();
    assert_eq!(bench.status("pause"), StepStatus::Processed);
    assert!(bench.draft.ready.is_empty(), "{:?}", bench.draft.ready);
}

#[test]
fn a_task_is_cancelled_and_undone_at_once_while_it_waits() {
    for (command, status) in [
        (Command::Cancel { reason: None }, TaskStatus::Cancelled),
        (Command::Undo { reason: None }, TaskStatus::Undone),
    ] {
        let mut bench = waiting(json!({ "for": "1h" }));
        bench.apply(command).unwrap();
        assert_eq!(bench.task(), status);
        assert_eq!(bench.status("pause"), StepStatus::Cancelled);
        assert_eq!(bench.record("pause").effect, Effect::Known);
    }
}

#[test]
fn what_was_waited_for_is_no_effect_that_an_undo_would_have_to_take_back() {
    let mut bench = waiting(json!({ "for": "0s" }));
    bench.process("last");
    let mut bench2 = waiting(json!({ "for": "0s" }));
    bench2.apply(Command::Undo { reason: None }).unwrap();
    let passed: Vec<_> = bench2.draft.task.passed_over().collect();
    assert_eq!(passed, [bench2.step("first")]);
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn a_task_is_late_although_it_only_waits() {
    let steps = json!([{ "name": "pause", "wait": { "for": "1h" } }]);
    let mut bench = Bench::limited(steps, Some(Span::from_secs(60)));
    bench.later(Span::from_secs(60));
    bench.apply(Command::Overdue).unwrap();
    assert_eq!(bench.task(), TaskStatus::Error);
    let StepState::Error(fault) = &bench.record("pause").state else {
        panic!("{:?}", bench.record("pause"));
    };
    assert_eq!(fault.effect, Effect::Known);
}

#[test]
fn a_task_that_is_not_admitted_does_not_begin_to_wait() {
    let steps = json!([{ "name": "pause", "wait": { "for": "1h" } }]);
    let now = Timestamp::from_millis(1_000_000);
    let mut draft = Draft::submit_keeping(details(&steps, None), true, MOST_OF_TASK, now);
    let pause = StepIndex(0);
    assert_eq!(draft.task.step(pause).status(), StepStatus::Pending);
    let later = now + Span::from_secs(500);
    draft
        .apply(Command::Admit, &Actor::operator("test"), later)
        .unwrap();
    match draft.task.step(pause).state {
        StepState::Processing { complete_by, .. } => {
            assert_eq!(complete_by, later + Span::from_secs(3600));
        }
        ref other => panic!("{other:?}"),
    }
}

fn approval(on_timeout: &str) -> Bench {
    Bench::new(json!([
        { "name": "first", "agent": "x" },
        { "name": "approval", "signal": { "within": "1h", "on_timeout": on_timeout } },
        { "name": "last", "agent": "x", "request": { "body": "{{ steps.approval.output }}" } },
    ]))
}

fn signal(bench: &mut Bench, payload: Value) -> Result<CommandOutput, Refusal> {
    let step = bench.step("approval");
    bench.apply(Command::Signal {
        step,
        digest: ReplyDigest(payload.to_string()),
        payload: Payload::from_value(&payload),
    })
}

fn output(bench: &Bench) -> Option<&str> {
    bench.record("approval").output().map(Payload::as_json)
}

#[test]
fn a_signal_ends_the_wait_for_it_and_the_first_one_counts() {
    let mut bench = approval("error");
    bench.process("first");
    let until = bench.now + Span::from_secs(3600);
    let step = bench.step("approval");
    assert_eq!(
        bench.draft.task.blocked_by(step, bench.now),
        Some(Blocked::Signal { until })
    );
    assert!(matches!(
        signal(&mut bench, json!("yes")),
        Ok(CommandOutput::Done)
    ));
    assert_eq!(output(&bench), Some(r#""yes""#));
    assert_eq!(bench.status("last"), StepStatus::Pending);
    for _ in 0..2 {
        let again = signal(&mut bench, json!("yes"));
        assert!(matches!(again, Ok(CommandOutput::Unchanged)), "{again:?}");
        let other = signal(&mut bench, json!("no"));
        assert!(matches!(other, Err(Refusal::StepState { .. })), "{other:?}");
        if bench.status("last") == StepStatus::Pending {
            bench.process("last");
        }
    }
    assert_eq!(bench.task(), TaskStatus::Processed);
    assert!(bench.expire("approval").is_err());
}

#[test]
fn a_signal_that_comes_early_is_kept() {
    let mut bench = approval("error");
    signal(&mut bench, json!("early")).unwrap();
    assert_eq!(bench.status("approval"), StepStatus::Waiting);
    assert_eq!(output(&bench), None);
    assert!(signal(&mut bench, json!("other")).is_err());
    bench.process("first");
    assert_eq!(output(&bench), Some(r#""early""#));
    assert_eq!(bench.status("last"), StepStatus::Pending);
}

#[test]
fn without_a_signal_the_policy_decides() {
    for (policy, step, task) in [
        ("error", StepStatus::Error, TaskStatus::Error),
        ("skip", StepStatus::Skipped, TaskStatus::Processing),
        ("undo", StepStatus::Error, TaskStatus::Undone),
    ] {
        let mut bench = approval(policy);
        bench.process("first");
        bench.later(Span::from_secs(3600));
        bench.expire("approval").unwrap();
        assert_eq!(bench.status("approval"), step, "{policy}");
        assert_eq!(bench.task(), task, "{policy}");
        assert!(signal(&mut bench, json!("late")).is_err());
        if policy == "error" {
            let retry = Command::Retry {
                step: None,
                body: None,
                reason: None,
            };
            bench.apply(retry).unwrap();
            assert_eq!(bench.status("approval"), StepStatus::Processing);
            signal(&mut bench, json!("now")).unwrap();
            assert_eq!(output(&bench), Some(r#""now""#));
        }
    }
}

#[test]
fn a_rerun_asks_for_a_signal_anew() {
    let mut bench = approval("error");
    bench.process("first");
    signal(&mut bench, json!("yes")).unwrap();
    let step = bench.step("first");
    let reason = None;
    bench.apply(Command::RetryFrom { step, reason }).unwrap();
    bench.process("first");
    assert_eq!(bench.status("approval"), StepStatus::Processing);
    signal(&mut bench, json!("no")).unwrap();
    assert_eq!(output(&bench), Some(r#""no""#));
}

/// It holds nothing, and may last for years.
#[test]
fn a_rerun_need_not_wait_for_the_end_of_a_wait() {
    let mut bench = Bench::new(json!([
        { "name": "first", "agent": "x" },
        { "name": "approval", "signal": { "within": "1h" } },
        { "name": "pause", "wait": { "for": "1h" } },
    ]));
    bench.process("first");
    signal(&mut bench, json!("yes")).unwrap();
    assert_eq!(bench.status("pause"), StepStatus::Processing);
    bench.later(Span::from_secs(60));
    let (step, reason) = (bench.step("pause"), None);
    bench.apply(Command::RetryFrom { step, reason }).unwrap();
    assert_eq!(end(&bench), bench.now + Span::from_secs(3600));
    let (step, reason) = (bench.step("first"), None);
    bench.apply(Command::RetryFrom { step, reason }).unwrap();
    assert_eq!(bench.status("pause"), StepStatus::Waiting);
    bench.process("first");
    assert_eq!(bench.status("approval"), StepStatus::Processing);
}

#[test]
fn what_is_waited_for_again_and_then_skipped_has_no_effect() {
    let mut bench = waiting(json!({ "for": "0s" }));
    let (step, reason) = (bench.step("first"), None);
    bench.apply(Command::RetryFrom { step, reason }).unwrap();
    bench.apply(Command::Pause { reason: None }).unwrap();
    bench.apply(Command::Resume { reason: None }).unwrap();
    let attempt = bench.claim("first").unwrap();
    bench.apply(Command::Pause { reason: None }).unwrap();
    bench.reply("first", attempt, success(json!(1))).unwrap();
    let (step, output, reason) = (bench.step("pause"), None, None);
    bench
        .apply(Command::Skip {
            step,
            output,
            reason,
        })
        .unwrap();
    assert_eq!(bench.record("pause").effect, Effect::Known);
    assert_eq!(bench.record("pause").output(), None);
}

#[test]
fn a_signal_that_was_never_used_outlives_a_rerun() {
    let mut bench = approval("error");
    signal(&mut bench, json!("early")).unwrap();
    let attempt = bench.claim("first").unwrap();
    bench.reply("first", attempt, refusal(400)).unwrap();
    let (step, reason) = (bench.step("first"), None);
    bench.apply(Command::RetryFrom { step, reason }).unwrap();
    bench.process("first");
    assert_eq!(output(&bench), Some(r#""early""#));
}

#[test]
fn only_a_step_that_awaits_a_signal_gets_one() {
    let mut bench = Bench::new(json!([{ "name": "approval", "agent": "x" }]));
    assert!(signal(&mut bench, json!(1)).is_err());
    let mut bench = approval("error");
    bench.apply(Command::Cancel { reason: None }).unwrap();
    let ended = signal(&mut bench, json!(1));
    assert!(matches!(ended, Err(Refusal::Ended(_))), "{ended:?}");
}

#[test]
fn a_signal_that_is_not_kept_counts_only_while_its_step_awaits_it() {
    let mut bench = Bench::new(json!([
        { "name": "first", "agent": "x" },
        { "name": "approval", "signal": { "within": "1h", "early": "refuse" } },
    ]));
    let refused = signal(&mut bench, json!(1)).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("does not await its signal yet"),
        "{refused}"
    );
    assert!(bench.record("approval").signal.is_none());
    bench.process("first");
    signal(&mut bench, json!(1)).unwrap();
    assert_eq!(bench.task(), TaskStatus::Processed);
}
