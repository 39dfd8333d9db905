//! Reads, on a bounded pool of connections.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use sqlx::{PgPool, Postgres, postgres::PgRow};
use tokio::time::Instant;

use super::{
    answered,
    clock::{Clock, Reading},
    rows,
    statements::Statements,
};
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
const VERSIONS: &str = "SELECT id, version FROM tasks WHERE id = ANY ($1)";

pub struct PgSource {
    pub(super) pool: PgPool,
    pub(super) statements: Statements,
    pub(super) clock: Arc<Clock>,
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
        let asked = Instant::now();
        if let Some(moment) = self.clock.at(asked) {
            return Ok(moment.now);
        }
        let found = self.view(vec![Statement::new(NOW)]).await?;
        let row = found.first().and_then(|rows| rows.first());
        let millis = row.map(|row| number(row, "now")).transpose()?;
        let millis = millis.ok_or_else(|| StoreError::Corrupt("no time".to_owned()))?;
        let now = Timestamp::from_millis(millis);
        self.clock.set(Reading {
            now,
            asked,
            answered: Instant::now(),
        });
        Ok(now)
    }

    async fn view(&self, statements: Vec<Statement>) -> Result<Vec<Vec<PgRow>>, StoreError> {
        answered(async {
            let mut view = self.begin().await?;
            let mut found = Vec::with_capacity(statements.len());
            for statement in statements {
                found.push(
                    self.statements
                        .with_values(statement)
                        .fetch_all(&mut *view)
                        .await?,
                );
            }
            Ok::<_, StoreError>(found)
        })
        .await
        .map_err(StoreError::into_unavailable)
    }

    async fn load(&self, ids: &[TaskId]) -> Result<Vec<Task>, StoreError> {
        answered(async {
            let mut view = self.begin().await?;
            rows::load(&mut view, ids, &self.definitions, self.statements).await
        })
        .await
        .map_err(StoreError::into_unavailable)
    }

    async fn newer(&self, known: &[(TaskId, u64)]) -> Result<Vec<TaskId>, StoreError> {
        let ids: Vec<_> = known.iter().map(|(id, _)| id.0).collect();
        let versions = self.statements.query(VERSIONS).bind(ids);
        let found = answered(async {
            let mut view = self.begin().await?;
            Ok::<_, StoreError>(versions.fetch_all(&mut *view).await?)
        })
        .await
        .map_err(StoreError::into_unavailable)?;
        let known: HashMap<_, _> = known.iter().copied().collect();
        let mut newer = Vec::new();
        for row in &found {
            let id = task_id(row, "id")?;
            let version: u64 = number(row, "version")?;
            if known.get(&id).is_some_and(|known| version > *known) {
                newer.push(id);
            }
        }
        Ok(newer)
    }

    fn by_index(table: &'static str, _: &'static str) -> String {
        table.to_owned()
    }
}
