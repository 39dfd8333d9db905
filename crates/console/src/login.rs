//! Signing in with an access token, and signing out.

use std::{sync::Arc, time::Duration};

use askama::Template;
use axum::{
    extract::{Request, State},
    response::Response,
};
use http::{HeaderValue, StatusCode, header};
use jiff::Timestamp;

use crate::{
    assets,
    console::Console,
    form::read_form,
    params::Params,
    respond::{self, own_address, see_other},
    session::{LONGEST, Session, SessionId},
    visit::{SESSION_ENDED, check_origin},
};

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage<'a> {
    stylesheet: String,
    icon: String,
    host: Option<String>,
    fault: Option<&'a str>,
    action: String,
    /// The page to which the person goes then.
    to: &'a str,
}

fn respond_with_form(
    console: &Console,
    to: &str,
    status: StatusCode,
    fault: Option<&str>,
) -> Response {
    let base = console.base();
    let page = LoginPage {
        stylesheet: assets::address(&base, "console.css"),
        icon: assets::address(&base, "icon.svg"),
        host: console.service.installation().host,
        fault,
        action: format!("{base}/console/login"),
        to: own_address(to),
    };
    respond::page(status, &page)
}

pub async fn show(State(console): State<Arc<Console>>, request: Request) -> Response {
    let query = Params::read(request.uri().query().unwrap_or_default());
    let to = own_address(query.text("to"));
    let signed_in = console.person(request.headers(), Timestamp::now()).await;
    if signed_in.is_some() {
        return see_other(&format!("{}{to}", console.base()));
    }
    let ended = query.get(SESSION_ENDED).map(|_| {
        "Your session has ended, so that your command was not carried out: nothing was done. Sign in, and give it again."
    });
    respond_with_form(&console, to, StatusCode::OK, ended)
}

pub async fn sign_in(State(console): State<Arc<Console>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    if let Err(refused) = check_origin(&console, &parts.headers) {
        return *refused;
    }
    let form = read_form(body).await;
    let to = own_address(form.text("to"));
    let token = form.text("token").trim();
    let found = console.service.person_of_token(token);
    let Some(credential) = found.and_then(|person| person.credential) else {
        let fault = "This token is not known here. Check it for typing errors, or ask an administrator for one.";
        return respond_with_form(&console, to, StatusCode::UNAUTHORIZED, Some(fault));
    };
    let now = Timestamp::now();
    let id = SessionId::random();
    let session = Session {
        credential,
        ends_at: now.checked_add(LONGEST).unwrap_or(now),
    };
    console.sessions.put(id.digest(), session, now).await;
    let response = see_other(&format!("{}{to}", console.base()));
    with_cookie(&console, response, id.as_str(), LONGEST)
}

pub async fn sign_out(State(console): State<Arc<Console>>, request: Request) -> Response {
    if let Err(refused) = check_origin(&console, request.headers()) {
        return *refused;
    }
    if let Some(id) = console.session_id(request.headers()) {
        console.sessions.remove(&id.digest()).await;
    }
    let response = see_other(&format!("{}/console/login", console.base()));
    with_cookie(&console, response, "", Duration::ZERO)
}

fn with_cookie(
    console: &Console,
    mut response: Response,
    value: &str,
    lasts: Duration,
) -> Response {
    let secure = match console.service.installation().is_https {
        true => "; Secure",
        false => "",
    };
    let cookie = format!(
        "{}={value}; Path=/; Max-Age={}; HttpOnly; SameSite=Lax{secure}",
        console.cookie_name(),
        lasts.as_secs()
    );
    // The id is hexadecimal, so that the cookie is legal in a header.
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}
