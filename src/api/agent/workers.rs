//! Workers: programs that fetch the steps of an agent, because their service cannot be called.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use metrics::{Gauge, counter, gauge};
use serde::Serialize;
use serde_json::value::RawValue;
use tracing::warn;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::api::{
    App, Problem,
    extract::{Caller, JsonBody, LONGEST_WAIT, NamePath, PlainName, Query, plain_name},
    problem::{ProblemBody, ProblemKind},
    response::json,
};
use crate::{
    agent::{Agent, metrics_label},
    api::openapi::words::{DurationSchema, JsonSchema},
    clock,
    domain::{
        agent::AgentMode,
        definition::Method,
        task::{Actor, Call, CallOutcome, Command, Purpose, ReplyDigest},
        values::{AgentName, Fault, FieldFault, Fields, Span, Timestamp, WorkerName},
    },
    store::Apply,
};

/// The most steps of one response.
const MOST_STEPS: usize = 100;
const USUAL_WAIT: Span = Span::from_secs(20);
const LONGEST_WORKER: usize = 64;

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(claim))
}

/// The request of a worker for steps.
#[derive(ToSchema)]
#[schema(as = WorkRequest, example = json!({ "worker": "w-1", "max": 10, "wait": "20s" }))]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct WorkRequestBody {
    /// The name of this worker, shown with the steps that it fetched: a different one for each process.
    #[schema(
        max_length = 64,
        pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$",
        example = "w-1"
    )]
    worker: String,
    /// The most steps of the response.
    #[schema(default = 1, minimum = 1, maximum = 100, example = 10)]
    max: Option<u32>,
    /// The longest wait if there is no work; more than `60s` is treated as `60s`.
    #[schema(default = "20s")]
    wait: Option<DurationSchema>,
}

/// The steps that a worker has fetched.
#[derive(Serialize, ToSchema)]
#[schema(as = Work)]
pub struct WorkView {
    /// Empty if there was no work in time.
    #[schema(max_items = 100)]
    steps: Vec<FetchedStepView>,
}

/// A step that a worker has fetched.
#[derive(Serialize, ToSchema)]
#[schema(as = FetchedStep)]
pub struct FetchedStepView {
    /// The credential for the reply, valid for this attempt.
    #[schema(example = "AZc0bXx_cAmAAAAAAAAAAQAAAAAAAQx1mC5q0aS6w0bZ9V4Yd2c")]
    token: String,
    #[schema(format = Uuid)]
    task: String,
    /// The submitter's own id of the task.
    #[schema(value_type = Option<String>, required, example = "order-1001")]
    task_key: Option<Arc<str>>,
    #[schema(example = "render")]
    step: String,
    #[schema(example = 1)]
    attempt: u32,
    /// The work that is wanted: the step's work, its undo, or a probe that finds out whether it was done.
    purpose: WorkPurpose,
    /// The same for every attempt of the step: do the work once.
    #[schema(example = "0193f4f0-7d5e-7cc3-b5a1-1d2c3e4f5a6b/render")]
    idempotency_key: String,
    /// The time before which the reply must arrive.
    complete_by: Timestamp,
    /// If set, the longest time between two heartbeats.
    #[schema(value_type = Option<DurationSchema>, required)]
    heartbeat_within: Option<Span>,
    request: FetchedRequestView,
}

/// The work that a worker does for a step.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkPurpose {
    Work,
    Undo,
    Probe,
}

/// The request of a step, rendered from its definition.
#[derive(Serialize, ToSchema)]
#[schema(as = FetchedRequest)]
pub struct FetchedRequestView {
    #[schema(example = "POST")]
    method: &'static str,
    /// The path with its query; empty if the step has none.
    #[schema(example = "/videos")]
    path: String,
    /// The headers that a call would send, by lower-case names.
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    headers: serde_json::Map<String, serde_json::Value>,
    /// The body; null if there is none.
    #[schema(value_type = JsonSchema)]
    body: Option<Box<RawValue>>,
}

struct WorkRequestFields {
    worker: WorkerName,
    most: usize,
    wait: Duration,
}

fn read(body: &RawValue) -> Result<WorkRequestFields, Vec<FieldFault>> {
    let mut fields = Fields::of(body, "")?;
    if fields.peek("worker").is_none() {
        fields.missing("worker", "name this worker, as in \"w-1\"");
    }
    let worker = fields.string("worker", LONGEST_WORKER);
    if let Some(worker) = &worker
        && let Err(problem) = plain_name("the worker", worker)
    {
        fields.fault("worker", problem.detail().to_owned());
    }
    let most = fields.integer("max", 1..=MOST_STEPS as i64);
    let wait = fields.span("wait", Span::default()..=Span::LONGEST);
    fields.finish()?;
    let wait = wait.unwrap_or(USUAL_WAIT).min(LONGEST_WAIT);
    Ok(WorkRequestFields {
        worker: WorkerName::new(worker.unwrap_or_default()),
        most: most.map_or(1, |most| most as usize),
        wait: wait.duration(),
    })
}

