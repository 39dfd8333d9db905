//! Group commit: one writer saves whatever has arrived in one transaction.
//!
//! It never lingers for more: a lone command is a batch of one, and while a commit is under way the
//! next batch gathers by itself, so the cost of a command falls as the load rises. Commands are
//! decided on cached aggregates; only what is not cached is read, in one statement a batch. A caller
//! is answered after the commit, and only then.

mod batch;
mod doubt;
mod handle;
mod leases;
mod outbox;

use std::{
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use lru::LruCache;
use rand::RngExt;
use tokio::sync::{Notify, mpsc};
use tracing::{debug, error, warn};

pub use handle::{Accepted, Apply, Idempotency, Store};
pub use leases::Renewed;

use self::{batch::Decided, handle::Request};
use super::{Backend, LocalScheduler, Saved, StoreError, Watchers};
use crate::domain::{Sender, Task, TaskId};

#[derive(Clone, Debug)]
pub struct WriterSettings {
    /// Live tasks kept in memory.
    pub cache_tasks: NonZeroUsize,
    /// The most commands of one transaction.
    pub batch: usize,
    /// Who tells submitters and webhooks.
    pub sender: Arc<Sender>,
}

/// How often a batch is decided anew because another instance was faster, or the connection was lost,
/// before its callers are told.
const TRIES: u32 = 16;
/// The waits between tries double up to this, each by chance shorter: two instances that are in each
/// other's way must not stay in step. Once is free, because most often one has simply gone before.
const LONGEST_WAIT: Duration = Duration::from_millis(64);

/// How long the writer does not say again that a batch could not be saved.
const COMPLAIN_AGAIN: Duration = Duration::from_secs(5);

/// Why a batch was not saved.
enum Failed {
    /// No transaction could be begun: no batch can be saved now, whatever is in it.
    Begin(StoreError),
    /// This one could not.
    Save(StoreError),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Failed::Save(error)
    }
}

struct Writer {
    backend: Box<dyn Backend>,
    local: Arc<dyn LocalScheduler>,
    watchers: Arc<Watchers>,
    /// Woken when there is something to be delivered.
    outbox: Arc<Notify>,
    cache: LruCache<TaskId, Arc<Task>>,
    /// Whether other instances may have moved on what is cached.
    is_shared: bool,
    settings: WriterSettings,
    metrics: super::metrics::WriterMetrics,
    /// When it was last said that nothing can be saved, and how often it was not said since.
    complained: Option<(Instant, u64)>,
}

impl Writer {
    fn new(
        backend: Box<dyn Backend>,
        local: Arc<dyn LocalScheduler>,
        watchers: Arc<Watchers>,
        outbox: Arc<Notify>,
        settings: WriterSettings,
    ) -> Self {
        Self {
            is_shared: backend.is_shared(),
            backend,
            local,
            watchers,
            outbox,
            cache: LruCache::new(settings.cache_tasks),
            settings,
            metrics: super::metrics::WriterMetrics::new(),
            complained: None,
        }
    }

