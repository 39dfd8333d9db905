//! The wait of the supervisor before a step that has failed is attempted again.

use std::time::Duration;

use crate::values::{backoff::Backoff, time::Span};

const BACKOFF: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(60));

/// The wait after the n-th failure of a step: a second, doubled with each failure, at most a minute.
pub fn backoff(failure_count: u32) -> Span {
    BACKOFF.wait(failure_count).into()
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
