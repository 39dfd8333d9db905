//! The outbox: messages in their queues, as statements of any database.
//!
//! A queue holds the pending messages to one receiver about one subject. It is a row of its own, and each
//! transaction that adds a message to it or claims it locks that row: so two instances never send from one
//! queue at a time, and no queue is deleted while a message is being added. A claimed queue is due again at the
//! end of its claim: if the instance that claimed it died, another claims it then.
//!
//! All messages that are posted to one URL share a *destination*, which has a circuit: see [`destinations`].

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

mod destinations;
#[cfg(test)]
mod plans;

use super::{
    MessageId, MessageQuery, MessageRecord, MessageState, StoreError, Transaction,
    queries::{BindValue, Statement},
    rows::{self, Columns},
};
use crate::domain::{
    AlertKind, AlertNotice, DeliveryDecision, DeliveryPolicy, Destination, DestinationFailure,
    InstanceId, Message, ReceiverName, Sender, TaskId, Timestamp, destination_of,
};
pub use destinations::{BacklogExpiry, DueWork, due_work, read_due_work};

/// The claim of a queue: until it ends, only this instance tries the queue's first message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueClaim {
    pub receiver: ReceiverName,
    pub subject: Uuid,
    pub destination: Destination,
    /// Whether its first message is the probe of a failing destination.
    pub is_probe: bool,
    /// The tries of its first message, with the one to come: the fence. No later claim has the same number.
    pub tries: u32,
    /// When the first message was tried for the first time.
    pub since: Timestamp,
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

/// The head of a queue, as it was read.
#[derive(Clone, PartialEq, Debug)]
pub enum QueueHead {
    Message(NextMessage),
    Empty,
    /// The first message is damaged, and why.
    Unreadable {
        id: Uuid,
        reason: String,
    },
    /// The part of the database that holds the first message is damaged: its row can be neither read nor written.
    Lost(String),
}

/// The end of a claim.
#[derive(Clone, PartialEq, Debug)]
pub struct QueueRelease {
    pub claim: QueueClaim,
    pub reason: ReleaseReason,
}

#[derive(Clone, PartialEq, Debug)]
pub enum ReleaseReason {
    Attempted {
        message: Uuid,
        decision: DeliveryDecision,
        /// Whether a message that is tried again waits in the backlog of its destination.
        in_backlog: bool,
    },
    /// The queue was empty.
    QueueEmpty,
    /// No message was tried.
    NotAttempted,
    /// No message was tried, because all slots of the destination are in use: the queue joins its backlog.
    DestinationBusy,
}

/// What the delivery loop asks for in one transaction.
#[derive(Clone, Debug, Default)]
pub struct ClaimRequest {
    pub releases: Vec<QueueRelease>,
    /// Of several failures of one destination, the one that began last.
    pub failures: Vec<DestinationFailure>,
    /// Destinations that may have failed before, and have answered.
    pub recovered: Vec<Destination>,
    /// Destinations whose probe was not sent.
    pub cancelled_probes: Vec<Destination>,
    /// Destinations with more expired messages than one request marks as dead.
    pub expiries: Vec<BacklogExpiry>,
    /// Destinations whose backlog is read, and how many queues are claimed from each at most. A failing one is
    /// probed, if its pause is over.
    pub backlogs: Vec<(Destination, usize)>,
    /// Destinations that have no free slot now.
    pub postponed: Vec<Destination>,
    /// How many due queues outside of any backlog are claimed at most.
    pub limit: usize,
    /// Receivers that may have no dead letters left: their alerts are closed.
    pub resolved: Vec<ReceiverName>,
    pub policy: DeliveryPolicy,
}

impl ClaimRequest {
    /// Whether there is nothing to save and nothing to claim.
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
    /// How many due queues were moved to the backlogs of their destinations.
    pub moved_to_backlog: u64,
    /// Those of the requested backlogs that hold no more than was claimed.
    pub drained: Vec<Destination>,
    /// Destinations whose waiting messages expired.
    pub expiries: Vec<BacklogExpiry>,
}

/// Relies on queues_due. A due queue of a destination with a backlog is not claimed: the statements of
/// [`destinations`] move it there.
const DUE_QUEUES: &str = r#"
WITH due AS MATERIALIZED (
    SELECT receiver, subject, destination FROM queues
    WHERE waiting = 0 AND due_at <= $1
    ORDER BY due_at LIMIT $2 {skip locked})
