//! Queues: claimed and released by decisions of the domain. The domain decides on the first message; the statements
//! here save the decision under the fence of the claim.

use super::{
    ClaimRequest, DeadByReceiver, QueueClaim, QueueHead, QueueRelease, messages, of_queue, tries,
};
use crate::{
    domain::{
        message::{MessageEnd, QueueDecision, QueueWait, ReleaseReason},
        values::{InstanceId, Timestamp},
    },
    store::{
        StoreError, Transaction,
        rows::{self, Columns},
        statement::Statement,
    },
};

/// Relies on queues_due. A due queue of a destination with a backlog is not claimed: the statements of
/// [`super::destinations`] move it there.
pub(super) const DUE_QUEUES: &str = r#"
WITH due AS MATERIALIZED (
    SELECT receiver, subject, destination FROM queues
    WHERE waiting = 0 AND due_at <= $1
    ORDER BY due_at LIMIT $2 {skip locked})
SELECT receiver, subject FROM due
WHERE (SELECT 1 FROM destinations WHERE destinations.destination = due.destination LIMIT 1) IS NULL"#;

/// For a queue that [`DUE_QUEUES`] or a statement on backlogs has found and locked. The queue is found by its key: for
/// a join with the queues that were found, PostgreSQL may read all queues, because it keeps the plan that it made for a
/// small table.
pub(super) const CLAIM: &str = r#"
UPDATE queues
SET waiting = 0, locked_by = $3, tries = tries + 1, since = coalesce(since, $4), due_at = $5
WHERE receiver = $1 AND subject = $2
RETURNING receiver, subject, destination, tries, since"#;

/// Relies on messages_in_queue.
const NEXT_MESSAGE: &str = r#"
SELECT id, kind, url, body, created_at FROM messages
WHERE receiver = $1 AND subject = $2 AND state = 'pending'
ORDER BY place, id LIMIT 1"#;

/// After this statement the row is locked, so that messages are added to the queue later. Relies on messages_in_queue.
const ADVANCE: &str = r#"
UPDATE queues SET locked_by = NULL, tries = 0, since = NULL, error = NULL, due_at = $5,
    waits_since = coalesce((SELECT coalesce(pending_since, created_at) FROM messages
                            WHERE receiver = $1 AND subject = $2 AND state = 'pending'
                            ORDER BY place, id LIMIT 1), waits_since)
WHERE receiver = $1 AND subject = $2 AND locked_by = $3 AND tries = $4"#;

/// Only for a queue that [`ADVANCE`] has locked. Relies on messages_in_queue.
pub(super) const DELETE_IF_EMPTY: &str = r#"
DELETE FROM queues
WHERE receiver = $1 AND subject = $2
  AND NOT EXISTS (SELECT 1 FROM messages WHERE receiver = $1 AND subject = $2 AND state = 'pending')"#;

/// Makes the first message wait for its next attempt.
const WAIT: &str = r#"
UPDATE queues
SET locked_by = NULL, due_at = $5, waiting = $6, tries = $7, since = $8, error = coalesce($9, error)
WHERE receiver = $1 AND subject = $2 AND locked_by = $3 AND tries = $4"#;

/// Releases all claims, or those of one instance.
const RELEASE_ALL: &str = r#"
UPDATE queues SET locked_by = NULL, due_at = $1
WHERE locked_by IS NOT NULL AND locked_by = coalesce($2, locked_by)"#;

fn queue_claim(row: &impl Columns, is_probe: bool) -> Result<QueueClaim, StoreError> {
    Ok(QueueClaim {
        receiver: row.get("receiver")?,
        subject: row.get("subject")?,
        destination: row.get("destination")?,
        is_probe,
        tries: row.get("tries")?,
        since: row.get("since")?,
    })
}

pub fn next_message(claim: &QueueClaim) -> Statement {
    in_queue(NEXT_MESSAGE, claim)
}

pub fn queue_head(row: Option<&impl Columns>) -> QueueHead {
    let Some(row) = row else {
        return QueueHead::Empty;
    };
    match (rows::next_message(row), row.get("id")) {
        (Ok(head), _) => QueueHead::Message(head),
        (Err(error), Ok(id)) => QueueHead::Unreadable {
            id,
            reason: error.damage(),
        },
        (Err(error), Err(_)) => QueueHead::Lost(error.damage()),
    }
}

