//! Blocks: several steps in the place of one.

use super::*;
use crate::values::fields::FieldFault;

fn parse(steps: &Value) -> Result<Definition, Vec<FieldFault>> {
    parse_steps(
        &Payload::from_value(steps),
        "/steps",
        &Policies::default(),
        &Limits::default(),
        &Accepted,
    )
}

fn names(bench: &Bench) -> Vec<String> {
    let names = bench.draft.task.details.definition.names();
    names.map(ToString::to_string).collect()
}

fn after(bench: &Bench, name: &str) -> Vec<String> {
    let task = &bench.draft.task;
    let after = task.definition(bench.step(name)).after.iter();
    after
        .map(|step| task.definition(*step).name.to_string())
        .collect()
}

fn faults(steps: &Value) -> Vec<(String, String)> {
    let faults = parse(steps).unwrap_err().into_iter();
    faults.map(|fault| (fault.pointer, fault.message)).collect()
}

fn sent(bench: &mut Bench, name: &str) -> Value {
    let step = bench.step(name);
    let by = Claimant::Instance(InstanceId::new("node-1"));
    let CommandOutput::Call(call) = bench.apply(Command::Claim { step, by }).unwrap() else {
        panic!("no call");
    };
    serde_json::from_str(&call.body.unwrap()).unwrap()
}

fn checkout(when: &str) -> Bench {
    Bench::new(json!([
        { "name": "check", "agent": "x" },
        { "name": "pay", "when": when, "output": { "charge": "{{ steps.charge.output.id }}" }, "steps": [
            { "name": "check", "agent": "x", "undo": { "request": { "method": "DELETE" } } },
            { "name": "charge", "agent": "x", "request": {
                "body": { "inner": "{{ steps.check.output.id }}", "outer": "{{ steps.other.output.id }}" } } },
        ] },
        { "name": "other", "agent": "x", "after": [] },
        { "name": "ship", "agent": "x", "after": ["pay"], "request": {
            "body": { "pay": "{{ steps.pay.output }}", "direct": "{{ steps['pay.charge'].state }}" } } },
    ])
    .as_array()
    .map(|steps| {
        let mut steps = steps.clone();
        steps[1]["after"] = json!(["check", "other"]);
        Value::Array(steps)
    })
    .unwrap())
}

#[test]
fn its_steps_are_steps_of_the_task_and_its_end_has_its_output() {
    let mut bench = checkout("steps.check.output.id == 'check'");
    assert_eq!(
        names(&bench),
        ["check", "pay.check", "pay.charge", "pay", "other", "ship"]
    );
    assert_eq!(after(&bench, "pay.check"), ["check", "other"]);
    assert_eq!(after(&bench, "pay.charge"), ["pay.check"]);
    assert_eq!(after(&bench, "pay"), ["pay.charge"]);
    bench.process("check");
    bench.process("other");
    bench.process("pay.check");
    // The step of the block hides the one of the task.
    let body = sent(&mut bench, "pay.charge");
    assert_eq!(body, json!({ "inner": "pay.check", "outer": "other" }));
    let attempt = bench.record("pay.charge").attempt;
    bench
        .reply("pay.charge", attempt, success(json!({ "id": 7 })))
        .unwrap();
    assert_eq!(bench.status("pay"), StepStatus::Processed);
    let body = sent(&mut bench, "ship");
    assert_eq!(
        body,
        json!({ "pay": { "charge": 7 }, "direct": "processed" })
    );
    bench.apply(Command::Undo { reason: None }).unwrap();
    assert!(bench.draft.task.find("pay.check.undo").is_some());
}

#[test]
fn a_block_whose_condition_is_false_is_skipped_with_all_its_steps() {
    let mut bench = checkout("steps.check.output.id == 'no'");
    bench.process("check");
    bench.process("other");
    for step in ["pay.check", "pay.charge", "pay"] {
        assert_eq!(bench.status(step), StepStatus::Skipped, "{step}");
    }
    let body = sent(&mut bench, "ship");
    assert_eq!(body, json!({ "pay": null, "direct": "skipped" }));
}

