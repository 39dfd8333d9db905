//! The pages that the `type` of a problem refers to: docs/problems.md, whole and by kind, compiled into the
//! service.

use std::{fmt::Write, sync::Arc};

use axum::{
    extract::RawPathParams,
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use pulldown_cmark::{CowStr, Event, Options, Parser, Tag, TagEnd, html};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Problem,
    docs::POLICY,
    problem::{ProblemBody, ProblemKind},
    response::etag_of,
    state::App,
};

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(all))
        .routes(routes!(one))
}

pub const PAGE: &str = include_str!("../../docs/problems.md");

/// Returns the section of the page under this heading, without the heading.
pub fn section(slug: &str) -> Option<&'static str> {
    let sections = PAGE.split("\n## ").skip(1);
    let mut sections = sections.filter_map(|section| section.split_once('\n'));
    let (_, text) = sections.find(|(heading, _)| *heading == slug)?;
    Some(text)
}

/// List all problem types
///
/// The page of all kinds of problems with their causes and cures: HTML for a browser, according to Accept,
/// otherwise Markdown.
#[utoipa::path(
    get, path = "/problems", tag = "service", operation_id = "list_problems",
    responses((status = 200, description = "The page", content(
        (String = "text/markdown", example = json!("# Problems …")),
        (String = "text/html", example = json!("<!doctype html>…")),
    ))),
)]
async fn all(headers: HeaderMap) -> Response {
    page(&headers, "Problems", PAGE, "problems/")
}

/// Get a problem type
///
/// The page that the `type` of a problem refers to: its cause and its cure. HTML for a browser, according to
/// Accept, otherwise Markdown.
#[utoipa::path(
    get, path = "/problems/{kind}", tag = "service", operation_id = "get_problem",
    params(("kind" = String, Path, description = "The last part of the `type`", example = "wrong-step-state")),
    responses(
        (status = 200, description = "The section of the page", content(
            (String = "text/markdown", example = json!("# wrong-step-state …")),
            (String = "text/html", example = json!("<!doctype html>…")),
        )),
        (status = 404, description = "This kind does not exist", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
async fn one(params: RawPathParams, headers: HeaderMap) -> Result<Response, Problem> {
    let slug = params.iter().next().map_or("", |(_, value)| value);
    let text = section(slug).ok_or_else(|| {
        Problem::new(
            ProblemKind::NotFound,
            format!("problem type {slug:?} does not exist: GET /problems lists all of them"),
        )
    })?;
    let text = format!("# {slug}\n{text}");
    Ok(page(&headers, slug, &text, ""))
}

/// Returns the page. `below` is the relative path from it to the pages of the kinds.
fn page(headers: &HeaderMap, title: &str, markdown: &str, below: &str) -> Response {
    let (media_type, text) = match wants_html(headers) {
        true => ("text/html; charset=utf-8", rendered(title, markdown, below)),
        false => ("text/markdown; charset=utf-8", markdown.to_owned()),
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(media_type)),
        (header::ETAG, etag_of(text.as_bytes())),
        (header::VARY, HeaderValue::from_static("accept")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static(POLICY),
        ),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
    ];
    (headers, text).into_response()
}

/// Returns whether the client is a browser: browsers list text/html first in Accept; other programs send `*/*`, or
/// nothing.
fn wants_html(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(header::ACCEPT).iter();
    let mut ranges = accepts.flat_map(|value| value.to_str().unwrap_or_default().split(','));
    ranges.any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_html = parts
            .next()
            .is_some_and(|range| range.eq_ignore_ascii_case("text/html"));
        is_html && !parts.any(|part| matches!(part, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
    })
}

const STYLE: &str = "\
:root { color-scheme: light dark; }
body { max-width: 50rem; margin: 0 auto; padding: 1rem; font: 16px/1.55 system-ui, sans-serif; }
code, pre { font: .875rem/1.5 ui-monospace, monospace; }
pre { overflow-x: auto; padding: .75rem; border: 1px solid #8886; border-radius: .4rem; }
table { border-collapse: collapse; }
th, td { text-align: left; vertical-align: top; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid #8886; }";

fn rendered(title: &str, markdown: &str, below: &str) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n"
    );
    let mut is_linked = Vec::new();
    let events =
        Parser::new_ext(markdown, Options::ENABLE_TABLES).filter_map(|event| match event {
            Event::Start(Tag::Link {
                link_type,
                dest_url,
                title,
                id,
            }) => {
                let dest_url = target(&dest_url, below);
                is_linked.push(dest_url.is_some());
                dest_url.map(|dest_url| {
                    Event::Start(Tag::Link {
                        link_type,
                        dest_url,
                        title,
                        id,
                    })
                })
            }
            Event::End(TagEnd::Link) => is_linked.pop()?.then_some(event),
            event => Some(event),
        });
    html::push_html(&mut page, events);
    // Writing to a String cannot fail.
    let _ = writeln!(page, "</body>\n</html>");
    page
}

/// Returns the target of a link in the page, as the service serves it; `None` if the target is not part of the
/// service.
fn target<'a>(link: &str, below: &str) -> Option<CowStr<'a>> {
    match link.strip_prefix('#') {
        Some(slug) => Some(format!("{below}{slug}").into()),
        None if link.starts_with("https://") => Some(link.to_owned().into()),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browsers_get_html_and_programs_markdown() {
        for (accept, html) in [
            (None, false),
            (Some("*/*"), false),
            (Some("application/problem+json, text/markdown"), false),
            (Some("text/html;q=0, */*"), false),
            (
                Some("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
                true,
            ),
            (Some("application/json, TEXT/HTML;q=0.5"), true),
        ] {
            let headers = accept.map(|accept| (header::ACCEPT, HeaderValue::from_static(accept)));
            let headers = HeaderMap::from_iter(headers);
            assert_eq!(wants_html(&headers), html, "{accept:?}");
        }
    }

    #[test]
    fn links_lead_to_the_pages_of_kinds_or_out_and_nowhere_else() {
        for below in ["", "problems/"] {
            let page = rendered("Problems", PAGE, below);
            for kind in ProblemKind::ALL {
                let link = format!("<a href=\"{below}{0}\">{0}</a>", kind.slug());
                assert!(page.contains(&link), "{link}");
            }
            for (_, rest) in page
                .match_indices("href=\"")
                .map(|(at, _)| page.split_at(at + 6))
            {
                let to = rest.split('"').next().unwrap();
                let slug = to.strip_prefix(below).unwrap_or(to);
                let is_kind = ProblemKind::ALL.iter().any(|kind| kind.slug() == slug);
                assert!(
                    is_kind || to.starts_with("https://www.rfc-editor.org/"),
                    "{to}"
                );
            }
        }
    }
}
