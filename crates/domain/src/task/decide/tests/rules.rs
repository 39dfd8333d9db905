//! Each rule by example.

use super::*;
use crate::{agent::past_stop::PastStop, task::history::Event, values::trace::CallTrace};

fn pipeline() -> Value {
    json!([
        { "name": "reserve", "agent": "inventory" },
        { "name": "charge", "agent": "payments",
          "request": { "path": "/charges", "body": { "hold": "{{ steps.reserve.output.id }}" } } },
        { "name": "ship", "agent": "shipping" },
    ])
}

#[test]
fn a_submitted_task_has_all_its_steps_and_those_that_wait_are_untouched() {
    let bench = Bench::new(pipeline());
    assert_eq!(bench.task(), TaskStatus::Pending);
    assert_eq!(bench.status("reserve"), StepStatus::Pending);
    assert_eq!(bench.status("charge"), StepStatus::Waiting);
    assert_eq!(bench.draft.changed, [StepIndex(0)]);
    assert_eq!(bench.draft.first_touched, [StepIndex(0)]);
    assert_eq!(bench.draft.task.untouched, [StepIndex(1), StepIndex(2)]);
    assert_eq!(bench.events(), ["task.accepted", "step.ready"]);
    assert_eq!(bench.draft.ready, [StepIndex(0)]);
}

/// As the steps of a command are saved.
fn save(bench: &mut Bench) {
    bench.draft.keep_claim();
    bench.draft = Draft::on(bench.draft.task.clone());
}

#[test]
fn the_first_claim_of_a_step_stands_in_the_record_of_its_task_until_more_happens_in_it() {
    let mut bench = Bench::new(pipeline());
    let attempt = bench.claim("reserve").unwrap();
    save(&mut bench);
    assert_eq!(bench.draft.task.own_claim, Some(StepIndex(0)));
    let (step, by, at, until) = bench.draft.task.own_claim().unwrap();
    let claimed = Step::first_claimed(by.clone(), at, until);
    assert_eq!(bench.draft.task.step(step), &claimed);
    bench
        .reply("reserve", attempt, success(json!({ "id": 1 })))
        .unwrap();
    assert_eq!(bench.draft.task.own_claim, None);
    assert_eq!(bench.draft.first_touched, [StepIndex(0), StepIndex(1)]);
    bench.claim("charge").unwrap();
    save(&mut bench);
    assert_eq!(bench.draft.task.own_claim, Some(StepIndex(1)));
}

#[test]
fn a_claim_of_a_step_that_has_a_row_stands_there() {
    let mut bench = Bench::new(pipeline());
    save(&mut bench);
    bench.claim("reserve").unwrap();
    save(&mut bench);
    assert_eq!(bench.draft.task.own_claim, None);
}

#[test]
fn a_task_has_room_for_one_claim() {
    let mut bench = Bench::new(json!([
        { "name": "a", "agent": "inventory" },
        { "name": "b", "agent": "inventory", "after": [] },
    ]));
    bench.claim("b").unwrap();
    bench.claim("a").unwrap();
    save(&mut bench);
    assert_eq!(bench.draft.task.own_claim, Some(StepIndex(0)));
    let attempt = bench.record("a").attempt;
    bench.reply("a", attempt, success(json!(1))).unwrap();
    save(&mut bench);
    assert_eq!(bench.draft.task.own_claim, None);
}

#[test]
fn a_task_that_is_undone_has_rows_of_all_steps() {
    let mut bench = Bench::new(json!([
        { "name": "a", "agent": "inventory", "undo": { "request": {} } },
        { "name": "b", "agent": "inventory" },
    ]));
    bench.claim("a").unwrap();
    save(&mut bench);
    assert_eq!(bench.draft.task.own_claim, Some(StepIndex(0)));
    bench.apply(Command::Undo { reason: None }).unwrap();
    assert_eq!(bench.status("a"), StepStatus::Processing);
    assert_eq!(bench.draft.first_touched, [StepIndex(1), StepIndex(0)]);
    save(&mut bench);
    assert_eq!(bench.draft.task.own_claim, None);
    assert_eq!(bench.draft.task.untouched, []);
}

