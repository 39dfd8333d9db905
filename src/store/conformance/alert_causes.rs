//! One alert for all steps that fail at an agent for one cause.

use futures::{FutureExt, future::join_all};
use serde_json::json;

use super::harness::{Harness, New, refusal, success};
use crate::{
    domain::{
        task::{CallOutcome, Command},
        values::{Fault, Span, TaskId},
    },
    store::{Alert, AlertQuery, AlertState, CausesSeen, MessageQuery},
};

pub(super) async fn alerts(h: &Harness, query: AlertQuery) -> Vec<Alert> {
    let query = AlertQuery {
        limit: 100,
        ..query
    };
    h.store.reader.alerts(&query).await.unwrap()
}

pub(super) async fn open(h: &Harness) -> Vec<Alert> {
    let state = Some(AlertState::Open);
    alerts(
        h,
        AlertQuery {
            state,
            ..AlertQuery::default()
        },
    )
    .await
}

pub(super) async fn failed(h: &Harness, count: usize) -> Vec<TaskId> {
    let tasks = join_all((0..count).map(|_| h.submit(New::default()))).await;
    let tasks: Vec<_> = tasks.iter().map(|task| task.id()).collect();
    let replies = tasks.iter().map(|task| h.reply(*task, 0, 1, refusal()));
    for reply in join_all(replies).await {
        reply.unwrap();
    }
    tasks
}

/// Makes a step fail for a cause of its own.
pub(super) async fn fail_with(h: &Harness, status: u16) -> TaskId {
    let task = h.submit(New::default()).await.id();
    let CallOutcome::Failed(fault) = refusal() else {
        unreachable!("a refusal is a failure")
    };
    let outcome = CallOutcome::Failed(Fault {
        status: Some(status),
        ..fault
    });
    h.reply(task, 0, 1, outcome).await.unwrap();
    task
}

/// Makes a step fail for each of these statuses with each of these texts, all at once.
pub(super) async fn fail_with_words(h: &Harness, statuses: [u16; 2], words: &[String]) {
    let failures = statuses.iter().flat_map(|status| {
        words.iter().map(async |words| {
            let task = h.submit(New::default()).await.id();
            let CallOutcome::Failed(fault) = refusal() else {
                unreachable!("a refusal is a failure")
            };
            let outcome = CallOutcome::Failed(Fault {
                status: Some(*status),
                body: Some(json!({ "error": words }).to_string()),
                ..fault
            });
            h.reply(task, 0, 1, outcome).await.unwrap();
        })
    });
    join_all(failures).await;
}

pub async fn words_of_a_batch_get_alerts_of_their_own_while_there_is_room(h: Harness) {
    const STATUSES: [u16; 2] = [409, 422];
    h.slots("x", 200);
    let words = |range: std::ops::Range<u8>| -> Vec<_> {
        let letters = range.map(|number| [number / 26, number % 26].map(|n| char::from(b'a' + n)));
        letters
            .map(|[one, other]| format!("no {one}{other}\0"))
            .collect()
    };
    fail_with_words(&h, STATUSES, &words(0..12)).await;
    let all_open = open(&h).await;
    assert_eq!(all_open.len(), 24, "{all_open:#?}");
    // Twelve causes are known. There is room for eight more of each status.
    fail_with_words(&h, STATUSES, &words(0..40)).await;
    let all_open = open(&h).await;
    for status in STATUSES {
        let of_status = all_open.iter().filter(|alert| {
            let cause = alert.cause.as_deref().unwrap();
            cause.starts_with(&format!("agent x: {status} "))
        });
        let (worded, general): (Vec<_>, Vec<_>) =
            of_status.partition(|alert| alert.cause.as_deref().unwrap().contains(": no "));
        // Two committers that read at the same time may both raise eight.
        assert!((20..=28).contains(&worded.len()), "{all_open:#?}");
        let count = worded.iter().filter(|alert| alert.count == 2).count();
        assert_eq!(count, 12, "{all_open:#?}");
        assert_eq!(general.len(), 1, "{all_open:#?}");
        assert_eq!(general[0].count, 40 - worded.len() as u64, "{all_open:#?}");
    }
}

