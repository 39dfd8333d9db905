//! Tells whether other instances load the same database.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;

use crate::clock::{self, Instant};

/// An instance that is busy notifies the others several times a second.
const BUSY: Duration = Duration::from_secs(1);

/// The time of the last notification from another instance. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Peers(Arc<Mutex<Option<Instant>>>);

impl Peers {
    /// Notes that another instance has changed tasks.
    pub fn heard(&self) {
        *self.0.lock() = Some(clock::instant());
    }

    pub(in crate::store) fn are_busy(&self, now: Instant) -> bool {
        let heard = *self.0.lock();
        heard.is_some_and(|heard| now.saturating_duration_since(heard) < BUSY)
    }
}
