//! The token buckets of rate limits that instances share.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;

use crate::domain::{
    queue::RateBucket,
    values::{AgentName, RateLimitSpec},
};
use crate::store::{
    Store, StoreError, Transaction,
    rows::{Columns, Row},
    statement::Statement,
};

const BUCKET: &str = "SELECT full_at FROM rate_buckets WHERE agent = $1";

const ADD: &str = r#"
INSERT INTO rate_buckets (agent, full_at) VALUES ($1, $2)
ON CONFLICT (agent) DO NOTHING"#;

/// Changes nothing if another instance has taken from the bucket since it was read.
const TAKE: &str = "UPDATE rate_buckets SET full_at = $3 WHERE agent = $1 AND full_at = $2";

/// The calls that an instance may make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantedCalls {
    pub calls: u32,
    /// The time after which there may be more calls.
    pub next_in: Duration,
}

impl Store {
    /// Takes all tokens that the buckets of these agents have, for this instance. Each agent is named once.
    pub async fn grant_calls(
        &self,
        mut wanted: Vec<(AgentName, RateLimitSpec)>,
    ) -> Result<Vec<(AgentName, GrantedCalls)>, StoreError> {
        // The agents are in one order, so that instances cannot deadlock.
        wanted.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let wanted = Arc::new(wanted);
        self.send_write(true, None, move |tx| {
            let wanted = wanted.clone();
            async move {
                tx.lock_out_of_order();
                let mut granted = Vec::with_capacity(wanted.len());
                for (agent, limit) in &*wanted {
                    granted.push((agent.clone(), grant(tx, agent, limit).await?));
                }
                Ok(granted)
            }
            .boxed()
        })
        .await
    }
}

async fn grant(
    tx: &mut Transaction<'_>,
    agent: &AgentName,
    limit: &RateLimitSpec,
) -> Result<GrantedCalls, StoreError> {
    let now = tx.now().as_millis().saturating_mul(1_000_000);
    let row = tx.fetch_first(Statement::new(BUCKET).bind(agent)).await?;
    let full_at = |row: &Row| row.get::<i64>("full_at");
    let before = row.as_ref().map(full_at).transpose()?;
    let mut bucket = before.map_or_else(|| RateBucket::empty(limit, now), RateBucket);
    let calls = bucket.take(limit, now, limit.burst());
    let write = match before {
        None => Some(Statement::new(ADD).bind(agent).bind(bucket.0)),
        // A lower rate, or a clock that was ahead, may also have left the bucket emptier than empty.
        Some(before) if calls > 0 || bucket.0 < before => {
            Some(Statement::new(TAKE).bind(agent).bind(before).bind(bucket.0))
        }
        Some(_) => None,
    };
    if let Some(write) = write
        && tx.execute(write).await? == 0
    {
        let reason = format!("calls of agent {agent} were granted to another instance meanwhile");
        return Err(StoreError::Retryable(reason));
    }
    let next_in = Duration::from_nanos(bucket.next_in(limit, now).unsigned_abs());
    Ok(GrantedCalls { calls, next_in })
}
