//! The bound on the cost of an evaluation. Every node, item and byte is charged before it is read or written, so that
//! no definition and no data make an evaluation exceed the time or the memory of its budget.

use std::cell::Cell;

/// The budget of evaluations that belong together: the templates of one claim with the conditions of the steps that it
/// makes ready, a response to a probe, a dry run.
///
/// One unit is about a nanosecond on one core of a small server, in a release build, and no byte is
/// allocated for less than one unit. So [`Budget::EVALUATION`] bounds the time to some 20 ms and the memory to
/// 16 MiB. `scripts/fuzz-expressions` reports the longest evaluation that it finds; change the charges when
/// that is longer.
#[derive(Debug)]
pub struct Budget {
    left: Cell<u64>,
    /// The units that are left for the evaluations after the current one.
    later: Cell<u64>,
    whole: u64,
}

/// The error that the budget is used up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Exhausted;

impl Budget {
    pub const EVALUATION: u64 = 16 << 20;

    pub fn new(units: u64) -> Self {
        Self {
            left: Cell::new(units),
            later: Cell::new(0),
            whole: units,
        }
    }

    /// Makes the budget for several evaluations. Each begins with [`Budget::next`] and may cost as much as a single
    /// one, as long as units are left. The values of one evaluation must be dropped before the next begins, so that
    /// together they need only the memory of one.
    pub fn of_several(units: u64) -> Self {
        let left = units.min(Self::EVALUATION);
        Self {
            left: Cell::new(left),
            later: Cell::new(units - left),
            whole: units,
        }
    }

    /// Begins another evaluation. It may begin even if the one before has cost too much.
    pub fn next(&self) {
        let all = self.left.get() + self.later.get();
        // A budget for one evaluation has all of its units for the current one.
        let left = match self.later.get() {
            0 => all,
            _ => all.min(Self::EVALUATION),
        };
        self.left.set(left);
        self.later.set(all - left);
    }

    pub fn evaluation() -> Self {
        Self::new(Self::EVALUATION)
    }

    pub fn spent(&self) -> u64 {
        self.whole - self.left.get() - self.later.get()
    }

    /// Returns whether no units are left, or too few were left for a charge.
    pub fn is_used_up(&self) -> bool {
        self.left.get() + self.later.get() == 0
    }

    /// Returns the units that the evaluation which used up the budget was allowed, together with those that share its
    /// budget.
    pub(super) fn allowed(&self) -> u64 {
        match self.later.get() {
            0 => self.whole,
            _ => Self::EVALUATION,
        }
    }

    /// Resets the budget, for one evaluation.
    pub fn refill(&self) {
        self.left.set(self.whole);
    }

    /// Charges units. After a charge has failed, all further charges fail.
    pub(super) fn charge(&self, units: u64) -> Result<(), Exhausted> {
        match self.left.get().checked_sub(units) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => {
                self.left.set(0);
                Err(Exhausted)
            }
        }
    }

    /// Charges `count` items at `each` units.
    pub(super) fn charge_each(&self, count: usize, each: u64) -> Result<(), Exhausted> {
        self.charge((count as u64).saturating_mul(each))
    }

    /// Charges an allocation of `bytes` bytes, which are written once.
    pub(super) fn allocate(&self, bytes: usize) -> Result<(), Exhausted> {
        self.charge((bytes as u64).saturating_add(ALLOCATION))
    }
}

/// The cost of an allocation in addition to its bytes: the allocator's work and its overhead.
const ALLOCATION: u64 = 48;

/// The cost of one node of an expression.
pub(super) const NODE: u64 = 16;
/// The cost of reading one item, member or entry.
pub(super) const ITEM: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_up_stays_so() {
        let budget = Budget::new(10);
        assert_eq!(budget.charge(8), Ok(()));
        assert_eq!(budget.spent(), 8);
        assert_eq!(budget.charge(3), Err(Exhausted));
        assert_eq!(budget.charge(1), Err(Exhausted));
        assert_eq!(budget.spent(), 10);
        assert_eq!(budget.charge_each(usize::MAX, u64::MAX), Err(Exhausted));
        budget.refill();
        assert_eq!(budget.charge(10), Ok(()));
    }

    #[test]
    fn of_several_evaluations_each_has_what_one_may_cost_until_all_is_used_up() {
        const ONE: u64 = Budget::EVALUATION;
        let budget = Budget::of_several(2 * ONE + 5);
        assert_eq!(budget.charge(ONE + 1), Err(Exhausted));
        assert_eq!(budget.charge(1), Err(Exhausted));
        assert_eq!(budget.allowed(), ONE);
        budget.next();
        assert_eq!(budget.charge(10), Ok(()));
        assert_eq!(budget.spent(), ONE + 10);
        budget.next();
        assert_eq!(budget.charge(ONE - 5), Ok(()));
        assert_eq!(budget.charge(1), Err(Exhausted));
        budget.next();
        assert_eq!(budget.charge(1), Err(Exhausted));
        assert_eq!(budget.allowed(), 2 * ONE + 5);
    }
}
