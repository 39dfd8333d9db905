//! Two instances, of which one closes the alert of a cause while a step joins it at the other.

use futures::future::join_all;
use sqlx::{Connection, PgConnection};

use super::{
    alert_causes::{alerts, failed, open, retry},
    harness::{Harness, New, postgres, refusal},
    shared::{one_waits_for_a_lock, outside, pair},
};
use crate::{
    domain::task::Command,
    store::{AlertQuery, AlertState, CausesSeen},
};

async fn count(outside: &mut PgConnection, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(outside).await.unwrap()
}

/// Counts alerts of causes that are closed, although a step is in error for them.
const CLOSED_TOO_EARLY: &str =
    "SELECT count(*) FROM alerts AS part JOIN alerts AS whole ON whole.id = part.part_of
     WHERE part.state <> 'closed' AND whole.state = 'closed'";

const LOCK: &str = "SELECT id FROM alerts WHERE cause IS NOT NULL FOR UPDATE";
const CLOSE: &str = "UPDATE alerts SET state = 'closed', closed_at = 1 WHERE cause IS NOT NULL";

#[tokio::test]
async fn a_step_does_not_join_an_alert_that_is_being_closed() {
    let h = Harness::new(postgres().await).await;
    h.slots("x", 5);
    let task = failed(&h, 1).await[0];
    let first = open(&h).await.remove(0);
    let mut outside = outside(&h).await;
    // The step joins before the change that follows the lock, or after it.
    for (attempt, (before, after)) in [
        ([LOCK].as_slice(), [CLOSE].as_slice()),
        (&[LOCK, CLOSE], &[]),
    ]
    .into_iter()
    .enumerate()
    {
        retry(&h, task).await;
        let reopen = "UPDATE alerts SET state = 'open', closed_at = NULL WHERE id = $1";
        let reopen = sqlx::query(reopen).bind(first.id.0).execute(&mut outside);
        reopen.await.unwrap();
        let mut closing = outside.begin().await.unwrap();
        for statement in before.iter().copied() {
            sqlx::query(statement).execute(&mut *closing).await.unwrap();
        }
        let mut joins = Box::pin(h.reply(task, 0, attempt as u32 + 2, refusal()));
        tokio::select! {
            () = one_waits_for_a_lock(&h) => {}
            _ = &mut joins => panic!("it did not wait for the end of the transaction that closes the alert"),
        }
        for statement in after.iter().copied() {
            sqlx::query(statement).execute(&mut *closing).await.unwrap();
        }
        closing.commit().await.unwrap();
        joins.await.unwrap();
        assert_eq!(count(&mut outside, CLOSED_TOO_EARLY).await, 0);
        let again = open(&h).await;
        assert_eq!((again.len(), again[0].count), (1, 1));
        assert_ne!(again[0].id, first.id);
    }
}

#[tokio::test]
async fn a_step_joins_an_alert_without_waiting_for_its_acknowledgement() {
    let h = Harness::new(postgres().await).await;
    h.slots("x", 5);
    failed(&h, 1).await;
    let mut outside = outside(&h).await;
    let mut acknowledging = outside.begin().await.unwrap();
    let acknowledge =
        "UPDATE alerts SET state = 'acknowledged', acknowledged_by = 'ann' WHERE cause IS NOT NULL";
    let acknowledged = sqlx::query(acknowledge).execute(&mut *acknowledging).await;
    assert_eq!(acknowledged.unwrap().rows_affected(), 1);
    tokio::select! {
        () = one_waits_for_a_lock(&h) => panic!("it waits for the acknowledgement"),
        _ = failed(&h, 1) => {}
    }
    acknowledging.commit().await.unwrap();
    let found = alerts(&h, AlertQuery::default()).await;
    assert_eq!((found.len(), found[0].count), (1, 2));
    assert_eq!(found[0].state, AlertState::Acknowledged);
}

