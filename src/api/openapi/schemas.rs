//! The schemas of what the domain serialises, for the OpenAPI document. The domain does not know of it, so a test
//! holds each schema against the value that it describes.
#![allow(dead_code, reason = "only shapes, for the OpenAPI document")]

use std::collections::BTreeMap;

use utoipa::ToSchema;
use uuid::Uuid;

use super::words::{
    FaultKindSchema, JsonSchema, LabelsSchema, OnConflictSchema, OutcomeSchema, ReplyEventSchema,
    StepKindSchema, StepStateSchema, TaskStateSchema,
};

use crate::api::definition::AskFieldBody;

/// A task with all its steps.
#[derive(ToSchema)]
#[schema(as = Task)]
pub struct TaskSchema {
    #[serde(flatten)]
    head: TaskHeadSchema,
    /// The input as it was submitted.
    #[schema(example = json!({"sku": "book-7", "quantity": 1}))]
    input: JsonSchema,
    /// What the definition makes of the outputs of the steps, if it has an `output`; null until the task is processed. Left out
    /// otherwise.
    #[schema(value_type = JsonSchema, required = false, example = json!({"charge": "ch_1"}))]
    output: Option<String>,
    /// Why `output` is null although the task is processed: it could not be evaluated.
    #[schema(example = "`steps.charge.output.id` cannot be rendered: `id` is missing")]
    output_error: Option<String>,
    /// The step of another task that this one is done for. Left out where there is none.
    parent: Option<ParentStepSchema>,
    /// The receiver of messages about the task; null if there is none.
    #[schema(required)]
    reply_to: Option<ReplyToSchema>,
    /// Who requested the undo of the task, and why; null if it is not being undone.
    #[schema(required)]
    undo: Option<UndoSchema>,
    /// In the order of the definition. When the task is undone, the undo steps follow after them.
    steps: Vec<StepSchema>,
}

/// The fields that every form of a task has.
#[derive(ToSchema)]
#[schema(as = TaskHead)]
pub struct TaskHeadSchema {
    /// A UUIDv7, assigned at submission.
    #[schema(format = Uuid)]
    id: String,
    /// The caller's own id.
    #[schema(required, example = "order-1001")]
    key: Option<String>,
    /// The registered workflow, or null if the task has inline steps.
    #[schema(required, example = "order")]
    workflow: Option<String>,
    /// The workflow version that this task uses.
    #[schema(required, example = 3)]
    workflow_version: Option<u32>,
    #[schema(example = "processing")]
    state: TaskStateSchema,
    /// -100 to 100; tasks with a higher priority are claimed first.
    #[schema(example = 0)]
    priority: i64,
    labels: LabelsSchema,
    #[schema(format = DateTime)]
    created_at: String,
    /// When it begins; null once it has begun.
    #[schema(required, format = DateTime)]
    start_at: Option<String>,
    /// When the task must be finished; null without a limit.
    #[schema(required, format = DateTime)]
    complete_by: Option<String>,
    /// When it will be complete by what is known, if that is too late. Left out otherwise.
    at_risk: Option<AtRiskSchema>,
    /// When it was processed, undone or cancelled.
    #[schema(required, format = DateTime)]
    ended_at: Option<String>,
    /// Counts the saved changes; the ETag is this number in quotes.
    #[schema(example = 7)]
    version: u64,
    /// In state error: the first fault that an operator has to resolve.
    #[schema(required)]
    error: Option<FaultSchema>,
}

/// A task that will be late by what is known.
#[derive(ToSchema)]
#[schema(as = AtRisk)]
pub struct AtRiskSchema {
    /// When it will be complete if all goes on as it does; null if an operator must resume the agent first.
    #[schema(required, format = DateTime)]
    predicted_end: Option<String>,
    /// The agent that most of the time goes to.
    #[schema(example = "payments")]
    agent: String,
    /// Since when it is known.
    #[schema(format = DateTime)]
    since: String,
}

/// Why a task is undone.
#[derive(ToSchema)]
#[schema(as = TaskUndo)]
pub struct UndoSchema {
    /// When the undo started.
    #[schema(format = DateTime)]
    at: String,
    /// Who requested it: a scheduler or supervisor because of a step's policy, or an operator.
    #[schema(example = "operator:alice")]
    by: String,
    /// The reason that the operator gave.
    #[schema(required, example = "the customer withdrew")]
    reason: Option<String>,
    /// The fault that made a policy request it.
    #[schema(required)]
    error: Option<FaultSchema>,
    /// Steps that took effect, or may have, and have no `undo`: their effects remain.
    #[schema(example = json!(["notify"]))]
    passed_over: Vec<String>,
}

