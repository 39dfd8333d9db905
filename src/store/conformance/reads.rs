//! Lists, histories, agent queues, registrations.

use serde_json::json;

use super::harness::{Harness, New, refusal, success};
use crate::{
    domain::{
        agent::AgentSpec,
        task::{Actor, Command, TaskStatus},
        values::{AgentName, ETag, ETags, Precondition, WorkflowName},
    },
    store::{RegisterError, TaskFilter, TaskQuery},
};

async fn found(h: &Harness, filter: TaskFilter) -> Vec<String> {
    let query = TaskQuery {
        filter,
        before: None,
        limit: 100,
    };
    let page = h.store.reader.tasks(&query).await.unwrap();
    assert_eq!(page.next, None);
    let tasks = page.tasks;
    tasks.into_iter().map(|task| task.key.unwrap()).collect()
}

pub async fn lists_have_stable_cursors_and_every_filter(h: Harness) {
    h.slots("pay", 10);
    let mut tasks = Vec::new();
    for (key, agent, labels) in [
        ("k1", "pay", &[("customer", "acme")][..]),
        ("k2", "pay", &[]),
        ("k3", "ship", &[("customer", "acme"), ("region", "eu")][..]),
        ("k4", "ship", &[("customer", "other")][..]),
    ] {
        let steps = json!([{ "name": "a", "agent": agent }]);
        tasks.push(
            h.submit(New {
                steps,
                key: Some(key),
                labels,
                ..New::default()
            })
            .await,
        );
    }
    h.reply(tasks[0].id(), 0, 1, refusal()).await.unwrap();
    h.reply(tasks[1].id(), 0, 1, success(json!(1)))
        .await
        .unwrap();

    let all = TaskFilter::default;
    assert_eq!(found(&h, all()).await, ["k4", "k3", "k2", "k1"]);
    let state = |state| TaskFilter {
        states: vec![state],
        ..all()
    };
    assert_eq!(found(&h, state(TaskStatus::Error)).await, ["k1"]);
    assert_eq!(found(&h, state(TaskStatus::Processed)).await, ["k2"]);
    assert_eq!(found(&h, state(TaskStatus::Pending)).await, ["k4", "k3"]);
    let agent = TaskFilter {
        agent: Some("ship".into()),
        ..all()
    };
    assert_eq!(found(&h, agent).await, ["k4", "k3"]);
    let key = TaskFilter {
        key: Some("k2".into()),
        ..all()
    };
    assert_eq!(found(&h, key).await, ["k2"]);
    let acme = ("customer".to_owned(), "acme".to_owned());
    let eu = ("region".to_owned(), "eu".to_owned());
    let one = TaskFilter {
        labels: vec![acme.clone()],
        ..all()
    };
    assert_eq!(found(&h, one).await, ["k3", "k1"]);
    let both = TaskFilter {
        labels: vec![acme, eu],
        ..all()
    };
    assert_eq!(found(&h, both).await, ["k3"]);
    let workflow = TaskFilter {
        workflow: Some("order".into()),
        ..all()
    };
    assert_eq!(found(&h, workflow).await, [""; 0]);
    let future = TaskFilter {
        created_after: Some(tasks[3].created_at),
        ..all()
    };
    assert_eq!(found(&h, future).await, [""; 0]);

    let page = |before| TaskQuery {
        filter: all(),
        before,
        limit: 2,
    };
    let first = h.store.reader.tasks(&page(None)).await.unwrap();
    assert_eq!(first.next, Some(first.tasks[1].id));
    h.submit(New {
        key: Some("k5"),
        ..New::default()
    })
    .await;
    let second = h.store.reader.tasks(&page(first.next)).await.unwrap();
    assert_eq!(second.next, None);
    let keys: Vec<_> = second
        .tasks
        .iter()
        .map(|task| task.key.as_deref().unwrap())
        .collect();
    assert_eq!(
        keys,
        ["k2", "k1"],
        "a task submitted meanwhile shifts no page"
    );
}

