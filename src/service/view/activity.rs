//! The periodic loops of the record of activity: each instance saves what it has counted, and the one that supervises
//! merges and deletes what is old.

use std::{sync::Arc, time::Duration};

use crate::{
    clock,
    instance::LocalLease,
    service::loops::{NextRound, PeriodicLoop},
    store::{Store, StoreError},
};

pub(in crate::service) struct ActivityUpkeep(pub Store);

impl PeriodicLoop for ActivityUpkeep {
    const NAME: &'static str = "activity";

    fn interval(&self) -> Duration {
        Duration::from_secs(5)
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        self.0.save_activity().await?;
        Ok(NextRound::AfterInterval)
    }
}

pub(in crate::service) struct ActivityTidying {
    pub store: Store,
    pub local_lease: Arc<LocalLease>,
}

impl PeriodicLoop for ActivityTidying {
    const NAME: &'static str = "record of activity";

    fn interval(&self) -> Duration {
        Duration::from_secs(300)
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        if self.local_lease.term(clock::instant()).is_none() {
            return Ok(NextRound::AfterInterval);
        }
        Ok(match self.store.tidy_activity().await? {
            true => NextRound::After(Duration::from_millis(200)),
            false => NextRound::AfterInterval,
        })
    }
}
