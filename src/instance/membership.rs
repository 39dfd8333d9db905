//! Joins the instances of a store, stays one of them by renewing, and leaves.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use thiserror::Error;
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};
use uuid::Uuid;

use super::{Standing, process};
use crate::{
    domain::{
        Gone, Holder, Incarnation, InstanceId, InstanceRecord, Renewal, Span, Taken, Term,
        renew_after, trust,
    },
    store::{Renewed, Store, StoreError},
};

/// How often a process that waits for its id looks whether it is free.
const LOOK: Duration = Duration::from_millis(250);

#[derive(Debug, Error)]
pub enum JoinError {
    #[error(
        "instance_id: {instance} is in use by another process that is alive ({process}): stop that one, or give this one a name of its own with --instance-id, or none"
    )]
    InUse {
        instance: InstanceId,
        process: String,
    },
    #[error("the store cannot be used: {0}")]
    Store(#[from] StoreError),
}

/// The id of this instance was taken up by another process while this one did not renew its lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superseded;

pub struct Membership {
    store: Store,
    standing: Arc<Standing>,
    holder: Holder,
    process: String,
    length: Span,
    round: Mutex<Round>,
}

/// What one renewal leaves for the next.
#[derive(Clone, Copy, Default)]
struct Round {
    due: Option<Instant>,
    failing: bool,
    term: Option<Term>,
}

impl Membership {
    /// Gets the lease on the instance's id, and the supervisors' lease if that is free. Where another
    /// process holds the id and cannot be seen to have ended, its lease is waited out; if it is renewed
    /// meanwhile, two processes were given one name.
    pub async fn join(
        store: Store,
        instance: InstanceId,
        length: Span,
        standing: Arc<Standing>,
    ) -> Result<Self, JoinError> {
        let member = Self {
            holder: Holder {
                instance,
                incarnation: Incarnation(Uuid::now_v7()),
            },
            process: process::this(),
            store,
            standing,
            length,
            round: Mutex::default(),
        };
        let mut gone = if member.store.is_shared {
            Gone::Nobody
        } else {
            Gone::Everybody
        };
        let mut waited_for: Option<InstanceRecord> = None;
        loop {
            let (now, Taken(other)) = match member.renew(gone, true).await? {
                Renewed { outcome: Ok(_), .. } => return Ok(member),
                Renewed {
                    now,
                    outcome: Err(taken),
                    ..
                } => (now, taken),
            };
            if process::has_ended(&other.process) {
                gone = Gone::One(other.lease.holder.incarnation);
                continue;
            }
            match &waited_for {
                None => {
                    let lease = other.lease.until.since(now);
                    info!(instance = %member.holder.instance, process = other.process, ?lease,
                        "the last process under this id left a lease: waiting until it has run out");
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
            sleep(LOOK).await;
        }
    }

    /// How often [`Membership::renew_if_due`] is to be called.
    pub fn interval(&self) -> Duration {
        self.length.duration() / 20
    }

    /// Renews both leases when it is time: well before the trust in them is over, when the lease of
    /// another supervisor has run out, and soon again after a failure.
    pub async fn renew_if_due(&self, supervise: bool) -> Result<(), Superseded> {
        let round = *self.round();
        let leaves_lead = round.term.is_some() && !supervise;
        if round.due.is_some_and(|due| Instant::now() < due) && !leaves_lead {
            return Ok(());
        }
        let was_alive = self.standing.is_alive(Instant::now());
        match self.renew(Gone::Nobody, supervise).await {
            Ok(Renewed { outcome: Ok(_), .. }) => {
                if !was_alive {
                    info!("the lease of this instance is renewed: it claims again");
                }
            }
            Ok(Renewed {
                outcome: Err(Taken(other)),
                ..
            }) => {
                self.standing.lost();
                error!(
                    process = other.process,
                    "another process has taken up this instance's id while its lease had lapsed: this one ends"
                );
                return Err(Superseded);
            }
            // Tried again at the next call. The trust in the leases runs out by itself meanwhile.
            Err(error) => {
                let mut round = self.round();
                if !round.failing {
                    warn!(%error, "the leases of this instance could not be renewed; trying on");
                }
                round.failing = true;
                round.due = None;
            }
        }
        Ok(())
    }

    /// Stops supervising, and gives up both leases: others can have them at once.
    pub async fn leave(&self) {
        self.standing.lost();
        if let Err(error) = self.store.give_up(self.holder.clone()).await {
            warn!(%error, "the leases of this instance could not be given up; they run out by themselves");
        }
    }

    /// As when it is due.
    #[cfg(test)]
    pub async fn renew_now(&self) {
        self.renew(Gone::Nobody, true).await.unwrap();
    }

    async fn renew(&self, gone: Gone, supervise: bool) -> Result<Renewed, StoreError> {
        let supervise = supervise && self.standing.may_supervise();
        if !supervise {
            self.standing.step_down();
        }
        let sent = Instant::now();
        let renewal = Renewal {
            holder: self.holder.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process: self.process.clone(),
            length: self.length,
            gone,
            supervise,
        };
        let renewed = self.store.renew(renewal).await?;
        if let Ok(term) = renewed.outcome {
            self.standing.renewed(term, sent + trust(self.length));
            let mut due = sent + renew_after(self.length);
            if let (None, Some(lease)) = (term, &renewed.supervisor) {
                due = due.min(Instant::now() + lease.until.since(renewed.now));
            }
            let mut round = self.round();
            if term != round.term {
                match term {
                    Some(term) => info!(term = term.0, "this instance supervises"),
                    None => info!("this instance supervises no more"),
                }
            }
            *round = Round {
                due: Some(due),
                failing: false,
                term,
            };
        }
        Ok(renewed)
    }

    fn round(&self) -> MutexGuard<'_, Round> {
        // A panic while holding the lock leaves the value valid.
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
