//! The handle through which the other parts of the service send commands to the writer.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use futures::{
    FutureExt,
    future::{OptionFuture, join_all, pending},
};
use parking_lot::Mutex;
use tokio::sync::{Notify, RwLock, mpsc, watch};
use tracing::warn;

use super::{
    BatchWriter, Cache, TaskFaults, WriterSettings,
    attempt_samples::AttemptSamples,
    command_queue::CommandQueue,
    known_queues::KnownQueues,
    leases,
    marked_steps::MarkedSteps,
    purge::{self, PurgeCall},
    request::{Apply, Idempotency, LeaseCall, ReplySender, Request, Submitted, ask, ask_in_time},
    ticket::Refusals,
    waiting_tasks::WaitingTasks,
};
use crate::{
    chance, clock,
    domain::{
        message::Sender,
        task::{Details, KeyPrefixes, ReplyKey},
        values::{AgentName, TaskId, Timestamp},
        view::{ChangeOrigin, LedgerRecord, LedgerSubject},
    },
    store::{
        ActivityMeter, Alert, AlertId, CommandError, CompiledDefinitions, Health, LedgerWatch,
        LocalScheduler, Peers, Promoted, Purged, RecordLimits, SharedFeature, SharedFeatures,
        SharedReader, StepCounter, StoreConnections, StoreError, Watchers, metrics::WriterMetrics,
    },
};

/// The most requests that wait for the writer before senders wait too.
const QUEUE: usize = 16_384;

/// The state store. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    requests: mpsc::Sender<Request>,
    refusals: Refusals,
    /// True if requests that wait too long are refused, see [`Store::for_callers`].
    is_for_callers: bool,
    /// The caller whose changes are recorded, see [`Store::ordered_by`].
    pub(super) origin: Option<Arc<ChangeOrigin>>,
    /// Leads to the writer, or to a connection of its own.
    pub(super) leases: mpsc::Sender<LeaseCall>,
    /// Leads to a connection of its own, if the database allows several writers.
    purges: Option<mpsc::Sender<PurgeCall>>,
    /// True if other processes may use the same database in the meantime.
    pub is_shared: bool,
    /// Reads for callers, see [`crate::store::Readers`].
    pub reader: SharedReader,
    /// Reads for the loops that keep tasks moving.
    pub housekeeping: SharedReader,
    pub watchers: Arc<Watchers>,
    pub ledger: Arc<LedgerWatch>,
    /// The time at which another instance last reported a change.
    pub peers: Peers,
    pub definitions: Arc<CompiledDefinitions>,
    /// Notified when a message may be due.
    pub outbox: Arc<Notify>,
    /// Notified when a schedule has changed or may be due.
    pub schedules: Arc<Notify>,
    /// Counts the changes of bulk jobs that this instance has saved.
    pub bulk_jobs: Arc<watch::Sender<u64>>,
    /// Notified when a bulk job was recorded, stopped or resumed.
    pub bulk_due: Arc<Notify>,
    pub(in crate::store) sender: Arc<ArcSwap<Sender>>,
    /// Tasks that the loops leave alone for a while.
    faults: Arc<TaskFaults>,
    heads: Arc<KnownQueues>,
    /// Keys of limited tasks in which something has changed.
    pub waiting: Arc<WaitingTasks>,
    /// Steps that must be compared with their children.
    pub marked: Arc<MarkedSteps>,
    pub(super) samples: Arc<AttemptSamples>,
    pub(super) record: RecordLimits,
    claims_in_doubt: Arc<AtomicBool>,
    /// Counts the steps that this process has completed.
    pub step_counter: Arc<StepCounter>,
    /// Counts what this process does in each hour.
    pub(in crate::store) activity: Arc<ActivityMeter>,
    pub health: Health,
    pub features: SharedFeatures,
    key_prefixes: Arc<OnceLock<KeyPrefixes>>,
}

