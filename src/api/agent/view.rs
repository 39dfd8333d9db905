//! The representation of an agent in responses: its specification, its state on this instance, and its state in the
//! store.

use std::{collections::BTreeMap, sync::Arc};

use axum::{http::StatusCode, response::Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    agent::Agent,
    api::{
        App, Problem,
        agent::{
            access::SecretView,
            lanes::{LaneView, WorkflowStepsView},
            last_check::LastCheckView,
            status::{BreakerView, EndpointView, PauseView, RetryBudgetView, ThrottleView},
        },
        openapi::AgentSpecSchema,
        problem::ProblemKind,
        response::{json, tagged},
    },
    domain::{
        agent::{AgentMode, AgentSpec},
        values::{AgentName, ETag, Timestamp, WorkerName},
    },
};

/// A window of downtime that is to come.
#[derive(Serialize, ToSchema)]
#[schema(as = DowntimeWindow)]
pub struct DowntimeView {
    from: Timestamp,
    until: Timestamp,
    #[schema(required, example = "maintenance of the database")]
    reason: Option<String>,
}

/// Unfinished tasks whose own complete-by comes before the end of a pause, and which have unfinished steps at the agent.
#[derive(Serialize, ToSchema)]
#[schema(as = TasksInDanger)]
pub struct InDangerView {
    complete_by_before: Timestamp,
    #[schema(example = 12)]
    tasks: u64,
    /// Whether the count stopped after a thousand tasks with such a complete-by: there may be more.
    #[schema(example = false)]
    is_at_least: bool,
}

/// Where an agent is defined: in the configuration file, or through the API.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum AgentSource {
    Config,
    Api,
}

/// A registered agent.
#[derive(Serialize, ToSchema)]
#[schema(as = Agent)]
pub struct AgentView {
    #[schema(example = "payments")]
    name: String,
    #[schema(example = "api")]
    source: AgentSource,
    #[schema(value_type = AgentSpecSchema)]
    spec: AgentSpec,
    /// Calls of this instance that are in flight.
    #[schema(example = 3)]
    in_flight: u32,
    /// The most calls that this instance may have in flight.
    #[schema(example = 64)]
    capacity: u64,
    /// Only if it names secrets: whether this instance has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 128)]
    secrets: Option<Vec<SecretView>>,
    /// Only while it is paused, by an operator or in a window of its downtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pause: Option<PauseView>,
    /// Only where a single agent is read, and it has windows of downtime: the next ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 3)]
    next_downtime: Option<Vec<DowntimeView>>,
    /// Only where a single agent is read: the tasks that will not be done in time because of its pause, if that has an end,
    /// or else of its next window of downtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_danger: Option<InDangerView>,
    /// Only while its service has asked to be left alone, and only if its rate is limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    throttle: Option<ThrottleView>,
    /// Only where a single agent is read, and was checked: what its service held then of what steps rely on.
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<LastCheckView>,
    /// Only if it has a breaker: the breaker of each endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 32)]
    breakers: Option<Vec<BreakerView>>,
    /// Only if it has a breaker or is adaptive, its endpoints can be ejected or are checked, or one is drained: which of them
    /// take new calls, and how many, in the order of `spec`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 32)]
    endpoints: Option<Vec<EndpointView>>,
    /// Only if its retries have a budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_budget: Option<RetryBudgetView>,
    /// Only where a single agent with `max_in_flight` is read, and other instances may call it: the slots that each
    /// instance holds. Together they are never more than `max_in_flight`, once it has come down to that.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 1000)]
    slots: Option<Vec<InstanceSlotsView>>,
    /// Only where a single agent with `limits` or `fairness` is read: the first twenty lanes with queued steps, by their
    /// keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 20)]
    lanes: Option<Vec<LaneView>>,
    /// Only where a single agent is read, and steps are queued whose workflow limits them by keys: how many, by workflow.
    /// They are in `lanes` too, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 20)]
    limited_by_workflows: Option<Vec<WorkflowStepsView>>,
    /// Only where a single agent is read, and the database cannot be reached: why what it knows of the agent is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = json!(null))]
    incomplete: Option<String>,
    /// Only where a single agent with the mode `pull` is read: the workers that were seen in the last day, and those
    /// that hold steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 2000)]
    workers: Option<Vec<WorkerView>>,
}

/// The slots of an agent that an instance holds: so many calls it may have in flight.
#[derive(Serialize, ToSchema)]
#[schema(as = InstanceSlots)]
pub struct InstanceSlotsView {
    #[schema(example = "node-1")]
    instance: String,
    #[schema(example = 12)]
    slots: u32,
}

