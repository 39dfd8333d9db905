//! A task as callers see it, in answers and in messages. Written straight from the aggregate: payloads
//! go out as they came in.

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
    head: Head<'a>,
    /// What was submitted.
    #[schema(value_type = Json, example = json!({"sku": "book-7", "quantity": 1}))]
    input: &'a RawValue,
    /// Where the submitter is told of it; null where nobody is.
    #[schema(required, value_type = Option<ReplyToBody>)]
    reply_to: Option<ReplyToView<'a>>,
    /// That the task is undone, and why; null while it is not.
    #[schema(required)]
    undo: Option<UndoView<'a>>,
    /// In the order of the definition. Once the task is undone, what undoes them stands behind them.
    pub steps: Vec<StepView<'a>>,
}

/// What every form of a task shows.
#[derive(Serialize, ToSchema)]
#[schema(as = TaskHead)]
pub struct Head<'a> {
    /// UUIDv7, given at submission.
    #[schema(value_type = String, format = Uuid)]
    pub id: uuid::Uuid,
    /// The caller's own id.
    #[schema(required, example = "order-1001")]
    pub key: Option<&'a str>,
    /// The registered workflow, or null where the steps were given in place.
    #[schema(required, example = "order")]
    pub workflow: Option<&'a str>,
    /// The workflow's version that this task keeps.
    #[schema(required, example = 3)]
    pub workflow_version: Option<u32>,
    #[schema(value_type = TaskStatus, example = "processing")]
    pub state: &'static str,
    /// -100 to 100; higher is claimed first.
    #[schema(example = 0)]
    pub priority: i64,
    #[schema(value_type = Labels)]
    pub labels: Labels<'a>,
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
    /// In state error: the first fault that an operator has to mend.
    #[schema(required, value_type = Option<FaultBody>)]
    pub error: Option<&'a Fault>,
}

#[derive(Serialize)]
#[serde(untagged)]
pub enum Labels<'a> {
    Map(&'a BTreeMap<String, String>),
    Raw(&'a RawValue),
}

/// Why a task is undone.
#[derive(Serialize, ToSchema)]
#[schema(as = TaskUndo)]
pub struct UndoView<'a> {
    /// Since when.
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// Who asked for it: a scheduler or supervisor whose step's policy says so, or an operator.
    #[schema(value_type = String, example = "operator:alice")]
    by: &'a Actor,
    /// In the words of whoever asked.
    #[schema(required, example = "the customer withdrew")]
    reason: Option<&'a str>,
    /// What went wrong, where a policy asked for it.
    #[schema(required, value_type = Option<FaultBody>)]
    error: Option<&'a Fault>,
    /// Steps that took effect, or may have, and have no `undo`: they stay as they are.
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
    /// On what undoes a step, `processed` means that the step is undone.
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
    /// More failures than this, and `on_exhausted` decides.
    #[schema(example = 3)]
    max_failures: u32,
    /// `unknown`: an attempt expired, broke off, was lost or dropped, and may have taken effect.
    #[schema(required, value_type = Option<Effect>, example = "unknown")]
    outcome: Option<&'static str>,
    /// What every attempt sends as `Idempotency-Key`.
    #[schema(example = "019c7a5e-0000-7000-8000-000000000000:charge")]
    idempotency_key: String,
    /// The instance that runs it now.
    #[schema(required)]
    locked_by: Option<&'a str>,
    /// When the attempt under way must be finished.
    #[schema(required, value_type = Option<String>, format = DateTime)]
    complete_by: Option<Timestamp>,
    /// Pending: from when on it may be claimed. After a transient fault, `last_fault` says why it waits.
    #[schema(required, value_type = Option<String>, format = DateTime)]
    ready_at: Option<Timestamp>,
    /// The first claim.
    #[schema(required, value_type = Option<String>, format = DateTime)]
    started_at: Option<Timestamp>,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    ended_at: Option<Timestamp>,
    /// Why it is not running; null while it runs and once it is over.
    #[schema(required)]
    pub blocked_by: Option<Blocked>,
    /// What the remote service answered; while the step is run again, what it answered before.
    #[schema(required, value_type = Json, example = json!({"id": "ch_1"}))]
    output: Option<&'a RawValue>,
    /// In state error: what went wrong.
    #[schema(required, value_type = Option<FaultBody>)]
    error: Option<&'a Fault>,
    /// The last transient fault, kept although a later try may have succeeded.
    #[schema(required, value_type = Option<FaultBody>)]
    last_fault: Option<&'a Fault>,
}

/// [`ReplyTo`] as it is shown to everybody who may read the task.
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

/// Where the submitter is told of the task.
#[derive(ToSchema)]
#[schema(as = ReplyTo)]
#[allow(
    dead_code,
    reason = "only the shape of ReplyTo, for the OpenAPI document"
)]
pub struct ReplyToBody {
    /// An address; or name a `receiver`. Its query is not shown: `***` stands for it.
    #[schema(example = "http://127.0.0.1:9000/replies")]
    url: Option<String>,
    /// A configured receiver.
    #[schema(example = "shop")]
    receiver: Option<String>,
    /// Left out: `task.processed`, `task.error`, `task.undone` and `task.cancelled`.
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
    /// The remote service's HTTP status, if it answered.
    #[schema(required, example = 402)]
    status: Option<u16>,
    /// The beginning of its answer, as text.
    #[schema(required, example = "{\"error\":\"card declined\"}")]
    body: Option<String>,
    #[schema(format = DateTime)]
    at: String,
    /// `unknown`: it may have taken effect all the same. Left out where it has not.
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

    /// For who reads it at some later time: what holds up a step at this moment is left out.
    pub fn snapshot(task: &'a Task) -> Self {
        Self::seen(task, None)
    }

    fn seen(task: &'a Task, now: Option<Timestamp>) -> Self {
        Self {
            head: Head::of_task(task),
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

impl<'a> Head<'a> {
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
            labels: Labels::Map(&details.labels),
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
