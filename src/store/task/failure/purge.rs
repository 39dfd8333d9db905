//! Moves the counts of old quarters to the rows of their causes, and deletes causes that have not occurred for a long time.

use std::collections::BTreeMap;

use super::{QUARTERS, quarter_of};
use crate::{
    domain::values::Timestamp,
    store::{
        Reader, StoreError, Transaction,
        rows::{Columns, Row},
        statement::Statement,
    },
};

/// The number of days for which a cause is kept after its last failure.
const KEPT_DAYS: i64 = 90;
const DAY_MILLIS: i64 = 86_400_000;

/// The quarters before the listed ones that are still counted apart: an instance whose clock is late may add to them.
const LATE_QUARTERS: i64 = 8;

/// Relies on failure_quarters_by_quarter.
const TAKE: &str = r#"
DELETE FROM failure_quarters
WHERE (fingerprint, quarter, shard) IN (
    SELECT fingerprint, quarter, shard FROM failure_quarters WHERE quarter < $1 ORDER BY quarter LIMIT $2)
RETURNING fingerprint, failures, last_at"#;

const ADD_OLD: &str = r#"
UPDATE failure_causes
SET failures = failures + $2, last_at = CASE WHEN last_at < $3 THEN $3 ELSE last_at END
WHERE fingerprint = $1"#;

/// Relies on failure_causes_by_last, and on the keys of the other tables. A cause with counts is not deleted.
const PURGE: &str = r#"
DELETE FROM failure_causes
WHERE fingerprint IN (
    SELECT fingerprint FROM failure_causes AS old
    WHERE last_at < $1
      AND NOT EXISTS (SELECT 1 FROM failure_quarters WHERE failure_quarters.fingerprint = old.fingerprint)
      AND NOT EXISTS (
          SELECT 1 FROM alerts
          WHERE alerts.fingerprint = old.fingerprint AND alerts.fingerprint IS NOT NULL AND alerts.state <> 'closed')
    ORDER BY last_at LIMIT $2)"#;

/// Relies on failure_quarters_by_quarter and failure_causes_by_last.
const ANY: &str = r#"
SELECT 1 AS one WHERE EXISTS (SELECT 1 FROM failure_quarters WHERE quarter < $1)
    OR EXISTS (SELECT 1 FROM failure_causes WHERE last_at < $2)"#;

#[cfg(test)]
pub(super) const STATEMENTS: [&str; 4] = [TAKE, ADD_OLD, PURGE, ANY];

/// Returns the first quarter whose counts are not moved yet.
fn oldest_quarter(now: Timestamp) -> i64 {
    quarter_of(now) - QUARTERS as i64 - LATE_QUARTERS
}

/// Returns the time, in milliseconds, before which a cause must have occurred last to be deleted.
fn kept_from(now: Timestamp) -> i64 {
    now.as_millis() - KEPT_DAYS * DAY_MILLIS
}

impl Reader {
    /// Returns whether a purge of failures may have something to do.
    pub async fn has_old_failures(&self) -> Result<bool, StoreError> {
        let now = self.now().await?;
        let any = Statement::new(ANY)
            .bind(oldest_quarter(now))
            .bind(kept_from(now));
        let any = self.first(any, |_: &Row| Ok(()));
        Ok(any.await?.is_some())
    }
}

impl Transaction<'_> {
    /// Does a part of the work, and returns the number of rows that it deleted: at most `limit` of each table.
    pub async fn purge_failures(&mut self, limit: usize) -> Result<u64, StoreError> {
        self.lock_out_of_order();
        let now = self.now();
        let take = Statement::new(TAKE).bind(oldest_quarter(now)).bind(limit);
        let taken = self.fetch(take).await?;
        let mut by_cause: BTreeMap<String, (u64, Timestamp)> = BTreeMap::new();
        for row in &taken {
            let (failures, last_at): (u64, Timestamp) = (row.get("failures")?, row.get("last_at")?);
            let old = by_cause.entry(row.get("fingerprint")?);
            let old = old.or_insert((0, last_at));
            old.0 += failures;
            old.1 = old.1.max(last_at);
        }
        for (fingerprint, (failures, last_at)) in by_cause {
            let add = Statement::new(ADD_OLD)
                .bind(fingerprint)
                .bind(failures)
                .bind(last_at);
            self.run(add).await?;
        }
        let purge = Statement::new(PURGE).bind(kept_from(now)).bind(limit);
        Ok(taken.len() as u64 + self.execute(purge).await?)
    }
}
