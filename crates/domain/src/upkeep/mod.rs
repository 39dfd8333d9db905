//! Upkeep: how long ended tasks are kept (`retention`), how fast they are deleted (`purge_pace`), which
//! recorded attempts are deleted (`recorded`), when a database file
//! shrinks (`vacuum`), and a clock that follows the wall clock gradually (`steady_clock`).

pub(crate) mod purge_pace;
pub(crate) mod recorded;
pub(crate) mod retention;
pub(crate) mod steady_clock;
pub(crate) mod vacuum;

pub use purge_pace::PurgePace;
pub use recorded::{RecordPurge, RecordedHour, next_purge};
pub use retention::{KeepRule, KeepTime, Retention};
pub use steady_clock::{
    ClockJump, ClockReading, ClockRecord, SteadyClock, clock_alert, clock_alert_subject,
    clocks_differ, is_clock_alerted, is_clock_set_again, is_of_earlier_setting,
};
pub use vacuum::{FileSpace, Vacuum, VacuumPace};
