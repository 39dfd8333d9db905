//! Reads tasks: one with all its steps, many in pages.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderName, HeaderValue, StatusCode},
    response::Response,
};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::{
    TaskWaitResult,
    bulk::jobs::BulkResultSchema,
    failures::cause,
    hidden_bodies::{hidden, hide_in_head, hides_bodies, hides_bodies_of, hides_bodies_of_task},
    json, load, render_with_positions,
    summary::SummaryView,
    wait_until_settled, watch,
};
use crate::{
    api::{
        App, Problem,
        extract::{Caller, LONGEST_WAIT, PageQuery, Query, TaskParams, TaskPath, labels},
        openapi::words::LabelFilterSchema,
        problem::{ProblemBody, ProblemKind},
        text_filter,
    },
    domain::{
        task::TaskStatus,
        values::{TaskId, Timestamp},
        view::{DurationSchema, TaskView},
    },
    store::{AlertId, BulkJobId, BulkResultFilter, TaskFilter, TaskQuery},
};

/// A page of tasks, newest first.
#[derive(Serialize, ToSchema)]
#[schema(as = TaskPage)]
pub(super) struct TaskListPage<'a> {
    items: Vec<SummaryView<'a>>,
    /// Pass it as `cursor` to get the next page, even if this one has few items or none; null on the last page.
    #[schema(required, pattern = "^[A-Za-z0-9_-]+$")]
    next_cursor: Option<String>,
    /// The time of the oldest task that was examined for this page. Older tasks may match: the next pages examine
    /// them. Null on the last page, for which all were examined.
    #[schema(required)]
    examined_back_to: Option<Timestamp>,
}

