//! The statements of [`Store::maintain_causes`] and [`Store::purge_causes`], which keep the alerts of causes up to
//! date.
//!
//! [`Store::maintain_causes`]: crate::store::Store::maintain_causes
//! [`Store::purge_causes`]: crate::store::Store::purge_causes

use std::collections::BTreeSet;

use uuid::Uuid;

use super::notice;
use crate::{
    domain::{
        message::{CauseVersion, Sender},
        values::Timestamp,
    },
    store::{
        COUNTED_AT_ONCE, Reader, StoreError, Transaction,
        rows::{Columns, Row},
        statement::Statement,
    },
};

/// Relies on alerts_unclosed_of_cause.
const ANY_UNCLOSED: &str = r#"
SELECT id FROM alerts WHERE cause IS NOT NULL AND state <> 'closed' ORDER BY kind, cause LIMIT 1"#;

/// The most steps of one cause that are counted.
const COUNTED_AT_MOST: u64 = 1_000_000;

/// The number of alerts of causes that the upkeep reads in one round.
const PAGE: usize = 100;

/// Relies on alerts_unclosed_parts.
pub(super) const COUNT: &str = r#"
SELECT count(*) AS count FROM (
    SELECT 1 AS one FROM alerts
    WHERE part_of = $1 AND part_of IS NOT NULL AND state <> 'closed' LIMIT $2) AS counted"#;

pub(super) const UPDATE: &str = r#"
UPDATE alerts SET members = $2, peak = CASE WHEN peak < $2 THEN $2 ELSE peak END, counted_at = $3, announced = $4
WHERE id = $1 AND state <> 'closed' AND announced <= $4
RETURNING id, kind, message, raised_at, agent, cause, first, members AS count"#;

/// Relies on alerts_unclosed_of_cause and alerts_unclosed_parts.
pub(super) const UNCLOSED: &str = r#"
SELECT id, kind, cause, members, announced, counted_at, (
    SELECT count(*) FROM (
        SELECT 1 AS one FROM alerts AS part
        WHERE part.part_of = alerts.id AND part.part_of IS NOT NULL AND part.state <> 'closed' LIMIT $1) AS counted)
    AS count
FROM alerts WHERE cause IS NOT NULL AND state <> 'closed' AND (kind, cause) > ($2, $3)
ORDER BY kind, cause LIMIT $4"#;

/// Relies on alerts_closed_of_cause and alerts_parts.
pub(super) const CLOSED: &str = r#"
SELECT id, closed_at, (
    SELECT count(*) FROM (
        SELECT 1 AS one FROM alerts AS part
        WHERE part.part_of = alerts.id AND part.part_of IS NOT NULL LIMIT 1) AS counted) AS parts
FROM alerts WHERE cause IS NOT NULL AND state = 'closed' AND (closed_at, id) > ($1, $2)
ORDER BY closed_at, id LIMIT $3"#;

/// Relies on alerts_parts. The rows of steps are deleted with their tasks.
pub(super) const PURGE: &str = r#"
DELETE FROM alerts WHERE id = $1 AND cause IS NOT NULL AND state = 'closed' AND NOT EXISTS (
    SELECT 1 FROM alerts AS part WHERE part.part_of = $1 AND part.part_of IS NOT NULL)"#;

/// An unclosed alert of a cause, with the data that the upkeep needs.
#[derive(Clone, Debug)]
pub struct UnclosedCause {
    pub id: Uuid,
    kind: String,
    cause: String,
    /// The number of steps, up to [`COUNTED_AT_ONCE`].
    pub count: u64,
    /// The number of steps at the last time when all were counted.
    pub members: u64,
    pub announced: u64,
    pub counted_at: Option<Timestamp>,
}

/// The position of the upkeep among the alerts of causes, which may be more than it reads in one round. The default is
/// their beginning.
#[derive(Clone, Debug, Default)]
pub struct CausesSeen {
    /// The kind and the cause of the last unclosed alert.
    unclosed: Option<(String, String)>,
    /// The end and the id of the last closed alert.
    closed: Option<(Timestamp, Uuid)>,
}

impl CausesSeen {
    /// Begins again at the first alert, because no unclosed one is left.
    pub fn begin_again(&mut self) {
        self.unclosed = None;
    }

    /// Returns whether unclosed alerts are left for the next round.
    pub fn has_more_unclosed(&self) -> bool {
        self.unclosed.is_some()
    }
}

