//! Joins that need fewer than all of the steps before them.

use super::*;
use crate::{
    definition::{RaceRest, parse_steps_within},
    template::Budget,
    values::fields::FieldFault,
    view::task::TaskView,
};

const RESTS: [&str; 3] = ["cancel", "let", "undo"];

fn undoable(name: &str) -> Value {
    json!({
        "name": name, "agent": "x", "after": [],
        "undo": { "request": { "method": "DELETE", "path": "/{{ output.id }}" } }
    })
}

/// Two services compete with a timer.
fn steps(any: u64, rest: &str) -> Value {
    json!([
        undoable("eu"),
        undoable("us"),
        { "name": "timer", "after": [], "wait": { "for": "1h" } },
        { "name": "join", "agent": "x", "after": { "any": any, "of": ["eu", "us", "timer"], "rest": rest },
          "request": { "path": "/done" } },
    ])
}

fn faults(steps: &Value) -> Vec<String> {
    let parsed = parse_steps(
        &Payload::from_value(steps),
        "/steps",
        &Policies::default(),
        &Limits::default(),
        &Accepted,
    );
    let faults: Vec<FieldFault> = parsed.err().unwrap_or_default();
    let faults = faults.into_iter();
    faults
        .map(|fault| format!("{} {}", fault.pointer, fault.message))
        .collect()
}

fn dropped(bench: &Bench) -> Vec<StepIndex> {
    bench
        .draft
        .dropped
        .iter()
        .map(|dropped| dropped.step)
        .collect()
}

#[test]
fn the_first_success_begins_the_join_and_cancels_the_rest() {
    let mut bench = Bench::new(steps(1, "cancel"));
    let us = bench.claim("us").unwrap();
    bench.process("eu");
    assert_eq!(bench.status("join"), StepStatus::Pending);
    assert_eq!(bench.status("timer"), StepStatus::Cancelled);
    // The call may still be on its way: its instance confirms that it has ended.
    assert_eq!(bench.status("us"), StepStatus::Processing);
    assert_eq!(dropped(&bench), [bench.step("us")]);
    bench.confirm_drop("us");
    assert_eq!(bench.status("us"), StepStatus::Cancelled);
    assert_eq!(bench.record("us").effect, Effect::Unknown);
    assert_eq!(bench.record("us").last_fault, None);
    assert_eq!(bench.task(), TaskStatus::Processing);
    // The reply to the dropped call is late.
    let late = bench.reply("us", us, success(json!({ "id": "us" })));
    assert!(matches!(late, Err(Refusal::Late { .. })), "{late:?}");
    bench.process("join");
    assert_eq!(bench.task(), TaskStatus::Processed);
    changes_are_told(&bench.draft).unwrap();
}

