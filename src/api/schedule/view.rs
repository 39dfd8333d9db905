//! Schedules and their runs, as responses contain them.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use utoipa::ToSchema;

use crate::{
    api::openapi::words::ScheduleStatusSchema,
    domain::{
        schedule::{
            CatchUp, Dst, Overlap, RunSource, RunState, ScheduleAction, ScheduleChange,
            SchedulePause, ScheduleRule, ScheduleRun, SkipReason,
        },
        template::Payload,
        values::{Span, Timestamp, without_query},
        view::{DurationSchema, LabelsSchema, ReplyToView},
    },
    store::ScheduleRecord,
};

/// The number of fire times in a response.
const NEXT: usize = 10;

/// The submission of a schedule, as it was put.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct SubmissionView {
    #[schema(example = "report")]
    workflow: String,
    /// Without a version, each run has the one that is active when it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    workflow_version: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Payload>)]
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
    #[schema(value_type = Option<ReplyToView<'static>>)]
    reply_to: Option<Value>,
}

/// A schedule: its fire times, its submission, its last runs and its last changes.
#[derive(Serialize, ToSchema)]
#[schema(as = Schedule)]
pub struct ScheduleView<'a> {
    #[serde(flatten)]
    head: ScheduleHead<'a>,
    #[schema(required, max_length = 4096)]
    description: Option<&'a str>,
    #[schema(value_type = Dst)]
    dst: &'static str,
    #[schema(value_type = Overlap)]
    overlap: &'static str,
    #[schema(value_type = CatchUp)]
    catch_up: &'static str,
    #[schema(required, value_type = Option<DurationSchema>)]
    jitter: Option<Span>,
    /// The last time that may be a fire time.
    #[schema(required)]
    until: Option<Timestamp>,
    #[serde(flatten)]
    submission: SubmissionView,
    /// The pause of the schedule; null if it is not paused.
    #[schema(required)]
    pause: Option<SchedulePauseView<'a>>,
    /// The next ten fire times; none while the schedule is paused.
    #[schema(max_items = 10)]
    next: Vec<FireTimeView>,
    /// The last ten runs, the latest first. `GET /v1/schedules/{name}/runs` has more.
    #[schema(max_items = 10)]
    runs: Vec<RunView<'a>>,
    /// The last twenty changes that callers made to the schedule, the latest first.
    #[schema(max_items = 20)]
    changes: Vec<ChangeView<'a>>,
    created_at: Timestamp,
    #[schema(example = "ann")]
    created_by: &'a str,
    /// The time of the last change that a caller made.
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
    /// The rule for its fire times; null if it fires by `every`.
    #[schema(required, example = "0 2 * * *")]
    cron: Option<&'a str>,
    /// The time zone of `cron`; null if it fires by `every`.
    #[schema(required, example = "Europe/Berlin")]
    timezone: Option<&'a str>,
    /// The schedule fires at every multiple of this since 1970, in UTC; null if it fires by `cron`.
    #[schema(required, value_type = Option<DurationSchema>)]
    every: Option<Span>,
    #[schema(value_type = ScheduleStatusSchema)]
    state: &'static str,
    #[schema(required)]
    next_fire_time: Option<Timestamp>,
    /// The number of runs that wait for those before them.
    queued: usize,
    /// The reason why the last run that was to begin has no task; null if it has one.
    #[schema(required)]
    failing: Option<Cow<'a, str>>,
}

/// A fire time.
#[derive(Serialize, ToSchema)]
#[schema(as = ScheduleFireTime)]
pub struct FireTimeView {
    fire_time: Timestamp,
    /// The fire time with the jitter added.
    starts_at: Timestamp,
    /// The fire time on the clock of the time zone; null of `every`.
    #[schema(required, example = "2026-03-29T03:30:00+02:00")]
    local_time: Option<String>,
}

/// The pause of a schedule by a caller.
#[derive(Serialize, ToSchema)]
#[schema(as = SchedulePause)]
pub struct SchedulePauseView<'a> {
    at: Timestamp,
    #[schema(example = "ann")]
    by: &'a str,
    #[schema(required)]
    reason: Option<&'a str>,
}

/// A change that a caller made to a schedule.
#[derive(Serialize, ToSchema)]
#[schema(as = ScheduleChange)]
pub struct ChangeView<'a> {
    at: Timestamp,
    #[schema(example = "ann")]
    by: &'a str,
    #[schema(value_type = ScheduleAction)]
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
    fire_time: Timestamp,
    /// The last fire time of several that were left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_fire_time: Option<Timestamp>,
    /// The number of fire times that this entry stands for.
    count: u64,
    #[schema(value_type = RunSource)]
    source: &'static str,
    #[schema(value_type = RunState)]
    state: &'static str,
    /// Its task, which may have been deleted after its retention time.
    #[schema(required, value_type = Option<String>, format = Uuid)]
    task: Option<crate::domain::values::TaskId>,
    /// The kind of the reason, only of a run that was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<SkipReason>)]
    skipped: Option<&'static str>,
    /// The reason why the run was left out, or failed.
    #[schema(required)]
    reason: Option<&'a str>,
    /// The caller that triggered or backfilled the run.
    #[schema(required)]
    by: Option<&'a str>,
    decided_at: Timestamp,
    /// The time at which its task was submitted.
    #[schema(required)]
    started_at: Option<Timestamp>,
    /// The time from its fire time, with the jitter, to the submission of its task.
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
    /// Returns the head of a schedule whose record cannot be read.
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

    /// Returns the next fire times of a schedule that is not on record.
    pub fn next(rule: &ScheduleRule, now: Timestamp) -> Vec<Self> {
        Self::all(rule, &rule.next(now, now, NEXT))
    }
}

impl<'a> ScheduleView<'a> {
    /// The query of the URL in `reply_to` is shown only if `sees_all`.
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
