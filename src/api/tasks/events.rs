//! The history of a task: as a list, and as a live stream.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{
        IntoResponse, Response,
        sse::{Event as ServerSentEvent, KeepAlive, Sse},
    },
};
use futures::{Stream, StreamExt, stream};
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;
use tracing::warn;
use utoipa::ToSchema;

use super::{json, load, no_such_task};
use crate::api::openapi::{schemas::FaultSchema, words::OutcomeSchema};
use crate::{
    api::{
        App, Problem,
        byte_budget::Reservation,
        extract::{Query, TaskParams, TaskPath},
        problem::{ProblemBody, ProblemKind},
    },
    domain::{TaskId, TaskStatus, Timestamp},
    store::{Interest, SavedChange, StoreError, Watch},
};

/// Changes that are read together.
const PAGE: usize = 500;
/// No notification reaches every instance reliably, so a stream also polls at this interval.
const LOOK: Duration = Duration::from_secs(2);

/// One entry of a task's history.
#[derive(Serialize)]
struct HistoryEntry {
    seq: String,
    at: Timestamp,
    #[serde(flatten)]
    event: serde_json::Map<String, serde_json::Value>,
}

/// The shape of an entry, for the OpenAPI document.
#[derive(ToSchema)]
#[schema(as = HistoryEntry)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct EntryBody {
    /// The task's version that this change created, and the entry's index within that change: `7.0`.
    #[schema(example = "3.1")]
    seq: String,
    #[schema(format = DateTime)]
    at: String,
    /// `task.accepted`, `step.claimed`, `step.retrying`, `step.expired` and so on. An open set: later versions of
    /// Provost may add types, which clients should ignore.
    #[serde(rename = "type")]
    #[schema(example = "step.claimed")]
    kind: String,
    #[schema(example = "charge")]
    step: Option<String>,
    #[schema(example = 1)]
    attempt: Option<u32>,
    /// The previous state of the step or of the task. An open set, as `type`.
    #[schema(example = "pending")]
    from: Option<String>,
    /// The new state of the step or of the task. An open set, as `type`.
    #[schema(example = "processing")]
    to: String,
    /// `submitter`, or `scheduler:`, `supervisor:` or `operator:` and a name; for the supervisor with its term, as
    /// in `supervisor:worker-1#4`.
    #[schema(example = "scheduler:node-1")]
    by: String,
    reason: Option<String>,
    #[schema(format = DateTime)]
    ready_at: Option<String>,
    failure_count: Option<u32>,
    /// `unknown`: the step may have taken effect; Provost does not know.
    outcome: Option<OutcomeSchema>,
    error: Option<FaultSchema>,
    /// Of `task.migrated`: of its workflow.
    versions: Option<VersionChangeBody>,
}

/// The versions between which a task moved.
#[derive(ToSchema)]
#[schema(as = VersionChange)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct VersionChangeBody {
    #[schema(example = 3)]
    from: u32,
    #[schema(example = 4)]
    to: u32,
}

/// The history of a task, oldest first.
#[derive(Serialize, ToSchema)]
#[schema(as = HistoryPage)]
pub(super) struct HistoryPage {
    #[schema(value_type = Vec<EntryBody>)]
    items: Vec<HistoryEntry>,
    /// Pass it as `cursor` to get the next page; null on the last page.
    #[schema(required, pattern = "^[A-Za-z0-9_-]+$")]
    next_cursor: Option<String>,
}

