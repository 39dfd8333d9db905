//! The keys under which services are called.

use super::*;
use crate::{
    task::{
        call::{Call, Purpose},
        child::ChildWorkflow,
        decide::request::{Secrets, call},
        key_prefix::KeyPrefixes,
    },
    template::Budget,
};

/// A task with a prefix of its own.
fn keyed(steps: &Value, prefix: Option<&str>) -> Bench {
    let mut bench = Bench::new(steps.clone());
    let details = Details {
        key_prefix: prefix.map(Into::into),
        ..Arc::into_inner(details(steps, None)).unwrap()
    };
    bench.draft = Draft::submit(Arc::new(details), bench.now);
    bench
}

fn call_of(bench: &Bench, name: &str) -> Call {
    let (task, until) = (&bench.draft.task, bench.now + Span::from_secs(30));
    call(
        task,
        bench.step(name),
        until,
        bench.now,
        &Budget::evaluation(),
        Secrets::Sent { reply_url: None },
    )
    .unwrap()
}

fn steps() -> Value {
    json!([
        { "name": "charge", "agent": "x", "probe": { "request": { "path": "/p" } }, "undo": { "request": {} } },
        { "name": "import", "agent": "x", "for_each": [1, 2], "undo": { "request": {} } },
        { "name": "poll", "agent": "x", "repeat": { "until": "index == 1", "at_most": 3 } },
        { "name": "ship", "task": { "workflow": "ship" } },
    ])
}

#[test]
fn every_key_of_a_task_begins_with_its_prefix_or_with_its_id() {
    let id = TaskId(Uuid::from_u128(7)).to_string();
    for (prefix, expected) in [(Some("0123abcd"), "0123abcd"), (None, &*id)] {
        let mut bench = keyed(&steps(), prefix);
        let key = |name: &str| format!("{expected}:{name}");
        // An attempt of unknown effect, so that the next one begins with a probe.
        bench.claim("charge").unwrap();
        assert_eq!(call_of(&bench, "charge").idempotency_key, key("charge"));
        bench.later(Span::from_secs(120));
        bench.expire("charge").unwrap();
        bench.later(Span::from_secs(120));
        let probe = call_of(&bench, "charge");
        assert_eq!(probe.purpose, Purpose::Probe(key("charge")));
        let attempt = bench.claim("charge").unwrap();
        bench.reply("charge", attempt, success(json!({}))).unwrap();
        for name in ["import[0]", "import[1]", "poll[0]", "poll[1]"] {
            assert_eq!(call_of(&bench, name).idempotency_key, key(name));
            bench.process(name);
        }
        assert_eq!(bench.status("ship"), StepStatus::Processing);
        bench.apply(Command::Undo { reason: None }).unwrap();
        for name in ["charge", "import[0]", "import[1]"] {
            let undo = call_of(&bench, &format!("{name}.undo"));
            assert_eq!(undo.idempotency_key, key(&format!("{name}.undo")));
            assert_eq!(undo.purpose, Purpose::Undo(key(name)));
        }
    }
}

#[test]
fn a_task_that_moves_to_another_version_keeps_its_keys() {
    let before = json!([{ "name": "a", "agent": "x" }]);
    let mut bench = Bench::of_workflow(&before, None);
    let mut details = Arc::into_inner(details(&before, None)).unwrap();
    details.key_prefix = Some("0123abcd".into());
    details.workflow = bench.draft.task.details.workflow.clone();
    bench.draft = Draft::submit(Arc::new(details), bench.now);
    let after = json!([{ "name": "a", "agent": "x" }, { "name": "b", "agent": "x" }]);
    let to = Arc::new(bench.version(&after, 2));
    bench.apply(Command::Migrate { to, reason: None }).unwrap();
    assert_eq!(
        bench.draft.task.idempotency_key(bench.step("b")),
        "0123abcd:b"
    );
}

#[test]
fn the_keys_of_a_child_follow_from_the_step_that_it_is_made_for_and_its_attempt() {
    let child = |prefix: Option<&str>, prefixes: Option<&KeyPrefixes>, id: u128, attempt: u32| {
        let mut bench = keyed(
            &json!([{ "name": "ship", "task": { "workflow": "ship" } }]),
            prefix,
        );
        let workflow = ChildWorkflow {
            workflow: Some(WorkflowRef {
                name: WorkflowName::new("ship"),
                version: 1,
            }),
            definition: definition(&json!([{ "name": "pack", "agent": "x" }])),
            complete_within: None,
        };
        let ship = bench.step("ship");
        bench.draft.task.step_mut(ship).attempt = Attempt(attempt);
        let id = TaskId(Uuid::from_u128(id));
        let details = bench
            .draft
            .task
            .child_details(ship, &workflow, id, prefixes, bench.now);
        details.unwrap().key_prefix
    };
    let prefixes = KeyPrefixes::new(b"0123456789abcdef").unwrap();
    let made = child(Some("0123abcd"), Some(&prefixes), 8, 1);
    assert!(made.is_some());
    // The parent was lost and submitted again, and the child has another id.
    assert_eq!(made, child(Some("0123abcd"), Some(&prefixes), 9, 1));
    // A second task of the step is to do its work.
    assert_ne!(made, child(Some("0123abcd"), Some(&prefixes), 8, 2));
    assert_ne!(made, child(Some("4567abcd"), Some(&prefixes), 8, 1));
    // Only the child was lost: the parent keeps its id.
    let of_plain = child(None, Some(&prefixes), 8, 1);
    assert!(of_plain.is_some() && of_plain != made);
    assert_eq!(of_plain, child(None, Some(&prefixes), 9, 1));
    assert_eq!(child(Some("0123abcd"), None, 8, 1), None);
}
