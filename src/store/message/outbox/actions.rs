//! Actions of operators on messages: each message is redelivered or discarded if its state allows that.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::destinations;
use crate::{
    domain::{
        message::{MessageAction, MessageEvent, MessageStatus, StoredMessage, destination_of},
        view::{ChangeOrigin, LedgerRecord, LedgerSubject},
    },
    store::{
        MessageId, MessageState, StoreError, Transaction, rows::Columns, statement::Statement,
    },
};

const REQUEUE: &str = r#"
UPDATE messages SET state = 'pending', tries = 0, error = NULL, pending_since = $2
WHERE id = $1 AND state = 'dead'"#;

const DISCARD: &str = "DELETE FROM messages WHERE id = $1 AND state = 'dead'";

const LOCATE: &str = "SELECT receiver, subject, url FROM messages WHERE id = $1";

/// Relies on the primary key and on messages_in_queue.
const STATUS: &str = r#"
SELECT messages.state, queues.locked_by, coalesce(queues.due_at, 0) AS due_at,
       CAST(coalesce(queues.waiting, 0) AS bigint) AS waiting,
       CAST(CASE WHEN id = (SELECT head.id FROM messages AS head
                            WHERE head.receiver = messages.receiver AND head.subject = messages.subject
                              AND head.state = 'pending'
                            ORDER BY head.place, head.id LIMIT 1) THEN 1 ELSE 0 END AS bigint) AS is_first
FROM messages
LEFT JOIN queues ON queues.receiver = messages.receiver AND queues.subject = messages.subject
WHERE id = $1"#;

/// After this statement the queue exists and is locked.
const ADD_TO_QUEUE: &str = r#"
INSERT INTO queues (receiver, subject, due_at, destination, waits_since, tries) VALUES ($1, $2, $3, $4, $3, 0)
ON CONFLICT (receiver, subject) DO UPDATE SET tries = queues.tries"#;

/// Makes the next attempt due now at the request of an operator, and the queue the first of its backlog.
const EXPEDITE: &str = r#"
UPDATE queues SET due_at = CASE waiting WHEN 0 THEN $3 ELSE 0 END
WHERE receiver = $1 AND subject = $2 AND locked_by IS NULL"#;

async fn status(
    tx: &mut Transaction<'_>,
    id: MessageId,
) -> Result<Option<MessageStatus>, StoreError> {
    let found = tx.fetch(Statement::new(STATUS).bind(id.0)).await?;
    let Some(row) = found.first() else {
        return Ok(None);
    };
    let stored = StoredMessage {
        is_dead: row.get::<MessageState>("state")? == MessageState::Dead,
        is_first: row.get::<i64>("is_first")? > 0,
        is_claimed: row.text("locked_by")?.is_some(),
        in_backlog: row.get::<i64>("waiting")? > 0,
        due_at: row.get("due_at")?,
    };
    Ok(Some(stored.status(tx.now())))
}

/// Returns the messages that exist and whose state allows the action.
pub async fn apply(
    tx: &mut Transaction<'_>,
    action: MessageAction,
    ids: &[MessageId],
    origin: &ChangeOrigin,
) -> Result<Vec<MessageId>, StoreError> {
    let now = tx.now();
    let mut located = Vec::with_capacity(ids.len());
    for id in ids {
        for row in tx.fetch(Statement::new(LOCATE).bind(id.0)).await? {
            let (receiver, subject): (_, Uuid) = (row.get("receiver")?, row.get("subject")?);
            let destination = destination_of(&receiver, row.text("url")?.as_deref());
            located.push((receiver, subject, destination, *id));
        }
    }
    // The queues are in one order, so that instances cannot deadlock.
    located.sort_unstable_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
    let mut done = Vec::with_capacity(located.len());
    let mut expedited = BTreeSet::new();
    for (receiver, subject, destination, id) in located {
        let queue = |sql: &str| Statement::new(sql).bind(&receiver).bind(subject).bind(now);
        if action == MessageAction::Redeliver {
            let lock = queue(ADD_TO_QUEUE).bind(&destination);
            tx.execute(lock).await?;
        }
        let status = status(tx, id).await?;
        let change = status.and_then(|status| status.after(MessageEvent::Action(action)));
        let Some(change) = change else { continue };
        let has_changed = match (change.from, change.to) {
            (_, MessageStatus::Discarded) => {
                tx.execute(Statement::new(DISCARD).bind(id.0)).await? > 0
            }
            (MessageStatus::Dead, _) => {
                let requeue = Statement::new(REQUEUE).bind(id.0).bind(now);
                let is_requeued = tx.execute(requeue).await? > 0;
                tx.execute(queue(EXPEDITE)).await? > 0 || is_requeued
            }
            _ => tx.execute(queue(EXPEDITE)).await? > 0,
        };
        if has_changed {
            done.push(id);
            if change.to.is_pending() {
                expedited.insert(destination);
            }
        }
    }
    for destination in &expedited {
        destinations::expedite(tx, destination).await?;
    }
    let kind = match action {
        MessageAction::Redeliver => "message.redelivered",
        MessageAction::Discard => "message.discarded",
    };
    let record = |id: &MessageId| LedgerRecord::new(kind, LedgerSubject::Message, id.0, origin);
    let records: Vec<_> = done.iter().map(record).collect();
    tx.add_records(&records).await?;
    Ok(done)
}
