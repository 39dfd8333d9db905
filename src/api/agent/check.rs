//! The check of an agent. Provost calls the service as steps would call it, and derives from the responses if the
//! service does what steps rely on.

use std::{
    collections::{BTreeMap, HashSet},
    ops::RangeInclusive,
    sync::Arc,
};

use axum::{extract::State, http::StatusCode, response::Response};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::value::RawValue;
use tracing::info;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::controls;
use crate::api::{
    App, Problem,
    definition::shapes::{ProbeBody, StepRequest, UndoBody},
    extract::{Caller, JsonBody, NamePath, PlainName, Query},
    problem::{ProblemBody, ProblemKind},
    response::json,
};
use crate::{
    agent::{Agent, CheckRequest, ShownExchange, check_tag},
    api::openapi::words::{DurationSchema, JsonSchema},
    domain::{
        agent::{
            AgentCheck, AgentMode, AgentStop, CheckFinding, CheckPoint, CheckStatus, CheckVerdict,
            KeptFinding,
        },
        definition::{
            DEFINITION_BUDGET, Definition, Method, Policies, ReplyMode, parse_steps_within,
        },
        template::{Budget, Expression, Origin, Payload},
        values::{AgentName, FieldFault, Fields, QUEUE_SCHEME, Span, Timestamp},
    },
};

const LONGEST_CHECK: RangeInclusive<Span> = Span::from_secs(1)..=Span::from_secs(120);
const USUAL_CHECK: Span = Span::from_secs(60);
/// The longest sentence of a finding that is kept, in characters.
const LONGEST_SEEN: usize = 300;
/// Fields of a step that have no effect on a check. They are accepted, so that a step can be sent as a workflow has
/// it.
const IGNORED: [&str; 7] = [
    "after",
    "when",
    "max_failures",
    "on_exhausted",
    "on_permanent",
    "on_undo",
    "pivot",
];
/// The name of the step if the body gives none.
const STEP: &str = "check";

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(check))
}

/// The agents that are being checked.
#[derive(Default)]
pub struct RunningChecks(Mutex<HashSet<AgentName>>);

struct RunningCheck<'c> {
    all: &'c RunningChecks,
    agent: AgentName,
}

impl RunningChecks {
    fn begin(&self, agent: &AgentName) -> Option<RunningCheck<'_>> {
        let is_first = self.0.lock().insert(agent.clone());
        is_first.then(|| RunningCheck {
            all: self,
            agent: agent.clone(),
        })
    }
}

impl Drop for RunningCheck<'_> {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.agent);
    }
}

/// A step to check the agent with, as a workflow has it, and the fields of the check itself. The step's fields that
/// decide when it runs, and what follows its errors, have no effect.
#[derive(ToSchema)]
#[schema(as = AgentCheckRequest, example = json!({
    "request": { "path": "/charges", "body": { "amount": "{{ input.amount }}" } },
    "undo": { "request": { "method": "DELETE", "path": "/charges" } },
    "probe": { "request": { "path": "/charges" }, "outcome": "response.body.state", "output": "response.body.output" },
    "complete_within": "10s",
    "input": { "amount": 5 }
}))]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct AgentCheckBody {
    #[schema(default = "check", example = "charge")]
    name: Option<String>,
    /// The name of the agent. It can be left out.
    #[schema(example = "payments")]
    agent: Option<String>,
    /// Ignored, as are the next six fields.
    after: Option<JsonSchema>,
    when: Option<JsonSchema>,
    max_failures: Option<JsonSchema>,
    on_exhausted: Option<JsonSchema>,
    on_permanent: Option<JsonSchema>,
    on_undo: Option<JsonSchema>,
    pivot: Option<JsonSchema>,
    /// Default: a POST of the input.
    request: Option<StepRequest>,
    undo: Option<UndoBody>,
    probe: Option<ProbeBody>,
    #[schema(default = "30s", example = "10s")]
    complete_within: Option<DurationSchema>,
    /// The value of `input` in expressions. Each pretended task has a `task.id` and a `task.key` of its own.
    input: Option<JsonSchema>,
    /// A body that the service must refuse permanently. Default: a text.
    invalid: Option<JsonSchema>,
    /// An expression that gives how often the service did the work of one key, from the `response` of the probe. With
    /// it, a service whose outputs are all equal can be checked.
    #[schema(example = "response.body.charges")]
    count: Option<String>,
    /// The most time for the whole check, 1 s to 2 min.
    #[schema(default = "1m", example = "1m")]
    within: Option<DurationSchema>,
}

