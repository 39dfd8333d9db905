//! Failures that need a person, grouped by their cause.

use std::sync::Arc;

use axum::{
    extract::{RawPathParams, State},
    http::StatusCode,
    response::Response,
};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::json;
use crate::{
    api::{
        App, Problem,
        extract::{PageQuery, Query},
        problem::{ProblemBody, ProblemKind},
        text_filter::{self, TextFilter},
    },
    domain::{
        task::{CauseFingerprint, FailureTrend, Remedy},
        values::{FaultKind, TaskId, Timestamp},
    },
    store::{FAILURES_COUNTED, Failure},
};

/// The number of quarters of an hour in `by_quarter`.
const QUARTERS: usize = 8;

/// Steps that failed for one cause and need a person.
#[derive(Serialize, ToSchema)]
#[schema(as = Failure)]
pub(in crate::api) struct FailureView {
    /// Names the cause. It is the same for equal failures in every database and release.
    #[schema(value_type = String, pattern = "^[0-9a-f]{16}$", example = "5f1d0a7c93b2e846")]
    fingerprint: CauseFingerprint,
    /// What happened, in one sentence. The response of the service in it is shortened, and has `#` for numbers, ids and
    /// quotations.
    #[schema(
        example = "Step charge of workflow order failed: payments refused with 402 Payment Required: card_declined"
    )]
    sentence: String,
    /// False: no step needs a person for this cause any more.
    open: bool,
    /// Null: the steps of tasks without a workflow.
    #[schema(required, example = "order")]
    workflow: Option<String>,
    /// The name of the step, or of its list. In tasks without a workflow it has `#` for numbers and ids.
    #[schema(example = "charge")]
    step: String,
    /// Null: the step calls no service.
    #[schema(required, example = "payments")]
    agent: Option<String>,
    /// Null: Provost itself failed while it decided on the step.
    #[schema(required, example = "permanent")]
    kind: Option<FaultKind>,
    #[schema(required, example = 402)]
    status: Option<u16>,
    /// The response of the service in short, or why there is no usable request or response.
    #[schema(required, example = "card_declined")]
    words: Option<String>,
    /// The number of tasks that need a person for this cause. At most 1,001 failed steps are counted.
    #[schema(maximum = 1001, example = 403)]
    tasks: u64,
    /// The number of their failed steps.
    #[schema(maximum = 1001, example = 403)]
    steps: u64,
    /// True: there are more than `tasks` and `steps` say.
    #[schema(example = false)]
    more: bool,
    /// How often steps have failed for this cause since the first time.
    #[schema(example = 1290)]
    failures: u64,
    first_at: Timestamp,
    last_at: Timestamp,
    /// True: more steps failed in the last half hour than in the one before it, and they still come.
    #[schema(example = true)]
    growing: bool,
    trend: TrendView,
    /// The latest of the tasks. Null if no step needs a person for this cause any more.
    #[schema(required)]
    example: Option<FailureExampleView>,
    /// The first task that failed for this cause. It may have been deleted.
    #[schema(required)]
    first_task: Option<Uuid>,
    /// The alert of these steps. Null if it is closed.
    #[schema(required)]
    alert: Option<Uuid>,
    /// The commands that may end the failures, the most usual one first: each for one task, or with `cause` for all.
    remedies: Vec<Remedy>,
}

/// The number of failures over time.
#[derive(Serialize, ToSchema)]
#[schema(as = FailureTrend)]
struct TrendView {
    /// The beginning of the first hour. Hours and quarters end at the end of the current quarter of an hour.
    from: Timestamp,
    /// The failures of each of the last 24 hours, the current one last.
    #[schema(min_items = 24, max_items = 24)]
    by_hour: Vec<u64>,
    /// The failures of each of the last eight quarters of an hour, the current one last.
    #[schema(min_items = 8, max_items = 8)]
    by_quarter: Vec<u64>,
}

/// One failed step.
#[derive(Serialize, ToSchema)]
#[schema(as = FailureExample)]
struct FailureExampleView {
    #[schema(value_type = Uuid)]
    task: TaskId,
    #[schema(required, example = "order-1001")]
    key: Option<String>,
    #[schema(example = "charge")]
    step: String,
    /// The number of the attempt: `GET /v1/tasks/{id}/steps/{name}/attempts/{attempt}` has its request and response.
    #[schema(required, example = 1)]
    attempt: Option<u32>,
    #[schema(example = "step charge: the service refused: 402 Payment Required: card_declined")]
    message: String,
    at: Timestamp,
}

