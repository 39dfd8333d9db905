//! A job and its tasks as the API shows them.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    api::openapi::words::JsonSchema,
    domain::{
        task::{BulkEntry, BulkState, StopCause, TaskStatus},
        values::{Fault, TaskId, Timestamp},
    },
    store::{BulkJobRecord, BulkTaskRow},
};

/// The data of a command, which is not shown with its selection: it may be large, and may have secrets.
const DATA: [&str; 3] = ["changes", "output", "patch"];

/// A bulk job with its progress.
#[derive(Serialize, ToSchema)]
#[schema(as = BulkJob)]
pub struct BulkJobView {
    id: Uuid,
    #[schema(example = "retry")]
    command: &'static str,
    /// The command and its tasks in words.
    #[schema(
        example = "retry 12 tasks with a step that failed at agent payments, that failed by 2026-01-31T10:42:00.000Z"
    )]
    sentence: String,
    /// `running`, `stopping` (a batch is being completed), `stopped`, `ended`, or `failed` (it cannot continue until an
    /// operator resumes it).
    #[schema(example = "running")]
    state: &'static str,
    /// Of a job that was stopped: `operator`, or `first` if it has processed the first tasks that the request named.
    #[schema(required, example = "operator")]
    stop_cause: Option<&'static str>,
    /// The reason why the job has failed.
    #[schema(required)]
    failure: Option<String>,
    by: String,
    #[schema(required)]
    reason: Option<String>,
    created_at: Timestamp,
    /// The time at which the job ended, was stopped or failed.
    #[schema(required)]
    ended_at: Option<Timestamp>,
    /// The selection of tasks, as it was requested, without the data of the command.
    #[schema(value_type = JsonSchema)]
    selection: Value,
    /// Tasks with greater ids came later, and are not touched.
    #[schema(value_type = Uuid)]
    up_to: TaskId,
    #[schema(required, example = "20/s")]
    rate: Option<String>,
    /// The tasks that are left before the job stops by itself.
    #[schema(required)]
    left: Option<u64>,
    /// The tasks that matched at the request.
    #[schema(example = 12)]
    total: u64,
    /// True if there may be more than `total`.
    #[schema(example = false)]
    total_is_at_least: bool,
    /// Tasks that the job has processed.
    #[schema(example = 12)]
    matched: u64,
    /// Tasks that have accepted the command.
    #[schema(example = 11)]
    accepted: u64,
    /// Tasks that have refused the command, because of their state or because they do not exist.
    #[schema(example = 1)]
    refused: u64,
    /// The refused tasks by kind of problem.
    #[schema(example = json!({"past-pivot": 1}))]
    refusals: BTreeMap<String, u64>,
    /// Tasks that have accepted the command and of which a step has failed since. It is counted for a single job.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 2)]
    failed_again: Option<u64>,
    /// True if there may be more than `failed_again`: 10,000 tasks were examined.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = false)]
    failed_again_is_at_least: Option<bool>,
    /// The instance that carries the job out.
    #[schema(required)]
    instance: Option<String>,
    /// The main events, the first and the last 49.
    #[schema(max_items = 50)]
    events: Vec<BulkEventView>,
}

/// An event of a job.
#[derive(Serialize, ToSchema)]
#[schema(as = BulkEvent)]
pub struct BulkEventView {
    at: Timestamp,
    #[schema(example = "taken over")]
    event: String,
    /// The operator or the instance.
    by: String,
}

impl BulkJobView {
    pub fn new(record: &BulkJobRecord, failed_again: Option<(u64, bool)>) -> Self {
        let BulkJobRecord { id, order, job, .. } = record;
        let mut selection: Map<String, Value> =
            serde_json::from_str(&order.body).unwrap_or_default();
        for name in DATA
            .iter()
            .chain(&["as_of", "dry_run", "first", "rate", "reason"])
        {
            selection.remove(*name);
        }
        let (ended_at, stop_cause, failure) = match &job.state {
            BulkState::Running | BulkState::Stopping => (None, None, None),
            BulkState::Ended { at } => (Some(*at), None, None),
            BulkState::Stopped { at, cause } => (Some(*at), Some(word(*cause)), None),
            BulkState::Failed { at, reason } => (Some(*at), None, Some(reason.clone())),
        };
        Self {
            id: id.0,
            command: order.action.as_str(),
            sentence: order.sentence.clone(),
            state: job.state.as_str(),
            stop_cause,
            failure,
            by: order.by.clone(),
            reason: order.reason.clone(),
            created_at: order.at,
            ended_at,
            selection: Value::Object(selection),
            up_to: order.up_to,
            rate: job.rate.map(|rate| rate.to_string()),
            left: job.left,
            total: order.total,
            total_is_at_least: order.total_is_at_least,
            matched: job.matched,
            accepted: job.accepted,
            refused: job.refused,
            refusals: job.refusals.clone(),
            failed_again: failed_again.map(|(count, _)| count),
            failed_again_is_at_least: failed_again.map(|(_, is_at_least)| is_at_least),
            instance: job.lease.as_ref().map(|lease| lease.holder.to_string()),
            events: job.entries.iter().map(BulkEventView::new).collect(),
        }
    }
}

impl BulkEventView {
    fn new(entry: &BulkEntry) -> Self {
        let BulkEntry { at, event, by } = entry.clone();
        Self { at, event, by }
    }
}

fn word(cause: StopCause) -> &'static str {
    match cause {
        StopCause::Operator => "operator",
        StopCause::First => "first",
    }
}

/// A task of a job.
#[derive(Serialize, ToSchema)]
#[schema(as = BulkTask)]
pub struct BulkTaskView {
    #[schema(value_type = Uuid)]
    task: TaskId,
    #[schema(required)]
    key: Option<String>,
    /// The state of the task now. Null if the task was deleted.
    #[schema(required, value_type = Option<TaskStatus>)]
    state: Option<String>,
    /// The time of the batch.
    at: Timestamp,
    /// The kind of problem for which the task has refused the command.
    #[schema(required, example = "wrong-task-state")]
    problem: Option<String>,
    #[schema(required, example = "only a task with a step in error can be retried")]
    reason: Option<String>,
    /// The step that has failed since.
    #[schema(required, example = "charge")]
    failed_step: Option<String>,
    #[schema(required)]
    failed_at: Option<Timestamp>,
    /// The error of that step, without the body of the response.
    #[schema(required)]
    error: Option<Fault>,
}

impl From<BulkTaskRow> for BulkTaskView {
    fn from(row: BulkTaskRow) -> Self {
        let BulkTaskRow {
            task,
            at,
            kind,
            reason,
            state,
            key,
            failed_step,
            failed_at,
            error,
        } = row;
        Self {
            task,
            key,
            state,
            at,
            problem: kind,
            reason,
            failed_step,
            failed_at,
            error: error.map(|error| Fault {
                body: None,
                ..error
            }),
        }
    }
}
