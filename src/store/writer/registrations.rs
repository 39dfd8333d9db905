//! Workflows and agents that callers register. What a caller demands of what is there (If-Match, If-None-Match)
//! is judged in the transaction that changes it.

use thiserror::Error;

use super::handle::{Operation, Outcome, Store, mismatch};
use crate::{
    domain::{AgentName, AgentSpec, ETag, Precondition, Unmet, WorkflowName},
    store::{StoreError, Transaction},
};

/// A workflow after it was put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registered {
    /// The version that the body has.
    pub version: u32,
    /// Whether it is a new one.
    pub is_new: bool,
}

#[derive(Clone, Debug, Error)]
pub enum RegisterError {
    #[error("the precondition of the request does not match what is registered")]
    Unmet(Unmet),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What came of a registration.
pub(in crate::store) enum Registration {
    Workflow(Registered),
    Agent {
        is_new: bool,
    },
    /// Whether there was one.
    Deleted(bool),
    Unmet(Unmet),
}

/// Makes a new version where the body changed.
pub(super) async fn put_workflow(
    tx: &mut dyn Transaction,
    name: &WorkflowName,
    body: &str,
    condition: &Precondition,
) -> Result<Registration, StoreError> {
    let latest = tx.latest_workflow(name).await?;
    let tag = latest
        .as_ref()
        .map(|latest| ETag::of_workflow(latest.version, &latest.body, latest.created_at));
    if let Err(unmet) = condition.check(tag) {
        return Ok(Registration::Unmet(unmet));
    }
    let before = latest.as_ref().map_or(0, |latest| latest.version);
    if latest.is_some_and(|latest| latest.body == body) {
        let version = before;
        let is_new = false;
        return Ok(Registration::Workflow(Registered { version, is_new }));
    }
    let version = before + 1;
    tx.add_workflow(name, version, body).await?;
    let is_new = true;
    Ok(Registration::Workflow(Registered { version, is_new }))
}

pub(super) async fn put_agent(
    tx: &mut dyn Transaction,
    name: &AgentName,
    spec: &AgentSpec,
    condition: &Precondition,
) -> Result<Registration, StoreError> {
    let current = tx.agent(name).await?.map(|spec| tag(&spec));
    let is_new = current.is_none();
    if let Err(unmet) = condition.check(current) {
        return Ok(Registration::Unmet(unmet));
    }
    // Nothing could be locked where nothing was: another instance may be adding it at this moment.
    match is_new && condition.is_given() {
        true => tx.add_agent(name, spec).await?,
        false => tx.put_agent(name, spec).await?,
    }
    Ok(Registration::Agent { is_new })
}

pub(super) async fn delete_agent(
    tx: &mut dyn Transaction,
    name: &AgentName,
    condition: &Precondition,
) -> Result<Registration, StoreError> {
    if condition.is_given() {
        let Some(spec) = tx.agent(name).await? else {
            return Ok(Registration::Deleted(false));
        };
        if let Err(unmet) = condition.check(Some(tag(&spec))) {
            return Ok(Registration::Unmet(unmet));
        }
    }
    Ok(Registration::Deleted(tx.delete_agent(name).await?))
}

/// A damaged specification has a tag that nobody was told, so only `*` matches it.
fn tag(spec: &str) -> ETag {
    match serde_json::from_str::<AgentSpec>(spec) {
        Ok(spec) => ETag::of_agent(&spec),
        Err(_) => ETag::of_damaged(spec),
    }
}

impl Store {
    pub async fn put_workflow(
        &self,
        name: WorkflowName,
        body: String,
        condition: Precondition,
    ) -> Result<Registered, RegisterError> {
        let operation = Operation::PutWorkflow(name, body, condition);
        match self.register(operation).await? {
            Registration::Workflow(registered) => Ok(registered),
            _ => Err(mismatch().into()),
        }
    }

    /// Answers whether there was none before.
    pub async fn put_agent(
        &self,
        name: AgentName,
        spec: AgentSpec,
        condition: Precondition,
    ) -> Result<bool, RegisterError> {
        let operation = Operation::PutAgent(name, spec, condition);
        match self.register(operation).await? {
            Registration::Agent { is_new } => Ok(is_new),
            _ => Err(mismatch().into()),
        }
    }

    /// False where there was none.
    pub async fn delete_agent(
        &self,
        name: AgentName,
        condition: Precondition,
    ) -> Result<bool, RegisterError> {
        match self
            .register(Operation::DeleteAgent(name, condition))
            .await?
        {
            Registration::Deleted(deleted) => Ok(deleted),
            _ => Err(mismatch().into()),
        }
    }

    async fn register(&self, operation: Operation) -> Result<Registration, RegisterError> {
        match self.other(operation).await? {
            Outcome::Registered(Registration::Unmet(unmet)) => Err(RegisterError::Unmet(unmet)),
            Outcome::Registered(registration) => Ok(registration),
            _ => Err(mismatch().into()),
        }
    }
}
