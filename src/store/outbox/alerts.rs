//! The alert of a receiver, which is open while the receiver has dead letters: see [`ReceiverAlert`].
//!
//! [`ReceiverAlert`]: crate::domain::ReceiverAlert

use uuid::Uuid;

use super::DeadByReceiver;
use crate::{
    domain::{AlertNotice, ReceiverName, Sender, Timestamp, undeliverable},
    store::{StoreError, Transaction, rows::Columns, statement::Statement},
};

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
        let alert = undeliverable(Uuid::now_v7(), &receiver, &reason, now);
        tx.raise_alert(&alert, None, sender).await?;
    }
    for receiver in resolved {
        close(tx, receiver, now, sender).await?;
    }
    Ok(())
}

async fn close(
    tx: &mut Transaction<'_>,
    receiver: &ReceiverName,
    now: Timestamp,
    sender: &Sender,
) -> Result<(), StoreError> {
    let close = Statement::new(CLOSE).bind(receiver).bind(now);
    for row in tx.fetch(close).await? {
        let alert = AlertNotice {
            receiver: Some(receiver.clone()),
            ..closed_alert(&row, now)?
        };
        tx.notify_webhooks(&alert, 1, sender).await?;
    }
    Ok(())
}

/// An alert that a statement has just closed. The caller adds its task or receiver.
pub fn closed_alert(row: &impl Columns, now: Timestamp) -> Result<AlertNotice, StoreError> {
    let (kind, message): (String, String) = (row.get("kind")?, row.get("message")?);
    let raised = AlertNotice::raised(row.get("id")?, &kind, &message, row.get("raised_at")?);
    Ok(raised.closed(now))
}
