//! The scheduler takes pending steps for agents with free capacity and has them called.
//!
//! Most steps never pass through here as pending: the writer claims them in the transaction that made
//! them ready, through [`Local`]. A step that found no free slot stays in its agent's queue, and the
//! [`claimer`] takes it from there. The [`dispatcher`] runs the calls of every saved claim.

mod agent_queues;
mod call;
mod claimer;
mod dispatcher;
mod recovery;
mod running;
#[cfg(test)]
mod tests;
mod work_requests;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::future::try_join_all;
use tokio::sync::{Semaphore, mpsc};
use tracing::debug;

pub use claimer::{ClaimerSettings, run as run_claimer};
pub use dispatcher::Dispatcher;
pub use recovery::{reconcile, reconcile_drops, resume_interrupted};
pub use work_requests::{FetchedSteps, WorkRequest};

use self::{
    agent_queues::AgentQueues,
    running::{DroppedCall, Key, Running},
    work_requests::{WorkRequests, WorkerSlot},
};
use crate::{
    agent::{Agents, CallSlot},
    clock::{self, Instant, timeout},
    domain::{
        agent::{AgentMode, PastStop},
        queue::LaneRule,
        task::{Actor, Call},
        values::{AgentName, Attempt, InstanceId, Span, StepRef, Timestamp, WorkerName},
    },
    instance::LocalLease,
    store::{Dispatch, LocalScheduler, SlotPermit, Store, StoreError},
};

/// Most steps reach their worker within this time after the claim, so early that no instance can have ended the
/// attempt.
const AT_ONCE: Duration = Duration::from_millis(20);
/// The longest wait for the look-up of a worker's steps in the store.
const LOOK_UP_WITHIN: Duration = Duration::from_secs(1);
/// The most records that are completed at once with what was sent in calls without a response.
const MOST_NOTES: usize = 32;

/// The part of this instance's scheduler that the writer uses.
pub struct Local {
    instance: InstanceId,
    actor: Actor,
    /// Without a lease nothing is claimed, because other instances would treat the steps as lost.
    local_lease: Arc<LocalLease>,
    agents: Arc<Agents>,
    agent_queues: AgentQueues,
    /// Bounds the records that are completed at once with what was sent in calls without a response.
    notes: Arc<Semaphore>,
    running: Running,
    work_requests: Arc<WorkRequests>,
    work: mpsc::UnboundedSender<Work>,
    start: Instant,
    /// The last time when another instance reported that calls must be dropped, in milliseconds after `start`, plus 1.
    heard_of_drops: AtomicU64,
}

/// The work for the dispatcher. The channel is unbounded, because each claim holds a permit: there are never more
/// calls than twice the slots of the agents, and never more drops than claims.
#[derive(Debug)]
enum Work {
    Call(Vec<Dispatch>),
    /// The call is dropped because its task is being undone. The drop is confirmed once the call has ended.
    Confirm(DroppedCall),
    /// Steps that were claimed for a worker whose request has ended.
    TakeBack(Vec<Key>),
}

pub struct Dispatches(mpsc::UnboundedReceiver<Work>);

impl Local {
    pub fn new(
        instance: InstanceId,
        local_lease: Arc<LocalLease>,
        agents: Arc<Agents>,
    ) -> (Arc<Self>, Dispatches) {
        let (work, receiver) = mpsc::unbounded_channel();
        let taken_back = work.clone();
        let work_requests = WorkRequests::new(Box::new(move |calls: Vec<Call>| {
            let steps = calls.iter().map(|call| (call.step, call.attempt));
            // The send fails only after the dispatcher has ended, at shutdown. The steps expire in this case.
            let _ = taken_back.send(Work::TakeBack(steps.collect()));
        }));
        let local = Arc::new(Self {
            actor: Actor::scheduler(instance.as_str()),
            instance,
            local_lease,
            agents,
            agent_queues: AgentQueues::default(),
            running: Running::default(),
            notes: Arc::new(Semaphore::new(MOST_NOTES)),
            work_requests,
            work,
            start: clock::instant(),
            heard_of_drops: AtomicU64::new(0),
        });
        let weak = Arc::downgrade(&local);
        local.agents.on_freed(Box::new(move |agent: &AgentName| {
            if let Some(local) = weak.upgrade() {
                local.agent_queues.capacity_freed(agent);
            }
        }));
        (local, Dispatches(receiver))
    }

    /// Makes the claimer look at all queues, because another instance may have enqueued steps.
    pub fn check_all_queues(&self) {
        self.agent_queues.check_all();
    }

    /// Returns whether the agent is registered, configured, or the address that a step names.
    pub fn has_agent(&self, agent: &AgentName) -> bool {
        self.agents.get(agent).is_some()
    }

    /// Returns the agents of the configuration file of this instance.
    pub fn configured_agents(&self) -> &BTreeSet<AgentName> {
        self.agents.configured()
    }

