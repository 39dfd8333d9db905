//! Commands of operators on schedules: trigger, backfill, pause, resume.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderName, HeaderValue, Method, StatusCode, header},
    response::Response,
};
use serde::Serialize;
use serde_json::value::RawValue;
use tracing::{info, warn};
use utoipa::{IntoParams, ToSchema};

use super::{
    find_schedule, fire, no_such_schedule, respond,
    view::{FireTimeView, RunView, ScheduleView},
};
use crate::{
    api::{
        App, Problem,
        extract::{
            Caller, Conditions, JsonBody, NamePath, OptionalJsonBody, PlainName, Query, idempotency,
        },
        openapi::words::{BackfillOverlapSchema, OverlapSchema},
        problem::{ProblemBody, ProblemKind},
        response::json,
    },
    domain::{
        schedule::{
            MOST_BACKFILLED, Overlap, RunRequest, ScheduleRule, ScheduleRun, TriggerRequest,
        },
        values::{FieldFault, Fields, Timestamp},
    },
    store::{CommandedSchedule, ScheduleCommand, ScheduleError},
};

const LONGEST_REASON: usize = 1000;
/// The rules for two runs of a backfill at the same time that a request may choose from.
const BACKFILL_OVERLAPS: [Overlap; 2] = [Overlap::Queue, Overlap::Allow];

/// The header of a command that makes runs: `params(RunHeaders)`.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only the OpenAPI document reads its fields")]
pub struct RunHeaders {
    /// Makes it safe to repeat the request, as long as its runs are on record.
    #[param(
        rename = "Idempotency-Key",
        min_length = 1,
        max_length = 255,
        pattern = "^[!-~]+$"
    )]
    idempotency_key: Option<String>,
}

/// The request for a run now.
#[derive(ToSchema)]
#[schema(as = TriggerSchedule)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct TriggerBody {
    /// Default: the rule of the schedule. With `skip` the request is refused while another run is not over.
    overlap: Option<OverlapSchema>,
    #[schema(max_length = 1000)]
    reason: Option<String>,
}

/// The request for runs for the fire times of a past range.
#[derive(ToSchema)]
#[schema(as = BackfillSchedule)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct BackfillBody {
    /// The first time that may be a fire time.
    #[schema(format = DateTime, example = "2026-01-01T00:00:00Z")]
    from: String,
    /// The last time that may be a fire time: not later than now. The range has at most 100 fire times.
    #[schema(format = DateTime, example = "2026-01-07T23:59:59Z")]
    to: String,
    /// `queue`, the default: one after the other; `allow`: all at once.
    #[schema(example = "queue")]
    overlap: Option<BackfillOverlapSchema>,
    #[schema(max_length = 1000)]
    reason: Option<String>,
}

/// The reason for a pause, and its effect on runs that wait.
#[derive(ToSchema)]
#[schema(as = PauseSchedule)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct PauseScheduleBody {
    #[schema(max_length = 1000)]
    reason: Option<String>,
    /// True: runs that wait are discarded.
    #[schema(default = false)]
    discard_queued: Option<bool>,
}

/// The runs that a backfill makes; with `dry_run`, only their fire times.
#[derive(Serialize, ToSchema)]
#[schema(as = Backfill)]
pub struct BackfillView<'a> {
    /// The fire times of the range.
    #[schema(max_items = 100)]
    fire_times: Vec<FireTimeView>,
    /// The runs that were made. A fire time that has a task already gets no other: its run is left out when its turn
    /// comes.
    #[schema(max_items = 100)]
    runs: Vec<RunView<'a>>,
}

