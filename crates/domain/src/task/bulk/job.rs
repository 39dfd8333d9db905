//! A bulk job: it applies one command to many tasks, oldest first, in batches. The instance that holds its lease plans a
//! batch, applies the command to the tasks of it, and saves their outcomes. A batch is planned in the record before any
//! of its tasks is changed, so that the instance that continues after a crash repeats that batch, and no other.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::action::BulkAction;
use crate::values::{InstanceId, Rate, Span, TaskId, Timestamp};

/// The tasks of a batch, at most. They are few enough to let other commands in between.
pub const BULK_BATCH: usize = 100;
/// A job whose rate is limited plans no more tasks at once than the rate gives in this time.
const PACED: Span = Span::from_secs(1);
/// The time for which an instance has a job to itself without saving progress.
const LEASE: Span = Span::from_secs(10);
/// The time for which a job is kept after it has ended, has failed or was stopped.
pub const KEPT_FOR: Span = Span::from_secs(30 * 86_400);
/// The most entries in the journal of a job. The first one stays, the oldest of the others go.
const MOST_ENTRIES: usize = 50;

/// The command of a job, as it was requested. It never changes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BulkOrder {
    pub action: BulkAction,
    /// The body of the request, as JSON: the selection of tasks, and the data of the command.
    pub body: String,
    /// The name of the caller.
    pub by: String,
    pub reason: Option<String>,
    /// The command and its tasks in words.
    pub sentence: String,
    /// The tasks that matched at the request, as far as they were counted.
    pub total: u64,
    /// True if there may be more tasks than `total`.
    pub total_is_at_least: bool,
    /// Tasks with greater ids came later, and are not touched.
    pub up_to: TaskId,
    /// The time of the request. Tasks that failed later are not retried or skipped.
    pub at: Timestamp,
}

/// The state of a job with its progress.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BulkJob {
    pub state: BulkState,
    pub lease: Option<BulkLease>,
    /// The number of leases so far. A lease with another number has lapsed.
    pub epoch: u64,
    pub held_until: Timestamp,
    /// The time at which an operator last started or resumed the job.
    pub commanded_at: Timestamp,
    /// The last task that was processed.
    pub after: Option<TaskId>,
    /// The tasks that are being processed.
    pub batch: Option<BulkBatch>,
    /// The tasks to process before the job stops by itself.
    pub left: Option<u64>,
    pub rate: Option<Rate>,
    /// The time at which the next batch is due.
    pub next_at: Timestamp,
    pub matched: u64,
    pub accepted: u64,
    pub refused: u64,
    /// The refused tasks by kind of problem.
    pub refusals: BTreeMap<String, u64>,
    pub entries: Vec<BulkEntry>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum BulkState {
    Running,
    /// An operator has stopped the job, and a batch is not completed yet.
    Stopping,
    Stopped {
        at: Timestamp,
        cause: StopCause,
    },
    Ended {
        at: Timestamp,
    },
    /// The job cannot continue. An operator may resume it once the cause is removed.
    Failed {
        at: Timestamp,
        reason: String,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    Operator,
    /// The first tasks that the request named are processed.
    First,
}

/// A term in which an instance has a job to itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BulkLease {
    pub holder: InstanceId,
    pub epoch: u64,
}

/// Tasks that are processed together.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BulkBatch {
    pub tasks: Vec<TaskId>,
    /// The search continues after this task. `None` if no tasks are left.
    pub then: Option<TaskId>,
    /// The time before the command was applied to any of them.
    pub at: Timestamp,
}

/// The result of the command for one task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BulkOutcome {
    pub task: TaskId,
    /// `None` if the task has accepted the command.
    pub refusal: Option<TaskRefusal>,
}

/// The reason why a task has refused a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskRefusal {
    /// The kind of problem.
    pub kind: String,
    pub reason: String,
}

/// An entry in the journal of a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BulkEntry {
    pub at: Timestamp,
    /// The event.
    pub event: String,
    /// The operator or the instance.
    pub by: String,
}

/// A change of a job.
#[derive(Clone, PartialEq, Debug)]
pub enum BulkChange {
    /// An instance takes the job, or prolongs its lease.
    Claim {
        by: InstanceId,
        /// True if the instance that holds the job no longer runs.
        is_holder_gone: bool,
    },
    /// The tasks that the search has found. There may be none of them although the search continues.
    Plan {
        lease: BulkLease,
        tasks: Vec<TaskId>,
        then: Option<TaskId>,
    },
    /// The outcomes of the tasks of the batch. A task to which the command does not apply has none.
    Complete {
        lease: BulkLease,
        outcomes: Vec<BulkOutcome>,
    },
    Fail {
        lease: BulkLease,
        reason: String,
    },
    Stop {
        by: String,
    },
    Resume {
        by: String,
        /// The tasks to process before the job stops again.
        first: Option<u64>,
        /// Replaces the rate.
        rate: Option<Rate>,
    },
}

