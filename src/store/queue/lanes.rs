//! Lanes of the queues that are divided by keys, and the token buckets of the keys.

use std::{collections::HashMap, sync::Arc};

use crate::domain::{
    definition::KeyLimit,
    queue::{LimitedKey, QueuedStep, RateBucket},
    values::{AgentName, StepRef},
};
use crate::store::{
    Reader, StoreError, Transaction,
    error::corrupt,
    rows::{self, Columns, Row},
    statement::Statement,
};

/// Relies on steps_line, along which it goes from one lane to the next, even if the lanes are long. `{from}` is the
/// comparison of the first lane with $2.
const LANES: &str = r#"
WITH RECURSIVE found (lane, place) AS (
    SELECT (SELECT lane FROM steps
            WHERE agent = $1 AND due_at IS NOT NULL AND queued = 1 AND lane {from} $2
            ORDER BY lane LIMIT 1), 1
    UNION ALL
    SELECT (SELECT lane FROM steps
            WHERE agent = $1 AND due_at IS NOT NULL AND queued = 1 AND lane > found.lane
            ORDER BY lane LIMIT 1), place + 1
    FROM found WHERE lane IS NOT NULL AND place < $3)"#;

const FOUND_LANES: &str = "SELECT lane FROM found WHERE lane IS NOT NULL";

/// Follows [`LANES`], and reads no more of a lane than it counts.
const COUNTED_LANES: &str = r#"
SELECT lane, (
    SELECT count(*) FROM (
        SELECT 1 FROM steps
        WHERE agent = $1 AND due_at IS NOT NULL AND queued = 1 AND steps.lane = found.lane LIMIT $4) AS queued) AS count
FROM found WHERE lane IS NOT NULL"#;

/// Relies on steps_in_lane.
const RUNNING: &str = r#"
SELECT lane, count(*) AS count FROM steps
WHERE agent = $1 AND state = 'processing' AND lane <> ''{lanes} GROUP BY lane"#;

const RATES: &str = r#"SELECT "key", full_at FROM key_rates WHERE agent = $1 AND "key" {keys}"#;

const SET_RATE: &str = r#"
INSERT INTO key_rates (agent, "key", full_at) VALUES ($1, $2, $3)
ON CONFLICT (agent, "key") DO UPDATE SET full_at = excluded.full_at"#;

/// Deletes buckets that have been full for [`KEPT_FULL`] nanoseconds, because a missing bucket counts as full.
const FORGET_RATES: &str = "DELETE FROM key_rates WHERE agent = $1 AND full_at < $2";
const KEPT_FULL: i64 = 60_000_000_000;

/// Moves a step in the queue of this agent that is in the wrong lane, or in none.
const MOVE: &str = r#"
UPDATE steps SET lane = $3 WHERE task_id = $1 AND idx = $2 AND due_at IS NOT NULL AND queued = 1"#;

/// The numbers of lanes that one statement reads, so that a database prepares few forms of it.
const LANES_AT_ONCE: [usize; 4] = [1, 4, 16, 64];

const FORGET_ALL_RATES: &str = "DELETE FROM key_rates WHERE agent = $1";

/// The first steps of one lane.
#[derive(Debug)]
pub struct LaneHead {
    pub steps: Vec<QueuedStep>,
}

