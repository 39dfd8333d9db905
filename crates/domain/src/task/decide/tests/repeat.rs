//! Steps that are repeated until a condition is true.

use super::*;
use crate::{
    definition::Policies,
    view::{
        drawing::{DiagramFormat, draw},
        dry_run::{TaskFields, WarningCode, dry_run},
        task::TaskView,
        undo_plan::undo_plan,
    },
};

fn repeated(repeat: Value, fields: Value) -> Value {
    let mut step = json!({ "name": "poll", "agent": "x",
        "repeat": { "until": "output.done", "at_most": 3 },
        "request": { "path": "/{{ index }}/{{ previous.next if previous else 'first' }}" },
        "undo": { "request": { "path": "/undo/{{ index }}/{{ output.next | default('none') }}" } } });
    let (repeat, fields) = (repeat.as_object().unwrap(), fields.as_object().unwrap());
    let own = step["repeat"].as_object_mut().unwrap();
    own.extend(repeat.clone());
    step.as_object_mut().unwrap().extend(fields.clone());
    step
}

fn bench(repeat: Value) -> Bench {
    bench_with(repeat, json!({}))
}

fn bench_with(repeat: Value, fields: Value) -> Bench {
    Bench::new(json!([repeated(repeat, fields), { "name": "last", "agent": "x" }]))
}

/// Claims a step. The path of its request.
fn claimed(bench: &mut Bench, name: &str) -> String {
    let step = bench.step(name);
    let by = Claimant::Instance(InstanceId::new("node-1"));
    match bench.apply(Command::Claim { step, by }).unwrap() {
        CommandOutput::Call(call) => call.path,
        other => panic!("{other:?}"),
    }
}

/// Has an iteration succeed. The path of its request.
fn ends(bench: &mut Bench, name: &str, done: bool) -> String {
    let path = claimed(bench, name);
    let attempt = bench.record(name).attempt;
    let output = json!({ "done": done, "next": format!("after-{name}") });
    bench.reply(name, attempt, success(output)).unwrap();
    path
}

fn refuse(bench: &mut Bench, name: &str) {
    let attempt = bench.claim(name).unwrap();
    bench.reply(name, attempt, refusal(422)).unwrap();
}

fn retry(bench: &mut Bench, name: &str) -> Result<CommandOutput, Refusal> {
    let step = Some(bench.step(name));
    bench.apply(Command::Retry {
        step,
        body: None,
        reason: None,
    })
}

fn skip(bench: &mut Bench, name: &str, output: Option<Value>) -> Result<CommandOutput, Refusal> {
    let step = bench.step(name);
    bench.apply(Command::Skip {
        step,
        output: output.map(|output| Payload::from_value(&output)),
        reason: None,
    })
}

fn resolve(bench: &mut Bench, name: &str, output: Value) -> Result<CommandOutput, Refusal> {
    let step = bench.step(name);
    bench.apply(Command::Resolve {
        step,
        output: Payload::from_value(&output),
        reason: None,
    })
}

fn rerun(bench: &mut Bench, name: &str) -> Result<CommandOutput, Refusal> {
    let step = bench.step(name);
    bench.apply(Command::RetryFrom { step, reason: None })
}

fn output(bench: &Bench, name: &str) -> Value {
    let output = bench.record(name).output();
    output.map_or(Value::Null, |output| {
        serde_json::from_str(output.as_json()).unwrap()
    })
}

fn message(bench: &Bench, name: &str) -> String {
    match &bench.record(name).state {
        StepState::Error(fault) => fault.message.clone(),
        state => panic!("{state:?}"),
    }
}

