//! Bounds on the number of attempts, and policies by the status of the response.

use super::*;
use crate::values::fault::FaultKind;

const NOW: Duration = Duration::ZERO;

fn one(fields: Value) -> Bench {
    let mut step =
        json!({ "name": "a", "agent": "x", "complete_within": "30s", "max_failures": 0 });
    let fields = fields.as_object().unwrap().clone();
    step.as_object_mut().unwrap().extend(fields);
    Bench::new(json!([step, { "name": "last", "agent": "x" }]))
}

fn error(bench: &Bench, name: &str) -> Fault {
    bench.record(name).error().unwrap().clone()
}

fn refuse(bench: &mut Bench, name: &str, status: u16) {
    let attempt = bench.claim(name).unwrap();
    bench.reply(name, attempt, refusal(status)).unwrap();
}

fn retry(bench: &mut Bench, name: &str) {
    let step = Some(bench.step(name));
    let retry = Command::Retry {
        step,
        body: None,
        reason: None,
    };
    bench.apply(retry).unwrap();
}

#[test]
fn so_many_attempts_are_made_as_the_step_says_and_its_policy_decides_then() {
    let mut bench = one(json!({ "max_attempts": 3, "on_exhausted": "skip" }));
    for _ in 0..2 {
        bench.defer("a", 503, NOW);
        assert_eq!(bench.status("a"), StepStatus::Pending);
    }
    bench.defer("a", 503, NOW);
    assert_eq!(bench.status("a"), StepStatus::Skipped);
    let fault = error(&bench, "a");
    assert_eq!(
        (fault.kind, fault.status),
        (FaultKind::Exhausted, Some(503))
    );
    assert_eq!(
        fault.message,
        "failed in 3 attempts; the service responded 503"
    );
    assert_eq!(bench.status("last"), StepStatus::Pending);
}

#[test]
fn at_most_one_attempt_is_made_whatever_becomes_of_it() {
    let only = json!({ "max_attempts": 1, "max_failures": 10 });
    let message = |bench: &Bench| error(bench, "a").message;
    let mut broken = one(only.clone());
    broken.defer("a", 500, NOW);
    assert_eq!(broken.status("a"), StepStatus::Error);
    assert!(message(&broken).starts_with("failed in its only attempt; "));
    assert_eq!(broken.record("a").effect, Effect::Unknown);
    let mut silent = one(only.clone());
    silent.claim("a").unwrap();
    silent.later(Span::from_secs(30));
    silent.expire("a").unwrap();
    assert_eq!(silent.status("a"), StepStatus::Error);
    assert_eq!(error(&silent, "a").effect, Effect::Unknown);
    let mut lost = one(only.clone());
    let attempt = lost.claim("a").unwrap();
    lost.lose("a", attempt).unwrap();
    assert_eq!(lost.status("a"), StepStatus::Error);
    assert!(message(&lost).contains("was lost"));
    // The check that missed its start may have been too early.
    let mut missed = one(only);
    let attempt = missed.claim("a").unwrap();
    let (step, why) = (missed.step("a"), Release::NeverStarted);
    let release = Command::Release { step, attempt, why };
    missed.apply(release).unwrap();
    assert_eq!(missed.status("a"), StepStatus::Error);
}

#[test]
fn an_attempt_under_which_nothing_was_sent_does_not_count() {
    let mut bench = one(json!({ "max_attempts": 1 }));
    for why in [Release::Stopped, Release::NoSlot] {
        let attempt = bench.claim("a").unwrap();
        let step = bench.step("a");
        bench
            .apply(Command::Release { step, attempt, why })
            .unwrap();
        assert_eq!(bench.status("a"), StepStatus::Pending, "{why:?}");
    }
    bench.defer("a", 503, NOW);
    assert_eq!(bench.status("a"), StepStatus::Error);
    assert_eq!(bench.record("a").attempt, Attempt(3));
    assert!(
        error(&bench, "a")
            .message
            .starts_with("failed in its only attempt")
    );
}

#[test]
fn an_operator_grants_all_attempts_again() {
    let mut bench = one(json!({ "max_attempts": 2 }));
    for _ in 0..2 {
        for _ in 0..2 {
            assert_ne!(bench.status("a"), StepStatus::Error);
            bench.defer("a", 503, NOW);
        }
        assert_eq!(bench.status("a"), StepStatus::Error);
        retry(&mut bench, "a");
    }
    bench.process("a");
    let again = Command::RetryFrom {
        step: bench.step("a"),
        reason: None,
    };
    bench.apply(again).unwrap();
    bench.defer("a", 503, NOW);
    assert_eq!(bench.status("a"), StepStatus::Pending);
    bench.process("a");
    assert_eq!(bench.status("a"), StepStatus::Processed);
}

