//! The clock of the file: see [`crate::domain::upkeep::SteadyClock`]. All connections of a process share one.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension};

use crate::{
    clock::{self, Instant},
    domain::{
        upkeep::{ClockJump, ClockReading, ClockRecord, SteadyClock},
        values::Timestamp,
    },
};

/// Contains another value after each start of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

const RECORD: &str = "SELECT at, boot, elapsed FROM clock WHERE id = 1";

#[derive(Clone, Debug)]
pub struct StoreClock {
    steady: Arc<Mutex<SteadyClock>>,
    boot: Arc<str>,
}

/// One moment, by each of the clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub now: Timestamp,
    /// By the machine's wall clock.
    pub wall: Timestamp,
    /// Not later than `now`.
    pub instant: Instant,
}

impl StoreClock {
    /// Continues from the time on record in the file.
    pub(super) fn begin(record: Option<&ClockRecord>) -> Self {
        // If the machine has no boot id, it is empty.
        let boot = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
        let boot = boot.trim();
        Self {
            steady: Arc::new(Mutex::new(SteadyClock::begin(reading(), boot, record))),
            boot: boot.into(),
        }
    }

    pub fn moment(&self) -> Moment {
        let instant = clock::instant();
        let mut steady = self.steady.lock();
        let now = steady.read(reading());
        Moment {
            now,
            wall: Timestamp::from_millis(now.as_millis() - steady.ahead_of_wall()),
            instant,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.steady.lock().read(reading())
    }

    /// Returns by how many milliseconds this clock is ahead of the wall clock; negative if it is later.
    pub fn ahead_of_wall(&self) -> i64 {
        let mut steady = self.steady.lock();
        steady.read(reading());
        steady.ahead_of_wall()
    }

    /// Returns the last jump of this clock to the wall clock, only once for each jump.
    pub fn take_jump(&self) -> Option<ClockJump> {
        self.steady.lock().take_jump()
    }

    /// Returns the record from which the next process continues.
    pub fn record(&self) -> ClockRecord {
        let mut steady = self.steady.lock();
        steady.read(reading());
        steady.record(&self.boot)
    }
}

fn reading() -> ClockReading {
    #[cfg(test)]
    if let Some(host) = crate::host::current()
        && let Some(time) = host.database_clock()
    {
        return ClockReading {
            elapsed: time,
            wall: time,
        };
    }
    ClockReading {
        elapsed: clock::since_boot(),
        wall: clock::since_epoch(),
    }
}

pub(super) fn record(connection: &Connection) -> rusqlite::Result<Option<ClockRecord>> {
    let read = |row: &rusqlite::Row<'_>| {
        let elapsed: i64 = row.get(2)?;
        Ok(ClockRecord {
            at: Timestamp::from_millis(row.get(0)?),
            boot: row.get(1)?,
            elapsed: Duration::from_millis(u64::try_from(elapsed).unwrap_or(0)),
        })
    };
    connection.query_row(RECORD, [], read).optional()
}
