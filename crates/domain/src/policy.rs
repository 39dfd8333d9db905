//! How long the supervisor lets a step rest before it is tried again.

use crate::time::Span;

/// The wait after the n-th failure of a step: a second, doubled with each failure, at most a minute.
pub fn backoff(failure_count: u32) -> Span {
    let doublings = failure_count.saturating_sub(1).min(6);
    Span::from_secs((1u64 << doublings).min(60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_doubles_the_wait_up_to_a_minute() {
        let waits: Vec<_> = [1, 2, 3, 6, 7, 8, u32::MAX].map(backoff).into();
        assert_eq!(waits, [1, 2, 4, 32, 60, 60, 60].map(Span::from_secs));
    }
}
