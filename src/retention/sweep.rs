//! Walks over the tasks that ended, longest ended first, and deletes those that were kept long enough.
//!
//! Each length of time that tasks are kept for is a walk of its own: all that is kept longer stands in its way, and
//! is looked at once. A walk remembers how far it came, so that a round costs what has come to its end since the last
//! one, whatever is kept.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::warn;
use uuid::Uuid;

use super::PurgeStore;
use crate::{
    domain::{Keep, PurgePace, Retention, Span, TaskId, TaskStatus, Timestamp},
    store::{EndedAt, EndedTask, SharedReader, StoreError},
};

/// Tasks that are looked at in one read.
const PAGE: usize = 500;
/// Dead letters that are deleted at once.
const LETTERS: usize = 100;
/// A task may be saved so long after the time of its end in the record.
const SAVED_WITHIN: Span = Span::from_secs(60);
/// The most tasks deleted at once where the disk is short of room.
const SHORT: usize = 4;
/// How long what could not be deleted is left alone.
const AGAIN_AFTER: Span = Span::from_secs(3600);
/// How often a scan starts from the beginning, for changes that it cannot notice: a clock that was set back.
const ANEW_AFTER: Span = Span::from_secs(86_400);

/// Who else uses the store.
#[derive(Clone, Copy, Debug)]
pub enum Pacing {
    /// Others, who wait while something is deleted: SQLite has one writer.
    OneWriter,
    /// Others, who write at the same time.
    SeveralWriters,
    /// Nobody.
    Alone,
}

impl Pacing {
    /// The longest that one batch may take.
    fn target(self) -> Duration {
        Duration::from_millis(match self {
            Pacing::OneWriter => 1,
            Pacing::SeveralWriters => 20,
            Pacing::Alone => 100,
        })
    }
}

/// What was deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Swept {
    pub tasks: u64,
    pub dead_letters: u64,
    /// Tasks that could not be deleted: their records are damaged.
    pub damaged: u64,
}

#[derive(Debug)]
pub struct Sweep {
    retention: Retention,
    /// Whether a task's data decides how long it is kept, or the caller needs it.
    with_kind: bool,
    walks: Vec<Walk>,
    /// Dead letters that died so long ago are deleted too.
    letters: Option<Span>,
    pace: PurgePace,
    is_alone: bool,
    started: Instant,
    /// By the round that goes on, or was the last.
    swept: Swept,
    stop: CancellationToken,
}

/// Over all that is kept for so long.
#[derive(Debug)]
struct Walk {
    keep: Span,
    after: Option<EndedAt>,
    /// When it starts from the beginning at the latest, and where it skipped something. `None` before the first
    /// round.
    anew_at: Option<(Timestamp, Timestamp)>,
    /// Whether it passed over tasks that it could not delete.
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
            started: Instant::now(),
            swept: Swept::default(),
            stop,
        }
    }

    /// Reads of every task what it is.
    pub fn with_kinds(mut self) -> Self {
        self.with_kind = true;
        self
    }

    /// What the last round deleted, also where it failed.
    pub fn swept(&self) -> Swept {
        self.swept
    }

    /// Deletes all that was kept long enough, or what of it goes until the stop or while `is_on` says so.
    pub async fn round(
        &mut self,
        store: &mut dyn PurgeStore,
        is_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<Swept, StoreError> {
        let now = store.reader().now().await?;
        self.round_at(now, store, is_on).await
    }

    pub(super) async fn round_at(
        &mut self,
        now: Timestamp,
        store: &mut dyn PurgeStore,
        is_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<Swept, StoreError> {
        self.swept = Swept::default();
        for at in 0..self.walks.len() {
            self.walk(at, store, now, is_on).await?;
        }
        metrics::gauge!(LAG).set(0.0);
        if let Some(keep) = self.letters {
            let before = ago(now, keep);
            while self.goes_on(is_on) {
                let started = Instant::now();
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
            let started = Instant::now();
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
        keep == Keep::For(self.walks[at].keep)
    }

    fn note_lag(&mut self, before: Timestamp, ended: Timestamp) {
        let lag = before.as_millis().saturating_sub(ended.as_millis());
        let lag = Span::from_millis(u64::try_from(lag).unwrap_or_default());
        metrics::gauge!(LAG).set(lag.duration().as_secs_f64());
        self.pace.lags(lag, self.started.elapsed());
    }

    /// Answers whether it came to the end of these.
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
                    // Another task is deleting the others.
                    self.walks[at].has_left |= purged.tasks < batch.len() as u64;
                    let pause = self.pace.deleted(batch.len(), purged.took);
                    if is_short {
                        store.reader().fold().await?;
                    }
                    self.rest(pause).await;
                }
                // A damaged part of the database keeps one of them from being deleted.
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

    /// The tasks that ended next.
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
        // One of them is in a damaged part of the database.
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

    /// Leaves the store to others.
    async fn rest(&self, rest: Duration) {
        if !self.is_alone {
            self.stop.run_until_cancelled(sleep(rest)).await;
        }
    }
}

struct EndedPage {
    tasks: Vec<EndedTask>,
    /// Those that cannot be read, and are not among `tasks`.
    damaged: u64,
    /// How far it goes.
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
    /// Continues where it was, or starts from the beginning if it is time to.
    fn begin(&mut self, now: Timestamp) {
        let is_due = match self.anew_at {
            Some((latest, where_left)) => now >= latest || self.has_left && now >= where_left,
            None => true,
        };
        if is_due {
            self.after = None;
            self.has_left = false;
            self.anew_at = Some((now + ANEW_AFTER, now + AGAIN_AFTER));
        }
    }

    /// It came to the tasks that ended at `before`.
    fn end(&mut self, before: Timestamp) {
        // Those that are being saved now may have ended a moment before.
        let sure = EndedAt {
            at: ago(before, SAVED_WITHIN),
            task: TaskId(Uuid::nil()),
        };
        self.after = self.after.map(|after| after.min(sure));
    }
}

/// Whether what is written until it is folded back takes room that others need.
async fn is_disk_short(reader: &SharedReader) -> Result<bool, StoreError> {
    let space = reader.file_space().await?;
    Ok(space.is_some_and(|space| space.is_disk_short))
}

fn ago(now: Timestamp, span: Span) -> Timestamp {
    Timestamp::from_millis(now.as_millis().saturating_sub(span.as_millis()))
}

const TASKS: &str = "provost_purged_tasks_total";
const LAG: &str = "provost_purge_lag_seconds";

/// Says what the metrics are.
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
