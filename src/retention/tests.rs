//! Rounds on a real database, some with tasks that cannot be deleted.

use std::collections::BTreeSet;

use async_trait::async_trait;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{Pacing, PurgeStore, Sweep, SweepTotals};
use crate::{
    domain::{
        task::TaskStatus,
        upkeep::{KeepRule, KeepTime, Retention},
        values::{Span, TaskId, Timestamp, WorkflowName},
    },
    store::{
        EndedTask, Purged, SharedReader, StoreError,
        conformance::harness::{Harness, New, sqlite, success},
    },
};

const HOUR: Span = Span::from_secs(3600);

/// Forwards purges to the store, except those of tasks that cannot be deleted.
struct Scripted<'h> {
    h: &'h Harness,
    damaged: BTreeSet<TaskId>,
    locked: BTreeSet<TaskId>,
    asked: Vec<Vec<TaskId>>,
}

impl<'h> Scripted<'h> {
    fn new(h: &'h Harness) -> Self {
        Self {
            h,
            damaged: BTreeSet::new(),
            locked: BTreeSet::new(),
            asked: Vec::new(),
        }
    }

    fn asked(&mut self) -> Vec<TaskId> {
        let mut asked: Vec<_> = std::mem::take(&mut self.asked).concat();
        asked.sort_unstable();
        asked
    }
}

#[async_trait]
impl PurgeStore for Scripted<'_> {
    fn reader(&self) -> SharedReader {
        self.h.store.housekeeping.clone()
    }

    async fn purge(
        &mut self,
        tasks: &[EndedTask],
        ended_before: Timestamp,
    ) -> Result<Purged, StoreError> {
        let mut ids: Vec<_> = tasks.iter().map(|task| task.ended.task).collect();
        self.asked.push(ids.clone());
        if ids.iter().any(|id| self.damaged.contains(id)) {
            return Err(StoreError::Unreadable("planted".to_owned()));
        }
        ids.retain(|id| !self.locked.contains(id));
        self.h.store.purge(ids, ended_before).await
    }

    async fn purge_dead_letters(&mut self, _: Timestamp, _: usize) -> Result<u64, StoreError> {
        Ok(0)
    }
}

fn sweep(retention: Retention) -> Sweep {
    Sweep::new(
        retention,
        None,
        500,
        Pacing::Alone,
        CancellationToken::new(),
    )
}

async fn ended(h: &Harness, count: usize) -> Vec<TaskId> {
    h.slots("x", count);
    let mut ids = Vec::new();
    for _ in 0..count {
        let id = h.submit(New::default()).await.id();
        h.reply(id, 0, 1, success(json!(1))).await.unwrap();
        ids.push(id);
    }
    ids.sort_unstable();
    ids
}

/// Returns a time at which every task that has ended now ended an hour ago.
async fn later(h: &Harness) -> Timestamp {
    h.store.housekeeping.now().await.unwrap() + HOUR
}

fn all() -> Retention {
    Retention::all(KeepTime::For(Span::from_secs(0)))
}

#[tokio::test]
async fn a_task_that_cannot_be_deleted_keeps_no_other_and_is_left_alone_for_an_hour() {
    let h = Harness::new(sqlite().await).await;
    let ids = ended(&h, 12).await;
    let mut store = Scripted::new(&h);
    store.damaged.insert(ids[3]);
    store.locked.insert(ids[7]);
    let mut sweep = sweep(all());
    let now = later(&h).await;
    let swept = sweep.round_at(now, &mut store, &|| true).await.unwrap();
    let expected = SweepTotals {
        tasks: 10,
        dead_letters: 0,
        damaged: 1,
    };
    assert_eq!(swept, expected);
    store.asked();
    for _ in 0..3 {
        sweep.round_at(now, &mut store, &|| true).await.unwrap();
        assert_eq!(store.asked(), [], "nothing has come to its end since");
    }
    store.damaged.clear();
    store.locked.clear();
    let swept = sweep.round_at(now + HOUR, &mut store, &|| true).await;
    assert_eq!(swept.unwrap().tasks, 2);
    assert_eq!(store.asked(), [ids[3], ids[7]]);
}

#[tokio::test]
async fn a_task_that_is_saved_after_others_that_ended_later_is_found() {
    let h = Harness::new(sqlite().await).await;
    let mut sweep = sweep(all());
    let mut store = Scripted::new(&h);
    let first = ended(&h, 1).await;
    let ahead = "UPDATE tasks SET ended_at = ended_at + 10000";
    h.database.execute(ahead).await;
    let now = h.store.housekeeping.now().await.unwrap() + Span::from_secs(20);
    sweep.round_at(now, &mut store, &|| true).await.unwrap();
    assert_eq!(store.asked(), first);
    let second = ended(&h, 1).await;
    sweep.round_at(now, &mut store, &|| true).await.unwrap();
    assert_eq!(store.asked(), second);
}

#[tokio::test]
async fn a_purge_that_is_stopped_deletes_no_more_and_goes_on_where_it_was() {
    let h = Harness::new(sqlite().await).await;
    let ids = ended(&h, 30).await;
    let mut sweep = sweep(all());
    let mut store = Scripted::new(&h);
    let looks = std::sync::atomic::AtomicUsize::new(0);
    let twice = || looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 2;
    let now = later(&h).await;
    let some = sweep.round_at(now, &mut store, &twice).await.unwrap();
    assert!((1..30).contains(&some.tasks), "{some:?}");
    let rest = sweep.round_at(now, &mut store, &|| true).await.unwrap();
    assert_eq!(some.tasks + rest.tasks, 30);
    assert_eq!(store.asked(), ids, "none was asked for twice");
}

#[tokio::test]
async fn a_task_without_a_workflow_is_not_kept_by_the_rule_of_one() {
    let h = Harness::new(sqlite().await).await;
    let ids = ended(&h, 2).await;
    let mut retention = Retention::all(KeepTime::Forever);
    let rule = KeepRule {
        keep: Some(KeepTime::For(Span::from_secs(0))),
        ..KeepRule::default()
    };
    retention.workflows.insert(WorkflowName::new("ship"), rule);
    let mut sweep = sweep(retention);
    let mut store = Scripted::new(&h);
    let now = later(&h).await;
    sweep.round_at(now, &mut store, &|| true).await.unwrap();
    assert_eq!(store.asked(), [], "they are of no workflow");
    for id in ids {
        assert_eq!(h.read(id).await.status(), TaskStatus::Processed);
    }
}
