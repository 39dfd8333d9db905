//! Claims from the agents' lines: when one grew and there is a free place, when a place became free
//! and there is a line, when a delayed step is due, and at every poll, which is the truth behind
//! the rest.

use std::{sync::Arc, time::Duration};

use rand::RngExt;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::Local;
use crate::{
    domain::AgentName,
    store::{LocalScheduler, Promoted, Store, StoreError},
};

/// One look in so many goes through the writer although nothing is due: a connection of its that was cut while
/// nobody wrote is found so, and not by the next caller.
const PROMOTE_ANYWAY: u32 = 10;

pub async fn run(local: Arc<Local>, store: Store, poll: Duration, stop: CancellationToken) {
    let mut next_poll = Instant::now();
    let mut looks = 0;
    loop {
        let next_due = local.lines.next_due_at().unwrap_or(next_poll);
        tokio::select! {
            () = stop.cancelled() => return,
            () = local.lines.woken() => {}
            () = sleep_until(next_due.min(next_poll)) => {}
        }
        let polled = next_poll <= Instant::now();
        if polled {
            // Jitter, so that instances on one store do not all look at once.
            let jitter = rand::rng().random_range(0.75..1.25);
            next_poll = Instant::now() + poll.mul_f64(jitter);
        }
        if let Err(error) = look(&local, &store, polled, &mut looks).await {
            warn!(%error, "lines could not be looked at; trying again");
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep_until(next_poll) => {}
            }
        }
    }
}

/// What has come due joins its line. On a shared store with nothing due that is a read and no transaction: every
/// instance asks, every second.
async fn backlog(store: &Store, looks: &mut u32) -> Result<Promoted, StoreError> {
    *looks = looks.wrapping_add(1);
    if !store.is_shared || looks.is_multiple_of(PROMOTE_ANYWAY) {
        return store.promote().await;
    }
    let found = store.housekeeping.backlog().await?;
    let now = store.housekeeping.now().await?;
    match found.next_due.is_some_and(|due| due <= now) {
        true => store.promote().await,
        false => Ok(found),
    }
}

async fn look(
    local: &Local,
    store: &Store,
    polled: bool,
    looks: &mut u32,
) -> Result<(), StoreError> {
    let everywhere = local.lines.take_everywhere();
    let is_due = local.lines.take_due();
    if is_due || polled {
        match backlog(store, looks).await {
            Ok(promoted) => {
                for agent in &promoted.agents {
                    local.lines.grew(agent);
                }
                if let Some(due) = promoted.next_due {
                    local
                        .lines
                        .due_in(due.since(store.housekeeping.now().await?));
                }
            }
            Err(error) if error.is_damage() => {
                store.promote_each().await?;
                for agent in store.housekeeping.lines().await? {
                    local.lines.grew(&agent);
                }
            }
            Err(error) => return Err(error),
        }
    }
    // A promotion has found all lines already.
    if everywhere && !polled {
        for agent in store.housekeeping.lines().await? {
            local.lines.grew(&agent);
        }
    }
    let lines = local.lines.all();
    let able: Vec<AgentName> = lines
        .into_iter()
        .filter(|agent| local.free(agent) > 0)
        .collect();
    if !able.is_empty() && store.claim_lines(able).await? > 0 {
        // There may be more than one claim takes.
        local.lines.look_again();
    }
    Ok(())
}
