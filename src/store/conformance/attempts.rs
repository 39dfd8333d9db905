//! The record of attempts.

use std::ops::RangeInclusive;

use serde_json::json;

use super::harness::{Harness, MOST_RECORDED, New, refusal, success};
use crate::{
    domain::{
        task::{Actor, AttemptExchange, AttemptResult, Command, RecordedRequest},
        upkeep::next_purge,
        values::{Attempt, Span, StepIndex, StepRef, TaskId},
    },
    store::{Apply, AttemptQuery},
};

fn query(task: TaskId, limit: usize) -> AttemptQuery {
    AttemptQuery {
        step: StepRef {
            task,
            step: StepIndex(0),
        },
        attempt: None,
        before: None,
        limit,
    }
}

/// Submits a task with a request of this length, whose step fails so many times.
async fn failing(h: &Harness, length: usize, times: u32) -> TaskId {
    let body = "x".repeat(length);
    let steps = json!([{ "name": "a", "agent": "x", "request": { "body": body } }]);
    let new = New {
        steps,
        ..New::default()
    };
    let task = h.submit(new).await.id();
    h.reply(task, 0, 1, refusal()).await.unwrap();
    fail_again(h, task, 2..=times).await;
    task
}

/// Has an operator retry a step in error for each of these attempts, which fail.
async fn fail_again(h: &Harness, task: TaskId, attempts: RangeInclusive<u32>) {
    for attempt in attempts {
        h.slots("x", 1);
        let retry = Command::Retry {
            step: Some(StepIndex(0)),
            body: None,
            reason: None,
        };
        h.apply(task, retry).await.unwrap();
        h.reply(task, 0, attempt, refusal()).await.unwrap();
    }
}

pub async fn failed_attempts_are_listed_latest_first_in_pages_and_deleted_with_their_task(
    h: Harness,
) {
    h.slots("x", 1);
    let task = failing(&h, 10, 3).await;
    let reader = &h.store.reader;
    let all = reader.attempts(&query(task, 10)).await.unwrap();
    let numbers: Vec<_> = all.iter().map(|one| one.attempt.0).collect();
    assert_eq!(numbers, [3, 2, 1]);
    assert!(all.iter().all(|one| one.result == AttemptResult::Permanent));
    let mut next = query(task, 1);
    next.before = Some((all[0].attempt, all[0].ended_at));
    assert_eq!(reader.attempts(&next).await.unwrap(), all[1..2]);
    let mut second = query(task, 10);
    second.attempt = Some(Attempt(2));
    assert_eq!(reader.attempts(&second).await.unwrap(), all[1..2]);

    h.apply(task, Command::Cancel { reason: None })
        .await
        .unwrap();
    let soon = reader.now().await.unwrap() + Span::from_secs(60);
    h.store.purge(vec![task], soon).await.unwrap();
    for table in [
        "SELECT count(*) FROM attempts",
        "SELECT count(*) FROM attempt_usage",
    ] {
        assert_eq!(h.database.count(table).await, 0, "{table}");
    }
}

pub async fn the_last_attempts_of_several_steps_are_read_at_once(h: Harness) {
    h.slots("x", 9);
    let step = |name: &str| json!({ "name": name, "agent": "x", "after": [] });
    let new = New {
        steps: json!([step("a"), step("b"), step("c")]),
        ..New::default()
    };
    let task = h.submit(new).await.id();
    for number in [0, 2] {
        h.reply(task, number, 1, refusal()).await.unwrap();
    }
    fail_again(&h, task, 2..=3).await;
    let steps = [2, 1, 0].map(StepIndex);
    let reader = &h.store.reader;
    let lasts = reader.last_attempts(task, &steps).await.unwrap();
    let mut lasts: Vec<_> = lasts
        .iter()
        .map(|one| (one.step.0, one.attempt.0))
        .collect();
    lasts.sort_unstable();
    assert_eq!(lasts, [(0, 3), (2, 1)]);
    assert!(reader.last_attempts(task, &[]).await.unwrap().is_empty());
}

