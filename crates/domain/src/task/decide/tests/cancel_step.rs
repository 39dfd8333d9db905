//! An operator ends the attempt of one step that is under way.

use super::{
    later::{cancellation, deferred, ok, one, polling},
    *,
};
use crate::view::Blocked;

fn cancel(bench: &mut Bench, name: &str) -> Result<CommandOutput, Refusal> {
    let step = bench.step(name);
    let reason = Some("it hangs".to_owned());
    bench.apply(Command::CancelStep { step, reason })
}

/// Its service can be asked to cancel the work.
fn cancellable() -> Value {
    let undo = json!({ "request": { "path": "/undo" } });
    json!({ "undo": undo, "on_undo": "drop", "cancel": {} })
}

fn fault<'b>(bench: &'b Bench, name: &str) -> &'b Fault {
    match &bench.record(name).state {
        StepState::Error(fault) => fault,
        other => panic!("{other:?}"),
    }
}

fn cancel_and_confirm(bench: &mut Bench, name: &str) {
    cancel(bench, name).unwrap();
    assert_eq!(
        bench.status(name),
        StepStatus::Processing,
        "its call may be made yet"
    );
    bench.confirm_drop(name);
}

#[test]
fn a_call_in_flight_is_dropped_and_no_policy_applies() {
    for policy in ["skip", "undo", "error"] {
        let undo = json!({ "request": { "path": "/undo" } });
        let policies = json!({ "on_permanent": policy, "on_exhausted": policy, "undo": undo });
        let mut bench = Bench::new(one(policies));
        let attempt = bench.claim("a").unwrap();
        cancel(&mut bench, "a").unwrap();
        assert!(bench.draft.dropped[0].confirm);
        // A second request has it dropped again, in case the first one got lost.
        cancel(&mut bench, "a").unwrap();
        assert_eq!(bench.draft.dropped.len(), 2);
        bench.confirm_drop("a");
        assert_eq!(bench.task(), TaskStatus::Error, "{policy}");
        let found = fault(&bench, "a");
        assert_eq!(found.message, "an operator has cancelled it");
        assert_eq!((found.effect, found.cancelled), (Effect::Unknown, false));
        // A report of the call that comes late changes nothing.
        for outcome in [ok(), bench.transient(503, Duration::ZERO)] {
            let late = bench.reply("a", attempt, outcome);
            assert!(matches!(late, Err(Refusal::Late { .. })), "{late:?}");
        }
        assert_eq!(bench.status("a"), StepStatus::Error);
        // It may have taken effect.
        bench.apply(Command::Undo { reason: None }).unwrap();
        assert_eq!(bench.status("a.undo"), StepStatus::Pending);
    }
}

#[test]
fn however_the_call_ends_no_attempt_and_no_policy_follows() {
    let begun = |extra: Value| {
        let mut bench = Bench::new(one(extra));
        let attempt = bench.claim("a").unwrap();
        cancel(&mut bench, "a").unwrap();
        (bench, attempt)
    };
    let undo = || json!({ "undo": { "request": { "path": "/undo" } }, "on_permanent": "undo", "on_exhausted": "undo", "max_failures": 0 });
    let (mut bench, attempt) = begun(undo());
    let busy = bench.transient(503, Duration::ZERO);
    bench.reply("a", attempt, busy).unwrap();
    assert_eq!(bench.task(), TaskStatus::Error);
    let (mut bench, attempt) = begun(undo());
    bench.reply("a", attempt, refusal(400)).unwrap();
    assert_eq!(bench.task(), TaskStatus::Error);
    assert_eq!(fault(&bench, "a").status, Some(400));
    let (mut bench, attempt) = begun(undo());
    bench.lose("a", attempt).unwrap();
    assert_eq!(bench.task(), TaskStatus::Error);
    let (mut bench, _) = begun(undo());
    bench.later(Span::from_secs(3600));
    bench.expire("a").unwrap();
    assert_eq!(bench.task(), TaskStatus::Error);
    let (mut bench, attempt) = begun(undo());
    bench.reply("a", attempt, CallOutcome::Deferred).unwrap();
    assert_eq!(bench.task(), TaskStatus::Error);
    // A success is one.
    let (mut bench, attempt) = begun(undo());
    bench.reply("a", attempt, ok()).unwrap();
    assert_eq!(bench.status("a"), StepStatus::Processed);
    assert_eq!(bench.status("b"), StepStatus::Pending);
    // The promise of a service that can be asked to cancel its work.
    let cancel = json!({ "request": { "path": "/cancel" } });
    let mut whole = undo();
    whole["cancel"] = cancel;
    whole["on_undo"] = json!("drop");
    let (mut bench, attempt) = begun(whole);
    bench.reply("a", attempt, CallOutcome::Deferred).unwrap();
    assert_eq!(bench.status("a"), StepStatus::Processing);
    let (attempt, call) = cancellation(&mut bench);
    assert_eq!(call.path, "/cancel");
    bench.reply("a", attempt, ok()).unwrap();
    assert_eq!(bench.task(), TaskStatus::Error);
}

