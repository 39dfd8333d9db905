//! What this process may believe of its leases, by its own monotonic clock. It only ever believes less
//! than the store would say (see [`crate::domain::trust`]).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Hold;
use crate::domain::Term;

#[derive(Debug)]
pub struct LocalLease {
    /// What `alive_until` counts from.
    start: Instant,
    /// Milliseconds; every claim reads it.
    alive_until: AtomicU64,
    /// Milliseconds: since when there was no moment without trust.
    alive_since: AtomicU64,
    supervises: Mutex<Option<(Term, Instant)>>,
    hold: Arc<Hold>,
}

impl LocalLease {
    /// Of a process that has no lease yet, and is not held.
    #[cfg(test)]
    pub fn new() -> Self {
        Self::with(Arc::new(Hold::new(false)))
    }

    /// Of a process that has no lease yet.
    pub fn with(hold: Arc<Hold>) -> Self {
        Self {
            hold,
            start: Instant::now(),
            alive_until: AtomicU64::new(0),
            alive_since: AtomicU64::new(0),
            supervises: Mutex::new(None),
        }
    }

    /// The leases were renewed, and may be trusted until then.
    pub fn renewed(&self, term: Option<Term>, until: Instant) {
        let now = Instant::now();
        if !self.is_alive(now) {
            self.alive_since.store(self.millis(now), Ordering::Release);
        }
        self.alive_until
            .store(self.millis(until), Ordering::Release);
        *self.supervises.lock() = term.map(|term| (term, until));
    }

    /// Another process has this one's id.
    pub fn lost(&self) {
        self.alive_until.store(0, Ordering::Release);
        self.step_down();
    }

    pub fn step_down(&self) {
        *self.supervises.lock() = None;
    }

    /// Whether the store holds this instance for alive, so that what it claims stays its own.
    pub fn is_alive(&self, now: Instant) -> bool {
        self.millis(now) < self.alive_until.load(Ordering::Acquire)
    }

    /// How long the lease may be trusted, as it is now.
    pub fn alive_until(&self) -> Instant {
        self.start + Duration::from_millis(self.alive_until.load(Ordering::Acquire))
    }

    /// Whether steps may be claimed.
    pub fn may_claim(&self, now: Instant) -> bool {
        !self.hold.is_held() && self.is_alive(now)
    }

    /// What keeps this instance from claiming, and from supervising: one that is held would recover nothing, and keep
    /// others from it.
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Whether that has been so all the time since `then`: nobody can have taken over what this instance
    /// held then.
    pub fn was_alive_since(&self, then: Instant, now: Instant) -> bool {
        self.is_alive(now) && self.alive_since.load(Ordering::Acquire) <= self.millis(then)
    }

    fn millis(&self, at: Instant) -> u64 {
        let millis = at.saturating_duration_since(self.start).as_millis();
        u64::try_from(millis).unwrap_or(u64::MAX)
    }

    /// The term under which this instance supervises.
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
        assert!(!local_lease.is_alive(Instant::now()));
        assert_eq!(local_lease.term(Instant::now()), None);
    }

    #[test]
    fn what_is_not_renewed_ends_by_itself() {
        let (local_lease, now) = (LocalLease::new(), Instant::now());
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
        let (local_lease, now) = (LocalLease::new(), Instant::now());
        let trusted = now + Duration::from_secs(8);
        local_lease.renewed(None, trusted);
        assert!(local_lease.was_alive_since(Instant::now(), Instant::now()));
        local_lease.renewed(None, trusted + Duration::from_secs(3));
        assert!(local_lease.was_alive_since(Instant::now(), Instant::now()));
        let claimed = Instant::now();
        local_lease.lost();
        assert!(!local_lease.was_alive_since(claimed, Instant::now()));
        std::thread::sleep(Duration::from_millis(2));
        local_lease.renewed(None, trusted);
        assert!(!local_lease.was_alive_since(claimed, Instant::now()));
        assert!(local_lease.was_alive_since(Instant::now(), Instant::now()));
    }

    #[test]
    fn an_instance_that_does_not_supervise_is_alive_all_the_same() {
        let (local_lease, now) = (LocalLease::new(), Instant::now());
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
