//! Checks payloads against the schemas of definitions.

use crate::api::{App, Problem, bulkhead::EvaluationPermit};
use crate::domain::{
    definition::{PayloadSchema, SchemaOwner},
    template::Payload,
};

/// Refuses a payload, at `pointer` in the request, that does not match the schema. A check that may take long needs a
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
