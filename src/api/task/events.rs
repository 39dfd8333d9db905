//! The history of a task: as a list, and as a live stream.

use std::{convert::Infallible, fmt, sync::Arc, time::Duration};

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
use serde_json::value::RawValue;
use tokio::sync::OwnedSemaphorePermit;
use tracing::warn;
use utoipa::ToSchema;

use super::{
    hidden_bodies::{hide_in_event, hides_bodies},
    json, load, no_such_task,
};
use crate::{
    api::{
        App, Problem,
        byte_budget::Reservation,
        extract::{Caller, Query, TaskParams, TaskPath},
        problem::{ProblemBody, ProblemKind},
    },
    config::Role,
    domain::{
        task::{Event, TaskStatus},
        values::{TaskId, Timestamp},
    },
    store::{Follow, SavedChange, StoreError},
};

/// The most entries of a page, and of one send of a stream.
const PAGE: usize = 500;
/// The most bytes of the entries of a page. A page has at least one entry, of any size.
const PAGE_BYTES: usize = 1 << 20;

/// One entry of a task's history.
#[derive(Serialize, ToSchema)]
pub(in crate::api) struct HistoryEntry {
    /// The task's version that this change created, and the entry's index within that change: `7.0`.
    #[schema(example = "3.1")]
    seq: String,
    at: Timestamp,
    #[serde(flatten)]
    #[schema(value_type = Event)]
    event: serde_json::Map<String, serde_json::Value>,
}

/// The history of a task, oldest first.
#[derive(Serialize, ToSchema)]
#[schema(as = HistoryPage)]
pub(super) struct HistoryPage {
    items: Vec<HistoryEntry>,
    /// Pass it as `cursor` to get the next page; null on the last page.
    #[schema(required, pattern = "^[A-Za-z0-9_-]+$")]
    next_cursor: Option<String>,
}

/// Get a task's history
///
/// Every change in order: the states, the time, the caller or instance that made it, and the reason. Entries with the
/// same `seq` before the dot were saved together.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/history", tag = "tasks", operation_id = "task_history",
    params(
        TaskParams,
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 500, description = "The most entries on one page; the default is 500. A page has fewer if they are large: about 1 MiB is returned at once", example = 500),
        ("cursor" = Option<String>, Query, pattern = "^[A-Za-z0-9_-]+$", description = "`next_cursor` of the previous page. Without it the history starts at its beginning"),
    ),
    responses(
        (status = 200, description = "A page of the history, oldest first", body = HistoryPage),
        (status = 404, description = "The task does not exist", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn history(
    State(app): State<Arc<App>>,
    caller: Caller,
    TaskPath(id): TaskPath,
    mut query: Query,
) -> Result<Response, Problem> {
    let limit = query.integer("limit", 1..=500)?.unwrap_or(500) as usize;
    let (after, cursors) = query.cursor(HistoryPosition::parse)?;
    query.finish()?;
    let mut read = read(&app, id, after.unwrap_or_default(), limit).await?;
    // The task is loaded only for callers who may see less of it.
    if caller.role == Role::Read && hides_bodies(&app, &caller, &*load(&app, id).await?).await? {
        read.entries.iter_mut().for_each(HistoryEntry::hide_bodies);
    }
    let page = HistoryPage {
        items: read.entries,
        next_cursor: read.has_more.then(|| cursors.after(read.end)),
    };
    Ok(json(StatusCode::OK, &page))
}

/// Follow a task live
///
/// The history as server-sent events: `id` is the entry's `seq`, `event` its type, `data` the entry. A client that
/// reconnects with `Last-Event-ID` misses nothing. The stream closes when the task has ended; a client that
/// reconnects after that, as browsers do, gets 204 and stops.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/events", tag = "tasks", operation_id = "task_events",
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
    caller: Caller,
    TaskPath(id): TaskPath,
    query: Query,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    query.finish()?;
    let seen = match headers.get("last-event-id") {
        Some(value) => parse_last_event_id(value.to_str().unwrap_or_default())?,
        None => HistoryPosition::default(),
    };
    let place = app.waits.clone().try_acquire_owned().map_err(|_| {
        Problem::new(
            ProblemKind::TooManyWaiting,
            "the limit of callers that wait for tasks or follow them is reached; poll GET /v1/tasks/{id}/history, or raise listener.max_connections",
        )
    })?;
    // The subscription comes before the read of the history: a change between the two must not be missed.
    let changes = app.store.watchers.follow(id);
    // A task that does not exist is a plain 404, not an empty stream.
    let task = load(&app, id).await?;
    changes.has_read(task.version);
    let hides_bodies = hides_bodies(&app, &caller, &task).await?;
    let mut stream = EventStream {
        app,
        id,
        changes,
        seen: seen.within(task.version),
        has_ended: task.is_ended(),
        hides_bodies,
        over: false,
        room: None,
        _place: place,
    };
    if stream.has_ended {
        // The client has everything. Without this 204 a browser would keep reconnecting.
        return Ok(match stream.next().await {
            None => StatusCode::NO_CONTENT.into_response(),
            Some(events) => {
                let first = stream::iter(events.into_iter().map(Ok));
                Sse::new(first.chain(stream.events())).into_response()
            }
        });
    }
    let keep_alive = KeepAlive::new().interval(Duration::from_secs(15));
    Ok(Sse::new(stream.events())
        .keep_alive(keep_alive)
        .into_response())
}

/// A position in the history. All entries of the versions before `version` are before it; so are the entries of
/// `version` up to and including the index `index`, or all of them if that is `None`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct HistoryPosition {
    version: u64,
    index: Option<usize>,
}

