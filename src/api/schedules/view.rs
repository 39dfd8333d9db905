//! Schedules and their runs, as responses contain them.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use utoipa::ToSchema;

use crate::{
    api::openapi::{
        schemas::ReplyToSchema,
        words::{
            CatchUpSchema, DstSchema, DurationSchema, JsonSchema, LabelsSchema, OverlapSchema,
            RunSourceSchema, RunStateSchema, ScheduleActionSchema, ScheduleStatusSchema,
            SkipReasonSchema,
        },
    },
    domain::{
        ScheduleChange, SchedulePause, ScheduleRule, ScheduleRun, Span, Timestamp, without_query,
    },
    store::ScheduleRecord,
};

/// The fire times that a response has.
const NEXT: usize = 10;

/// The submission of a schedule, as it was put.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct SubmissionView {
    #[schema(example = "report")]
    workflow: String,
    /// Without it each run has the version that is active then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    workflow_version: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<JsonSchema>)]
    input: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<LabelsSchema>)]
    labels: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = -100, maximum = 100)]
    priority: Option<i8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<DurationSchema>)]
    complete_within: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ReplyToSchema>)]
    reply_to: Option<Value>,
}

/// A schedule: when it fires, what it submits then, and what has become of it.
#[derive(Serialize, ToSchema)]
#[schema(as = Schedule)]
pub struct ScheduleView<'a> {
    #[serde(flatten)]
    head: ScheduleHead<'a>,
    #[schema(required, max_length = 4096)]
    description: Option<&'a str>,
    #[schema(value_type = DstSchema)]
    dst: &'static str,
    #[schema(value_type = OverlapSchema)]
    overlap: &'static str,
    #[schema(value_type = CatchUpSchema)]
    catch_up: &'static str,
    #[schema(required, value_type = Option<DurationSchema>)]
    jitter: Option<Span>,
    /// The last time that may be a fire time.
    #[schema(required, value_type = Option<String>, format = DateTime)]
    until: Option<Timestamp>,
    #[serde(flatten)]
    submission: SubmissionView,
    /// Who has paused it; null if it is not paused.
    #[schema(required)]
    pause: Option<SchedulePauseView<'a>>,
    /// The next ten fire times; none while it is paused.
    #[schema(max_items = 10)]
    next: Vec<FireTimeView>,
    /// The last ten runs, the latest first. `GET /v1/schedules/{name}/runs` has more.
    #[schema(max_items = 10)]
    runs: Vec<RunView<'a>>,
    /// What callers have done to it: the last twenty changes, the latest first.
    #[schema(max_items = 20)]
    changes: Vec<ChangeView<'a>>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(example = "ann")]
    created_by: &'a str,
    /// When a caller has last changed it.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    #[schema(example = "ann")]
    updated_by: &'a str,
}

/// A schedule in a list.
#[derive(Serialize, ToSchema)]
#[schema(as = ScheduleHead)]
pub struct ScheduleHead<'a> {
    #[schema(example = "nightly-report")]
    name: &'a str,
    /// When it fires; null if it fires by `every`.
    #[schema(required, example = "0 2 * * *")]
    cron: Option<&'a str>,
    /// The time zone of `cron`; null if it fires by `every`.
    #[schema(required, example = "Europe/Berlin")]
    timezone: Option<&'a str>,
    /// At every multiple of it since 1970, in UTC; null if it fires by `cron`.
    #[schema(required, value_type = Option<DurationSchema>)]
    every: Option<Span>,
    #[schema(value_type = ScheduleStatusSchema)]
    state: &'static str,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    next_fire_time: Option<Timestamp>,
    /// How many runs wait for those before them.
    queued: usize,
    /// Why the last run that was to begin has no task; null if it has one.
    #[schema(required)]
    failing: Option<Cow<'a, str>>,
}

/// A fire time.
#[derive(Serialize, ToSchema)]
#[schema(as = ScheduleFireTime)]
pub struct FireTimeView {
    #[schema(value_type = String, format = DateTime)]
    fire_time: Timestamp,
    /// With the jitter.
    #[schema(value_type = String, format = DateTime)]
    starts_at: Timestamp,
    /// The fire time on the clock of the time zone; null of `every`.
    #[schema(required, example = "2026-03-29T03:30:00+02:00")]
    local_time: Option<String>,
}

/// Who has paused a schedule.
#[derive(Serialize, ToSchema)]
#[schema(as = SchedulePause)]
pub struct SchedulePauseView<'a> {
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    #[schema(example = "ann")]
    by: &'a str,
    #[schema(required)]
    reason: Option<&'a str>,
}

/// What a caller has done to a schedule.
#[derive(Serialize, ToSchema)]
#[schema(as = ScheduleChange)]
pub struct ChangeView<'a> {
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    #[schema(example = "ann")]
    by: &'a str,
    #[schema(value_type = ScheduleActionSchema)]
    action: &'static str,
    #[schema(required)]
    reason: Option<&'a str>,
}

