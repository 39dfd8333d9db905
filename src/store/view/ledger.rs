//! The ledger: what is written with each batch, and how it is read.

use std::collections::BTreeMap;

use crate::domain::{
    values::{TaskId, Timestamp, WorkflowName, WorkflowRef},
    view::{
        ChangedTask, LedgerEntryIndex, LedgerPosition, LedgerRecord, LedgerRowNumber, PositionFault,
    },
};
use crate::store::{
    Batch, Reader, StoreError,
    error::corrupt,
    rows::{Columns, Row, json},
    view::ledger_sql::LedgerDialect,
};

/// The most rows that one read looks at.
const ROWS: usize = 256;
/// The most changes of tasks whose events one read looks at.
pub const CHANGES: usize = 500;
/// The most bytes of events that one read takes. It takes at least one change, of any size.
const BYTES: usize = 1 << 20;

/// Times of rows are out of order by no more than this number of milliseconds: a batch is saved long before that.
const OUT_OF_ORDER: i64 = 60_000;

/// The row of a batch.
#[derive(Debug)]
pub struct LedgerRow {
    pub at: i64,
    pub changes: Option<Vec<u8>>,
    pub records: Option<String>,
    pub audited: Option<i64>,
}

impl LedgerRow {
    /// Returns `None` if no history is written, and no command of a person was accepted.
    pub fn of(batch: &Batch, now: Timestamp) -> Option<Self> {
        let written = batch
            .changes
            .iter()
            .filter(|change| !change.events.is_empty());
        let mut changes = written
            .map(|change| ChangedTask {
                task: change.task.id(),
                version: change.task.version,
            })
            .peekable();
        let changes = changes.peek().is_some().then(|| ChangedTask::pack(changes));
        let records = (!batch.commands.is_empty()).then(|| json_of(&batch.commands));
        (changes.is_some() || records.is_some()).then(|| Self {
            at: now.as_millis(),
            changes,
            audited: records.is_some().then_some(1),
            records,
        })
    }
}

pub(super) fn json_of(records: &[LedgerRecord]) -> String {
    // Texts under fixed names always serialise.
    serde_json::to_string(records).unwrap_or_default()
}

/// A row as it was read.
#[derive(Clone, Debug)]
pub struct LedgerRowRead {
    pub number: LedgerRowNumber,
    pub at: Timestamp,
    pub records: Vec<LedgerRecord>,
    pub changes: Vec<ChangedTask>,
}

/// The head of the task of an event.
#[derive(Clone, Debug)]
pub struct LedgerTask {
    pub id: TaskId,
    pub key: Option<String>,
    pub workflow: Option<WorkflowRef>,
    pub labels: BTreeMap<String, String>,
}

/// The content of an entry: a record, or a change of a task.
#[derive(Clone, Debug)]
pub enum LedgerContent {
    Record(Box<LedgerRecord>),
    Change {
        task: Box<LedgerTask>,
        version: u64,
        at: Timestamp,
        /// A JSON array of [`crate::domain::task::Event`].
        events: String,
    },
    /// The task has been deleted, and its history with it.
    Deleted(ChangedTask),
}

/// One entry of the ledger, with its index among those of its row.
#[derive(Clone, Debug)]
pub struct LedgerEntry {
    pub row: LedgerRowNumber,
    /// The time of the row.
    pub at: Timestamp,
    pub index: usize,
    /// True for the last entry of its row.
    pub is_last: bool,
    pub content: LedgerContent,
}

/// The next entries of the ledger.
#[derive(Clone, Debug)]
pub struct LedgerEntries {
    pub entries: Vec<LedgerEntry>,
    /// True if there may be more entries than were read.
    pub has_more: bool,
    pub state: LedgerState,
}

/// The bounds of what can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LedgerState {
    /// The last row of which everything before it was deleted.
    pub floor: LedgerRowNumber,
    /// The time since which every instance writes the ledger. `None`: older instances are on record.
    pub complete_since: Option<Timestamp>,
}

/// The reason why nothing can be read from a position, and the oldest position that can be read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnreadablePosition {
    pub fault: PositionFault,
    pub oldest: LedgerPosition,
    pub newest: LedgerPosition,
}

