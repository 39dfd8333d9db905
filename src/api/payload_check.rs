//! Checks payloads against the schemas of definitions.

use super::{App, Problem, bulkhead::EvaluationPermit};
use crate::domain::{Payload, PayloadSchema, SchemaOwner};

/// Refuses a payload that stands at `pointer` in the request and does not match the schema. What may take long needs a
/// permit: `permit`, if the caller has one already.
pub async fn check_payload(
    app: &App,
    schema: &PayloadSchema,
    owner: SchemaOwner,
    payload: &Payload,
    pointer: &str,
    permit: Option<&EvaluationPermit<'_>>,
) -> Result<(), Problem> {
    let check = || schema.check(payload, pointer, owner);
    let checked = match permit {
        Some(permit) => permit.run(check),
        None if schema.is_costly(payload, owner) => app.bulkhead.enter().await?.run(check),
        None => check(),
    };
    checked.map_err(Problem::invalid)
}