impl HistoryPosition {
    /// A cursor without an index comes from an instance of an older version of Provost, and stands for all entries of
    /// its version.
    fn parse(text: &str) -> Option<Self> {
        let (version, place) = match text.split_once('.') {
            Some((version, place)) => (version, Some(place.parse().ok()?)),
            None => (text, None),
        };
        Some(Self {
            version: version.parse().ok()?,
            index: place,
        })
    }

    /// Limits the position to the task's current version, in case the task was restored from a backup since.
    fn within(self, version: u64) -> Self {
        match self.version > version {
            true => Self {
                version,
                index: None,
            },
            false => self,
        }
    }

    /// Returns the last version whose entries are all before this position.
    fn complete_version(self) -> u64 {
        match self.index {
            Some(_) => self.version.saturating_sub(1),
            None => self.version,
        }
    }

    /// Returns the number of entries of a version that are before this position.
    fn passed_of(self, version: u64) -> usize {
        match self.index {
            Some(place) if version == self.version => place.saturating_add(1),
            _ if version <= self.version => usize::MAX,
            _ => 0,
        }
    }
}

impl fmt::Display for HistoryPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.version)?;
        self.index.map_or(Ok(()), |place| write!(f, ".{place}"))
    }
}

fn parse_last_event_id(text: &str) -> Result<HistoryPosition, Problem> {
    let parsed = HistoryPosition::parse(text).filter(|seen| seen.index.is_some());
    parsed.ok_or_else(|| {
        Problem::new(
            ProblemKind::InvalidQuery,
            format!("Last-Event-ID: {text:?} is not the id of an event such as 3.1"),
        )
    })
}

struct EventStream {
    app: Arc<App>,
    id: TaskId,
    changes: Follow,
    seen: HistoryPosition,
    /// True if the task had already ended: no further events follow.
    has_ended: bool,
    hides_bodies: bool,
    over: bool,
    /// The reserved bytes of the events that were read and are not sent yet.
    room: Option<Reservation>,
    _place: OwnedSemaphorePermit,
}

impl EventStream {
    fn events(self) -> impl Stream<Item = Result<ServerSentEvent, Infallible>> {
        stream::unfold(self, |mut stream| async move {
            let events = stream.next().await?;
            Some((stream::iter(events.into_iter().map(Ok)), stream))
        })
        .flatten()
    }

    /// Waits for the next events and returns them; `None` once the task has ended or no longer exists.
    async fn next(&mut self) -> Option<Vec<ServerSentEvent>> {
        while !self.over {
            self.room = None;
            let mut read = read(&self.app, self.id, self.seen, PAGE).await.ok()?;
            if self.hides_bodies {
                read.entries.iter_mut().for_each(HistoryEntry::hide_bodies);
            }
            match self.app.responses.reserve_large(read.bytes) {
                Ok(room) => self.room = room,
                // The client connects again, and misses nothing.
                Err(_) => return None,
            }
            self.seen = read.end;
            // A task that was processed may be undone later, so only the last entry counts.
            let last = read.entries.last().filter(|_| !read.has_more);
            self.over = last.is_some_and(|last| ends_task(last.kind()));
            let events = read.entries.into_iter().map(server_sent);
            match events.collect::<Result<Vec<_>, _>>() {
                Ok(events) if !events.is_empty() => return Some(events),
                Ok(_) if read.has_more => continue,
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
                () = self.changes.changed() => {}
                () = self.app.stop.cancelled() => return None,
            }
        }
        None
    }
}

fn server_sent(entry: HistoryEntry) -> Result<ServerSentEvent, serde_json::Error> {
    let data = serde_json::to_string(&entry)?;
    Ok(ServerSentEvent::default()
        .event(entry.kind())
        .id(entry.seq)
        .data(data))
}

impl HistoryEntry {
    /// Returns an event as it is shown: the only rule for it.
    fn of(version: u64, place: usize, at: Timestamp, event: &RawValue) -> Result<Self, StoreError> {
        Ok(Self {
            seq: format!("{version}.{place}"),
            at,
            event: serde_json::from_str(event.get()).map_err(corrupt)?,
        })
    }

