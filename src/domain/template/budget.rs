//! What an evaluation may cost. Every node, item and byte that it touches is charged before it is touched, so
//! that no definition and no data make it take longer, or more memory, than the budget says.

use std::cell::Cell;

/// What evaluations may cost that belong together: the templates of one claim with the conditions that it
/// opens, an answer of a probe, a dry run.
///
/// One unit is about a nanosecond on one core of a small server, in a release build, and no byte is
/// allocated for less than one unit. So [`Budget::EVALUATION`] bounds the time to some 20 ms and the memory to
/// 16 MiB. `scripts/fuzz-expressions` reports the longest evaluation that it finds; change the charges when
/// that is longer.
#[derive(Debug)]
pub struct Budget {
    left: Cell<u64>,
    whole: u64,
}

/// The budget is used up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Exhausted;

impl Budget {
    pub const EVALUATION: u64 = 16 << 20;

    pub fn new(units: u64) -> Self {
        Self {
            left: Cell::new(units),
            whole: units,
        }
    }

    pub fn evaluation() -> Self {
        Self::new(Self::EVALUATION)
    }

    pub fn spent(&self) -> u64 {
        self.whole - self.left.get()
    }

    /// What it was to begin with.
    pub fn whole(&self) -> u64 {
        self.whole
    }

    /// Begins anew.
    pub fn refill(&self) {
        self.left.set(self.whole);
    }

    /// Once it has failed it fails for whatever comes after.
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

    /// `count` things at `each`.
    pub(super) fn charge_each(&self, count: usize, each: u64) -> Result<(), Exhausted> {
        self.charge((count as u64).saturating_mul(each))
    }

    /// An allocation of so many bytes, which are written once.
    pub(super) fn allocate(&self, bytes: usize) -> Result<(), Exhausted> {
        self.charge((bytes as u64).saturating_add(ALLOCATION))
    }
}

/// What an allocation costs beside its bytes: the allocator's work and its own room.
const ALLOCATION: u64 = 48;

/// One node of an expression.
pub(super) const NODE: u64 = 16;
/// One item, member or entry that is looked at.
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
}
