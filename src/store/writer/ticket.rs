//! Bounds the time for which a caller waits in the queue of the writer, and lets the caller leave the queue.
//!
//! The requests before it may take a second each, so the wait is counted from the arrival of the request, and not from
//! the begin of its work. The request of a caller that has left is refused permanently: the writer never begins it
//! afterwards.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;

use crate::{
    clock::{self, Instant, sleep_until, timeout_at},
    store::StoreError,
};

/// The longest wait for a request to be begun if the database has refused to save anything in the meantime. A request
/// that was begun may wait for a connection or a lock as well, and after three seconds the caller has a response.
const WAIT: Duration = Duration::from_millis(1500);
/// The longest wait if the database has refused nothing: it is slow, or has much to do. Requests that are expensive to
/// decide may delay another for many seconds, and that is no fault.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

const BEGUN: u8 = 1;
const OVERDUE: u8 = 2;

/// The state of a request in the queue, which its caller and the writer share.
#[derive(Clone, Debug, Default)]
pub(super) struct CallerTicket(Arc<AtomicU8>);

impl CallerTicket {
    /// Notes that the writer begins with the request. Returns false if the caller has left: the writer must do nothing
    /// in that case.
    pub fn begin(&self) -> bool {
        let begun = |state| (state != OVERDUE).then_some(state | BEGUN);
        let begun = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, begun);
        begun.is_ok()
    }

    /// Notes that the writer has done nothing of the request, which goes back to the queue. Returns false if the caller
    /// waits only for the response, and must get it now.
    pub fn put_back(&self) -> bool {
        self.0.fetch_and(!BEGUN, Ordering::AcqRel) & OVERDUE == 0
    }

    /// Notes that the caller has waited long enough. Returns true if it leaves, and false if the writer has begun with
    /// the request and will respond.
    pub fn leave(&self) -> bool {
        self.0.fetch_or(OVERDUE, Ordering::AcqRel) & BEGUN == 0
    }

    /// Returns whether the caller would have left if the writer had not begun with the request.
    pub fn is_overdue(&self) -> bool {
        self.0.load(Ordering::Acquire) & OVERDUE != 0
    }
}

/// The time of the last refusal of the database to save something, and its reason.
#[derive(Clone, Debug, Default)]
pub(super) struct Refusals(Arc<watch::Sender<Option<SaveRefusal>>>);

#[derive(Clone, Debug)]
struct SaveRefusal {
    at: Instant,
    error: StoreError,
}

impl Refusals {
    /// Notes an error, unless it concerns only the data that was to be saved.
    pub fn note(&self, error: &StoreError) {
        if error.may_pass() {
            let (at, error) = (clock::instant(), error.clone());
            self.0.send_replace(Some(SaveRefusal { at, error }));
        }
    }

    /// Returns the error for a caller that arrived at this time, once it has waited long enough in the queue.
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
            // The details of the error are about the request of another caller.
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
        let now = clock::instant();
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
        let mut new = pin!(refusals.turn_away(clock::instant()));
        assert!(poll!(&mut new).is_pending());
    }
}
