//! Server-sent events.

use std::collections::VecDeque;

use crate::{api::Api, away::Away, operations::Operation, outcome::ClientError};

/// One event.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StreamEvent {
    pub id: String,
    pub data: String,
}

/// The events of a response.
#[derive(Debug)]
pub struct EventStream<'a> {
    api: &'a Api,
    response: reqwest::Response,
    reader: EventReader,
}

impl<'a> EventStream<'a> {
    pub fn new(api: &'a Api, response: reqwest::Response) -> Self {
        Self {
            api,
            response,
            reader: EventReader::default(),
        }
    }

    /// Returns the next event; `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<StreamEvent>, ClientError> {
        loop {
            if let Some(event) = self.reader.events.pop_front() {
                return Ok(Some(event));
            }
            let chunk = self.response.chunk().await;
            match chunk.map_err(|error| self.api.no_response(&error))? {
                Some(bytes) => self.reader.take(&bytes),
                None => return Ok(None),
            }
        }
    }
}

/// A stream that begins again after its last event when the connection is lost.
#[derive(Debug)]
pub struct FollowedStream<'a> {
    api: &'a Api,
    operation: &'a Operation,
    parts: &'a [&'a str],
    query: &'a [(&'static str, String)],
    last: Option<String>,
    open: Option<EventStream<'a>>,
    has_begun: bool,
    away: Away,
}

impl<'a> FollowedStream<'a> {
    pub fn new(
        api: &'a Api,
        operation: &'a Operation,
        parts: &'a [&'a str],
        query: &'a [(&'static str, String)],
    ) -> Self {
        Self {
            api,
            operation,
            parts,
            query,
            last: None,
            open: None,
            has_begun: false,
            away: Away::default(),
        }
    }

    /// Returns the next event; `None` if the server has ended the stream, which begins again with the next call.
    pub async fn next(&mut self) -> Result<Option<StreamEvent>, ClientError> {
        loop {
            match self.try_next().await {
                Ok(event) => {
                    self.away.ends();
                    match &event {
                        Some(event) => self.last = Some(event.id.clone()),
                        None => self.open = None,
                    }
                    return Ok(event);
                }
                // A server that never responded is not one that was restarted.
                Err(error) if !self.has_begun => return Err(error),
                Err(error) => {
                    self.open = None;
                    self.away.wait_after(error).await?;
                }
            }
        }
    }

    async fn try_next(&mut self) -> Result<Option<StreamEvent>, ClientError> {
        if let Some(open) = &mut self.open {
            return open.next().await;
        }
        let mut request = self.api.request(self.operation, self.parts);
        for (name, value) in self.query {
            request = request.query(name, value);
        }
        if let Some(last) = &self.last {
            request = request.header("last-event-id", last.clone());
        }
        let opened = EventStream::new(self.api, request.stream().await?);
        self.has_begun = true;
        self.open.insert(opened).next().await
    }
}

/// Puts events together from pieces of bytes.
#[derive(Debug, Default)]
struct EventReader {
    line: Vec<u8>,
    event: StreamEvent,
    events: VecDeque<StreamEvent>,
}

impl EventReader {
    fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' => {
                    let line = std::mem::take(&mut self.line);
                    self.take_line(&String::from_utf8_lossy(&line));
                }
                b'\r' => {}
                byte => self.line.push(*byte),
            }
        }
    }

    fn take_line(&mut self, line: &str) {
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            if !event.data.is_empty() {
                self.events.push_back(event);
            }
            return;
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" => self.event.id = value.to_owned(),
            "data" => {
                if !self.event.data.is_empty() {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            // A comment, the type, which is in the data too, or a field of later versions.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_whole_however_their_bytes_are_cut() {
        let text =
            ": hello\n\nid: 1.0\nevent: x\ndata: {\"a\":\ndata: 1}\n\nid: 2.0\r\ndata: ä\r\n\r\n";
        for size in 1..text.len() {
            let mut reader = EventReader::default();
            for piece in text.as_bytes().chunks(size) {
                reader.take(piece);
            }
            let event = |id: &str, data: &str| StreamEvent {
                id: id.to_owned(),
                data: data.to_owned(),
            };
            assert_eq!(
                reader.events,
                [event("1.0", "{\"a\":\n1}"), event("2.0", "ä")]
            );
        }
    }
}
