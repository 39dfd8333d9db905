//! How long the supervisor lets a step rest before it is tried again.

use super::Span;

/// The wait after the n-th failure of a step: a second, doubled with each failure, at most a minute.
pub fn backoff(failure_count: u32) -> Span {
    let doublings = failure_count.saturating_sub(1).min(6);
    Span::from_secs((1u64 << doublings).min(60))
}
