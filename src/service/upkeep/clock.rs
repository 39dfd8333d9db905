//! Detects changes of the machine's wall clock, if the store's clock depends on it; [`SteadyClock`] defines how the
//! store's clock follows. Reports a change in the log, the metric and an alert, and saves the store's clock.
//!
//! [`SteadyClock`]: crate::domain::upkeep::SteadyClock

use std::time::Duration;

use metrics::{Gauge, Unit, describe_gauge, gauge};
use tracing::{info, warn};

use crate::service::loops::{NextRound, PeriodicLoop};
use crate::{
    clock::{self, Instant},
    domain::upkeep::{clocks_differ, is_clock_alerted, is_clock_set_again},
    store::{Store, StoreClock, StoreError},
};

/// One look costs a reading of two clocks.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// The interval at which the clock is saved. A process that starts later extrapolates from it.
const SAVED_EVERY: Duration = Duration::from_secs(60);
/// The interval while the clocks differ. It is shorter, because a later process cannot know how much slower or faster
/// the store's clock ran.
const SAVED_WHILE_DIFFERENT: Duration = Duration::from_secs(5);
/// The time for which the alert is open if the store's clock followed a jump at once.
const JUMP_ALERTED_FOR: Duration = Duration::from_secs(60);

pub(in crate::service) struct ClockWatch {
    store: Store,
    clock: StoreClock,
    saved: Option<Instant>,
    /// True if the difference of the clocks requires an open alert.
    differs: bool,
    /// The lead of the store's clock at the last look, in milliseconds.
    seen_ahead: i64,
    /// True if the wall clock was set after the alert was reported, so that the text of the alert is outdated.
    is_set: bool,
    /// The text about the last jump, and the time until which the alert shows it.
    jump: Option<(String, Instant)>,
    /// True if the alert is open. Unknown after the start, because an earlier process may have raised it.
    is_open: Option<bool>,
    ahead: Gauge,
}

impl ClockWatch {
    /// Returns `None` if the store has a clock of its own.
    pub fn new(store: &Store) -> Option<Self> {
        let clock = store.housekeeping.clock()?.clone();
        describe_gauge!(
            "provost_store_clock_ahead_seconds",
            Unit::Seconds,
            "By how much the store's clock is ahead of the machine's wall clock, which was set back; negative after it was set forward"
        );
        Some(Self {
            store: store.clone(),
            clock,
            saved: None,
            differs: false,
            seen_ahead: 0,
            is_set: false,
            jump: None,
            is_open: None,
            ahead: gauge!("provost_store_clock_ahead_seconds"),
        })
    }

    /// Returns the reason for an open alert, or `None`. Logs the changes.
    fn reason(&mut self) -> Option<String> {
        let ahead = self.clock.ahead_of_wall();
        self.ahead.set(ahead as f64 / 1000.0);
        if let Some(jump) = self.clock.take_jump() {
            let said = jump.in_words();
            warn!(from = %jump.from, to = %jump.to, "{said}");
            self.store.schedules.notify_one();
            self.jump = Some((said, clock::instant() + JUMP_ALERTED_FOR));
            self.is_set = true;
        }
        let differed = self.differs;
        self.differs = is_clock_alerted(differed, ahead);
        let ahead_seconds = ahead as f64 / 1000.0;
        let is_set_again = is_clock_set_again(self.seen_ahead, ahead);
        self.seen_ahead = ahead;
        match (differed, self.differs) {
            (false, true) => {
                self.is_set = true;
                warn!(ahead_seconds, "{}", clocks_differ(ahead));
                // The next look of the schedules was planned for a time that is further away now.
                self.store.schedules.notify_one();
            }
            (true, true) if is_set_again => {
                self.is_set = true;
                warn!(ahead_seconds, "{}", clocks_differ(ahead));
                // The next look of the schedules was planned for a time that is further away now.
                self.store.schedules.notify_one();
            }
            (true, false) => info!(
                ahead_seconds,
                "the store's clock and the clock of this machine agree again"
            ),
            _ => {}
        }
        self.jump.take_if(|(_, until)| *until <= clock::instant());
        match self.differs {
            true => Some(clocks_differ(ahead)),
            false => self.jump.as_ref().map(|(said, _)| said.clone()),
        }
    }
}

impl PeriodicLoop for ClockWatch {
    const NAME: &'static str = "clock";
    const AT_ONCE: bool = true;

    fn interval(&self) -> Duration {
        CHECK_EVERY
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        let reason = self.reason();
        let is_open = reason.is_some();
        if self.is_set {
            self.saved = None;
        }
        if self.is_open != Some(is_open) || self.is_set {
            // After a start, an alert of an earlier process may be open for the same setting of the clock, and may
            // stay.
            let is_first = self.is_open.is_none() && self.jump.is_none();
            let may_stay = is_first.then_some(self.seen_ahead);
            self.store.report_clock(reason, may_stay).await?;
            self.is_open = Some(is_open);
            self.is_set = false;
        }
        let saved_every = match self.differs {
            true => SAVED_WHILE_DIFFERENT,
            false => SAVED_EVERY,
        };
        if self.saved.is_none_or(|at| at.elapsed() >= saved_every) {
            self.store.save_clock(&self.clock).await?;
            self.saved = Some(clock::instant());
        }
        Ok(NextRound::AfterInterval)
    }
}
