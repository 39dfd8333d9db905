//! The bulkhead: how many calls of one agent may be in flight at once. A slow service fills its own bulkhead and no
//! other. Every claim uses it, so it consists of atomics only.

use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, timeout},
};

use super::{
    meters::InFlight,
    rate::{RateLimiter, RateUsedUp},
    slots::SlotLimiter,
};
use crate::domain::{AgentName, CallPace, RateLimitSpec, Release, claims_ahead};

/// No limit on the replies that are awaited.
const UNLIMITED: u32 = u32::MAX;
/// They have not been counted yet: as if there were too many.
const UNKNOWN: u32 = u32::MAX;

/// The longest that a call that was claimed ahead waits for a slot before its step is queued again.
const SLOT_WITHIN: Duration = Duration::from_millis(100);

type OnFreed = Box<dyn Fn(&AgentName) + Send + Sync>;

/// What all bulkheads of an instance share.
#[derive(Default)]
pub(super) struct Gate {
    closed: AtomicBool,
    on_freed: OnceLock<OnFreed>,
    /// How long claims take to be saved, in microseconds, of late.
    commit_micros: AtomicU64,
}

impl Gate {
    /// From now on nothing is given out. What is out is still taken back.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub fn on_freed(&self, notify: OnFreed) {
        // One scheduler listens for the life of the process; a second registration is a slip that
        // must not silently turn the first one deaf.
        if self.on_freed.set(notify).is_err() {
            tracing::error!("a listener for freed capacity is already set: the new one is ignored");
        }
    }

    /// Claims took so long to be saved.
    pub fn committed(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let known = self.commit_micros.load(Ordering::Relaxed);
        // What another thread adds at the same moment may be lost.
        let smoothed = known - known / 8 + took / 8;
        self.commit_micros.store(smoothed, Ordering::Relaxed);
    }

    fn commit_time(&self) -> Duration {
        Duration::from_micros(self.commit_micros.load(Ordering::Relaxed))
    }

    pub fn freed(&self, agent: &AgentName) {
        if let Some(notify) = self.on_freed.get() {
            notify(agent);
        }
    }
}

/// Woken when a call was wanted and could not begin: for the rate, or for the slots that all instances share.
#[derive(Clone, Default)]
pub(super) struct Wants {
    pub calls: Arc<Notify>,
    pub slots: Arc<Notify>,
}

pub(super) struct Bulkhead {
    agent: AgentName,
    in_flight: AtomicU32,
    max: AtomicU32,
    /// The most replies of the agent that are awaited at once, with the calls in flight: each may become one.
    max_open: AtomicU32,
    /// How many are awaited. Only kept where that is limited.
    open: AtomicU32,
    pub rate: RateLimiter,
    /// Woken when a call was wanted that the rate did not let begin.
    wants: Arc<Notify>,
    /// What this process may use of the slots that all instances share.
    pub slots: SlotLimiter,
    /// Woken when a call was wanted that had none of those.
    wants_slots: Arc<Notify>,
    gate: Arc<Gate>,
    gauge: InFlight,
    ahead: ClaimsAhead,
}

