use serde_json::{Value, json};

use super::*;
use crate::{
    agent::spec::{AgentSpec, RetrySpec},
    definition::{Accepted, Limits, Policies, parse_steps},
};

fn definition(steps: &Value) -> Definition {
    parse_steps(
        &Payload::from_value(steps),
        "",
        &Policies::default(),
        &Limits::default(),
        &Accepted,
    )
    .unwrap()
}

fn of(steps: &Value) -> DryRunReport {
    dry_run(&definition(steps), &TaskFields::default(), &|_| None)
}

fn of_task<'s>(complete_within: Option<Span>, input: Option<&'s Payload>) -> TaskFields<'s> {
    TaskFields {
        complete_within,
        input,
        ..TaskFields::default()
    }
}

/// The codes of the warnings, with the steps that they are about.
fn warnings(report: &DryRunReport) -> Vec<(WarningCode, &str)> {
    report
        .warnings
        .iter()
        .map(|warning| {
            (
                warning.code,
                warning.step.as_ref().map_or("", StepName::as_str),
            )
        })
        .collect()
}

fn names(names: &[StepName]) -> Vec<&str> {
    names.iter().map(StepName::as_str).collect()
}

#[test]
fn steps_are_put_in_an_order_in_which_they_can_run() {
    let report = of(&json!([
        { "name": "ship", "agent": "x", "after": ["charge", "reserve"] },
        { "name": "reserve", "agent": "y", "after": [] },
        { "name": "charge", "agent": "z", "after": ["reserve"] },
        { "name": "notify", "agent": "z", "after": [] },
    ]));
    let order: Vec<_> = report
        .steps
        .iter()
        .map(|step| (step.name.as_str(), step.stage))
        .collect();
    assert_eq!(
        order,
        [("reserve", 1), ("notify", 1), ("charge", 2), ("ship", 3)]
    );
    assert_eq!(names(&report.steps[3].after), ["charge", "reserve"]);
    assert_eq!(report.steps[2].agent, Some(AgentName::new("z")));
}

#[test]
fn the_worst_case_adds_attempts_waits_and_extensions() {
    let report = of(&json!([{
        "name": "a", "agent": "x", "complete_within": "10s", "max_failures": 3,
        "on_exhausted": { "extend": "5m", "times": 2 }
    }]));
    // Four attempts with waits of 1, 2 and 4 seconds, and after them twice five minutes and another attempt.
    assert_eq!(report.worst_case, Span::from_secs(40 + 7 + 2 * (300 + 10)));
    assert_eq!(report.steps[0].attempts, 6);
}

#[test]
fn the_critical_path_is_the_chain_that_takes_longest() {
    let steps = json!([
        { "name": "a", "agent": "x", "complete_within": "1s", "max_failures": 0 },
        { "name": "long", "agent": "x", "complete_within": "20s", "max_failures": 0, "after": ["a"] },
        { "name": "short", "agent": "x", "complete_within": "5s", "max_failures": 0, "after": ["a"] },
        { "name": "end", "agent": "x", "complete_within": "1s", "max_failures": 0, "after": ["short", "long"] },
    ]);
    let report = of(&steps);
    assert_eq!(names(&report.critical_path), ["a", "long", "end"]);
    assert_eq!(report.worst_case, Span::from_secs(22));
    assert!(report.fits);
    let fits = |secs| {
        super::dry_run(
            &definition(&steps),
            &of_task(Some(Span::from_secs(secs)), None),
            &|_| None,
        )
        .fits
    };
    assert!(fits(22) && !fits(21));
}

#[test]
fn the_input_tells_whether_a_condition_holds() {
    let steps = json!([
        { "name": "a", "agent": "x", "when": "input.total > 10" },
        { "name": "b", "agent": "x", "when": "steps.a.output" },
        { "name": "c", "agent": "x" },
    ]);
    let runs = |input: Option<Value>| -> Vec<RunCondition> {
        let input = input.map(|input| Payload::from_value(&input));
        let report = dry_run(&definition(&steps), &of_task(None, input.as_ref()), &|_| {
            None
        });
        report.steps.iter().map(|step| step.runs).collect()
    };
    use RunCondition::{Always, Conditionally, Never};
    assert_eq!(runs(None), [Conditionally, Conditionally, Always]);
    assert_eq!(
        runs(Some(json!({ "total": 11 }))),
        [Always, Conditionally, Always]
    );
    assert_eq!(
        runs(Some(json!({ "total": 9 }))),
        [Never, Conditionally, Always]
    );
    let skipped = Payload::from_value(&json!({ "total": 9 }));
    let report = dry_run(&definition(&steps), &of_task(None, Some(&skipped)), &|_| {
        None
    });
    assert!(report.steps[0].worst_case == Some(Span::default()));
}