pub(super) async fn retry(h: &Harness, task: TaskId) {
    let retry = Command::Retry {
        step: None,
        body: None,
        reason: None,
    };
    h.apply(task, retry).await.unwrap();
}

pub async fn steps_that_fail_for_one_cause_have_one_alert_until_the_last_is_resolved(h: Harness) {
    h.slots("x", 20);
    let tasks = failed(&h, 5).await;
    let [alert] = &open(&h).await[..] else {
        panic!("{:#?}", open(&h).await)
    };
    assert_eq!((alert.count, alert.tasks.len()), (5, 3));
    assert_eq!(
        alert.cause.as_deref(),
        Some("agent x: 402 Payment Required: declined")
    );
    assert_eq!(alert.agent.as_ref().unwrap().as_str(), "x");
    assert_eq!(alert.task, Some(alert.tasks[0]));
    let parts = AlertQuery {
        part_of: Some(alert.id),
        ..AlertQuery::default()
    };
    assert_eq!(alerts(&h, parts.clone()).await.len(), 5);

    // Acknowledging one of its parts acknowledges the alert with all parts.
    let part = alerts(&h, parts.clone()).await.remove(0);
    let known = h.store.acknowledge(part.id, "ann".to_owned()).await;
    assert_eq!(known.unwrap().unwrap().id, alert.id);
    for part in alerts(&h, parts.clone()).await {
        assert_eq!(part.state, AlertState::Acknowledged);
        assert_eq!(part.acknowledged_by.as_deref(), Some("ann"));
    }

    for task in &tasks[..4] {
        retry(&h, *task).await;
    }
    let left = alerts(&h, AlertQuery::default()).await.remove(0);
    assert_eq!((left.state, left.count), (AlertState::Acknowledged, 1));
    assert_eq!(left.tasks, [tasks[4]]);
    retry(&h, tasks[4]).await;
    let closed = alerts(&h, AlertQuery::default()).await;
    assert_eq!(closed.len(), 1);
    assert_eq!(closed[0].state, AlertState::Closed);
    assert_eq!(closed[0].count, 5, "as many as there were");

    // The cause recurs, and has another alert.
    failed(&h, 1).await;
    let again = open(&h).await;
    assert_eq!(again.len(), 1);
    assert_ne!(again[0].id, alert.id);
    assert_eq!(again[0].count, 1);
    let counts = h.store.reader.counts().await.unwrap();
    assert_eq!(counts.open_alerts, [("task.error".to_owned(), 1)]);
    assert_eq!(counts.failed, 1);
}

/// Returns the kinds of the messages to webhooks, oldest first.
async fn messages(h: &Harness) -> Vec<String> {
    let query = MessageQuery {
        limit: 1000,
        ..MessageQuery::default()
    };
    let messages = h.store.reader.messages(&query).await.unwrap();
    messages.into_iter().rev().map(|m| m.kind).collect()
}

pub async fn tasks_resolved_at_the_same_time_leave_no_alert_open(h: Harness) {
    const TASKS: usize = 100;
    h.slots("x", 2 * TASKS);
    let tasks = failed(&h, TASKS).await;
    assert_eq!(open(&h).await[0].count, TASKS as u64);
    let mut seen = CausesSeen::default();
    h.store.maintain_causes(&mut seen).await.unwrap();
    join_all(tasks.iter().map(|task| retry(&h, *task))).await;
    // Both committers skipped this alert.
    assert!(h.store.maintain_causes(&mut seen).await.unwrap() <= 1);
    assert!(open(&h).await.is_empty());
    let kinds = messages(&h).await;
    assert_eq!(kinds, ["alert.raised", "alert.updated", "alert.closed"]);
}

/// Closes the last alert of a step as if others had locked the alert of the cause, which stays open in that case.
const CLOSE_PARTS: &str =
    "UPDATE alerts SET state = 'closed', closed_at = 1 WHERE part_of IS NOT NULL";

