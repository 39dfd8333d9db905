//! Reads bulk jobs and their tasks, and stops and resumes jobs.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;
use tracing::info;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    create::respond,
    request::BulkPace,
    view::{BulkJobView, BulkTaskView},
};
use crate::{
    api::{
        App, Problem,
        extract::{BulkParams, BulkPath, Caller, OptionalJsonBody, PageQuery, Query},
        openapi::words::words,
        problem::{ProblemBody, ProblemKind},
        response::{Page, json},
        task::commands::reason,
    },
    domain::{
        task::{BulkChange, BulkRefusal},
        values::{Fields, TaskId},
    },
    store::{BulkJobId, BulkResultFilter, BulkTaskQuery},
};

/// The results of the tasks of a job by which they are listed.
pub struct BulkResultSchema;

words! {
    BulkResultSchema = "BulkTaskResult", "`accepted` the command; `refused` it; `failed_again`: accepted it, and a step has failed since.", BulkResultFilter::ALL.map(BulkResultFilter::as_str);
}

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get))
        .routes(routes!(tasks))
        .routes(routes!(stop))
        .routes(routes!(resume))
}

/// The pace at which the job continues.
#[derive(ToSchema)]
#[schema(as = ResumeBulkJob)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct ResumeBody {
    /// The job stops again after this many tasks. Default: it processes all of them.
    #[schema(minimum = 1, maximum = 1_000_000_000)]
    first: Option<u64>,
    /// Replaces the rate.
    #[schema(example = "20/s", pattern = "^[0-9]+/[smh]$")]
    rate: Option<String>,
    /// The reason, recorded in the ledger.
    #[schema(example = "the service has recovered")]
    reason: Option<String>,
}

/// The reason of a stop.
#[derive(ToSchema)]
#[schema(as = StopBulkJob)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct StopJobBody {
    /// Recorded in the ledger.
    #[schema(example = "the service refuses them all")]
    reason: Option<String>,
}

/// List bulk jobs
///
/// The newest first. A job is kept for 30 days after it has ended, has failed or was stopped.
#[utoipa::path(
    get, path = "/v1/bulk", tag = "operate", operation_id = "list_bulk_jobs",
    params(PageQuery),
    responses((status = 200, description = "A page of jobs", body = Page<BulkJobView>)),
)]
async fn list(State(app): State<Arc<App>>, mut query: Query) -> Result<Response, Problem> {
    let limit = query.limit()?.min(MOST_ON_PAGE);
    let (before, cursors) = query.cursor(|id| id.parse().ok().map(BulkJobId))?;
    query.finish()?;
    let records = app.store.reader.bulk_jobs(before, limit + 1).await?;
    let page = Page::new(records, limit, cursors, |record| record.id.to_string());
    let page = Page {
        items: page
            .items
            .iter()
            .map(|record| BulkJobView::new(record, None))
            .collect::<Vec<_>>(),
        next_cursor: page.next_cursor,
    };
    Ok(json(StatusCode::OK, &page))
}

/// The most jobs on a page: each may have a thousand ids.
const MOST_ON_PAGE: usize = 50;

/// Get a bulk job
///
/// With its progress. Poll it after Retry-After while it runs.
#[utoipa::path(
    get, path = "/v1/bulk/{id}", tag = "operate", operation_id = "get_bulk_job",
    params(BulkParams),
    responses((status = 200, description = "The job", body = BulkJobView)),
)]
async fn get(
    State(app): State<Arc<App>>,
    BulkPath(id): BulkPath,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    let record = app.store.reader.bulk_job(id).await?;
    let record = record.ok_or_else(|| no_such_job(id))?;
    Ok(respond(&app, &record, StatusCode::OK).await?)
}

/// A page of the tasks of a job.
#[derive(Serialize, ToSchema)]
pub(super) struct BulkTaskPage {
    /// The oldest first.
    items: Vec<BulkTaskView>,
    /// Pass it as `cursor` to get the next page, also if this one is empty; null on the last page.
    #[schema(required, pattern = "^[A-Za-z0-9_-]+$")]
    next_cursor: Option<String>,
}

