//! Instances and the supervisors' lease, as statements and rows of any database.

use crate::domain::values::{Holder, InstanceId, InstanceRecord, Lease, Leases, Timestamp};
use crate::store::{SharedFeature, StoreError, rows::Columns, statement::Statement};

/// Reads the instance's own lease, and the supervisors', which has no process.
const LEASES: &str = r#"
SELECT id AS instance, incarnation, term, until, started_at, version, process FROM instances
WHERE id = $1
UNION ALL
SELECT instance, incarnation, term, until, CAST(NULL AS bigint), NULL, NULL FROM supervisor"#;

const SUPERVISOR: &str = "SELECT instance, incarnation, term, until FROM supervisor";

const NEW_INSTANCE: &str = r#"
INSERT INTO instances (id, incarnation, term, until, started_at, version, process, reads_untouched, reads_claims,
    reads_key_prefix, completes_links, holds_undos, writes_ledger, reads_attempt_rules)
VALUES ($1, $2, $3, $4, $5, $6, $7, 1, 1, 1, 1, 1, 1, 1) ON CONFLICT (id) DO NOTHING"#;

const RENEW_INSTANCE: &str = r#"
UPDATE instances SET incarnation = $2, term = $3, until = $4, started_at = $5, version = $6, process = $7,
    reads_untouched = 1, reads_claims = 1, reads_key_prefix = 1, completes_links = 1,
    holds_undos = 1, writes_ledger = 1, reads_attempt_rules = 1
WHERE id = $1 AND incarnation = $8 AND term = $9 AND until = $10"#;

const NEW_SUPERVISOR: &str = r#"
INSERT INTO supervisor (id, instance, incarnation, term, until)
VALUES (1, $1, $2, $3, $4) ON CONFLICT (id) DO NOTHING"#;

const RENEW_SUPERVISOR: &str = r#"
UPDATE supervisor SET instance = $1, incarnation = $2, term = $3, until = $4
WHERE incarnation = $5 AND term = $6 AND until = $7"#;

/// Prolongs a lease of which only the end changes.
const PROLONG: &str = r#"
WITH prolonged AS (
    UPDATE instances SET until = $1 WHERE id = $2 AND incarnation = $3 AND term = $4 AND until = $5 RETURNING id)"#;

const PROLONG_SUPERVISOR: &str = r#",
led AS (
    UPDATE supervisor SET instance = $2, incarnation = $3, term = $6, until = $7
    WHERE incarnation = $8 AND term = $9 AND until = $10 AND EXISTS (SELECT FROM prolonged) RETURNING id)"#;

/// The row has the supervisors' lease as it was before the statement.
const PROLONGED: &str = r#"
SELECT instance, incarnation, term, until, (SELECT count(*) FROM prolonged) AS prolonged, {led} AS led,
       floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
FROM supervisor"#;

const LIVE: &str = "SELECT id AS instance, incarnation FROM instances WHERE until > $1";

const FORGET: &str = "DELETE FROM instances WHERE until < $1";

/// Relies on steps_processing and tasks_claimed, which cover it.
const INSTANCES: &str = r#"
SELECT id AS instance, incarnation, term, until, started_at, version, process,
       coalesce(held.count, 0) AS held
FROM instances
LEFT JOIN (SELECT locked_by, count(*) AS count FROM (
               SELECT locked_by FROM {steps} WHERE state = 'processing' AND locked_by IS NOT NULL
               UNION ALL
               SELECT claimed_by FROM {claimed} WHERE claimed_by IS NOT NULL) AS running
           GROUP BY locked_by) AS held
       ON held.locked_by = instances.id
ORDER BY id"#;

/// Reads the leases that a renewal changes.
pub fn of(instance: &InstanceId) -> Statement {
    Statement::new(LEASES).bind(instance)
}

pub fn found(rows: &[impl Columns]) -> Result<Leases, StoreError> {
    let mut leases = Leases {
        instance: None,
        supervisor: None,
    };
    for row in rows {
        match row.text("process")? {
            Some(_) => leases.instance = Some(record(row)?),
            None => leases.supervisor = Some(lease(row)?),
        }
    }
    Ok(leases)
}

pub fn supervisor() -> Statement {
    Statement::new(SUPERVISOR)
}

/// Reads each record with the number of steps that the instance holds. `steps` is the table of steps, and `claimed`
/// that of tasks, by their indexes.
pub fn instances(steps: &str, claimed: &str) -> Statement {
    let instances = INSTANCES.replace("{steps}", steps);
    Statement::new(instances.replace("{claimed}", claimed))
}

/// Reads the processes whose leases have not expired.
pub fn live(now: Timestamp) -> Statement {
    Statement::new(LIVE).bind(now)
}