#[test]
fn an_operator_goes_on_as_after_any_error() {
    let begun = || {
        let mut bench = Bench::new(one(json!({})));
        bench.claim("a").unwrap();
        cancel_and_confirm(&mut bench, "a");
        bench
    };
    let mut bench = begun();
    bench
        .apply(Command::Retry {
            step: None,
            body: None,
            reason: None,
        })
        .unwrap();
    bench.process("a");
    assert_eq!(bench.status("b"), StepStatus::Pending);
    let mut bench = begun();
    let step = bench.step("a");
    bench
        .apply(Command::Skip {
            step,
            output: None,
            reason: None,
        })
        .unwrap();
    assert_eq!(bench.status("b"), StepStatus::Pending);
}

#[test]
fn a_promised_reply_is_not_awaited_any_more() {
    let (mut bench, attempt) = deferred(json!({}));
    cancel(&mut bench, "a").unwrap();
    assert_eq!(fault(&bench, "a").effect, Effect::Unknown);
    let late = bench.later_reply(attempt, ok(), "1");
    assert!(matches!(late, CommandOutput::Late(_)), "{late:?}");
    assert_eq!(bench.status("a"), StepStatus::Error);
}

#[test]
fn its_service_is_asked_to_cancel_the_work_where_the_step_says_how() {
    let (mut bench, _) = polling(cancellable());
    cancel(&mut bench, "a").unwrap();
    assert_eq!(bench.status("a"), StepStatus::Processing);
    let (attempt, call) = cancellation(&mut bench);
    assert_eq!(call.method, crate::definition::Method::Delete);
    bench.reply("a", attempt, refusal(404)).unwrap();
    assert_eq!(fault(&bench, "a").effect, Effect::Unknown);
    assert_eq!(bench.task(), TaskStatus::Error);
}

#[test]
fn a_cancellation_always_ends_and_never_with_another_attempt() {
    let asked = || {
        let (mut bench, attempt) = polling(cancellable());
        cancel(&mut bench, "a").unwrap();
        (bench, attempt)
    };
    // Its service never responds.
    let (mut bench, _) = asked();
    cancellation(&mut bench);
    bench.later(Span::from_secs(3600));
    bench.expire("a").unwrap();
    assert_eq!(bench.task(), TaskStatus::Error);
    // The operator does not want to wait for it.
    for is_asked in [false, true] {
        let (mut bench, _) = asked();
        if is_asked {
            cancellation(&mut bench);
        }
        cancel(&mut bench, "a").unwrap();
        assert_eq!(bench.status("a"), StepStatus::Error);
    }
    // The service says that it was busy.
    let (mut bench, attempt) = asked();
    let busy = bench.transient(503, Duration::ZERO);
    bench.later_reply(attempt, busy, "1");
    assert_eq!(bench.status("a"), StepStatus::Error);
    // It was done after all.
    let (mut bench, attempt) = asked();
    bench.later_reply(attempt, ok(), "1");
    assert_eq!(bench.status("a"), StepStatus::Processed);
}