impl Transaction<'_> {
    /// Returns whether this transaction has the lock of the agent's lanes. No other instance claims from them until it
    /// ends, so the running steps can be counted.
    pub async fn lock_lanes(&mut self, agent: &AgentName) -> Result<bool, StoreError> {
        self.try_lock(format!("lanes of {agent}")).await
    }

    /// Returns up to `most` lanes with queued steps, after the lane `after`.
    pub async fn lanes(
        &mut self,
        agent: &AgentName,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Arc<str>>, StoreError> {
        self.lock_out_of_order();
        let from = if after.is_some() { ">" } else { ">=" };
        let lanes = Statement::new(format!("{}{FOUND_LANES}", LANES.replace("{from}", from)))
            .bind(agent)
            .bind(after.unwrap_or_default())
            .bind(limit);
        let found = self.fetch(lanes).await?;
        found.iter().map(|row| row.get("lane")).collect()
    }

    /// Returns how many steps run in these lanes of an agent, or in all lanes.
    pub async fn running_in_lanes(
        &mut self,
        agent: &AgentName,
        lanes: Option<&[String]>,
    ) -> Result<HashMap<String, u32>, StoreError> {
        let running = running(self.dialect().is_one_of, agent, lanes)?;
        counts(&self.fetch(running).await?)
    }

    /// Returns the first steps of each of these lanes, up to the number that is given with it.
    pub async fn lane_heads(
        &mut self,
        agent: &AgentName,
        lanes: &[(Arc<str>, usize)],
    ) -> Result<Vec<LaneHead>, StoreError> {
        self.lock_out_of_order();
        let mut heads = Vec::with_capacity(lanes.len());
        let mut rest = lanes;
        while !rest.is_empty() {
            let size = LANES_AT_ONCE.into_iter().find(|size| rest.len() <= *size);
            let size = size.unwrap_or(LANES_AT_ONCE[LANES_AT_ONCE.len() - 1]);
            let (asked, later) = rest.split_at(size.min(rest.len()));
            rest = later;
            let mut statement = Statement::new("").bind(agent);
            for at in 0..size {
                let (lane, limit) = asked
                    .get(at)
                    .map_or(("", 0), |(lane, limit)| (lane, *limit));
                let (number, union) = (2 * at + 2, if at > 0 { "\nUNION ALL\n" } else { "" });
                let one = self
                    .dialect()
                    .queued_in_lane
                    .replace("{place}", &at.to_string());
                let one = one.replace("{lane}", &format!("${number}"));
                let one = one.replace("{limit}", &format!("${}", number + 1));
                statement
                    .sql
                    .push_str(&format!("{union}SELECT * FROM ({one}) AS lane_{at}"));
                statement = statement.bind(lane).bind(limit);
            }
            let found = self.fetch(statement).await?;
            let mut of_each: Vec<Vec<QueuedStep>> = vec![Vec::new(); asked.len()];
            for row in &found {
                let place: usize = row.get("place")?;
                let of_lane = of_each
                    .get_mut(place)
                    .ok_or_else(|| corrupt("a lane too many"))?;
                of_lane.push(rows::queued_step(row)?);
            }
            heads.extend(of_each.into_iter().map(|steps| LaneHead { steps }));
        }
        Ok(heads)
    }

    /// Moves a queued step to another lane. As for a promotion, the version of its task stays.
    pub async fn move_to_lane(&mut self, step: StepRef, lane: &str) -> Result<(), StoreError> {
        self.lock_out_of_order();
        let step = Statement::new(MOVE).bind(step.task).bind(step.step);
        self.run(step.bind(lane)).await
    }

    /// Returns the buckets of these keys. A key without a bucket has a full one.
    pub async fn key_rates(
        &mut self,
        agent: &AgentName,
        keys: &[LimitedKey],
    ) -> Result<HashMap<LimitedKey, RateBucket>, StoreError> {
        let rates = rates(self.dialect().is_one_of, agent, keys)?;
        buckets(&self.fetch(rates).await?, keys)
    }

    pub async fn set_key_rate(
        &mut self,
        agent: &AgentName,
        key: &LimitedKey,
        bucket: RateBucket,
    ) -> Result<(), StoreError> {
        let set = Statement::new(SET_RATE)
            .bind(agent)
            .bind(stored_key(key))
            .bind(bucket.0);
        self.run(set).await
    }

    /// Deletes buckets that have no effect any more. This requires the lock of the lanes.
    pub async fn forget_key_rates(&mut self, agent: &AgentName) -> Result<(), StoreError> {
        let before = self.now().as_millis().saturating_mul(1_000_000) - KEPT_FULL;
        self.run(Statement::new(FORGET_RATES).bind(agent).bind(before))
            .await
    }
}

/// The used part of the limits of keys.
#[derive(Debug)]
pub struct KeyUsage {
    /// The number of running steps, by lane.
    pub running: HashMap<String, u32>,
    pub buckets: HashMap<LimitedKey, RateBucket>,
}

/// Deletes all buckets of an agent whose keys have no rate any more.
pub(in crate::store) async fn forget_rates(
    tx: &mut Transaction<'_>,
    agent: &AgentName,
) -> Result<(), StoreError> {
    tx.run(Statement::new(FORGET_ALL_RATES).bind(agent)).await
}

