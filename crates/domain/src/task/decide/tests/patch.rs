//! The patch of a request body that a bulk retry has for each task.

use super::*;
use crate::{task::bulk::BodyPatch, template::Payload};

#[test]
fn a_preview_of_a_patch_hides_the_secret_headers_that_an_undo_reads() {
    let mut bench = Bench::new(json!([{ "name": "a", "agent": "x",
        "request": { "headers": { "x-api-key": "s3cret" } },
        "undo": { "request": { "path": "/undo",
            "body": { "key": "{{ request.headers['x-api-key'] }}" } } } }]));
    bench.process("a");
    bench.apply(Command::Undo { reason: None }).unwrap();
    let attempt = bench.claim("a.undo").unwrap();
    bench.reply("a.undo", attempt, refusal(422)).unwrap();
    assert_eq!(bench.status("a.undo"), StepStatus::Error);

    let patch = Payload::parse(r#"{"currency":"{{ input.total }}"}"#.to_owned()).unwrap();
    let patch = BodyPatch::parse(&patch, &Budget::evaluation()).unwrap();
    let task = &bench.draft.task;
    let sent = patch.patch(task, Some("a.undo"), bench.now).unwrap();
    let shown = patch.preview(task, None, bench.now).unwrap();
    assert!(sent.after.as_json().contains(r#""key":"s3cret""#));
    assert!(sent.after.as_json().contains(r#""currency""#));
    assert!(!sent.before.as_json().contains(r#""currency""#));
    for body in [&shown.before, &shown.after] {
        assert!(
            body.as_json().contains(r#""key":"***""#),
            "{}",
            body.as_json()
        );
    }
}
