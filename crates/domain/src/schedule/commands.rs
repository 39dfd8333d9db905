//! The commands of callers to schedules: put, pause, resume, trigger and backfill.

use thiserror::Error;

use super::{
    MOST_QUEUED, ScheduleAction, SchedulePause, ScheduleState,
    policies::Overlap,
    run::{RunRequest, RunSource, ScheduleRun, SkipReason},
    spec::ScheduleSpec,
};
use crate::values::{ids::TaskId, time::Timestamp};

/// A request for runs: who makes it, and what happens if other runs are not over.
#[derive(Clone, Debug)]
pub struct TriggerRequest {
    pub by: String,
    pub overlap: Overlap,
    pub request: Option<RunRequest>,
    pub reason: Option<String>,
}

/// The reason why no run was made.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RunRefusal {
    #[error("task {0} of this schedule has not ended, and \"overlap\" is \"skip\"")]
    Overlap(TaskId),
    #[error("a run of this schedule has not begun, and \"overlap\" is \"skip\"")]
    OverlapQueued,
    #[error("{0} runs of this schedule wait; at most {MOST_QUEUED} may")]
    QueueFull(usize),
}

impl ScheduleState {
    /// Gives the schedule another specification. `paused` says whether the schedule is paused afterwards; `None` leaves
    /// it as it is.
    pub fn put(
        &mut self,
        before: Option<&ScheduleSpec>,
        after: &ScheduleSpec,
        paused: Option<bool>,
        by: &str,
        now: Timestamp,
    ) {
        let has_ended = |spec: &ScheduleSpec| spec.until.is_some_and(|until| until <= now);
        if before.is_some_and(|before| !before.fires_with(after) || has_ended(before)) {
            // The fire times before now that the new times, or a later end, would have had do not fire.
            self.handled_at = now;
            self.paused_until = None;
        }
        self.failing = None;
        self.note(now, by, ScheduleAction::Put, None);
        match (paused, &self.pause) {
            (Some(true), None) => self.set_pause(by, None, now),
            (Some(false), Some(_)) => self.end_pause(now),
            _ => {}
        }
    }

    /// Returns the waiting runs that are discarded by the pause, as skipped runs.
    pub fn pause(
        &mut self,
        by: &str,
        reason: Option<String>,
        discards: bool,
        now: Timestamp,
    ) -> Vec<ScheduleRun> {
        self.note(now, by, ScheduleAction::Paused, reason.clone());
        self.set_pause(by, reason, now);
        if !discards {
            return Vec::new();
        }
        let (kept, discarded) = std::mem::take(&mut self.open)
            .into_iter()
            .partition(|run| self.is_starting(run));
        self.open = kept;
        let discarded: Vec<ScheduleRun> = discarded;
        let reason = format!("{by} has discarded it");
        let left_out = discarded
            .into_iter()
            .map(|run| run.into_skipped(SkipReason::Discarded, reason.clone()));
        left_out.collect()
    }

    /// Resumes the schedule. Fire times that came during the pause do not fire.
    pub fn resume(&mut self, by: &str, now: Timestamp) {
        if self.pause.is_some() {
            self.note(now, by, ScheduleAction::Resumed, None);
            self.end_pause(now);
        }
    }

    fn set_pause(&mut self, by: &str, reason: Option<String>, now: Timestamp) {
        let by = by.to_owned();
        let at = self.pause.as_ref().map_or(now, |pause| pause.at);
        self.pause = Some(SchedulePause { at, by, reason });
    }

    fn end_pause(&mut self, now: Timestamp) {
        self.pause = None;
        self.paused_until = Some(now);
    }

    /// Makes a run now. The caller has just found out which tasks of [`ScheduleState::running`] have not ended.
    pub fn trigger(
        &mut self,
        trigger: &TriggerRequest,
        now: Timestamp,
    ) -> Result<ScheduleRun, RunRefusal> {
        if trigger.overlap == Overlap::Skip {
            if let Some(task) = self.running.first() {
                return Err(RunRefusal::Overlap(*task));
            }
            if !self.open.is_empty() {
                return Err(RunRefusal::OverlapQueued);
            }
        }
        if self.open.len() >= MOST_QUEUED {
            return Err(RunRefusal::QueueFull(self.open.len()));
        }
        let run = self.queue_requested_run(now, RunSource::Triggered, trigger, now);
        self.note(
            now,
            &trigger.by,
            ScheduleAction::Triggered,
            trigger.reason.clone(),
        );
        Ok(run)
    }

    /// Makes runs for these fire times.
    pub fn backfill(
        &mut self,
        times: &[Timestamp],
        trigger: &TriggerRequest,
        now: Timestamp,
    ) -> Result<Vec<ScheduleRun>, RunRefusal> {
        if self.open.len() + times.len() > MOST_QUEUED {
            return Err(RunRefusal::QueueFull(self.open.len()));
        }
        let mut runs = Vec::with_capacity(times.len());
        for at in times {
            runs.push(self.queue_requested_run(*at, RunSource::Backfilled, trigger, now));
        }
        self.note(
            now,
            &trigger.by,
            ScheduleAction::Backfilled,
            trigger.reason.clone(),
        );
        Ok(runs)
    }

    fn queue_requested_run(
        &mut self,
        at: Timestamp,
        source: RunSource,
        trigger: &TriggerRequest,
        now: Timestamp,
    ) -> ScheduleRun {
        let run = ScheduleRun {
            by: Some(trigger.by.clone()),
            request: trigger.request.clone(),
            ..self.numbered(at, source, trigger.overlap, now, now)
        };
        self.queue(run.clone());
        run
    }
}
