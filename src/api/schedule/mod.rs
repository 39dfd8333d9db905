//! Schedules: tasks that are submitted at certain times. The domain decides which fire times have a run; [`firing`]
//! has it decide, saves the decision and submits the tasks.

mod commands;
mod firing;
mod view;

use std::{borrow::Cow, sync::Arc};

use axum::{
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::value::RawValue;
use tracing::info;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{Ref, RefOr, Schema, schema::AnyOfBuilder},
};
use utoipa_axum::{router::OpenApiRouter, routes};

pub use self::firing::fire;
use self::view::{FireTimeView, RunView, ScheduleHead, ScheduleView};
use super::{
    App, Problem,
    definition::workflows::compact,
    extract::{
        Caller, IfTagged, JsonBody, NamePath, PageQuery, PlainName, Query, RegistrationHeaders,
        plain_name,
    },
    problem::{ProblemBody, ProblemKind},
    response::{Page, json, tagged},
    task::check_scheduled,
};
use crate::{
    api::openapi::words::{
        CatchUpSchema, DstSchema, DurationSchema, JsonSchema, LabelsSchema, OverlapSchema,
    },
    config::Role,
    domain::{
        schedule::{MISSED_AFTER, ScheduleRule, ScheduleSpec, Timing},
        values::{FieldFault, Fields, Timestamp},
        view::ReplyToView,
    },
    store::{SchedulePut, ScheduleRecord, StoreError},
};

/// The number of runs in the view of a single schedule.
const SHOWN_RUNS: usize = 10;
/// The fields of a submission that a schedule has.
const SUBMISSION: [&str; 7] = [
    "workflow",
    "workflow_version",
    "input",
    "labels",
    "priority",
    "complete_within",
    "reply_to",
];

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(put, get, delete))
        .routes(routes!(runs))
        .routes(routes!(commands::trigger))
        .routes(routes!(commands::backfill))
        .routes(routes!(commands::pause))
        .routes(routes!(commands::resume))
}

/// The body that creates or changes a schedule.
#[derive(ToSchema)]
#[schema(as = ScheduleInput)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct ScheduleInput {
    /// The times at which the schedule fires: minute, hour, day of the month, month, day of the week. Instead of
    /// `every`.
    #[schema(example = "0 2 * * *")]
    cron: Option<String>,
    /// The time zone of `cron`, by its IANA name. Default: `UTC`.
    #[schema(example = "Europe/Berlin")]
    timezone: Option<String>,
    dst: Option<DstSchema>,
    /// The interval: the schedule fires at every multiple of it since 1970, in UTC: 1s to 366d. Instead of `cron`.
    every: Option<DurationSchema>,
    overlap: Option<OverlapSchema>,
    catch_up: Option<CatchUpSchema>,
    /// The longest delay of the begin of a run. Each run has its own delay, the same for every instance: at most 24h,
    /// and at most `every`.
    jitter: Option<DurationSchema>,
    /// The last time that may be a fire time.
    #[schema(format = DateTime)]
    until: Option<String>,
    /// True: the schedule is paused. Without this field it stays paused or not, as it is.
    paused: Option<bool>,
    #[schema(max_length = 4096)]
    description: Option<String>,
    /// A registered workflow.
    #[schema(example = "report")]
    workflow: String,
    /// The version of the workflow. Default: the one that is active at each run.
    #[schema(minimum = 1)]
    workflow_version: Option<u32>,
    /// The value of `input` in the steps' expressions.
    #[schema(value_type = JsonSchema, required = false)]
    input: Option<String>,
    /// Up to 30 labels. Each task also gets `schedule` with the name, and `fire_time`.
    labels: Option<LabelsSchema>,
    #[schema(default = 0, minimum = -100, maximum = 100)]
    priority: Option<i8>,
    complete_within: Option<DurationSchema>,
    reply_to: Option<ReplyToView<'static>>,
}

/// The next fire times that a schedule would have.
#[derive(Serialize, ToSchema)]
#[schema(as = SchedulePreview)]
pub struct PreviewView {
    #[schema(max_items = 10)]
    next: Vec<FireTimeView>,
}

/// The schedule; with `dry_run`, the preview. A schedule has all fields of a preview, so a value may match both
/// schemas.
pub struct ScheduleOrPreview;

impl PartialSchema for ScheduleOrPreview {
    fn schema() -> RefOr<Schema> {
        let named = |name: Cow<'static, str>| Ref::from_schema_name(name);
        let choice = AnyOfBuilder::new()
            .item(named(ScheduleView::name()))
            .item(named(PreviewView::name()))
            .description(Some("The schedule; with `dry_run`, when it would fire."));
        RefOr::T(Schema::AnyOf(choice.build()))
    }
}

impl ToSchema for ScheduleOrPreview {
    fn name() -> Cow<'static, str> {
        "ScheduleOrPreview".into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        for (name, schema) in [
            (ScheduleView::name(), ScheduleView::schema()),
            (PreviewView::name(), PreviewView::schema()),
        ] {
            schemas.push((name.into(), schema));
        }
        ScheduleView::schemas(schemas);
        PreviewView::schemas(schemas);
    }
}

