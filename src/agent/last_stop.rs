//! The last period in which this process did not call an agent. The history of the steps that were queued meanwhile
//! shows it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;

use crate::{
    clock::Instant,
    domain::{
        agent::PastStop,
        values::{InstanceId, Span, Timestamp},
    },
};

#[derive(Default)]
pub(super) struct LastStop {
    /// False for most agents, which then need not lock `stops`.
    exists: AtomicBool,
    stops: Mutex<LastStopState>,
}

#[derive(Default)]
struct LastStopState {
    last: Option<Arc<PastStop>>,
    /// The reason and the end of a period without a secret, on the clock of this machine. The next claim converts the
    /// end to the store's time.
    secret_fault: Option<(Instant, String)>,
}

impl LastStop {
    /// Records a period without calls that has just ended.
    pub fn set(&self, stop: PastStop) {
        self.stops.lock().last = Some(Arc::new(stop));
        self.exists.store(true, Ordering::Release);
    }

    /// Records that this instance could make no request until now, because of a secret. If it still cannot, it makes
    /// no claim either, and a later record replaces this one.
    pub fn note_secret_fault(&self, why: String, now: Instant) {
        self.stops.lock().secret_fault = Some((now, why));
        self.exists.store(true, Ordering::Release);
    }

    /// Returns the last period. `now` is the store's time at `instant`.
    pub fn get(
        &self,
        instance: &InstanceId,
        now: Timestamp,
        instant: Instant,
    ) -> Option<Arc<PastStop>> {
        if !self.exists.load(Ordering::Acquire) {
            return None;
        }
        let mut stops = self.stops.lock();
        if let Some((ended, why)) = stops.secret_fault.take() {
            let ago = Span::from(instant.saturating_duration_since(ended));
            let until = Timestamp::from_millis(now.as_millis().saturating_sub(ago.as_millis()));
            if stops.last.as_ref().is_none_or(|last| last.until <= until) {
                let at = Some(instance.clone());
                stops.last = Some(Arc::new(PastStop { until, why, at }));
            }
        }
        stops.last.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Returns the end of the period in the store's time, and its reason. `now` is the store's time at `instant`.
    fn get(stop: &LastStop, now: i64, instant: Instant) -> Option<(i64, String)> {
        let one = InstanceId::new("one");
        let stop = stop.get(&one, Timestamp::from_millis(now), instant)?;
        let is_of_one = stop.why.contains("its file") == (stop.at == Some(one));
        assert!(is_of_one, "{stop:?}");
        Some((stop.until.as_millis(), stop.why.clone()))
    }

    const MISSING: &str = "its file does not exist";
    const OPEN: &str = "its breaker was open";

    fn breaker(until: i64) -> PastStop {
        PastStop {
            until: Timestamp::from_millis(until),
            why: OPEN.to_owned(),
            at: None,
        }
    }

    fn seconds(after: Instant, seconds: u64) -> Instant {
        after + Duration::from_secs(seconds)
    }

    #[test]
    fn the_end_of_a_missing_secret_has_the_time_of_the_store() {
        let (stop, start) = (LastStop::default(), Instant::now());
        assert_eq!(get(&stop, 0, start), None);
        stop.note_secret_fault(MISSING.to_owned(), start);
        let expected = Some((97_000, MISSING.to_owned()));
        assert_eq!(get(&stop, 100_000, seconds(start, 3)), expected);
        // The end does not change when the store's clock is changed later.
        assert_eq!(get(&stop, 900_000, seconds(start, 6)), expected);
    }

    #[test]
    fn a_batch_may_have_begun_before_the_secret_was_there() {
        let (stop, start) = (LastStop::default(), Instant::now());
        stop.note_secret_fault(MISSING.to_owned(), seconds(start, 1));
        let expected = Some((5_000, MISSING.to_owned()));
        assert_eq!(get(&stop, 5_000, start), expected);
    }

    #[test]
    fn the_stop_that_ended_last_counts() {
        let (stop, start) = (LastStop::default(), Instant::now());
        stop.set(breaker(5_000));
        stop.note_secret_fault(MISSING.to_owned(), start);
        assert_eq!(get(&stop, 6_000, seconds(start, 1)).unwrap().1, MISSING);
        stop.note_secret_fault(MISSING.to_owned(), seconds(start, 2));
        stop.set(breaker(8_001));
        assert_eq!(get(&stop, 9_000, seconds(start, 3)).unwrap().1, OPEN);
    }
}