#[test]
fn the_rest_may_go_on() {
    let mut bench = Bench::new(steps(1, "let"));
    bench.process("eu");
    bench.process("join");
    assert_eq!(bench.status("us"), StepStatus::Pending);
    assert_eq!(bench.task(), TaskStatus::Processing);
    bench.process("us");
    bench.later(Span::from_millis(3_600_000));
    bench.expire("timer").unwrap();
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn a_loser_in_flight_is_waited_for_and_undone() {
    let mut bench = Bench::new(steps(1, "undo"));
    let us = bench.claim("us").unwrap();
    bench.process("eu");
    assert_eq!(bench.status("join"), StepStatus::Pending);
    assert_eq!(bench.status("us"), StepStatus::Processing);
    assert!(dropped(&bench).is_empty());
    // The winner needs no undo.
    assert_eq!(bench.status("eu.revert"), StepStatus::Skipped);
    assert_eq!(bench.status("us.revert"), StepStatus::Waiting);
    bench.process("join");
    assert_eq!(bench.task(), TaskStatus::Processing);
    bench
        .reply("us", us, success(json!({ "id": "us" })))
        .unwrap();
    assert_eq!(bench.status("us"), StepStatus::Processed);
    assert_eq!(bench.status("us.revert"), StepStatus::Pending);
    let revert = bench.step("us.revert");
    let by = Claimant::Instance(InstanceId::new("node-1"));
    let CommandOutput::Call(call) = bench.apply(Command::Claim { step: revert, by }).unwrap()
    else {
        panic!("no call");
    };
    assert_eq!(call.path, "/us");
    assert!(
        call.idempotency_key.ends_with(":us.undo"),
        "{}",
        call.idempotency_key
    );
    let attempt = bench.record("us.revert").attempt;
    bench
        .reply("us.revert", attempt, success(json!(null)))
        .unwrap();
    assert_eq!(bench.status("us"), StepStatus::Undone);
    assert_eq!(bench.task(), TaskStatus::Processed);
    changes_are_told(&bench.draft).unwrap();
}

#[test]
fn a_loser_that_fails_is_undone_only_where_its_outcome_is_unknown() {
    for (outcome, expected) in [
        (refusal(422), StepStatus::Skipped),
        (
            CallOutcome::Failed(Fault {
                effect: Effect::Unknown,
                ..Fault::permanent("unreadable", Timestamp::from_millis(0))
            }),
            StepStatus::Pending,
        ),
    ] {
        let mut bench = Bench::new(steps(1, "undo"));
        let us = bench.claim("us").unwrap();
        bench.process("eu");
        bench.reply("us", us, outcome).unwrap();
        assert_eq!(bench.status("us"), StepStatus::Cancelled);
        assert_eq!(bench.status("us.revert"), expected);
        assert_ne!(bench.task(), TaskStatus::Error);
    }
}

#[test]
fn so_many_must_succeed() {
    let mut bench = Bench::new(steps(2, "cancel"));
    bench.process("eu");
    assert_eq!(bench.status("join"), StepStatus::Waiting);
    assert_eq!(bench.status("us"), StepStatus::Pending);
    bench.later(Span::from_millis(3_600_000));
    bench.expire("timer").unwrap();
    assert_eq!(bench.status("join"), StepStatus::Pending);
    assert_eq!(bench.status("us"), StepStatus::Cancelled);
    let Some(race) = bench.draft.task.definition(bench.step("join")).race.clone() else {
        panic!("no race");
    };
    assert_eq!(race.rest, RaceRest::Cancel);
    let winners = bench.draft.task.winners(bench.step("join"));
    assert_eq!(winners, [bench.step("eu"), bench.step("timer")]);
}

#[test]
fn a_competitor_in_error_ends_with_the_race() {
    for rest in ["cancel", "undo"] {
        let mut bench = Bench::new(steps(1, rest));
        let us = bench.claim("us").unwrap();
        bench.reply("us", us, refusal(500)).unwrap();
        assert_eq!(bench.task(), TaskStatus::Error);
        bench.process("eu");
        assert_eq!(bench.status("us"), StepStatus::Cancelled);
        assert_eq!(bench.task(), TaskStatus::Processing, "{rest}");
        let is_closed =
            bench.draft.alerts.iter().any(
                |alert| matches!(alert, AlertChange::Close { step } if *step == bench.step("us")),
            );
        assert!(is_closed);
    }
}

#[test]
fn a_join_that_cannot_begin_any_more_follows_its_policy() {
    for (policy, join, task) in [
        ("error", StepStatus::Error, TaskStatus::Error),
        ("skip", StepStatus::Skipped, TaskStatus::Processed),
    ] {
        let mut steps = json!([
            { "name": "eu", "agent": "x", "after": [], "on_permanent": "skip" },
            { "name": "us", "agent": "x", "after": [], "on_permanent": "skip" },
            { "name": "join", "agent": "x", "after": { "any": 1, "of": ["eu", "us"] } },
        ]);
        steps[2]["on_permanent"] = json!(policy);
        let mut bench = Bench::new(steps);
        for name in ["eu", "us"] {
            assert_eq!(bench.status("join"), StepStatus::Waiting);
            let attempt = bench.claim(name).unwrap();
            bench.reply(name, attempt, refusal(422)).unwrap();
        }
        assert_eq!(bench.status("join"), join);
        assert_eq!(bench.task(), task);
    }
}

#[test]
fn an_operator_who_skips_the_join_ends_its_race() {
    for rest in ["cancel", "undo"] {
        let mut steps = steps(3, rest);
        steps[0]["on_permanent"] = json!("skip");
        let mut bench = Bench::new(steps);
        let us = bench.claim("us").unwrap();
        let eu = bench.claim("eu").unwrap();
        bench.reply("eu", eu, refusal(422)).unwrap();
        assert_eq!(bench.status("join"), StepStatus::Error);
        let step = bench.step("join");
        bench
            .apply(Command::Skip {
                step,
                output: None,
                reason: None,
            })
            .unwrap();
        assert_eq!(bench.status("timer"), StepStatus::Cancelled);
        if rest == "undo" {
            bench
                .reply("us", us, success(json!({ "id": "us" })))
                .unwrap();
            bench.process("us.revert");
        } else {
            bench.confirm_drop("us");
        }
        assert_eq!(bench.task(), TaskStatus::Processed, "{rest}");
    }
}

#[test]
fn the_whole_lane_of_a_loser_ends_backward() {
    let mut a1 = undoable("a1");
    a1["after"] = json!([]);
    let mut a2 = undoable("a2");
    a2["after"] = json!(["a1"]);
    let mut a3 = undoable("a3");
    a3["after"] = json!(["a2"]);
    let steps = json!([
        { "name": "start", "agent": "x" }, a1, a2, a3, undoable("b"),
        { "name": "join", "agent": "x", "after": { "any": 1, "of": ["a3", "b"], "rest": "undo" } },
    ]);
    let mut bench = Bench::new(steps);
    bench.process("a1");
    bench.process("a2");
    bench.process("b");
    assert_eq!(bench.status("a3"), StepStatus::Cancelled);
    assert_eq!(
        bench.status("start"),
        StepStatus::Pending,
        "no lane has it alone"
    );
    assert_eq!(bench.status("a3.revert"), StepStatus::Skipped);
    assert_eq!(bench.status("a2.revert"), StepStatus::Pending);
    assert_eq!(bench.status("a1.revert"), StepStatus::Waiting);
    bench.process("a2.revert");
    bench.process("a1.revert");
    bench.process("join");
    bench.process("start");
    assert_eq!(bench.task(), TaskStatus::Processed);
    assert_eq!(bench.status("a1"), StepStatus::Undone);
}

#[test]
fn a_join_that_nothing_has_won_is_not_retried_and_a_rerun_races_again() {
    let lost = |any: u64| {
        let mut steps = steps(any, "cancel");
        for at in 0..2 {
            steps[at]["on_permanent"] = json!("skip");
        }
        let mut bench = Bench::new(steps);
        bench
            .apply(Command::Skip {
                step: bench.step("timer"),
                output: None,
                reason: None,
            })
            .unwrap();
        for name in ["eu", "us"] {
            let attempt = bench.claim(name).unwrap();
            bench.reply(name, attempt, refusal(422)).unwrap();
        }
        assert_eq!(bench.status("join"), StepStatus::Error);
        bench
    };
    for step in [Some("join"), None] {
        let mut bench = lost(1);
        let retry = Command::Retry {
            step: step.map(|step| bench.step(step)),
            body: None,
            reason: None,
        };
        let refused = bench.apply(retry.clone()).unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("too few of the steps that it needs can still succeed"),
            "{refused}"
        );
        assert_eq!(bench.status("join"), StepStatus::Error);
        // A rerun of the join itself finds the race as it is.
        let rerun = |bench: &mut Bench, name: &str| {
            let step = bench.step(name);
            bench
                .apply(Command::RetryFrom { step, reason: None })
                .unwrap();
        };
        rerun(&mut bench, "join");
        assert_eq!(bench.status("join"), StepStatus::Error);
        rerun(&mut bench, "us");
        assert_eq!(bench.status("join"), StepStatus::Waiting);
        bench.process("us");
        assert_eq!(bench.status("join"), StepStatus::Pending);
        let attempt = bench.claim("join").unwrap();
        bench.reply("join", attempt, refusal(422)).unwrap();
        // It has been won now.
        bench.apply(retry).unwrap();
        assert_eq!(bench.status("join"), StepStatus::Pending);
        changes_are_told(&bench.draft).unwrap();
    }
}