/// Trigger a schedule
///
/// Makes a run now, besides those of its fire times, also while the schedule is paused. The response has its task,
/// unless the run waits for another one.
#[utoipa::path(
    post, path = "/v1/schedules/{name}/trigger", tag = "schedules", operation_id = "trigger_schedule",
    params(("name" = PlainName, Path, description = "The schedule's name", example = "nightly-report"), RunHeaders),
    request_body(content = Option<TriggerBody>, description = "Optional"),
    responses(
        (status = 202, description = "The run: its task, or why it has none yet", body = RunView),
        (status = 409, description = "Another run is not over, and `overlap` is `skip`; or too many runs wait", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
pub async fn trigger(
    State(app): State<Arc<App>>,
    caller: Caller,
    NamePath(name): NamePath,
    query: Query,
    conditions: Conditions,
    OptionalJsonBody(body): OptionalJsonBody,
) -> Result<Response, Problem> {
    query.finish()?;
    let (overlap, reason) = match body.as_deref() {
        Some(body) => read_trigger(body).map_err(Problem::invalid)?,
        None => (None, None),
    };
    let record = find_schedule(&app, &name).await?;
    let trigger = TriggerRequest {
        by: caller.name.to_string(),
        overlap: overlap.unwrap_or(record.spec.overlap),
        request: request(&conditions, &caller, &name, "trigger", body.as_deref()),
        reason,
    };
    let command = ScheduleCommand::MakeRuns {
        trigger,
        times: None,
    };
    let commanded = send(&app, &caller, &name, command).await?;
    info!(schedule = %name, by = %caller.name, "a schedule is triggered");
    begin(&app, &name).await;
    let runs = reload_runs(&app, &name, commanded.runs).await?;
    let Some(run) = runs.first() else {
        let detail = "the run is not on record any more";
        return Err(Problem::new(ProblemKind::Internal, detail));
    };
    let mut response = json(StatusCode::ACCEPTED, &RunView::new(run));
    if let Some(task) = run.task
        && let Ok(location) = HeaderValue::try_from(format!("/v1/tasks/{task}"))
    {
        response.headers_mut().insert(header::LOCATION, location);
    }
    mark_replayed(&mut response, commanded.is_replayed);
    Ok(response)
}

/// Backfill a schedule
///
/// Makes runs for the fire times of a past range, one after the other or all at once, with the schedule as it is now.
/// A fire time that has a task already gets no other. While the schedule is paused the runs wait.
#[utoipa::path(
    post, path = "/v1/schedules/{name}/backfill", tag = "schedules", operation_id = "backfill_schedule",
    params(
        ("name" = PlainName, Path, description = "The schedule's name", example = "nightly-report"),
        ("dry_run" = Option<bool>, Query, description = "Return only the fire times", example = false),
        RunHeaders,
    ),
    request_body(content = BackfillBody, description = "The range"),
    responses(
        (status = 202, description = "The runs that were made", body = BackfillView),
        (status = 200, description = "With dry_run, the fire times", body = BackfillView),
        (status = 409, description = "Too many runs wait", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
pub async fn backfill(
    State(app): State<Arc<App>>,
    caller: Caller,
    NamePath(name): NamePath,
    mut query: Query,
    conditions: Conditions,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    let dry_run = query.boolean("dry_run")?.unwrap_or(false);
    query.finish()?;
    let now = app.store.reader.wall_now().await?;
    let read = read_backfill(&body, now).map_err(Problem::invalid)?;
    let rule = find_schedule(&app, &name).await?.rule()?;
    let times = read
        .times(&rule)
        .map_err(|message| Problem::invalid(vec![FieldFault::new("/from", message)]))?;
    let fire_times = FireTimeView::all(&rule, &times);
    if dry_run {
        let runs = Vec::new();
        return Ok(json(StatusCode::OK, &BackfillView { fire_times, runs }));
    }
    let trigger = TriggerRequest {
        by: caller.name.to_string(),
        overlap: read.overlap,
        request: request(&conditions, &caller, &name, "backfill", Some(&body)),
        reason: read.reason,
    };
    let command = ScheduleCommand::MakeRuns {
        trigger,
        times: Some(times),
    };
    let commanded = send(&app, &caller, &name, command).await?;
    let count = commanded.runs.len();
    info!(schedule = %name, by = %caller.name, count, "a schedule is backfilled");
    begin(&app, &name).await;
    let runs = reload_runs(&app, &name, commanded.runs).await?;
    let runs = runs.iter().map(RunView::new).collect();
    let mut response = json(StatusCode::ACCEPTED, &BackfillView { fire_times, runs });
    mark_replayed(&mut response, commanded.is_replayed);
    Ok(response)
}

/// Pause a schedule
///
/// The schedule does not fire, and no run begins, except those that are triggered. Its tasks continue. Fire times
/// that pass during the pause do not fire later.
#[utoipa::path(
    post, path = "/v1/schedules/{name}/pause", tag = "schedules", operation_id = "pause_schedule",
    params(("name" = PlainName, Path, description = "The schedule's name", example = "nightly-report")),
    request_body(content = Option<PauseScheduleBody>, description = "Optional"),
    responses((status = 200, description = "The schedule, paused", body = ScheduleView)),
)]
pub async fn pause(
    State(app): State<Arc<App>>,
    caller: Caller,
    NamePath(name): NamePath,
    query: Query,
    OptionalJsonBody(body): OptionalJsonBody,
) -> Result<Response, Problem> {
    query.finish()?;
    let (reason, discards) = match body.as_deref() {
        Some(body) => read_pause(body).map_err(Problem::invalid)?,
        None => (None, false),
    };
    info!(schedule = %name, by = %caller.name, reason, discards, "a schedule is paused");
    let by = caller.name.to_string();
    let command = ScheduleCommand::Pause {
        by,
        reason,
        discards,
    };
    let commanded = send(&app, &caller, &name, command).await?;
    respond(&app, &commanded.record, StatusCode::OK, &caller).await
}

/// Resume a schedule
///
/// The schedule fires again, from now on, and runs that wait begin. Safe to repeat.
#[utoipa::path(
    post, path = "/v1/schedules/{name}/resume", tag = "schedules", operation_id = "resume_schedule",
    params(("name" = PlainName, Path, description = "The schedule's name", example = "nightly-report")),
    responses((status = 200, description = "The schedule, not paused", body = ScheduleView)),
)]
pub async fn resume(
    State(app): State<Arc<App>>,
    caller: Caller,
    NamePath(name): NamePath,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    info!(schedule = %name, by = %caller.name, "a schedule is resumed");
    let by = caller.name.to_string();
    let commanded = send(&app, &caller, &name, ScheduleCommand::Resume { by }).await?;
    respond(&app, &commanded.record, StatusCode::OK, &caller).await
}