/// Get a task's history
///
/// Every change in order: what changed, when, by whom and why. Entries with the same `seq` before the dot were
/// saved together.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/history", tag = "tasks",
    params(
        TaskParams,
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 500, description = "The most changes on one page; the default is 500", example = 500),
        ("cursor" = Option<String>, Query, pattern = "^[A-Za-z0-9_-]+$", description = "`next_cursor` of the previous page. Without it the history starts at its beginning"),
    ),
    responses(
        (status = 200, description = "A page of the history, oldest first", body = HistoryPage),
        (status = 404, description = "The task does not exist", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn history(
    State(app): State<Arc<App>>,
    TaskPath(id): TaskPath,
    mut query: Query,
) -> Result<Response, Problem> {
    let limit = query.integer("limit", 1..=500)?.unwrap_or(500) as usize;
    let (after, cursors) = query.cursor(|version| version.parse().ok())?;
    query.finish()?;
    let after = after.unwrap_or(0);
    let mut changes = read(&app, id, after, limit + 1).await?;
    let more = changes.len() > limit;
    changes.truncate(limit);
    let raw = changes.iter().map(entries).collect::<Result<Vec<_>, _>>()?;
    let page = HistoryPage {
        items: raw.into_iter().flatten().collect(),
        next_cursor: changes
            .last()
            .filter(|_| more)
            .map(|last| cursors.after(last.version)),
    };
    Ok(json(StatusCode::OK, &page))
}

/// Follow a task live
///
/// The history as server-sent events: `id` is the entry's `seq`, `event` its type, `data` the entry. A client that
/// reconnects with `Last-Event-ID` misses nothing. The stream closes when the task has ended; a client that
/// reconnects after that, as browsers do, gets 204 and stops.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/events", tag = "tasks",
    params(
        TaskParams,
        ("Last-Event-ID" = Option<String>, Header, pattern = r"^[0-9]{1,18}\.[0-9]{1,18}$", description = "The `seq` of the last entry that the client received", example = "3.1"),
    ),
    responses(
        (status = 200, description = "Server-sent events", body = String, content_type = "text/event-stream"),
        (status = 204, description = "The task has ended, and the client has received everything"),
        (status = 404, description = "The task does not exist", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "Too many callers wait for tasks or follow them already", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn events(
    State(app): State<Arc<App>>,
    TaskPath(id): TaskPath,
    query: Query,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    query.finish()?;
    let seen = match headers.get("last-event-id") {
        Some(value) => seen(value.to_str().unwrap_or_default())?,
        None => StreamPosition::default(),
    };
    let place = app.waits.clone().try_acquire_owned().map_err(|_| {
        Problem::new(
            ProblemKind::TooManyWaiting,
            "the limit of callers that wait for tasks or follow them is reached; poll GET /v1/tasks/{id}/history, or raise listener.max_connections",
        )
    })?;
    // Subscribes before it reads the history: a change between the two must not be missed.
    let watch = app.store.watchers.watch(id, Interest::Any);
    // A task that does not exist is a plain 404, not an empty stream.
    let task = load(&app, id).await?;
    let mut follow = Follow {
        app,
        id,
        watch,
        seen: seen.within(task.version),
        has_ended: task.is_ended(),
        over: false,
        room: None,
        _place: place,
    };
    if follow.has_ended {
        // The client has everything. Without this 204 a browser would keep reconnecting.
        return Ok(match follow.next().await {
            None => StatusCode::NO_CONTENT.into_response(),
            Some(events) => {
                let first = stream::iter(events.into_iter().map(Ok));
                Sse::new(first.chain(follow.stream())).into_response()
            }
        });
    }
    let keep_alive = KeepAlive::new().interval(Duration::from_secs(15));
    Ok(Sse::new(follow.stream())
        .keep_alive(keep_alive)
        .into_response())
}

/// The client's position: it has every entry of `version` up to and including index `place`.
#[derive(Clone, Copy, Default)]
struct StreamPosition {
    version: u64,
    place: Option<usize>,
}

impl StreamPosition {
    /// Limited to the task's current version, in case the task was since restored from a backup.
    fn within(self, version: u64) -> Self {
        match self.version > version {
            true => Self {
                version,
                place: Some(usize::MAX),
            },
            false => self,
        }
    }
}

fn seen(text: &str) -> Result<StreamPosition, Problem> {
    let parsed = text.split_once('.').and_then(|(version, place)| {
        Some(StreamPosition {
            version: version.parse().ok()?,
            place: Some(place.parse().ok()?),
        })
    });
    parsed.ok_or_else(|| {
        Problem::new(
            ProblemKind::InvalidQuery,
            format!("Last-Event-ID: {text:?} is not the id of an event such as 3.1"),
        )
    })
}

struct Follow {
    app: Arc<App>,
    id: TaskId,
    watch: Watch,
    seen: StreamPosition,
    /// The task had already ended: no further events follow.
    has_ended: bool,
    over: bool,
    /// Of the events that were read and are not sent yet.
    room: Option<Reservation>,
    _place: OwnedSemaphorePermit,
}

impl Follow {
    fn stream(self) -> impl Stream<Item = Result<ServerSentEvent, Infallible>> {
        stream::unfold(self, |mut follow| async move {
            let events = follow.next().await?;
            Some((stream::iter(events.into_iter().map(Ok)), follow))
        })
        .flatten()
    }

    /// The next events as soon as there are some; `None` once the task has ended or no longer exists.
    async fn next(&mut self) -> Option<Vec<ServerSentEvent>> {
        while !self.over {
            // Reads the version of the last event again, in case the client received only part of it.
            let after = self.seen.version.saturating_sub(1);
            let changes = match read(&self.app, self.id, after, PAGE).await {
                Ok(changes) => changes,
                Err(_) => return None,
            };
            let length = changes.iter().map(|change| change.events.len()).sum();
            self.room = None;
            match self.app.responses.reserve_large(length) {
                Ok(room) => self.room = room,
                // The client connects again, and misses nothing.
                Err(_) => return None,
            }
            match self.unseen(&changes) {
                Ok(events) if !events.is_empty() => return Some(events),
                Ok(_) => {}
                Err(error) => {
                    warn!(task = %self.id, %error, "cannot read the history");
                    return None;
                }
            }
            if self.over || self.has_ended {
                return None;
            }
            tokio::select! {
                _ = self.watch.changed() => {}
                () = tokio::time::sleep(LOOK) => {}
                () = self.app.stop.cancelled() => return None,
            }
        }
        None
    }

    fn unseen(&mut self, changes: &[SavedChange]) -> Result<Vec<ServerSentEvent>, StoreError> {
        let mut events = Vec::new();
        for change in changes {
            for (place, entry) in entries(change)?.into_iter().enumerate() {
                let known = change.version < self.seen.version
                    || (change.version == self.seen.version
                        && self.seen.place.is_some_and(|seen| place <= seen));
                let kind = entry.event.get("type").and_then(|kind| kind.as_str());
                let kind = kind.unwrap_or_default().to_owned();
                // What was processed may be undone later.
                self.over = ends_task(&kind);
                if known {
                    continue;
                }
                self.seen = StreamPosition {
                    version: change.version,
                    place: Some(place),
                };
                let data = serde_json::to_string(&entry)
                    .map_err(|error| StoreError::Corrupt(error.to_string()))?;
                events.push(
                    ServerSentEvent::default()
                        .id(entry.seq)
                        .event(kind)
                        .data(data),
                );
            }
        }
        // There may be more.
        self.over &= changes.len() < PAGE;
        Ok(events)
    }
}

async fn read(
    app: &App,
    id: TaskId,
    after: u64,
    limit: usize,
) -> Result<Vec<SavedChange>, Problem> {
    let changes = app.store.reader.history(id, after, limit).await?;
    changes.ok_or_else(|| no_such_task(id))
}

fn entries(change: &SavedChange) -> Result<Vec<HistoryEntry>, StoreError> {
    let events: Vec<serde_json::Map<_, _>> = serde_json::from_str(&change.events)
        .map_err(|error| StoreError::Corrupt(error.to_string()))?;
    let entries = events
        .into_iter()
        .enumerate()
        .map(|(place, event)| HistoryEntry {
            seq: format!("{}.{place}", change.version),
            at: change.at,
            event,
        });
    Ok(entries.collect())
}

/// Whether this event ends the task: it is the last one, unless what is done is undone later.
fn ends_task(kind: &str) -> bool {
    TaskStatus::ALL
        .iter()
        .any(|status| status.is_ended() && status.event() == kind)
}
