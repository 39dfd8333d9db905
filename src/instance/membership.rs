//! Joins the instances of a store, renews the leases of this one, and leaves.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use thiserror::Error;
use tracing::{error, info, warn};

use super::{Hold, LocalLease, process};
use crate::{
    chance,
    clock::{self, Instant, sleep},
    domain::values::{
        DeadHolders, Holder, IdInUse, Incarnation, InstanceId, InstanceRecord, Renewal, Span, Term,
        renew_after, trust,
    },
    store::{Renewed, Store, StoreError},
};

/// The interval at which a process that waits for its id checks whether the id is free.
const CHECK_EVERY: Duration = Duration::from_millis(250);

#[derive(Debug, Error)]
pub enum JoinError {
    #[error(
        "instance_id: {instance} is in use by another running process ({process}): stop that process, or give this one another name with --instance-id, or none"
    )]
    InUse {
        instance: InstanceId,
        process: String,
    },
    #[error("the store cannot be used: {0}")]
    Store(#[from] StoreError),
}

/// Another process took the id of this instance while this one did not renew its lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdLost;

pub struct Membership {
    store: Store,
    local_lease: Arc<LocalLease>,
    holder: Holder,
    process: String,
    length: Span,
    state: Mutex<RenewalState>,
}

/// The state between two renewals.
#[derive(Clone, Copy, Default)]
struct RenewalState {
    due: Option<Instant>,
    failing: bool,
    term: Option<Term>,
    /// True if the last renewal asked for the supervisors' lease.
    supervise: bool,
}

impl Membership {
    /// Gets the lease on the instance's id, and the supervisors' lease if it is free. If another process holds the id,
    /// and is not known to have ended, its lease must expire first. If that lease is renewed meanwhile, two running
    /// processes have the same id, which is an error.
    pub async fn join(
        store: Store,
        instance: InstanceId,
        length: Span,
        local_lease: Arc<LocalLease>,
    ) -> Result<Self, JoinError> {
        let member = Self {
            holder: Holder {
                instance,
                incarnation: Incarnation(chance::id()),
            },
            process: process::this(),
            store,
            local_lease,
            length,
            state: Mutex::default(),
        };
        let mut known_dead = if member.store.is_shared {
            DeadHolders::None
        } else {
            DeadHolders::All
        };
        let mut waited_for: Option<InstanceRecord> = None;
        loop {
            let (now, IdInUse(other)) = match member.renew(known_dead, true).await? {
                Renewed { outcome: Ok(_), .. } => return Ok(member),
                Renewed {
                    now,
                    outcome: Err(taken),
                    ..
                } => (now, taken),
            };
            if process::has_ended(&other.process) {
                known_dead = DeadHolders::One(other.lease.holder.incarnation);
                continue;
            }
            match &waited_for {
                None => {
                    let lease = other.lease.until.since(now);
                    info!(instance = %member.holder.instance, process = other.process, lease_seconds = lease.as_secs_f64(),
                        "the previous process with this id left a lease: waiting until it expires");
                    waited_for = Some(other);
                }
                Some(first) if first.lease == other.lease => {}
                Some(_) => {
                    return Err(JoinError::InUse {
                        instance: member.holder.instance,
                        process: other.process,
                    });
                }
            }
            sleep(CHECK_EVERY).await;
        }
    }

    /// Returns the instance's id with the incarnation of this process.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Returns the wait before [`Membership::renew_if_due`] is called again after a failure.
    pub fn retry_after(&self) -> Duration {
        self.length.duration() / 20
    }

    /// Returns the time until the next call of [`Membership::renew_if_due`].
    pub fn due_in(&self) -> Duration {
        let due = self.state.lock().due;
        due.map_or(self.retry_after(), |due| {
            due.saturating_duration_since(clock::instant())
        })
    }

    /// Returns the hold, which keeps this process from supervising and from claiming.
    pub fn hold(&self) -> &Hold {
        self.local_lease.hold()
    }

    /// Renews both leases if a renewal is due: well before the trust in them ends, when the lease of another
    /// supervisor has expired, when this process must begin or stop to supervise, and soon after a failure.
    pub async fn renew_if_due(&self, supervise: bool) -> Result<(), IdLost> {
        let state = *self.state.lock();
        let leaves_lead = state.term.is_some() && !supervise;
        let wants_lead = supervise && !self.hold().is_held() && !state.supervise;
        let changes_lead = leaves_lead || wants_lead;
        if state.due.is_some_and(|due| clock::instant() < due) && !changes_lead {
            return Ok(());
        }
        let was_alive = self.local_lease.is_alive(clock::instant());
        match self.renew(DeadHolders::None, supervise).await {
            Ok(Renewed { outcome: Ok(_), .. }) => {
                if !was_alive {
                    info!("the lease of this instance is renewed: it claims again");
                }
            }
            Ok(Renewed {
                outcome: Err(IdInUse(other)),
                ..
            }) => {
                self.local_lease.lost();
                error!(
                    process = other.process,
                    "another process took over this instance's id while its lease had expired: this process exits"
                );
                return Err(IdLost);
            }
            // The next call tries again. The trust in the leases ends by itself meanwhile.
            Err(error) => {
                let mut state = self.state.lock();
                if !state.failing {
                    warn!(%error, "could not renew the leases of this instance; retrying");
                }
                state.failing = true;
                state.due = None;
            }
        }
        Ok(())
    }

    /// Stops supervising, and gives up both leases, so that others can take them at once.
    pub async fn leave(&self) {
        self.local_lease.lost();
        if let Err(error) = self.store.give_up(self.holder.clone()).await {
            warn!(%error, "could not release the leases of this instance; they will expire");
        }
    }

    /// Does the same as a renewal that is due.
    #[cfg(test)]
    pub async fn renew_now(&self) {
        self.renew(DeadHolders::None, true).await.unwrap();
    }

    async fn renew(&self, known_dead: DeadHolders, supervise: bool) -> Result<Renewed, StoreError> {
        let supervise = supervise && !self.hold().is_held();
        if !supervise {
            self.local_lease.step_down();
        }
        let sent = clock::instant();
        let renewal = Renewal {
            holder: self.holder.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process: self.process.clone(),
            length: self.length,
            known_dead,
            supervise,
        };
        let renewed = self.store.renew(renewal).await?;
        if let Ok(term) = renewed.outcome {
            self.local_lease.renewed(term, sent + trust(self.length));
            let mut due = sent + renew_after(self.length);
            if let (true, None, Some(lease)) = (supervise, term, &renewed.supervisor) {
                due = due.min(clock::instant() + lease.until.since(renewed.now));
            }
            let mut state = self.state.lock();
            if term != state.term {
                match term {
                    Some(term) => info!(term = term.0, "this instance is now the supervisor"),
                    None => info!("this instance is no longer the supervisor"),
                }
            }
            *state = RenewalState {
                due: Some(due),
                failing: false,
                term,
                supervise,
            };
        }
        Ok(renewed)
    }
}
