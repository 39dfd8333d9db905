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
    store::{LocalScheduler, Store, StoreError},
};

pub async fn run(local: Arc<Local>, store: Store, poll: Duration, stop: CancellationToken) {
    let mut next_poll = Instant::now();
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
        if let Err(error) = look(&local, &store, polled).await {
            warn!(%error, "lines could not be looked at; trying again");
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep_until(next_poll) => {}
            }
        }
    }
}

async fn look(local: &Local, store: &Store, polled: bool) -> Result<(), StoreError> {
    let everywhere = local.lines.take_everywhere();
    let is_due = local.lines.take_due();
    if is_due || polled {
        match store.promote().await {
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
