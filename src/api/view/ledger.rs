//! The ledger over HTTP: pages of events, the wait for the next one, and a stream.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::Response,
};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    ledger_changes,
    ledger_page::{EventReader, EventView},
    ledger_query::{filter, parse_position},
    ledger_readers,
    ledger_stream::follow,
};
use crate::{
    api::{
        App, Problem,
        extract::{Caller, Query, prefer_wait},
        openapi::words::LabelFilterSchema,
        problem::{ProblemBody, ProblemKind},
        response::json,
    },
    config::Role,
    domain::{values::Timestamp, view::LedgerPosition},
};

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(events))
        .routes(routes!(ledger_changes::changes))
}

/// A page of the ledger, oldest first.
#[derive(Serialize, ToSchema)]
#[schema(as = LedgerPage)]
struct EventPage {
    items: Vec<EventView>,
    /// The position up to which the page has looked: pass it as `after` for the next page. It moves even if no event
    /// matched the filter.
    #[schema(example = "1-kj2-8x1-me8dc8ww")]
    position: String,
    /// True if there may be more events at this moment.
    has_more: bool,
    /// The time since which the ledger is complete. Null while instances of an earlier version, which do not write it, are on
    /// record.
    #[schema(required)]
    complete_since: Option<Timestamp>,
}

/// Read what happened
///
/// Every event of every task, and every record of what people, definitions and instances changed, in one order without gaps.
/// A reader that stores `position` and passes it as `after` misses nothing and reads nothing twice, for as long as
/// `ledger.keep` says. With `Prefer: wait=10` an empty page waits up to 10 seconds for the next event. With
/// `Accept: text/event-stream` the events come as server-sent events, and `Last-Event-ID` takes the place of `after`.
///
/// One page looks at a bounded number of events, whatever the filter is, so that it may be empty although `has_more` is
/// true. A token with the role submit reads the events of tasks only.
#[utoipa::path(
    get, path = "/v1/events", tag = "events", operation_id = "list_events",
    params(
        ("after" = Option<String>, Query, description = "A position, or `newest`: only what happens from now on. Without it the oldest event that is kept comes first", example = "newest"),
        ("since" = Option<String>, Query, description = "A time: begin with what happened then, or up to a minute before it. For a program that knows the time of the last message which it got, and no position", example = "2026-01-31T09:30:00Z"),
        ("reader" = Option<String>, Query, description = "The name of a reader: read on after the position that it has confirmed, instead of `after`", example = "billing"),
        ("types" = Option<String>, Query, description = "Types of events, separated by commas; `step.*` is every type that begins with `step.`", example = "task.processed,task.error"),
        ("workflow" = Option<String>, Query, description = "Only events of tasks of this workflow", example = "order"),
        ("label" = Option<Vec<LabelFilterSchema>>, Query, description = "`name:value`; only events of tasks with this label; may be given several times, up to 32 times", example = json!(["customer:acme"])),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 500, description = "The most events on one page; the default is 50", example = 50),
        ("Prefer" = Option<String>, Header, description = "With `wait=10` an empty page waits up to 10 seconds (at most 60) for an event", example = "wait=10"),
        ("Last-Event-ID" = Option<String>, Header, description = "The position of the last event that the client of a stream received"),
    ),
    responses(
        (status = 200, description = "A page, oldest first; with `Accept: text/event-stream`, server-sent events", body = EventPage),
        (status = 410, description = "What follows the position has been deleted, or the position is not in this database", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "Too many callers wait or follow already", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
async fn events(
    State(app): State<Arc<App>>,
    caller: Caller,
    mut query: Query,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let is_stream = accepts_stream(&headers);
    let limit = query.limit()?;
    let after = query.string("after");
    let named = query.string("reader");
    let since = query.time("since")?;
    let filter = filter(&mut query)?;
    query.finish()?;
    let wait = prefer_wait(&headers)?;
    let last = headers.get("last-event-id").filter(|_| is_stream);
    let last = last.map(|last| last.to_str().unwrap_or_default().to_owned());
    let begins = [after.is_some(), named.is_some(), since.is_some()];
    if begins.into_iter().filter(|is_given| *is_given).count() > 1 {
        return Err(Problem::new(
            ProblemKind::InvalidQuery,
            "give one of `after`, `since` and `reader`: each says where to begin",
        ));
    }
    let after = match last.or(after).as_deref() {
        None if let Some(name) = &named => ledger_readers::find(&app, name).await?.position,
        None if let Some(since) = since => app.store.reader.ledger_since(since).await?,
        None => LedgerPosition::OLDEST,
        Some("newest") => app.store.reader.ledger_head().await?,
        Some(text) => parse_position(text)?,
    };
    let reader = EventReader {
        app,
        filter,
        of_tasks: caller.role == Role::Submit,
        caller,
    };
    if is_stream {
        return follow(reader, after).await;
    }
    let page = match wait {
        None => reader.page(after, limit).await?,
        Some(wait) => reader.page_in_time(after, limit, wait).await?,
    };
    let room = reader.app.responses.reserve_large(page.bytes)?;
    let view = EventPage {
        items: page.items,
        position: page.end.to_string(),
        has_more: page.has_more,
        complete_since: page.complete_since,
    };
    let mut response = json(StatusCode::OK, &view);
    drop(room);
    let applied = wait.map(|wait| format!("wait={}", wait.as_secs()));
    if let Some(Ok(applied)) = applied.map(HeaderValue::try_from) {
        response.headers_mut().insert("preference-applied", applied);
    }
    Ok(response)
}

fn accepts_stream(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter();
    let mut accepted = accepted.flat_map(|value| value.to_str().unwrap_or_default().split(','));
    accepted.any(|kind| {
        let kind = kind.split(';').next().unwrap_or_default();
        kind.trim().eq_ignore_ascii_case("text/event-stream")
    })
}
