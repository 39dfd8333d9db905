//! Finds out whether a transaction was committed whose COMMIT got no response.
//!
//! The witness is an entry of the history that the transaction wrote. Before its absence counts, the old session must
//! have ended: the server may not have noticed the loss yet, and may even receive the statement later, from data that
//! the network held back.
//!
//! A session is identified by its process and its start time, so that it is not confused with another after a crash or
//! a failover. An idle session is asked to end. A pooler lends sessions for one transaction, so there only the
//! transaction's id can be used, which proves less: after a crash or a failover the server assigns again the ids of
//! transactions that had not reached its disk or its standby, and the id may belong to another transaction by now.

use sqlx::{AssertSqlSafe, Executor, PgConnection, Row};

use super::{answered, prepared::Prepared};
use crate::store::{Batch, StoreError, record::HistoryRow};

/// An entry of the history that a transaction wrote. No other transaction writes the same entry: it names who changed
/// what and when.
pub(super) struct CommitWitness(HistoryRow);

/// Relies on the primary key.
const WITNESSED: &str = r#"
SELECT count(*) AS witnessed FROM history
WHERE task_id = $1 AND version = $2 AND at = $3 AND events = $4"#;

/// The session, or with a pooler the transaction, that may still commit.
#[derive(Clone, Copy, Debug)]
pub(super) enum LostSession<'s> {
    Connection(&'s SessionId),
    Transaction(u64),
}

/// Identifies a session that serves this connection only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SessionId {
    pub process: i32,
    pub since: String,
}

/// Returns one row while the session exists. The session is asked to end if it is idle. A running statement ends in any
/// case, and the session with it once the server notices the loss.
const SESSION: &str = r#"
SELECT CASE WHEN state = 'idle' THEN pg_terminate_backend(pid) END
FROM pg_stat_activity WHERE pid = $1 AND backend_start::text = $2"#;

/// The code of `transaction ID … is in the future`: the server does not know the id, or does not know it any more.
const UNKNOWN_ID: &str = "22023";

impl CommitWitness {
    pub fn of(batch: &Batch) -> Option<Self> {
        let change = batch.changes.iter().find(|c| !c.events.is_empty())?;
        Some(Self(HistoryRow::of(change)))
    }
}

/// Returns whether the transaction is in the record, or `None` while it may still be committed. A transaction without a
/// witness counts as lost, because the changes of such transactions can be made twice.
pub(super) async fn is_committed(
    connection: &mut PgConnection,
    lost_session: LostSession<'_>,
    witness: Option<&CommitWitness>,
    prepared: Prepared,
) -> Result<Option<bool>, StoreError> {
    let is_at_it = match lost_session {
        LostSession::Connection(session) => session.is_there(connection, prepared).await?,
        LostSession::Transaction(id) => is_in_progress(connection, id).await?,
    };
    if is_at_it {
        return Ok(None);
    }
    let Some(CommitWitness(witness)) = witness else {
        return Ok(Some(false));
    };
    answered(async {
        let mut view = sqlx::Connection::begin(connection).await?;
        let row = prepared
            .query(WITNESSED)
            .bind(witness.task_id)
            .bind(witness.version)
            .bind(witness.at)
            .bind(&witness.events)
            .fetch_one(&mut *view)
            .await?;
        view.commit().await?;
        Ok::<_, StoreError>(Some(row.try_get::<i64, _>("witnessed")? > 0))
    })
    .await
}

impl SessionId {
    async fn is_there(
        &self,
        connection: &mut PgConnection,
        prepared: Prepared,
    ) -> Result<bool, StoreError> {
        let found = prepared
            .query(SESSION)
            .bind(self.process)
            .bind(&self.since)
            .fetch_optional(connection);
        Ok(answered(found).await?.is_some())
    }
}

/// A simple statement, because a pooler gives out connections for one transaction.
async fn is_in_progress(connection: &mut PgConnection, id: u64) -> Result<bool, StoreError> {
    let status = format!("SELECT pg_xact_status('{id}'::xid8) AS outcome");
    let status = match connection.fetch_one(AssertSqlSafe(status)).await {
        Ok(row) => row.try_get::<Option<String>, _>("outcome")?,
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(UNKNOWN_ID) => None,
        Err(error) => return Err(error.into()),
    };
    Ok(status.as_deref() == Some("in progress"))
}

#[cfg(test)]
mod tests {
    use sqlx::{Connection, PgConnection};
    use uuid::Uuid;

    use super::*;
    use crate::store::conformance::cluster;

    const WRITE: &str = r#"
BEGIN;
INSERT INTO history (task_id, version, at, events)
VALUES ('01900000-0000-7000-8000-000000000001', 2, 3, '[]');
SELECT pg_current_xact_id()::text AS id"#;

    fn witness(version: i64) -> CommitWitness {
        CommitWitness(HistoryRow {
            task_id: Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001),
            version,
            at: 3,
            events: "[]".to_owned(),
        })
    }

    #[tokio::test]
    async fn what_was_written_tells_and_not_the_id_which_another_may_have_by_now() {
        let url = cluster::new_database();
        crate::store::postgres::migrate(&url).await.unwrap();
        let mut writer = PgConnection::connect(&url).await.unwrap();
        let mut asker = PgConnection::connect(&url).await.unwrap();
        let rows = writer.fetch_all(WRITE).await.unwrap();
        let id: String = rows.last().unwrap().get("id");
        let id: u64 = id.parse().unwrap();
        let mut asked = async |id: u64, witness: Option<CommitWitness>| {
            let lost_session = LostSession::Transaction(id);
            let asked = is_committed(&mut asker, lost_session, witness.as_ref(), Prepared::Named);
            asked.await.unwrap()
        };
        assert_eq!(asked(id, Some(witness(2))).await, None, "it may still come");
        writer.execute("COMMIT").await.unwrap();
        assert_eq!(asked(id, Some(witness(2))).await, Some(true));
        // The id belongs to a transaction that committed, but not to this one.
        assert_eq!(asked(id, Some(witness(4))).await, Some(false));
        assert_eq!(asked(id, None).await, Some(false));
        // No part of the transaction had reached the disk when the server crashed.
        assert_eq!(asked(id + 1_000_000, Some(witness(4))).await, Some(false));
    }
}