/// List the tasks of a bulk job
///
/// `result` selects them: the tasks that have refused the command, with the reasons; the tasks that have accepted it; or
/// those of the latter of which a step has failed since, with the error. The oldest first.
#[utoipa::path(
    get, path = "/v1/bulk/{id}/tasks", tag = "operate", operation_id = "list_bulk_job_tasks",
    params(BulkParams, ("result" = Option<BulkResultSchema>, Query, description = "The tasks that are listed. Default: those that have refused the command", example = "refused"), PageQuery),
    responses((status = 200, description = "A page of tasks", body = BulkTaskPage)),
)]
async fn tasks(
    State(app): State<Arc<App>>,
    BulkPath(id): BulkPath,
    mut query: Query,
) -> Result<Response, Problem> {
    let result = query.one_of("result", BulkResultFilter::ALL, BulkResultFilter::as_str)?;
    let limit = query.limit()?;
    let (after, cursors) = query.cursor(|id| id.parse().ok().map(TaskId))?;
    query.finish()?;
    if app.store.reader.bulk_job(id).await?.is_none() {
        return Err(no_such_job(id));
    }
    let query = BulkTaskQuery {
        job: id,
        result: result.unwrap_or(BulkResultFilter::Refused),
        after,
        limit,
    };
    let found = app.store.reader.bulk_tasks(&query).await?;
    let page = BulkTaskPage {
        items: found.tasks.into_iter().map(BulkTaskView::from).collect(),
        next_cursor: found.next.map(|next| cursors.after(next)),
    };
    Ok(json(StatusCode::OK, &page))
}

/// Stop a bulk job
///
/// The batch that was begun is completed; no other task is touched until the job is resumed. Tasks that have accepted
/// the command stay as they are.
#[utoipa::path(
    post, path = "/v1/bulk/{id}/stop", tag = "operate", operation_id = "stop_bulk_job",
    params(BulkParams),
    request_body(content = Option<StopJobBody>, description = "Optional"),
    responses(
        (status = 200, description = "The job: `stopping` until its batch is completed", body = BulkJobView),
        (status = 409, description = "The job has ended or failed", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
async fn stop(
    State(app): State<Arc<App>>,
    caller: Caller,
    BulkPath(id): BulkPath,
    query: Query,
    OptionalJsonBody(body): OptionalJsonBody,
) -> Result<Response, Problem> {
    query.finish()?;
    let mut fields = match &body {
        Some(body) => Fields::of(body, "").map_err(Problem::invalid)?,
        None => Fields::default(),
    };
    let reason = reason(&mut fields);
    fields.finish().map_err(Problem::invalid)?;
    let by = caller.name.to_string();
    command(&app, &caller, id, BulkChange::Stop { by }, reason).await
}

/// Resume a bulk job
///
/// A job that was stopped, or that has failed, continues where it was. Of a job that runs, the rate and `first` are
/// changed.
#[utoipa::path(
    post, path = "/v1/bulk/{id}/resume", tag = "operate", operation_id = "resume_bulk_job",
    params(BulkParams),
    request_body(content = Option<ResumeBody>, description = "Optional"),
    responses(
        (status = 200, description = "The job", body = BulkJobView),
        (status = 409, description = "The job has ended", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
async fn resume(
    State(app): State<Arc<App>>,
    caller: Caller,
    BulkPath(id): BulkPath,
    query: Query,
    OptionalJsonBody(body): OptionalJsonBody,
) -> Result<Response, Problem> {
    query.finish()?;
    let mut fields = match &body {
        Some(body) => Fields::of(body, "").map_err(Problem::invalid)?,
        None => Fields::default(),
    };
    let BulkPace { first, rate } = BulkPace::read(&mut fields);
    let reason = reason(&mut fields);
    fields.finish().map_err(Problem::invalid)?;
    let by = caller.name.to_string();
    let change = BulkChange::Resume { by, first, rate };
    command(&app, &caller, id, change, reason).await
}

async fn command(
    app: &App,
    caller: &Caller,
    id: BulkJobId,
    change: BulkChange,
    reason: Option<String>,
) -> Result<Response, Problem> {
    let word = match &change {
        BulkChange::Stop { .. } => "stop",
        _ => "resume",
    };
    let store = app.store.ordered_by(caller.origin());
    let changed = store.command_bulk_job(id, change, reason).await?;
    match changed.ok_or_else(|| no_such_job(id))? {
        Ok(record) => {
            info!(job = %id, command = word, "a bulk job was commanded");
            Ok(respond(app, &record, StatusCode::OK).await?)
        }
        Err(BulkRefusal::Ended | BulkRefusal::NotYours) => Err(Problem::new(
            ProblemKind::BulkJobEnded,
            format!("bulk job {id} has ended or failed: GET /v1/bulk/{id} shows it"),
        )),
    }
}

fn no_such_job(id: BulkJobId) -> Problem {
    Problem::new(
        ProblemKind::NoSuchBulkJob,
        format!("bulk job {id} does not exist; jobs are deleted 30 days after their end"),
    )
}