/// The reason why a job refuses a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BulkRefusal {
    /// Another instance has the job, or it has no work.
    NotYours,
    Ended,
}

impl BulkJob {
    pub fn new(by: &str, rate: Option<Rate>, first: Option<u64>, now: Timestamp) -> Self {
        let mut job = Self {
            state: BulkState::Running,
            lease: None,
            epoch: 0,
            held_until: now,
            commanded_at: now,
            after: None,
            batch: None,
            left: first,
            rate,
            next_at: now,
            matched: 0,
            accepted: 0,
            refused: 0,
            refusals: BTreeMap::new(),
            entries: Vec::new(),
        };
        job.note("started", by, now);
        job
    }

    /// Returns the time at which an instance has work to do. `None` if the job does not run.
    pub fn due_at(&self) -> Option<Timestamp> {
        match self.state {
            BulkState::Running => Some(self.next_at),
            // The batch that was begun is completed at once.
            BulkState::Stopping => Some(self.commanded_at),
            BulkState::Stopped { .. } | BulkState::Ended { .. } | BulkState::Failed { .. } => None,
        }
    }

    /// Returns the time at which the job may be deleted.
    pub fn kept_until(&self) -> Option<Timestamp> {
        match self.state {
            BulkState::Running | BulkState::Stopping => None,
            BulkState::Stopped { at, .. }
            | BulkState::Ended { at }
            | BulkState::Failed { at, .. } => Some(at + KEPT_FOR),
        }
    }

    /// Returns whether the job runs, or will still complete a batch.
    pub fn is_running(&self) -> bool {
        self.due_at().is_some()
    }

    /// Returns the most tasks of the next batch.
    pub fn batch_size(&self) -> usize {
        let paced = self.rate.map_or(BULK_BATCH, |rate| {
            usize::try_from(rate.calls_in(PACED)).unwrap_or(BULK_BATCH)
        });
        let left = self.left.map_or(BULK_BATCH, |left| {
            usize::try_from(left).unwrap_or(BULK_BATCH)
        });
        paced.clamp(1, BULK_BATCH).min(left)
    }

    pub fn change(&mut self, change: &BulkChange, now: Timestamp) -> Result<(), BulkRefusal> {
        match change {
            BulkChange::Claim { by, is_holder_gone } => self.claim(by, *is_holder_gone, now),
            BulkChange::Plan { lease, tasks, then } => {
                self.check(lease)?;
                self.plan(tasks, *then, now)
            }
            BulkChange::Complete { lease, outcomes } => {
                self.check(lease)?;
                self.complete(outcomes, now)
            }
            BulkChange::Fail { lease, reason } => {
                self.check(lease)?;
                let by = lease.holder.to_string();
                self.fail(&by, reason, now);
                Ok(())
            }
            BulkChange::Stop { by } => self.stop(by, now),
            BulkChange::Resume { by, first, rate } => self.resume(by, *first, *rate, now),
        }
    }

    fn claim(
        &mut self,
        by: &InstanceId,
        is_holder_gone: bool,
        now: Timestamp,
    ) -> Result<(), BulkRefusal> {
        if self.due_at().is_none_or(|due| due > now) {
            return Err(BulkRefusal::NotYours);
        }
        match &self.lease {
            Some(lease) if lease.holder == *by => {}
            Some(_) if !is_holder_gone && self.held_until > now => {
                return Err(BulkRefusal::NotYours);
            }
            taken => {
                let event = match taken {
                    Some(_) => "taken over",
                    None => "taken",
                };
                self.note(event, by.as_str(), now);
            }
        }
        self.epoch += 1;
        self.lease = Some(BulkLease {
            holder: by.clone(),
            epoch: self.epoch,
        });
        self.held_until = now + LEASE;
        Ok(())
    }

    /// Refuses an instance whose lease has lapsed and that another one has replaced.
    fn check(&self, lease: &BulkLease) -> Result<(), BulkRefusal> {
        match self.lease.as_ref() == Some(lease) {
            true => Ok(()),
            false => Err(BulkRefusal::NotYours),
        }
    }

