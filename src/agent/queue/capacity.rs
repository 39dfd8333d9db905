//! The bulkhead limits how many calls of one agent are in flight at once. A slow service fills its own bulkhead and no
//! other. Every claim uses it, so the counters are atomics; only rate limits and claims ahead take a lock.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::{
    gate::{Gate, Wants},
    rate::{RateLimiter, RateUsedUp},
    slots::SlotLimiter,
};
use crate::agent::meters::InFlight;
use crate::{
    clock::{self, Instant, timeout},
    domain::{
        queue::{CallPace, claims_ahead},
        task::Release,
        values::{AgentName, RateLimitSpec},
    },
};

/// The value of `max_open` if the number of awaited replies is not limited.
const UNLIMITED: u32 = u32::MAX;
/// The value of `open` before the awaited replies have been counted. No slot is given out, as if there were too many.
const UNKNOWN: u32 = u32::MAX;

/// The longest that a call that was claimed ahead waits for a slot before its step is queued again.
const SLOT_WITHIN: Duration = Duration::from_millis(100);

pub(in crate::agent) struct Bulkhead {
    agent: AgentName,
    in_flight: AtomicU32,
    max: AtomicU32,
    /// The limit for awaited replies and calls in flight together: each call in flight may become an awaited reply.
    max_open: AtomicU32,
    /// The number of awaited replies. It is kept only if it is limited.
    open: AtomicU32,
    pub rate: RateLimiter,
    /// Notified when the rate limit has refused a call.
    wants: Arc<Notify>,
    /// The share of this process in the slots that all instances share.
    pub slots: SlotLimiter,
    /// Notified when a call found no free slot in this share.
    wants_slots: Arc<Notify>,
    gate: Arc<Gate>,
    gauge: InFlight,
    ahead: ClaimsAhead,
}

/// Calls that were claimed although no slot was free.
struct ClaimsAhead {
    is_allowed: AtomicBool,
    /// The number of calls that were claimed ahead, including those whose claims are still being saved.
    count: AtomicU32,
    /// The number of calls that have ended.
    ended: AtomicU64,
    /// The instant from which the pace measures time.
    start: Instant,
    pace: Mutex<CallPace>,
    /// The calls that wait for a slot, in the order in which their claims were saved.
    waiting: Mutex<VecDeque<oneshot::Sender<Slot>>>,
    waiting_count: AtomicUsize,
}

impl Bulkhead {
    pub fn new(agent: AgentName, max: u32, gate: Arc<Gate>, wants: Wants, gauge: InFlight) -> Self {
        Self {
            agent,
            in_flight: AtomicU32::new(0),
            max: AtomicU32::new(max),
            max_open: AtomicU32::new(UNLIMITED),
            open: AtomicU32::new(UNKNOWN),
            rate: RateLimiter::new(clock::instant()),
            wants: wants.calls,
            slots: SlotLimiter::new(),
            wants_slots: wants.slots,
            gate,
            gauge,
            ahead: ClaimsAhead {
                is_allowed: AtomicBool::new(false),
                count: AtomicU32::new(0),
                ended: AtomicU64::new(0),
                start: clock::instant(),
                pace: Mutex::default(),
                waiting: Mutex::default(),
                waiting_count: AtomicUsize::new(0),
            },
        }
    }

    /// Allows or forbids claims of steps before a slot is free.
    pub fn allow_claims_ahead(&self, is_allowed: bool) {
        self.ahead.is_allowed.store(is_allowed, Ordering::Relaxed);
    }

    /// Returns how many more steps may be claimed while no slot is free.
    pub fn free_ahead(&self) -> usize {
        if self.gate.is_closed() {
            return 0;
        }
        let most = self.most_ahead();
        most.saturating_sub(self.ahead.count.load(Ordering::Relaxed)) as usize
    }

    fn most_ahead(&self) -> u32 {
        let ahead = &self.ahead;
        if !ahead.is_allowed.load(Ordering::Relaxed) {
            return 0;
        }
        let ended = ahead.ended.load(Ordering::Relaxed);
        let pace = ahead.pace.lock().per_second(ended, ahead.start.elapsed());
        claims_ahead(pace, self.gate.commit_time(), self.most())
    }

    /// Makes a claim for which a slot will probably be free when the claim has been saved.
    pub fn try_claim_ahead(self: &Arc<Self>) -> Option<AheadClaim> {
        if self.gate.is_closed() {
            return None;
        }
        let most = self.most_ahead();
        let more = |count: u32| (count < most).then_some(count + 1);
        let counted = (self.ahead.count).try_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted.is_ok().then(|| AheadClaim {
            bulkhead: Arc::clone(self),
        })
    }