/// A worker that fetches the steps of an agent.
#[derive(Serialize, ToSchema)]
#[schema(as = Worker)]
pub struct WorkerView {
    #[schema(example = "w-1")]
    name: String,
    /// When it last asked for work or sent a heartbeat, to about a quarter of a minute; null if that is not known any
    /// more.
    #[schema(required)]
    seen_at: Option<Timestamp>,
    /// What it holds: of all workers of the agent together the first 1000 steps.
    #[schema(max_items = 1000)]
    steps: Vec<HeldStepView>,
}

/// A step that a worker works on.
#[derive(Serialize, ToSchema)]
#[schema(as = HeldStep)]
pub struct HeldStepView {
    #[schema(format = Uuid)]
    task: String,
    #[schema(example = "render")]
    step: String,
    #[schema(example = 1)]
    attempt: u32,
    /// When the worker fetched it.
    #[schema(required)]
    since: Option<Timestamp>,
    /// The last heartbeat that was recorded; null before the first.
    #[schema(required)]
    heartbeat_at: Option<Timestamp>,
    /// When the attempt ends unless a reply comes, or a heartbeat if the step requires them.
    ends_at: Timestamp,
}

/// The most workers that a response lists, besides those that hold steps.
const MOST_WORKERS: usize = 1000;
/// The most steps that a response lists.
const MOST_HELD: usize = 1000;
/// The windows of downtime that a response lists.
const MOST_WINDOWS: usize = 3;
/// The most tasks that are looked at for those in danger.
const MOST_IN_DANGER: usize = 1000;
/// So many operations of an agent are looked at.
const MOST_OPERATIONS: usize = 10_000;

/// The workers of an agent: as this instance saw them, as others did, and those that hold steps.
async fn workers(app: &App, agent: &AgentName) -> Result<Vec<WorkerView>, Problem> {
    let reader = &app.store.reader;
    let now = reader.now().await?;
    let mut workers: BTreeMap<WorkerName, WorkerView> = BTreeMap::new();
    let mut see = |name: WorkerName, at: Option<Timestamp>, step: Option<HeldStepView>| {
        let worker = workers.entry(name.clone()).or_insert_with(|| WorkerView {
            name: name.to_string(),
            seen_at: None,
            steps: Vec::new(),
        });
        worker.seen_at = worker.seen_at.max(at);
        worker.steps.extend(step);
    };
    for seen in reader.workers(agent, MOST_WORKERS).await? {
        see(seen.name, Some(seen.seen_at), None);
    }
    for (name, ago) in app.local.seen_workers(agent).into_iter().take(MOST_WORKERS) {
        let at = Timestamp::from_millis(now.as_millis() - ago.as_millis());
        see(name, Some(at), None);
    }
    for held in reader.fetched(agent, MOST_HELD).await? {
        let since = held.open.as_ref().map(|open| open.since);
        let heartbeat_at = held.open.and_then(|open| open.heartbeat_at);
        let view = HeldStepView {
            task: held.step.task.to_string(),
            step: held.step_name.to_string(),
            attempt: held.attempt.0,
            since,
            heartbeat_at,
            ends_at: held.ends_at,
        };
        see(held.worker, heartbeat_at.or(since), Some(view));
    }
    Ok(workers.into_values().collect())
}

impl AgentView {
    pub(super) fn of(app: &App, agent: &Agent) -> Self {
        Self {
            pause: PauseView::of(agent),
            throttle: ThrottleView::of(agent),
            breakers: BreakerView::all(agent),
            endpoints: EndpointView::all(agent),
            retry_budget: RetryBudgetView::of(agent),
            ..Self::new(app, agent.name(), agent.spec(), agent.in_flight())
        }
    }

    fn new(app: &App, name: &AgentName, spec: &AgentSpec, in_flight: u32) -> Self {
        let endpoints = spec.endpoints.iter();
        let capacity: u64 = endpoints
            .map(|endpoint| u64::from(endpoint.max_in_flight))
            .sum();
        Self {
            name: name.to_string(),
            source: match app.config.agents.contains_key(name) {
                true => AgentSource::Config,
                false => AgentSource::Api,
            },
            spec: spec.clone(),
            in_flight,
            capacity: capacity.min(spec.max_in_flight.map_or(u64::MAX, u64::from)),
            secrets: SecretView::all(&app.agents, name, spec),
            pause: None,
            next_downtime: None,
            in_danger: None,
            throttle: None,
            breakers: None,
            endpoints: None,
            retry_budget: None,
            check: None,
            slots: None,
            lanes: None,
            limited_by_workflows: None,
            incomplete: None,
            workers: None,
        }
    }

