//! Workflows and agents that callers register. What a caller demands of what is there (If-Match, If-None-Match)
//! is judged in the transaction that changes it.

use std::sync::Arc;

use futures::FutureExt;
use thiserror::Error;

use super::Store;
use crate::{
    domain::{Actor, AgentName, AgentSpec, ETag, Precondition, Sender, Unmet, WorkflowName},
    store::{
        Activation, ControlRequest, ControlResponse, StoreError, Transaction, agent_checks,
        agent_controls, lanes, slot_shares,
    },
};

/// A workflow after it was put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegisteredVersion {
    /// The version that the body has.
    pub version: u32,
    /// Whether it is a new one.
    pub is_new: bool,
}

#[derive(Clone, Debug, Error)]
pub enum RegisterError {
    #[error("the precondition of the request does not match what is registered")]
    Unmet(Unmet),
    /// So many steps wait for the agent, or at least [`MOST_COUNTED`](crate::store::MOST_COUNTED).
    #[error("steps wait for the agent")]
    InUse(u64),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A workflow that is put.
struct WorkflowPut {
    name: WorkflowName,
    body: String,
    condition: Precondition,
    /// Whether the version becomes the active one. Not said: if the one before it is.
    activate: Option<bool>,
    by: Actor,
}

/// Why a version became active without anybody's request for that alone.
const REGISTERED: &str = "it was registered";
/// Why the version before it became active, where a new one was not to be.
const NOT_ACTIVATED: &str = "a version was registered after it, and not activated";

/// Makes a new version where the body changed.
async fn put_workflow(
    tx: &mut Transaction<'_>,
    put: &WorkflowPut,
) -> Result<Result<RegisteredVersion, Unmet>, StoreError> {
    let name = &put.name;
    let latest = tx.latest_workflow(name).await?;
    let last = tx.last_activation(name).await?;
    let number = last.as_ref().map_or(0, |last| last.number);
    let tag = latest
        .as_ref()
        .map(|latest| ETag::of_workflow(latest.version, &latest.body, latest.created_at, number));
    if let Err(unmet) = put.condition.check(tag) {
        return Ok(Err(unmet));
    }
    let before = latest.as_ref().map_or(0, |latest| latest.version);
    let is_new = latest.is_none_or(|latest| latest.body != put.body);
    let version = if is_new { before + 1 } else { before };
    if is_new {
        tx.add_workflow(name, version, &put.body).await?;
    }
    let active = last.as_ref().map_or(before, |last| last.version);
    let default = is_new && active == before;
    // The first version is active: there is no other.
    let activates = put.activate.unwrap_or(default) || before == 0;
    let (to, reason) = match (activates, &last) {
        (true, Some(last)) if last.version != version => (version, REGISTERED),
        // Else the newest version would be active.
        (false, None) if is_new => (before, NOT_ACTIVATED),
        _ => return Ok(Ok(RegisteredVersion { version, is_new })),
    };
    let activation = Activation {
        number: number + 1,
        version: to,
        from_version: active,
        at: tx.now(),
        by: put.by.to_string(),
        reason: Some(reason.to_owned()),
    };
    tx.activate(name, &activation).await?;
    Ok(Ok(RegisteredVersion { version, is_new }))
}

async fn put_agent(
    tx: &mut Transaction<'_>,
    name: &AgentName,
    spec: &AgentSpec,
    condition: &Precondition,
    sender: &Sender,
) -> Result<Result<bool, Unmet>, StoreError> {
    let current = tx.agent(name).await?.map(|spec| tag(&spec));
    let is_new = current.is_none();
    if let Err(unmet) = condition.check(current) {
        return Ok(Err(unmet));
    }
    // Nothing could be locked where nothing was: another instance may be adding it at this moment.
    match is_new && condition.is_given() {
        true => tx.add_agent(name, spec).await?,
        false => tx.put_agent(name, spec).await?,
    }
    agent_controls::respecified(tx, name, spec, sender).await?;
    if spec.limits.iter().all(|limit| limit.rate.is_none()) {
        lanes::forget_rates(tx, name).await?;
    }
    Ok(Ok(is_new))
}

async fn delete_agent(
    tx: &mut Transaction<'_>,
    name: &AgentName,
    condition: &Precondition,
    force: bool,
    sender: &Sender,
) -> Result<Result<bool, RegisterError>, StoreError> {
    if condition.is_given() || !force {
        let Some(spec) = tx.agent(name).await? else {
            return Ok(Ok(false));
        };
        if let Err(unmet) = condition.check(Some(tag(&spec))) {
            return Ok(Err(RegisterError::Unmet(unmet)));
        }
    }
    if !force {
        let waiting = tx.steps_that_wait_for(name).await?;
        if waiting > 0 {
            return Ok(Err(RegisterError::InUse(waiting)));
        }
    }
    let was_there = tx.delete_agent(name).await?;
    if was_there {
        agent_controls::forget(tx, name, sender).await?;
        slot_shares::forget(tx, name).await?;
        agent_checks::forget(tx, name).await?;
        lanes::forget_rates(tx, name).await?;
    }
    Ok(Ok(was_there))
}

/// A damaged specification has a tag that no response contained, so only `*` matches it.
fn tag(spec: &str) -> ETag {
    match serde_json::from_str::<AgentSpec>(spec) {
        Ok(spec) => ETag::of_agent(&spec),
        Err(_) => ETag::of_damaged(spec),
    }
}

impl Store {
    /// `activate`: whether the version becomes the active one; if that is not said, it does if the one before it is.
    pub async fn put_workflow(
        &self,
        name: WorkflowName,
        body: String,
        condition: Precondition,
        activate: Option<bool>,
        by: Actor,
    ) -> Result<RegisteredVersion, RegisterError> {
        let put = Arc::new(WorkflowPut {
            name,
            body,
            condition,
            activate,
            by,
        });
        let put = self.write(move |tx| {
            let put = put.clone();
            async move { put_workflow(tx, &put).await }.boxed()
        });
        put.await?.map_err(RegisterError::Unmet)
    }

