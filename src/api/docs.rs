//! The documentation that the service serves: the OpenAPI document, and an HTML page that renders it.

use std::sync::{Arc, LazyLock, OnceLock};

use axum::{
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use utoipa::openapi::Server;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{response::etag_of, state::App};
use crate::domain::template::Payload;

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(openapi_json))
        .routes(routes!(docs_page))
}

static DOCUMENT: LazyLock<(String, HeaderValue)> = LazyLock::new(|| {
    let document = super::openapi().to_json().unwrap_or_default();
    let etag = etag_of(document.as_bytes());
    (document, etag)
});

/// Returns the document of a service that is reached below a path: `servers` says so to those who read it.
fn below(path: &str) -> (String, HeaderValue) {
    let mut document = super::openapi();
    document.servers = Some(vec![Server::new(path)]);
    let document = document.to_json().unwrap_or_default();
    let etag = etag_of(document.as_bytes());
    (document, etag)
}

const PAGE: &str = include_str!("docs.html");

/// The page contains its own style and script, and may connect to this service only.
pub(super) const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Get the OpenAPI document
///
/// OpenAPI 3.1, generated from the code.
#[utoipa::path(
    get, path = "/openapi.json", tag = "service",
    responses((status = 200, description = "The document", body = Payload, example = json!({"openapi": "3.1.0"}))),
)]
async fn openapi_json(State(app): State<Arc<App>>) -> Response {
    // `public_url` is of the start: a reload does not change it.
    static BELOW_PATH: OnceLock<(String, HeaderValue)> = OnceLock::new();
    let path = app.config.public_path();
    let (document, etag) = match path.as_str() {
        "" => &*DOCUMENT,
        path => BELOW_PATH.get_or_init(|| below(path)),
    };
    let headers = [
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        ),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::ETAG, etag.clone()),
    ];
    (headers, document.as_str()).into_response()
}

/// Browse the API documentation
///
/// One HTML page that loads nothing from other sites.
#[utoipa::path(
    get, path = "/docs", tag = "service",
    responses((status = 200, description = "The page", body = String, content_type = "text/html", example = json!("<!doctype html>…"))),
)]
async fn docs_page() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, PAGE).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_asks_no_other_site_for_anything() {
        for outside in ["http://", "https://", "//cdn", "@import", "src="] {
            let found = PAGE.match_indices(outside).next();
            assert_eq!(found, None, "{outside}");
        }
    }

    #[test]
    fn the_document_names_the_path_below_which_it_is_served() {
        let document: serde_json::Value = serde_json::from_str(&below("/ops").0).unwrap();
        assert_eq!(document["servers"], serde_json::json!([{ "url": "/ops" }]));
        for link in ["href=\"/", "fetch(\"/"] {
            assert!(!PAGE.contains(link), "{link} leaves the path");
        }
    }

    #[test]
    fn the_document_is_served_whole() {
        let document: serde_json::Value = serde_json::from_str(&DOCUMENT.0).unwrap();
        assert!(document["paths"]["/openapi.json"]["get"].is_object());
    }
}
