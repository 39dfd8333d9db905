//! Agents: the remote services that steps call, registered here or defined in the configuration file.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    extract::State,
    http::{HeaderValue, StatusCode, header::LOCATION},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    App, Problem,
    agent_access::{self, AuthBody, SecretRefBody, SecretView, TextOrSecretBody, TlsBody},
    agent_lanes::{self, FairnessBody, KeyLimitBody, LaneView, WorkflowStepsView},
    agent_status::{BreakerView, EndpointView, PauseView, RetryBudgetView, ThrottleView},
    extract::{
        IfTagged, JsonBody, NamePath, PageQuery, PlainName, Query, RegistrationHeaders, plain_name,
    },
    last_check::LastCheckView,
    problem::{ProblemBody, ProblemKind},
    response::{Page, json, tagged},
};
use crate::api::openapi::words::{AgentModeSchema, DurationSchema, HttpVersionSchema};
use crate::{
    agent::{Agent, certificate_faults},
    domain::{
        AdaptiveSpec, AgentMode, AgentName, AgentSpec, BreakerSpec, DowntimeSpec, ETag,
        EjectionSpec, Endpoint, FieldFault, Fields, HealthSpec, RATE_FORMS, RateLimitSpec,
        RetrySpec, Span, Timestamp, WorkerName, read_rate,
    },
};

pub(super) const LONGEST_URL: usize = 2000;

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(put, get, delete))
}

/// The endpoints of an agent's service, and how it is called; or the mode `pull`, perhaps with `limits` and `fairness`.
#[derive(ToSchema)]
#[schema(as = AgentSpec)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct SpecBody {
    mode: Option<AgentModeSchema>,
    /// Required unless the mode is `pull`. Each call goes to the better of two endpoints: the one with fewer calls
    /// in flight, unless the other is clearly faster; failures count as slow.
    #[schema(min_items = 1, max_items = 32)]
    endpoints: Option<Vec<EndpointBody>>,
    retry: Option<RetryBody>,
    /// The most replies of its service that are awaited at once, by all instances: further steps wait in the queue.
    /// Calls in flight count too. Default: any number.
    #[schema(minimum = 1, maximum = 1_000_000, example = 1000)]
    max_open: Option<u32>,
    /// The most calls in flight at once, all instances together. Default: what the endpoints take from each instance.
    #[schema(minimum = 1, maximum = 100_000, example = 20)]
    max_in_flight: Option<u32>,
    /// How many calls are in flight to an endpoint adapts to what it takes, between `least` and its `max_in_flight`, by the
    /// latency of calls and by refusals; each instance goes by its own calls. Not for queues. `{}` has the defaults. Default:
    /// as many as `max_in_flight` says.
    adaptive: Option<AdaptiveBody>,
    /// Protects the service: an endpoint that keeps failing is not called for a while, and its steps wait. `{}` has the
    /// defaults. Default: no breaker.
    breaker: Option<BreakerSpecBody>,
    /// An endpoint that fails several times in a row gets no calls for a while, if at least half of the endpoints stay.
    /// `{}` has the defaults. Default: none is ejected.
    ejection: Option<EjectionBody>,
    /// Each endpoint is asked again and again whether it is well; one that is not gets no calls until it is. Not for
    /// queues. Default: nobody asks.
    health: Option<HealthBody>,
    /// How many calls may begin in a time, all instances together. Default: any number.
    rate_limit: Option<RateLimitBody>,
    /// What holds for each key of the tasks, such as a customer. Also for agents with the mode `pull`.
    #[schema(max_items = 4)]
    limits: Option<Vec<KeyLimitBody>>,
    /// Default: steps go by priority and age alone. Also for agents with the mode `pull`.
    fairness: Option<FairnessBody>,
    /// Added to every request, in place of headers of the step with these names.
    #[schema(example = json!({"x-tenant": "acme", "x-api-key": {"secret": "payments-key"}}))]
    headers: Option<BTreeMap<String, TextOrSecretBody>>,
    /// Added to the query of every request, in place of parameters of the step with these names.
    #[schema(example = json!({"key": {"secret": "payments-key"}}))]
    query: Option<BTreeMap<String, TextOrSecretBody>>,
    /// Added to every body, in place of members of the step with these names. The body must be an object then.
    #[schema(example = json!({"api_key": {"secret": "payments-key"}}))]
    body: Option<BTreeMap<String, TextOrSecretBody>>,
    auth: Option<AuthBody>,
    /// Every request is signed with each of these secrets, as <https://www.standardwebhooks.com>: the service needs to
    /// know one of them.
    #[schema(max_items = 4)]
    sign: Option<Vec<SecretRefBody>>,
    tls: Option<TlsBody>,
    /// With `2` the endpoints are called with HTTP/2 and nothing else: over `https://` they must offer it by ALPN, over `http://` it is
    /// spoken at once (prior knowledge). Not for queues. Default: 1.1.
    http_version: Option<HttpVersionSchema>,
    /// Windows in which it is paused as by an operator, also an agent with the mode `pull`.
    #[schema(max_items = 16)]
    downtime: Option<Vec<DowntimeBody>>,
}