pub async fn the_history_tells_every_change_in_order(h: Harness) {
    h.slots("x", 1);
    let id = h.submit(New::default()).await.id();
    h.reply(id, 0, 1, refusal()).await.unwrap();
    let changes = h
        .store
        .reader
        .history(id, 0, 100, usize::MAX)
        .await
        .unwrap()
        .unwrap()
        .changes;
    let versions: Vec<_> = changes.iter().map(|change| change.version).collect();
    assert_eq!(versions, [1, 2]);
    assert!(changes[0].events.starts_with(r#"[{"type":"task.accepted""#));
    assert!(changes[0].events.contains("scheduler:node-1"));
    assert!(changes[1].events.contains("402 Payment Required"));
    let later = h
        .store
        .reader
        .history(id, 1, 100, usize::MAX)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((later.changes.len(), later.has_more), (1, false));
    for (limit, bytes) in [(1, usize::MAX), (100, 1)] {
        let page = h
            .store
            .reader
            .history(id, 0, limit, bytes)
            .await
            .unwrap()
            .unwrap();
        assert_eq!((page.changes.len(), page.has_more), (1, true), "{limit}");
    }
    let nobody = crate::domain::values::TaskId(uuid::Uuid::now_v7());
    assert!(
        h.store
            .reader
            .history(nobody, 0, 1, usize::MAX)
            .await
            .unwrap()
            .is_none()
    );
}

pub async fn a_queue_is_claimed_by_priority_then_age(h: Harness) {
    let mut ids = Vec::new();
    for priority in [0, 5, 0, 9, 5] {
        ids.push(
            h.submit(New {
                priority,
                ..New::default()
            })
            .await
            .id(),
        );
    }
    let last = h.read(ids[2]).await;
    let queues = ["x", "y"].map(|agent| (AgentName::new(agent), String::new()));
    for (limit, counted) in [(10, 4), (4, 4), (3, 3), (1, 1)] {
        let ahead = h.store.reader.ahead(&last, &queues, limit).await.unwrap();
        assert_eq!(ahead, [counted, 0], "counted up to {limit}");
    }
    h.slots("x", 3);
    let x = AgentName::new("x");
    assert_eq!(h.store.claim_queued(vec![x.clone()]).await.unwrap(), 3);
    let claimed: Vec<_> = h.calls().into_iter().map(|(id, _, _)| id).collect();
    assert_eq!(claimed, [ids[3], ids[1], ids[4]]);
    assert!(h.notes.drained.lock().is_empty(), "two are left");
    h.slots("x", 3);
    assert_eq!(h.store.claim_queued(vec![x]).await.unwrap(), 2);
    let claimed: Vec<_> = h.calls().into_iter().map(|(id, _, _)| id).collect();
    assert_eq!(claimed, [ids[0], ids[2]]);
}

/// A step whose attempt expired is not due before its wait is over.
pub async fn a_delayed_step_is_enqueued_when_it_is_due(h: Harness) {
    h.slots("x", 1);
    let steps = json!([{ "name": "a", "agent": "x", "complete_within": "100ms" }]);
    let id = h
        .submit(New {
            steps,
            ..New::default()
        })
        .await
        .id();
    super::recovery::expire_all(&h, 1).await;
    h.slots("x", 1);
    let x = AgentName::new("x");
    assert_eq!(h.store.claim_queued(vec![x.clone()]).await.unwrap(), 0);
    let promoted = h.store.promote().await.unwrap();
    assert!(promoted.agents.is_empty());
    let due = promoted.next_due.unwrap();
    // The store's clock is real time, so the test waits for the due time itself.
    let wait = due.since(h.store.reader.now().await.unwrap());
    tokio::time::sleep(wait + std::time::Duration::from_millis(2)).await;
    let promoted = h.store.promote().await.unwrap();
    assert_eq!(promoted.agents, std::slice::from_ref(&x));
    assert_eq!(promoted.next_due, None);
    assert_eq!(h.store.claim_queued(vec![x]).await.unwrap(), 1);
    assert_eq!(h.calls().last(), Some(&(id, 0, 2)));
}

pub async fn workflows_get_a_new_version_only_when_they_change(h: Harness) {
    let name = WorkflowName::new("order");
    let put = async |body: &str| {
        h.store
            .put_workflow(
                name.clone(),
                body.to_owned(),
                Precondition::default(),
                None,
                Actor::submitter(),
            )
            .await
            .unwrap()
            .version
    };
    let one = r#"{"steps":[{"name":"a","agent":"x"}]}"#;
    let two = r#"{"steps":[{"name":"b","agent":"x"}]}"#;
    assert_eq!(put(one).await, 1);
    assert_eq!(put(one).await, 1);
    assert_eq!(put(two).await, 2);
    let latest = h.store.reader.workflow(&name, None).await.unwrap().unwrap();
    assert_eq!((latest.version, latest.body.as_str()), (2, two));
    let first = h
        .store
        .reader
        .workflow(&name, Some(1))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(first.body, one);
    assert!(
        h.store
            .reader
            .workflow(&name, Some(3))
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(h.store.reader.workflows().await.unwrap().len(), 1);
}

fn spec(port: u16) -> AgentSpec {
    let url = format!("http://127.0.0.1:{port}");
    serde_json::from_value(json!({ "endpoints": [{ "url": url }] })).unwrap()
}

pub async fn agents_are_kept_and_deleted(h: Harness) {
    let name = AgentName::new("payments");
    let any = Precondition::default();
    for is_new in [true, false] {
        let put = h.store.put_agent(name.clone(), spec(1), any.clone());
        assert_eq!(put.await.unwrap(), is_new);
    }
    let agents = h.store.reader.agents().await.unwrap();
    assert_eq!(agents.len(), 1);
    assert_eq!(agents[0].spec, spec(1));
    for there in [true, false] {
        let deleted = h.store.delete_agent(name.clone(), any.clone(), true).await;
        assert_eq!(deleted.unwrap(), there);
    }
}

fn unmet<T: std::fmt::Debug>(refused: Result<T, RegisterError>) -> Option<ETag> {
    match refused {
        Err(RegisterError::Unmet(unmet)) => unmet.current,
        other => panic!("{other:?}"),
    }
}

/// Returns the condition of If-Match and If-None-Match.
fn condition(if_match: Option<&ETag>, if_none_match: Option<&str>) -> Precondition {
    let if_match = if_match.map(ToString::to_string);
    Precondition {
        if_match: if_match.map(|tag| ETags::parse(&tag).unwrap()),
        if_none_match: if_none_match.map(|tags| ETags::parse(tags).unwrap()),
    }
}

pub async fn conditions_on_agents_are_judged_with_the_write(h: Harness) {
    let name = AgentName::new("payments");
    let put = async |port, condition| {
        let (name, spec) = (name.clone(), spec(port));
        h.store.put_agent(name, spec, condition).await
    };
    let delete = async |condition| h.store.delete_agent(name.clone(), condition, true).await;
    let new = condition(None, Some("*"));
    let [first, second] = [1, 2].map(|port| ETag::of_agent(&spec(port)));
    assert_eq!(unmet(put(1, condition(Some(&first), None)).await), None);
    put(1, new.clone()).await.unwrap();
    assert_eq!(unmet(put(2, new.clone()).await), Some(first.clone()));
    put(2, condition(Some(&first), None)).await.unwrap();
    let stale = condition(Some(&first), None);
    assert_eq!(unmet(put(3, stale.clone()).await), Some(second.clone()));
    assert_eq!(unmet(delete(stale).await), Some(second.clone()));
    assert_eq!(h.store.reader.agents().await.unwrap()[0].spec, spec(2));
    assert!(delete(condition(Some(&second), None)).await.unwrap());
    assert!(!delete(condition(Some(&second), None)).await.unwrap());
    put(3, new).await.unwrap();
}

pub async fn conditions_on_workflows_are_judged_with_the_write(h: Harness) {
    let name = WorkflowName::new("order");
    let put = async |body: &str, condition| {
        let put = h.store.put_workflow(
            name.clone(),
            body.to_owned(),
            condition,
            None,
            Actor::submitter(),
        );
        put.await
    };
    let tag = async || {
        let latest = h.store.reader.workflow(&name, None).await.unwrap().unwrap();
        ETag::of_workflow(latest.version, &latest.body, latest.created_at, 0)
    };
    let new = condition(None, Some("*"));
    assert!(put("1", new.clone()).await.unwrap().is_new);
    let first = tag().await;
    assert_eq!(unmet(put("1", new).await), Some(first.clone()));
    let on_first = condition(Some(&first), None);
    let same = put("1", on_first.clone()).await.unwrap();
    assert_eq!((same.version, same.is_new), (1, false));
    assert_eq!(put("2", on_first.clone()).await.unwrap().version, 2);
    // The condition fails even for the current body, because another request has put it.
    for body in ["2", "3"] {
        assert_eq!(unmet(put(body, on_first.clone()).await), Some(tag().await));
    }
    assert_ne!(tag().await, first);
}

pub async fn the_pending_steps_of_a_paused_task_are_not_queued(h: Harness) {
    let id = h.submit(New::default()).await.id();
    h.apply(id, Command::Pause { reason: None }).await.unwrap();
    h.slots("x", 5);
    let x = AgentName::new("x");
    assert_eq!(h.store.claim_queued(vec![x.clone()]).await.unwrap(), 0);
    // When it is resumed without a free slot, it is queued again.
    h.slots("x", 0);
    h.apply(id, Command::Resume { reason: None }).await.unwrap();
    h.slots("x", 5);
    assert_eq!(h.store.claim_queued(vec![x]).await.unwrap(), 1);
}
