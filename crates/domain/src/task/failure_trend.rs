//! The trend of failures for one cause, from their numbers by quarters of an hour.

use std::time::Duration;

/// The number of quarters in an hour.
const QUARTERS_OF_HOUR: usize = 4;
const QUARTER: Duration = Duration::from_secs(15 * 60);
/// Failures that came this long ago may still come.
const STILL: Duration = Duration::from_secs(2 * 60);
/// The number of quarters that are compared with as many before them.
const COMPARED: usize = 2;

/// The numbers of failures by quarters of an hour; the last one is that of the current quarter.
#[derive(Clone, Copy, Debug)]
pub struct FailureTrend<'q>(pub &'q [u64]);

impl FailureTrend<'_> {
    /// Returns the numbers by hours that end with the current quarter. The quarters are those of whole hours.
    pub fn by_hour(self) -> Vec<u64> {
        let hours = self.0.rchunks(QUARTERS_OF_HOUR);
        let mut hours: Vec<u64> = hours.map(|quarters| quarters.iter().sum()).collect();
        hours.reverse();
        hours
    }

    /// Returns whether more steps failed in the current quarter and the one before it than in the two before these, and failures
    /// still come: the last one is no longer ago than twice the time between two of them, or two minutes. One alone does not grow.
    pub fn is_growing(self, since_last: Duration) -> bool {
        let mut recent = self.0.rchunks(COMPARED).map(|pair| pair.iter().sum());
        let now: u64 = recent.next().unwrap_or_default();
        let before: u64 = recent.next().unwrap_or_default();
        let compared = QUARTER.as_secs() * COMPARED as u64;
        let between = Duration::from_secs(compared / now.max(1));
        let comes = since_last <= (2 * between).max(STILL);
        now > before.max(1) && comes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_has_the_sum_of_its_quarters() {
        let quarters = [1, 2, 3, 4, 0, 0, 0, 9];
        assert_eq!(FailureTrend(&quarters).by_hour(), [10, 9]);
    }

    #[test]
    fn failures_grow_if_the_last_half_hour_has_more_than_the_one_before() {
        let grows = |quarters: &[u64]| FailureTrend(quarters).is_growing(Duration::from_secs(1));
        assert!(grows(&[0, 0, 2, 0]));
        assert!(!grows(&[0, 0, 1, 0]), "one alone");
        assert!(grows(&[5, 5, 5, 6]));
        assert!(!grows(&[5, 5, 5, 5]));
        assert!(!grows(&[9, 0, 0, 0]));
        assert!(!grows(&[0, 0, 0, 0]));
        assert!(!grows(&[]));
    }

    #[test]
    fn failures_that_have_stopped_do_not_grow() {
        let grows = |failures, seconds| {
            FailureTrend(&[0, 0, 0, failures]).is_growing(Duration::from_secs(seconds))
        };
        assert!(grows(400, 120) && !grows(400, 121));
        // Two in half an hour are a quarter apart.
        assert!(grows(2, 1_800) && !grows(2, 1_801));
        assert!(grows(12, 300) && !grows(12, 301));
    }
}
