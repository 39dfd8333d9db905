//! The failed attempts to deliver a message, which are deleted with it.

use uuid::Uuid;

use super::QueueClaim;
use crate::{
    domain::{
        message::{DeliveryTry, KEPT_TRIES},
        values::{InstanceId, Timestamp},
    },
    store::{MessageId, MessageTry, StoreError, Transaction, rows::Columns, statement::Statement},
};

/// An instance whose response was lost may save an attempt again. A message that is gone has no attempts.
const SAVE: &str = r#"
INSERT INTO message_tries (message_id, began_at, ended_at, number, instance, status, reason, next_at)
SELECT $1, $2, $3, $4, $5, $6, $7, $8 WHERE EXISTS (SELECT 1 FROM messages WHERE id = $1)
ON CONFLICT (message_id, began_at) DO NOTHING"#;

/// Relies on the primary key.
const FORGET: &str = r#"
DELETE FROM message_tries WHERE message_id = $1 AND began_at <= (
    SELECT began_at FROM message_tries WHERE message_id = $1 ORDER BY began_at DESC LIMIT 1 OFFSET $2)"#;

/// Relies on the primary key.
const LIST: &str = r#"
SELECT began_at, ended_at, number, instance, status, reason, next_at FROM message_tries
WHERE message_id = $1 ORDER BY began_at DESC LIMIT $2"#;

/// Saves a failed attempt of a message, and forgets those that are more than [`KEPT_TRIES`] ago.
pub async fn save(
    tx: &mut Transaction<'_>,
    (message, claim, by): (Uuid, &QueueClaim, &InstanceId),
    tried: DeliveryTry,
    (reason, next_at): (&str, Option<Timestamp>),
) -> Result<(), StoreError> {
    let save = Statement::new(SAVE)
        .bind(message)
        .bind(tried.began)
        .bind(tried.ended)
        .bind(claim.tries)
        .bind(by)
        .bind(tried.status.map(u32::from))
        .bind(reason)
        .bind(next_at);
    tx.run(save).await?;
    if claim.tries > KEPT_TRIES {
        tx.run(Statement::new(FORGET).bind(message).bind(KEPT_TRIES))
            .await?;
    }
    Ok(())
}

pub fn tries(message: MessageId) -> Statement {
    Statement::new(LIST).bind(message.0).bind(KEPT_TRIES)
}

pub fn read(row: &impl Columns) -> Result<MessageTry, StoreError> {
    Ok(MessageTry {
        began: row.get("began_at")?,
        ended: row.get("ended_at")?,
        number: row.get("number")?,
        instance: row.get("instance")?,
        status: row.get("status")?,
        reason: row.get("reason")?,
        next_at: row.get("next_at")?,
    })
}
