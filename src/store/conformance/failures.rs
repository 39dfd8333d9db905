//! Failures that need a person, by their cause.

use serde_json::json;

use super::{
    alert_causes::{fail_with, fail_with_words, failed, retry},
    harness::{Harness, refusal, success},
};
use crate::{
    domain::{
        task::{CauseFingerprint, MOST_WORDED},
        values::{Span, TaskId},
    },
    store::{Failure, FailuresSeen, TaskFilter, TaskQuery},
};

async fn failures(h: &Harness) -> Vec<Failure> {
    let (failures, more) = h.store.reader.failures().await.unwrap();
    assert!(!more);
    failures
}

async fn only(h: &Harness) -> Failure {
    let mut failures = failures(h).await;
    assert_eq!(failures.len(), 1, "{failures:?}");
    failures.remove(0)
}

async fn tasks_of(h: &Harness, filter: TaskFilter) -> Vec<TaskId> {
    let query = TaskQuery {
        filter,
        before: None,
        limit: 100,
    };
    let page = h.store.reader.tasks(&query).await.unwrap();
    page.tasks.iter().map(|task| task.id).collect()
}

async fn of_cause(h: &Harness, cause: CauseFingerprint) -> Vec<TaskId> {
    let filter = TaskFilter {
        cause: Some(cause),
        ..TaskFilter::default()
    };
    tasks_of(h, filter).await
}

pub async fn failures_of_one_cause_are_counted_until_they_are_resolved_and_the_cause_stays(
    h: Harness,
) {
    h.slots("x", 20);
    let mut tasks = failed(&h, 3).await;
    let other = fail_with(&h, 409).await;
    let found = failures(&h).await;
    assert_eq!(found.len(), 2);
    let failure = found.iter().find(|failure| failure.tasks == 3).unwrap();
    let cause = failure.fingerprint;
    assert_eq!((failure.steps, failure.failures), (3, 3));
    assert_eq!(failure.quarters.iter().sum::<u64>(), 3);
    assert_eq!(failure.quarters.len(), 96);
    tasks.sort();
    let example = failure.example.as_ref().unwrap();
    assert_eq!(example.task, tasks[2], "the latest");
    assert_eq!(example.attempt.unwrap().0, 1);
    assert!(tasks.contains(&failure.first.as_ref().unwrap().task));

    tasks.reverse();
    assert_eq!(of_cause(&h, cause).await, tasks);
    let text = |text: &str| TaskFilter {
        text: Some(text.to_owned()),
        ..TaskFilter::default()
    };
    let conflict = found.iter().find(|failure| failure.tasks == 1).unwrap();
    let message = &conflict.example.as_ref().unwrap().message;
    assert_eq!(
        tasks_of(&h, text(&message.to_uppercase())).await.len(),
        4,
        "{message}"
    );
    assert!(tasks_of(&h, text("100%")).await.is_empty());
    assert!(tasks_of(&h, text("_")).await.is_empty());

    for task in &tasks {
        retry(&h, *task).await;
    }
    assert_eq!(only(&h).await.example.unwrap().task, other);
    assert!(of_cause(&h, cause).await.is_empty());
    let gone = h.store.reader.failure(cause).await.unwrap().unwrap();
    assert_eq!((gone.tasks, gone.failures), (0, 3));
    assert!(gone.example.is_none());
    // It fails again for the same cause.
    h.reply(tasks[0], 0, 2, refusal()).await.unwrap();
    let again = h.store.reader.failure(cause).await.unwrap().unwrap();
    assert_eq!((again.tasks, again.failures), (1, 4));
    assert_eq!(again.example.unwrap().attempt.unwrap().0, 2);
    assert_eq!(again.first_at, gone.first_at);
    let unknown = h.store.reader.failure(CauseFingerprint(1)).await;
    assert!(unknown.unwrap().is_none());
}

pub async fn words_that_differ_in_each_failure_make_no_more_causes_than_alerts(h: Harness) {
    h.slots("x", 200);
    let letters = ('a'..='z').map(|letter| format!("no {letter}{letter}{letter} in stock"));
    let words: Vec<_> = letters.collect();
    fail_with_words(&h, [409, 422], &words).await;
    let found = failures(&h).await;
    let general = found.iter().filter(|failure| failure.cause.words.is_none());
    assert_eq!(general.count(), 2);
    assert_eq!(found.len(), 2 * (MOST_WORDED + 1));
    let steps: u64 = found.iter().map(|failure| failure.tasks).sum();
    assert_eq!(steps, 52);
}

