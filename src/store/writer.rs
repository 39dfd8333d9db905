//! Group commit: all commands that have arrived are saved in one transaction.
//!
//! A single command is a batch of one and waits for no others; only under load a committer gathers for a moment. While
//! a commit is in flight, the next batch gathers, so the cost of a command falls as the load rises. Commands are
//! decided on cached aggregates; only tasks that are not cached are read, in one statement for each batch. A caller
//! gets the response only after the commit.
//!
//! There are two committers: while one waits for its commit, the other decides and sends the next batch. See
//! [`command_queue`].

mod alert_causes;
mod attempt_samples;
mod batch;
mod cache;
mod command_queue;
mod faults;
mod handle;
mod known_queues;
mod leases;
mod load_budget;
mod marked_steps;
mod outbox;
mod purge;
mod registrations;
mod request;
mod stale_refusals;
mod ticket;
mod unusable_secrets;
mod waiting_tasks;
mod writes;

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use futures::FutureExt;
use parking_lot::Mutex;
use tokio::sync::{Notify, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tracing::{debug, error, warn};

pub use cache::CacheLimits;
pub use handle::Store;
pub use purge::purge_and_commit;
pub use registrations::{RegisterError, RegisteredVersion};
pub use request::{Apply, Idempotency, Renewed, Submitted};
pub use waiting_tasks::WaitingTasks;

use self::{
    attempt_samples::AttemptSamples,
    batch::{BatchDraft, DraftTerms, Queues},
    cache::Cache,
    command_queue::{BatchGuard, CommandQueue},
    faults::{Culprit, Panicked, TaskFaults, UnreportedFault},
    known_queues::KnownQueues,
    marked_steps::MarkedSteps,
    request::Request,
    ticket::Refusals,
};
use super::{
    Backend, Batch, CommitError, Health, LedgerWatch, LocalScheduler, RecordLimits, Saved,
    SharedFeature, SharedFeatures, StoreError, UnreadableTask, Watchers,
};
use crate::{
    chance,
    clock::{self, Instant},
    domain::{
        message::{LinkForm, Sender},
        task::ReplyAddresses,
        values::{AgentName, Backoff, StepRef, TaskId},
    },
    planted,
};

#[derive(Clone, Debug)]
pub struct WriterSettings {
    /// Bounds the live tasks that are kept in memory.
    pub cache: CacheLimits,
    /// The most commands in one transaction.
    pub batch: usize,
    /// The most bytes that one task may keep of outputs and similar data.
    pub most_kept: usize,
    /// The limits of the record of attempts.
    pub record: RecordLimits,
    /// Makes the messages to submitters and webhooks.
    pub sender: Arc<ArcSwap<Sender>>,
    /// The addresses that requests name for later replies, once they are known.
    pub reply_addresses: Arc<OnceLock<Arc<ReplyAddresses>>>,
    /// The state of the database as the backend reports it.
    pub health: Health,
}

/// The most times that a batch is decided again because another instance was faster, or the connection was lost, before
/// its callers get an error.
const TRIES: u32 = 16;
/// The wait before a batch is decided again. It is random, so that two instances that conflict do not conflict again at
/// the same moment. There is no wait before the first repetition, because most often one instance was simply first.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_millis(2), Duration::from_millis(64));

/// Claims are made one by one for this time after a batch of them panicked.
const ONE_BY_ONE: Duration = Duration::from_secs(30);

/// The time for which a request waits again for a row that another session has locked, and for which the requests of a
/// batch that are saved one by one do so together.
const ROWS_WITHIN: Duration = Duration::from_millis(1500);

/// A batch is decided again for this time on new connections that are lost in turn.
const CONNECTIONS_WITHIN: Duration = Duration::from_secs(2);

/// After the log said that a batch could not be saved, it does not say so again for this time.
const COMPLAIN_AGAIN: Duration = Duration::from_secs(5);

/// The reasons why a batch was not saved.
enum Failed {
    /// No transaction could be begun, so no batch can be saved now, whichever requests are in it.
    Begin(StoreError),
    /// This batch could not be saved.
    Save(StoreError),
    /// A part of the batch panicked.
    Panicked(Panicked),
}

/// The reasons why a batch was not decided.
enum Halted {
    Failed(Failed),
    /// A part of the database that the batch needs is damaged.
    Damaged(Damage),
}

/// The damaged records that a batch leaves out. On SQLite a transaction that has read a damaged part can write nothing
/// any more.
#[derive(Clone, Default)]
struct Damage {
    tasks: Vec<UnreadableTask>,
    queues: Vec<AgentName>,
}

impl Damage {
    /// Adds the damage of `other`. Returns whether any of it is new.
    fn add(&mut self, other: &Damage) -> bool {
        let before = self.tasks.len() + self.queues.len();
        for found in &other.tasks {
            if !self.tasks.iter().any(|known| known.task == found.task) {
                self.tasks.push(found.clone());
            }
        }
        for found in &other.queues {
            if !self.queues.contains(found) {
                self.queues.push(found.clone());
            }
        }
        self.tasks.len() + self.queues.len() > before
    }
}

impl From<CommitError> for Halted {
    fn from(error: CommitError) -> Self {
        Halted::Failed(match error {
            CommitError::Begin(error) => Failed::Begin(error),
            CommitError::Save(error) => Failed::Save(error),
        })
    }
}

impl From<Failed> for Halted {
    fn from(failed: Failed) -> Self {
        Halted::Failed(failed)
    }
}

impl From<StoreError> for Halted {
    fn from(error: StoreError) -> Self {
        Halted::Failed(error.into())
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Failed::Save(error)
    }
}

/// The state that the committers of one process share.
pub(super) struct BatchWriter {
    command_queue: CommandQueue,
    /// A committer takes the read lock to save commands on tasks, and several do so at the same time. It takes the
    /// write lock for every other request.
    committing: RwLock<()>,
    local: Arc<dyn LocalScheduler>,
    watchers: Arc<Watchers>,
    ledger: Arc<LedgerWatch>,
    /// Notified when a message may be due.
    outbox: Arc<Notify>,
    cache: Mutex<Cache>,
    heads: Arc<KnownQueues>,
    waiting: Arc<WaitingTasks>,
    marked: Arc<MarkedSteps>,
    samples: Arc<AttemptSamples>,
    faults: Arc<TaskFaults>,
    /// True if other instances may have changed tasks that are cached here.
    is_shared: bool,
    settings: WriterSettings,
    metrics: super::metrics::WriterMetrics,
    /// The time at which the log last said that nothing can be saved, and the number of failures since that were not
    /// logged.
    complained: Mutex<Option<(Instant, u64)>>,
    refusals: Refusals,
    /// True if a claim may have been saved that this process does not know of.
    claims_in_doubt: Arc<AtomicBool>,
    features: SharedFeatures,
}

/// Saves one batch after the other, on a connection of its own.
struct Committer<'w> {
    writer: &'w BatchWriter,
    backend: Box<dyn Backend>,
    unreported: Vec<UnreportedFault>,
    /// Set after a batch of claims panicked, because the panic does not tell at which step: until this time claims are
    /// made one by one.
    one_by_one: Option<Instant>,
    /// The step that is being claimed while claims are made one by one.
    suspect: Option<StepRef>,
}