/// Get a task with all its steps
///
/// With `wait`, the response comes when the task has ended or needs an operator, or when the time is over,
/// whichever is first. A step that is not running has the reason in `blocked_by`; only this operation also counts
/// the steps that are ahead of it in its agent's queue.
#[utoipa::path(
    get, path = "/v1/tasks/{id}", tag = "tasks", operation_id = "get_task",
    params(
        TaskParams,
        ("wait" = Option<DurationSchema>, Query, description = "The longest wait; more than `60s` is treated as `60s`, and `Preference-Applied: wait=60` says so", example = "30s"),
    ),
    responses(
        (status = 200, description = "The task; its version is the ETag", body = TaskView),
        (status = 404, description = "The task does not exist", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    TaskPath(id): TaskPath,
    mut query: Query,
) -> Result<Response, Problem> {
    let wait = query.span("wait")?;
    query.finish()?;
    let is_cut = wait.is_some_and(|wait| wait > LONGEST_WAIT);
    // The subscription comes before the read of the task: an end between the two must not be missed.
    let mut watching = wait.map(|_| watch(&app, id));
    let mut task = load(&app, id).await?;
    let hides_bodies = hides_bodies(&app, &caller, &task).await?;
    if let (Some(wait), Some(watching)) = (wait, &mut watching)
        && !task.is_settled()
    {
        let known = task.version;
        drop(task);
        task = match wait_until_settled(&app, watching, known, wait.duration()).await {
            TaskWaitResult::Settled(task) => task,
            TaskWaitResult::NotSettled | TaskWaitResult::Refused => load(&app, id).await?,
        };
    }
    let mut response = render_with_positions(&app, &task, hides_bodies).await;
    if is_cut {
        let applied = format!("wait={}", LONGEST_WAIT.duration().as_secs());
        if let Ok(applied) = HeaderValue::try_from(applied) {
            let headers = response.headers_mut();
            headers.insert(HeaderName::from_static("preference-applied"), applied);
        }
    }
    Ok(response)
}

/// List tasks, newest first
///
/// A task is listed if it matches every given filter. Cursors are stable: a task submitted in the meantime never shifts
/// a page. If few tasks match, a page may have fewer items than `limit`, and still a `next_cursor`: Provost examines
/// 2,000 tasks at a time, and 10,000 before it returns a page without items. Only the last page has no
/// `next_cursor`; `examined_back_to` says how far back the others have looked.
#[utoipa::path(
    get, path = "/v1/tasks", tag = "tasks", operation_id = "list_tasks",
    params(
        ("state" = Option<TaskStatus>, Query, description = "The state of the tasks", example = "error"),
        ("workflow" = Option<String>, Query, description = "A registered workflow's name", example = "order"),
        ("key" = Option<String>, Query, description = "The caller's own id", example = "order-1001"),
        ("agent" = Option<String>, Query, description = "Tasks with a step of this agent; with `state=error`, those of which a step failed at this agent", example = "payments"),
        ("alert" = Option<Uuid>, Query, description = "Tasks with a step that this alert is about, as long as it is not closed; that of a cause is about many"),
        ("cause" = Option<String>, Query, pattern = "^[0-9a-f]{16}$", description = "Tasks with a step that needs a person for the cause with this fingerprint: `GET /v1/failures` lists them", example = "5f1d0a7c93b2e846"),
        ("text" = Option<String>, Query, min_length = 1, max_length = 200, description = "Tasks with this text in their key, or in the message of one of the first 100 steps that need a person; case does not matter", example = "declined"),
        ("label" = Option<Vec<LabelFilterSchema>>, Query, description = "`name:value`; may be given several times, up to 32 times", example = json!(["customer:acme"])),
        ("created_after" = Option<String>, Query, format = DateTime, description = "A time in RFC 3339"),
        ("created_before" = Option<String>, Query, format = DateTime, description = "A time in RFC 3339"),
        ("at_risk" = Option<bool>, Query, description = "Only tasks that will be late by what is known"),
        ("bulk" = Option<Uuid>, Query, description = "The tasks of this bulk job"),
        ("bulk_result" = Option<BulkResultSchema>, Query, description = "With `bulk`: the tasks with this result. Default: accepted", example = "failed_again"),
        ("parent" = Option<Uuid>, Query, description = "The tasks of steps of this task"),
        PageQuery,
    ),
    responses(
        (status = 200, description = "A page of tasks without their input and steps", body = TaskListPage),
        (status = 400, description = "A query parameter is invalid", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    mut query: Query,
) -> Result<Response, Problem> {
    let filter = filter(&mut query)?;
    let limit = query.limit()?;
    let (before, cursors) = query.cursor(|text| text.parse().ok().map(TaskId))?;
    query.finish()?;
    let found = app
        .store
        .reader
        .tasks(&TaskQuery {
            filter,
            before,
            limit,
        })
        .await?;
    let page = TaskListPage {
        items: found.tasks.iter().map(SummaryView::new).collect(),
        examined_back_to: found.next.map(TaskId::made_at),
        next_cursor: found.next.map(|last| cursors.after(last)),
    };
    let mut hidden_items = Vec::new();
    for (at, task) in found.tasks.iter().enumerate() {
        if task.error.is_none() {
            continue;
        }
        let hides_bodies = match &task.workflow {
            // The active versions are in memory.
            Some(workflow) => hides_bodies_of(&app, &caller, &workflow.name).await?,
            None => hides_bodies_of_task(&app, &caller, task.id).await?,
        };
        if hides_bodies {
            hidden_items.push(at);
        }
    }
    if hidden_items.is_empty() {
        return Ok(json(StatusCode::OK, &page));
    }
    let page = hidden(&page, |page| {
        for at in hidden_items {
            hide_in_head(&mut page["items"][at]);
        }
    });
    Ok(json(StatusCode::OK, &page))
}

/// Parses a parameter that is the id of a resource of this kind.
fn id(query: &mut Query, name: &'static str, of: &str) -> Result<Option<Uuid>, Problem> {
    let Some(text) = query.string(name) else {
        return Ok(None);
    };
    let id = text.parse().map_err(|_| {
        Problem::new(
            ProblemKind::InvalidQuery,
            format!("{name}: {text:?} is not the id of {of}"),
        )
    })?;
    Ok(Some(id))
}

/// Parses the filter by the result of a bulk job.
fn bulk(query: &mut Query) -> Result<Option<(BulkJobId, BulkResultFilter)>, Problem> {
    let job = id(query, "bulk", "a bulk job")?.map(BulkJobId);
    let all = BulkResultFilter::ALL;
    let result = query.one_of("bulk_result", all, BulkResultFilter::as_str)?;
    match (job, result) {
        (None, Some(_)) => Err(Problem::new(
            ProblemKind::InvalidQuery,
            "bulk_result: name the job in bulk",
        )),
        (job, result) => Ok(job.map(|job| (job, result.unwrap_or(BulkResultFilter::Accepted)))),
    }
}

fn filter(query: &mut Query) -> Result<TaskFilter, Problem> {
    let labels = labels(query)?;
    let state = query.one_of("state", TaskStatus::ALL.iter().copied(), TaskStatus::as_str)?;
    Ok(TaskFilter {
        labels,
        states: state.into_iter().collect(),
        workflow: query.string("workflow"),
        key: query.string("key"),
        agent: query.string("agent"),
        created_after: query.time("created_after")?,
        created_before: query.time("created_before")?,
        at_risk: query.boolean("at_risk")?.unwrap_or(false),
        parent: id(query, "parent", "a task")?.map(TaskId),
        alert: id(query, "alert", "an alert")?.map(AlertId),
        cause: cause(query)?,
        text: text_filter::text(query)?.map(|text| text.typed),
        failed_by: None,
        bulk: bulk(query)?,
    })
}
