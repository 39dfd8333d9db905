//! Leases: the right to have a role, held for a limited time and renewed while its holder lives.
//!
//! A lease ends at a time on the store's clock, and no other process may take it before. Its holder measures on a clock
//! of its own, so it must stop relying on the lease before others may take it: it trusts the lease for less than its
//! whole length, counted from *before* it sent the request that renewed it. The duration of the request and the drift
//! between the two clocks can then only shorten the holder's trust. Each new holder has a higher term than every one
//! before it.
//!
//! No rule relies on leases for safety: an attempt's number does that. They only keep two instances
//! from doing the same work.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::values::{
    ids::InstanceId,
    time::{Span, Timestamp},
};

/// One process under an instance's id. Every start makes a new one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Incarnation(pub Uuid);

/// The holder of a lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    pub instance: InstanceId,
    pub incarnation: Incarnation,
}

/// Counts the holders of one lease, from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Term(pub u64);

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A lease as the store keeps it. A lease that was given up has ended; it stays in the store because of its term.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lease {
    pub holder: Holder,
    pub term: Term,
    /// Others may take the lease from this time on.
    pub until: Timestamp,
}

/// The holders that are known to have ended, even if their leases have not expired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeadHolders {
    /// No holder is known to have ended: their leases must expire.
    None,
    /// This process is known to have ended.
    One(Incarnation),
    /// The store has room for one process, and the caller is that process.
    All,
}

impl DeadHolders {
    fn includes(self, incarnation: Incarnation) -> bool {
        match self {
            DeadHolders::None => false,
            DeadHolders::One(known_dead) => known_dead == incarnation,
            DeadHolders::All => true,
        }
    }
}

impl Lease {
    /// Returns the lease that `by` gets, or the lease that prevents it.
    pub fn acquire(
        held: Option<&Lease>,
        by: &Holder,
        length: Span,
        known_dead: DeadHolders,
        now: Timestamp,
    ) -> Result<Lease, Lease> {
        let term = match held {
            None => Term(1),
            Some(held) if held.is_over(now) => Term(held.term.0 + 1),
            // Only its own holder extends a term.
            Some(held) if held.holder == *by => held.term,
            Some(held) if known_dead.includes(held.holder.incarnation) => Term(held.term.0 + 1),
            Some(held) => return Err(held.clone()),
        };
        Ok(Lease {
            holder: by.clone(),
            term,
            until: now + length,
        })
    }

    /// Returns the lease as its holder has given it up, so that another process can have it at once.
    #[must_use]
    pub fn released(self, by: &Holder, now: Timestamp) -> Lease {
        let until = if self.holder == *by {
            self.until.min(now)
        } else {
            self.until
        };
        Lease { until, ..self }
    }

    pub fn is_over(&self, now: Timestamp) -> bool {
        self.until <= now
    }

    /// Returns the term, if this holder has the lease.
    pub fn term_of(&self, holder: &Holder, now: Timestamp) -> Option<Term> {
        (self.holder == *holder && !self.is_over(now)).then_some(self.term)
    }
}

/// Returns the time for which a holder relies on a lease of this length, counted on its own clock from before it sent
/// the request for it. The rest, a fifth, allows for the drift between the clocks.
pub fn trust(length: Span) -> Duration {
    length.duration() * 4 / 5
}

/// Returns the time after which a holder renews a lease of this length. Two renewals fit in before its trust is over,
/// so that one may fail.
pub fn renew_after(length: Span) -> Duration {
    length.duration() * 3 / 10
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Span = Span::from_secs(10);

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_millis(secs * 1000)
    }

    fn holder(name: &str, incarnation: u128) -> Holder {
        Holder {
            instance: InstanceId::new(name),
            incarnation: Incarnation(Uuid::from_u128(incarnation)),
        }
    }

    fn lease(name: &str, incarnation: u128, term: u64, until: i64) -> Lease {
        Lease {
            holder: holder(name, incarnation),
            term: Term(term),
            until: at(until),
        }
    }

    fn ask(held: Option<&Lease>, by: &Holder, now: i64) -> Result<Lease, Lease> {
        Lease::acquire(held, by, LENGTH, DeadHolders::None, at(now))
    }

    #[test]
    fn the_first_who_asks_gets_the_first_term() {
        assert_eq!(ask(None, &holder("a", 1), 100), Ok(lease("a", 1, 1, 110)));
    }

    #[test]
    fn its_holder_prolongs_it_under_the_same_term() {
        let held = lease("a", 1, 3, 110);
        assert_eq!(
            ask(Some(&held), &holder("a", 1), 103),
            Ok(lease("a", 1, 3, 113))
        );
    }

    #[test]
    fn nobody_takes_it_before_it_is_over_and_anybody_then() {
        let held = lease("a", 1, 3, 110);
        let other = holder("b", 2);
        assert_eq!(ask(Some(&held), &other, 109), Err(held.clone()));
        assert_eq!(ask(Some(&held), &other, 110), Ok(lease("b", 2, 4, 120)));
    }

    #[test]
    fn a_holder_that_let_it_lapse_gets_a_new_term() {
        let held = lease("a", 1, 3, 110);
        assert_eq!(
            ask(Some(&held), &holder("a", 1), 111),
            Ok(lease("a", 1, 4, 121))
        );
    }

    #[test]
    fn another_process_of_the_same_name_is_another_holder() {
        let held = lease("a", 1, 3, 110);
        let restarted = holder("a", 2);
        assert_eq!(ask(Some(&held), &restarted, 103), Err(held.clone()));
        let known_dead =
            |known_dead| Lease::acquire(Some(&held), &restarted, LENGTH, known_dead, at(103));
        assert_eq!(
            known_dead(DeadHolders::One(held.holder.incarnation)),
            Ok(lease("a", 2, 4, 113))
        );
        assert_eq!(known_dead(DeadHolders::All), Ok(lease("a", 2, 4, 113)));
        assert_eq!(
            known_dead(DeadHolders::One(Incarnation(Uuid::from_u128(9)))),
            Err(held.clone())
        );
    }

    #[test]
    fn given_up_it_is_free_at_once_and_only_its_holder_can() {
        let held = lease("a", 1, 3, 110);
        let kept = held.clone().released(&holder("b", 2), at(103));
        assert_eq!(kept, held);
        let free = held.released(&holder("a", 1), at(103));
        assert!(free.is_over(at(103)));
        assert_eq!(
            ask(Some(&free), &holder("b", 2), 103),
            Ok(lease("b", 2, 4, 113))
        );
    }

    #[test]
    fn a_holder_stops_trusting_it_before_another_can_take_it() {
        for length in [1, 10, 300].map(Span::from_secs) {
            // The holder counts from an earlier time than the store, so less than the length is enough.
            assert!(trust(length) < length.duration());
            let spare = length.duration() - trust(length);
            assert!(spare >= length.duration() / 10, "for clocks that drift");
        }
    }

    #[test]
    fn a_renewal_may_fail_once_without_harm() {
        for length in [1, 10, 300].map(Span::from_secs) {
            assert!(renew_after(length) * 2 < trust(length));
        }
    }
}
