//! The list of open questions.

use serde_json::json;

use super::harness::{Harness, New};
use crate::{
    domain::{
        task::Command,
        template::Payload,
        values::{StepIndex, StepRef, TaskId, WorkflowName, WorkflowRef},
    },
    store::{AskQuery, Submitted},
};

/// Returns a task with several questions that are open at once.
fn asking(people: &[&[&str]]) -> New {
    let steps = people.iter().enumerate().map(|(at, people)| {
        json!({ "name": format!("ask{at}"), "after": [],
                "signal": { "within": "1h", "ask": { "title": "Pay?", "of": people } } })
    });
    New {
        steps: steps.collect(),
        key: Some("order-1"),
        ..New::default()
    }
}

async fn listed(h: &Harness, query: AskQuery) -> Vec<(TaskId, u16)> {
    let found = h.store.reader.open_asks(&query).await.unwrap();
    let found = found.iter().map(|ask| (ask.step.task, ask.step.step.0));
    found.collect()
}

fn all() -> AskQuery {
    AskQuery {
        limit: 100,
        ..AskQuery::default()
    }
}

fn of(person: &str) -> AskQuery {
    AskQuery {
        person: Some(person.to_owned()),
        ..all()
    }
}

async fn submit(h: &Harness, new: New, workflow: Option<&str>) -> TaskId {
    let mut details = h.details(&new);
    details.workflow = workflow.map(|name| WorkflowRef {
        name: WorkflowName::new(name),
        version: 1,
    });
    match h.store.submit(details, None, None).await.unwrap() {
        Submitted::New(task) => task.id(),
        Submitted::Replayed(id) => panic!("{id} was accepted before"),
    }
}

pub async fn open_questions_are_listed_by_person_and_by_workflow_in_pages(h: Harness) {
    let (ann, both) = (&["ann@x"][..], &["bob@x", "ann@x"][..]);
    let first = submit(&h, asking(&[ann, both]), None).await;
    let second = submit(&h, asking(&[both]), Some("order")).await;
    let third = submit(&h, asking(&[ann]), Some("refund")).await;
    let fourth = submit(&h, asking(&[ann, both, ann]), Some("order")).await;
    let newest = [
        (fourth, 2),
        (fourth, 1),
        (fourth, 0),
        (third, 0),
        (second, 0),
        (first, 1),
        (first, 0),
    ];
    // Each question is listed once, for any number of people.
    assert_eq!(listed(&h, all()).await, newest);
    assert_eq!(listed(&h, of("ann@x")).await, newest);
    let of_bob = [(fourth, 1), (second, 0), (first, 1)];
    assert_eq!(listed(&h, of("bob@x")).await, of_bob);
    assert_eq!(listed(&h, of("ann")).await, []);
    let order = |query: AskQuery| AskQuery {
        workflow: Some("order".to_owned()),
        ..query
    };
    let of_order = [(fourth, 2), (fourth, 1), (fourth, 0), (second, 0)];
    assert_eq!(listed(&h, order(all())).await, of_order);
    assert_eq!(
        listed(&h, order(of("bob@x"))).await,
        [(fourth, 1), (second, 0)]
    );
    // Pages end between the questions of one task, too.
    for (query, expected) in [
        (all(), &newest[..]),
        (of("bob@x"), &of_bob),
        (order(all()), &of_order),
    ] {
        for limit in 1..4 {
            let mut pages = Vec::new();
            let mut before = None;
            loop {
                let page = AskQuery {
                    before,
                    limit,
                    ..query.clone()
                };
                let page = listed(&h, page).await;
                assert!(page.len() <= limit);
                let Some((task, step)) = page.last().copied() else {
                    break;
                };
                let step = StepIndex(step);
                before = Some(StepRef { task, step });
                pages.extend(page);
            }
            assert_eq!(pages, expected, "{query:?} {limit}");
        }
    }
    let one = AskQuery {
        limit: 1,
        ..order(all())
    };
    let one = h.store.reader.open_asks(&one).await.unwrap().remove(0);
    assert_eq!(one.name.as_str(), "ask2");
    assert_eq!(one.key.as_deref(), Some("order-1"));
    assert_eq!(one.workflow.as_deref(), Some("order"));
    assert!(one.until.is_some());
    assert_eq!(one.ask.unwrap().text.of, ["ann@x"]);
}

pub async fn a_question_is_listed_until_it_is_closed_however_that_happens(h: Harness) {
    let step = StepIndex(0);
    let nobody = || Payload::from_value(&json!({}));
    let commands: [fn(StepIndex, Payload) -> Command; 5] = [
        |_, _| Command::Cancel { reason: None },
        |_, _| Command::Undo { reason: None },
        |step, _| Command::Skip {
            step,
            output: None,
            reason: None,
        },
        |step, output| Command::Resolve {
            step,
            output,
            reason: None,
        },
        |step, payload| Command::Signal {
            step,
            payload,
            digest: crate::domain::task::ReplyDigest("one".to_owned()),
        },
    ];
    for command in commands {
        let task = submit(&h, asking(&[&["ann@x", "bob@x"]]), None).await;
        assert_eq!(listed(&h, all()).await, [(task, 0)]);
        let command = command(step, nobody());
        let closes = h.apply(task, command.clone()).await;
        // A signal cannot decide an ask.
        if closes.is_err() {
            assert_eq!(listed(&h, of("bob@x")).await, [(task, 0)], "{command:?}");
            h.apply(task, Command::Cancel { reason: None })
                .await
                .unwrap();
        }
        assert_eq!(listed(&h, all()).await, [], "{command:?}");
        assert_eq!(listed(&h, of("bob@x")).await, [], "{command:?}");
    }
    // A question that is asked again is listed once.
    let steps = json!([{ "name": "ask", "signal": { "within": "1h", "ask": { "title": "Pay?", "of": ["ann@x", "bob@x"] } } },
                       { "name": "then", "agent": "x" }]);
    let new = New {
        steps,
        ..New::default()
    };
    let task = submit(&h, new, None).await;
    let skip = Command::Skip {
        step,
        output: None,
        reason: None,
    };
    h.apply(task, skip).await.unwrap();
    assert_eq!(listed(&h, all()).await, []);
    let again = Command::RetryFrom { step, reason: None };
    h.apply(task, again).await.unwrap();
    assert_eq!(listed(&h, all()).await, [(task, 0)]);
    assert_eq!(listed(&h, of("bob@x")).await, [(task, 0)]);
}
