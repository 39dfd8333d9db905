//! Rare writes: every write that is not a command on a task. Each is a closure over a transaction, which runs again
//! where the transaction has to be retried.

use std::{any::Any, sync::Arc};

use async_trait::async_trait;
use futures::future::BoxFuture;
use tokio::sync::{Notify, oneshot};

use super::{
    Committer, TRIES,
    handle::{ReplySender, Request, Store},
};
use crate::store::{Backend, StoreError, Transaction};

/// What a write returned, until it is given to its caller.
pub(super) type WriteResult = Box<dyn Any + Send>;

/// A rare write on its way to a committer.
pub(super) struct RareWrite {
    write: Box<dyn AnyWrite>,
    /// Runs in a transaction of its own, before the batch.
    is_alone: bool,
    /// Notified after the commit.
    wakes: Option<Arc<Notify>>,
}

impl RareWrite {
    pub async fn run(&self, tx: &mut Transaction<'_>) -> Result<WriteResult, StoreError> {
        self.write.run(tx).await
    }

    pub fn reply(self, written: Result<WriteResult, StoreError>) {
        if let (Ok(_), Some(wakes)) = (&written, &self.wakes) {
            wakes.notify_one();
        }
        self.write.reply(written);
    }
}

/// A write whose result only its caller knows the type of.
#[async_trait]
trait AnyWrite: Send + Sync {
    async fn run(&self, tx: &mut Transaction<'_>) -> Result<WriteResult, StoreError>;
    fn reply(self: Box<Self>, written: Result<WriteResult, StoreError>);
}

struct TypedWrite<T, F> {
    run: F,
    answer: ReplySender<T, StoreError>,
}

#[async_trait]
impl<T, F> AnyWrite for TypedWrite<T, F>
where
    T: Send + 'static,
    F: for<'t> Fn(&'t mut Transaction<'t>) -> BoxFuture<'t, Result<T, StoreError>> + Send + Sync,
{
    async fn run(&self, tx: &mut Transaction<'_>) -> Result<WriteResult, StoreError> {
        let written = (self.run)(tx).await?;
        Ok(Box::new(written))
    }

    fn reply(self: Box<Self>, written: Result<WriteResult, StoreError>) {
        // It is what `run` returned, and so of this type.
        let typed = |written: WriteResult| written.downcast().map_err(|_| StoreError::Stopping);
        // A caller that is gone needs no answer.
        let _ = self
            .answer
            .send(written.and_then(typed).map(|typed| *typed));
    }
}

impl Store {
    /// Runs a write in the transaction of the next batch.
    pub(super) async fn write<T, F>(&self, run: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'t> Fn(&'t mut Transaction<'t>) -> BoxFuture<'t, Result<T, StoreError>>
            + Send
            + Sync
            + 'static,
    {
        self.send_write(run, false, None).await
    }

    /// Runs a write in a transaction of its own, and notifies `wakes` after the commit.
    pub(super) async fn write_alone<T, F>(
        &self,
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
        self.send_write(run, true, wakes).await
    }

    async fn send_write<T, F>(
        &self,
        run: F,
        is_alone: bool,
        wakes: Option<Arc<Notify>>,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'t> Fn(&'t mut Transaction<'t>) -> BoxFuture<'t, Result<T, StoreError>>
            + Send
            + Sync
            + 'static,
    {
        let (answer, answered) = oneshot::channel();
        self.send(Request::Write(RareWrite {
            write: Box::new(TypedWrite { run, answer }),
            is_alone,
            wakes,
        }))
        .await?;
        answered.await.map_err(|_| StoreError::Stopping)?
    }
}

impl Committer<'_> {
    /// Runs the writes that go in transactions of their own, and takes them out of what was gathered.
    pub(super) async fn serve_alone(&mut self, gathered: &mut Vec<Request>) {
        let is_alone =
            |request: &mut Request| matches!(request, Request::Write(write) if write.is_alone);
        for request in gathered.extract_if(.., is_alone) {
            if let Request::Write(write) = request {
                let written = in_transaction(self.backend.as_mut(), &write).await;
                write.reply(written);
            }
        }
    }
}

async fn in_transaction(
    backend: &mut dyn Backend,
    write: &RareWrite,
) -> Result<WriteResult, StoreError> {
    let mut last = String::new();
    for _ in 0..TRIES {
        match try_in_transaction(backend, write).await {
            Err(StoreError::Retryable(reason)) => last = reason,
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
