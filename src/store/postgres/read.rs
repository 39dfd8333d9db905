//! Reads, on a bounded pool of connections.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::{PgPool, Postgres, postgres::PgRow};

use super::{answered, rows};
use crate::{
    domain::{Task, TaskId, Timestamp},
    store::{
        Definitions, StoreError,
        reading::{Source, SqlReader, Statement},
        rows::{number, task_id},
    },
};

pub type PgReader = SqlReader<PgSource>;

const NOW: &str = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now";

/// Every read is a transaction: it sees one moment, cannot write, and behind a pooler its statements
/// stay on one connection from their preparation to their end.
const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// Relies on the primary key.
const NEWER: &str = r#"
SELECT tasks.id
FROM unnest($1::uuid[], $2::bigint[]) AS known (id, version)
JOIN tasks ON tasks.id = known.id AND tasks.version > known.version"#;

pub struct PgSource {
    pub(super) pool: PgPool,
    pub(super) definitions: Arc<Definitions>,
}

impl PgSource {
    async fn begin(&self) -> Result<sqlx::Transaction<'static, Postgres>, StoreError> {
        Ok(self.pool.begin_with(BEGIN).await?)
    }
}

#[async_trait]
impl Source for PgSource {
    type Row = PgRow;

    async fn now(&self) -> Result<Timestamp, StoreError> {
        let found = self.view(vec![Statement::new(NOW)]).await?;
        let row = found.first().and_then(|rows| rows.first());
        let millis = row.map(|row| number(row, "now")).transpose()?;
        let millis = millis.ok_or_else(|| StoreError::Corrupt("no time".to_owned()))?;
        Ok(Timestamp::from_millis(millis))
    }

    async fn view(&self, statements: Vec<Statement>) -> Result<Vec<Vec<PgRow>>, StoreError> {
        answered(async {
            let mut view = self.begin().await?;
            let mut found = Vec::with_capacity(statements.len());
            for statement in statements {
                found.push(rows::query(statement).fetch_all(&mut *view).await?);
            }
            Ok::<_, StoreError>(found)
        })
        .await
        .map_err(StoreError::into_unavailable)
    }

    async fn load(&self, ids: &[TaskId]) -> Result<Vec<Task>, StoreError> {
        answered(async {
            let mut view = self.begin().await?;
            rows::load(&mut view, ids, &self.definitions).await
        })
        .await
        .map_err(StoreError::into_unavailable)
    }

    async fn newer(&self, known: &[(TaskId, u64)]) -> Result<Vec<TaskId>, StoreError> {
        let (ids, versions): (Vec<_>, Vec<_>) = known
            .iter()
            .map(|(id, version)| (id.0, *version as i64))
            .unzip();
        let newer = sqlx::query(NEWER).bind(ids).bind(versions);
        let newer = answered(async {
            let mut view = self.begin().await?;
            Ok::<_, StoreError>(newer.fetch_all(&mut *view).await?)
        })
        .await
        .map_err(StoreError::into_unavailable)?;
        newer.iter().map(|row| task_id(row, "id")).collect()
    }

    fn by_index(table: &'static str, _: &'static str) -> String {
        table.to_owned()
    }
}
