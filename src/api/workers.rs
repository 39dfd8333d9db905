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

use super::{
    App, Problem,
    extract::{Caller, JsonBody, LONGEST_WAIT, NamePath, PlainName, Query, plain_name},
    problem::{ProblemBody, ProblemKind},
    response::json,
};
use crate::{
    agent::{Agent, metrics_label},
    api::openapi::words::{DurationSchema, JsonSchema},
    domain::{
        Actor, AgentMode, AgentName, Call, CallOutcome, Command, Effect, Fault, FaultKind,
        FieldFault, Fields, Method, Purpose, ReplyDigest, Span, Timestamp, WorkerName,
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

/// What a worker asks for.
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
    /// How long to wait if there is no work; more than `60s` is treated as `60s`.
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
    /// For the reply: a credential that is valid for this attempt.
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
    /// What to do: the step's work, undo it, or find out whether it was done.
    purpose: WorkPurpose,
    /// The same for every attempt of the step: do the work once.
    #[schema(example = "0193f4f0-7d5e-7cc3-b5a1-1d2c3e4f5a6b/render")]
    idempotency_key: String,
    /// The reply must come before.
    #[schema(value_type = String, format = DateTime)]
    complete_by: Timestamp,
    /// If set, a heartbeat must come at least so often.
    #[schema(value_type = Option<DurationSchema>, required)]
    heartbeat_within: Option<Span>,
    request: FetchedRequestView,
}

/// What a worker does with a step.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkPurpose {
    Work,
    Undo,
    Probe,
}

/// The request of a step, as its definition says it.
#[derive(Serialize, ToSchema)]
#[schema(as = FetchedRequest)]
pub struct FetchedRequestView {
    #[schema(example = "POST")]
    method: &'static str,
    /// With its query; empty if the step has none.
    #[schema(example = "/videos")]
    path: String,
    /// What a call would send, by lower-case names.
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    headers: serde_json::Map<String, serde_json::Value>,
    /// Null if there is none.
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
    // Otherwise what becomes ready goes to this worker without a look.
    if request.wait.is_zero() || app.local.has_queued(&agent) {
        app.local.claim_for_worker(&agent, &app.store).await?;
    }
    let fetched = tokio::select! {
        biased;
        fetched = asked.arrived() => fetched,
        () = app.stop.cancelled() => asked.rest(),
        () = tokio::time::sleep(request.wait) => asked.rest(),
    };
    let calls = app.local.still_held(fetched, &app.store).await;
    // From here on nothing awaits: what was claimed goes out.
    let steps = calls.into_iter().filter_map(|call| view(&app, call));
    let steps: Vec<_> = steps.collect();
    counter!("provost_agent_fetched_total", "agent" => label).increment(steps.len() as u64);
    Ok(json(StatusCode::OK, &WorkView { steps }).into_response())
}

/// Counts a request while it waits.
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

/// Another instance may have registered the agent just now, or given it another mode.
async fn must_be_pulled(app: &App, name: &AgentName) -> Result<(), Problem> {
    let is_pulled = |agent: Arc<Agent>| agent.spec().mode == AgentMode::Pull;
    if !app.agents.get(name).is_some_and(is_pulled) {
        app.registered.refresh(&app.store.reader).await?;
    }
    let Some(agent) = app.agents.get(name) else {
        return Err(super::agents::no_such_agent(name));
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

/// `None`: its request could not be made, and the step has failed with that.
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

/// What a worker cannot be given fails as a call that cannot be made does.
async fn fail(app: Arc<App>, call: Call, message: String) {
    let applied = app.store.apply(Apply {
        task: call.step.task,
        command: Command::LaterReply {
            step: call.step.step,
            attempt: call.attempt,
            outcome: CallOutcome::Failed(Fault {
                kind: FaultKind::Permanent,
                message,
                status: None,
                body: None,
                at: call.complete_by,
                effect: Effect::Known,
                step: None,
                undo_on_resume: false,
            }),
            digest: ReplyDigest("unsent".to_owned()),
        },
        by: Actor::scheduler(app.instance.as_str()),
        if_version: None,
        idempotency: None,
    });
    if let Err(error) = applied.await {
        warn!(task = %call.step.task, step = %call.step_name, %error,
            "a step that no worker can be given was not failed; it will expire");
    }
}