/// One step of a task.
#[derive(ToSchema)]
#[schema(as = Step)]
pub struct StepSchema {
    #[schema(example = "charge")]
    name: String,
    #[schema(example = "call")]
    kind: StepKindSchema,
    /// The agent, or the origin of the step's URL; null if the step calls no service.
    #[schema(required, example = "payments")]
    agent: Option<String>,
    /// For an undo step, `processed` means that the step it belongs to is undone.
    #[schema(example = "processed")]
    state: StepStateSchema,
    /// The step that this one undoes.
    #[schema(example = "charge")]
    undoes: Option<String>,
    /// The steps that this one follows.
    #[schema(example = json!(["reserve"]))]
    after: Vec<String>,
    /// The number of the last claim, and so of its call; 0 before the first.
    #[schema(example = 2)]
    attempt: u32,
    /// How often it did not succeed within `complete_within`, or lost the instance that ran it.
    #[schema(example = 1)]
    failure_count: u32,
    /// After more failures than this, `on_exhausted` applies.
    #[schema(example = 3)]
    max_failures: u32,
    /// `unknown`: an attempt expired, broke off, was lost or dropped, and may have taken effect.
    #[schema(required, example = "unknown")]
    outcome: Option<OutcomeSchema>,
    /// The `Idempotency-Key` of every attempt; null if the step calls no service.
    #[schema(required, example = "019c7a5e-0000-7000-8000-000000000000:charge")]
    idempotency_key: Option<String>,
    /// The instance that runs it now.
    #[schema(required)]
    locked_by: Option<String>,
    /// When the current attempt must be finished; of a wait: its end; of a signal: until when it is awaited.
    #[schema(required, format = DateTime)]
    complete_by: Option<String>,
    /// While the service works on a promised reply: what is known of it.
    #[schema(required)]
    awaited_reply: Option<AwaitedReplySchema>,
    /// Pending: the earliest time of the next claim. After a transient fault, `last_fault` has the reason for the
    /// wait.
    #[schema(required, format = DateTime)]
    ready_at: Option<String>,
    /// The time of the first claim.
    #[schema(required, format = DateTime)]
    started_at: Option<String>,
    #[schema(required, format = DateTime)]
    ended_at: Option<String>,
    /// Why it is not running, or what it waits for; null while it runs and after it has ended.
    #[schema(required)]
    blocked_by: Option<BlockedSchema>,
    /// What people are asked, or were asked last. Only of a step that asks.
    ask: Option<StepAskSchema>,
    /// The task of its last attempt. Left out where the step has none.
    child: Option<ChildTaskSchema>,
    /// Of an item of a list: its value.
    #[schema(value_type = JsonSchema, required = false, example = json!({"sku": "A-1"}))]
    item: Option<String>,
    /// If it is run for each item of a list, or repeated: what became of the items or the iterations.
    /// `GET /v1/tasks/{id}/steps?of=` lists them.
    items: Option<ItemsSchema>,
    /// The output from the remote service, or of the step's task; during a rerun, the previous output. If it is run for each item of a list, the
    /// list of their outputs; null if that takes more than 1 MiB. If it is repeated, what its `repeat` says.
    #[schema(required, example = json!({"id": "ch_1"}))]
    output: JsonSchema,
    /// In state error: what went wrong.
    #[schema(required)]
    error: Option<FaultSchema>,
    /// The last transient fault, kept even if a later attempt succeeded.
    #[schema(required)]
    last_fault: Option<FaultSchema>,
}

/// The step of another task that a task is done for.
#[derive(ToSchema)]
#[schema(as = ParentStep)]
pub struct ParentStepSchema {
    #[schema(format = Uuid)]
    task: String,
    #[schema(example = "ship")]
    step: String,
    /// Of the step: each attempt has a task of its own.
    #[schema(example = 1)]
    attempt: u32,
}

/// The task of a step.
#[derive(ToSchema)]
#[schema(as = ChildTask)]
pub struct ChildTaskSchema {
    #[schema(format = Uuid)]
    id: String,
    /// How it ended, or `error` while it needs an operator; null while it runs.
    #[schema(required, example = "processed")]
    state: Option<TaskStateSchema>,
}

/// What became of the items of a list, or of the iterations of a step that is repeated.
#[derive(ToSchema)]
#[schema(as = Items)]
pub struct ItemsSchema {
    /// How many there are; null until the list is known, or the first iteration begins.
    #[schema(required, example = 50)]
    total: Option<u32>,
    /// Of iterations: how many there may be. Left out of items of a list.
    #[schema(example = 20)]
    at_most: Option<u32>,
    /// Of iterations: when the next one begins. Left out while one runs.
    #[schema(format = DateTime)]
    next_at: Option<String>,
    /// How many are in each state; states without items are left out.
    #[schema(example = json!({"processed": 47, "error": 3}))]
    states: BTreeMap<String, u32>,
    /// How many of what undoes them are in each state, once the task is to be undone.
    #[schema(example = json!({"processed": 47}))]
    undo_states: Option<BTreeMap<String, u32>>,
    /// The most items that run at once.
    #[schema(example = 10)]
    max_parallel: u32,
    /// The first ten items in error or, once the task is to be undone, whose undo is.
    errors: Vec<ItemErrorSchema>,
}

/// An item in error.
#[derive(ToSchema)]
#[schema(as = ItemError)]
pub struct ItemErrorSchema {
    #[schema(example = "import[17]")]
    step: String,
    #[schema(example = "the service responded 422 Unprocessable Entity")]
    message: String,
}

/// A reply that the service has promised for later.
#[derive(ToSchema)]
#[schema(as = AwaitedReply)]
pub struct AwaitedReplySchema {
    /// When the service promised it, or the worker fetched the step.
    #[schema(format = DateTime)]
    since: String,
    /// The worker that fetched the step; null if the service was called.
    #[schema(required, example = "w-1")]
    worker: Option<String>,
    /// The last heartbeat that was recorded; null before the first.
    #[schema(required, format = DateTime)]
    heartbeat_at: Option<String>,
    /// When silence becomes a failure; null if the step has no `heartbeat_within`.
    #[schema(required, format = DateTime)]
    silent_at: Option<String>,
    /// 0 to 1, as the service last reported it.
    #[schema(required, example = 0.4)]
    progress: Option<f64>,
    /// What the service last reported that it is doing.
    #[schema(required, example = "4 of 10 pages")]
    message: Option<String>,
    #[schema(required, example = json!({"page": 4}))]
    details: JsonSchema,
    /// The next poll; null if the service sends its reply by itself.
    #[schema(required)]
    poll: Option<PollSchema>,
}

/// The next poll for a promised reply.
#[derive(ToSchema)]
#[schema(as = NextPoll)]
pub struct PollSchema {
    /// Where the service said that the reply will be; null if the step's own request is repeated. `***` replaces its
    /// query.
    #[schema(required, example = "https://print.example/operations/7")]
    url: Option<String>,
    #[schema(format = DateTime)]
    next_at: String,
}

/// The receiver of messages about the task.
#[derive(ToSchema)]
#[schema(as = ReplyTo)]
pub struct ReplyToSchema {
    /// A URL; alternatively a `receiver` or a `queue`. `***` replaces its query.
    #[schema(example = "http://127.0.0.1:9000/replies")]
    url: Option<String>,
    /// A configured receiver.
    #[schema(example = "shop")]
    receiver: Option<String>,
    /// A queue of the message broker that is configured.
    #[schema(example = "shop.replies", max_length = 255)]
    queue: Option<String>,
    /// For messages to a queue: the correlation id that they have.
    #[schema(example = "order-1001", max_length = 255)]
    correlation_id: Option<String>,
    /// Default: `task.processed`, `task.error`, `task.undone`, `task.cancelled` and `step.asked`.
    #[schema(min_items = 1, example = json!(["task.processed", "task.error"]))]
    events: Option<Vec<ReplyEventSchema>>,
}