#[test]
fn a_probe_runs_besides_the_attempts_and_can_still_find_that_the_last_one_took_effect() {
    let probed = json!({ "max_attempts": 1, "max_failures": 5,
        "probe": { "request": { "path": "/a" }, "outcome": "response.body.is" } });
    let probe = |bench: &mut Bench, word: &str| {
        let attempt = bench.claim("a").unwrap();
        let outcome = CallOutcome::Probed {
            status: 200,
            body: Payload::from_value(&json!({ "is": word })),
        };
        bench.reply("a", attempt, outcome).unwrap();
    };
    let mut bench = one(probed.clone());
    bench.defer("a", 500, NOW);
    assert_eq!(
        bench.status("a"),
        StepStatus::Pending,
        "its probe comes next"
    );
    bench.later(Span::from_secs(60));
    probe(&mut bench, "in_progress");
    bench.later(Span::from_secs(60));
    probe(&mut bench, "done");
    assert_eq!(bench.status("a"), StepStatus::Processed);
    let mut bench = one(probed);
    bench.defer("a", 500, NOW);
    bench.later(Span::from_secs(60));
    probe(&mut bench, "not_done");
    assert_eq!(bench.status("a"), StepStatus::Error);
    let fault = error(&bench, "a");
    assert_eq!(fault.effect, Effect::Known);
    assert!(
        fault.message.contains("found that it did not take effect"),
        "{}",
        fault.message
    );
}

#[test]
fn a_probe_has_so_many_attempts_as_it_says_and_then_a_person_looks() {
    let mut bench = one(json!({ "max_failures": 9, "on_exhausted": "skip",
        "probe": { "request": { "path": "/a" }, "max_attempts": 2 } }));
    bench.defer("a", 500, NOW);
    bench.later(Span::from_secs(60));
    bench.defer("a", 503, NOW);
    assert_eq!(bench.status("a"), StepStatus::Pending);
    bench.defer("a", 503, NOW);
    assert_eq!(bench.status("a"), StepStatus::Error);
    let fault = error(&bench, "a");
    assert!(
        fault.message.starts_with("its probe had its 2 attempts; "),
        "{}",
        fault.message
    );
    assert_eq!(bench.record("a").effect, Effect::Unknown);
    retry(&mut bench, "a");
    bench.defer("a", 503, NOW);
    assert_eq!(bench.status("a"), StepStatus::Pending);
}

#[test]
fn an_undo_has_a_bound_of_its_own() {
    let mut bench = Bench::new(json!([
        { "name": "a", "agent": "x",
          "undo": { "request": { "path": "/a" }, "max_attempts": 2, "on_exhausted": { "503": "success" } } },
        { "name": "b", "agent": "x", "on_permanent": "undo" },
    ]));
    bench.process("a");
    refuse(&mut bench, "b", 400);
    bench.defer("a.undo", 503, NOW);
    assert_eq!(bench.status("a.undo"), StepStatus::Pending);
    bench.defer("a.undo", 503, NOW);
    assert_eq!(bench.status("a.undo"), StepStatus::Processed);
    assert_eq!(bench.task(), TaskStatus::Undone);
}

