//! The turn of a task in the queues of agents: with ageing, so that no task starves, and with the time that the task
//! has to complete.

use crate::{
    task::aggregate::{Details, Task},
    values::{Span, ids::Priority, time::Timestamp},
};

/// The ageing of one priority: a task goes before a task of the next higher priority that came later by more than this.
/// So however many important tasks arrive, every other task has its turn some day.
pub const AGEING: Span = Span::from_secs(3600);

/// The position of a task in every queue, as a time: the lowest is first. It never changes, so that a queue is an
/// index: ageing is the difference to tasks that come later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Turn(i64);

impl Turn {
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    pub fn as_millis(self) -> i64 {
        self.0
    }

    /// Tasks of one priority are ordered by the time at which they must be complete. A limit of more than an hour
    /// counts like no limit: such tasks are ordered by their age.
    pub fn new(priority: Priority, created_at: Timestamp, complete_within: Option<Span>) -> Self {
        let slack = complete_within.map_or(AGEING, |within| within.min(AGEING));
        let ahead = AGEING.as_millis() * priority.get();
        Self((created_at + slack).as_millis() - ahead)
    }

    /// Returns whether this turn is earlier by more than tasks differ that came shortly after each other.
    pub fn is_well_before(self, other: Self) -> bool {
        self.0.saturating_add(AGEING.as_millis() / 2) <= other.0
    }
}

impl Details {
    /// Returns the turn of the task in the queues of agents.
    pub fn turn(&self, created_at: Timestamp) -> Turn {
        Turn::new(self.priority, created_at, self.complete_within)
    }
}

impl Task {
    /// Returns the turn of the task in agent queues.
    pub fn turn(&self) -> Turn {
        self.details.turn(self.created_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The turn of a task with this priority that came `came` minutes after the first, with `within` minutes to
    /// complete.
    fn turn(priority: i64, came: u64, within: Option<u64>) -> Turn {
        let minutes = |minutes: u64| Span::from_secs(60 * minutes);
        let came = Timestamp::from_millis(1_000_000_000) + minutes(came);
        Turn::new(Priority::new(priority).unwrap(), came, within.map(minutes))
    }

    #[test]
    fn the_more_important_task_goes_first_unless_the_other_has_waited_an_hour_longer() {
        assert!(turn(1, 59, None) < turn(0, 0, None));
        assert!(turn(1, 61, None) > turn(0, 0, None));
        assert!(turn(100, 199 * 60, None) < turn(-100, 0, None));
        assert!(turn(100, 201 * 60, None) > turn(-100, 0, None));
    }

    #[test]
    fn within_a_priority_the_task_with_the_least_time_left_goes_first() {
        assert!(turn(0, 5, Some(10)) < turn(0, 0, Some(20)));
        assert!(turn(0, 5, Some(10)) < turn(0, 0, None));
        assert!(turn(0, 55, Some(10)) > turn(0, 0, None));
        assert!(turn(0, 1, Some(600)) > turn(0, 0, None), "it has time");
    }

    #[test]
    fn no_haste_goes_before_importance_within_what_one_priority_is_worth() {
        assert!(turn(1, 0, None) <= turn(0, 0, Some(1)));
        assert!(turn(1, 0, Some(30)) < turn(0, 0, Some(1)));
    }

    #[test]
    fn what_came_a_little_earlier_is_not_well_before() {
        assert!(!turn(0, 0, None).is_well_before(turn(0, 1, None)));
        assert!(turn(1, 1, None).is_well_before(turn(0, 0, None)));
        assert!(turn(0, 1, Some(1)).is_well_before(turn(0, 0, None)));
    }
}