/// What went wrong.
#[derive(ToSchema)]
#[schema(as = Fault)]
pub struct FaultSchema {
    #[schema(example = "permanent")]
    kind: FaultKindSchema,
    #[schema(example = "the service refused: 402 Payment Required")]
    message: String,
    /// The HTTP status of the remote service, if it responded.
    #[schema(required, example = 402)]
    status: Option<u16>,
    /// The beginning of its response, as text.
    #[schema(required, example = "{\"error\":\"card declined\"}")]
    body: Option<String>,
    #[schema(format = DateTime)]
    at: String,
    /// `unknown`: the step may have taken effect all the same. Absent if it has not.
    #[schema(example = "unknown")]
    outcome: Option<OutcomeSchema>,
    /// On a task: the step that failed.
    #[schema(example = "charge")]
    step: Option<String>,
    /// On a step: its policy is undo, and the undo begins when the task, which an operator has paused, is resumed. Absent otherwise.
    #[schema(example = true)]
    undo_on_resume: Option<bool>,
}

/// A key for which a task waits.
#[derive(ToSchema)]
#[schema(as = AwaitedKey)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct AwaitedKeyBody {
    #[schema(example = "{{ task.labels.customer }}")]
    by: String,
    #[schema(example = "acme")]
    key: String,
    #[schema(example = 1)]
    max_running: u32,
    on_conflict: OnConflictSchema,
}

/// The limit of calls in flight that an adaptive agent has now.
#[derive(ToSchema)]
#[schema(as = AdaptedLimit)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct AdaptedLimitSchema {
    /// The most calls that the instance which returned this response may have in flight now.
    #[schema(example = 6)]
    limit: u32,
    /// How far it may grow.
    #[schema(example = 64)]
    most: u32,
    /// Why it fell last; null if it has not, or has come back since.
    #[schema(
        required,
        example = "fell from 9 to 6: 2 of 12 calls were refused or broke off; the last one: the service responded 503 Service Unavailable"
    )]
    message: Option<String>,
}

/// The limit of calls in flight while endpoints of an agent have just recovered.
#[derive(ToSchema)]
#[schema(as = SlowStartLimit)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct SlowStartLimitSchema {
    /// The most calls that the instance which returned this response may have in flight now.
    #[schema(example = 6)]
    limit: u32,
    /// How far it grows while calls succeed.
    #[schema(example = 64)]
    most: u32,
}

