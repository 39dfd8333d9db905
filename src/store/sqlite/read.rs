//! Reads, on connections that never write. WAL gives each a consistent view beside the writer.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::{Sqlite, SqlitePool, Transaction};

use super::{files::DatabaseFiles, now, rows, space};
use crate::{
    domain::{FileSpace, TaskId, Timestamp},
    store::{Definitions, Loaded, StoreError, rows::Row, source::Source, statement::Statement},
};

pub struct SqliteSource {
    pub(super) pool: SqlitePool,
    pub(super) definitions: Arc<Definitions>,
    pub(super) files: DatabaseFiles,
}

impl SqliteSource {
    async fn begin(&self) -> Result<Transaction<'static, Sqlite>, StoreError> {
        if let Some(view) = self.pool.try_begin().await? {
            return Ok(view);
        }
        // A new connection opens whatever has the name now.
        if self.pool.size() < self.pool.options().get_max_connections() {
            self.files.check()?;
        }
        Ok(self.pool.begin().await?)
    }
}

#[async_trait]
impl Source for SqliteSource {
    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(now())
    }

    fn estimated_now(&self) -> Option<Timestamp> {
        Some(now())
    }

    async fn view(&self, statements: Vec<Statement>) -> Result<Vec<Vec<Row>>, StoreError> {
        let view = async {
            let mut view = self.begin().await?;
            let mut found = Vec::with_capacity(statements.len());
            for statement in statements {
                let rows = rows::query(statement).fetch_all(&mut *view).await?;
                found.push(rows.into_iter().map(Row::Sqlite).collect());
            }
            Ok(found)
        };
        view.await
            .inspect_err(|error| self.files.health.note(error))
    }

    async fn load(&self, ids: &[TaskId]) -> Result<Loaded, StoreError> {
        let load = async {
            // One transaction, so that the task and its steps are of one version.
            let mut view = self.begin().await?;
            rows::load(&mut view, ids, &self.definitions, &self.files.health).await
        };
        load.await
            .inspect_err(|error| self.files.health.note(error))
    }

    /// Only this process writes, and notifies its watchers of what it wrote.
    async fn newer(&self, _: &[(TaskId, u64)]) -> Result<Vec<TaskId>, StoreError> {
        Ok(Vec::new())
    }

    async fn file_space(&self) -> Result<Option<FileSpace>, StoreError> {
        let measured = async {
            let mut view = self.begin().await?;
            Ok(Some(space::measure(&mut view, &self.files.file).await?))
        };
        measured
            .await
            .inspect_err(|error| self.files.health.note(error))
    }

    async fn fold(&self) -> Result<(), StoreError> {
        self.files.check()?;
        let mut connection = self.pool.acquire().await?;
        Ok(space::fold(&mut connection).await?)
    }

    fn by_index(&self, table: &'static str, index: &'static str) -> String {
        format!("{table} INDEXED BY {index}")
    }

    /// `INDEXED BY` is an order.
    fn along_indexes(&self) -> Option<Statement> {
        None
    }
}