/// A window that repeats, in which an agent is paused.
#[derive(ToSchema)]
#[schema(as = Downtime)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct DowntimeBody {
    /// When it begins: minute, hour, day of the month, month and day of the week, by the clock of `timezone`. Where that
    /// jumps over a time, it begins as much later; of a time that comes twice, the first counts.
    #[schema(max_length = 200, example = "0 2 * * SUN")]
    cron: String,
    /// How long it takes, 1 m to 7 d, and less than it takes until the next one begins.
    #[schema(example = "2h")]
    r#for: DurationSchema,
    /// The name of a time zone of IANA.
    #[schema(default = "UTC", example = "Europe/Berlin")]
    timezone: Option<String>,
    #[schema(max_length = 1000, example = "maintenance of the database")]
    reason: Option<String>,
}

/// A window of downtime that is to come.
#[derive(Serialize, ToSchema)]
#[schema(as = DowntimeWindow)]
pub struct DowntimeView {
    #[schema(value_type = String, format = DateTime)]
    from: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    until: Timestamp,
    #[schema(required, example = "maintenance of the database")]
    reason: Option<String>,
}

/// Unfinished tasks whose own complete-by comes before the end of a pause, and which have unfinished steps at the agent.
#[derive(Serialize, ToSchema)]
#[schema(as = TasksInDanger)]
pub struct InDangerView {
    #[schema(value_type = String, format = DateTime)]
    complete_by_before: Timestamp,
    #[schema(example = 12)]
    tasks: u64,
    /// Whether the count stopped after a thousand tasks with such a complete-by: there may be more.
    #[schema(example = false)]
    is_at_least: bool,
}

/// The most calls that begin in a time, all instances together. Steps beyond wait in the queue.
#[derive(ToSchema)]
#[schema(as = RateLimit)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct RateLimitBody {
    /// A number of calls, 1 to 1,000,000, in a second (`s`), a minute (`m`) or an hour (`h`).
    #[schema(pattern = "^[0-9]+/[smh]$", example = "50/s")]
    rate: String,
    /// How many calls may begin at once after a rest. Default: what the rate gives in a tenth of a second, at least 1.
    #[schema(minimum = 1, maximum = 100_000, example = 10)]
    burst: Option<u32>,
}

/// How the limit of calls in flight to an endpoint adapts: it grows while calls are quick, and falls when they queue or are
/// refused.
#[derive(ToSchema)]
#[schema(as = Adaptive)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct AdaptiveBody {
    /// Where it begins, and below which it never falls. At most the smallest `max_in_flight` of the agent and its endpoints.
    #[schema(default = 2, minimum = 1, maximum = 100_000, example = 2)]
    least: Option<u32>,
    /// Half of the calls must be quicker, 1 ms to 1 h. Default: it goes by how long calls take with few in flight.
    #[schema(example = "2s")]
    slow_after: Option<DurationSchema>,
}

