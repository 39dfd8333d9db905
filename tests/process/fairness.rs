//! A slow or broken agent delays no other agent, and important tasks go first.

use std::sync::{Arc, Mutex};

use futures::future::join_all;
use serde_json::{Value, json};

use crate::harness::{Act, Gate, Provost, Remote, step};

fn for_agent(agent: &str) -> Value {
    json!({ "steps": [{ "name": "only", "agent": agent, "request": { "path": "/work" } }] })
}

#[tokio::test]
async fn a_broken_agent_does_not_delay_another_agents_steps() {
    let (broken, healthy) = (Remote::script([Act::Hang]).await, Remote::quick().await);
    let provost = Provost::start().await;
    provost.register("broken", &broken.url(), 2).await;
    provost.register("healthy", &healthy.url(), 2).await;
    let mut stuck = Vec::new();
    for _ in 0..50 {
        stuck.push(provost.submit(&for_agent("broken")).await);
    }
    broken.requests(2).await;
    let healthy_tasks = (0..50).map(|_| async { provost.run(&for_agent("healthy")).await });
    for task in join_all(healthy_tasks).await {
        assert_eq!(task["state"], "processed");
    }
    // All tasks of the good agent ended while all others waited.
    assert_eq!(broken.count(), 2, "no more than its max_in_flight");
    for (place, id) in stuck.iter().enumerate() {
        let task = provost.task(id).await;
        let only = step(&task, "only");
        if place < 2 {
            assert_eq!(only["state"], "processing");
            continue;
        }
        assert_eq!(only["state"], "pending");
        assert_eq!(
            only["blocked_by"],
            json!({ "reason": "capacity", "agent": "broken", "ahead": place - 2, "ahead_is_at_least": false })
        );
    }
}

#[tokio::test]
async fn one_task_with_a_step_at_a_broken_agent_goes_on_with_its_other_branch() {
    let (broken, healthy) = (Remote::script([Act::Hang]).await, Remote::quick().await);
    let provost = Provost::start().await;
    let task = json!({ "steps": [
        { "name": "slow", "url": broken.url() },
        { "name": "quick", "url": healthy.url(), "after": [] },
        { "name": "next", "url": healthy.url(), "after": ["quick"] },
        { "name": "join", "url": healthy.url(), "after": ["slow", "next"] },
    ] });
    let id = provost.submit(&task).await;
    broken.requests(1).await;
    let mut events = provost.events(&id).await;
    while events.until("step.processed").await.data["step"] != "next" {}
    let task = provost.task(&id).await;
    assert_eq!(step(&task, "slow")["state"], "processing");
    let join = step(&task, "join");
    assert_eq!(
        join["blocked_by"],
        json!({ "reason": "steps", "steps": ["slow"] })
    );
    assert_eq!(healthy.count(), 2);
}

#[tokio::test]
async fn higher_priority_runs_first_and_the_older_first_within_a_priority() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("done"))]).await;
    let provost = Provost::start().await;
    provost.register("narrow", &remote.url(), 1).await;
    let mut submission = for_agent("narrow");
    let first = provost.submit(&submission).await;
    remote.requests(1).await;
    let mut submitted = Vec::new();
    for (place, priority) in [0, -100, 5, 100, 0, 5, -100, 100].into_iter().enumerate() {
        submission["priority"] = json!(priority);
        submission["key"] = json!(format!("{priority}/{place}"));
        submitted.push((-priority, place, provost.submit(&submission).await));
    }
    gate.open();
    for (_, _, id) in &submitted {
        assert_eq!(provost.settled(id).await["state"], "processed");
    }
    submitted.sort();
    let order = submitted.iter().map(|(_, _, id)| id.clone());
    let expected: Vec<String> = std::iter::once(first).chain(order).collect();
    let called: Vec<String> = remote
        .ledger()
        .iter()
        .map(|seen| seen.header("provost-task").to_owned())
        .collect();
    assert_eq!(called, expected);
}

#[tokio::test]
async fn no_more_calls_are_under_way_than_an_agent_allows() {
    let under_way = Arc::new(Mutex::new((0usize, 0usize)));
    let gate = Gate::closed();
    let (counted, held) = (Arc::clone(&under_way), gate.clone());
    let remote = Remote::with(move |_| {
        let mut counts = counted.lock().unwrap();
        counts.0 += 1;
        counts.1 = counts.1.max(counts.0);
        held.then(json!("done"))
    })
    .await;
    let provost = Provost::start().await;
    provost.register("narrow", &remote.url(), 3).await;
    let mut ids = Vec::new();
    for _ in 0..12 {
        ids.push(provost.submit(&for_agent("narrow")).await);
    }
    for answered in 0..12 {
        // Three calls are in flight, or all that are left. Then one gets its response, and its slot is used again.
        remote.requests((answered + 3).min(12)).await;
        assert_eq!(remote.count(), (answered + 3).min(12));
        under_way.lock().unwrap().0 -= 1;
        gate.let_through(1);
    }
    for id in &ids {
        assert_eq!(provost.settled(id).await["state"], "processed");
    }
    assert_eq!(under_way.lock().unwrap().1, 3);
}