impl FailureView {
    /// `now` is the time of the store.
    fn new(failure: Failure, now: Timestamp) -> Self {
        let trend = FailureTrend(&failure.quarters);
        let from_quarter = failure.quarters.len().saturating_sub(QUARTERS);
        Self {
            fingerprint: failure.fingerprint,
            sentence: failure.cause.sentence(),
            open: failure.example.is_some(),
            tasks: failure.tasks,
            steps: failure.steps,
            more: failure.steps >= FAILURES_COUNTED,
            failures: failure.failures,
            first_at: failure.first_at,
            last_at: failure.last_at,
            growing: trend.is_growing(now.since(failure.last_at)),
            trend: TrendView {
                from: failure.from,
                by_hour: trend.by_hour(),
                by_quarter: failure.quarters[from_quarter..].to_vec(),
            },
            alert: failure.example.as_ref().map(|example| example.alert.0),
            example: failure.example.map(|example| FailureExampleView {
                task: example.task,
                key: example.key,
                step: example.step.to_string(),
                attempt: example.attempt.map(|attempt| attempt.0),
                message: example.message,
                at: example.at,
            }),
            first_task: failure.first.map(|first| first.task.0),
            remedies: failure.cause.remedies(),
            workflow: failure.cause.workflow.map(|workflow| workflow.to_string()),
            step: failure.cause.step,
            agent: failure.cause.agent.map(|agent| agent.to_string()),
            kind: failure.cause.kind,
            status: failure.cause.status,
            words: failure.cause.words,
        }
    }
}

impl FailureView {
    pub(in crate::api) fn is_growing(&self) -> bool {
        self.growing
    }
}

/// Returns the failures that need a person, in the order of the list. True: there are more causes than these.
pub(in crate::api) async fn open(app: &App) -> Result<(Vec<FailureView>, bool), Problem> {
    let (failures, more_causes) = app.store.reader.failures().await?;
    let now = app.store.reader.now().await?;
    let views = failures
        .into_iter()
        .map(|failure| FailureView::new(failure, now));
    let mut views: Vec<_> = views.filter(|view| view.open).collect();
    views.sort_by_key(|view| std::cmp::Reverse(position(view)));
    Ok((views, more_causes))
}

/// A page of failures.
#[derive(Serialize, ToSchema)]
pub(super) struct FailurePage {
    /// Those that grow first, then those of the most tasks.
    items: Vec<FailureView>,
    /// True: more than 500 causes need a person, and the others are not listed.
    #[schema(example = false)]
    more_causes: bool,
    /// Pass it as `cursor` to get the next page; null on the last page.
    #[schema(required, pattern = "^[A-Za-z0-9_-]+$")]
    next_cursor: Option<String>,
}

/// The filters of the list of failures.
struct FailureFilter {
    workflow: Option<String>,
    step: Option<String>,
    agent: Option<String>,
    kind: Option<FaultKind>,
    status: Option<i64>,
    text: Option<TextFilter>,
}

impl FailureFilter {
    fn read(query: &mut Query) -> Result<Self, Problem> {
        Ok(Self {
            workflow: query.string("workflow"),
            step: query.string("step"),
            agent: query.string("agent"),
            kind: query.one_of("kind", FaultKind::ALL.iter().copied(), FaultKind::as_str)?,
            status: query.integer("status", 100..=599)?,
            text: text_filter::text(query)?,
        })
    }

    fn matches(&self, view: &FailureView) -> bool {
        let is = |asked: &Option<String>, value: Option<&str>| {
            asked.is_none() || asked.as_deref() == value
        };
        let has_text = |text: &TextFilter| {
            let message = view.example.as_ref().map(|example| &example.message);
            let texts = std::iter::once(&view.sentence).chain(message);
            text.matches(texts.map(String::as_str))
        };
        is(&self.workflow, view.workflow.as_deref())
            && is(&self.step, Some(&view.step))
            && is(&self.agent, view.agent.as_deref())
            && (self.kind.is_none() || self.kind == view.kind)
            && self
                .status
                .is_none_or(|status| view.status.map(i64::from) == Some(status))
            && self.text.as_ref().is_none_or(has_text)
    }
}

