//! Records which version of a workflow is active: tasks that name no version get that one.

use std::sync::Arc;

use futures::FutureExt;
use thiserror::Error;

use crate::domain::{
    task::Actor,
    values::{ETag, Precondition, PreconditionFailure, Timestamp, WorkflowName},
    view::{ChangeOrigin, LedgerRecord, LedgerSubject},
};
use crate::store::{
    Reader, Store, StoreError, Transaction, WorkflowRecord,
    postgres::Notification,
    rows::{self, Columns, Row, WORKFLOW},
    statement::Statement,
};

/// The number of activations of a workflow that are kept, the latest ones.
const KEPT_ACTIVATIONS: usize = 50;

/// Relies on the primary key, as do the others.
const LAST: &str = r#"
SELECT number, version, from_version, at, activated_by, reason FROM workflow_activations
WHERE name = $1 ORDER BY number DESC LIMIT $2"#;

const ADD: &str = r#"
INSERT INTO workflow_activations (name, number, version, from_version, at, activated_by, reason)
VALUES ($1, $2, $3, $4, $5, $6, $7)"#;

const FORGET: &str = "DELETE FROM workflow_activations WHERE name = $1 AND number <= $2";

const HAS_VERSION: &str = "SELECT version FROM workflows WHERE name = $1 AND version = $2";

/// Returns the active version with the number of its activation, which is 0 if there was none.
fn active() -> String {
    format!(
        "SELECT {WORKFLOW}, coalesce((SELECT max(number) FROM workflow_activations WHERE name = $1), 0) AS number
FROM workflows
WHERE name = $1 AND version = coalesce(
    (SELECT version FROM workflow_activations WHERE name = $1 ORDER BY number DESC LIMIT 1),
    (SELECT max(version) FROM workflows WHERE name = $1))"
    )
}

/// The record that a version was made active.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Activation {
    /// Counted from 1.
    pub number: u64,
    pub version: u32,
    pub from_version: u32,
    pub at: Timestamp,
    pub by: String,
    pub reason: Option<String>,
}

/// The active version of a workflow.
#[derive(Clone, Debug)]
pub struct ActiveWorkflow {
    pub record: WorkflowRecord,
    /// The number of activations so far. Of two results the one with the higher number is newer.
    pub number: u64,
}

/// A request to activate a version of a workflow.
#[derive(Clone, Debug)]
pub struct ActivationRequest {
    pub name: WorkflowName,
    pub version: u32,
    pub by: Actor,
    pub reason: Option<String>,
    pub condition: Precondition,
}

#[derive(Clone, Debug, Error)]
pub enum ActivationError {
    #[error("the precondition of the request does not match what is registered")]
    Unmet(PreconditionFailure),
    #[error("the workflow does not exist")]
    NoWorkflow,
    #[error("the workflow has no such version; its latest is {latest}")]
    NoVersion { latest: u32 },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Activation {
    /// Returns the record of the activation for the ledger.
    pub(in crate::store) fn record(
        &self,
        name: &WorkflowName,
        origin: &ChangeOrigin,
    ) -> LedgerRecord {
        let record = LedgerRecord::new("workflow.activated", LedgerSubject::Workflow, name, origin);
        let version = |version: u32| format!("{{\"version\":{version}}}");
        let (before, after) = (version(self.from_version), version(self.version));
        let record = record.with_difference(Some(&before), Some(&after));
        record.because(self.reason.as_deref())
    }
}

fn activation(row: &Row) -> Result<Activation, StoreError> {
    Ok(Activation {
        number: row.get("number")?,
        version: row.get("version")?,
        from_version: row.get("from_version")?,
        at: row.get("at")?,
        by: row.get("activated_by")?,
        reason: row.get("reason")?,
    })
}

impl Transaction<'_> {
    /// Returns the last activation of a workflow.
    pub(in crate::store) async fn last_activation(
        &mut self,
        name: &WorkflowName,
    ) -> Result<Option<Activation>, StoreError> {
        self.lock_out_of_order();
        let last = Statement::new(LAST).bind(name).bind(1_usize);
        let last = self.fetch_first(last).await?;
        last.as_ref().map(activation).transpose()
    }

