//! One run of a schedule, from its decision on: its task, or the reason why it has none.

use serde::{Deserialize, Serialize};

use super::{FIRE_TIME_LABEL, SCHEDULE_LABEL, policies::Overlap, words::words};
use crate::values::{ids::TaskId, time::Timestamp};

words! {
    /// The source of a run.
    RunSource {
        /// The run's fire time has come.
        #[default]
        Scheduled,
        /// The run's fire time was missed, and is caught up.
        CaughtUp,
        /// An operator asked for the fire times of a past range.
        Backfilled,
        /// An operator asked for a run now.
        Triggered,
    }
}

words! {
    RunState {
        /// The run has no task yet.
        #[default]
        Queued,
        /// The run's task was submitted.
        Started,
        /// The run was left out, for a reason.
        Skipped,
        /// The run's task could not be submitted.
        Failed,
    }
}

words! {
    /// The reason why a run was left out.
    #[derive(PartialOrd, Ord)]
    SkipReason {
        /// Another run of the schedule was not over.
        #[default]
        Overlap,
        /// No instance ran at the run's fire time.
        Missed,
        /// The schedule was paused.
        Paused,
        /// The clock jumps over the run's fire time.
        Dst,
        /// A later run has replaced it.
        Replaced,
        /// Too many runs waited.
        QueueFull,
        /// An operator has discarded the run.
        Discarded,
        /// The fire time has a run already.
        Repeated,
    }
}

/// The `Idempotency-Key` of the request that asked for a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RunRequest {
    pub key: String,
    pub fingerprint: String,
}

/// A run, or several consecutive ones that were left out for one reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScheduleRun {
    /// The number of the run. Runs are counted from 1 in the order of the decisions.
    pub number: u64,
    pub fire_time: Timestamp,
    /// The last fire time, if the record is for several runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_fire_time: Option<Timestamp>,
    /// The number of runs in the record.
    pub count: u64,
    pub source: RunSource,
    pub state: RunState,
    /// The rule for the case that other runs are not over.
    pub overlap: Overlap,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<SkipReason>,
    /// The reason why the run was left out, or why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The caller who asked for the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
    /// The fire time with the jitter.
    pub starts_at: Timestamp,
    pub decided_at: Timestamp,
    /// The time at which the task was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RunRequest>,
}

impl ScheduleRun {
    /// Returns the key of the run's task.
    pub fn task_key(&self, schedule: &str) -> String {
        format!("{schedule}@{}", self.fire_time)
    }

    /// Returns the labels that the run's task has besides those of the schedule.
    pub fn task_labels(&self, schedule: &str) -> [(String, String); 2] {
        let fire_time = self.fire_time.to_string();
        [
            (SCHEDULE_LABEL, schedule.to_owned()),
            (FIRE_TIME_LABEL, fire_time),
        ]
        .map(|(label, value)| (label.to_owned(), value))
    }

    /// Returns whether an operator asked for the run.
    pub fn is_asked_for(&self) -> bool {
        matches!(self.source, RunSource::Triggered | RunSource::Backfilled)
    }

    /// Returns the run as one that was left out.
    #[must_use]
    pub(super) fn into_skipped(self, skipped: SkipReason, reason: String) -> Self {
        Self {
            state: RunState::Skipped,
            skipped: Some(skipped),
            reason: Some(reason),
            ..self
        }
    }
}