    /// Covers the specification: it does not change with the calls in flight.
    fn etag(&self) -> ETag {
        match self.source {
            AgentSource::Config => ETag::of_configured_agent(&self.spec),
            AgentSource::Api => ETag::of_agent(&self.spec),
        }
    }

    pub(super) fn respond(&self, status: StatusCode) -> Response {
        tagged(json(status, self), &self.etag())
    }

    /// Returns the view of a single agent, which includes the state that only the store has.
    pub(super) async fn whole(app: &App, agent: &Arc<Agent>) -> Result<Self, Problem> {
        let mut view = Self::of(app, agent);
        view.check = LastCheckView::of(app, agent.name());
        match view.add_recorded(app, agent).await {
            Ok(()) => {}
            // Breakers and pauses are known without the store, and operators need them when the store fails.
            Err(problem) if problem.kind() == ProblemKind::StoreUnavailable => {
                view.incomplete = Some(problem.detail().to_owned());
            }
            Err(problem) => return Err(problem),
        }
        Ok(view)
    }

    /// Returns the view of an agent as this request has registered it, even if another request has changed it since.
    pub(super) fn registered(app: &App, name: &AgentName, spec: &AgentSpec) -> Self {
        let known = app.agents.get(name);
        let in_flight = known.as_ref().map_or(0, |agent| agent.in_flight());
        Self {
            pause: known.as_deref().and_then(PauseView::of),
            throttle: known.as_deref().and_then(ThrottleView::of),
            breakers: known.as_deref().and_then(BreakerView::all),
            endpoints: known.as_deref().and_then(EndpointView::all),
            retry_budget: known.as_deref().and_then(RetryBudgetView::of),
            check: LastCheckView::of(app, name),
            ..Self::new(app, name, spec, in_flight)
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Adds the state of an agent that only the store has.
    async fn add_recorded(&mut self, app: &App, agent: &Arc<Agent>) -> Result<(), Problem> {
        let name = agent.name();
        if agent.spec().mode == AgentMode::Pull {
            self.workers = Some(workers(app, name).await?);
        }
        self.lanes = LaneView::first(app, agent).await?;
        self.limited_by_workflows = WorkflowStepsView::first(app, agent).await?;
        if agent.spec().max_in_flight.is_some() && app.store.is_shared {
            let shares = app.store.reader.slots_of(name).await?;
            let held = shares
                .held()
                .filter(|(_, slots)| *slots > 0)
                .take(MOST_HELD);
            let views = held.map(|(instance, slots)| InstanceSlotsView {
                instance: instance.to_string(),
                slots,
            });
            self.slots = Some(views.collect());
        }
        if !agent.spec().downtime.is_empty() {
            let now = app.store.reader.now().await?;
            let windows = agent.next_windows(now, MOST_WINDOWS).into_iter();
            let windows = windows.map(|window| DowntimeView {
                from: window.start,
                until: window.end,
                reason: window.reason,
            });
            self.next_downtime = Some(windows.collect());
        }
        let end = match &self.pause {
            Some(pause) => pause.until(),
            None => { self.next_downtime.iter().flatten() }
                .map(|window| window.until)
                .next(),
        };
        if let Some(end) = end {
            let found = app
                .store
                .reader
                .tasks_in_danger(name, end, MOST_IN_DANGER)
                .await?;
            self.in_danger = Some(InDangerView {
                complete_by_before: end,
                tasks: found.tasks,
                is_at_least: found.looked_at >= MOST_IN_DANGER as u64,
            });
        }
        let endpoints = { self.endpoints.iter().flatten() };
        if { endpoints }.any(EndpointView::is_draining) {
            let instances = app.store.reader.instances().await?;
            let now = instances.now;
            let records = instances.records.into_iter();
            let living: Vec<_> = records
                .filter(|(record, _)| !record.lease.is_over(now))
                .map(|(record, _)| record.lease.holder.instance)
                .collect();
            // Before the operations: a call that is over may have begun one.
            let control = agent.control().control;
            let reader = &app.store.reader;
            let operations = reader.operations(name, MOST_OPERATIONS).await?;
            let with_left = |endpoint: EndpointView| match endpoint.is_draining() {
                true => endpoint.with_left(&control, &living, &operations),
                false => endpoint,
            };
            let endpoints = self.endpoints.take();
            self.endpoints =
                endpoints.map(|endpoints| endpoints.into_iter().map(with_left).collect());
        }
        Ok(())
    }
}
