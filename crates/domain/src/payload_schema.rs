//! A JSON Schema (2020-12) that a payload must match: the input of tasks, or a signal.
//!
//! The crate `jsonschema` validates, and has no bounds of its own: schemas and payloads that are made for it keep it busy for
//! hours. So a schema is first read as a graph (`graph`), whose bounds are checked; what validating a payload may cost is known
//! before it begins (`cost`), and what costs too much is refused.

mod cost;
mod faults;
mod graph;
mod pattern;

#[cfg(test)]
mod tests;

use std::{fmt, sync::OnceLock};

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::value::RawValue;

use self::{
    cost::{Costs, Profile},
    graph::SchemaGraph,
};
use crate::{
    depth::{DEEPEST, too_deep},
    fields::FieldFault,
    payload::Payload,
    task::WorkflowRef,
    template::{Budget, Origin},
};

/// No schema is longer, in bytes.
pub const LONGEST_SCHEMA: usize = 64 * 1024;

/// What validating one payload may cost, in units of about a nanosecond: more is refused.
const MOST_COST: u64 = 8 * Budget::EVALUATION;

/// What finding all faults may cost. One fault may contain those of many alternatives.
const MOST_FAULTS_COST: u64 = Budget::EVALUATION / 8;

/// What compiling costs for each byte of the schema.
const COMPILE: u64 = 200;

/// In bytes, of a compiled pattern. Together with the most states of a pattern, and with dynamic caches.
const PATTERN_SIZE: usize = 256 * 1024;

pub struct PayloadSchema {
    source: Payload,
    /// Kept for schemas of workflows, which few can register.
    kept: OnceLock<Result<Checker, String>>,
}

impl fmt::Debug for PayloadSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

/// A compiled schema.
struct Checker {
    validator: Validator,
    costs: Costs,
}

/// Whose schema it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SchemaOwner {
    /// A workflow: what is compiled is kept for its other tasks.
    Workflow,
    /// One task: nothing is kept.
    Task,
}

impl SchemaOwner {
    /// Of a task of this workflow, or of none.
    pub fn of(workflow: Option<&WorkflowRef>) -> Self {
        match workflow {
            Some(_) => SchemaOwner::Workflow,
            None => SchemaOwner::Task,
        }
    }
}

impl PayloadSchema {
    /// Reads the schema that stands at `pointer`. One that was accepted before is not looked at until it is used.
    pub fn read(
        value: &RawValue,
        pointer: &str,
        origin: Origin<'_>,
    ) -> Result<Self, Vec<FieldFault>> {
        if matches!(origin, Origin::Submitted(_)) {
            Checker::compile(value.get()).map_err(|fault| vec![fault.below(pointer)])?;
        }
        Ok(Self {
            source: Payload::new(value.to_owned()),
            kept: OnceLock::new(),
        })
    }

    /// Whether checking this payload may take more than a millisecond, as far as that is quickly known.
    pub fn is_costly(&self, payload: &Payload, owner: SchemaOwner) -> bool {
        let compiled = self.kept.get().and_then(|kept| kept.as_ref().ok());
        let cost = match (owner, compiled) {
            (SchemaOwner::Workflow, Some(checker)) => checker.costs.at_most(payload),
            _ => (self.source.as_json().len() + payload.as_json().len()) as u64 * COMPILE,
        };
        cost > Budget::EVALUATION / 16
    }

    /// The faults of a payload that stands at `pointer`, or was sent as a whole. The schema itself is at fault if it was
    /// accepted by a version that accepted more.
    pub fn check(
        &self,
        payload: &Payload,
        pointer: &str,
        owner: SchemaOwner,
    ) -> Result<(), Vec<FieldFault>> {
        let unusable = |message: &String| {
            let message =
                format!("cannot be checked, because its schema cannot be used: {message}");
            vec![FieldFault::new(pointer, message)]
        };
        let compile = || Checker::compile(self.source.as_json()).map_err(|fault| fault.to_string());
        match owner {
            SchemaOwner::Workflow => match self.kept.get_or_init(compile) {
                Ok(checker) => checker.check(payload, pointer),
                Err(message) => Err(unusable(message)),
            },
            SchemaOwner::Task => match compile() {
                Ok(checker) => checker.check(payload, pointer),
                Err(message) => Err(unusable(&message)),
            },
        }
    }
}

impl FieldFault {
    /// As one of a larger document.
    fn below(self, pointer: &str) -> Self {
        Self {
            pointer: format!("{pointer}{}", self.pointer),
            message: self.message,
        }
    }
}

impl Checker {
    /// The pointer of the fault is one into the schema.
    fn compile(json: &str) -> Result<Self, FieldFault> {
        let fault = |message: String| Err(FieldFault::new("", message));
        if json.len() > LONGEST_SCHEMA {
            return fault(format!(
                "is {} bytes long, but a schema has at most {LONGEST_SCHEMA}: move what only describes it elsewhere",
                json.len()
            ));
        }
        let Ok(schema) = serde_json::from_str(json) else {
            return fault(
                "has a number that is too large, or is nested too deeply: simplify it".to_owned(),
            );
        };
        let graph = SchemaGraph::of(&schema)?;
        let costs = Costs::of(&graph)?;
        let patterns = PatternOptions::regex()
            .size_limit(PATTERN_SIZE)
            .dfa_size_limit(PATTERN_SIZE);
        let built = jsonschema::options()
            .with_draft(Draft::Draft202012)
            .with_pattern_options(patterns)
            .should_validate_formats(false)
            .build(&schema);
        match built {
            Ok(validator) => Ok(Self { validator, costs }),
            Err(error) => Err(faults::of_schema(&error)),
        }
    }

    fn check(&self, payload: &Payload, pointer: &str) -> Result<(), Vec<FieldFault>> {
        let refuse = |message: &str| Err(vec![FieldFault::new(pointer, message)]);
        // What was put together here may be nested deeper than a request.
        if too_deep(payload.as_json().as_bytes()).is_some() {
            return refuse(&format!(
                "is nested more than {DEEPEST} levels deep: send it flatter"
            ));
        }
        let Ok(value) = serde_json::from_str(payload.as_json()) else {
            return refuse(
                "has a number that is too large to be checked against its schema: send it as a string",
            );
        };
        let profile = Profile::of(&value, &self.costs);
        if self.costs.of_check(&profile) > MOST_COST {
            return refuse(
                "would take too long to be checked against its schema: send less, or simplify the schema where it refers to itself or has patterns",
            );
        }
        if self.validator.is_valid(&value) {
            return Ok(());
        }
        if self.costs.of_faults(&profile) > MOST_FAULTS_COST {
            return refuse(
                "does not match its schema, and is too large, or the schema too involved, to say where",
            );
        }
        Err(faults::of_payload(
            self.validator.iter_errors(&value),
            pointer,
        ))
    }
}
