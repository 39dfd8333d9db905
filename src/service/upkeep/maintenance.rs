//! The maintenance of an instance, one loop for each kind: recovery, reconciliation, leases, retention, metrics.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::service::loops::{NextRound, PeriodicLoop};
use crate::{
    clock::{self, Instant},
    domain::{
        agent::MissingAgents,
        values::{AgentName, ReceiverName},
    },
    instance::{LocalLease, Membership},
    retention::Sweep,
    scheduler::{self, Local},
    store::{CausesSeen, FailuresSeen, LocalScheduler, Store, StoreError},
    supervisor::Supervisor,
    telemetry::Metrics,
};

const REPORT_AGENTS_EVERY: Duration = Duration::from_secs(60);

/// Recovers steps that have timed out and steps that a lost instance held; finds steps and messages whose hint was
/// lost.
pub(in crate::service) struct Supervision {
    pub supervisor: Supervisor,
    pub local: Arc<Local>,
    pub store: Store,
    pub interval: Duration,
    pub missing: MissingAgents,
    /// The open alerts about agents that do not exist; `None` until this instance supervises and has read them.
    pub missing_alerts: Option<BTreeSet<ReceiverName>>,
    /// The last time when this instance reported the agents of its configuration file.
    pub reported_agents: Option<Instant>,
}

impl Supervision {
    async fn check(&mut self) -> Result<(), StoreError> {
        self.report_agents().await;
        let Some(due) = self.supervisor.due().await? else {
            self.missing_alerts = None;
            return Ok(());
        };
        if !due.queued.is_empty() || due.is_delayed_due {
            self.store.read_queues_again();
            self.local.expect_due(&due.queued, due.is_delayed_due);
        }
        if due.are_children_due {
            self.store.marked.expect_due();
        }
        if due.is_message_due {
            self.store.outbox.notify_one();
        }
        if due.is_schedule_due {
            self.store.schedules.notify_one();
        }
        if due.is_recovery_due {
            self.supervisor.recover_expired().await?;
        }
        self.look_for_agents(&due.queued).await
    }
}

impl Supervision {
    /// Reports the agents of this instance's configuration file to the other instances. The record of an instance may
    /// be created again while the instance runs, so the report is repeated. A failed report does not stop the
    /// recovery.
    async fn report_agents(&mut self) {
        let now = clock::instant();
        let is_recent = |at| now.duration_since(at) < REPORT_AGENTS_EVERY;
        if !self.store.is_shared || self.reported_agents.is_some_and(is_recent) {
            return;
        }
        self.reported_agents = Some(now);
        let instance = self.local.instance().clone();
        let agents = self.local.configured_agents();
        let reported = self.store.report_configured_agents(instance, agents).await;
        if let Err(error) = reported {
            debug!(%error, "could not report the configured agents; they are reported again in a minute");
        }
    }

    /// Reports agents that do not exist although steps are queued for them: they are not registered, and not in the
    /// configuration file of any running instance.
    async fn look_for_agents(&mut self, queued: &[AgentName]) -> Result<(), StoreError> {
        let alerts = match self.missing_alerts.take() {
            Some(alerts) => alerts,
            None => self.store.housekeeping.missing_agent_alerts().await?,
        };
        let local = &self.local;
        let missing = queued.iter().filter(|agent| !local.has_agent(agent));
        let mut missing: BTreeSet<_> = missing.cloned().collect();
        if !missing.is_empty() && self.store.is_shared {
            let elsewhere = self.store.housekeeping.configured_agents().await?;
            missing.retain(|agent| !elsewhere.contains(agent));
        }
        let changes = self.missing.decide(missing, &alerts);
        if changes.is_empty() {
            self.missing_alerts = Some(alerts);
            return Ok(());
        }
        for agent in &changes.raise {
            warn!(%agent, "steps are queued for an agent that does not exist");
        }
        // The next look reads which alerts are open by then.
        self.store.change_missing_agents(changes).await
    }
}

impl PeriodicLoop for Supervision {
    const NAME: &'static str = "supervisor";

    fn interval(&self) -> Duration {
        self.interval
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        match self.check().await {
            // Damage of one table must not delay the work in the others.
            Err(error) if error.is_damage() => {
                self.local.check_all_queues();
                self.store.marked.expect_due();
                self.store.outbox.notify_one();
                self.store.schedules.notify_one();
                self.supervisor.recover_expired().await?;
            }
            looked => looked?,
        }
        Ok(NextRound::AfterInterval)
    }
}

/// Compares the running calls with the store, as often as the lease is renewed, so that calls of steps that were taken
/// over during a lapse are dropped soon after it. It skips up to [`Self::MOST_SKIPPED`] rounds while no call runs and
/// nothing can make this instance hold a step without its knowledge.
pub(in crate::service) struct Reconciliation {
    pub local: Arc<Local>,
    pub store: Store,
    pub interval: Duration,
    /// The number of rounds since the last comparison.
    pub skipped: u32,
}

