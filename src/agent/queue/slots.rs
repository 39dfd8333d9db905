//! The slots of an agent that this process may use, if the calls in flight of all instances are limited together. A
//! process that is alone on its store has all of them. Otherwise it uses the slots that the shared record grants it,
//! while its lease is trusted; after that other instances may have them.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    clock::{self, Instant},
    domain::queue::{SlotGrant, SlotNeed},
};

const UNLIMITED: u32 = u32::MAX;
const FOREVER: u64 = u64::MAX;
/// A demand for slots counts for this time, so that a slot is not given up between two calls.
const DEMAND_LASTS: Duration = Duration::from_secs(1);
/// Slots that have not been used for this time are given back, even if no other instance waits for them.
const IDLE_AFTER: Duration = Duration::from_secs(10);

/// Every claim reads this value, so it consists mostly of atomics.
pub(in crate::agent) struct SlotLimiter {
    /// The instant from which `valid_until` is measured.
    start: Instant,
    /// The limit for the calls in flight of all instances together.
    max: AtomicU32,
    is_shared: AtomicBool,
    /// The number of calls that this process may have in flight.
    granted: AtomicU32,
    /// The end of the grant, in milliseconds after `start`.
    valid_until: AtomicU64,
    /// True if a call was wanted and found none of these slots free.
    is_wanting: AtomicBool,
    /// True if other instances have the other slots: a request is useless until something has changed, or some time
    /// has passed.
    is_in_vain: AtomicBool,
    /// The most calls in flight since the last [`SlotLimiter::take_need`].
    peak: AtomicU32,
    demand: Mutex<Demand>,
}

/// The number of slots that were wanted recently: since the instant `since`, and in the period before it.
struct Demand {
    since: Instant,
    now: u32,
    before: u32,
    /// The last time when a slot was wanted; `None` if the record holds nothing for this process.
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
            start: clock::instant(),
            max: AtomicU32::new(UNLIMITED),
            is_shared: AtomicBool::new(false),
            granted: AtomicU32::new(UNLIMITED),
            valid_until: AtomicU64::new(FOREVER),
            is_wanting: AtomicBool::new(false),
            is_in_vain: AtomicBool::new(false),
            peak: AtomicU32::new(0),
            demand: Mutex::new(Demand {
                since: clock::instant(),
                now: 0,
                before: 0,
                last: None,
            }),
        }
    }

    /// Sets the limit. A new limit begins with no slots.
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
        // The record may hold slots from an earlier limit. This request corrects it even if no call is made.
        self.is_wanting.store(true, Ordering::Release);
        if self.granted.fetch_min(max, Ordering::AcqRel) == UNLIMITED {
            self.granted.store(0, Ordering::Release);
        }
    }

    /// True if slots should be requested.
    pub fn is_wanting(&self) -> bool {
        self.is_wanting.load(Ordering::Acquire)
    }

    /// Returns how many calls may be in flight now.
    pub fn most(&self) -> u32 {
        let granted = self.granted.load(Ordering::Acquire);
        if granted == UNLIMITED {
            return UNLIMITED;
        }
        let valid_until = self.valid_until.load(Ordering::Acquire);
        let is_valid = valid_until == FOREVER || self.millis(clock::instant()) < valid_until;
        if is_valid { granted } else { 0 }
    }

    /// Records that `in_flight` calls are in flight, one more than before. Returns false if that has just become too
    /// many: see [`SlotLimiter::cap`].
    pub fn used(&self, in_flight: u32) -> bool {
        if !self.is_shared.load(Ordering::Relaxed) {
            return true;
        }
        self.peak.fetch_max(in_flight, Ordering::Relaxed);
        in_flight <= self.granted.load(Ordering::SeqCst)
    }

    /// Lowers the number of calls that may be in flight to `slots`, if it was higher. The calls that the record must
    /// cover are counted after this, so that no call begins meanwhile with a slot that is being given back. Returns
    /// how many calls may be in flight now.
    pub fn cap(&self, slots: u32) -> u32 {
        self.granted.fetch_min(slots, Ordering::SeqCst).min(slots)
    }

    /// Reports that a call found no slot while `in_flight` calls were in flight. Returns true if more slots should be
    /// requested at once.
    pub fn refused(&self, in_flight: u32) -> bool {
        let may_grow = self.is_shared.load(Ordering::Relaxed) && in_flight >= self.most();
        let is_new = may_grow && !self.is_wanting.swap(true, Ordering::AcqRel);
        is_new && !self.is_in_vain.load(Ordering::Acquire)
    }

    /// Returns the slots to request from the record, or `None` if the record need hold nothing.
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

    /// Reports that the request failed; it is made again.
    pub fn ask_again(&self) {
        self.is_wanting.store(true, Ordering::Release);
    }

    /// Applies a grant. `wanted` is the number of slots that were requested. Returns true if there are more than
    /// before.
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
            // The request is repeated until the missing slots have come.
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
        assert_eq!(slots.take_need(7, clock::instant()), None);
    }

    #[test]
    fn a_process_alone_has_all_slots() {
        let slots = SlotLimiter::new();
        slots.configure(Some(3), false);
        assert!(!slots.is_wanting());
        assert_eq!(slots.most(), 3);
        assert!(!slots.refused(3));
        assert_eq!(slots.take_need(3, clock::instant()), None);
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
        let now = clock::instant();
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
        assert!(!slots.granted(grant(4), 8, clock::instant()));
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
        let (now, long) = (
            clock::instant(),
            clock::instant() + Duration::from_secs(3600),
        );
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
        slots.granted(grant(6), 8, clock::instant() + Duration::from_secs(3600));
        assert!(slots.used(6));
        assert_eq!(slots.cap(3), 3);
        // This call was counted a moment ago.
        assert!(!slots.used(4));
        assert!(slots.used(3));
        assert_eq!(slots.cap(5), 3, "what is not granted yet");
    }

    #[test]
    fn idle_slots_are_given_back_after_a_while() {
        let slots = SlotLimiter::new();
        slots.configure(Some(8), true);
        let now = clock::instant();
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
