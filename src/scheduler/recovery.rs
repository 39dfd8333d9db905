//! What ties this instance's calls to the record: steps that a crash left behind are resumed at once
//! (P13), and a call and its record that lost each other on the way are brought together again.

use std::{collections::HashSet, time::Duration};

use futures::future::join_all;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use super::Local;
use crate::{
    domain::{Attempt, Command, InstanceId, Release, StepRef},
    store::{Apply, CommandError, LocalScheduler, Store, StoreError},
};

const BATCH: usize = 500;
/// How long a claim may take from its commit to the start of its call.
pub(super) const START_WITHIN: Duration = Duration::from_secs(1);

/// Hands back all steps that an earlier process left running: in a store that others share, those of
/// this instance's id; else all. To be called once the instance has its lease, and before anything is
/// claimed.
pub async fn resume_interrupted(local: &Local, store: &Store) -> Result<(), StoreError> {
    let own = store.is_shared.then(|| local.instance());
    let mut after = None;
    let mut resumed = 0;
    loop {
        let orphans = store.housekeeping.processing(own, after, BATCH).await?;
        let Some((last, _)) = orphans.last() else {
            break;
        };
        after = Some(*last);
        resumed += orphans.len();
        release(local, store, orphans, Release::Restart).await;
    }
    for agent in store.housekeeping.lines().await? {
        local.expect_line(&agent);
    }
    if resumed > 0 {
        info!(
            steps = resumed,
            "resumed the steps that were running when the last process ended"
        );
    }
    Ok(())
}

/// Compares the calls under way with the steps that the record says this instance holds. A call whose
/// attempt is over by the record is dropped: while this instance was away, another took its step over,
/// and the answer would be refused. A step whose call is not under way is handed back: its claim was
/// saved although the writer heard of a failure, as when a connection breaks during the commit.
pub async fn reconcile(local: &Local, store: &Store) -> Result<(), StoreError> {
    // In this order: a call that starts after this is not missed in the record.
    let under_way = local.running.all();
    let held = held(local.instance(), store).await?;
    for (step, attempt) in under_way {
        if !held.contains(&(step, attempt)) && local.running.abort(step, attempt) {
            debug!(task = %step.task, step = step.step.0, %attempt,
                "dropped a call: its attempt is over by the record");
        }
    }
    let is_stray = |(step, attempt): &(StepRef, Attempt)| !local.running.contains(*step, *attempt);
    let strays: Vec<_> = held.into_iter().filter(is_stray).collect();
    if strays.is_empty() {
        return Ok(());
    }
    sleep(START_WITHIN).await;
    let strays: Vec<_> = strays.into_iter().filter(is_stray).collect();
    release(local, store, strays, Release::Stray).await;
    Ok(())
}

async fn held(
    instance: &InstanceId,
    store: &Store,
) -> Result<HashSet<(StepRef, Attempt)>, StoreError> {
    let mut held = HashSet::new();
    let mut after = None;
    loop {
        let page = store.housekeeping.processing(Some(instance), after, BATCH);
        let page = page.await?;
        let Some((last, _)) = page.last() else {
            return Ok(held);
        };
        after = Some(*last);
        held.extend(page);
    }
}

async fn release(local: &Local, store: &Store, held: Vec<(StepRef, Attempt)>, why: Release) {
    let released = held.into_iter().map(|(step, attempt)| {
        store.apply(Apply {
            task: step.task,
            command: Command::Release {
                step: step.step,
                attempt,
                why,
            },
            by: local.actor().clone(),
            if_version: None,
            idempotency: None,
        })
    });
    for outcome in join_all(released).await {
        match outcome {
            Ok(_) => {}
            // It ended meanwhile.
            Err(CommandError::Refused { .. }) => {}
            Err(error) => {
                warn!(%error, "a step could not be handed back; the supervisor will recover it");
            }
        }
    }
}
