//! The middleware around every request: authentication, metrics, and a response even if a handler panics.

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc};

use arc_swap::ArcSwap;
use axum::{
    body::Body,
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures::FutureExt;
use metrics::{Counter, Histogram, counter, histogram};
use tracing::{debug, error};

use super::{
    auth::{self, Access},
    byte_budget::{self, ByteBudget},
    extract::{Caller, must_be_utf8, refuse_unevaluated},
    origin::{self, Site},
    problem::{Problem, ProblemKind},
};
use crate::{clock, config::AccessToken, listener::PeerAddress};

/// The label of requests that match no route: their paths would grow the metrics without bound.
const NO_ROUTE: &str = "(none)";

pub struct MiddlewareState {
    tokens: Arc<ArcSwap<Vec<AccessToken>>>,
    site: Site,
    meters: RequestMeters,
    responses: Arc<ByteBudget>,
    requests: Arc<ByteBudget>,
}

impl MiddlewareState {
    pub fn new(
        tokens: Arc<ArcSwap<Vec<AccessToken>>>,
        site: Site,
        responses: Arc<ByteBudget>,
        requests: Arc<ByteBudget>,
    ) -> Arc<Self> {
        metrics::describe_counter!(
            "provost_http_requests_total",
            "Requests by route, method and status"
        );
        metrics::describe_histogram!(
            "provost_http_request_seconds",
            metrics::Unit::Seconds,
            "Time from the head of a request to the head of its response, including waits that the caller requested"
        );
        Arc::new(Self {
            tokens,
            site,
            meters: RequestMeters::default(),
            responses,
            requests,
        })
    }
}

impl MiddlewareState {
    /// Returns the caller, if the request is allowed.
    fn admit(
        &self,
        request: &Request,
        route: Option<&str>,
        access: Access,
    ) -> Result<Option<Caller>, Problem> {
        let headers = request.headers();
        let tokens = self.tokens.load();
        let site = tokens.is_empty().then_some(&self.site);
        let (method, uri, version) = (request.method(), request.uri(), request.version());
        origin::check(method, uri, version, headers, site)?;
        must_be_utf8(uri)?;
        // Only the console, which has identified its visitor, sends requests that have a caller already.
        let caller = match request.extensions().get::<Caller>() {
            Some(visitor) => Some(auth::must_allow(access, visitor.clone())?),
            None => auth::admit(&tokens, access, headers)?,
        };
        if let Some(route) = route.filter(|route| auth::is_served(method, route)) {
            refuse_unevaluated(method, route, headers)?;
        }
        Ok(caller)
    }
}

/// The middleware around all routes.
pub async fn handle(
    State(state): State<Arc<MiddlewareState>>,
    mut request: Request,
    next: Next,
) -> Response {
    let started = clock::instant();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map(MatchedPath::as_str);
    let method = request.method().clone();
    let access = match method == Method::OPTIONS && request.uri().path() == "*" {
        // `OPTIONS *` asks about the service as a whole, which is public.
        true => Access::Open,
        false => auth::needed(&method, route),
    };
    let admitted = state.admit(&request, route, access);
    let known = CachedTags::of(&request);
    let response = match admitted {
        Ok(caller) => {
            if let Some(mut caller) = caller {
                let peer = request.extensions().get::<PeerAddress>();
                caller.address = peer.map(|peer| peer.0);
                request.extensions_mut().insert(caller);
            }
            let (parts, body) = request.into_parts();
            let (body, _room) = state.requests.count(body);
            let request = Request::from_parts(parts, body);
            // Handlers share only state behind locks that tolerate a panic.
            let answered = AssertUnwindSafe(next.run(request)).catch_unwind();
            let answered = byte_budget::with_reservations(answered).await;
            answered.unwrap_or_else(|panic| panicked(&*panic))
        }
        Err(problem) => problem.into_response(),
    };
    let response = known.unless_known(response);
    let mut response = state.responses.admit(&method, response);
    allow(route, &method, &mut response);
    let elapsed = started.elapsed();
    let status = response.status();
    let route = route.unwrap_or(NO_ROUTE);
    state.meters.of(route, &method, status, |meter| {
        meter.requests.increment(1);
        meter.seconds.record(elapsed);
    });
    debug!(%method, route, status = status.as_u16(), elapsed_seconds = elapsed.as_secs_f64(), "answered");
    response
}

/// Sets `Allow` to the methods of the route. The router would list the methods that have a handler, and OPTIONS has
/// none.
fn allow(route: Option<&str>, method: &Method, response: &mut Response) {
    let says = match response.status() {
        StatusCode::METHOD_NOT_ALLOWED => true,
        StatusCode::NO_CONTENT => method == Method::OPTIONS,
        _ => false,
    };
    // The router of the console lists the methods of its pages itself.
    let route = route.filter(|route| says && !provost_console::is_page(route));
    if let Some(route) = route
        && let Ok(methods) = HeaderValue::try_from(auth::methods(route))
    {
        response.headers_mut().insert(header::ALLOW, methods);
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Response {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    error!(message, "a request handler panicked");
    Problem::new(
        ProblemKind::Internal,
        "an internal error prevented this request; the service's log has the details",
    )
    .into_response()
}

/// The ETags that the client of a read already has (`If-None-Match`).
struct CachedTags(Option<HeaderMap>);

impl CachedTags {
    fn of(request: &Request) -> Self {
        let reads = [Method::GET, Method::HEAD].contains(request.method());
        let says = reads && request.headers().contains_key(header::IF_NONE_MATCH);
        Self(says.then(|| request.headers().clone()))
    }

    /// Returns 304 if the client already has the response.
    fn unless_known(self, mut response: Response) -> Response {
        let Some(headers) = self.0.filter(|_| response.status() == StatusCode::OK) else {
            return response;
        };
        let Some(etag) = response.headers().get(header::ETAG) else {
            return response;
        };
        let opaque = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
        let current = opaque(etag.to_str().unwrap_or_default());
        let known = headers.get_all(header::IF_NONE_MATCH).iter();
        let mut known = known.flat_map(|value| value.to_str().unwrap_or_default().split(','));
        if known.any(|tag| tag.trim() == "*" || opaque(tag) == current) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            *response.body_mut() = Body::empty();
            response.headers_mut().remove(header::CONTENT_TYPE);
            response.headers_mut().remove(header::CONTENT_LENGTH);
        }
        response
    }
}

#[derive(Clone)]
struct Meter {
    method: &'static str,
    status: StatusCode,
    requests: Counter,
    seconds: Histogram,
}

type ByRoute = HashMap<Box<str>, Vec<Meter>>;

/// Metric handles by route, method and status. There are few of them, and after a while all exist. A look-up is a
/// load, a hash and a short scan, and allocates nothing.
#[derive(Default)]
struct RequestMeters(ArcSwap<ByRoute>);

impl RequestMeters {
    fn of(&self, route: &str, method: &Method, status: StatusCode, record: impl Fn(&Meter)) {
        let method = word(method);
        let known = |meters: &ByRoute| {
            let mut of_route = meters.get(route).into_iter().flatten();
            match of_route.find(|meter| meter.method == method && meter.status == status) {
                Some(meter) => {
                    record(meter);
                    true
                }
                None => false,
            }
        };
        if known(&self.0.load()) {
            return;
        }
        let made = Meter {
            method,
            status,
            requests: counter!(
                "provost_http_requests_total",
                "route" => route.to_owned(), "method" => method, "status" => status.as_u16().to_string()
            ),
            seconds: histogram!("provost_http_request_seconds", "route" => route.to_owned()),
        };
        record(&made);
        self.0.rcu(|meters| {
            let mut next = HashMap::clone(meters);
            let of_route = next.entry(route.into()).or_default();
            // Another request may have inserted one first; both handles update the same metric.
            of_route.push(made.clone());
            next
        });
    }
}

/// Returns the label of a method. Clients can invent methods: all unknown ones share one label.
fn word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::PATCH => "PATCH",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use axum::{Router, body::Body, routing::get};
    use tower::ServiceExt;

    use super::*;

    async fn whoami(caller: Caller) -> String {
        caller.name.to_string()
    }

    async fn fails() {
        panic!("the roof is on fire");
    }

    fn app(tokens: &[AccessToken]) -> Router {
        Router::new()
            .route("/v1/tasks", get(whoami))
            .route("/v1/instances", get(fails))
            .layer(axum::middleware::from_fn_with_state(
                MiddlewareState::new(
                    Arc::new(ArcSwap::from_pointee(tokens.to_vec())),
                    Site::default(),
                    ByteBudget::of_responses(1 << 20),
                    ByteBudget::of_requests(1 << 20),
                ),
                handle,
            ))
    }

    async fn ask(app: Router, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).header("host", "localhost");
        let request = request.body(Body::empty()).unwrap();
        let response = app.oneshot(request).await.unwrap();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 10_000).await;
        (status, String::from_utf8(body.unwrap().into()).unwrap())
    }

    #[tokio::test]
    async fn handlers_learn_who_asks() {
        let answer = ask(app(&[]), "/v1/tasks").await;
        assert_eq!(answer, (StatusCode::OK, "anonymous".to_owned()));
    }

    #[tokio::test]
    async fn a_handler_that_panics_is_answered_with_a_problem() {
        let (status, body) = ask(app(&[]), "/v1/instances").await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(body.contains("/problems/internal"), "{body}");
        assert!(!body.contains("roof"), "{body}");
    }

    #[tokio::test]
    async fn without_its_token_a_request_reaches_no_handler() {
        let token = serde_json::json!({"name": "ci", "role": "read", "token": "0123456789abcdef"});
        let token = serde_json::from_value(token).unwrap();
        let (status, body) = ask(app(&[token]), "/v1/tasks").await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        assert!(body.contains("/problems/unauthenticated"), "{body}");
    }

    #[test]
    fn requests_are_counted_by_route_method_and_status() {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            let meters = RequestMeters::default();
            let made_up = Method::from_bytes(b"BREW").unwrap();
            for method in [&Method::GET, &Method::GET, &made_up] {
                meters.of("/v1/tasks/{id}", method, StatusCode::OK, |meter| {
                    meter.requests.increment(1);
                });
            }
            assert_eq!(meters.0.load()["/v1/tasks/{id}"].len(), 2);
        });
        let text = handle.render();
        for (method, count) in [("GET", 2), ("other", 1)] {
            let line = format!(
                "provost_http_requests_total{{route=\"/v1/tasks/{{id}}\",method=\"{method}\",status=\"200\"}} {count}"
            );
            assert!(text.contains(&line), "{text}");
        }
    }
}