SELECT receiver, subject FROM due
WHERE (SELECT 1 FROM destinations WHERE destinations.destination = due.destination LIMIT 1) IS NULL"#;

/// For a queue that [`DUE_QUEUES`] or a statement on backlogs has found and locked. By its key: joined with the queues
/// that were found, PostgreSQL may read all queues, because it keeps the plan that it made for a small table.
const CLAIM: &str = r#"
UPDATE queues
SET waiting = 0, locked_by = $3, tries = tries + 1, since = coalesce(since, $4), due_at = $5
WHERE receiver = $1 AND subject = $2
RETURNING receiver, subject, destination, tries, since"#;

/// Relies on messages_in_queue.
const NEXT_MESSAGE: &str = r#"
SELECT id, kind, url, body, created_at FROM messages
WHERE receiver = $1 AND subject = $2 AND state = 'pending'
ORDER BY place, id LIMIT 1"#;

/// After it the row is locked: messages are added to the queue later. Relies on messages_in_queue.
const ADVANCE: &str = r#"
UPDATE queues SET locked_by = NULL, tries = 0, since = NULL, error = NULL, due_at = $5,
    waits_since = coalesce((SELECT coalesce(pending_since, created_at) FROM messages
                            WHERE receiver = $1 AND subject = $2 AND state = 'pending'
                            ORDER BY place, id LIMIT 1), waits_since)
WHERE receiver = $1 AND subject = $2 AND locked_by = $3 AND tries = $4"#;

/// Only for a queue that [`ADVANCE`] has locked. Relies on messages_in_queue.
const DELETE_IF_EMPTY: &str = r#"
DELETE FROM queues
WHERE receiver = $1 AND subject = $2
  AND NOT EXISTS (SELECT 1 FROM messages WHERE receiver = $1 AND subject = $2 AND state = 'pending')"#;

const RETRY: &str = r#"
UPDATE queues SET locked_by = NULL, due_at = $5, error = $6, waiting = $7
WHERE receiver = $1 AND subject = $2 AND locked_by = $3 AND tries = $4"#;

const RELEASE: &str = r#"
UPDATE queues SET locked_by = NULL, tries = tries - 1, since = CASE WHEN tries > 1 THEN since END, due_at = $5,
    waiting = $6
WHERE receiver = $1 AND subject = $2 AND locked_by = $3 AND tries = $4"#;

const DELETE: &str = "DELETE FROM messages WHERE id = $1";

const MARK_DEAD: &str = r#"
UPDATE messages SET state = 'dead', tries = $2, error = $3, died_at = $4
WHERE id = $1 AND state = 'pending'"#;

const INSERT: &str = r#"
INSERT INTO messages (id, receiver, subject, place, task_id, kind, url, body, created_at, state, tries)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 'pending', 0)"#;

const ADD_TO_QUEUE: &str = r#"
INSERT INTO queues (receiver, subject, due_at, destination, waits_since, tries) VALUES ($1, $2, $3, $4, $3, 0)
ON CONFLICT (receiver, subject) DO UPDATE SET tries = queues.tries"#;

/// An operator asked for it: the next try is due now, and the queue is the first of its backlog.
const EXPEDITE: &str = r#"
UPDATE queues SET due_at = CASE waiting WHEN 0 THEN $3 ELSE 0 END
WHERE receiver = $1 AND subject = $2 AND locked_by IS NULL"#;

const REQUEUE: &str = r#"
UPDATE messages SET state = 'pending', tries = 0, error = NULL, pending_since = $2
WHERE id = $1 AND state = 'dead'"#;

const DISCARD: &str = "DELETE FROM messages WHERE id = $1 AND state = 'dead'";

/// All claims, or those of one instance.
const RELEASE_ALL: &str = r#"
UPDATE queues SET locked_by = NULL, due_at = $1
WHERE locked_by IS NOT NULL AND locked_by = coalesce($2, locked_by)"#;

/// Relies on messages_died.
const PURGE_DEAD: &str = r#"
DELETE FROM messages
WHERE id IN (SELECT id FROM messages
             WHERE died_at IS NOT NULL AND died_at < $1 AND state = 'dead'
             ORDER BY died_at LIMIT $2)"#;

