//! The state of the whole service in one response: what needs a person, the tasks, the agents and the instances.

use std::{collections::BTreeMap, sync::Arc};

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    agent::Agent,
    api::{
        App, Problem,
        agent::status::{BreakerView, EndpointView, PauseView, ThrottleView},
        extract::Query,
        response::json,
        task::failures::{self, FailureView},
        upkeep::instances::InstanceView,
    },
    domain::{
        task::TaskStatus,
        values::{HOUR_MILLIS, Timestamp},
        view::{AgentActivity, DurationHistogram, WorkflowActivity},
    },
    store::{CappedCount, HourActivity, MOST_IN_OVERVIEW, hour_of},
};

/// The hours of activity in the response, the current one included.
const HOURS: i64 = 24;
/// The most failures, workflows and agents in the response.
const MOST_FAILURES: usize = 5;
const MOST_WORKFLOWS: usize = 50;
const MOST_AGENTS: usize = 100;

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(overview))
}

/// A number that is counted up to 1,001.
#[derive(Serialize, ToSchema)]
#[schema(as = CappedCount)]
struct CountView {
    #[schema(maximum = 1001, example = 12)]
    count: u64,
    /// True: there may be more than `count` says.
    #[schema(example = false)]
    more: bool,
}

impl From<CappedCount> for CountView {
    fn from(CappedCount(count): CappedCount) -> Self {
        Self {
            count,
            more: count >= MOST_IN_OVERVIEW,
        }
    }
}

/// The tasks in one state.
#[derive(Serialize, ToSchema)]
#[schema(as = TasksInState)]
struct StateCountView {
    #[schema(value_type = TaskStatus)]
    state: &'static str,
    #[serde(flatten)]
    count: CountView,
}

/// The failures that need a person.
#[derive(Serialize, ToSchema)]
#[schema(as = FailureOverview)]
struct FailuresView {
    /// The number of causes, at most 500.
    #[schema(maximum = 500, example = 3)]
    causes: usize,
    /// True: more than 500 causes need a person.
    #[schema(example = false)]
    more_causes: bool,
    /// The number of causes that grow.
    #[schema(example = 1)]
    growing: usize,
    /// The most urgent ones, as `GET /v1/failures` has them.
    #[schema(max_items = 5)]
    first: Vec<FailureView>,
}

/// The messages that are not delivered.
#[derive(Serialize, ToSchema)]
#[schema(as = MessageCounts)]
struct MessagesView {
    pending: CountView,
    /// Dead letters.
    dead: CountView,
}

/// The tasks of one hour, or of several.
#[derive(Serialize, ToSchema)]
#[schema(as = TaskActivity)]
struct TaskActivityView {
    #[schema(example = 1210)]
    accepted: u64,
    #[schema(example = 1195)]
    processed: u64,
    /// The times that a task entered the state `error`. One task may enter it several times.
    #[schema(example = 12)]
    failed: u64,
    #[schema(example = 1)]
    undone: u64,
    #[schema(example = 0)]
    cancelled: u64,
    /// Half of the processed tasks took no longer from their submission, in milliseconds, to about a fifth. Null if none
    /// was processed.
    #[schema(required, example = 430)]
    p50: Option<u64>,
    /// 99 percent of them took no longer.
    #[schema(required, example = 2600)]
    p99: Option<u64>,
}

/// What one workflow did in the last 24 hours.
#[derive(Serialize, ToSchema)]
#[schema(as = WorkflowOverview)]
struct WorkflowDayView {
    /// `(inline)`: tasks whose steps came with their submission. `(other)`: workflows beyond the first hundred of an hour.
    #[schema(example = "order")]
    name: String,
    #[serde(flatten)]
    activity: TaskActivityView,
}

/// The steps at an agent in one hour, or in several.
#[derive(Serialize, ToSchema)]
#[schema(as = AgentActivity)]
struct AgentActivityView {
    /// The steps that were processed.
    #[schema(example = 1195)]
    processed: u64,
    /// The attempts that failed and were repeated.
    #[schema(example = 20)]
    retried: u64,
    /// The steps that failed and are not repeated: they need a person, or are undone.
    #[schema(example = 12)]
    failed: u64,
    /// Half of the processed steps took no longer from their claim to their reply, in milliseconds, to about a fifth. Null
    /// if none was processed.
    #[schema(required, example = 43)]
    p50: Option<u64>,
    /// 99 percent of them took no longer.
    #[schema(required, example = 260)]
    p99: Option<u64>,
}

