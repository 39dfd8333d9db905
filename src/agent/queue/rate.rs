//! The rate limit of an agent in this process. A process that is alone on its store has a bucket of its own. Where
//! instances share the store, the process gets grants from the shared bucket, and loses the calls that it does not use
//! soon.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    clock::Instant,
    domain::{queue::RateBucket, values::RateLimitSpec},
};

/// The calls of a grant must begin within this time. Up to this share of the rate may coincide with calls of other
/// instances.
const GRANT_LASTS: Duration = Duration::from_millis(250);
/// New calls are obtained at most at this interval, if the burst allows. Each time costs a commit, and two from the
/// shared bucket.
const REST: Duration = Duration::from_millis(10);
const REST_OF_SHARED: Duration = Duration::from_millis(50);

pub(in crate::agent) struct RateLimiter {
    is_limited: AtomicBool,
    /// True if a call was wanted and could not begin because of the rate alone.
    is_wanting: AtomicBool,
    state: Mutex<RateState>,
}

struct RateState {
    spec: Option<RateLimitSpec>,
    start: Instant,
    source: CallSource,
}

enum CallSource {
    Own(RateBucket),
    Granted { calls: u32, until: Instant },
}

impl RateState {
    fn nanos(&self, now: Instant) -> i64 {
        let nanos = now.saturating_duration_since(self.start).as_nanos();
        i64::try_from(nanos).unwrap_or(i64::MAX)
    }

    fn available(&self, spec: &RateLimitSpec, now: Instant) -> u32 {
        match &self.source {
            CallSource::Own(bucket) => bucket.available(spec, self.nanos(now)),
            CallSource::Granted { calls, until } if now < *until => *calls,
            CallSource::Granted { .. } => 0,
        }
    }

    fn take(&mut self, spec: &RateLimitSpec, now: Instant) -> bool {
        let nanos = self.nanos(now);
        match &mut self.source {
            CallSource::Own(bucket) => bucket.take(spec, nanos, 1) > 0,
            CallSource::Granted { calls, until } if *calls > 0 && now < *until => {
                *calls -= 1;
                true
            }
            CallSource::Granted { .. } => false,
        }
    }
}

impl RateLimiter {
    pub fn new(now: Instant) -> Self {
        Self {
            is_limited: AtomicBool::new(false),
            is_wanting: AtomicBool::new(false),
            state: Mutex::new(RateState {
                spec: None,
                start: now,
                source: CallSource::Own(RateBucket(0)),
            }),
        }
    }

    /// Sets the limit. A new or changed limit begins with an empty bucket, because earlier calls are not counted.
    pub fn configure(&self, spec: Option<&RateLimitSpec>, is_shared: bool, now: Instant) {
        let mut state = self.state.lock();
        if state.spec.as_ref() == spec {
            return;
        }
        state.spec = spec.cloned();
        self.is_limited.store(spec.is_some(), Ordering::Relaxed);
        state.source = match spec {
            Some(spec) if !is_shared => CallSource::Own(RateBucket::empty(spec, state.nanos(now))),
            _ => CallSource::Granted {
                calls: 0,
                until: now,
            },
        };
    }

    pub fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Relaxed)
    }

    /// Takes one call if the rate lets it begin now.
    pub fn try_take(&self, now: Instant) -> Result<(), RateUsedUp> {
        let mut state = self.state.lock();
        let Some(spec) = state.spec.clone() else {
            return Ok(());
        };
        match state.take(&spec, now) {
            true => Ok(()),
            false => {
                self.is_wanting.store(true, Ordering::Release);
                Err(RateUsedUp)
            }
        }
    }

    /// Returns how many calls may begin now, at most `most`.
    pub fn available(&self, most: u32, now: Instant) -> Result<u32, RateUsedUp> {
        let state = self.state.lock();
        let spec = state.spec.as_ref();
        let available = spec.map_or(most, |spec| state.available(spec, now));
        if available == 0 {
            self.is_wanting.store(true, Ordering::Release);
            return Err(RateUsedUp);
        }
        Ok(available.min(most))
    }

    /// Returns the limit if it is the reason why the next call cannot begin.
    pub fn exhausted(&self, now: Instant) -> Option<RateLimitSpec> {
        let state = self.state.lock();
        let spec = state.spec.as_ref()?;
        (state.available(spec, now) == 0).then(|| spec.clone())
    }

    /// Returns a call that did not begin to the bucket or the grant.
    pub fn give_back(&self) {
        let mut state = self.state.lock();
        let Some(spec) = state.spec.clone() else {
            return;
        };
        match &mut state.source {
            CallSource::Own(bucket) => bucket.give_back(&spec),
            CallSource::Granted { calls, .. } => *calls += 1,
        }
    }

    /// Returns the action for the calls that have been wanted since the previous look, or `None` if there were none.
    pub fn take_want(&self, now: Instant) -> Option<RateAction> {
        if !self.is_wanting.swap(false, Ordering::AcqRel) {
            return None;
        }
        let state = self.state.lock();
        let spec = state.spec.as_ref()?;
        Some(match &state.source {
            CallSource::Own(bucket) => {
                let next_in = bucket.next_in(spec, state.nanos(now)).unsigned_abs();
                RateAction::Wait(rest(spec, Duration::from_nanos(next_in), REST))
            }
            CallSource::Granted { .. } => RateAction::Grant(spec.clone()),
        })
    }

    /// Reports that nothing was granted. Returns the time after which a grant should be requested again.
    pub fn want_again(&self, next_in: Duration) -> Duration {
        self.is_wanting.store(true, Ordering::Release);
        let state = self.state.lock();
        let spec = state.spec.as_ref();
        spec.map_or(next_in, |spec| rest(spec, next_in, REST_OF_SHARED))
    }

    pub fn granted(&self, more: u32, now: Instant) {
        let mut state = self.state.lock();
        if let CallSource::Granted { calls, until } = &mut state.source {
            let left = if now < *until { *calls } else { 0 };
            *calls = left.saturating_add(more);
            *until = now + GRANT_LASTS;
        }
    }
}

