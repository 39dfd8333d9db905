//! What a backend provides for reading.

use async_trait::async_trait;

use super::{Loaded, StoreError, rows::Row, sqlite::StoreClock, statement::Statement};
use crate::domain::{FileSpace, TaskId, Timestamp};

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
    /// The clock by which a store goes that is a file; a server has its own.
    fn clock(&self) -> Option<&StoreClock> {
        None
    }
    /// What each of the statements finds, all at one moment.
    async fn view(&self, statements: Vec<Statement>) -> Result<Vec<Vec<Row>>, StoreError>;
    /// The tasks among `ids` that exist, each of one moment.
    async fn load(&self, ids: &[TaskId]) -> Result<Loaded, StoreError>;
    /// The versions of those of these tasks that exist, where other processes may change tasks.
    async fn versions(&self, ids: &[TaskId]) -> Result<Vec<SeenVersion>, StoreError>;
    /// The table in a FROM clause, with an index hint if its planner needs one.
    fn by_index(&self, table: &'static str, index: &'static str) -> String;
    /// How a text is compared with those of a JSON array.
    fn is_one_of(&self) -> &'static str;
    /// In a FROM clause: the elements of the `agents` of a task, each an `element` with the agent as its `value` and the place of
    /// the step as its `key`. What is damaged has none.
    fn agents_of_untouched(&self) -> &'static str;
    /// Makes the later statements of a view read along indexes alone, where the planner would rather read
    /// a whole table, or all that an index finds, on statistics of another day.
    fn along_indexes(&self) -> Option<Statement>;
    /// See [`super::Reader::file_space`].
    async fn file_space(&self) -> Result<Option<FileSpace>, StoreError> {
        Ok(None)
    }
    /// See [`super::Reader::fold`].
    async fn fold(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