/// When the breaker of an endpoint opens, and how it closes. Every endpoint has one of its own.
#[derive(ToSchema)]
#[schema(as = Breaker)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct BreakerSpecBody {
    /// It opens when so many percent of the calls in the window failed: no response, or one that is retried, but for 429.
    #[schema(default = 50, minimum = 1, maximum = 100, example = 50)]
    failure_percent: Option<u32>,
    /// A call that takes longer is slow, 1 ms to 1 h. Default: no call is.
    #[schema(example = "5s")]
    slow_after: Option<DurationSchema>,
    /// It opens as well when so many percent of the calls in the window were slow.
    #[schema(default = 50, minimum = 1, maximum = 100, example = 50)]
    slow_percent: Option<u32>,
    /// The time that counts, 1 s to 1 h, by each instance for its own calls.
    #[schema(default = "30s", example = "30s")]
    window: Option<DurationSchema>,
    /// With fewer calls in the window it does not open.
    #[schema(default = 20, minimum = 1, maximum = 10_000, example = 20)]
    min_calls: Option<u32>,
    /// How long no call is made then, 100 ms to 1 h.
    #[schema(default = "15s", example = "15s")]
    open_for: Option<DurationSchema>,
    /// Afterwards one instance makes so many calls at a time. When so many have succeeded, it closes; when one fails, it
    /// opens again.
    #[schema(default = 3, minimum = 1, maximum = 100, example = 3)]
    canaries: Option<u32>,
}

/// When an endpoint is ejected: it gets no calls for a while, and the others of its agent take them.
#[derive(ToSchema)]
#[schema(as = Ejection)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct EjectionBody {
    /// So many calls in a row failed, by the calls of one instance. What counts is what counts for a breaker.
    #[schema(default = 5, minimum = 1, maximum = 1000, example = 5)]
    after: Option<u32>,
    /// For how long the first time, 100 ms to 1 h; the second time in a row twice as long, and so on.
    #[schema(default = "10s", example = "10s")]
    r#for: Option<DurationSchema>,
    /// The longest time, up to 1 h.
    #[schema(default = "5m", example = "5m")]
    max: Option<DurationSchema>,
}

/// A GET to each endpoint, made by one instance. 2xx means that it is well.
#[derive(ToSchema)]
#[schema(as = HealthCheck)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct HealthBody {
    /// Below the URL of the endpoint; it may have a query.
    #[schema(pattern = "^/", example = "/health")]
    path: String,
    /// From one check to the next, 1 s to 1 h.
    #[schema(default = "10s", example = "10s")]
    interval: Option<DurationSchema>,
    /// Within which the response comes, 100 ms to 1 m, and at most `interval`.
    #[schema(default = "2s", example = "2s")]
    timeout: Option<DurationSchema>,
    /// So many checks in a row must fail.
    #[schema(default = 3, minimum = 1, maximum = 100, example = 3)]
    unhealthy_after: Option<u32>,
    /// So many checks in a row must succeed afterwards.
    #[schema(default = 2, minimum = 1, maximum = 100, example = 2)]
    healthy_after: Option<u32>,
}

/// One address of the service.
#[derive(ToSchema)]
#[schema(as = Endpoint)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct EndpointBody {
    /// `http://` or `https://`, with an optional base path; no query, fragment or user. Or a queue of the message broker:
    /// `amqp://broker/` and its name.
    #[schema(example = "http://10.0.0.5:8080")]
    url: String,
    /// The most calls in flight at once, from one instance.
    #[schema(default = 64, minimum = 1, maximum = 100_000, example = 64)]
    max_in_flight: Option<u32>,
    /// Instances with this `instance.zone` call it rather than others, while it is well and has room.
    #[schema(
        min_length = 1,
        max_length = 64,
        pattern = "^[A-Za-z0-9._-]+$",
        example = "eu-central-1a"
    )]
    zone: Option<String>,
    /// It gets no new work, so that it can be stopped when nothing is left there; one endpoint must get some. Calls in flight
    /// continue, and so do polls and cancellations of operations that began there.
    #[schema(default = false, example = false)]
    drain: Option<bool>,
}

