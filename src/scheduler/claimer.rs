//! Claims steps from the agent queues: when a queue grew and a slot is free, when a slot became free and steps are
//! queued, when a delayed step is due, and at every poll, which finds the steps that the hints missed. Where no steps
//! are known to be queued, polls are rare: the supervising instance looks every second.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::Local;
use crate::{
    chance,
    clock::{self, Instant, sleep_until},
    domain::{
        queue::LEFT_TO_OTHERS,
        values::{AgentName, Backoff, idle, jittered},
    },
    store::{LocalScheduler, Promoted, Store, StoreError},
};

/// After this time a look uses the writer although nothing is due. If the connection of the writer was cut while
/// nothing was written, the look notices it, so that the next caller does not.
const PROMOTE_ANYWAY: Duration = Duration::from_secs(30);

/// The wait before due steps whose tasks are locked by other sessions are looked at again. Locks are mostly held for a
/// few milliseconds, but a session that hangs may hold one for seconds.
const LOCKED_AGAIN: Backoff = Backoff::doubling(Duration::from_millis(10), Duration::from_secs(1));

/// The number of looks in vain that follow each other at once, and the wait between those after them. A look in vain found that
/// the steps of a known head could not be claimed, and nothing else was claimed since the look before.
const AT_ONCE: u32 = 3;
const IN_VAIN_AGAIN: Backoff =
    Backoff::doubling(Duration::from_millis(5), Duration::from_millis(100));

/// The wait before the next look at a queue in which every step was left to other instances.
const LEFT_AGAIN: Backoff = Backoff::doubling(LEFT_TO_OTHERS.duration(), Duration::from_secs(1));

/// A queue that was not looked at for this time is treated as new.
const FORGET_AFTER: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
pub struct ClaimerSettings {
    pub poll: Duration,
    /// True if this instance is notified of steps that others enqueue.
    pub is_notified: bool,
}

struct Promotions {
    /// The time of the last promotion through the writer.
    at: Instant,
    /// The number of promotions in a row that found only locked tasks.
    found_locked: u32,
    /// The number of looks in vain in a row.
    in_vain: u32,
    /// The number of claims of this instance at the last look.
    claims: u64,
}

/// The queues in which all steps are left to other instances for now.
#[derive(Default)]
struct LeftQueues(HashMap<AgentName, LeftQueue>);

struct LeftQueue {
    looks: u32,
    next_check: Instant,
}

impl LeftQueues {
    /// Returns the first look that is due after `looked_at`. A look that was due by then and was not made waits for
    /// slots.
    fn next_check(&self, looked_at: Instant) -> Option<Instant> {
        let looks = self.0.values().map(|queue| queue.next_check);
        looks.filter(|look| *look > looked_at).min()
    }

    fn may_check(&self, agent: &AgentName, now: Instant) -> bool {
        (self.0.get(agent)).is_none_or(|queue| queue.next_check <= now)
    }

    fn found(&mut self, agent: &AgentName) {
        self.0.remove(agent);
    }

    fn forget_old(&mut self, now: Instant) {
        self.0
            .retain(|_, queue| now < queue.next_check + FORGET_AFTER);
    }

    /// Notes that no step was claimed from a queue. If the queue `is_empty`, the waits begin again, because the next
    /// step may be for this instance.
    fn leave(&mut self, agent: AgentName, is_empty: bool, now: Instant) {
        let before = self.0.get(&agent).filter(|_| !is_empty);
        let looks = before.map_or(0, |queue| queue.looks) + 1;
        let next_look = now + LEFT_AGAIN.wait(looks);
        self.0.insert(
            agent,
            LeftQueue {
                looks,
                next_check: next_look,
            },
        );
    }
}

