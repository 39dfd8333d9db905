//! Readers of the ledger with a name: a program that confirms what it has processed reads on from there after a restart.

use std::sync::Arc;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::ledger_query::parse_position;
use crate::{
    api::{
        App, Problem,
        extract::{
            Caller, IfTagged, JsonBody, NamePath, PageQuery, PlainName, Query, RegistrationHeaders,
            plain_name,
        },
        problem::{ProblemBody, ProblemKind},
        response::{json, tagged},
    },
    config::Role,
    domain::{
        values::{Fields, Timestamp},
        view::LedgerPosition,
    },
    store::{LedgerReaderRecord, MOST_READERS, ReaderMove, ReaderMoved},
};

/// The longest text of a position in a request.
const LONGEST_POSITION: usize = 128;

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get, put, delete))
}

/// A reader of the ledger.
#[derive(Serialize, ToSchema)]
#[schema(as = LedgerReader)]
struct ReaderView {
    #[schema(example = "billing")]
    name: String,
    /// The position up to which the reader has confirmed events. `GET /v1/events?reader=…` reads on after it.
    #[schema(example = "1-kj2-8x1-me8dc8ww")]
    position: String,
    /// The caller that made the reader. Others move it only with the role operate or admin.
    #[schema(example = "shop")]
    owner: String,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl From<&LedgerReaderRecord> for ReaderView {
    fn from(record: &LedgerReaderRecord) -> Self {
        Self {
            name: record.name.clone(),
            position: record.position.to_string(),
            owner: record.owner.clone(),
            created_at: record.created_at,
            updated_at: record.updated_at,
        }
    }
}

/// The body that confirms a position.
#[derive(ToSchema)]
#[schema(as = LedgerReaderInput)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
struct ReaderInput {
    /// A position of an event or of a page that was processed; `newest` to begin with what happens from now on, `oldest`
    /// with the oldest event that is kept.
    #[schema(example = "1-kj2-8x1-me8dc8ww")]
    position: String,
}

/// A page of readers.
#[derive(Serialize, ToSchema)]
#[schema(as = LedgerReaderPage)]
struct ReaderPage {
    items: Vec<ReaderView>,
    /// Pass it as `cursor` to get the next page; null on the last page.
    #[schema(required, pattern = "^[A-Za-z0-9_-]+$")]
    next_cursor: Option<String>,
}

/// List the readers of the ledger
///
/// Ordered by name.
#[utoipa::path(
    get, path = "/v1/readers", tag = "events", operation_id = "list_readers",
    params(PageQuery),
    responses((status = 200, description = "A page of readers", body = ReaderPage)),
)]
async fn list(State(app): State<Arc<App>>, mut query: Query) -> Result<Response, Problem> {
    let limit = query.limit()?;
    let (after, cursors) = query.cursor(|name| Some(name.to_owned()))?;
    query.finish()?;
    let after = after.unwrap_or_default();
    let mut readers = app.store.reader.ledger_readers(&after, limit + 1).await?;
    let has_more = readers.len() > limit;
    readers.truncate(limit);
    let last = readers.last().filter(|_| has_more);
    let page = ReaderPage {
        next_cursor: last.map(|last| cursors.after(&last.name)),
        items: readers.iter().map(ReaderView::from).collect(),
    };
    Ok(json(StatusCode::OK, &page))
}

/// Get a reader of the ledger
#[utoipa::path(
    get, path = "/v1/readers/{name}", tag = "events", operation_id = "get_reader",
    params(("name" = PlainName, Path, description = "The reader's name", example = "billing")),
    responses((status = 200, description = "The reader", body = ReaderView)),
)]
async fn get(
    State(app): State<Arc<App>>,
    NamePath(name): NamePath,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    let reader = find(&app, &name).await?;
    Ok(respond(StatusCode::OK, &reader))
}

