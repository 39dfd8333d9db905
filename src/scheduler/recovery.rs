//! Reconciles this instance's calls with the record: steps of a crashed process are resumed at once, and calls and
//! records that no longer match are corrected.

use std::{collections::HashMap, time::Duration};

use futures::future::join_all;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use super::{
    Local,
    running::{DroppedCall, Key},
};
use crate::{
    domain::{Command, Expiry, InstanceId, Release, Span, Timestamp},
    store::{Apply, CommandError, HeldStep, LocalScheduler, Store, StoreError},
};

const BATCH: usize = 500;
/// The wait between tries to confirm a drop while the store cannot commit.
const CONFIRM_AGAIN: Duration = Duration::from_millis(200);
/// How long a claim may take from its commit to the start of its call.
pub(super) const START_WITHIN: Duration = Duration::from_secs(1);

/// Hands back all steps that an earlier process left running: in a store that others share, those of
/// this instance's id; else all. To be called once the instance has its lease, and before anything is
/// claimed.
pub async fn resume_interrupted(local: &Local, store: &Store) -> Result<(), StoreError> {
    let own = store.is_shared.then(|| local.instance());
    // All of them are read before the first is handed back: what is claimed from then on is this process's own.
    let orphans = match processing(own, store).await {
        Err(error) if error.is_damage() => {
            warn!(%error, "could not find the steps that were running when the last process ended; the supervisor will recover them");
            Vec::new()
        }
        orphans => orphans?,
    };
    for orphans in orphans.chunks(BATCH) {
        let orphans = orphans.iter().map(key).collect();
        release(local, store, orphans, Release::Restart).await;
    }
    for agent in store.housekeeping.queued_agents().await? {
        local.expect_queued(&agent);
    }
    if !orphans.is_empty() {
        info!(
            steps = orphans.len(),
            "resumed the steps that were running when the last process ended"
        );
    }
    Ok(())
}

/// Compares the running calls with the steps that this instance holds in the record, and drops calls that it must
/// drop, see [`reconcile_drops`]. A held step without a running call is released: its claim was saved although the
/// writer got an error, as when a connection breaks during the commit.
pub async fn reconcile(local: &Local, store: &Store) -> Result<(), StoreError> {
    let held = reconcile_drops(local, store).await?;
    let mut strays = held;
    strays.retain(|call| !local.running.contains(*call));
    if strays.is_empty() {
        return Ok(());
    }
    sleep(START_WITHIN).await;
    // From here on no call starts under their attempts, however late its claim is heard of.
    strays.retain(|call| local.running.bar_unknown(*call));
    release(local, store, strays.clone(), Release::NeverStarted).await;
    for call in strays {
        local.running.lift(call);
    }
    Ok(())
}

/// Drops calls by the record. Those whose attempt is over: another instance took the step over while this one
/// was away, or cancelled the task, and the answer would be refused. And those whose task another instance has
/// begun to undo, where the step says so: that is confirmed. Answers what this instance holds by the record.
pub async fn reconcile_drops(local: &Local, store: &Store) -> Result<Vec<Key>, StoreError> {
    // In this order: a call that starts after this is not missed in the record.
    let under_way = local.running.all();
    let held = held(local.instance(), store).await?;
    for call in under_way {
        let (step, attempt) = call.key;
        match held.get(&call.key) {
            None if local.running.abort(call.key) => {
                debug!(task = %step.task, step = step.step.0, attempt = attempt.0,
                    "dropped a call: its attempt is over in the record");
            }
            Some(undoing)
                if *undoing && call.is_dropped_by_undo && local.drop_and_confirm(call.key) =>
            {
                debug!(task = %step.task, step = step.step.0, attempt = attempt.0,
                    "dropped a call: another instance is undoing its task");
            }
            _ => {}
        }
    }
    Ok(held.into_keys().collect())
}

/// Says that a dropped call has ended, once it has. Until that is in the record what undoes the step waits:
/// so it is said again and again while the store is away.
pub(super) async fn confirm(dropped: DroppedCall, local: &Local, store: &Store) {
    let call = dropped.key;
    dropped.over().await;
    end(call, Release::Dropped, local, store).await;
    local.running.lift(call);
}

/// Has the record say that an attempt is over, and tries again while the store is away.
pub(super) async fn end(call: Key, why: Release, local: &Local, store: &Store) {
    let (step, attempt) = call;
    let command = Command::Release {
        step: step.step,
        attempt,
        why,
    };
    insist(call, command, local, store).await;
}

/// Has the record say that an attempt is over whose time has elapsed, where the store's clock was set back so that it will not
/// show that soon: until then the step would look like one whose call never started. Otherwise the supervisor recovers it.
pub(super) async fn give_up(call: Key, complete_by: Timestamp, local: &Local, store: &Store) {
    let now = loop {
        match store.housekeeping.now().await {
            Ok(now) => break now,
            Err(error) if error.may_pass() => sleep(CONFIRM_AGAIN).await,
            Err(_) => return,
        }
    };
    if complete_by <= now + Span::from(START_WITHIN) {
        return;
    }
    let (step, attempt) = call;
    let command = Command::Expire {
        step: step.step,
        attempt,
        cause: Expiry::GivenUp,
    };
    insist(call, command, local, store).await;
}

async fn insist(call: Key, command: Command, local: &Local, store: &Store) {
    let (step, attempt) = call;
    loop {
        let asked = store.apply(Apply {
            task: step.task,
            command: command.clone(),
            by: local.actor().clone(),
            if_version: None,
            idempotency: None,
        });
        match asked.await {
            Ok(_) => break,
            Err(CommandError::Store(error)) if error.may_pass() => sleep(CONFIRM_AGAIN).await,
            Err(error) => {
                debug!(task = %step.task, step = step.step.0, attempt = attempt.0, %error,
                    "a dropped call needed no confirmation");
                break;
            }
        }
    }
}

fn key(held: &HeldStep) -> Key {
    (held.step, held.attempt)
}

/// Whether the task of each is to be undone.
async fn held(instance: &InstanceId, store: &Store) -> Result<HashMap<Key, bool>, StoreError> {
    let held = processing(Some(instance), store).await?;
    Ok(held.iter().map(|held| (key(held), held.undoing)).collect())
}

/// What this instance holds by the record, or with `None` all that is held, in pages: others write meanwhile.
async fn processing(
    instance: Option<&InstanceId>,
    store: &Store,
) -> Result<Vec<HeldStep>, StoreError> {
    let mut held: Vec<HeldStep> = Vec::new();
    loop {
        let after = held.last().map(|last| last.step);
        let page = store.housekeeping.processing(instance, after, BATCH);
        let page = page.await?;
        if page.is_empty() {
            return Ok(held);
        }
        held.extend(page);
    }
}

async fn release(local: &Local, store: &Store, held: Vec<Key>, why: Release) {
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
                warn!(%error, "could not release a step; the supervisor will recover it");
            }
        }
    }
}