    /// Runs until every [`Store`] handle is gone and what they sent is done.
    async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let mut gathered = Vec::with_capacity(self.settings.batch);
        while requests.recv_many(&mut gathered, self.settings.batch).await > 0 {
            // One turn for everybody who is ready to run now: under load their commands come along in
            // this batch, and a lone command has nobody to wait for.
            tokio::task::yield_now().await;
            while gathered.len() < self.settings.batch
                && let Ok(request) = requests.try_recv()
            {
                gathered.push(request);
            }
            self.serve_leases(&mut gathered).await;
            self.serve_outbox(&mut gathered).await;
            if gathered.is_empty() {
                continue;
            }
            self.metrics.batch_size.record(gathered.len() as f64);
            match self.write(&mut gathered).await {
                Ok(()) => {}
                // What may be done already must not be done again.
                Err(Failed::Save(error @ StoreError::Unclear(_))) => {
                    refuse(std::mem::take(&mut gathered), &error);
                }
                // One command that cannot be saved must not fail the others: each goes alone.
                Err(Failed::Save(_)) if gathered.len() > 1 => {
                    self.write_each(std::mem::take(&mut gathered)).await;
                }
                Err(Failed::Save(error) | Failed::Begin(error)) => {
                    refuse(std::mem::take(&mut gathered), &error);
                }
            }
            gathered.clear();
        }
    }

    /// While the database is away every answer of a call is brought again and again: that is one thing to say,
    /// and not a line for each.
    fn complain(&mut self, error: &StoreError, commands: usize) {
        let now = Instant::now();
        let unsaid = match &mut self.complained {
            Some((said, unsaid)) if now.duration_since(*said) < COMPLAIN_AGAIN => {
                *unsaid += 1;
                return;
            }
            Some((_, unsaid)) => *unsaid,
            None => 0,
        };
        self.complained = Some((now, 0));
        error!(%error, commands, unsaid, "a batch could not be saved");
    }

    async fn write_each(&mut self, requests: Vec<Request>) {
        let mut requests = requests.into_iter();
        while let Some(request) = requests.next() {
            let mut alone = vec![request];
            match self.write(&mut alone).await {
                Ok(()) => {}
                Err(Failed::Save(error)) => refuse(alone, &error),
                // It would be the same for every other, after the same wait for a connection.
                Err(Failed::Begin(error)) => {
                    refuse(alone.into_iter().chain(requests), &error);
                    return;
                }
            }
        }
    }

    /// Decides, saves, commits, answers. On an error nothing has changed and nobody was answered.
    async fn write(&mut self, requests: &mut Vec<Request>) -> Result<(), Failed> {
        let started = Instant::now();
        let mut interrupted = None;
        for tried in 0..TRIES {
            if tried > 1 {
                let longest = Duration::from_millis(1 << tried).min(LONGEST_WAIT);
                let wait = longest.mul_f64(rand::rng().random());
                tokio::time::sleep(wait).await;
            }
            let mut decided = match self.try_write(requests).await {
                Ok(Some(decided)) => decided,
                Ok(None) => continue,
                Err(Failed::Save(StoreError::Interrupted(reason))) => {
                    debug!(
                        reason,
                        "a transaction was interrupted; the batch is decided again"
                    );
                    interrupted = Some(reason);
                    continue;
                }
                Err(failed) => {
                    let (Failed::Begin(error) | Failed::Save(error)) = &failed;
                    self.complain(error, requests.len());
                    return Err(failed);
                }
            };
            self.metrics.commit_seconds.record(started.elapsed());
            for change in &decided.batch.changes {
                let task = &change.task;
                if task.is_ended() {
                    self.cache.pop(&task.id());
                } else {
                    self.cache.put(task.id(), task.clone());
                }
                self.metrics.observe(change);
            }
            decided.publish(&*self.local, &self.watchers, &self.outbox);
            decided.answer(std::mem::take(requests), &self.metrics);
            return Ok(());
        }
        let reason = interrupted
            .unwrap_or_else(|| "other instances kept changing the same tasks".to_owned());
        warn!(reason, "a batch could not be saved {TRIES} times");
        Err(Failed::Save(StoreError::Unavailable(reason)))
    }

    /// `None`: a cached task was stale. It is out of the cache, and the batch is to be decided again.
    async fn try_write(&mut self, requests: &[Request]) -> Result<Option<Decided>, Failed> {
        // Taken before the store's own time is read, so that a local deadline is never later than
        // the complete-by it stands for.
        let instant = tokio::time::Instant::now();
        let begun = self.backend.begin().await;
        let mut tx = begun.map_err(|error| match error {
            // The connection turned out to be lost; the next one may be there already.
            StoreError::Interrupted(_) => Failed::Save(error),
            error => Failed::Begin(error),
        })?;
        let mut decided = Decided::new(tx.now(), instant);
        decided
            .gather(requests, tx.as_mut(), &mut self.cache, &*self.local)
            .await?;
        decided.decide(requests, tx.as_mut(), &*self.local).await?;
        decided.collect(&self.settings.sender);
        if self.is_shared {
            let (doubts, batch) = (&decided.doubts, &decided.batch);
            let moved = doubts.justified(batch, tx.as_mut()).await?;
            if !moved.is_empty() {
                drop(tx);
                debug!("a cached task that refused was stale; the batch is decided again");
                for task in moved {
                    self.cache.pop(&task);
                }
                return Ok(None);
            }
        }
        if !decided.batch.is_empty() && tx.save(&decided.batch).await? == Saved::Stale {
            drop(tx);
            debug!("a cached task was stale; the batch is decided again");
            for change in &decided.batch.changes {
                self.cache.pop(&change.task.id());
            }
            return Ok(None);
        }
        tx.commit().await?;
        Ok(Some(decided))
    }
}

fn refuse(requests: impl IntoIterator<Item = Request>, error: &StoreError) {
    for request in requests {
        request.refuse(error);
    }
}