impl Store {
    /// Creates a store, and its writer for the caller to run. The writer ends when the last handle is dropped.
    pub fn new(
        connections: StoreConnections,
        definitions: Arc<CompiledDefinitions>,
        local: Arc<dyn LocalScheduler>,
        settings: WriterSettings,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (requests, receiver) = mpsc::channel(QUEUE);
        let watchers = Arc::new(Watchers::default());
        let ledger = Arc::new(LedgerWatch::default());
        let (leases, asked) = mpsc::channel(QUEUE);
        let (lease_requests, apart) = match connections.leases {
            Some(backend) => (None, Some(leases::serve(backend, asked))),
            None => (Some(asked), None),
        };
        let (purges, purging) = match connections.purging {
            Some(backend) => {
                let (purges, asked) = mpsc::channel(1);
                (Some(purges), Some(purge::serve(backend, asked)))
            }
            None => (None, None),
        };
        let (writers, is_shared) = (connections.writers, connections.is_shared);
        let outbox = Arc::new(Notify::new());
        let faults = Arc::new(TaskFaults::default());
        let heads = Arc::new(KnownQueues::default());
        let waiting = Arc::new(WaitingTasks::default());
        let marked = Arc::new(MarkedSteps::default());
        let samples = Arc::new(AttemptSamples::default());
        let claims_in_doubt = Arc::<AtomicBool>::default();
        let step_counter = Arc::new(StepCounter::default());
        let activity = Arc::new(ActivityMeter::default());
        let peers = Peers::default();
        let features = SharedFeatures::new(is_shared);
        let housekeeping = connections.readers.housekeeping;
        let settle = features.clone().settle(housekeeping.clone());
        let look = ledger.clone().look(housekeeping.clone());
        let refusals = Refusals::default();
        let (health, sender) = (settings.health.clone(), settings.sender.clone());
        let record = settings.record;
        let writer = BatchWriter {
            command_queue: CommandQueue::new(
                receiver,
                lease_requests,
                writers.len(),
                peers.clone(),
            ),
            committing: RwLock::new(()),
            local,
            watchers: watchers.clone(),
            ledger: ledger.clone(),
            outbox: outbox.clone(),
            cache: Mutex::new(Cache::new(settings.cache)),
            heads: heads.clone(),
            waiting: waiting.clone(),
            marked: marked.clone(),
            samples: samples.clone(),
            faults: faults.clone(),
            is_shared,
            settings,
            metrics: WriterMetrics::new(step_counter.clone(), activity.clone()),
            complained: Mutex::default(),
            refusals: refusals.clone(),
            claims_in_doubt: claims_in_doubt.clone(),
            features: features.clone(),
        };
        let store = Self {
            requests,
            refusals,
            is_for_callers: false,
            origin: None,
            leases,
            purges,
            is_shared,
            reader: connections.readers.callers,
            housekeeping,
            watchers,
            ledger,
            peers,
            definitions,
            outbox,
            schedules: Arc::default(),
            bulk_jobs: Arc::new(watch::Sender::new(0)),
            bulk_due: Arc::default(),
            sender,
            faults,
            heads,
            waiting,
            marked,
            samples,
            record,
            claims_in_doubt,
            step_counter,
            activity,
            health,
            features,
            key_prefixes: Arc::default(),
        };
        let writing = async move {
            let writing = async {
                futures::join!(
                    writer.run(writers),
                    OptionFuture::from(apart),
                    OptionFuture::from(purging),
                );
            };
            let settle = async {
                settle.await;
                pending().await
            };
            tokio::select! {
                () = writing => {}
                () = settle => {}
                () = look => {}
            }
        };
        (store, writing)
    }

    /// Returns the same store for callers that wait for a response. Their requests are refused if they are not begun in
    /// time. The loops that keep tasks moving wait instead, because they would only send the request again and lose its
    /// position in the queue.
    pub fn for_callers(&self) -> Self {
        Self {
            is_for_callers: true,
            ..self.clone()
        }
    }

    /// Returns the same store for the changes of one caller: the ledger names who made them, and from where.
    pub fn ordered_by(&self, origin: ChangeOrigin) -> Self {
        Self {
            origin: Some(Arc::new(origin)),
            ..self.clone()
        }
    }