async fn send(
    app: &App,
    caller: &Caller,
    name: &str,
    command: ScheduleCommand,
) -> Result<CommandedSchedule, Problem> {
    let store = app.store.ordered_by(caller.origin());
    let commanded = store.command_schedule(name.to_owned(), command).await;
    match commanded {
        Ok(Some(commanded)) => Ok(commanded),
        Ok(None) => Err(no_such_schedule(name)),
        Err(ScheduleError::Refused(refusal)) => {
            let detail = format!(
                "{refusal}; wait for its end, or pause the schedule with \"discard_queued\": true, or send another `overlap`"
            );
            Err(Problem::new(ProblemKind::ScheduleBusy, detail))
        }
        Err(error @ ScheduleError::KeyReused) => {
            Err(Problem::new(ProblemKind::KeyReused, error.to_string()))
        }
        Err(ScheduleError::Store(error)) => Err(error.into()),
    }
}

/// Begins the runs in this request. After an error they are left to the instance that supervises.
async fn begin(app: &App, name: &str) {
    // On a held instance this is left out, because it would also fire the times that are due.
    if app.hold.is_held() {
        return;
    }
    if let Err(error) = fire(app, name).await {
        warn!(schedule = name, %error, "the runs of a schedule are left to the instance that supervises");
    }
}

