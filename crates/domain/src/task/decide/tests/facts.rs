//! Expressions that read what happened to a step.

use super::*;

/// The value of an expression in the request of the step `reader`, which is claimed for it.
fn read(bench: &mut Bench, reader: &str) -> Value {
    let step = bench.step(reader);
    let by = Claimant::Instance(InstanceId::new("node-1"));
    match bench.apply(Command::Claim { step, by }).unwrap() {
        CommandOutput::Call(call) => serde_json::from_str(call.body.as_deref().unwrap()).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn refuse(bench: &mut Bench, name: &str, status: u16) {
    let attempt = bench.claim(name).unwrap();
    bench.reply(name, attempt, refusal(status)).unwrap();
}

fn reader(body: &str) -> Value {
    json!({ "name": "reader", "agent": "x", "request": { "body": body } })
}

#[test]
fn a_step_that_its_policy_skipped_keeps_its_error_and_its_attempts() {
    let mut bench = Bench::new(json!([
        { "name": "a", "agent": "x", "on_permanent": "skip" },
        reader("{{ steps.a }}"),
    ]));
    bench.defer("a", 503, Duration::ZERO);
    refuse(&mut bench, "a", 404);
    assert_eq!(bench.status("a"), StepStatus::Skipped);
    let seen = read(&mut bench, "reader");
    assert_eq!(seen["state"], "skipped");
    assert_eq!(seen["error"]["kind"], "permanent");
    assert_eq!(seen["error"]["status"], 404);
    assert_eq!(seen["attempts"], 2);
    assert_eq!(seen["output"], Value::Null);
}

#[test]
fn a_step_that_succeeded_in_the_end_has_no_error() {
    let mut bench = Bench::new(json!([{ "name": "a", "agent": "x" }, reader("{{ steps.a }}")]));
    bench.defer("a", 503, Duration::ZERO);
    bench.process("a");
    let seen = read(&mut bench, "reader");
    assert_eq!(
        (&seen["state"], &seen["error"]),
        (&json!("processed"), &Value::Null)
    );
    assert_eq!(seen["attempts"], 2);
}

#[test]
fn a_step_that_an_operator_skips_keeps_the_error_that_it_was_in_until_it_runs_again() {
    let mut bench = Bench::new(json!([
        { "name": "a", "agent": "x" },
        reader("{{ steps.a.error.status | default(none) }}"),
    ]));
    refuse(&mut bench, "a", 409);
    let step = bench.step("a");
    let skip = Command::Skip {
        step,
        output: None,
        reason: None,
    };
    bench.apply(skip).unwrap();
    assert_eq!(read(&mut bench, "reader"), json!(409));
    let attempt = bench.record("reader").attempt;
    bench.reply("reader", attempt, success(json!(1))).unwrap();
}

#[test]
fn a_rerun_forgets_the_error() {
    let mut bench = Bench::new(json!([
        { "name": "a", "agent": "x", "on_permanent": "skip" },
        { "name": "b", "agent": "x" },
    ]));
    refuse(&mut bench, "a", 404);
    refuse(&mut bench, "b", 404);
    let step = bench.step("a");
    let again = Command::RetryFrom { step, reason: None };
    bench.apply(again).unwrap();
    assert_eq!(bench.record("a").error(), None);
    bench.process("a");
    assert_eq!(bench.record("a").error(), None);
}

#[test]
fn a_condition_that_is_false_leaves_no_error() {
    let mut bench = Bench::new(json!([
        { "name": "a", "agent": "x", "when": "input.total > 100" },
        { "name": "b", "agent": "x", "when": "steps.a is failed" },
        { "name": "c", "agent": "x", "when": "steps.a is skipped" },
    ]));
    assert_eq!(bench.status("b"), StepStatus::Skipped);
    bench.process("c");
}

#[test]
fn the_items_of_a_list_say_how_each_has_ended() {
    let mut bench = Bench::new(json!([
        { "name": "all", "agent": "x", "for_each": [1, 2], "on_item_error": "skip" },
        reader("{{ steps.all.items | map(attribute='error') | map(attribute='status', default=0) | list }}"),
    ]));
    refuse(&mut bench, "all[1]", 410);
    bench.process("all[0]");
    let claimed = read(&mut bench, "reader");
    assert_eq!(claimed, json!([0, 410]));
}

#[test]
fn an_undo_reads_the_error_for_which_the_task_is_undone() {
    let mut bench = Bench::new(json!([
        { "name": "a", "agent": "x", "undo": { "request": { "body":
            "{{ [task.state, task.error.step, task.error.status, steps.a.state] }}" } } },
        { "name": "b", "agent": "x", "on_permanent": "undo" },
    ]));
    bench.process("a");
    refuse(&mut bench, "b", 402);
    let seen = read(&mut bench, "a.undo");
    assert_eq!(seen, json!(["undoing", "b", 402, "processed"]));
}

#[test]
fn the_error_of_an_undo_that_an_operator_asked_for_is_null() {
    let mut bench = Bench::new(json!([
        { "name": "a", "agent": "x", "undo": { "request": { "body":
            "{{ [task.error, task.error.status | default('none')] }}" } } },
        { "name": "b", "agent": "x" },
    ]));
    bench.process("a");
    bench.apply(Command::Undo { reason: None }).unwrap();
    assert_eq!(read(&mut bench, "a.undo"), json!([null, "none"]));
}

#[test]
fn the_times_of_the_task_are_those_of_its_record() {
    let times = "{{ [task.created_at, task.started_at] }}";
    let mut bench = Bench::new(json!([{ "name": "a", "agent": "x" }, reader(times)]));
    bench.later(Span::from_millis(1500));
    bench.process("a");
    bench.later(Span::from_millis(1000));
    let seen = read(&mut bench, "reader");
    assert_eq!(
        seen,
        json!(["1970-01-01T00:16:40.000Z", "1970-01-01T00:16:41.500Z"])
    );
}

/// Returns the faults of a definition, joined.
fn faults(steps: Value) -> String {
    let parsed = parse_steps(
        &Payload::from_value(&steps),
        "/steps",
        &Policies::default(),
        &Limits::default(),
        &Accepted,
    );
    let faults = parsed.err().unwrap_or_default();
    faults
        .iter()
        .map(|fault| format!("{}\n", fault.message))
        .collect()
}

#[test]
fn members_that_are_not_there_are_refused_by_name() {
    for (body, message) in [
        (
            "{{ steps.a.outcome }}",
            "use `steps.a.output`, `steps.a.state`",
        ),
        ("{{ task.name }}", "a task has no `name` here"),
        (
            "{{ task.error }}",
            "`task.error` is defined only in an undo",
        ),
        (
            "{{ task.state }}",
            "`task.state` is defined only in an undo",
        ),
        ("{{ steps.later.state }}", "does not come before"),
        (
            "{{ steps.a.status }}",
            "`a` keeps no status and no headers of its response",
        ),
        ("{{ steps.a.headers.etag }}", "add `keep_headers` to it"),
    ] {
        let steps = json!([
            { "name": "a", "agent": "x" },
            reader(body),
            { "name": "later", "agent": "x" },
        ]);
        let found = faults(steps);
        assert!(found.contains(message), "{body}: {found}");
    }
}

#[test]
fn a_key_cannot_be_made_of_the_times_of_a_task() {
    let parsed = crate::definition::key_limit::parse_key("{{ task.created_at }}");
    assert!(parsed.unwrap_err().contains("`task.created_at`"));
}

#[test]
fn only_a_step_that_replies_with_its_response_keeps_headers_and_no_secrets() {
    for (fields, message) in [
        (
            json!({ "keep_headers": ["location"], "reply": "callback" }),
            "comes later",
        ),
        (json!({ "keep_headers": ["set-cookie"] }), "may be a secret"),
        (
            json!({ "keep_headers": ["a b"] }),
            "must be the name of a header",
        ),
        (
            json!({ "keep_headers": ["etag", "ETag"] }),
            "is listed twice",
        ),
        (json!({ "keep_headers": vec!["a"; 17] }), "at most 16"),
    ] {
        let mut step = json!({ "name": "a", "agent": "x" });
        step.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        let found = faults(json!([step]));
        assert!(found.contains(message), "{fields}: {found}");
    }
    let found = faults(json!([{ "name": "a", "wait": { "for": "1s" }, "keep_headers": [] }]));
    assert!(found.contains("steps that call a service"), "{found}");
}

#[test]
fn the_parts_of_a_response_are_kept_until_another_result_replaces_the_output() {
    let mut bench = Bench::new(json!([
        { "name": "a", "agent": "x", "keep_headers": ["location"] },
        reader("{{ [steps.a.status, steps.a.headers.location] }}"),
    ]));
    let kept = |bench: &Bench| bench.record("a").response.clone();
    let attempt = bench.claim("a").unwrap();
    let response = crate::task::KeptResponse {
        status: 201,
        headers: BTreeMap::from([("location".to_owned(), "/a/1".to_owned())]),
    };
    let outcome = CallOutcome::Kept {
        output: Payload::null(),
        response: Box::new(response.clone()),
    };
    bench.reply("a", attempt, outcome).unwrap();
    assert_eq!(read(&mut bench, "reader"), json!([201, "/a/1"]));
    assert_eq!(kept(&bench).as_deref(), Some(&response));
    let attempt = bench.record("reader").attempt;
    bench.reply("reader", attempt, refusal(404)).unwrap();
    let again = Command::RetryFrom {
        step: bench.step("a"),
        reason: None,
    };
    bench.apply(again).unwrap();
    bench.process("a");
    assert_eq!(kept(&bench), None);
}
