//! Deleting tasks that ended: with a batch of the writer, or where the database takes several that write, past it
//! on a connection of its own, which is closed again when nothing was deleted for a while.

use std::time::Duration;

use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};

use super::{
    TRIES,
    handle::{Operation, Outcome, Request},
};
use crate::{
    domain::{TaskId, Timestamp},
    store::{Backend, Purged, StoreError, Transaction},
};

/// For how long the connection is kept that nobody needs.
const IDLE: Duration = Duration::from_secs(15);

pub(super) async fn purge(
    tx: &mut dyn Transaction,
    tasks: &[TaskId],
    ended_before: Timestamp,
) -> Result<Purged, StoreError> {
    let started = Instant::now();
    let tasks = tx.purge(tasks, ended_before).await?;
    Ok(Purged {
        tasks,
        took: started.elapsed(),
    })
}

/// Deletes on a backend of its own.
pub(super) async fn serve(mut backend: Box<dyn Backend>, mut requests: mpsc::Receiver<Request>) {
    while let Some(request) = requests.recv().await {
        serve_one(backend.as_mut(), request).await;
        while let Ok(next) = timeout(IDLE, requests.recv()).await {
            match next {
                Some(request) => serve_one(backend.as_mut(), request).await,
                None => return,
            }
        }
        backend.disconnect().await;
    }
}

async fn serve_one(backend: &mut dyn Backend, request: Request) {
    let Request::Other {
        operation: Operation::Purge(tasks, ended_before),
        answer,
    } = request
    else {
        // Nothing else is sent here.
        return request.refuse(&StoreError::Stopping);
    };
    // A caller that is gone needs no answer.
    let _ = answer.send(
        purge_and_commit(backend, &tasks, ended_before)
            .await
            .map(Outcome::Purged),
    );
}

/// Deletes in a transaction of its own.
pub async fn purge_and_commit(
    backend: &mut dyn Backend,
    tasks: &[TaskId],
    ended_before: Timestamp,
) -> Result<Purged, StoreError> {
    let mut interrupted = String::new();
    for _ in 0..TRIES {
        match try_purge(backend, tasks, ended_before).await {
            Err(StoreError::Retryable(reason)) => interrupted = reason,
            Err(error) => {
                backend.failed(&error);
                return Err(error);
            }
            purged => return purged,
        }
    }
    Err(StoreError::Unavailable(interrupted))
}

async fn try_purge(
    backend: &mut dyn Backend,
    tasks: &[TaskId],
    ended_before: Timestamp,
) -> Result<Purged, StoreError> {
    let mut tx = backend.begin().await?;
    // Who waits for another that writes holds nobody up.
    let started = Instant::now();
    let tasks = tx.purge(tasks, ended_before).await?;
    tx.commit().await?;
    Ok(Purged {
        tasks,
        took: started.elapsed(),
    })
}
