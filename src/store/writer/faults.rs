//! Bounds the cost of a panic or a damaged record to the command or the claim that met it.
//!
//! A decision that panics leaves its draft in an unknown state, with all that the same batch did to that task before.
//! So nothing of such a batch is kept: it is decided again without the culprit. The culprit's caller gets an error, its
//! task leaves the cache, and an alert names the task. The loops leave the task alone for a while, so that it does not
//! cost them every round.
//!
//! A task whose record cannot be read is left out of its batch, named by an alert, and left alone in the same way.

use std::{
    any::Any,
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use metrics::{Gauge, describe_gauge, gauge};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tracing::{error, warn};

use super::{
    BatchGuard, Committer,
    request::{Apply, Request},
};
use crate::{
    clock::{self, Instant},
    domain::{
        task::{Actor, Command},
        values::{Backoff, StepIndex, StepRef, TaskId},
    },
    store::{StoreError, UnreadableTask},
};

/// The time for which the loops leave a task alone, by how often it panicked.
const REST: Backoff = Backoff::doubling(Duration::from_secs(60), Duration::from_secs(3600));
/// The most tasks that are left alone. A fault of more tasks than this is one of nearly all tasks.
const MOST: usize = 1000;

/// An alert of a task as a whole is kept at its first step.
pub(super) const OF_NO_STEP: StepIndex = StepIndex(0);

/// The cause of a panic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Culprit {
    /// The command at this index of the batch.
    Request(usize),
    Claim(StepRef),
    /// All requests and claims of the batch for this task.
    Task(TaskId),
}

#[derive(Debug)]
pub(super) struct Panicked {
    /// `None` if only the batch is known.
    pub culprit: Option<Culprit>,
    pub message: String,
}

/// Runs `work` so that a panic in it does not end the process. The caller discards all that `work` has changed halfway.
pub(super) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| message(&*panic))
}

pub(super) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").chars().take(500).collect()
}

/// The tasks that this process panicked at, or cannot read, and leaves alone for a while.
#[derive(Debug)]
pub struct TaskFaults {
    count: AtomicUsize,
    tasks: Mutex<HashMap<TaskId, Rest>>,
    unreadable: Gauge,
}

impl Default for TaskFaults {
    fn default() -> Self {
        describe_gauge!(
            "provost_tasks_unreadable",
            "Tasks that this instance could not read: their records are damaged. An alert names each of them"
        );
        let unreadable = gauge!("provost_tasks_unreadable");
        unreadable.set(0.0);
        Self {
            count: AtomicUsize::default(),
            tasks: Mutex::default(),
            unreadable,
        }
    }
}

#[derive(Debug)]
struct Rest {
    /// True if an earlier process met the fault. It may be resolved, and no second alert is raised before it recurs.
    is_expected: bool,
    is_unreadable: bool,
    /// The step whose decision panicked, if the decision was about one step.
    step: Option<StepIndex>,
    until: Instant,
    faults: u32,
}

impl TaskFaults {
    /// Notes a fault of the task. Returns true if an alert must be raised, because the fault is new.
    pub(super) fn note(&self, task: TaskId, step: Option<StepIndex>, is_unreadable: bool) -> bool {
        let now = clock::instant();
        let mut tasks = self.tasks.lock();
        if let Some(rest) = tasks.get_mut(&task).filter(|rest| !rest.is_expected) {
            if rest.until <= now {
                rest.faults = rest.faults.saturating_add(1);
                rest.until = now + REST.wait(rest.faults);
            }
            return false;
        }
        if tasks.len() >= MOST {
            tasks.retain(|_, rest| rest.until > now);
        }
        if tasks.len() < MOST || tasks.contains_key(&task) {
            tasks.insert(
                task,
                Rest {
                    is_expected: false,
                    is_unreadable,
                    step,
                    until: now + REST.wait(1),
                    faults: 1,
                },
            );
            self.count(&tasks);
        }
        true
    }

    /// Notes a fault that an earlier process met. It may be resolved now.
    pub(super) fn expect(&self, task: TaskId, step: Option<StepIndex>) {
        let mut tasks = self.tasks.lock();
        if tasks.len() < MOST {
            tasks.entry(task).or_insert(Rest {
                is_expected: true,
                is_unreadable: false,
                step,
                until: clock::instant(),
                faults: 1,
            });
            self.count(&tasks);
        }
    }

    fn count(&self, tasks: &HashMap<TaskId, Rest>) {
        self.count.store(tasks.len(), Ordering::Release);
        let unreadable = tasks.values().filter(|rest| rest.is_unreadable).count();
        self.unreadable.set(unreadable as f64);
    }

    /// Removes a task that is not read any more.
    pub(super) fn forget(&self, task: TaskId) {
        let mut tasks = self.tasks.lock();
        if tasks.remove(&task).is_some() {
            self.count(&tasks);
        }
    }

