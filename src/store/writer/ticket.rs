//! How long a caller waits in the queue of the writer while the database refuses to save, and how the caller leaves it.
//!
//! What stands before a request may take a second each, so the wait is counted from the arrival of the request, and not from
//! its turn. A caller that leaves is turned away permanently: nobody begins with its request afterwards.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout_at},
};

use crate::store::StoreError;

/// How long a caller waits for its turn if the database has refused to save anything meanwhile. A request that was begun may wait
/// for a connection or a lock as well, and after three seconds the caller has a response.
const WAIT: Duration = Duration::from_millis(1500);
/// The same if the database has refused nothing: it is slow, or has much to do. What is expensive to decide may stand
/// before a request for many seconds, and is no fault.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

const BEGUN: u8 = 1;
const OVERDUE: u8 = 2;

/// What a caller and the writer know together of a request in the queue.
#[derive(Clone, Debug, Default)]
pub(super) struct CallerTicket(Arc<AtomicU8>);

impl CallerTicket {
    /// The writer begins with the request. Returns false if the caller has left: then nothing may be done.
    pub fn begin(&self) -> bool {
        let begun = |state| (state != OVERDUE).then_some(state | BEGUN);
        let begun = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, begun);
        begun.is_ok()
    }

    /// The writer has done nothing of the request, which goes back to the queue. Returns false if the caller waits only for
    /// the response now, and is to get it.
    pub fn put_back(&self) -> bool {
        self.0.fetch_and(!BEGUN, Ordering::AcqRel) & OVERDUE == 0
    }

    /// The caller has waited long enough. Returns true if it leaves; false if the writer has begun with the request, and will
    /// respond.
    pub fn leave(&self) -> bool {
        self.0.fetch_or(OVERDUE, Ordering::AcqRel) & BEGUN == 0
    }

    /// Whether the caller would have left if the writer had not begun with the request.
    pub fn is_overdue(&self) -> bool {
        self.0.load(Ordering::Acquire) & OVERDUE != 0
    }
}

/// When and why the database has last refused to save something.
#[derive(Clone, Debug, Default)]
pub(super) struct Refusals(Arc<watch::Sender<Option<SaveRefusal>>>);

#[derive(Clone, Debug)]
struct SaveRefusal {
    at: Instant,
    error: StoreError,
}

impl Refusals {
    /// Notes an error, unless it concerns only what was to be saved.
    pub fn note(&self, error: &StoreError) {
        if error.may_pass() {
            let (at, error) = (Instant::now(), error.clone());
            self.0.send_replace(Some(SaveRefusal { at, error }));
        }
    }

    /// Returns once a caller that came at this moment has waited long enough in the queue.
    pub async fn turn_away(&self, arrived: Instant) -> StoreError {
        sleep_until(arrived + WAIT).await;
        let mut refusals = self.0.subscribe();
        let is_later =
            |last: &Option<SaveRefusal>| last.as_ref().is_some_and(|last| last.at >= arrived);
        let refused = timeout_at(arrived + LONGEST_WAIT, refusals.wait_for(is_later)).await;
        let refused = refused.ok().and_then(Result::ok);
        let last = refused.and_then(|last| last.as_ref().map(|last| last.error.clone()));
        match last {
            Some(StoreError::Full) => StoreError::Full,
            // The rest of it is about the request of another caller.
            Some(StoreError::Lost(_) | StoreError::CommitUnknown(_)) => StoreError::NotNow(
                "the connection to the database is lost; this request waited for others, and was not tried".to_owned(),
            ),
            Some(
                StoreError::NotNow(reason)
                | StoreError::RowLocked(reason)
                | StoreError::Unavailable(reason),
            ) => StoreError::NotNow(format!(
                "{reason}; this request waited for others, and was not tried"
            )),
            _ => StoreError::NotNow(format!(
                "it has not come to this request within {LONGEST_WAIT:?}: check the database, its disk and its load"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::poll;

    use super::*;

    #[test]
    fn a_caller_leaves_only_before_the_writer_begins_and_the_writer_never_begins_afterwards() {
        let ticket = CallerTicket::default();
        assert!(ticket.begin());
        assert!(!ticket.leave(), "it will get a response");
        assert!(ticket.begin(), "a second try belongs to it");
        assert!(!ticket.put_back(), "the writer has to respond");
        let ticket = CallerTicket::default();
        assert!(ticket.leave());
        assert!(!ticket.begin());
        let ticket = CallerTicket::default();
        assert!(ticket.begin() && ticket.put_back());
        assert!(ticket.leave(), "it waits again");
        assert!(!ticket.begin());
    }

    #[tokio::test]
    async fn only_a_refusal_since_its_arrival_turns_a_caller_away_early() {
        let refusals = Refusals::default();
        let now = Instant::now();
        let slow = refusals.turn_away(now - LONGEST_WAIT).await;
        assert!(slow.to_string().contains("60s"), "{slow}");

        let arrived = now - WAIT;
        refusals.0.send_replace(Some(SaveRefusal {
            at: arrived - WAIT,
            error: StoreError::NotNow("before".to_owned()),
        }));
        let mut waits = pin!(refusals.turn_away(arrived));
        assert!(poll!(&mut waits).is_pending());
        refusals.note(&StoreError::Corrupt("a record".to_owned()));
        assert!(poll!(&mut waits).is_pending());
        refusals.note(&StoreError::NotNow("a lock".to_owned()));
        let refused = waits.await;
        assert!(refused.to_string().contains("a lock"), "{refused}");
        let mut new = pin!(refusals.turn_away(Instant::now()));
        assert!(poll!(&mut new).is_pending());
    }
}
