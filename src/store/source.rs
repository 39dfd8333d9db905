//! The interface of a backend for reads.

use async_trait::async_trait;

use super::{
    Loaded, StoreError, rows::Row, sqlite::StoreClock, statement::Statement,
    view::ledger_sql::LedgerDialect,
};
use crate::domain::{
    upkeep::FileSpace,
    values::{TaskId, Timestamp},
};

/// The version of a task in the record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeenVersion {
    pub task: TaskId,
    pub version: u64,
    /// The task has ended or is in error. It has settled if no step of it is running.
    pub may_have_settled: bool,
}

/// A connection, or a pool of them, to read from.
#[async_trait]
pub trait Source: Send + Sync + 'static {
    async fn now(&self) -> Result<Timestamp, StoreError>;
    /// See [`super::Reader::estimated_now`].
    fn estimated_now(&self) -> Option<Timestamp>;
    /// The clock of a store that is a file. A server has its own clock, and returns `None`.
    fn clock(&self) -> Option<&StoreClock> {
        None
    }
    /// Returns the rows that each of the statements finds, all in one snapshot.
    async fn view(&self, statements: Vec<Statement>) -> Result<Vec<Vec<Row>>, StoreError>;
    /// Returns the tasks among `ids` that exist, each from one snapshot.
    async fn load(&self, ids: &[TaskId]) -> Result<Loaded, StoreError>;
    /// Returns the versions of those of these tasks that exist, if other processes may change tasks.
    async fn versions(&self, ids: &[TaskId]) -> Result<Vec<SeenVersion>, StoreError>;
    /// Returns the table for a FROM clause, with an index hint if the planner needs one.
    fn by_index(&self, table: &'static str, index: &'static str) -> String;
    /// Compares a text with the texts of a JSON array.
    fn is_one_of(&self) -> &'static str;
    /// Returns a FROM item: the elements of the `agents` of a task, each an `element` with the agent as its `value` and
    /// the index of the step as its `key`. A damaged value has none.
    fn agents_of_untouched(&self) -> &'static str;
    /// Returns a statement that makes the later statements of a view use indexes only, if the planner would otherwise
    /// read a whole table, or all rows that an index finds, because of outdated statistics.
    fn along_indexes(&self) -> Option<Statement>;
    /// Returns the clauses by which the ledger is read.
    fn ledger(&self) -> LedgerDialect;
    /// See [`super::Reader::file_space`].
    async fn file_space(&self) -> Result<Option<FileSpace>, StoreError> {
        Ok(None)
    }
    /// See [`super::Reader::fold`].
    async fn fold(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