/// Ends the exclusion of other committers when it is dropped.
enum CommitGuard<'w> {
    /// Other committers may save their batches at the same time.
    Shared {
        _others: RwLockReadGuard<'w, ()>,
    },
    Exclusive {
        _all: RwLockWriteGuard<'w, ()>,
    },
}

impl BatchWriter {
    /// Runs until every [`Store`] handle has been dropped and all requests that they sent are done.
    pub async fn run(self, committers: Vec<Box<dyn Backend>>) {
        let writer = &self;
        let committers = committers.into_iter();
        let committers = committers.map(|backend| Committer::new(writer, backend).run());
        futures::future::join_all(committers).await;
    }

    async fn commit_guard(&self, batch: &[Request]) -> CommitGuard<'_> {
        let is_exclusive = |request: &Request| request.is_exclusive(&self.heads);
        match batch.iter().any(is_exclusive) {
            false => CommitGuard::Shared {
                _others: self.committing.read().await,
            },
            true => CommitGuard::Exclusive {
                _all: self.committing.write().await,
            },
        }
    }

    /// Updates the cache with the tasks that have just been committed.
    fn remember(&self, batch: &Batch) {
        let mut cache = self.cache.lock();
        for change in &batch.changes {
            let task = &change.task;
            if task.is_ended() {
                cache.pop(&task.id());
            } else {
                cache.put(task);
            }
            self.metrics.observe(change);
        }
    }

    /// Logs that a batch could not be saved, at most once in [`COMPLAIN_AGAIN`]: while the database cannot be reached,
    /// the result of every call is saved again and again.
    fn complain(&self, error: &StoreError, commands: usize) {
        self.settings.health.note(error);
        self.refusals.note(error);
        self.claims_in_doubt.store(true, Ordering::Release);
        let now = clock::instant();
        let complained = self.complained.lock();
        let mut complained = complained;
        let unsaid = match &mut *complained {
            Some((said, unsaid)) if now.duration_since(*said) < COMPLAIN_AGAIN => {
                *unsaid += 1;
                return;
            }
            Some((_, unsaid)) => *unsaid,
            None => 0,
        };
        *complained = Some((now, 0));
        error!(%error, commands, unsaid, "could not save a batch");
    }

    fn forget(&self, tasks: impl IntoIterator<Item = TaskId>) {
        let mut cache = self.cache.lock();
        for task in tasks {
            cache.pop(&task);
        }
    }
}

