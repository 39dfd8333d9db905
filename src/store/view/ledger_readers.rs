//! Readers of the ledger with a name, each with the position that it has confirmed.

use std::sync::Arc;

use futures::FutureExt;

use crate::domain::{
    values::{ETag, Precondition, PreconditionFailure, Timestamp},
    view::LedgerPosition,
};
use crate::store::{
    Reader, RegisterError, Store, StoreError, Transaction,
    error::corrupt,
    rows::{Columns, Row},
    statement::Statement,
};

/// The most readers of a database.
pub const MOST_READERS: u64 = 1000;

const READER: &str = "name, version, position, owner, created_at, updated_at";

const ADD: &str = r#"
INSERT INTO ledger_readers (name, version, position, owner, created_at, updated_at)
SELECT $1, 1, $2, $3, $4, $4 WHERE (SELECT count(*) FROM ledger_readers) < $5
ON CONFLICT (name) DO NOTHING"#;

/// Changes nothing if another request has moved the reader since it was read.
const MOVE: &str = r#"
UPDATE ledger_readers SET version = version + 1, position = $3, updated_at = $4
WHERE name = $1 AND version = $2"#;

/// A reader with a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LedgerReaderRecord {
    pub name: String,
    version: u64,
    pub position: LedgerPosition,
    /// The name of the caller that made it.
    pub owner: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// The position that a caller confirms for a reader.
#[derive(Clone, Debug)]
pub struct ReaderMove {
    pub name: String,
    /// `None` deletes the reader.
    pub position: Option<LedgerPosition>,
    pub caller: String,
    /// True if the caller may move the readers of others.
    pub is_operator: bool,
    pub condition: Precondition,
}

/// The result of a move.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReaderMoved {
    /// The reader as it is now, and whether it is new.
    To(LedgerReaderRecord, bool),
    Deleted,
    Missing,
    /// The reader belongs to this caller.
    OfAnother(String),
    TooMany,
}

impl LedgerReaderRecord {
    pub fn etag(&self) -> ETag {
        ETag::of_ledger_reader(&self.name, self.version, self.created_at)
    }

    fn read(row: &Row) -> Result<Self, StoreError> {
        let position: String = row.get("position")?;
        Ok(Self {
            name: row.get("name")?,
            version: row.get("version")?,
            position: LedgerPosition::parse(&position)
                .ok_or_else(|| corrupt(format!("{position} is no position of the ledger")))?,
            owner: row.get("owner")?,
            created_at: row.get("created_at")?,
            updated_at: row.get("updated_at")?,
        })
    }
}

fn one(name: &str) -> Statement {
    Statement::new(format!(
        "SELECT {READER} FROM ledger_readers WHERE name = $1"
    ))
    .bind(name)
}

impl Reader {
    pub async fn ledger_reader(
        &self,
        name: &str,
    ) -> Result<Option<LedgerReaderRecord>, StoreError> {
        self.first(one(name), LedgerReaderRecord::read).await
    }

    /// Returns up to `most` readers after this name, by name.
    pub async fn ledger_readers(
        &self,
        after: &str,
        most: usize,
    ) -> Result<Vec<LedgerReaderRecord>, StoreError> {
        let page =
            format!("SELECT {READER} FROM ledger_readers WHERE name > $1 ORDER BY name LIMIT $2");
        let page = Statement::new(page).bind(after).bind(most);
        self.all(page, LedgerReaderRecord::read).await
    }
}

impl Store {
    pub async fn move_ledger_reader(&self, to: ReaderMove) -> Result<ReaderMoved, RegisterError> {
        let to = Arc::new(to);
        let moved = self.send_write(true, None, move |tx| {
            let to = to.clone();
            async move { move_reader(tx, &to).await }.boxed()
        });
        moved.await?.map_err(RegisterError::Unmet)
    }
}

async fn move_reader(
    tx: &mut Transaction<'_>,
    to: &ReaderMove,
) -> Result<Result<ReaderMoved, PreconditionFailure>, StoreError> {
    tx.lock_out_of_order();
    let name = to.name.as_str();
    let row = tx.fetch_first(one(name)).await?;
    let known = row.as_ref().map(LedgerReaderRecord::read).transpose()?;
    if let Err(unmet) = to
        .condition
        .check(known.as_ref().map(LedgerReaderRecord::etag))
    {
        return Ok(Err(unmet));
    }
    let now = tx.now();
    let changed = || StoreError::Retryable(format!("reader {name} was moved meanwhile"));
    let Some(known) = known else {
        let Some(position) = to.position else {
            return Ok(Ok(ReaderMoved::Missing));
        };
        let add = Statement::new(ADD)
            .bind(name)
            .bind(position.to_string())
            .bind(to.caller.as_str())
            .bind(now)
            .bind(MOST_READERS);
        if tx.execute(add).await? == 0 {
            return match tx.fetch_first(one(name)).await? {
                Some(_) => Err(changed()),
                None => Ok(Ok(ReaderMoved::TooMany)),
            };
        }
        let record = LedgerReaderRecord {
            name: to.name.clone(),
            version: 1,
            position,
            owner: to.caller.clone(),
            created_at: now,
            updated_at: now,
        };
        return Ok(Ok(ReaderMoved::To(record, true)));
    };
    if known.owner != to.caller && !to.is_operator {
        return Ok(Ok(ReaderMoved::OfAnother(known.owner)));
    }
    let Some(position) = to.position else {
        let delete = Statement::new("DELETE FROM ledger_readers WHERE name = $1 AND version = $2")
            .bind(name)
            .bind(known.version);
        return match tx.execute(delete).await? {
            0 => Err(changed()),
            _ => Ok(Ok(ReaderMoved::Deleted)),
        };
    };
    let moved = Statement::new(MOVE)
        .bind(name)
        .bind(known.version)
        .bind(position.to_string())
        .bind(now);
    if tx.execute(moved).await? == 0 {
        return Err(changed());
    }
    let record = LedgerReaderRecord {
        version: known.version + 1,
        position,
        updated_at: now,
        ..known
    };
    Ok(Ok(ReaderMoved::To(record, false)))
}
