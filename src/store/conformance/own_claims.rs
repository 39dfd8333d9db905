//! The first claim of a step is stored in the row of its task if the step has no other data. Every search for running
//! steps finds it.

use serde_json::json;

use super::{
    harness::{Harness, New, success},
    recovery::expire_all,
    shared::pair,
    untouched::{expect_rows, pipeline, spares_rows},
};
use crate::{
    domain::{
        task::{Command, DroppedBy, Expiry, Release, StepStatus, Task, TaskStatus},
        values::{AgentName, Attempt, InstanceId, StepIndex, StepRef, TaskId, Timestamp},
    },
    store::{ExpiredStep, HeldStep, StoreError},
};

/// Returns a task whose two steps are called at once.
fn parallel() -> New {
    New {
        steps: json!([
            { "name": "a", "agent": "x" },
            { "name": "b", "agent": "x", "after": [] },
        ]),
        ..New::default()
    }
}

fn first_of(task: TaskId) -> StepRef {
    let step = StepIndex(0);
    StepRef { task, step }
}

/// Returns a task of the pipeline, whose first step is called.
async fn claimed(h: &Harness) -> std::sync::Arc<Task> {
    spares_rows(h).await;
    for agent in ["x", "y", "z"] {
        h.slots(agent, 1);
    }
    let task = h.submit(pipeline()).await;
    assert_eq!(task.own_claim, Some(StepIndex(0)));
    expect_rows(h, &task, 0).await;
    task
}

pub async fn of_several_claims_one_stands_in_the_row_of_the_task(h: Harness) {
    spares_rows(&h).await;
    h.slots("x", 2);
    let task = h.submit(parallel()).await;
    let id = task.id();
    assert_eq!(task.own_claim, Some(StepIndex(0)));
    expect_rows(&h, &task, 1).await;
    let task = h.reply(id, 1, 1, success(json!(1))).await.unwrap();
    assert_eq!(task.own_claim, Some(StepIndex(0)));
    expect_rows(&h, &task, 1).await;
    let task = h.reply(id, 0, 1, success(json!(1))).await.unwrap();
    assert_eq!(
        (task.own_claim, task.status()),
        (None, TaskStatus::Processed)
    );
    expect_rows(&h, &task, 2).await;
}

pub async fn a_claim_in_the_row_of_its_task_is_found_by_all_who_look_for_running_steps(h: Harness) {
    let id = claimed(&h).await.id();
    let reader = &h.store.reader;
    let held = HeldStep {
        step: first_of(id),
        attempt: Attempt(1),
        undoing: false,
        cancelled: false,
    };
    let (own, other) = (h.instance(), InstanceId::new("node-2"));
    for (locked_by, found) in [
        (None, &[held][..]),
        (Some(own), &[held]),
        (Some(&other), &[]),
    ] {
        let running = reader.processing(locked_by, None, 10).await.unwrap();
        assert_eq!(running, found, "{locked_by:?}");
    }
    let after = reader.processing(None, Some(held.step), 10).await.unwrap();
    assert_eq!(after, []);
    assert_eq!(
        reader.held(held.step, Attempt(1)).await.unwrap(),
        Some(held)
    );
    assert_eq!(reader.held(held.step, Attempt(2)).await.unwrap(), None);
    let second = StepRef {
        step: StepIndex(1),
        ..held.step
    };
    assert_eq!(reader.held(second, Attempt(1)).await.unwrap(), None);
    assert_eq!(reader.counts().await.unwrap().held, 1);
    // The instance of the step has no lease.
    let lost = ExpiredStep {
        step: held.step,
        attempt: Attempt(1),
        cause: Expiry::InstanceLost,
    };
    assert_eq!(reader.expired(&other, 10).await.unwrap(), [lost]);
    assert!(reader.due_summary(&other).await.unwrap().is_recovery_due);
    assert_eq!(reader.expired(own, 10).await.unwrap(), []);
    assert!(!reader.due_summary(own).await.unwrap().is_recovery_due);
}