/// Fetch work
///
/// For workers of an agent with the mode `pull`. Waits until there is work, and returns it: send the reply to each step
/// with its token, before `complete_by`. If a worker never replies, the step is retried.
#[utoipa::path(
    post, path = "/v1/agents/{name}/claim", tag = "agents", operation_id = "claim_work",
    params(("name" = PlainName, Path, description = "The agent's name", example = "payments")),
    request_body(content = WorkRequestBody),
    responses(
        (status = 200, description = "The steps that this worker has now", body = WorkView),
        (status = 404, description = "The agent does not exist", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "The agent is called at its endpoints: no worker fetches its steps", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "Too many callers are waiting", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
async fn claim(
    State(app): State<Arc<App>>,
    NamePath(name): NamePath,
    caller: Caller,
    query: Query,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    query.finish()?;
    caller.must_work_for(&name)?;
    let request = read(&body).map_err(Problem::invalid)?;
    let agent = AgentName::new(name);
    must_be_pulled(&app, &agent).await?;
    let Ok(_permit) = app.waits.try_acquire() else {
        return Err(Problem::new(
            ProblemKind::TooManyWaiting,
            "the limit of callers that wait is reached: ask again later, with fewer workers or a larger `max`",
        ));
    };
    if app.stop.is_cancelled() {
        return Err(Problem::new(
            ProblemKind::Stopping,
            "the service is stopping and gives out no more work: ask another instance, or this one after its restart",
        ));
    }
    let label = metrics_label(agent.as_str());
    let _waiting = WaitingMeter::begin(&label);
    let mut asked = app.local.ask_for_work(&agent, request.worker, request.most);
    // If neither is true, steps that become ready go to this worker without a read of the queue.
    if request.wait.is_zero() || app.local.has_queued(&agent) {
        app.local.claim_for_worker(&agent, &app.store).await?;
    }
    let fetched = tokio::select! {
        biased;
        fetched = asked.arrived() => fetched,
        () = app.stop.cancelled() => asked.rest(),
        () = clock::sleep(request.wait) => asked.rest(),
    };
    let calls = app.local.still_held(fetched, &app.store).await;
    // Nothing awaits from here on, so that the response has everything that was claimed.
    let steps = calls.into_iter().filter_map(|call| view(&app, call));
    let steps: Vec<_> = steps.collect();
    counter!("provost_agent_fetched_total", "agent" => label).increment(steps.len() as u64);
    Ok(json(StatusCode::OK, &WorkView { steps }).into_response())
}

/// Adds one to the gauge of waiting workers while a request waits.
struct WaitingMeter(Gauge);

impl WaitingMeter {
    fn begin(label: &str) -> Self {
        let gauge = gauge!("provost_agent_waiting_workers", "agent" => label.to_owned());
        gauge.increment(1);
        Self(gauge)
    }
}

impl Drop for WaitingMeter {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

/// Refuses an agent that is called at its endpoints. If this instance does not know the agent as one with workers, it
/// reads the registration again: another instance may have registered it, or given it another mode.
async fn must_be_pulled(app: &App, name: &AgentName) -> Result<(), Problem> {
    let is_pulled = |agent: Arc<Agent>| agent.spec().mode == AgentMode::Pull;
    if !app.agents.get(name).is_some_and(is_pulled) {
        app.registered.refresh(&app.store.reader).await?;
    }
    let Some(agent) = app.agents.get(name) else {
        return Err(super::no_such_agent(name));
    };
    if agent.spec().mode == AgentMode::Pull {
        return Ok(());
    }
    Err(Problem::new(
        ProblemKind::AgentIsCalled,
        format!(
            "agent `{name}` is called at its endpoints: register it with {{\"mode\": \"pull\"}} if workers are to fetch its steps"
        ),
    ))
}

/// Returns `None` if the request could not be made. The step then fails with that error.
fn view(app: &Arc<App>, call: Call) -> Option<FetchedStepView> {
    let headers = match app.agents.worker_headers(&call) {
        Ok(headers) => headers,
        Err(message) => {
            tokio::spawn(fail(app.clone(), call, message));
            return None;
        }
    };
    let headers = headers.iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        (name.as_str().to_owned(), value.into())
    });
    let body = call.body.as_deref();
    Some(FetchedStepView {
        token: app.reply_key.token(call.step, call.attempt),
        task: call.step.task.to_string(),
        step: call.step_name.to_string(),
        attempt: call.attempt.0,
        purpose: match call.purpose {
            Purpose::Undo(_) => WorkPurpose::Undo,
            Purpose::Probe(_) => WorkPurpose::Probe,
            Purpose::Work | Purpose::Poll | Purpose::Cancel(_) => WorkPurpose::Work,
        },
        complete_by: call.wall_complete_by,
        heartbeat_within: call.heartbeat_within,
        request: FetchedRequestView {
            method: Method::as_str(call.method),
            headers: headers.collect(),
            body: body.and_then(|body| RawValue::from_string(body.to_owned()).ok()),
            path: call.path,
        },
        task_key: call.task_key,
        idempotency_key: call.idempotency_key,
    })
}

/// Fails a step whose request cannot be made, as a call that cannot be made does.
async fn fail(app: Arc<App>, call: Call, message: String) {
    let applied = app.store.apply(Apply::new(
        call.step.task,
        Command::LaterReply {
            step: call.step.step,
            attempt: call.attempt,
            outcome: CallOutcome::Failed(Fault::permanent(message, call.complete_by)),
            digest: ReplyDigest("unsent".to_owned()),
        },
        Actor::scheduler(app.instance.as_str()),
    ));
    if let Err(error) = applied.await {
        warn!(task = %call.step.task, step = %call.step_name, %error,
            "a step that no worker can be given was not failed; it will expire");
    }
}
