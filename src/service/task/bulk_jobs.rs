//! Carries out bulk jobs: any instance takes those that no other one has, and processes one batch of each in turn. It
//! rests for as long as the batches took, so that other commands are hardly delayed. Jobs that have ended are deleted
//! after their time by the instance that supervises.

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use tracing::{error, warn};
use uuid::Uuid;

use crate::{
    api::{App, BulkProgress, fail_bulk_job, process_bulk_job},
    chance, clock,
    domain::values::{Timestamp, jittered},
    instance::LocalLease,
    service::loops::{NextRound, PeriodicLoop},
    store::{BulkJobId, BulkJobRecord, DueBulkJob, Store, StoreError},
};

/// The interval of the search for jobs that other instances may leave, while there are jobs.
const SHARED: Duration = Duration::from_secs(1);
/// The interval of the search for the first job that another instance may leave, on the instance that supervises. The
/// instance that records a job begins at once to carry it out.
const IDLE: Duration = Duration::from_secs(15);
/// The rounds between two searches on an instance that does not supervise.
const ROUNDS_OF_OTHERS: u32 = 4;
/// The interval on a database that only this process uses, and that notifies the loop of every change.
const ALONE: Duration = Duration::from_secs(5);
/// The longest rest after a batch.
const LONGEST_REST: Duration = Duration::from_secs(1);
const PURGE_INTERVAL: Duration = Duration::from_secs(60);
/// The most tasks of ended jobs that one transaction deletes.
const PURGE_BATCH: usize = 500;
/// The rest after a batch, as a multiple of its duration.
const PURGE_RESTS: u32 = 4;

pub(in crate::service) struct BulkJobLoop {
    app: Arc<App>,
    store: Store,
    local_lease: Arc<LocalLease>,
    /// The jobs that this instance has, as it has saved them last.
    held: HashMap<Uuid, BulkJobRecord>,
    /// The time at which this instance started. While it is held, it carries out only jobs that an operator has started
    /// or resumed since: others may come from a backup.
    started_at: Option<Timestamp>,
    /// The rounds until the next search if this instance does not supervise.
    rounds_to_search: u32,
}

impl BulkJobLoop {
    pub fn new(app: Arc<App>, store: Store, local_lease: Arc<LocalLease>) -> Self {
        Self {
            app,
            store,
            local_lease,
            held: HashMap::new(),
            started_at: None,
            rounds_to_search: 0,
        }
    }

    fn supervises(&self) -> bool {
        self.local_lease.term(clock::instant()).is_some()
    }

    async fn since(&mut self) -> Result<Option<Timestamp>, StoreError> {
        let started_at = match self.started_at {
            Some(started_at) => started_at,
            None => *self.started_at.insert(self.store.housekeeping.now().await?),
        };
        Ok(self.app.hold.is_held().then_some(started_at))
    }

    /// Processes a batch of a job. Returns the time at which the next one is due, `None` if this instance does not have
    /// the job.
    async fn process(
        &mut self,
        id: BulkJobId,
        since: Option<Timestamp>,
    ) -> Result<Option<Timestamp>, StoreError> {
        let known = self.held.remove(&id.0);
        let (app, store) = (&self.app, &self.store);
        let processed = AssertUnwindSafe(process_bulk_job(app, store, id, known, since));
        let reason = match processed.catch_unwind().await {
            Ok(Ok(BulkProgress::Saved(record))) => {
                let due = record.job.due_at();
                if due.is_some() {
                    self.held.insert(id.0, *record);
                }
                return Ok(due);
            }
            Ok(Ok(BulkProgress::NotOurs)) => return Ok(None),
            Ok(Err(error)) if error.is_damage() => {
                let reason = error.damage();
                error!(job = %id, reason, "a bulk job cannot be read; it is left alone for some minutes");
                self.store.rest_bulk_job(id).await?;
                return Ok(None);
            }
            Ok(Err(error)) if !error.is_of_one_task() => return Err(error),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the service panicked; its log has the details".to_owned(),
        };
        error!(job = %id, reason, "a bulk job has failed");
        fail_bulk_job(&self.app, &self.store, id, reason).await?;
        Ok(None)
    }
}

impl PeriodicLoop for BulkJobLoop {
    const NAME: &'static str = "bulk jobs";
    const AT_ONCE: bool = true;
    const LONGEST_REST: Duration = Duration::from_secs(5);

    fn interval(&self) -> Duration {
        match self.store.is_shared {
            true => SHARED,
            false => ALONE,
        }
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        if self.rounds_to_search > 0 && !self.supervises() {
            self.rounds_to_search -= 1;
            return Ok(idle());
        }
        self.rounds_to_search = 0;
        let since = self.since().await?;
        let due = self.store.housekeeping.due_bulk_jobs().await?;
        self.held
            .retain(|id, _| due.iter().any(|job| job.id.0 == *id));
        if due.is_empty() {
            self.rounds_to_search = ROUNDS_OF_OTHERS - 1;
            return Ok(idle());
        }
        let now = self.store.housekeeping.now().await?;
        let started = clock::instant();
        let mut next = None;
        let mut first_error = None;
        for DueBulkJob { id, due_at } in due {
            if self.app.stop.is_cancelled() {
                break;
            }
            let due_at = match due_at > now {
                true => self.held.contains_key(&id.0).then_some(due_at),
                false => match self.process(id, since).await {
                    Ok(due_at) => due_at,
                    Err(error) => {
                        warn!(job = %id, %error, "a bulk job was interrupted; it continues later");
                        first_error.get_or_insert(error);
                        None
                    }
                },
            };
            next = next.min(due_at).or(next).or(due_at);
        }
        if let Some(error) = first_error {
            return Err(error);
        }
        let Some(next) = next else {
            return Ok(NextRound::AfterInterval);
        };
        let now = self.store.housekeeping.now().await?;
        let rest = started.elapsed().min(LONGEST_REST);
        Ok(NextRound::After(next.since(now).max(rest)))
    }

    async fn wait_for_wake(&mut self) {
        self.store.bulk_due.notified().await;
        self.rounds_to_search = 0;
    }
}

fn idle() -> NextRound {
    NextRound::After(jittered(IDLE, chance::random()))
}

pub(in crate::service) struct BulkJobPurge {
    pub store: Store,
    pub local_lease: Arc<LocalLease>,
}

impl PeriodicLoop for BulkJobPurge {
    const NAME: &'static str = "record of bulk jobs";

    fn interval(&self) -> Duration {
        PURGE_INTERVAL
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        if self.local_lease.term(clock::instant()).is_none() {
            return Ok(NextRound::AfterInterval);
        }
        let started = clock::instant();
        Ok(match self.store.purge_bulk_jobs(PURGE_BATCH).await? {
            true => NextRound::After(started.elapsed() * PURGE_RESTS),
            false => NextRound::AfterInterval,
        })
    }
}
