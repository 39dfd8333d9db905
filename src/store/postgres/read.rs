//! Reads, on bounded pools of connections: one for callers, and one for the loops that keep tasks moving.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::{PgPool, Postgres};

use super::{
    answered,
    clock::{Clock, ClockSample},
    prepared::Prepared,
    rows,
    transaction::IS_ONE_OF,
};
use crate::{
    clock,
    domain::{
        task::TaskStatus,
        values::{TaskId, Timestamp},
    },
    store::{
        CompiledDefinitions, Loaded, StoreError,
        rows::{Columns, Row},
        source::{SeenVersion, Source},
        statement::Statement,
        view::ledger_sql::LedgerDialect,
    },
};

const NOW: &str = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now";

/// Begins a transaction for a read of several statements: it sees one snapshot, cannot write, and through a pooler its
/// statements stay on one connection from their preparation to their end.
///
/// The server ends a statement that takes too long. Otherwise it would continue on the server long after its caller has
/// a response. The setting is for this transaction only, because through a pooler the next one belongs to another
/// client. It is shorter than [`super::ANSWER_WITHIN`], so that the server ends the statement, and the connection is
/// kept.
///
/// A lock is waited for only a second: no transaction of an instance keeps a reader from a table, so a person in psql,
/// a migration or a VACUUM FULL does, for an unknown time. With the wait for a connection, which other readers may keep
/// as long, a caller has a response within three seconds.
///
/// Statements are planned again each time: lists have different filters, and a plan that was made while a table was
/// small would be kept when it is not.
const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL statement_timeout = '9s'; SET LOCAL lock_timeout = '1s'; SET LOCAL plan_cache_mode = 'force_custom_plan'";

/// The same settings for the lifetime of a reader's own connection, on which a read of one statement is that statement
/// alone. The reads that every instance makes every second should not cost five statements each.
pub(super) const SESSION_SETTINGS: &str = "SELECT set_config('default_transaction_read_only', 'on', false), \
    set_config('statement_timeout', '9s', false), set_config('lock_timeout', '1s', false), set_config('plan_cache_mode', 'force_custom_plan', false)";

/// These settings end with the transaction.
///
/// With these costs the planner chooses the index of which it expects to read the fewest entries. It must not weigh them
/// against pages: if it believes that every second task matches, it prefers an index in the order of the table, in which
/// neighbours share a page, and tests each task. If none matches in fact, it reads the whole table. An index that contains
/// only what matches never has more entries, so it is chosen whatever the statistics say.
const ALONG_INDEXES: &str = "SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
    set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
    set_config('seq_page_cost', '0', true), set_config('random_page_cost', '0', true),
    set_config('cpu_operator_cost', '0.0000001', true)";

/// Relies on the primary key.
const VERSIONS: &str = "SELECT id, version, state FROM tasks WHERE id = ANY ($1)";

type View = sqlx::Transaction<'static, Postgres>;

pub struct PgSource {
    pub(super) pool: PgPool,
    pub(super) prepared: Prepared,
    pub(super) clock: Arc<Clock>,
    pub(super) definitions: Arc<CompiledDefinitions>,
}

impl PgSource {
    async fn read<T, F>(
        &self,
        read: impl FnOnce(View) -> F + Send + 'static,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send,
    {
        let pool = self.pool.clone();
        to_its_end(async move {
            let view = answered(pool.begin_with(BEGIN)).await?;
            answered(read(view)).await
        })
        .await
    }

    /// Reads without a transaction: the connection has the settings of [`SESSION_SETTINGS`].
    async fn read_one(&self, statement: Statement) -> Result<Vec<Row>, StoreError> {
        let (pool, prepared) = (self.pool.clone(), self.prepared);
        to_its_end(async move {
            let mut connection = answered(pool.acquire()).await?;
            let rows = prepared.with_values(statement).fetch_all(&mut *connection);
            let rows = answered(rows).await?;
            Ok(rows.into_iter().map(Row::Postgres).collect())
        })
        .await
    }
}

/// Completes a read even if its caller waits no longer. If the read were dropped, its connection would be closed and
/// replaced while the server still executes the statement: callers that disconnect and ask again would make it execute
/// more statements at once than the pool has connections.
async fn to_its_end<T: Send + 'static>(
    read: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::spawn(read).await {
        Ok(found) => found.map_err(StoreError::into_unavailable),
        Err(broken) => Err(StoreError::Unavailable(format!(
            "the read was interrupted: {broken}"
        ))),
    }
}

