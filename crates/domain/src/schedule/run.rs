//! One run of a schedule, from its decision on: its task, or why it has none.

use serde::{Deserialize, Serialize};

use super::{
    FIRE_TIME_LABEL, SCHEDULE_LABEL,
    spec::{Overlap, words},
};
use crate::{ids::TaskId, time::Timestamp};

words! {
    /// Why there is a run.
    RunSource {
        /// Its fire time has come.
        #[default]
        Scheduled,
        /// Its fire time was missed.
        CaughtUp,
        /// An operator asked for the fire times of a past range.
        Backfilled,
        /// An operator asked for it.
        Triggered,
    }
}

words! {
    RunState {
        /// It has no task yet.
        #[default]
        Queued,
        /// Its task was submitted.
        Started,
        /// It was left out, for a reason.
        Skipped,
        /// Its task could not be submitted.
        Failed,
    }
}

words! {
    /// Why a run was left out.
    #[derive(PartialOrd, Ord)]
    SkipReason {
        /// Another run of the schedule was not over.
        #[default]
        Overlap,
        /// No instance ran at its fire time.
        Missed,
        /// The schedule was paused.
        Paused,
        /// The clock jumps over its fire time.
        Dst,
        /// A later run has taken its turn.
        Replaced,
        /// Too many runs waited.
        QueueFull,
        /// An operator has discarded it.
        Discarded,
        /// Its fire time has a run already.
        Repeated,
    }
}

/// The `Idempotency-Key` of the request that asked for a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RunRequest {
    pub key: String,
    pub fingerprint: String,
}

/// A run; or several that were left out one after the other for one reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScheduleRun {
    /// Counted from 1 in the order of the decisions.
    pub number: u64,
    pub fire_time: Timestamp,
    /// Of several, the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_fire_time: Option<Timestamp>,
    /// How many it stands for.
    pub count: u64,
    pub source: RunSource,
    pub state: RunState,
    /// How it meets others.
    pub overlap: Overlap,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<SkipReason>,
    /// Why it was left out, or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
    /// Its fire time with the jitter.
    pub starts_at: Timestamp,
    pub decided_at: Timestamp,
    /// When its task was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RunRequest>,
}

impl ScheduleRun {
    /// The key of its task.
    pub fn task_key(&self, schedule: &str) -> String {
        format!("{schedule}@{}", self.fire_time)
    }

    /// What its task has besides the labels of the schedule.
    pub fn task_labels(&self, schedule: &str) -> [(String, String); 2] {
        let fire_time = self.fire_time.to_string();
        [
            (SCHEDULE_LABEL, schedule.to_owned()),
            (FIRE_TIME_LABEL, fire_time),
        ]
        .map(|(label, value)| (label.to_owned(), value))
    }

    /// Whether an operator asked for it.
    pub fn is_asked_for(&self) -> bool {
        matches!(self.source, RunSource::Triggered | RunSource::Backfilled)
    }

    /// Left out.
    #[must_use]
    pub(super) fn left_out(self, skipped: SkipReason, reason: String) -> Self {
        Self {
            state: RunState::Skipped,
            skipped: Some(skipped),
            reason: Some(reason),
            ..self
        }
    }
}
