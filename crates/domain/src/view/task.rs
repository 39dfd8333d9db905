//! A task as callers see it, in responses and in messages. Serialised directly from the aggregate: payloads are
//! returned exactly as they were received.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::{
    definition::{RaceRest, StepKind},
    task::{
        aggregate::Task,
        ask::OpenAsk,
        history::Actor,
        kept_response::KeptResponse,
        open_reply::{OpenReply, StepHolder},
        output::task_output,
        reply_to::ReplyTo,
        status::TaskStatus,
        step::{Step, StepState, StepStatus},
        step_list::StepCounts,
    },
    template::payload::Payload,
    values::{
        fault::{Effect, Fault},
        hidden::without_query,
        ids::{AgentName, InstanceId, ReceiverName, StepIndex, WorkerName},
        time::Timestamp,
    },
    view::{
        blocked::Blocked,
        prediction::AtRisk,
        words::{LabelsSchema, ReplyEvent},
    },
};

/// A task with all its steps.
#[derive(Serialize, ToSchema)]
#[schema(as = Task)]
pub struct TaskView<'a> {
    #[serde(flatten)]
    head: TaskHead<'a>,
    /// True while an operator's pause holds the task. Its state can then still be `error`: no step begins, also after a
    /// retry, until the task is resumed. Left out otherwise.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    paused: bool,
    /// The input as it was submitted.
    #[schema(value_type = Payload)]
    input: &'a RawValue,
    /// The result of the definition's `output`, if it has one; null until the task is processed. Left out otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Payload)]
    output: Option<Payload>,
    /// The reason why `output` is null although the task is processed: it could not be evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "`steps.charge.output.id` cannot be rendered: `id` is missing")]
    output_error: Option<String>,
    /// The step of another task that this one is done for. Left out where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<ParentView<'a>>,
    /// The receiver of messages about the task; null if there is none.
    #[schema(required)]
    reply_to: Option<ReplyToView<'a>>,
    /// The requester of the task's undo, and the reason; null if the task is not being undone.
    #[schema(required)]
    undo: Option<UndoView<'a>>,
    /// In the order of the definition. When the task is undone, the undo steps come after the others.
    pub steps: Vec<StepView<'a>>,
}

/// The extent to which a task is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    Whole,
    /// The steps have no outputs, no values of items, and no details of their progress.
    WithoutOutputs,
    /// In addition, the task has no input and no output.
    WithoutPayloads,
    /// In addition, the task has no steps.
    Head,
}

impl Extent {
    /// All extents, from the widest to the narrowest.
    pub const ALL: [Self; 4] = [
        Self::Whole,
        Self::WithoutOutputs,
        Self::WithoutPayloads,
        Self::Head,
    ];

    /// Returns the fields of the task that are left out.
    pub fn left_out(self) -> &'static [&'static str] {
        match self {
            Extent::Whole => &[],
            Extent::WithoutOutputs => &["steps.output", "steps.item", "steps.awaited_reply"],
            Extent::WithoutPayloads => &[
                "input",
                "output",
                "steps.output",
                "steps.item",
                "steps.awaited_reply",
            ],
            Extent::Head => &["input", "output", "steps"],
        }
    }
}

/// The fields that every form of a task has.
#[derive(Serialize, ToSchema)]
pub struct TaskHead<'a> {
    /// A UUIDv7, assigned at submission.
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
    #[schema(value_type = TaskStatus)]
    pub state: &'static str,
    /// -100 to 100; tasks with a higher priority are claimed first.
    #[schema(example = 0)]
    pub priority: i64,
    #[schema(value_type = LabelsSchema)]
    pub labels: LabelsView<'a>,
    pub created_at: Timestamp,
    /// When the task begins; null once it has begun.
    #[schema(required)]
    pub start_at: Option<Timestamp>,
    /// When the task must be finished; null without a limit.
    #[schema(required)]
    pub complete_by: Option<Timestamp>,
    /// The prediction of its end, if that is too late. Only when tasks are read; left out if the task is in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_risk: Option<AtRisk>,
    /// When it was processed, undone or cancelled.
    #[schema(required)]
    pub ended_at: Option<Timestamp>,
    /// Counts the saved changes; the ETag is this number in quotes.
    #[schema(example = 7)]
    pub version: u64,
    /// In state error: the first fault that an operator has to resolve.
    #[schema(required)]
    pub error: Option<&'a Fault>,
}

