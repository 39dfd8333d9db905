//! The alert of a receiver, which is open while the receiver has dead letters: see [`ReceiverAlert`].
//!
//! [`ReceiverAlert`]: crate::domain::message::ReceiverAlert

use super::DeadByReceiver;
use crate::{
    chance,
    domain::{
        message::{
            AlertNotice, CauseVersion, Sender, alert_subject, broker_unreachable, undeliverable,
        },
        task::AlertKind,
        values::{ReceiverName, Timestamp},
    },
    store::{DEAD_LETTERS_COUNTED, StoreError, Transaction, rows::Columns, statement::Statement},
};

/// Relies on alerts_unclosed_of_receiver and messages_died_by_receiver.
const CLOSE: &str = r#"
UPDATE alerts SET state = 'closed', closed_at = $2
WHERE receiver = $1 AND state <> 'closed'
  AND NOT EXISTS (SELECT 1 FROM messages WHERE receiver = $1 AND died_at IS NOT NULL)
RETURNING id, kind, message, raised_at"#;

/// Relies on messages_died_by_receiver.
const COUNT_DEAD: &str = r#"
SELECT count(*) AS count FROM (
    SELECT 1 AS one FROM messages WHERE receiver = $1 AND died_at IS NOT NULL LIMIT $2) AS counted"#;

/// Relies on alerts_unclosed_of_receiver.
const CLOSE_OF_KIND: &str = r#"
UPDATE alerts SET state = 'closed', closed_at = $2
WHERE receiver = $1 AND state <> 'closed' AND kind = $3
RETURNING id, kind, message, raised_at"#;

/// Relies on alerts_unclosed_of_receiver.
const OF_KIND: &str = r#"
SELECT message, raised_at FROM alerts WHERE receiver = $1 AND state <> 'closed' AND kind = $2"#;

/// Relies on alerts_unclosed_of_receiver.
const REWORD: &str = r#"
UPDATE alerts SET message = $3 WHERE receiver = $1 AND state <> 'closed' AND kind = $2
RETURNING id, raised_at"#;

/// Raises the alert of a broker, with the reason, or closes it.
pub async fn report_broker(
    tx: &mut Transaction<'_>,
    broker: &str,
    reason: Option<&str>,
    sender: &Sender,
) -> Result<(), StoreError> {
    let now = tx.now();
    match reason {
        Some(reason) => {
            let alert = broker_unreachable(chance::id(), broker, reason, now);
            tx.raise_alert(&alert, None, sender).await
        }
        None => {
            let kind = AlertKind::BrokerUnreachable;
            close_of_kind(tx, kind, &alert_subject(broker), sender).await
        }
    }
}

/// Raises and closes the alerts of receivers.
pub async fn change(
    tx: &mut Transaction<'_>,
    dead: DeadByReceiver,
    resolved: &[ReceiverName],
    sender: &Sender,
) -> Result<(), StoreError> {
    let now = tx.now();
    for (receiver, reason) in dead {
        let alert = undeliverable(chance::id(), &receiver, &reason, now);
        if tx.insert_alert(&alert, None, None, None).await? {
            let count = Statement::new(COUNT_DEAD)
                .bind(&receiver)
                .bind(DEAD_LETTERS_COUNTED);
            let count = tx.fetch_first(count).await?;
            let count = count.map(|row| row.get("count")).transpose()?.unwrap_or(1);
            let alert = AlertNotice { count, ..alert };
            tx.notify_webhooks(&alert, 0, sender).await?;
        }
    }
    for receiver in resolved {
        let statement = Statement::new(CLOSE).bind(receiver).bind(now);
        close(tx, statement, receiver, sender).await?;
    }
    Ok(())
}

/// Returns the message of the open alert of this kind under this name, and the time when it was raised.
pub async fn message_of_kind(
    tx: &mut Transaction<'_>,
    kind: AlertKind,
    subject: &ReceiverName,
) -> Result<Option<(String, Timestamp)>, StoreError> {
    let statement = Statement::new(OF_KIND).bind(subject).bind(kind.as_str());
    match tx.fetch_first(statement).await? {
        Some(row) => Ok(Some((row.get("message")?, row.get("raised_at")?))),
        None => Ok(None),
    }
}

/// Closes the alert of this kind that is open under this name, if there is one.
pub async fn close_of_kind(
    tx: &mut Transaction<'_>,
    kind: AlertKind,
    subject: &ReceiverName,
    sender: &Sender,
) -> Result<(), StoreError> {
    let statement = Statement::new(CLOSE_OF_KIND)
        .bind(subject)
        .bind(tx.now())
        .bind(kind.as_str());
    close(tx, statement, subject, sender).await
}

async fn close(
    tx: &mut Transaction<'_>,
    close: Statement,
    receiver: &ReceiverName,
    sender: &Sender,
) -> Result<(), StoreError> {
    let now = tx.now();
    for row in tx.fetch(close).await? {
        let alert = AlertNotice {
            receiver: Some(receiver.clone()),
            ..closed_alert(&row, now)?
        };
        let version = CauseVersion::Closed.number();
        tx.notify_webhooks(&alert, version, sender).await?;
    }
    Ok(())
}

/// Changes the message of the open alert of this kind under this name. `version` grows, and is given if webhooks are
/// notified of the change.
pub async fn reword(
    tx: &mut Transaction<'_>,
    kind: AlertKind,
    alert: &AlertNotice,
    version: Option<u64>,
    sender: &Sender,
) -> Result<(), StoreError> {
    let Some(subject) = &alert.receiver else {
        return Ok(());
    };
    let statement = Statement::new(REWORD)
        .bind(subject)
        .bind(kind.as_str())
        .bind(alert.message.as_str());
    for row in tx.fetch(statement).await? {
        let alert = AlertNotice {
            id: row.get("id")?,
            raised_at: row.get("raised_at")?,
            ..alert.clone()
        };
        if let Some(version) = version {
            tx.notify_webhooks(&alert, version, sender).await?;
        }
    }
    Ok(())
}

/// Returns an alert that a statement has just closed. The caller adds its task or receiver.
pub fn closed_alert(row: &impl Columns, now: Timestamp) -> Result<AlertNotice, StoreError> {
    let (kind, message): (String, String) = (row.get("kind")?, row.get("message")?);
    let raised = AlertNotice::raised(row.get("id")?, &kind, &message, row.get("raised_at")?);
    Ok(raised.closed(now))
}
