//! The controls of agents: their pauses and breakers, one record for each agent. A change is decided on the current
//! record, even if the instance knew an older one.

use crate::domain::{
    agent::{
        AgentControl, AgentSpec, ControlAlertChange, ControlChange, ControlledBy, control_alert,
        control_alert_subject,
    },
    message::Sender,
    task::AlertKind,
    values::{AgentName, InstanceId},
    view::{ChangeOrigin, LedgerRecord, LedgerSubject},
};
use crate::{
    chance,
    store::{
        Reader, StoreError, Transaction,
        error::corrupt,
        rows::{Columns, Row},
        statement::Statement,
    },
};

const ALL: &str = "SELECT agent, version, control FROM agent_controls";

const OF_ONE: &str = "SELECT version, control FROM agent_controls WHERE agent = $1";

const ADD: &str = r#"
INSERT INTO agent_controls (agent, version, control) VALUES ($1, 1, $2)
ON CONFLICT (agent) DO NOTHING"#;

/// Changes nothing if another instance has changed the control since it was read.
const CHANGE: &str = r#"
UPDATE agent_controls SET version = version + 1, control = $3 WHERE agent = $1 AND version = $2"#;

/// A control, and the number of its changes, which is 0 if there is no record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ControlRecord {
    pub version: u64,
    pub control: AgentControl,
}

/// A change that an operator or an instance requests.
#[derive(Clone, Debug)]
pub struct ControlRequest {
    pub agent: AgentName,
    /// The specification as this instance knows it.
    pub spec: AgentSpec,
    pub change: ControlChange,
    /// The version of the control that the instance knew when it observed the reason. The change applies only to that
    /// version.
    pub seen: Option<u64>,
    pub operator: Option<String>,
    pub instance: InstanceId,
}

/// The control after a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControlResponse {
    pub record: ControlRecord,
    pub is_changed: bool,
}

impl Reader {
    pub async fn agent_controls(&self) -> Result<Vec<(AgentName, ControlRecord)>, StoreError> {
        let control = |row: &Row| Ok((row.get("agent")?, record(row)?));
        self.all(Statement::new(ALL), control).await
    }
}

/// A control that cannot be read counts as none: the agent is called, and the next change overwrites the record.
fn record(row: &impl Columns) -> Result<ControlRecord, StoreError> {
    let json: String = row.get("control")?;
    Ok(ControlRecord {
        version: row.get("version")?,
        control: serde_json::from_str(&json).unwrap_or_default(),
    })
}

pub(in crate::store) async fn change(
    tx: &mut Transaction<'_>,
    request: &ControlRequest,
    sender: &Sender,
    origin: &ChangeOrigin,
) -> Result<ControlResponse, StoreError> {
    tx.lock_out_of_order();
    let agent = &request.agent;
    let row = tx.fetch_first(Statement::new(OF_ONE).bind(agent)).await?;
    let before = row.as_ref().map(record).transpose()?.unwrap_or_default();
    let mut control = before.control.clone();
    let by = ControlledBy {
        instance: &request.instance,
        operator: request.operator.as_deref(),
        now: tx.now(),
    };
    let is_current = request.seen.is_none_or(|seen| seen == before.version);
    if !is_current || !control.apply(&request.change, &request.spec, by) {
        return Ok(ControlResponse {
            record: before,
            is_changed: false,
        });
    }
    let endpoints = request.spec.endpoints.len();
    let record = save(tx, agent, &before, control, endpoints, sender).await?;
    if let Some(kind) = request.change.event() {
        let noted = LedgerRecord::new(kind, LedgerSubject::Agent, agent, origin);
        let noted = noted.because(request.change.reason());
        let [known, changed] = [&before.control, &record.control].map(serde_json::to_string);
        let (known, changed) = (known.map_err(corrupt)?, changed.map_err(corrupt)?);
        tx.add_records(&[noted.with_difference(Some(&known), Some(&changed))])
            .await?;
    }
    Ok(ControlResponse {
        record,
        is_changed: true,
    })
}

/// Closes the alert of a breaker that the new specification does not have, because it would stay open.
pub(in crate::store) async fn respecified(
    tx: &mut Transaction<'_>,
    agent: &AgentName,
    spec: &AgentSpec,
    sender: &Sender,
) -> Result<(), StoreError> {
    let row = tx.fetch_first(Statement::new(OF_ONE).bind(agent)).await?;
    let Some(before) = row.as_ref().map(record).transpose()? else {
        return Ok(());
    };
    let mut control = before.control.clone();
    if control.forget_strangers(spec) {
        let endpoints = spec.endpoints.len();
        save(tx, agent, &before, control, endpoints, sender).await?;
    }
    Ok(())
}

/// Deletes the control of a deleted agent: an agent that is registered under its name later must not be paused from the
/// start.
pub(in crate::store) async fn forget(
    tx: &mut Transaction<'_>,
    agent: &AgentName,
    sender: &Sender,
) -> Result<(), StoreError> {
    let row = tx.fetch_first(Statement::new(OF_ONE).bind(agent)).await?;
    match row.as_ref().map(record).transpose()? {
        Some(before) if !before.control.is_empty() => {
            let none = AgentControl::default();
            save(tx, agent, &before, none, 0, sender).await?;
        }
        _ => {}
    }
    Ok(())
}

async fn save(
    tx: &mut Transaction<'_>,
    agent: &AgentName,
    before: &ControlRecord,
    control: AgentControl,
    endpoints: usize,
    sender: &Sender,
) -> Result<ControlRecord, StoreError> {
    let json = serde_json::to_string(&control).map_err(corrupt)?;
    let write = match before.version {
        0 => Statement::new(ADD).bind(agent).bind(json),
        version => Statement::new(CHANGE).bind(agent).bind(version).bind(json),
    };
    if tx.registered(write).await? == 0 {
        let reason = format!("the control of agent {agent} was changed meanwhile");
        return Err(StoreError::Retryable(reason));
    }
    let version = before.version + 1;
    for kind in [AlertKind::BreakerOpen, AlertKind::EndpointUnhealthy] {
        let Some(change) = control.alert_change(&before.control, kind) else {
            continue;
        };
        let alert = control_alert(kind, chance::id(), agent, &control, endpoints, tx.now());
        match change {
            ControlAlertChange::Raise => tx.raise_alert(&alert, None, sender).await?,
            ControlAlertChange::Reword { has_grown } => {
                let heard = has_grown.then_some(version);
                tx.reword_alert(kind, &alert, heard, sender).await?;
            }
            ControlAlertChange::Close => {
                let subject = control_alert_subject(agent, kind);
                tx.close_alert_of(kind, &subject, sender).await?;
            }
        }
    }
    Ok(ControlRecord { version, control })
}
