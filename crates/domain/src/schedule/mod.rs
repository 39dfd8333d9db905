//! Schedules: the fire times that get a run, those that are left out and the reason, and the time of the next look.
//! Each schedule has one record, which all instances share; every change of it is decided here.
//!
//! A run is decided and saved before its task is submitted, and the task is submitted under a key made of the fire
//! time. Therefore no run is lost or doubled if an instance is killed in between, or if two look at the same time.

pub(crate) mod cron;

#[cfg(test)]
mod clock_tests;
mod commands;
mod look;
mod policies;
mod run;
mod spec;
#[cfg(test)]
mod tests;
mod timing;
mod words;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use commands::{RunRefusal, TriggerRequest};
pub use look::{RunSubmission, ScheduleDecision, ScheduleRule};
pub use policies::{CatchUp, Dst, Overlap};
pub use run::{RunRequest, RunSource, RunState, ScheduleRun, SkipReason};
pub use spec::ScheduleSpec;
pub use timing::{FireTime, Timing};

use crate::values::{
    ids::TaskId,
    time::{Span, Timestamp},
};

/// The most missed fire times that are caught up: the last ones.
pub const MOST_CAUGHT_UP: usize = 100;
/// The most fire times of a backfill.
pub const MOST_BACKFILLED: usize = 100;
/// The most runs that wait for the runs before them.
pub const MOST_QUEUED: usize = 200;
/// The most runs that are kept on record for each schedule, besides the runs that wait.
pub const KEPT_RUNS: u64 = 100;
/// The label of a task that names the schedule that submitted it.
pub const SCHEDULE_LABEL: &str = "schedule";
/// The label of a task that has the fire time of its run.
pub const FIRE_TIME_LABEL: &str = "fire_time";
/// The most running tasks of a schedule that its record has.
const MOST_RUNNING: usize = 100;
/// The most changes by operators that are shown.
const MOST_CHANGES: usize = 20;
/// A fire time that is past for less than this is not missed: a failover takes no longer.
pub const MISSED_AFTER: Span = Span::from_secs(60);
/// A clock that is more than this before `handled_at` was set back. A smaller difference is the jitter of
/// synchronised clocks.
pub const STEPPED_BACK: Span = Span::from_secs(5);
/// The number of the last fire times that are known to have a run.
const KNOWN_FIRED: usize = 20;

/// The recorded state of a schedule.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ScheduleState {
    /// A schedule that is deleted and put again has another id, and none of the fire times of its predecessor.
    pub id: Uuid,
    /// Every fire time up to this one was handled.
    pub handled_at: Timestamp,
    /// The number of the next run.
    pub next_number: u64,
    /// The runs that are decided and have no task yet, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<ScheduleRun>,
    /// The numbers of the open runs whose tasks are being submitted, or may have been submitted by an instance that was
    /// lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub starting: Vec<u64>,
    /// The last fire times that have a run. They are for a clock that is set back: a run that it decides for one of
    /// them neither replaces another run nor waits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fired: Vec<Timestamp>,
    /// The tasks that were not known to have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub running: Vec<TaskId>,
    /// When the last run began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun_at: Option<Timestamp>,
    /// The last run, if it was left out: further runs that are left out for the same reason are added to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_skip: Option<ScheduleRun>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<SchedulePause>,
    /// The fire times up to this one came while the schedule was paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_until: Option<Timestamp>,
    /// The reason why the last run failed: its alert is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
    /// The changes by operators, the last first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<ScheduleChange>,
}

/// An operator has paused the schedule: no run begins, except runs that operators trigger.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SchedulePause {
    pub at: Timestamp,
    pub by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A change that a caller has made to a schedule.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScheduleChange {
    pub at: Timestamp,
    pub by: String,
    pub action: ScheduleAction,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

words::words! {
    ScheduleAction {
        #[default]
        Put,
        Paused,
        Resumed,
        Triggered,
        Backfilled,
    }
}

impl ScheduleState {
    /// Makes the state of a schedule that is new at `now`. Fire times before it get no run.
    pub fn new(id: Uuid, now: Timestamp) -> Self {
        Self {
            id,
            handled_at: now,
            next_number: 1,
            open: Vec::new(),
            starting: Vec::new(),
            fired: Vec::new(),
            running: Vec::new(),
            begun_at: None,
            last_skip: None,
            pause: None,
            paused_until: None,
            failing: None,
            changes: Vec::new(),
        }
    }

    /// Returns whether a run would overlap with another.
    pub fn is_busy(&self) -> bool {
        !self.running.is_empty() || !self.open.is_empty()
    }

    /// Returns the key under which a run submits its task. The same fire time has the same key.
    pub fn idempotency_key(&self, name: &str, run: &ScheduleRun) -> String {
        let id = self.id;
        match run.source {
            // An operator who triggers a run wants another one than that of the fire time.
            RunSource::Triggered => format!("schedule\t{name}\t{id}\trun\t{}", run.number),
            _ => format!("schedule\t{name}\t{id}\t{}", run.fire_time),
        }
    }

    fn note(&mut self, at: Timestamp, by: &str, action: ScheduleAction, reason: Option<String>) {
        let by = by.to_owned();
        let change = ScheduleChange {
            at,
            by,
            action,
            reason,
        };
        self.changes.insert(0, change);
        self.changes.truncate(MOST_CHANGES);
    }
}
