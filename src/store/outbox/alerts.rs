//! The alert of a receiver, which is open while the receiver has dead letters: see [`ReceiverAlert`].
//!
//! [`ReceiverAlert`]: crate::domain::ReceiverAlert

use uuid::Uuid;

use super::{DeadByReceiver, queues::add};
use crate::{
    domain::{AlertNotice, ReceiverName, Sender, Timestamp, undeliverable},
    store::{
        StoreError, Transaction,
        queries::Statement,
        rows::{self, Columns},
    },
};

/// Relies on alerts_unclosed_of_receiver.
const RAISE: &str = r#"
INSERT INTO alerts (id, receiver, kind, message, state, raised_at)
VALUES ($1, $2, $3, $4, 'open', $5)
ON CONFLICT DO NOTHING"#;

/// Relies on alerts_unclosed_of_receiver and messages_died_by_receiver.
const CLOSE: &str = r#"
UPDATE alerts SET state = 'closed', closed_at = $2
WHERE receiver = $1 AND state <> 'closed'
  AND NOT EXISTS (SELECT 1 FROM messages WHERE receiver = $1 AND died_at IS NOT NULL)
RETURNING id, kind, message, raised_at"#;

/// Raises and closes the alerts of receivers.
pub async fn change(
    tx: &mut Transaction<'_>,
    dead: DeadByReceiver,
    resolved: &[ReceiverName],
    sender: &Sender,
) -> Result<(), StoreError> {
    let now = tx.now();
    for (receiver, reason) in dead {
        raise(tx, &receiver, &reason, now, sender).await?;
    }
    for receiver in resolved {
        close(tx, receiver, now, sender).await?;
    }
    Ok(())
}

async fn raise(
    tx: &mut Transaction<'_>,
    receiver: &ReceiverName,
    reason: &str,
    now: Timestamp,
    sender: &Sender,
) -> Result<(), StoreError> {
    let alert = undeliverable(Uuid::now_v7(), receiver, reason, now);
    let raise = Statement::new(RAISE)
        .bind(alert.id)
        .bind(receiver.as_str())
        .bind(alert.kind.as_str())
        .bind(alert.message.as_str())
        .bind(now.as_millis());
    if tx.execute(raise).await? > 0 {
        add(tx, &sender.alert(&alert, 0, now, Uuid::now_v7)).await?;
    }
    Ok(())
}

async fn close(
    tx: &mut Transaction<'_>,
    receiver: &ReceiverName,
    now: Timestamp,
    sender: &Sender,
) -> Result<(), StoreError> {
    let close = Statement::new(CLOSE)
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
