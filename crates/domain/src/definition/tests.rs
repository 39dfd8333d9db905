use serde_json::{Value, json};

use super::*;
use crate::values::fields::FieldFault;

mod inline;
mod properties;
mod steps;

/// An implementation that knows two agents, and allows URLs of one host.
struct Some2;

impl KnownAgents for Some2 {
    fn knows(&self, agent: &AgentName) -> bool {
        ["inventory", "payments"].contains(&agent.as_str())
    }

    fn allows_url(&self, url: &str) -> Result<(), String> {
        if url.contains("allowed") {
            Ok(())
        } else {
            Err("this address may not be called".to_owned())
        }
    }
}

fn parse(steps: &Value) -> Result<Definition, Vec<FieldFault>> {
    parse_steps(
        &Payload::from_value(steps),
        "/steps",
        &Policies::default(),
        &Limits::default(),
        &Some2,
    )
}

/// Returns the faults as `pointer: message`.
fn faults(steps: &Value) -> Vec<String> {
    match parse(steps) {
        Ok(_) => Vec::new(),
        Err(faults) => faults.iter().map(ToString::to_string).collect(),
    }
}

/// Returns a step with the given fields besides the usual ones.
fn step(name: &str, own: Value) -> Value {
    let mut step = json!({ "name": name, "agent": "inventory" });
    for (key, value) in own.as_object().unwrap() {
        step[key] = value.clone();
    }
    step
}

fn only(own: Value) -> Value {
    json!([step("one", own)])
}

#[track_caller]
fn refused(steps: Value, pointer: &str, message: &str) {
    let faults = parse(&steps).expect_err("refused");
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert_eq!(faults[0].pointer, pointer, "{faults:?}");
    assert!(faults[0].message.contains(message), "{faults:?}");
}

fn indices(indices: &[StepIndex]) -> Vec<u16> {
    indices.iter().map(|index| index.0).collect()
}

#[test]
fn a_step_that_says_little_gets_the_defaults() {
    let definition = parse(&json!([{ "name": "one", "agent": "inventory" }])).unwrap();
    let step = &definition.steps[0];
    assert_eq!(
        step.target(),
        Some(&Target::Agent(AgentName::new("inventory")))
    );
    assert_eq!(step.request().unwrap().method, Method::Post);
    assert!(matches!(step.request().unwrap().body, Body::Input));
    assert_eq!(step.complete_within, Span::from_secs(30));
    assert_eq!(step.max_failures, 3);
    assert_eq!(step.on_exhausted, Policy::Error.into());
    assert_eq!(step.on_permanent, Policy::Error);
    assert_eq!(step.on_undo, OnUndo::Wait);
    assert!(!step.pivot && step.undo.is_none() && step.probe.is_none());
    assert!(step.after.is_empty() && step.when.is_none() && step.reads.is_empty());
}

#[test]
fn a_step_follows_the_one_above_unless_it_says_otherwise() {
    let definition = parse(&json!([
        step("a", json!({})),
        step("b", json!({})),
        step("c", json!({ "after": ["a"] })),
        step("d", json!({ "after": [] })),
        step("e", json!({ "after": ["c", "b"] })),
    ]))
    .unwrap();
    let after: Vec<_> = definition
        .steps
        .iter()
        .map(|step| indices(&step.after))
        .collect();
    assert_eq!(after, [vec![], vec![0], vec![0], vec![], vec![2, 1]]);
    let followers: Vec<_> = definition
        .steps
        .iter()
        .map(|step| indices(&step.followers))
        .collect();
    assert_eq!(followers, [vec![1, 2], vec![4], vec![4], vec![], vec![]]);
}

#[test]
fn everything_that_a_step_can_say_is_kept() {
    let definition = parse(&json!([
        step("reserve-it", json!({})),
        {
            "name": "charge", "url": "https://API.allowed.example/base?x=1", "after": ["reserve-it"], "when": "input.total > 0",
            "request": {
                "method": "PUT",
                "headers": { "X-Sku": "{{ input.sku }}", "content-type": "application/json" },
                "body": { "hold": "{{ steps['reserve-it'].output.id }}" }
            },
            "complete_within": "10s", "max_failures": 0,
            "on_exhausted": { "extend": "10m", "times": 5, "then": "error" }, "on_permanent": "skip"
        }
    ]))
    .unwrap();
    let step = &definition.steps[1];
    assert_eq!(
        step.target().cloned().unwrap(),
        Target::Url {
            url: "https://API.allowed.example/base?x=1".into(),
            origin: AgentName::new("https://api.allowed.example:443"),
        }
    );
    assert_eq!(step.request().unwrap().method, Method::Put);
    let headers: Vec<_> = step
        .request()
        .unwrap()
        .headers
        .iter()
        .map(|(name, _)| &**name)
        .collect();
    assert_eq!(headers, ["x-sku", "content-type"]);
    assert_eq!(indices(&step.reads), [0]);
    assert_eq!(step.complete_within, Span::from_secs(10));
    assert_eq!(step.max_failures, 0);
    assert_eq!(
        step.on_exhausted,
        OnExhausted {
            extend: Some(Extend {
                wait: Span::from_secs(600),
                times: 5
            }),
            then: Policy::Error
        }
    );
    assert_eq!(step.on_permanent, Policy::Skip);
}