impl Reconciliation {
    const MOST_SKIPPED: u32 = 9;
}

impl PeriodicLoop for Reconciliation {
    const NAME: &'static str = "reconciliation";

    fn interval(&self) -> Duration {
        self.interval
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        let is_quiet = self.local.is_at_rest() && !self.store.take_claims_in_doubt();
        if is_quiet && self.skipped < Self::MOST_SKIPPED {
            self.skipped += 1;
            return Ok(NextRound::AfterInterval);
        }
        // If the comparison fails, the next round repeats it.
        self.skipped = Self::MOST_SKIPPED;
        scheduler::reconcile(&self.local, &self.store).await?;
        self.skipped = 0;
        Ok(NextRound::AfterInterval)
    }
}

/// Keeps this instance registered; after `stop` the instance no longer supervises. Ends only if another process has
/// the same id.
pub(in crate::service) struct LeaseRenewal {
    pub member: Arc<Membership>,
    pub stop: CancellationToken,
    pub has_stopped: bool,
    pub is_held: bool,
}

impl PeriodicLoop for LeaseRenewal {
    const NAME: &'static str = "leases";

    fn interval(&self) -> Duration {
        self.member.retry_after()
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        self.has_stopped = self.stop.is_cancelled();
        self.is_held = self.member.hold().is_held();
        let supervise = !self.has_stopped;
        Ok(match self.member.renew_if_due(supervise).await {
            Ok(()) => NextRound::After(self.member.due_in()),
            Err(_) => NextRound::Never,
        })
    }

    async fn wait_for_wake(&mut self) {
        // An event that has already happened wakes the loop no more.
        tokio::select! {
            () = self.stop.cancelled(), if !self.has_stopped => {}
            () = self.member.hold().released(), if self.is_held => {}
            else => std::future::pending().await,
        }
    }
}

/// Deletes tasks that ended long ago. Only the supervising instance does this, and an instance that is held never
/// supervises.
pub(in crate::service) struct TaskPurge {
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
        let supervises = || self.local_lease.term(clock::instant()).is_some();
        if supervises() {
            let swept = self.sweep.round(&mut self.store, &supervises).await?;
            if swept.tasks > 0 {
                info!(tasks = swept.tasks, "deleted tasks that ended long ago");
            }
        }
        Ok(NextRound::AfterInterval)
    }
}

/// Saves the times when workers were last seen, for the other instances. A waiting worker asks again within a minute.
pub(in crate::service) struct WorkerUpkeep {
    pub local: Arc<Local>,
    pub store: Store,
}

impl PeriodicLoop for WorkerUpkeep {
    const NAME: &'static str = "workers";

    fn interval(&self) -> Duration {
        Duration::from_secs(15)
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        self.local.save_workers(&self.store).await?;
        Ok(NextRound::AfterInterval)
    }
}

/// Closes, counts and announces the alerts of causes, and deletes old ones. Only the supervising instance does this.
pub(in crate::service) struct AlertUpkeep {
    pub store: Store,
    pub local_lease: Arc<LocalLease>,
    pub seen: CausesSeen,
    pub seen_failures: FailuresSeen,
    /// The number of rounds since alerts were last deleted.
    pub rounds: u32,
}

impl AlertUpkeep {
    const ROUNDS_TO_PURGE: u32 = 60;
    /// The most rows of each table of failures that are deleted at once.
    const FAILURES_PURGED: usize = 500;
    /// The interval while no alert of a cause is open.
    const IDLE: Duration = Duration::from_secs(10);
}

impl PeriodicLoop for AlertUpkeep {
    const NAME: &'static str = "alerts";

    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        if self.local_lease.term(clock::instant()).is_none() {
            return Ok(NextRound::AfterInterval);
        }
        let begins = !self.seen.has_more_unclosed();
        let unclosed = self.store.maintain_causes(&mut self.seen).await?;
        if self.rounds == 0 || self.seen_failures.has_more() {
            self.store.name_failures(&mut self.seen_failures).await?;
        }
        self.rounds += 1;
        if self.rounds >= Self::ROUNDS_TO_PURGE {
            self.rounds = 0;
            self.store.purge_causes(&mut self.seen).await?;
            let most = Self::FAILURES_PURGED;
            while self.store.purge_failures(most).await? >= most as u64 {}
        }
        Ok(match unclosed {
            0 if begins => NextRound::After(Self::IDLE),
            _ => NextRound::AfterInterval,
        })
    }
}

/// Drains histograms: without that they would grow without bound in a service whose metrics are not scraped.
pub(in crate::service) struct MetricsUpkeep(pub Metrics);

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
