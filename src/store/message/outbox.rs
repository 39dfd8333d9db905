//! The outbox: messages in their queues, as statements of any database.
//!
//! A queue contains the pending messages to one receiver about one subject. It is a row of its own, and each
//! transaction that adds a message to it or claims it locks that row. So two instances never send from one queue at the
//! same time, and no queue is deleted while a message is being added. A claimed queue is due again at the end of its
//! claim: if the instance that claimed it has died, another claims it at that time.
//!
//! All messages that are posted to one URL share a *destination*, which has a circuit: see [`destinations`].

use std::collections::BTreeMap;

use uuid::Uuid;

mod actions;
mod alerts;
mod destinations;
mod messages;
#[cfg(test)]
mod plans;
mod queues;
mod tries;
mod waiting;

pub use alerts::closed_alert;
pub use destinations::{BacklogExpiry, DueWork, due_work, read_due_work};
pub use messages::{message, messages};
pub use queues::{next_message, queue_head};
pub use tries::{read as message_try, tries as message_tries};
pub use waiting::{alerts_of_waiting, waiting_bytes};

use crate::domain::{
    message::{
        AlertNotice, DeliveryPolicy, DestinationFailure, MessageAction, MessageAttempt,
        ReleaseReason, Sender, too_many_waiting, waiting_subject,
    },
    task::AlertKind,
    values::{Destination, InstanceId, ReceiverName, Timestamp},
    view::ChangeOrigin,
};
use crate::{
    chance,
    store::{MessageId, StoreError, Transaction, rows::Columns, statement::Statement},
};

/// The claim of a queue: until it ends, only this instance sends the queue's first message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueClaim {
    pub receiver: ReceiverName,
    pub subject: Uuid,
    pub destination: Destination,
    /// True if its first message is the probe of a failing destination.
    pub is_probe: bool,
    /// The number of attempts of its first message, including the next one. It is the fence: no later claim has the
    /// same number.
    pub tries: u32,
    /// The time of the first attempt of the first message.
    pub since: Timestamp,
}

impl QueueClaim {
    pub fn attempt(&self) -> MessageAttempt {
        MessageAttempt {
            tries: self.tries,
            first_tried_at: self.since,
            is_probe: self.is_probe,
        }
    }
}

/// The first message of a queue.
#[derive(Clone, PartialEq, Debug)]
pub struct NextMessage {
    pub id: Uuid,
    pub kind: String,
    pub url: Option<String>,
    pub body: String,
    pub created_at: Timestamp,
}

/// The first message of a queue as it was read.
#[derive(Clone, PartialEq, Debug)]
pub enum QueueHead {
    Message(NextMessage),
    Empty,
    /// The first message is damaged, for this reason.
    Unreadable {
        id: Uuid,
        reason: String,
    },
    /// The part of the database with the first message is damaged: its row can be neither read nor written.
    Lost(String),
}

/// The end of a claim.
#[derive(Clone, PartialEq, Debug)]
pub struct QueueRelease {
    pub claim: QueueClaim,
    pub reason: ReleaseReason,
}

/// The request of the delivery loop for one transaction.
#[derive(Clone, Debug, Default)]
pub struct ClaimRequest {
    pub releases: Vec<QueueRelease>,
    /// The failures of destinations. Of several failures of one destination, this has the one that began last.
    pub failures: Vec<DestinationFailure>,
    /// Destinations that may have failed before, and have responded.
    pub recovered: Vec<Destination>,
    /// Destinations whose probe was not sent.
    pub cancelled_probes: Vec<Destination>,
    /// Destinations with more expired messages than one request marks as dead.
    pub expiries: Vec<BacklogExpiry>,
    /// Destinations whose backlog is read, each with the most queues that are claimed from it. A failing destination is
    /// probed, if its pause is over.
    pub backlogs: Vec<(Destination, usize)>,
    /// Destinations that have no free slot now.
    pub postponed: Vec<Destination>,
    /// The most due queues outside of any backlog that are claimed.
    pub limit: usize,
    /// Receivers that may have no dead letters left: their alerts are closed.
    pub resolved: Vec<ReceiverName>,
    pub policy: DeliveryPolicy,
}

impl ClaimRequest {
    /// Returns whether there is nothing to save and nothing to claim.
    pub fn is_empty(&self) -> bool {
        self.releases.is_empty()
            && self.expiries.is_empty()
            && self.cancelled_probes.is_empty()
            && self.backlogs.is_empty()
            && self.postponed.is_empty()
            && self.resolved.is_empty()
            && self.limit == 0
    }
}

#[derive(Clone, Debug, Default)]
pub struct ClaimResponse {
    pub claims: Vec<QueueClaim>,
    /// The number of due queues that were moved to the backlogs of their destinations.
    pub moved_to_backlog: u64,
    /// The requested backlogs that contain no more queues than were claimed.
    pub drained: Vec<Destination>,
    /// Destinations whose waiting messages expired.
    pub expiries: Vec<BacklogExpiry>,
}