#[test]
fn services_that_must_deduplicate_are_named_in_one_warning() {
    let report = of(&json!([
        { "name": "a", "agent": "x" },
        { "name": "b", "agent": "x", "request": { "method": "PATCH" } },
        { "name": "c", "agent": "x", "request": { "method": "PUT" } },
        { "name": "d", "agent": "x", "request": { "method": "DELETE" } },
    ]));
    assert_eq!(
        warnings(&report),
        [(WarningCode::ReliesOnIdempotencyKey, "")]
    );
    assert!(report.warnings[0].message.ends_with(": a, b"));
}

#[test]
fn a_get_that_nobody_reads_is_worth_a_warning() {
    let get = |name: &str| json!({ "name": name, "agent": "x", "request": { "method": "GET" } });
    let report = of(&json!([
        get("read"),
        get("unread"),
        { "name": "put", "agent": "x", "request": { "method": "PUT", "body": "{{ steps.read.output }}" } },
    ]));
    assert_eq!(warnings(&report), [(WarningCode::OutputUnread, "unread")]);
}

#[test]
fn a_service_that_replies_after_days_should_send_heartbeats() {
    let step = |name: &str, within: &str| {
        json!({ "name": name, "agent": "x", "reply": "callback", "complete_within": within,
            "request": { "method": "PUT" } })
    };
    let mut quiet = step("told", "3d");
    quiet["heartbeat_within"] = json!("1m");
    let polled = json!({ "name": "polled", "agent": "x", "complete_within": "3d",
        "request": { "method": "GET" }, "reply": { "poll": { "until": "response.body.done" } } });
    let report = of(&json!([
        step("silent", "3d"),
        quiet,
        step("short", "23h"),
        polled
    ]));
    assert_eq!(warnings(&report), [(WarningCode::NoHeartbeat, "silent")]);
}

fn planned(agent: Value) -> PlannedAgent {
    PlannedAgent::from(&serde_json::from_value::<AgentSpec>(agent).unwrap())
}

#[test]
fn what_queues_and_workers_cannot_do_is_worth_a_warning() {
    let polled = json!({ "poll": { "until": "response.body.done" } });
    let step = |name: &str, agent: &str, reply: Option<&Value>| {
        let mut step = json!({ "name": name, "agent": agent, "on_undo": "drop", "request": { "method": "PUT" },
            "probe": { "request": { "path": "/p" } }, "cancel": { "request": { "path": "/c" } },
            "undo": { "request": { "path": "/u" } } });
        if let Some(reply) = reply {
            step["reply"] = reply.clone();
            step["undo"]["reply"] = reply.clone();
        }
        step
    };
    let callback = json!("callback");
    let steps = json!([
        step("a", "queue", Some(&polled)),
        step("b", "queue", Some(&callback)),
        step("c", "workers", Some(&callback)),
        step("d", "workers", None),
        step("e", "called", Some(&polled)),
        step("f", "unknown", Some(&polled)),
        { "name": "g", "agent": "workers", "complete_within": "3d", "request": { "method": "PUT" } },
        { "name": "h", "agent": "queue", "complete_within": "3d", "request": { "method": "PUT" } },
    ]);
    let agent_of = |agent: &AgentName| match agent.as_str() {
        "queue" => Some(planned(
            json!({ "endpoints": [{ "url": "amqp://broker/q" }] }),
        )),
        "workers" => Some(planned(json!({ "mode": "pull" }))),
        "called" => Some(planned(json!({ "endpoints": [{ "url": "http://h" }] }))),
        _ => None,
    };
    let report = dry_run(&definition(&steps), &TaskFields::default(), &agent_of);
    let of = |code| {
        let warnings = report.warnings.iter();
        let warnings = warnings.filter(move |warning| warning.code == code);
        warnings
            .map(|warning| warning.pointer.as_str())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        of(WarningCode::AgentCannot),
        [
            "/steps/0/reply",
            "/steps/0/undo/reply",
            "/steps/0/cancel",
            "/steps/0/probe",
            "/steps/1/cancel",
            "/steps/1/probe",
            "/steps/2/reply",
            "/steps/2/undo/reply",
            "/steps/2/cancel",
            "/steps/2/probe",
            "/steps/3/cancel",
            "/steps/3/probe",
        ]
    );
    assert_eq!(of(WarningCode::NoHeartbeat), ["/steps/6"]);
    let told = json!([{ "name": "a", "agent": "workers", "request": { "method": "PUT" },
        "probe": { "request": {}, "outcome": "response.body" } }]);
    let report = dry_run(&definition(&told), &TaskFields::default(), &agent_of);
    assert_eq!(report.warnings, []);
}

