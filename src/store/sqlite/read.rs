//! Reads, on connections that never write. WAL gives each a consistent view beside the writer.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, SqlitePool, sqlite::SqliteRow};

use super::{now, rows};
use crate::{
    domain::{Task, TaskId, Timestamp},
    store::{
        Definitions, StoreError,
        reading::{Source, SqlReader, Statement, Value},
    },
};

pub type SqliteReader = SqlReader<SqliteSource>;

pub struct SqliteSource {
    pub(super) pool: SqlitePool,
    pub(super) definitions: Arc<Definitions>,
}

#[async_trait]
impl Source for SqliteSource {
    type Row = SqliteRow;

    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(now())
    }

    async fn fetch(&self, statement: Statement) -> Result<Vec<SqliteRow>, StoreError> {
        // Only the store's own words are in it: what comes from outside is bound.
        let mut query = sqlx::query(AssertSqlSafe(statement.sql));
        for value in statement.values {
            query = match value {
                Value::Text(text) => query.bind(text),
                Value::Integer(number) => query.bind(number),
                Value::Uuid(id) => query.bind(id),
            };
        }
        Ok(query.fetch_all(&self.pool).await?)
    }

    async fn load(&self, ids: &[TaskId]) -> Result<Vec<Task>, StoreError> {
        // One transaction, so that the task and its steps are of one version.
        let mut view = self.pool.begin().await?;
        rows::load(&mut view, ids, &self.definitions).await
    }

    /// Only this process writes, and tells its watchers what it wrote.
    async fn newer(&self, _: &[(TaskId, u64)]) -> Result<Vec<TaskId>, StoreError> {
        Ok(Vec::new())
    }

    fn by_index(table: &'static str, index: &'static str) -> String {
        format!("{table} INDEXED BY {index}")
    }
}