/// One run of a schedule; or several fire times that were left out one after the other for one reason.
#[derive(Serialize, ToSchema)]
#[schema(as = ScheduleRun)]
pub struct RunView<'a> {
    /// Counted from 1 in the order of the decisions.
    number: u64,
    #[schema(value_type = String, format = DateTime)]
    fire_time: Timestamp,
    /// The last fire time of several that were left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    last_fire_time: Option<Timestamp>,
    /// How many fire times it stands for.
    count: u64,
    #[schema(value_type = RunSourceSchema)]
    source: &'static str,
    #[schema(value_type = RunStateSchema)]
    state: &'static str,
    /// Its task, which may have been deleted after its retention time.
    #[schema(required, value_type = Option<String>, format = Uuid)]
    task: Option<crate::domain::TaskId>,
    /// Only of a run that was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<SkipReasonSchema>)]
    skipped: Option<&'static str>,
    /// Why it was left out, or failed.
    #[schema(required)]
    reason: Option<&'a str>,
    /// Who has triggered or backfilled it.
    #[schema(required)]
    by: Option<&'a str>,
    #[schema(value_type = String, format = DateTime)]
    decided_at: Timestamp,
    /// When its task was submitted.
    #[schema(required, value_type = Option<String>, format = DateTime)]
    started_at: Option<Timestamp>,
    /// How much later than its fire time, with the jitter, its task was submitted.
    #[schema(required, value_type = Option<DurationSchema>)]
    late_by: Option<Span>,
}

impl<'a> RunView<'a> {
    pub fn new(run: &'a ScheduleRun) -> Self {
        Self {
            number: run.number,
            fire_time: run.fire_time,
            last_fire_time: run.last_fire_time,
            count: run.count,
            source: run.source.as_str(),
            state: run.state.as_str(),
            task: run.task,
            skipped: run.skipped.map(|skipped| skipped.as_str()),
            reason: run.reason.as_deref(),
            by: run.by.as_deref(),
            decided_at: run.decided_at,
            started_at: run.started_at,
            late_by: run.started_at.map(|at| Span::from(at.since(run.starts_at))),
        }
    }
}

impl<'a> ScheduleHead<'a> {
    pub fn new(record: &'a ScheduleRecord, rule: &ScheduleRule, now: Timestamp) -> Self {
        let spec = &record.spec;
        let next_fire_time = next(record, rule, now, 1).first().copied();
        let state = match (&record.state.pause, next_fire_time) {
            (Some(_), _) => "paused",
            (None, Some(_)) => "active",
            (None, None) => "ended",
        };
        Self {
            name: &record.name,
            cron: spec.cron.as_deref(),
            timezone: spec.cron.as_ref().map(|_| spec.timezone.as_str()),
            every: spec.every,
            state,
            next_fire_time,
            queued: record.state.open.len(),
            failing: record.state.failing.as_deref().map(Cow::Borrowed),
        }
    }
}

impl<'a> ScheduleHead<'a> {
    /// Of one whose record cannot be read.
    pub fn unreadable(name: &'a str, reason: String) -> Self {
        Self {
            name,
            cron: None,
            timezone: None,
            every: None,
            state: "unreadable",
            next_fire_time: None,
            queued: 0,
            failing: Some(Cow::Owned(reason)),
        }
    }
}

fn next(
    record: &ScheduleRecord,
    rule: &ScheduleRule,
    now: Timestamp,
    most: usize,
) -> Vec<Timestamp> {
    if record.state.pause.is_some() {
        return Vec::new();
    }
    rule.next(record.state.handled_at, now, most)
}

impl FireTimeView {
    pub fn all(rule: &ScheduleRule, times: &[Timestamp]) -> Vec<Self> {
        let views = times.iter().map(|at| Self {
            fire_time: *at,
            starts_at: rule.starts_at(*at),
            local_time: rule.timing.local(*at),
        });
        views.collect()
    }

    /// The next ones of a schedule that is not on record.
    pub fn next(rule: &ScheduleRule, now: Timestamp) -> Vec<Self> {
        Self::all(rule, &rule.next(now, now, NEXT))
    }
}

impl<'a> ScheduleView<'a> {
    /// Only `sees_all` sees the query of an address for replies.
    pub fn new(
        record: &'a ScheduleRecord,
        rule: &ScheduleRule,
        runs: &'a [ScheduleRun],
        now: Timestamp,
        sees_all: bool,
    ) -> Result<Self, serde_json::Error> {
        let spec = &record.spec;
        let mut submission: SubmissionView = serde_json::from_str(&record.submission)?;
        if !sees_all
            && let Some(url) = submission
                .reply_to
                .as_mut()
                .and_then(|to| to.get_mut("url"))
        {
            let shown: Cow<'_, str> = match url.as_str() {
                Some(url) => without_query(url),
                None => "".into(),
            };
            *url = Value::String(shown.into_owned());
        }
        Ok(Self {
            head: ScheduleHead::new(record, rule, now),
            description: spec.description.as_deref(),
            dst: spec.dst.as_str(),
            overlap: spec.overlap.as_str(),
            catch_up: spec.catch_up.as_str(),
            jitter: spec.jitter,
            until: spec.until,
            submission,
            pause: record.state.pause.as_ref().map(SchedulePauseView::new),
            next: FireTimeView::all(rule, &next(record, rule, now, NEXT)),
            runs: runs.iter().map(RunView::new).collect(),
            changes: record.state.changes.iter().map(ChangeView::new).collect(),
            created_at: record.created_at,
            created_by: &record.created_by,
            updated_at: record.updated_at,
            updated_by: &record.updated_by,
        })
    }
}

impl<'a> SchedulePauseView<'a> {
    fn new(pause: &'a SchedulePause) -> Self {
        Self {
            at: pause.at,
            by: &pause.by,
            reason: pause.reason.as_deref(),
        }
    }
}

impl<'a> ChangeView<'a> {
    fn new(change: &'a ScheduleChange) -> Self {
        Self {
            at: change.at,
            by: &change.by,
            action: change.action.as_str(),
            reason: change.reason.as_deref(),
        }
    }
}