#[test]
fn a_wait_for_a_reply_that_is_as_long_as_the_attempt_is_worth_a_warning() {
    let step = |name: &str, extra: Value| {
        let mut step = json!({ "name": name, "agent": "x", "complete_within": "10m",
            "request": { "method": "PUT" } });
        let extra = extra.as_object().unwrap().clone();
        step.as_object_mut().unwrap().extend(extra);
        step
    };
    let polled = |every: &str| json!({ "reply": { "poll": { "until": "response.body.done", "every": every } } });
    let later = |within: &str| json!({ "reply": "callback", "heartbeat_within": within });
    let report = of(&json!([
        step("a", later("10m")),
        step("b", later("9m")),
        step("c", polled("10m")),
        step("d", polled("9m")),
    ]));
    let outlives = WarningCode::OutlivesAttempt;
    assert_eq!(warnings(&report), [(outlives, "a"), (outlives, "c")]);
}

#[test]
fn what_never_changes_or_cannot_be_in_time_is_worth_a_warning() {
    let steps = json!([
        { "name": "a", "agent": "x", "when": "1 > 0", "request": { "method": "PUT", "path": "/{{ 'x' }}", "body": { "n": ["{{ 1 + 1 }}", "plain"] } } },
        { "name": "b", "agent": "slow", "complete_within": "2m", "request": { "method": "PUT" } },
    ]);
    let agent_of = |agent: &AgentName| {
        (agent.as_str() == "slow").then(|| PlannedAgent {
            retry: RetrySpec {
                initial: Span::from_secs(120),
                ..RetrySpec::default()
            },
            ..planned(json!({ "endpoints": [{ "url": "http://slow" }] }))
        })
    };
    let report = dry_run(
        &definition(&steps),
        &of_task(Some(Span::from_secs(60)), None),
        &agent_of,
    );
    use WarningCode::{Constant, NoTimeToRetry, OutlivesTask};
    assert_eq!(
        warnings(&report),
        [
            (Constant, "a"),
            (Constant, "a"),
            (Constant, "a"),
            (OutlivesTask, "b"),
            (NoTimeToRetry, "b")
        ]
    );
    assert!(report.warnings[2].message.contains("`request.body.n.0`"));
    assert!(!report.fits);
}

#[test]
fn an_input_that_lacks_what_a_step_needs_is_worth_a_warning() {
    let steps = json!([{ "name": "a", "agent": "x", "request": { "method": "PUT", "path": "/{{ input.id }}" } }]);
    let with = |input: Value| {
        let input = Payload::from_value(&input);
        dry_run(&definition(&steps), &of_task(None, Some(&input)), &|_| None)
    };
    assert_eq!(warnings(&with(json!({ "id": 7 }))), []);
    let lacking = with(json!({}));
    assert_eq!(warnings(&lacking), [(WarningCode::CannotRender, "a")]);
    assert!(lacking.warnings[0].message.contains("`input.id`"));
}

#[test]
fn a_report_is_written_in_the_words_of_the_api() {
    let report = of(&json!([{ "name": "a", "agent": "x", "request": { "method": "GET" } }]));
    assert_eq!(
        serde_json::to_value(&report).unwrap(),
        json!({
            "steps": [{ "name": "a", "kind": "call", "workflow": null, "agent": "x", "method": "GET", "after": [], "stage": 1, "runs": "always", "attempts": 4, "worst_case": "2m7s" }],
            "critical_path": ["a"],
            "worst_case": "2m7s",
            "complete_within": null,
            "fits": true,
            "undo": [],
            "warnings": [{ "code": "output_unread", "step": "a", "pointer": "/steps/0", "message": "no step reads the output of this GET: remove the step, or read its output" }]
        })
    );
}