#[test]
fn all_faults_are_told_at_once_with_their_places() {
    let found = faults(&json!([
        { "name": "1st", "agent": "inventory", "max_failure": 2 },
        step("two", json!({ "agent": "warehouse", "complete_within": "soon", "request": { "method": "post", "path": "x" } })),
        step("two", json!({ "after": ["twos", "two"], "when": "input.", "on_permanent": "undone" })),
        7,
        step("five", json!({ "request": { "body": { "amount": "{{ inputs.total }}", "hold": ["{{ steps.six.output }}"] } } })),
        step("six", json!({ "request": { "headers": { "Host": "x", "a b": "c" } } })),
    ]));
    let indices: Vec<_> = found
        .iter()
        .map(|fault| fault.split(": ").next().unwrap())
        .collect();
    assert_eq!(
        indices,
        [
            "/steps/0/name",
            "/steps/0/max_failure",
            "/steps/1/agent",
            "/steps/1/request/method",
            "/steps/1/request/path",
            "/steps/1/complete_within",
            "/steps/2/when",
            "/steps/2/on_permanent",
            "/steps/3",
            "/steps/5/request/headers/Host",
            "/steps/5/request/headers/a b",
            "/steps/2/name",
            "/steps/2/after/0",
            "/steps/4/request/body/amount",
            "/steps/4/request/body/hold/0",
        ],
        "{found:#?}"
    );
    assert!(
        found[1].contains("did you mean `max_failures`?"),
        "{found:#?}"
    );
    assert!(found[2].contains("PUT /v1/agents/warehouse"), "{found:#?}");
    assert!(found[12].contains("did you mean `two`?"), "{found:#?}");
}

#[test]
fn what_is_not_a_list_of_steps_is_refused() {
    for (steps, message) in [
        (json!({}), "must be an array"),
        (json!(null), "must be an array"),
        (json!([]), "at least one step"),
    ] {
        refused(steps, "/steps", message);
    }
    let many: Vec<_> = (0..501)
        .map(|n| step(&format!("s{n}"), json!({})))
        .collect();
    refused(json!(many), "/steps", "501 steps are too many: at most 500");
    let source = Payload::from_value(&json!(many));
    assert!(
        parse_steps(
            &source,
            "",
            &Policies::default(),
            &Limits::stored(),
            &Accepted
        )
        .is_ok()
    );
}

#[test]
fn names_are_checked() {
    let missing = json!([{ "agent": "inventory" }]);
    refused(missing, "/steps/0/name", "is missing");
    for name in ["", "-a", "9a", "a b", "a.b", "ä", &"a".repeat(65)] {
        refused(
            json!([step(name, json!({}))]),
            "/steps/0/name",
            "not a valid step name",
        );
    }
    refused(
        json!([step("a", json!({})), step("a", json!({}))]),
        "/steps/1/name",
        "unique",
    );
    assert_eq!(faults(&json!([step(&"a".repeat(64), json!({}))])), [""; 0]);
}

#[test]
fn what_a_step_outside_a_cycle_reads_is_told_beside_the_cycle() {
    let read = json!({ "after": [], "when": "steps.a.output.id" });
    let found = faults(&json!([
        step("a", json!({ "after": ["b"], "when": "steps.b.output.id" })),
        step("b", json!({ "after": ["a"] })),
        step("c", read),
    ]));
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("/steps/0/after"), "{found:?}");
    assert!(found[1].starts_with("/steps/2/when"), "{found:?}");
}

#[test]
fn a_cycle_is_written_out() {
    refused(
        json!([
            step("a", json!({ "after": ["c"] })),
            step("b", json!({ "after": ["a"] })),
            step("c", json!({ "after": ["b"] })),
            step("d", json!({ "after": ["c"] })),
        ]),
        "/steps/0/after",
        "b -> c -> a -> b",
    );
    refused(
        only(json!({ "after": ["one"] })),
        "/steps/0/after/0",
        "itself",
    );
    refused(
        json!([
            step("a", json!({})),
            step("b", json!({ "after": ["a", "a"] }))
        ]),
        "/steps/1/after/1",
        "twice",
    );
    refused(
        only(json!({ "after": "one" })),
        "/steps/0/after",
        "must be an array",
    );
    refused(
        only(json!({ "after": [1] })),
        "/steps/0/after/0",
        "must be the name",
    );
}