/// The body of a request, parsed and validated.
struct CheckedSchedule {
    spec: ScheduleSpec,
    submission: String,
    paused: Option<bool>,
}

/// Parses a schedule and reports all its faults at once.
async fn check(app: &App, body: &RawValue, now: Timestamp) -> Result<CheckedSchedule, Problem> {
    let mut fields = Fields::of(body, "").map_err(Problem::invalid)?;
    let spec = ScheduleSpec::read(&mut fields, now);
    let paused = fields.boolean("paused");
    let has_workflow = fields.peek("workflow").is_some();
    let mut members = Vec::new();
    for name in SUBMISSION {
        let value = fields.value(name).and_then(|value| compact(value.get()));
        if let Some(value) = value.filter(|value| value.as_json() != "null") {
            members.push(format!("\"{name}\":{}", value.as_json()));
        }
    }
    let submission = format!("{{{}}}", members.join(","));
    let raw: Box<RawValue> = serde_json::from_str(&submission)
        .map_err(|error| Problem::new(ProblemKind::Internal, error.to_string()))?;
    match check_scheduled(app, &raw).await {
        Ok(()) => {}
        Err(problem) if problem.kind() == ProblemKind::Invalid => {
            // A submission may have steps instead of a workflow. A schedule may not, so it has its own fault for a
            // missing workflow.
            let is_of_workflow = |fault: &FieldFault| fault.pointer == "/workflow";
            let faults = problem.faults().into_iter();
            fields.extend(faults.filter(|fault| has_workflow || !is_of_workflow(fault)));
        }
        Err(problem) => return Err(problem),
    }
    if !has_workflow {
        fields.missing("workflow", "give the name of a registered workflow");
    }
    fields.finish().map_err(Problem::invalid)?;
    Ok(CheckedSchedule {
        spec,
        submission,
        paused,
    })
}

/// Put a schedule
///
/// At each of its fire times a task of a workflow is submitted, once over all instances. A schedule that exists is
/// changed; its runs continue. With `If-None-Match: *` it is only created, with `If-Match` and its ETag only changed
/// if it is as you have read it. With `dry_run=true` nothing is stored: the response has the next fire times.
#[utoipa::path(
    put, path = "/v1/schedules/{name}", tag = "schedules", operation_id = "put_schedule",
    params(
        ("name" = PlainName, Path, description = "The schedule's name", example = "nightly-report"),
        ("dry_run" = Option<bool>, Query, description = "Validate, and return only the next fire times", example = false),
        RegistrationHeaders,
    ),
    request_body(content = ScheduleInput, description = "When it fires, and what it submits", example = json!({
        "cron": "0 2 * * *",
        "timezone": "Europe/Berlin",
        "workflow": "report",
        "input": { "kind": "daily" },
        "overlap": "skip",
        "catch_up": "last",
    })),
    responses(
        (status = 201, description = "It was created", body = ScheduleView),
        (status = 200, description = "It was changed, or has this content already; with dry_run, when it would fire", body = ScheduleOrPreview),
        (status = 412, description = "A precondition (If-Match, If-None-Match) failed; `etag` is the current one", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
async fn put(
    State(app): State<Arc<App>>,
    caller: Caller,
    NamePath(name): NamePath,
    mut query: Query,
    IfTagged(condition): IfTagged,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    let dry_run = query.boolean("dry_run")?.unwrap_or(false);
    query.finish()?;
    plain_name("a schedule", &name)?;
    let now = app.store.reader.wall_now().await?;
    let checked = check(&app, &body, now).await?;
    if dry_run {
        let timing = Timing::of(&checked.spec);
        let timing = timing.map_err(|_| Problem::invalid(Vec::new()))?;
        let rule = ScheduleRule {
            name,
            spec: checked.spec,
            timing,
            missed_after: MISSED_AFTER,
        };
        let next = FireTimeView::next(&rule, now);
        return Ok(json(StatusCode::OK, &PreviewView { next }));
    }
    let put = SchedulePut {
        name: name.clone(),
        spec: checked.spec,
        submission: checked.submission,
        paused: checked.paused,
        by: caller.name.to_string(),
        condition,
    };
    let store = app.store.ordered_by(caller.origin());
    let (record, is_new) = store.put_schedule(put).await?;
    info!(schedule = %name, by = %caller.name, is_new, "a schedule is put");
    if !is_new {
        return respond(&app, &record, StatusCode::OK, &caller).await;
    }
    let mut response = respond(&app, &record, StatusCode::CREATED, &caller).await?;
    if let Ok(location) = HeaderValue::try_from(format!("/v1/schedules/{name}")) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// Get a schedule
///
/// With its next ten fire times and its last ten runs, those that were left out with the reason.
#[utoipa::path(
    get, path = "/v1/schedules/{name}", tag = "schedules", operation_id = "get_schedule",
    params(("name" = PlainName, Path, description = "The schedule's name", example = "nightly-report")),
    responses((status = 200, description = "The schedule", body = ScheduleView)),
)]
async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    NamePath(name): NamePath,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    let record = find_schedule(&app, &name).await?;
    respond(&app, &record, StatusCode::OK, &caller).await
}

