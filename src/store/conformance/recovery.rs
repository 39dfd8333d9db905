//! The searches of the supervisor, of a restart and of retention.

use serde_json::json;

use super::harness::{Harness, New, refusal, success};
use crate::{
    domain::{
        task::{Command, TaskStatus},
        values::{Span, StepIndex},
    },
    store::{AlertQuery, AlertState, EndedCount, EndedTask},
};

fn quick() -> serde_json::Value {
    json!([{ "name": "a", "agent": "x", "complete_within": "100ms" }])
}

pub const EVERY_ALERT: AlertQuery = AlertQuery {
    state: None,
    task: None,
    part_of: None,
    cause: None,
    id: None,
    before: None,
    limit: 10,
};

/// Waits until `count` steps have expired on the store's clock, and requests their recovery.
pub async fn expire_all(h: &Harness, count: usize) {
    let expired = loop {
        let expired = h.store.reader.expired(h.instance(), 100).await.unwrap();
        if expired.len() >= count {
            break expired;
        }
        tokio::task::yield_now().await;
    };
    for expired in expired {
        let command = Command::Expire {
            step: expired.step.step,
            attempt: expired.attempt,
            cause: expired.cause,
        };
        h.apply(expired.step.task, command).await.unwrap();
    }
}

pub async fn an_expired_step_is_found_and_a_running_one_is_not(h: Harness) {
    h.slots("x", 2);
    let id = h
        .submit(New {
            steps: quick(),
            ..New::default()
        })
        .await
        .id();
    h.submit(New::default()).await;
    expire_all(&h, 1).await;
    assert_eq!(h.store.reader.expired(h.instance(), 10).await.unwrap(), []);
    assert_eq!(h.read(id).await.step(StepIndex(0)).failure_count, 1);
}

pub async fn an_overdue_task_is_found_once(h: Harness) {
    let complete_within = Some(Span::from_millis(50));
    let id = h
        .submit(New {
            complete_within,
            ..New::default()
        })
        .await
        .id();
    while h.store.reader.overdue(10).await.unwrap() != [id] {
        tokio::task::yield_now().await;
    }
    let task = h.apply(id, Command::Overdue).await.unwrap();
    assert_eq!(task.status(), TaskStatus::Error);
    assert_eq!(h.store.reader.overdue(10).await.unwrap(), []);
}

pub async fn an_alert_is_raised_once_and_closed_when_mended(h: Harness) {
    h.slots("x", 2);
    let id = h.submit(New::default()).await.id();
    h.reply(id, 0, 1, refusal()).await.unwrap();
    let alerts = h.store.reader.alerts(&EVERY_ALERT).await.unwrap();
    assert_eq!(alerts.len(), 1);
    assert_eq!(alerts[0].state, AlertState::Open);
    assert!(alerts[0].message.contains("402"));
    let known = h
        .store
        .acknowledge(alerts[0].id, "ann".to_owned())
        .await
        .unwrap();
    assert_eq!(known.unwrap().acknowledged_by.as_deref(), Some("ann"));
    let retry = Command::Retry {
        step: None,
        body: None,
        reason: None,
    };
    h.apply(id, retry).await.unwrap();
    let alerts = h.store.reader.alerts(&EVERY_ALERT).await.unwrap();
    assert_eq!(alerts[0].state, AlertState::Closed);
    h.reply(id, 0, 2, refusal()).await.unwrap();
    let open = AlertQuery {
        state: Some(AlertState::Open),
        ..EVERY_ALERT
    };
    assert_eq!(h.store.reader.alerts(&open).await.unwrap().len(), 1);
    let none = AlertQuery {
        task: Some(crate::domain::values::TaskId(uuid::Uuid::now_v7())),
        ..EVERY_ALERT
    };
    assert!(h.store.reader.alerts(&none).await.unwrap().is_empty());
}

