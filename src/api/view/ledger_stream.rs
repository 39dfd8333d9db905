//! The ledger as server-sent events.

use std::{convert::Infallible, time::Duration};

use axum::response::{
    IntoResponse, Response,
    sse::{Event as ServerSentEvent, KeepAlive, Sse},
};
use futures::{Stream, StreamExt, stream};
use tokio::sync::OwnedSemaphorePermit;
use tracing::warn;

use super::ledger_page::{EventReader, EventView};
use crate::{
    api::{Problem, byte_budget::Reservation, problem::ProblemKind},
    domain::view::LedgerPosition,
    store::LedgerFollow,
};

/// Sends events as they happen.
pub(super) async fn follow(
    reader: EventReader,
    after: LedgerPosition,
) -> Result<Response, Problem> {
    let permit = reader.app.waits.clone().try_acquire_owned().map_err(|_| {
        Problem::new(
            ProblemKind::TooManyWaiting,
            "the limit of callers that wait or follow is reached; read pages of GET /v1/events, or raise listener.max_connections",
        )
    })?;
    // A position that cannot be read from gets an error, and no empty stream.
    reader.page(after, 1).await?;
    let stream = LedgerStream {
        changes: reader.app.store.ledger.follow(),
        reader,
        seen: after,
        room: None,
        _permit: permit,
    };
    let keep_alive = KeepAlive::new().interval(Duration::from_secs(15));
    Ok(Sse::new(stream.events())
        .keep_alive(keep_alive)
        .into_response())
}

struct LedgerStream {
    reader: EventReader,
    changes: LedgerFollow,
    seen: LedgerPosition,
    /// The reserved bytes of the events that were read and are not sent yet.
    room: Option<Reservation>,
    _permit: OwnedSemaphorePermit,
}

impl LedgerStream {
    fn events(self) -> impl Stream<Item = Result<ServerSentEvent, Infallible>> {
        stream::unfold(self, |mut stream| async move {
            let events = stream.next().await?;
            Some((stream::iter(events.into_iter().map(Ok)), stream))
        })
        .flatten()
    }

    /// Waits for the next events and returns them; `None` if the client must connect again.
    async fn next(&mut self) -> Option<Vec<ServerSentEvent>> {
        loop {
            self.room = None;
            let page = self.reader.page(self.seen, 500).await.ok()?;
            match self.reader.app.responses.reserve_large(page.bytes) {
                Ok(room) => self.room = room,
                Err(_) => return None,
            }
            let has_moved = page.end != self.seen;
            self.seen = page.end;
            let events = page.items.iter().map(server_sent);
            let mut events = match events.collect::<Result<Vec<_>, _>>() {
                Ok(events) => events,
                Err(error) => {
                    warn!(%error, "cannot show an event of the ledger");
                    return None;
                }
            };
            // An id without data moves the client's position past events that the filter leaves out.
            if has_moved && events.is_empty() {
                events.push(ServerSentEvent::default().id(self.seen.to_string()));
            }
            if !events.is_empty() {
                return Some(events);
            }
            if page.has_more {
                continue;
            }
            tokio::select! {
                () = self.changes.changed() => {}
                () = self.reader.app.stop.cancelled() => return None,
            }
        }
    }
}

fn server_sent(event: &EventView) -> Result<ServerSentEvent, serde_json::Error> {
    let data = serde_json::to_string(event)?;
    Ok(ServerSentEvent::default()
        .event(&event.kind)
        .id(&event.position)
        .data(data))
}
