//! Returns the space of deleted tasks to the disk while the service runs, on SQLite. [`crate::domain::upkeep::VacuumPace`]
//! decides when it is worthwhile, and how much at once.

use std::{sync::Arc, time::Duration};

use metrics::{Gauge, Unit, describe_gauge, gauge};
use tracing::{info, warn};

use crate::service::loops::{NextRound, PeriodicLoop};
use crate::{
    clock,
    domain::upkeep::{FileSpace, Vacuum, VacuumPace},
    instance::Hold,
    store::{Store, StoreError, StoreFault},
};

/// The interval of checks for free space.
const CHECK_EVERY: Duration = Duration::from_secs(2);

pub(in crate::service) struct VacuumLoop {
    store: Store,
    hold: Arc<Hold>,
    vacuuming: VacuumPace,
    /// The length of the file when the current run started.
    before: Option<u64>,
    has_said_older: bool,
    bytes: Gauge,
    free_bytes: Gauge,
}

impl VacuumLoop {
    pub fn new(store: Store, hold: Arc<Hold>) -> Self {
        describe_gauge!(
            "provost_database_bytes",
            Unit::Bytes,
            "The length of the SQLite database file, without its -wal"
        );
        describe_gauge!(
            "provost_database_free_bytes",
            Unit::Bytes,
            "Free space inside the SQLite database file, available for new data"
        );
        Self {
            store,
            hold,
            vacuuming: VacuumPace::default(),
            before: None,
            has_said_older: false,
            bytes: gauge!("provost_database_bytes"),
            free_bytes: gauge!("provost_database_free_bytes"),
        }
    }

    fn say(&mut self, space: &FileSpace) {
        let is_cut_off = space.file_bytes <= space.used_bytes();
        match self.before {
            None if self.vacuuming.is_running() => {
                let (bytes, free) = (space.file_bytes, space.free_bytes());
                info!(
                    bytes,
                    free, "returning free space of the database file to the disk"
                );
                self.before = Some(bytes);
            }
            Some(before) if !self.vacuuming.is_running() && is_cut_off => {
                let bytes = space.file_bytes;
                info!(
                    before,
                    bytes, "returned free space of the database file to the disk"
                );
                self.before = None;
            }
            _ => {}
        }
    }

    fn show(&mut self, space: &FileSpace) {
        self.bytes.set(space.file_bytes as f64);
        self.free_bytes.set(space.free_bytes() as f64);
        if !space.can_give_back && space.is_wasteful() && !self.has_said_older {
            self.has_said_older = true;
            info!(
                bytes = space.file_bytes,
                free = space.free_bytes(),
                "the database file was created by an older version and cannot shrink while the service runs; new tasks reuse its free space. To make the file smaller, stop the service and run `provost purge --shrink`"
            );
        }
    }
}

impl PeriodicLoop for VacuumLoop {
    const NAME: &'static str = "vacuum";
    const AT_ONCE: bool = true;
    const LONGEST_REST: Duration = Duration::from_secs(600);

    fn interval(&self) -> Duration {
        CHECK_EVERY
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        let Some(space) = self.store.housekeeping.file_space().await? else {
            return Ok(NextRound::AfterInterval);
        };
        self.show(&space);
        // A damaged file is left unchanged: moving pages would make it harder to rescue.
        let health = &self.store.health;
        let is_damaged = health.has(StoreFault::Unreadable) || health.check_write().is_err();
        if is_damaged || self.hold.is_held() {
            return Ok(NextRound::AfterInterval);
        }
        let next = self.vacuuming.next(&space);
        self.say(&space);
        match next {
            Vacuum::Rest => Ok(NextRound::AfterInterval),
            Vacuum::Checkpoint => {
                // This takes as long as the disk needs. A connection for callers is used, so that no other work is
                // blocked.
                let began = clock::instant();
                self.store.reader.fold().await?;
                Ok(match self.vacuuming.is_running() && !space.is_held_up {
                    true => NextRound::After(VacuumPace::rest_after(began.elapsed())),
                    false => NextRound::AfterInterval,
                })
            }
            Vacuum::Step(pages) => {
                let asked = clock::instant();
                let busy = self.store.give_back(pages).await?;
                let rest = self.vacuuming.record_step(busy, asked.elapsed());
                Ok(NextRound::After(rest))
            }
        }
    }

    fn report(&self, error: &StoreError, again_in: Duration) {
        warn!(component = Self::NAME, %error, again_in_seconds = again_in.as_secs_f64(), "could not return free space of the database file to the disk");
    }
}