#[test]
fn a_claim_of_a_second_attempt_does_not_stand_in_the_record_of_the_task() {
    let mut bench = Bench::new(pipeline());
    bench.defer("reserve", 503, Duration::from_secs(1));
    bench.later(Span::from_secs(60));
    bench.claim("reserve").unwrap();
    save(&mut bench);
    assert_eq!(bench.draft.task.own_claim, None);
}

#[test]
fn a_pipeline_runs_in_order_and_ends_processed() {
    let mut bench = Bench::new(pipeline());
    for (step, next) in [
        ("reserve", Some("charge")),
        ("charge", Some("ship")),
        ("ship", None),
    ] {
        bench.process(step);
        if let Some(next) = next {
            assert_eq!(bench.status(next), StepStatus::Pending);
            assert_eq!(bench.task(), TaskStatus::Processing);
        }
    }
    assert_eq!(bench.task(), TaskStatus::Processed);
    assert_eq!(bench.draft.task.ended_at(), Some(bench.now));
}

#[test]
fn a_claim_renders_the_request_from_the_outputs_before_it() {
    let mut bench = Bench::new(pipeline());
    bench.process("reserve");
    let step = bench.step("charge");
    let by = Claimant::Instance(InstanceId::new("node-1"));
    let Ok(CommandOutput::Call(call)) = bench.apply(Command::Claim { step, by }) else {
        panic!("not claimed");
    };
    assert_eq!(call.body.as_deref(), Some(r#"{"hold":"reserve"}"#));
    assert_eq!(call.path, "/charges");
    assert_eq!(call.attempt, Attempt(1));
    assert!(call.idempotency_key.ends_with(":charge"));
    assert_eq!(call.complete_by, bench.now + Span::from_secs(30));
}

#[test]
fn every_attempt_carries_the_same_idempotency_key() {
    let mut bench = Bench::new(pipeline());
    let step = bench.step("reserve");
    let mut keys = Vec::new();
    for _ in 0..3 {
        let by = Claimant::Instance(InstanceId::new("node-1"));
        let Ok(CommandOutput::Call(call)) = bench.apply(Command::Claim { step, by }) else {
            panic!("not claimed");
        };
        keys.push((call.idempotency_key, call.attempt));
        bench.later(Span::from_secs(120));
        bench.expire("reserve").unwrap();
        bench.later(Span::from_secs(120));
    }
    assert!(keys.iter().all(|(key, _)| *key == keys[0].0));
    let attempts: Vec<_> = keys.iter().map(|(_, attempt)| attempt.0).collect();
    assert_eq!(attempts, [1, 2, 3]);
}

#[test]
fn a_claim_says_for_what_its_step_stood_in_line() {
    let mut bench = Bench::new(pipeline());
    let step = bench.step("reserve");
    let stop = |until: Timestamp| PastStop {
        until,
        why: "its breaker was open: 503".to_owned(),
        at: None,
    };
    let early = stop(bench.now);
    bench.later(Span::from_secs(5));
    let late = stop(bench.now);
    bench.claim("reserve").unwrap();
    let reason = |bench: &Bench| {
        let claimed = |event: &&Event| event.kind == "step.claimed";
        let claim = bench.draft.events.iter().find(claimed).unwrap();
        claim.reason.clone()
    };
    bench.draft.explain_wait(step, &early);
    assert_eq!(reason(&bench), None, "it was ready when that was over");
    bench.draft.explain_wait(step, &late);
    let expected = format!(
        "its agent was not called until {}: its breaker was open: 503",
        late.until
    );
    assert_eq!(reason(&bench), Some(expected.clone()));
    let at_one = PastStop {
        why: "the secret `token` cannot be used: it is empty".to_owned(),
        at: Some(InstanceId::new("one")),
        ..late
    };
    bench.draft.explain_wait(step, &at_one);
    let until = at_one.until;
    let added = format!("; instance one did not call its agent until {until}: the secret");
    assert!(
        reason(&bench)
            .unwrap()
            .starts_with(&format!("{expected}{added}"))
    );
}

#[test]
fn a_step_that_is_held_cannot_be_claimed_again() {
    let mut bench = Bench::new(pipeline());
    bench.claim("reserve").unwrap();
    assert!(matches!(
        bench.claim("reserve"),
        Err(Refusal::StepState { .. })
    ));
}

#[test]
fn a_reply_of_an_earlier_attempt_changes_nothing() {
    let mut bench = Bench::new(pipeline());
    let first = bench.claim("reserve").unwrap();
    bench.later(Span::from_secs(31));
    bench.expire("reserve").unwrap();
    bench.later(Span::from_secs(1));
    bench.claim("reserve").unwrap();
    let before = bench.draft.task.clone();
    let late = bench.reply("reserve", first, success(json!({})));
    assert!(matches!(late, Err(Refusal::Late { .. })));
    assert_eq!(bench.draft.task, before);
}

#[test]
fn a_permanent_error_ends_the_step_and_raises_an_alert() {
    let mut bench = Bench::new(pipeline());
    let attempt = bench.claim("reserve").unwrap();
    bench.reply("reserve", attempt, refusal(402)).unwrap();
    assert_eq!(bench.status("reserve"), StepStatus::Error);
    assert_eq!(bench.task(), TaskStatus::Error);
    let error = bench.draft.task.error().unwrap();
    assert_eq!(error.status, Some(402));
    assert_eq!(error.step.as_ref().unwrap().as_str(), "reserve");
    assert!(matches!(
        bench.draft.alerts.as_slice(),
        [AlertChange::Raise { step: StepIndex(0), kind: AlertKind::TaskError, message, .. }] if message.contains("402")
    ));
}

#[test]
fn on_permanent_skip_goes_on_without_the_step() {
    let mut bench = Bench::new(json!([
        { "name": "greet", "agent": "mail", "on_permanent": "skip" },
        { "name": "ship", "agent": "shipping" },
    ]));
    let attempt = bench.claim("greet").unwrap();
    bench.reply("greet", attempt, refusal(400)).unwrap();
    assert_eq!(bench.status("greet"), StepStatus::Skipped);
    assert_eq!(bench.status("ship"), StepStatus::Pending);
    assert!(bench.draft.alerts.is_empty());
}

#[test]
fn an_expired_step_counts_a_failure_and_waits_before_it_is_tried_again() {
    let mut bench = Bench::new(pipeline());
    bench.claim("reserve").unwrap();
    assert!(matches!(
        bench.expire("reserve"),
        Err(Refusal::NotDue { .. })
    ));
    bench.later(Span::from_secs(30));
    bench.expire("reserve").unwrap();
    assert_eq!(bench.record("reserve").failure_count, 1);
    let StepState::Pending { ready_at } = bench.record("reserve").state else {
        panic!("not pending");
    };
    assert_eq!(ready_at, bench.now + Span::from_secs(1));
    assert!(matches!(
        bench.claim("reserve"),
        Err(Refusal::NotDue { .. })
    ));
}

#[test]
fn a_lost_instance_counts_as_a_failure_and_its_step_is_pending_at_once() {
    let mut bench = Bench::new(pipeline());
    let attempt = bench.claim("reserve").unwrap();
    bench.lose("reserve", attempt).unwrap();
    assert_eq!(bench.record("reserve").failure_count, 1);
    assert_eq!(bench.draft.ready, [bench.step("reserve")]);
    let told = bench.draft.events.last().unwrap();
    assert_eq!(told.kind, "step.expired");
    assert!(told.reason.as_ref().unwrap().contains("node-1"), "{told:?}");
    bench.claim("reserve").unwrap();
    assert!(matches!(
        bench.lose("reserve", attempt),
        Err(Refusal::Late { .. })
    ));
}

#[test]
fn instances_lost_again_and_again_never_end_a_step_in_error() {
    let mut bench = Bench::new(json!([{ "name": "a", "agent": "x", "max_failures": 2 }]));
    for lost in 1..=50 {
        let attempt = bench.claim("a").unwrap();
        bench.lose("a", attempt).unwrap();
        assert_eq!(bench.record("a").failure_count, lost.min(2));
        if lost > 2 {
            let early = bench.claim("a");
            assert!(
                matches!(early, Err(Refusal::NotDue { .. })),
                "what may kill its instances waits"
            );
            bench.later(Span::from_secs(60));
        }
    }
    assert_eq!(bench.status("a"), StepStatus::Pending);
    bench.claim("a").unwrap();
    bench.later(Span::from_secs(30));
    bench.expire("a").unwrap();
    assert_eq!(bench.status("a"), StepStatus::Error);
}

/// Expires a step until the supervisor gives up on it, or `most` times.
fn exhaust(bench: &mut Bench, name: &str, most: u32) {
    for _ in 0..most {
        bench.later(Span::from_secs(3600));
        if bench.claim(name).is_err() {
            return;
        }
        bench.later(Span::from_secs(30));
        bench.expire(name).unwrap();
    }
}

#[test]
fn more_failures_than_allowed_end_the_step_in_error_with_the_last_fault() {
    let mut bench = Bench::new(json!([{ "name": "a", "agent": "x", "max_failures": 2 }]));
    let attempt = bench.claim("a").unwrap();
    let seen = Fault::transient("503 Service Unavailable", bench.now);
    let step = bench.step("a");
    bench
        .apply(Command::Reply {
            step,
            attempt,
            outcome: CallOutcome::Transient {
                fault: Fault {
                    status: Some(503),
                    ..seen
                },
                wait: Duration::from_millis(250).into(),
            },
        })
        .unwrap();
    bench.later(Span::from_millis(250));
    bench.claim("a").unwrap();
    bench.later(Span::from_secs(30));
    bench.expire("a").unwrap();
    exhaust(&mut bench, "a", 10);
    assert_eq!(bench.status("a"), StepStatus::Error);
    assert_eq!(bench.record("a").failure_count, 3);
    assert_eq!(bench.record("a").attempt, Attempt(4));
    let error = bench.draft.task.error().unwrap();
    assert_eq!(error.kind, FaultKind::Exhausted);
    assert_eq!(error.status, Some(503));
    assert!(
        error.message.contains("503 Service Unavailable"),
        "{}",
        error.message
    );
}

#[test]
fn extend_grants_a_try_after_each_long_wait_and_then_gives_up() {
    let mut bench = Bench::new(json!([{ "name": "a", "agent": "x", "max_failures": 0,
        "on_exhausted": { "extend": "10m", "times": 2, "then": "error" } }]));
    for extended in 1..=2 {
        bench.claim("a").unwrap();
        bench.later(Span::from_secs(30));
        bench.expire("a").unwrap();
        assert_eq!(bench.record("a").extensions_used, extended);
        assert_eq!(bench.status("a"), StepStatus::Pending);
        bench.later(Span::from_secs(599));
        assert!(matches!(bench.claim("a"), Err(Refusal::NotDue { .. })));
        bench.later(Span::from_secs(1));
    }
    bench.claim("a").unwrap();
    bench.later(Span::from_secs(30));
    bench.expire("a").unwrap();
    assert_eq!(bench.status("a"), StepStatus::Error);
    assert_eq!(bench.record("a").failure_count, 3);
}

#[test]
fn a_retried_step_starts_anew_and_the_task_goes_on() {
    let mut bench = Bench::new(pipeline());
    let attempt = bench.claim("reserve").unwrap();
    bench.reply("reserve", attempt, refusal(402)).unwrap();
    let step = bench.step("reserve");
    let body = Some(Payload::from_value(&json!({ "card": "tok_visa" })));
    bench
        .apply(Command::Retry {
            step: Some(step),
            body,
            reason: None,
        })
        .unwrap();
    assert_eq!(bench.task(), TaskStatus::Processing);
    assert!(bench.draft.alerts.contains(&AlertChange::Close { step }));
    let by = Claimant::Instance(InstanceId::new("node-1"));
    let Ok(CommandOutput::Call(call)) = bench.apply(Command::Claim { step, by }) else {
        panic!("not claimed");
    };
    assert_eq!(call.body.as_deref(), Some(r#"{"card":"tok_visa"}"#));
    assert_eq!(call.attempt, Attempt(2));
}

#[test]
fn a_call_that_was_given_up_has_failed_whatever_the_clock_says() {
    let mut bench = Bench::new(pipeline());
    let attempt = bench.claim("reserve").unwrap();
    let step = bench.step("reserve");
    assert!(matches!(
        bench.expire("reserve"),
        Err(Refusal::NotDue { .. })
    ));
    let give_up = |attempt| Command::Expire {
        step,
        attempt,
        cause: Expiry::GivenUp,
    };
    bench.apply(give_up(attempt)).unwrap();
    let reserve = bench.draft.task.step(step);
    assert!(matches!(reserve.state, StepState::Pending { .. }));
    assert_eq!(reserve.failure_count, 1);
    assert_eq!(bench.events().last(), Some(&"step.expired"));
    assert!(matches!(
        bench.apply(give_up(attempt)),
        Err(Refusal::Late { .. })
    ));
}

#[test]
fn a_step_that_is_not_in_error_is_not_retried() {
    let mut bench = Bench::new(pipeline());
    bench.process("reserve");
    let step = Some(bench.step("reserve"));
    let refused = bench.apply(Command::Retry {
        step,
        body: None,
        reason: None,
    });
    assert!(matches!(refused, Err(Refusal::StepState { .. })));
    let refused = bench.apply(Command::Retry {
        step: None,
        body: None,
        reason: None,
    });
    assert!(matches!(refused, Err(Refusal::TaskState { .. })));
}

#[test]
fn a_resolved_step_gives_its_output_to_the_steps_that_follow() {
    let mut bench = Bench::new(pipeline());
    let attempt = bench.claim("reserve").unwrap();
    bench.reply("reserve", attempt, refusal(500)).unwrap();
    let step = bench.step("reserve");
    let output = Payload::from_value(&json!({ "id": "by-hand" }));
    bench
        .apply(Command::Resolve {
            step,
            output,
            reason: None,
        })
        .unwrap();
    assert_eq!(bench.status("reserve"), StepStatus::Processed);
    let step = bench.step("charge");
    let by = Claimant::Instance(InstanceId::new("node-1"));
    let Ok(CommandOutput::Call(call)) = bench.apply(Command::Claim { step, by }) else {
        panic!("not claimed");
    };
    assert_eq!(call.body.as_deref(), Some(r#"{"hold":"by-hand"}"#));
}

#[test]
fn a_request_that_cannot_be_rendered_is_a_permanent_error_that_says_why() {
    let mut bench = Bench::new(json!([
        { "name": "a", "agent": "x", "request": { "path": "/{{ input.nothing }}" } },
    ]));
    bench.claim("a").unwrap();
    assert_eq!(bench.status("a"), StepStatus::Error);
    let message = &bench.draft.task.error().unwrap().message;
    assert!(message.contains("nothing"), "{message}");
}

#[test]
fn a_false_condition_skips_the_step_and_what_follows_still_runs() {
    let mut bench = Bench::new(json!([
        { "name": "a", "agent": "x" },
        { "name": "b", "agent": "x", "when": "input.total > 100" },
        { "name": "c", "agent": "x", "when": "input.total > 10" },
    ]));
    bench.process("a");
    assert_eq!(bench.status("b"), StepStatus::Skipped);
    assert_eq!(bench.status("c"), StepStatus::Pending);
    bench.process("c");
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn a_join_becomes_ready_once_all_its_branches_are_done() {
    let mut bench = Bench::new(json!([
        { "name": "a", "agent": "x", "after": [] },
        { "name": "b", "agent": "x", "after": [] },
        { "name": "join", "agent": "x", "after": ["a", "b"] },
    ]));
    bench.process("b");
    assert_eq!(bench.status("join"), StepStatus::Waiting);
    bench.process("a");
    assert_eq!(bench.status("join"), StepStatus::Pending);
    let readied = bench.draft.events.iter();
    let readied =
        readied.filter(|e| e.kind == "step.ready" && e.step.as_ref().unwrap().as_str() == "join");
    assert_eq!(readied.count(), 1);
}

#[test]
fn a_failed_branch_does_not_hold_up_another() {
    let mut bench = Bench::new(json!([
        { "name": "a", "agent": "x", "after": [] },
        { "name": "b", "agent": "y", "after": [] },
        { "name": "c", "agent": "y", "after": ["b"] },
    ]));
    let attempt = bench.claim("a").unwrap();
    bench.reply("a", attempt, refusal(400)).unwrap();
    bench.process("b");
    bench.process("c");
    assert_eq!(bench.task(), TaskStatus::Error);
    let step = bench.step("a");
    bench
        .apply(Command::Skip {
            step,
            output: None,
            reason: None,
        })
        .unwrap();
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn nothing_of_a_paused_task_is_claimed_until_it_is_resumed() {
    let mut bench = Bench::new(pipeline());
    let attempt = bench.claim("reserve").unwrap();
    bench.apply(Command::Pause { reason: None }).unwrap();
    assert_eq!(bench.task(), TaskStatus::Paused);
    bench
        .reply("reserve", attempt, success(json!({ "id": 1 })))
        .unwrap();
    assert_eq!(bench.status("charge"), StepStatus::Pending);
    assert!(bench.draft.ready.is_empty() || bench.draft.ready == [StepIndex(0)]);
    assert!(bench.claim("charge").is_err());
    bench.apply(Command::Resume { reason: None }).unwrap();
    assert_eq!(bench.task(), TaskStatus::Processing);
    bench.claim("charge").unwrap();
}

#[test]
fn a_cancelled_task_drops_its_calls_and_never_changes_again() {
    let mut bench = Bench::new(pipeline());
    let attempt = bench.claim("reserve").unwrap();
    bench
        .apply(Command::Cancel {
            reason: Some("withdrawn".into()),
        })
        .unwrap();
    assert_eq!(bench.task(), TaskStatus::Cancelled);
    let dropped: Vec<_> = bench.draft.dropped.iter().collect();
    assert!(
        matches!(dropped[..], [dropped] if dropped.attempt == attempt && !dropped.confirm),
        "{dropped:?}"
    );
    assert_eq!(bench.status("ship"), StepStatus::Cancelled);
    let refused = bench.reply("reserve", attempt, success(json!({})));
    assert!(matches!(refused, Err(Refusal::Late { .. })));
    let refused = bench.apply(Command::Cancel { reason: None });
    assert!(matches!(refused, Err(Refusal::Ended("cancelled"))));
}

#[test]
fn an_overdue_task_ends_in_error_and_a_retry_gives_it_its_time_anew() {
    let mut bench = Bench::limited(pipeline(), Some(Span::from_secs(60)));
    let step = bench.step("reserve");
    let by = Claimant::Instance(InstanceId::new("node-1"));
    bench.later(Span::from_secs(50));
    let Ok(CommandOutput::Call(call)) = bench.apply(Command::Claim { step, by }) else {
        panic!("not claimed");
    };
    assert_eq!(
        call.complete_within,
        Span::from_secs(10),
        "cut to the task's own limit"
    );
    assert!(bench.apply(Command::Overdue).is_err());
    bench.later(Span::from_secs(10));
    bench.apply(Command::Overdue).unwrap();
    assert_eq!(bench.draft.task.error().unwrap().kind, FaultKind::Deadline);
    assert_eq!(bench.draft.task.overdue_at(), None);
    bench.later(Span::from_secs(5));
    bench
        .apply(Command::Retry {
            step: None,
            body: None,
            reason: None,
        })
        .unwrap();
    assert_eq!(
        bench.draft.task.complete_by,
        Some(bench.now + Span::from_secs(60))
    );
    bench.claim("reserve").unwrap();
}

#[test]
fn a_released_step_is_pending_at_once_and_counts_no_failure() {
    let mut bench = Bench::new(pipeline());
    let attempt = bench.claim("reserve").unwrap();
    let step = bench.step("reserve");
    let why = Release::Restart;
    bench
        .apply(Command::Release { step, attempt, why })
        .unwrap();
    assert_eq!(bench.record("reserve").failure_count, 0);
    assert_eq!(bench.claim("reserve").unwrap(), Attempt(2));
}

#[test]
fn the_trace_goes_on_from_the_task_to_each_attempt() {
    let mut bench = Bench::new(pipeline());
    let step = bench.step("reserve");
    let by = Claimant::Instance(InstanceId::new("node-1"));
    let Ok(CommandOutput::Call(call)) = bench.apply(Command::Claim { step, by }) else {
        panic!("not claimed");
    };
    assert_eq!(call.trace, CallTrace::of(None, call.step, call.attempt));
}