/// `blocked_by` of a step.
#[derive(ToSchema)]
#[schema(as = Blocked)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum BlockedSchema {
    /// It follows steps that are not done. What undoes a step follows the undos of the steps after it.
    #[schema(title = "BlockedBySteps")]
    Steps {
        #[schema(example = json!(["reserve"]))]
        steps: Vec<String>,
        /// How many more there are: of the items of a list the first ten are named. Absent where all are named.
        #[schema(example = 20)]
        more: Option<u32>,
    },
    /// The task begins then.
    #[schema(title = "BlockedByStart")]
    Start {
        #[schema(format = DateTime)]
        until: String,
    },
    /// It will be retried later.
    #[schema(title = "BlockedByTime")]
    Time {
        #[schema(format = DateTime)]
        until: String,
    },
    /// It is a wait, and its time has not come.
    #[schema(title = "BlockedByWait")]
    Wait {
        #[schema(format = DateTime)]
        until: String,
    },
    /// Its signal has not come. It is awaited until then.
    #[schema(title = "BlockedBySignal")]
    Signal {
        #[schema(format = DateTime)]
        until: String,
    },
    /// It waits for its task to end, or to be undone.
    #[schema(title = "BlockedByChild")]
    Child {
        /// Absent until it is made.
        #[schema(format = Uuid)]
        task: Option<String>,
        /// `error`: the task needs an operator. Null otherwise.
        #[schema(required, example = "error")]
        state: Option<TaskStateSchema>,
    },
    /// It is run for each item of a list, or repeated, and the items have not all ended.
    #[schema(title = "BlockedByItems")]
    Items {
        /// How many have not begun.
        #[schema(example = 30)]
        waiting: u32,
        /// How many run, or will as soon as there is a free slot.
        #[schema(example = 10)]
        running: u32,
        /// How many need an operator.
        #[schema(example = 1)]
        error: u32,
    },
    /// It is repeated, and the next iteration begins then.
    #[schema(title = "BlockedByRepeat")]
    Repeat {
        #[schema(format = DateTime)]
        until: String,
        /// How many iterations have begun.
        #[schema(example = 3)]
        iterations: u32,
        #[schema(example = 20)]
        at_most: u32,
    },
    /// It is an item of a list, and so many others run as may at once.
    #[schema(title = "BlockedByMaxParallel")]
    MaxParallel {
        #[schema(example = 10)]
        max_parallel: u32,
    },
    /// Its agent has no free slot: the step is in the agent's queue.
    #[schema(title = "BlockedByCapacity")]
    Capacity {
        #[schema(example = "payments")]
        agent: String,
        /// How many steps are ahead of this one in the agent's queue. Counted only when a single task is read, for
        /// the first four agents in whose queues the task has steps; null everywhere else.
        #[schema(required, example = 12)]
        ahead: Option<u64>,
        /// Whether the count of `ahead` stopped at a thousand steps of other tasks: there may be more.
        #[schema(example = false)]
        ahead_is_at_least: bool,
        /// Only if its agent is `adaptive`, and its limit is lower than the most.
        adaptive: Option<AdaptedLimitSchema>,
        /// Only while endpoints of its agent have just recovered.
        slow_start: Option<SlowStartLimitSchema>,
    },
    /// It is in the queue of an agent with the mode `pull`, and no worker has fetched it yet.
    #[schema(title = "BlockedByWorker")]
    Worker {
        #[schema(example = "video")]
        agent: String,
        /// As for `capacity`.
        #[schema(required, example = 12)]
        ahead: Option<u64>,
        /// As for `capacity`.
        #[schema(example = false)]
        ahead_is_at_least: bool,
    },
    /// Its agent has `max_open`, and so many of its replies are awaited: the step is in the agent's queue.
    #[schema(title = "BlockedByOpenReplies")]
    OpenReplies {
        #[schema(example = "payments")]
        agent: String,
        #[schema(example = 1000)]
        max_open: u32,
    },
    /// Its agent has a `rate_limit`, and no further call may begin now: the step is in the agent's queue.
    #[schema(title = "BlockedByRateLimit")]
    RateLimit {
        #[schema(example = "payments")]
        agent: String,
        #[schema(example = "50/s")]
        rate: String,
    },
    /// So many steps of its key run, or began of late, as the `limits` of its agent or its workflow allow: the step is in the
    /// agent's queue.
    #[schema(title = "BlockedByKeyLimit")]
    KeyLimit {
        #[schema(example = "payments")]
        agent: String,
        /// The workflow whose limit it is; null: the limit is the agent's.
        #[schema(required, example = "order")]
        workflow: Option<String>,
        /// Of the limit that is reached, which is named by its template, `by`.
        #[schema(example = "acme")]
        key: String,
        #[schema(example = "{{ task.labels.customer }}")]
        by: String,
        #[schema(required, example = 5)]
        max_in_flight: Option<u32>,
        #[schema(required, example = "10/s")]
        rate: Option<String>,
    },
    /// The service of its agent asked to be left alone until then, by `Retry-After`: the step is in the agent's queue.
    #[schema(title = "BlockedByThrottled")]
    Throttled {
        #[schema(example = "payments")]
        agent: String,
        #[schema(format = DateTime)]
        until: String,
        #[schema(example = "the service responded 429 Too Many Requests")]
        message: String,
    },
    /// An operator has paused its agent: the step is in the agent's queue.
    #[schema(title = "BlockedByAgentPaused")]
    AgentPaused {
        #[schema(example = "payments")]
        agent: String,
        /// Null: until an operator resumes the agent.
        #[schema(required, format = DateTime)]
        until: Option<String>,
        /// The reason that the operator gave.
        #[schema(required, example = "maintenance of the database")]
        message: Option<String>,
    },
    /// The instance that returned this response lacks a secret that its agent names: the step is in the agent's queue, and
    /// an instance that has the secret takes it.
    #[schema(title = "BlockedBySecret")]
    Secret {
        #[schema(example = "payments")]
        agent: String,
        #[schema(example = "the secret `payments-token` cannot be used: its file does not exist")]
        message: String,
    },
    /// No endpoint of its agent takes calls, and breakers are open or half-open: the step is in the agent's queue.
    #[schema(title = "BlockedByBreaker")]
    Breaker {
        #[schema(example = "payments")]
        agent: String,
        /// When a few calls are made again. Null while some are made, and if an operator opened the breaker.
        #[schema(required, format = DateTime)]
        until: Option<String>,
        #[schema(example = "20 of 24 calls in 30s failed")]
        message: String,
    },
    /// The checks of all endpoints of its agent fail: the step is in the agent's queue.
    #[schema(title = "BlockedByUnhealthy")]
    Unhealthy {
        #[schema(example = "payments")]
        agent: String,
        /// When one of them is checked again, about.
        #[schema(required, format = DateTime)]
        until: Option<String>,
        #[schema(
            example = "3 checks in a row failed; the last one: GET /health responded 503 Service Unavailable"
        )]
        message: String,
    },
    /// The instance that returned this response is held: it claims nothing until `POST /v1/hold/release`.
    #[schema(title = "BlockedByHeld")]
    Held,
    /// Its agent is no longer registered.
    #[schema(title = "BlockedByAgent")]
    Agent {
        #[schema(example = "payments")]
        agent: String,
    },
    /// It undoes a step whose call is being dropped: `instance` has yet to confirm that the call has ended. If the
    /// instance is lost, its lease ends and the step is recovered.
    #[schema(title = "BlockedByDrop")]
    Drop {
        #[schema(example = "charge")]
        step: String,
        #[schema(example = "node-1")]
        instance: String,
    },
    /// The task has not begun: so many tasks of one of its keys run as the `limits` of its workflow allow, or older ones
    /// wait.
    #[schema(title = "BlockedByTaskLimit")]
    TaskLimit {
        #[schema(max_items = 4)]
        keys: Vec<AwaitedKeyBody>,
    },
    /// The task is paused until an operator resumes it.
    #[schema(title = "BlockedByPaused")]
    Paused,
    /// It is in error until an operator retries, skips or resolves it.
    #[schema(title = "BlockedByOperator")]
    Operator,
}

/// An alert as messages contain it.
#[derive(ToSchema)]
#[schema(as = AlertNotice)]
pub struct AlertNoticeSchema {
    id: Uuid,
    /// The same kinds as in the list of alerts, and those about the store itself: `store.` and the fault.
    #[schema(example = "task.error")]
    kind: String,
    #[schema(example = "the service refused: 402 Payment Required")]
    message: String,
    /// `open` or `closed`.
    #[schema(example = "open")]
    state: &'static str,
    #[schema(format = DateTime)]
    raised_at: String,
    #[schema(required, format = DateTime)]
    closed_at: Option<String>,
    /// Only of an alert about a task.
    #[schema(required)]
    task: Option<Uuid>,
    /// The task's key.
    #[schema(required, example = "order-1001")]
    key: Option<String>,
    /// The task's workflow, if it has one.
    #[schema(required, example = "order")]
    workflow: Option<String>,
    #[schema(required, example = "charge")]
    step: Option<String>,
    /// Only of an alert about messages that are not delivered.
    #[schema(required, example = "shop")]
    receiver: Option<String>,
    /// The agent at which steps failed.
    #[schema(required, example = "payments")]
    agent: Option<String>,
    /// What failed steps have in common; `task` and `step` are the first of them.
    #[schema(required, example = "agent payments: 402 Payment Required")]
    cause: Option<String>,
    /// How many steps need attention for this cause; of a closed alert, how many did.
    #[schema(example = 1)]
    count: u64,
}

