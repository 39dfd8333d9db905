//! A task as callers see it, in responses and in messages. Serialised directly from the aggregate: payloads are
//! returned exactly as they were received.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::{
    blocked::Blocked,
    fault::{Effect, Fault, FaultKind},
    hidden::without_query,
    history::Actor,
    ids::{ReceiverName, StepIndex},
    payload::Payload,
    reply_to::ReplyTo,
    schema::{Json, ReplyEvent},
    step::{Step, StepState, StepStatus},
    task::{Task, TaskStatus},
    time::Timestamp,
};

/// A task with all its steps.
#[derive(Serialize, ToSchema)]
#[schema(as = Task)]
pub struct TaskView<'a> {
    #[serde(flatten)]
    head: TaskHead<'a>,
    /// The input as it was submitted.
    #[schema(value_type = Json, example = json!({"sku": "book-7", "quantity": 1}))]
    input: &'a RawValue,
    /// The receiver of messages about the task; null if there is none.
    #[schema(required, value_type = Option<ReplyToBody>)]
    reply_to: Option<ReplyToView<'a>>,
    /// Who requested the undo of the task, and why; null if it is not being undone.
    #[schema(required)]
    undo: Option<UndoView<'a>>,
    /// In the order of the definition. When the task is undone, the undo steps follow after them.
    pub steps: Vec<StepView<'a>>,
}

/// The fields that every form of a task has.
#[derive(Serialize, ToSchema)]
#[schema(as = TaskHead)]
pub struct TaskHead<'a> {
    /// A UUIDv7, assigned at submission.
    #[schema(value_type = String, format = Uuid)]
    pub id: uuid::Uuid,
    /// The caller's own id.
    #[schema(required, example = "order-1001")]
    pub key: Option<&'a str>,
    /// The registered workflow, or null if the task has inline steps.
    #[schema(required, example = "order")]
    pub workflow: Option<&'a str>,
    /// The workflow version that this task uses.
    #[schema(required, example = 3)]
    pub workflow_version: Option<u32>,
    #[schema(value_type = TaskStatus, example = "processing")]
    pub state: &'static str,
    /// -100 to 100; tasks with a higher priority are claimed first.
    #[schema(example = 0)]
    pub priority: i64,
    #[schema(value_type = LabelsView)]
    pub labels: LabelsView<'a>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When the task must be finished; null without a limit.
    #[schema(required, value_type = Option<String>, format = DateTime)]
    pub complete_by: Option<Timestamp>,
    /// When it was processed, undone or cancelled.
    #[schema(required, value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    /// Counts the saved changes; the ETag is this number in quotes.
    #[schema(example = 7)]
    pub version: u64,
    /// In state error: the first fault that an operator has to resolve.
    #[schema(required, value_type = Option<FaultBody>)]
    pub error: Option<&'a Fault>,
}

#[derive(Serialize)]
#[serde(untagged)]
pub enum LabelsView<'a> {
    Map(&'a BTreeMap<String, String>),
    Raw(&'a RawValue),
}

/// Why a task is undone.
#[derive(Serialize, ToSchema)]
#[schema(as = TaskUndo)]
pub struct UndoView<'a> {
    /// When the undo started.
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// Who requested it: a scheduler or supervisor because of a step's policy, or an operator.
    #[schema(value_type = String, example = "operator:alice")]
    by: &'a Actor,
    /// The reason that the operator gave.
    #[schema(required, example = "the customer withdrew")]
    reason: Option<&'a str>,
    /// The fault that made a policy request it.
    #[schema(required, value_type = Option<FaultBody>)]
    error: Option<&'a Fault>,
    /// Steps that took effect, or may have, and have no `undo`: their effects remain.
    #[schema(example = json!(["notify"]))]
    passed_over: Vec<&'a str>,
}

/// One step of a task.
#[derive(Serialize, ToSchema)]
#[schema(as = Step)]
pub struct StepView<'a> {
    #[schema(example = "charge")]
    name: &'a str,
    /// The agent, or the origin of the step's URL.
    #[schema(example = "payments")]
    agent: &'a str,
    /// For an undo step, `processed` means that the step it belongs to is undone.
    #[schema(value_type = StepStatus, example = "processed")]
    state: &'static str,
    /// The step that this one undoes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "charge")]
    undoes: Option<&'a str>,
    /// The steps that this one follows.
    #[schema(example = json!(["reserve"]))]
    after: Vec<&'a str>,
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
    #[schema(required, value_type = Option<Effect>, example = "unknown")]
    outcome: Option<&'static str>,
    /// The `Idempotency-Key` of every attempt.
    #[schema(example = "019c7a5e-0000-7000-8000-000000000000:charge")]
    idempotency_key: String,
    /// The instance that runs it now.
    #[schema(required)]
    locked_by: Option<&'a str>,
    /// When the current attempt must be finished.
    #[schema(required, value_type = Option<String>, format = DateTime)]
    complete_by: Option<Timestamp>,
    /// Pending: the earliest time of the next claim. After a transient fault, `last_fault` has the reason for the
    /// wait.
    #[schema(required, value_type = Option<String>, format = DateTime)]
    ready_at: Option<Timestamp>,
    /// The time of the first claim.
    #[schema(required, value_type = Option<String>, format = DateTime)]
    started_at: Option<Timestamp>,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    ended_at: Option<Timestamp>,
    /// Why it is not running; null while it runs and after it has ended.
    #[schema(required)]
    pub blocked_by: Option<Blocked>,
    /// The output from the remote service; during a rerun, the previous output.
    #[schema(required, value_type = Json, example = json!({"id": "ch_1"}))]
    output: Option<&'a RawValue>,
    /// In state error: what went wrong.
    #[schema(required, value_type = Option<FaultBody>)]
    error: Option<&'a Fault>,
    /// The last transient fault, kept even if a later attempt succeeded.
    #[schema(required, value_type = Option<FaultBody>)]
    last_fault: Option<&'a Fault>,
}