    fn wait_for_slot(self: &Arc<Self>) -> oneshot::Receiver<Slot> {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.ahead.waiting.lock();
        waiting.retain(|other| !other.is_closed());
        waiting.push_back(sender);
        self.ahead
            .waiting_count
            .store(waiting.len(), Ordering::SeqCst);
        drop(waiting);
        // A slot may have been freed before the sender was in the queue.
        self.give_free_slots();
        receiver
    }

    /// Gives free slots to calls that were claimed ahead.
    fn give_free_slots(self: &Arc<Self>) {
        if self.ahead.waiting_count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut slot = None;
        let mut waiting = self.ahead.waiting.lock();
        while let Some(first) = waiting.pop_front() {
            if first.is_closed() {
                continue;
            }
            let Some(free) = slot.take().or_else(|| self.try_take()) else {
                waiting.push_front(first);
                break;
            };
            // The receiver may have been dropped in the meantime; the slot goes to the next one.
            slot = first.send(free).err();
        }
        self.ahead
            .waiting_count
            .store(waiting.len(), Ordering::SeqCst);
        // The lock is released before the slot is dropped, because that drop calls this function again.
        drop(waiting);
        drop(slot);
    }

    /// Changes the maximum. If more calls are in flight, a lower maximum takes effect as slots are released.
    pub fn resize(self: &Arc<Self>, max: u32) {
        if self.max.swap(max, Ordering::Release) < max {
            self.announce();
        }
    }

    /// Announces that there may be capacity where there was none.
    pub fn announce(self: &Arc<Self>) {
        self.give_free_slots();
        self.gate.freed(&self.agent);
    }

    /// True if calls may be made at all.
    pub fn is_open(&self) -> bool {
        self.max.load(Ordering::Relaxed) > 0
    }

    /// True if the next call has to wait, no matter how many slots all instances share.
    pub fn is_full(&self) -> bool {
        self.in_flight() >= self.max.load(Ordering::Relaxed)
    }

    /// Sets the limit for awaited replies. A new limit gives out no slot until the replies have been counted.
    pub fn limit_open(&self, max: Option<u32>) {
        let max = max.unwrap_or(UNLIMITED);
        if self.max_open.swap(max, Ordering::Relaxed) == UNLIMITED {
            self.open.store(UNKNOWN, Ordering::Relaxed);
        }
    }

    pub fn is_open_limited(&self) -> bool {
        self.max_open.load(Ordering::Relaxed) != UNLIMITED
    }

    /// Sets the number of awaited replies to the count in the store.
    pub fn set_open_replies(&self, open: u32) {
        self.open.store(open.min(UNKNOWN - 1), Ordering::Relaxed);
        self.gate.freed(&self.agent);
    }

    /// Removes one awaited reply: it came, or is no longer awaited.
    pub fn remove_open_reply(&self) {
        let fewer = |open: u32| (open != UNKNOWN).then(|| open.saturating_sub(1));
        let _ = self
            .open
            .try_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        self.gate.freed(&self.agent);
    }

