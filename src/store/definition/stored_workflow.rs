//! A workflow as it is stored: canonical JSON, so that equal content has equal text.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::domain::{
    definition::{Accepted, Definition, Limits, Policies, parse_steps},
    template::Payload,
    values::Span,
};
use crate::store::{StoreError, WorkflowRecord, error::corrupt};

#[derive(Serialize, Deserialize)]
pub struct StoredWorkflow {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete_within: Option<Span>,
    /// The defaults for all steps, as [`crate::domain::definition::Policies::as_json`] returns them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policies: Option<Box<RawValue>>,
    pub steps: Box<RawValue>,
}

impl StoredWorkflow {
    pub fn parse(body: &str) -> Result<Self, StoreError> {
        serde_json::from_str(body).map_err(corrupt)
    }

    pub fn of(record: &WorkflowRecord) -> Result<Self, StoreError> {
        Self::parse(&record.body).map_err(|error| record.corrupt(error))
    }

    /// Compiles the definition. It was validated when it was registered, so the existence of its agents is not checked
    /// again.
    pub fn definition(&self) -> Result<Definition, StoreError> {
        let policies = self.policies.as_deref().map(RawValue::get);
        compile(policies, self.steps.get())
    }
}

impl WorkflowRecord {
    /// Returns an error that names the workflow with the damaged record.
    pub fn corrupt(&self, error: StoreError) -> StoreError {
        corrupt(format!(
            "version {} of workflow {}: {}",
            self.version,
            self.name,
            error.damage()
        ))
    }
}

/// Compiles a definition that was accepted before, without checking which agents exist now.
pub fn compile(policies: Option<&str>, steps: &str) -> Result<Definition, StoreError> {
    let source =
        Payload::parse(steps.to_owned()).ok_or_else(|| corrupt("a definition is not JSON"))?;
    let policies = policies.map_or_else(|| Ok(Policies::default()), Policies::parse);
    let compiled = policies
        .and_then(|policies| parse_steps(&source, "", &policies, &Limits::stored(), &Accepted));
    compiled.map_err(|faults| {
        let faults: Vec<_> = faults
            .iter()
            .map(|fault| format!("{}: {}", fault.pointer, fault.message))
            .collect();
        corrupt(format!("a stored definition: {}", faults.join("; ")))
    })
}