/// The mark is in the record, because a notification of it may be lost.
pub async fn an_attempt_that_is_withdrawn_is_found_by_the_instance_that_holds_it(h: Harness) {
    let cancelled = claimed(&h).await.id();
    let command = Command::CancelStep {
        step: StepIndex(0),
        reason: None,
    };
    h.apply(cancelled, command).await.unwrap();
    h.slots("x", 2);
    let steps = json!([
        { "name": "a", "agent": "x" },
        { "name": "b", "agent": "x", "after": [] },
        { "name": "join", "agent": "y", "after": { "any": 1, "of": ["a", "b"], "rest": "cancel" } },
    ]);
    let new = New {
        steps,
        ..New::default()
    };
    let lost = h.submit(new).await.id();
    h.reply(lost, 1, 1, success(json!(1))).await.unwrap();
    let reader = &h.store.reader;
    let running = reader.processing(Some(h.instance()), None, 10).await;
    let held = [lost, cancelled].map(|task| HeldStep {
        step: first_of(task),
        attempt: Attempt(1),
        undoing: false,
        cancelled: true,
    });
    let running = running.unwrap();
    for held in held {
        assert!(running.contains(&held), "{held:?} is not in {running:?}");
        let read = reader.held(held.step, Attempt(1)).await.unwrap();
        assert_eq!(read, Some(held));
        assert!(held.is_to_be_dropped(DroppedBy::Withdrawal));
        assert!(!held.is_to_be_dropped(DroppedBy::Nothing));
    }
}

pub async fn a_claim_in_the_row_of_its_task_expires(h: Harness) {
    spares_rows(&h).await;
    h.slots("x", 1);
    let steps = json!([{ "name": "a", "agent": "x", "complete_within": "100ms" }]);
    let task = h
        .submit(New {
            steps,
            ..New::default()
        })
        .await;
    assert_eq!(task.own_claim, Some(StepIndex(0)));
    while !h
        .store
        .reader
        .due_summary(h.instance())
        .await
        .unwrap()
        .is_recovery_due
    {
        tokio::task::yield_now().await;
    }
    expire_all(&h, 1).await;
    let read = h.read(task.id()).await;
    assert_eq!(read.step(StepIndex(0)).failure_count, 1);
    expect_rows(&h, &read, 1).await;
}

/// Data that the row of the task has no column for needs a row of the step.
pub async fn a_step_gets_its_row_with_the_second_thing_that_happens_in_it(h: Harness) {
    let id = claimed(&h).await.id();
    let released = h.apply(
        id,
        Command::Release {
            step: StepIndex(0),
            attempt: Attempt(1),
            why: Release::Restart,
        },
    );
    let task = released.await.unwrap();
    assert_eq!(task.step(StepIndex(0)).status(), StepStatus::Pending);
    expect_rows(&h, &task, 1).await;
    h.slots("x", 1);
    assert_eq!(
        h.store
            .claim_queued(vec![AgentName::new("x")])
            .await
            .unwrap(),
        1
    );
    let task = h.read(id).await;
    assert_eq!(task.step(StepIndex(0)).attempt, Attempt(2));
    expect_rows(&h, &task, 1).await;
}

pub async fn a_claim_of_a_divided_queue_has_a_row(h: Harness) {
    spares_rows(&h).await;
    h.divide("{{ input.n }}");
    h.slots("x", 1);
    let task = h.submit(pipeline()).await;
    h.store
        .claim_queued(vec![AgentName::new("x")])
        .await
        .unwrap();
    let task = h.read(task.id()).await;
    assert_eq!(task.step(StepIndex(0)).status(), StepStatus::Processing);
    expect_rows(&h, &task, 1).await;
}

const DAMAGES: [&str; 7] = [
    "UPDATE tasks SET claim_step = 1",
    "UPDATE tasks SET claim_step = 2",
    "UPDATE tasks SET claim_step = 3",
    "UPDATE tasks SET claim_step = 32767",
    "UPDATE tasks SET claim_step = -1",
    "UPDATE tasks SET claimed_by = NULL",
    "UPDATE tasks SET claim_until = NULL",
];