#[derive(Serialize)]
#[serde(untagged)]
pub enum LabelsView<'a> {
    Map(&'a BTreeMap<String, String>),
    Raw(&'a RawValue),
}

/// The step of another task that a task is done for.
#[derive(Serialize, ToSchema)]
#[schema(as = ParentStep)]
struct ParentView<'a> {
    task: uuid::Uuid,
    #[schema(example = "ship")]
    step: &'a str,
    /// The attempt of the step: each attempt has a task of its own.
    #[schema(example = 1)]
    attempt: u32,
}

/// The task of a step.
#[derive(Serialize, ToSchema)]
#[schema(as = ChildTask)]
struct ChildView {
    id: uuid::Uuid,
    /// The state in which it ended, or `error` while it needs an operator; null while it runs.
    #[schema(value_type = Option<TaskStatus>, required)]
    state: Option<&'static str>,
}

/// The reason why a task is undone.
#[derive(Serialize, ToSchema)]
#[schema(as = TaskUndo)]
pub struct UndoView<'a> {
    /// When the undo started.
    at: Timestamp,
    /// The requester: a scheduler or supervisor because of a step's policy, or an operator.
    #[schema(value_type = String, example = "operator:alice")]
    by: &'a Actor,
    /// The reason that the operator gave.
    #[schema(required, example = "the customer withdrew")]
    reason: Option<&'a str>,
    /// The fault that made a policy request it.
    #[schema(required)]
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
    pub name: &'a str,
    /// `call`, or the kind of a step that calls no service.
    #[schema(value_type = StepKind)]
    kind: &'static str,
    /// The agent, or the origin of the step's URL; null if the step calls no service.
    #[schema(required, example = "payments")]
    agent: Option<&'a str>,
    /// For an undo step, `processed` means that the step it belongs to is undone.
    #[schema(value_type = StepStatus)]
    state: &'static str,
    /// The step that this one undoes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "charge")]
    undoes: Option<&'a str>,
    /// The steps that this one follows.
    #[schema(example = json!(["reserve"]))]
    after: Vec<&'a str>,
    /// The steps that have won the race before it, in the order in which they succeeded. Only of a step that needs fewer
    /// than all of the steps that it follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 1000, example = json!(["eu"]))]
    winners: Option<Vec<&'a str>>,
    /// The fate of a step that runs and is not needed any more, because it has lost a race, enough items have succeeded or
    /// the task is stopped. Absent while it is needed, and of a step that the race lets go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<RaceRest>, example = "undo")]
    lost: Option<&'static str>,
    /// The number of the last claim, and so of its call; 0 before the first.
    #[schema(example = 2)]
    attempt: u32,
    /// The number of times that it did not succeed within `complete_within`, or lost the instance that ran it.
    #[schema(example = 1)]
    failure_count: u32,
    /// After more failures than this, `on_exhausted` applies.
    #[schema(example = 3)]
    max_failures: u32,
    /// `unknown`: an attempt expired, broke off, was lost or dropped, and may have taken effect.
    #[schema(value_type = Option<Effect>, required)]
    outcome: Option<&'static str>,
    /// The `Idempotency-Key` of every attempt; null if the step calls no service.
    #[schema(required, example = "019c7a5e-0000-7000-8000-000000000000:charge")]
    idempotency_key: Option<String>,
    /// The instance that runs it now.
    #[schema(required)]
    locked_by: Option<&'a str>,
    /// When the current attempt must be finished; of a wait: its end; of a signal: until when it is awaited.
    #[schema(required)]
    complete_by: Option<Timestamp>,
    /// The state of the reply, while the service works on a promised one or a worker on the step that it fetched.
    #[schema(required)]
    awaited_reply: Option<AwaitedReplyView<'a>>,
    /// Pending: the earliest time of the next claim. After a transient fault, `last_fault` has the reason for the
    /// wait.
    #[schema(required)]
    ready_at: Option<Timestamp>,
    /// The time of the first claim.
    #[schema(required)]
    started_at: Option<Timestamp>,
    #[schema(required)]
    ended_at: Option<Timestamp>,
    /// Why it is not running, or what it waits for; null while it runs and after it has ended.
    #[schema(required)]
    pub blocked_by: Option<Blocked>,
    /// The question to people, or the last one. Only of a step that asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    ask: Option<AskView<'a>>,
    /// The task of the last attempt. Left out if the step has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    child: Option<ChildView>,
    /// The value of an item of a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Payload)]
    item: Option<&'a RawValue>,
    /// The states of the items or the iterations, if the step is run for each item of a list or repeated.
    /// `GET /v1/tasks/{id}/steps?of=` lists them.
    #[serde(skip_serializing_if = "Option::is_none")]
    items: Option<ItemsView<'a>>,
    /// The output from the remote service, or of the step's task; during a rerun, the previous output. For a step that
    /// is run for each item of a list, the list of their outputs; null if that takes more than 1 MiB. For a repeated
    /// step, the result of its `repeat`.
    #[schema(value_type = Payload)]
    output: Option<&'a RawValue>,
    /// The status and the headers of the response that gave the output. Only of a step with `keep_headers`.
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<&'a KeptResponse>,
    /// The fault, if the step is in error, or was skipped or undone because of one.
    #[schema(required)]
    error: Option<&'a Fault>,
    /// The last transient fault, kept even if a later attempt succeeded.
    #[schema(required)]
    last_fault: Option<&'a Fault>,
}

