//! Instances: the processes that run on a store, and the one of them that supervises.

use crate::values::{
    lease::{DeadHolders, Holder, Lease, Term},
    time::{Span, Timestamp},
};

/// The record of one instance. Its lease is the right to its id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InstanceRecord {
    pub lease: Lease,
    pub started_at: Timestamp,
    /// The version of the program.
    pub version: String,
    /// The process and its machine, in words that a later process can check.
    pub process: String,
}

/// The record of one instance, and the lease that makes one of them the supervisor.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Leases {
    pub instance: Option<InstanceRecord>,
    pub supervisor: Option<Lease>,
}

/// A sign of life of an instance.
#[derive(Clone, Debug)]
pub struct Renewal {
    pub holder: Holder,
    pub version: String,
    pub process: String,
    /// The length of the lease, from now on.
    pub length: Span,
    pub known_dead: DeadHolders,
    /// True if the instance is willing to supervise. If not, it gives up its supervisor lease.
    pub supervise: bool,
}

/// The refusal of a renewal, because another process holds the instance's id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IdInUse(pub InstanceRecord);

impl Leases {
    /// Renews both leases together: the record never has a supervisor that is not alive.
    pub fn renew(&self, renewal: &Renewal, now: Timestamp) -> Result<Leases, IdInUse> {
        let Renewal {
            holder,
            length,
            known_dead,
            ..
        } = renewal;
        let held = self.instance.as_ref();
        let asked = Lease::acquire(
            held.map(|held| &held.lease),
            holder,
            *length,
            *known_dead,
            now,
        );
        let lease = match (asked, held) {
            (Err(_), Some(held)) => return Err(IdInUse(held.clone())),
            (Ok(lease) | Err(lease), _) => lease,
        };
        let started_at = held
            .filter(|held| held.lease.holder == *holder)
            .map_or(now, |held| held.started_at);
        let supervisor = self.supervisor.as_ref();
        let supervisor = if renewal.supervise {
            // An earlier process with this id has ended: the id has just been acquired again.
            let known_dead = match supervisor {
                Some(held) if held.holder.instance == holder.instance => {
                    DeadHolders::One(held.holder.incarnation)
                }
                _ => *known_dead,
            };
            let asked = Lease::acquire(supervisor, holder, *length, known_dead, now);
            Some(asked.unwrap_or_else(|held| held))
        } else {
            supervisor.map(|held| held.clone().released(holder, now))
        };
        Ok(Leases {
            instance: Some(InstanceRecord {
                lease,
                started_at,
                version: renewal.version.clone(),
                process: renewal.process.clone(),
            }),
            supervisor,
        })
    }

    /// Gives up both leases of an instance that has ended, so that others can have them at once.
    #[must_use]
    pub fn released(&self, holder: &Holder, now: Timestamp) -> Leases {
        Leases {
            instance: self.instance.clone().map(|held| InstanceRecord {
                lease: held.lease.released(holder, now),
                ..held
            }),
            supervisor: (self.supervisor.clone()).map(|held| held.released(holder, now)),
        }
    }

    /// Returns the term under which `holder` supervises.
    pub fn leads(&self, holder: &Holder, now: Timestamp) -> Option<Term> {
        self.supervisor.as_ref()?.term_of(holder, now)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::values::{ids::InstanceId, lease::Incarnation};

    fn renewal(name: &str, incarnation: u128) -> Renewal {
        Renewal {
            holder: Holder {
                instance: InstanceId::new(name),
                incarnation: Incarnation(Uuid::from_u128(incarnation)),
            },
            version: "1".to_owned(),
            process: "here".to_owned(),
            length: Span::from_secs(10),
            known_dead: DeadHolders::None,
            supervise: true,
        }
    }

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_millis(secs * 1000)
    }

    /// The leases of the same store, as another instance sees them.
    fn seen_by_another(leases: Leases) -> Leases {
        Leases {
            instance: None,
            ..leases
        }
    }

    #[test]
    fn the_first_instance_supervises_and_the_second_waits_for_its_lease() {
        let (a, b) = (renewal("a", 1), renewal("b", 2));
        let first = Leases::default().renew(&a, at(100)).unwrap();
        assert_eq!(first.leads(&a.holder, at(105)), Some(Term(1)));
        let second = seen_by_another(first).renew(&b, at(109)).unwrap();
        assert_eq!(second.leads(&b.holder, at(109)), None);
        let second = second.renew(&b, at(110)).unwrap();
        assert_eq!(second.leads(&b.holder, at(110)), Some(Term(2)));
    }

    #[test]
    fn a_renewal_keeps_the_start_and_a_new_process_has_its_own() {
        let first = Leases::default().renew(&renewal("a", 1), at(100)).unwrap();
        let same = first.renew(&renewal("a", 1), at(103)).unwrap();
        assert_eq!(same.instance.unwrap().started_at, at(100));
        let next = first.renew(&renewal("a", 2), at(110)).unwrap();
        assert_eq!(next.instance.unwrap().started_at, at(110));
    }

    #[test]
    fn a_second_process_of_the_same_name_is_refused_while_the_first_lives() {
        let first = Leases::default().renew(&renewal("a", 1), at(100)).unwrap();
        let refused = first.renew(&renewal("a", 2), at(109));
        assert_eq!(refused, Err(IdInUse(first.instance.unwrap())));
    }

    #[test]
    fn a_restarted_instance_supervises_on_under_a_new_term() {
        let first = Leases::default().renew(&renewal("a", 1), at(100)).unwrap();
        let again = Renewal {
            known_dead: DeadHolders::One(first.instance.as_ref().unwrap().lease.holder.incarnation),
            ..renewal("a", 2)
        };
        let next = first.renew(&again, at(101)).unwrap();
        assert_eq!(next.leads(&again.holder, at(101)), Some(Term(2)));
    }

    #[test]
    fn who_would_not_supervise_gives_it_up_and_stays_alive() {
        let a = renewal("a", 1);
        let first = Leases::default().renew(&a, at(100)).unwrap();
        let leaving = Renewal {
            supervise: false,
            ..a.clone()
        };
        let left = first.renew(&leaving, at(101)).unwrap();
        assert_eq!(left.leads(&a.holder, at(101)), None);
        assert!(!left.instance.as_ref().unwrap().lease.is_over(at(105)));
        let b = renewal("b", 2);
        let next = seen_by_another(left).renew(&b, at(101)).unwrap();
        assert_eq!(next.leads(&b.holder, at(101)), Some(Term(2)));
    }

    #[test]
    fn what_is_given_up_is_free_at_once() {
        let a = renewal("a", 1);
        let left = Leases::default()
            .renew(&a, at(100))
            .unwrap()
            .released(&a.holder, at(101));
        assert!(left.renew(&renewal("a", 2), at(101)).is_ok());
    }
}