#[test]
fn the_view_says_what_becomes_of_a_step_that_has_lost_while_it_runs() {
    for rest in RESTS {
        let mut bench = Bench::new(steps(1, rest));
        let us = bench.claim("us").unwrap();
        let lost = |bench: &Bench| {
            let view = serde_json::to_value(TaskView::new(&bench.draft.task, bench.now)).unwrap();
            view["steps"][1]["lost"].clone()
        };
        assert_eq!(lost(&bench), Value::Null);
        bench.process("eu");
        let is_lost = rest != "let";
        assert_eq!(
            lost(&bench),
            if is_lost { json!(rest) } else { Value::Null }
        );
        bench
            .reply("us", us, success(json!({ "id": "us" })))
            .unwrap();
        assert_eq!(lost(&bench), Value::Null, "it has ended");
    }
}

#[test]
fn an_undo_of_the_task_undoes_what_the_race_left() {
    let mut bench = Bench::new(steps(1, "undo"));
    let us = bench.claim("us").unwrap();
    bench.process("eu");
    bench
        .reply("us", us, success(json!({ "id": "us" })))
        .unwrap();
    let revert = bench.claim("us.revert").unwrap();
    bench.apply(Command::Undo { reason: None }).unwrap();
    // The call that undoes it is in flight.
    assert_eq!(bench.status("us.undo"), StepStatus::Waiting);
    assert_eq!(bench.status("eu.undo"), StepStatus::Pending);
    bench
        .reply("us.revert", revert, success(json!(null)))
        .unwrap();
    assert_eq!(bench.status("us"), StepStatus::Undone);
    assert_eq!(bench.status("us.undo"), StepStatus::Skipped);
    bench.process("eu.undo");
    assert_eq!(bench.task(), TaskStatus::Undone);
}