impl<'w> Committer<'w> {
    fn new(writer: &'w BatchWriter, backend: Box<dyn Backend>) -> Self {
        Self {
            writer,
            backend,
            unreported: Vec::new(),
            one_by_one: None,
            suspect: None,
        }
    }

    async fn run(mut self) {
        let writer = self.writer;
        let mut gathered = Vec::with_capacity(writer.settings.batch);
        while let Some(mut taken) = writer
            .command_queue
            .next(writer.settings.batch, &mut gathered)
            .await
        {
            let guard = writer.commit_guard(&gathered).await;
            let may_read = matches!(guard, CommitGuard::Exclusive { .. });
            self.serve_leases(&mut gathered).await;
            self.serve_alone(&mut gathered).await;
            gathered.retain(Request::begin);
            if gathered.is_empty() {
                continue;
            }
            writer.metrics.batch_size.record(gathered.len() as f64);
            match self.write(&mut gathered, &mut taken, may_read).await {
                Ok(()) => {}
                // The batch may have been saved already, and must not be saved again.
                Err(Failed::Save(error @ StoreError::CommitUnknown(_))) => {
                    refuse(std::mem::take(&mut gathered), &error);
                }
                // Each request alone would fail in the same way, after the same wait.
                Err(Failed::Save(error @ StoreError::NotNow(_))) => {
                    refuse(std::mem::take(&mut gathered), &error);
                }
                // One command that cannot be saved must not fail the others, so each is saved alone.
                Err(Failed::Save(_) | Failed::Panicked(_)) if gathered.len() > 1 => {
                    self.write_each(std::mem::take(&mut gathered), &mut taken, may_read)
                        .await;
                }
                Err(Failed::Save(error)) => {
                    self.give_up_damaged(std::mem::take(&mut gathered), error);
                }
                Err(Failed::Begin(error)) => {
                    refuse(std::mem::take(&mut gathered), &error);
                }
                Err(Failed::Panicked(panicked)) => {
                    self.give_up(std::mem::take(&mut gathered), panicked);
                }
            }
            // The requests for which the batch had no room come first in the next one.
            writer.command_queue.put_back(&mut gathered);
            self.report_faults(&mut taken).await;
        }
    }