pub async fn the_attempts_of_a_task_take_no_more_room_than_they_may_and_the_latest_stay(
    h: Harness,
) {
    h.slots("x", 1);
    let times = 3 * (MOST_RECORDED / (16 << 10)) as u32;
    let task = failing(&h, 16 << 10, times).await;
    let used = "SELECT CAST(sum(bytes) AS bigint) FROM attempts";
    let used = h.database.count(used).await;
    assert!(used > 0 && used <= MOST_RECORDED as i64, "{used}");
    let usage = "SELECT CAST(sum(bytes) AS bigint) FROM attempt_usage";
    assert_eq!(h.database.count(usage).await, used);
    let latest = h.store.reader.attempts(&query(task, 1)).await.unwrap();
    assert_eq!(latest[0].attempt, Attempt(times));

    // Attempts that were deleted by age take no room from those that follow.
    let soon = h.store.reader.now().await.unwrap() + Span::from_secs(3600);
    h.store.purge_attempts(soon, false, 1000).await.unwrap();
    fail_again(&h, task, times + 1..=times + 3).await;
    let latest = h.store.reader.attempts(&query(task, 10)).await.unwrap();
    let latest: Vec<_> = latest.iter().map(|record| record.attempt.0).collect();
    assert_eq!(latest, [times + 3, times + 2, times + 1]);
}

/// Submits tasks of one step that succeeds, each with what its instance says that it sent.
async fn succeed(h: &Harness, count: usize) -> Vec<TaskId> {
    h.slots("x", count);
    let mut tasks = Vec::new();
    for _ in 0..count {
        let task = h.submit(New::default()).await.id();
        let reply = Command::Reply {
            step: StepIndex(0),
            attempt: Attempt(1),
            outcome: success(json!(1)),
        };
        let request = RecordedRequest {
            method: "POST".to_owned(),
            url: "http://x/charge".to_owned(),
            headers: Vec::new(),
            body: None,
        };
        let exchange = AttemptExchange::rendered(request, None);
        let apply = Apply::new(task, reply, Actor::operator("test"));
        let apply = apply.with_exchange(Some(Box::new(exchange)));
        h.store.apply(apply).await.unwrap();
        tasks.push(task);
    }
    tasks
}

pub async fn samples_of_successes_are_saved_together_after_their_replies(h: Harness) {
    // There are more than one statement adds.
    let mut tasks = succeed(&h, 40).await;
    let reader = &h.store.reader;
    let recorded = async |task: TaskId| {
        let found = reader.attempts(&query(task, 10)).await.unwrap();
        found.iter().map(|record| record.result).collect::<Vec<_>>()
    };
    assert!(recorded(tasks[0]).await.is_empty());
    // The failure of another task is saved at once.
    h.slots("x", 1);
    let failed = failing(&h, 10, 1).await;
    assert_eq!(recorded(failed).await, [AttemptResult::Permanent]);
    let deleted = tasks.split_off(38);
    let soon = reader.now().await.unwrap() + Span::from_millis(60_000);
    h.store.purge(deleted.clone(), soon).await.unwrap();
    h.store.save_samples().await.unwrap();
    for task in &tasks {
        assert_eq!(recorded(*task).await, [AttemptResult::Succeeded]);
    }
    for task in &deleted {
        assert!(recorded(*task).await.is_empty());
    }
    h.store.save_samples().await.unwrap();
    assert_eq!(recorded(tasks[0]).await.len(), 1);
}

pub async fn recorded_attempts_are_deleted_by_age_and_by_the_room_that_all_take(h: Harness) {
    h.slots("x", 1);
    let task = failing(&h, 10, 5).await;
    let reader = &h.store.housekeeping;
    let hours = reader.recorded_hours().await.unwrap();
    assert!(!hours.is_empty() && hours.iter().all(|hour| !hour.succeeded));
    let now = reader.now().await.unwrap();
    let long_ago = crate::domain::values::Timestamp::from_millis(0);
    assert_eq!(next_purge(&hours, long_ago, u64::MAX), None);
    let purge = next_purge(&hours, long_ago, 1).unwrap();
    assert!(purge.before > now, "the hour has not ended");
    let deleted = h.store.purge_attempts(purge.before, purge.succeeded, 2);
    assert_eq!(deleted.await.unwrap(), 2);
    assert!(!reader.recorded_hours().await.unwrap().is_empty());
    let none = h.store.purge_attempts(purge.before, true, 10);
    assert_eq!(none.await.unwrap(), 0, "none succeeded");
    let rest = h.store.purge_attempts(purge.before, false, 10);
    assert_eq!(rest.await.unwrap(), 3);
    assert_eq!(reader.recorded_hours().await.unwrap(), []);
    assert_eq!(h.store.reader.attempts(&query(task, 10)).await.unwrap(), []);
}
