//! Agents: the remote services that steps call, registered here or defined in the configuration file.

pub(crate) mod access;
pub(crate) mod check;
pub(crate) mod controls;
pub(crate) mod lanes;
pub(crate) mod last_check;
pub(crate) mod queue_gauges;
pub(crate) mod status;
pub(crate) mod workers;

#[cfg(test)]
mod spec;
mod view;

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderValue, StatusCode, header::LOCATION},
    response::{IntoResponse, Response},
};
use url::Url;
use utoipa_axum::{router::OpenApiRouter, routes};

pub use self::view::AgentView;
use super::{
    App, Problem,
    extract::{
        Caller, IfTagged, JsonBody, NamePath, PageQuery, PlainName, Query, RegistrationHeaders,
        plain_name,
    },
    openapi::AgentSpecSchema,
    origin::is_loopback,
    problem::{ProblemBody, ProblemKind},
    response::{Page, json},
};
use crate::{
    agent::certificate_faults,
    domain::{
        agent::AgentSpec,
        values::{AgentName, FieldFault, Object},
    },
    store::{MOST_COUNTED, RegisterError},
};

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(put, get, delete))
}

/// Register or change an agent
///
/// Takes effect at once: calls in flight continue unchanged, and steps that waited for this agent start. With
/// `If-None-Match: *` the agent is registered only if it does not exist; with `If-Match` and the ETag that you have
/// read, it is changed only if it has not changed since.
#[utoipa::path(
    put, path = "/v1/agents/{name}", tag = "agents", operation_id = "put_agent",
    params(("name" = PlainName, Path, description = "The agent's name", example = "payments"), RegistrationHeaders),
    request_body(content = AgentSpecSchema, description = "The endpoints and the retry policy",
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
    caller: Caller,
    NamePath(name): NamePath,
    query: Query,
    IfTagged(condition): IfTagged,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    query.finish()?;
    plain_name("an agent", &name)?;
    let name = AgentName::new(name);
    must_be_ours(&app, &name)?;
    let spec = AgentSpec::parse(&body).map_err(Problem::invalid)?;
    let mut refused = app.agents.secret_faults(&name, &spec);
    refused.extend(certificate_faults(&spec));
    refused.extend(own_addresses(&app, &spec));
    let refused = refused.into_iter();
    let refused = refused.map(|(pointer, message)| FieldFault::new(pointer, message));
    let refused: Vec<_> = refused.collect();
    if !refused.is_empty() {
        return Err(Problem::invalid(refused));
    }
    let store = app.store.ordered_by(caller.origin());
    let put = store.put_agent(name.clone(), spec.clone(), condition);
    let is_new = put.await?;
    app.registered.refresh(&app.store.reader).await?;
    let view = AgentView::registered(&app, &name, &spec);
    if !is_new {
        return Ok(view.respond(StatusCode::OK));
    }
    let mut response = view.respond(StatusCode::CREATED);
    if let Ok(location) = HeaderValue::try_from(format!("/v1/agents/{name}")) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

/// Returns the faults of endpoints that are the API of this service itself: a step of such an agent would not be undone,
/// cancelled or shown with the task that it starts.
fn own_addresses(app: &App, spec: &AgentSpec) -> Vec<(String, String)> {
    let sender = app.sender.load();
    let listens = app.config.listen.tcp();
    let listens = listens.map(|address| format!("{}://{address}", app.config.scheme()));
    let own = sender.public_url.iter().cloned().chain(listens);
    let own: Vec<_> = own.filter_map(|url| Url::parse(&url).ok()).collect();
    let is_own =
        |url: &str| Url::parse(url).is_ok_and(|url| own.iter().any(|own| is_api_below(own, &url)));
    let endpoints = spec.endpoints.iter().enumerate();
    let own = endpoints.filter(|(_, endpoint)| is_own(&endpoint.url));
    own.map(|(at, _)| {
        let message = "is the address of this service itself: to have a step start a task, give it a `task` with a workflow";
        (format!("/endpoints/{at}/url"), message.to_owned())
    })
    .collect()
}

/// Returns whether a URL is that of the service at `own`, or its API. All names of this machine are one.
fn is_api_below(own: &Url, url: &Url) -> bool {
    let (Some(own_host), Some(host)) = (own.host_str(), url.host_str()) else {
        return false;
    };
    let is_here = |host: &str| is_loopback(host) || ["0.0.0.0", "[::]"].contains(&host);
    let is_same_host = own_host.eq_ignore_ascii_case(host) || is_here(own_host) && is_here(host);
    let is_same_port = own.port_or_known_default() == url.port_or_known_default();
    let path = url.path().trim_end_matches('/');
    let path = path.strip_prefix(own.path().trim_end_matches('/'));
    let is_api =
        path.is_some_and(|path| path.is_empty() || path == "/v1" || path.starts_with("/v1/"));
    is_same_host && is_same_port && is_api
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
    let page = Page::of_names(views, after.as_deref(), limit, cursors, AgentView::name);
    Ok(json(StatusCode::OK, &page))
}

/// Get an agent
///
/// Its specification, its calls in flight from this instance, and the reasons why it gets no calls. The ETag covers
/// the specification only: omit If-None-Match to get everything else as it is now.
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
/// Calls in flight continue. If steps are queued for the agent, or will be, it is not removed, because they would
/// wait until it is registered again; with `force` it is removed.
#[utoipa::path(
    delete, path = "/v1/agents/{name}", tag = "agents", operation_id = "delete_agent",
    params(("name" = PlainName, Path, description = "The agent's name", example = "payments"),
        ("force" = Option<bool>, Query, description = "Remove it although steps wait for it"),
        RegistrationHeaders),
    responses(
        (status = 204, description = "The agent is removed"),
        (status = 409, description = "Steps wait for the agent (`steps` counts them), or it is defined in the configuration file", body = ProblemBody, content_type = "application/problem+json"),
        (status = 412, description = "A precondition (If-Match, If-None-Match) failed; `etag` is the current one", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    NamePath(name): NamePath,
    mut query: Query,
    IfTagged(condition): IfTagged,
) -> Result<Response, Problem> {
    let force = query.boolean("force")?.unwrap_or(false);
    query.finish()?;
    let name = AgentName::new(name);
    must_be_ours(&app, &name)?;
    let store = app.store.ordered_by(caller.origin());
    let deleted = store.delete_agent(name.clone(), condition, force).await;
    let stored = match deleted {
        Err(RegisterError::InUse(steps)) => return Err(in_use(&name, steps)),
        deleted => deleted?,
    };
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
    let view = AgentView::whole(app, agent).await?;
    Ok(view.respond(StatusCode::OK))
}

fn in_use(name: &AgentName, steps: u64) -> Problem {
    let is_at_least = steps >= MOST_COUNTED;
    let at_least = if is_at_least { "at least " } else { "" };
    let counted = match steps {
        1 => "1 step waits".to_owned(),
        steps => format!("{at_least}{steps} steps wait"),
    };
    let detail = format!(
        "{counted} for agent `{name}`: let them end, or add ?force=true, and they wait until it is registered again"
    );
    Problem::new(ProblemKind::AgentInUse, detail)
        .with("steps", steps)
        .with("steps_is_at_least", is_at_least)
}

fn must_be_ours(app: &App, name: &AgentName) -> Result<(), Problem> {
    if !app.config.agents.contains_key(name) {
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