    /// Returns whether there was none before.
    pub async fn put_agent(
        &self,
        name: AgentName,
        spec: AgentSpec,
        condition: Precondition,
    ) -> Result<bool, RegisterError> {
        let (put, sender) = (Arc::new((name, spec, condition)), self.sender.clone());
        // The alert of its breakers may be closed.
        let wakes = Some(self.outbox.clone());
        let put = self.send_write(true, wakes, move |tx| {
            let (put, sender) = (put.clone(), sender.load_full());
            async move { put_agent(tx, &put.0, &put.1, &put.2, &sender).await }.boxed()
        });
        put.await?.map_err(RegisterError::Unmet)
    }

    /// False where there was none. `force`: also if steps wait for it.
    pub async fn delete_agent(
        &self,
        name: AgentName,
        condition: Precondition,
        force: bool,
    ) -> Result<bool, RegisterError> {
        let (delete, sender) = (Arc::new((name, condition)), self.sender.clone());
        // The alert of its breakers may be closed.
        let wakes = Some(self.outbox.clone());
        let deleted = self.send_write(true, wakes, move |tx| {
            let (delete, sender) = (delete.clone(), sender.load_full());
            async move { delete_agent(tx, &delete.0, &delete.1, force, &sender).await }.boxed()
        });
        deleted.await?
    }

    /// Pauses or resumes an agent, or changes its breakers, as far as that applies to what holds then.
    pub async fn change_control(
        &self,
        request: ControlRequest,
    ) -> Result<ControlResponse, StoreError> {
        let (request, sender) = (Arc::new(request), self.sender.clone());
        // An alert may be raised or closed.
        let wakes = Some(self.outbox.clone());
        self.send_write(true, wakes, move |tx| {
            let (request, sender) = (request.clone(), sender.load_full());
            async move { agent_controls::change(tx, &request, &sender).await }.boxed()
        })
        .await
    }
}