pub async fn ended_tasks_are_purged_with_all_that_belongs_to_them(h: Harness) {
    h.slots("x", 5);
    let mut ids = Vec::new();
    for key in ["k1", "k2", "k3", "k4"] {
        let labels = &[("a", "b")];
        ids.push(
            h.submit(New {
                key: Some(key),
                labels,
                ..New::default()
            })
            .await
            .id(),
        );
    }
    for id in &ids[..2] {
        h.reply(*id, 0, 1, success(json!(1))).await.unwrap();
    }
    h.reply(ids[2], 0, 1, refusal()).await.unwrap();
    let purge = async |before| h.store.purge(ids.clone(), before).await.unwrap().tasks;
    let long_ago = crate::domain::values::Timestamp::from_millis(0);
    assert_eq!(purge(long_ago).await, 0);
    let soon = h.store.reader.now().await.unwrap() + Span::from_secs(60);
    assert_eq!(purge(soon).await, 2, "and none that has not ended");
    assert_eq!(purge(soon).await, 0);
    assert!(h.store.reader.task(ids[0]).await.unwrap().is_none());
    assert!(
        h.store
            .reader
            .history(ids[0], 0, 1, usize::MAX)
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(
        h.read(ids[2]).await.status(),
        TaskStatus::Error,
        "an operator is needed"
    );
    assert_eq!(h.read(ids[3]).await.status(), TaskStatus::Processing);
}

pub async fn ended_tasks_are_listed_in_pages_by_their_end(h: Harness) {
    h.slots("x", 5);
    let mut ended = Vec::new();
    for _ in 0..4 {
        let id = h.submit(New::default()).await.id();
        h.reply(id, 0, 1, success(json!(1))).await.unwrap();
        ended.push(id);
    }
    h.submit(New::default()).await;
    let soon = h.store.reader.now().await.unwrap() + Span::from_secs(60);
    let page = async |after, limit, with_kind| {
        let reader = &h.store.housekeeping;
        reader.ended(after, soon, limit, with_kind).await.unwrap()
    };
    let all = page(None, 10, true).await;
    let ids = |tasks: &[EndedTask]| tasks.iter().map(|task| task.ended.task).collect::<Vec<_>>();
    assert!(all.is_sorted_by_key(|task| task.ended), "{all:?}");
    assert!(
        all.iter()
            .all(|task| task.kind == Some((None, TaskStatus::Processed)))
    );
    let mut found = ids(&all);
    found.sort_unstable();
    ended.sort_unstable();
    assert_eq!(found, ended);
    let mut pages = Vec::new();
    let mut after = None;
    while let Some(next) = page(after, 1, false).await.pop() {
        assert_eq!(next.kind, None);
        after = Some(next.ended);
        pages.push(next);
    }
    assert_eq!(ids(&pages), ids(&all));
    let before = all[2].ended.at;
    let earlier = h.store.housekeeping.ended(None, before, 10, false).await;
    assert!(earlier.unwrap().iter().all(|task| task.ended.at < before));
}

pub async fn running_steps_are_listed_in_pages(h: Harness) {
    h.slots("x", 10);
    for _ in 0..5 {
        h.submit(New::default()).await;
    }
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = h.store.reader.processing(None, after, 2).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.step);
        seen.extend(page);
    }
    assert_eq!(seen.len(), 5);
    seen.dedup();
    assert_eq!(seen.len(), 5);
}

pub async fn counts_tell_what_is_there(h: Harness) {
    h.slots("x", 1);
    let steps = json!([{ "name": "a", "agent": "x" }, { "name": "b", "agent": "x" }]);
    let new = || New {
        steps: steps.clone(),
        ..New::default()
    };
    h.submit(new()).await;
    h.submit(new()).await;
    let given_up = h.submit(new()).await.id();
    h.apply(given_up, Command::Cancel { reason: None })
        .await
        .unwrap();
    let counts = h.store.reader.counts().await.unwrap();
    let mut tasks = counts.tasks;
    tasks.sort_unstable();
    assert_eq!(
        tasks,
        [(TaskStatus::Pending, 1), (TaskStatus::Processing, 1),],
        "those that have ended are counted apart"
    );
    assert_eq!(
        counts.queued,
        [(crate::domain::values::AgentName::new("x"), 1)]
    );
    assert_eq!(counts.waiting, 2);
    assert_eq!(counts.held + counts.awaited, 1);
}

/// Pages end within tasks that ended at one time, and between them.
pub async fn ended_tasks_are_counted_in_pages_of_any_size(h: Harness) {
    let counted = async |limit: usize| {
        let (mut counted, mut pages) = (EndedCount::default(), 0);
        while counted.complete().is_none() {
            counted = h.store.reader.count_ended(counted, limit).await.unwrap();
            pages += 1;
        }
        (counted.complete().unwrap().map(|(_, count)| count), pages)
    };
    assert_eq!(counted(10).await, ([0, 0, 0], 3));
    h.slots("x", 100);
    let mut ids = Vec::new();
    for _ in 0..12 {
        ids.push(h.submit(New::default()).await.id());
    }
    for id in &ids[..3] {
        h.apply(*id, Command::Cancel { reason: None })
            .await
            .unwrap();
    }
    for id in &ids[3..8] {
        h.reply(*id, 0, 1, success(json!(1))).await.unwrap();
    }
    for id in &ids[8..10] {
        h.reply(*id, 0, 1, refusal()).await.unwrap();
        h.apply(*id, Command::Undo { reason: None }).await.unwrap();
    }
    // Three tasks ended at one time, two at another, and the others one by one.
    for sql in [
        "UPDATE tasks SET ended_at = 1000 WHERE state = 'cancelled'",
        "UPDATE tasks SET ended_at = 2000 WHERE state = 'undone'",
    ] {
        h.database.execute(sql).await;
    }
    for limit in [1, 2, 3, 4, 10, 11, 100] {
        let (found, pages) = counted(limit).await;
        assert_eq!(found, [5, 2, 3], "in pages of {limit}");
        assert!(pages >= 10 / limit, "{pages} pages of {limit}");
    }
}