    /// Notes that steps are queued for these agents. `is_delayed_due` says that other steps may be due.
    pub fn expect_due(&self, agents: &[AgentName], is_delayed_due: bool) {
        for agent in agents {
            self.agent_queues.note_queued(agent);
        }
        if is_delayed_due {
            self.agent_queues.due_in(Duration::ZERO);
        }
    }

    /// Adds the request of a worker for up to `most` steps of an agent. If other requests wait already, they take
    /// turns.
    pub fn ask_for_work(&self, agent: &AgentName, worker: WorkerName, most: usize) -> WorkRequest {
        self.work_requests.add(agent.clone(), worker, most)
    }

    /// Returns the workers of an agent that have asked for work here, each with the time since then.
    pub fn seen_workers(&self, agent: &AgentName) -> Vec<(WorkerName, Span)> {
        self.work_requests.seen(agent)
    }

    /// Saves the workers that have asked for work since the last save.
    pub async fn save_workers(&self, store: &Store) -> Result<(), StoreError> {
        let seen = self.work_requests.take_seen();
        if seen.is_empty() {
            return Ok(());
        }
        let saved = store.save_workers(seen.clone()).await;
        if saved.is_err() {
            self.work_requests.see_again(&seen);
        }
        saved
    }

    /// Claims queued steps for the workers that wait here.
    pub async fn claim_for_worker(
        &self,
        agent: &AgentName,
        store: &Store,
    ) -> Result<(), StoreError> {
        let claimed = store.claim_all_queued(vec![agent.clone()]).await?;
        if claimed > 0 || self.has_waiting_worker(agent) {
            // There may be more steps. Or other instances have claimed the steps of the known head, and the claimer
            // reads the queue.
            self.agent_queues.check_again();
        }
        Ok(())
    }

    /// Returns the steps that a worker may still get. The response may come long after the claim, because the commit
    /// took long or other steps were being claimed. A worker whose attempt is over by then must not begin, because the
    /// step may already be undone. If the look-up fails, the steps return to the queue.
    pub async fn still_held(&self, fetched: FetchedSteps, store: &Store) -> Vec<Call> {
        if fetched.age() < AT_ONCE {
            return fetched.into_calls();
        }
        let held = |call: &Call| {
            let (step, attempt) = (call.step, call.attempt);
            async move { store.housekeeping.held(step, attempt).await }
        };
        let held = timeout(LOOK_UP_WITHIN, try_join_all(fetched.calls().map(held)));
        let Ok(Ok(held)) = held.await else {
            debug!("could not find out whether steps are still held; no worker gets them");
            return Vec::new();
        };
        let calls = fetched.into_calls().into_iter().zip(held);
        let calls = calls.filter_map(|(call, held)| held.is_some().then_some(call));
        calls.collect()
    }

    /// True if a worker waits here for steps of the agent.
    fn has_waiting_worker(&self, agent: &AgentName) -> bool {
        self.work_requests.free(agent) > 0
    }

    /// True if steps are queued for the agent, as far as this process knows.
    pub fn has_queued(&self, agent: &AgentName) -> bool {
        self.agent_queues.has_queued(agent)
    }

    /// True if workers fetch the steps of the agent, it is not paused, and the instance is not stopping.
    fn is_pulled(&self, agent: &AgentName) -> bool {
        if self.agents.is_closed() {
            return false;
        }
        let known = self.agents.get(agent);
        known.is_some_and(|agent| agent.spec().mode == AgentMode::Pull && !agent.is_paused())
    }

    fn take_for_worker(&self, agent: &AgentName) -> Option<SlotPermit> {
        let slot = self.work_requests.try_take(agent)?;
        if !self.is_pulled(agent) {
            return None;
        }
        let worker = slot.worker.clone();
        Some(SlotPermit::for_worker(slot, worker))
    }

    /// True if no call is running or about to start.
    pub fn is_at_rest(&self) -> bool {
        self.running.len() == 0
    }

    /// Notes that another instance may require this one to drop calls. From now on no call starts before the store has
    /// confirmed its attempt, until [`reconcile_drops`] has run.
    pub fn hear_of_drops(&self) {
        let now = self.millis(clock::instant()).saturating_add(1);
        self.heard_of_drops.store(now, Ordering::Release);
    }

    /// Notes that other instances have changed their shares of the slots of an agent.
    pub fn hear_of_slots(&self) {
        self.agents.hear_of_slots();
    }

    fn has_heard_of_drops_since(&self, then: Instant) -> bool {
        self.heard_of_drops.load(Ordering::Acquire) > self.millis(then)
    }

    fn millis(&self, at: Instant) -> u64 {
        let millis = at.saturating_duration_since(self.start).as_millis();
        u64::try_from(millis).unwrap_or(u64::MAX)
    }

