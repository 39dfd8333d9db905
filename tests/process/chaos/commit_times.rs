//! Reads from the database when each change of a task was committed. The times in the record itself are those of the
//! decision, and a network that hung may have delayed the commit.

use sqlx::{Connection, PgConnection, Row};

use crate::{audit::At, audit_reader::CommitTimes};

/// Reads the times of a database that keeps them (`track_commit_timestamp`).
pub async fn commit_times(database: &str) -> CommitTimes {
    const COMMITS: &str = "
        SELECT task_id::text AS task, version,
               (extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000000)::bigint AS at
        FROM history";
    let mut connection = PgConnection::connect(database).await.unwrap();
    let rows = sqlx::query(COMMITS).fetch_all(&mut connection).await;
    let rows = rows.unwrap();
    let committed = rows.iter().map(|row| {
        let (task, version): (String, i64) = (row.get("task"), row.get("version"));
        let at: i64 = row.get("at");
        ((task, u64::try_from(version).unwrap()), At(at))
    });
    committed.collect()
}