/// Relies on alerts_unclosed_of_receiver.
const RAISE_ALERT: &str = r#"
INSERT INTO alerts (id, receiver, kind, message, state, raised_at)
VALUES ($1, $2, $3, $4, 'open', $5)
ON CONFLICT DO NOTHING"#;

/// Relies on alerts_unclosed_of_receiver and messages_died_by_receiver.
const CLOSE_ALERTS: &str = r#"
UPDATE alerts SET state = 'closed', closed_at = $2
WHERE receiver = $1 AND state <> 'closed'
  AND NOT EXISTS (SELECT 1 FROM messages WHERE receiver = $1 AND died_at IS NOT NULL)
RETURNING id, kind, message, raised_at"#;

/// Relies on the primary key, or for dead letters of one receiver on messages_died_by_receiver.
const MESSAGES: &str = r#"
SELECT id, messages.receiver, task_id, kind, url, created_at, state, died_at,
       CASE WHEN first THEN queues.tries ELSE messages.tries END AS tries,
       CASE WHEN first THEN coalesce(queues.error, messages.error) ELSE messages.error END AS error,
       CASE WHEN first AND queues.waiting > 0 AND destinations.next_at > queues.due_at
            THEN destinations.next_at WHEN first THEN queues.due_at END AS due_at,
       {body}
FROM (SELECT messages.*,
             state = 'pending' AND id = (SELECT head.id FROM messages AS head
                                         WHERE head.receiver = messages.receiver
                                           AND head.subject = messages.subject AND head.state = 'pending'
                                         ORDER BY head.place, head.id LIMIT 1) AS first
      FROM messages) AS messages
LEFT JOIN queues ON queues.receiver = messages.receiver AND queues.subject = messages.subject
LEFT JOIN destinations ON destinations.destination = queues.destination
WHERE true"#;

fn destination(row: &impl Columns) -> Result<Destination, StoreError> {
    Ok(Destination::new(rows::text(row, "destination")?))
}

fn queue_claim(row: &impl Columns, is_probe: bool) -> Result<QueueClaim, StoreError> {
    Ok(QueueClaim {
        receiver: name(row)?,
        subject: rows::uuid(row, "subject")?,
        destination: destination(row)?,
        is_probe,
        tries: rows::number(row, "tries")?,
        since: rows::required(rows::time(row, "since")?, "since")?,
    })
}

pub fn name(row: &impl Columns) -> Result<ReceiverName, StoreError> {
    Ok(ReceiverName::new(rows::text(row, "receiver")?))
}

pub fn next_message(claim: &QueueClaim) -> Statement {
    in_queue(NEXT_MESSAGE, claim)
}

pub fn queue_head(row: Option<&impl Columns>) -> QueueHead {
    let Some(row) = row else {
        return QueueHead::Empty;
    };
    match (message_of(row), rows::uuid(row, "id")) {
        (Ok(head), _) => QueueHead::Message(head),
        (Err(error), Ok(id)) => QueueHead::Unreadable {
            id,
            reason: error.damage(),
        },
        (Err(error), Err(_)) => QueueHead::Lost(error.damage()),
    }
}

fn message_of(row: &impl Columns) -> Result<NextMessage, StoreError> {
    Ok(NextMessage {
        id: rows::uuid(row, "id")?,
        kind: rows::text(row, "kind")?,
        url: row.text("url")?,
        body: rows::text(row, "body")?,
        created_at: rows::required(rows::time(row, "created_at")?, "created_at")?,
    })
}

pub fn messages(query: &MessageQuery) -> Statement {
    let body = if query.with_body {
        "body"
    } else {
        "NULL AS body"
    };
    let mut statement = Statement::new(MESSAGES.replace("{body}", body));
    if let Some(id) = query.id {
        statement.push(" AND id = ?", id.0);
    }
    if let Some(state) = query.state {
        statement.push(" AND state = ?", state.as_str());
        if state == MessageState::Dead {
            // In full, so that the planner finds the index that covers it.
            statement.sql.push_str(" AND died_at IS NOT NULL");
        }
    }
    if let Some(receiver) = &query.receiver {
        statement.push(" AND messages.receiver = ?", receiver.as_str());
    }
    if let Some(task) = query.task {
        statement.push(" AND task_id = ?", task.0);
    }
    if let Some(before) = query.before {
        statement.push(" AND id < ?", before.0);
    }
    statement.push(" ORDER BY id DESC LIMIT ?", query.limit);
    statement
}

