//! The upkeep of the ledger: deletes rows whose time is over, and notes from when on every instance writes it. Only the
//! supervising instance does this. It reads first, and writes only if something is due.

use std::{sync::Arc, time::Duration};

use crate::{
    clock,
    domain::{values::Span, view::kept_from},
    instance::LocalLease,
    service::loops::{NextRound, PeriodicLoop},
    store::{LedgerCutoff, SharedFeature, Store, StoreError},
};

const INTERVAL: Duration = Duration::from_secs(60);
/// The most rows that one transaction deletes.
const BATCH: usize = 200;
/// The rest after a batch, as a multiple of its duration, so that other commands are hardly delayed.
const RESTS: u32 = 4;

pub(in crate::service) struct LedgerUpkeep {
    pub store: Store,
    pub local_lease: Arc<LocalLease>,
    pub keep: Span,
    pub keep_changes: Span,
    /// True once it is on record that every instance writes the ledger.
    pub is_complete: bool,
}

impl PeriodicLoop for LedgerUpkeep {
    const NAME: &'static str = "ledger";

    fn interval(&self) -> Duration {
        match self.is_complete {
            true => INTERVAL,
            // Instances are known to each other a few seconds after the start.
            false => INTERVAL / 12,
        }
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        if self.local_lease.term(clock::instant()).is_none() {
            return Ok(NextRound::AfterInterval);
        }
        let reader = &self.store.housekeeping;
        if !self.is_complete {
            let is_written_by_all = self.store.features.has(SharedFeature::Ledger);
            self.is_complete = reader.ledger_state().await?.complete_since.is_some();
            if !self.is_complete && is_written_by_all {
                self.store.complete_ledger().await?;
                self.is_complete = true;
            }
        }
        let now = reader.now().await?;
        let cutoff = LedgerCutoff {
            events: kept_from(now, self.keep),
            changes: kept_from(now, self.keep_changes),
        };
        if !reader.has_old_ledger_rows(cutoff).await? {
            return Ok(NextRound::AfterInterval);
        }
        let started = clock::instant();
        match self.store.purge_ledger(cutoff, BATCH).await? {
            true => Ok(NextRound::After(started.elapsed() * RESTS)),
            false => Ok(NextRound::AfterInterval),
        }
    }
}