    /// Returns the origin of the changes of this handle.
    pub(in crate::store) fn origin(&self) -> Arc<ChangeOrigin> {
        self.origin
            .clone()
            .unwrap_or_else(|| Arc::new(ChangeOrigin::service()))
    }

    /// Sends a request to the writer, and waits for the reply.
    pub(super) async fn ask<T, E: From<StoreError>>(
        &self,
        request: impl FnOnce(ReplySender<T, E>) -> Request,
    ) -> Result<T, E> {
        match self.is_for_callers {
            true => ask_in_time(&self.requests, &self.refusals, request).await,
            false => ask(&self.requests, request).await,
        }
    }

    /// The key that completes the links in messages. `None` if there is none yet.
    pub fn ask_key(&self) -> Option<ReplyKey> {
        self.sender.load().ask_key.clone()
    }

    /// Sets the prefixes, so that new tasks may get prefixes of their own from now on.
    pub fn use_key_prefixes(&self, prefixes: KeyPrefixes) {
        // The prefixes are set once, at the start.
        let _ = self.key_prefixes.set(prefixes);
    }

    /// Makes the prefixes of new tasks. Returns `None` if their keys begin with their ids: because the operator wants
    /// that, or because an older instance that is on record would call their steps under such keys anyway.
    pub fn key_prefixes(&self) -> Option<&KeyPrefixes> {
        let prefixes = self.key_prefixes.get();
        prefixes.filter(|_| self.features.has(SharedFeature::KeyPrefixes))
    }

    /// Returns an id for a new task, by the store's clock: lists and queues are in the order of ids, and an instance
    /// whose own clock is wrong must not put its tasks before or after those of others.
    pub fn new_task_id(&self) -> TaskId {
        TaskId::of_new_task(match self.housekeeping.estimated_now() {
            Some(now) => chance::id_at(u64::try_from(now.as_millis()).unwrap_or_default()),
            None => chance::id(),
        })
    }

    /// Returns whether the loops leave a task alone now, because this process panicked at it.
    pub fn rests(&self, task: TaskId) -> bool {
        self.faults.rests(task)
    }

    /// Finds the tasks that an earlier process could not decide on or read. Their alerts are closed once that succeeds.
    pub async fn expect_recoveries(&self) -> Result<(), StoreError> {
        for (task, step) in self.housekeeping.faults().await? {
            self.faults.expect(task, step);
        }
        Ok(())
    }

    /// The number of tasks that the loops may leave alone. A loop reads that many more, or these tasks would hide
    /// others from it.
    pub fn resting(&self) -> usize {
        self.faults.len()
    }

    /// Records a task and its steps in one transaction. Its history names the reason.
    pub async fn submit(
        &self,
        details: Details,
        reason: Option<String>,
        idempotency: Option<Idempotency>,
    ) -> Result<Submitted, CommandError> {
        self.health.check_submission()?;
        let details = Arc::new(details);
        self.ask(|answer| Request::Submit {
            details,
            reason,
            idempotency,
            answer,
        })
        .await
    }

    pub async fn apply(&self, mut apply: Apply) -> Result<Submitted, CommandError> {
        apply.origin = self.origin.clone();
        self.ask(|answer| Request::Apply { apply, answer }).await
    }

    /// Claims from all queues whose heads are known, and from those of these agents. Returns how many steps were
    /// claimed. Steps that other instances have just enqueued are left to them.
    pub async fn claim_queued(&self, agents: Vec<AgentName>) -> Result<usize, StoreError> {
        self.claim(agents, true).await
    }

    /// Claims as [`Store::claim_queued`] does, but leaves nothing to others: no instance has delayed steps in its known
    /// heads.
    pub async fn claim_all_queued(&self, agents: Vec<AgentName>) -> Result<usize, StoreError> {
        self.claim(agents, false).await
    }

    async fn claim(&self, agents: Vec<AgentName>, leaves_some: bool) -> Result<usize, StoreError> {
        self.ask(|answer| Request::ClaimQueued {
            agents,
            leaves_some,
            answer,
        })
        .await
    }