/// Confirm a position
///
/// The reader is made if there is none of this name. Of two programs that move one reader, `If-Match` with the ETag of
/// the reader lets one succeed.
#[utoipa::path(
    put, path = "/v1/readers/{name}", tag = "events", operation_id = "put_reader",
    params(("name" = PlainName, Path, description = "The reader's name", example = "billing"), RegistrationHeaders),
    request_body(content = ReaderInput, description = "The position"),
    responses(
        (status = 200, description = "The reader has moved", body = ReaderView),
        (status = 201, description = "The reader is new", body = ReaderView),
        (status = 412, description = "A precondition (If-Match, If-None-Match) failed", body = ProblemBody, content_type = "application/problem+json"),
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
    plain_name("a reader", &name)?;
    let mut fields = Fields::of(&body, "").map_err(Problem::invalid)?;
    if !fields.has("position") {
        fields.missing("position", "give a position, `newest` or `oldest`");
    }
    let position = fields.string("position", LONGEST_POSITION);
    fields.finish().map_err(Problem::invalid)?;
    let position = match position.unwrap_or_default().as_str() {
        "newest" => app.store.reader.ledger_head().await?,
        "oldest" => LedgerPosition::OLDEST,
        text => parse_position(text)?,
    };
    let moved = app.store.move_ledger_reader(ReaderMove {
        name: name.clone(),
        position: Some(position),
        caller: caller.name.to_string(),
        is_operator: is_operator(&caller),
        condition,
    });
    match moved.await? {
        ReaderMoved::To(reader, true) => Ok(respond(StatusCode::CREATED, &reader)),
        ReaderMoved::To(reader, false) => Ok(respond(StatusCode::OK, &reader)),
        ReaderMoved::OfAnother(owner) => Err(of_another(&name, &owner)),
        ReaderMoved::Missing | ReaderMoved::Deleted => Err(no_such_reader(&name)),
        ReaderMoved::TooMany => Err(Problem::new(
            ProblemKind::TooManyReaders,
            format!(
                "there are {MOST_READERS} readers already: delete those that are not used any more (GET /v1/readers lists them)"
            ),
        )),
    }
}

/// Delete a reader
#[utoipa::path(
    delete, path = "/v1/readers/{name}", tag = "events", operation_id = "delete_reader",
    params(("name" = PlainName, Path, description = "The reader's name", example = "billing"), RegistrationHeaders),
    responses(
        (status = 204, description = "The reader is deleted"),
        (status = 412, description = "A precondition (If-Match, If-None-Match) failed", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    NamePath(name): NamePath,
    query: Query,
    IfTagged(condition): IfTagged,
) -> Result<Response, Problem> {
    query.finish()?;
    let moved = app.store.move_ledger_reader(ReaderMove {
        name: name.clone(),
        position: None,
        caller: caller.name.to_string(),
        is_operator: is_operator(&caller),
        condition,
    });
    match moved.await? {
        ReaderMoved::Deleted => Ok(StatusCode::NO_CONTENT.into_response()),
        ReaderMoved::OfAnother(owner) => Err(of_another(&name, &owner)),
        _ => Err(no_such_reader(&name)),
    }
}

fn is_operator(caller: &Caller) -> bool {
    matches!(caller.role, Role::Operate | Role::Admin)
}

fn respond(status: StatusCode, reader: &LedgerReaderRecord) -> Response {
    tagged(json(status, &ReaderView::from(reader)), &reader.etag())
}

/// Returns a reader of which the caller gave the name.
pub(super) async fn find(app: &App, name: &str) -> Result<LedgerReaderRecord, Problem> {
    let found = app.store.reader.ledger_reader(name).await?;
    found.ok_or_else(|| no_such_reader(name))
}

fn no_such_reader(name: &str) -> Problem {
    Problem::new(
        ProblemKind::NoSuchReader,
        format!("reader {name:?} does not exist: PUT /v1/readers/{{name}} makes one"),
    )
}

fn of_another(name: &str, owner: &str) -> Problem {
    Problem::new(
        ProblemKind::Forbidden,
        format!(
            "reader {name:?} belongs to {owner:?}: use a reader of your own, or a token with the role operate"
        ),
    )
}
