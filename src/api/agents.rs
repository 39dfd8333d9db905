//! Agents: the remote services that steps call, registered here or in the configuration file.

use std::sync::Arc;

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
    answer::{Page, json, tagged},
    extract::{
        IfTagged, JsonBody, NamePath, PageQuery, PlainName, Query, RegistrationHeaders, plain_name,
    },
    problem::{Kind, ProblemBody},
};
use crate::{
    agent::Agent,
    domain::{
        AgentName, AgentSpec, DurationText, ETag, Endpoint, FieldFault, Fields, RetrySpec, Span,
    },
};

const LONGEST_URL: usize = 2000;

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(put, get, delete))
}

/// Where an agent's service answers, and how hard to try.
#[derive(ToSchema)]
#[schema(as = AgentSpec)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct SpecBody {
    /// Calls go to the one that has the least under way.
    #[schema(min_items = 1, max_items = 32)]
    endpoints: Vec<EndpointBody>,
    retry: Option<RetryBody>,
}

/// One place where the service answers.
#[derive(ToSchema)]
#[schema(as = Endpoint)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct EndpointBody {
    /// `http://` or `https://`, with an optional base path; no query, fragment or user.
    #[schema(example = "http://10.0.0.5:8080")]
    url: String,
    /// Calls under way at once, from one instance.
    #[schema(default = 64, minimum = 1, maximum = 100_000, example = 64)]
    max_in_flight: Option<u32>,
}

/// Waits between the tries of one call after transient faults: by chance between zero and
/// `initial * factor^n`, at most `max`.
#[derive(ToSchema)]
#[schema(as = Retry)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct RetryBody {
    #[schema(default = "100ms", example = "100ms")]
    initial: Option<DurationText>,
    #[schema(default = "10s", example = "10s")]
    max: Option<DurationText>,
    #[schema(default = 2, minimum = 1, maximum = 10, example = 2)]
    factor: Option<u32>,
}

/// Where an agent is defined: in the configuration file, or over the API.
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
    /// Calls that this instance has under way.
    #[schema(example = 3)]
    in_flight: u32,
    /// How many it may have under way at most.
    #[schema(example = 64)]
    capacity: u64,
}

impl AgentView {
    fn of(app: &App, agent: &Agent) -> Self {
        Self::new(app, agent.name(), agent.spec(), agent.in_flight())
    }

    fn new(app: &App, name: &AgentName, spec: &AgentSpec, in_flight: u32) -> Self {
        let endpoints = spec.endpoints.iter();
        Self {
            name: name.to_string(),
            source: match is_configured(app, name) {
                true => AgentSource::Config,
                false => AgentSource::Api,
            },
            spec: spec.clone(),
            in_flight,
            capacity: endpoints
                .map(|endpoint| u64::from(endpoint.max_in_flight))
                .sum(),
        }
    }

    /// Of what is registered: the calls under way come and go without it.
    fn etag(&self) -> ETag {
        match self.source {
            AgentSource::Config => ETag::of_configured_agent(&self.spec),
            AgentSource::Api => ETag::of_agent(&self.spec),
        }
    }

    fn answer(&self, status: StatusCode) -> Response {
        tagged(json(status, self), &self.etag())
    }
}

fn is_configured(app: &App, name: &AgentName) -> bool {
    app.config.agents.contains_key(name)
}

