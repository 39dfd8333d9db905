//! The heads of the agent queues, as this process knows them. See [`KnownQueue`].

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::{
    domain::{AgentName, KnownQueue, QueuedStep, StepRef, Timestamp},
    store::batch::TaskChange,
};

/// The most queues that are known.
const MOST: usize = 1000;

#[derive(Default)]
pub(super) struct KnownQueues(Mutex<HashMap<AgentName, KnownQueue>>);

/// What reading a queue has shown.
pub(super) struct FoundQueue {
    pub agent: AgentName,
    pub steps: Vec<QueuedStep>,
    /// Those are all.
    pub is_whole: bool,
}

/// What a batch has done with queues.
#[derive(Default)]
pub(super) struct ClaimedSteps {
    /// The queues that were read.
    pub found: Vec<FoundQueue>,
    /// Queued steps that do not wait for a slot any more.
    pub gone: Vec<(AgentName, StepRef)>,
    /// The agents whose queues were read whole and are empty now.
    pub drained: Vec<AgentName>,
}

impl KnownQueues {
    /// Whether the next claim from one of these queues reads the record.
    pub fn need_read(&self, agents: &[AgentName]) -> bool {
        let heads = self.0.lock();
        agents
            .iter()
            .any(|agent| !heads.get(agent).is_some_and(KnownQueue::is_usable))
    }

    /// Visits each queue that can be claimed from without reading the record.
    pub fn known(&self, mut visit: impl FnMut(&AgentName, &KnownQueue)) {
        for (agent, head) in &*self.0.lock() {
            if head.is_known() {
                visit(agent, head);
            }
        }
    }

    pub fn is_usable(&self, agent: &AgentName) -> bool {
        self.0.lock().get(agent).is_some_and(KnownQueue::is_usable)
    }

    /// Before the next claims all queues are read.
    pub fn doubt_all(&self) {
        self.0.lock().values_mut().for_each(KnownQueue::doubt);
    }

    /// Before the next claims from these queues they are read.
    pub fn doubt(&self, agents: &[AgentName]) {
        let mut heads = self.0.lock();
        for agent in agents {
            if let Some(head) = heads.get_mut(agent) {
                head.doubt();
            }
        }
    }

    /// A batch is saved. Returns the agents whose queues it has drained.
    pub fn saved(
        &self,
        claims: ClaimedSteps,
        changes: &[TaskChange],
        is_shared: bool,
        now: Timestamp,
    ) -> Vec<AgentName> {
        let mut heads = self.0.lock();
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
            let (task, priority) = (change.task.id(), change.task.details.priority);
            for step in &change.steps {
                let agent = change.task.definition(*step).agent();
                let is_queued = change.task.due_at(*step).is_some_and(|due| due <= now);
                let step = StepRef { task, step: *step };
                if is_queued {
                    if let Some(head) = head_of(&mut heads, agent) {
                        head.add(step, priority);
                    }
                } else if let Some(head) = heads.get_mut(agent) {
                    head.remove(step, priority);
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

/// `None` where there is no room for one more: such a queue is read each time.
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