    /// Returns whether a claim may have been saved since the last call that this process does not know of, because a
    /// commit failed.
    pub fn take_claims_in_doubt(&self) -> bool {
        self.claims_in_doubt.swap(false, Ordering::AcqRel)
    }

    /// Makes the next claims read their queues, which may have been changed by others than this writer.
    pub fn read_queues_again(&self) {
        self.heads.require_read_of_all();
    }

    /// Makes the next claims from these queues read them, if others share the store: they may have enqueued steps, and
    /// claimed steps that are known here.
    pub fn read_shared_queues_again(&self, agents: &[AgentName]) {
        if self.is_shared {
            self.heads.require_read(agents);
        }
    }

    /// Returns whether steps of this queue are left to the instances that have just enqueued them. They are not if some
    /// are this instance's own, or if workflows limit steps of the queue.
    pub fn leaves_to_others(&self, agent: &AgentName) -> bool {
        self.is_shared && !self.heads.is_limited(agent) && !self.heads.has_own(agent)
    }

    /// Returns whether the next claim from this queue need not read it.
    pub fn knows_head(&self, agent: &AgentName) -> bool {
        !self.heads.need_read(std::slice::from_ref(agent))
    }

    pub async fn promote(&self) -> Result<Promoted, StoreError> {
        self.write(|tx| tx.promote().boxed()).await
    }

    /// Promotes each due step in a write of its own, for the case that a damaged part of the database prevents
    /// [`Store::promote`]: all other steps join their queues.
    pub async fn promote_each(&self) -> Result<(), StoreError> {
        let due = self.housekeeping.due().await?;
        let promoted = due.iter().copied();
        let promoted = promoted.map(|step| self.write(move |tx| tx.promote_one(step).boxed()));
        for (step, outcome) in due.iter().zip(join_all(promoted).await) {
            match outcome {
                Err(error) if error.is_damage() => {
                    warn!(task = %step.task, step = step.step.0, %error, "a due step cannot be enqueued");
                }
                outcome => outcome?,
            }
        }
        Ok(())
    }

    pub async fn acknowledge(
        &self,
        alert: AlertId,
        by: String,
    ) -> Result<Option<Alert>, StoreError> {
        // This write locks an alert, which a batch would lock only after its tasks.
        let origin = self.origin();
        self.send_write(true, None, move |tx| {
            let (by, origin) = (by.clone(), origin.clone());
            async move {
                let acknowledged = tx.acknowledge(alert, &by).await?;
                if let Some(alert) = &acknowledged {
                    let id = alert.id.0;
                    let record =
                        LedgerRecord::new("alert.acknowledged", LedgerSubject::Alert, id, &origin);
                    tx.add_records(&[record.because(Some(&alert.message))])
                        .await?;
                }
                Ok(acknowledged)
            }
            .boxed()
        })
        .await
    }

    /// Deletes those of these tasks that ended before `ended_before`: with the next batch of the writer, or on a
    /// connection of its own if the database allows several writers.
    pub async fn purge(
        &self,
        tasks: Vec<TaskId>,
        ended_before: Timestamp,
    ) -> Result<Purged, StoreError> {
        let Some(purges) = &self.purges else {
            let tasks: Arc<[_]> = tasks.into();
            return self
                .write(move |tx| {
                    let tasks = tasks.clone();
                    async move { purge::purge(tx, &tasks, ended_before).await }.boxed()
                })
                .await;
        };
        ask(purges, |answer| PurgeCall {
            tasks,
            ended_before,
            answer,
        })
        .await
    }

    /// Returns this number of free pages of the database file to the disk. Returns how long that kept the writer busy,
    /// without the commit.
    pub async fn give_back(&self, pages: u32) -> Result<Duration, StoreError> {
        self.write(move |tx| {
            async move {
                let began = clock::instant();
                tx.give_back(pages).await?;
                Ok(began.elapsed())
            }
            .boxed()
        })
        .await
    }

    /// Commits a test write: an error means that nothing can be committed now.
    pub async fn heartbeat(&self) -> Result<(), StoreError> {
        self.write(|tx| tx.heartbeat().boxed()).await
    }
}
