//! Tasks that begin later than they are submitted.

use super::*;
use crate::view::blocked::Blocked;

fn later(steps: Value, within: Option<Span>) -> Bench {
    let now = Timestamp::from_millis(1_000_000);
    let start_at = Some(now + Span::from_secs(3600));
    let submitted = details(&steps, within);
    let submitted = Details {
        id: submitted.id,
        key: None,
        workflow: None,
        definition: submitted.definition.clone(),
        input: submitted.input.clone(),
        labels: BTreeMap::new(),
        priority: Priority::default(),
        complete_within: within,
        start_at,
        trace: None,
        reply_to: None,
        parent: None,
        key_prefix: None,
    };
    Bench {
        draft: Draft::submit(Arc::new(submitted), now),
        now,
        by: Actor::operator("test"),
    }
}

fn mixed() -> Value {
    json!([
        { "name": "call", "agent": "x" },
        { "name": "pause", "after": [], "wait": { "for": "1h" } },
        { "name": "sign", "after": [], "signal": { "within": "1d" } },
        { "name": "skip", "after": [], "agent": "x", "when": "false" },
    ])
}

#[test]
fn nothing_happens_before_the_begin_and_the_time_to_complete_counts_from_it() {
    let mut bench = later(mixed(), Some(Span::from_secs(60)));
    let start = bench.now + Span::from_secs(3600);
    assert_eq!(bench.draft.task.start_at, Some(start));
    assert_eq!(bench.draft.task.overdue_at(), Some(start));
    assert_eq!(
        bench.draft.task.complete_by,
        Some(start + Span::from_secs(60))
    );
    assert_eq!(bench.task(), TaskStatus::Pending);
    assert!(bench.draft.ready.is_empty());
    for index in bench.draft.task.indexes() {
        assert_eq!(bench.draft.task.step(index).status(), StepStatus::Waiting);
        assert_eq!(bench.draft.task.due_at(index), None);
        let blocked = bench.draft.task.blocked_by(index, bench.now);
        assert_eq!(blocked, Some(Blocked::Start { until: start }));
    }
    assert!(bench.claim("call").is_err());
    bench.later(Span::from_secs(3599));
    let early = bench.apply(Command::Overdue);
    assert!(matches!(early, Err(Refusal::TaskState { .. })), "{early:?}");
    bench.later(Span::from_secs(1));
    bench.apply(Command::Overdue).unwrap();
    assert_eq!(bench.draft.task.start_at, None);
    assert_eq!(
        bench.draft.task.overdue_at(),
        Some(start + Span::from_secs(60))
    );
    assert_eq!(bench.status("call"), StepStatus::Pending);
    assert_eq!(bench.status("skip"), StepStatus::Skipped);
    assert!(bench.draft.task.waits_for_event(bench.step("pause")));
    assert!(bench.draft.task.waits_for_event(bench.step("sign")));
    assert!(bench.draft.ready.contains(&bench.step("call")));
    assert_eq!(bench.events()[..2], ["task.accepted", "task.started"]);
    bench.process("call");
}

#[test]
fn an_operator_starts_it_now_once_and_the_time_to_complete_counts_from_then() {
    let mut bench = later(mixed(), Some(Span::from_secs(60)));
    bench.later(Span::from_secs(10));
    bench.apply(Command::Start { reason: None }).unwrap();
    let limit = bench.now + Span::from_secs(60);
    assert_eq!(bench.draft.task.complete_by, Some(limit));
    assert_eq!(bench.status("call"), StepStatus::Pending);
    let again = bench.apply(Command::Start { reason: None });
    assert!(matches!(again, Err(Refusal::TaskState { .. })), "{again:?}");
}

#[test]
fn one_that_is_cancelled_or_undone_before_never_begins() {
    for command in [
        Command::Cancel { reason: None },
        Command::Undo { reason: None },
    ] {
        let mut bench = later(mixed(), None);
        bench.apply(command).unwrap();
        assert!(bench.draft.task.is_ended());
        assert_eq!(bench.draft.task.start_at, None);
        assert_eq!(bench.draft.task.overdue_at(), None);
        bench.later(Span::from_secs(3600));
        assert!(bench.apply(Command::Overdue).is_err());
        let start = bench.apply(Command::Start { reason: None });
        assert!(matches!(start, Err(Refusal::Ended(_))), "{start:?}");
    }
}

#[test]
fn one_that_is_paused_begins_when_it_is_resumed_after_its_time() {
    let mut bench = later(mixed(), None);
    bench.apply(Command::Pause { reason: None }).unwrap();
    assert_eq!(bench.draft.task.overdue_at(), None, "nobody looks at it");
    bench.later(Span::from_secs(3600));
    // An earlier version may have recorded a time at which it is looked at.
    bench.apply(Command::Overdue).unwrap();
    assert!(bench.draft.task.start_at.is_some());
    assert!(bench.draft.ready.is_empty());
    assert!(!bench.draft.task.waits_for_event(bench.step("pause")));
    bench.apply(Command::Resume { reason: None }).unwrap();
    assert_eq!(bench.draft.task.start_at, None);
    assert_eq!(bench.events()[2..4], ["task.resumed", "task.started"]);
    assert!(bench.draft.ready.contains(&bench.step("call")));
    assert!(bench.draft.task.waits_for_event(bench.step("pause")));
    // And one that is resumed before its time waits for it.
    let mut bench = later(mixed(), None);
    bench.apply(Command::Pause { reason: None }).unwrap();
    bench.apply(Command::Resume { reason: None }).unwrap();
    assert!(bench.draft.task.start_at.is_some());
    assert!(bench.draft.ready.is_empty());
}

#[test]
fn a_signal_that_comes_before_the_begin_is_kept() {
    let mut bench = later(mixed(), None);
    let signal = Command::Signal {
        step: bench.step("sign"),
        payload: Payload::from_value(&json!("early")),
        digest: crate::task::open_reply::ReplyDigest("d".to_owned()),
    };
    bench.apply(signal).unwrap();
    bench.apply(Command::Start { reason: None }).unwrap();
    assert_eq!(bench.status("sign"), StepStatus::Processed);
}

#[test]
fn a_time_that_has_passed_is_now() {
    let submitted = later(mixed(), None).draft.task.details;
    let start = submitted.start_at.unwrap();
    let draft = Draft::submit(submitted, start);
    assert_eq!(draft.task.start_at, None);
    assert!(draft.ready.contains(&StepIndex(0)));
}
