//! The heads of the agent queues, as this process knows them. See [`KnownQueue`].

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;

use crate::{
    domain::{
        queue::{KnownQueue, LaneRing, QueuedStep, StepKey, is_limited_lane},
        values::{AgentName, StepRef, Timestamp},
    },
    store::batch::TaskChange,
};

/// The most queues whose heads are kept.
const MOST: usize = 1000;

/// The most waiting lanes that are kept, to be visited when a step of their key ends. Others are found in the record.
const MOST_WAITING: usize = 4096;

#[derive(Default)]
pub(super) struct KnownQueues {
    heads: Mutex<HashMap<AgentName, KnownQueue>>,
    /// The rings of the queues that are divided into lanes.
    rings: Mutex<HashMap<AgentName, LaneRing>>,
    /// The agents in whose queues there are steps that workflows limit. As long as there are, the queue is claimed from
    /// by lanes, although the agent has no rule of its own.
    limited: Mutex<HashSet<AgentName>>,
    limited_count: AtomicUsize,
    /// Lanes that wait until a step of one of their keys ends, by the id of the key.
    waiting: Mutex<WaitingLanes>,
}

#[derive(Default)]
struct WaitingLanes {
    of_keys: HashMap<String, HashSet<(AgentName, Arc<str>)>>,
    count: usize,
}

/// The steps that were found in a queue.
pub(super) struct FoundQueue {
    pub agent: AgentName,
    pub steps: Vec<QueuedStep>,
    /// True if these are all steps of the queue.
    pub is_whole: bool,
}

/// The changes that a batch has made to queues.
#[derive(Default)]
pub(super) struct ClaimedSteps {
    /// The queues that were read.
    pub found: Vec<FoundQueue>,
    /// Queued steps that do not wait for a slot any more.
    pub gone: Vec<(AgentName, StepRef)>,
    /// The agents whose queues were read completely and are empty now.
    pub drained: Vec<AgentName>,
}

impl KnownQueues {
    /// Returns whether the queue is known to contain steps that workflows limit. Takes no lock if no queue does.
    pub fn is_limited(&self, agent: &AgentName) -> bool {
        self.limited_count.load(Ordering::Acquire) > 0 && self.limited.lock().contains(agent)
    }

    /// Notes that the queue contains steps that workflows limit.
    pub fn limit(&self, agent: &AgentName) {
        let mut limited = self.limited.lock();
        if limited.insert(agent.clone()) {
            self.limited_count.store(limited.len(), Ordering::Release);
        }
    }

    /// Notes that the queue contains no such step any more.
    pub fn unlimit(&self, agent: &AgentName) {
        let mut limited = self.limited.lock();
        if limited.remove(agent) {
            self.limited_count.store(limited.len(), Ordering::Release);
            self.rings.lock().remove(agent);
        }
    }

    /// Notes that no step of this lane may begin until one of a key ends.
    pub fn wait_for_keys(&self, agent: &AgentName, lane: &Arc<str>, keys: &[StepKey]) {
        let mut waiting = self.waiting.lock();
        let WaitingLanes { of_keys, count } = &mut *waiting;
        for key in keys.iter().filter(|key| key.max_in_flight.is_some()) {
            if *count >= MOST_WAITING {
                // Some lanes may wait no longer, and no step that this instance knows of would ever report that.
                of_keys.clear();
                *count = 0;
            }
            let lanes = of_keys.entry(key.id.clone()).or_default();
            *count += usize::from(lanes.insert((agent.clone(), lane.clone())));
        }
    }

    /// Notes that steps of these keys have ended. Returns the agents for which other steps may begin now.
    pub fn freed_keys(&self, keys: &[StepKey]) -> HashSet<AgentName> {
        let mut woken = HashSet::new();
        let mut waiting = self.waiting.lock();
        let lanes: Vec<_> = keys
            .iter()
            .filter_map(|key| waiting.of_keys.remove(&key.id))
            .collect();
        waiting.count -= lanes.iter().map(HashSet::len).sum::<usize>();
        drop(waiting);
        let mut rings = self.rings.lock();
        for (agent, lane) in lanes.into_iter().flatten() {
            if let Some(ring) = rings.get_mut(&agent) {
                ring.add(&lane);
                woken.insert(agent);
            }
        }
        woken
    }

    /// Returns whether the next claim from one of these queues reads the record.
    pub fn need_read(&self, agents: &[AgentName]) -> bool {
        if agents.iter().any(|agent| self.is_limited(agent)) {
            return true;
        }
        let heads = self.heads.lock();
        agents
            .iter()
            .any(|agent| !heads.get(agent).is_some_and(KnownQueue::is_usable))
    }

