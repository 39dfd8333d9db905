//! Reconciles the calls of this instance with the store: steps of a crashed process are resumed at once, and
//! differences between the calls and the store are corrected.

use std::{collections::HashMap, time::Duration};

use futures::future::join_all;
use tracing::{debug, info, warn};

use super::{
    Local,
    running::{DroppedCall, Key},
};
use crate::{
    clock::sleep,
    domain::{
        task::{Command, Expiry, Release},
        values::{InstanceId, Span, Timestamp},
    },
    store::{Apply, CommandError, HeldStep, LocalScheduler, Store, StoreError},
};

const BATCH: usize = 500;
/// The wait before a drop is confirmed again while the store cannot commit.
const CONFIRM_AGAIN: Duration = Duration::from_millis(200);
/// The longest time from the commit of a claim to the start of its call.
pub(super) const START_WITHIN: Duration = Duration::from_secs(1);

/// Releases all steps that an earlier process left running: in a shared store those of this instance's id, otherwise
/// all. Must be called after the instance has got its lease, and before anything is claimed.
pub async fn resume_interrupted(local: &Local, store: &Store) -> Result<(), StoreError> {
    let own = store.is_shared.then(|| local.instance());
    // All steps are read before the first is released, because steps that are claimed after that belong to this
    // process.
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

/// Compares the running calls with the steps that this instance holds in the store, and drops calls, see
/// [`reconcile_drops`]. A held step without a running call is released: its claim was saved although the writer got an
/// error, as when a connection breaks during the commit.
pub async fn reconcile(local: &Local, store: &Store) -> Result<(), StoreError> {
    let held = reconcile_drops(local, store).await?;
    let mut strays = held;
    strays.retain(|call| !local.running.contains(*call));
    if strays.is_empty() {
        return Ok(());
    }
    sleep(START_WITHIN).await;
    // From here on no call starts for these attempts, even if the report of its claim comes late.
    strays.retain(|call| local.running.bar_unknown(*call));
    release(local, store, strays.clone(), Release::NeverStarted).await;
    for call in strays {
        local.running.lift(call);
    }
    Ok(())
}

/// Drops the calls that do not match the store. A call whose attempt is over is dropped, because its reply would be
/// refused: another instance took the step over while this one was away, or cancelled the task. A call whose task
/// another instance has begun to undo is dropped if the definition of the step says so, and one whose attempt is withdrawn in
/// any case; the drop is confirmed. Returns the attempts that this instance holds in the store.
pub async fn reconcile_drops(local: &Local, store: &Store) -> Result<Vec<Key>, StoreError> {
    // The running calls are listed before the store is read, so that a call which starts later is not missed there.
    let under_way = local.running.all();
    let held = held(local.instance(), store).await?;
    for call in under_way {
        let (step, attempt) = call.key;
        match held.get(&call.key) {
            None if local.running.abort(call.key) => {
                debug!(task = %step.task, step = step.step.0, attempt = attempt.0,
                    "dropped a call: its attempt is over in the record");
            }
            Some(held)
                if held.is_to_be_dropped(call.dropped_by) && local.drop_and_confirm(call.key) =>
            {
                debug!(task = %step.task, step = step.step.0, attempt = attempt.0,
                    "dropped a call: another instance is undoing its task, or has withdrawn the attempt");
            }
            _ => {}
        }
    }
    Ok(held.into_keys().collect())
}

/// Confirms the drop of a call after the call has ended. The undo of the step waits for that, so the confirmation is
/// repeated while the store is away.
pub(super) async fn confirm(dropped: DroppedCall, local: &Local, store: &Store) {
    let call = dropped.key;
    dropped.over().await;
    end(call, Release::Dropped, local, store).await;
    local.running.lift(call);
}

/// Records that an attempt is over, and repeats that while the store is away.
pub(super) async fn end(call: Key, why: Release, local: &Local, store: &Store) {
    let (step, attempt) = call;
    let command = Command::Release {
        step: step.step,
        attempt,
        why,
    };
    apply_until_saved(call, command, local, store).await;
}

/// Records that an attempt has passed its complete-by, if the clock of the store was set back and the store would
/// notice that only later. Until then the step would look like one whose call never started. Otherwise the supervisor
/// recovers it.
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
    apply_until_saved(call, command, local, store).await;
}

async fn apply_until_saved(call: Key, command: Command, local: &Local, store: &Store) {
    let (step, attempt) = call;
    loop {
        let asked = store.apply(Apply::new(
            step.task,
            command.clone(),
            local.actor().clone(),
        ));
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

/// Returns the attempts that the instance holds.
async fn held(instance: &InstanceId, store: &Store) -> Result<HashMap<Key, HeldStep>, StoreError> {
    let held = processing(Some(instance), store).await?;
    Ok(held.into_iter().map(|held| (key(&held), held)).collect())
}

/// Returns the steps that the instance holds in the store, or all held steps if it is `None`. They are read in pages,
/// because other writers work meanwhile.
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
        store.apply(Apply::new(
            step.task,
            Command::Release {
                step: step.step,
                attempt,
                why,
            },
            local.actor().clone(),
        ))
    });
    for outcome in join_all(released).await {
        match outcome {
            Ok(_) => {}
            // The attempt ended in the meantime.
            Err(CommandError::Refused { .. }) => {}
            Err(error) => {
                warn!(%error, "could not release a step; the supervisor will recover it");
            }
        }
    }
}