/// The statements of the delivery loop's transactions, and of those of operators.
impl Transaction<'_> {
    /// Raises the alert of a broker that cannot be used, or closes it.
    pub async fn report_broker(
        &mut self,
        broker: &str,
        reason: Option<&str>,
        sender: &Sender,
    ) -> Result<(), StoreError> {
        alerts::report_broker(self, broker, reason, sender).await
    }

    /// Raises the alert of a receiver for which more than `most` bytes wait, or closes it.
    pub async fn report_waiting(
        &mut self,
        receiver: &ReceiverName,
        most: Option<u64>,
        sender: &Sender,
    ) -> Result<(), StoreError> {
        match most {
            Some(most) => {
                let alert = too_many_waiting(chance::id(), receiver, most, self.now());
                self.raise_alert(&alert, None, sender).await
            }
            None => {
                let subject = waiting_subject(receiver);
                self.close_alert_of(AlertKind::MessagesWaiting, &subject, sender)
                    .await
            }
        }
    }

    /// Closes the alert of this kind that is open under this name, if there is one.
    pub async fn close_alert_of(
        &mut self,
        kind: AlertKind,
        subject: &ReceiverName,
        sender: &Sender,
    ) -> Result<(), StoreError> {
        alerts::close_of_kind(self, kind, subject, sender).await
    }

    /// Returns the message of the open alert of this kind under this name, and the time when it was raised.
    pub async fn message_of_alert(
        &mut self,
        kind: AlertKind,
        subject: &ReceiverName,
    ) -> Result<Option<(String, Timestamp)>, StoreError> {
        alerts::message_of_kind(self, kind, subject).await
    }

    /// Changes the message of the alert, if it is open. `version` is given if webhooks are notified of the change; it
    /// is larger each time.
    pub async fn reword_alert(
        &mut self,
        kind: AlertKind,
        alert: &AlertNotice,
        version: Option<u64>,
        sender: &Sender,
    ) -> Result<(), StoreError> {
        alerts::reword(self, kind, alert, version, sender).await
    }

    /// Releases queues, then claims others for `by` until `until`.
    pub async fn claim_queues(
        &mut self,
        request: &ClaimRequest,
        by: &InstanceId,
        until: Timestamp,
        sender: &Sender,
    ) -> Result<ClaimResponse, StoreError> {
        let mut response = ClaimResponse::default();
        let mut dead = queues::release(self, request, by).await?;
        destinations::record(self, request).await?;
        response.expiries = destinations::expire(self, request, &mut dead).await?;
        alerts::change(self, dead, &request.resolved, sender).await?;
        // The statements from here on skip rows that another transaction has locked.
        destinations::postpone(self, &request.postponed).await?;
        if request.limit > 0 {
            response.moved_to_backlog = destinations::move_to_backlogs(self).await?;
        }
        for (destination, limit) in &request.backlogs {
            let claims =
                destinations::claim_from_backlog(self, destination, *limit, by, until).await?;
            if claims.len() < *limit {
                response.drained.push(destination.clone());
            }
            response.claims.extend(claims);
        }
        if request.limit > 0 {
            let claims = queues::claim_due(self, request.limit, by, until).await?;
            response.claims.extend(claims);
        }
        Ok(response)
    }

    /// Returns the messages that exist and whose state allows the action.
    pub async fn apply_message_action(
        &mut self,
        action: MessageAction,
        ids: &[MessageId],
        origin: &ChangeOrigin,
    ) -> Result<Vec<MessageId>, StoreError> {
        actions::apply(self, action, ids, origin).await
    }

    /// Releases the queues that `by` has claimed, or all claimed queues. Returns how many.
    pub async fn release_queues(&mut self, by: Option<&InstanceId>) -> Result<u64, StoreError> {
        let by = by.map(ToString::to_string);
        destinations::release_probes(self, by.clone()).await?;
        queues::release_all(self, by).await
    }

    /// Deletes up to `limit` dead letters that died before `died_before`.
    pub async fn purge_dead_letters(
        &mut self,
        died_before: Timestamp,
        limit: usize,
    ) -> Result<u64, StoreError> {
        messages::purge_dead(self, died_before, limit).await
    }

    /// Deletes up to `limit` destinations without a backlog that last failed before `failed_before`.
    pub async fn purge_destinations(
        &mut self,
        failed_before: Timestamp,
        limit: usize,
    ) -> Result<u64, StoreError> {
        destinations::purge(self, failed_before, limit).await
    }
}

/// Receivers with a message that died, each with the reason.
type DeadByReceiver = BTreeMap<ReceiverName, String>;

/// Returns a statement on the queue of this row.
fn of_queue(sql: &str, row: &impl Columns) -> Result<Statement, StoreError> {
    Ok(Statement::new(sql)
        .bind(row.get::<String>("receiver")?)
        .bind(row.get::<Uuid>("subject")?))
}