/// Two transactions that each join an alert and close steps of it would wait for each other.
#[tokio::test]
async fn an_alert_that_others_have_locked_is_closed_by_the_upkeep() {
    let h = Harness::new(postgres().await).await;
    h.slots("x", 5);
    let task = failed(&h, 1).await[0];
    let mut outside = outside(&h).await;
    let mut joining = outside.begin().await.unwrap();
    let lock = "SELECT id FROM alerts WHERE cause IS NOT NULL FOR KEY SHARE";
    sqlx::query(lock).execute(&mut *joining).await.unwrap();
    retry(&h, task).await;
    let left = open(&h).await;
    assert_eq!((left.len(), left[0].count), (1, 0));
    // Acknowledging the alert does not wait for the steps that join it.
    let known = h.store.acknowledge(left[0].id, "ann".to_owned()).await;
    assert_eq!(known.unwrap().unwrap().state, AlertState::Acknowledged);
    let mut seen = CausesSeen::default();
    h.store.maintain_causes(&mut seen).await.unwrap();
    let states = async || {
        let alerts = alerts(&h, AlertQuery::default()).await;
        alerts.iter().map(|alert| alert.state).collect::<Vec<_>>()
    };
    assert_eq!(states().await, [AlertState::Acknowledged], "it is locked");
    joining.commit().await.unwrap();
    h.store.maintain_causes(&mut seen).await.unwrap();
    assert_eq!(states().await, [AlertState::Closed]);
}

/// For any changes of the two at the same time, each step in error has one open alert, and each alert has a step.
#[tokio::test]
async fn two_instances_that_fail_and_resolve_steps_for_one_cause_agree_on_its_alert() {
    const ROUNDS: usize = 25;
    const TOGETHER: usize = 8;
    let (a, b) = pair().await;
    for h in [&a, &b] {
        h.slots("x", 10 * ROUNDS * TOGETHER);
    }
    let mut outside = outside(&a).await;
    let mut seen = CausesSeen::default();
    let mut resolved = failed(&a, TOGETHER).await;
    for _ in 0..ROUNDS {
        let new = join_all((0..TOGETHER).map(|_| b.submit(New::default()))).await;
        let new: Vec<_> = new.iter().map(|task| task.id()).collect();
        let fails = join_all(new.iter().map(|task| b.reply(*task, 0, 1, refusal())));
        let cancels = join_all(
            resolved
                .iter()
                .map(|task| a.apply(*task, Command::Cancel { reason: None })),
        );
        let (fails, cancels, maintained) =
            tokio::join!(fails, cancels, a.store.maintain_causes(&mut seen));
        maintained.unwrap();
        for done in fails.into_iter().chain(cancels) {
            done.unwrap();
        }
        assert_eq!(count(&mut outside, CLOSED_TOO_EARLY).await, 0);
        b.store.maintain_causes(&mut seen).await.unwrap();
        let found = open(&a).await;
        assert_eq!((found.len(), found[0].count), (1, TOGETHER as u64));
        resolved = new;
    }
    for task in &resolved {
        let cancel = Command::Cancel { reason: None };
        a.apply(*task, cancel).await.unwrap();
    }
    a.store.maintain_causes(&mut seen).await.unwrap();
    let all = alerts(&a, AlertQuery::default()).await;
    assert!(all.iter().all(|alert| alert.state == AlertState::Closed));
    // Each alert was announced once when it was raised, and once when it was closed.
    let messages = |kind: &'static str| {
        let id = "body::json -> 'data' -> 'alert' ->> 'id'";
        let sql =
            format!("SELECT count(DISTINCT {id}), count(*) FROM messages WHERE kind = '{kind}'");
        sqlx::AssertSqlSafe(sql)
    };
    for kind in ["alert.raised", "alert.closed"] {
        let found = sqlx::query_as(messages(kind)).fetch_one(&mut outside).await;
        let found: (i64, i64) = found.unwrap();
        assert_eq!(found, (all.len() as i64, all.len() as i64), "{kind}");
    }
}
