//! What becomes of a message when a receiver has answered, or has not.

use std::time::Duration;

use crate::time::{Span, Timestamp};

/// How long and how often a message is tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeliveryPolicy {
    /// The longest wait after the first failure.
    pub initial: Span,
    /// The longest wait at all.
    pub max: Span,
    /// After so long without success, counted from its first try, a message is dead.
    pub give_up_after: Span,
}

/// For no longer is a receiver left alone because it asks for it (`Retry-After`).
pub const LONGEST_ASKED: Duration = Duration::from_secs(3600);

impl Default for DeliveryPolicy {
    fn default() -> Self {
        Self {
            initial: Span::from_secs(5),
            max: Span::from_secs(15 * 60),
            give_up_after: Span::from_secs(24 * 60 * 60),
        }
    }
}

/// How one try ended.
#[derive(Clone, PartialEq, Debug)]
pub enum DeliveryResult {
    Delivered,
    /// Not this time.
    Failed {
        reason: String,
        /// What the receiver asked for.
        retry_after: Option<Duration>,
        /// Whether the receiver as a whole is in trouble, as far as this try can tell: other messages
        /// would fare no better.
        receiver_failing: bool,
    },
    /// Another try would be of no use.
    Refused {
        reason: String,
    },
}

/// What is done with the message.
#[derive(Clone, PartialEq, Debug)]
pub enum DeliveryDecision {
    Delivered,
    /// Tried again at that time.
    Retry {
        at: Timestamp,
        reason: String,
    },
    /// Kept for an operator; those behind it go on.
    Dead {
        reason: String,
    },
}

impl DeliveryPolicy {
    /// What a try means for its message, which was first tried at `since`. `chance` is drawn from 0 to
    /// 1. The last try is made when the time is up, so that none is given up between two tries.
    pub fn decide(
        &self,
        delivery: DeliveryResult,
        tries: u32,
        since: Timestamp,
        now: Timestamp,
        chance: f64,
    ) -> DeliveryDecision {
        match delivery {
            DeliveryResult::Delivered => DeliveryDecision::Delivered,
            DeliveryResult::Refused { reason } => DeliveryDecision::Dead { reason },
            DeliveryResult::Failed {
                reason,
                retry_after,
                ..
            } => {
                let end = since + self.give_up_after;
                if now >= end {
                    let within = self.give_up_after;
                    return DeliveryDecision::Dead {
                        reason: format!("{reason}; {tries} attempts within {within}"),
                    };
                }
                let wait = self.wait(tries, retry_after, chance);
                let wait = Span::from_millis(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
                DeliveryDecision::Retry {
                    at: (now + wait).min(end),
                    reason,
                }
            }
        }
    }

    /// What has waited since then, or for longer, has had its time by `now`.
    pub fn given_up_since(&self, now: Timestamp) -> Timestamp {
        let millis = now.as_millis() - self.give_up_after.as_millis();
        Timestamp::from_millis(millis)
    }

    /// Full jitter: anywhere between nothing and `initial`, doubled with each try, at most `max`; on
    /// top of what the receiver asked for.
    fn wait(&self, tries: u32, retry_after: Option<Duration>, chance: f64) -> Duration {
        let growth = 2u32.saturating_pow(tries.saturating_sub(1));
        let longest = self.initial.saturating_mul(growth).min(self.max);
        let jitter = longest.duration().mul_f64(chance.clamp(0.0, 1.0));
        let asked = retry_after.unwrap_or_default().min(LONGEST_ASKED);
        asked.saturating_add(jitter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: DeliveryPolicy = DeliveryPolicy {
        initial: Span::from_secs(5),
        max: Span::from_secs(900),
        give_up_after: Span::from_secs(86_400),
    };
    const START: Timestamp = Timestamp::from_millis(1_000_000);

    fn failed(retry_after: Option<u64>) -> DeliveryResult {
        DeliveryResult::Failed {
            reason: "500".to_owned(),
            retry_after: retry_after.map(Duration::from_secs),
            receiver_failing: true,
        }
    }

    fn wait(tries: u32, retry_after: Option<u64>, chance: f64) -> u64 {
        match DAY.decide(failed(retry_after), tries, START, START, chance) {
            DeliveryDecision::Retry { at, .. } => at.since(START).as_secs(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_wait_is_anywhere_up_to_a_bound_that_doubles_up_to_the_longest() {
        let longest = [1, 2, 3, 8, 9, u32::MAX].map(|tries| wait(tries, None, 1.0));
        assert_eq!(longest, [5, 10, 20, 640, 900, 900]);
        assert_eq!(wait(3, None, 0.0), 0);
        assert_eq!(wait(3, None, 0.5), 10);
    }

    #[test]
    fn the_receiver_is_left_alone_for_as_long_as_it_asked() {
        assert_eq!(wait(1, Some(120), 0.0), 120);
        assert_eq!(wait(1, Some(120), 1.0), 125);
        assert_eq!(wait(1, Some(u64::MAX), 1.0), 3605);
    }

    #[test]
    fn the_last_try_is_made_when_the_time_is_up_and_then_the_message_is_dead() {
        let late = START + Span::from_secs(86_399);
        let end = START + DAY.give_up_after;
        let again = DAY.decide(failed(None), 100, START, late, 1.0);
        assert!(
            matches!(again, DeliveryDecision::Retry { at, .. } if at == end),
            "{again:?}"
        );
        let dead = DAY.decide(failed(None), 101, START, end, 1.0);
        let reason = "500; 101 attempts within 24h".to_owned();
        assert_eq!(dead, DeliveryDecision::Dead { reason });
    }

    #[test]
    fn a_receiver_that_wants_no_more_gets_no_more() {
        let reason = "410 Gone".to_owned();
        let gone = DeliveryResult::Refused {
            reason: reason.clone(),
        };
        assert_eq!(
            DAY.decide(gone, 1, START, START, 0.5),
            DeliveryDecision::Dead { reason }
        );
        let taken = DAY.decide(DeliveryResult::Delivered, 1, START, START, 0.5);
        assert_eq!(taken, DeliveryDecision::Delivered);
    }
}
