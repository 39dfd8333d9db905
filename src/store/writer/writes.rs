//! Rare writes: every write that is not a command on a task. Each is a closure over a transaction, which runs again if
//! the transaction has to be retried.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::Notify;

use super::{
    CONNECTIONS_WITHIN, Committer, Store, TRIES,
    request::{RareWrite, Request, TypedWrite, WriteResult},
};
use crate::{
    clock,
    store::{Backend, StoreError, Transaction},
};

impl Store {
    /// Runs a write in the transaction of the next batch.
    pub(in crate::store) async fn write<T, F>(&self, run: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'t> Fn(&'t mut Transaction<'t>) -> BoxFuture<'t, Result<T, StoreError>>
            + Send
            + Sync
            + 'static,
    {
        self.send_write(false, None, run).await
    }

    /// Runs a write, with `is_alone` in a transaction of its own. Notifies `wakes` after the commit.
    pub(in crate::store) async fn send_write<T, F>(
        &self,
        is_alone: bool,
        wakes: Option<Arc<Notify>>,
        run: F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'t> Fn(&'t mut Transaction<'t>) -> BoxFuture<'t, Result<T, StoreError>>
            + Send
            + Sync
            + 'static,
    {
        self.ask(|answer| {
            Request::Write(RareWrite {
                write: Box::new(TypedWrite { run, answer }),
                is_alone,
                wakes,
            })
        })
        .await
    }
}

impl Committer<'_> {
    /// Runs the writes that need transactions of their own, and removes them from `gathered`. After one that the
    /// database has refused, most often after a wait for a lock, the others go back to the queue: the requests that
    /// were gathered with them may need nothing that is locked, and must not wait for all of them.
    pub(super) async fn serve_alone(&mut self, gathered: &mut Vec<Request>) {
        let is_alone =
            |request: &mut Request| matches!(request, Request::Write(write) if write.is_alone);
        let mut alone = gathered
            .extract_if(.., is_alone)
            .collect::<Vec<_>>()
            .into_iter();
        for request in alone.by_ref().filter(Request::begin) {
            if let Request::Write(write) = request {
                let written = in_transaction(self.backend.as_mut(), &write).await;
                let refused = written.as_ref().err().filter(|error| error.may_pass());
                let refused = refused.inspect(|error| self.writer.refusals.note(error));
                let is_refused = refused.is_some();
                self.writer.ledger.committed();
                write.reply(written);
                if is_refused {
                    break;
                }
            }
        }
        self.writer.command_queue.put_back(&mut alone.collect());
    }
}

async fn in_transaction(
    backend: &mut dyn Backend,
    write: &RareWrite,
) -> Result<WriteResult, StoreError> {
    let mut last = String::new();
    let (started, mut lost) = (clock::instant(), 0);
    for _ in 0..TRIES {
        match try_in_transaction(backend, write).await {
            Err(StoreError::Retryable(reason)) => last = reason,
            // Each attempt may wait for a new connection.
            Err(StoreError::Lost(reason))
                if lost == 0 || started.elapsed() < CONNECTIONS_WITHIN =>
            {
                lost += 1;
                last = reason;
            }
            Err(StoreError::Lost(reason)) => return Err(StoreError::Unavailable(reason)),
            Err(error) => {
                backend.failed(&error);
                return Err(error);
            }
            written => return written,
        }
    }
    Err(StoreError::Unavailable(last))
}

async fn try_in_transaction(
    backend: &mut dyn Backend,
    write: &RareWrite,
) -> Result<WriteResult, StoreError> {
    let mut tx = backend.begin().await?;
    let written = write.run(tx.as_mut()).await?;
    tx.commit().await?;
    Ok(written)
}
