//! Retrying many tasks with one request.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use futures::future::join_all;
use serde::Serialize;
use utoipa::ToSchema;

use super::{commands::reason, json};
use crate::{
    api::{
        App, Problem,
        extract::{Caller, JsonBody, Query, ids},
        problem::ProblemBody,
    },
    domain::{Command, Fields, TaskId, TaskStatus, Timestamp},
    store::{Apply, CommandError, TaskFilter},
};

/// Tasks asked in one go; the writer saves them together.
const BATCH: usize = 200;
/// The longest name or label, in bytes.
const LONGEST: usize = 255;

/// Which tasks.
#[derive(ToSchema)]
#[schema(as = BulkRetry)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct BulkBody {
    /// These tasks; or give filters.
    #[schema(max_items = 1000)]
    ids: Option<Vec<String>>,
    #[schema(example = "order")]
    workflow: Option<String>,
    key: Option<String>,
    #[schema(example = "payments")]
    agent: Option<String>,
    #[schema(example = json!({"customer": "acme"}))]
    labels: Option<std::collections::BTreeMap<String, String>>,
    #[schema(format = DateTime)]
    created_after: Option<String>,
    #[schema(format = DateTime)]
    created_before: Option<String>,
    /// Only count.
    #[schema(example = true)]
    dry_run: Option<bool>,
    reason: Option<String>,
}

/// How a bulk retry went.
#[derive(Serialize, ToSchema)]
pub struct BulkResult {
    /// Tasks in error that the request names.
    #[schema(example = 12)]
    matched: u64,
    /// Tasks that go on; 0 in a dry run.
    #[schema(example = 12)]
    retried: u64,
    /// Tasks that were not in error any more, or are not there.
    #[schema(example = 0)]
    refused: u64,
    #[schema(example = false)]
    dry_run: bool,
}

/// Resubmit the failed steps of many tasks
///
/// Takes the filters of the list, or ids. Only tasks in error are touched, each in its own change, so
/// that a repeat is harmless.
#[utoipa::path(
    post, path = "/v1/tasks/retry", tag = "operate",
    request_body(content = BulkBody, example = json!({"workflow": "order", "agent": "payments", "dry_run": true})),
    responses(
        (status = 200, description = "How many", body = BulkResult),
        (status = 422, description = "The body is not valid", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn retry_tasks(
    State(app): State<Arc<App>>,
    caller: Caller,
    query: Query,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    query.finish()?;
    let mut fields = Fields::of(&body, "").map_err(Problem::invalid)?;
    let ids = ids(&mut fields, "task");
    let ids = ids.map(|ids| ids.into_iter().map(TaskId).collect::<Vec<_>>());
    let filter = filter(&mut fields);
    if ids.is_some() && !filter.is_empty() {
        fields.fault("ids", "give either ids or filters, not both");
    }
    let filter = TaskFilter {
        state: Some(TaskStatus::Error),
        ..filter
    };
    let dry_run = fields.boolean("dry_run").unwrap_or(false);
    let reason = reason(&mut fields);
    fields.finish().map_err(Problem::invalid)?;

    let mut result = BulkResult {
        matched: 0,
        retried: 0,
        refused: 0,
        dry_run,
    };
    match ids {
        Some(ids) => {
            for chunk in ids.chunks(BATCH) {
                retry(&app, &caller, chunk, reason.as_deref(), &mut result).await?;
            }
        }
        None if dry_run => result.matched = app.store.reader.count_tasks(&filter).await?,
        None => {
            let mut after = None;
            loop {
                let ids = app.store.reader.task_ids(&filter, after, BATCH).await?;
                let Some(last) = ids.last() else { break };
                after = Some(*last);
                retry(&app, &caller, &ids, reason.as_deref(), &mut result).await?;
            }
        }
    }
    Ok(json(StatusCode::OK, &result))
}

async fn retry(
    app: &App,
    caller: &Caller,
    ids: &[TaskId],
    reason: Option<&str>,
    result: &mut BulkResult,
) -> Result<(), Problem> {
    if result.dry_run {
        for id in ids {
            let task = app.store.reader.task(*id).await?;
            match task {
                Some(task) if task.status() == TaskStatus::Error => result.matched += 1,
                _ => result.refused += 1,
            }
        }
        return Ok(());
    }
    let asked = ids.iter().map(|id| {
        app.store.apply(Apply {
            task: *id,
            command: Command::Retry {
                step: None,
                body: None,
                reason: reason.map(str::to_owned),
            },
            by: caller.operator(),
            if_version: None,
            idempotency: None,
        })
    });
    for outcome in join_all(asked).await {
        match outcome {
            Ok(_) => {
                result.matched += 1;
                result.retried += 1;
            }
            Err(CommandError::Store(error)) => return Err(error.into()),
            Err(_) => result.refused += 1,
        }
    }
    Ok(())
}

/// The filters of the list; the state need not be given, and can only be error.
fn filter(fields: &mut Fields<'_>) -> TaskFilter {
    fields.choice("state", &[(TaskStatus::Error.as_str(), ())]);
    TaskFilter {
        state: None,
        workflow: fields.string("workflow", LONGEST),
        key: fields.string("key", LONGEST),
        agent: fields.string("agent", LONGEST),
        labels: fields.string_map("labels", LONGEST).into_iter().collect(),
        created_after: time(fields, "created_after"),
        created_before: time(fields, "created_before"),
    }
}

fn time(fields: &mut Fields<'_>, name: &str) -> Option<Timestamp> {
    let text = fields.string(name, 64)?;
    let time = Timestamp::parse(&text);
    if time.is_none() {
        fields.fault(
            name,
            format!("{text:?} is not an RFC 3339 time such as \"2026-01-31T09:30:00Z\""),
        );
    }
    time
}
