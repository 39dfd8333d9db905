//! The rules for every request to the console, before its page and after it: a form is read whole or not at all, an address
//! is text, and every response has the headers that keep it safe.

use std::sync::Arc;

use axum::{
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Request, State},
    middleware::{Next, from_fn, from_fn_with_state},
    response::Response,
};
use http::{HeaderValue, Method, StatusCode, request::Parts};
use jiff::Timestamp;
use percent_encoding::{percent_decode, percent_decode_str};

use crate::{
    compressed::compress,
    console::Console,
    form::LONGEST_FORM,
    respond::{self, HEADERS},
    service::Refusal,
    visit::Visit,
};

/// The longest form in bytes with which a person signs in: a token, and the address of a page. Nobody has identified who
/// sends it.
const LONGEST_SIGN_IN: usize = 16 * 1024;

const SIGN_IN: &str = "/console/login";

/// Puts itself before all routes.
pub fn before(
    routes: axum::Router<Arc<Console>>,
    console: &Arc<Console>,
) -> axum::Router<Arc<Console>> {
    routes
        .layer(from_fn_with_state(console.clone(), front))
        .layer(from_fn(compress))
        // The limit of axum is another one for each kind of handler.
        .layer(DefaultBodyLimit::max(LONGEST_FORM))
}

async fn front(State(console): State<Arc<Console>>, request: Request, next: Next) -> Response {
    let asks_for_methods = request.method() == Method::OPTIONS;
    let mut response = match admit(&console, request).await {
        Ok(request) => next.run(request).await,
        Err(refused) => *refused,
    };
    // The router sets `Allow` afterwards.
    if asks_for_methods && response.status() == StatusCode::METHOD_NOT_ALLOWED {
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    // A page and a file have their own; a redirect, an error of the router, and a stream get these.
    for (name, value) in HEADERS {
        let value = HeaderValue::from_static(value);
        response.headers_mut().entry(name).or_insert(value);
    }
    response
}

/// Returns the request with its form in memory, or the page that says why no page gets it.
async fn admit(console: &Arc<Console>, request: Request) -> Result<Request, Box<Response>> {
    if percent_decode_str(request.uri().path())
        .decode_utf8()
        .is_err()
    {
        let detail = "the address has bytes that are not UTF-8, which no name and no id has";
        let refusal = Refusal::new(StatusCode::NOT_FOUND, "No such page", detail);
        let (mut parts, _) = request.into_parts();
        return Err(Box::new(refused(console, &mut parts, &refusal).await));
    }
    if request.method().is_safe() {
        return Ok(request);
    }
    let (mut parts, body) = request.into_parts();
    let signs_in = parts.uri.path() == SIGN_IN;
    if !signs_in
        && console
            .person(&parts.headers, Timestamp::now())
            .await
            .is_none()
    {
        // A person who has not signed in is sent to do that, and fills no memory with a form.
        return Ok(Request::from_parts(parts, Body::empty()));
    }
    let mut whole = Request::from_parts(parts.clone(), body);
    if signs_in {
        DefaultBodyLimit::max(LONGEST_SIGN_IN).apply(&mut whole);
    }
    let refusal = match Bytes::from_request(whole, &()).await {
        Ok(form) if percent_decode(&form).decode_utf8().is_ok() => {
            return Ok(Request::from_parts(parts, Body::from(form)));
        }
        Ok(_) => Refusal::new(
            StatusCode::BAD_REQUEST,
            "The form is not text",
            "the form has bytes that are not UTF-8: nothing was done. Send its fields as UTF-8",
        ),
        Err(fault) if fault.status() == StatusCode::PAYLOAD_TOO_LARGE => match signs_in {
            true => too_long("16 KiB"),
            false => too_long("2 MiB"),
        },
        Err(_) => Refusal::new(
            StatusCode::BAD_REQUEST,
            "The form is not complete",
            "the connection broke while the form was sent: nothing was done. Send it again",
        ),
    };
    Err(Box::new(refused(console, &mut parts, &refusal).await))
}

fn too_long(most: &str) -> Refusal {
    Refusal::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "The form is too long",
        format!(
            "this form may have {most}, and has more: nothing was done. Shorten its texts, or send the command with the API \
             instead"
        ),
    )
}

async fn refused(console: &Arc<Console>, parts: &mut Parts, refusal: &Refusal) -> Response {
    match Visit::from_request_parts(parts, console).await {
        Ok(visit) => visit.refused(refusal),
        // Somebody who has not signed in gets no more than the refusal.
        Err(_) => respond::solo_refusal(console, refusal),
    }
}