impl Reader {
    /// Returns the next entries after a position, or why they cannot be read.
    pub async fn ledger(
        &self,
        after: LedgerPosition,
    ) -> Result<Result<LedgerEntries, UnreadablePosition>, StoreError> {
        let dialect = self.ledger_dialect();
        // A row that was read in part is read again.
        let operator = match after.within {
            Some(_) => ">=",
            None => ">",
        };
        let statements = vec![
            dialect.state(),
            dialect.one(after.row),
            dialect.rows(operator, after.row, ROWS + 1),
        ];
        let found = self.view_of(statements).await?;
        let [state, one, rows] = &found[..] else {
            return Err(corrupt("a view has not all of its parts"));
        };
        let state = read_state(dialect, state)?;
        let found = one.first().map(|row| row.get("at")).transpose()?;
        if let Some(fault) = PositionFault::of(after, state.floor, found) {
            return Ok(Err(self.unreadable(fault, state).await?));
        }
        let is_all = rows.len() <= ROWS;
        let rows = rows.iter().take(ROWS).map(|row| read_row(dialect, row));
        let rows: Vec<_> = rows.collect::<Result<_, _>>()?;
        let mut read = self.expand(&rows, after).await?;
        read.has_more |= !is_all;
        read.state = state;
        Ok(Ok(read))
    }

    async fn unreadable(
        &self,
        fault: PositionFault,
        state: LedgerState,
    ) -> Result<UnreadablePosition, StoreError> {
        Ok(UnreadablePosition {
            fault,
            oldest: LedgerPosition {
                row: state.floor,
                at: 0,
                within: None,
            },
            newest: self.ledger_head().await?,
        })
    }

    /// Reads the events of the changes that rows have after a position, within the bounds of one read.
    async fn expand(
        &self,
        rows: &[LedgerRowRead],
        after: LedgerPosition,
    ) -> Result<LedgerEntries, StoreError> {
        let first = |row: &LedgerRowRead| match after.within {
            // The last entry is looked at again, because not all of its events may have been read.
            Some(within) if row.number == after.row => within.entry,
            _ => 0,
        };
        let mut asked = Vec::new();
        for row in rows {
            let from = first(row).saturating_sub(row.records.len());
            asked.extend(row.changes.iter().skip(from).copied());
            if asked.len() >= CHANGES {
                asked.truncate(CHANGES);
                break;
            }
        }
        let events = match asked.is_empty() {
            true => Vec::new(),
            false => {
                let dialect = self.ledger_dialect();
                let events = dialect.events(&asked, BYTES);
                self.fetch_along_indexes(events).await?
            }
        };
        let mut contents = Vec::with_capacity(events.len());
        for (change, row) in asked.iter().zip(&events) {
            contents.push(read_content(*change, row)?);
        }
        let mut contents = contents.into_iter();
        let mut read = LedgerEntries {
            entries: Vec::new(),
            has_more: false,
            state: LedgerState {
                floor: LedgerRowNumber::default(),
                complete_since: None,
            },
        };
        for row in rows {
            let (records, length) = (row.records.len(), row.records.len() + row.changes.len());
            for index in first(row)..length {
                let content = match row.records.get(index) {
                    Some(record) => LedgerContent::Record(Box::new(record.clone())),
                    None => match contents.next() {
                        Some(content) => content,
                        None => {
                            read.has_more = true;
                            return Ok(read);
                        }
                    },
                };
                debug_assert!(index >= records || matches!(content, LedgerContent::Record(_)));
                read.entries.push(LedgerEntry {
                    row: row.number,
                    at: row.at,
                    index,
                    is_last: index + 1 == length,
                    content,
                });
            }
        }
        Ok(read)
    }

    /// Returns the position after the latest row that can be read.
    pub async fn ledger_head(&self) -> Result<LedgerPosition, StoreError> {
        let dialect = self.ledger_dialect();
        let newest = self.first(dialect.newest(), |row| read_position(dialect, row));
        if let Some(newest) = newest.await? {
            return Ok(newest);
        }
        let state = self.ledger_state().await?;
        Ok(LedgerPosition {
            row: state.floor,
            at: 0,
            within: None,
        })
    }