/// Reads `cause`, the fingerprint of a cause.
pub(in crate::api) fn cause(query: &mut Query) -> Result<Option<CauseFingerprint>, Problem> {
    query.value(
        "cause",
        "the fingerprint of a cause, as GET /v1/failures lists it: 16 hexadecimal digits",
        CauseFingerprint::parse,
    )
}

/// The order of failures: those that grow, then those of more tasks. The fingerprint makes it complete.
type Position = (bool, u64, u64, CauseFingerprint);

fn position(view: &FailureView) -> Position {
    (view.growing, view.tasks, view.steps, view.fingerprint)
}

fn read_position(text: &str) -> Option<Position> {
    let mut parts = text.split('-');
    let position = (
        parts.next()? == "1",
        parts.next()?.parse().ok()?,
        parts.next()?.parse().ok()?,
        CauseFingerprint::parse(parts.next()?)?,
    );
    parts.next().is_none().then_some(position)
}

/// List the failures that need a person, by cause
///
/// Steps that failed in one way are one item: those of one step of one workflow, at one agent, with one kind, status and
/// response of the service. Those that grow come first, then those of the most tasks. The numbers are those of the moment:
/// an item may be on two pages, or on none, if its numbers change between the requests. At most 500 causes are listed.
/// `cause` selects the tasks of an item in `GET /v1/tasks` and in commands for many tasks.
#[utoipa::path(
    get, path = "/v1/failures", tag = "alerts", operation_id = "list_failures",
    params(
        ("workflow" = Option<String>, Query, description = "The name of the workflow", example = "order"),
        ("step" = Option<String>, Query, description = "The name of the step", example = "charge"),
        ("agent" = Option<String>, Query, description = "The name of the agent", example = "payments"),
        ("kind" = Option<FaultKind>, Query, description = "The kind of the fault"),
        ("status" = Option<u16>, Query, minimum = 100, maximum = 599, description = "The status with which the service responded", example = 402),
        ("text" = Option<String>, Query, min_length = 1, max_length = 200, description = "A part of the sentence or of the message of the example; case does not matter", example = "declined"),
        PageQuery,
    ),
    responses(
        (status = 200, description = "A page of failures", body = FailurePage),
        (status = 400, description = "A query parameter is invalid", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    mut query: Query,
) -> Result<Response, Problem> {
    let filter = FailureFilter::read(&mut query)?;
    let limit = query.limit()?;
    let (after, cursors) = query.cursor(read_position)?;
    query.finish()?;
    let (mut items, more_causes) = open(&app).await?;
    items.retain(|view| filter.matches(view));
    items.retain(|view| after.is_none_or(|after| position(view) < after));
    let has_more = items.len() > limit;
    items.truncate(limit);
    let last = items.last().filter(|_| has_more).map(position);
    let next_cursor = last.map(|(growing, tasks, steps, fingerprint)| {
        let growing = u8::from(growing);
        cursors.after(format_args!("{growing}-{tasks}-{steps}-{fingerprint}"))
    });
    Ok(json(
        StatusCode::OK,
        &FailurePage {
            items,
            more_causes,
            next_cursor,
        },
    ))
}

/// Get the failures for one cause
///
/// The address stays for 90 days after the last failure, also when no step needs a person any more.
#[utoipa::path(
    get, path = "/v1/failures/{fingerprint}", tag = "alerts", operation_id = "get_failure",
    params(("fingerprint" = String, Path, pattern = "^[0-9a-f]{16}$", description = "The fingerprint of the cause", example = "5f1d0a7c93b2e846")),
    responses(
        (status = 200, description = "The failures", body = FailureView),
        (status = 404, description = "No step has failed for this cause", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    params: RawPathParams,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    let text = params.iter().next().map_or("", |(_, value)| value);
    let failure = match CauseFingerprint::parse(text) {
        Some(fingerprint) => app.store.reader.failure(fingerprint).await?,
        None => None,
    };
    let failure = failure.ok_or_else(|| {
        Problem::new(
            ProblemKind::NoSuchFailure,
            format!("no step has failed for cause {text:?}: GET /v1/failures lists the causes"),
        )
    })?;
    let now = app.store.reader.now().await?;
    Ok(json(StatusCode::OK, &FailureView::new(failure, now)))
}
