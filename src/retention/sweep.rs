//! Goes through the ended tasks, longest ended first, and deletes those whose retention time is over.
//!
//! Each retention time has a walk of its own: tasks that are kept longer lie in its way, and each is read once. A walk
//! remembers its position, so the cost of a round depends on the tasks whose time has ended since the last round, and
//! not on the number of kept tasks.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::warn;
use uuid::Uuid;

use super::PurgeStore;
use crate::{
    clock::{self, Instant, sleep},
    domain::{
        task::TaskStatus,
        upkeep::{KeepTime, PurgePace, Retention},
        values::{Span, TaskId, Timestamp},
    },
    store::{EndedAt, EndedTask, SharedReader, StoreError},
};

/// The number of tasks in one read.
const PAGE: usize = 500;
/// The number of dead letters that are deleted at once.
const LETTERS: usize = 100;
/// The longest time between the recorded end of a task and its save.
const SAVED_WITHIN: Span = Span::from_secs(60);
/// The most tasks that are deleted at once while the disk is short of space.
const SHORT: usize = 4;
/// A walk that could not delete a task starts again after this time.
const AGAIN_AFTER: Span = Span::from_secs(3600);
/// The interval at which a walk starts from the beginning in any case, because it cannot notice some changes, such as
/// a clock that was set back.
const RESTART_EVERY: Span = Span::from_secs(86_400);

/// The other users of the store.
#[derive(Clone, Copy, Debug)]
pub enum Pacing {
    /// Others wait while tasks are deleted: SQLite has one writer.
    OneWriter,
    /// Others write at the same time.
    SeveralWriters,
    /// There are no other users.
    Alone,
}

impl Pacing {
    /// Returns the longest time that one batch should take.
    fn target(self) -> Duration {
        Duration::from_millis(match self {
            Pacing::OneWriter => 1,
            Pacing::SeveralWriters => 20,
            Pacing::Alone => 100,
        })
    }
}

/// The numbers of deleted and damaged records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SweepTotals {
    pub tasks: u64,
    pub dead_letters: u64,
    /// The tasks that could not be deleted, because their records are damaged.
    pub damaged: u64,
}

#[derive(Debug)]
pub struct Sweep {
    retention: Retention,
    /// True if the workflow and the status of a task decide how long it is kept, or if the caller needs them.
    with_kind: bool,
    walks: Vec<Walk>,
    /// Dead letters are deleted after this time; `None` keeps them.
    letters: Option<Span>,
    pace: PurgePace,
    is_alone: bool,
    started: Instant,
    /// The result of the present round, or of the last one.
    swept: SweepTotals,
    stop: CancellationToken,
}

/// One pass over all tasks with the retention time `keep`.
#[derive(Debug)]
struct Walk {
    keep: Span,
    after: Option<EndedAt>,
    /// The times of the next start from the beginning: the latest, and the one if `has_left`. `None` before the first
    /// round.
    anew_at: Option<(Timestamp, Timestamp)>,
    /// True if it passed over tasks that it could not delete.
    has_left: bool,
}

impl Sweep {
    pub fn new(
        retention: Retention,
        letters: Option<Span>,
        most: usize,
        pacing: Pacing,
        stop: CancellationToken,
    ) -> Self {
        let walks = retention.periods().into_iter();
        let walks = walks.map(|keep| Walk {
            keep,
            after: None,
            anew_at: None,
            has_left: false,
        });
        Self {
            walks: walks.collect(),
            with_kind: !retention.is_uniform(),
            retention,
            letters,
            pace: PurgePace::new(most, pacing.target()),
            is_alone: matches!(pacing, Pacing::Alone),
            started: clock::instant(),
            swept: SweepTotals::default(),
            stop,
        }
    }

    /// Makes the sweep read the workflow and the status of every task.
    pub fn with_kinds(mut self) -> Self {
        self.with_kind = true;
        self
    }

    /// Returns the result of the last round, even if that round failed.
    pub fn swept(&self) -> SweepTotals {
        self.swept
    }

