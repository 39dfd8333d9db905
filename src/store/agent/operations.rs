//! Operations of services that are polled: an operator who stops an endpoint must know how many began there.

use std::sync::Arc;

use crate::domain::{
    task::SavedReplies,
    values::{AgentName, WebAddress},
};
use crate::store::{
    Reader, StoreError,
    rows::{Columns, Row},
    statement::Statement,
};

/// Relies on steps_awaited and steps_processing, and reads each of their steps, which are only those in flight. A step
/// whose operation is polled is due at some time, or an instance holds it to poll; a step whose service replies by
/// itself is not due.
const OPERATIONS: &str = r#"
SELECT reply FROM {awaited}
WHERE state = 'processing' AND locked_by IS NULL AND agent <> '' AND due_at IS NOT NULL AND agent = $1
  AND reply IS NOT NULL
UNION ALL
SELECT reply FROM {held}
WHERE state = 'processing' AND locked_by IS NOT NULL AND agent = $1 AND reply IS NOT NULL
LIMIT $2"#;

/// The operations of an agent that were read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Operations {
    /// The addresses at which the operations are polled or cancelled, except operations whose step repeats its own
    /// request instead.
    addresses: Vec<Arc<str>>,
    /// True if there may be more operations.
    pub is_at_least: bool,
}

impl Operations {
    /// Returns how many operations are at the endpoint with this URL: an operation belongs to the origin that named it.
    pub fn at(&self, endpoint: &str) -> usize {
        let origin = |url: &str| WebAddress::parse(url).ok().map(|address| address.origin);
        let Some(endpoint) = origin(endpoint) else {
            return 0;
        };
        let addresses = self.addresses.iter();
        addresses
            .filter(|address| origin(address).as_ref() == Some(&endpoint))
            .count()
    }
}

impl Reader {
    /// Returns the operations of an agent, reading at most `limit` of them.
    pub async fn operations(
        &self,
        agent: &AgentName,
        limit: usize,
    ) -> Result<Operations, StoreError> {
        let awaited = self.source.by_index("steps", "steps_awaited");
        let held = self.source.by_index("steps", "steps_processing");
        let sql = OPERATIONS
            .replace("{awaited}", &awaited)
            .replace("{held}", &held);
        let statement = Statement::new(sql).bind(agent).bind(limit);
        let address = |row: &Row| {
            let replies: Option<String> = row.get("reply")?;
            // A damaged record has an alert of its own.
            let replies = replies.and_then(|json| serde_json::from_str::<SavedReplies>(&json).ok());
            let open = replies.and_then(|replies| replies.open);
            let poll = open.and_then(|(open, _)| open.poll);
            Ok(poll.and_then(|poll| poll.address))
        };
        let found = self.all(statement, address).await?;
        Ok(Operations {
            is_at_least: found.len() >= limit,
            addresses: found.into_iter().flatten().collect(),
        })
    }
}
