//! Reads, on a bounded pool of connections.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::{
    AssertSqlSafe, PgPool, Postgres,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use super::{answered, rows};
use crate::{
    domain::{Task, TaskId, Timestamp},
    store::{
        Definitions, StoreError,
        reading::{Source, SqlReader, Statement, Value},
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
    async fn view(&self) -> Result<sqlx::Transaction<'static, Postgres>, StoreError> {
        Ok(self.pool.begin_with(BEGIN).await?)
    }

    async fn run(&self, query: Query<'_, Postgres, PgArguments>) -> Result<Vec<PgRow>, StoreError> {
        answered(async {
            let mut view = self.view().await?;
            Ok::<_, StoreError>(query.fetch_all(&mut *view).await?)
        })
        .await
        .map_err(StoreError::into_unavailable)
    }
}

#[async_trait]
impl Source for PgSource {
    type Row = PgRow;

    async fn now(&self) -> Result<Timestamp, StoreError> {
        let found = self.fetch(Statement::new(NOW)).await?;
        let millis = found.first().map(|row| number(row, "now")).transpose()?;
        let millis = millis.ok_or_else(|| StoreError::Corrupt("no time".to_owned()))?;
        Ok(Timestamp::from_millis(millis))
    }

    async fn fetch(&self, statement: Statement) -> Result<Vec<PgRow>, StoreError> {
        // Only the store's own words are in it: what comes from outside is bound.
        let mut query = sqlx::query(AssertSqlSafe(statement.sql));
        for value in statement.values {
            query = match value {
                // No text here holds a NUL: what stands in its place finds nothing either.
                Value::Text(text) => query.bind(text.replace('\0', "\u{fffd}")),
                Value::Integer(number) => query.bind(number),
                Value::Uuid(id) => query.bind(id),
            };
        }
        self.run(query).await
    }

    async fn load(&self, ids: &[TaskId]) -> Result<Vec<Task>, StoreError> {
        answered(async {
            let mut view = self.view().await?;
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
        let newer = self.run(newer).await?;
        newer.iter().map(|row| task_id(row, "id")).collect()
    }

    fn by_index(table: &'static str, _: &'static str) -> String {
        table.to_owned()
    }
}
