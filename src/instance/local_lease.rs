//! The leases of this process, as far as it may trust them by its own monotonic clock. It never trusts a lease for
//! longer than the store does (see [`crate::domain::values::trust`]).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use super::Hold;
use crate::{
    clock::{self, Instant},
    domain::values::Term,
};

#[derive(Debug)]
pub struct LocalLease {
    /// The instant from which `alive_until` and `alive_since` are measured.
    start: Instant,
    /// The end of the trust, in milliseconds after `start`. Every claim reads this value.
    alive_until: AtomicU64,
    /// The start of the present period of uninterrupted trust, in milliseconds after `start`.
    alive_since: AtomicU64,
    supervises: Mutex<Option<(Term, Instant)>>,
    hold: Arc<Hold>,
}

impl LocalLease {
    /// Returns the state of a process that has no lease yet, and is not held.
    #[cfg(test)]
    pub fn new() -> Self {
        Self::with(Arc::new(Hold::new(false)))
    }

    /// Returns the state of a process that has no lease yet.
    pub fn with(hold: Arc<Hold>) -> Self {
        Self {
            hold,
            start: clock::instant(),
            alive_until: AtomicU64::new(0),
            alive_since: AtomicU64::new(0),
            supervises: Mutex::new(None),
        }
    }

    /// Records that the leases were renewed, and may be trusted until `until`.
    pub fn renewed(&self, term: Option<Term>, until: Instant) {
        let now = clock::instant();
        if !self.is_alive(now) {
            self.alive_since.store(self.millis(now), Ordering::Release);
        }
        self.alive_until
            .store(self.millis(until), Ordering::Release);
        *self.supervises.lock() = term.map(|term| (term, until));
    }

    /// Ends the trust, because another process has the id of this one.
    pub fn lost(&self) {
        self.alive_until.store(0, Ordering::Release);
        self.step_down();
    }

    pub fn step_down(&self) {
        *self.supervises.lock() = None;
    }

    /// True while the store treats this instance as alive, so that its claims stay its own.
    pub fn is_alive(&self, now: Instant) -> bool {
        self.millis(now) < self.alive_until.load(Ordering::Acquire)
    }

    /// Returns the time until which the lease may be trusted, if it is not renewed.
    pub fn alive_until(&self) -> Instant {
        self.start + Duration::from_millis(self.alive_until.load(Ordering::Acquire))
    }

    /// True while steps may be claimed.
    pub fn may_claim(&self, now: Instant) -> bool {
        !self.hold.is_held() && self.is_alive(now)
    }

    /// Returns the hold, which keeps this instance from claiming, and from supervising: a held instance would recover
    /// nothing, and would keep others from it.
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// True if this instance has been alive all the time since `then`, so that no other instance can have taken over
    /// the steps that it held then.
    pub fn was_alive_since(&self, then: Instant, now: Instant) -> bool {
        self.is_alive(now) && self.alive_since.load(Ordering::Acquire) <= self.millis(then)
    }

    fn millis(&self, at: Instant) -> u64 {
        let millis = at.saturating_duration_since(self.start).as_millis();
        u64::try_from(millis).unwrap_or(u64::MAX)
    }

    /// Returns the term under which this instance supervises, if it does.
    pub fn term(&self, now: Instant) -> Option<Term> {
        self.supervises
            .lock()
            .filter(|(_, until)| now < *until)
            .map(|(term, _)| term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_the_first_renewal_it_may_nothing() {
        let local_lease = LocalLease::new();
        assert!(!local_lease.is_alive(clock::instant()));
        assert_eq!(local_lease.term(clock::instant()), None);
    }

    #[test]
    fn what_is_not_renewed_ends_by_itself() {
        let (local_lease, now) = (LocalLease::new(), clock::instant());
        let until = now + Duration::from_secs(8);
        local_lease.renewed(Some(Term(3)), until);
        let just_before = until - Duration::from_millis(2);
        assert!(local_lease.is_alive(just_before));
        assert_eq!(local_lease.term(just_before), Some(Term(3)));
        assert!(!local_lease.is_alive(until));
        assert_eq!(local_lease.term(until), None);
    }

    #[test]
    fn a_moment_without_trust_is_remembered_when_it_is_back() {
        let (local_lease, now) = (LocalLease::new(), clock::instant());
        let trusted = now + Duration::from_secs(8);
        local_lease.renewed(None, trusted);
        assert!(local_lease.was_alive_since(clock::instant(), clock::instant()));
        local_lease.renewed(None, trusted + Duration::from_secs(3));
        assert!(local_lease.was_alive_since(clock::instant(), clock::instant()));
        let claimed = clock::instant();
        local_lease.lost();
        assert!(!local_lease.was_alive_since(claimed, clock::instant()));
        std::thread::sleep(Duration::from_millis(2));
        local_lease.renewed(None, trusted);
        assert!(!local_lease.was_alive_since(claimed, clock::instant()));
        assert!(local_lease.was_alive_since(clock::instant(), clock::instant()));
    }

    #[test]
    fn an_instance_that_does_not_supervise_is_alive_all_the_same() {
        let (local_lease, now) = (LocalLease::new(), clock::instant());
        local_lease.renewed(None, now + Duration::from_secs(8));
        assert!(local_lease.is_alive(now));
        assert_eq!(local_lease.term(now), None);
        local_lease.renewed(Some(Term(1)), now + Duration::from_secs(8));
        local_lease.step_down();
        assert!(local_lease.is_alive(now));
        assert_eq!(local_lease.term(now), None);
        local_lease.lost();
        assert!(!local_lease.is_alive(now));
    }
}