#[async_trait]
impl Source for PgSource {
    async fn now(&self) -> Result<Timestamp, StoreError> {
        let asked = clock::instant();
        if let Some(estimate) = self.clock.at(asked) {
            return Ok(estimate.now);
        }
        let found = self.view(vec![Statement::new(NOW)]).await?;
        let row = found.first().and_then(|rows| rows.first());
        let millis = row.map(|row| row.get("now")).transpose()?;
        let millis = millis.ok_or_else(|| StoreError::Corrupt("no time".to_owned()))?;
        let now = Timestamp::from_millis(millis);
        self.clock.set(ClockSample {
            now,
            asked,
            answered: clock::instant(),
        });
        Ok(now)
    }

    fn estimated_now(&self) -> Option<Timestamp> {
        self.clock.estimated_now(clock::instant())
    }

    async fn view(&self, statements: Vec<Statement>) -> Result<Vec<Vec<Row>>, StoreError> {
        let prepared = self.prepared;
        if let ([_], Prepared::Named) = (&statements[..], prepared) {
            let mut found = Vec::with_capacity(1);
            for statement in statements {
                found.push(self.read_one(statement).await?);
            }
            return Ok(found);
        }
        self.read(async move |mut view| {
            let mut found = Vec::with_capacity(statements.len());
            for statement in statements {
                let statement = prepared.with_values(statement);
                let rows = statement.fetch_all(&mut *view).await?;
                found.push(rows.into_iter().map(Row::Postgres).collect());
            }
            Ok(found)
        })
        .await
    }

    async fn load(&self, ids: &[TaskId]) -> Result<Loaded, StoreError> {
        let (ids, prepared) = (ids.to_vec(), self.prepared);
        let definitions = self.definitions.clone();
        let load =
            async move |mut view: View| rows::load(&mut view, &ids, &definitions, prepared).await;
        self.read(load).await
    }

    async fn versions(&self, ids: &[TaskId]) -> Result<Vec<SeenVersion>, StoreError> {
        let ids: Vec<_> = ids.iter().map(|id| id.0).collect();
        let versions = self.prepared.query(VERSIONS).bind(ids);
        let read = async move |mut view: View| Ok(versions.fetch_all(&mut *view).await?);
        let found = self.read(read).await?;
        let seen = found.iter().map(|row| {
            let state: String = row.get("state")?;
            Ok(SeenVersion {
                task: row.get("id")?,
                version: row.get("version")?,
                may_have_settled: TaskStatus::ALL
                    .iter()
                    .find(|status| status.as_str() == state)
                    .is_none_or(|status| status.is_ended() || *status == TaskStatus::Error),
            })
        });
        seen.collect()
    }

    fn ledger(&self) -> LedgerDialect {
        LedgerDialect::Postgres
    }

    fn is_one_of(&self) -> &'static str {
        IS_ONE_OF
    }

    fn agents_of_untouched(&self) -> &'static str {
        r#"(SELECT substring(part FROM '^"([0-9]{1,5})":')::bigint AS key, substring(part FROM '^"[0-9]{1,5}":"(.*)"$') AS value
    FROM unnest(string_to_array(trim('{}' FROM agents), ',')) AS parts (part)) AS element"#
    }

    fn by_index(&self, table: &'static str, _: &'static str) -> String {
        table.to_owned()
    }

    fn along_indexes(&self) -> Option<Statement> {
        Some(Statement::new(ALONG_INDEXES))
    }
}