pub async fn the_upkeep_closes_every_alert_of_a_cause_that_has_no_step_left(h: Harness) {
    // This is more than the upkeep reads in one round.
    const CAUSES: u16 = 250;
    h.slots("x", CAUSES.into());
    for status in 400..400 + CAUSES {
        fail_with(&h, status).await;
    }
    let all = AlertQuery {
        limit: 1000,
        ..AlertQuery::default()
    };
    let unclosed = async || {
        let alerts = h.store.reader.alerts(&all).await.unwrap();
        alerts.iter().filter(|a| a.closed_at.is_none()).count()
    };
    let mut seen = CausesSeen::default();
    while h.store.maintain_causes(&mut seen).await.unwrap() > 0 && seen.has_more_unclosed() {}
    assert_eq!(unclosed().await, usize::from(CAUSES), "each has a step");
    h.database.execute(CLOSE_PARTS).await;
    assert_eq!(unclosed().await, usize::from(CAUSES));
    while h.store.maintain_causes(&mut seen).await.unwrap() > 0 && seen.has_more_unclosed() {}
    assert_eq!(unclosed().await, 0);
    let kinds = messages(&h).await;
    let closed = kinds.iter().filter(|kind| *kind == "alert.closed").count();
    assert_eq!((kinds.len(), closed), (2 * closed, usize::from(CAUSES)));
}

/// A step may join an alert after a transaction has found that none is left, and before the alert is locked.
pub async fn an_alert_of_a_cause_with_a_step_in_error_is_not_closed(h: Harness) {
    h.slots("x", 5);
    failed(&h, 1).await;
    let id = open(&h).await[0].id.0;
    let close = async || {
        let closed = h.store.send_write(true, None, move |tx| {
            async move { tx.close_locked(id, tx.now()).await }.boxed()
        });
        closed.await.unwrap()
    };
    assert_eq!(close().await, None);
    assert_eq!(open(&h).await.len(), 1);
    h.database.execute(CLOSE_PARTS).await;
    assert_eq!(close().await.unwrap().count, 1);
    assert_eq!(close().await, None, "it is closed once");
}

pub async fn a_step_that_fails_again_counts_once_for_a_closed_alert(h: Harness) {
    h.slots("x", 10);
    let tasks = failed(&h, 2).await;
    for attempt in 2..5 {
        retry(&h, tasks[0]).await;
        h.reply(tasks[0], 0, attempt, refusal()).await.unwrap();
    }
    assert_eq!(open(&h).await[0].count, 2);
    for task in tasks {
        retry(&h, task).await;
    }
    let closed = alerts(&h, AlertQuery::default()).await;
    assert_eq!((closed.len(), closed[0].count), (1, 2));
    let kinds = messages(&h).await;
    assert_eq!(kinds, ["alert.raised", "alert.closed"]);
}

pub async fn alerts_of_causes_are_deleted_after_the_last_of_their_tasks(h: Harness) {
    h.slots("x", 300);
    let mut seen = CausesSeen::default();
    let purge = async |tasks: &[TaskId], seen: &mut CausesSeen| {
        let soon = h.store.reader.now().await.unwrap() + Span::from_millis(60_000);
        h.store.purge(tasks.to_vec(), soon).await.unwrap();
        let mut purged = h.store.purge_causes(seen).await.unwrap();
        purged += h.store.purge_causes(seen).await.unwrap();
        purged
    };
    let resolve = async |task: TaskId| {
        retry(&h, task).await;
        h.reply(task, 0, 2, success(json!(1))).await.unwrap();
    };
    // There are more than one round reads, and their tasks are not deleted yet.
    let mut others = Vec::new();
    for status in 500..600 {
        let task = fail_with(&h, status).await;
        resolve(task).await;
        others.push(task);
    }
    let tasks = failed(&h, 3).await;
    assert_eq!(purge(&tasks, &mut seen).await, 0, "it is open");
    for task in &tasks {
        resolve(*task).await;
    }
    assert_eq!(purge(&tasks[..2], &mut seen).await, 0, "one task is left");
    assert_eq!(purge(&tasks[2..], &mut seen).await, 1);
    assert_eq!(purge(&[], &mut seen).await, 0);
    assert_eq!(purge(&others, &mut seen).await, 100);
    assert!(alerts(&h, AlertQuery::default()).await.is_empty());
}