impl Reader {
    /// `lanes` are the lanes in which running steps are counted; `None` means all.
    pub async fn key_usage(
        &self,
        agent: &AgentName,
        lanes: Option<&[String]>,
        keys: &[LimitedKey],
    ) -> Result<KeyUsage, StoreError> {
        let is_one_of = self.source.is_one_of();
        let running = self.fetch(running(is_one_of, agent, lanes)?).await?;
        let buckets = match keys.is_empty() {
            true => HashMap::new(),
            false => buckets(&self.fetch(rates(is_one_of, agent, keys)?).await?, keys)?,
        };
        Ok(KeyUsage {
            running: counts(&running)?,
            buckets,
        })
    }

    /// Returns the first `most` lanes with queued steps, each with their number, which is counted up to `limit`.
    pub async fn lanes(
        &self,
        agent: &AgentName,
        most: usize,
        limit: usize,
    ) -> Result<Vec<(String, u64)>, StoreError> {
        let statement = Statement::new(format!("{}{COUNTED_LANES}", LANES.replace("{from}", ">=")));
        let lanes = statement.bind(agent).bind("").bind(most).bind(limit);
        self.all(lanes, |row: &Row| Ok((row.get("lane")?, row.get("count")?)))
            .await
    }
}

fn running(
    is_one_of: &str,
    agent: &AgentName,
    lanes: Option<&[String]>,
) -> Result<Statement, StoreError> {
    let Some(lanes) = lanes else {
        return Ok(Statement::new(RUNNING.replace("{lanes}", "")).bind(agent));
    };
    let one_of = format!(" AND lane {}", is_one_of.replace('?', "$2"));
    let lanes = serde_json::to_string(lanes).map_err(corrupt)?;
    Ok(Statement::new(RUNNING.replace("{lanes}", &one_of))
        .bind(agent)
        .bind(lanes))
}

fn counts(found: &[Row]) -> Result<HashMap<String, u32>, StoreError> {
    let count = |row: &Row| Ok((row.get("lane")?, row.get("count")?));
    found.iter().map(count).collect()
}

fn rates(is_one_of: &str, agent: &AgentName, keys: &[LimitedKey]) -> Result<Statement, StoreError> {
    let stored: Vec<_> = keys.iter().map(stored_key).collect();
    let stored = serde_json::to_string(&stored).map_err(corrupt)?;
    let sql = RATES.replace("{keys}", &is_one_of.replace('?', "$2"));
    Ok(Statement::new(sql).bind(agent).bind(stored))
}

fn buckets(
    found: &[Row],
    keys: &[LimitedKey],
) -> Result<HashMap<LimitedKey, RateBucket>, StoreError> {
    let mut buckets = HashMap::new();
    for row in found {
        let stored: String = row.get("key")?;
        if let Some(key) = keys.iter().find(|key| stored_key(key) == stored) {
            buckets.insert(key.clone(), RateBucket(row.get("full_at")?));
        }
    }
    Ok(buckets)
}

fn stored_key(key: &LimitedKey) -> String {
    format!("{}:{}", key.limit, key.key)
}

/// Returns how many steps may begin by the rate of each of these keys, and the wait, in nanoseconds, until the first
/// key without room has room again.
pub fn may_begin<'k>(
    limits: impl Iterator<Item = (&'k LimitedKey, &'k KeyLimit)>,
    buckets: &HashMap<LimitedKey, RateBucket>,
    now: i64,
) -> (HashMap<LimitedKey, u32>, Option<i64>) {
    let mut next_in: Option<i64> = None;
    let mut begin = HashMap::new();
    for (key, limit) in limits {
        let Some(spec) = limit.rate_limit() else {
            continue;
        };
        let bucket = buckets.get(key).copied().unwrap_or(RateBucket(0));
        let available = bucket.available(&spec, now);
        if available == 0 {
            let wait = bucket.next_in(&spec, now);
            next_in = Some(next_in.map_or(wait, |other| other.min(wait)));
        }
        begin.insert(key.clone(), available);
    }
    (begin, next_in)
}