#[test]
fn an_undo_waits_until_the_service_was_asked_to_cancel_the_work() {
    // Before an instance asks, and while it does.
    for is_asked in [false, true] {
        let (mut bench, attempt) = polling(cancellable());
        cancel(&mut bench, "a").unwrap();
        if is_asked {
            cancellation(&mut bench);
        }
        bench.apply(Command::Undo { reason: None }).unwrap();
        assert!(bench.draft.dropped.is_empty());
        assert_eq!(bench.status("a.undo"), StepStatus::Waiting);
        if !is_asked {
            cancellation(&mut bench);
        }
        bench.reply("a", attempt, refusal(404)).unwrap();
        assert_eq!(bench.status("a"), StepStatus::Cancelled);
        assert_eq!(bench.status("a.undo"), StepStatus::Pending);
    }
}

#[test]
fn an_undo_that_waits_for_a_call_goes_on() {
    let undo = json!({ "request": { "path": "/undo" } });
    let mut bench = Bench::new(one(json!({ "undo": undo })));
    bench.claim("a").unwrap();
    bench.apply(Command::Undo { reason: None }).unwrap();
    assert_eq!(bench.status("a.undo"), StepStatus::Waiting);
    cancel(&mut bench, "a").unwrap();
    // Its call could still be made, or be answered.
    assert_eq!(bench.status("a.undo"), StepStatus::Waiting);
    let undo = bench.step("a.undo");
    let blocked = bench.draft.task.blocked_by(undo, bench.now);
    assert!(matches!(blocked, Some(Blocked::Drop { .. })), "{blocked:?}");
    bench.confirm_drop("a");
    assert_eq!(bench.status("a"), StepStatus::Cancelled);
    assert_eq!(bench.status("a.undo"), StepStatus::Pending);
    // The undo itself can be cancelled as well.
    bench.claim("a.undo").unwrap();
    cancel_and_confirm(&mut bench, "a.undo");
    assert_eq!(bench.task(), TaskStatus::Error);
    bench
        .apply(Command::Retry {
            step: None,
            body: None,
            reason: None,
        })
        .unwrap();
    bench.process("a.undo");
    assert_eq!(bench.task(), TaskStatus::Undone);
}

#[test]
fn a_loser_whose_call_is_waited_for_is_undone() {
    let undoable = |name: &str| {
        let undo = json!({ "request": { "path": "/undo" } });
        json!({ "name": name, "agent": "x", "after": [], "undo": undo })
    };
    let join = json!({ "any": 1, "of": ["eu", "us"], "rest": "undo" });
    let mut bench = Bench::new(json!([
        undoable("eu"), undoable("us"), { "name": "join", "agent": "x", "after": join }
    ]));
    bench.claim("us").unwrap();
    bench.process("eu");
    assert_eq!(bench.status("us"), StepStatus::Processing);
    cancel_and_confirm(&mut bench, "us");
    assert_eq!(bench.status("us"), StepStatus::Cancelled);
    assert_eq!(bench.status("us.revert"), StepStatus::Pending);
}

#[test]
fn what_has_no_call_under_way_is_refused_with_what_to_do_instead() {
    let mut bench = Bench::new(json!([
        { "name": "list", "after": [], "agent": "x", "for_each": [1, 2] },
        { "name": "pause", "after": [], "wait": { "for": "1h" } },
        { "name": "ready", "after": [], "agent": "x" },
        { "name": "done", "after": [], "agent": "x" },
    ]));
    bench.process("done");
    for (name, remedy) in [
        ("list", "cancel those of them that run"),
        ("pause", "skip or resolve it"),
        ("ready", "cancel the task"),
        ("done", "cancel the task"),
    ] {
        let refusal = cancel(&mut bench, name).unwrap_err();
        assert!(refusal.to_string().contains(remedy), "{name}: {refusal}");
    }
    bench.claim("list[0]").unwrap();
    cancel_and_confirm(&mut bench, "list[0]");
    assert_eq!(bench.status("list[0]"), StepStatus::Error);
    // The other item runs all the same.
    bench.process("list[1]");
    assert_eq!(bench.status("list"), StepStatus::Error);
}
