//! Claims from the agent queues: when one grew and a slot is free, when a slot became free and steps are queued,
//! when a delayed step is due, and at every poll, which finds whatever the hints missed.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::Local;
use crate::{
    domain::{AgentName, jittered},
    store::{LocalScheduler, Promoted, Store, StoreError},
};

/// One look in so many goes through the writer although nothing is due: a connection of its that was cut while
/// nobody wrote is found so, and not by the next caller.
const PROMOTE_ANYWAY: u32 = 10;

pub async fn run(local: Arc<Local>, store: Store, poll: Duration, stop: CancellationToken) {
    let mut next_poll = Instant::now();
    let mut looks = 0;
    loop {
        let next_due = local.agent_queues.next_due_at().unwrap_or(next_poll);
        tokio::select! {
            () = stop.cancelled() => return,
            () = local.agent_queues.woken() => {}
            () = sleep_until(next_due.min(next_poll)) => {}
        }
        let polled = next_poll <= Instant::now();
        if polled {
            next_poll = Instant::now() + jittered(poll, rand::random());
        }
        if let Err(error) = look(&local, &store, polled, &mut looks).await {
            warn!(%error, "agent queues could not be read; trying again");
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep_until(next_poll) => {}
            }
        }
    }
}

/// Steps that have come due are enqueued. On a shared store with nothing due that is a read and no transaction: every
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
    let everywhere = local.agent_queues.take_everywhere();
    let is_due = local.agent_queues.take_due();
    if is_due || polled {
        match backlog(store, looks).await {
            Ok(promoted) => {
                for agent in &promoted.agents {
                    local.agent_queues.grew(agent);
                }
                if let Some(due) = promoted.next_due {
                    local
                        .agent_queues
                        .due_in(due.since(store.housekeeping.now().await?));
                }
            }
            Err(error) if error.is_damage() => {
                store.promote_each().await?;
                for agent in store.housekeeping.queued_agents().await? {
                    local.agent_queues.grew(&agent);
                }
            }
            Err(error) => return Err(error),
        }
        store.read_queues_again();
    }
    // A promotion has found all queues already.
    if everywhere && !polled {
        for agent in store.housekeeping.queued_agents().await? {
            local.agent_queues.grew(&agent);
        }
    }
    let queues = local.agent_queues.all();
    let able: Vec<AgentName> = queues
        .into_iter()
        .filter(|agent| local.free(agent) > 0)
        .collect();
    if !able.is_empty() && store.claim_queued(able).await? > 0 {
        // There may be more than one claim takes.
        local.agent_queues.look_again();
    }
    Ok(())
}