#[test]
fn an_undo_of_the_task_takes_over_a_revert_that_has_not_begun() {
    let mut bench = Bench::new(steps(1, "undo"));
    let us = bench.claim("us").unwrap();
    bench.process("eu");
    bench
        .reply("us", us, success(json!({ "id": "us" })))
        .unwrap();
    bench.apply(Command::Undo { reason: None }).unwrap();
    assert_eq!(bench.status("us.revert"), StepStatus::Cancelled);
    bench.process("us.undo");
    bench.process("eu.undo");
    assert_eq!(bench.task(), TaskStatus::Undone);
    assert_eq!(bench.status("us"), StepStatus::Undone);
}

#[test]
fn a_rerun_from_before_the_race_races_again() {
    let mut steps = steps(1, "cancel");
    for at in 0..3 {
        steps[at]["after"] = json!(["start"]);
    }
    steps
        .as_array_mut()
        .unwrap()
        .insert(0, json!({ "name": "start", "agent": "x" }));
    let mut bench = Bench::new(steps);
    bench.process("start");
    bench.process("eu");
    bench.process("join");
    assert_eq!(bench.task(), TaskStatus::Processed);
    let mut steps = self::steps(1, "cancel");
    for at in 0..3 {
        steps[at]["after"] = json!(["start"]);
    }
    steps
        .as_array_mut()
        .unwrap()
        .insert(0, json!({ "name": "start", "agent": "x" }));
    let mut bench = Bench::new(steps);
    bench.process("start");
    bench.process("eu");
    let from = bench.step("start");
    bench
        .apply(Command::RetryFrom {
            step: from,
            reason: None,
        })
        .unwrap();
    assert_eq!(bench.status("us"), StepStatus::Waiting);
    bench.process("start");
    bench.process("us");
    assert_eq!(bench.status("eu"), StepStatus::Cancelled);
    bench.process("join");
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn a_loser_is_not_rerun_and_a_race_that_is_won_stays_won() {
    let mut steps = steps(1, "cancel");
    steps[1]["after"] = json!(["start"]);
    steps[2]["after"] = json!(["start"]);
    let list = steps.as_array_mut().unwrap();
    list.insert(0, json!({ "name": "start", "agent": "x" }));
    list[1]["after"] = json!([]);
    let mut bench = Bench::new(steps);
    bench.process("start");
    bench.process("eu");
    let from = bench.step("us");
    let reason = None;
    let refused = bench.apply(Command::RetryFrom { step: from, reason });
    assert!(
        matches!(refused, Err(Refusal::StepState { .. })),
        "{refused:?}"
    );
    bench.process("join");
    assert_eq!(bench.task(), TaskStatus::Processed);
    let mut steps = self::steps(1, "cancel");
    let list = steps.as_array_mut().unwrap();
    list.insert(0, json!({ "name": "start", "agent": "x" }));
    list[1]["after"] = json!([]);
    list[2]["after"] = json!(["start"]);
    list[3]["after"] = json!(["start"]);
    let mut bench = Bench::new(steps);
    bench.process("start");
    bench.process("eu");
    let from = bench.step("start");
    let reason = None;
    bench
        .apply(Command::RetryFrom { step: from, reason })
        .unwrap();
    assert_eq!(
        bench.status("join"),
        StepStatus::Pending,
        "eu has won it before"
    );
    assert_eq!(bench.status("us"), StepStatus::Cancelled);
}

/// A race that eu has won while us ran, and us has succeeded after that, so that it is to be undone.
fn with_late_loser() -> Bench {
    let mut bench = Bench::new(steps(1, "undo"));
    let us = bench.claim("us").unwrap();
    bench.process("eu");
    bench.later(Span::from_secs(1));
    bench
        .reply("us", us, success(json!({ "id": "us" })))
        .unwrap();
    assert_eq!(bench.status("us.revert"), StepStatus::Pending);
    bench
}

fn rerun(bench: &mut Bench, name: &str) -> Result<CommandOutput, Refusal> {
    let step = bench.step(name);
    bench.apply(Command::RetryFrom { step, reason: None })
}

#[test]
fn a_loser_that_wins_because_of_a_rerun_is_not_undone() {
    let mut bench = with_late_loser();
    rerun(&mut bench, "eu").unwrap();
    let winners = bench.draft.task.winners(bench.step("join"));
    assert_eq!(winners, [bench.step("us")]);
    assert_eq!(bench.status("us.revert"), StepStatus::Skipped);
    // The effect of the former winner stands until it is undone.
    bench.process("eu.revert");
    bench.process("join");
    assert_eq!(bench.status("us"), StepStatus::Processed);
    assert_eq!(bench.status("eu"), StepStatus::Undone);
    assert_eq!(bench.task(), TaskStatus::Processed);
    changes_are_told(&bench.draft).unwrap();
}

#[test]
fn a_loser_whose_undo_has_failed_wins_because_of_a_rerun() {
    let mut bench = with_late_loser();
    let attempt = bench.claim("us.revert").unwrap();
    bench.reply("us.revert", attempt, refusal(400)).unwrap();
    assert_eq!(bench.task(), TaskStatus::Error);
    rerun(&mut bench, "eu").unwrap();
    assert_eq!(bench.status("us.revert"), StepStatus::Skipped);
    assert_eq!(bench.task(), TaskStatus::Processing);
    bench.process("eu.revert");
    bench.process("join");
    assert_eq!(bench.status("us"), StepStatus::Processed);
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn a_race_is_not_run_again_while_a_loser_is_being_undone() {
    let mut bench = with_late_loser();
    let attempt = bench.claim("us.revert").unwrap();
    let refused = rerun(&mut bench, "eu");
    assert!(
        matches!(refused, Err(Refusal::StepState { .. })),
        "{refused:?}"
    );
    // The join alone may run again: its race stays as it is.
    bench.process("join");
    rerun(&mut bench, "join").unwrap();
    bench
        .reply("us.revert", attempt, success(json!(null)))
        .unwrap();
    assert_eq!(bench.status("us"), StepStatus::Undone);
    rerun(&mut bench, "eu").unwrap();
    bench.process("eu");
    bench.process("join");
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn a_loser_that_never_succeeded_is_undone_once_the_race_is_over_again() {
    let mut bench = Bench::new(steps(1, "undo"));
    let us = bench.claim("us").unwrap();
    bench.process("eu");
    bench.lose("us", us).unwrap();
    assert_eq!(bench.status("us.revert"), StepStatus::Pending);
    rerun(&mut bench, "eu").unwrap();
    assert_eq!(bench.status("us"), StepStatus::Cancelled);
    assert_eq!(bench.status("us.revert"), StepStatus::Waiting);
    bench.process("eu");
    assert_eq!(bench.status("us.revert"), StepStatus::Pending);
}

#[test]
fn an_expression_reads_who_has_won() {
    let mut steps = steps(2, "let");
    let own = json!({ "path": "/{{ steps.join.winner }}" });
    steps[3]["request"] = own;
    let after = json!({ "name": "tell", "agent": "x", "request": { "body": {
        "first": "{{ steps.join.winner }}", "all": "{{ steps.join.winners }}", "none": "{{ steps.eu.winner }}",
    } } });
    steps.as_array_mut().unwrap().push(after);
    let mut bench = Bench::new(steps);
    bench.process("us");
    bench.process("eu");
    let step = bench.step("join");
    let by = Claimant::Instance(InstanceId::new("node-1"));
    let CommandOutput::Call(call) = bench.apply(Command::Claim { step, by }).unwrap() else {
        panic!("no call");
    };
    assert_eq!(call.path, "/us");
    bench
        .reply("join", call.attempt, success(json!(null)))
        .unwrap();
    let step = bench.step("tell");
    let by = Claimant::Instance(InstanceId::new("node-1"));
    let CommandOutput::Call(call) = bench.apply(Command::Claim { step, by }).unwrap() else {
        panic!("no call");
    };
    let body: Value = serde_json::from_str(&call.body.unwrap()).unwrap();
    // Both succeeded in the same millisecond, and the one that was told first has won.
    assert_eq!(
        body,
        json!({ "first": "us", "all": ["us", "eu"], "none": null })
    );
}

#[test]
fn a_race_that_would_wait_for_ever_is_refused() {
    let mut other = steps(1, "cancel");
    let steps = other.as_array_mut().unwrap();
    steps.push(json!({ "name": "other", "agent": "x", "after": ["eu"] }));
    let found = faults(&other);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("/steps/3/after `eu` also comes before `other`"),
        "{found:?}"
    );
    let mut pivot = self::steps(1, "undo");
    pivot[0]["pivot"] = json!(true);
    pivot[0].as_object_mut().unwrap().remove("undo");
    assert!(
        faults(&pivot)[0].contains("is a pivot"),
        "{:?}",
        faults(&pivot)
    );
    let mut own = self::steps(1, "let");
    own[3]["request"]["body"] = json!("{{ steps.join.output }}");
    assert!(faults(&own)[0].contains("`join` does not come before `join`"));
    let many = self::steps(4, "let");
    assert_eq!(
        faults(&many),
        ["/steps/3/after/any needs 4 steps, and `of` names 3: name more, or need fewer"]
    );
    for rest in RESTS {
        assert!(faults(&self::steps(1, rest)).is_empty());
    }
}

fn quorum(enough: Value, policy: &str) -> Value {
    json!([
        { "name": "ask", "agent": "x", "for_each": [1, 2, 3, 4], "max_parallel": 3, "enough": enough,
          "on_item_error": policy },
        { "name": "next", "agent": "x", "request": { "body": "{{ steps.ask.output }}" } },
    ])
}

#[test]
fn a_list_is_done_once_enough_items_have_succeeded() {
    let from_input = json!({ "value": "{{ input.total - 28 }}", "max": 4 });
    for enough in [json!(2), from_input] {
        let mut bench = Bench::new(quorum(enough, "error"));
        let second = bench.claim("ask[1]").unwrap();
        bench.process("ask[2]");
        // An error of one that is not needed ends with it.
        bench.reply("ask[1]", second, refusal(422)).unwrap();
        assert_eq!(bench.status("ask"), StepStatus::Processing);
        bench.claim("ask[3]").unwrap();
        bench.process("ask[0]");
        assert_eq!(bench.status("ask"), StepStatus::Processed);
        assert_eq!(bench.status("ask[1]"), StepStatus::Cancelled);
        bench.confirm_drop("ask[3]");
        assert_eq!(bench.status("ask[3]"), StepStatus::Cancelled);
        assert_eq!(dropped(&bench), [bench.step("ask[3]")]);
        let output = bench.record("ask").output().unwrap();
        assert_eq!(
            output.as_json(),
            r#"[{"id":"ask[0]"},null,{"id":"ask[2]"},null]"#
        );
        bench.process("next");
        assert_eq!(bench.task(), TaskStatus::Processed);
    }
}

#[test]
fn a_list_with_too_few_successes_is_in_error_itself() {
    let mut bench = Bench::new(quorum(json!(3), "skip"));
    for name in ["ask[0]", "ask[1]"] {
        let attempt = bench.claim(name).unwrap();
        bench.reply(name, attempt, refusal(422)).unwrap();
    }
    bench.process("ask[2]");
    bench.process("ask[3]");
    assert_eq!(bench.status("ask"), StepStatus::Error);
    let fault = bench.record("ask").error().unwrap();
    assert_eq!(
        fault.message,
        "only 2 of its 4 items have succeeded, and it needs 3"
    );
    let step = bench.step("ask");
    let skip = Command::Skip {
        step,
        output: None,
        reason: None,
    };
    bench.apply(skip).unwrap();
    bench.process("next");
    assert_eq!(bench.task(), TaskStatus::Processed);
    // A retry tries those again that were skipped.
    let mut bench = Bench::new(quorum(json!(2), "skip"));
    for name in ["ask[0]", "ask[1]", "ask[2]"] {
        let attempt = bench.claim(name).unwrap();
        bench.reply(name, attempt, refusal(422)).unwrap();
    }
    bench.process("ask[3]");
    let retry = Command::Retry {
        step: None,
        body: None,
        reason: None,
    };
    bench.apply(retry).unwrap();
    assert_eq!(bench.status("ask"), StepStatus::Processing);
    bench.process("ask[1]");
    assert_eq!(bench.status("ask"), StepStatus::Processed);
    assert_eq!(bench.status("ask[0]"), StepStatus::Cancelled);
    let few = Bench::new(quorum(json!(5), "skip"));
    let fault = few.record("ask").error().unwrap();
    assert_eq!(fault.message, "`enough` needs 5 items, and its list has 4");
}

#[test]
fn a_definition_that_costs_too_much_is_refused_wherever_its_budget_ends() {
    let mut accepted = 0;
    for budget in (0..40_000).step_by(200) {
        let parsed = parse_steps_within(
            &Payload::from_value(&steps(1, "undo")),
            "/steps",
            &Policies::default(),
            &Limits::default(),
            &Accepted,
            &Budget::of_several(budget),
        );
        match parsed {
            Ok(definition) => {
                accepted += 1;
                assert_eq!(definition.steps.len(), 6, "with its two reverts");
            }
            Err(faults) => assert!(!faults.is_empty(), "{budget}"),
        }
    }
    assert!(accepted > 0);
}
