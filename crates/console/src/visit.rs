//! One request of a person: who they are, what they look at, and how pages ask the API on their behalf.

use std::sync::Arc;

use askama::Template;
use axum::{
    Extension,
    extract::{FromRequestParts, OriginalUri},
    response::Response,
    routing::MethodRouter,
};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, request::Parts, uri::Authority,
};
use jiff::Timestamp;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    console::Console,
    params::{ParamNames, Params, refuse_unknown},
    respond::{self, see_other},
    service::{Call, Person, Refusal, Reply},
    session::SessionId,
    shell::{Section, Shell},
};

/// The form of a request whose method is not safe says where it comes from.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// A request of a person who may look at the console.
pub struct Visit {
    pub console: Arc<Console>,
    pub person: Person,
    pub query: Params,
    pub now: Timestamp,
    /// The address of the page, with its query.
    here: String,
    /// The host and the port that the browser asked.
    host: Option<String>,
}

impl FromRequestParts<Arc<Console>> for Visit {
    type Rejection = Response;

    async fn from_request_parts(
        parts: &mut Parts,
        console: &Arc<Console>,
    ) -> Result<Self, Response> {
        let query = Params::read(parts.uri.query().unwrap_or_default());
        let uri = parts.extensions.get::<OriginalUri>();
        let uri = uri.map_or(&parts.uri, |original| &original.0);
        let here = uri.path_and_query().map_or("", |target| target.as_str());
        let here = here.to_owned();
        if !parts.method.is_safe() {
            check_origin(console, &parts.headers).map_err(|refused| *refused)?;
        }
        let now = Timestamp::now();
        let Some(person) = console.person(&parts.headers, now).await else {
            return Err(console.sign_in(&parts.method, &here));
        };
        let visit = Self {
            console: console.clone(),
            person,
            query,
            now,
            here: format!("{}{here}", console.base()),
            host: host(parts),
        };
        if let Some(known) = parts.extensions.get::<ParamNames>() {
            refuse_unknown(&visit.query, known.0).map_err(|refusal| visit.refused(&refusal))?;
        }
        Ok(visit)
    }
}

/// Returns the host that the request names, if it is one: it goes into commands that people copy into a shell.
fn host(parts: &Parts) -> Option<String> {
    let named = parts.headers.get(header::HOST);
    let named = named.and_then(|host| host.to_str().ok());
    let named = named.or(parts.uri.authority().map(Authority::as_str))?;
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    let is_plain = !named.is_empty() && named.bytes().all(is_host);
    is_plain.then(|| named.to_owned())
}

/// A route with the names of its parameters: the page of a link that has another one would not show what the link says.
pub fn page(
    names: &'static [&'static [&'static str]],
    route: MethodRouter<Arc<Console>>,
) -> MethodRouter<Arc<Console>> {
    route.layer(Extension(ParamNames(names)))
}

/// Refuses a form that a page of another site has sent. Browsers send `Sec-Fetch-Site` only over TLS and to their own machine;
/// elsewhere the origin must be that of `public_url`, or without that setting the address to which the form was sent. A host
/// that is not ours gets no cookie, and without tokens the API refuses it before.
pub(crate) fn check_origin(console: &Console, headers: &HeaderMap) -> Result<(), Box<Response>> {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let installation = console.service.installation();
    let origin = installation.origin.or_else(|| {
        let scheme = if installation.is_https {
            "https"
        } else {
            "http"
        };
        Some(format!("{scheme}://{}", text(&header::HOST)?))
    });
    let is_own = match text(&FETCH_SITE) {
        Some(site) => site == "same-origin",
        None => origin.is_some_and(|own| text(&header::ORIGIN) == Some(own.as_str())),
    };
    if is_own {
        return Ok(());
    }
    let refusal = Refusal::new(
        StatusCode::FORBIDDEN,
        "Cross-site request refused",
        "this form was not sent by a page of the console. Open the page of the console, and send it from there; \
         if you did, check that public_url is the address that your browser shows",
    );
    Err(Box::new(respond::solo_refusal(console, &refusal)))
}

/// The parameter of the page for signing in that says that a command was not carried out.
pub(crate) const SESSION_ENDED: &str = "ended";

impl Console {
    /// Returns the person who makes a request, or `None` if they have to sign in.
    pub(crate) async fn person(&self, headers: &HeaderMap, now: Timestamp) -> Option<Person> {
        if !self.service.needs_token() {
            return self.service.person_without_token();
        }
        let id = self.session_id(headers)?;
        let session = self.sessions.get(&id.digest(), now).await?;
        self.service.person_of_credential(&session.credential)
    }

    /// Returns the id in the cookie of the session.
    pub(crate) fn session_id(&self, headers: &HeaderMap) -> Option<SessionId> {
        let name = self.cookie_name();
        let cookies = headers.get_all(header::COOKIE).iter();
        let cookies = cookies.filter_map(|value| value.to_str().ok());
        let mut cookies = cookies.flat_map(|value| value.split(';'));
        cookies.find_map(|cookie| {
            let (key, value) = cookie.trim().split_once('=')?;
            (key == name).then(|| SessionId::read(value)).flatten()
        })
    }

    /// The name begins with `__Host-` where browsers accept that: such a cookie cannot come from another host or path.
    pub(crate) fn cookie_name(&self) -> &'static str {
        match self.service.installation().is_https {
            true => "__Host-provost-session",
            false => "provost-session",
        }
    }

    /// Sends a person to the page on which they sign in, and from there back to this one.
    fn sign_in(&self, method: &Method, here: &str) -> Response {
        let query = match method.is_safe() {
            true => Params::from_iter([("to", here)]),
            false => Params::from_iter([("to", "/console"), (SESSION_ENDED, "yes")]),
        };
        let query = query.query();
        see_other(&format!("{}/console/login{query}", self.base()))
    }

    pub(crate) fn base(&self) -> String {
        self.service.installation().base
    }
}

