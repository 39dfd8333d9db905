//! Supervisors that do not know of each other. They belong to a layer above; the store must prove that they do no harm.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tokio::time::Instant;

use super::harness::{Harness, New, success};
use crate::{
    domain::{
        task::{Expiry, StepStatus, TaskStatus},
        values::{InstanceId, StepIndex, Term},
    },
    instance::LocalLease,
    store::DueSummary,
    supervisor::Supervisor,
};

/// Returns a supervisor that believes in its term, even if the store has another one.
fn believer(h: &Harness, name: &str, term: u64) -> Supervisor {
    let local_lease = LocalLease::new();
    local_lease.renewed(Some(Term(term)), Instant::now() + Duration::from_secs(3600));
    let instance = InstanceId::new(name);
    Supervisor::new(h.store.clone(), instance, Arc::new(local_lease), 100)
}

async fn history(h: &Harness, task: crate::domain::values::TaskId) -> String {
    let changes = h
        .store
        .reader
        .history(task, 0, 100, usize::MAX)
        .await
        .unwrap()
        .unwrap()
        .changes;
    changes.into_iter().map(|change| change.events).collect()
}

pub async fn two_that_both_believe_they_supervise_do_no_harm(h: Harness) {
    h.slots("x", 20);
    let overdue = json!([{ "name": "a", "agent": "x", "complete_within": "100ms" }]);
    let mut tasks = Vec::new();
    for _ in 0..10 {
        let steps = overdue.clone();
        tasks.push(
            h.submit(New {
                steps,
                ..New::default()
            })
            .await
            .id(),
        );
    }
    // Both have the id of the instance that holds the steps, so that these are overdue and not lost.
    let (old, new) = (believer(&h, "node-1", 1), believer(&h, "node-1", 2));
    let seen = loop {
        let seen = old.find().await.unwrap();
        if seen.len() == tasks.len() {
            break seen;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(new.find().await.unwrap(), seen, "both see the same");
    let (by_old, by_new) = tokio::join!(
        old.recover(Term(1), seen.clone()),
        new.recover(Term(2), seen.clone())
    );
    assert_eq!(
        by_old.unwrap() + by_new.unwrap(),
        10,
        "each was recovered once"
    );
    assert_eq!(
        old.recover(Term(1), seen).await.unwrap(),
        0,
        "late, and again"
    );
    for task in tasks {
        let step = h.read(task).await.step(StepIndex(0)).clone();
        assert_eq!(step.failure_count, 1);
        assert_eq!(step.status(), StepStatus::Pending);
        let history = history(&h, task).await;
        assert_eq!(history.matches("step.expired").count(), 1, "{history}");
        assert_eq!(
            history.matches("supervisor:node-1#").count(),
            1,
            "{history}"
        );
    }
}

pub async fn a_lost_instance_loses_its_steps_once_and_its_late_answer_is_refused(h: Harness) {
    h.slots("x", 2);
    let task = h.submit(New::default()).await.id();
    let (one, other) = (believer(&h, "node-2", 4), believer(&h, "node-3", 5));
    let seen = one.find().await.unwrap();
    assert_eq!(seen[0].cause, Expiry::InstanceLost, "node-1 has no lease");
    assert_eq!(other.find().await.unwrap(), seen);
    assert_eq!(one.recover(Term(4), seen.clone()).await.unwrap(), 1);
    // The step is claimed again in the same transaction, here by this store.
    assert_eq!(h.calls(), [(task, 0, 1), (task, 0, 2)]);
    assert_eq!(other.recover(Term(5), seen).await.unwrap(), 0);
    assert_eq!(h.read(task).await.step(StepIndex(0)).failure_count, 1);

    let late = h.reply(task, 0, 1, success(json!("late"))).await;
    assert!(late.is_err(), "{late:?}");
    h.reply(task, 0, 2, success(json!("in time")))
        .await
        .unwrap();
    let done = h.read(task).await;
    assert_eq!(done.status(), TaskStatus::Processed);
    assert_eq!(
        done.step(StepIndex(0)).output().unwrap().as_json(),
        r#""in time""#
    );
    let history = history(&h, task).await;
    assert!(history.contains(r#""supervisor:node-2#4""#), "{history}");
}

pub async fn an_instance_that_does_not_supervise_recovers_nothing(h: Harness) {
    h.slots("x", 1);
    let task = h.submit(New::default()).await.id();
    let local_lease = Arc::new(LocalLease::new());
    let instance = InstanceId::new("node-2");
    let supervisor = Supervisor::new(h.store.clone(), instance, local_lease.clone(), 100);
    local_lease.renewed(None, Instant::now() + Duration::from_secs(3600));
    assert_eq!(supervisor.recover_expired().await.unwrap(), 0);
    local_lease.renewed(Some(Term(1)), Instant::now());
    assert_eq!(
        supervisor.recover_expired().await.unwrap(),
        0,
        "its trust is over"
    );
    local_lease.renewed(Some(Term(1)), Instant::now() + Duration::from_secs(3600));
    assert_eq!(supervisor.recover_expired().await.unwrap(), 1);
    assert_eq!(h.read(task).await.step(StepIndex(0)).failure_count, 1);
}

pub async fn whatever_is_due_is_found_by_one_statement(h: Harness) {
    let asker = InstanceId::new("node-2");
    let due = async || h.store.reader.due_summary(&asker).await.unwrap();
    assert_eq!(due().await, DueSummary::default());
    let queued = h.submit(New::default()).await.id();
    let agent = h
        .read(queued)
        .await
        .definition(StepIndex(0))
        .agent()
        .cloned();
    assert_eq!(due().await.queued, [agent.unwrap()]);
    assert!(!due().await.is_recovery_due);
    h.slots("x", 1);
    h.submit(New::default()).await;
    assert!(due().await.is_recovery_due, "node-1 has no lease");
    assert!(!due().await.is_message_due && !due().await.is_delayed_due);
}