/// List schedules
///
/// By name, each with its next fire time.
#[utoipa::path(
    get, path = "/v1/schedules", tag = "schedules", operation_id = "list_schedules",
    params(PageQuery),
    responses((status = 200, description = "A page of schedules", body = Page<ScheduleHead>)),
)]
async fn list(State(app): State<Arc<App>>, mut query: Query) -> Result<Response, Problem> {
    let limit = query.limit()?;
    let (after, cursors) = query.cursor(|name| Some(name.to_owned()))?;
    query.finish()?;
    let after = after.unwrap_or_default();
    let records = app.store.reader.schedules(&after, limit + 1).await?;
    let now = app.store.reader.wall_now().await?;
    let heads = records.iter().map(|(name, record)| {
        let readable = record.as_ref().map_err(Clone::clone);
        let readable = readable.and_then(|record| Ok((record, record.rule()?)));
        let head = match readable {
            Ok((record, rule)) => ScheduleHead::new(record, &rule, now),
            Err(error) => ScheduleHead::unreadable(name, error.damage()),
        };
        (name, head)
    });
    let page = Page::new(heads.collect(), limit, cursors, |(name, _)| (*name).clone());
    let page = Page {
        items: page
            .items
            .into_iter()
            .map(|(_, head)| head)
            .collect::<Vec<_>>(),
        next_cursor: page.next_cursor,
    };
    Ok(json(StatusCode::OK, &page))
}

/// Delete a schedule
///
/// The schedule no longer fires, and runs that wait are discarded. Tasks that it has submitted continue.
#[utoipa::path(
    delete, path = "/v1/schedules/{name}", tag = "schedules", operation_id = "delete_schedule",
    params(("name" = PlainName, Path, description = "The schedule's name", example = "nightly-report"), RegistrationHeaders),
    responses(
        (status = 204, description = "The schedule is deleted"),
        (status = 412, description = "A precondition (If-Match, If-None-Match) failed; `etag` is the current one", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    NamePath(name): NamePath,
    query: Query,
    IfTagged(condition): IfTagged,
) -> Result<Response, Problem> {
    query.finish()?;
    let store = app.store.ordered_by(caller.origin());
    if !store.delete_schedule(name.clone(), condition).await? {
        return Err(no_such_schedule(&name));
    }
    info!(schedule = %name, by = %caller.name, "a schedule is deleted");
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// List the runs of a schedule
///
/// The latest first: those that have a task, those that were left out or failed with the reason, and those that wait.
/// The last 100 are kept, and all that wait.
#[utoipa::path(
    get, path = "/v1/schedules/{name}/runs", tag = "schedules", operation_id = "list_schedule_runs",
    params(("name" = PlainName, Path, description = "The schedule's name", example = "nightly-report"), PageQuery),
    responses((status = 200, description = "A page of runs", body = Page<RunView>)),
)]
async fn runs(
    State(app): State<Arc<App>>,
    NamePath(name): NamePath,
    mut query: Query,
) -> Result<Response, Problem> {
    let limit = query.limit()?;
    let (before, cursors) = query.cursor(|number| number.parse().ok())?;
    query.finish()?;
    find_schedule(&app, &name).await?;
    let found = app.store.reader.schedule_runs(&name, before, limit + 1);
    let found = found.await?;
    let views = found.iter().map(|run| (run.number, RunView::new(run)));
    let page = Page::new(views.collect(), limit, cursors, |(number, _)| {
        number.to_string()
    });
    let page = Page {
        items: page
            .items
            .into_iter()
            .map(|(_, view)| view)
            .collect::<Vec<_>>(),
        next_cursor: page.next_cursor,
    };
    Ok(json(StatusCode::OK, &page))
}

async fn find_schedule(app: &App, name: &str) -> Result<ScheduleRecord, Problem> {
    let record = app.store.reader.schedule(name).await?;
    record.ok_or_else(|| no_such_schedule(name))
}

fn no_such_schedule(name: &str) -> Problem {
    Problem::new(
        ProblemKind::NoSuchSchedule,
        format!(
            "schedule {name:?} does not exist: GET /v1/schedules lists the schedules, PUT creates one"
        ),
    )
}

async fn respond(
    app: &App,
    record: &ScheduleRecord,
    status: StatusCode,
    caller: &Caller,
) -> Result<Response, Problem> {
    let runs = app
        .store
        .reader
        .schedule_runs(&record.name, None, SHOWN_RUNS);
    let runs = runs.await?;
    let now = app.store.reader.wall_now().await?;
    let sees_all = caller.role == Role::Admin;
    let view = ScheduleView::new(record, &record.rule()?, &runs, now, sees_all);
    let view = view.map_err(|error| StoreError::Corrupt(error.to_string()))?;
    let tag = record.etag();
    let tag = match sees_all {
        true => tag,
        false => tag.with_hidden_parts(),
    };
    Ok(tagged(json(status, &view), &tag))
}