/// [`ReplyTo`] as everybody who may read the task sees it.
#[derive(Serialize)]
struct ReplyToView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    receiver: Option<&'a ReceiverName>,
    events: &'a [Arc<str>],
}

impl<'a> ReplyToView<'a> {
    fn new(reply_to: &'a ReplyTo) -> Self {
        Self {
            url: reply_to.url.as_deref().map(without_query),
            receiver: reply_to.receiver.as_ref(),
            events: &reply_to.events,
        }
    }
}

/// The receiver of messages about the task.
#[derive(ToSchema)]
#[schema(as = ReplyTo)]
#[allow(
    dead_code,
    reason = "only the shape of ReplyTo, for the OpenAPI document"
)]
pub struct ReplyToBody {
    /// A URL; alternatively a `receiver`. `***` replaces its query.
    #[schema(example = "http://127.0.0.1:9000/replies")]
    url: Option<String>,
    /// A configured receiver.
    #[schema(example = "shop")]
    receiver: Option<String>,
    /// Default: `task.processed`, `task.error`, `task.undone` and `task.cancelled`.
    #[schema(value_type = Option<Vec<ReplyEvent>>, min_items = 1, example = json!(["task.processed", "task.error"]))]
    events: Option<Vec<String>>,
}

/// What went wrong.
#[derive(ToSchema)]
#[schema(as = Fault)]
#[allow(
    dead_code,
    reason = "only the shape of Fault, for the OpenAPI document"
)]
pub struct FaultBody {
    #[schema(example = "permanent")]
    kind: FaultKind,
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
    outcome: Option<Effect>,
    /// On a task: the step that failed.
    #[schema(example = "charge")]
    step: Option<String>,
}

impl<'a> TaskView<'a> {
    pub fn new(task: &'a Task, now: Timestamp) -> Self {
        Self::seen(task, Some(now))
    }

    /// For readers at a later time: omits what blocks a step at this moment.
    pub fn snapshot(task: &'a Task) -> Self {
        Self::seen(task, None)
    }

    fn seen(task: &'a Task, now: Option<Timestamp>) -> Self {
        Self {
            head: TaskHead::of_task(task),
            input: task.details.input.raw(),
            reply_to: task.details.reply_to.as_deref().map(ReplyToView::new),
            undo: task.undo.as_ref().map(|undo| UndoView {
                at: undo.at,
                by: &undo.by,
                reason: undo.reason.as_deref(),
                error: undo.error.as_ref(),
                passed_over: task
                    .passed_over()
                    .map(|step| task.definition(step).name.as_str())
                    .collect(),
            }),
            steps: task
                .indexes()
                .map(|index| StepView::new(task, index, now))
                .collect(),
        }
    }
}

impl<'a> TaskHead<'a> {
    fn of_task(task: &'a Task) -> Self {
        let details = &*task.details;
        let workflow = details.workflow.as_ref();
        Self {
            id: task.id().0,
            key: details.key.as_deref(),
            workflow: workflow.map(|workflow| workflow.name.as_str()),
            workflow_version: workflow.map(|workflow| workflow.version),
            state: task.status().as_str(),
            priority: details.priority.get(),
            labels: LabelsView::Map(&details.labels),
            created_at: task.created_at,
            complete_by: task.complete_by,
            ended_at: task.ended_at(),
            version: task.version,
            error: task.error(),
        }
    }
}

impl<'a> StepView<'a> {
    fn new(task: &'a Task, index: StepIndex, now: Option<Timestamp>) -> Self {
        let definition = task.definition(index);
        let step: &'a Step = task.step(index);
        let (locked_by, complete_by) = match &step.state {
            StepState::Processing {
                locked_by,
                complete_by,
            } => (Some(locked_by.as_str()), Some(*complete_by)),
            _ => (None, None),
        };
        Self {
            name: definition.name.as_str(),
            agent: definition.agent().as_str(),
            state: step.status().as_str(),
            undoes: definition
                .undoes
                .map(|step| task.definition(step).name.as_str()),
            after: task
                .after(index)
                .into_iter()
                .map(|step| task.definition(step).name.as_str())
                .collect(),
            attempt: step.attempt.0,
            failure_count: step.failure_count,
            max_failures: definition.max_failures,
            outcome: (step.effect == Effect::Unknown && definition.undoes.is_none())
                .then_some("unknown"),
            idempotency_key: task.idempotency_key(index),
            locked_by,
            complete_by,
            ready_at: match step.state {
                StepState::Pending { ready_at } => Some(ready_at),
                _ => None,
            },
            started_at: step.started_at,
            ended_at: step.ended_at(),
            blocked_by: now.and_then(|now| task.blocked_by(index, now)),
            output: step.output().map(Payload::raw),
            error: match &step.state {
                StepState::Error(fault) => Some(fault),
                _ => None,
            },
            last_fault: step.last_fault.as_ref(),
        }
    }
}