#[test]
fn a_switch_runs_the_first_branch_whose_condition_is_true() {
    for (total, run, skipped) in [
        (5, "way.small", ["way.large", "way.middle"]),
        (30, "way.middle", ["way.large", "way.small"]),
        (500, "way.large", ["way.small", "way.middle"]),
    ] {
        let steps = json!([
            { "name": "price", "agent": "x" },
            { "name": "way", "output": "{{ steps.large.output or steps.middle.output or steps.small.output }}", "switch": [
                { "when": "steps.price.output.total > 100", "steps": [{ "name": "large", "agent": "x" }] },
                { "when": "steps.price.output.total > 10", "steps": [{ "name": "middle", "agent": "x" }] },
                { "else": [{ "name": "small", "agent": "x" }] },
            ] },
            { "name": "last", "agent": "x", "request": { "body": "{{ steps.way.output }}" } },
        ]);
        let mut bench = Bench::new(steps);
        let attempt = bench.claim("price").unwrap();
        bench
            .reply("price", attempt, success(json!({ "total": total })))
            .unwrap();
        for step in skipped {
            assert_eq!(bench.status(step), StepStatus::Skipped, "{total}: {step}");
        }
        bench.process(run);
        assert_eq!(sent(&mut bench, "last"), json!({ "id": run }));
    }
}

#[test]
fn a_choice_calls_the_agent_that_the_data_name() {
    let steps = json!([
        { "name": "where", "set": { "region": "eu", "total": 1 } },
        { "name": "ship", "agent": { "one_of": ["eu", "us"], "by": "{{ steps.where.output.region }}" },
          "request": { "body": "{{ steps.where.output.total }}" },
          "undo": { "request": { "method": "DELETE" } } },
        { "name": "last", "agent": "x", "request": { "body": "{{ steps.ship.output }}" } },
    ]);
    let mut bench = Bench::new(steps.clone());
    assert_eq!(
        names(&bench),
        ["where", "ship.eu", "ship.us", "ship", "last"]
    );
    assert_eq!(bench.status("ship.us"), StepStatus::Skipped);
    let task = &bench.draft.task;
    assert_eq!(
        task.definition(bench.step("ship.eu"))
            .agent()
            .unwrap()
            .as_str(),
        "eu"
    );
    assert_eq!(sent(&mut bench, "ship.eu"), json!(1));
    let attempt = bench.record("ship.eu").attempt;
    bench
        .reply("ship.eu", attempt, success(json!("done")))
        .unwrap();
    assert_eq!(sent(&mut bench, "last"), json!("done"));
    bench.apply(Command::Undo { reason: None }).unwrap();
    let undo = bench.step("ship.eu.undo");
    assert_eq!(
        bench.draft.task.definition(undo).agent().unwrap().as_str(),
        "eu"
    );

    let mut wrong = steps;
    wrong[0]["set"]["region"] = json!("apac");
    let bench = Bench::new(wrong);
    let StepState::Error(fault) = &bench.record("ship").state else {
        panic!("{:?}", bench.record("ship").state);
    };
    assert_eq!(fault.message, "`by` gives none of the names eu, us");
}

#[test]
fn a_choice_that_cannot_be_made_is_one_fault_and_follows_the_policy_of_the_step() {
    for (by, message) in [
        ("{{ input.nope }}", "`by` could not be evaluated"),
        ("{{ 'apac' }}", "`by` gives none of the names eu, us"),
    ] {
        for (policy, status) in [
            (json!("error"), TaskStatus::Error),
            (json!("undo"), TaskStatus::Undoing),
            (
                json!({ "404": "error", "else": "undo" }),
                TaskStatus::Undoing,
            ),
            (json!("skip"), TaskStatus::Processed),
        ] {
            let mut bench = Bench::new(json!([
                { "name": "first", "agent": "x", "undo": { "request": {} } },
                { "name": "ship", "agent": { "one_of": ["eu", "us"], "by": by }, "on_permanent": policy },
            ]));
            bench.process("first");
            assert_eq!(bench.task(), status, "{by} {policy}");
            let of_choice = ["ship.eu", "ship.us"].map(|name| bench.status(name));
            assert_eq!(of_choice, [StepStatus::Skipped; 2], "{by} {policy}");
            let fault = bench.record("ship").last_fault.clone();
            let fault = fault.or(match &bench.record("ship").state {
                StepState::Error(fault) => Some(fault.clone()),
                _ => None,
            });
            assert!(fault.unwrap().message.starts_with(message), "{by} {policy}");
        }
    }
}