    async fn write_each(
        &mut self,
        requests: Vec<Request>,
        taken: &mut BatchGuard<'w>,
        may_read: bool,
    ) {
        let mut requests = requests.into_iter();
        let begun = clock::instant();
        let mut locked = None;
        while let Some(request) = requests.next() {
            // Each request waits for its row, so the last of many would wait as long as all of them together.
            if let Some(error) = &locked
                && (begun.elapsed() > ROWS_WITHIN || request.is_overdue())
            {
                request.refuse(error);
                continue;
            }
            let mut alone = vec![request];
            match self.write(&mut alone, taken, may_read).await {
                Ok(()) => {}
                Err(Failed::Save(error @ StoreError::NotNow(_))) => {
                    refuse(alone.into_iter().chain(requests), &error);
                    return;
                }
                Err(Failed::Save(error @ StoreError::RowLocked(_))) => {
                    refuse(alone, &error);
                    locked = Some(error);
                }
                Err(Failed::Save(error)) => self.give_up_damaged(alone, error),
                Err(Failed::Panicked(panicked)) => self.give_up(alone, panicked),
                // Every other request would fail in the same way, after the same wait for a connection.
                Err(Failed::Begin(error)) => {
                    refuse(alone.into_iter().chain(requests), &error);
                    return;
                }
            }
        }
    }

    /// Refuses a single request that panicked, where the panic does not say which part of the request was the cause.
    fn give_up(&mut self, alone: Vec<Request>, panicked: Panicked) {
        let mut culprit = Culprit::Request(0);
        if alone.iter().any(Request::claims) {
            culprit = self.suspect.take().map_or(culprit, Culprit::Claim);
            self.one_by_one = Some(clock::instant() + ONE_BY_ONE);
        }
        self.note_fault(&alone, &culprit, panicked.message);
        refuse(alone, &StoreError::Panicked);
    }

    /// Refuses a single request that could not be saved. If a damaged part of the database is the reason, the loops
    /// leave the task that needs the part alone from now on.
    fn give_up_damaged(&mut self, alone: Vec<Request>, error: StoreError) {
        if !error.is_damage() {
            return refuse(alone, &error);
        }
        let by_operator = alone.iter().any(Request::is_by_operator);
        let task = match alone.first() {
            Some(request) if request.claims() => {
                self.one_by_one = Some(clock::instant() + ONE_BY_ONE);
                self.suspect.take().map(|suspect| suspect.task)
            }
            Some(Request::Apply { apply, .. }) => Some(apply.task),
            _ => None,
        };
        let Some(task) = task else {
            return refuse(alone, &error);
        };
        let reason = error.damage();
        let unreadable = UnreadableTask { task, reason };
        if !by_operator {
            self.unreported
                .push(UnreportedFault::Unreadable(unreadable.clone()));
        }
        refuse(alone, &unreadable.into());
    }