    /// The number of tasks that a loop which reads a bounded number of steps may have to pass over.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Returns whether the loops leave the task alone now. Costs one atomic load if there are no such tasks.
    pub fn rests(&self, task: TaskId) -> bool {
        self.len() > 0
            && self
                .tasks
                .lock()
                .get(&task)
                .is_some_and(|rest| rest.until > clock::instant())
    }

    /// Removes a fault after the same decision has succeeded, and returns the step whose alert must be closed.
    pub(super) fn recovered(&self, task: TaskId, step: Option<StepIndex>) -> Option<StepIndex> {
        if self.len() == 0 {
            return None;
        }
        let mut tasks = self.tasks.lock();
        let rest = tasks.get(&task)?;
        if rest.until > clock::instant() || (rest.step.is_some() && rest.step != step) {
            return None;
        }
        let of = rest.step.unwrap_or(OF_NO_STEP);
        tasks.remove(&task);
        self.count(&tasks);
        Some(of)
    }
}

/// A fault that is still to be reported.
pub(super) enum UnreportedFault {
    Panic {
        task: TaskId,
        step: Option<StepIndex>,
        command: &'static str,
        message: String,
    },
    Unreadable(UnreadableTask),
}

impl<'w> Committer<'w> {
    /// Notes a panic. It is reported when the batch is done, see [`Committer::report_faults`].
    pub(super) fn note_fault(&mut self, requests: &[Request], culprit: &Culprit, message: String) {
        let (task, step, command) = match culprit {
            Culprit::Claim(StepRef { task, step }) => (*task, Some(*step), "claim"),
            Culprit::Task(task) => (*task, None, "save"),
            Culprit::Request(at) => match requests.get(*at) {
                Some(Request::Apply { apply, .. }) => {
                    (apply.task, apply.command.step(), apply.command.name())
                }
                Some(Request::Submit { details, .. }) => (details.id, None, "submit"),
                _ => return error!(message, "the service panicked during a batch"),
            },
        };
        error!(
            %task, step = step.map(|step| step.0), command, message,
            "the service panicked while it decided on a task; this command failed, the others continue"
        );
        self.writer.forget([task]);
        self.unreported.push(UnreportedFault::Panic {
            task,
            step,
            command,
            message,
        });
    }

    /// Raises one alert for each task that this process panicked at, or cannot read.
    pub(super) async fn report_faults(&mut self, taken: &mut BatchGuard<'w>) {
        let faults = &self.writer.faults;
        for unreported in std::mem::take(&mut self.unreported) {
            match unreported {
                UnreportedFault::Panic {
                    task,
                    step,
                    command,
                    message,
                } => {
                    if faults.note(task, step, false) {
                        self.report_panic(task, step, command, &message, taken)
                            .await;
                    }
                }
                UnreportedFault::Unreadable(unreadable) => {
                    if faults.note(unreadable.task, None, true) {
                        self.report_unreadable(unreadable).await;
                    }
                }
            }
        }
        // A panic during the report itself is in the log.
        self.unreported.clear();
    }

    async fn report_panic(
        &mut self,
        task: TaskId,
        step: Option<StepIndex>,
        command: &str,
        message: &str,
        taken: &mut BatchGuard<'w>,
    ) {
        let (answer, answered) = oneshot::channel();
        let message = format!(
            "an internal error prevented {command} of task {task} ({message}); the task is unchanged. Report it with the log of instance {}; once it is fixed, the task continues automatically",
            self.writer.local.instance(),
        );
        let mut report = vec![Request::Apply {
            apply: Apply::new(
                task,
                Command::ReportFault {
                    step: step.unwrap_or(OF_NO_STEP),
                    message,
                },
                Actor::scheduler(self.writer.local.instance().as_str()),
            ),
            answer: answer.into(),
        }];
        let saved = self.write(&mut report, taken, false).await;
        drop(report);
        let answered = answered.await;
        if saved.is_err() || !matches!(answered, Ok(Ok(_))) {
            // A submission that panicked left no task, and no loop reads a task that has ended.
            warn!(%task, "could not raise an alert for a task whose command made the service panic");
        }
    }

    /// Raises the alert without a command, because the task would have to be read for one.
    async fn report_unreadable(&mut self, unreadable: UnreadableTask) {
        let (task, message) = (unreadable.task, unreadable.to_string());
        error!(%task, "{message}");
        match self.raise_unreadable(task, &message).await {
            Ok(()) => self.writer.outbox.notify_one(),
            Err(error) => {
                warn!(%task, %error, "could not raise an alert for a task that cannot be read");
            }
        }
    }

    async fn raise_unreadable(&mut self, task: TaskId, message: &str) -> Result<(), StoreError> {
        let sender = self.writer.settings.sender.load_full();
        let mut tx = self.backend.begin().await?;
        tx.raise_unreadable(task, OF_NO_STEP, message, &sender)
            .await?;
        tx.commit().await
    }
}