    /// Fails, or is decided again, if another instance activates a version at the same time.
    pub(in crate::store) async fn activate(
        &mut self,
        name: &WorkflowName,
        activation: &Activation,
    ) -> Result<(), StoreError> {
        self.lock_out_of_order();
        let Activation {
            number,
            version,
            from_version,
            at,
            by,
            reason,
        } = activation;
        let add = Statement::new(ADD)
            .bind(name)
            .bind(*number)
            .bind(*version)
            .bind(*from_version)
            .bind(*at)
            .bind(by.as_str())
            .bind(reason.as_deref());
        self.run(add).await?;
        let forgotten = number.saturating_sub(KEPT_ACTIVATIONS as u64);
        if forgotten > 0 {
            let forget = Statement::new(FORGET).bind(name).bind(forgotten);
            self.run(forget).await?;
        }
        self.notify(Notification::REGISTRATIONS);
        Ok(())
    }
}

/// Makes a version active. Nothing changes if it is active already.
async fn activate(
    tx: &mut Transaction<'_>,
    request: &ActivationRequest,
    origin: &ChangeOrigin,
) -> Result<Result<(), ActivationError>, StoreError> {
    let ActivationRequest {
        name,
        version,
        by,
        reason,
        condition,
    } = request;
    let Some(latest) = tx.latest_workflow(name).await? else {
        return Ok(Err(ActivationError::NoWorkflow));
    };
    let last = tx.last_activation(name).await?;
    let number = last.as_ref().map_or(0, |last| last.number);
    let tag = ETag::of_workflow(latest.version, &latest.body, latest.created_at, number);
    if let Err(unmet) = condition.check(Some(tag)) {
        return Ok(Err(ActivationError::Unmet(unmet)));
    }
    let find = Statement::new(HAS_VERSION).bind(name).bind(*version);
    if tx.fetch_first(find).await?.is_none() {
        let latest = latest.version;
        return Ok(Err(ActivationError::NoVersion { latest }));
    }
    let active = last.as_ref().map_or(latest.version, |last| last.version);
    if active == *version {
        return Ok(Ok(()));
    }
    let activation = Activation {
        number: number + 1,
        version: *version,
        from_version: active,
        at: tx.now(),
        by: by.to_string(),
        reason: reason.clone(),
    };
    tx.activate(name, &activation).await?;
    tx.add_records(&[activation.record(name, origin)]).await?;
    Ok(Ok(()))
}

impl Store {
    pub async fn activate_workflow(
        &self,
        request: ActivationRequest,
    ) -> Result<(), ActivationError> {
        let (request, origin) = (Arc::new(request), self.origin());
        let activated = self.write(move |tx| {
            let (request, origin) = (request.clone(), origin.clone());
            async move { activate(tx, &request, &origin).await }.boxed()
        });
        activated.await?
    }
}

impl Reader {
    pub async fn active_workflow(
        &self,
        name: &WorkflowName,
    ) -> Result<Option<ActiveWorkflow>, StoreError> {
        let active = Statement::new(active()).bind(name);
        self.first(active, |row| {
            Ok(ActiveWorkflow {
                record: rows::workflow(row)?,
                number: row.get("number")?,
            })
        })
        .await
    }

    /// Returns the last activations of a workflow, newest first.
    pub async fn activations(&self, name: &WorkflowName) -> Result<Vec<Activation>, StoreError> {
        let last = Statement::new(LAST).bind(name).bind(KEPT_ACTIVATIONS);
        self.all(last, activation).await
    }

    /// Returns the versions of a workflow before this one, newest first.
    pub async fn workflow_versions(
        &self,
        name: &WorkflowName,
        before: Option<u32>,
        limit: usize,
    ) -> Result<Vec<WorkflowRecord>, StoreError> {
        let sql = format!(
            "SELECT {WORKFLOW} FROM workflows WHERE name = $1 AND version < $2 ORDER BY version DESC LIMIT $3"
        );
        let before = before.map_or(i64::MAX, i64::from);
        let versions = Statement::new(sql).bind(name).bind(before).bind(limit);
        self.all(versions, rows::workflow).await
    }

    /// Returns the latest version of each workflow, with its active one.
    pub async fn workflows(&self) -> Result<Vec<(WorkflowRecord, u32)>, StoreError> {
        let latest = format!(
            "SELECT {WORKFLOW}, coalesce(
    (SELECT version FROM workflow_activations WHERE name = latest.name ORDER BY number DESC LIMIT 1), version) AS active
FROM workflows AS latest
WHERE version = (SELECT max(version) FROM workflows WHERE name = latest.name)
ORDER BY name"
        );
        let one = |row: &Row| Ok((rows::workflow(row)?, row.get("active")?));
        self.all(Statement::new(latest), one).await
    }
}
