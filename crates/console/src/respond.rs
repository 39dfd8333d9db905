//! Responses: pages with their security policy, redirects, and the pages of refusals.

use askama::Template;
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode, header};
use percent_encoding::percent_decode_str;

use crate::{
    assets, console::Console, params::Params, service::Refusal, shell::Shell, visible::visible,
};

/// Pages load only what the console itself serves, and have no style or script within them.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The headers of every response that has none of its own by these names.
pub const HEADERS: [(HeaderName, &str); 4] = [
    // A page shows what is the case now, to one person.
    (header::CACHE_CONTROL, "no-store"),
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "same-origin"),
];

pub fn page(status: StatusCode, page: &impl Template) -> Response {
    let Ok(html) = page.render() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    // `front.rs` adds the headers that all responses have.
    let headers = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
    (status, headers, visible(html)).into_response()
}

/// Goes to another page by GET.
pub fn see_other(address: &str) -> Response {
    match HeaderValue::try_from(address) {
        Ok(address) => (StatusCode::SEE_OTHER, [(header::LOCATION, address)]).into_response(),
        // Addresses are made of encoded parts, so that they are always legal in a header.
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// The page of a refusal, for a person who may look at the console.
#[derive(Template)]
#[template(path = "refusal.html")]
struct RefusalPage<'a> {
    page: Shell,
    refusal: &'a Refusal,
}

/// Responds with the page of a refusal. It has the status of the refusal.
pub fn refusal(page: Shell, refusal: &Refusal) -> Response {
    self::page(refusal.status(), &RefusalPage { page, refusal })
}

/// The page of a refusal, for a person who has not signed in.
#[derive(Template)]
#[template(path = "solo_refusal.html")]
struct SoloRefusal<'a> {
    stylesheet: String,
    icon: String,
    home: String,
    refusal: &'a Refusal,
}

pub fn solo_refusal(console: &Console, refusal: &Refusal) -> Response {
    let base = console.base();
    let shown = SoloRefusal {
        stylesheet: assets::address(&base, "console.css"),
        icon: assets::address(&base, "icon.svg"),
        home: format!("{base}/console"),
        refusal,
    };
    page(refusal.status(), &shown)
}

/// Returns the address of a page of the console, if it is one: a link to sign in may name no other site.
pub fn own_address(to: &str) -> &str {
    let path = to.split(['?', '#']).next().unwrap_or_default();
    let is_own = path == "/console" || path.starts_with("/console/");
    let is_plain = to
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    // A browser removes `..` from an address, also one that is encoded: it would leave the console.
    let leaves = path.contains("//") || path.split('/').any(is_dots);
    match is_own && is_plain && !leaves {
        true => to,
        false => "/console",
    }
}

fn is_dots(segment: &str) -> bool {
    let segment: Vec<u8> = percent_decode_str(segment).collect();
    matches!(segment.as_slice(), b"." | b"..")
}

/// Returns the query that leads to the next page of a list.
pub fn next_page(query: &Params, cursor: Option<&str>) -> Option<String> {
    cursor.map(|cursor| query.with("after", cursor).query())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_sign_in_leads_to_no_other_site() {
        for own in [
            "/console",
            "/console/tasks?state=error",
            "/console?live=5s",
            "/console/tasks?text=http://shop.example/../orders",
            "/console/agents/a..b",
        ] {
            assert_eq!(own_address(own), own);
        }
        for other in [
            "",
            "//evil.example",
            "https://evil.example",
            "/consolex",
            "/console//evil.example",
            "/console/\\evil",
            "/console/a\r\nb",
            "/v1/tasks",
            "/console/../v1/tasks",
            "/console/..",
            "/console/./tasks",
            "/console/tasks/%2e%2E/../../docs",
            "/console/.%2e/docs?x=1",
            "/console/..#x",
        ] {
            assert_eq!(own_address(other), "/console", "{other:?}");
        }
    }
}
