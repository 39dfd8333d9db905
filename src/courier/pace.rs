//! How many messages may be under way to each receiver. One that fails is asked again by one message at
//! a time, after a growing pause: its other messages wait, and cost the store nothing meanwhile.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use crate::domain::ReceiverName;

/// The first pause after a failure; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// So long may a receiver that is back wait for the rest of its messages.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// The most messages under way to all receivers together: one message of a thousand receivers that
/// hang still leaves room for others.
const MOST_IN_FLIGHT: usize = 2048;

pub struct Pace {
    /// Per receiver.
    most: usize,
    longest_pause: Duration,
    under_way: usize,
    receivers: HashMap<ReceiverName, One>,
}

#[derive(Default)]
struct One {
    under_way: usize,
    /// In a row.
    failures: u32,
    paused_until: Option<Instant>,
}

impl Pace {
    pub fn new(most: usize, longest_pause: Duration) -> Self {
        Self {
            most,
            longest_pause,
            under_way: 0,
            receivers: HashMap::new(),
        }
    }

    /// How many more messages may go to a receiver now; or until when it has its pause.
    pub fn places(&self, receiver: &ReceiverName, now: Instant) -> Result<usize, Option<Instant>> {
        let left = MOST_IN_FLIGHT.saturating_sub(self.under_way);
        let places = match self.receivers.get(receiver) {
            None => self.most,
            Some(one) if one.failures == 0 => self.most.saturating_sub(one.under_way),
            Some(one) if one.paused_until.is_some_and(|until| until > now) => {
                return Err(one.paused_until);
            }
            Some(one) => 1usize.saturating_sub(one.under_way),
        };
        match places.min(left) {
            0 => Err(None),
            places => Ok(places),
        }
    }

    pub fn started(&mut self, receiver: &ReceiverName) {
        self.under_way += 1;
        self.receivers
            .entry(receiver.clone())
            .or_default()
            .under_way += 1;
    }

    /// `failing`: how the receiver as a whole fared, where the try could tell. `chance` is drawn from 0
    /// to 1.
    pub fn ended(
        &mut self,
        receiver: &ReceiverName,
        failing: Option<bool>,
        now: Instant,
        chance: f64,
    ) {
        self.under_way = self.under_way.saturating_sub(1);
        let Some(one) = self.receivers.get_mut(receiver) else {
            return;
        };
        one.under_way = one.under_way.saturating_sub(1);
        match failing {
            Some(true) => {
                let longest = FIRST_PAUSE.saturating_mul(1 << one.failures.min(16));
                // At least half of it: a pause that chance makes nothing would be none.
                let pause = longest.min(self.longest_pause).mul_f64(0.5 + chance / 2.0);
                one.failures = one.failures.saturating_add(1);
                one.paused_until = Some(now + pause);
            }
            Some(false) => {
                one.failures = 0;
                one.paused_until = None;
            }
            None => {}
        }
        if one.under_way == 0 && one.failures == 0 {
            // Nothing worth remembering: receivers may be many.
            self.receivers.remove(receiver);
        }
    }

    /// Forgets receivers that nothing waits for any more.
    pub fn keep(&mut self, waited_for: impl Fn(&ReceiverName) -> bool) {
        self.receivers
            .retain(|receiver, one| one.under_way > 0 || waited_for(receiver));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_has_its_share_and_no_more() {
        let (a, b) = (ReceiverName::new("a"), ReceiverName::new("b"));
        let now = Instant::now();
        let mut pace = Pace::new(2, LONGEST_PAUSE);
        assert_eq!(pace.places(&a, now), Ok(2));
        pace.started(&a);
        pace.started(&a);
        assert_eq!(pace.places(&a, now), Err(None));
        assert_eq!(pace.places(&b, now), Ok(2));
        pace.ended(&a, Some(false), now, 0.5);
        assert_eq!(pace.places(&a, now), Ok(1));
    }

    #[test]
    fn one_that_fails_is_asked_by_one_message_after_a_pause_until_it_takes_one() {
        let a = ReceiverName::new("a");
        let now = Instant::now();
        let mut pace = Pace::new(8, LONGEST_PAUSE);
        let mut longest = Duration::ZERO;
        for _ in 0..20 {
            pace.started(&a);
            pace.ended(&a, Some(true), now, 1.0);
            let Err(Some(until)) = pace.places(&a, now) else {
                panic!("no pause");
            };
            assert!(until - now >= longest);
            longest = until - now;
            assert_eq!(pace.places(&a, until), Ok(1));
            pace.started(&a);
            assert_eq!(pace.places(&a, until), Err(None));
            pace.ended(&a, None, now, 1.0);
        }
        assert_eq!(longest, LONGEST_PAUSE);
        pace.started(&a);
        pace.ended(&a, Some(false), now, 1.0);
        assert_eq!(pace.places(&a, now), Ok(8));
        assert!(pace.receivers.is_empty());
    }
}
