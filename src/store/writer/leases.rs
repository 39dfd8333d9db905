//! Renews and releases an instance's leases, each time in a transaction of its own, so that other instances wait for
//! their rows no longer than one small commit takes.
//!
//! If other processes share the database, these requests also use a connection of their own: a batch may wait for rows
//! that another instance has locked, and an instance that only waits must not be taken for lost in the meantime. There
//! a renewal is mostly one statement, decided on the result of the last one, because every instance renews all the
//! time.

use std::time::Duration;

use tokio::sync::mpsc;

use super::{
    Committer, Store, TRIES,
    request::{LeaseCall, LeaseRequest, Renewed, Request, ask},
};
use crate::{
    clock::timeout,
    domain::values::{DeadHolders, Holder, Lease, Leases, Renewal, Span, Term, Timestamp},
    store::{Backend, Saved, StoreError},
};

/// The time for which instances that ended can still be seen.
const FORGET_AFTER: Span = Span::from_secs(3600);

/// The longest time that a release may take, because the process is about to end.
const GIVE_UP_WITHIN: Duration = Duration::from_secs(2);
/// Bounds for the time that a renewal may take. A renewal that takes longer uses a connection that is cut: the next one
/// gets a new connection, and is made while the lease can still be trusted.
const RENEW_WITHIN: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(500)..=Duration::from_secs(15);

impl Store {
    /// Renews this process's leases, or acquires them.
    pub async fn renew(&self, renewal: Renewal) -> Result<Renewed, StoreError> {
        self.leases(LeaseRequest::Renew(renewal)).await
    }

    /// Releases both leases, so that another process can acquire them at once.
    pub async fn give_up(&self, holder: Holder) -> Result<(), StoreError> {
        self.leases(LeaseRequest::GiveUp(holder)).await?;
        Ok(())
    }

    async fn leases(&self, asked: LeaseRequest) -> Result<Renewed, StoreError> {
        ask(&self.leases, |answer| LeaseCall { asked, answer }).await
    }
}

/// Serves requests for leases on a backend of their own.
pub(super) async fn serve(mut backend: Box<dyn Backend>, mut requests: mpsc::Receiver<LeaseCall>) {
    // The leases as this instance saved or read them last.
    let mut known = None;
    while let Some(LeaseCall { asked, answer }) = requests.recv().await {
        let within = asked.within();
        let served = timeout(within, serve_known(backend.as_mut(), &asked, &mut known)).await;
        let served = served.unwrap_or_else(|_| {
            Err(StoreError::Unavailable(format!(
                "the leases could not be saved within {within:?}"
            )))
        });
        // A caller that is gone needs no response.
        let _ = answer.send(served);
    }
}

impl LeaseRequest {
    fn within(&self) -> Duration {
        match self {
            LeaseRequest::GiveUp(_) => GIVE_UP_WITHIN,
            LeaseRequest::Renew(renewal) => {
                let (least, most) = RENEW_WITHIN.into_inner();
                (renewal.length.duration() / 5).clamp(least, most)
            }
        }
    }
}

impl Committer<'_> {
    /// Serves the requests for leases and removes them from the batch. They come first: the batch after them may be
    /// long, and a lease could expire in the meantime.
    pub(super) async fn serve_leases(&mut self, gathered: &mut Vec<Request>) {
        let is_lease = |request: &mut Request| matches!(request, Request::Leases(_));
        for request in gathered.extract_if(.., is_lease) {
            if let Request::Leases(LeaseCall { asked, answer }) = request {
                // A caller that is gone needs no response.
                let served = serve_one(self.backend.as_mut(), &asked).await;
                let _ = answer.send(served.map(|(renewed, _)| renewed));
            }
        }
    }
}

async fn serve_known(
    backend: &mut dyn Backend,
    asked: &LeaseRequest,
    known: &mut Option<Leases>,
) -> Result<Renewed, StoreError> {
    // If anything fails, the next renewal reads the leases.
    let before = known.take();
    if let (LeaseRequest::Renew(renewal), Some(before)) = (asked, before)
        && let Some((renewed, after)) = prolong(backend, renewal, &before).await?
    {
        *known = Some(after);
        return Ok(renewed);
    }
    let (renewed, after) = serve_one(backend, asked).await?;
    *known = after;
    Ok(renewed)
}