pub fn message(row: &impl Columns) -> Result<MessageRecord, StoreError> {
    let state = rows::text(row, "state")?;
    let state =
        MessageState::parse(&state).ok_or_else(|| rows::corrupt(format!("state {state}")))?;
    Ok(MessageRecord {
        id: MessageId(rows::uuid(row, "id")?),
        receiver: name(row)?,
        task: row.uuid("task_id")?.map(TaskId),
        kind: rows::text(row, "kind")?,
        url: row.text("url")?,
        body: row.text("body")?,
        state,
        created_at: rows::required(rows::time(row, "created_at")?, "created_at")?,
        tries: rows::number(row, "tries")?,
        error: row.text("error")?,
        next_try_at: rows::time(row, "due_at")?,
        died_at: rows::time(row, "died_at")?,
    })
}

fn in_queue(sql: &str, claim: &QueueClaim) -> Statement {
    Statement::new(sql)
        .bind(claim.receiver.as_str())
        .bind(claim.subject)
}

fn fenced(sql: &str, claim: &QueueClaim, by: &InstanceId) -> Statement {
    in_queue(sql, claim)
        .bind(by.as_str())
        .bind(i64::from(claim.tries))
}

/// What the delivery loop and operators do with messages. As with leases, each call comes in a transaction of
/// its own.
impl Transaction<'_> {
    /// Releases queues, then claims others for `by` until `until`.
    pub async fn claim_queues(
        &mut self,
        request: &ClaimRequest,
        by: &InstanceId,
        until: Timestamp,
        sender: &Sender,
    ) -> Result<ClaimResponse, StoreError> {
        let mut response = ClaimResponse::default();
        let mut dead = release(self, request, by).await?;
        destinations::record(self, request).await?;
        response.expiries = destinations::expire(self, request, &mut dead).await?;
        change_alerts(self, dead, &request.resolved, sender).await?;
        // The statements from here on skip rows that another transaction has locked.
        destinations::postpone(self, &request.postponed).await?;
        if request.limit > 0 {
            response.moved_to_backlog = destinations::move_to_backlogs(self).await?;
        }
        for (destination, most) in &request.backlogs {
            let found =
                destinations::claim_from_backlog(self, destination, *most, by, until).await?;
            if found.len() < *most {
                response.drained.push(destination.clone());
            }
            response.claims.extend(found);
        }
        if request.limit > 0 {
            response
                .claims
                .extend(claim_due(self, request.limit, by, until).await?);
        }
        Ok(response)
    }

    /// Returns the messages that exist and whose state allows the action.
    pub async fn apply_message_action(
        &mut self,
        action: MessageAction,
        ids: &[MessageId],
    ) -> Result<Vec<MessageId>, StoreError> {
        act_on_messages(self, action, ids).await
    }

    /// Releases the queues that `by` has claimed, or all claimed queues. Returns how many.
    pub async fn release_queues(&mut self, by: Option<&InstanceId>) -> Result<u64, StoreError> {
        let by_text = by.map(ToString::to_string);
        destinations::release_probes(self, by_text.clone()).await?;
        let free = Statement::new(RELEASE_ALL)
            .bind(self.now().as_millis())
            .bind(BindValue::Text(by_text));
        self.execute(free).await
    }

    /// Deletes up to `limit` dead letters that died before `died_before`.
    pub async fn purge_dead_letters(
        &mut self,
        died_before: Timestamp,
        limit: usize,
    ) -> Result<u64, StoreError> {
        let purge = Statement::new(PURGE_DEAD)
            .bind(died_before.as_millis())
            .bind(limit);
        self.execute(purge).await
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

/// Releases claims.
async fn release(
    tx: &mut Transaction<'_>,
    request: &ClaimRequest,
    by: &InstanceId,
) -> Result<DeadByReceiver, StoreError> {
    let now = tx.now();
    // In one order, so that instances do not wait for each other in a circle.
    let mut releases: Vec<_> = request.releases.iter().collect();
    releases.sort_unstable_by_key(|release| (&release.claim.receiver, release.claim.subject));
    let mut dead = DeadByReceiver::new();
    for QueueRelease { claim, reason } in releases {
        let back = |waiting: bool| {
            fenced(RELEASE, claim, by)
                .bind(now.as_millis())
                .bind(i64::from(waiting))
        };
        match reason {
            ReleaseReason::Attempted {
                message,
                decision,
                in_backlog,
            } => match decision {
                DeliveryDecision::Delivered => {
                    tx.execute(Statement::new(DELETE).bind(*message)).await?;
                    advance(tx, claim, by, now).await?;
                }
                DeliveryDecision::Dead { reason } => {
                    let mark_dead = Statement::new(MARK_DEAD)
                        .bind(*message)
                        .bind(i64::from(claim.tries))
                        .bind(reason.as_str())
                        .bind(now.as_millis());
                    if tx.execute(mark_dead).await? > 0 {
                        dead.insert(claim.receiver.clone(), reason.clone());
                    }
                    advance(tx, claim, by, now).await?;
                }
                DeliveryDecision::Retry { at, reason } => {
                    let again = fenced(RETRY, claim, by)
                        .bind(at.as_millis())
                        .bind(reason.as_str())
                        .bind(i64::from(*in_backlog));
                    tx.execute(again).await?;
                }
            },
            ReleaseReason::QueueEmpty => advance(tx, claim, by, now).await?,
            ReleaseReason::NotAttempted => drop(tx.execute(back(false)).await?),
            ReleaseReason::DestinationBusy => drop(tx.execute(back(true)).await?),
        }
    }
    Ok(dead)
}

/// Raises and closes the alerts of receivers.
async fn change_alerts(
    tx: &mut Transaction<'_>,
    dead: DeadByReceiver,
    resolved: &[ReceiverName],
    sender: &Sender,
) -> Result<(), StoreError> {
    let now = tx.now();
    for (receiver, reason) in dead {
        raise_alert(tx, &receiver, &reason, now, sender).await?;
    }
    for receiver in resolved {
        close_alerts(tx, receiver, now, sender).await?;
    }
    Ok(())
}

async fn claim_due(
    tx: &mut Transaction<'_>,
    most: usize,
    by: &InstanceId,
    until: Timestamp,
) -> Result<Vec<QueueClaim>, StoreError> {
    let now = tx.now();
    let due = Statement::new(DUE_QUEUES.replace("{skip locked}", tx.dialect().skip_locked))
        .bind(now.as_millis())
        .bind(most);
    claim_each(tx, due, by, until, false).await
}

/// Claims the queues that a statement finds and locks.
async fn claim_each(
    tx: &mut Transaction<'_>,
    found: Statement,
    by: &InstanceId,
    until: Timestamp,
    is_probe: bool,
) -> Result<Vec<QueueClaim>, StoreError> {
    let now = tx.now();
    let mut claims = Vec::new();
    for row in tx.fetch(found).await? {
        let take = of_queue(CLAIM, &row)?
            .bind(by.as_str())
            .bind(now.as_millis())
            .bind(until.as_millis());
        for row in tx.fetch(take).await? {
            claims.push(queue_claim(&row, is_probe)?);
        }
    }
    Ok(claims)
}

/// A statement on the queue of this row.
fn of_queue(sql: &str, row: &impl Columns) -> Result<Statement, StoreError> {
    Ok(Statement::new(sql)
        .bind(rows::text(row, "receiver")?)
        .bind(rows::uuid(row, "subject")?))
}

/// Makes the next message the first of the queue, or deletes the empty queue.
async fn advance(
    tx: &mut Transaction<'_>,
    claim: &QueueClaim,
    by: &InstanceId,
    now: Timestamp,
) -> Result<(), StoreError> {
    let passed = tx.execute(fenced(ADVANCE, claim, by).bind(now.as_millis()));
    if passed.await? > 0 {
        tx.execute(in_queue(DELETE_IF_EMPTY, claim)).await?;
    }
    Ok(())
}

const UNDELIVERABLE: &str = AlertKind::MessageUndeliverable.as_str();

async fn raise_alert(
    tx: &mut Transaction<'_>,
    receiver: &ReceiverName,
    reason: &str,
    now: Timestamp,
    sender: &Sender,
) -> Result<(), StoreError> {
    let message = format!("messages to {receiver} cannot be delivered: {reason}");
    let alert = AlertNotice {
        receiver: Some(receiver.clone()),
        ..AlertNotice::raised(Uuid::now_v7(), UNDELIVERABLE, &message, now)
    };
    let raise = Statement::new(RAISE_ALERT)
        .bind(alert.id)
        .bind(receiver.as_str())
        .bind(UNDELIVERABLE)
        .bind(message)
        .bind(now.as_millis());
    if tx.execute(raise).await? > 0 {
        add(tx, &sender.alert(&alert, 0, now, Uuid::now_v7)).await?;
    }
    Ok(())
}

async fn close_alerts(
    tx: &mut Transaction<'_>,
    receiver: &ReceiverName,
    now: Timestamp,
    sender: &Sender,
) -> Result<(), StoreError> {
    let close = Statement::new(CLOSE_ALERTS)
        .bind(receiver.as_str())
        .bind(now.as_millis());
    for row in tx.fetch(close).await? {
        let alert = AlertNotice {
            receiver: Some(receiver.clone()),
            ..closed_alert(&row, now)?
        };
        add(tx, &sender.alert(&alert, 1, now, Uuid::now_v7)).await?;
    }
    Ok(())
}

/// An alert that a statement has just closed. The caller adds its task or receiver.
pub fn closed_alert(row: &impl Columns, now: Timestamp) -> Result<AlertNotice, StoreError> {
    let (kind, message) = (rows::text(row, "kind")?, rows::text(row, "message")?);
    let raised_at = rows::required(rows::time(row, "raised_at")?, "raised_at")?;
    let raised = AlertNotice::raised(rows::uuid(row, "id")?, &kind, &message, raised_at);
    Ok(raised.closed(now))
}

/// Adds a few messages. Those of a batch are added by its own statements.
pub async fn add(tx: &mut Transaction<'_>, messages: &[Message]) -> Result<(), StoreError> {
    for message in messages {
        let insert = Statement::new(INSERT)
            .bind(message.id)
            .bind(message.receiver.as_str())
            .bind(message.subject)
            .bind(message.position)
            .bind(BindValue::MaybeUuid(message.task.map(|task| task.0)))
            .bind(message.kind.as_str())
            .bind(BindValue::Text(message.url.clone()))
            .bind(message.body.as_str())
            .bind(message.at.as_millis());
        tx.execute(insert).await?;
        let queue = Statement::new(ADD_TO_QUEUE)
            .bind(message.receiver.as_str())
            .bind(message.subject)
            .bind(message.at.as_millis())
            .bind(message.destination().as_str());
        tx.execute(queue).await?;
    }
    Ok(())
}

/// What an operator can do with an undelivered message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageAction {
    /// Requeue a dead letter with no tries; try a pending message now.
    Redeliver,
    /// Delete a dead letter.
    Discard,
}

