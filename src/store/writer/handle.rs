//! The handle through which everyone else sends commands to the writer.

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
use tokio::{
    sync::{Notify, RwLock, mpsc},
    time::Instant,
};
use tracing::warn;
use uuid::{ContextV7, Uuid};

use super::{
    BatchWriter, Cache, Faults, WriterSettings,
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
    domain::{AgentName, Details, KeyPrefixes, ReplyKey, Sender, TaskId, Timestamp},
    store::{
        Alert, AlertId, CommandError, Definitions, Health, LocalScheduler, Peers, Promoted, Purged,
        SharedFeature, SharedFeatures, SharedReader, StepCounter, StoreConnections, StoreError,
        Watchers, metrics::WriterMetrics,
    },
};

/// Requests that may wait for the writer before senders wait too.
const QUEUE: usize = 16_384;

/// The state store. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    requests: mpsc::Sender<Request>,
    refusals: Refusals,
    /// Whether requests are turned away that wait for too long, see [`Store::for_callers`].
    is_for_callers: bool,
    /// To the writer, or past it.
    pub(super) leases: mpsc::Sender<LeaseCall>,
    /// Past the writer, where the database takes several that write.
    purges: Option<mpsc::Sender<PurgeCall>>,
    /// Whether other processes may use the same database meanwhile.
    pub is_shared: bool,
    /// For callers; see [`crate::store::Readers`].
    pub reader: SharedReader,
    /// For what keeps tasks moving.
    pub housekeeping: SharedReader,
    pub watchers: Arc<Watchers>,
    /// What was heard of other instances.
    pub peers: Peers,
    pub definitions: Arc<Definitions>,
    /// Woken when there is something to be delivered.
    pub outbox: Arc<Notify>,
    /// Woken when a schedule is to be looked at.
    pub schedules: Arc<Notify>,
    pub(in crate::store) sender: Arc<ArcSwap<Sender>>,
    /// Tasks that the loops leave alone for a while.
    faults: Arc<Faults>,
    heads: Arc<KnownQueues>,
    /// Keys of limited tasks in which something has happened.
    pub waiting: Arc<WaitingTasks>,
    /// Steps that are to be compared with their children.
    pub marked: Arc<MarkedSteps>,
    claims_in_doubt: Arc<AtomicBool>,
    /// What this process has completed.
    pub step_counter: Arc<StepCounter>,
    pub health: Health,
    pub features: SharedFeatures,
    key_prefixes: Arc<OnceLock<KeyPrefixes>>,
}

