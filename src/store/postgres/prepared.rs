//! Prepared statements of PostgreSQL, and queries with their values.

use sqlx::{
    AssertSqlSafe, Executor, PgConnection, Postgres, Row, SqlSafeStr, postgres::PgArguments,
    query::Query,
};

use crate::store::statement::{BindValue, Statement};

/// Says whether statements stay prepared. They do if a connection is exclusive for its lifetime. A pooler shares
/// connections between transactions: there each statement is prepared again and without a name, because a name would
/// stay on the connection for its next user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Prepared {
    Named,
    Unnamed,
}

/// The number of comparisons. A pooler with other work gives out changing connections.
const ASK: usize = 3;

/// Returns whether two open connections lead to one session of the server, as they do through a pooler that gives out
/// connections for one transaction. A name that one client prepared would refer to another client's statement there.
pub(super) async fn are_pooled(
    one: &mut PgConnection,
    other: &mut PgConnection,
) -> Result<bool, sqlx::Error> {
    for _ in 0..ASK {
        if session(one).await? == session(other).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn session(connection: &mut PgConnection) -> Result<i32, sqlx::Error> {
    // A simple statement, because the connection may lead through such a pooler.
    let row = connection
        .fetch_one("SELECT pg_backend_pid() AS session")
        .await?;
    row.try_get("session")
}

impl Prepared {
    pub fn query(self, sql: impl SqlSafeStr) -> Query<'static, Postgres, PgArguments> {
        sqlx::query(sql).persistent(self == Self::Named)
    }

    /// Returns a statement with its values.
    pub fn with_values(self, statement: Statement) -> Query<'static, Postgres, PgArguments> {
        // The statement contains only the store's own text; values from outside are bound.
        let mut query = self.query(AssertSqlSafe(statement.sql));
        for value in statement.values {
            query = match value {
                // No text in the database contains a NUL, so the character that replaces it finds nothing either.
                BindValue::Text(text) => {
                    query.bind(text.map(|text| text.replace('\0', "\u{fffd}")))
                }
                BindValue::Integer(number) => query.bind(number),
                BindValue::Uuid(id) => query.bind(id),
            };
        }
        query
    }
}
