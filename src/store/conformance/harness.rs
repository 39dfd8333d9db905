//! A store under test, with a scheduler that only records its calls.

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use sqlx::Connection;
use uuid::Uuid;

use super::cluster;
use crate::store::RecordLimits;
use crate::{
    domain::{
        definition::{Accepted as Known, Limits, Policies, parse_steps},
        message::{AlertFormat, AlertWebhook, Sender},
        queue::{Fairness, LaneRule},
        task::{Actor, CallOutcome, Command, Details, ReplyTo, Task},
        template::Payload,
        values::{
            AgentName, Attempt, Fault, InstanceId, Priority, Span, StepIndex, StepRef, TaskId,
            Timestamp, Trace,
        },
    },
    store::{
        Apply, CacheLimits, CommandError, CompiledDefinitions, Dispatch, Health, LocalScheduler,
        SlotPermit, Store, StoreConnections, Submitted, WriterSettings, postgres, sqlite,
    },
};

/// The most bytes of recorded attempts of a task.
pub const MOST_RECORDED: u64 = 100 << 10;

pub struct Opened {
    pub connections: StoreConnections,
    pub definitions: Arc<CompiledDefinitions>,
    pub database: TestDatabase,
}

/// The database itself, for statements that a test runs without the store.
pub enum TestDatabase {
    /// The folder is deleted when this is dropped.
    Sqlite(tempfile::TempDir),
    Postgres(String),
}

fn definitions() -> Arc<CompiledDefinitions> {
    Arc::new(CompiledDefinitions::new(NonZeroUsize::new(16).unwrap()))
}

pub async fn sqlite() -> Opened {
    let folder = tempfile::tempdir().unwrap();
    let definitions = definitions();
    let path = folder.path().join("provost.db");
    let opened = sqlite::open(&path, None, definitions.clone(), Health::default());
    let opened = opened.await.unwrap();
    Opened {
        connections: opened.connections().0,
        definitions,
        database: TestDatabase::Sqlite(folder),
    }
}

pub async fn postgres() -> Opened {
    let url = tokio::task::spawn_blocking(cluster::new_database).await;
    postgres_at(url.unwrap()).await
}

pub async fn postgres_at(url: String) -> Opened {
    postgres_with(url, true).await
}

/// Without `listen`, the store works as with a pooler.
pub async fn postgres_with(url: String, listen: bool) -> Opened {
    let definitions = definitions();
    let settings = postgres::Settings {
        max_connections: 4,
        listen,
        migrate: true,
    };
    let opened = postgres::open(&url, settings, definitions.clone())
        .await
        .unwrap();
    Opened {
        connections: opened.connections,
        definitions,
        database: TestDatabase::Postgres(url),
    }
}

impl TestDatabase {
    /// Runs a statement on a connection of its own.
    pub async fn execute(&self, sql: &'static str) {
        match self {
            TestDatabase::Sqlite(folder) => {
                let path = folder.path().join("provost.db");
                let other = rusqlite::Connection::open(path).unwrap();
                other.execute_batch(sql).unwrap();
            }
            TestDatabase::Postgres(url) => {
                let mut other = sqlx::PgConnection::connect(url).await.unwrap();
                sqlx::query(sql).execute(&mut other).await.unwrap();
            }
        }
    }

    /// Returns the number that a query finds.
    pub async fn count(&self, sql: &'static str) -> i64 {
        match self {
            TestDatabase::Sqlite(folder) => {
                let path = folder.path().join("provost.db");
                let other = rusqlite::Connection::open(path).unwrap();
                other.query_row(sql, [], |row| row.get(0)).unwrap()
            }
            TestDatabase::Postgres(url) => {
                let mut other = sqlx::PgConnection::connect(url).await.unwrap();
                sqlx::query_scalar(sql).fetch_one(&mut other).await.unwrap()
            }
        }
    }
}

type TestSlots = Arc<Mutex<HashMap<AgentName, usize>>>;

/// A slot for a call. It becomes free again if the call is never made because its batch was decided again. Calls do not
/// end here, so a call that is made never frees its slot.
struct TestSlot {
    slots: TestSlots,
    agent: AgentName,
}

impl Drop for TestSlot {
    fn drop(&mut self) {
        if let Some(free) = self.slots.lock().get_mut(&self.agent) {
            *free += 1;
        }
    }
}