// It has no links: a link is for one person alone.
/// The question to people, and their decisions.
#[derive(Serialize, ToSchema)]
#[schema(as = StepAsk)]
struct AskView<'a> {
    #[schema(example = "Approve the refund of 120 EUR?")]
    title: &'a str,
    #[schema(required)]
    text: Option<&'a str>,
    /// The number of people who must choose the first choice.
    #[schema(example = 1)]
    approvals: u32,
    people: Vec<PersonView<'a>>,
}

/// One person who is asked.
#[derive(Serialize, ToSchema)]
#[schema(as = StepPerson)]
struct PersonView<'a> {
    #[schema(example = "ops@example.com")]
    person: &'a str,
    /// Null until this person has decided.
    #[schema(required, example = "approve")]
    choice: Option<&'a str>,
    #[schema(required)]
    at: Option<Timestamp>,
}

impl<'a> AskView<'a> {
    fn new(ask: &'a OpenAsk, approvals: u32) -> Self {
        let people = (0..).zip(&ask.text.of).map(|(person, name)| {
            let decision = ask.decision_of(person);
            PersonView {
                person: name,
                choice: decision.map(|decision| decision.answer.choice.as_str()),
                at: decision.map(|decision| decision.at),
            }
        });
        Self {
            title: &ask.text.title,
            text: ask.text.text.as_deref(),
            approvals,
            people: people.collect(),
        }
    }
}

/// The states of the items of a list, or of iterations.
#[derive(Serialize, ToSchema)]
#[schema(as = Items)]
struct ItemsView<'a> {
    /// The number of items; null until the list is known, or the first iteration begins.
    #[schema(value_type = Option<u32>, required, example = 50)]
    total: Option<usize>,
    /// The highest number of iterations. Left out for the items of a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 20)]
    at_most: Option<u16>,
    /// When the next iteration begins; left out while one runs, and for the items of a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_at: Option<Timestamp>,
    /// The number of items in each state; states without items are left out.
    #[schema(example = json!({"processed": 47, "error": 3}))]
    states: BTreeMap<&'static str, u32>,
    /// The number of their undos in each state, once the task is to be undone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = json!({"processed": 47}))]
    undo_states: Option<BTreeMap<&'static str, u32>>,
    /// The most items that run at once.
    #[schema(example = 10)]
    max_parallel: u16,
    /// The first ten items in error or, once the task is to be undone, the first ten whose undo is in error.
    errors: Vec<ItemErrorView<'a>>,
}

/// An item in error.
#[derive(Serialize, ToSchema)]
#[schema(as = ItemError)]
struct ItemErrorView<'a> {
    #[schema(example = "import[17]")]
    step: &'a str,
    #[schema(example = "the service responded 422 Unprocessable Entity")]
    message: &'a str,
}

/// The most items in error that are shown with their group.
const MOST_ERRORS: usize = 10;

/// The longest list of outputs that is shown with the task, in bytes.
pub(super) const LONGEST_LIST: usize = 1 << 20;

