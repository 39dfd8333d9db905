//! An instance's leases, renewed and given up, each time in a transaction of its own: nobody waits for
//! a row of theirs longer than one small commit takes.

use tokio::sync::oneshot;

use super::{Store, TRIES, Writer, handle::Request};
use crate::{
    domain::{Gone, Holder, Lease, Renewal, Span, Taken, Term, Timestamp},
    store::{Saved, StoreError},
};

/// How long instances that ended can still be seen.
const FORGET_AFTER: Span = Span::from_secs(3600);

/// How a renewal went.
#[derive(Clone, Debug)]
pub struct Renewed {
    /// On the store's clock.
    pub now: Timestamp,
    /// The term under which the instance supervises, if it does; or that another process has its id.
    pub outcome: Result<Option<Term>, Taken>,
    /// The supervisors' lease, whoever holds it.
    pub supervisor: Option<Lease>,
}

/// What a process asks for its leases.
#[derive(Clone, Debug)]
pub(super) enum LeaseRequest {
    Renew(Renewal),
    GiveUp(Holder),
}

impl Store {
    /// Renews this process's leases, or gets them.
    pub async fn renew(&self, renewal: Renewal) -> Result<Renewed, StoreError> {
        self.leases(LeaseRequest::Renew(renewal)).await
    }

    /// Gives up both leases, so that another process can have them at once.
    pub async fn give_up(&self, holder: Holder) -> Result<(), StoreError> {
        self.leases(LeaseRequest::GiveUp(holder)).await?;
        Ok(())
    }

    async fn leases(&self, asked: LeaseRequest) -> Result<Renewed, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.send(Request::Leases { asked, answer }).await?;
        answered.await.map_err(|_| StoreError::Stopping)?
    }
}

impl Writer {
    /// Answers the requests for leases and takes them out of what was gathered. They come first: the
    /// batch behind them may be long, and a lease runs out meanwhile.
    pub(super) async fn serve_leases(&mut self, gathered: &mut Vec<Request>) {
        let is_lease = |request: &mut Request| matches!(request, Request::Leases { .. });
        for request in gathered.extract_if(.., is_lease) {
            if let Request::Leases { asked, answer } = request {
                // A caller that is gone needs no answer.
                let _ = answer.send(self.serve_lease(&asked).await);
            }
        }
    }

    async fn serve_lease(&mut self, asked: &LeaseRequest) -> Result<Renewed, StoreError> {
        for _ in 0..TRIES {
            match self.try_serve_lease(asked).await {
                Ok(Some(renewed)) => return Ok(renewed),
                Ok(None) | Err(StoreError::Interrupted(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::Unavailable(
            "other instances kept changing the same leases".to_owned(),
        ))
    }

    /// `None`: another instance was faster, and all is to be decided again.
    async fn try_serve_lease(
        &mut self,
        asked: &LeaseRequest,
    ) -> Result<Option<Renewed>, StoreError> {
        let mut tx = self.backend.begin().await?;
        let now = tx.now();
        let (LeaseRequest::Renew(Renewal { holder, .. }) | LeaseRequest::GiveUp(holder)) = asked;
        if let LeaseRequest::Renew(renewal) = asked
            && renewal.gone == Gone::Everybody
        {
            tx.forget_instances(Timestamp::from_millis(i64::MAX))
                .await?;
        }
        let before = tx.leases(&holder.instance).await?;
        let after = match asked {
            LeaseRequest::GiveUp(holder) => before.given_up(holder, now),
            LeaseRequest::Renew(renewal) => match before.renew(renewal, now) {
                Ok(after) => after,
                Err(taken) => {
                    return Ok(Some(Renewed {
                        now,
                        outcome: Err(taken),
                        supervisor: before.supervisor,
                    }));
                }
            },
        };
        if tx.save_leases(&before, &after).await? == Saved::Stale {
            return Ok(None);
        }
        let leads = after.leads(holder, now);
        if leads.is_some() {
            let keep = FORGET_AFTER.as_millis();
            let ended_before = Timestamp::from_millis(now.as_millis().saturating_sub(keep));
            tx.forget_instances(ended_before).await?;
        }
        tx.commit().await?;
        Ok(Some(Renewed {
            now,
            outcome: Ok(leads),
            supervisor: after.supervisor,
        }))
    }
}