    /// Drops the call of a step whose task is being undone, and has the drop confirmed. Returns false if the call is
    /// not known.
    fn drop_and_confirm(&self, call: Key) -> bool {
        let Some(dropped) = self.running.bar(call) else {
            return false;
        };
        // The send fails only after the dispatcher has ended, at shutdown, which releases the step.
        let _ = self.work.send(Work::Confirm(dropped));
        true
    }

    fn may_claim(&self) -> bool {
        self.local_lease.may_claim(clock::instant())
    }

    fn free_of(&self, agent: &AgentName, called: fn(&Agents, &AgentName) -> usize) -> usize {
        if !self.may_claim() {
            return 0;
        }
        match self.work_requests.free(agent) {
            waiting if waiting > 0 && self.is_pulled(agent) => waiting,
            _ => called(&self.agents, agent),
        }
    }

    /// Makes the claimer look at the queue, which may contain steps.
    pub fn expect_queued(&self, agent: &AgentName) {
        self.agent_queues.note_queued(agent);
    }
}

impl LocalScheduler for Local {
    fn instance(&self) -> &InstanceId {
        &self.instance
    }

    fn actor(&self) -> &Actor {
        &self.actor
    }

    fn try_take(&self, agent: &AgentName) -> Option<SlotPermit> {
        // If the queue is divided into lanes, the store decides which task is next.
        if self.agent_queues.has_queued(agent) || self.lane_rule(agent).is_some() {
            return None;
        }
        self.take_for_queued(agent)
    }

    /// Returns false while a worker waits here, because there may be no other worker; and if the queue is divided into
    /// lanes, where the store decides which task is next.
    fn leaves_to_others(&self, agent: &AgentName) -> bool {
        !self.has_waiting_worker(agent) && self.lane_rule(agent).is_none()
    }

    fn free(&self, agent: &AgentName) -> usize {
        self.free_of(agent, Agents::claimable)
    }

    fn free_slots(&self, agent: &AgentName) -> usize {
        self.free_of(agent, Agents::free)
    }

    fn take_for_queued(&self, agent: &AgentName) -> Option<SlotPermit> {
        if !self.may_claim() {
            return None;
        }
        match self.agents.try_claim(agent) {
            Some(slot) => Some(SlotPermit::for_call(slot)),
            None => self.take_for_worker(agent),
        }
    }

    fn put_back(&self, permit: SlotPermit) {
        if let Some(CallSlot::Free(slot)) = permit.into_slot() {
            slot.release();
        }
    }

    fn queue_drained(&self, agent: &AgentName) {
        self.agent_queues.drained(agent);
    }

    fn reply_closed(&self, agent: &AgentName) {
        self.agents.closed_open(agent);
    }

    fn has_lanes(&self) -> bool {
        self.agents.has_lanes()
    }

    fn lane_rule(&self, agent: &AgentName) -> Option<Arc<LaneRule>> {
        self.agents.lane_rule(agent)
    }

    fn past_stop(
        &self,
        agent: &AgentName,
        now: Timestamp,
        instant: Instant,
    ) -> Option<Arc<PastStop>> {
        self.agents.past_stop(agent, now, instant)
    }

    fn lane_freed(&self, agent: &AgentName) {
        self.agent_queues.capacity_freed(agent);
    }

    fn committed(&self, took: Duration) {
        self.agents.committed(took);
    }

    fn claim_later(&self, wait: Duration) {
        self.agent_queues.due_in(wait);
    }

    fn dispatch(&self, mut dispatches: Vec<Dispatch>) {
        self.agent_queues.note_claims(dispatches.len());
        for dispatch in dispatches.extract_if(.., |dispatch| dispatch.permit.is_for_worker()) {
            if let Some(slot) = dispatch.permit.into_slot::<WorkerSlot>() {
                let call = dispatch.call;
                let claimed = dispatch
                    .deadline
                    .checked_sub(call.complete_within.duration());
                slot.deliver(call, claimed.unwrap_or_else(clock::instant));
            }
        }
        if dispatches.is_empty() {
            return;
        }
        let calls = dispatches.iter().map(|dispatch| &dispatch.call);
        self.running
            .queue(calls.map(|call| ((call.step, call.attempt), call.dropped_by)));
        // The send fails only after the dispatcher has ended, at shutdown. The steps are released at the next start.
        let _ = self.work.send(Work::Call(dispatches));
    }

    fn pending(&self, agent: &AgentName, due_at: Timestamp, now: Timestamp) {
        if due_at <= now {
            self.agent_queues.note_queued(agent);
        } else {
            self.agent_queues.due_in(due_at.since(now));
        }
    }

    fn dropped(&self, step: StepRef, attempt: Attempt, confirm: bool) {
        match confirm {
            true => self.drop_and_confirm((step, attempt)),
            false => self.running.abort((step, attempt)),
        };
    }
}