impl<'a> ItemsView<'a> {
    fn new(task: &'a Task, index: StepIndex) -> Self {
        let rule = task.definition(index).group_rule();
        let max_parallel = rule.map_or(0, |_| task.max_parallel(index));
        let repeat = rule.and_then(|rule| rule.repeat());
        let Some(group) = task.group(index) else {
            return Self {
                total: None,
                at_most: repeat.map(|repeat| repeat.at_most),
                next_at: None,
                states: BTreeMap::new(),
                undo_states: None,
                max_parallel,
                errors: Vec::new(),
            };
        };
        let undone = task.undo.is_some() && !group.undos.is_empty();
        let items = task.steps.find_in(&group.items, StepStatus::Error);
        let undos = task.undos.find_in(&group.undos, StepStatus::Error);
        let undos = undos.map(|at| task.steps.len() + at);
        let failed: Vec<_> = match undone {
            false => items.take(MOST_ERRORS).collect(),
            true => undos.take(MOST_ERRORS).collect(),
        };
        let errors = failed.into_iter().filter_map(|at| {
            // There are at most as many steps as an index can count.
            let index = StepIndex(at as u16);
            match &task.step(index).state {
                StepState::Error(fault) => Some(ItemErrorView {
                    step: task.definition(index).name.as_str(),
                    message: &fault.message,
                }),
                _ => None,
            }
        });
        Self {
            total: Some(group.items.len()),
            at_most: group.at_most(),
            next_at: task.next_begin(index),
            states: states(&task.steps.counts_of(&group.items)),
            undo_states: undone.then(|| states(&task.undos.counts_of(&group.undos))),
            max_parallel,
            errors: errors.collect(),
        }
    }
}

fn states(counts: &StepCounts) -> BTreeMap<&'static str, u32> {
    let states = StepStatus::ALL.iter();
    let states = states.map(|status| (status.as_str(), counts.count(*status)));
    states.filter(|(_, count)| *count > 0).collect()
}

/// Returns the names of the steps that this one follows. For a step that follows items it names their group: the first
/// items and their number would say no more.
fn after(task: &Task, index: StepIndex) -> Vec<&str> {
    let steps = match task.definition(index).item {
        Some(item) if task.definition(index).undoes.is_none() => task.after(item.group),
        _ => task.after(index),
    };
    let steps = steps.into_iter();
    let mut names: Vec<_> = steps
        .map(|step| {
            let definition = task.definition(step);
            let name = match definition.undoes {
                Some(_) => &definition.name,
                None => task.common_name(step),
            };
            name.as_str()
        })
        .collect();
    names.truncate(MOST_NAMES);
    names
}

/// The most names of steps that are listed.
const MOST_NAMES: usize = 1000;

/// A reply that the service has promised for later.
#[derive(Serialize, ToSchema)]
#[schema(as = AwaitedReply)]
struct AwaitedReplyView<'a> {
    /// When the service promised it, or the worker fetched the step.
    since: Timestamp,
    /// The worker that fetched the step; null if the service was called.
    #[schema(required, example = "w-1")]
    worker: Option<&'a str>,
    /// The last heartbeat that was recorded; null before the first.
    #[schema(required)]
    heartbeat_at: Option<Timestamp>,
    /// When silence becomes a failure; null if the step has no `heartbeat_within`.
    #[schema(required)]
    silent_at: Option<Timestamp>,
    /// 0 to 1, as the service last reported it.
    #[schema(required, example = 0.4)]
    progress: Option<f64>,
    /// The last message of the service about its progress.
    #[schema(required, example = "4 of 10 pages")]
    message: Option<&'a str>,
    #[schema(value_type = Payload)]
    details: Option<&'a RawValue>,
    /// The next poll; null if the service sends its reply by itself.
    #[schema(required)]
    poll: Option<PollView<'a>>,
}

/// The next poll for a promised reply.
#[derive(Serialize, ToSchema)]
#[schema(as = NextPoll)]
struct PollView<'a> {
    /// The address of the reply that the service named; null if the step's own request is repeated. `***` replaces its
    /// query.
    #[schema(required, example = "https://print.example/operations/7")]
    url: Option<Cow<'a, str>>,
    next_at: Timestamp,
}