#[test]
fn a_step_is_repeated_until_its_condition_is_true_of_an_output() {
    let mut bench = bench(json!({}));
    assert_eq!(bench.status("poll"), StepStatus::Processing);
    assert_eq!(ends(&mut bench, "poll[0]", false), "/0/first");
    assert_eq!(ends(&mut bench, "poll[1]", true), "/1/after-poll%5B0%5D");
    assert_eq!(bench.status("poll"), StepStatus::Processed);
    assert_eq!(
        output(&bench, "poll"),
        json!({ "done": true, "next": "after-poll[1]" })
    );
    assert_eq!(bench.draft.task.find("poll[2]"), None);
    assert_eq!(bench.draft.task.steps.len(), 4, "nothing else comes to be");
    assert_eq!(bench.status("last"), StepStatus::Pending);
    bench.process("last");
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn the_output_can_be_the_list_of_all_outputs() {
    let mut bench = bench(json!({ "output": "all" }));
    ends(&mut bench, "poll[0]", false);
    refuse(&mut bench, "poll[1]");
    skip(&mut bench, "poll[1]", None).unwrap();
    assert_eq!(
        ends(&mut bench, "poll[2]", true),
        "/2/after-poll%5B0%5D",
        "what was left out gives nothing"
    );
    let [first, second, third] = [0, 1, 2].map(|at| output(&bench, "poll")[at].clone());
    assert_eq!(
        (&first["done"], &third["done"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(second, Value::Null);
}

#[test]
fn the_next_iteration_begins_after_a_while_and_is_there_only_then() {
    let mut bench = bench(json!({ "every": "30s" }));
    ends(&mut bench, "poll[0]", false);
    assert_eq!(bench.draft.task.find("poll[1]"), None);
    assert!(!bench.draft.task.is_settled());
    let due = bench.now + Span::from_secs(30);
    let step = bench.step("poll");
    assert_eq!(bench.draft.task.next_begin(step), Some(due));
    let view = serde_json::to_value(TaskView::new(&bench.draft.task, bench.now)).unwrap();
    let blocked = json!({ "reason": "repeat", "until": due, "iterations": 1, "at_most": 3 });
    assert_eq!(view["steps"][0]["blocked_by"], blocked);
    assert_eq!(view["steps"][0]["items"]["next_at"], json!(due));
    assert_eq!(view["steps"][0]["complete_by"], Value::Null);
    assert!(matches!(bench.expire("poll"), Err(Refusal::NotDue { .. })));
    bench.later(Span::from_secs(30));
    bench.expire("poll").unwrap();
    assert_eq!(bench.status("poll[1]"), StepStatus::Pending);
    assert!(matches!(bench.expire("poll"), Err(Refusal::NotDue { .. })));
    ends(&mut bench, "poll[1]", false);
    retry(&mut bench, "poll").unwrap();
    assert_eq!(
        bench.status("poll[2]"),
        StepStatus::Pending,
        "an operator does not want to wait"
    );
    let mut events = bench.draft.events.iter();
    let said = events.find(|event| event.kind == "step.retried").unwrap();
    assert_eq!(
        said.reason.as_deref(),
        Some("its next iteration begins now")
    );
    let step = bench.step("poll");
    assert_eq!(bench.draft.task.next_begin(step), None);
}

#[test]
fn what_an_iteration_waits_for_blocks_its_group() {
    let bench = Bench::new(json!([
        { "name": "agree", "signal": { "within": "1h" },
          "repeat": { "until": "output.ok", "at_most": 3 } },
    ]));
    let view = serde_json::to_value(TaskView::new(&bench.draft.task, bench.now)).unwrap();
    let until = bench.now + Span::from_secs(3600);
    let blocked = json!({ "reason": "signal", "until": until });
    assert_eq!(view["steps"][0]["blocked_by"], blocked);
}

#[test]
fn a_paused_task_begins_no_iteration_and_goes_on_when_it_is_resumed() {
    for work in [json!({}), json!({ "wait": { "for": "10s" } })] {
        let mut step = repeated(
            json!({ "until": "index == 1", "every": "30s" }),
            work.clone(),
        );
        if work != json!({}) {
            let step = step.as_object_mut().unwrap();
            step.retain(|field, _| ["name", "repeat", "wait"].contains(&field.as_str()));
        }
        let mut bench = Bench::new(json!([step]));
        let first = |bench: &mut Bench, name: &str| match bench.status(name) {
            StepStatus::Pending => drop(ends(bench, name, false)),
            _ => {
                bench.later(Span::from_secs(10));
                bench.expire(name).unwrap();
            }
        };
        first(&mut bench, "poll[0]");
        bench.apply(Command::Pause { reason: None }).unwrap();
        bench.later(Span::from_secs(30));
        bench.expire("poll").unwrap();
        assert_eq!(bench.status("poll[1]"), StepStatus::Pending);
        assert!(bench.claim("poll[1]").is_err());
        bench.apply(Command::Resume { reason: None }).unwrap();
        first(&mut bench, "poll[1]");
        assert_eq!(bench.task(), TaskStatus::Processed);
    }
}

#[test]
fn too_many_iterations_are_an_error_and_an_operator_can_grant_as_many_again() {
    let mut bench = bench(json!({ "at_most": 2 }));
    ends(&mut bench, "poll[0]", false);
    ends(&mut bench, "poll[1]", false);
    assert_eq!(bench.task(), TaskStatus::Error);
    assert_eq!(
        message(&bench, "poll"),
        "`until` was not true after 2 iterations: retry the step for as many more, or skip or resolve it"
    );
    let raised = bench.draft.alerts.iter();
    let raised = raised.filter(|alert| matches!(alert, AlertChange::Raise { .. }));
    assert_eq!(raised.count(), 1);
    for asked in [Some("poll"), None] {
        let step = asked.map(|name| bench.step(name));
        bench
            .apply(Command::Retry {
                step,
                body: None,
                reason: None,
            })
            .unwrap();
        assert_eq!(bench.status("poll"), StepStatus::Processing);
        let begun = bench.draft.task.steps.len() - 2;
        ends(&mut bench, &format!("poll[{}]", begun - 1), false);
        ends(&mut bench, &format!("poll[{begun}]"), false);
        assert_eq!(bench.task(), TaskStatus::Error);
    }
    assert_eq!(
        message(&bench, "poll"),
        "`until` was not true after 6 iterations: retry the step for as many more, or skip or resolve it"
    );
    retry(&mut bench, "poll").unwrap();
    ends(&mut bench, "poll[6]", true);
    assert_eq!(bench.status("poll"), StepStatus::Processed);
}

#[test]
fn the_policies_for_too_many_iterations() {
    let mut skips = bench(json!({ "at_most": 1, "on_exhausted": "skip" }));
    ends(&mut skips, "poll[0]", false);
    assert_eq!(skips.status("poll"), StepStatus::Skipped);
    assert_eq!(output(&skips, "poll")["next"], "after-poll[0]");
    assert_eq!(skips.status("last"), StepStatus::Pending);
    let mut undoes = bench(json!({ "at_most": 1, "on_exhausted": "undo" }));
    ends(&mut undoes, "poll[0]", false);
    assert_eq!(undoes.task(), TaskStatus::Undoing);
    let mut policies = Policies::default();
    policies.on_exhausted = Some(crate::definition::Policy::Undo.into());
    let steps = json!([
        repeated(json!({}), json!({})),
        { "name": "final", "agent": "x", "pivot": true },
        { "name": "after", "agent": "x", "repeat": { "until": "output.done", "at_most": 3 } },
    ]);
    let source = Payload::from_value(&steps);
    let parsed = parse_steps(&source, "", &policies, &Limits::default(), &Accepted).unwrap();
    let policy = |at: usize| parsed.steps[at].repeat().unwrap().on_exhausted;
    assert_eq!(
        policy(0),
        crate::definition::Policy::Undo,
        "as the task says"
    );
    assert_eq!(policy(2), crate::definition::Policy::Error, "after a pivot");
}

#[test]
fn a_condition_that_cannot_be_evaluated_is_an_error_of_the_group_and_a_retry_goes_on() {
    let mut bench = bench(json!({ "until": "output.state == 'done'" }));
    ends(&mut bench, "poll[0]", false);
    assert_eq!(bench.status("poll[0]"), StepStatus::Processed);
    let fault = message(&bench, "poll");
    assert!(
        fault.starts_with("after poll[0]: `until` could not be evaluated: "),
        "{fault}"
    );
    assert!(fault.contains("output.state"), "{fault}");
    retry(&mut bench, "poll").unwrap();
    let attempt = bench.claim("poll[1]").unwrap();
    let done = success(json!({ "state": "done" }));
    bench.reply("poll[1]", attempt, done).unwrap();
    assert_eq!(bench.status("poll"), StepStatus::Processed);
    let undo = json!({ "on_permanent": "undo" });
    let mut undoes = bench_with(json!({ "until": "output.state == 'done'" }), undo);
    ends(&mut undoes, "poll[0]", false);
    assert_eq!(undoes.task(), TaskStatus::Undoing);
}

#[test]
fn an_operator_ends_a_repetition_by_its_group() {
    let ended = |bench: &mut Bench| {
        assert_eq!(bench.status("last"), StepStatus::Pending);
        bench.process("last");
        assert_eq!(bench.task(), TaskStatus::Processed);
    };
    let mut late = bench(json!({ "every": "1h" }));
    ends(&mut late, "poll[0]", false);
    resolve(&mut late, "poll", json!("by hand")).unwrap();
    assert_eq!(output(&late, "poll"), json!("by hand"));
    ended(&mut late);
    let mut failed = bench(json!({}));
    refuse(&mut failed, "poll[0]");
    assert_eq!(failed.status("poll"), StepStatus::Error);
    assert_eq!(
        message(&failed, "poll"),
        "its iteration poll[0] is in error: retry, skip or resolve that one"
    );
    skip(&mut failed, "poll", None).unwrap();
    assert_eq!(failed.status("poll[0]"), StepStatus::Skipped);
    ended(&mut failed);
    let mut queued = bench(json!({}));
    resolve(&mut queued, "poll", json!(1)).unwrap();
    assert_eq!(queued.status("poll[0]"), StepStatus::Skipped);
    ended(&mut queued);
    let mut running = bench(json!({}));
    claimed(&mut running, "poll[0]");
    for refused in [
        skip(&mut running, "poll", None),
        resolve(&mut running, "poll", json!(1)),
        retry(&mut running, "poll"),
    ] {
        assert!(matches!(refused, Err(Refusal::StepState { .. })));
    }
    let mut exhausted = bench(json!({ "at_most": 1 }));
    ends(&mut exhausted, "poll[0]", false);
    exhausted
        .apply(Command::SkipFailed {
            step: None,
            output: None,
            reason: None,
        })
        .unwrap();
    ended(&mut exhausted);
}

#[test]
fn an_iteration_is_retried_skipped_and_resolved_like_any_step() {
    let mut bench = bench(json!({ "at_most": 5 }));
    refuse(&mut bench, "poll[0]");
    assert_eq!(bench.task(), TaskStatus::Error);
    let fault = bench.draft.task.error().unwrap();
    assert_eq!(fault.step.as_ref().unwrap().as_str(), "poll[0]");
    retry(&mut bench, "poll").unwrap();
    ends(&mut bench, "poll[0]", false);
    refuse(&mut bench, "poll[1]");
    skip(&mut bench, "poll[1]", None).unwrap();
    refuse(&mut bench, "poll[2]");
    resolve(&mut bench, "poll[2]", json!({ "done": false, "next": "x" })).unwrap();
    assert_eq!(claimed(&mut bench, "poll[3]"), "/3/x");
    refuse_attempt(&mut bench, "poll[3]");
    skip(&mut bench, "poll[3]", Some(json!({ "done": true }))).unwrap();
    assert_eq!(bench.status("poll"), StepStatus::Processed);
    assert_eq!(output(&bench, "poll"), json!({ "done": true }));
}

fn refuse_attempt(bench: &mut Bench, name: &str) {
    let attempt = bench.record(name).attempt;
    bench.reply(name, attempt, refusal(422)).unwrap();
}

#[test]
fn iterations_are_undone_one_after_the_other_the_last_one_first() {
    let mut bench = bench(json!({}));
    ends(&mut bench, "poll[0]", false);
    refuse(&mut bench, "poll[1]");
    skip(&mut bench, "poll[1]", None).unwrap();
    ends(&mut bench, "poll[2]", true);
    bench.process("last");
    let plan = undo_plan(&bench.draft.task, bench.now);
    let planned: Vec<_> = plan
        .calls
        .iter()
        .map(|call| {
            let after: Vec<_> = call.after.iter().map(|step| step.as_str()).collect();
            (call.step.as_str(), call.stage, after)
        })
        .collect();
    assert_eq!(
        planned,
        [
            ("poll[2].undo", 1, vec![]),
            ("poll[0].undo", 2, vec!["poll[1].undo"])
        ]
    );
    bench.apply(Command::Undo { reason: None }).unwrap();
    assert_eq!(bench.status("poll[0].undo"), StepStatus::Waiting);
    assert_eq!(bench.status("poll[2].undo"), StepStatus::Pending);
    refuse(&mut bench, "poll[2].undo");
    assert_eq!(bench.status("poll[0].undo"), StepStatus::Waiting);
    assert!(bench.claim("poll[0].undo").is_err());
    retry(&mut bench, "poll[2].undo").unwrap();
    bench.process("poll[2].undo");
    assert_eq!(bench.status("poll[1].undo"), StepStatus::Skipped);
    bench.process("poll[0].undo");
    assert_eq!(bench.task(), TaskStatus::Undone);
}

#[test]
fn an_undo_in_the_middle_waits_for_the_running_iteration_and_begins_no_other() {
    let mut bench = bench(json!({}));
    ends(&mut bench, "poll[0]", false);
    let attempt = bench.claim("poll[1]").unwrap();
    bench.apply(Command::Undo { reason: None }).unwrap();
    assert_eq!(bench.status("poll"), StepStatus::Cancelled);
    assert_eq!(bench.status("poll[0].undo"), StepStatus::Waiting);
    let reply = success(json!({ "done": false, "next": "n" }));
    bench.reply("poll[1]", attempt, reply).unwrap();
    assert_eq!(bench.draft.task.find("poll[2]"), None);
    bench.process("poll[1].undo");
    bench.process("poll[0].undo");
    assert_eq!(bench.task(), TaskStatus::Undone);
    let mut between = self::bench(json!({ "every": "1h" }));
    ends(&mut between, "poll[0]", false);
    between.apply(Command::Undo { reason: None }).unwrap();
    between.process("poll[0].undo");
    assert_eq!(between.task(), TaskStatus::Undone);
    let mut cancelled = self::bench(json!({ "every": "1h" }));
    ends(&mut cancelled, "poll[0]", false);
    cancelled.apply(Command::Cancel { reason: None }).unwrap();
    assert_eq!(cancelled.status("poll"), StepStatus::Cancelled);
}

#[test]
fn a_rerun_begins_with_the_first_iteration_and_leaves_out_those_that_it_does_not_need() {
    let mut bench = bench(json!({}));
    ends(&mut bench, "poll[0]", false);
    ends(&mut bench, "poll[1]", false);
    ends(&mut bench, "poll[2]", true);
    assert!(matches!(
        rerun(&mut bench, "poll[1]"),
        Err(Refusal::StepState { .. })
    ));
    rerun(&mut bench, "poll").unwrap();
    assert_eq!(bench.status("poll[1]"), StepStatus::Waiting);
    assert_eq!(ends(&mut bench, "poll[0]", false), "/0/first");
    assert_eq!(bench.status("poll[1]"), StepStatus::Pending);
    assert_eq!(bench.status("poll[2]"), StepStatus::Waiting);
    ends(&mut bench, "poll[1]", true);
    assert_eq!(bench.status("poll[2]"), StepStatus::Skipped);
    assert_eq!(output(&bench, "poll")["next"], "after-poll[1]");
    bench.process("last");
    bench.apply(Command::Undo { reason: None }).unwrap();
    // The effects of the earlier iterations remain, and are undone.
    for name in ["poll[2].undo", "poll[1].undo", "poll[0].undo"] {
        bench.process(name);
    }
    assert_eq!(bench.task(), TaskStatus::Undone);
}

#[test]
fn a_deadline_between_iterations_ends_the_group_and_a_retry_goes_on() {
    let steps = json!([repeated(json!({ "every": "1m" }), json!({}))]);
    let mut bench = Bench::limited(steps, Some(Span::from_secs(90)));
    ends(&mut bench, "poll[0]", false);
    bench.later(Span::from_secs(90));
    bench.apply(Command::Overdue).unwrap();
    assert_eq!(bench.task(), TaskStatus::Error);
    bench
        .apply(Command::Retry {
            step: None,
            body: None,
            reason: None,
        })
        .unwrap();
    ends(&mut bench, "poll[1]", true);
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn steps_that_are_repeated_side_by_side_take_turns_with_their_positions() {
    let side = |name: &str| {
        let mut step = repeated(json!({}), json!({ "after": [] }));
        step["name"] = json!(name);
        step
    };
    let list = json!({ "name": "list", "agent": "x", "for_each": [1, 2], "after": ["a"],
        "undo": { "request": {} } });
    let mut bench = Bench::new(json!([side("a"), side("b"), list]));
    for number in 0..3 {
        for name in ["a", "b"] {
            ends(&mut bench, &format!("{name}[{number}]"), number == 2);
        }
    }
    bench.process("list[0]");
    bench.process("list[1]");
    assert_eq!(bench.task(), TaskStatus::Processed);
    bench.apply(Command::Undo { reason: None }).unwrap();
    assert_eq!(bench.status("a[2].undo"), StepStatus::Waiting);
    for name in ["list[1]", "b[2]", "list[0]"] {
        bench.process(&format!("{name}.undo"));
    }
    // The undos of other steps make no difference.
    assert_eq!(bench.status("b[1].undo"), StepStatus::Pending);
    assert_eq!(bench.status("b[0].undo"), StepStatus::Waiting);
    for name in ["a[2]", "a[1]", "b[1]", "b[0]", "a[0]"] {
        bench.process(&format!("{name}.undo"));
    }
    assert_eq!(bench.task(), TaskStatus::Undone);
}

#[test]
fn outputs_of_iterations_have_room_for_8_mib_together() {
    let mut bench = bench(json!({ "until": "index == 2" }));
    let long = success(json!({ "next": "n", "long": "x".repeat(5 << 20) }));
    let first = bench.claim("poll[0]").unwrap();
    bench.reply("poll[0]", first, long.clone()).unwrap();
    let second = bench.claim("poll[1]").unwrap();
    bench.reply("poll[1]", second, long).unwrap();
    assert_eq!(bench.status("poll[1]"), StepStatus::Error);
    assert_eq!(bench.record("poll[1]").effect, Effect::Unknown);
    assert_eq!(bench.status("poll"), StepStatus::Error);
}

#[test]
fn a_task_has_no_more_iterations_than_items_are_allowed() {
    let steps: Vec<_> = (0..11)
        .map(|at| {
            json!({ "name": format!("s{at}"), "agent": "x", "after": [],
            "repeat": { "until": "index > 2000", "at_most": 1000 } })
        })
        .collect();
    let bench = Bench::new(Value::from(steps));
    let begun = (0..11).filter(|at| bench.status(&format!("s{at}")) == StepStatus::Processing);
    assert_eq!(begun.count(), 10);
    assert_eq!(
        message(&bench, "s10"),
        "it may be repeated 1000 times and the other steps have 10000, or may come to have them: a task has at most 10000"
    );
    assert_eq!(
        bench.draft.task.steps.len(),
        21,
        "only those that have begun"
    );
}

#[test]
fn iterations_that_end_at_once_take_a_command_each() {
    let step = json!({ "name": "poll", "wait": { "for": "0s" },
        "repeat": { "until": "index == 999", "at_most": 1000 } });
    let mut bench = Bench::new(json!([step]));
    let mut commands = 0;
    while bench.task() != TaskStatus::Processed {
        let before = bench.draft.task.steps.len();
        bench.expire("poll").unwrap();
        assert_eq!(bench.draft.task.steps.len(), before + 1);
        commands += 1;
    }
    assert_eq!(commands, 999);
}

#[test]
fn a_signal_and_a_task_can_be_repeated() {
    let signal = json!({ "name": "poll", "signal": { "within": "1h", "on_timeout": "skip" },
        "repeat": { "until": "output.enough", "at_most": 3 } });
    let mut bench = Bench::new(json!([signal]));
    let mut send = |name: &str, payload: Value| {
        let step = bench.step(name);
        let digest = crate::task::open_reply::ReplyDigest(payload.to_string());
        let payload = Payload::from_value(&payload);
        let signal = Command::Signal {
            step,
            payload,
            digest,
        };
        bench.apply(signal).unwrap();
    };
    send("poll[0]", json!({ "enough": false }));
    assert_eq!(bench.draft.task.find("poll[2]"), None);
    let unknown = |name: &str| bench.draft.task.group_of_unknown(name);
    assert_eq!(unknown("poll[2]"), Some(StepIndex(0)), "it may still come");
    assert_eq!((unknown("poll[3]"), unknown("poll[1]")), (None, None));
    bench.later(Span::from_secs(3600));
    bench.expire("poll[1]").unwrap();
    assert_eq!(bench.status("poll[1]"), StepStatus::Skipped);
    assert_eq!(bench.status("poll[2]"), StepStatus::Processing);
    let task = json!({ "name": "poll", "task": { "workflow": "w", "input": { "from": "{{ previous.to if previous else 0 }}" } },
        "repeat": { "until": "output.to == 2", "at_most": 5 } });
    let mut bench = Bench::new(json!([task, { "name": "last", "agent": "x" }]));
    for number in 0..2 {
        let name = format!("poll[{number}]");
        let (index, attempt) = (bench.step(&name), bench.record(&name).attempt);
        let output = Payload::from_value(&json!({ "to": number + 1 }));
        let end = crate::task::child_record::ChildEnd::Processed(output);
        let report = crate::task::child_record::ChildReport::Ended { child: None, end };
        bench.apply(report.to(index, attempt)).unwrap();
    }
    assert_eq!(bench.status("poll"), StepStatus::Processed);
    bench.apply(Command::Undo { reason: None }).unwrap();
    assert_eq!(bench.status("poll[1].undo"), StepStatus::Processing);
    assert_eq!(bench.status("poll[0].undo"), StepStatus::Waiting);
}

#[test]
fn a_signal_to_a_repeated_step_goes_to_the_iteration_that_awaits_it() {
    let poll = json!({ "name": "poll", "signal": { "within": "1h" },
        "repeat": { "until": "output.enough", "at_most": 3, "every": "10s" } });
    let mut bench = Bench::new(json!([{ "name": "first", "agent": "x" }, poll]));
    let send = |bench: &mut Bench, payload: Value| {
        let signal = Command::Signal {
            step: bench.step("poll"),
            digest: crate::task::open_reply::ReplyDigest(payload.to_string()),
            payload: Payload::from_value(&payload),
        };
        bench.apply(signal)
    };
    let early = send(&mut bench, json!({ "number": 0 }));
    let none = "none of its iterations awaits a signal now";
    assert!(early.unwrap_err().to_string().contains(none));
    bench.process("first");
    let first = json!({ "enough": false, "number": 1 });
    send(&mut bench, first.clone()).unwrap();
    assert_eq!(bench.status("poll[0]"), StepStatus::Processed);
    // Its sender has lost the response.
    let again = send(&mut bench, first).unwrap();
    assert!(matches!(again, CommandOutput::Unchanged));
    let second = json!({ "enough": true });
    let between = send(&mut bench, second.clone());
    assert!(between.unwrap_err().to_string().contains(none));
    bench.later(Span::from_secs(10));
    bench.expire("poll").unwrap();
    assert_eq!(bench.status("poll[1]"), StepStatus::Processing);
    send(&mut bench, second).unwrap();
    assert_eq!(bench.status("poll"), StepStatus::Processed);
}

#[test]
fn what_a_definition_may_say_of_a_repetition() {
    let faults = |repeat: Value, fields: Value| {
        let source = json!([{ "name": "earlier", "agent": "x" }, repeated(repeat, fields)]);
        let source = Payload::from_value(&source);
        let parsed = parse_steps(
            &source,
            "",
            &Policies::default(),
            &Limits::default(),
            &Accepted,
        );
        let faults = parsed.err().unwrap_or_default();
        let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
        faults.join("\n")
    };
    let none = json!({});
    assert_eq!(faults(none.clone(), none.clone()), "");
    let all = json!({ "until": "output == previous or index > 3 or steps.earlier.output or input.x or task.key",
        "at_most": 1000, "every": "3650d", "output": "last", "on_exhausted": "undo" });
    assert_eq!(faults(all, none.clone()), "");
    for at_most in [
        json!(0),
        json!(-1),
        json!(1001),
        json!(1e9),
        json!(2.5),
        json!("3"),
    ] {
        let found = faults(json!({ "at_most": at_most }), none.clone());
        assert!(found.starts_with("/1/repeat/at_most: must be"), "{found}");
    }
    for (repeat, fields, expected) in [
        (
            json!({ "at_most": null }),
            none.clone(),
            "/1/repeat/at_most: is missing: say how often it is run at most",
        ),
        (
            json!({ "until": null }),
            none.clone(),
            "/1/repeat/until: is missing: give the condition",
        ),
        (
            json!({ "until": "{{ output.done }}" }),
            none.clone(),
            "/1/repeat/until: ",
        ),
        (json!({ "until": "" }), none.clone(), "/1/repeat/until: "),
        (
            json!({ "until": true }),
            none.clone(),
            "/1/repeat/until: must be",
        ),
        (
            json!({ "until": "response.body.done" }),
            none.clone(),
            "/1/repeat/until: `response` is not defined here",
        ),
        (
            json!({ "until": "item.done" }),
            none.clone(),
            "/1/repeat/until: `item` is defined only in",
        ),
        (
            json!({ "until": "steps.poll.output.done" }),
            none.clone(),
            "/1/repeat/until: `poll` does not come before `poll`",
        ),
        (
            json!({ "every": "-1s" }),
            none.clone(),
            "/1/repeat/every: must be",
        ),
        (
            json!({ "every": "4000d" }),
            none.clone(),
            "/1/repeat/every: must be",
        ),
        (
            json!({ "on_exhausted": "retry" }),
            none.clone(),
            "/1/repeat/on_exhausted: must be",
        ),
        (
            json!({ "output": "first" }),
            none.clone(),
            "/1/repeat/output: must be",
        ),
        (json!({ "times": 3 }), none.clone(), "/1/repeat/times: "),
        (
            none.clone(),
            json!({ "for_each": [1] }),
            "/1/repeat: give either `for_each` or `repeat`, not both",
        ),
        (
            none.clone(),
            json!({ "max_parallel": 2 }),
            "/1/max_parallel: belongs to steps with `for_each`",
        ),
        (none.clone(), json!({ "repeat": 3 }), "/1/repeat: must be"),
        (
            none.clone(),
            json!({ "when": "previous" }),
            "/1/when: `previous` is defined only in",
        ),
        (
            none.clone(),
            json!({ "request": { "path": "/{{ item }}" } }),
            "/1/request/path: `item` is defined only in",
        ),
    ] {
        let found = faults(repeat, fields);
        assert!(found.contains(expected), "{expected}\n{found}");
    }
}

#[test]
fn a_dry_run_and_a_drawing_say_how_often_a_step_is_repeated() {
    let steps = json!([
        { "name": "poll", "agent": "x", "request": { "method": "GET" }, "complete_within": "10s", "max_failures": 0,
          "repeat": { "until": "output.done == input.wanted", "at_most": 4, "every": "1m", "on_exhausted": "undo" } },
        { "name": "forever", "agent": "x", "repeat": { "until": "1 > 2", "at_most": 2 } },
    ]);
    let plain = definition(&steps);
    let report = dry_run(&plain, &TaskFields::default(), &|_| None);
    let sent = serde_json::to_value(&report.steps[0]).unwrap();
    assert_eq!(sent["repeat"], json!({ "at_most": 4, "every": "1m" }));
    assert_eq!(sent["worst_case"], "3m40s");
    let codes: Vec<_> = report.warnings.iter().map(|warning| warning.code).collect();
    assert!(codes.contains(&WarningCode::NothingToUndo), "{codes:?}");
    assert!(codes.contains(&WarningCode::InputNeeded), "{codes:?}");
    assert!(!codes.contains(&WarningCode::OutputUnread), "{codes:?}");
    let constant = report.warnings.iter();
    let constant = constant.filter(|warning| warning.code == WarningCode::Constant);
    let pointers: Vec<_> = constant.map(|warning| warning.pointer.as_str()).collect();
    assert_eq!(pointers, ["/steps/1/repeat/until"]);
    let drawn = draw("t", &plain, None, DiagramFormat::Dot);
    assert!(
        drawn.contains("at most 4 times until output.done == input.wanted"),
        "{drawn}"
    );
    let mut bench = Bench::new(steps);
    bench.process("poll[0]");
    let task = &bench.draft.task;
    let drawn = draw(
        "t",
        &task.details.definition,
        Some(task),
        DiagramFormat::Dot,
    );
    assert!(drawn.contains("iteration 1 of 4: 1 processed"), "{drawn}");
}

#[test]
fn a_task_moves_to_another_version_until_its_first_iteration_begins() {
    let steps = |at_most: u16| json!([{ "name": "first", "agent": "x" }, repeated(json!({ "at_most": at_most }), json!({}))]);
    let mut bench = Bench::of_workflow(&steps(3), None);
    let versions = [steps(3), steps(7)];
    let to = bench.other_version(&versions);
    bench.apply(to).unwrap();
    bench.process("first");
    let group = bench.step("poll");
    assert_eq!(bench.draft.task.group(group).unwrap().at_most(), Some(7));
    let back = bench.other_version(&versions);
    let refused = bench.apply(back).unwrap_err().to_string();
    assert!(refused.contains("one with `repeat` has begun"), "{refused}");
}

#[test]
fn a_retry_after_a_rerun_counts_all_iterations() {
    let mut bench = Bench::new(
        json!([{ "name": "s", "on_permanent": "skip", "wait": { "for": "{{ input.missing }}" },
        "repeat": { "until": "index > 99", "at_most": 1, "every": "0s", "on_exhausted": "error" } }]),
    );
    let step = bench.step("s");
    let reason = None;
    bench.apply(Command::RetryFrom { step, reason }).unwrap();
    bench.apply(Command::Pause { reason: None }).unwrap();
    let (step, body, reason) = (None, None, None);
    bench.apply(Command::Retry { step, body, reason }).unwrap();
    let group = bench.draft.task.group(bench.step("s")).unwrap();
    assert!(group.items.len() <= usize::from(group.at_most().unwrap()));
}