#[test]
fn a_wait_takes_the_time_that_is_known_and_is_no_call() {
    let steps = json!([
        { "name": "a", "wait": { "for": "1h" } },
        { "name": "b", "wait": { "until": "2026-01-01T04:00:00Z" } },
        { "name": "c", "wait": { "for": "{{ input.total }}" } },
        { "name": "d", "signal": { "within": "1m" } },
    ]);
    let fields = TaskFields {
        now: Timestamp::parse("2026-01-01T02:00:00Z"),
        ..TaskFields::default()
    };
    let report = dry_run(&definition(&steps), &fields, &|_| None);
    let kinds: Vec<_> = report.steps.iter().map(|step| step.kind).collect();
    assert_eq!(kinds, ["wait", "wait", "wait", "signal"]);
    assert!(report.steps.iter().all(|step| step.agent.is_none()));
    assert_eq!(report.steps[0].attempts, 1);
    let worst: Vec<_> = report
        .steps
        .iter()
        .map(|step| step.worst_case.unwrap())
        .collect();
    let expected = [3600, 7200, 0, 60].map(Span::from_secs);
    assert_eq!(worst, expected);
    let codes: Vec<_> = report.warnings.iter().map(|warning| warning.code).collect();
    assert!(
        codes.iter().all(|code| *code == WarningCode::InputNeeded),
        "{codes:?}"
    );
    let input = Payload::from_value(&json!({ "total": "2h", "then": "2026-01-01T03:00:00Z" }));
    let steps = json!([
        { "name": "a", "wait": { "for": "{{ input.total }}" } },
        { "name": "b", "wait": { "until": "{{ input.then }}" } },
        { "name": "c", "wait": { "until": "{{ input.total }}" } },
    ]);
    let fields = TaskFields {
        input: Some(&input),
        ..fields
    };
    let report = dry_run(&definition(&steps), &fields, &|_| None);
    assert_eq!(report.worst_case, Span::from_secs(3 * 3600));
    let warned: Vec<_> = report
        .warnings
        .iter()
        .map(|warning| &warning.pointer)
        .collect();
    assert_eq!(warned, ["/steps/2"]);
}

#[test]
fn what_looks_like_an_expression_and_is_sent_as_it_stands_is_worth_a_warning() {
    let steps = json!([{ "name": "a", "agent": "x", "request": {
        "method": "PUT",
        "path": "/{{ input.z }}/${input.q}",
        "body": {
            "price": "${{ input.price }}", "quoted": "{{ '${x}' }}",
            "{{ input.name }}": 1, "list": [{ "deep {{ input.name }}": 2 }],
            "text": "{{ input.z }} and ${input.z}",
        },
    } }]);
    let labels = BTreeMap::from([
        ("plain".to_owned(), "acme".to_owned()),
        ("who".to_owned(), "{{ input.who }}".to_owned()),
    ]);
    let fields = TaskFields {
        key: Some("order-{{ input.id }}"),
        labels: Some(&labels),
        ..TaskFields::default()
    };
    let report = dry_run(&definition(&steps), &fields, &|_| None);
    let found = report.warnings.iter();
    let found = found.filter(|warning| warning.code == WarningCode::LooksLikeExpression);
    let mut found: Vec<_> = found.map(|warning| warning.pointer.as_str()).collect();
    found.sort_unstable();
    assert_eq!(
        found,
        [
            "/key",
            "/labels/who",
            "/steps/0/request/body/list/0/deep {{ input.name }}",
            "/steps/0/request/body/text",
            "/steps/0/request/body/{{ input.name }}",
            "/steps/0/request/path",
        ]
    );
}

#[test]
fn how_long_a_task_takes_is_known_if_its_step_says_it() {
    let child = |within: Value| json!([{ "name": "a", "complete_within": within, "task": { "workflow": "ship" } }]);
    for (within, known) in [
        (json!("2h"), Some(Span::from_secs(7200))),
        (Value::Null, None),
    ] {
        let report = of(&child(within));
        assert_eq!(report.steps[0].worst_case, known);
        assert_eq!(report.worst_case, known.unwrap_or_default());
    }
}

