//! Messages: listed, deleted, marked as dead and purged.

use uuid::Uuid;

use crate::{
    domain::values::Timestamp,
    store::{
        MessageQuery, MessageRecord, MessageState, StoreError, Transaction, rows::Columns,
        statement::Statement,
    },
};

const DELETE: &str = "DELETE FROM messages WHERE id = $1";

const MARK_DEAD: &str = r#"
UPDATE messages SET state = 'dead', tries = $2, error = $3, died_at = $4
WHERE id = $1 AND state = 'pending'"#;

/// Relies on messages_died.
const PURGE_DEAD: &str = r#"
DELETE FROM messages
WHERE id IN (SELECT id FROM messages
             WHERE died_at IS NOT NULL AND died_at < $1 AND state = 'dead'
             ORDER BY died_at LIMIT $2)"#;

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
            // The condition is complete, so that the planner finds the index that covers it.
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
    tx.run(Statement::new(DELETE).bind(message)).await
}

/// Returns false if the message does not exist or is dead already.
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
