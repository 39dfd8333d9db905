//! Schedules: what fires, what is left out and why, and when to look again. One record for each schedule, which all
//! instances share; every change of it is decided here.
//!
//! A run is decided and saved before its task is submitted, and submitted under a key made of its fire time: so an
//! instance that is killed between, and two that look at once, neither lose nor double it.

#[cfg(test)]
mod clock_tests;
mod commands;
mod look;
mod run;
mod spec;
#[cfg(test)]
mod tests;
mod timing;

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use commands::{RunRefusal, TriggerRequest};
pub use look::{Begun, ScheduleLook, ScheduleRule};
pub use run::{RunRequest, RunSource, RunState, ScheduleRun, SkipReason};
pub use spec::{CatchUp, Dst, Overlap, ScheduleSpec};
pub use timing::{FireTime, Timing};

use crate::{
    alert::AlertKind,
    alert_message::AlertNotice,
    ids::{ReceiverName, TaskId},
    time::{Span, Timestamp},
};

/// How many missed fire times are caught up at most: the last ones.
pub const MOST_CAUGHT_UP: usize = 100;
/// How many fire times a backfill has at most.
pub const MOST_BACKFILLED: usize = 100;
/// How many runs wait for those before them at most.
pub const MOST_QUEUED: usize = 200;
/// How many runs are kept on record for each schedule, besides those that wait.
pub const KEPT_RUNS: u64 = 100;
/// The label of a task that names the schedule that submitted it, and the one that has the fire time.
pub const SCHEDULE_LABEL: &str = "schedule";
pub const FIRE_TIME_LABEL: &str = "fire_time";
/// How many tasks of a schedule are known to run.
const MOST_RUNNING: usize = 100;
/// Changes by operators that are shown.
const MOST_CHANGES: usize = 20;
/// A fire time that is past for less is not missed: a failover takes no longer.
pub const MISSED_AFTER: Span = Span::from_secs(60);
/// A clock that is so far behind what was handled was set back. Less is the jitter of clocks that are kept in step.
pub const STEPPED_BACK: Span = Span::from_secs(5);
/// The number of the last fire times that are known to have a run.
const KNOWN_FIRED: usize = 20;

/// What has become of a schedule so far.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ScheduleState {
    /// A schedule that is deleted and put again has another, and none of the fire times of the one before.
    pub id: Uuid,
    /// Every fire time up to it was handled.
    pub handled_at: Timestamp,
    /// The number of the next run.
    pub next_number: u64,
    /// Runs that are decided and have no task yet, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<ScheduleRun>,
    /// The numbers of those of them whose tasks are being submitted, or may have been by an instance that was lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub starting: Vec<u64>,
    /// The last fire times that have a run, for a clock that is set back: their runs neither replace others nor wait.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fired: Vec<Timestamp>,
    /// Tasks that were not known to have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub running: Vec<TaskId>,
    /// When the last run began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun_at: Option<Timestamp>,
    /// The last run, if it was left out: others that are left out for the same reason join it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_skip: Option<ScheduleRun>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<SchedulePause>,
    /// Fire times up to it came while it was paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_until: Option<Timestamp>,
    /// Why the last run failed: its alert is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
    /// What operators have done, the last first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<ScheduleChange>,
}

/// An operator has paused it: no run begins but those that operators trigger.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SchedulePause {
    pub at: Timestamp,
    pub by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a caller has done to a schedule.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScheduleChange {
    pub at: Timestamp,
    pub by: String,
    pub action: ScheduleAction,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

spec::words! {
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
    /// Of a schedule that is new at this time. What came before does not fire.
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

    /// Whether a run would overlap with another.
    pub fn is_busy(&self) -> bool {
        !self.running.is_empty() || !self.open.is_empty()
    }

    /// Under which a run submits its task. The same fire time has the same key.
    pub fn idempotency_key(&self, name: &str, run: &ScheduleRun) -> String {
        let id = self.id;
        match run.source {
            // An operator wants another run than that of the fire time.
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

/// Under which the alert of a schedule is open at most once. No configured receiver and no origin has such a name.
pub fn schedule_alert_subject(schedule: &str) -> ReceiverName {
    ReceiverName::new(format!("schedule:{schedule}"))
}

pub fn schedule_failing(
    id: Uuid,
    schedule: &str,
    reason: &dyn fmt::Display,
    at: Timestamp,
) -> AlertNotice {
    let kind = AlertKind::ScheduleFailing.as_str();
    let message = format!("schedule {schedule} cannot submit its task: {reason}");
    AlertNotice {
        receiver: Some(schedule_alert_subject(schedule)),
        ..AlertNotice::raised(id, kind, &message, at)
    }
}
