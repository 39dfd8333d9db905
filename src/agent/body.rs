//! Reads the body of an answer, chunk by chunk, and no more of it than is wanted.

use std::time::Duration;

use super::{answer::encoding, connections::ResponseStream, connector::Unanswered};
use crate::domain::{BODY_EXCERPT, Redactor};

/// How long an error's body may take. The status has said what matters: a service that drips its
/// excuse must not turn a clear refusal into a call that ran out of time.
const EXCERPT_PATIENCE: Duration = Duration::from_secs(2);

pub(super) enum BodyError {
    TooLarge,
    Broken(Unanswered),
}

/// The whole body, unless it is larger than `limit`: then what is left of it is never read.
pub(super) async fn whole(answer: &mut ResponseStream, limit: usize) -> Result<Vec<u8>, BodyError> {
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

/// The first [`BODY_EXCERPT`] bytes, or as many of them as came. Nothing of a body that is compressed.
pub(super) async fn start(answer: ResponseStream) -> Vec<u8> {
    let is_text = encoding(&answer.head.headers).is_none();
    let start = first(answer, BODY_EXCERPT).await;
    if is_text { start } else { Vec::new() }
}

/// As [`start`], without the secrets that the service echoes.
pub(super) async fn start_without(answer: ResponseStream, redactor: Option<&Redactor>) -> Vec<u8> {
    let Some(redactor) = redactor else {
        return start(answer).await;
    };
    if encoding(&answer.head.headers).is_some() {
        return Vec::new();
    }
    // One that begins in the excerpt is read to its end.
    let body = first(answer, BODY_EXCERPT + redactor.longest()).await;
    redactor.hide_in_start(body, BODY_EXCERPT)
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
    // Late or broken, what came before is still worth showing.
    let _ = tokio::time::timeout(EXCERPT_PATIENCE, read).await;
    body
}
