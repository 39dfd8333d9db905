//! Commands through the writer.

use std::{collections::HashMap, sync::atomic::Ordering};

use futures::future::join_all;
use serde_json::json;

use super::harness::{Harness, New, now, refusal, success, trace};
use crate::{
    domain::{
        task::{Actor, Command, Refusal, StepStatus, TaskStatus},
        template::Payload,
        values::{StepIndex, TaskId},
    },
    store::{AlertQuery, AlertState, Apply, CommandError, Idempotency, Submitted},
};

fn three() -> serde_json::Value {
    json!([
        { "name": "a", "agent": "x" },
        { "name": "b", "agent": "y" },
        { "name": "c", "agent": "x" },
    ])
}

pub async fn a_task_is_read_back_as_it_was_submitted(h: Harness) {
    let reply_to = crate::domain::task::ReplyTo {
        url: Some("http://shop:9000/r?x=ü".into()),
        events: vec!["task.error".into()],
        ..crate::domain::task::ReplyTo::default()
    };
    let task = h
        .submit(New {
            steps: three(),
            key: Some("order-1"),
            priority: -7,
            labels: &[("customer", "acme"), ("region", "eu")],
            complete_within: Some(crate::domain::values::Span::from_secs(60)),
            reply_to: Some(reply_to.clone()),
            ..New::default()
        })
        .await;
    let read = h.read(task.id()).await;
    assert_eq!(read, *task);
    assert_eq!(read.details.input.as_json(), task.details.input.as_json());
    assert_eq!(read.details.labels, task.details.labels);
    assert_eq!(read.details.key, task.details.key);
    assert_eq!(read.details.trace, Some(trace()));
    assert_eq!(read.details.reply_to.as_deref(), Some(&reply_to));
    assert_eq!(read.details.priority, task.details.priority);
    assert_eq!(read.version, 1);
}

pub async fn a_step_is_claimed_in_the_transaction_that_made_it_ready(h: Harness) {
    h.slots("x", 1);
    let task = h.submit(New::default()).await;
    assert_eq!(task.status(), TaskStatus::Processing);
    assert_eq!(h.calls(), [(task.id(), 0, 1)]);
    assert_eq!(h.read(task.id()).await, *task);
}

pub async fn without_a_free_slot_a_step_stays_queued(h: Harness) {
    let task = h.submit(New::default()).await;
    assert_eq!(task.step(StepIndex(0)).status(), StepStatus::Pending);
    assert_eq!(h.calls(), []);
    assert_eq!(h.notes.pending.lock().len(), 1);
    h.slots("x", 5);
    let x = crate::domain::values::AgentName::new("x");
    assert_eq!(h.store.claim_queued(vec![x.clone()]).await.unwrap(), 1);
    assert_eq!(h.calls(), [(task.id(), 0, 1)]);
    assert_eq!(*h.notes.drained.lock(), [x]);
}

/// The slot that a reply frees is taken in the same transaction, without a read of the queue.
pub async fn a_reply_claims_the_next_queued_step(h: Harness) {
    let mut ids = Vec::new();
    for priority in [0, 0, 0, 5] {
        let new = New {
            priority,
            ..New::default()
        };
        ids.push(h.submit(new).await.id());
    }
    let x = vec![crate::domain::values::AgentName::new("x")];
    h.slots("x", 1);
    assert_eq!(h.store.claim_queued(x).await.unwrap(), 1);
    assert_eq!(h.calls(), [(ids[3], 0, 1)]);
    // A step that was cancelled in the meantime is skipped, and its slot is used for the next.
    h.apply(ids[1], Command::Cancel { reason: None })
        .await
        .unwrap();
    for (ended, next) in [(ids[3], ids[0]), (ids[0], ids[2])] {
        h.slots("x", 1);
        h.reply(ended, 0, 1, success(json!(1))).await.unwrap();
        assert_eq!(h.calls(), [(next, 0, 1)]);
        let claimed = h.read(next).await;
        assert_eq!(claimed.step(StepIndex(0)).status(), StepStatus::Processing);
    }
    // If a slot is free and no step is queued, a step that becomes ready is claimed immediately.
    h.slots("x", 1);
    let task = h.submit(New::default()).await;
    assert_eq!(h.calls(), [(task.id(), 0, 1)]);
}