/// Searches for running steps continue, and the damaged task can be cancelled.
pub async fn a_damaged_claim_costs_its_task_alone(h: Harness) {
    for damage in DAMAGES {
        let bad = claimed(&h).await.id();
        h.database.execute(damage).await;
        // These tasks evict the damaged one from the cache.
        for _ in 0..100 {
            h.submit(New::default()).await;
        }
        let read = h.store.reader.task(bad).await;
        match (damage, read) {
            // A claim of another untouched step is as valid as one of the first.
            (
                "UPDATE tasks SET claim_step = 1" | "UPDATE tasks SET claim_step = 2",
                Ok(Some(_)),
            ) => {}
            (_, Err(StoreError::Task(_))) => {}
            (_, read) => panic!("{damage}: {read:?}"),
        }
        let other = InstanceId::new("node-2");
        h.store.reader.expired(&other, 1_000).await.unwrap();
        h.store.reader.due_summary(&other).await.unwrap();
        h.store.reader.counts().await.unwrap();
        h.store.reader.instances().await.unwrap();
        h.store.reader.processing(None, None, 1_000).await.unwrap();
        let agent = AgentName::new("x");
        h.store
            .reader
            .tasks_in_danger(&agent, Timestamp::MAX, 100)
            .await
            .unwrap();
        let cancelled = h.apply(bad, Command::Cancel { reason: None }).await;
        assert_eq!(
            cancelled.unwrap().status(),
            TaskStatus::Cancelled,
            "{damage}"
        );
        h.database.execute("DELETE FROM tasks").await;
        h.database.execute("DELETE FROM steps").await;
    }
}

/// The undo of the step has a row, so the step must have one by which both are assembled.
pub async fn a_damaged_task_that_is_undone_while_a_step_runs_can_be_cancelled(h: Harness) {
    spares_rows(&h).await;
    h.slots("x", 1);
    let steps = json!([
        { "name": "a", "agent": "x", "undo": { "request": { "path": "/undo" } } },
        { "name": "b", "agent": "y" },
    ]);
    let task = h
        .submit(New {
            steps,
            ..New::default()
        })
        .await;
    let id = task.id();
    assert_eq!(task.own_claim, Some(StepIndex(0)));
    let task = h.apply(id, Command::Undo { reason: None }).await.unwrap();
    assert_eq!(task.status(), TaskStatus::Undoing);
    expect_rows(&h, &task, 3).await;
    h.database
        .execute("UPDATE task_details SET steps = '['")
        .await;
    // These tasks evict the damaged one from the cache.
    for _ in 0..100 {
        h.submit(New::default()).await;
    }
    let cancelled = h.apply(id, Command::Cancel { reason: None }).await.unwrap();
    assert_eq!(cancelled.status(), TaskStatus::Cancelled);
}

/// Tests an instance with an older cache, in which the step is not claimed yet, or is still claimed.
#[tokio::test]
async fn claims_in_the_rows_of_tasks_are_fenced() {
    let (a, b) = pair().await;
    let task = claimed(&a).await;
    let id = task.id();
    spares_rows(&b).await;
    b.slots("y", 1);
    // The other instance claims the second step, when the reply to the first one arrives there.
    let at_b = b.reply(id, 0, 1, success(json!(1))).await.unwrap();
    assert_eq!(at_b.own_claim, Some(StepIndex(1)));
    expect_rows(&a, &at_b, 1).await;
    // In the memory of this instance, the first step still runs, and the second is untouched.
    let stale = a.reply(id, 0, 1, success(json!(2))).await;
    stale.unwrap_err();
    let at_a = a.reply(id, 1, 1, success(json!(2))).await.unwrap();
    assert_eq!(at_a.own_claim, Some(StepIndex(2)));
    expect_rows(&b, &at_a, 2).await;
    let cancelled = b.apply(id, Command::Cancel { reason: None }).await.unwrap();
    expect_rows(&a, &cancelled, 3).await;
}