/// The data of a message to a submitter.
#[derive(ToSchema)]
#[schema(as = ReplyData)]
pub struct ReplyDataSchema {
    /// The caller's own id.
    #[schema(required, example = "order-1001")]
    key: Option<String>,
    /// The step that the event is about.
    #[schema(example = "charge")]
    step: Option<String>,
    /// Of `step.asked`: what people are asked.
    ask: Option<AskNoticeSchema>,
    /// The task when the event was saved, without `blocked_by`. An event of a step has the task with this step alone, and with null
    /// as `input`.
    task: TaskSchema,
    /// The fields of the task that are left out, because it takes more than 4 MiB: they are null, empty or absent.
    #[schema(example = json!(["steps.output", "steps.item", "steps.awaited_reply"]))]
    left_out: Option<Vec<String>>,
}

/// What people are asked, with a link for each of them.
#[derive(ToSchema)]
#[schema(as = AskNotice)]
pub struct AskNoticeSchema {
    #[schema(example = "Approve the refund of 120 EUR?")]
    title: String,
    #[schema(required)]
    text: Option<String>,
    #[schema(example = json!(["approve", "reject"]))]
    choices: Vec<String>,
    fields: Vec<AskFieldBody>,
    /// So many people must choose the first choice.
    #[schema(example = 1)]
    approvals: u32,
    /// Until then the links decide.
    #[schema(format = DateTime)]
    until: String,
    people: Vec<AskLinkSchema>,
}

/// One person who is asked.
#[derive(ToSchema)]
#[schema(as = AskLink)]
pub struct AskLinkSchema {
    #[schema(example = "ops@example.com")]
    person: String,
    /// The page on which this person decides: a credential of this person alone. Null without a public URL.
    #[schema(
        required,
        example = "https://provost.example/v1/asks/AZc0bXx_cAmAAAAAAAAAAQAAAAAAAQAADHWYLmrRpLrDRtn1Xhh3Zw"
    )]
    link: Option<String>,
}

/// The data of a message to an alert webhook about a question.
#[derive(ToSchema)]
#[schema(as = AskData)]
pub struct AskDataSchema {
    #[schema(format = Uuid)]
    task: String,
    /// The task's key.
    #[schema(required, example = "order-1001")]
    key: Option<String>,
    #[schema(required, example = "order")]
    workflow: Option<String>,
    #[schema(example = "approval")]
    step: String,
    ask: AskNoticeSchema,
}

/// What people are asked, or were asked last, and what they have decided.
#[derive(ToSchema)]
#[schema(as = StepAsk)]
pub struct StepAskSchema {
    #[schema(example = "Approve the refund of 120 EUR?")]
    title: String,
    #[schema(required)]
    text: Option<String>,
    /// So many people must choose the first choice.
    #[schema(example = 1)]
    approvals: u32,
    people: Vec<StepPersonSchema>,
}

/// One person who is asked.
#[derive(ToSchema)]
#[schema(as = StepPerson)]
pub struct StepPersonSchema {
    #[schema(example = "ops@example.com")]
    person: String,
    /// Null until this person has decided.
    #[schema(required, example = "approve")]
    choice: Option<String>,
    #[schema(required, format = DateTime)]
    at: Option<String>,
}

