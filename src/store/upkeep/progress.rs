//! Finds out whether the writer has stopped making progress. In that case the process responds, but does nothing, and
//! should be restarted.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use crate::clock::{self, Instant};

/// The longest time that a transaction may take. A database that does not respond ends one much sooner.
const LONGEST_TRANSACTION: Duration = Duration::from_secs(60);

/// The transactions of the committers.
#[derive(Debug)]
pub struct WriterProgress {
    started: Instant,
    under_way: AtomicUsize,
    /// The milliseconds from `started` to the last begin or end of a transaction.
    last_change: AtomicU64,
}

/// Marks a transaction as running until it is dropped.
#[must_use]
pub struct TransactionUnderWay<'p>(&'p WriterProgress);

impl Default for WriterProgress {
    fn default() -> Self {
        Self {
            started: clock::instant(),
            under_way: AtomicUsize::new(0),
            last_change: AtomicU64::new(0),
        }
    }
}

impl WriterProgress {
    pub fn begin(&self) -> TransactionUnderWay<'_> {
        self.begin_at(clock::instant())
    }

    /// Returns for how long the writer has made no progress, if that is longer than any transaction takes.
    pub fn stood_still(&self) -> Option<Duration> {
        self.stood_still_at(clock::instant())
    }

    fn begin_at(&self, now: Instant) -> TransactionUnderWay<'_> {
        self.changed(now);
        self.under_way.fetch_add(1, Ordering::Release);
        TransactionUnderWay(self)
    }

    fn changed(&self, now: Instant) {
        let millis = now.duration_since(self.started).as_millis();
        let millis = u64::try_from(millis).unwrap_or(u64::MAX);
        self.last_change.store(millis, Ordering::Release);
    }

    fn stood_still_at(&self, now: Instant) -> Option<Duration> {
        if self.under_way.load(Ordering::Acquire) == 0 {
            return None;
        }
        let last_change = Duration::from_millis(self.last_change.load(Ordering::Acquire));
        let still = now.duration_since(self.started).checked_sub(last_change)?;
        (still > LONGEST_TRANSACTION).then_some(still)
    }
}

impl Drop for TransactionUnderWay<'_> {
    fn drop(&mut self) {
        self.0.changed(clock::instant());
        self.0.under_way.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_stands_still_if_a_transaction_neither_ends_nor_follows_another() {
        let progress = WriterProgress::default();
        let start = progress.started;
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(progress.stood_still_at(at(1000)), None, "there is no work");
        let first = progress.begin_at(at(1000));
        assert_eq!(progress.stood_still_at(at(1060)), None);
        let still = progress.stood_still_at(at(1061));
        assert_eq!(still, Some(Duration::from_secs(61)));
        let second = progress.begin_at(at(1061));
        assert_eq!(progress.stood_still_at(at(1061)), None, "another one began");
        drop((first, second));
        assert_eq!(progress.stood_still_at(at(5000)), None, "both have ended");
    }
}