fn in_queue(sql: &str, claim: &QueueClaim) -> Statement {
    Statement::new(sql)
        .bind(&claim.receiver)
        .bind(claim.subject)
}

fn fenced(sql: &str, claim: &QueueClaim, by: &InstanceId) -> Statement {
    in_queue(sql, claim).bind(by).bind(claim.tries)
}

/// Releases claims. Returns the receivers with a message that died.
pub async fn release(
    tx: &mut Transaction<'_>,
    request: &ClaimRequest,
    by: &InstanceId,
) -> Result<DeadByReceiver, StoreError> {
    let now = tx.now();
    // The queues are in one order, so that instances cannot deadlock.
    let mut releases: Vec<_> = request.releases.iter().collect();
    releases.sort_unstable_by_key(|release| (&release.claim.receiver, release.claim.subject));
    let mut dead = DeadByReceiver::new();
    for QueueRelease { claim, reason } in releases {
        let is_saved = match reason.decide(claim.attempt(), now) {
            QueueDecision::Wait(wait) => save_wait(tx, claim, by, wait).await?,
            QueueDecision::Advance(end) => {
                let is_dead = match end {
                    Some(MessageEnd::Delivered { message }) => {
                        messages::delete(tx, message).await?;
                        false
                    }
                    Some(MessageEnd::Dead { message, reason }) => {
                        let is_marked =
                            messages::mark_dead(tx, message, claim.tries, reason).await?;
                        if is_marked {
                            dead.insert(claim.receiver.clone(), reason.to_owned());
                        }
                        is_marked
                    }
                    None => false,
                };
                advance(tx, claim, by, now).await?;
                is_dead
            }
        };
        if let ReleaseReason::Attempted {
            message,
            decision,
            tried: Some(tried),
        } = reason
            && is_saved
            && let Some(failure) = decision.failure()
        {
            tries::save(tx, (*message, claim, by), *tried, failure).await?;
        }
    }
    Ok(dead)
}

/// Returns false if the claim is over, and another instance has the queue.
async fn save_wait(
    tx: &mut Transaction<'_>,
    claim: &QueueClaim,
    by: &InstanceId,
    wait: QueueWait<'_>,
) -> Result<bool, StoreError> {
    let save = fenced(WAIT, claim, by)
        .bind(wait.due_at)
        .bind(wait.in_backlog)
        .bind(wait.tries)
        .bind(wait.first_tried_at)
        .bind(wait.error);
    Ok(tx.execute(save).await? > 0)
}

pub async fn release_all(tx: &mut Transaction<'_>, by: Option<String>) -> Result<u64, StoreError> {
    let release = Statement::new(RELEASE_ALL).bind(tx.now()).bind(by);
    tx.execute(release).await
}

pub async fn claim_due(
    tx: &mut Transaction<'_>,
    limit: usize,
    by: &InstanceId,
    until: Timestamp,
) -> Result<Vec<QueueClaim>, StoreError> {
    let now = tx.now();
    let due = Statement::new(DUE_QUEUES.replace("{skip locked}", tx.dialect().skip_locked))
        .bind(now)
        .bind(limit);
    claim_each(tx, due, by, until, false).await
}

/// Claims the queues that a statement finds and locks.
pub async fn claim_each(
    tx: &mut Transaction<'_>,
    found: Statement,
    by: &InstanceId,
    until: Timestamp,
    is_probe: bool,
) -> Result<Vec<QueueClaim>, StoreError> {
    let now = tx.now();
    let mut claims = Vec::new();
    for row in tx.fetch(found).await? {
        let take = of_queue(CLAIM, &row)?.bind(by).bind(now).bind(until);
        for row in tx.fetch(take).await? {
            claims.push(queue_claim(&row, is_probe)?);
        }
    }
    Ok(claims)
}

/// Makes the next message the first of the queue, or deletes the empty queue.
async fn advance(
    tx: &mut Transaction<'_>,
    claim: &QueueClaim,
    by: &InstanceId,
    now: Timestamp,
) -> Result<(), StoreError> {
    let passed = tx.execute(fenced(ADVANCE, claim, by).bind(now));
    if passed.await? > 0 {
        tx.execute(in_queue(DELETE_IF_EMPTY, claim)).await?;
    }
    Ok(())
}