/// Records the calls of the writer, and has as many slots as the test gives it.
pub struct Notes {
    instance: InstanceId,
    actor: Actor,
    slots: TestSlots,
    /// True if a step that becomes ready finds others in its agent's queue.
    pub has_queued: AtomicBool,
    /// True if the steps that others have just enqueued are left to them.
    pub leaves_to_others: AtomicBool,
    pub dispatched: Mutex<Vec<Dispatch>>,
    pub pending: Mutex<Vec<AgentName>>,
    pub drained: Mutex<Vec<AgentName>>,
    pub dropped: Mutex<Vec<(StepRef, Attempt)>>,
    pub closed: Mutex<Vec<AgentName>>,
    /// The rule by which the queue of every agent is divided.
    lanes: Mutex<Option<Arc<LaneRule>>>,
}

impl LocalScheduler for Notes {
    fn instance(&self) -> &InstanceId {
        &self.instance
    }

    fn actor(&self) -> &Actor {
        &self.actor
    }

    fn try_take(&self, agent: &AgentName) -> Option<SlotPermit> {
        if self.has_queued.load(Ordering::Relaxed) || self.has_lanes() {
            return None;
        }
        self.take_for_queued(agent)
    }

    fn leaves_to_others(&self, _: &AgentName) -> bool {
        self.leaves_to_others.load(Ordering::Relaxed)
    }

    fn has_lanes(&self) -> bool {
        self.lanes.lock().is_some()
    }

    fn lane_rule(&self, _: &AgentName) -> Option<Arc<LaneRule>> {
        self.lanes.lock().clone()
    }

    fn free(&self, agent: &AgentName) -> usize {
        self.slots.lock().get(agent).copied().unwrap_or(0)
    }

    fn take_for_queued(&self, agent: &AgentName) -> Option<SlotPermit> {
        let mut slots = self.slots.lock();
        let free = slots.get_mut(agent)?;
        *free = free.checked_sub(1)?;
        Some(SlotPermit::for_call(TestSlot {
            slots: self.slots.clone(),
            agent: agent.clone(),
        }))
    }

    fn queue_drained(&self, agent: &AgentName) {
        self.drained.lock().push(agent.clone());
    }

    fn reply_closed(&self, agent: &AgentName) {
        self.closed.lock().push(agent.clone());
    }

    fn dispatch(&self, dispatches: Vec<Dispatch>) {
        let called = dispatches.into_iter().map(|dispatch| {
            let Dispatch {
                call,
                deadline,
                permit,
            } = dispatch;
            std::mem::forget(permit);
            Dispatch {
                call,
                deadline,
                permit: SlotPermit::for_call(()),
            }
        });
        self.dispatched.lock().extend(called);
    }

    fn pending(&self, agent: &AgentName, _: Timestamp, _: Timestamp) {
        self.pending.lock().push(agent.clone());
    }

    fn dropped(&self, step: StepRef, attempt: Attempt, _: bool) {
        self.dropped.lock().push((step, attempt));
    }
}

pub struct Harness {
    pub store: Store,
    pub notes: Arc<Notes>,
    pub database: TestDatabase,
}

/// The submission of a test. The other fields have values that do not matter.
pub struct New {
    pub steps: Value,
    pub key: Option<&'static str>,
    pub priority: i64,
    pub labels: &'static [(&'static str, &'static str)],
    pub complete_within: Option<Span>,
    pub policies: Policies,
    pub reply_to: Option<ReplyTo>,
}

impl Default for New {
    fn default() -> Self {
        Self {
            steps: json!([{ "name": "a", "agent": "x" }]),
            key: None,
            priority: 0,
            labels: &[],
            complete_within: None,
            policies: Policies::default(),
            reply_to: None,
        }
    }
}

impl Harness {
    pub async fn new(opened: Opened) -> Self {
        let instance = InstanceId::new("node-1");
        let notes = Arc::new(Notes {
            actor: Actor::scheduler("node-1"),
            instance,
            slots: TestSlots::default(),
            has_queued: AtomicBool::default(),
            leaves_to_others: AtomicBool::default(),
            dispatched: Mutex::default(),
            pending: Mutex::default(),
            drained: Mutex::default(),
            dropped: Mutex::default(),
            closed: Mutex::default(),
            lanes: Mutex::default(),
        });
        let settings = WriterSettings {
            cache: CacheLimits {
                tasks: NonZeroUsize::new(100).unwrap(),
                bytes: usize::MAX,
            },
            batch: 64,
            reply_addresses: Arc::default(),
            most_kept: usize::MAX,
            record: RecordLimits {
                task_bytes: MOST_RECORDED,
                saves_successes_later: true,
                ..RecordLimits::default()
            },
            sender: Arc::new(arc_swap::ArcSwap::from_pointee(Sender {
                public_url: None,
                webhooks: vec![AlertWebhook {
                    receiver: AlertWebhook::queue_of("ops"),
                    format: AlertFormat::Generic,
                }],
                console_url: None,
                ask_key: None,
                full: Default::default(),
            })),
            health: Health::default(),
        };
        let (store, writer) = Store::new(
            opened.connections,
            opened.definitions,
            notes.clone(),
            settings,
        );
        tokio::spawn(writer);
        Self {
            store,
            notes,
            database: opened.database,
        }
    }