    /// Returns a position from which everything is read that happened since this time, as the times of the entries say: the
    /// times are nearly in the order of the rows. It is found by bisection along the key, in as many reads as a number has
    /// digits.
    pub async fn ledger_since(&self, since: Timestamp) -> Result<LedgerPosition, StoreError> {
        let dialect = self.ledger_dialect();
        let (floor, newest) = (
            self.ledger_state().await?.floor,
            self.ledger_head().await?.row,
        );
        let since = Timestamp::from_millis(since.as_millis().saturating_sub(OUT_OF_ORDER));
        let number = |key: u64| dialect.number_of(newest.epoch, key);
        let mut low = match floor.epoch == newest.epoch {
            true => dialect.key_of(floor),
            false => 0,
        };
        let mut high = dialect.key_of(newest);
        while high.saturating_sub(low) > 1 {
            let middle = low + (high - low) / 2;
            let first = self.first(dialect.first(">=", number(middle), 1), |row| row.get("at"));
            match first.await? {
                Some(at) if Timestamp::from_millis(at) < since => low = middle,
                _ => high = middle,
            }
        }
        let before = self.first(dialect.last_before(number(low + 1)), |row| {
            read_position(dialect, row)
        });
        let before = before.await?.filter(|before| before.row > floor);
        Ok(before.unwrap_or(LedgerPosition {
            row: floor,
            at: 0,
            within: None,
        }))
    }

    pub async fn ledger_state(&self) -> Result<LedgerState, StoreError> {
        let dialect = self.ledger_dialect();
        let found = self.fetch(dialect.state()).await?;
        read_state(dialect, &found)
    }

    /// Returns the audited records before a row, latest first: up to this number of rows.
    pub async fn audited(
        &self,
        before: Option<LedgerRowNumber>,
        limit: usize,
    ) -> Result<Vec<LedgerRowRead>, StoreError> {
        let dialect = self.ledger_dialect();
        let rows = self.fetch_along_indexes(dialect.audited(before, limit));
        let rows = rows.await?;
        rows.iter().map(|row| read_row(dialect, row)).collect()
    }
}

fn read_state(dialect: LedgerDialect, rows: &[Row]) -> Result<LedgerState, StoreError> {
    let row = rows.first();
    let row = row.ok_or_else(|| corrupt("the table ledger_state has no row"))?;
    Ok(LedgerState {
        floor: dialect.read_number(row, "floor_")?,
        complete_since: row.get("complete_since")?,
    })
}

fn read_position(dialect: LedgerDialect, row: &Row) -> Result<LedgerPosition, StoreError> {
    Ok(LedgerPosition {
        row: dialect.read_number(row, "")?,
        at: row.get("at")?,
        within: None,
    })
}

fn read_row(dialect: LedgerDialect, row: &Row) -> Result<LedgerRowRead, StoreError> {
    let changes: Option<String> = row.get("changes")?;
    let changes = changes.map(|packed| {
        let packed = bytes_of(&packed);
        let changes = packed.and_then(|packed| ChangedTask::unpack(&packed));
        changes.ok_or_else(|| corrupt("a row of the ledger has changes that cannot be read"))
    });
    Ok(LedgerRowRead {
        number: dialect.read_number(row, "")?,
        at: row.get("at")?,
        records: json(row, "records")?.unwrap_or_default(),
        changes: changes.transpose()?.unwrap_or_default(),
    })
}

/// Returns the bytes of hexadecimal digits.
fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.map(byte).collect()
}

fn read_content(change: ChangedTask, row: &Row) -> Result<LedgerContent, StoreError> {
    let events: Option<String> = row.get("events")?;
    let labels = json(row, "labels")?;
    let (Some(events), Some(labels)) = (events, labels) else {
        return Ok(LedgerContent::Deleted(change));
    };
    let workflow: Option<String> = row.get("workflow")?;
    let version: Option<u32> = row.get("workflow_version")?;
    let workflow = workflow.zip(version).map(|(name, version)| WorkflowRef {
        name: WorkflowName::new(name),
        version,
    });
    Ok(LedgerContent::Change {
        task: Box::new(LedgerTask {
            id: change.task,
            key: row.get("key")?,
            workflow,
            labels,
        }),
        version: change.version,
        at: row.get("at")?,
        events,
    })
}

impl LedgerEntry {
    /// Returns the position after the event with this index, of so many.
    pub fn after(&self, event: usize, events: usize) -> LedgerPosition {
        let is_last = self.is_last && event + 1 >= events;
        LedgerPosition {
            row: self.row,
            at: self.at.as_millis(),
            within: (!is_last).then_some(LedgerEntryIndex {
                entry: self.index,
                event,
            }),
        }
    }
}
