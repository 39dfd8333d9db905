//! The web console as a client of the API in this process. Its requests go through the routes of the API with the name
//! and the role of the person who looks at the page, and carry no token.

mod sessions;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderValue, Method, header},
    middleware::Next,
    response::{IntoResponse, Redirect, Response},
};
use futures::StreamExt;
use http_body_util::BodyExt;
use provost_console::{
    Call, Installation, Person, Reply, Role as PersonRole, Service, prefers_html,
};
use tower::ServiceExt;
use url::Url;

use self::sessions::StoreSessions;
use crate::{
    api::{self, App, Caller, Problem, problem::ProblemKind, request_id},
    clock::sleep,
    config::{AccessToken, Config, Role},
    listener::PeerAddress,
};

/// The longest time for which one request follows the changes of a task.
const FOLLOWED_FOR: Duration = Duration::from_secs(60);

/// Returns all routes of the service with those of the console. A browser that opens `/` is led to the console.
pub fn router(app: &Arc<App>) -> Router {
    let installation = installation(&app.config, app.instance.to_string());
    let home = format!("{}/console", installation.base);
    let lead = move |request: Request, next: Next| lead_home(home.clone(), request, next);
    let routes = api::router(app, |api| {
        let service = ConsoleService {
            app: app.clone(),
            api,
            installation,
        };
        let sessions = StoreSessions::new(app.store.clone());
        let pages = provost_console::router(Arc::new(service), Arc::new(sessions));
        pages.layer(axum::middleware::from_fn(with_peer))
    });
    let base = app.config.public_path();
    let below = move |request: Request, next: Next| locate_below(base.clone(), request, next);
    routes
        .layer(axum::middleware::from_fn(lead))
        .layer(axum::middleware::from_fn(below))
}

/// Puts the path of `public_url` before the addresses of new resources, which a client resolves against the address that it
/// has asked: the proxy has removed the path. The console's own redirects have it already.
async fn locate_below(base: String, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if base.is_empty() {
        return response;
    }
    let location = response.headers().get(header::LOCATION);
    let location = location.and_then(|location| location.to_str().ok());
    let located = location.filter(|location| location.starts_with("/v1/"));
    let located =
        located.and_then(|location| HeaderValue::try_from(format!("{base}{location}")).ok());
    if let Some(located) = located {
        response.headers_mut().insert(header::LOCATION, located);
    }
    response
}

tokio::task_local! {
    /// The address of the person's browser, or of the proxy before it.
    static PEER: Option<PeerAddress>;
}

/// Keeps the address of the person, which the ledger records beside the changes that they request.
async fn with_peer(request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<PeerAddress>().copied();
    PEER.scope(peer, next.run(request)).await
}

async fn lead_home(home: String, request: Request, next: Next) -> Response {
    let accept = request.headers().get(header::ACCEPT);
    let accept = accept.and_then(|value| value.to_str().ok());
    let is_browser = accept.is_some_and(prefers_html);
    if request.uri().path() == "/" && request.method() == Method::GET && is_browser {
        return Redirect::to(&home).into_response();
    }
    next.run(request).await
}

fn installation(config: &Config, instance: String) -> Installation {
    // The configuration was validated at start, so this is a URL.
    let url = config.public_url.as_deref().map(Url::parse);
    let url = url.and_then(Result::ok);
    Installation {
        base: config.public_path(),
        host: url.as_ref().and_then(Url::host_str).map(str::to_owned),
        origin: url.as_ref().map(|url| url.origin().ascii_serialization()),
        is_https: match &url {
            Some(url) => url.scheme() == "https",
            None => config.scheme() == "https",
        },
        version: env!("CARGO_PKG_VERSION"),
        instance,
    }
}

struct ConsoleService {
    app: Arc<App>,
    api: Router,
    installation: Installation,
}

#[async_trait]
impl Service for ConsoleService {
    fn installation(&self) -> Installation {
        self.installation.clone()
    }