async fn act_on_messages(
    tx: &mut Transaction<'_>,
    action: MessageAction,
    ids: &[MessageId],
) -> Result<Vec<MessageId>, StoreError> {
    let now = tx.now();
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        let place = Statement::new("SELECT receiver, subject, url FROM messages WHERE id = $1");
        for row in tx.fetch(place.bind(id.0)).await? {
            let (receiver, subject) = (name(&row)?, rows::uuid(&row, "subject")?);
            let destination = destination_of(&receiver, row.text("url")?.as_deref());
            found.push((receiver, subject, destination, *id));
        }
    }
    // In one order, so that instances do not wait for each other in a circle.
    found.sort_unstable_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
    let mut done = Vec::with_capacity(found.len());
    let mut expedited_to = BTreeSet::new();
    for (receiver, subject, destination, id) in found {
        let queue = |sql: &str| {
            Statement::new(sql)
                .bind(receiver.as_str())
                .bind(subject)
                .bind(now.as_millis())
        };
        match action {
            MessageAction::Redeliver => {
                let add = queue(ADD_TO_QUEUE).bind(destination.as_str());
                tx.execute(add).await?;
                let requeue = Statement::new(REQUEUE).bind(id.0).bind(now.as_millis());
                let requeued = tx.execute(requeue).await? > 0;
                let expedited = tx.execute(queue(EXPEDITE)).await? > 0;
                if requeued || expedited {
                    done.push(id);
                    expedited_to.insert(destination);
                }
            }
            MessageAction::Discard => {
                if tx.execute(Statement::new(DISCARD).bind(id.0)).await? > 0 {
                    done.push(id);
                }
            }
        }
    }
    for destination in &expedited_to {
        destinations::expedite(tx, destination).await?;
    }
    Ok(done)
}
