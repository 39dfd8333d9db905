//! Commands of operators that keep calls from an agent, or allow them again: its pause, and the breakers of its
//! endpoints. They apply to all instances.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use serde_json::value::RawValue;
use tracing::info;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::api::{
    App, Problem, agent,
    extract::{Caller, JsonBody, NamePath, OptionalJsonBody, PlainName, Query},
    problem::{ProblemBody, ProblemKind},
};
use crate::{
    agent::Agent,
    api::openapi::words::{BreakerActionSchema, DurationSchema},
    domain::{
        agent::{BreakerAction, ControlChange, RecordSource},
        values::{AgentName, FieldFault, Fields, LONGEST_URL, Span, Timestamp},
    },
    store::ControlRequest,
};

const LONGEST_REASON: usize = 1000;
const PAUSES: std::ops::RangeInclusive<Span> =
    Span::from_secs(1)..=Span::from_secs(366 * 24 * 3600);

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(breaker))
}

/// The end and the reason of a pause. Without `until` and `for` the agent is paused until it is resumed.
#[derive(ToSchema)]
#[schema(as = PauseAgent)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct PauseBody {
    /// The end, at most 366 days from now. Instead of `for`.
    #[schema(format = DateTime)]
    until: Option<String>,
    /// The length, at most 366 days. Instead of `until`.
    #[schema(example = "2h")]
    r#for: Option<DurationSchema>,
    #[schema(max_length = 1000, example = "maintenance of the database")]
    reason: Option<String>,
}

/// A command for the breakers of an agent.
#[derive(ToSchema)]
#[schema(as = BreakerCommand)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct BreakerBody {
    action: BreakerActionSchema,
    /// The URL of one endpoint. Default: all endpoints of the agent.
    #[schema(example = "http://10.0.0.5:8080")]
    endpoint: Option<String>,
    #[schema(max_length = 1000)]
    reason: Option<String>,
}

/// Pause an agent
///
/// For planned downtime: no call of the agent begins, on any instance, and no step goes to its workers. Its steps
/// wait and nothing fails; calls in flight continue. A second pause replaces the first.
#[utoipa::path(
    post, path = "/v1/agents/{name}/pause", tag = "agents", operation_id = "pause_agent",
    params(("name" = PlainName, Path, description = "The agent's name", example = "payments")),
    request_body(content = Option<PauseBody>, description = "Optional"),
    responses((status = 200, description = "The agent, paused", body = agent::AgentView)),
)]
async fn pause(
    State(app): State<Arc<App>>,
    NamePath(name): NamePath,
    caller: Caller,
    query: Query,
    OptionalJsonBody(body): OptionalJsonBody,
) -> Result<Response, Problem> {
    query.finish()?;
    let now = app.store.reader.now().await?;
    let read = read_pause(body.as_deref(), now).map_err(Problem::invalid)?;
    let (until, reason) = read;
    let agent = find_agent(&app, name).await?;
    info!(agent = %agent.name(), by = %caller.name, until = until.map(tracing::field::display), reason, "an agent is paused");
    change(&app, agent, caller, ControlChange::Pause { until, reason }).await
}

fn read_pause(
    body: Option<&RawValue>,
    now: Timestamp,
) -> Result<(Option<Timestamp>, Option<String>), Vec<FieldFault>> {
    let Some(body) = body else {
        return Ok((None, None));
    };
    let mut fields = Fields::of(body, "")?;
    let length = fields.span("for", PAUSES);
    let end = fields.string("until", 100);
    let reason = fields.string("reason", LONGEST_REASON);
    if length.is_some() && end.is_some() {
        fields.fault("until", "give `until` or `for`, not both");
    }
    let mut until = length.map(|length| now + length);
    if let Some(end) = end.filter(|_| length.is_none()) {
        match Timestamp::parse(&end) {
            None => fields.fault(
                "until",
                "must be a time in RFC 3339, such as \"2026-02-03T04:05:06Z\"",
            ),
            Some(end) if end <= now => {
                fields.fault("until", format!("must be later than now, which is {now}"));
            }
            Some(end) if end > now + *PAUSES.end() => fields.fault("until", too_far(now)),
            Some(end) => until = Some(end),
        }
    }
    fields.finish()?;
    Ok((until, reason))
}

