//! The maintenance of an instance, each kind of it a loop: recovery, reconciliation, leases, retention, metrics.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::loops::{NextRound, PeriodicLoop};
use crate::{
    instance::{LocalLease, Membership},
    retention::Sweep,
    scheduler::{self, Local},
    store::{Store, StoreError},
    supervisor::Supervisor,
    telemetry::Metrics,
};

/// Recovers what timed out, and what a lost instance held.
pub(super) struct Supervision {
    pub supervisor: Supervisor,
    pub interval: Duration,
}

impl PeriodicLoop for Supervision {
    const NAME: &'static str = "supervisor";

    fn interval(&self) -> Duration {
        self.interval
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        self.supervisor.look().await?;
        Ok(NextRound::AfterInterval)
    }
}

/// Compares the running calls with the record, as often as the lease is renewed: steps that were taken over during a
/// lapse are dropped soon after it.
pub(super) struct Reconciliation {
    pub local: Arc<Local>,
    pub store: Store,
    pub interval: Duration,
}

impl PeriodicLoop for Reconciliation {
    const NAME: &'static str = "reconciliation";

    fn interval(&self) -> Duration {
        self.interval
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        scheduler::reconcile(&self.local, &self.store).await?;
        Ok(NextRound::AfterInterval)
    }
}

/// Keeps this instance registered; after `stop` it no longer supervises. Ends only if another process has the same id.
pub(super) struct LeaseRenewal {
    pub member: Arc<Membership>,
    pub stop: CancellationToken,
}

impl PeriodicLoop for LeaseRenewal {
    const NAME: &'static str = "leases";

    fn interval(&self) -> Duration {
        self.member.interval()
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        let supervise = !self.stop.is_cancelled();
        Ok(match self.member.renew_if_due(supervise).await {
            Ok(()) => NextRound::AfterInterval,
            Err(_) => NextRound::Never,
        })
    }
}

/// Deletes tasks that ended long ago. Of several instances, only the supervisor does this; an instance that is held
/// never is the supervisor.
pub(super) struct TaskPurge {
    pub sweep: Sweep,
    pub store: Store,
    pub local_lease: Arc<LocalLease>,
    pub interval: Duration,
}

impl PeriodicLoop for TaskPurge {
    const NAME: &'static str = "retention";

    fn interval(&self) -> Duration {
        self.interval
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        let supervises = || self.local_lease.term(Instant::now()).is_some();
        if supervises() {
            let swept = self.sweep.round(&mut self.store, &supervises).await?;
            if swept.tasks > 0 {
                info!(tasks = swept.tasks, "deleted tasks that ended long ago");
            }
        }
        Ok(NextRound::AfterInterval)
    }
}

/// Drains histograms: otherwise they would grow forever in a service that nobody scrapes.
pub(super) struct MetricsUpkeep(pub Metrics);

impl PeriodicLoop for MetricsUpkeep {
    const NAME: &'static str = "metrics";

    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        self.0.drain();
        Ok(NextRound::AfterInterval)
    }
}
