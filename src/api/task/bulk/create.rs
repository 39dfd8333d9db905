//! Records a bulk command as a job, and waits for its end if the caller asks for that.

use std::time::Duration;

use axum::{
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::Response,
};
use serde_json::{Map, Value, value::RawValue};
use tracing::info;

use super::{
    dry_run::{count, in_words},
    migrate::BulkMove,
    request::{BulkCommand, BulkPace, BulkRequest},
    view::BulkJobView,
};
use crate::{
    api::{
        App, Problem,
        extract::{Caller, Conditions},
        problem::ProblemKind,
        response::json,
        task::{POLL_AFTER, mark_as_replayed},
    },
    clock::{self, sleep_until},
    domain::task::{BulkAction, BulkJob, BulkOrder},
    store::{BulkJobError, BulkJobId, BulkJobRecord, Idempotency, NewBulkJob, StoreError},
};

/// The most tasks that are examined to count those of a job.
const MOST_COUNTED: usize = 100_000;
/// The rest between two looks at a job that another instance may carry out.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

pub(super) async fn run(
    app: &App,
    caller: &Caller,
    action: BulkAction,
    mut request: BulkRequest,
    body: &RawValue,
    conditions: &Conditions,
    idempotency: Option<Idempotency>,
) -> Result<Response, Problem> {
    if app.stop.is_cancelled() {
        return Err(Problem::new(
            ProblemKind::Stopping,
            "the service is stopping: send the command to another instance, or to this one after its restart",
        ));
    }
    let body = match &request.command {
        BulkCommand::Same(_) | BulkCommand::Patch(_) | BulkCommand::Clone(_) => {
            body.get().to_owned()
        }
        BulkCommand::Migrate(migration) => {
            let mut moves = BulkMove::new(app, migration);
            match moves.check(&request.selection).await? {
                Some(version) => at_version(body, version),
                None => body.get().to_owned(),
            }
        }
    };
    let raw: &RawValue = serde_json::from_str(&body)
        .map_err(|error| Problem::new(ProblemKind::Internal, error.to_string()))?;
    let now = app.store.reader.now().await?;
    request.limit = MOST_COUNTED;
    let total = count(app, &request).await?;
    let BulkPace { first, rate } = request.pace;
    let new = NewBulkJob {
        id: BulkJobId(app.store.new_task_id().0),
        order: BulkOrder {
            action,
            sentence: in_words(action, raw, total, request.as_of.unwrap_or(now)),
            body,
            by: caller.name.to_string(),
            reason: request.reason,
            total: total.tasks,
            total_is_at_least: total.is_at_least,
            // Tasks that are submitted from now on have greater ids.
            up_to: app.store.new_task_id(),
            at: now,
        },
        job: BulkJob::new(&caller.name, rate, first, now),
        idempotency,
    };
    let store = app.store.ordered_by(caller.origin());
    let added = store.add_bulk_job(new).await?;
    let (record, is_replayed) = (added.record, added.is_replayed);
    let location = format!("/v1/bulk/{}", record.id);
    if !is_replayed {
        let sentence = &record.order.sentence;
        info!(job = %record.id, by = %caller.name, sentence, "a bulk job begins");
    }
    let mut response = match conditions.prefer_wait {
        None => respond(app, &record, StatusCode::ACCEPTED).await?,
        Some(wait) => {
            let (record, has_waited) = wait_for(app, record, wait).await?;
            let status = match record.job.is_running() {
                true => StatusCode::ACCEPTED,
                false => StatusCode::OK,
            };
            let mut response = respond(app, &record, status).await?;
            if has_waited && let Ok(applied) = format!("wait={}", wait.as_secs()).parse() {
                let name = HeaderName::from_static("preference-applied");
                response.headers_mut().insert(name, applied);
            }
            response
        }
    };
    let headers = response.headers_mut();
    if let Ok(location) = HeaderValue::from_str(&location) {
        headers.insert(header::LOCATION, location);
    }
    headers.insert(header::VARY, HeaderValue::from_static("prefer"));
    if is_replayed {
        mark_as_replayed(&mut response);
    }
    Ok(response)
}

/// Returns the body with the number of the version, so that it is the same version for all tasks of the job.
fn at_version(body: &RawValue, version: u32) -> String {
    let mut body: Map<String, Value> = serde_json::from_str(body.get()).unwrap_or_default();
    body.insert("to_version".to_owned(), version.into());
    Value::Object(body).to_string()
}

/// Waits until the job runs no longer, the service stops, or the time is over. Returns false with the job if too many
/// callers wait already.
async fn wait_for(
    app: &App,
    mut record: BulkJobRecord,
    wait: Duration,
) -> Result<(BulkJobRecord, bool), Problem> {
    let until = clock::instant() + wait;
    let mut changes = app.store.bulk_jobs.subscribe();
    let Ok(_place) = app.waits.try_acquire() else {
        return Ok((record, false));
    };
    loop {
        if let Some(now) = app.store.reader.bulk_job(record.id).await? {
            record = now;
        }
        if !record.job.is_running() || clock::instant() >= until || app.stop.is_cancelled() {
            return Ok((record, true));
        }
        let again = until.min(clock::instant() + LOOK_AGAIN);
        tokio::select! {
            _ = changes.changed() => {}
            () = sleep_until(again) => {}
            () = app.stop.cancelled() => {}
        }
    }
}

/// Renders the job.
pub(super) async fn respond(
    app: &App,
    record: &BulkJobRecord,
    status: StatusCode,
) -> Result<Response, StoreError> {
    let failed_again = app.store.reader.count_failed_again(record.id).await?;
    let view = BulkJobView::new(record, Some(failed_again));
    let mut response = json(status, &view);
    if record.job.is_running() {
        let after = HeaderValue::from_static(POLL_AFTER);
        response.headers_mut().insert(header::RETRY_AFTER, after);
    }
    Ok(response)
}

impl From<BulkJobError> for Problem {
    fn from(error: BulkJobError) -> Self {
        let detail = error.to_string();
        match error {
            BulkJobError::KeyReused => Self::new(ProblemKind::KeyReused, detail),
            BulkJobError::TooMany => Self::new(ProblemKind::Busy, detail),
            BulkJobError::Store(error) => error.into(),
        }
    }
}