/// The result of a check.
#[derive(Serialize, ToSchema)]
#[schema(as = AgentCheckResult)]
pub struct AgentCheckView {
    #[schema(example = "payments")]
    agent: String,
    /// `incomplete`: no point failed, but some point could not be observed.
    status: CheckVerdict,
    checked_at: Timestamp,
    #[schema(max_items = 32)]
    findings: Vec<CheckFindingView>,
    /// Every call that was made, in the order of their responses.
    #[schema(max_items = 100)]
    exchanges: Vec<CheckExchangeView>,
}

/// The finding of a check for one point that steps rely on.
#[derive(Serialize, ToSchema)]
#[schema(as = CheckFinding)]
pub struct CheckFindingView {
    #[schema(value_type = CheckPoint)]
    name: &'static str,
    #[schema(value_type = CheckStatus)]
    status: &'static str,
    /// A description of what the service did.
    #[schema(example = "both had the same output")]
    seen: String,
    /// The consequence for the steps that use the agent.
    #[schema(
        example = "an attempt that is repeated, because its response was lost, does the work once"
    )]
    means: String,
    /// The numbers of the exchanges that show it.
    exchanges: Vec<u32>,
}

/// One call of the check. Bodies are cut off after 1 KiB; secrets of the agent are hidden, and headers are left out.
#[derive(Serialize, ToSchema)]
#[schema(as = CheckExchange)]
pub struct CheckExchangeView {
    #[schema(example = 3)]
    number: u32,
    /// The purpose of the call: `work`, `undo`, `probe`, …
    #[schema(example = "work")]
    purpose: &'static str,
    #[schema(value_type = Method)]
    method: &'static str,
    #[schema(example = "/charges")]
    path: String,
    /// The Idempotency-Key of the work, which an undo or a probe names in its header.
    #[schema(example = "0197a2b4-6c1e-7d52-9a07-3f6f0c1d2e3f:check")]
    key: String,
    complete_by: Timestamp,
    #[schema(required)]
    sent: Option<String>,
    /// Null if there was no response; `fault` says why.
    #[schema(required, example = 200)]
    status: Option<u16>,
    #[schema(required)]
    fault: Option<String>,
    /// The wait that Retry-After asked for.
    #[schema(required, example = "1000 ms")]
    retry_after: Option<String>,
    #[schema(required)]
    body: Option<String>,
    /// The duration in milliseconds.
    #[schema(example = 12)]
    millis: u64,
}