    /// Decides, saves and commits the requests, and sends the replies. It leaves those that are for the next batch in
    /// `requests`. After an error nothing has changed and no caller has a reply.
    async fn write(
        &mut self,
        requests: &mut Vec<Request>,
        taken: &mut BatchGuard<'w>,
        may_read: bool,
    ) -> Result<(), Failed> {
        let started = clock::instant();
        let mut interrupted = None;
        let mut lost = 0;
        let mut culprits = Vec::new();
        let mut left_out = Damage::default();
        let mut tried = 0;
        while tried < TRIES {
            if tried > 1 {
                clock::sleep(BACKOFF.full_jitter(tried, chance::random())).await;
            }
            tried += 1;
            // A panic changes nothing in the database: the transaction is rolled back when it is dropped.
            let queues = Queues {
                heads: &self.writer.heads,
                taken,
                may_read,
                is_shared: self.writer.is_shared,
            };
            let under_way = self.writer.settings.health.writer().begin();
            let work = self.try_write(requests, queues, &culprits, &left_out);
            let work = AssertUnwindSafe(work).catch_unwind();
            let outcome = work.await;
            drop(under_way);
            let outcome = outcome.unwrap_or_else(|panic| {
                Err(Halted::Failed(Failed::Panicked(Panicked {
                    culprit: None,
                    message: faults::message(&*panic),
                })))
            });
            let outcome = match outcome {
                Ok(draft) => Ok(draft),
                Err(Halted::Failed(failed)) => Err(failed),
                // Each damaged record is found only once, so the loop ends.
                Err(Halted::Damaged(damage)) if left_out.add(&damage) => {
                    tried -= 1;
                    continue;
                }
                Err(Halted::Damaged(_)) => Err(Failed::Save(StoreError::Unreadable(
                    "the batch needs a task that it did not load".to_owned(),
                ))),
            };
            let (mut draft, batch) = match outcome {
                Ok(Some(decided)) => decided,
                Ok(None) => continue,
                // Each culprit is found only once, so the loop ends.
                Err(Failed::Panicked(Panicked {
                    culprit: Some(culprit),
                    message,
                })) if !culprits.contains(&culprit) => {
                    self.note_fault(requests, &culprit, message);
                    culprits.push(culprit);
                    tried -= 1;
                    continue;
                }
                Err(failed @ Failed::Panicked(_)) => return Err(failed),
                // Each attempt may wait for a new connection.
                Err(Failed::Save(StoreError::Lost(reason)))
                    if lost > 0 && started.elapsed() > CONNECTIONS_WITHIN =>
                {
                    let error = StoreError::Unavailable(reason);
                    self.writer.complain(&error, requests.len());
                    return Err(Failed::Begin(error));
                }
                Err(Failed::Save(error @ (StoreError::Retryable(_) | StoreError::Lost(_)))) => {
                    debug!(
                        %error,
                        "a transaction was interrupted; the batch is decided again"
                    );
                    lost += usize::from(matches!(error, StoreError::Lost(_)));
                    if let StoreError::Retryable(reason) | StoreError::Lost(reason) = error {
                        interrupted = Some(reason);
                    }
                    continue;
                }
                // Transactions of other instances end soon. A session that hangs must not delay other requests.
                Err(Failed::Save(StoreError::RowLocked(_)))
                    if requests.len() == 1
                        && started.elapsed() < ROWS_WITHIN
                        && !requests.iter().any(Request::is_overdue) =>
                {
                    continue;
                }
                Err(failed) => {
                    if let Failed::Begin(error) | Failed::Save(error) = &failed {
                        self.backend.failed(error);
                        self.writer.complain(error, requests.len());
                    }
                    return Err(failed);
                }
            };
            let writer = self.writer;
            let took = started.elapsed();
            writer.metrics.commit_seconds.record(took);
            writer.local.committed(took);
            // The batch is committed: even if the following code panics, the callers get the replies that say so.
            let published = faults::guarded(|| {
                writer.remember(&batch);
                let (heads, is_shared) = (&writer.heads, writer.is_shared);
                draft.publish(
                    &batch,
                    heads,
                    is_shared,
                    &*writer.local,
                    &writer.watchers,
                    &writer.outbox,
                );
                writer.ledger.committed();
                draft.limits.publish(&batch, &writer.waiting);
                writer.marked.add(&batch.marks);
                writer.samples.add(draft.samples.drain(..));
            });
            if let Err(message) = published {
                error!(
                    message,
                    "the service panicked after a commit; the claims of the batch are released later"
                );
                writer.forget(batch.changes.iter().map(|change| change.task.id()));
                writer.claims_in_doubt.store(true, Ordering::Release);
            }
            let rest = requests.split_off(draft.count().min(requests.len()));
            draft.send_replies(&batch, std::mem::replace(requests, rest), &writer.metrics);
            return Ok(());
        }
        let reason = interrupted
            .unwrap_or_else(|| "other instances kept changing the same tasks".to_owned());
        warn!(reason, "could not save a batch {TRIES} times");
        Err(Failed::Save(StoreError::Unavailable(reason)))
    }