pub async fn run(
    local: Arc<Local>,
    store: Store,
    settings: ClaimerSettings,
    stop: CancellationToken,
) {
    let poll = settings.poll;
    let mut polled_at: Option<Instant> = None;
    let mut promotions = Promotions {
        at: clock::instant(),
        found_locked: 0,
        in_vain: 0,
        claims: 0,
    };
    let mut left = LeftQueues::default();
    let mut looked_at = clock::instant();
    let mut chance = chance::random();
    loop {
        let is_idle = settings.is_notified && local.agent_queues.is_empty();
        let interval = if is_idle { idle(poll) } else { poll };
        let next_poll = match polled_at {
            Some(polled_at) => polled_at + jittered(interval, chance),
            None => clock::instant(),
        };
        let next_due = local.agent_queues.next_due_at().unwrap_or(next_poll);
        let next_look = left.next_check(looked_at).unwrap_or(next_poll);
        tokio::select! {
            () = stop.cancelled() => return,
            () = local.agent_queues.wait_for_wake() => {}
            () = sleep_until(next_due.min(next_look).min(next_poll)) => {}
        }
        let polled = next_poll <= clock::instant();
        if polled {
            polled_at = Some(clock::instant());
            chance = chance::random();
        }
        looked_at = clock::instant();
        let looked = check_queues(
            &local,
            &store,
            polled,
            looked_at,
            &mut promotions,
            &mut left,
        );
        if let Err(error) = looked.await {
            warn!(%error, "agent queues could not be read; trying again");
            let again = clock::instant() + jittered(poll, chance);
            // The next round polls everything, because the error may be of any part.
            polled_at = None;
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep_until(again) => {}
            }
        }
    }
}

/// Enqueues the steps that have come due. On a shared store with nothing due this is a read without a transaction,
/// because every instance asks.
async fn backlog(store: &Store, promoted_at: &mut Instant) -> Result<Promoted, StoreError> {
    if !store.is_shared || promoted_at.elapsed() >= PROMOTE_ANYWAY {
        *promoted_at = clock::instant();
        return store.promote().await;
    }
    let found = store.housekeeping.backlog().await?;
    let now = store.housekeeping.now().await?;
    match found.next_due.is_some_and(|due| due <= now) {
        true => store.promote().await,
        false => Ok(found),
    }
}

