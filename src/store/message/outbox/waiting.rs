//! The bytes of waiting messages, by receiver.

use crate::{domain::task::AlertKind, store::statement::Statement};

/// Relies on messages_in_queue to find waiting messages. The length of a body is known without reading it.
const WAITING: &str = r#"
SELECT receiver, CAST(sum(octet_length(body)) AS bigint) AS bytes FROM messages
WHERE state = 'pending'
GROUP BY receiver HAVING sum(octet_length(body)) > $1"#;

const ALERTS: &str =
    "SELECT receiver FROM alerts WHERE receiver IS NOT NULL AND state <> 'closed' AND kind = $1";

pub fn waiting_bytes(least: u64) -> Statement {
    Statement::new(WAITING).bind(i64::try_from(least).unwrap_or(i64::MAX))
}

pub fn alerts_of_waiting() -> Statement {
    Statement::new(ALERTS).bind(AlertKind::MessagesWaiting.as_str())
}