impl Store {
    /// A store, and its writer to be run. The writer ends when the last handle is dropped.
    pub fn new(
        connections: StoreConnections,
        definitions: Arc<Definitions>,
        local: Arc<dyn LocalScheduler>,
        settings: WriterSettings,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (requests, receiver) = mpsc::channel(QUEUE);
        let watchers = Arc::new(Watchers::default());
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
        let faults = Arc::new(Faults::default());
        let heads = Arc::new(KnownQueues::default());
        let waiting = Arc::new(WaitingTasks::default());
        let marked = Arc::new(MarkedSteps::default());
        let claims_in_doubt = Arc::<AtomicBool>::default();
        let step_counter = Arc::new(StepCounter::default());
        let peers = Peers::default();
        let features = SharedFeatures::new(is_shared);
        let housekeeping = connections.readers.housekeeping;
        let settle = features.clone().settle(housekeeping.clone());
        let refusals = Refusals::default();
        let (health, sender) = (settings.health.clone(), settings.sender.clone());
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
            outbox: outbox.clone(),
            cache: Mutex::new(Cache::new(settings.cache)),
            heads: heads.clone(),
            waiting: waiting.clone(),
            marked: marked.clone(),
            faults: faults.clone(),
            is_shared,
            settings,
            metrics: WriterMetrics::new(step_counter.clone()),
            complained: Mutex::default(),
            refusals: refusals.clone(),
            claims_in_doubt: claims_in_doubt.clone(),
            features: features.clone(),
        };
        let store = Self {
            requests,
            refusals,
            is_for_callers: false,
            leases,
            purges,
            is_shared,
            reader: connections.readers.callers,
            housekeeping,
            watchers,
            peers,
            definitions,
            outbox,
            schedules: Arc::default(),
            sender,
            faults,
            heads,
            waiting,
            marked,
            claims_in_doubt,
            step_counter,
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
            }
        };
        (store, writing)
    }

    /// The same store for those who wait for a response: they are turned away if the turn of a request does not come in time.
    /// What keeps tasks moving waits instead, because it would only ask again, and lose its place in the queue.
    pub fn for_callers(&self) -> Self {
        Self {
            is_for_callers: true,
            ..self.clone()
        }
    }

    /// Sends a request to the writer, and waits for the answer.
    pub(super) async fn ask<T, E: From<StoreError>>(
        &self,
        request: impl FnOnce(ReplySender<T, E>) -> Request,
    ) -> Result<T, E> {
        match self.is_for_callers {
            true => ask_in_time(&self.requests, &self.refusals, request).await,
            false => ask(&self.requests, request).await,
        }
    }

    /// Completes the links in messages. `None`: there are none yet.
    pub fn ask_key(&self) -> Option<ReplyKey> {
        self.sender.load().ask_key.clone()
    }

    /// From now on new tasks may get prefixes of their own.
    pub fn use_key_prefixes(&self, prefixes: KeyPrefixes) {
        // It is set once, at the start.
        let _ = self.key_prefixes.set(prefixes);
    }

    /// Makes the prefixes of new tasks. `None`: their keys begin with their ids, because the operator wants that, or because an
    /// older instance that is on record would call their steps under such keys anyway.
    pub fn key_prefixes(&self) -> Option<&KeyPrefixes> {
        let prefixes = self.key_prefixes.get();
        prefixes.filter(|_| self.features.has(SharedFeature::KeyPrefixes))
    }

    /// An id for a new task, by the store's clock: lists and queues are in the order of ids, and an instance whose
    /// own clock is wrong must not put its tasks before or after those of others.
    pub fn new_task_id(&self) -> TaskId {
        /// Those of one millisecond stay in the order in which they were made.
        // The mutex that uuid takes.
        static ORDER: std::sync::Mutex<ContextV7> = std::sync::Mutex::new(ContextV7::new());
        TaskId(match self.housekeeping.estimated_now() {
            Some(now) => {
                let millis = u64::try_from(now.as_millis()).unwrap_or_default();
                let (seconds, nanos) = (millis / 1000, (millis % 1000) * 1_000_000);
                Uuid::new_v7(uuid::Timestamp::from_unix(&ORDER, seconds, nanos as u32))
            }
            None => Uuid::now_v7(),
        })
    }

    /// Whether the loops leave a task alone for now, because this process panicked at it.
    pub fn rests(&self, task: TaskId) -> bool {
        self.faults.rests(task)
    }

    /// Finds the tasks that an earlier process could not decide on or read: once that goes well, their alerts
    /// are closed.
    pub async fn expect_recoveries(&self) -> Result<(), StoreError> {
        for (task, step) in self.housekeeping.faults().await? {
            self.faults.expect(task, step);
        }
        Ok(())
    }

    /// How many tasks may rest: so many more a loop looks at, or those would hide others from it.
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

    pub async fn apply(&self, apply: Apply) -> Result<Submitted, CommandError> {
        self.ask(|answer| Request::Apply { apply, answer }).await
    }

    /// Claims from all queues whose heads are known, and from those of these agents; returns how many steps were claimed.
    /// What other instances have just enqueued is left to them.
    pub async fn claim_queued(&self, agents: Vec<AgentName>) -> Result<usize, StoreError> {
        self.claim(agents, true).await
    }

    /// [`Store::claim_queued`], and nothing is left to others: what was delayed is in nobody's head.
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

    /// Whether a claim may have been saved since the last call that this process does not know of, because a commit
    /// failed.
    pub fn take_claims_in_doubt(&self) -> bool {
        self.claims_in_doubt.swap(false, Ordering::AcqRel)
    }

    /// The next claims read their queues, which may have changed by other hands than this writer's.
    pub fn read_queues_again(&self) {
        self.heads.doubt_all();
    }

    /// The next claims from these queues read them, where others share the store: they may have enqueued steps, and
    /// claimed those that are known here.
    pub fn read_shared_queues_again(&self, agents: &[AgentName]) {
        if self.is_shared {
            self.heads.doubt(agents);
        }
    }

    /// Whether steps of this queue are left to the instances that have just enqueued them: not where some are this
    /// instance's own, and not where steps stand in it that workflows limit.
    pub fn leaves_to_others(&self, agent: &AgentName) -> bool {
        self.is_shared && !self.heads.is_limited(agent) && !self.heads.has_own(agent)
    }

    /// Whether the next claim from this queue need not read it.
    pub fn knows_head(&self, agent: &AgentName) -> bool {
        !self.heads.need_read(std::slice::from_ref(agent))
    }

    pub async fn promote(&self) -> Result<Promoted, StoreError> {
        self.write(|tx| tx.promote().boxed()).await
    }

    /// [`Store::promote`] where a damaged part of the database keeps one of the steps out of its queue: all others
    /// join theirs.
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
        // It locks an alert that a batch would lock only after its tasks.
        self.send_write(true, None, move |tx| {
            let by = by.clone();
            async move { tx.acknowledge(alert, &by).await }.boxed()
        })
        .await
    }

    /// Deletes those of these tasks that ended before `ended_before`: with the next batch of the writer, or past
    /// it where the database takes several that write.
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

    /// Gives so many free pages of a database file back to the disk. Returns for how long that kept the writer busy,
    /// without the commit.
    pub async fn give_back(&self, pages: u32) -> Result<Duration, StoreError> {
        self.write(move |tx| {
            async move {
                let began = Instant::now();
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
