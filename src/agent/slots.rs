//! The slots of an agent that this process may use, where the calls in flight of all instances are limited together.
//! Alone on its store it has all of them. Otherwise it uses those that the shared record grants it, as long as its lease
//! is trusted: after that others may have them.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::domain::{SlotGrant, SlotNeed};

const UNLIMITED: u32 = u32::MAX;
const FOREVER: u64 = u64::MAX;
/// How long what was wanted counts as wanted: between two calls a slot is not given up.
const DEMAND_LASTS: Duration = Duration::from_secs(1);
/// Slots that nothing has used for so long are given back, even if nobody waits for them.
const IDLE_AFTER: Duration = Duration::from_secs(10);

/// Every claim reads it, so it consists of atomics.
pub(super) struct SlotLimiter {
    /// What valid times count from.
    start: Instant,
    /// The most of all instances together.
    max: AtomicU32,
    is_shared: AtomicBool,
    /// What this process may have in flight.
    granted: AtomicU32,
    /// Milliseconds.
    valid_until: AtomicU64,
    /// A call was wanted and had no slot of these.
    is_wanting: AtomicBool,
    /// Others have the rest: to ask again is in vain until something has changed, or a while has passed.
    is_in_vain: AtomicBool,
    /// The most calls that were in flight since the last look.
    peak: AtomicU32,
    demand: Mutex<Demand>,
}

/// How many slots were wanted of late: since a moment, and in the time before it.
struct Demand {
    since: Instant,
    now: u32,
    before: u32,
    /// When something was wanted last; `None` where the record holds nothing.
    last: Option<Instant>,
}

impl Demand {
    fn add(&mut self, wanted: u32, now: Instant) {
        if now.saturating_duration_since(self.since) >= DEMAND_LASTS {
            self.before = std::mem::take(&mut self.now);
            self.since = now;
        }
        self.now = self.now.max(wanted);
        if wanted > 0 {
            self.last = Some(now);
        }
    }

    fn peak(&self) -> u32 {
        self.now.max(self.before)
    }
}