#[test]
fn a_choice_makes_the_task_of_the_workflow_that_the_data_name() {
    let steps = json!([
        { "name": "part", "task": { "workflow": { "one_of": ["large", "small"], "by": "{{ 'large' if input.total > 10 else 'small' }}" }, "input": { "a": 1 } } },
    ]);
    let bench = Bench::new(steps);
    assert_eq!(bench.status("part.small"), StepStatus::Skipped);
    assert_eq!(bench.status("part.large"), StepStatus::Processing);
}

#[test]
fn blocks_lie_in_blocks() {
    let steps = json!([
        { "name": "a", "agent": "x" },
        { "name": "b", "when": "input.total == 30", "steps": [
            { "name": "c", "agent": "x" },
            { "name": "d", "when": "steps.c.output.id == 'b.c'", "steps": [
                { "name": "e", "agent": "x", "after": [], "request": { "body": "{{ [steps.c.output.id, steps.a.output.id] }}" } },
                { "name": "f", "agent": "x", "after": [] },
            ] },
            { "name": "g", "agent": "x", "after": ["c"] },
        ] },
        { "name": "h", "agent": "x" },
    ]);
    let mut bench = Bench::new(steps);
    assert_eq!(
        names(&bench),
        ["a", "b.c", "b.d.e", "b.d.f", "b.d", "b.g", "b", "h"]
    );
    assert_eq!(after(&bench, "b.d.e"), ["b.c"]);
    assert_eq!(after(&bench, "b.d"), ["b.d.e", "b.d.f"]);
    assert_eq!(after(&bench, "b"), ["b.d", "b.g"]);
    assert_eq!(after(&bench, "h"), ["b"]);
    bench.process("a");
    bench.process("b.c");
    assert_eq!(sent(&mut bench, "b.d.e"), json!(["b.c", "a"]));
}

#[test]
fn the_policies_of_a_block_are_those_of_its_steps() {
    let steps = json!([
        { "name": "b", "on_permanent": "skip", "steps": [
            { "name": "c", "agent": "x" },
            { "name": "d", "agent": "x", "on_permanent": "error" },
        ] },
    ]);
    let mut bench = Bench::new(steps);
    let attempt = bench.claim("b.c").unwrap();
    bench.reply("b.c", attempt, refusal(400)).unwrap();
    assert_eq!(bench.status("b.c"), StepStatus::Skipped);
    let attempt = bench.claim("b.d").unwrap();
    bench.reply("b.d", attempt, refusal(400)).unwrap();
    assert_eq!(bench.status("b.d"), StepStatus::Error);
}

#[test]
fn a_block_competes_in_a_race() {
    let steps = json!([
        { "name": "b", "after": [], "steps": [
            { "name": "c", "agent": "x", "undo": { "request": { "method": "DELETE" } } },
            { "name": "d", "agent": "x" },
        ] },
        { "name": "timer", "after": [], "wait": { "for": "10s" } },
        { "name": "join", "after": { "any": 1, "of": ["b", "timer"], "rest": "undo" }, "set": { "won": "{{ steps.join.winner }}" } },
    ]);
    let mut bench = Bench::new(steps);
    bench.process("b.c");
    bench.later(Span::from_secs(20));
    bench.expire("timer").unwrap();
    assert_eq!(bench.status("b.d"), StepStatus::Cancelled);
    assert_eq!(bench.status("join"), StepStatus::Processed);
    bench.process("b.c.revert");
    assert_eq!(bench.status("b.c"), StepStatus::Undone);
    assert_eq!(bench.task(), TaskStatus::Processed);
}

fn fail(bench: &mut Bench, name: &str) {
    let attempt = bench.claim(name).unwrap();
    bench.reply(name, attempt, refusal(422)).unwrap();
}