/// Returns the time after which enough further calls are available: at least `next_in`, and at least `least` if the
/// burst allows.
fn rest(spec: &RateLimitSpec, next_in: Duration, least: Duration) -> Duration {
    match next_in.is_zero() {
        true => Duration::ZERO,
        false => next_in.max(least.min(spec.fills_within() / 2)),
    }
}

/// No call may begin now, because the rate is used up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::agent) struct RateUsedUp;

/// The way in which an agent gets further calls.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RateAction {
    /// A call is available after this time.
    Wait(Duration),
    /// The agent needs a grant from the shared bucket.
    Grant(RateLimitSpec),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: &str) -> RateLimitSpec {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_process_alone_fills_its_own_bucket() {
        let start = Instant::now();
        let limiter = RateLimiter::new(start);
        assert!(!limiter.is_limited());
        let limit = spec(r#"{"rate": "10/s", "burst": 2}"#);
        limiter.configure(Some(&limit), false, start);
        assert!(limiter.is_limited());
        assert_eq!(limiter.try_take(start), Err(RateUsedUp));
        let soon = RateAction::Wait(Duration::from_millis(100));
        assert_eq!(limiter.take_want(start), Some(soon));
        assert_eq!(limiter.take_want(start), None);
        let later = start + Duration::from_secs(60);
        assert_eq!(limiter.available(7, later), Ok(2));
        assert_eq!(limiter.available(1, later), Ok(1));
        assert_eq!([later; 2].map(|at| limiter.try_take(at)), [Ok(()); 2]);
        assert!(limiter.exhausted(later).is_some());
        limiter.give_back();
        assert_eq!(limiter.available(7, later), Ok(1));
        limiter.configure(None, false, later);
        assert!(!limiter.is_limited());
    }

    #[test]
    fn what_was_granted_is_soon_lost() {
        let start = Instant::now();
        let limiter = RateLimiter::new(start);
        let limit = spec(r#"{"rate": "10/s", "burst": 2}"#);
        limiter.configure(Some(&limit), true, start);
        assert_eq!(limiter.available(7, start), Err(RateUsedUp));
        assert_eq!(limiter.take_want(start), Some(RateAction::Grant(limit)));
        limiter.granted(2, start);
        assert_eq!(limiter.try_take(start), Ok(()));
        let later = start + GRANT_LASTS;
        assert_eq!(limiter.try_take(later), Err(RateUsedUp));
        limiter.granted(2, later);
        assert_eq!(limiter.available(7, later), Ok(2));
    }

    #[test]
    fn a_fast_rate_is_looked_at_in_turns() {
        let fast = spec(r#"{"rate": "1000/s"}"#);
        let soon = Duration::from_micros(900);
        assert_eq!(rest(&fast, soon, REST), REST);
        assert_eq!(rest(&fast, Duration::ZERO, REST), Duration::ZERO);
        let narrow = spec(r#"{"rate": "1000/s", "burst": 2}"#);
        assert_eq!(rest(&narrow, soon, REST), Duration::from_millis(1));
        let slow = spec(r#"{"rate": "1/s"}"#);
        assert_eq!(
            rest(&slow, Duration::from_secs(1), REST),
            Duration::from_secs(1)
        );
    }
}