/// Calls that were claimed although no slot was free.
struct ClaimsAhead {
    is_allowed: AtomicBool,
    /// All of them, those whose claims are being saved included.
    count: AtomicU32,
    /// How many calls have ended.
    ended: AtomicU64,
    /// What the pace counts time from.
    start: Instant,
    pace: Mutex<CallPace>,
    /// Those whose claims are saved, in that order.
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
            rate: RateLimiter::new(Instant::now()),
            wants: wants.calls,
            slots: SlotLimiter::new(),
            wants_slots: wants.slots,
            gate,
            gauge,
            ahead: ClaimsAhead {
                is_allowed: AtomicBool::new(false),
                count: AtomicU32::new(0),
                ended: AtomicU64::new(0),
                start: Instant::now(),
                pace: Mutex::default(),
                waiting: Mutex::default(),
                waiting_count: AtomicUsize::new(0),
            },
        }
    }

    /// Whether steps may be claimed before a slot is free.
    pub fn allow_claims_ahead(&self, is_allowed: bool) {
        self.ahead.is_allowed.store(is_allowed, Ordering::Relaxed);
    }

    /// How many more steps may be claimed, while no slot is free.
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

    /// A claim for which a slot will probably be free once it is saved.
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
        // One may have been freed meanwhile.
        self.pass_on();
        receiver
    }

    /// Gives free slots to calls that were claimed ahead.
    fn pass_on(self: &Arc<Self>) {
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
            // It may have given up just now.
            slot = first.send(free).err();
        }
        self.ahead
            .waiting_count
            .store(waiting.len(), Ordering::SeqCst);
        // Before the slot is dropped, which passes it on.
        drop(waiting);
        drop(slot);
    }

    /// If more calls are in flight, a lower maximum takes effect as slots are released.
    pub fn resize(self: &Arc<Self>, max: u32) {
        if self.max.swap(max, Ordering::Release) < max {
            self.announce();
        }
    }

    /// There may be capacity where there was none.
    pub fn announce(self: &Arc<Self>) {
        self.pass_on();
        self.gate.freed(&self.agent);
    }

    /// Whether calls may be made at all.
    pub fn is_open(&self) -> bool {
        self.max.load(Ordering::Relaxed) > 0
    }

    /// Whether the next call has to wait, however many slots all instances share.
    pub fn is_full(&self) -> bool {
        self.in_flight() >= self.max.load(Ordering::Relaxed)
    }

    /// Limits the replies that are awaited. Until they are counted no slot is given out.
    pub fn limit_open(&self, max: Option<u32>) {
        let max = max.unwrap_or(UNLIMITED);
        if self.max_open.swap(max, Ordering::Relaxed) == UNLIMITED {
            self.open.store(UNKNOWN, Ordering::Relaxed);
        }
    }

    pub fn is_open_limited(&self) -> bool {
        self.max_open.load(Ordering::Relaxed) != UNLIMITED
    }

    /// By the record.
    pub fn counted_open(&self, open: u32) {
        self.open.store(open.min(UNKNOWN - 1), Ordering::Relaxed);
        self.gate.freed(&self.agent);
    }

    /// A reply came, or is no longer awaited.
    pub fn closed_open(&self) {
        let fewer = |open: u32| (open != UNKNOWN).then(|| open.saturating_sub(1));
        let _ = self
            .open
            .try_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        self.gate.freed(&self.agent);
    }

    fn opened(&self) {
        let more = |open: u32| (open < UNKNOWN - 1).then(|| open + 1);
        let _ = self
            .open
            .try_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// How many calls may be in flight now.
    fn most(&self) -> u32 {
        let slots = self.most_slots();
        match self.max_open.load(Ordering::Relaxed) {
            UNLIMITED => slots,
            most => slots.min(most.saturating_sub(self.open.load(Ordering::Relaxed))),
        }
    }

    /// The same, however many replies are awaited.
    fn most_slots(&self) -> u32 {
        self.max.load(Ordering::Acquire).min(self.slots.most())
    }

    /// The limit on replies that are awaited, where it and no other stops the next call.
    pub fn blocking_limit(&self) -> Option<u32> {
        let in_flight = self.in_flight();
        let is_blocking = in_flight < self.most_slots() && in_flight >= self.most();
        is_blocking.then(|| self.max_open.load(Ordering::Relaxed))
    }

    /// The rate limit, where it and not the number of slots stops the next call.
    pub fn blocking_rate(&self) -> Option<RateLimitSpec> {
        let is_limited = self.rate.is_limited().then(Instant::now);
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
            self.refused(in_flight);
            return 0;
        }
        if !self.rate.is_limited() {
            return slots as usize;
        }
        match self.rate.available(slots, Instant::now()) {
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

    /// A call had no slot.
    fn refused(&self, in_flight: u32) {
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
                self.refused(before);
                return None;
            }
            Err(in_flight) => {
                self.refused(in_flight);
                return None;
            }
        }
        if self.rate.is_limited()
            && let Err(RateUsedUp) = self.rate.try_take(Instant::now())
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
    /// The slot of a call that begins now, and must have its response within a time. An error says why it does not begin.
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
        slot.begins().then_some(slot).ok_or(Release::Stopped)
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
            // Nothing drops it but this.
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
    /// Whether its call counts for the rate.
    has_begun: AtomicBool,
}

impl Slot {
    /// Gives it back without notifying the scheduler, which is about to save the reply, and claims the next step with
    /// it.
    pub fn release(mut self) {
        self.notifies = false;
    }

    /// Whether its call begins now: not if the agent was paused since, or its breaker has opened.
    pub fn begins(&self) -> bool {
        let begins = self.bulkhead.is_open();
        self.has_begun.store(begins, Ordering::Relaxed);
        begins
    }

    /// Whether a promise of a later reply takes up room after the call.
    pub fn is_open_limited(&self) -> bool {
        self.bulkhead.is_open_limited()
    }