/// Makes the alerts like those of an earlier release.
const WITHOUT_CAUSES: &str = "UPDATE alerts SET fingerprint = NULL; DELETE FROM failure_quarters; DELETE FROM failure_causes";

pub async fn alerts_of_an_earlier_release_get_their_causes(h: Harness) {
    h.slots("x", 200);
    let tasks = failed(&h, 30).await;
    fail_with_words(&h, [409, 422], &["no card".to_owned()]).await;
    let mut before: Vec<_> = failures(&h).await;
    before.sort_by_key(|failure| failure.fingerprint);
    for sql in WITHOUT_CAUSES.split("; ") {
        h.database.execute(sql).await;
    }
    assert!(failures(&h).await.is_empty());
    let mut seen = FailuresSeen::default();
    // There are more than one round reads.
    assert_eq!(h.store.name_failures(&mut seen).await.unwrap(), 20);
    assert!(seen.has_more());
    assert_eq!(h.store.name_failures(&mut seen).await.unwrap(), 12);
    assert!(!seen.has_more());
    assert_eq!(h.store.name_failures(&mut seen).await.unwrap(), 0);
    let mut after: Vec<_> = failures(&h).await;
    after.sort_by_key(|failure| failure.fingerprint);
    let counts = |failures: &[Failure]| -> Vec<_> {
        let counts = failures.iter().map(|failure| {
            let Failure {
                fingerprint,
                tasks,
                failures,
                ..
            } = failure;
            (*fingerprint, *tasks, *failures, failure.cause.clone())
        });
        counts.collect()
    };
    assert_eq!(counts(&after), counts(&before));
    retry(&h, tasks[0]).await;
    h.reply(tasks[0], 0, 2, success(json!(1))).await.unwrap();
}

/// Makes all failures happen two days and then a hundred days earlier.
const TWO_DAYS_AGO: &str =
    "UPDATE failure_quarters SET quarter = quarter - 192, last_at = last_at - 172800000";
const IN_ANOTHER_SEASON: &str =
    "UPDATE failure_causes SET first_at = first_at - 8640000000, last_at = last_at - 8640000000";

pub async fn old_counts_are_added_up_and_causes_are_deleted_long_after_their_last_failure(
    h: Harness,
) {
    h.slots("x", 20);
    let tasks = failed(&h, 3).await;
    let before = only(&h).await;
    assert_eq!(h.store.purge_failures(10).await.unwrap(), 0);
    h.database.execute(TWO_DAYS_AGO).await;
    assert!(h.store.purge_failures(10).await.unwrap() > 0);
    assert_eq!(h.store.purge_failures(10).await.unwrap(), 0);
    assert_eq!(
        h.database
            .count("SELECT count(*) FROM failure_quarters")
            .await,
        0
    );
    let after = only(&h).await;
    assert_eq!((after.tasks, after.failures), (3, 3));
    assert_eq!(after.quarters.iter().sum::<u64>(), 0);
    assert_eq!(
        after.last_at, before.first_at,
        "the row of the cause has it"
    );

    h.database.execute(IN_ANOTHER_SEASON).await;
    assert_eq!(h.store.purge_failures(10).await.unwrap(), 0, "it is open");
    for task in &tasks {
        retry(&h, *task).await;
    }
    let cause = before.fingerprint;
    assert!(h.store.reader.failure(cause).await.unwrap().is_some());
    assert_eq!(h.store.purge_failures(10).await.unwrap(), 1);
    assert!(h.store.reader.failure(cause).await.unwrap().is_none());
    // The cause occurs again.
    h.reply(tasks[0], 0, 2, refusal()).await.unwrap();
    assert_eq!(only(&h).await.fingerprint, cause);
}

pub async fn the_failures_of_a_deleted_task_need_nobody(h: Harness) {
    h.slots("x", 20);
    let tasks = failed(&h, 2).await;
    let cause = only(&h).await.fingerprint;
    for task in &tasks {
        retry(&h, *task).await;
        h.reply(*task, 0, 2, success(json!(1))).await.unwrap();
    }
    let soon = h.store.reader.now().await.unwrap() + Span::from_millis(60_000);
    h.store.purge(tasks.clone(), soon).await.unwrap();
    let failure = h.store.reader.failure(cause).await.unwrap().unwrap();
    assert_eq!((failure.tasks, failure.failures), (0, 2));
    assert!(tasks.contains(&failure.first.unwrap().task));
}