    /// Deletes everything whose retention time is over, until the stop or until `is_on` returns false.
    pub async fn round(
        &mut self,
        store: &mut dyn PurgeStore,
        is_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<SweepTotals, StoreError> {
        let now = store.reader().now().await?;
        self.round_at(now, store, is_on).await
    }

    pub(super) async fn round_at(
        &mut self,
        now: Timestamp,
        store: &mut dyn PurgeStore,
        is_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<SweepTotals, StoreError> {
        self.swept = SweepTotals::default();
        for at in 0..self.walks.len() {
            self.walk(at, store, now, is_on).await?;
        }
        metrics::gauge!(LAG).set(0.0);
        if let Some(keep) = self.letters {
            let before = ago(now, keep);
            while self.goes_on(is_on) {
                let started = clock::instant();
                let count = store.purge_dead_letters(before, LETTERS).await?;
                self.swept.dead_letters += count;
                if count < LETTERS as u64 {
                    break;
                }
                self.rest(self.pace.rest(started.elapsed())).await;
            }
        }
        Ok(self.swept)
    }

    async fn walk(
        &mut self,
        at: usize,
        store: &mut dyn PurgeStore,
        now: Timestamp,
        is_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), StoreError> {
        self.walks[at].begin(now);
        let before = ago(now, self.walks[at].keep);
        while self.goes_on(is_on) {
            let after = self.walks[at].after;
            let started = clock::instant();
            let page = self.page(&store.reader(), after, before).await?;
            let Some(last) = page.last else {
                self.walks[at].end(before);
                return Ok(());
            };
            self.swept.damaged += page.damaged;
            self.walks[at].has_left |= page.damaged > 0;
            let due: Vec<_> = page
                .tasks
                .into_iter()
                .filter(|task| self.is_due(at, task))
                .collect();
            match due.first() {
                Some(first) => self.note_lag(before, first.ended.at),
                None => self.rest(self.pace.rest(started.elapsed())).await,
            }
            if !self.delete(at, store, &due, before, is_on).await? {
                return Ok(());
            }
            self.walks[at].after = Some(last);
        }
        Ok(())
    }

    fn is_due(&self, at: usize, task: &EndedTask) -> bool {
        let keep = match &task.kind {
            Some((workflow, state)) => self.retention.keep(workflow.as_ref(), *state),
            None => self.retention.keep(None, TaskStatus::Processed),
        };
        keep == KeepTime::For(self.walks[at].keep)
    }

    fn note_lag(&mut self, before: Timestamp, ended: Timestamp) {
        let lag = before.as_millis().saturating_sub(ended.as_millis());
        let lag = Span::from_millis(u64::try_from(lag).unwrap_or_default());
        metrics::gauge!(LAG).set(lag.duration().as_secs_f64());
        self.pace.record_lag(lag, self.started.elapsed());
    }

    /// Deletes these tasks. Returns whether all of them were attempted.
    async fn delete(
        &mut self,
        at: usize,
        store: &mut dyn PurgeStore,
        due: &[EndedTask],
        before: Timestamp,
        is_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<bool, StoreError> {
        let mut rest = due;
        let mut one_by_one = 0;
        while !rest.is_empty() {
            if !self.goes_on(is_on) {
                return Ok(false);
            }
            let is_short = is_disk_short(&store.reader()).await?;
            let most = match (one_by_one, is_short) {
                (1.., _) => 1,
                (0, true) => self.pace.batch().min(SHORT),
                (0, false) => self.pace.batch(),
            };
            let (batch, later) = rest.split_at(most.min(rest.len()));
            match store.purge(batch, before).await {
                Ok(purged) => {
                    self.swept.tasks += purged.tasks;
                    metrics::counter!(TASKS).increment(purged.tasks);
                    // Another transaction has locked the other tasks of the batch.
                    self.walks[at].has_left |= purged.tasks < batch.len() as u64;
                    let pause = self.pace.record_batch(batch.len(), purged.took);
                    if is_short {
                        store.reader().fold().await?;
                    }
                    self.rest(pause).await;
                }
                // One of the tasks is in a damaged part of the database and cannot be deleted.
                Err(error) if error.is_damage() && batch.len() > 1 => {
                    one_by_one = batch.len();
                    continue;
                }
                Err(error) if error.is_damage() => {
                    let task = batch[0].ended.task;
                    warn!(%task, %error, "cannot delete a task that ended long ago");
                    self.swept.damaged += 1;
                    self.walks[at].has_left = true;
                }
                Err(error) => return Err(error),
            }
            one_by_one = one_by_one.saturating_sub(1);
            rest = later;
        }
        Ok(true)
    }

    /// Returns the next ended tasks.
    async fn page(
        &self,
        reader: &SharedReader,
        after: Option<EndedAt>,
        before: Timestamp,
    ) -> Result<EndedPage, StoreError> {
        match reader.ended(after, before, PAGE, self.with_kind).await {
            Err(error) if error.is_damage() && self.with_kind => {}
            tasks => return Ok(EndedPage::of(tasks?)),
        }
        // One of the tasks is in a damaged part of the database.
        match reader.ended(after, before, 1, true).await {
            Err(error) if error.is_damage() => {
                let damaged = reader.ended(after, before, 1, false).await?;
                let last = damaged.last().map(|task| task.ended);
                if let Some(ended) = last {
                    warn!(task = %ended.task, %error, "an ended task cannot be read, and is not deleted");
                }
                Ok(EndedPage {
                    tasks: Vec::new(),
                    damaged: damaged.len() as u64,
                    last,
                })
            }
            tasks => Ok(EndedPage::of(tasks?)),
        }
    }

    fn goes_on(&self, is_on: &(dyn Fn() -> bool + Sync)) -> bool {
        !self.stop.is_cancelled() && is_on()
    }

    /// Leaves the store to others for a while.
    async fn rest(&self, rest: Duration) {
        if !self.is_alone {
            self.stop.run_until_cancelled(sleep(rest)).await;
        }
    }
}

struct EndedPage {
    tasks: Vec<EndedTask>,
    /// The number of tasks that cannot be read, which are not among `tasks`.
    damaged: u64,
    /// The last position of the page.
    last: Option<EndedAt>,
}

impl EndedPage {
    fn of(tasks: Vec<EndedTask>) -> Self {
        Self {
            last: tasks.last().map(|task| task.ended),
            tasks,
            damaged: 0,
        }
    }
}

impl Walk {
    /// Continues at the last position, or starts from the beginning if that is due.
    fn begin(&mut self, now: Timestamp) {
        let is_due = match self.anew_at {
            Some((latest, where_left)) => now >= latest || self.has_left && now >= where_left,
            None => true,
        };
        if is_due {
            self.after = None;
            self.has_left = false;
            self.anew_at = Some((now + RESTART_EVERY, now + AGAIN_AFTER));
        }
    }

    /// Records that the walk has reached the tasks that ended at `before`.
    fn end(&mut self, before: Timestamp) {
        // Tasks that are being saved now may have ended a moment before.
        let sure = EndedAt {
            at: ago(before, SAVED_WITHIN),
            task: TaskId(Uuid::nil()),
        };
        self.after = self.after.map(|after| after.min(sure));
    }
}

/// Returns whether the disk is short of space, so that writes that wait for their fold could take the space that other
/// work needs.
async fn is_disk_short(reader: &SharedReader) -> Result<bool, StoreError> {
    let space = reader.file_space().await?;
    Ok(space.is_some_and(|space| space.is_disk_short))
}

fn ago(now: Timestamp, span: Span) -> Timestamp {
    Timestamp::from_millis(now.as_millis().saturating_sub(span.as_millis()))
}

const TASKS: &str = "provost_purged_tasks_total";
const LAG: &str = "provost_purge_lag_seconds";

/// Registers the descriptions of the metrics.
pub fn describe() {
    metrics::describe_counter!(
        TASKS,
        "Tasks that this instance deleted after their retention time"
    );
    metrics::describe_gauge!(
        LAG,
        metrics::Unit::Seconds,
        "How long ago the oldest expired task should have been deleted; 0 if there is none"
    );
    metrics::counter!(TASKS).increment(0);
    metrics::gauge!(LAG).set(0.0);
}