    /// The promise is saved: from now on the reply takes the room.
    pub fn becomes_open(self) {
        self.bulkhead.opened();
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
        bulkhead.pass_on();
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
mod tests {
    use std::task::Poll;

    use super::*;

    fn bulkhead(max: u32) -> (Arc<Bulkhead>, Arc<Gate>) {
        let gate = Arc::new(Gate::default());
        let name = AgentName::new("payments");
        let made = Bulkhead::new(
            name,
            max,
            Arc::clone(&gate),
            Wants::default(),
            crate::agent::meters::CallMetrics::new("payments").in_flight,
        );
        (Arc::new(made), gate)
    }

    #[test]
    fn no_more_slots_are_given_than_there_are() {
        let (bulkhead, _) = bulkhead(2);
        let first = bulkhead.try_take().unwrap();
        let _second = bulkhead.try_take().unwrap();
        assert!(bulkhead.try_take().is_none());
        assert_eq!(bulkhead.free(), 0);
        drop(first);
        assert_eq!(bulkhead.free(), 1);
        assert!(bulkhead.try_take().is_some());
    }

    #[test]
    fn a_slot_given_back_is_announced_after_it_is_free() {
        let (bulkhead, gate) = bulkhead(1);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (log, watched) = (Arc::clone(&heard), Arc::clone(&bulkhead));
        gate.on_freed(Box::new(move |agent| {
            log.lock().push((agent.to_string(), watched.free()));
        }));
        drop(bulkhead.try_take());
        assert_eq!(*heard.lock(), [("payments".to_owned(), 1)]);
    }

    #[test]
    fn a_closed_gate_gives_nothing_and_takes_back() {
        let (bulkhead, gate) = bulkhead(2);
        let slot = bulkhead.try_take().unwrap();
        gate.close();
        assert!(bulkhead.try_take().is_none());
        assert_eq!(bulkhead.free(), 0);
        drop(slot);
        assert_eq!(bulkhead.in_flight(), 0);
    }

    #[test]
    fn a_smaller_maximum_takes_effect_as_slots_come_back() {
        let (bulkhead, _) = bulkhead(3);
        let slots: Vec<_> = std::iter::from_fn(|| bulkhead.try_take()).collect();
        assert_eq!(slots.len(), 3);
        bulkhead.resize(1);
        assert_eq!(bulkhead.free(), 0);
        let mut slots = slots.into_iter();
        drop(slots.next());
        drop(slots.next());
        assert!(bulkhead.try_take().is_none());
        drop(slots.next());
        assert!(bulkhead.try_take().is_some());
    }

    #[test]
    fn replies_that_are_awaited_take_room_until_they_come() {
        let (bulkhead, _) = bulkhead(10);
        bulkhead.limit_open(Some(2));
        assert_eq!(bulkhead.free(), 0, "they are not counted yet");
        bulkhead.closed_open();
        assert_eq!(bulkhead.free(), 0, "still");
        bulkhead.counted_open(0);
        let (first, second) = (bulkhead.try_take().unwrap(), bulkhead.try_take().unwrap());
        assert!(bulkhead.try_take().is_none());
        first.becomes_open();
        assert!(bulkhead.try_take().is_none());
        assert_eq!(bulkhead.blocking_limit(), Some(2));
        second.release();
        assert_eq!(bulkhead.free(), 1);
        assert_eq!(bulkhead.blocking_limit(), None);
        bulkhead.closed_open();
        assert_eq!(bulkhead.free(), 2);
        bulkhead.counted_open(5);
        assert_eq!(bulkhead.free(), 0);
        bulkhead.limit_open(None);
        assert_eq!(bulkhead.free(), 10);
    }

    #[test]
    fn only_a_limit_on_replies_counts_as_one() {
        let (bulkhead, _) = bulkhead(10);
        bulkhead.slots.configure(Some(2), false);
        let (_first, second) = (bulkhead.try_take().unwrap(), bulkhead.try_take().unwrap());
        assert!(bulkhead.try_take().is_none());
        assert_eq!(bulkhead.blocking_limit(), None, "it has none");
        bulkhead.limit_open(Some(5));
        bulkhead.counted_open(0);
        assert_eq!(bulkhead.blocking_limit(), None, "slots are fewer");
        second.release();
        bulkhead.counted_open(4);
        assert_eq!(bulkhead.blocking_limit(), Some(5));
    }

    /// Of an agent with so many slots, all taken, whose calls end so fast that further steps are claimed.
    fn busy(max: u32) -> (Arc<Bulkhead>, Vec<Slot>) {
        let (bulkhead, gate) = bulkhead(max);
        bulkhead.allow_claims_ahead(true);
        for _ in 0..100 {
            gate.committed(Duration::from_millis(10));
        }
        // In the future: these windows are the last that it measures.
        let mut pace = bulkhead.ahead.pace.lock();
        for hour in 1..=3 {
            pace.per_second(hour * 36_000_000, Duration::from_secs(hour * 3600));
        }
        drop(pace);
        let taken = std::iter::from_fn(|| bulkhead.try_take()).collect();
        (bulkhead, taken)
    }

    async fn begin(claim: AheadClaim) -> Result<Slot, Release> {
        CallSlot::Ahead(claim).begin(Duration::from_secs(10)).await
    }

    #[tokio::test]
    async fn a_claim_ahead_gets_the_next_slot_that_is_freed_and_no_call_is_too_many() {
        let (bulkhead, mut taken) = busy(2);
        assert_eq!(bulkhead.free(), 0);
        assert_eq!(bulkhead.free_ahead(), 2, "no more than there are slots");
        let (first, second) = (bulkhead.try_claim_ahead(), bulkhead.try_claim_ahead());
        assert!(bulkhead.try_claim_ahead().is_none());
        let mut second = Box::pin(begin(second.unwrap()));
        assert!(futures::poll!(&mut second).is_pending());
        let mut first = Box::pin(begin(first.unwrap()));
        assert!(futures::poll!(&mut first).is_pending());
        assert_eq!(bulkhead.in_flight(), 2);
        taken.pop().unwrap().release();
        assert!(futures::poll!(&mut first).is_pending(), "it came later");
        let Poll::Ready(Ok(slot)) = futures::poll!(&mut second) else {
            panic!("its slot is free");
        };
        assert_eq!(bulkhead.in_flight(), 2);
        assert_eq!(bulkhead.free_ahead(), 1);
        assert!(bulkhead.try_take().is_none());
        drop((slot, taken.pop()));
        assert!(first.await.is_ok());
        assert_eq!(bulkhead.in_flight(), 0);
        assert_eq!(bulkhead.free(), 2);
    }

    #[tokio::test]
    async fn a_claim_ahead_whose_slot_is_not_freed_in_time_is_given_up() {
        let (bulkhead, taken) = busy(2);
        let claim = bulkhead.try_claim_ahead().unwrap();
        let begun = CallSlot::Ahead(claim).begin(Duration::from_millis(10));
        assert_eq!(begun.await.err(), Some(Release::NoSlot));
        assert_eq!(bulkhead.ahead.count.load(Ordering::Relaxed), 0);
        drop(taken);
        assert_eq!(bulkhead.in_flight(), 0);
        assert_eq!(bulkhead.free(), 2);
    }

    #[tokio::test]
    async fn a_slot_passes_those_that_wait_no_more() {
        let (bulkhead, mut taken) = busy(3);
        let claims: Vec<_> = std::iter::from_fn(|| bulkhead.try_claim_ahead()).collect();
        let mut waiting: Vec<_> = claims
            .into_iter()
            .map(|claim| Box::pin(begin(claim)))
            .collect();
        for claim in &mut waiting {
            assert!(futures::poll!(claim).is_pending());
        }
        drop(waiting.remove(0));
        drop(taken.pop());
        assert_eq!(bulkhead.in_flight(), 3, "the second has it");
        // It is aborted before it has heard of its slot.
        drop(waiting.remove(0));
        let slot = waiting.remove(0).await;
        assert!(slot.is_ok());
        assert_eq!(bulkhead.in_flight(), 3);
        drop((slot, taken));
        assert_eq!(bulkhead.in_flight(), 0);
    }

    #[tokio::test]
    async fn no_call_that_was_claimed_ahead_begins_while_the_agent_is_not_called() {
        let (bulkhead, mut taken) = busy(2);
        let claim = begin(bulkhead.try_claim_ahead().unwrap());
        bulkhead.resize(0);
        taken.pop();
        assert_eq!(claim.await.err(), Some(Release::Stopped));
        bulkhead.resize(2);
        let (freed, bulkhead) = (taken.pop(), bulkhead);
        drop(freed);
        assert_eq!(bulkhead.in_flight(), 0);
        bulkhead.allow_claims_ahead(false);
        assert!(bulkhead.try_claim_ahead().is_none());
    }

    #[test]
    fn threads_never_overdraw() {
        let (bulkhead, _) = bulkhead(7);
        let most = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        if let Some(_slot) = bulkhead.try_take() {
                            most.fetch_max(bulkhead.in_flight(), Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert!(most.load(Ordering::Relaxed) <= 7);
        assert_eq!(bulkhead.in_flight(), 0);
    }
}
