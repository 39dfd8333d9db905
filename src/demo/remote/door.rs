//! One address of a service, and the counts of its requests. A sick one refuses all work at first.

use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Instant;

/// The time after its first request in which a sick address refuses work.
const SICK_FOR: Duration = Duration::from_millis(1500);

#[derive(Default)]
pub struct Door {
    is_sick: bool,
    visits: Mutex<Visits>,
}

#[derive(Default)]
struct Visits {
    first_at: Option<Instant>,
    counts: DoorCounts,
}

/// The numbers of requests for work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DoorCounts {
    pub calls: usize,
    /// The requests among them that were refused.
    pub refused: usize,
}

impl Door {
    /// The requests that are refused at least, also after `SICK_FOR`: fewer would not eject the endpoint.
    pub const LEAST_REFUSED: usize = 3;

    pub fn sick() -> Self {
        Self {
            is_sick: true,
            ..Self::default()
        }
    }

    pub fn is_sick(&self) -> bool {
        self.is_sick
    }

    pub fn counts(&self) -> DoorCounts {
        self.visits.lock().counts
    }

    /// Counts a request. Returns false if it is refused.
    pub fn enter(&self, now: Instant) -> bool {
        let mut visits = self.visits.lock();
        let first_at = *visits.first_at.get_or_insert(now);
        let counts = &mut visits.counts;
        counts.calls += 1;
        let is_ill = counts.refused < Self::LEAST_REFUSED || now < first_at + SICK_FOR;
        let refuses = self.is_sick && is_ill;
        counts.refused += usize::from(refuses);
        !refuses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sick_one_refuses_until_its_time_is_over_and_enough_have_come() {
        let start = Instant::now();
        let entered = |at: &[u64]| {
            let door = Door::sick();
            let entered = at
                .iter()
                .map(|at| door.enter(start + Duration::from_millis(*at)));
            let entered: Vec<_> = entered.collect();
            let refused = entered.iter().filter(|entered| !**entered).count();
            let calls = at.len();
            assert_eq!(door.counts(), DoorCounts { calls, refused });
            entered
        };
        let often = entered(&[0, 100, 200, 1400, 1600, 1700]);
        assert_eq!(often, [false, false, false, false, true, true]);
        let seldom = entered(&[0, 5000, 5100, 5200]);
        assert_eq!(seldom, [false, false, false, true]);
    }

    #[test]
    fn one_that_is_well_refuses_nothing() {
        let door = Door::default();
        assert!(door.enter(Instant::now()));
        let counts = DoorCounts {
            calls: 1,
            refused: 0,
        };
        assert_eq!(door.counts(), counts);
    }
}
