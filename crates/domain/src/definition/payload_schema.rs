//! A JSON Schema (2020-12) that a payload must match: the input of tasks, or a signal.
//!
//! The crate `jsonschema` validates without bounds: schemas and payloads that are made for it keep it busy for hours.
//! So a schema is first read as a graph (`graph`), whose bounds are checked; the cost of validating a payload is known
//! before it begins (`cost`), and a payload that costs too much is refused.

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
    cost::{Costs, PayloadProfile},
    graph::SchemaGraph,
};
use crate::{
    template::{Budget, Origin, payload::Payload},
    values::{
        depth::{DEEPEST, too_deep},
        fields::FieldFault,
        ids::WorkflowRef,
    },
};

/// The longest schema, in bytes.
pub const LONGEST_SCHEMA: usize = 64 * 1024;

/// The highest cost of validating one payload, in units of about a nanosecond. A payload with a higher cost is refused.
const MOST_COST: u64 = 8 * Budget::EVALUATION;

/// The highest cost of finding all faults. One fault may contain those of many alternatives.
const MOST_FAULTS_COST: u64 = Budget::EVALUATION / 8;

/// The cost of compiling, for each byte of the schema.
const COMPILE: u64 = 200;

/// The largest compiled pattern, in bytes, and its largest dynamic cache. The number of a pattern's states is bounded
/// as well.
const PATTERN_SIZE: usize = 256 * 1024;

pub struct PayloadSchema {
    source: Payload,
    /// The compiled schema. It is kept only for workflows, because few callers can register those.
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

/// The owner of a schema.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SchemaOwner {
    /// A workflow: the compiled schema is kept for its other tasks.
    Workflow,
    /// One task: the compiled schema is not kept.
    Task,
}

impl SchemaOwner {
    /// Returns the owner of the schema of a task, which has this workflow or none.
    pub fn of(workflow: Option<&WorkflowRef>) -> Self {
        match workflow {
            Some(_) => SchemaOwner::Workflow,
            None => SchemaOwner::Task,
        }
    }
}

impl PayloadSchema {
    /// Reads the schema at the JSON pointer `pointer`. A schema that was accepted before is not checked until it is
    /// used.
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

    /// Returns whether checking this payload may take more than a millisecond, by an estimate that is quick to make.
    pub fn is_costly(&self, payload: &Payload, owner: SchemaOwner) -> bool {
        let compiled = self.kept.get().and_then(|kept| kept.as_ref().ok());
        let cost = match (owner, compiled) {
            (SchemaOwner::Workflow, Some(checker)) => checker.costs.at_most(payload),
            _ => (self.source.as_json().len() + payload.as_json().len()) as u64 * COMPILE,
        };
        cost > Budget::EVALUATION / 16
    }

    /// Checks the payload at the JSON pointer `pointer`. A schema that an earlier version of Provost accepted may
    /// itself be at fault.
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

impl Checker {
    /// Compiles a schema. The JSON pointer of the fault is a pointer into the schema.
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
        // A payload that was rendered here may be nested deeper than a request.
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
        let profile = PayloadProfile::of(&value, &self.costs);
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