/// An agent with its health, its queue and what it did.
#[derive(Serialize, ToSchema)]
#[schema(as = AgentOverview)]
struct AgentOverviewView {
    /// `(url)`: the agents that were made for the URLs of steps. `(other)`: agents beyond the first hundred of an hour.
    #[schema(example = "payments")]
    name: String,
    /// True: it gets no calls, or fewer than it should: it is paused or throttled, or a breaker or an endpoint is not as
    /// it should be.
    #[schema(example = false)]
    trouble: bool,
    /// Only while it is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pause: Option<PauseView>,
    /// Only while its service has asked to be left alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    throttle: Option<ThrottleView>,
    /// The breakers that are not closed.
    #[schema(max_items = 32)]
    breakers: Vec<BreakerView>,
    /// The endpoints that are not healthy, as this instance sees them.
    #[schema(max_items = 32)]
    endpoints: Vec<EndpointView>,
    /// The steps that could be claimed now.
    queued: CountView,
    /// The calls of this instance that are in flight.
    #[schema(example = 3)]
    in_flight: u32,
    /// The last 24 hours together.
    day: AgentActivityView,
    /// Each of the last 24 hours, the current one last.
    #[schema(min_items = 24, max_items = 24)]
    by_hour: Vec<AgentActivityView>,
}

/// The state of the service.
#[derive(Serialize, ToSchema)]
#[schema(as = Overview)]
struct OverviewView {
    /// The time of the database at which the numbers were read.
    as_of: Timestamp,
    /// True: this instance makes no calls and delivers no messages until `POST /v1/hold/release`.
    #[schema(example = false)]
    held: bool,
    failures: FailuresView,
    /// The tasks in each state but `processed`, whose number only grows: see `by_hour`.
    #[schema(max_items = 16)]
    tasks: Vec<StateCountView>,
    /// Tasks that will be late by what is known.
    at_risk: CountView,
    /// Questions that wait for a person.
    asks: CountView,
    messages: MessagesView,
    /// The beginning of the first hour of `by_hour`, here and in `agents`.
    from: Timestamp,
    /// The tasks of each of the last 24 hours, the current one last.
    #[schema(min_items = 24, max_items = 24)]
    by_hour: Vec<TaskActivityView>,
    /// The workflows of the last 24 hours: those with the most failures first, then those with the most tasks.
    #[schema(max_items = 50)]
    workflows: Vec<WorkflowDayView>,
    /// The agents: those in trouble first, then those with the most calls.
    #[schema(max_items = 100)]
    agents: Vec<AgentOverviewView>,
    instances: Vec<InstanceView>,
}

impl From<&WorkflowActivity> for TaskActivityView {
    fn from(activity: &WorkflowActivity) -> Self {
        let (p50, p99) = percentiles(&activity.durations);
        Self {
            accepted: activity.accepted,
            processed: activity.processed,
            failed: activity.failed,
            undone: activity.undone,
            cancelled: activity.cancelled,
            p50,
            p99,
        }
    }
}

impl From<&AgentActivity> for AgentActivityView {
    fn from(activity: &AgentActivity) -> Self {
        let (p50, p99) = percentiles(&activity.durations);
        Self {
            processed: activity.processed,
            retried: activity.retried,
            failed: activity.failed,
            p50,
            p99,
        }
    }
}

fn percentiles(durations: &DurationHistogram) -> (Option<u64>, Option<u64>) {
    (durations.percentile(0.5), durations.percentile(0.99))
}

/// The activity of the last 24 hours.
struct Day {
    /// The number of the first hour.
    from: i64,
    hours: BTreeMap<i64, HourActivity>,
}

impl Day {
    /// Returns a value for each hour. `of` gets an hour without activity as well.
    fn by_hour<T>(&self, of: impl Fn(&HourActivity) -> T) -> Vec<T> {
        let none = HourActivity::default();
        let hours = self.from..self.from + HOURS;
        hours
            .map(|hour| of(self.hours.get(&hour).unwrap_or(&none)))
            .collect()
    }

    fn tasks_by_hour(&self) -> Vec<TaskActivityView> {
        self.by_hour(|hour| {
            let mut all = WorkflowActivity::default();
            for activity in hour.workflows.values() {
                all.merge(activity);
            }
            TaskActivityView::from(&all)
        })
    }

    fn workflows(&self) -> Vec<WorkflowDayView> {
        let mut sums = BTreeMap::<&str, WorkflowActivity>::new();
        for (name, activity) in self.hours.values().flat_map(|hour| &hour.workflows) {
            sums.entry(name).or_default().merge(activity);
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(name, sum)| (std::cmp::Reverse((sum.failed, sum.accepted)), *name));
        let views = sums
            .iter()
            .take(MOST_WORKFLOWS)
            .map(|(name, sum)| WorkflowDayView {
                name: (*name).to_owned(),
                activity: sum.into(),
            });
        views.collect()
    }

    /// Returns the activity of an agent in each hour, and their sum.
    fn of_agent(&self, name: &str) -> (Vec<AgentActivityView>, AgentActivity) {
        let none = AgentActivity::default();
        let mut day = AgentActivity::default();
        for activity in self.hours.values().filter_map(|hour| hour.agents.get(name)) {
            day.merge(activity);
        }
        let by_hour = self.by_hour(|hour| hour.agents.get(name).unwrap_or(&none).into());
        (by_hour, day)
    }
}