#[test]
fn a_list_that_is_null_for_this_input_has_a_warning() {
    let steps = json!([{ "name": "a", "agent": "x", "for_each": "{{ input.orders }}" }]);
    for input in [json!({ "orders": null }), json!({}), json!(null)] {
        let input = Payload::from_value(&input);
        let fields = TaskFields {
            input: Some(&input),
            ..TaskFields::default()
        };
        let report = dry_run(&definition(&steps), &fields, &|_| None);
        let warnings = report.warnings.iter();
        let list = warnings.filter(|warning| warning.pointer == "/steps/0/for_each");
        let codes: Vec<_> = list.map(|warning| warning.code).collect();
        assert_eq!(codes, [WarningCode::CannotRender], "{input:?}");
    }
}

#[test]
fn more_items_than_a_task_can_have_are_warned_of_before_it_runs() {
    let too_many = |count: usize| {
        let poll = |at| {
            json!({ "name": format!("poll-{at}"), "agent": "x",
                "repeat": { "until": "output.done", "at_most": 1000 } })
        };
        let steps: Vec<_> = (0..count).map(poll).collect();
        let mut warnings = of(&json!(steps)).warnings.into_iter();
        warnings.find(|warning| warning.code == WarningCode::TooManyItems)
    };
    assert_eq!(too_many(10), None);
    let warning = too_many(12).unwrap();
    assert_eq!(warning.pointer, "/steps/10/repeat/at_most");
    let message = warning.message;
    assert!(message.contains("may come to 11000 items"), "{message}");
}

#[test]
fn nothing_is_said_of_the_keys_of_a_service_that_is_known_to_deduplicate() {
    let codes = |step: Value, idempotent: bool| {
        let spec = AgentSpec {
            idempotent,
            ..AgentSpec::default()
        };
        let definition = definition(&json!([step]));
        let report = dry_run(&definition, &TaskFields::default(), &|_| {
            Some((&spec).into())
        });
        let mut warned = report.warnings.iter();
        warned.any(|warning| warning.code == WarningCode::ReliesOnIdempotencyKey)
    };
    let plain = json!({ "name": "a", "agent": "x" });
    assert!(codes(plain.clone(), false));
    assert!(!codes(plain, true));
    let once = json!({ "name": "a", "agent": "x", "max_attempts": 1 });
    assert!(!codes(once, false));
}

#[test]
fn a_condition_that_is_a_text_and_a_body_of_json_in_a_text_are_warned_of() {
    let input = Payload::from_value(&json!({ "mode": "off", "gift": true }));
    let of_step = |step: Value| {
        let mut whole = json!({ "name": "a", "agent": "x" });
        let fields = step.as_object().unwrap().clone();
        whole.as_object_mut().unwrap().extend(fields);
        let definition = definition(&json!([whole]));
        let report = dry_run(&definition, &of_task(None, Some(&input)), &|_| None);
        let texts = [WarningCode::TextCondition, WarningCode::TextBody];
        let warned = report.warnings.into_iter();
        let mut warned = warned.filter(|warning| texts.contains(&warning.code));
        warned.next().map(|warning| warning.pointer)
    };
    let found = |pointer: &str| Some(pointer.to_owned());
    assert_eq!(
        of_step(json!({ "when": "input.mode" })),
        found("/steps/0/when")
    );
    assert_eq!(
        of_step(json!({ "when": "'false'" })),
        found("/steps/0/when")
    );
    assert_eq!(of_step(json!({ "when": "input.gift" })), None);
    assert_eq!(of_step(json!({ "when": "input.mode == 'on'" })), None);
    for body in ["{\"a\": \"{{ input.mode }}\"}", " [1, 2] "] {
        let step = json!({ "request": { "body": body } });
        assert_eq!(of_step(step), found("/steps/0/request/body"), "{body}");
        let step = json!({ "undo": { "request": { "body": body } } });
        assert_eq!(of_step(step), found("/steps/0/undo/request/body"), "{body}");
    }
    for body in ["{{ input }}", "[{{ input.mode }}", "{a}"] {
        assert_eq!(
            of_step(json!({ "request": { "body": body } })),
            None,
            "{body}"
        );
    }
}