impl SlotLimiter {
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
            max: AtomicU32::new(UNLIMITED),
            is_shared: AtomicBool::new(false),
            granted: AtomicU32::new(UNLIMITED),
            valid_until: AtomicU64::new(FOREVER),
            is_wanting: AtomicBool::new(false),
            is_in_vain: AtomicBool::new(false),
            peak: AtomicU32::new(0),
            demand: Mutex::new(Demand {
                since: Instant::now(),
                now: 0,
                before: 0,
                last: None,
            }),
        }
    }

    /// A limit that is new begins with no slots.
    pub fn configure(&self, max: Option<u32>, is_shared: bool) {
        let max = max.unwrap_or(UNLIMITED);
        if self.max.swap(max, Ordering::AcqRel) == max {
            return;
        }
        let is_shared = is_shared && max != UNLIMITED;
        self.is_shared.store(is_shared, Ordering::Release);
        if !is_shared {
            self.granted.store(max, Ordering::Release);
            self.valid_until.store(FOREVER, Ordering::Release);
            return;
        }
        // What the record has of an earlier limit is put right even if nothing is called.
        self.is_wanting.store(true, Ordering::Release);
        if self.granted.fetch_min(max, Ordering::AcqRel) == UNLIMITED {
            self.granted.store(0, Ordering::Release);
        }
    }

    /// Whether there is something to ask for.
    pub fn is_wanting(&self) -> bool {
        self.is_wanting.load(Ordering::Acquire)
    }

    /// How many calls may be in flight now.
    pub fn most(&self) -> u32 {
        let granted = self.granted.load(Ordering::Acquire);
        if granted == UNLIMITED {
            return UNLIMITED;
        }
        let valid_until = self.valid_until.load(Ordering::Acquire);
        let is_valid = valid_until == FOREVER || self.millis(Instant::now()) < valid_until;
        if is_valid { granted } else { 0 }
    }

    /// So many calls are in flight, one more than before. False if that is too many since a moment: see
    /// [`SlotLimiter::cap`].
    pub fn used(&self, in_flight: u32) -> bool {
        if !self.is_shared.load(Ordering::Relaxed) {
            return true;
        }
        self.peak.fetch_max(in_flight, Ordering::Relaxed);
        in_flight <= self.granted.load(Ordering::SeqCst)
    }

    /// From now on no call begins beyond so many, if there were more. What the record is to hold for this process is
    /// counted after that, so that no call begins meanwhile with a slot that is being given back. Returns how many may
    /// still begin.
    pub fn cap(&self, slots: u32) -> u32 {
        self.granted.fetch_min(slots, Ordering::SeqCst).min(slots)
    }

    /// There was no slot for a call while so many were in flight. True if more are to be asked for at once.
    pub fn refused(&self, in_flight: u32) -> bool {
        let may_grow = self.is_shared.load(Ordering::Relaxed) && in_flight >= self.most();
        let is_new = may_grow && !self.is_wanting.swap(true, Ordering::AcqRel);
        is_new && !self.is_in_vain.load(Ordering::Acquire)
    }

    /// What to settle with the record; `None` if there is nothing to hold.
    pub fn take_need(&self, in_flight: u32, now: Instant) -> Option<SlotNeed> {
        if !self.is_shared.load(Ordering::Acquire) {
            return None;
        }
        let max = self.max.load(Ordering::Acquire);
        let is_wanting = self.is_wanting.swap(false, Ordering::AcqRel);
        let peak = self.peak.swap(in_flight, Ordering::AcqRel).max(in_flight);
        let mut demand = self.demand.lock();
        demand.add(if is_wanting { max } else { peak }, now);
        let idle = now.saturating_duration_since(demand.last?);
        if idle >= IDLE_AFTER {
            demand.last = None;
            return Some(SlotNeed::NONE);
        }
        Some(SlotNeed {
            in_use: in_flight,
            wants: demand.peak(),
            max,
        })
    }

    /// Nothing could be settled: what is needed is asked for again.
    pub fn ask_again(&self) {
        self.is_wanting.store(true, Ordering::Release);
    }

    /// `wanted`: how many were asked for. Returns whether there are more than before.
    pub fn granted(&self, grant: SlotGrant, wanted: u32, valid_until: Instant) -> bool {
        if !self.is_shared.load(Ordering::Acquire) {
            return false;
        }
        let before = self.most();
        let valid_until = self.millis(valid_until);
        self.granted.store(grant.slots, Ordering::Release);
        let is_in_vain = grant.slots < wanted;
        self.is_in_vain.store(is_in_vain, Ordering::Release);
        if grant.is_short {
            // Until it has come.
            self.is_wanting.store(true, Ordering::Release);
        }
        self.valid_until.store(valid_until, Ordering::Release);
        self.most() > before
    }

    fn millis(&self, at: Instant) -> u64 {
        let since: Duration = at.saturating_duration_since(self.start);
        u64::try_from(since.as_millis()).unwrap_or(FOREVER - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(slots: u32) -> SlotGrant {
        SlotGrant {
            slots,
            ..SlotGrant::default()
        }
    }

    #[test]
    fn without_a_limit_there_is_nothing_to_ask_for() {
        let slots = SlotLimiter::new();
        assert_eq!(slots.most(), UNLIMITED);
        assert!(!slots.refused(7));
        assert_eq!(slots.take_need(7, Instant::now()), None);
    }

    #[test]
    fn a_process_alone_has_all_slots() {
        let slots = SlotLimiter::new();
        slots.configure(Some(3), false);
        assert!(!slots.is_wanting());
        assert_eq!(slots.most(), 3);
        assert!(!slots.refused(3));
        assert_eq!(slots.take_need(3, Instant::now()), None);
        slots.configure(None, false);
        assert_eq!(slots.most(), UNLIMITED);
    }

    #[test]
    fn what_the_record_grants_holds_as_long_as_the_lease_is_trusted() {
        let slots = SlotLimiter::new();
        slots.configure(Some(8), true);
        assert!(slots.is_wanting());
        assert_eq!(slots.most(), 0);
        let all = |in_use| SlotNeed {
            in_use,
            wants: 8,
            max: 8,
        };
        let now = Instant::now();
        assert_eq!(slots.take_need(0, now), Some(all(0)));
        let long = now + Duration::from_secs(3600);
        assert!(slots.granted(grant(4), 4, long));
        assert_eq!(slots.most(), 4);
        slots.used(4);
        assert!(slots.refused(4), "there could be more");
        assert!(!slots.refused(4), "that is known");
        assert_eq!(slots.take_need(2, now), Some(all(2)));
        assert_eq!(slots.take_need(1, now), Some(all(1)), "a moment ago");
        let later = now + 2 * DEMAND_LASTS;
        slots.used(3);
        slots.take_need(1, later);
        let some = SlotNeed { wants: 3, ..all(1) };
        assert_eq!(slots.take_need(1, later + DEMAND_LASTS), Some(some));
        let short = SlotGrant {
            is_short: true,
            ..grant(2)
        };
        slots.granted(short, 8, long);
        assert_eq!(slots.take_need(1, later), Some(all(1)), "until it has come");
        assert!(!slots.granted(grant(4), 8, Instant::now()));
        assert_eq!(slots.most(), 0, "the trust is over");
        assert!(slots.granted(grant(4), 8, long));
        slots.configure(Some(2), true);
        assert!(slots.is_wanting(), "a lower limit");
        assert_eq!(slots.most(), 2);
    }

    #[test]
    fn what_others_have_is_not_asked_for_again_and_again() {
        let slots = SlotLimiter::new();
        slots.configure(Some(8), true);
        let (now, long) = (Instant::now(), Instant::now() + Duration::from_secs(3600));
        slots.take_need(0, now);
        slots.granted(grant(4), 8, long);
        assert!(!slots.refused(4), "it would get no more");
        let all = SlotNeed {
            in_use: 4,
            wants: 8,
            max: 8,
        };
        assert_eq!(slots.take_need(4, now), Some(all), "when it is asked for");
        slots.granted(grant(8), 8, long);
        slots.granted(grant(6), 6, long);
        assert!(slots.refused(6), "there could be more");
    }

    #[test]
    fn no_call_begins_with_a_slot_that_is_being_given_back() {
        let slots = SlotLimiter::new();
        assert!(slots.used(1000), "without a limit");
        slots.configure(Some(8), true);
        slots.granted(grant(6), 8, Instant::now() + Duration::from_secs(3600));
        assert!(slots.used(6));
        assert_eq!(slots.cap(3), 3);
        // One that has looked a moment ago.
        assert!(!slots.used(4));
        assert!(slots.used(3));
        assert_eq!(slots.cap(5), 3, "what is not granted yet");
    }

    #[test]
    fn idle_slots_are_given_back_after_a_while() {
        let slots = SlotLimiter::new();
        slots.configure(Some(8), true);
        let now = Instant::now();
        assert!(slots.take_need(1, now).is_some());
        let none = |in_use| SlotNeed {
            in_use,
            wants: 0,
            max: 8,
        };
        let later = now + 3 * DEMAND_LASTS;
        slots.take_need(0, later);
        slots.take_need(0, later + DEMAND_LASTS);
        let idle = slots.take_need(0, later + 2 * DEMAND_LASTS);
        assert_eq!(idle, Some(none(0)), "they may stay here");
        let end = later + IDLE_AFTER;
        assert_eq!(slots.take_need(0, end), Some(SlotNeed::NONE));
        assert_eq!(slots.take_need(0, end), None);
        slots.granted(SlotGrant::default(), 0, end);
        assert!(slots.refused(0));
        assert!(slots.take_need(0, end).is_some());
    }
}