impl Visit {
    /// Returns the frame of a page.
    pub fn shell(&self, section: Section, title: impl Into<String>) -> Shell {
        Shell {
            title: title.into(),
            section,
            person: self.person.clone(),
            installation: self.console.service.installation(),
            now: self.now,
            here: self.here.clone(),
            query: self.query.clone(),
            counts: Vec::new(),
        }
    }

    /// Returns the address of the service for this person, without a path: that of `public_url`, or else the one that the
    /// browser has used.
    pub fn origin(&self) -> String {
        let configured = self.console.service.installation().origin;
        configured.unwrap_or_else(|| {
            let host = self.host.as_deref().unwrap_or("127.0.0.1:8080");
            format!("http://{host}")
        })
    }

    /// Reads a resource of the API, such as `/v1/failures`.
    pub async fn get<T: DeserializeOwned>(&self, target: &str) -> Result<T, Refusal> {
        let reply = self.send(Method::GET, target, HeaderMap::new(), None).await;
        parse(&reply?)
    }

    /// Reads a resource with its ETag.
    pub async fn get_tagged<T: DeserializeOwned>(
        &self,
        target: &str,
    ) -> Result<(T, Option<String>), Refusal> {
        let reply = self
            .send(Method::GET, target, HeaderMap::new(), None)
            .await?;
        let tag = reply.headers.get(header::ETAG);
        let tag = tag.and_then(|tag| tag.to_str().ok()).map(str::to_owned);
        Ok((parse(&reply)?, tag))
    }

    /// Sends a command to the API.
    pub async fn post<T: DeserializeOwned>(
        &self,
        target: &str,
        headers: HeaderMap,
        body: &impl Serialize,
    ) -> Result<T, Refusal> {
        let body = serde_json::to_string(body).map_err(|error| {
            Refusal::new(
                StatusCode::BAD_REQUEST,
                "Command cannot be sent",
                error.to_string(),
            )
        })?;
        parse(&self.send(Method::POST, target, headers, Some(body)).await?)
    }

    /// Sends a request to the API, and returns the response if it is a success.
    pub async fn send(
        &self,
        method: Method,
        target: &str,
        mut headers: HeaderMap,
        body: Option<String>,
    ) -> Result<Reply, Refusal> {
        if body.is_some() {
            let json = HeaderValue::from_static("application/json");
            headers.insert(header::CONTENT_TYPE, json);
        }
        let call = Call {
            method,
            target: target.to_owned(),
            headers,
            body,
        };
        let reply = self.console.service.call(&self.person, call).await;
        match reply.status.is_success() {
            true => Ok(reply),
            false => Err(Refusal::of(&reply)),
        }
    }

    /// Sends a GET to the API, and passes its response on as it comes.
    pub async fn pass_on(&self, target: &str, headers: HeaderMap) -> Response {
        let call = Call {
            method: Method::GET,
            target: target.to_owned(),
            headers,
            body: None,
        };
        self.console.service.open(&self.person, call).await
    }

    /// Responds with a page, or with the page of a refusal.
    pub fn show<T: Template>(&self, page: Result<T, Refusal>) -> Response {
        match page {
            Ok(page) => respond::page(StatusCode::OK, &page),
            Err(refusal) => self.refused(&refusal),
        }
    }

    /// Responds with the page of a refusal.
    pub fn refused(&self, refusal: &Refusal) -> Response {
        let shell = self.shell(Section::None, refusal.title.clone());
        respond::refusal(shell, refusal)
    }

    /// Goes to another page of the console after a command.
    pub fn go(&self, path: &str) -> Response {
        see_other(&format!("{}/console{path}", self.console.base()))
    }
}

fn parse<T: DeserializeOwned>(reply: &Reply) -> Result<T, Refusal> {
    let body = match reply.body.as_slice() {
        [] => b"null",
        body => body,
    };
    serde_json::from_slice(body).map_err(|error| {
        Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "Unexpected response",
            format!("the console cannot read a response of the API: {error}"),
        )
    })
}