/// Returns the runs as they are now: those that have begun in the meantime have a task.
async fn reload_runs(
    app: &App,
    name: &str,
    runs: Vec<ScheduleRun>,
) -> Result<Vec<ScheduleRun>, Problem> {
    let Some(last) = runs.iter().map(|run| run.number).max() else {
        return Ok(runs);
    };
    let found = app
        .store
        .reader
        .schedule_runs(name, Some(last + 1), runs.len());
    let found = found.await?;
    let as_it_is = |run: ScheduleRun| {
        let known = found.iter().find(|known| known.number == run.number);
        known.cloned().unwrap_or(run)
    };
    Ok(runs.into_iter().map(as_it_is).collect())
}

fn request(
    conditions: &Conditions,
    caller: &Caller,
    name: &str,
    command: &str,
    body: Option<&RawValue>,
) -> Option<RunRequest> {
    let path = format!("/v1/schedules/{name}/{command}");
    let bytes = body.map_or(&b""[..], |body| body.get().as_bytes());
    let known = idempotency(conditions, caller, &Method::POST, &path, bytes)?;
    Some(RunRequest {
        key: known.key,
        fingerprint: known.fingerprint,
    })
}

fn mark_replayed(response: &mut Response, is_replayed: bool) {
    if is_replayed {
        let name = HeaderName::from_static("idempotency-replayed");
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static("true"));
    }
}

fn read_trigger(body: &RawValue) -> Result<(Option<Overlap>, Option<String>), Vec<FieldFault>> {
    let mut fields = Fields::of(body, "")?;
    let overlap = fields.choice("overlap", Overlap::ALL);
    let reason = fields.string("reason", LONGEST_REASON);
    fields.finish()?;
    Ok((overlap, reason))
}

fn read_pause(body: &RawValue) -> Result<(Option<String>, bool), Vec<FieldFault>> {
    let mut fields = Fields::of(body, "")?;
    let reason = fields.string("reason", LONGEST_REASON);
    let discards = fields.boolean("discard_queued").unwrap_or(false);
    fields.finish()?;
    Ok((reason, discards))
}

struct BackfillRequest {
    from: Timestamp,
    to: Timestamp,
    overlap: Overlap,
    reason: Option<String>,
}

impl BackfillRequest {
    /// Returns the fire times of the range, or the reason why the range cannot be used.
    fn times(&self, rule: &ScheduleRule) -> Result<Vec<Timestamp>, String> {
        match rule.between(self.from, self.to, MOST_BACKFILLED) {
            None => Err(format!(
                "the range has more than {MOST_BACKFILLED} fire times: give a shorter one, and the rest later"
            )),
            Some(found) if found.is_empty() => {
                Err("the range has no fire time of this schedule".to_owned())
            }
            Some(found) => Ok(found),
        }
    }
}

fn read_backfill(body: &RawValue, now: Timestamp) -> Result<BackfillRequest, Vec<FieldFault>> {
    let mut fields = Fields::of(body, "")?;
    let from = time(&mut fields, "from");
    let to = time(&mut fields, "to");
    let overlap = fields.choice("overlap", &BACKFILL_OVERLAPS);
    let reason = fields.string("reason", LONGEST_REASON);
    if let (Some(from), Some(to)) = (from, to) {
        if to < from {
            fields.fault("to", "must not be before `from`");
        } else if to > now {
            fields.fault(
                "to",
                format!(
                    "must not be later than now, which is {now}: the schedule fires by itself then"
                ),
            );
        }
    }
    fields.finish()?;
    // If one of them is missing, there was a fault, and `finish` has returned it.
    Ok(BackfillRequest {
        from: from.unwrap_or(now),
        to: to.unwrap_or(now),
        overlap: overlap.unwrap_or(Overlap::Queue),
        reason,
    })
}

fn time(fields: &mut Fields<'_>, name: &str) -> Option<Timestamp> {
    if fields.peek(name).is_none() {
        fields.missing(name, "give a time such as \"2026-01-31T00:00:00Z\"");
    }
    let text = fields.string(name, 100)?;
    let time = Timestamp::parse(&text);
    if time.is_none() {
        fields.fault(
            name,
            "must be a time in RFC 3339, such as \"2026-01-31T00:00:00Z\"",
        );
    }
    time
}
