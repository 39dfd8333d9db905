//! Instances, and the supervisors' lease.

use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};

use super::rows::{self, corrupt, required};
use crate::{
    domain::{Holder, Incarnation, InstanceId, InstanceRecord, Lease, Leases, Term, Timestamp},
    store::{Saved, StoreError},
};

const INSTANCE: &str = r#"
SELECT id AS instance, incarnation, term, until, started_at, version, process FROM instances
WHERE id = ?1"#;

const SUPERVISOR: &str = "SELECT instance, incarnation, term, until FROM supervisor";

const NEW_INSTANCE: &str = r#"
INSERT INTO instances (id, incarnation, term, until, started_at, version, process)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (id) DO NOTHING"#;

const RENEW_INSTANCE: &str = r#"
UPDATE instances SET incarnation = ?2, term = ?3, until = ?4, started_at = ?5, version = ?6, process = ?7
WHERE id = ?1 AND incarnation = ?8 AND term = ?9 AND until = ?10"#;

const NEW_SUPERVISOR: &str = r#"
INSERT INTO supervisor (id, instance, incarnation, term, until)
VALUES (1, ?1, ?2, ?3, ?4) ON CONFLICT (id) DO NOTHING"#;

const RENEW_SUPERVISOR: &str = r#"
UPDATE supervisor SET instance = ?1, incarnation = ?2, term = ?3, until = ?4
WHERE incarnation = ?5 AND term = ?6 AND until = ?7"#;

const FORGET: &str = "DELETE FROM instances WHERE until < ?1";

/// Relies on steps_processing, which covers it.
const INSTANCES: &str = r#"
SELECT id AS instance, incarnation, term, until, started_at, version, process,
       coalesce(held.count, 0) AS held
FROM instances
LEFT JOIN (SELECT locked_by, count(*) AS count FROM steps INDEXED BY steps_processing
           WHERE state = 'processing' GROUP BY locked_by) AS held
       ON held.locked_by = instances.id
ORDER BY id"#;

pub(super) async fn load(
    connection: &mut SqliteConnection,
    instance: &InstanceId,
) -> Result<Leases, StoreError> {
    let found = sqlx::query(INSTANCE)
        .bind(instance.as_str())
        .fetch_optional(&mut *connection)
        .await?;
    Ok(Leases {
        instance: found.as_ref().map(record).transpose()?,
        supervisor: supervisor(connection).await?,
    })
}

pub(super) async fn supervisor(
    connection: &mut SqliteConnection,
) -> Result<Option<Lease>, StoreError> {
    let found = sqlx::query(SUPERVISOR).fetch_optional(connection).await?;
    found.as_ref().map(lease).transpose()
}

/// Each record with how many steps the instance holds.
pub(super) async fn all(
    connection: &mut SqliteConnection,
) -> Result<Vec<(InstanceRecord, u64)>, StoreError> {
    let found = sqlx::query(INSTANCES).fetch_all(connection).await?;
    let records = found.iter().map(|row| {
        let held: i64 = row.try_get("held")?;
        Ok((record(row)?, held.unsigned_abs()))
    });
    records.collect()
}

pub(super) async fn save(
    connection: &mut SqliteConnection,
    before: &Leases,
    after: &Leases,
) -> Result<Saved, StoreError> {
    if let Some(record) = after
        .instance
        .as_ref()
        .filter(|_| after.instance != before.instance)
    {
        let held = before.instance.as_ref().map(|held| &held.lease);
        let sql = held.map_or(NEW_INSTANCE, |_| RENEW_INSTANCE);
        let InstanceRecord { lease, .. } = record;
        let mut query = sqlx::query(sql)
            .bind(lease.holder.instance.as_str())
            .bind(lease.holder.incarnation.0.as_bytes().as_slice())
            .bind(lease.term.0 as i64)
            .bind(lease.until.as_millis())
            .bind(record.started_at.as_millis())
            .bind(&record.version)
            .bind(&record.process);
        if let Some(held) = held {
            query = query
                .bind(held.holder.incarnation.0.as_bytes().as_slice())
                .bind(held.term.0 as i64)
                .bind(held.until.as_millis());
        }
        if query.execute(&mut *connection).await?.rows_affected() == 0 {
            return Ok(Saved::Stale);
        }
    }
    if let Some(lease) = after
        .supervisor
        .as_ref()
        .filter(|_| after.supervisor != before.supervisor)
    {
        let sql = before
            .supervisor
            .as_ref()
            .map_or(NEW_SUPERVISOR, |_| RENEW_SUPERVISOR);
        let mut query = sqlx::query(sql)
            .bind(lease.holder.instance.as_str())
            .bind(lease.holder.incarnation.0.as_bytes().as_slice())
            .bind(lease.term.0 as i64)
            .bind(lease.until.as_millis());
        if let Some(held) = &before.supervisor {
            query = query
                .bind(held.holder.incarnation.0.as_bytes().as_slice())
                .bind(held.term.0 as i64)
                .bind(held.until.as_millis());
        }
        if query.execute(&mut *connection).await?.rows_affected() == 0 {
            return Ok(Saved::Stale);
        }
    }
    Ok(Saved::All)
}

pub(super) async fn forget(
    connection: &mut SqliteConnection,
    ended_before: Timestamp,
) -> Result<(), StoreError> {
    sqlx::query(FORGET)
        .bind(ended_before.as_millis())
        .execute(connection)
        .await?;
    Ok(())
}

fn record(row: &SqliteRow) -> Result<InstanceRecord, StoreError> {
    Ok(InstanceRecord {
        lease: lease(row)?,
        started_at: required(rows::time(row, "started_at")?, "started_at")?,
        version: row.try_get("version")?,
        process: row.try_get("process")?,
    })
}

fn lease(row: &SqliteRow) -> Result<Lease, StoreError> {
    let term: i64 = row.try_get("term")?;
    Ok(Lease {
        holder: Holder {
            instance: InstanceId::new(row.try_get::<String, _>("instance")?),
            incarnation: Incarnation(rows::uuid(row, "incarnation")?),
        },
        term: Term(u64::try_from(term).map_err(corrupt)?),
        until: required(rows::time(row, "until")?, "until")?,
    })
}
