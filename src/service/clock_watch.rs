//! Watches whether the wall clock of the machine was set, where the store's clock goes by it: [`SteadyClock`] says how
//! that follows. Says so in the log, the metric and an alert, and puts on record what the store's clock shows.
//!
//! [`SteadyClock`]: crate::domain::SteadyClock

use std::time::Duration;

use metrics::{Gauge, Unit, describe_gauge, gauge};
use tokio::time::Instant;
use tracing::{info, warn};

use super::loops::{NextRound, PeriodicLoop};
use crate::{
    domain::{clocks_differ, is_clock_alerted, is_clock_set_again},
    store::{Store, StoreClock, StoreError},
};

/// Looking costs a reading of two clocks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often the clock is put on record. A process that is started later extrapolates from it.
const SAVED_EVERY: Duration = Duration::from_secs(60);
/// The clock is put on record as often while the clocks differ, because a later process cannot know how much slower or faster it went.
const SAVED_WHILE_DIFFERENT: Duration = Duration::from_secs(5);
/// For how long the alert of a clock that was followed at once is open.
const JUMP_ALERTED_FOR: Duration = Duration::from_secs(60);

pub(super) struct ClockWatch {
    store: Store,
    clock: StoreClock,
    saved: Option<Instant>,
    /// Whether the clocks differ so much that the alert is to be open.
    differs: bool,
    /// The store's clock was ahead by so many milliseconds at the last look.
    seen_ahead: i64,
    /// The wall clock was set since the alert was reported, so its text is that of an earlier time.
    is_set: bool,
    /// What is said of the last jump, and until when.
    jump: Option<(String, Instant)>,
    /// Whether the alert is open; unknown after the start, because an earlier process may have raised it.
    is_open: Option<bool>,
    ahead: Gauge,
}

impl ClockWatch {
    /// `None` where the store has a clock of its own.
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

    /// Why the alert is to be open, if it is. What is new is logged.
    fn reason(&mut self) -> Option<String> {
        let ahead = self.clock.ahead_of_wall();
        self.ahead.set(ahead as f64 / 1000.0);
        if let Some(jump) = self.clock.take_jump() {
            let said = jump.in_words();
            warn!(from = %jump.from, to = %jump.to, "{said}");
            self.store.schedules.notify_one();
            self.jump = Some((said, Instant::now() + JUMP_ALERTED_FOR));
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
                // Their next look was to come at a time that is further away now.
                self.store.schedules.notify_one();
            }
            (true, true) if is_set_again => {
                self.is_set = true;
                warn!(ahead_seconds, "{}", clocks_differ(ahead));
                // Their next look was to come at a time that is further away now.
                self.store.schedules.notify_one();
            }
            (true, false) => info!(
                ahead_seconds,
                "the store's clock and the clock of this machine agree again"
            ),
            _ => {}
        }
        self.jump.take_if(|(_, until)| *until <= Instant::now());
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
        LOOK_EVERY
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        let reason = self.reason();
        let is_open = reason.is_some();
        if self.is_set {
            self.saved = None;
        }
        if self.is_open != Some(is_open) || self.is_set {
            // After a start an open alert may be of this setting of the clock: an earlier process has raised it.
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
            self.saved = Some(Instant::now());
        }
        Ok(NextRound::AfterInterval)
    }
}