#[test]
fn only_what_has_ended_before_is_read() {
    let reading =
        |name: &str| json!({ "request": { "path": format!("/{{{{ steps.{name}.output }}}}") } });
    let mut later = reading("a");
    later["after"] = json!(["b"]);
    let chain = json!([step("a", json!({})), step("b", json!({})), step("c", later)]);
    assert_eq!(indices(&parse(&chain).unwrap().steps[2].reads), [0]);

    let mut beside = reading("a");
    beside["after"] = json!([]);
    refused(
        json!([step("a", json!({})), step("b", beside)]),
        "/steps/1/request/path",
        "does not come before `b`",
    );
    refused(
        only(reading("one")),
        "/steps/0/request/path",
        "does not come before",
    );
    refused(
        only(reading("zero")),
        "/steps/0/request/path",
        "no step `zero`",
    );
    refused(
        only(json!({ "when": "steps.zero.output" })),
        "/steps/0/when",
        "no step `zero`",
    );
    refused(
        only(json!({ "when": "total > 1" })),
        "/steps/0/when",
        "`total` is not defined here",
    );
    refused(
        only(json!({ "when": "output.id" })),
        "/steps/0/when",
        "`output` is not defined here",
    );
    refused(
        only(json!({ "request": { "headers": { "X-A": "{{ outputs }}" } } })),
        "/steps/0/request/headers/X-A",
        "`outputs` is not defined here",
    );
}

#[test]
fn a_definition_accepted_once_needs_no_agents_to_be_read_again() {
    let source = Payload::from_value(
        &json!([{ "name": "a", "agent": "gone" }, { "name": "b", "url": "http://x" }]),
    );
    let definition = parse_steps(
        &source,
        "",
        &Policies::default(),
        &Limits::stored(),
        &Accepted,
    )
    .unwrap();
    assert_eq!(definition.source, source);
}

#[test]
fn a_long_chain_does_not_exhaust_the_stack() {
    let steps: Vec<_> = (0..60_000u32)
        .map(|n| json!({ "name": format!("s{n}"), "agent": "a", "after": [format!("s{}", (n + 1) % 60_000)] }))
        .collect();
    let source = Payload::from_value(&json!(steps));
    let faults = parse_steps(
        &source,
        "",
        &Policies::default(),
        &Limits::stored(),
        &Accepted,
    )
    .unwrap_err();
    assert_eq!(faults.len(), 1);
}

/// An implementation that shares its database with an older instance.
struct WithOlderInstance;

impl KnownAgents for WithOlderInstance {
    fn knows(&self, _: &AgentName) -> bool {
        true
    }

    fn allows_url(&self, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn reads_attempt_rules(&self) -> Result<(), String> {
        Err("an older instance cannot read it".to_owned())
    }
}

#[test]
fn while_an_older_instance_is_there_no_step_has_rules_that_it_cannot_read() {
    let parse = |steps: &Value| {
        parse_steps(
            &Payload::from_value(steps),
            "/steps",
            &Policies::default(),
            &Limits::default(),
            &WithOlderInstance,
        )
    };
    let from_input = json!({ "value": "{{ input.n }}", "max": 5 });
    let within = json!({ "value": "{{ input.n }}s", "max": "5s" });
    for fields in [
        json!({ "max_attempts": 3 }),
        json!({ "keep_headers": [] }),
        json!({ "on_permanent": { "404": "skip" } }),
        json!({ "undo": { "request": {}, "max_attempts": 3 } }),
        json!({ "probe": { "request": {}, "max_attempts": 3 } }),
        json!({ "complete_within": within }),
        json!({ "for_each": [1], "max_parallel": from_input }),
        json!({ "repeat": { "until": "false", "at_most": from_input } }),
    ] {
        let mut step = json!({ "name": "a", "agent": "x" });
        let fields = fields.as_object().unwrap().clone();
        step.as_object_mut().unwrap().extend(fields);
        let faults = parse(&json!([step])).unwrap_err();
        assert_eq!(
            faults[0].to_string(),
            "/steps/0: an older instance cannot read it",
            "{step}"
        );
    }
    let signal = json!([{ "name": "a", "signal": { "within": within } }]);
    assert!(parse(&signal).is_err());
    let plain = json!([{ "name": "a", "agent": "x", "max_failures": 1, "on_permanent": "skip" }]);
    assert!(parse(&plain).is_ok());
}
