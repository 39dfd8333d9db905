//! The windows of downtime of an agent, of which the last one that was found is kept: every look at the agent asks for it.

use crate::{
    agent::downtime::{DowntimeSpec, DowntimeWindow, Downtimes},
    values::time::{Span, Timestamp},
};

/// If no window comes, the longest time for which the cache keeps that none holds.
const LONGEST_KNOWN: Span = Span::from_secs(24 * 3600);

#[derive(Debug, Default)]
pub(super) struct WindowCache {
    downtimes: Downtimes,
    known: Option<KnownWindow>,
}

/// The window of the downtimes, if any, from one time until another.
#[derive(Debug)]
struct KnownWindow {
    from: Timestamp,
    until: Timestamp,
    window: Option<DowntimeWindow>,
}

impl WindowCache {
    pub fn new(specs: &[DowntimeSpec]) -> Self {
        Self {
            downtimes: Downtimes::new(specs),
            known: None,
        }
    }

    /// Returns the window that holds now.
    pub fn holds_at(&mut self, now: Timestamp) -> Option<&DowntimeWindow> {
        if self.downtimes.is_empty() {
            return None;
        }
        let is_known = |known: &KnownWindow| (known.from..known.until).contains(&now);
        if !self.known.as_ref().is_some_and(is_known) {
            self.known = Some(KnownWindow::at(&self.downtimes, now));
        }
        self.known.as_ref()?.window.as_ref()
    }

    /// Returns when the next window begins, or the one that holds ends, by the last call of [`Self::holds_at`].
    pub fn changes_at(&self) -> Option<Timestamp> {
        self.known.as_ref().map(|known| known.until)
    }

    pub fn next(&self, now: Timestamp, most: usize) -> Vec<DowntimeWindow> {
        self.downtimes.next(now, most)
    }
}

impl KnownWindow {
    fn at(downtimes: &Downtimes, now: Timestamp) -> Self {
        let window = downtimes.holds_at(now);
        let until = match &window {
            Some(window) => Some(window.end),
            None => downtimes.next(now, 1).first().map(|next| next.start),
        };
        Self {
            from: now,
            until: until.unwrap_or(now + LONGEST_KNOWN),
            window,
        }
    }
}