/// The transaction that makes a step ready also claims it, if its turn comes before that of all queued steps.
pub async fn a_step_that_becomes_ready_is_claimed_in_its_turn(h: Harness) {
    let two = || New {
        steps: json!([{ "name": "a", "agent": "x" }, { "name": "b", "agent": "x" }]),
        ..New::default()
    };
    let older = h.submit(two()).await.id();
    let younger = h.submit(two()).await.id();
    let youngest = h.submit(two()).await.id();
    let x = vec![crate::domain::values::AgentName::new("x")];
    h.slots("x", 2);
    assert_eq!(h.store.claim_queued(x).await.unwrap(), 2);
    assert_eq!(h.calls(), [(older, 0, 1), (younger, 0, 1)]);
    h.notes.has_queued.store(true, Ordering::Relaxed);
    for (task, step, next) in [
        (older, 0, (older, 1, 1)),
        (older, 1, (youngest, 0, 1)),
        (younger, 0, (younger, 1, 1)),
    ] {
        h.slots("x", 1);
        h.reply(task, step, 1, success(json!(1))).await.unwrap();
        assert_eq!(h.calls(), [next]);
    }
    // A more important step is queued, so this one waits.
    let important = New {
        priority: 5,
        ..two()
    };
    h.slots("x", 0);
    let important = h.submit(important).await.id();
    h.slots("x", 1);
    h.reply(youngest, 0, 1, success(json!(1))).await.unwrap();
    assert_eq!(h.calls(), [(important, 0, 1)]);
    let waits = h.read(youngest).await;
    assert_eq!(waits.step(StepIndex(1)).status(), StepStatus::Pending);
    h.slots("x", 1);
    h.reply(important, 0, 1, success(json!(1))).await.unwrap();
    assert_eq!(h.calls(), [(important, 1, 1)]);
    h.slots("x", 1);
    h.reply(important, 1, 1, success(json!(1))).await.unwrap();
    assert_eq!(h.calls(), [(youngest, 1, 1)]);
}

/// An alert takes statements of its own, and no other batch may be saved between them.
pub async fn batches_with_alerts_and_without_are_saved_side_by_side(h: Harness) {
    const TASKS: usize = 300;
    h.slots("x", TASKS);
    let tasks = join_all((0..TASKS).map(|_| h.submit(New::default()))).await;
    let replies = tasks.iter().enumerate().map(|(at, task)| {
        let outcome = match at % 3 {
            0 => refusal(),
            _ => success(json!(at)),
        };
        h.reply(task.id(), 0, 1, outcome)
    });
    for task in join_all(replies).await {
        let task = task.unwrap();
        assert_eq!(h.read(task.id()).await, *task);
    }
    let alerts = AlertQuery {
        state: Some(AlertState::Open),
        task: None,
        part_of: None,
        cause: None,
        id: None,
        before: None,
        limit: TASKS,
    };
    let alerts = h.store.reader.alerts(&alerts).await.unwrap();
    let counts: Vec<_> = alerts.iter().map(|alert| alert.count).collect();
    assert_eq!(counts, [TASKS as u64 / 3], "one for one cause");
}