#[test]
fn a_block_whose_steps_have_all_failed_is_skipped_with_the_last_fault() {
    let of_steps = json!({ "name": "b", "on_permanent": "skip", "output": { "id": "{{ steps.c.output.id }}" }, "steps": [
        { "name": "wait", "wait": { "for": "0s" } },
        { "name": "total", "set": { "total": 1 } },
        { "name": "c", "agent": "x" },
        { "name": "inner", "steps": [{ "name": "d", "agent": "x" }] },
    ] });
    let of_list = json!({ "name": "b", "steps": [
        { "name": "list", "agent": "x", "for_each": [1], "on_item_error": "skip" },
    ] });
    let of_switch = json!({ "name": "b", "on_permanent": "skip", "switch": [
        { "when": "false", "steps": [{ "name": "no", "agent": "x" }] },
        { "else": [{ "name": "yes", "agent": "x" }] },
    ] });
    let of_choice = json!({ "name": "b", "agent": { "one_of": ["eu", "us"], "by": "eu" }, "on_permanent": "skip" });
    for (block, failing) in [
        (of_steps, &["b.c", "b.inner.d"][..]),
        (of_list, &["b.list[0]"]),
        (of_switch, &["b.yes"]),
        (of_choice, &["b.eu"]),
    ] {
        let mut bench = Bench::new(json!([
            block,
            { "name": "last", "when": "steps.b is failed and steps.b.error.status == 422", "agent": "x" },
        ]));
        for name in failing {
            fail(&mut bench, name);
        }
        assert_eq!(bench.status("b"), StepStatus::Skipped, "{failing:?}");
        bench.process("last");
        assert_eq!(bench.task(), TaskStatus::Processed);
    }
}

#[test]
fn a_block_with_a_success_has_not_failed() {
    // A later call, an earlier one, and a value that stands in for what has failed.
    for (after, value) in [
        (json!({ "name": "d", "agent": "x" }), false),
        (
            json!({ "name": "d", "set": { "price": 0 }, "when": "steps.c is failed" }),
            true,
        ),
    ] {
        let mut bench = Bench::new(json!([
            { "name": "b", "on_permanent": "skip", "steps": [{ "name": "c", "agent": "x" }, after] },
        ]));
        fail(&mut bench, "b.c");
        if !value {
            bench.process("b.d");
        }
        assert_eq!(bench.status("b"), StepStatus::Processed);
    }
    let mut bench = Bench::new(json!([
        { "name": "b", "on_permanent": "skip", "steps": [{ "name": "c", "agent": "x" }, { "name": "d", "agent": "x" }] },
    ]));
    bench.process("b.c");
    fail(&mut bench, "b.d");
    assert_eq!(bench.status("b"), StepStatus::Processed);
    // Nothing has failed where nothing was to be done.
    let bench = Bench::new(json!([
        { "name": "b", "switch": [{ "when": "false", "steps": [{ "name": "c", "agent": "x" }] }] },
    ]));
    assert_eq!(bench.status("b"), StepStatus::Processed);
}

#[test]
fn what_has_no_success_cannot_win_a_race() {
    let of_block = json!({ "name": "eu", "after": [], "on_permanent": "skip", "steps": [{ "name": "pay", "agent": "x" }] });
    let of_list = json!({ "name": "eu", "after": [], "agent": "x", "for_each": [1], "on_item_error": "skip" });
    for (competitor, failing, state) in [
        (of_block, "eu.pay", StepStatus::Skipped),
        (of_list, "eu[0]", StepStatus::Processed),
    ] {
        let steps = |rest: &str| {
            json!([
                competitor,
                { "name": "us", "after": [], "agent": "x", "on_permanent": "skip" },
                { "name": "join", "after": { "any": 1, "of": ["eu", "us"], "rest": rest }, "agent": "x", "request": {
                    "body": "{{ steps.join.winner }}" } },
            ])
        };
        let mut bench = Bench::new(steps("cancel"));
        fail(&mut bench, failing);
        assert_eq!(bench.status("eu"), state);
        assert_eq!(bench.status("join"), StepStatus::Waiting);
        assert_eq!(bench.status("us"), StepStatus::Pending);
        bench.process("us");
        assert_eq!(sent(&mut bench, "join"), json!("us"));
        // The one that fails last leaves nobody to wait for.
        for order in [[failing, "us"], ["us", failing]] {
            let mut bench = Bench::new(steps("let"));
            for name in order {
                fail(&mut bench, name);
            }
            assert_eq!(bench.status("join"), StepStatus::Error, "{order:?}");
        }
    }
}

