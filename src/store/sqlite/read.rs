//! Reads, on connections that never write. WAL gives each a consistent snapshot while the writer works.

use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::Connection;

use super::{
    clock::StoreClock, connection::Snapshot, files::DatabaseFiles, pool::ReaderPool, rows, space,
    transaction::IS_ONE_OF,
};
use crate::{
    domain::{
        upkeep::FileSpace,
        values::{TaskId, Timestamp},
    },
    store::{
        CompiledDefinitions, Loaded, StoreError,
        rows::Row,
        source::{SeenVersion, Source},
        statement::Statement,
        view::ledger_sql::LedgerDialect,
    },
};

pub struct SqliteSource {
    pub(super) pool: Arc<ReaderPool>,
    pub(super) definitions: Arc<CompiledDefinitions>,
    pub(super) files: DatabaseFiles,
    pub(super) clock: StoreClock,
}

impl SqliteSource {
    /// Reads in one transaction, which sees one snapshot.
    async fn in_view<R: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        self.read(|connection| {
            let _view = Snapshot::of(connection)?;
            read(connection)
        })
        .await
    }

    async fn read<R: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        let found = self.pool.run(|connection| read(connection)).await;
        found.inspect_err(|error| self.files.health.note(error))
    }
}

fn fetch(connection: &Connection, statement: &Statement) -> Result<Vec<Row>, StoreError> {
    let found = rows::fetch(connection, statement)?;
    Ok(found.into_iter().map(Row::Sqlite).collect())
}

#[async_trait]
impl Source for SqliteSource {
    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.clock.now())
    }

    fn estimated_now(&self) -> Option<Timestamp> {
        Some(self.clock.now())
    }

    fn clock(&self) -> Option<&StoreClock> {
        Some(&self.clock)
    }

    async fn view(&self, statements: Vec<Statement>) -> Result<Vec<Vec<Row>>, StoreError> {
        // A single statement sees one snapshot by itself.
        if let [_] = &statements[..] {
            let read = move |connection: &Connection| {
                let found = statements
                    .iter()
                    .map(|statement| fetch(connection, statement));
                found.collect()
            };
            return self.read(read).await;
        }
        self.in_view(move |connection| {
            let found = statements
                .iter()
                .map(|statement| fetch(connection, statement));
            found.collect()
        })
        .await
    }

    async fn load(&self, ids: &[TaskId]) -> Result<Loaded, StoreError> {
        let (ids, definitions) = (ids.to_vec(), self.definitions.clone());
        let health = self.files.health.clone();
        self.in_view(move |connection| rows::load(connection, &ids, &definitions, &health))
            .await
    }

    /// Returns nothing: only this process writes, and notifies its watchers of every change.
    async fn versions(&self, _: &[TaskId]) -> Result<Vec<SeenVersion>, StoreError> {
        Ok(Vec::new())
    }

    async fn file_space(&self) -> Result<Option<FileSpace>, StoreError> {
        let file = self.files.file.clone();
        let measured = self.in_view(move |connection| Ok(space::measure(connection, &file)?));
        measured.await.map(Some)
    }

    async fn fold(&self) -> Result<(), StoreError> {
        self.files.check()?;
        let fold = |connection: &mut Connection| Ok(space::fold(connection)?);
        self.pool.run(fold).await
    }

    fn ledger(&self) -> LedgerDialect {
        LedgerDialect::Sqlite
    }

    fn is_one_of(&self) -> &'static str {
        IS_ONE_OF
    }

    fn agents_of_untouched(&self) -> &'static str {
        "json_each(CASE WHEN json_valid(agents) THEN agents ELSE '{}' END) AS element"
    }

    fn by_index(&self, table: &'static str, index: &'static str) -> String {
        format!("{table} INDEXED BY {index}")
    }

    /// Returns `None`, because SQLite obeys `INDEXED BY`.
    fn along_indexes(&self) -> Option<Statement> {
        None
    }
}