pub async fn a_pipeline_runs_through_the_writer(h: Harness) {
    h.slots("x", 2);
    h.slots("y", 1);
    let id = h
        .submit(New {
            steps: three(),
            ..New::default()
        })
        .await
        .id();
    for step in 0..3 {
        assert_eq!(h.calls(), [(id, step, 1)]);
        h.reply(id, step, 1, success(json!({ "step": step })))
            .await
            .unwrap();
    }
    let task = h.read(id).await;
    assert_eq!(task.status(), TaskStatus::Processed);
    let output = task.step(StepIndex(2)).output().map(Payload::as_json);
    assert_eq!(output, Some(r#"{"step":2}"#));
}

pub async fn one_refused_command_does_not_fail_the_others(h: Harness) {
    // One slot is spare: if a refusal may be stale, the batch is decided again, and the slots of the first decision are
    // not freed.
    h.slots("x", 4);
    let first = h.submit(New::default()).await.id();
    let second = h.submit(New::default()).await.id();
    let nobody = TaskId(uuid::Uuid::now_v7());
    let (a, b, c, d) = tokio::join!(
        h.reply(first, 0, 1, success(json!(1))),
        h.reply(second, 0, 9, success(json!(1))),
        h.reply(nobody, 0, 1, success(json!(1))),
        h.submit(New::default()),
    );
    assert_eq!(a.unwrap().status(), TaskStatus::Processed);
    assert!(matches!(
        b,
        Err(CommandError::Refused {
            refusal: Refusal::Late { .. },
            ..
        })
    ));
    assert!(matches!(c, Err(CommandError::NoTask)));
    assert_eq!(h.read(d.id()).await.status(), TaskStatus::Processing);
    assert_eq!(h.read(second).await.status(), TaskStatus::Processing);
}

pub async fn many_commands_on_one_task_are_decided_in_order(h: Harness) {
    h.slots("x", 50);
    let steps: Vec<_> = (0..40)
        .map(|n| json!({ "name": format!("s{n}"), "agent": "x", "after": [] }))
        .collect();
    let id = h
        .submit(New {
            steps: json!(steps),
            ..New::default()
        })
        .await
        .id();
    let replies = (0..40).map(|step| h.reply(id, step, 1, success(json!(step))));
    for reply in join_all(replies).await {
        reply.unwrap();
    }
    let task = h.read(id).await;
    assert_eq!(task.status(), TaskStatus::Processed);
    let told: usize = h
        .store
        .reader
        .history(id, 0, 1000, usize::MAX)
        .await
        .unwrap()
        .unwrap()
        .changes
        .iter()
        .map(|change| change.events.matches("step.processed").count())
        .sum();
    assert_eq!(told, 40);
}

pub async fn an_idempotency_key_makes_one_task(h: Harness) {
    let key = |fingerprint: &str| {
        Some(Idempotency {
            key: "k-1".to_owned(),
            fingerprint: fingerprint.to_owned(),
        })
    };
    let new = New::default();
    // The three are sent at once: the second and third may be in the batch of the first.
    let answers =
        join_all((0..3).map(|_| h.store.submit(h.details(&new), None, key("same")))).await;
    let mut ids: Vec<_> = answers
        .into_iter()
        .map(|answer| match answer.unwrap() {
            Submitted::New(task) => task.id(),
            Submitted::Replayed(id) => id,
        })
        .collect();
    ids.dedup();
    assert_eq!(ids.len(), 1);
    let later = h
        .store
        .submit(h.details(&new), None, key("same"))
        .await
        .unwrap();
    assert!(matches!(later, Submitted::Replayed(id) if id == ids[0]));
    let other = h.store.submit(h.details(&new), None, key("other")).await;
    assert!(matches!(other, Err(CommandError::KeyReused)));
}

pub async fn a_version_that_does_not_match_is_refused(h: Harness) {
    let task = h.submit(New::default()).await;
    let pause = |version| {
        Apply::new(
            task.id(),
            Command::Pause { reason: None },
            Actor::operator("test"),
        )
        .at_version(Some(version))
    };
    let refused = h.store.apply(pause(7)).await;
    assert!(matches!(
        refused,
        Err(CommandError::VersionMismatch {
            expected: 7,
            current: 1
        })
    ));
    let paused = now(h.store.apply(pause(1)).await.unwrap());
    assert_eq!(paused.status(), TaskStatus::Paused);
}

/// Another instance changed the task, which the cache does not know; here a second connection does so.
pub async fn a_stale_cache_costs_a_second_try_and_no_wrong_write(h: Harness) {
    let task = h.submit(New::default()).await;
    h.database
        .execute("UPDATE tasks SET version = version + 1, paused = true, state = 'paused'")
        .await;
    let refused = h.apply(task.id(), Command::Pause { reason: None }).await;
    assert!(
        matches!(refused, Err(CommandError::Refused { .. })),
        "decided again on what the other wrote: {refused:?}"
    );
    let resumed = h.apply(task.id(), Command::Resume { reason: None }).await;
    assert_eq!(resumed.unwrap().version, 3);
}

pub async fn a_large_task_is_saved_whole(h: Harness) {
    h.slots("x", 1000);
    let steps: Vec<_> = (0..500)
        .map(|n| json!({ "name": format!("s{n}"), "agent": "x", "after": [] }))
        .collect();
    let task = h
        .submit(New {
            steps: json!(steps),
            ..New::default()
        })
        .await;
    assert_eq!(h.calls().len(), 500);
    let output = success(json!("x".repeat(200_000)));
    h.reply(task.id(), 499, 1, output).await.unwrap();
    h.reply(task.id(), 0, 1, refusal()).await.unwrap();
    let read = h.read(task.id()).await;
    assert_eq!(read.status(), TaskStatus::Error);
    assert_eq!(read.steps.len(), 500);
    let output = read.step(StepIndex(499)).output().unwrap();
    assert_eq!(output.as_json().len(), 200_002);
}

pub async fn what_a_step_did_before_it_ran_again_is_kept(h: Harness) {
    h.slots("x", 5);
    h.slots("y", 5);
    let id = h
        .submit(New {
            steps: three(),
            ..New::default()
        })
        .await
        .id();
    for step in 0..2 {
        h.reply(id, step, 1, success(json!({ "step": step })))
            .await
            .unwrap();
    }
    h.reply(id, 2, 1, refusal()).await.unwrap();
    let again = Command::RetryFrom {
        step: StepIndex(0),
        reason: None,
    };
    let task = h.apply(id, again).await.unwrap();
    let kept = |task: &crate::domain::task::Task, step| {
        let earlier = task.step(StepIndex(step)).previous_output.as_ref();
        earlier.map(|earlier| earlier.as_json().to_owned())
    };
    assert_eq!(task.step(StepIndex(0)).status(), StepStatus::Processing);
    assert_eq!(kept(&task, 1).as_deref(), Some(r#"{"step":1}"#));
    assert_eq!(h.read(id).await, *task);
    h.reply(id, 0, 2, success(json!("again"))).await.unwrap();
    let task = h.read(id).await;
    assert_eq!(kept(&task, 0), None);
    let output = task.step(StepIndex(0)).output().map(Payload::as_json);
    assert_eq!(output, Some("\"again\""));
    assert_eq!(kept(&task, 2), None, "it never took effect");
}

/// The number of inputs of this size that one batch loads.
const AT_ONCE: usize = 16;
const LARGE: usize = 2 * 1024 * 1024;

/// Submits tasks with a large input, none of which is cached any more.
async fn large_and_not_cached(h: &Harness, count: usize) -> Vec<TaskId> {
    let mut ids = Vec::new();
    for _ in 0..count {
        let mut details = h.details(&New {
            steps: json!([{ "name": "a", "agent": "x", "request": { "body": "small" } }]),
            ..New::default()
        });
        details.input = Payload::from_string(&"x".repeat(LARGE));
        ids.push(now(h.store.submit(details, None, None).await.unwrap()).id());
    }
    // The cache has room for a hundred tasks.
    let others = (0..100).map(|_| h.submit(New::default()));
    join_all(others).await;
    ids
}

/// Returns how many of the tasks were last changed at the same time.
async fn most_at_once(h: &Harness, ids: &[TaskId]) -> usize {
    let mut changed = HashMap::new();
    for id in ids {
        let history = h
            .store
            .reader
            .history(*id, 0, 100, usize::MAX)
            .await
            .unwrap()
            .unwrap()
            .changes;
        *changed.entry(history.last().unwrap().at).or_insert(0) += 1;
    }
    changed.into_values().max().unwrap()
}

pub async fn a_batch_loads_so_many_bytes_and_the_others_follow_in_order(h: Harness) {
    let ids = large_and_not_cached(&h, 20).await;
    // In another order each command would be refused.
    let asked = ids.iter().flat_map(|id| {
        let resume = Command::Resume { reason: None };
        [
            Command::Pause { reason: None },
            resume,
            Command::Cancel { reason: None },
        ]
        .map(|command| Box::pin(h.apply(*id, command)))
    });
    let mut asked: Vec<_> = asked.collect();
    // The commands are sent one after the other, even if the runtime would yield in between.
    tokio::task::unconstrained(async {
        for command in &mut asked {
            assert!(futures::poll!(command).is_pending());
        }
    })
    .await;
    for done in join_all(asked).await {
        done.unwrap();
    }
    for id in &ids {
        assert_eq!(h.read(*id).await.status(), TaskStatus::Cancelled);
    }
    let most = most_at_once(&h, &ids).await;
    assert!(most <= AT_ONCE, "{most} were loaded at once");
}

/// Steps of an agent queue are not lost either, and commands on other tasks do not starve them.
pub async fn claims_load_so_many_bytes_and_the_claimer_looks_again(h: Harness) {
    let ids = large_and_not_cached(&h, 40).await;
    let (claimed, paused) = ids.split_at(20);
    h.slots("x", 20);
    let x = || vec![crate::domain::values::AgentName::new("x")];
    let pauses = paused
        .iter()
        .map(|id| h.apply(*id, Command::Pause { reason: None }));
    let (paused, first) = tokio::join!(join_all(pauses), h.store.claim_queued(x()));
    assert!(paused.iter().all(Result::is_ok));
    let first = first.unwrap();
    assert!(
        (1..=AT_ONCE).contains(&first),
        "{first} were claimed at once"
    );
    let mut all = h.calls();
    while all.len() < 20 {
        assert!(h.store.claim_queued(x()).await.unwrap() > 0);
        all.extend(h.calls());
    }
    let called: Vec<_> = all.into_iter().map(|(id, _, _)| id).collect();
    assert_eq!(called, claimed);
}