impl<'a> AwaitedReplyView<'a> {
    fn new(open: &'a OpenReply) -> Self {
        Self {
            since: open.since,
            worker: open.worker.as_ref().map(WorkerName::as_str),
            heartbeat_at: open.heartbeat_at,
            silent_at: open.silent_at,
            progress: open.progress.fraction,
            message: open.progress.message.as_deref(),
            details: open.progress.details.as_ref().map(Payload::raw),
            poll: open.poll.as_ref().map(|poll| PollView {
                url: poll.address.as_deref().map(without_query),
                next_at: poll.next_at,
            }),
        }
    }
}

/// The receiver of messages about the task.
#[derive(Serialize, ToSchema)]
#[schema(as = ReplyTo)]
pub struct ReplyToView<'a> {
    /// A URL; alternatively a `receiver` or a `queue`. `***` replaces its query.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "http://127.0.0.1:9000/replies")]
    url: Option<Cow<'a, str>>,
    /// A configured receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "shop")]
    receiver: Option<&'a ReceiverName>,
    /// A queue of the message broker that is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "shop.replies", max_length = 255)]
    queue: Option<&'a str>,
    /// For messages to a queue: the correlation id that they have.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "order-1001", max_length = 255)]
    correlation_id: Option<&'a str>,
    /// Default: `task.processed`, `task.error`, `task.undone`, `task.cancelled` and `step.asked`.
    #[schema(value_type = Option<Vec<ReplyEvent>>, min_items = 1, example = json!(["task.processed", "task.error"]))]
    events: &'a [Arc<str>],
}

impl<'a> ReplyToView<'a> {
    pub(super) fn new(reply_to: &'a ReplyTo) -> Self {
        Self {
            url: reply_to.url.as_deref().map(without_query),
            receiver: reply_to.receiver.as_ref(),
            queue: reply_to.queue_name.as_deref(),
            correlation_id: reply_to.correlation_id.as_deref(),
            events: &reply_to.events,
        }
    }
}

impl<'a> TaskView<'a> {
    pub fn new(task: &'a Task, now: Timestamp) -> Self {
        Self::seen(task, Some(now))
    }

    /// Shows a task to readers at a later time: it omits the reasons why steps are blocked now, and the fields that the
    /// extent leaves out. These fields remain, with null or an empty list.
    pub fn snapshot(task: &'a Task, extent: Extent) -> Self {
        let mut view = match extent {
            Extent::Whole | Extent::WithoutOutputs => Self::seen(task, None),
            Extent::WithoutPayloads => Self::without_payloads(task, task.own_indexes()),
            Extent::Head => Self::without_payloads(task, []),
        };
        if extent != Extent::Whole {
            view.steps.iter_mut().for_each(StepView::leave_out_payloads);
        }
        view
    }

    /// Shows the head of the task and one step, to readers at a later time. `whole`: the step has its output.
    pub fn of_step(task: &'a Task, index: Option<StepIndex>, whole: bool) -> Self {
        let mut view = Self::without_payloads(task, index);
        if !whole {
            view.steps.iter_mut().for_each(StepView::leave_out_payloads);
        }
        view
    }

    fn without_payloads(task: &'a Task, steps: impl IntoIterator<Item = StepIndex>) -> Self {
        Self::of_parts(task, None, None, steps)
    }

    /// Sets the prediction of the task's end.
    pub fn set_at_risk(&mut self, at_risk: Option<AtRisk>) {
        self.head.at_risk = at_risk;
    }

    fn seen(task: &'a Task, now: Option<Timestamp>) -> Self {
        let input = task.details.input.raw();
        Self::of_parts(task, now, Some(input), task.own_indexes())
    }