    /// Returns the instance that claims here.
    pub fn instance(&self) -> &InstanceId {
        &self.notes.instance
    }

    /// Divides the queues of all agents by this key.
    pub fn divide(&self, by: &str) {
        let (by, weights) = (by.to_owned(), BTreeMap::new());
        let rule = LaneRule::of(&[], Some(&Fairness { by, weights }));
        *self.notes.lanes.lock() = rule.map(Arc::new);
    }

    /// Gives an agent slots for calls.
    pub fn slots(&self, agent: &str, slots: usize) {
        let mut all = self.notes.slots.lock();
        all.insert(AgentName::new(agent), slots);
    }

    pub fn details(&self, new: &New) -> Details {
        let source = Payload::from_value(&new.steps);
        let definition = parse_steps(&source, "/steps", &new.policies, &Limits::default(), &Known);
        let labels = new.labels.iter();
        Details {
            id: TaskId(Uuid::now_v7()),
            key: new.key.map(Into::into),
            workflow: None,
            definition: Arc::new(definition.unwrap_or_else(|faults| panic!("{faults:?}"))),
            input: Payload::from_value(&json!({ "text": "quote \" and \\ and ü", "n": 1.50 })),
            labels: labels
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect::<BTreeMap<_, _>>(),
            priority: Priority::new(new.priority).unwrap(),
            complete_within: new.complete_within,
            start_at: None,
            trace: Some(trace()),
            reply_to: new.reply_to.clone().map(Box::new),
            parent: None,
            key_prefix: None,
        }
    }

    pub async fn submit(&self, new: New) -> Arc<Task> {
        let accepted = self
            .store
            .submit(self.details(&new), None, None)
            .await
            .unwrap();
        now(accepted)
    }

    pub async fn apply(&self, task: TaskId, command: Command) -> Result<Arc<Task>, CommandError> {
        self.ask(task, command).await.map(now)
    }

    /// Applies a command as [`Self::apply`] does, for a command that may change nothing.
    pub async fn ask(&self, task: TaskId, command: Command) -> Result<Submitted, CommandError> {
        let apply = Apply::new(task, command, Actor::operator("test"));
        self.store.apply(apply).await
    }

    pub async fn reply(
        &self,
        task: TaskId,
        step: u16,
        attempt: u32,
        outcome: CallOutcome,
    ) -> Result<Arc<Task>, CommandError> {
        let command = Command::Reply {
            step: StepIndex(step),
            attempt: Attempt(attempt),
            outcome,
        };
        self.apply(task, command).await
    }

    /// Returns all calls that were dispatched since the last time.
    pub fn calls(&self) -> Vec<(TaskId, u16, u32)> {
        let dispatched = std::mem::take(&mut *self.notes.dispatched.lock());
        dispatched
            .into_iter()
            .map(|d| (d.call.step.task, d.call.step.step.0, d.call.attempt.0))
            .collect()
    }

    pub async fn read(&self, id: TaskId) -> Task {
        self.store.reader.task(id).await.unwrap().unwrap()
    }
}

pub fn now(submitted: Submitted) -> Arc<Task> {
    match submitted {
        Submitted::New(task) => task,
        Submitted::Replayed(id) => panic!("{id} was accepted before"),
    }
}

pub fn success(output: Value) -> CallOutcome {
    CallOutcome::Success(Payload::from_value(&output))
}

pub fn refusal() -> CallOutcome {
    CallOutcome::Failed(Fault {
        status: Some(402),
        body: Some("{\"error\":\"declined\"}".to_owned()),
        ..Fault::permanent("402 Payment Required", Timestamp::from_millis(0))
    })
}

/// Returns a trace all of whose parts must be read back.
pub fn trace() -> Trace {
    Trace {
        id: 42,
        flags: 0,
        state: Some("rojo=00f067aa0ba902b7".into()),
    }
}
