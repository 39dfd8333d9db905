//! Deletes tasks that have ended: with a batch of the writer or, if the database allows several writers, on a
//! connection of its own, which is closed again when nothing was deleted for a while.

use std::time::Duration;

use tokio::sync::mpsc;

use super::{TRIES, request::ReplySender};
use crate::{
    clock::{self, timeout},
    domain::values::{TaskId, Timestamp},
    store::{Backend, Purged, StoreError, Transaction},
};

/// The time for which an unused connection is kept.
const IDLE: Duration = Duration::from_secs(15);

pub(super) async fn purge(
    tx: &mut Transaction<'_>,
    tasks: &[TaskId],
    ended_before: Timestamp,
) -> Result<Purged, StoreError> {
    let started = clock::instant();
    let tasks = tx.purge(tasks, ended_before).await?;
    Ok(Purged {
        tasks,
        took: started.elapsed(),
    })
}

pub(super) struct PurgeCall {
    pub tasks: Vec<TaskId>,
    pub ended_before: Timestamp,
    pub answer: ReplySender<Purged, StoreError>,
}

/// Deletes tasks on a backend of its own.
pub(super) async fn serve(mut backend: Box<dyn Backend>, mut calls: mpsc::Receiver<PurgeCall>) {
    while let Some(call) = calls.recv().await {
        serve_one(backend.as_mut(), call).await;
        while let Ok(next) = timeout(IDLE, calls.recv()).await {
            match next {
                Some(call) => serve_one(backend.as_mut(), call).await,
                None => return,
            }
        }
        backend.disconnect().await;
    }
}

async fn serve_one(backend: &mut dyn Backend, call: PurgeCall) {
    let purged = purge_and_commit(backend, &call.tasks, call.ended_before).await;
    // A caller that is gone needs no response.
    let _ = call.answer.send(purged);
}

/// Deletes tasks in a transaction of its own.
pub async fn purge_and_commit(
    backend: &mut dyn Backend,
    tasks: &[TaskId],
    ended_before: Timestamp,
) -> Result<Purged, StoreError> {
    let mut interrupted = String::new();
    for _ in 0..TRIES {
        match try_purge(backend, tasks, ended_before).await {
            Err(StoreError::Retryable(reason) | StoreError::Lost(reason)) => interrupted = reason,
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
    // The wait for another writer is not counted, because it delays no other request.
    let started = clock::instant();
    let tasks = tx.purge(tasks, ended_before).await?;
    tx.commit().await?;
    Ok(Purged {
        tasks,
        took: started.elapsed(),
    })
}
