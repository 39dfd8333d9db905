//! Tasks whose steps stand in the step of their parent.

use super::*;
use crate::{definition::StepKind, values::hidden::without_secrets};

fn with_task(task: Value) -> Value {
    json!([{ "name": "one", "task": task }])
}

#[test]
fn the_steps_of_a_child_may_stand_in_place_of_a_workflow() {
    let task = json!({
        "steps": [{ "name": "pack", "agent": "inventory" }, { "name": "send", "agent": "inventory",
                    "request": { "body": { "of": "{{ steps.pack.output.id }}", "for": "{{ input.id }}" } } }],
        "output": { "sent": "{{ steps.send.output.id }}" },
        "finally": [{ "name": "tell", "agent": "inventory" }],
        "input": "{{ item }}",
    });
    let definition = parse(&json!([{ "name": "ship", "for_each": [1, 2], "task": task }])).unwrap();
    let rule = definition.steps[0].rule_to_run();
    assert_eq!(rule.work.kind(), StepKind::Task);
    let inside = rule.child_rule().unwrap().source.definition().unwrap();
    let names: Vec<_> = inside.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["pack", "send", "tell"]);
    assert!(inside.output.is_some());
    // It is stored as it was written.
    let policies = inside.policies.as_json().unwrap();
    assert!(
        policies.contains("finally") && policies.contains("output"),
        "{policies}"
    );
}

#[test]
fn faults_in_it_are_told_where_they_are() {
    let step = |more: Value| json!([step("pack", more)]);
    for (task, pointer, message) in [
        (json!({}), "/workflow", "name a workflow, or give `steps`"),
        (
            json!({ "workflow": "ship", "steps": step(json!({})) }),
            "/steps",
            "not both",
        ),
        (json!({ "steps": [] }), "/steps", "is empty"),
        (json!({ "steps": 7 }), "/steps", "must be an array of steps"),
        (
            json!({ "steps": step(json!({})), "version": 2 }),
            "/version",
            "belongs to a workflow",
        ),
        (
            json!({ "workflow": "ship", "output": 1 }),
            "/output",
            "belongs to a task with `steps`",
        ),
        (
            json!({ "steps": step(json!({ "agent": "nobody" })) }),
            "/steps/0/agent",
            "nobody",
        ),
        (
            json!({ "steps": step(json!({ "request": { "path": "/{{ steps.other.output }}" } })) }),
            "/steps/0/request/path",
            "no step `other`",
        ),
        (
            json!({ "steps": step(json!({})), "output": "{{ steps.other.output }}" }),
            "/output",
            "no step `other`",
        ),
        (
            json!({ "steps": step(json!({})), "finally": [{ "name": "pack", "agent": "inventory" }] }),
            "/finally/0/name",
            "already has the name",
        ),
        (
            json!({ "steps": step(json!({})), "on_undo": "undo" }),
            "/on_undo",
            "belongs to a task with `\"await\": false`",
        ),
    ] {
        refused(with_task(task), &format!("/steps/0/task{pointer}"), message);
    }
}

#[test]
fn tasks_lie_in_tasks_only_so_deep_and_all_their_steps_count() {
    let nested = |depth: usize| {
        let mut steps = json!([{ "name": "a", "agent": "inventory" }]);
        for _ in 0..depth {
            steps = with_task(json!({ "steps": steps }));
        }
        steps
    };
    assert!(parse(&nested(8)).is_ok());
    let found = faults(&nested(9));
    assert!(
        found.len() == 1 && found[0].contains("tasks lie at most 8 deep"),
        "{found:?}"
    );
    let many: Vec<_> = (0..200)
        .map(|at| json!({ "name": format!("s{at}"), "agent": "inventory" }))
        .collect();
    let outer = |count: usize| {
        let steps = (0..count).map(|at| {
            // In a block too.
            let block = json!([{ "name": "in", "task": { "steps": many } }]);
            json!({ "name": format!("b{at}"), "steps": block })
        });
        Value::from(steps.collect::<Vec<_>>())
    };
    assert!(parse(&outer(2)).is_ok());
    let found = faults(&outer(5));
    assert!(
        found[0].contains("with those in blocks and tasks, are too many"),
        "{found:?}"
    );
}

#[test]
fn an_agent_that_is_gone_and_a_time_too_far_are_found_in_it_too() {
    let wait = json!({ "name": "w", "wait": { "until": "2400-01-01T00:00:00Z" } });
    let steps = json!([{ "name": "block", "steps": [
        { "name": "in", "task": { "steps": [{ "name": "a", "agent": "inventory" }, wait] } }
    ] }]);
    let definition = parse(&steps).unwrap();
    assert!(definition.is_still_allowed(&Accepted));
    struct Nobody;
    impl KnownAgents for Nobody {
        fn knows(&self, _: &AgentName) -> bool {
            false
        }
        fn allows_url(&self, _: &str) -> Result<(), String> {
            Ok(())
        }
    }
    assert!(!definition.is_still_allowed(&Nobody));
    assert!(definition.names_times());
    let found = definition.time_faults(Timestamp::from_millis(0));
    assert_eq!(found[0].pointer, "/steps/0/steps/0/task/steps/1/wait/until");
}

#[test]
fn its_secret_headers_are_hidden() {
    let inner = json!({ "name": "a", "agent": "inventory", "request": { "headers": { "authorization": "Bearer x" } } });
    let steps = with_task(json!({ "steps": [inner], "finally": [inner] }));
    let steps = serde_json::value::to_raw_value(&steps).unwrap();
    let shown = without_secrets(&steps).unwrap();
    assert!(!shown.get().contains("Bearer x"), "{shown}");
}

#[test]
fn it_is_no_longer_than_each_child_may_keep() {
    let long = json!([{ "name": "a", "set": { "text": "x".repeat(64 << 10) } }]);
    refused(
        with_task(json!({ "steps": long })),
        "/steps/0/task/steps",
        "at most 65536 are allowed; register a workflow",
    );
    let long =
        json!({ "steps": [{ "name": "a", "agent": "inventory" }], "output": "x".repeat(64 << 10) });
    refused(with_task(long), "/steps/0/task/steps", "at most 65536");
}

#[test]
fn it_hides_the_payloads_that_its_workflow_hides_also_when_it_is_read_again() {
    let inner =
        json!([{ "name": "b", "task": { "steps": [{ "name": "a", "agent": "inventory" }] } }]);
    let steps =
        Payload::from_value(&json!([{ "name": "c", "task": { "steps": inner, "output": 1 } }]));
    for hides in [true, false] {
        let policies = Policies::parse(&json!({ "hide_bodies": hides }).to_string()).unwrap();
        let definition =
            parse_steps(&steps, "/steps", &policies, &Limits::default(), &Some2).unwrap();
        let inside = |definition: &Definition| {
            let rule = definition.steps[0].child_rule().unwrap();
            rule.source.definition().unwrap().clone()
        };
        let (child, grandchild) = (inside(&definition), inside(&inside(&definition)));
        for definition in [child, grandchild] {
            assert_eq!(definition.policies.hide_bodies, hides);
            let written = definition.policies.as_json();
            let again = written.map(|written| Policies::parse(written).unwrap());
            assert_eq!(
                again.is_some_and(|again| again.hide_bodies),
                hides,
                "{written:?}"
            );
        }
    }
}
