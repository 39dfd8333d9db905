//! How PostgreSQL is asked.

use sqlx::{
    AssertSqlSafe, Executor, PgConnection, Postgres, Row, SqlSafeStr, postgres::PgArguments,
    query::Query,
};

use crate::store::statement::{BindValue, Statement};

/// Whether statements stay prepared, as they do if a connection is exclusive for its lifetime. A pooler shares
/// connections between transactions: there each statement is prepared again and without a name, because a name
/// would stay on the connection for its next user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Prepared {
    Named,
    Unnamed,
}

/// Asked so often: a pooler with other work gives now this connection and now that.
const ASK: usize = 3;

/// Whether two connections, both open, lead to one session of the server: as they do through a pooler that gives
/// out connections by the transaction. A name that one prepared would then mean another's statement.
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
    // A simple statement, because of that very pooler.
    let row = connection
        .fetch_one("SELECT pg_backend_pid() AS session")
        .await?;
    row.try_get("session")
}

impl Prepared {
    pub fn query(self, sql: impl SqlSafeStr) -> Query<'static, Postgres, PgArguments> {
        sqlx::query(sql).persistent(self == Self::Named)
    }

    /// A statement with its values.
    pub fn with_values(self, statement: Statement) -> Query<'static, Postgres, PgArguments> {
        // Only the store's own words are in it: what comes from outside is bound.
        let mut query = self.query(AssertSqlSafe(statement.sql));
        for value in statement.values {
            query = match value {
                // No text here holds a NUL: the character that replaces it finds nothing either.
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