/// Check an agent
///
/// Calls its service as steps would, with keys of its own, and reports if the service does what they rely on: the
/// same key twice, after a lost response, after complete-by; undos before the work and twice; the results of probes;
/// errors, sizes and times. **It makes real work at the service**, about a dozen times, and undoes it if the request has
/// an `undo`. The calls take the agent's slots and count for its rate limit, but not for its breakers. The result is
/// kept with the agent, and dry runs warn of steps that rely on a point that failed.
#[utoipa::path(
    post, path = "/v1/agents/{name}/check", tag = "agents", operation_id = "check_agent",
    params(("name" = PlainName, Path, description = "The agent's name", example = "payments")),
    request_body(content = AgentCheckBody, description = "The step to check it with"),
    responses(
        (status = 200, description = "What was found, whatever it is", body = AgentCheckView),
        (status = 409, description = "The agent cannot be checked now, or never: another check runs, it is paused, or it is not called", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
async fn check(
    State(app): State<Arc<App>>,
    NamePath(name): NamePath,
    caller: Caller,
    query: Query,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    query.finish()?;
    let agent = controls::find_agent(&app, name).await?;
    let name = agent.name();
    must_be_callable(&app, &agent)?;
    let permit = app.bulkhead.enter().await?;
    let read = permit.run(|| parse_check_request(&app, name, &body));
    let read = read.map_err(Problem::invalid)?;
    drop(permit);
    let Ok(_place) = app.waits.try_acquire() else {
        return Err(Problem::new(
            ProblemKind::TooManyWaiting,
            "too many callers wait for tasks, work or checks here: retry after Retry-After",
        ));
    };
    let Some(_running) = app.checks.begin(name) else {
        return Err(cannot(format!(
            "agent `{name}` is being checked by another caller: wait until that check has ended"
        )));
    };
    let now = app.store.reader.wall_now().await?;
    let request = CheckRequest {
        definition: read.definition,
        input: read.input,
        invalid: read.invalid,
        count: read.count,
        within: read.within.duration(),
        now,
        max_output: app.config.limits.max_output.as_u64(),
    };
    info!(agent = %name, by = %caller.name, "a check of an agent begins");
    let report = tokio::select! {
        report = app.agents.check(&agent, &request) => report,
        () = app.stop.cancelled() => return Err(Problem::new(
            ProblemKind::Stopping,
            "the service is stopping, and the check has ended before it was complete: check again at another instance, or at this one after its restart",
        )),
    };
    let findings = crate::domain::agent::judge(&report.seen);
    let status = CheckVerdict::of(&findings);
    info!(agent = %name, by = %caller.name, status = status.as_str(), "a check of an agent has ended");
    let kept = AgentCheck {
        checked_at: now,
        status,
        request: read.shown,
        spec: check_tag(agent.spec()),
        findings: findings.iter().map(to_kept_finding).collect(),
    };
    let is_configured = app.config.agents.contains_key(name);
    let keeps = app
        .store
        .keep_agent_check(name.clone(), kept, is_configured);
    if !keeps.await? {
        return Err(super::no_such_agent(name));
    }
    app.registered.refresh(&app.store.reader).await?;
    let view = AgentCheckView {
        agent: name.to_string(),
        status,
        checked_at: now,
        findings: findings.into_iter().map(finding_view).collect(),
        exchanges: report.exchanges.into_iter().map(exchange_view).collect(),
    };
    Ok(json(StatusCode::OK, &view))
}

fn cannot(why: String) -> Problem {
    Problem::new(ProblemKind::CannotCheck, why)
}

fn must_be_callable(app: &App, agent: &Agent) -> Result<(), Problem> {
    let name = agent.name();
    if agent.spec().mode == AgentMode::Pull {
        return Err(cannot(format!(
            "agent `{name}` has the mode pull: its workers fetch their work, so there is no service that a check could call"
        )));
    }
    let mut endpoints = agent.spec().endpoints.iter();
    if endpoints.any(|endpoint| endpoint.url.starts_with(QUEUE_SCHEME)) {
        return Err(cannot(format!(
            "agent `{name}` has a queue, and a check sees only services that respond over HTTP"
        )));
    }
    if app.hold.is_held() {
        return Err(cannot(
            "this instance is held and calls nothing: POST /v1/hold/release ends that".to_owned(),
        ));
    }
    match agent.stopped().as_ref().and_then(AgentStop::why) {
        Some(why) => Err(cannot(format!(
            "agent `{name}` is not called now: {why}; check it when that is over"
        ))),
        None => Ok(()),
    }
}

struct ParsedCheckRequest {
    definition: Definition,
    /// The method and the path of the request, as the definition has them.
    shown: String,
    input: Payload,
    invalid: Option<Payload>,
    count: Option<Expression>,
    within: Span,
}

/// Parses the body of the request. The fields of a step are read by the rules of definitions.
fn parse_check_request(
    app: &App,
    agent: &AgentName,
    body: &RawValue,
) -> Result<ParsedCheckRequest, Vec<FieldFault>> {
    let mut fields = Fields::of(body, "")?;
    let within = fields.span("within", LONGEST_CHECK).unwrap_or(USUAL_CHECK);
    let input = fields.raw("input").map_or_else(Payload::null, Payload::new);
    let invalid = fields.raw("invalid").map(Payload::new);
    let budget = Budget::of_several(DEFINITION_BUDGET);
    let count = read_count(&mut fields, &budget);
    for name in IGNORED {
        fields.value(name);
    }
    let named = fields.string("agent", usize::MAX);
    if named.is_some_and(|named| named != agent.as_str()) {
        fields.fault("agent", "is not the agent that is checked: remove it");
    }
    let text = |text: &str| serde_json::value::to_raw_value(text).unwrap_or_default();
    let (step_name, agent) = (text(STEP), text(agent.as_str()));
    let mut step: BTreeMap<&str, &RawValue> = BTreeMap::new();
    step.extend([("name", &*step_name), ("agent", &*agent)]);
    for name in ["name", "request", "undo", "probe", "complete_within"] {
        step.extend(fields.value(name).map(|value| (name, value)));
    }
    let mut faults = fields.finish().err().unwrap_or_default();
    let steps = serde_json::to_string(&[step]).ok().and_then(Payload::parse);
    let steps = steps.unwrap_or_else(Payload::null);
    let parsed = parse_steps_within(&steps, "", &Policies::default(), &app.limits, app, &budget);
    let definition = match parsed {
        Ok(definition) => definition,
        Err(found) => {
            faults.extend(found.into_iter().map(|fault| {
                // The parser sees the step as the first of an array; in this body it is the whole.
                let pointer = fault.pointer.strip_prefix("/0").unwrap_or(&fault.pointer);
                FieldFault::new(pointer, fault.message)
            }));
            return Err(faults);
        }
    };
    let later = definition.steps.iter().chain(&definition.undos);
    for step in later.filter(|step| step.reply.mode() != ReplyMode::Response) {
        let pointer = if step.undoes.is_some() {
            "/undo/reply"
        } else {
            "/reply"
        };
        let message =
            "remove it: a check sees only what the service responds, and no reply that comes later";
        faults.push(FieldFault::new(pointer, message));
    }
    if count.is_some() && definition.steps[0].probe.is_none() {
        let message = "is read from the response of the probe: give a `probe`, or remove it";
        faults.push(FieldFault::new("/count", message));
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let shown = shown_request(&definition);
    Ok(ParsedCheckRequest {
        definition,
        shown,
        input,
        invalid,
        count,
        within,
    })
}

fn read_count(fields: &mut Fields<'_>, budget: &Budget) -> Option<Expression> {
    const SEEN: [&str; 3] = ["input", "response", "task"];
    let source = fields.string("count", usize::MAX)?;
    match Expression::parse(&source, Origin::Submitted(budget)) {
        Ok(count) => {
            let mut names = count.reads().names.iter();
            let Some(unknown) = names.find(|name| !SEEN.contains(&name.as_str())) else {
                return Some(count);
            };
            let message = format!(
                "`{unknown}` is not defined here: expressions can use `input`, `task` and `response`"
            );
            fields.fault("count", message);
        }
        Err(message) => fields.fault("count", message),
    }
    None
}

fn shown_request(definition: &Definition) -> String {
    let Some(request) = definition.steps[0].request() else {
        return String::new();
    };
    let path = request.path.outline("…");
    let path: String = path
        .split('?')
        .next()
        .unwrap_or_default()
        .chars()
        .take(200)
        .collect();
    match path.is_empty() {
        true => request.method.as_str().to_owned(),
        false => format!("{} {path}", request.method.as_str()),
    }
}

fn to_kept_finding(finding: &CheckFinding) -> KeptFinding {
    KeptFinding {
        name: finding.name,
        status: finding.status,
        seen: finding.seen.chars().take(LONGEST_SEEN).collect(),
    }
}

fn finding_view(finding: CheckFinding) -> CheckFindingView {
    CheckFindingView {
        name: finding.name.as_str(),
        status: finding.status.as_str(),
        means: finding.means(),
        seen: finding.seen,
        exchanges: finding.exchanges,
    }
}

fn exchange_view(exchange: ShownExchange) -> CheckExchangeView {
    let ShownExchange {
        number,
        purpose,
        method,
        path,
        key,
        complete_by,
        sent,
        status,
        retry_after,
        body,
        fault,
        millis,
    } = exchange;
    CheckExchangeView {
        number,
        purpose,
        method,
        path,
        key,
        complete_by,
        sent,
        status,
        fault,
        retry_after,
        body,
        millis,
    }
}