    /// Returns `None` if a cached task was stale. The task is out of the cache then, and the batch must be decided
    /// again.
    async fn try_write(
        &mut self,
        requests: &[Request],
        mut queues: Queues<'_, '_>,
        culprits: &[Culprit],
        left_out: &Damage,
    ) -> Result<Option<(BatchDraft, Arc<Batch>)>, Halted> {
        let writer = self.writer;
        let careful = self
            .one_by_one
            .is_some_and(|until| clock::instant() < until);
        let begun = self.backend.begin().await;
        let mut tx = begun.map_err(|error| match error {
            // The connection was lost. The next one may be ready already.
            StoreError::Retryable(_) | StoreError::Lost(_) => Failed::Save(error),
            error => Failed::Begin(error),
        })?;
        let mut draft = BatchDraft::new(
            (tx.now(), tx.wall_now()),
            tx.instant(),
            writer.faults.clone(),
            careful,
            DraftTerms {
                most_kept: writer.settings.most_kept,
                record: writer
                    .settings
                    .record
                    .while_stored_in(&writer.settings.health),
                reply_addresses: writer.settings.reply_addresses.get().cloned(),
                undoes_paused: !writer.features.has(SharedFeature::HeldUndos),
            },
        );
        self.suspect = None;
        draft.culprits = culprits.to_vec();
        draft.left_out = left_out.clone();
        draft.spares_rows = writer.features.has(SharedFeature::StepsWithoutRows);
        if writer.features.has(SharedFeature::IncompleteLinks) {
            draft.links = LinkForm::Incomplete;
        }
        draft
            .plan_claims(requests, &mut queues, tx.as_mut(), &*writer.local)
            .await?;
        self.suspect = draft.first_queued().filter(|_| careful);
        draft.limits.count(requests, tx.as_mut()).await?;
        draft.gather(requests, tx.as_mut(), &writer.cache).await?;
        draft.decide(requests, tx.as_mut(), &*writer.local).await?;
        draft.lanes.save(tx.as_mut()).await?;
        draft.limits.save(tx.as_mut()).await?;
        draft.collect(&writer.settings.sender.load_full(), &*writer.local)?;
        tx.save_children(&draft.batch).await?;
        batch::forget_ended_steps(&draft.batch.changes, tx.as_mut()).await?;
        if writer.is_shared {
            let (stale_refusals, batch) = (&draft.stale_refusals, &draft.batch);
            let moved = stale_refusals.stale_tasks(batch, tx.as_mut()).await?;
            if !moved.is_empty() {
                drop(tx);
                debug!(
                    "a cached task that refused a command was stale; the batch is decided again"
                );
                writer.forget(moved);
                return Ok(None);
            }
        }
        let unreadable = draft.unreadable().cloned();
        self.unreported
            .extend(unreadable.map(UnreportedFault::Unreadable));
        for change in &draft.batch.changes {
            planted::strike(change.task.details.key.as_deref(), "save");
        }
        let batch = Arc::new(std::mem::take(&mut draft.batch));
        if batch.is_empty() {
            tx.commit().await?;
        } else if tx.save_and_commit(&batch).await? == Saved::Conflict {
            debug!("a cached task was stale; the batch is decided again");
            writer.forget(batch.changes.iter().map(|change| change.task.id()));
            return Ok(None);
        }
        Ok(Some((draft, batch)))
    }
}

fn refuse(requests: impl IntoIterator<Item = Request>, error: &StoreError) {
    for request in requests {
        request.refuse(error);
    }
}
