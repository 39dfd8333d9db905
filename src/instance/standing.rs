//! What this process may believe of its leases, by its own monotonic clock. It only ever believes less
//! than the store would say (see [`crate::domain::trust`]).

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use tokio::time::Instant;

use crate::domain::Term;

#[derive(Debug)]
pub struct Standing {
    /// What `alive_until` counts from.
    start: Instant,
    /// Milliseconds; every claim reads it.
    alive_until: AtomicU64,
    supervises: Mutex<Option<(Term, Instant)>>,
}

impl Standing {
    /// Of a process that has no lease yet.
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
            alive_until: AtomicU64::new(0),
            supervises: Mutex::new(None),
        }
    }

    /// The leases were renewed, and may be trusted until then.
    pub fn renewed(&self, term: Option<Term>, until: Instant) {
        let millis = until.saturating_duration_since(self.start).as_millis();
        let millis = u64::try_from(millis).unwrap_or(u64::MAX);
        self.alive_until.store(millis, Ordering::Release);
        *self.lock() = term.map(|term| (term, until));
    }

    /// Another process has this one's id.
    pub fn lost(&self) {
        self.alive_until.store(0, Ordering::Release);
        self.step_down();
    }

    pub fn step_down(&self) {
        *self.lock() = None;
    }

    /// Whether the store holds this instance for alive, so that what it claims stays its own.
    pub fn is_alive(&self, now: Instant) -> bool {
        let now = now.saturating_duration_since(self.start).as_millis();
        now < u128::from(self.alive_until.load(Ordering::Acquire))
    }

    /// The term under which this instance supervises.
    pub fn term(&self, now: Instant) -> Option<Term> {
        self.lock()
            .filter(|(_, until)| now < *until)
            .map(|(term, _)| term)
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Term, Instant)>> {
        // A panic while holding the lock leaves the value valid.
        self.supervises
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn before_the_first_renewal_it_may_nothing() {
        let standing = Standing::new();
        assert!(!standing.is_alive(Instant::now()));
        assert_eq!(standing.term(Instant::now()), None);
    }

    #[test]
    fn what_is_not_renewed_ends_by_itself() {
        let (standing, now) = (Standing::new(), Instant::now());
        let until = now + Duration::from_secs(8);
        standing.renewed(Some(Term(3)), until);
        let just_before = until - Duration::from_millis(2);
        assert!(standing.is_alive(just_before));
        assert_eq!(standing.term(just_before), Some(Term(3)));
        assert!(!standing.is_alive(until));
        assert_eq!(standing.term(until), None);
    }

    #[test]
    fn an_instance_that_does_not_supervise_is_alive_all_the_same() {
        let (standing, now) = (Standing::new(), Instant::now());
        standing.renewed(None, now + Duration::from_secs(8));
        assert!(standing.is_alive(now));
        assert_eq!(standing.term(now), None);
        standing.renewed(Some(Term(1)), now + Duration::from_secs(8));
        standing.step_down();
        assert!(standing.is_alive(now));
        assert_eq!(standing.term(now), None);
        standing.lost();
        assert!(!standing.is_alive(now));
    }
}