/// Backoff between the tries of one call after transient faults: a random wait between zero and `initial *
/// factor^n`, at most `max`.
#[derive(ToSchema)]
#[schema(as = Retry)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct RetryBody {
    #[schema(default = "100ms", example = "100ms")]
    initial: Option<DurationSchema>,
    #[schema(default = "10s", example = "10s")]
    max: Option<DurationSchema>,
    #[schema(default = 2, minimum = 1, maximum = 10, example = 2)]
    factor: Option<u32>,
    /// The most retries among the agent's calls, in percent, by each instance for its own calls of the last ten seconds;
    /// one retry a second is always made. Further ones wait, for a minute at most, and keep the time that they have to
    /// complete. Default: any number.
    #[schema(minimum = 1, maximum = 100, example = 20)]
    budget_percent: Option<u32>,
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
    #[schema(value_type = SpecBody)]
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
    #[schema(value_type = Option<String>, required, format = DateTime)]
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
    #[schema(value_type = Option<String>, required, format = DateTime)]
    since: Option<Timestamp>,
    /// The last heartbeat that was recorded; null before the first.
    #[schema(value_type = Option<String>, required, format = DateTime)]
    heartbeat_at: Option<Timestamp>,
    /// When the attempt ends unless a reply comes, or a heartbeat if the step requires them.
    #[schema(value_type = String, format = DateTime)]
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
    fn of(app: &App, agent: &Agent) -> Self {
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
            source: match is_configured(app, name) {
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

    fn respond(&self, status: StatusCode) -> Response {
        tagged(json(status, self), &self.etag())
    }
}

fn is_configured(app: &App, name: &AgentName) -> bool {
    app.config.agents.contains_key(name)
}

/// Parses a specification and reports all its faults at once.
fn read(body: &RawValue) -> Result<AgentSpec, Vec<FieldFault>> {
    let mut fields = Fields::of(body, "")?;
    let mut endpoints = Vec::new();
    let mode = fields.choice("mode", AgentMode::ALL).unwrap_or_default();
    if !fields.has("endpoints") && mode == AgentMode::Call {
        let remedy =
            "give an array such as [{\"url\": \"http://10.0.0.5:8080\"}], or \"mode\": \"pull\"";
        fields.missing("endpoints", remedy);
    }
    let listed = fields.array("endpoints").unwrap_or_default();
    for (at, endpoint) in listed.into_iter().enumerate() {
        let pointer = format!("{}/{at}", fields.pointer("endpoints"));
        match read_endpoint(endpoint, &pointer) {
            Ok(endpoint) => endpoints.extend(endpoint),
            Err(faults) => fields.extend(faults),
        }
    }
    let mut retry = RetrySpec::default();
    if let Some(mut waits) = fields.object("retry") {
        let any = Span::default()..=Span::LONGEST;
        retry.initial = waits.span("initial", any.clone()).unwrap_or(retry.initial);
        retry.max = waits.span("max", any).unwrap_or(retry.max);
        let factor = waits.integer("factor", 0..=i64::from(u32::MAX));
        retry.factor = factor.map_or(retry.factor, |factor| factor as u32);
        let percent = waits.integer("budget_percent", 0..=i64::from(u32::MAX));
        retry.budget_percent = percent.map(|percent| percent as u32);
        if let Err(faults) = waits.finish() {
            fields.extend(faults);
        }
    }
    let max_open = fields.integer("max_open", 0..=i64::from(u32::MAX));
    let max_open = max_open.map(|most| most as u32);
    let max_in_flight = fields.integer("max_in_flight", 0..=i64::from(u32::MAX));
    let max_in_flight = max_in_flight.map(|most| most as u32);
    let adaptive = fields.object("adaptive").and_then(|adaptive| {
        let read = read_adaptive(adaptive);
        read.map_err(|faults| fields.extend(faults)).ok()
    });
    let breaker = fields.object("breaker").and_then(|breaker| {
        let read = read_breaker(breaker);
        read.map_err(|faults| fields.extend(faults)).ok()
    });
    let ejection = fields.object("ejection").and_then(|ejection| {
        let read = read_ejection(ejection);
        read.map_err(|faults| fields.extend(faults)).ok()
    });
    let health = fields.object("health").and_then(|health| {
        let read = read_health(health);
        read.map_err(|faults| fields.extend(faults)).ok()
    });
    let mut downtime = Vec::new();
    let listed = fields.array("downtime").unwrap_or_default();
    for (at, window) in listed.into_iter().enumerate() {
        let pointer = format!("{}/{at}", fields.pointer("downtime"));
        match read_downtime(window, &pointer) {
            Ok(window) => downtime.push(window),
            Err(faults) => fields.extend(faults),
        }
    }
    let rate_limit = fields.object("rate_limit").and_then(|limit| {
        let read = read_rate_limit(limit);
        read.map_err(|faults| fields.extend(faults)).ok()
    });
    let mut spec = AgentSpec {
        mode,
        endpoints,
        retry,
        max_open,
        adaptive,
        breaker,
        ejection,
        health,
        downtime,
        max_in_flight,
        rate_limit,
        ..AgentSpec::default()
    };
    agent_access::read(&mut fields, &mut spec);
    agent_lanes::read(&mut fields, &mut spec);
    // A field that could not be parsed would be reported a second time below, as missing.
    fields.finish()?;
    let wrong = spec.faults("").into_iter();
    let wrong: Vec<_> = wrong
        .map(|(pointer, message)| FieldFault::new(pointer, message))
        .collect();
    if wrong.is_empty() {
        Ok(spec)
    } else {
        Err(wrong)
    }
}

fn read_adaptive(mut fields: Fields<'_>) -> Result<AdaptiveSpec, Vec<FieldFault>> {
    let mut spec = AdaptiveSpec::default();
    let least = fields.integer("least", AdaptiveSpec::LEAST);
    spec.least = least.map_or(spec.least, |least| least as u32);
    spec.slow_after = fields.span("slow_after", Span::default()..=Span::LONGEST);
    fields.finish()?;
    Ok(spec)
}

fn read_breaker(mut fields: Fields<'_>) -> Result<BreakerSpec, Vec<FieldFault>> {
    let mut spec = BreakerSpec::default();
    let any = Span::default()..=Span::LONGEST;
    for (name, number, range) in [
        (
            "failure_percent",
            &mut spec.failure_percent,
            BreakerSpec::PERCENTS,
        ),
        (
            "slow_percent",
            &mut spec.slow_percent,
            BreakerSpec::PERCENTS,
        ),
        ("min_calls", &mut spec.min_calls, BreakerSpec::MIN_CALLS),
        ("canaries", &mut spec.canaries, BreakerSpec::CANARIES),
    ] {
        let given = fields.integer(name, range);
        *number = given.map_or(*number, |given| given as u32);
    }
    spec.slow_after = fields.span("slow_after", any.clone());
    spec.window = fields.span("window", any.clone()).unwrap_or(spec.window);
    spec.open_for = fields.span("open_for", any).unwrap_or(spec.open_for);
    fields.finish()?;
    Ok(spec)
}

fn read_ejection(mut fields: Fields<'_>) -> Result<EjectionSpec, Vec<FieldFault>> {
    let mut spec = EjectionSpec::default();
    let any = Span::default()..=Span::LONGEST;
    let after = fields.integer("after", EjectionSpec::FAILURES);
    spec.after = after.map_or(spec.after, |after| after as u32);
    spec.base = fields.span("for", any.clone()).unwrap_or(spec.base);
    spec.max = fields.span("max", any).unwrap_or(spec.max);
    fields.finish()?;
    Ok(spec)
}

fn read_health(mut fields: Fields<'_>) -> Result<HealthSpec, Vec<FieldFault>> {
    if fields.peek("path").is_none() {
        fields.missing("path", "give a path such as \"/health\"");
    }
    let mut spec = HealthSpec::at(fields.string("path", LONGEST_URL).unwrap_or_default());
    let any = Span::default()..=Span::LONGEST;
    for (name, span) in [
        ("interval", &mut spec.interval),
        ("timeout", &mut spec.timeout),
    ] {
        *span = fields.span(name, any.clone()).unwrap_or(*span);
    }
    for (name, count) in [
        ("unhealthy_after", &mut spec.unhealthy_after),
        ("healthy_after", &mut spec.healthy_after),
    ] {
        let given = fields.integer(name, HealthSpec::COUNTS);
        *count = given.map_or(*count, |given| given as u32);
    }
    fields.finish()?;
    Ok(spec)
}

fn read_downtime(body: &RawValue, pointer: &str) -> Result<DowntimeSpec, Vec<FieldFault>> {
    let mut fields = Fields::of(body, pointer)?;
    for (name, remedy) in [
        ("cron", "give five fields such as \"0 2 * * SUN\""),
        ("for", "give a duration such as \"2h\""),
    ] {
        if fields.peek(name).is_none() {
            fields.missing(name, remedy);
        }
    }
    let spec = DowntimeSpec {
        cron: fields
            .string("cron", DowntimeSpec::LONGEST_CRON)
            .unwrap_or_default(),
        length: { fields.span("for", Span::default()..=Span::LONGEST) }.unwrap_or_default(),
        timezone: { fields.string("timezone", 100) }.unwrap_or_else(DowntimeSpec::default_timezone),
        reason: fields.string("reason", DowntimeSpec::LONGEST_REASON),
    };
    fields.finish()?;
    Ok(spec)
}

fn read_rate_limit(mut fields: Fields<'_>) -> Result<RateLimitSpec, Vec<FieldFault>> {
    if fields.peek("rate").is_none() {
        fields.missing("rate", format!("give a rate {RATE_FORMS}"));
    }
    let rate = read_rate(&mut fields);
    let burst = fields.integer("burst", RateLimitSpec::BURSTS);
    let burst = burst.map(|burst| burst as u32);
    fields.finish()?;
    // Without a rate there was a fault.
    let rate = rate.ok_or_else(Vec::new)?;
    Ok(RateLimitSpec { rate, burst })
}

fn read_endpoint(body: &RawValue, pointer: &str) -> Result<Option<Endpoint>, Vec<FieldFault>> {
    let mut fields = Fields::of(body, pointer)?;
    if !fields.has("url") {
        fields.missing("url", "give a URL such as \"http://10.0.0.5:8080\"");
    }
    let url = fields.string("url", LONGEST_URL);
    let max_in_flight = fields.integer("max_in_flight", 0..=i64::from(u32::MAX));
    let max_in_flight =
        max_in_flight.map_or(Endpoint::default_max_in_flight(), |count| count as u32);
    let zone = fields.string("zone", LONGEST_URL);
    let drain = fields.boolean("drain").unwrap_or_default();
    fields.finish()?;
    Ok(url.map(|url| Endpoint {
        url,
        max_in_flight,
        zone,
        drain,
    }))
}

/// Register or change an agent
///
/// Takes effect at once: calls in flight continue unchanged, and steps that waited for this agent start. With
/// `If-None-Match: *` the agent is registered only if it does not exist; with `If-Match` and the ETag that you have
/// read, it is changed only if nobody else has changed it since.
#[utoipa::path(
    put, path = "/v1/agents/{name}", tag = "agents", operation_id = "put_agent",
    params(("name" = PlainName, Path, description = "The agent's name", example = "payments"), RegistrationHeaders),
    request_body(content = SpecBody, description = "The endpoints and the retry policy",
        example = json!({"endpoints": [{"url": "http://10.0.0.5:8080", "max_in_flight": 64}], "retry": {"initial": "100ms", "max": "10s", "factor": 2}})),
    responses(
        (status = 200, description = "The agent existed; the response is the agent as it is now", body = AgentView),
        (status = 201, description = "The agent did not exist and is now registered", body = AgentView),
        (status = 409, description = "The agent is defined in the configuration file", body = ProblemBody, content_type = "application/problem+json"),
        (status = 412, description = "A precondition (If-Match, If-None-Match) failed; `etag` is the current one", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
async fn put(
    State(app): State<Arc<App>>,
    NamePath(name): NamePath,
    query: Query,
    IfTagged(condition): IfTagged,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    query.finish()?;
    plain_name("an agent", &name)?;
    let name = AgentName::new(name);
    must_be_ours(&app, &name)?;
    let spec = read(&body).map_err(Problem::invalid)?;
    let mut refused = app.agents.secret_faults(&name, &spec);
    refused.extend(certificate_faults(&spec));
    let refused = refused.into_iter();
    let refused = refused.map(|(pointer, message)| FieldFault::new(pointer, message));
    let refused: Vec<_> = refused.collect();
    if !refused.is_empty() {
        return Err(Problem::invalid(refused));
    }
    let put = app.store.put_agent(name.clone(), spec.clone(), condition);
    let is_new = put.await?;
    app.registered.refresh(&app.store.reader).await?;
    // The agent as this request registered it, even if another request has changed it since.
    let known = app.agents.get(&name);
    let in_flight = known.as_ref().map_or(0, |agent| agent.in_flight());
    let view = AgentView {
        pause: known.as_deref().and_then(PauseView::of),
        throttle: known.as_deref().and_then(ThrottleView::of),
        breakers: known.as_deref().and_then(BreakerView::all),
        endpoints: known.as_deref().and_then(EndpointView::all),
        retry_budget: known.as_deref().and_then(RetryBudgetView::of),
        check: LastCheckView::of(&app, &name),
        ..AgentView::new(&app, &name, &spec, in_flight)
    };
    if !is_new {
        return Ok(view.respond(StatusCode::OK));
    }
    let mut response = view.respond(StatusCode::CREATED);
    if let Ok(location) = HeaderValue::try_from(format!("/v1/agents/{name}")) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

/// List agents
///
/// Ordered by name, with the calls that this instance has in flight.
#[utoipa::path(
    get, path = "/v1/agents", tag = "agents", operation_id = "list_agents",
    params(PageQuery),
    responses((status = 200, description = "A page of agents", body = Page<AgentView>)),
)]
async fn list(State(app): State<Arc<App>>, mut query: Query) -> Result<Response, Problem> {
    let limit = query.limit()?;
    let (after, cursors) = query.cursor(|name| Some(name.to_owned()))?;
    query.finish()?;
    let agents = app.agents.list();
    let views = agents.iter().map(|agent| AgentView::of(&app, agent));
    let page = Page::of_names(views, after.as_deref(), limit, cursors, |view| &view.name);
    Ok(json(StatusCode::OK, &page))
}

/// Get an agent
///
/// Its specification, its calls in flight from this instance, and what keeps calls from it. The ETag covers the
/// specification only: omit If-None-Match to get everything else as it is now.
#[utoipa::path(
    get, path = "/v1/agents/{name}", tag = "agents", operation_id = "get_agent",
    params(("name" = PlainName, Path, description = "The agent's name", example = "payments")),
    responses((status = 200, description = "The agent", body = AgentView)),
)]
async fn get(
    State(app): State<Arc<App>>,
    NamePath(name): NamePath,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    one(&app, &AgentName::new(name)).await
}

