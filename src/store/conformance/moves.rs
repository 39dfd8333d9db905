//! Tasks that move to another version of their workflow: their changes are saved and read again, and older caches cope
//! with them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    harness::{Harness, New, now, success},
    shared::pair,
};
use crate::{
    domain::{
        definition::StepLayout,
        task::{Actor, Command, StepStatus, VersionMove},
        values::{AgentName, Precondition, StepIndex, TaskId, WorkflowName, WorkflowRef},
    },
    store::StoredWorkflow,
};

async fn put(h: &Harness, steps: &Value) -> WorkflowRef {
    let name = WorkflowName::new("order");
    let put = h.store.put_workflow(
        name.clone(),
        json!({ "steps": steps }).to_string(),
        Precondition::default(),
        None,
        Actor::submitter(),
    );
    let version = put.await.unwrap().version;
    WorkflowRef { name, version }
}

async fn submit(h: &Harness, steps: &Value) -> TaskId {
    let mut details = h.details(&New {
        steps: steps.clone(),
        ..New::default()
    });
    details.workflow = Some(put(h, steps).await);
    now(h.store.submit(details, None, None).await.unwrap()).id()
}

/// Moves the task to a version with these steps.
async fn migrate(h: &Harness, id: TaskId, steps: &Value) -> Arc<crate::domain::task::Task> {
    let workflow = put(h, steps).await;
    let record = h
        .store
        .reader
        .workflow(&workflow.name, Some(workflow.version));
    let record = record.await.unwrap().unwrap();
    let plain = StoredWorkflow::of(&record).unwrap().definition().unwrap();
    let layout = StepLayout::for_move(&h.read(id).await.details.definition, &plain).unwrap();
    let definition = Arc::new(plain.with_layout(&layout).unwrap());
    let to = Arc::new(VersionMove {
        workflow,
        definition,
    });
    let command = Command::Migrate { to, reason: None };
    h.apply(id, command).await.unwrap()
}

fn before() -> Value {
    json!([
        { "name": "first", "agent": "x" },
        { "name": "second", "agent": "y" },
        { "name": "third", "agent": "y" },
    ])
}

/// In this version `new` is before the others, and the second step calls another agent.
fn after() -> Value {
    json!([
        { "name": "new", "agent": "x" },
        { "name": "first", "agent": "x", "after": [] },
        { "name": "second", "agent": "z" },
    ])
}

pub async fn a_moved_task_is_read_back_with_its_steps_where_they_were(h: Harness) {
    h.slots("x", 1);
    let id = submit(&h, &before()).await;
    let moved = migrate(&h, id, &after()).await;
    let read = h.read(id).await;
    assert_eq!(read, *moved);
    let details = &read.details;
    assert_eq!(details.workflow.as_ref().unwrap().version, 2);
    let definition = &details.definition;
    let names: Vec<_> = definition.names().map(|name| name.as_str()).collect();
    assert_eq!(names, ["first", "second", "third", "new"]);
    let listed: Vec<_> = definition.listed().map(|index| index.0).collect();
    assert_eq!(listed, [3, 0, 1]);
    assert_eq!(read.step(StepIndex(0)).status(), StepStatus::Processing);
    assert!(read.is_removed(StepIndex(2)));
    // The steps of the new version are claimed from the queues of their agents.
    h.reply(id, 0, 1, success(json!(1))).await.unwrap();
    h.slots("z", 1);
    assert_eq!(
        h.store
            .claim_queued(vec![AgentName::new("z")])
            .await
            .unwrap(),
        1
    );
    assert_eq!(h.calls().last(), Some(&(id, 1, 1)));
    let back = migrate(
        &h,
        id,
        &json!([
            { "name": "third", "agent": "y", "after": [] },
            { "name": "first", "agent": "x", "after": [] },
            { "name": "second", "agent": "z" },
        ]),
    )
    .await;
    assert_eq!(h.read(id).await, *back);
    assert!(!back.is_removed(StepIndex(2)));
    assert!(back.is_removed(StepIndex(3)));
}

#[tokio::test]
async fn an_older_cache_decides_again_on_the_moved_task() {
    let (a, b) = pair().await;
    a.slots("x", 1);
    let id = submit(&a, &before()).await;
    assert_eq!(a.calls(), [(id, 0, 1)]);
    migrate(&b, id, &after()).await;
    // In the memory of this instance, the second step calls the agent y.
    let task = a.reply(id, 0, 1, success(json!(1))).await.unwrap();
    assert_eq!(task.details.workflow.as_ref().unwrap().version, 2);
    assert_eq!(task.step(StepIndex(1)).status(), StepStatus::Pending);
    assert_eq!(
        task.definition(StepIndex(1)).agent(),
        Some(&AgentName::new("z"))
    );
    a.slots("y", 8);
    a.slots("z", 8);
    for (agent, claimed) in [("y", 0), ("z", 1)] {
        let agents = vec![AgentName::new(agent)];
        assert_eq!(a.store.claim_queued(agents).await.unwrap(), claimed);
    }
    assert_eq!(a.read(id).await, b.read(id).await);
}

#[tokio::test]
async fn a_step_that_was_queued_for_another_agent_is_not_claimed_for_it() {
    let (a, b) = pair().await;
    let id = submit(&a, &json!([{ "name": "only", "agent": "x" }])).await;
    // The instance knows the step as the head of that queue.
    assert_eq!(
        a.store
            .claim_queued(vec![AgentName::new("x")])
            .await
            .unwrap(),
        0
    );
    migrate(
        &b,
        id,
        &json!([{ "name": "first", "agent": "z", "after": [] }, { "name": "only", "agent": "z" }]),
    )
    .await;
    a.slots("x", 8);
    assert_eq!(
        a.store
            .claim_queued(vec![AgentName::new("x")])
            .await
            .unwrap(),
        0
    );
    assert_eq!(a.calls(), []);
    a.slots("z", 8);
    assert_eq!(
        a.store
            .claim_queued(vec![AgentName::new("z")])
            .await
            .unwrap(),
        1
    );
    assert_eq!(a.calls(), [(id, 1, 1)]);
}
