//! Deletes recorded attempts whose time is over, and the oldest ones when all of them take too much room. Only the
//! supervising instance does this.

use std::{sync::Arc, time::Duration};

use crate::{
    clock,
    domain::{
        upkeep::next_purge,
        values::{Span, Timestamp},
    },
    instance::LocalLease,
    service::loops::{NextRound, PeriodicLoop},
    store::{Store, StoreError},
};

const INTERVAL: Duration = Duration::from_secs(60);
/// The most attempts that one transaction deletes.
const BATCH: usize = 100;
/// The rest after a batch, as a multiple of its duration, so that other commands are hardly delayed.
const RESTS: u32 = 4;

pub(in crate::service) struct AttemptPurge {
    pub store: Store,
    pub local_lease: Arc<LocalLease>,
    pub keep: Span,
    pub most_bytes: u64,
}

/// Saves the samples of attempts that succeeded at this instance.
pub(in crate::service) struct SampleUpkeep(pub Store);

impl PeriodicLoop for SampleUpkeep {
    const NAME: &'static str = "samples of attempts";

    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        self.0.save_samples().await?;
        Ok(NextRound::AfterInterval)
    }
}

impl PeriodicLoop for AttemptPurge {
    const NAME: &'static str = "record of attempts";

    fn interval(&self) -> Duration {
        INTERVAL
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        if self.local_lease.term(clock::instant()).is_none() {
            return Ok(NextRound::AfterInterval);
        }
        let reader = &self.store.housekeeping;
        let now = reader.now().await?.as_millis();
        let keep_from = Timestamp::from_millis(now.saturating_sub(self.keep.as_millis()));
        let hours = reader.recorded_hours().await?;
        let Some(purge) = next_purge(&hours, keep_from, self.most_bytes) else {
            return Ok(NextRound::AfterInterval);
        };
        let started = clock::instant();
        let (before, succeeded) = (purge.before, purge.succeeded);
        self.store.purge_attempts(before, succeeded, BATCH).await?;
        Ok(NextRound::After(started.elapsed() * RESTS))
    }
}