#[test]
fn each_item_has_all_the_attempts() {
    let mut bench = Bench::new(json!([
        { "name": "all", "agent": "x", "for_each": [1, 2], "max_attempts": 2, "on_item_error": "skip" },
    ]));
    for item in ["all[0]", "all[1]"] {
        bench.defer(item, 503, NOW);
        assert_eq!(bench.status(item), StepStatus::Pending);
        bench.defer(item, 503, NOW);
        assert_eq!(bench.status(item), StepStatus::Skipped);
    }
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn where_a_number_bounds_the_attempts_their_waits_take_no_time_from_them() {
    let mut bench = one(json!({ "max_attempts": 9 }));
    let rules = bench.draft.task.definition(StepIndex(0)).attempts.clone();
    let wait = crate::task::RetryWait::from(Duration::from_secs(3600));
    let wait = wait.within_attempts(rules.as_deref());
    let attempt = bench.claim("a").unwrap();
    let fault = Fault {
        status: Some(503),
        ..Fault::transient("busy", bench.now)
    };
    let outcome = CallOutcome::Transient { fault, wait };
    bench.reply("a", attempt, outcome).unwrap();
    assert_eq!(bench.status("a"), StepStatus::Pending);
    assert_eq!(bench.record("a").failure_count, 0);
    let event = bench.draft.events.last().unwrap();
    assert_eq!(event.reason.as_deref(), Some("retried in 1h"));
}

#[test]
fn a_permanent_error_is_followed_by_the_policy_for_its_status() {
    let by_status = json!({ "on_permanent":
        { "404": "skip", "409": "success", "422": "undo", "4xx": "error" } });
    let after = |status: u16| {
        let mut bench = one(by_status.clone());
        refuse(&mut bench, "a", status);
        bench
    };
    assert_eq!(after(404).status("a"), StepStatus::Skipped);
    assert_eq!(after(422).task(), TaskStatus::Undone);
    assert_eq!(after(403).status("a"), StepStatus::Error);
    assert_eq!(after(301).status("a"), StepStatus::Error, "the default");
    let conflict = after(409);
    assert_eq!(conflict.status("a"), StepStatus::Processed);
    assert_eq!(conflict.record("a").effect, Effect::Known);
    assert_eq!(conflict.record("a").error(), None);
    assert_eq!(conflict.status("last"), StepStatus::Pending);
    let event = conflict
        .draft
        .events
        .iter()
        .find(|event| event.kind == "step.processed");
    let reason = event.unwrap().reason.clone().unwrap();
    assert!(reason.starts_with("its policy is success: "), "{reason}");
}

#[test]
fn the_body_of_an_error_that_counts_as_a_success_is_the_output() {
    let mut bench = one(json!({ "on_permanent": { "409": "success" }, "keep_headers": [] }));
    let attempt = bench.claim("a").unwrap();
    let fault = Fault {
        status: Some(409),
        body: Some(r#"{"id":"c1"}"#.to_owned()),
        ..Fault::permanent("exists", bench.now)
    };
    bench
        .reply("a", attempt, CallOutcome::Failed(fault))
        .unwrap();
    let output = bench.record("a").output().unwrap();
    assert_eq!(output.as_json(), r#"{"id":"c1"}"#);
    let response = bench.record("a").response.as_ref();
    assert_eq!(response.map(|response| response.status), Some(409));
}

#[test]
fn a_step_that_is_not_tried_again_is_followed_by_the_policy_for_its_last_status() {
    let steps = json!({ "max_attempts": 1, "on_exhausted": { "503": "skip", "else": "undo" } });
    let mut busy = one(steps.clone());
    busy.defer("a", 503, NOW);
    assert_eq!(busy.status("a"), StepStatus::Skipped);
    let mut other = one(steps);
    other.defer("a", 429, NOW);
    assert_eq!(other.task(), TaskStatus::Undone);
}

#[test]
fn items_follow_the_policy_for_a_status_before_that_for_all_items() {
    let mut bench = Bench::new(json!([
        { "name": "all", "agent": "x", "for_each": [1, 2], "on_item_error": "error",
          "on_permanent": { "404": "skip" } },
    ]));
    refuse(&mut bench, "all[0]", 404);
    assert_eq!(bench.status("all[0]"), StepStatus::Skipped);
    refuse(&mut bench, "all[1]", 400);
    assert_eq!(bench.status("all[1]"), StepStatus::Error);
}

#[test]
fn a_body_that_is_an_error_by_the_rule_of_the_step_is_a_permanent_error_with_its_message() {
    let mut bench = one(json!({ "on_permanent": "skip",
        "failed": { "when": "output.ok == false", "message": "output.error" } }));
    let attempt = bench.claim("a").unwrap();
    let output = json!({ "ok": false, "error": "no such card" });
    bench.reply("a", attempt, success(output)).unwrap();
    assert_eq!(bench.status("a"), StepStatus::Skipped);
    let fault = error(&bench, "a");
    assert_eq!(fault.message, "the service reported an error: no such card");
    assert_eq!(
        (fault.kind, fault.effect),
        (FaultKind::Permanent, Effect::Known)
    );
    assert_eq!(
        fault.body.as_deref(),
        Some(r#"{"ok":false,"error":"no such card"}"#)
    );
    let mut bench = one(json!({ "failed": "output.ok | default(true) == false" }));
    bench.process("a");
    assert_eq!(bench.status("a"), StepStatus::Processed);
}

#[test]
fn a_body_that_cannot_be_judged_leaves_the_effect_unknown() {
    let mut bench = one(json!({ "failed": "output.count > 3" }));
    let attempt = bench.claim("a").unwrap();
    bench
        .reply("a", attempt, success(json!({ "count": "many" })))
        .unwrap();
    assert_eq!(bench.status("a"), StepStatus::Error);
    let fault = error(&bench, "a");
    assert_eq!(fault.effect, Effect::Unknown);
    assert!(
        fault.message.contains("`failed` could not be evaluated"),
        "{}",
        fault.message
    );
}

#[test]
fn a_policy_for_a_status_cannot_undo_what_a_pivot_has_made_final() {
    let steps = json!([
        { "name": "final", "agent": "x", "pivot": true },
        { "name": "a", "agent": "x", "on_permanent": { "404": "undo" } },
    ]);
    let parsed = parse_steps(
        &Payload::from_value(&steps),
        "/steps",
        &Policies::default(),
        &Limits::default(),
        &Accepted,
    );
    let faults = parsed.unwrap_err();
    assert_eq!(faults[0].pointer, "/steps/1/on_permanent");
}