#[test]
fn an_input_that_the_schema_requires_is_not_needed() {
    let steps = json!([{ "name": "a", "agent": "x", "request": { "body": "{{ [input.sku, input.note] }}" } }]);
    let policies = json!({ "input_schema": { "type": "object", "required": ["sku"] } });
    let policies = Policies::parse(&policies.to_string()).unwrap();
    let steps = Payload::from_value(&steps);
    let definition = parse_steps(&steps, "", &policies, &Limits::default(), &Accepted).unwrap();
    let report = dry_run(&definition, &TaskFields::default(), &|_| None);
    let mut warned = report.warnings.iter();
    let needed = warned
        .find(|warning| warning.code == WarningCode::InputNeeded)
        .unwrap();
    assert!(needed.message.contains("input.note") && !needed.message.contains("input.sku"));
}

#[test]
fn a_stop_with_a_message_and_a_choice_of_agents_have_no_warning() {
    let steps = json!([
        { "name": "ship", "agent": { "one_of": ["eu", "us"], "by": "{{ input.region }}" } },
        { "name": "end", "stop": { "state": "error", "message": "nothing is left" } },
    ]);
    let input = Payload::from_value(&json!({ "region": "eu" }));
    let report = dry_run(&definition(&steps), &of_task(None, Some(&input)), &|_| None);
    let codes: Vec<_> = report.warnings.iter().map(|warning| warning.code).collect();
    assert_eq!(codes, [WarningCode::ReliesOnIdempotencyKey]);
}

#[test]
fn an_output_that_a_race_leaves_null_is_worth_a_warning() {
    let steps = |rest: &str, body: &str| {
        json!([
            { "name": "a", "agent": "x", "after": [] },
            { "name": "b", "agent": "x", "after": [] },
            { "name": "then", "agent": "x", "after": ["b"], "request": { "body": "{{ steps.b.output.id }}" } },
            { "name": "join", "agent": "x", "after": { "any": 1, "of": ["a", "then"], "rest": rest },
              "request": { "body": body } },
        ])
    };
    let found = |rest: &str, body: &str| {
        let report = of(&steps(rest, body));
        let warnings = report.warnings.into_iter();
        let skipped = warnings.filter(|warning| warning.code == WarningCode::ReadsSkipped);
        let words = |warning: Warning| {
            let why = warning
                .message
                .split(": the output")
                .next()
                .unwrap()
                .to_owned();
            (warning.pointer, why)
        };
        skipped.map(words).collect::<Vec<_>>()
    };
    let expected = |pointer: &str, why: &str| {
        let why = format!("it reads the output of {why}");
        (pointer.to_owned(), why)
    };
    // A step of the same lane loses with the one that it reads.
    let of_join = expected("/steps/3/request/body", "`a`, which may lose its race");
    let reads = "{{ steps.a.output.id }}";
    assert_eq!(found("cancel", reads), [of_join]);
    let winner = "{{ steps.join.winner }}";
    assert_eq!(found("cancel", winner), []);
    assert_eq!(found("let", reads), []);
}

#[test]
fn an_output_that_a_policy_or_a_while_leaves_null_is_worth_a_warning() {
    let found = |step: Value, body: &str| {
        let mut read = json!({ "name": "a", "agent": "x", "after": [] });
        let fields = step.as_object().unwrap().clone();
        read.as_object_mut().unwrap().extend(fields);
        let steps = json!([
            { "name": "x", "agent": "x", "after": [] },
            read,
            { "name": "b", "agent": "x", "after": ["a"], "request": { "body": body } },
        ]);
        let warnings = of(&steps).warnings.into_iter();
        let mut skipped = warnings.filter(|warning| warning.code == WarningCode::ReadsSkipped);
        skipped.next().map(|warning| warning.message)
    };
    let reads = "{{ steps.a.output.id }}";
    for (step, why) in [
        (
            json!({ "while": "steps.x.state != 'processed'" }),
            "`while` may",
        ),
        (json!({ "on_permanent": "skip" }), "policies may"),
        (json!({ "on_exhausted": "skip" }), "policies may"),
        (json!({ "on_permanent": { "404": "skip" } }), "policies may"),
        (
            json!({ "on_exhausted": { "503": "skip", "else": "error" } }),
            "policies may",
        ),
    ] {
        let message = found(step.clone(), reads).unwrap();
        assert!(message.contains(why), "{message}");
        assert_eq!(found(step, "{{ steps.a.output.id | default(0) }}"), None);
    }
    let fallback = json!([
        { "name": "a", "agent": "x", "on_permanent": "skip" },
        { "name": "b", "agent": "x", "when": "steps.a is failed" },
        { "name": "c", "agent": "x", "request": { "body": "{{ steps.b.output | default(steps.a.output, true) }}" } },
    ]);
    let codes = of(&fallback)
        .warnings
        .into_iter()
        .map(|warning| warning.code);
    assert!(
        !codes
            .collect::<Vec<_>>()
            .contains(&WarningCode::ReadsSkipped)
    );
    // A list without the items that failed is a list.
    let list = json!({ "for_each": [1, 2], "on_item_error": "skip" });
    for step in [
        json!({}),
        json!({ "on_permanent": { "404": "undo" } }),
        list,
    ] {
        assert_eq!(found(step, reads), None);
    }
}