async fn check_queues(
    local: &Local,
    store: &Store,
    polled: bool,
    now: Instant,
    promotions: &mut Promotions,
    left: &mut LeftQueues,
) -> Result<(), StoreError> {
    let everywhere = local.agent_queues.take_everywhere();
    let is_due = local.agent_queues.take_due();
    if is_due || polled {
        match backlog(store, &mut promotions.at).await {
            Ok(promoted) => {
                for agent in &promoted.agents {
                    local.agent_queues.note_queued(agent);
                }
                if promoted.is_locked {
                    promotions.found_locked += 1;
                    let again = LOCKED_AGAIN.wait(promotions.found_locked);
                    local.agent_queues.due_in(again);
                } else {
                    promotions.found_locked = 0;
                    if let Some(due) = promoted.next_due {
                        local
                            .agent_queues
                            .due_in(due.since(store.housekeeping.now().await?));
                    }
                }
            }
            Err(error) if error.is_damage() => {
                store.promote_each().await?;
                for agent in store.housekeeping.queued_agents().await? {
                    local.agent_queues.note_queued(&agent);
                }
            }
            Err(error) => return Err(error),
        }
        store.read_queues_again();
    }
    // A promotion has already found all queues.
    if everywhere && !polled {
        for agent in store.housekeeping.queued_agents().await? {
            local.agent_queues.note_queued(&agent);
        }
    }
    // A delayed step that has come due is in the known head of no instance, so it is left to none.
    let leaves_some = !is_due && !polled;
    if !leaves_some {
        left.0.clear();
    }
    let queues = local.agent_queues.all();
    let able: Vec<AgentName> = queues
        .into_iter()
        .filter(|agent| local.free(agent) > 0)
        .collect();
    // In queues of the other agents, a new step of another instance waits at first for the slots of that instance. But
    // the only worker of an agent may wait here.
    let fetched = able.iter().filter(|agent| local.has_waiting_worker(agent));
    store.read_shared_queues_again(&fetched.cloned().collect::<Vec<_>>());
    let (known, unknown): (Vec<_>, Vec<_>) =
        able.into_iter().partition(|agent| store.knows_head(agent));
    let (left_to_others, mut read): (Vec<_>, Vec<_>) = unknown.into_iter().partition(|agent| {
        leaves_some && store.leaves_to_others(agent) && local.leaves_to_others(agent)
    });
    left.forget_old(now);
    let due = left_to_others.into_iter();
    let due: Vec<_> = due.filter(|agent| left.may_check(agent, now)).collect();
    read.extend(due.iter().cloned());
    if read.is_empty() && known.is_empty() {
        return Ok(());
    }
    // Every batch of the writer claims from the heads that are known.
    let claimed = match leaves_some {
        true => store.claim_queued(read).await?,
        false => store.claim_all_queued(read).await?,
    };
    if claimed > 0 {
        promotions.in_vain = 0;
        due.iter().for_each(|agent| left.found(agent));
        // There may be more steps than one claim takes.
        local.agent_queues.check_again();
        return Ok(());
    }
    for agent in due {
        let is_empty = !local.has_queued(&agent);
        left.leave(agent, is_empty, now);
    }
    if known.iter().any(|agent| !store.knows_head(agent)) {
        // The known steps have been claimed, and the store may have more; or they cannot be claimed yet, such as those of a
        // task whose time is over and that the supervisor has not ended.
        let claims = local.agent_queues.claims();
        promotions.in_vain = match claims == promotions.claims {
            true => promotions.in_vain + 1,
            false => 0,
        };
        promotions.claims = claims;
        match promotions.in_vain.checked_sub(AT_ONCE) {
            None => local.agent_queues.check_again(),
            Some(looks) => local.agent_queues.due_in(IN_VAIN_AGAIN.wait(looks + 1)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_whose_steps_are_left_to_others_is_looked_at_ever_less_often() {
        let mut left = LeftQueues::default();
        let agent = AgentName::new("payments");
        let mut now = clock::instant();
        assert!(left.may_check(&agent, now));
        let mut waits = Vec::new();
        for _ in 0..8 {
            left.leave(agent.clone(), false, now);
            assert!(!left.may_check(&agent, now));
            let next_look = left.0[&agent].next_check;
            waits.push((next_look - now).as_millis());
            now = next_look;
            assert!(left.may_check(&agent, now));
        }
        assert_eq!(waits, [25, 50, 100, 200, 400, 800, 1000, 1000]);
        left.forget_old(now + FORGET_AFTER / 2);
        left.leave(agent.clone(), false, now);
        assert!(!left.may_check(&agent, now + Duration::from_millis(900)));
        left.found(&agent);
        assert!(left.may_check(&agent, now));
        left.leave(agent.clone(), false, now);
        left.forget_old(now + 2 * FORGET_AFTER);
        assert!(left.0.is_empty());
    }

    #[test]
    fn a_look_that_came_due_is_made_once_and_then_when_a_slot_is_free() {
        let mut left = LeftQueues::default();
        let looked_at = clock::instant();
        left.leave(AgentName::new("payments"), false, looked_at);
        let due = looked_at + LEFT_TO_OTHERS.duration();
        // The time that the claim of that look has taken does not matter.
        assert_eq!(left.next_check(looked_at), Some(due));
        assert_eq!(left.next_check(due), None);
    }

    #[test]
    fn a_queue_that_was_empty_is_looked_at_again_soon() {
        let mut left = LeftQueues::default();
        let (agent, now) = (AgentName::new("payments"), clock::instant());
        for is_empty in [false, false, false, true] {
            left.leave(agent.clone(), is_empty, now);
        }
        assert!(left.may_check(&agent, now + LEFT_TO_OTHERS.duration()));
    }
}