/// Get the state of the service
///
/// What needs a person, how many tasks are in which state, what was done in each of the last 24 hours, the agents and the
/// instances, in one response. Numbers of tasks are counted up to 1,001. The activity of a process is on record within
/// seconds; a process that is killed loses that of its last seconds, though never a task.
#[utoipa::path(
    get, path = "/v1/overview", tag = "service", operation_id = "get_overview",
    responses((status = 200, description = "The state of the service", body = OverviewView)),
)]
async fn overview(State(app): State<Arc<App>>, query: Query) -> Result<Response, Problem> {
    query.finish()?;
    let reader = &app.store.reader;
    let as_of = reader.now().await?;
    let from = hour_of(as_of) + 1 - HOURS;
    let day = Day {
        from,
        hours: reader.activity(from).await?,
    };
    let counts = reader.overview().await?;
    let (failures, more_causes) = failures::open(&app).await?;
    let failures = FailuresView {
        causes: failures.len(),
        more_causes,
        growing: failures
            .iter()
            .filter(|failure| failure.is_growing())
            .count(),
        first: failures.into_iter().take(MOST_FAILURES).collect(),
    };
    let tasks = counts.tasks.iter().map(|(state, count)| StateCountView {
        state: state.as_str(),
        count: (*count).into(),
    });
    let queued = |name: &str| {
        let mut queued = counts.queued.iter();
        let queued = queued.find(|(agent, _)| agent.as_str() == name);
        queued.map_or(CappedCount::default(), |(_, count)| *count)
    };
    let overview = OverviewView {
        as_of,
        held: app.hold.is_held(),
        failures,
        tasks: tasks.collect(),
        at_risk: counts.at_risk.into(),
        asks: counts.asks.into(),
        messages: MessagesView {
            pending: counts.messages_pending.into(),
            dead: counts.messages_dead.into(),
        },
        from: Timestamp::from_millis(from * HOUR_MILLIS),
        by_hour: day.tasks_by_hour(),
        workflows: day.workflows(),
        agents: agents(&app, &day, queued),
        instances: InstanceView::all(&reader.instances().await?),
    };
    Ok(json(StatusCode::OK, &overview))
}

/// Returns the registered agents, and those that were called without being registered.
fn agents(app: &App, day: &Day, queued: impl Fn(&str) -> CappedCount) -> Vec<AgentOverviewView> {
    let mut views: Vec<_> = app
        .agents
        .list()
        .iter()
        .map(|agent| AgentOverviewView::of(agent, day, queued(agent.name().as_str())))
        .collect();
    let mut others: Vec<&str> = day
        .hours
        .values()
        .flat_map(|hour| hour.agents.keys())
        .filter(|name| name.starts_with('('))
        .map(String::as_str)
        .collect();
    others.sort_unstable();
    others.dedup();
    views.extend(
        others
            .into_iter()
            .map(|name| AgentOverviewView::named(name, day)),
    );
    views.sort_by(|one, other| {
        let urgency =
            |view: &AgentOverviewView| (view.trouble, view.queued.count, view.day.processed);
        urgency(other)
            .cmp(&urgency(one))
            .then_with(|| one.name.cmp(&other.name))
    });
    views.truncate(MOST_AGENTS);
    views
}

impl AgentOverviewView {
    /// Returns the activity under a name that is not that of a registered agent.
    fn named(name: &str, day: &Day) -> Self {
        let (by_hour, sum) = day.of_agent(name);
        Self {
            name: name.to_owned(),
            trouble: false,
            pause: None,
            throttle: None,
            breakers: Vec::new(),
            endpoints: Vec::new(),
            queued: CappedCount::default().into(),
            in_flight: 0,
            day: (&sum).into(),
            by_hour,
        }
    }

    fn of(agent: &Agent, day: &Day, queued: CappedCount) -> Self {
        let (pause, throttle) = (PauseView::of(agent), ThrottleView::of(agent));
        let mut breakers = BreakerView::all(agent).unwrap_or_default();
        breakers.retain(|breaker| !breaker.is_closed());
        let mut endpoints = EndpointView::all(agent).unwrap_or_default();
        endpoints.retain(|endpoint| !endpoint.is_healthy());
        let is_well = pause.is_none()
            && throttle.is_none()
            && breakers.is_empty()
            && endpoints.iter().all(EndpointView::is_draining);
        Self {
            trouble: !is_well,
            pause,
            throttle,
            breakers,
            endpoints,
            queued: queued.into(),
            in_flight: agent.in_flight(),
            ..Self::named(agent.name().as_str(), day)
        }
    }
}