#[test]
fn a_loser_that_nothing_undoes_is_worth_a_warning() {
    let steps = |rest: &str| {
        json!([
            { "name": "a", "agent": "x", "after": [], "undo": { "request": {} } },
            { "name": "b", "agent": "x", "after": [] },
            { "name": "read", "agent": "x", "after": [], "request": { "method": "GET" } },
            { "name": "timer", "after": [], "wait": { "for": "1h" } },
            { "name": "task", "after": [], "task": { "workflow": "w" } },
            { "name": "join", "agent": "x", "after": { "any": 1, "of": ["a", "b", "read", "timer", "task"], "rest": rest } },
        ])
    };
    let found = |rest: &str| {
        let warnings = of(&steps(rest)).warnings.into_iter();
        let mut found = warnings.filter(|warning| warning.pointer == "/steps/5/after/rest");
        found.next().map(|warning| warning.message)
    };
    assert_eq!(found("cancel"), None);
    let undone = found("undo").unwrap();
    assert!(
        undone.contains("because they have no `undo`: b;"),
        "{undone}"
    );
}

#[test]
fn a_policy_for_a_status_that_never_gets_to_it_is_warned_of() {
    let pointers = |step: Value| {
        let mut whole = json!({ "name": "a", "agent": "x" });
        let fields = step.as_object().unwrap().clone();
        whole.as_object_mut().unwrap().extend(fields);
        let definition = definition(&json!([whole]));
        let report = dry_run(&definition, &of_task(None, None), &|_| None);
        let warned = report.warnings.into_iter();
        let warned = warned.filter(|warning| warning.code == WarningCode::StatusNeverApplies);
        warned
            .map(|warning| (warning.pointer, warning.message))
            .collect::<Vec<_>>()
    };
    for useless in ["503", "429", "5xx"] {
        let found = pointers(json!({ "on_permanent": { (useless): "skip" } }));
        assert_eq!(found.len(), 1, "{useless}");
        assert_eq!(found[0].0, "/steps/0/on_permanent");
        assert!(found[0].1.starts_with(useless), "{}", found[0].1);
    }
    for useless in ["404", "3xx"] {
        let undo = json!({ "undo": {
            "request": { "path": "/a" }, "on_exhausted": { (useless): "skip" }
        } });
        assert_eq!(pointers(undo)[0].0, "/steps/0/undo/on_exhausted");
    }
    for useful in ["404", "4xx", "200", "2xx"] {
        assert_eq!(
            pointers(json!({ "on_permanent": { (useful): "skip" } })),
            []
        );
    }
    for useful in ["503", "4xx", "200"] {
        assert_eq!(
            pointers(json!({ "on_exhausted": { (useful): "skip" } })),
            []
        );
    }
    let on = |on: Value, policies: Value| {
        let mut step = json!({ "retry": { "on": on } });
        step.as_object_mut()
            .unwrap()
            .extend(policies.as_object().unwrap().clone());
        pointers(step).len()
    };
    assert_eq!(
        on(json!(["404"]), json!({ "on_permanent": { "503": "skip" } })),
        0
    );
    assert_eq!(
        on(json!(["404"]), json!({ "on_exhausted": { "404": "skip" } })),
        0
    );
    assert_eq!(
        on(json!([404]), json!({ "on_permanent": { "404": "skip" } })),
        1
    );
    assert_eq!(
        on(json!(["404"]), json!({ "on_exhausted": { "503": "skip" } })),
        1
    );
}