    /// Returns the events of a change, each with the number of its bytes.
    pub(in crate::api) fn of_change(
        version: u64,
        at: Timestamp,
        events: &str,
    ) -> Result<Vec<(usize, Self)>, StoreError> {
        let events: Vec<&RawValue> = serde_json::from_str(events).map_err(corrupt)?;
        let events = events.into_iter().enumerate();
        let events = events.map(|(place, event)| {
            let entry = Self::of(version, place, at, event)?;
            Ok((event.get().len(), entry))
        });
        events.collect()
    }

    pub(in crate::api) fn hide_bodies(&mut self) {
        hide_in_event(&mut self.event);
    }

    pub(in crate::api) fn kind(&self) -> &str {
        let kind = self.event.get("type").and_then(|kind| kind.as_str());
        kind.unwrap_or_default()
    }
}

/// The next entries of a history.
#[derive(Default)]
struct ReadEntries {
    entries: Vec<HistoryEntry>,
    bytes: usize,
    end: HistoryPosition,
    has_more: bool,
}

async fn read(
    app: &App,
    id: TaskId,
    after: HistoryPosition,
    limit: usize,
) -> Result<ReadEntries, Problem> {
    let complete = after.complete_version();
    // Each change has at least one entry.
    let found = app
        .store
        .reader
        .history(id, complete, limit, PAGE_BYTES)
        .await?;
    let found = found.ok_or_else(|| no_such_task(id))?;
    let mut read = ReadEntries {
        end: after,
        ..ReadEntries::default()
    };
    for change in &found.changes {
        if !read.add(change, after.passed_of(change.version), limit)? {
            return Ok(read);
        }
    }
    read.has_more = found.has_more;
    Ok(read)
}

impl ReadEntries {
    /// Adds the entries of a change that follow the first `passed`. Returns false if there is no room for all of
    /// them.
    fn add(
        &mut self,
        change: &SavedChange,
        passed: usize,
        limit: usize,
    ) -> Result<bool, StoreError> {
        let events: Vec<&RawValue> = serde_json::from_str(&change.events).map_err(corrupt)?;
        for (place, event) in events.into_iter().enumerate().skip(passed) {
            let length = event.get().len();
            let is_full = self.bytes + length > PAGE_BYTES && !self.entries.is_empty();
            if self.entries.len() == limit || is_full {
                self.has_more = true;
                return Ok(false);
            }
            self.bytes += length;
            let entry = HistoryEntry::of(change.version, place, change.at, event)?;
            self.entries.push(entry);
            self.end = HistoryPosition {
                version: change.version,
                index: Some(place),
            };
        }
        // All entries of this change are added: the next read begins after it.
        self.end = HistoryPosition {
            version: change.version,
            index: None,
        };
        Ok(true)
    }
}

fn corrupt(error: serde_json::Error) -> StoreError {
    StoreError::Corrupt(error.to_string())
}

/// Returns whether this event ends the task. No event follows it, unless the task is undone later.
fn ends_task(kind: &str) -> bool {
    TaskStatus::ALL
        .iter()
        .any(|status| status.is_ended() && status.event() == kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(version: u64, entries: usize, text: usize) -> SavedChange {
        let entry = format!(r#"{{"type":"step.ready","reason":"{}"}}"#, "x".repeat(text));
        SavedChange {
            version,
            at: Timestamp::from_millis(0),
            events: format!("[{}]", vec![entry; entries].join(",")),
        }
    }

    fn seqs(read: &ReadEntries) -> Vec<&str> {
        read.entries.iter().map(|entry| &*entry.seq).collect()
    }

    #[test]
    fn a_page_counts_entries_and_bytes_and_the_next_begins_after_it() {
        let mut read = ReadEntries::default();
        assert!(read.add(&change(1, 2, 1), 0, 3).unwrap());
        assert_eq!(read.end.to_string(), "1");
        assert!(!read.add(&change(2, 3, 1), 0, 3).unwrap());
        assert_eq!(seqs(&read), ["1.0", "1.1", "2.0"]);
        assert!(read.has_more);
        let end = HistoryPosition::parse(&read.end.to_string()).unwrap();
        assert_eq!((end.complete_version(), end.passed_of(2)), (1, 1));
        assert_eq!((end.passed_of(1), end.passed_of(3)), (usize::MAX, 0));

        let mut read = ReadEntries::default();
        let large = change(7, 3, PAGE_BYTES);
        assert!(!read.add(&large, 1, 500).unwrap());
        assert_eq!(seqs(&read), ["7.1"]);
        assert!(read.has_more);
    }

    #[test]
    fn a_cursor_of_an_older_version_stands_for_a_whole_change() {
        let position = HistoryPosition::parse("7").unwrap();
        assert_eq!((position.complete_version(), position.passed_of(8)), (7, 0));
        for wrong in ["", "7.", ".1", "7.x"] {
            assert_eq!(HistoryPosition::parse(wrong), None, "{wrong}");
        }
    }
}
