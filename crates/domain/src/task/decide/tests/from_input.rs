//! Limits that the input gives, within a maximum.

use super::*;

/// A task with this input. The usual one has `total` 30.
fn with_input(steps: &Value, input: Value) -> Bench {
    let mut bench = Bench::new(steps.clone());
    let details = Arc::into_inner(details(steps, None)).unwrap();
    let details = Details {
        input: Payload::from_value(&input),
        ..details
    };
    bench.draft = Draft::submit(Arc::new(details), bench.now);
    bench
}

fn message(bench: &Bench, name: &str) -> String {
    bench.record(name).error().unwrap().message.clone()
}

#[test]
fn an_attempt_has_the_time_that_the_input_gives() {
    let steps = json!([{ "name": "a", "agent": "x", "on_permanent": "skip",
        "complete_within": { "value": "{{ input.total }}s", "max": "40s" } }]);
    let mut bench = Bench::new(steps.clone());
    bench.claim("a").unwrap();
    let StepState::Processing { complete_by, .. } = bench.record("a").state else {
        panic!("not claimed");
    };
    assert_eq!(complete_by, bench.now + Span::from_secs(30));
    bench.later(Span::from_secs(30));
    bench.expire("a").unwrap();
    let event = bench.draft.events.last().unwrap();
    assert_eq!(
        event.reason.as_deref(),
        Some("attempt 1 did not finish within 30s")
    );
    let mut bench = with_input(&steps, json!({ "total": 41 }));
    let step = bench.step("a");
    let by = Claimant::Instance(InstanceId::new("node-1"));
    bench.apply(Command::Claim { step, by }).unwrap();
    assert_eq!(bench.status("a"), StepStatus::Skipped);
    assert_eq!(
        message(&bench, "a"),
        "`complete_within` gives \"41s\", but must give a duration such as \"250ms\", \"30s\", \"15m\", \"24h\" or \"30d\", from 100ms to 40s"
    );
}

#[test]
fn a_signal_is_awaited_for_as_long_as_the_input_says() {
    let steps = json!([{ "name": "a", "signal": {
        "within": { "value": "{{ input.days }}d", "max": "30d" }, "on_timeout": "skip" } }]);
    let mut bench = with_input(&steps, json!({ "days": 2 }));
    bench.later(Span::from_secs(2 * 86_400));
    let step = bench.step("a");
    let attempt = bench.record("a").attempt;
    let expire = Command::Expire {
        step,
        attempt,
        cause: Expiry::CompleteBy,
    };
    bench.apply(expire).unwrap();
    assert_eq!(bench.status("a"), StepStatus::Skipped);
    assert_eq!(message(&bench, "a"), "no signal came within 48h");
    let bench = with_input(&steps, json!({}));
    assert_eq!(bench.status("a"), StepStatus::Error);
    assert!(message(&bench, "a").starts_with("`within` could not be evaluated: "));
}

#[test]
fn so_many_items_run_at_once_as_the_input_says() {
    let steps = json!([{ "name": "all", "agent": "x", "for_each": [1, 2, 3, 4],
        "max_parallel": { "value": "{{ input.most }}", "max": 3 } }]);
    let mut bench = with_input(&steps, json!({ "most": 2 }));
    let pending = |bench: &Bench| {
        let names = (0..4).map(|at| format!("all[{at}]"));
        names
            .filter(|name| bench.status(name) == StepStatus::Pending)
            .count()
    };
    assert_eq!(pending(&bench), 2);
    bench.process("all[0]");
    assert_eq!(pending(&bench), 2);
    let bench = with_input(&steps, json!({ "most": 4 }));
    assert_eq!(bench.status("all"), StepStatus::Error);
    assert_eq!(
        message(&bench, "all"),
        "`max_parallel` gives \"4\", but must give a whole number from 1 to 3"
    );
}

#[test]
fn so_many_iterations_are_made_as_the_input_says() {
    let steps = json!([{ "name": "a", "agent": "x", "repeat": {
        "until": "false", "at_most": { "value": "{{ input.times }}", "max": 10 }, "on_exhausted": "skip" } }]);
    let mut bench = with_input(&steps, json!({ "times": 2 }));
    bench.process("a[0]");
    bench.process("a[1]");
    assert_eq!(bench.status("a"), StepStatus::Skipped);
    assert!(message(&bench, "a").contains("after 2 iterations"));
}

#[test]
fn an_expression_for_a_limit_has_a_maximum_and_reads_nothing_but_the_input() {
    for (limit, message) in [
        (
            json!({ "value": "{{ input.n }}s" }),
            "give the largest value",
        ),
        (json!({ "max": "1h" }), "give an expression"),
        (
            json!({ "value": "{{ steps.b.output }}s", "max": "1h" }),
            "can use `input` and `task`",
        ),
        (
            json!({ "value": "{{ task.created_at }}", "max": "1h" }),
            "can use `input` and `task`",
        ),
        (json!({ "value": "30s", "max": "1h" }), "has no expression"),
        (json!({ "value": "{{ input.n }}s", "max": "31d" }), "to 30d"),
    ] {
        let steps = json!([
            { "name": "b", "agent": "x" },
            { "name": "a", "agent": "x", "complete_within": limit },
        ]);
        let parsed = parse_steps(
            &Payload::from_value(&steps),
            "/steps",
            &Policies::default(),
            &Limits::default(),
            &Accepted,
        );
        let faults = parsed.unwrap_err();
        assert!(
            faults.iter().any(|fault| fault.message.contains(message)),
            "{faults:?}"
        );
    }
}

#[test]
fn an_attempt_that_the_limit_of_the_task_cuts_off_says_so() {
    let steps =
        json!([{ "name": "a", "agent": "x", "complete_within": "30s", "on_permanent": "skip" }]);
    let mut bench = Bench::limited(steps, Some(Span::from_secs(2)));
    bench.claim("a").unwrap();
    bench.later(Span::from_secs(2));
    bench.expire("a").unwrap();
    let mut events = bench.draft.events.iter();
    let said = events.find(|event| event.kind == "step.expired");
    assert_eq!(
        said.unwrap().reason.as_deref(),
        Some("attempt 1 did not finish within the time of the task")
    );
}

#[test]
fn an_expression_without_a_maximum_is_told_how_to_have_one() {
    let source = json!([
        { "name": "a", "agent": "x", "complete_within": "{{ input.n }}s", "max_attempts": "{{ input.n }}" },
        { "name": "b", "agent": "x", "for_each": [1], "enough": "{{ input.n }}" },
    ]);
    let parsed = parse_steps(
        &Payload::from_value(&source),
        "",
        &Policies::default(),
        &Limits::default(),
        &Accepted,
    );
    let faults = parsed.err().unwrap();
    let mut found: Vec<_> = faults.iter().map(ToString::to_string).collect();
    found.sort();
    let words = |max: &str| {
        format!(
            "must have a maximum if it is an expression: {{ \"value\": \"{{{{ … }}}}\", \"max\": {max} }}"
        )
    };
    assert_eq!(found[0], format!("/0/complete_within: {}", words("\"1h\"")));
    assert!(
        found
            .iter()
            .any(|fault| fault == &format!("/1/enough: {}", words("10"))),
        "{found:?}"
    );
}