fn too_far(now: Timestamp) -> String {
    let latest = now + *PAUSES.end();
    format!(
        "must be at most 366 days from now, {latest}; without `until` and `for` it is paused until you resume it"
    )
}

/// Resume an agent
///
/// Ends its pause: its steps start again. Safe to repeat.
#[utoipa::path(
    post, path = "/v1/agents/{name}/resume", tag = "agents", operation_id = "resume_agent",
    params(("name" = PlainName, Path, description = "The agent's name", example = "payments")),
    responses((status = 200, description = "The agent, not paused", body = agent::AgentView)),
)]
async fn resume(
    State(app): State<Arc<App>>,
    NamePath(name): NamePath,
    caller: Caller,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    let agent = find_agent(&app, name).await?;
    info!(agent = %agent.name(), by = %caller.name, "an agent is resumed");
    change(&app, agent, caller, ControlChange::Resume).await
}

/// Open, close or reset the breakers of an agent
///
/// `open`: no call is made until you close or reset the breaker. `close`: calls are made, also if they fail, until
/// you open or reset it. `reset`: the breaker is closed and opens by itself again; an ejected endpoint is called
/// again. The command applies to all instances.
#[utoipa::path(
    post, path = "/v1/agents/{name}/breaker", tag = "agents", operation_id = "change_breaker",
    params(("name" = PlainName, Path, description = "The agent's name", example = "payments")),
    request_body(content = BreakerBody, description = "What to do", example = json!({"action": "reset"})),
    responses(
        (status = 200, description = "The agent after the command", body = agent::AgentView),
        (status = 409, description = "The agent has no breaker", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
async fn breaker(
    State(app): State<Arc<App>>,
    NamePath(name): NamePath,
    caller: Caller,
    query: Query,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    query.finish()?;
    let (action, endpoint, reason) = read_breaker(&body).map_err(Problem::invalid)?;
    let agent = find_agent(&app, name).await?;
    // A reset also ends ejections.
    let resets_ejections = action == BreakerAction::Reset && agent.spec().ejection.is_some();
    if agent.spec().breaker.is_none() && !resets_ejections {
        return Err(Problem::new(
            ProblemKind::NoBreaker,
            format!(
                "agent `{0}` has no breaker: register it with \"breaker\": {{}}, or pause it with POST /v1/agents/{0}/pause",
                agent.name()
            ),
        ));
    }
    let endpoints = agent.spec().endpoints.iter();
    let mut endpoints: Vec<_> = endpoints.map(|known| known.url.clone()).collect();
    if let Some(endpoint) = endpoint {
        if !endpoints.contains(&endpoint) {
            let known = endpoints.join(", ");
            let message = format!("is no endpoint of the agent, whose endpoints are {known}");
            return Err(Problem::invalid(vec![FieldFault::new(
                "/endpoint",
                message,
            )]));
        }
        endpoints = vec![endpoint];
    }
    let command: &str = action.into();
    info!(agent = %agent.name(), by = %caller.name, command, endpoints = %endpoints.join(", "), reason, "the breakers of an agent are changed");
    let wanted = ControlChange::Breakers {
        endpoints,
        action,
        reason,
    };
    change(&app, agent, caller, wanted).await
}

type BreakerCommand = (BreakerAction, Option<String>, Option<String>);

fn read_breaker(body: &RawValue) -> Result<BreakerCommand, Vec<FieldFault>> {
    let mut fields = Fields::of(body, "")?;
    if fields.peek("action").is_none() {
        fields.missing("action", "give \"open\", \"close\" or \"reset\"");
    }
    let action = fields.choice("action", BreakerAction::ALL);
    let endpoint = fields.string("endpoint", LONGEST_URL);
    let reason = fields.string("reason", LONGEST_REASON);
    fields.finish()?;
    // If there is no action, there was a fault, and `finish` has returned it.
    Ok((action.unwrap_or(BreakerAction::Reset), endpoint, reason))
}

/// Returns the agent. Registrations are read first, because another instance may just have registered it.
pub(in crate::api) async fn find_agent(app: &App, name: String) -> Result<Arc<Agent>, Problem> {
    let name = AgentName::new(name);
    app.registered.refresh(&app.store.reader).await?;
    let registered = app.agents.list().into_iter();
    let known = { registered }.find(|agent| *agent.name() == name);
    known.ok_or_else(|| agent::no_such_agent(&name))
}

async fn change(
    app: &App,
    agent: Arc<Agent>,
    caller: Caller,
    change: ControlChange,
) -> Result<Response, Problem> {
    let request = ControlRequest {
        agent: agent.name().clone(),
        spec: agent.spec().clone(),
        change,
        seen: None,
        operator: Some(caller.name.to_string()),
        instance: app.instance.clone(),
    };
    let store = app.store.ordered_by(caller.origin());
    let changed = store.change_control(request).await?;
    let now = app.store.reader.now().await?;
    agent.take_control(changed.record, now, RecordSource::Change);
    agent::one(app, agent.name()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(0);

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.to_owned()).unwrap()
    }

    #[test]
    fn a_pause_has_an_end_or_none() {
        let paused = |json: &str| {
            let read = read_pause(Some(&raw(json)), NOW);
            read.map_err(|faults| {
                faults
                    .into_iter()
                    .map(|fault| fault.pointer)
                    .collect::<Vec<_>>()
            })
        };
        assert_eq!(read_pause(None, NOW).unwrap(), (None, None));
        let hour = Some(Timestamp::from_millis(3_600_000));
        assert_eq!(paused(r#"{"for": "1h"}"#), Ok((hour, None)));
        let until = r#"{"until": "1970-01-01T01:00:00Z", "reason": "update"}"#;
        assert_eq!(paused(until), Ok((hour, Some("update".to_owned()))));
        for (json, pointer) in [
            (r#"{"for": "0s"}"#, "/for"),
            (r#"{"for": "367d"}"#, "/for"),
            (
                r#"{"for": "1h", "until": "1970-01-01T01:00:00Z"}"#,
                "/until",
            ),
            (r#"{"until": "1970-01-01T00:00:00Z"}"#, "/until"),
            (r#"{"until": "1972-01-01T00:00:00Z"}"#, "/until"),
            (r#"{"until": "9999-12-31T23:59:59Z"}"#, "/until"),
            (r#"{"until": "tomorrow"}"#, "/until"),
            (r#"{"till": "1970-01-01T01:00:00Z"}"#, "/till"),
        ] {
            assert_eq!(paused(json), Err(vec![pointer.to_owned()]), "{json}");
        }
    }

    #[test]
    fn an_end_that_is_too_far_says_what_to_do_however_far_it_is() {
        for until in ["1972-01-01T00:00:00Z", "9999-12-31T23:59:59Z"] {
            let json = format!(r#"{{"until": "{until}"}}"#);
            let faults = read_pause(Some(&raw(&json)), NOW).unwrap_err();
            let says = "must be at most 366 days from now, 1971-01-02T00:00:00.000Z; without";
            assert!(faults[0].message.starts_with(says), "{until}: {faults:?}");
        }
        let faults = read_pause(Some(&raw(r#"{"until": "9999"}"#)), NOW).unwrap_err();
        assert!(faults[0].message.contains("RFC 3339"), "{faults:?}");
    }

    #[test]
    fn a_command_has_an_action() {
        let read = |json: &str| read_breaker(&raw(json));
        let opened = read(r#"{"action": "open", "endpoint": "http://b"}"#);
        let endpoint = Some("http://b".to_owned());
        assert_eq!(opened.unwrap(), (BreakerAction::Open, endpoint, None));
        for json in [
            "{}",
            r#"{"action": null}"#,
            r#"{"action": "explode"}"#,
            r#"{"action": "open", "endpoints": ["http://c"]}"#,
        ] {
            assert!(read(json).is_err(), "{json}");
        }
    }
}