    fn add_open_reply(&self) {
        let more = |open: u32| (open < UNKNOWN - 1).then(|| open + 1);
        let _ = self
            .open
            .try_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Returns how many calls may be in flight now.
    fn most(&self) -> u32 {
        let slots = self.most_slots();
        match self.max_open.load(Ordering::Relaxed) {
            UNLIMITED => slots,
            most => slots.min(most.saturating_sub(self.open.load(Ordering::Relaxed))),
        }
    }

    /// Returns how many calls the slots allow, without the limit for awaited replies.
    fn most_slots(&self) -> u32 {
        self.max.load(Ordering::Acquire).min(self.slots.most())
    }

    /// Returns the limit for awaited replies if it is the only limit that stops the next call.
    pub fn blocking_limit(&self) -> Option<u32> {
        let in_flight = self.in_flight();
        let is_blocking = in_flight < self.most_slots() && in_flight >= self.most();
        is_blocking.then(|| self.max_open.load(Ordering::Relaxed))
    }

    /// Returns the rate limit if it stops the next call, and the number of slots does not.
    pub fn blocking_rate(&self) -> Option<RateLimitSpec> {
        let is_limited = self.rate.is_limited().then(clock::instant);
        let limit = self.rate.exhausted(is_limited?)?;
        (self.in_flight() < self.most()).then_some(limit)
    }

    pub fn free(&self) -> usize {
        if self.gate.is_closed() {
            return 0;
        }
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        let slots = self.most().saturating_sub(in_flight);
        if slots == 0 {
            self.note_refusal(in_flight);
            return 0;
        }
        if !self.rate.is_limited() {
            return slots as usize;
        }
        match self.rate.available(slots, clock::instant()) {
            Ok(free) => free as usize,
            Err(RateUsedUp) => {
                self.wants.notify_one();
                0
            }
        }
    }

    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Reports that a call found no free slot.
    fn note_refusal(&self, in_flight: u32) {
        if in_flight < self.max.load(Ordering::Relaxed) && self.slots.refused(in_flight) {
            self.wants_slots.notify_one();
        }
    }

    pub fn try_take(self: &Arc<Self>) -> Option<Slot> {
        if self.gate.is_closed() {
            return None;
        }
        let max = self.most();
        let more = |taken: u32| (taken < max).then_some(taken + 1);
        let taken = self
            .in_flight
            .try_update(Ordering::SeqCst, Ordering::Relaxed, more);
        match taken {
            Ok(before) if self.slots.used(before + 1) => {}
            Ok(before) => {
                self.in_flight.fetch_sub(1, Ordering::SeqCst);
                self.note_refusal(before);
                return None;
            }
            Err(in_flight) => {
                self.note_refusal(in_flight);
                return None;
            }
        }
        if self.rate.is_limited()
            && let Err(RateUsedUp) = self.rate.try_take(clock::instant())
        {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
            self.wants.notify_one();
            return None;
        }
        self.gauge.increment(1);
        Some(Slot {
            bulkhead: Arc::clone(self),
            notifies: true,
            has_begun: AtomicBool::new(false),
        })
    }
}

/// The right to make one call, now or soon.
#[derive(Debug)]
pub enum CallSlot {
    Free(Slot),
    Ahead(AheadClaim),
}

impl CallSlot {
    /// Returns the slot of a call that begins now and must have its response within `complete_within`. An error says
    /// why the call does not begin.
    pub async fn begin(self, complete_within: Duration) -> Result<Slot, Release> {
        let slot = match self {
            Self::Free(slot) => slot,
            Self::Ahead(claim) => {
                let within = SLOT_WITHIN.min(complete_within / 10);
                let bulkhead = Arc::clone(&claim.bulkhead);
                let slot = timeout(within, claim.slot()).await;
                slot.map_err(|_| match bulkhead.is_open() {
                    true => Release::NoSlot,
                    false => Release::Stopped,
                })?
            }
        };
        slot.begin_call().then_some(slot).ok_or(Release::Stopped)
    }
}

/// The right to the next slot that is freed.
#[must_use = "a claim is over when it is dropped"]
pub struct AheadClaim {
    bulkhead: Arc<Bulkhead>,
}

impl AheadClaim {
    /// Waits for the slot.
    async fn slot(self) -> Slot {
        let slot = self.bulkhead.wait_for_slot();
        match slot.await {
            Ok(slot) => slot,
            // Cannot happen: the sender is dropped only after this receiver has been closed.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for AheadClaim {
    fn drop(&mut self) {
        self.bulkhead.ahead.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for AheadClaim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AheadClaim({})", self.bulkhead.agent)
    }
}

/// The right to have one call in flight. When it is dropped, the slot is free again and the scheduler is notified.
#[must_use = "a slot is given back when it is dropped"]
pub struct Slot {
    bulkhead: Arc<Bulkhead>,
    notifies: bool,
    /// True if the call of this slot counts for the rate limit.
    has_begun: AtomicBool,
}

impl Slot {
    /// Frees the slot without notifying the scheduler. The caller is about to save the reply, and claims the next step
    /// with that save.
    pub fn release(mut self) {
        self.notifies = false;
    }

    /// Records and returns whether the call of this slot begins now. It does not begin if the agent was paused, or its
    /// breaker opened, after the claim.
    pub fn begin_call(&self) -> bool {
        let begins = self.bulkhead.is_open();
        self.has_begun.store(begins, Ordering::Relaxed);
        begins
    }

    /// True if the promise of a later reply takes capacity after the call.
    pub fn is_open_limited(&self) -> bool {
        self.bulkhead.is_open_limited()
    }

    /// Frees the slot after the promise of a later reply was saved. From now on the awaited reply takes the capacity.
    pub fn becomes_open(self) {
        self.bulkhead.add_open_reply();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let has_begun = *self.has_begun.get_mut();
        let bulkhead = &self.bulkhead;
        bulkhead.in_flight.fetch_sub(1, Ordering::SeqCst);
        bulkhead.gauge.decrement(1);
        if !has_begun && bulkhead.rate.is_limited() {
            bulkhead.rate.give_back();
        }
        if has_begun {
            bulkhead.ahead.ended.fetch_add(1, Ordering::Relaxed);
        }
        bulkhead.give_free_slots();
        if self.notifies {
            bulkhead.gate.freed(&bulkhead.agent);
        }
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slot({})", self.bulkhead.agent)
    }
}

#[cfg(test)]
mod tests;