/// Renews the leases with one statement. Returns `None` if it takes more than one, or if another instance has changed
/// the leases.
async fn prolong(
    backend: &mut dyn Backend,
    renewal: &Renewal,
    before: &Leases,
) -> Result<Option<(Renewed, Leases)>, StoreError> {
    let mut tx = match backend.begin().await {
        Err(StoreError::Retryable(_) | StoreError::Lost(_)) => return Ok(None),
        begun => begun?,
    };
    let now = tx.now();
    let Ok(after) = before.renew(renewal, now) else {
        return Ok(None);
    };
    let leads = after.leads(&renewal.holder, now);
    if renewal.known_dead != DeadHolders::None || is_forgetting_due(before, &after, leads) {
        return Ok(None);
    }
    let after = match tx.prolong_leases(before, &after).await {
        Ok(Some(after)) => after,
        Ok(None) | Err(StoreError::Retryable(_) | StoreError::Lost(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let renewed = Renewed {
        now,
        outcome: Ok(leads),
        supervisor: after.supervisor.clone(),
    };
    Ok(Some((renewed, after)))
}

/// Serves a request. The result includes the leases on record afterwards, if they are known.
async fn serve_one(
    backend: &mut dyn Backend,
    asked: &LeaseRequest,
) -> Result<(Renewed, Option<Leases>), StoreError> {
    for _ in 0..TRIES {
        match try_serve(backend, asked).await {
            Ok(Some(served)) => return Ok(served),
            Ok(None) | Err(StoreError::Retryable(_) | StoreError::Lost(_)) => {}
            Err(error) => {
                backend.failed(&error);
                return Err(error);
            }
        }
    }
    Err(StoreError::Unavailable(
        "other instances kept changing the same leases".to_owned(),
    ))
}

/// Returns whether this renewal of the supervisor's lease is the first of its minute. The instances that ended long ago
/// are deleted only then.
fn is_forgetting_due(before: &Leases, after: &Leases, leads: Option<Term>) -> bool {
    let minute = |lease: &Lease| lease.until.as_millis().div_euclid(60_000);
    let minute = |leases: &Leases| leases.supervisor.as_ref().map(minute);
    leads.is_some() && minute(before) != minute(after)
}

/// Returns `None` if another instance was faster, so that the request must be decided again.
async fn try_serve(
    backend: &mut dyn Backend,
    asked: &LeaseRequest,
) -> Result<Option<(Renewed, Option<Leases>)>, StoreError> {
    let mut tx = backend.begin().await?;
    let now = tx.now();
    let (LeaseRequest::Renew(Renewal { holder, .. }) | LeaseRequest::GiveUp(holder)) = asked;
    if let LeaseRequest::Renew(renewal) = asked
        && renewal.known_dead == DeadHolders::All
    {
        tx.forget_instances(Timestamp::from_millis(i64::MAX))
            .await?;
    }
    let before = tx.leases(&holder.instance).await?;
    let after = match asked {
        LeaseRequest::GiveUp(holder) => before.released(holder, now),
        LeaseRequest::Renew(renewal) => match before.renew(renewal, now) {
            Ok(after) => after,
            Err(taken) => {
                let renewed = Renewed {
                    now,
                    outcome: Err(taken),
                    supervisor: before.supervisor,
                };
                return Ok(Some((renewed, None)));
            }
        },
    };
    if tx.save_leases(&before, &after).await? == Saved::Conflict {
        return Ok(None);
    }
    let leads = after.leads(holder, now);
    if is_forgetting_due(&before, &after, leads) {
        let keep = FORGET_AFTER.as_millis();
        let ended_before = Timestamp::from_millis(now.as_millis().saturating_sub(keep));
        tx.forget_instances(ended_before).await?;
    }
    tx.commit().await?;
    let renewed = Renewed {
        now,
        outcome: Ok(leads),
        supervisor: after.supervisor.clone(),
    };
    Ok(Some((renewed, Some(after))))
}
