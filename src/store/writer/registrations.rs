//! Workflows and agents that callers register. The conditions of a request (If-Match, If-None-Match) are checked in the
//! transaction that makes the change.

use std::sync::Arc;

use futures::FutureExt;
use serde_json::value::RawValue;
use thiserror::Error;

use super::Store;
use crate::{
    domain::{
        agent::AgentSpec,
        message::Sender,
        task::Actor,
        values::{
            AgentName, ETag, Precondition, PreconditionFailure, WorkflowName,
            policies_without_secrets, without_secrets,
        },
        view::{ChangeOrigin, LedgerRecord, LedgerSubject},
    },
    store::{
        Activation, ControlRequest, ControlResponse, StoreError, Transaction,
        agent::{checks, controls},
        error::corrupt,
        queue::{lanes, slot_shares},
    },
};

/// The version of a workflow after a PUT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegisteredVersion {
    /// The version that has the body of the request.
    pub version: u32,
    /// True if the version is new.
    pub is_new: bool,
}

#[derive(Clone, Debug, Error)]
pub enum RegisterError {
    #[error("the precondition of the request does not match what is registered")]
    Unmet(PreconditionFailure),
    /// This number of steps waits for the agent, or at least [`MOST_COUNTED`](crate::store::MOST_COUNTED).
    #[error("steps wait for the agent")]
    InUse(u64),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The data of a PUT of a workflow.
struct WorkflowPut {
    name: WorkflowName,
    body: String,
    condition: Precondition,
    /// Says whether the version becomes the active one. If `None`, it does if the version before it is active.
    activate: Option<bool>,
    by: Actor,
    origin: Arc<ChangeOrigin>,
}

/// The reason of an activation that was not requested by itself.
const REGISTERED: &str = "it was registered";
/// The reason for activating the version before a new one that is not to become active.
const NOT_ACTIVATED: &str = "a version was registered after it, and not activated";

/// Adds a new version if the body has changed.
async fn put_workflow(
    tx: &mut Transaction<'_>,
    put: &WorkflowPut,
) -> Result<Result<RegisteredVersion, PreconditionFailure>, StoreError> {
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
    let is_new = latest.as_ref().is_none_or(|latest| latest.body != put.body);
    let version = if is_new { before + 1 } else { before };
    if is_new {
        tx.add_workflow(name, version, &put.body).await?;
        let record = LedgerRecord::new(
            "workflow.registered",
            LedgerSubject::Workflow,
            name,
            &put.origin,
        );
        let [known, body] = [
            latest.as_ref().map(|latest| &*latest.body),
            Some(&*put.body),
        ]
        .map(|body| body.map(shown_workflow));
        let record = record.with_difference(known.as_deref(), body.as_deref());
        let version = format!("version {version}");
        tx.add_records(&[record.because(Some(&version))]).await?;
    }
    let active = last.as_ref().map_or(before, |last| last.version);
    let default = is_new && active == before;
    // The first version is always active, because there is no other.
    let activates = put.activate.unwrap_or(default) || before == 0;
    let (to, reason) = match (activates, &last) {
        (true, Some(last)) if last.version != version => (version, REGISTERED),
        // Without an activation on record, the newest version would be active.
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
    tx.add_records(&[activation.record(name, &put.origin)])
        .await?;
    Ok(Ok(RegisteredVersion { version, is_new }))
}

async fn put_agent(
    tx: &mut Transaction<'_>,
    name: &AgentName,
    spec: &AgentSpec,
    condition: &Precondition,
    sender: &Sender,
    origin: &ChangeOrigin,
) -> Result<Result<bool, PreconditionFailure>, StoreError> {
    let before = tx.agent(name).await?;
    let current = before.as_deref().map(tag);
    let is_new = current.is_none();
    if let Err(unmet) = condition.check(current) {
        return Ok(Err(unmet));
    }
    // No row could be locked because none existed: another instance may be adding the agent at this moment.
    match is_new && condition.is_given() {
        true => tx.add_agent(name, spec).await?,
        false => tx.put_agent(name, spec).await?,
    }
    controls::respecified(tx, name, spec, sender).await?;
    if spec.limits.iter().all(|limit| limit.rate.is_none()) {
        lanes::forget_rates(tx, name).await?;
    }
    let after = serde_json::to_string(spec).map_err(corrupt)?;
    if before.as_deref() != Some(&*after) {
        let record = LedgerRecord::new("agent.put", LedgerSubject::Agent, name, origin);
        let record = record.with_difference(before.as_deref(), Some(&after));
        tx.add_records(&[record]).await?;
    }
    Ok(Ok(is_new))
}

async fn delete_agent(
    tx: &mut Transaction<'_>,
    name: &AgentName,
    condition: &Precondition,
    force: bool,
    sender: &Sender,
    origin: &ChangeOrigin,
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
    let before = tx.agent(name).await?;
    let was_there = tx.delete_agent(name).await?;
    if was_there {
        let record = LedgerRecord::new("agent.deleted", LedgerSubject::Agent, name, origin);
        let record = record.with_difference(before.as_deref(), None);
        tx.add_records(&[record]).await?;
        controls::forget(tx, name, sender).await?;
        slot_shares::forget(tx, name).await?;
        checks::forget(tx, name).await?;
        lanes::forget_rates(tx, name).await?;
    }
    Ok(Ok(was_there))
}

/// Returns the body of a workflow as it is recorded: without the values that readers of workflows do not see either.
fn shown_workflow(body: &str) -> String {
    let body_of: Result<serde_json::Map<String, serde_json::Value>, _> = serde_json::from_str(body);
    let Ok(mut members) = body_of else {
        return HIDDEN_BODY.to_owned();
    };
    hide(&mut members, "steps", without_secrets);
    hide(&mut members, "policies", policies_without_secrets);
    serde_json::Value::Object(members).to_string()
}

/// Replaces a member by what is shown of it.
fn hide(
    members: &mut serde_json::Map<String, serde_json::Value>,
    member: &str,
    shown: impl Fn(&RawValue) -> Option<Box<RawValue>>,
) {
    let value = members.get(member).map(|value| value.to_string());
    let value = value.and_then(|value| RawValue::from_string(value).ok());
    if let Some(shown) = value.and_then(|value| shown(&value))
        && let Ok(shown) = serde_json::from_str(shown.get())
    {
        members.insert(member.to_owned(), shown);
    }
}

/// Stands for a body that cannot be parsed.
const HIDDEN_BODY: &str = "\"***\"";

/// A damaged specification has a tag that no response contained, so only `*` matches it.
fn tag(spec: &str) -> ETag {
    match serde_json::from_str::<AgentSpec>(spec) {
        Ok(spec) => ETag::of_agent(&spec),
        Err(_) => ETag::of_damaged(spec),
    }
}

impl Store {
    /// Adds a version if the body has changed. `activate` says whether it becomes the active one; if `None`, it does if
    /// the version before it is active.
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
            origin: self.origin(),
        });
        let put = self.write(move |tx| {
            let put = put.clone();
            async move { put_workflow(tx, &put).await }.boxed()
        });
        put.await?.map_err(RegisterError::Unmet)
    }

    /// Returns whether the agent is new.
    pub async fn put_agent(
        &self,
        name: AgentName,
        spec: AgentSpec,
        condition: Precondition,
    ) -> Result<bool, RegisterError> {
        let (put, sender) = (Arc::new((name, spec, condition)), self.sender.clone());
        let origin = self.origin();
        // The alert about its breakers may be closed.
        let wakes = Some(self.outbox.clone());
        let put = self.send_write(true, wakes, move |tx| {
            let (put, sender, origin) = (put.clone(), sender.load_full(), origin.clone());
            async move { put_agent(tx, &put.0, &put.1, &put.2, &sender, &origin).await }.boxed()
        });
        put.await?.map_err(RegisterError::Unmet)
    }

    /// Deletes an agent. Returns false if it does not exist. With `force` it is deleted even if steps wait for it.
    pub async fn delete_agent(
        &self,
        name: AgentName,
        condition: Precondition,
        force: bool,
    ) -> Result<bool, RegisterError> {
        let (delete, sender) = (Arc::new((name, condition)), self.sender.clone());
        let origin = self.origin();
        // The alert about its breakers may be closed.
        let wakes = Some(self.outbox.clone());
        let deleted = self.send_write(true, wakes, move |tx| {
            let (delete, sender, origin) = (delete.clone(), sender.load_full(), origin.clone());
            async move { delete_agent(tx, &delete.0, &delete.1, force, &sender, &origin).await }
                .boxed()
        });
        deleted.await?
    }

    /// Pauses or resumes an agent, or changes its breakers, as far as the request applies to the current control.
    pub async fn change_control(
        &self,
        request: ControlRequest,
    ) -> Result<ControlResponse, StoreError> {
        let (request, sender) = (Arc::new(request), self.sender.clone());
        let origin = self.origin.clone().unwrap_or_else(|| {
            Arc::new(ChangeOrigin {
                by: format!("instance:{}", request.instance),
                ..ChangeOrigin::default()
            })
        });
        // An alert may be raised or closed.
        let wakes = Some(self.outbox.clone());
        self.send_write(true, wakes, move |tx| {
            let (request, sender, origin) = (request.clone(), sender.load_full(), origin.clone());
            async move { controls::change(tx, &request, &sender, &origin).await }.boxed()
        })
        .await
    }
}