    fn plan(
        &mut self,
        tasks: &[TaskId],
        then: Option<TaskId>,
        now: Timestamp,
    ) -> Result<(), BulkRefusal> {
        if self.state != BulkState::Running || self.batch.is_some() {
            return Err(BulkRefusal::NotYours);
        }
        // The job may have been resumed with another pace since the search.
        let size = self.batch_size();
        let (tasks, then) = match tasks.get(..size) {
            Some(first) if first.len() < tasks.len() => (first, first.last().copied()),
            _ => (tasks, then),
        };
        self.held_until = now + LEASE;
        self.batch = Some(BulkBatch {
            tasks: tasks.to_vec(),
            then,
            at: now,
        });
        if tasks.is_empty() {
            return self.complete(&[], now);
        }
        Ok(())
    }

    fn complete(&mut self, outcomes: &[BulkOutcome], now: Timestamp) -> Result<(), BulkRefusal> {
        let Some(batch) = self.batch.take() else {
            return Err(BulkRefusal::NotYours);
        };
        for outcome in outcomes {
            self.matched += 1;
            match &outcome.refusal {
                None => self.accepted += 1,
                Some(refusal) => {
                    self.refused += 1;
                    *self.refusals.entry(refusal.kind.clone()).or_default() += 1;
                }
            }
        }
        self.held_until = now + LEASE;
        self.after = batch.then.or(batch.tasks.last().copied()).or(self.after);
        let count = batch.tasks.len() as u64;
        self.left = self.left.map(|left| left.saturating_sub(count));
        if let Some(rate) = self.rate {
            self.next_at = self.next_at.max(batch.at) + rate.time_of(count);
        }
        if batch.then.is_none() {
            self.set_ended(now);
        } else if self.state == BulkState::Stopping {
            self.set_stopped(StopCause::Operator, now);
        } else if self.left == Some(0) {
            self.note("stopped after the first tasks", "provost", now);
            self.set_stopped(StopCause::First, now);
        }
        Ok(())
    }

    fn fail(&mut self, by: &str, reason: &str, now: Timestamp) {
        self.note("failed", by, now);
        self.lease = None;
        self.state = BulkState::Failed {
            at: now,
            reason: reason.to_owned(),
        };
    }

    fn stop(&mut self, by: &str, now: Timestamp) -> Result<(), BulkRefusal> {
        match self.state {
            BulkState::Running => {
                self.note("stopped", by, now);
                match self.batch {
                    Some(_) => {
                        self.state = BulkState::Stopping;
                        self.commanded_at = now;
                    }
                    None => self.set_stopped(StopCause::Operator, now),
                }
                Ok(())
            }
            // A repeated request changes nothing.
            BulkState::Stopping | BulkState::Stopped { .. } => Ok(()),
            BulkState::Ended { .. } | BulkState::Failed { .. } => Err(BulkRefusal::Ended),
        }
    }

    fn resume(
        &mut self,
        by: &str,
        first: Option<u64>,
        rate: Option<Rate>,
        now: Timestamp,
    ) -> Result<(), BulkRefusal> {
        match self.state {
            BulkState::Running if first.is_none() && rate.is_none() => return Ok(()),
            BulkState::Ended { .. } => return Err(BulkRefusal::Ended),
            BulkState::Running
            | BulkState::Stopping
            | BulkState::Stopped { .. }
            | BulkState::Failed { .. } => {}
        }
        self.note("resumed", by, now);
        self.state = BulkState::Running;
        self.commanded_at = now;
        // Without another rate, the job waits for the time that its last batch has used.
        self.next_at = match rate {
            Some(_) => now,
            None => self.next_at.max(now),
        };
        self.left = first;
        self.rate = rate.or(self.rate);
        Ok(())
    }

    fn set_ended(&mut self, now: Timestamp) {
        self.note("ended", "provost", now);
        self.lease = None;
        self.state = BulkState::Ended { at: now };
    }

    fn set_stopped(&mut self, cause: StopCause, now: Timestamp) {
        self.lease = None;
        self.state = BulkState::Stopped { at: now, cause };
    }

    fn note(&mut self, event: &str, by: &str, at: Timestamp) {
        if self.entries.len() >= MOST_ENTRIES {
            self.entries.remove(1);
        }
        self.entries.push(BulkEntry {
            at,
            event: event.to_owned(),
            by: by.to_owned(),
        });
    }
}

impl BulkState {
    pub const WORDS: [&str; 5] = ["running", "stopping", "stopped", "ended", "failed"];

    pub fn as_str(&self) -> &'static str {
        match self {
            BulkState::Running => "running",
            BulkState::Stopping => "stopping",
            BulkState::Stopped { .. } => "stopped",
            BulkState::Ended { .. } => "ended",
            BulkState::Failed { .. } => "failed",
        }
    }
}
