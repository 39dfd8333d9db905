//! A task rerun from a step, by example.

use super::*;
use crate::values::fault::Effect;
use crate::view::undo_plan::undo_plan;

fn pipeline() -> Value {
    let step = |name: &str| {
        json!({ "name": name, "agent": "x",
                "undo": { "request": { "path": format!("/{name}/{{{{ output.id }}}}") } } })
    };
    let mut ship = step("ship");
    ship["request"] = json!({ "body": "{{ steps.charge.output.id }}" });
    json!([step("reserve"), step("charge"), ship])
}

fn rerun(bench: &mut Bench, name: &str) -> Result<(), Refusal> {
    let step = bench.step(name);
    let reason = Some("the price was wrong".to_owned());
    bench.apply(Command::RetryFrom { step, reason }).map(|_| ())
}

/// Two steps done, the third refused.
fn failed(steps: Value) -> Bench {
    let mut bench = Bench::new(steps);
    bench.process("reserve");
    bench.process("charge");
    let attempt = bench.claim("ship").unwrap();
    bench.reply("ship", attempt, refusal(400)).unwrap();
    bench
}

fn call_of(bench: &mut Bench, name: &str) -> Call {
    let step = bench.step(name);
    let by = Claimant::Instance(InstanceId::new("node-1"));
    match bench.apply(Command::Claim { step, by }).unwrap() {
        CommandOutput::Call(call) => *call,
        _ => panic!("{name} was not called"),
    }
}

#[test]
fn the_step_and_all_that_follow_it_run_again_under_their_keys() {
    let mut bench = failed(pipeline());
    let told = bench.draft.events.len();
    rerun(&mut bench, "charge").unwrap();
    assert_eq!(bench.task(), TaskStatus::Processing);
    assert_eq!(bench.status("reserve"), StepStatus::Processed);
    assert_eq!(bench.status("charge"), StepStatus::Pending);
    assert_eq!(bench.status("ship"), StepStatus::Waiting);
    let ship = bench.step("ship");
    assert!(
        bench
            .draft
            .alerts
            .contains(&AlertChange::Close { step: ship })
    );
    let retried = &bench.draft.events[told];
    assert_eq!(retried.kind, "step.retried");
    assert_eq!(retried.by, bench.by);
    assert_eq!(
        retried.reason.as_deref(),
        Some("the price was wrong (rerun from charge)")
    );
    let call = call_of(&mut bench, "charge");
    assert_eq!(call.attempt, Attempt(2));
    assert!(call.idempotency_key.ends_with(":charge"));
    bench
        .reply("charge", call.attempt, success(json!({ "id": "second" })))
        .unwrap();
    assert_eq!(
        call_of(&mut bench, "ship").body.as_deref(),
        Some("\"second\"")
    );
}

#[test]
fn failures_count_anew_and_time_that_is_over_begins_anew() {
    let steps =
        json!([{ "name": "a", "agent": "x", "max_failures": 0 }, { "name": "b", "agent": "x" }]);
    let mut bench = Bench::limited(steps, Some(Span::from_secs(60)));
    bench.claim("a").unwrap();
    bench.later(Span::from_secs(31));
    bench.expire("a").unwrap();
    assert_eq!(bench.record("a").failure_count, 1);
    bench.later(Span::from_secs(600));
    rerun(&mut bench, "a").unwrap();
    assert_eq!(bench.record("a").failure_count, 0);
    assert_eq!(
        bench.draft.task.complete_by,
        Some(bench.now + Span::from_secs(60))
    );
    assert_eq!(
        bench.record("a").effect,
        Effect::Unknown,
        "it is still not known"
    );
}

#[test]
fn conditions_are_evaluated_again() {
    let mut steps = pipeline();
    steps[2]["when"] = json!("steps.charge.output.id != 'charge'");
    steps
        .as_array_mut()
        .unwrap()
        .push(json!({ "name": "end", "agent": "x" }));
    let mut bench = Bench::new(steps);
    bench.process("reserve");
    bench.process("charge");
    assert_eq!(bench.status("ship"), StepStatus::Skipped);
    let attempt = bench.claim("end").unwrap();
    bench.reply("end", attempt, refusal(400)).unwrap();
    rerun(&mut bench, "charge").unwrap();
    assert_eq!(bench.status("ship"), StepStatus::Waiting);
    let attempt = bench.claim("charge").unwrap();
    bench
        .reply("charge", attempt, success(json!({ "id": "new" })))
        .unwrap();
    assert_eq!(bench.status("ship"), StepStatus::Pending);
}

