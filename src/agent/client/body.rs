//! Reads the body of a response in chunks, and stops at the size that the caller wants.

use std::time::Duration;

use super::{connections::ResponseStream, connector::Unanswered, response::encoding};
use crate::{
    clock,
    domain::{
        task::{BodyRecord, Redactor},
        values::BODY_EXCERPT,
    },
};

/// The longest time that the excerpt of an error's body may take. The status has already decided the result: a service
/// that sends its error text slowly must not turn a clear refusal into a timeout.
const EXCERPT_PATIENCE: Duration = Duration::from_secs(2);

pub(in crate::agent) enum BodyError {
    TooLarge,
    Broken(Unanswered),
}

/// Returns the whole body. If it is larger than `limit`, the rest of it is never read.
pub(in crate::agent) async fn whole(
    answer: &mut ResponseStream,
    limit: usize,
) -> Result<Vec<u8>, BodyError> {
    let announced = answer.content_length().unwrap_or(0);
    let announced = usize::try_from(announced).unwrap_or(usize::MAX);
    if announced > limit {
        return Err(BodyError::TooLarge);
    }
    let mut body = Vec::with_capacity(announced);
    while let Some(chunk) = answer.chunk().await.map_err(BodyError::Broken)? {
        if body.len() + chunk.len() > limit {
            return Err(BodyError::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Returns the first [`BODY_EXCERPT`] bytes, or as many of them as came. A compressed body gives none.
pub(in crate::agent) async fn start(answer: ResponseStream) -> Vec<u8> {
    let is_text = encoding(&answer.head.headers).is_none();
    let start = first(answer, BODY_EXCERPT).await;
    if is_text { start } else { Vec::new() }
}

/// Returns the first [`BodyRecord::LONGEST`] bytes as [`start`] does, and removes the secrets that the service echoes.
pub(in crate::agent) async fn start_without(
    answer: ResponseStream,
    redactor: Option<&Redactor>,
) -> Vec<u8> {
    if encoding(&answer.head.headers).is_some() {
        return Vec::new();
    }
    let Some(redactor) = redactor else {
        return first(answer, BodyRecord::LONGEST).await;
    };
    // A secret that begins in the excerpt must be read to its end to be found.
    let body = first(answer, BodyRecord::LONGEST + redactor.read_ahead_bytes()).await;
    redactor.hide_in_start(body, BodyRecord::LONGEST)
}

async fn first(mut answer: ResponseStream, most: usize) -> Vec<u8> {
    let mut body = Vec::new();
    let read = async {
        while body.len() < most
            && let Ok(Some(chunk)) = answer.chunk().await
        {
            let room = most - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        }
    };
    // If the body is late or breaks off, its beginning is still worth showing.
    let _ = clock::timeout(EXCERPT_PATIENCE, read).await;
    body
}