    fn needs_token(&self) -> bool {
        !self.app.tokens.load().is_empty()
    }

    fn person_without_token(&self) -> Option<Person> {
        let caller = Caller::without_token(&HeaderMap::new()).ok()?;
        Some(Person {
            name: caller.name.to_string(),
            role: PersonRole::Admin,
            credential: None,
        })
    }

    fn person_of_token(&self, presented: &str) -> Option<Person> {
        let tokens = self.app.tokens.load();
        // All tokens are compared, so that the time taken does not reveal which one matched.
        let met = tokens.iter().fold(None, |met, token| {
            if token.is(presented.as_bytes()) {
                Some(token)
            } else {
                met
            }
        });
        met.map(person)
    }

    fn person_of_credential(&self, credential: &[u8; 32]) -> Option<Person> {
        let tokens = self.app.tokens.load();
        let found = tokens.iter().find(|token| token.digest() == *credential);
        found.map(person)
    }

    async fn call(&self, person: &Person, call: Call) -> Reply {
        read(self.open(person, call).await).await
    }

    async fn open(&self, person: &Person, call: Call) -> Response {
        let Some(request) = self.request(person, call) else {
            let problem = Problem::new(
                ProblemKind::InvalidQuery,
                "the console has made an address that is not valid",
            );
            return problem.into_response();
        };
        match self.api.clone().oneshot(request).await {
            Ok(response) => in_time(response),
            Err(never) => match never {},
        }
    }
}

impl ConsoleService {
    fn request(&self, person: &Person, call: Call) -> Option<Request> {
        let request = Request::builder().method(call.method).uri(call.target);
        let mut request = request
            .body(Body::from(call.body.unwrap_or_default()))
            .ok()?;
        let headers = request.headers_mut();
        *headers = call.headers;
        headers.insert(header::HOST, HeaderValue::from_static("localhost"));
        if let Some(id) = request_id::current().and_then(|id| id.parse().ok()) {
            headers.insert(request_id::HEADER, id);
        }
        if let Ok(Some(peer)) = PEER.try_with(|peer| *peer) {
            request.extensions_mut().insert(peer);
        }
        if let Some(caller) = self.caller(person) {
            request.extensions_mut().insert(caller);
        }
        Some(request)
    }

    /// Returns the caller that the API sees. Without tokens the API finds it itself.
    fn caller(&self, person: &Person) -> Option<Caller> {
        let credential = person.credential?;
        let tokens = self.app.tokens.load();
        let token = tokens.iter().find(|token| token.digest() == credential)?;
        Some(Caller {
            name: token.name.as_str().into(),
            role: token.role,
            agents: token.agents.clone(),
            is_known: true,
            // The API takes it from the request.
            address: None,
        })
    }
}

/// Ends a stream of events after a while. The page follows again, and it is decided again whether the person may look: their
/// session or their token may have ended.
fn in_time(response: Response) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE);
    if kind.is_none_or(|kind| !kind.as_bytes().starts_with(b"text/event-stream")) {
        return response;
    }
    response.map(|body| {
        let events = body.into_data_stream().take_until(sleep(FOLLOWED_FOR));
        Body::from_stream(events)
    })
}

async fn read(response: Response) -> Reply {
    let (parts, body) = response.into_parts();
    // The API bounds the size of its responses.
    let body = body.collect().await;
    Reply {
        status: parts.status,
        headers: parts.headers,
        body: body
            .map(|body| body.to_bytes().to_vec())
            .unwrap_or_default(),
    }
}

fn person(token: &AccessToken) -> Person {
    Person {
        name: token.name.clone(),
        role: match token.role {
            Role::Submit => PersonRole::Submit,
            Role::Read => PersonRole::Read,
            Role::Operate => PersonRole::Operate,
            Role::Admin => PersonRole::Admin,
            Role::Work => PersonRole::Work,
        },
        credential: Some(token.digest()),
    }
}