#[test]
fn what_was_done_before_is_undone_if_the_task_is() {
    let mut bench = failed(pipeline());
    rerun(&mut bench, "reserve").unwrap();
    let attempt = bench.claim("reserve").unwrap();
    // Its service refuses the repetition: what it did first stands.
    bench.reply("reserve", attempt, refusal(409)).unwrap();
    let plan = undo_plan(&bench.draft.task, bench.now);
    let planned: Vec<_> = plan.calls.iter().map(|call| call.step.as_str()).collect();
    assert_eq!(planned, ["charge.undo", "reserve.undo"]);
    bench.apply(Command::Undo { reason: None }).unwrap();
    let call = call_of(&mut bench, "charge.undo");
    assert_eq!(call.path, "/charge/charge", "with what it gave then");
    bench
        .reply("charge.undo", call.attempt, success(json!(null)))
        .unwrap();
    assert_eq!(call_of(&mut bench, "reserve.undo").path, "/reserve/reserve");
    assert_eq!(bench.status("charge"), StepStatus::Undone);
}

#[test]
fn a_step_that_is_left_out_this_time_still_took_effect() {
    let mut bench = failed(pipeline());
    rerun(&mut bench, "charge").unwrap();
    let step = bench.step("charge");
    bench
        .apply(Command::Skip {
            step,
            output: None,
            reason: None,
        })
        .unwrap();
    assert_eq!(
        bench.record("charge").output().unwrap().as_json(),
        r#"{"id":"charge"}"#
    );
    bench.apply(Command::Undo { reason: None }).unwrap();
    assert_eq!(call_of(&mut bench, "charge.undo").path, "/charge/charge");
}

#[test]
fn it_is_refused_while_a_step_is_called_and_once_the_task_is_undone_or_over() {
    let mut bench = failed(pipeline());
    let waiting = |refused: Result<(), Refusal>, needed: &str| {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(needed), "{refused}");
    };
    rerun(&mut bench, "charge").unwrap();
    waiting(rerun(&mut bench, "ship"), "it has never become ready");
    bench.claim("charge").unwrap();
    waiting(rerun(&mut bench, "reserve"), "its call is in flight");
    bench.apply(Command::Undo { reason: None }).unwrap();
    waiting(rerun(&mut bench, "reserve"), "it is being undone");
    bench.apply(Command::Cancel { reason: None }).unwrap();
    assert!(matches!(
        rerun(&mut bench, "reserve"),
        Err(Refusal::Ended(_))
    ));
}

#[test]
fn a_pivot_is_done_once() {
    let mut steps = pipeline();
    steps[1]["pivot"] = json!(true);
    steps[1].as_object_mut().unwrap().remove("undo");
    let mut bench = failed(steps);
    let refused = rerun(&mut bench, "reserve").unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("step charge is processed: it is a pivot")
    );
    rerun(&mut bench, "ship").unwrap();
    assert!(bench.draft.task.passed_pivot().is_some());
}

#[test]
fn a_later_step_in_an_agent_queue_waits_again() {
    let mut bench = Bench::new(pipeline());
    bench.process("reserve");
    assert!(bench.draft.ready.contains(&bench.step("charge")));
    rerun(&mut bench, "reserve").unwrap();
    assert_eq!(bench.status("charge"), StepStatus::Waiting);
    assert!(!bench.draft.ready.contains(&bench.step("charge")));
}

#[test]
fn a_step_is_named_for_tasks_of_several_definitions() {
    let mut bench = failed(pipeline());
    let mut rerun = |name: &str| {
        let step = crate::values::ids::StepName::new(name);
        let reason = Some("the price was wrong".to_owned());
        bench.apply(Command::RetryFromName { step, reason })
    };
    let refused = rerun("pack").unwrap_err();
    assert_eq!(refused.to_string(), "the task has no step \"pack\"");
    rerun("charge").unwrap();
    assert_eq!(bench.status("charge"), StepStatus::Pending);
    assert_eq!(bench.status("ship"), StepStatus::Waiting);
}

#[test]
fn the_steps_in_error_are_skipped_together_or_by_name() {
    let steps = json!([
        { "name": "a", "agent": "x", "after": [] },
        { "name": "b", "agent": "x", "after": [] },
        { "name": "c", "agent": "x", "after": [] },
        { "name": "end", "agent": "x", "after": ["a", "b"] },
    ]);
    let mut bench = Bench::new(steps);
    for name in ["a", "b"] {
        let attempt = bench.claim(name).unwrap();
        bench.reply(name, attempt, refusal(400)).unwrap();
    }
    let skip = |name: Option<&str>| Command::SkipFailed {
        step: name.map(crate::values::ids::StepName::new),
        output: None,
        reason: None,
    };
    let refused = bench.apply(skip(Some("c"))).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("no step of that name in error")
    );
    bench.apply(skip(Some("a"))).unwrap();
    assert_eq!(bench.task(), TaskStatus::Error);
    bench.apply(skip(None)).unwrap();
    assert_eq!(bench.task(), TaskStatus::Processing);
    assert_eq!(bench.status("end"), StepStatus::Pending);
    assert_eq!(bench.status("c"), StepStatus::Pending, "it is not in error");
    assert!(bench.apply(skip(None)).is_err());
}
