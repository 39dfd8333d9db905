//! Messages: saved, listed, marked as dead, redelivered, discarded and purged.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::{
    destinations,
    queues::{ADD_TO_QUEUE, EXPEDITE},
};
use crate::{
    domain::{
        MessageAction, MessageEvent, MessageStatus, StoredMessage, Timestamp, destination_of,
    },
    store::{
        MessageId, MessageQuery, MessageRecord, MessageState, StoreError, Transaction,
        rows::Columns, statement::Statement,
    },
};

const DELETE: &str = "DELETE FROM messages WHERE id = $1";

const MARK_DEAD: &str = r#"
UPDATE messages SET state = 'dead', tries = $2, error = $3, died_at = $4
WHERE id = $1 AND state = 'pending'"#;

const REQUEUE: &str = r#"
UPDATE messages SET state = 'pending', tries = 0, error = NULL, pending_since = $2
WHERE id = $1 AND state = 'dead'"#;

const DISCARD: &str = "DELETE FROM messages WHERE id = $1 AND state = 'dead'";

/// Relies on messages_died.
const PURGE_DEAD: &str = r#"
DELETE FROM messages
WHERE id IN (SELECT id FROM messages
             WHERE died_at IS NOT NULL AND died_at < $1 AND state = 'dead'
             ORDER BY died_at LIMIT $2)"#;

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

/// Relies on the primary key, or for dead letters of one receiver on messages_died_by_receiver.
const LIST: &str = r#"
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

pub fn messages(query: &MessageQuery) -> Statement {
    let body = if query.with_body {
        "body"
    } else {
        "NULL AS body"
    };
    let mut statement = Statement::new(LIST.replace("{body}", body));
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
    Ok(MessageRecord {
        id: row.get("id")?,
        receiver: row.get("receiver")?,
        task: row.get("task_id")?,
        kind: row.get("kind")?,
        url: row.get("url")?,
        body: row.get("body")?,
        state: row.get("state")?,
        created_at: row.get("created_at")?,
        tries: row.get("tries")?,
        error: row.get("error")?,
        next_try_at: row.get("due_at")?,
        died_at: row.get("died_at")?,
    })
}

pub async fn delete(tx: &mut Transaction<'_>, message: Uuid) -> Result<(), StoreError> {
    tx.execute(Statement::new(DELETE).bind(message)).await?;
    Ok(())
}

/// Returns false if the message is not there or dead already.
pub async fn mark_dead(
    tx: &mut Transaction<'_>,
    message: Uuid,
    tries: u32,
    reason: &str,
) -> Result<bool, StoreError> {
    let mark_dead = Statement::new(MARK_DEAD)
        .bind(message)
        .bind(tries)
        .bind(reason)
        .bind(tx.now());
    Ok(tx.execute(mark_dead).await? > 0)
}

pub async fn purge_dead(
    tx: &mut Transaction<'_>,
    died_before: Timestamp,
    limit: usize,
) -> Result<u64, StoreError> {
    let purge = Statement::new(PURGE_DEAD).bind(died_before).bind(limit);
    tx.execute(purge).await
}

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
    // In one order, so that instances do not wait for each other in a circle.
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
    Ok(done)
}