/// Reads a specification with all its faults at once.
fn read(body: &RawValue) -> Result<AgentSpec, Vec<FieldFault>> {
    let mut fields = Fields::of(body, "")?;
    let mut endpoints = Vec::new();
    if !fields.has("endpoints") {
        let remedy = "give an array such as [{\"url\": \"http://10.0.0.5:8080\"}]";
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
        if let Err(faults) = waits.finish() {
            fields.extend(faults);
        }
    }
    // What could not be read would be blamed a second time below, for its absence.
    fields.finish()?;
    let spec = AgentSpec { endpoints, retry };
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

fn read_endpoint(body: &RawValue, pointer: &str) -> Result<Option<Endpoint>, Vec<FieldFault>> {
    let mut fields = Fields::of(body, pointer)?;
    if !fields.has("url") {
        fields.missing("url", "give a URL such as \"http://10.0.0.5:8080\"");
    }
    let url = fields.string("url", LONGEST_URL);
    let max_in_flight = fields.integer("max_in_flight", 0..=i64::from(u32::MAX));
    let max_in_flight =
        max_in_flight.map_or(Endpoint::default_max_in_flight(), |count| count as u32);
    fields.finish()?;
    Ok(url.map(|url| Endpoint { url, max_in_flight }))
}

/// Register an agent, or change it
///
/// Takes effect at once: calls under way go on as they are, steps that waited for this agent start. `If-None-Match: *`
/// registers it only where there is none; `If-Match` with the ETag of what you have read changes nothing that
/// somebody else has changed since.
#[utoipa::path(
    put, path = "/v1/agents/{name}", tag = "agents", operation_id = "put_agent",
    params(("name" = PlainName, Path, description = "What it is called", example = "payments"), RegistrationHeaders),
    request_body(content = SpecBody, description = "Where it answers, and how hard to try",
        example = json!({"endpoints": [{"url": "http://10.0.0.5:8080", "max_in_flight": 64}], "retry": {"initial": "100ms", "max": "10s", "factor": 2}})),
    responses(
        (status = 200, description = "There was one; the agent as it is now", body = AgentView),
        (status = 201, description = "It is registered; there was none", body = AgentView),
        (status = 409, description = "The configuration file has the say over this agent", body = ProblemBody, content_type = "application/problem+json"),
        (status = 412, description = "It is not as If-Match or If-None-Match demands; `etag` is what it has", body = ProblemBody, content_type = "application/problem+json"),
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
    let put = app.store.put_agent(name.clone(), spec.clone(), condition);
    let is_new = put.await?;
    app.registered.refresh(&*app.store.reader).await?;
    // What this request registered, whatever another made of it since.
    let in_flight = app.agents.get(&name).map_or(0, |agent| agent.in_flight());
    let view = AgentView::new(&app, &name, &spec, in_flight);
    if !is_new {
        return Ok(view.answer(StatusCode::OK));
    }
    let mut response = view.answer(StatusCode::CREATED);
    if let Ok(location) = HeaderValue::try_from(format!("/v1/agents/{name}")) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

/// List agents
///
/// By name, with what they have under way in this instance.
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

/// Read an agent
///
/// Its specification, and what it has under way in this instance. The ETag is of the specification: leave
/// If-None-Match out to learn `in_flight` anew.
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
    one(&app, &AgentName::new(name))
}

/// Remove an agent
///
/// Calls under way go on. Steps of this agent that have not started wait until it is registered
/// again.
#[utoipa::path(
    delete, path = "/v1/agents/{name}", tag = "agents", operation_id = "delete_agent",
    params(("name" = PlainName, Path, description = "The agent's name", example = "payments"), RegistrationHeaders),
    responses(
        (status = 204, description = "It is gone"),
        (status = 409, description = "The configuration file has the say over this agent", body = ProblemBody, content_type = "application/problem+json"),
        (status = 412, description = "It is not as If-Match or If-None-Match demands; `etag` is what it has", body = ProblemBody, content_type = "application/problem+json"),
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
    app.registered.refresh(&*app.store.reader).await?;
    if !stored {
        return Err(no_such_agent(&name));
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn one(app: &App, name: &AgentName) -> Result<Response, Problem> {
    let agents = app.agents.list();
    let agent = agents.iter().find(|agent| agent.name() == name);
    let agent = agent.ok_or_else(|| no_such_agent(name))?;
    Ok(AgentView::of(app, agent).answer(StatusCode::OK))
}

fn must_be_ours(app: &App, name: &AgentName) -> Result<(), Problem> {
    if !is_configured(app, name) {
        return Ok(());
    }
    Err(Problem::new(
        Kind::AgentConfigured,
        format!(
            "the configuration file has the say over the agent {name}: change it there and restart"
        ),
    ))
}

fn no_such_agent(name: &AgentName) -> Problem {
    Problem::new(
        Kind::NoSuchAgent,
        format!("there is no agent {name:?}: GET /v1/agents lists them, PUT registers one"),
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
    fn all_faults_are_told_at_once_each_with_its_pointer() {
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
