//! The tasks of a workflow by version: whether one does worse than the one before.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::no_such_workflow;
use crate::{
    api::{
        App,
        extract::{NamePath, PlainName, Query},
        problem::Problem,
        response::json,
    },
    domain::{
        task::TaskStatus,
        values::{Timestamp, WorkflowName},
    },
    store::{MOST_OF_WORKFLOW, VersionCount, WorkflowUsage},
};

/// The tasks of a workflow by version.
#[derive(Serialize, ToSchema)]
#[schema(as = WorkflowUsage)]
pub struct WorkflowUsageView {
    /// The number of the latest tasks that `versions` counts: at most 1,000.
    #[schema(example = 1000)]
    tasks: u64,
    /// True if the workflow may have earlier tasks, which are not counted.
    more: bool,
    /// True if the workflow may have more than 1,000 tasks in error. Only the latest of them are counted.
    more_in_error: bool,
    /// The versions that have tasks, the latest one first.
    versions: Vec<VersionUsageView>,
}

/// The tasks of one version of a workflow.
#[derive(Serialize, ToSchema)]
#[schema(as = VersionUsage)]
pub struct VersionUsageView {
    #[schema(example = 14)]
    version: u32,
    /// The tasks of this version among the latest tasks of the workflow.
    #[schema(example = 511)]
    tasks: u64,
    /// The tasks among these that have ended as they should.
    #[schema(example = 46)]
    processed: u64,
    /// The tasks among these that need a person.
    #[schema(example = 465)]
    error: u64,
    /// The tasks among these that are being undone, were undone or were cancelled.
    #[schema(example = 0)]
    undone: u64,
    /// The time of the first of them. `null` where the version has none among the latest tasks.
    #[schema(required, example = "2026-01-31T09:30:00.000Z")]
    since: Option<Timestamp>,
    /// All tasks of this version that need a person, also those that are not among the latest tasks.
    #[schema(example = 465)]
    in_error: u64,
}

impl VersionUsageView {
    fn new(version: u32, usage: &WorkflowUsage) -> Self {
        let of_version = |counts: &[VersionCount]| {
            let counts = counts.iter().filter(|count| count.version == version);
            counts.copied().collect::<Vec<_>>()
        };
        let latest = of_version(&usage.latest);
        let in_states = |states: &[TaskStatus]| {
            let counts = latest.iter().filter(|count| states.contains(&count.state));
            counts.map(|count| count.tasks).sum()
        };
        Self {
            version,
            tasks: total(&latest),
            processed: in_states(&[TaskStatus::Processed]),
            error: in_states(&[TaskStatus::Error]),
            undone: in_states(&[
                TaskStatus::Undoing,
                TaskStatus::Undone,
                TaskStatus::Cancelled,
            ]),
            since: latest.iter().map(|count| count.since).min(),
            in_error: total(&of_version(&usage.in_error)),
        }
    }
}

fn total(counts: &[VersionCount]) -> u64 {
    counts.iter().map(|count| count.tasks).sum()
}

impl From<WorkflowUsage> for WorkflowUsageView {
    fn from(usage: WorkflowUsage) -> Self {
        let all = usage.latest.iter().chain(&usage.in_error);
        let mut versions: Vec<_> = all.map(|count| count.version).collect();
        versions.sort_unstable_by(|a, b| b.cmp(a));
        versions.dedup();
        let tasks = total(&usage.latest);
        Self {
            tasks,
            more: tasks >= MOST_OF_WORKFLOW,
            more_in_error: total(&usage.in_error) >= MOST_OF_WORKFLOW,
            versions: versions
                .into_iter()
                .map(|version| VersionUsageView::new(version, &usage))
                .collect(),
        }
    }
}

/// Count the tasks of a workflow by version
///
/// The counts are of the latest 1,000 tasks of the workflow: how many each version has, and how they do. They show whether a new version
/// does worse than the one before, and cost the same with any number of tasks.
#[utoipa::path(
    get, path = "/v1/workflows/{name}/usage", tag = "workflows", operation_id = "get_workflow_usage",
    params(("name" = PlainName, Path, description = "The workflow's name", example = "order")),
    responses((status = 200, description = "The tasks by version", body = WorkflowUsageView)),
)]
pub(super) async fn usage(
    State(app): State<Arc<App>>,
    NamePath(name): NamePath,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    let name = WorkflowName::new(name);
    let reader = &app.store.reader;
    if reader.active_workflow(&name).await?.is_none() {
        return Err(no_such_workflow(&name, None));
    }
    let usage = reader.workflow_usage(&name).await?;
    Ok(json(StatusCode::OK, &WorkflowUsageView::from(usage)))
}
