//! Deletes rows of the ledger whose time is over, oldest first. The records of what people changed are kept longer.

use futures::FutureExt;

use crate::domain::{values::Timestamp, view::LedgerRowNumber};
use crate::store::{
    Reader, Store, StoreError, Transaction,
    rows::{Columns, Row},
    view::ledger_sql::LedgerDialect,
};

/// The times before which rows are deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LedgerCutoff {
    pub events: Timestamp,
    pub changes: Timestamp,
}

const COMPLETE: &str = "UPDATE ledger_state SET complete_since = $1 WHERE complete_since IS NULL";

impl Reader {
    /// Returns whether any row may be deleted.
    pub async fn has_old_ledger_rows(&self, cutoff: LedgerCutoff) -> Result<bool, StoreError> {
        let dialect = self.ledger_dialect();
        let floor = self.ledger_state().await?.floor;
        // The newest row is never deleted.
        let next = self.fetch(dialect.first(">", floor, 2)).await?;
        if let [first, _] = &next[..]
            && first.get::<Timestamp>("at")? < cutoff.events
        {
            return Ok(true);
        }
        let oldest = self.fetch_along_indexes(dialect.oldest_audited(1)).await?;
        let Some(oldest) = oldest.first() else {
            return Ok(false);
        };
        Ok(dialect.read_number(oldest, "")? <= floor
            && oldest.get::<Timestamp>("at")? < cutoff.changes)
    }
}

impl Store {
    /// Deletes up to `limit` rows of each kind whose time is over. Returns whether there may be more.
    pub async fn purge_ledger(
        &self,
        cutoff: LedgerCutoff,
        limit: usize,
    ) -> Result<bool, StoreError> {
        self.send_write(true, None, move |tx| {
            async move { purge(tx, cutoff, limit).await }.boxed()
        })
        .await
    }

    /// Records that every instance writes the ledger from now on.
    pub async fn complete_ledger(&self) -> Result<(), StoreError> {
        self.send_write(true, None, move |tx| {
            async move {
                let complete = crate::store::statement::Statement::new(COMPLETE).bind(tx.now());
                tx.run(complete).await
            }
            .boxed()
        })
        .await
    }
}

/// Returns the last of the leading rows that are older than a time, of all but the last row.
fn last_old(
    dialect: LedgerDialect,
    rows: &[Row],
    before: Timestamp,
) -> Result<Option<LedgerRowNumber>, StoreError> {
    let mut last = None;
    for row in rows {
        if row.get::<Timestamp>("at")? >= before {
            break;
        }
        last = Some(dialect.read_number(row, "")?);
    }
    Ok(last)
}

async fn purge(
    tx: &mut Transaction<'_>,
    cutoff: LedgerCutoff,
    limit: usize,
) -> Result<bool, StoreError> {
    tx.lock_out_of_order();
    let dialect = tx.dialect().ledger;
    let state = tx.fetch(dialect.state()).await?;
    let floor = match state.first() {
        Some(row) => dialect.read_number(row, "floor_")?,
        None => return Ok(false),
    };
    let mut floor = floor;
    let mut has_more = false;
    let rows = tx.fetch(dialect.first(">", floor, limit + 1)).await?;
    let kept = rows.len().saturating_sub(1);
    if let Some(last) = last_old(dialect, &rows[..kept], cutoff.events)? {
        tx.run(dialect.delete(floor, last, false)).await?;
        tx.run(dialect.set_floor(last)).await?;
        floor = last;
        has_more = rows.len() > limit;
    }
    let mut audited = tx.fetch(dialect.oldest_audited(limit)).await?;
    let count = audited.len();
    let mut below = Vec::with_capacity(count);
    for row in audited.drain(..) {
        if dialect.read_number(&row, "")? <= floor {
            below.push(row);
        }
    }
    if let Some(last) = last_old(dialect, &below, cutoff.changes)? {
        tx.run(dialect.delete(LedgerRowNumber::default(), last, true))
            .await?;
        has_more |= count == limit;
    }
    Ok(has_more)
}