/// Returns the cursor after a page, unless it was the last.
fn cursor<T, C>(page: &[T], of: impl Fn(&T) -> C) -> Option<C> {
    page.get(PAGE - 1).map(of)
}

impl Reader {
    /// Returns whether there is an unclosed alert of a cause. The statement reads one row, and mostly there is none.
    pub async fn has_unclosed_cause(&self) -> Result<bool, StoreError> {
        let any = self.first(Statement::new(ANY_UNCLOSED), |_: &Row| Ok(()));
        Ok(any.await?.is_some())
    }

    pub async fn unclosed_causes(
        &self,
        seen: &mut CausesSeen,
    ) -> Result<(Vec<UnclosedCause>, Timestamp), StoreError> {
        let (kind, cause) = seen.unclosed.take().unwrap_or_default();
        let statement = Statement::new(UNCLOSED)
            .bind(COUNTED_AT_ONCE)
            .bind(kind)
            .bind(cause)
            .bind(PAGE);
        let found = self.fetch_along_indexes(statement).await?;
        let causes = found.iter().map(|row| {
            Ok(UnclosedCause {
                id: row.get("id")?,
                kind: row.get("kind")?,
                cause: row.get("cause")?,
                count: row.get("count")?,
                members: row.get("members")?,
                announced: row.get("announced")?,
                counted_at: row.get("counted_at")?,
            })
        });
        let causes = causes.collect::<Result<Vec<_>, StoreError>>()?;
        seen.unclosed = cursor(&causes, |last| (last.kind.clone(), last.cause.clone()));
        Ok((causes, self.now().await?))
    }

    /// Returns those of the next closed alerts of causes whose tasks have all been deleted.
    pub async fn causes_to_purge(&self, seen: &mut CausesSeen) -> Result<Vec<Uuid>, StoreError> {
        let (closed_at, id) = seen
            .closed
            .take()
            .unwrap_or((Timestamp::from_millis(0), Uuid::nil()));
        let statement = Statement::new(CLOSED).bind(closed_at).bind(id).bind(PAGE);
        let found = self.fetch_along_indexes(statement).await?;
        let closed = found.iter().map(|row| {
            let parts: u64 = row.get("parts")?;
            Ok((row.get("closed_at")?, row.get("id")?, parts))
        });
        let closed: Vec<(Timestamp, Uuid, u64)> = closed.collect::<Result<_, StoreError>>()?;
        seen.closed = cursor(&closed, |(closed_at, id, _)| (*closed_at, *id));
        let without = closed.into_iter().filter(|(_, _, parts)| *parts == 0);
        Ok(without.map(|(_, id, _)| id).collect())
    }

    /// Counts the steps in error for a cause.
    pub async fn count_of_cause(&self, id: Uuid) -> Result<u64, StoreError> {
        let statement = Statement::new(COUNT).bind(id).bind(COUNTED_AT_MOST);
        let counted = self.fetch_along_indexes(statement).await?;
        counted.first().map_or(Ok(0), |row| row.get("count"))
    }
}

impl Transaction<'_> {
    /// Closes the alert of a cause if it has no step left, with its messages.
    pub async fn close_cause(&mut self, id: Uuid, sender: &Sender) -> Result<(), StoreError> {
        self.lock_out_of_order();
        let messages = self
            .close_causes(&BTreeSet::from([id]), sender, self.now())
            .await?;
        self.add_messages(&messages.iter().collect::<Vec<_>>())
            .await
    }

    /// Saves the number of steps that an alert is about. `announce` is the number that webhooks are notified of.
    pub async fn update_cause(
        &mut self,
        cause: &UnclosedCause,
        announce: Option<u64>,
        sender: &Sender,
    ) -> Result<(), StoreError> {
        self.lock_out_of_order();
        let update = Statement::new(UPDATE)
            .bind(cause.id)
            .bind(cause.count)
            .bind(self.now())
            .bind(announce.unwrap_or(cause.announced));
        if let Some(row) = self.fetch_first(update).await?
            && let Some(reached) = announce
        {
            let version = CauseVersion::Updated(reached).number();
            self.notify_webhooks(&notice(&row)?, version, sender)
                .await?;
        }
        Ok(())
    }

    /// Deletes those of these alerts of causes whose tasks have all been deleted. Returns how many.
    pub async fn purge_causes(&mut self, causes: &[Uuid]) -> Result<u64, StoreError> {
        self.lock_out_of_order();
        let mut purged = 0;
        for id in causes {
            purged += self.execute(Statement::new(PURGE).bind(*id)).await?;
        }
        Ok(purged)
    }
}