/// The data of an alert message.
#[derive(ToSchema)]
#[schema(as = AlertData)]
pub struct AlertDataSchema {
    alert: AlertNoticeSchema,
    /// A link to the subject of the alert, if a public URL is configured.
    #[schema(
        format = "uri-reference",
        example = "https://provost.example/v1/tasks/0197a2b4-5f00-7b11-8c22-0d9e8f7a6b5c"
    )]
    link: String,
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, BTreeSet},
        sync::Arc,
    };

    use serde::Serialize;
    use serde_json::{Value, json};
    use utoipa::PartialSchema;

    use super::*;
    use crate::domain;
    use crate::domain::{
        Accepted, Actor, AdaptedLimit, AgentName, AlertNotice, AtRisk, AwaitedKey, Blocked,
        CallOutcome, Claimant, Command, Details, Draft, Effect, Fault, FaultKind, InstanceId,
        Limits, OnConflict, Payload, Policies, Priority, ReplyTo, SlowStartLimit, StepIndex,
        StepName, StepView, Task, TaskId, TaskView, Timestamp, parse_steps,
    };

    const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    /// Gathers the properties of an object's schema and those that it requires, from all its parts.
    fn members(schema: &Value, all: &mut BTreeSet<String>, required: &mut BTreeSet<String>) {
        for part in schema["allOf"].as_array().into_iter().flatten() {
            members(part, all, required);
        }
        if schema["$ref"] == "#/components/schemas/TaskHead" {
            let head = serde_json::to_value(TaskHeadSchema::schema()).unwrap();
            members(&head, all, required);
        }
        let properties = schema["properties"].as_object();
        all.extend(
            properties
                .into_iter()
                .flatten()
                .map(|(name, _)| name.clone()),
        );
        let names = schema["required"].as_array().into_iter().flatten();
        required.extend(names.filter_map(|name| name.as_str().map(str::to_owned)));
    }

    /// Every member of the values is in the schema, the required ones are in each value, and no member of the
    /// schema is in none of them.
    fn describes<S: PartialSchema>(values: &[Value]) {
        let schema = serde_json::to_value(S::schema()).unwrap();
        matches_schema(&schema, values);
    }

    fn matches_schema(schema: &Value, values: &[Value]) {
        let (mut all, mut required) = (BTreeSet::new(), BTreeSet::new());
        members(schema, &mut all, &mut required);
        let mut seen = BTreeSet::new();
        for value in values {
            let names: BTreeSet<_> = value.as_object().unwrap().keys().cloned().collect();
            assert!(required.is_subset(&names), "{required:?} of {names:?}");
            seen.extend(names);
        }
        assert_eq!(seen, all);
    }

    fn json_of(value: &impl Serialize) -> Value {
        serde_json::to_value(value).unwrap()
    }

    fn fault() -> Fault {
        Fault {
            kind: FaultKind::Permanent,
            message: "the service refused".to_owned(),
            status: Some(402),
            body: Some("no".to_owned()),
            at: NOW,
            effect: Effect::Unknown,
            step: Some(StepName::new("charge")),
            undo_on_resume: true,
        }
    }

    /// A task whose step is done and is being undone.
    fn claimed() -> (Draft, Actor) {
        let steps = json!([
            { "name": "charge", "agent": "pay", "undo": { "request": { "path": "/undo" } } },
            { "name": "ship", "agent": "pay" },
        ]);
        let steps = Payload::parse(steps.to_string()).unwrap();
        let definition = parse_steps(
            &steps,
            "",
            &Policies::default(),
            &Limits::default(),
            &Accepted,
        );
        let details = Details {
            id: TaskId(Uuid::from_u128(7)),
            key: None,
            workflow: None,
            definition: Arc::new(definition.unwrap()),
            input: Payload::null(),
            labels: BTreeMap::new(),
            priority: Priority::default(),
            complete_within: None,
            start_at: None,
            trace: None,
            reply_to: Some(Box::new(ReplyTo {
                url: Some("http://shop:9000/r".into()),
                events: [Arc::from("task.processed")].into(),
                ..ReplyTo::default()
            })),
            parent: None,
            key_prefix: None,
        };
        let by = Actor::operator("test");
        let mut draft = Draft::submit(Arc::new(details), NOW);
        let claim = Command::Claim {
            step: StepIndex(0),
            by: Claimant::Instance(InstanceId::new("node-1")),
        };
        draft.apply(claim, &by, NOW).unwrap();
        (draft, by)
    }

    /// Whose service has promised to reply later.
    fn deferred() -> Task {
        let (mut draft, by) = claimed();
        let promise = Command::Reply {
            step: StepIndex(0),
            attempt: draft.task.step(StepIndex(0)).attempt,
            outcome: CallOutcome::Deferred,
        };
        draft.apply(promise, &by, NOW).unwrap();
        draft.task
    }

    /// Which is undone, and whose items could not begin.
    fn with_items() -> Task {
        grouped(&json!([{ "name": "all", "for_each": ["x"], "wait": { "for": "{{ item }}" } }]))
    }

    /// Whose first iteration has ended, and whose next one begins later.
    fn repeated() -> Task {
        let repeat = json!({ "until": "index == 1", "at_most": 2, "every": "1h" });
        grouped(&json!([{ "name": "all", "repeat": repeat, "wait": { "for": "0s" } }]))
    }

    fn grouped(steps: &Value) -> Task {
        let steps = Payload::parse(steps.to_string()).unwrap();
        let parsed = parse_steps(
            &steps,
            "",
            &Policies::default(),
            &Limits::default(),
            &Accepted,
        );
        let (draft, _) = claimed();
        let details = &draft.task.details;
        let details = Details {
            id: details.id,
            key: None,
            workflow: None,
            definition: Arc::new(parsed.unwrap()),
            input: Payload::null(),
            labels: BTreeMap::new(),
            priority: Priority::default(),
            complete_within: None,
            start_at: None,
            trace: None,
            reply_to: details.reply_to.clone(),
            parent: None,
            key_prefix: None,
        };
        Draft::submit(Arc::new(details), NOW).task
    }

    /// Whose output cannot be evaluated.
    fn processed() -> Task {
        let steps = json!([{ "name": "pause", "wait": { "for": "0s" } }]);
        let steps = Payload::parse(steps.to_string()).unwrap();
        let policies = Policies::parse(r#"{"output":"{{ steps.pause.output.id }}"}"#).unwrap();
        let parsed = parse_steps(&steps, "", &policies, &Limits::default(), &Accepted);
        let (draft, _) = claimed();
        let details = &draft.task.details;
        let details = Details {
            id: details.id,
            key: None,
            workflow: None,
            definition: Arc::new(parsed.unwrap()),
            input: Payload::null(),
            labels: BTreeMap::new(),
            priority: Priority::default(),
            complete_within: None,
            start_at: None,
            trace: None,
            reply_to: details.reply_to.clone(),
            parent: Some(Box::new(domain::ParentStep {
                task: TaskId(Uuid::from_u128(8)),
                step: StepName::new("ship"),
                index: StepIndex(0),
                attempt: domain::Attempt(1),
                root: TaskId(Uuid::from_u128(8)),
                depth: 1,
            })),
            key_prefix: None,
        };
        Draft::submit(Arc::new(details), NOW).task
    }

    /// Whose first step asks a person.
    fn asking() -> Task {
        let ask = json!({ "title": "Approve?", "text": "It is 120 EUR", "of": ["ops"],
            "fields": [{ "name": "a", "label": "A", "type": "choice", "choices": ["x"] }] });
        let steps = json!([{ "name": "approval", "signal": { "within": "1d", "ask": ask } }]);
        let steps = Payload::parse(steps.to_string()).unwrap();
        let (limits, policies) = (Limits::default(), Policies::default());
        let parsed = parse_steps(&steps, "", &policies, &limits, &Accepted);
        let (draft, _) = claimed();
        let details = &draft.task.details;
        let details = Details {
            id: details.id,
            key: None,
            workflow: None,
            definition: Arc::new(parsed.unwrap()),
            input: Payload::null(),
            labels: BTreeMap::new(),
            priority: Priority::default(),
            complete_within: None,
            start_at: None,
            trace: None,
            reply_to: Some(Box::new(ReplyTo {
                url: Some("http://shop:9000/r".into()),
                events: [Arc::from("step.asked")].into(),
                ..ReplyTo::default()
            })),
            parent: None,
            key_prefix: None,
        };
        Draft::submit(Arc::new(details), NOW).task
    }

    #[test]
    fn what_people_are_asked_is_as_its_schema_says() {
        let task = asking();
        let sender = domain::Sender {
            public_url: Some("https://p.example".to_owned()),
            console_url: None,
            webhooks: vec![domain::AlertWebhook {
                receiver: domain::AlertWebhook::queue_of("ops"),
                format: domain::AlertFormat::Generic,
            }],
            ask_key: domain::ReplyKey::new(b"0123456789abcdef"),
            full: Default::default(),
        };
        let opened = [domain::AskChange::Open(StepIndex(0))];
        let sent = sender.asks(&task, &opened, NOW, domain::LinkForm::Incomplete, || {
            Uuid::from_u128(3)
        });
        let sent: Value = serde_json::from_str(&sent[0].body).unwrap();
        assert_eq!(sent["type"], domain::ASK_EVENT);
        describes::<AskDataSchema>(&[sent["data"].clone()]);
        let ask = &sent["data"]["ask"];
        describes::<AskNoticeSchema>(std::slice::from_ref(ask));
        describes::<AskLinkSchema>(ask["people"].as_array().unwrap());
        describes::<AskFieldBody>(ask["fields"].as_array().unwrap());
    }

    /// Whose step has a task of its own.
    fn nested() -> Task {
        let steps = json!([{ "name": "ship", "task": { "workflow": "ship" } }]);
        let steps = Payload::parse(steps.to_string()).unwrap();
        let (policies, limits) = (Policies::default(), Limits::default());
        let parsed = parse_steps(&steps, "", &policies, &limits, &Accepted);
        let child = processed().details;
        let details = Details {
            id: TaskId(Uuid::from_u128(8)),
            key: None,
            workflow: None,
            definition: Arc::new(parsed.unwrap()),
            input: Payload::null(),
            labels: BTreeMap::new(),
            priority: Priority::default(),
            complete_within: None,
            start_at: None,
            trace: None,
            reply_to: None,
            parent: None,
            key_prefix: None,
        };
        let mut draft = Draft::submit(Arc::new(details), NOW);
        let begin = Command::BeginChild {
            step: StepIndex(0),
            attempt: domain::Attempt(1),
            child,
        };
        draft
            .apply(begin, &Actor::scheduler("node-1"), NOW)
            .map_or_else(|refusal| panic!("{refusal}"), |_| ());
        draft.task
    }

    fn task() -> Task {
        let (mut draft, by) = claimed();
        let reply = Command::Reply {
            step: StepIndex(0),
            attempt: draft.task.step(StepIndex(0)).attempt,
            outcome: CallOutcome::Success(Payload::null()),
        };
        draft.apply(reply, &by, NOW).unwrap();
        draft
            .apply(Command::Undo { reason: None }, &by, NOW)
            .map_or_else(|refusal| panic!("{refusal}"), |_| ());
        draft.task
    }

    #[test]
    fn tasks_are_as_their_schemas_say() {
        let task = task();
        let mut view = TaskView::new(&task, NOW);
        view.set_at_risk(Some(AtRisk {
            predicted_end: Some(NOW),
            agent: AgentName::new("payments"),
            since: NOW,
        }));
        let view = json_of(&view);
        let processed = json_of(&TaskView::new(&processed(), NOW));
        let asking = json_of(&TaskView::new(&asking(), NOW));
        describes::<TaskSchema>(&[view.clone(), processed.clone()]);
        describes::<AtRiskSchema>(std::slice::from_ref(&view["at_risk"]));
        let asks = &asking["steps"][0];
        let nested = json_of(&TaskView::new(&nested(), NOW));
        let mut steps = view["steps"].as_array().unwrap().clone();
        steps.extend([asks.clone(), nested["steps"][0].clone()]);
        describes::<StepAskSchema>(&[asks["ask"].clone()]);
        describes::<StepPersonSchema>(asks["ask"]["people"].as_array().unwrap());
        describes::<ChildTaskSchema>(&[nested["steps"][0]["child"].clone()]);
        describes::<ParentStepSchema>(&[processed["parent"].clone()]);
        describes::<UndoSchema>(std::slice::from_ref(&view["undo"]));
        describes::<FaultSchema>(&[json_of(&fault())]);
        let with_items = with_items();
        let group = json_of(&TaskView::new(&with_items, NOW));
        let item = json_of(&StepView::new(&with_items, StepIndex(1), Some(NOW)));
        steps.extend([group["steps"][0].clone(), item]);
        describes::<StepSchema>(&steps);
        let mut items = group["steps"][0]["items"].clone();
        items["undo_states"] = json!({ "processed": 1 });
        let repeated = json_of(&TaskView::new(&repeated(), NOW));
        let iterations = repeated["steps"][0]["items"].clone();
        describes::<ItemsSchema>(&[items.clone(), iterations]);
        describes::<ItemErrorSchema>(items["errors"].as_array().unwrap());
        let deferred = json_of(&TaskView::new(&deferred(), NOW));
        describes::<AwaitedReplySchema>(&[deferred["steps"][0]["awaited_reply"].clone()]);
        let mut by_receiver = view["reply_to"].clone();
        by_receiver["receiver"] = json!("shop");
        by_receiver["queue"] = json!("shop.replies");
        by_receiver["correlation_id"] = json!("order-1001");
        describes::<ReplyToSchema>(&[by_receiver]);
    }

    #[test]
    fn what_blocks_a_step_is_as_its_schema_says() {
        let (step, agent) = (StepName::new("charge"), AgentName::new("pay"));
        let instance = InstanceId::new("node-1");
        let limit = AdaptedLimit {
            limit: 6,
            most: 64,
            message: Some("fell from 9 to 6".to_owned()),
        };
        describes::<AdaptedLimitSchema>(&[json_of(&limit)]);
        let recovering = SlowStartLimit { limit: 6, most: 64 };
        describes::<SlowStartLimitSchema>(&[json_of(&recovering)]);
        let all = [
            Blocked::Steps {
                steps: vec![step.clone()],
                more: Some(20),
            },
            Blocked::Start { until: NOW },
            Blocked::Time { until: NOW },
            Blocked::Items {
                waiting: 30,
                running: 10,
                error: 1,
            },
            Blocked::Repeat {
                until: NOW,
                iterations: 3,
                at_most: 20,
            },
            Blocked::MaxParallel { max_parallel: 10 },
            Blocked::Capacity {
                agent: agent.clone(),
                ahead: None,
                ahead_is_at_least: false,
                adaptive: Some(limit.clone()),
                slow_start: Some(recovering),
            },
            Blocked::Worker {
                agent: agent.clone(),
                ahead: Some(3),
                ahead_is_at_least: false,
            },
            Blocked::OpenReplies {
                agent: agent.clone(),
                max_open: 1,
            },
            Blocked::RateLimit {
                agent: agent.clone(),
                rate: "50/s".to_owned(),
            },
            Blocked::KeyLimit {
                agent: agent.clone(),
                workflow: Some(domain::WorkflowName::new("order")),
                key: "acme".to_owned(),
                by: "{{ task.labels.customer }}".to_owned(),
                max_in_flight: Some(5),
                rate: None,
            },
            Blocked::Throttled {
                agent: agent.clone(),
                until: NOW,
                message: "the service responded 429 Too Many Requests".to_owned(),
            },
            Blocked::AgentPaused {
                agent: agent.clone(),
                until: Some(NOW),
                message: None,
            },
            Blocked::Secret {
                agent: agent.clone(),
                message: "the secret `payments-token` cannot be used".to_owned(),
            },
            Blocked::Breaker {
                agent: agent.clone(),
                until: None,
                message: "20 of 24 calls in 30s failed".to_owned(),
            },
            Blocked::Unhealthy {
                agent: agent.clone(),
                until: Some(NOW),
                message: "3 checks in a row failed".to_owned(),
            },
            Blocked::Held,
            Blocked::Agent { agent },
            Blocked::Drop { step, instance },
            Blocked::TaskLimit {
                keys: vec![AwaitedKey {
                    by: "{{ task.labels.customer }}".to_owned(),
                    key: "acme".to_owned(),
                    max_running: 1,
                    on_conflict: OnConflict::Wait,
                }],
            },
            Blocked::Wait { until: NOW },
            Blocked::Signal { until: NOW },
            Blocked::Child {
                task: Some(Uuid::from_u128(7)),
                state: Some("error"),
            },
            Blocked::Paused,
            Blocked::Operator,
        ];
        let schema = json_of(&BlockedSchema::schema());
        let variants = schema["oneOf"].as_array().unwrap();
        assert_eq!(variants.len(), all.len());
        for blocked in &all {
            // Names every variant, so that a new one has to be added above.
            match blocked {
                Blocked::Steps { .. }
                | Blocked::Start { .. }
                | Blocked::Time { .. }
                | Blocked::Wait { .. }
                | Blocked::Signal { .. }
                | Blocked::Child { .. }
                | Blocked::Items { .. }
                | Blocked::Repeat { .. }
                | Blocked::MaxParallel { .. }
                | Blocked::Capacity { .. }
                | Blocked::Worker { .. }
                | Blocked::OpenReplies { .. }
                | Blocked::RateLimit { .. }
                | Blocked::KeyLimit { .. }
                | Blocked::Throttled { .. }
                | Blocked::AgentPaused { .. }
                | Blocked::Secret { .. }
                | Blocked::Breaker { .. }
                | Blocked::Unhealthy { .. }
                | Blocked::Held
                | Blocked::Agent { .. }
                | Blocked::Drop { .. }
                | Blocked::TaskLimit { .. }
                | Blocked::Paused
                | Blocked::Operator => {}
            }
            let value = json_of(blocked);
            let of_reason = |variant: &&Value| {
                let words = &variant["properties"]["reason"]["enum"];
                words
                    .as_array()
                    .is_some_and(|words| words.contains(&value["reason"]))
            };
            let found = variants.iter().find(of_reason);
            matches_schema(found.expect("a variant"), std::slice::from_ref(&value));
        }
    }

    #[test]
    fn alerts_are_as_their_schema_says() {
        let notice = AlertNotice::raised(Uuid::from_u128(1), "task.error", "402", NOW);
        describes::<AlertNoticeSchema>(&[json_of(&notice)]);
    }

    /// Knows every agent.
    struct AnyAgent;

    impl domain::KnownAgents for AnyAgent {
        fn knows(&self, _: &domain::AgentName) -> bool {
            true
        }

        fn allows_url(&self, _: &str) -> Result<(), String> {
            Ok(())
        }
    }

    fn parsed(step: &Value) -> String {
        let definition = domain::parse_steps(
            &domain::Payload::from_value(&json!([step])),
            "",
            &domain::Policies::default(),
            &domain::Limits::default(),
            &AnyAgent,
        )
        .unwrap();
        format!("{:?} {:?}", definition.steps, definition.undos)
    }

    #[test]
    fn the_defaults_of_a_definition_are_those_of_its_schemas() {
        let document = serde_json::to_value(crate::api::openapi()).unwrap();
        let request = json!({ "path": "/" });
        let extend = json!({ "extend": "1m" });
        let base = json!({
            "name": "a", "agent": "x", "request": request, "probe": { "request": request },
            "undo": { "request": request, "on_exhausted": extend }, "on_exhausted": extend,
        });
        let mut seen = 0;
        for (way, schema) in [
            ("", "StepDefinition"),
            ("/request", "StepRequest"),
            ("/on_exhausted", "Extend"),
            ("/probe", "Probe"),
            ("/undo", "Undo"),
            ("/undo/request", "StepRequest"),
            ("/undo/on_exhausted", "UndoExtend"),
        ] {
            let schema = &document["components"]["schemas"][schema]["properties"];
            for (name, property) in schema.as_object().unwrap() {
                // Beside null: see `move_defaults_inside`.
                let choices = property["oneOf"].as_array().into_iter().flatten();
                let Some(default) = choices.filter_map(|one| one.get("default")).next() else {
                    continue;
                };
                seen += 1;
                let mut step = base.clone();
                step.pointer_mut(way).unwrap()[name] = default.clone();
                assert_eq!(parsed(&step), parsed(&base), "{way}/{name} = {default}");
            }
        }
        assert!(seen >= 15, "{seen}");
    }

    #[test]
    fn the_defaults_of_an_agent_are_those_of_its_schemas() {
        let document = serde_json::to_value(crate::api::openapi()).unwrap();
        let base = json!({ "endpoints": [{ "url": "http://a" }], "retry": {} });
        let parsed = |agent: &Value| serde_json::from_value::<domain::AgentSpec>(agent.clone());
        let mut seen = 0;
        for (way, schema) in [("/endpoints/0", "Endpoint"), ("/retry", "Retry")] {
            let schema = &document["components"]["schemas"][schema]["properties"];
            for (name, property) in schema.as_object().unwrap() {
                let choices = property["oneOf"].as_array().into_iter().flatten();
                let Some(default) = choices.filter_map(|one| one.get("default")).next() else {
                    continue;
                };
                seen += 1;
                let mut agent = base.clone();
                agent.pointer_mut(way).unwrap()[name] = default.clone();
                assert_eq!(
                    parsed(&agent).unwrap(),
                    parsed(&base).unwrap(),
                    "{way}/{name} = {default}"
                );
            }
        }
        assert!(seen >= 4, "{seen}");
    }
}