/// Counts the instances on record that lack each feature.
pub fn known_features() -> Statement {
    let lack = SharedFeature::ALL.map(|feature| {
        let column = feature.column();
        format!("count(CASE WHEN {column} IS NULL THEN 1 END) AS {column}")
    });
    Statement::new(format!("SELECT {} FROM instances", lack.join(", ")))
}

pub fn forget(ended_before: Timestamp) -> Statement {
    Statement::new(FORGET).bind(ended_before)
}

/// Returns statements for the differences. Each must affect a row; otherwise another instance was faster.
pub fn changes(before: &Leases, after: &Leases) -> Vec<Statement> {
    let instance = after.instance.as_ref();
    let instance = instance.filter(|_| after.instance != before.instance);
    let supervisor = after.supervisor.as_ref();
    let supervisor = supervisor.filter(|_| after.supervisor != before.supervisor);
    let mut changes = Vec::new();
    if let Some(record) = instance {
        let held = before.instance.as_ref().map(|held| &held.lease);
        let sql = held.map_or(NEW_INSTANCE, |_| RENEW_INSTANCE);
        let change = with_lease(Statement::new(sql), &record.lease)
            .bind(record.started_at)
            .bind(record.version.as_str())
            .bind(record.process.as_str());
        changes.push(compared(change, held));
    }
    if let Some(lease) = supervisor {
        let held = before.supervisor.as_ref();
        let sql = held.map_or(NEW_SUPERVISOR, |_| RENEW_SUPERVISOR);
        changes.push(compared(with_lease(Statement::new(sql), lease), held));
    }
    changes
}

/// Returns one statement that saves `after`, if that only prolongs the lease of an instance, and at most takes or
/// prolongs the supervisors'. It is for databases whose statements can change two tables.
pub fn prolong(before: &Leases, after: &Leases) -> Option<Statement> {
    let (held, next) = (before.instance.as_ref()?, after.instance.as_ref()?);
    let prolonged = InstanceRecord {
        lease: Lease {
            until: next.lease.until,
            ..held.lease.clone()
        },
        ..held.clone()
    };
    if prolonged != *next {
        return None;
    }
    let (leading, leads) = (before.supervisor.as_ref()?, after.supervisor.as_ref()?);
    let changes_lead = leading != leads;
    if changes_lead && leads.holder != next.lease.holder {
        return None;
    }
    let (led_by, led) = match changes_lead {
        true => (PROLONG_SUPERVISOR, "(SELECT count(*) FROM led)"),
        false => ("", "1::bigint"),
    };
    let sql = format!("{PROLONG}{led_by}{}", PROLONGED.replace("{led}", led));
    let statement = Statement::new(sql)
        .bind(next.lease.until)
        .bind(&held.lease.holder.instance);
    let statement = compared(statement, Some(&held.lease));
    Some(match changes_lead {
        true => compared(
            statement.bind(leads.term.0).bind(leads.until),
            Some(leading),
        ),
        false => statement,
    })
}

/// Reads the result of [`prolong`]: the supervisors' lease before it, or `None` if another instance was faster.
pub fn prolonged(row: &impl Columns) -> Result<Option<Lease>, StoreError> {
    let done = row.get::<u64>("prolonged")? > 0 && row.get::<u64>("led")? > 0;
    done.then(|| lease(row)).transpose()
}

fn with_lease(statement: Statement, lease: &Lease) -> Statement {
    statement
        .bind(&lease.holder.instance)
        .bind(lease.holder.incarnation.0)
        .bind(lease.term.0)
        .bind(lease.until)
}

fn compared(statement: Statement, held: Option<&Lease>) -> Statement {
    match held {
        Some(held) => statement
            .bind(held.holder.incarnation.0)
            .bind(held.term.0)
            .bind(held.until),
        None => statement,
    }
}

fn record(row: &impl Columns) -> Result<InstanceRecord, StoreError> {
    Ok(InstanceRecord {
        lease: lease(row)?,
        started_at: row.get("started_at")?,
        version: row.get("version")?,
        process: row.get("process")?,
    })
}

pub fn held(row: &impl Columns) -> Result<(InstanceRecord, u64), StoreError> {
    Ok((record(row)?, row.get("held")?))
}

pub fn holder(row: &impl Columns) -> Result<Holder, StoreError> {
    Ok(Holder {
        instance: row.get("instance")?,
        incarnation: row.get("incarnation")?,
    })
}

pub fn lease(row: &impl Columns) -> Result<Lease, StoreError> {
    Ok(Lease {
        holder: holder(row)?,
        term: row.get("term")?,
        until: row.get("until")?,
    })
}