#[test]
fn a_race_in_a_block_that_does_not_run_is_skipped_with_it() {
    let steps = json!([
        { "name": "b", "when": "input.total > 100", "steps": [
            { "name": "p", "agent": "x", "after": [] },
            { "name": "q", "agent": "x", "after": [] },
            { "name": "j", "agent": "x", "after": { "any": 1, "of": ["p", "q"] } },
        ] },
        { "name": "last", "agent": "x" },
    ]);
    let mut bench = Bench::new(steps);
    assert_eq!(bench.status("b.j"), StepStatus::Skipped);
    assert_eq!(bench.status("b"), StepStatus::Skipped);
    bench.process("last");
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn the_end_of_a_block_follows_its_policy() {
    for (policy, state) in [("skip", StepStatus::Skipped), ("error", StepStatus::Error)] {
        let steps = json!([
            { "name": "b", "on_permanent": policy, "output": "{{ steps.c.output.missing.more }}",
              "steps": [{ "name": "c", "agent": "x" }] },
        ]);
        let mut bench = Bench::new(steps);
        bench.process("b.c");
        assert_eq!(bench.status("b"), state);
    }
}

#[test]
fn what_a_block_cannot_have_is_refused_with_the_pointer_of_the_field() {
    let steps = json!([
        { "name": "b", "after": ["b.c"], "agent": "x", "steps": [
            { "name": "c", "agent": "x", "after": ["missing"], "request": { "body": "{{ steps.late.output }}" } },
            { "name": "undo", "agent": "x" },
            { "name": "c", "agent": "x" },
        ] },
        { "name": "late", "agent": "x", "after": ["b"] },
        { "name": "s", "switch": [
            { "else": [{ "name": "a", "agent": "x" }] },
            { "when": "steps.late.output.x", "steps": [] },
            { "steps": [{ "name": "f", "agent": "x" }] },
        ] },
        { "name": "e", "steps": [] },
        { "name": "n", "steps": 7 },
        { "name": "o", "agent": { "one_of": ["one"] } },
        { "name": "r", "steps": [{ "name": "x", "agent": "x" }], "for_each": [1] },
        { "name": "t", "when": "steps['t.x'].state == 'processed'", "steps": [{ "name": "x", "agent": "x" }] },
        { "name": "u", "steps": null },
        { "name": "v", "agent": {} },
        { "name": "w", "agent": { "one_of": ["eu", "us"], "by": "input.region" } },
    ]);
    let faults = faults(&steps);
    let has = |pointer: &str, words: &str| {
        let found = faults
            .iter()
            .any(|(at, message)| at == pointer && message.contains(words));
        assert!(found, "{pointer} {words} is not in {faults:#?}");
    };
    has("/steps/0/after/0", "a block cannot wait for a step in it");
    has("/steps/0/agent", "unknown field");
    has("/steps/0/steps/0/after/0", "there is no step `missing`");
    has(
        "/steps/0/steps/0/request/body",
        "`late` does not come before `b.c`",
    );
    has("/steps/0/steps/1/name", "what undoes the block");
    has("/steps/0/steps/2/name", "already has the name `b.c`");
    has("/steps/2/switch/0/else", "must be the last branch");
    has("/steps/2/switch/1/steps", "is empty");
    has("/steps/2/switch/2/when", "give the condition");
    has("/steps/3/steps", "is empty");
    has("/steps/4/steps", "must be an array");
    has("/steps/5/agent/by", "give the text");
    has("/steps/10/agent/by", "write it in braces");
    has("/steps/5/agent/one_of", "2 to 100 different names");
    has(
        "/steps/6/for_each",
        "a block is run several times as a task of its own",
    );
    has("/steps/7/when", "`t.x` does not come before `t`");
    has("/steps/8/agent", "is missing");
    has("/steps/9/agent/one_of", "is missing");
    has("/steps/9/agent/by", "is missing");
}

#[test]
fn too_many_steps_in_blocks_are_refused_before_they_are_read() {
    let inner: Vec<_> = (0..400)
        .map(|at| json!({ "name": format!("s{at}"), "agent": "x" }))
        .collect();
    let steps = json!([{ "name": "a", "steps": inner }, { "name": "b", "steps": inner }]);
    let faults = faults(&steps);
    assert!(faults[0].1.contains("more than 500 steps"), "{faults:?}");
}

#[test]
fn long_conditions_over_many_steps_are_refused() {
    let long = format!("input.total == '{}'", "x".repeat(1500));
    let branches: Vec<_> = (0..40)
        .map(|at| json!({ "when": long, "steps": [{ "name": format!("s{at}"), "agent": "x" }] }))
        .collect();
    let last: Vec<_> = (0..300)
        .map(|at| json!({ "name": format!("e{at}"), "agent": "x" }))
        .collect();
    let mut branches = branches;
    branches.push(json!({ "else": last }));
    let found = faults(&json!([{ "name": "b", "switch": branches }]));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].1.contains("the conditions of blocks"), "{found:?}");
}