    /// `input` is `None` for a task that is shown without its payloads.
    fn of_parts(
        task: &'a Task,
        now: Option<Timestamp>,
        input: Option<&'a RawValue>,
        steps: impl IntoIterator<Item = StepIndex>,
    ) -> Self {
        let output = input.and_then(|_| task_output(task));
        let output_error = match &output {
            Some(Err(error)) => Some(error.to_string()),
            _ => None,
        };
        let has_output = task.details.definition.has_output();
        Self {
            head: TaskHead::of_task(task),
            paused: task.paused && !task.is_ended(),
            input: input.unwrap_or(RawValue::NULL),
            output: has_output.then(|| match output {
                Some(Ok(output)) => output,
                _ => Payload::null(),
            }),
            output_error,
            parent: task.details.parent.as_ref().map(|parent| ParentView {
                task: parent.task.0,
                step: parent.step.as_str(),
                attempt: parent.attempt.0,
            }),
            reply_to: task.details.reply_to.as_deref().map(ReplyToView::new),
            undo: task
                .undo
                .as_ref()
                .filter(|undo| !undo.cancels)
                .map(|undo| UndoView {
                    at: undo.at,
                    by: &undo.by,
                    reason: undo.reason.as_deref(),
                    error: undo.error.as_ref(),
                    passed_over: passed_over(task),
                }),
            steps: (steps.into_iter())
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
            start_at: task.start_at,
            complete_by: task.complete_by,
            at_risk: None,
            ended_at: task.ended_at(),
            version: task.version,
            error: task.error(),
        }
    }
}

/// Items are listed under the name of their group.
fn passed_over(task: &Task) -> Vec<&str> {
    let steps = task.passed_over().map(|step| task.common_name(step));
    let mut names: Vec<_> = steps.map(|name| name.as_str()).collect();
    names.dedup();
    names
}

fn names(task: &Task, steps: Vec<StepIndex>) -> Vec<&str> {
    let steps = steps.into_iter();
    let names = steps.map(|step| task.definition(step).name.as_str());
    names.collect()
}

impl<'a> StepView<'a> {
    fn leave_out_payloads(&mut self) {
        self.output = None;
        self.item = None;
        self.awaited_reply = None;
    }

    pub fn new(task: &'a Task, index: StepIndex, now: Option<Timestamp>) -> Self {
        let definition = task.definition(index);
        let step: &'a Step = task.step(index);
        let is_group = definition.group_rule().is_some();
        let (held_by, complete_by) = match &step.state {
            StepState::Processing {
                held_by,
                complete_by,
            } => (
                Some(held_by),
                // The child has a time limit instead.
                (!definition.has_child()).then_some(*complete_by),
            ),
            _ => (None, None),
        };
        let locked_by = held_by.and_then(StepHolder::instance);
        Self {
            name: definition.name.as_str(),
            kind: definition.work.kind().as_str(),
            agent: definition.rule_to_run().agent().map(AgentName::as_str),
            state: step.status().as_str(),
            undoes: definition
                .undoes
                .map(|step| task.definition(step).name.as_str()),
            after: after(task, index),
            winners: definition
                .race
                .as_ref()
                .map(|_| names(task, task.winners(index))),
            lost: (step.status() == StepStatus::Processing)
                .then(|| task.loss(index))
                .flatten()
                .map(RaceRest::as_str),
            attempt: step.attempt.0,
            failure_count: step.failure_count,
            max_failures: definition.rule_to_run().max_failures,
            outcome: (step.effect == Effect::Unknown && definition.undoes.is_none())
                .then_some("unknown"),
            idempotency_key: definition.is_call().then(|| task.idempotency_key(index)),
            locked_by: locked_by.map(InstanceId::as_str),
            // A group is held for as long as its items take.
            complete_by: complete_by.filter(|_| definition.group_rule().is_none()),
            awaited_reply: held_by
                .and_then(StepHolder::open_reply)
                .map(AwaitedReplyView::new),
            ready_at: match step.state {
                StepState::Pending { ready_at } => Some(ready_at),
                _ => None,
            },
            started_at: step.started_at,
            ended_at: step.ended_at(),
            blocked_by: now.and_then(|now| task.blocked_by(index, now)),
            ask: step.ask.as_deref().map(|ask| {
                let rule = definition.work.ask();
                AskView::new(ask, rule.map_or(1, |rule| rule.approvals))
            }),
            child: step.child.as_ref().map(|child| ChildView {
                id: child.id.0,
                state: child.is_reported().then(|| child.state.as_str()),
            }),
            item: task.item_value(index).map(Payload::raw),
            items: definition.group_rule().map(|_| ItemsView::new(task, index)),
            output: step
                .output()
                .filter(|output| output.as_json().len() <= LONGEST_LIST || !is_group)
                .map(Payload::raw),
            response: step.response.as_deref(),
            error: step.error(),
            last_fault: step.last_fault.as_ref(),
        }
    }
}