/// Remove an agent
///
/// Calls in flight continue. Steps of this agent that have not started wait until it is registered again.
#[utoipa::path(
    delete, path = "/v1/agents/{name}", tag = "agents", operation_id = "delete_agent",
    params(("name" = PlainName, Path, description = "The agent's name", example = "payments"), RegistrationHeaders),
    responses(
        (status = 204, description = "The agent is removed"),
        (status = 409, description = "The agent is defined in the configuration file", body = ProblemBody, content_type = "application/problem+json"),
        (status = 412, description = "A precondition (If-Match, If-None-Match) failed; `etag` is the current one", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
async fn delete(
    State(app): State<Arc<App>>,
    NamePath(name): NamePath,
    query: Query,
    IfTagged(condition): IfTagged,
) -> Result<Response, Problem> {
    query.finish()?;
    let name = AgentName::new(name);
    must_be_ours(&app, &name)?;
    let stored = app.store.delete_agent(name.clone(), condition).await?;
    app.registered.refresh(&app.store.reader).await?;
    if !stored {
        return Err(no_such_agent(&name));
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(super) async fn one(app: &App, name: &AgentName) -> Result<Response, Problem> {
    let agents = app.agents.list();
    let agent = agents.iter().find(|agent| agent.name() == name);
    let agent = agent.ok_or_else(|| no_such_agent(name))?;
    let mut view = AgentView::of(app, agent);
    view.check = LastCheckView::of(app, name);
    match add_recorded(app, agent, &mut view).await {
        Ok(()) => {}
        // Breakers and pauses are known without it, and are asked for when things fail.
        Err(problem) if problem.kind() == ProblemKind::StoreUnavailable => {
            view.incomplete = Some(problem.detail().to_owned());
        }
        Err(problem) => return Err(problem),
    }
    Ok(view.respond(StatusCode::OK))
}

/// Adds what only the record knows of an agent.
async fn add_recorded(app: &App, agent: &Arc<Agent>, view: &mut AgentView) -> Result<(), Problem> {
    let name = agent.name();
    if agent.spec().mode == AgentMode::Pull {
        view.workers = Some(workers(app, name).await?);
    }
    view.lanes = LaneView::first(app, agent).await?;
    view.limited_by_workflows = WorkflowStepsView::first(app, agent).await?;
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
        view.slots = Some(views.collect());
    }
    if !agent.spec().downtime.is_empty() {
        let now = app.store.reader.now().await?;
        let windows = agent.next_windows(now, MOST_WINDOWS).into_iter();
        let windows = windows.map(|window| DowntimeView {
            from: window.start,
            until: window.end,
            reason: window.reason,
        });
        view.next_downtime = Some(windows.collect());
    }
    let end = match &view.pause {
        Some(pause) => pause.until(),
        None => { view.next_downtime.iter().flatten() }
            .map(|window| window.until)
            .next(),
    };
    if let Some(end) = end {
        let found = app
            .store
            .reader
            .tasks_in_danger(name, end, MOST_IN_DANGER)
            .await?;
        view.in_danger = Some(InDangerView {
            complete_by_before: end,
            tasks: found.tasks,
            is_at_least: found.looked_at >= MOST_IN_DANGER as u64,
        });
    }
    let endpoints = { view.endpoints.iter().flatten() };
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
        let endpoints = view.endpoints.take();
        view.endpoints = endpoints.map(|endpoints| endpoints.into_iter().map(with_left).collect());
    }
    Ok(())
}

fn must_be_ours(app: &App, name: &AgentName) -> Result<(), Problem> {
    if !is_configured(app, name) {
        return Ok(());
    }
    Err(Problem::new(
        ProblemKind::AgentConfigured,
        format!("agent `{name}` is defined in the configuration file; edit it there and restart"),
    ))
}

pub(super) fn no_such_agent(name: &AgentName) -> Problem {
    Problem::new(
        ProblemKind::NoSuchAgent,
        format!(
            "agent {name:?} does not exist: GET /v1/agents lists the agents, PUT registers one"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: &str) -> Result<AgentSpec, Vec<String>> {
        let body = RawValue::from_string(json.to_owned()).unwrap();
        read(&body).map_err(|faults| faults.into_iter().map(|fault| fault.pointer).collect())
    }

    #[test]
    fn what_is_left_out_has_its_usual_value() {
        let read = spec(r#"{"endpoints": [{"url": "http://10.0.0.5:8080"}]}"#).unwrap();
        assert_eq!(read.endpoints[0].max_in_flight, 64);
        assert_eq!(read.retry, RetrySpec::default());
        let read = spec(
            r#"{"endpoints": [{"url": "http://a", "max_in_flight": 3}, {"url": "http://b/v1"}],
                "retry": {"initial": "1s", "max": "1m", "factor": 3}}"#,
        )
        .unwrap();
        assert_eq!(read.endpoints[0].max_in_flight, 3);
        assert_eq!(read.retry.max, Span::from_secs(60));
    }

    #[test]
    fn all_faults_are_reported_at_once_each_with_its_pointer() {
        let faults = spec(
            r#"{"endpoints": [{"urls": "http://a"}, {"url": 7}, {"url": "http://b", "max_in_flight": "many"}],
                "retry": {"initial": "soon", "jitter": true}, "secret": 1}"#,
        )
        .unwrap_err();
        for pointer in [
            "/endpoints/0/urls",
            "/endpoints/0/url",
            "/endpoints/1/url",
            "/endpoints/2/max_in_flight",
            "/retry/initial",
            "/retry/jitter",
            "/secret",
        ] {
            let count = faults.iter().filter(|fault| *fault == pointer).count();
            assert_eq!(count, 1, "{pointer} in {faults:?}");
        }
        assert_eq!(faults.len(), 7, "{faults:?}");
    }

    #[test]
    fn values_that_can_be_read_but_not_used_are_refused_too() {
        for (json, pointer) in [
            ("{}", "/endpoints"),
            (r#"{"endpoints": []}"#, "/endpoints"),
            (r#"{"endpoints": [{"url": "ftp://a"}]}"#, "/endpoints/0/url"),
            (
                r#"{"endpoints": [{"url": "http://a", "max_in_flight": 0}]}"#,
                "/endpoints/0/max_in_flight",
            ),
            (
                r#"{"endpoints": [{"url": "http://a"}], "retry": {"factor": 0}}"#,
                "/retry/factor",
            ),
        ] {
            assert_eq!(spec(json).unwrap_err(), [pointer], "{json}");
        }
        assert_eq!(spec("7").unwrap_err(), [""]);
    }
}