    /// Visits each queue that can be claimed from without reading the record.
    pub fn known(&self, mut visit: impl FnMut(&AgentName, &KnownQueue)) {
        for (agent, head) in &*self.heads.lock() {
            if head.is_known() {
                visit(agent, head);
            }
        }
    }

    /// Returns whether steps may be queued that this instance has enqueued.
    pub fn has_own(&self, agent: &AgentName) -> bool {
        let heads = self.heads.lock();
        heads.get(agent).is_some_and(|head| !head.is_empty())
    }

    pub fn is_usable(&self, agent: &AgentName) -> bool {
        self.heads
            .lock()
            .get(agent)
            .is_some_and(KnownQueue::is_usable)
    }

    /// Calls `see` with the lanes of a queue.
    pub fn with_lanes<T>(&self, agent: &AgentName, see: impl FnOnce(&mut LaneRing) -> T) -> T {
        see(self.rings.lock().entry(agent.clone()).or_default())
    }

    /// Removes the known head of a queue that is divided into lanes now, because it is not used any more.
    pub fn forget(&self, agent: &AgentName) {
        self.heads.lock().remove(agent);
    }

    /// Makes the next claims read all queues.
    pub fn require_read_of_all(&self) {
        self.rings
            .lock()
            .values_mut()
            .for_each(LaneRing::require_read);
        self.heads
            .lock()
            .values_mut()
            .for_each(KnownQueue::require_read);
    }

    /// Makes the next claims from these queues read them.
    pub fn require_read(&self, agents: &[AgentName]) {
        let mut rings = self.rings.lock();
        for agent in agents {
            if let Some(ring) = rings.get_mut(agent) {
                ring.require_read();
            }
        }
        drop(rings);
        let mut heads = self.heads.lock();
        for agent in agents {
            if let Some(head) = heads.get_mut(agent) {
                head.require_read();
            }
        }
    }

    /// Updates the known queues after a batch was saved. Returns the agents whose queues it has made empty.
    pub fn saved(
        &self,
        claims: ClaimedSteps,
        changes: &[TaskChange],
        is_shared: bool,
        now: Timestamp,
    ) -> Vec<AgentName> {
        for agent in &claims.drained {
            self.unlimit(agent);
        }
        let mut heads = self.heads.lock();
        for found in &claims.found {
            if let Some(head) = head_of(&mut heads, &found.agent) {
                match is_shared {
                    true => head.compare(&found.steps, now),
                    false => head.replace(&found.steps, found.is_whole),
                }
            }
        }
        for (agent, step) in &claims.gone {
            if let Some(head) = heads.get_mut(agent) {
                head.remove_first(*step);
            }
        }
        for change in changes {
            let (task, turn) = (change.task.id(), change.task.turn());
            for step in &change.steps {
                let Some(agent) = change.task.definition(*step).agent() else {
                    continue;
                };
                let lane = change.lane(*step);
                if is_limited_lane(lane) {
                    self.limit(agent);
                }
                if !lane.is_empty() || self.is_limited(agent) {
                    self.with_lanes(agent, |ring| ring.add(lane));
                    continue;
                }
                let is_queued = change.task.due_at(*step).is_some_and(|due| due <= now);
                let step = StepRef { task, step: *step };
                if is_queued {
                    if let Some(head) = head_of(&mut heads, agent) {
                        head.add(step, turn);
                    }
                } else if let Some(head) = heads.get_mut(agent) {
                    head.remove(step, turn);
                }
            }
        }
        let mut drained = claims.drained;
        if !is_shared {
            let is_drained =
                |agent: &AgentName| heads.get(agent).is_some_and(KnownQueue::is_drained);
            let claimed = claims.gone.into_iter().map(|(agent, _)| agent);
            drained.extend(claimed.filter(is_drained));
            drained.sort_unstable();
            drained.dedup();
        }
        drained
    }
}

/// Returns the known head of a queue, which is created if necessary. Returns `None` if there is no room for one more:
/// such a queue is read each time.
fn head_of<'h>(
    heads: &'h mut HashMap<AgentName, KnownQueue>,
    agent: &AgentName,
) -> Option<&'h mut KnownQueue> {
    if !heads.contains_key(agent) {
        if heads.len() >= MOST {
            heads.retain(|_, head| !head.is_drained());
        }
        if heads.len() >= MOST {
            return None;
        }
        heads.insert(agent.clone(), KnownQueue::default());
    }
    heads.get_mut(agent)
}
