//! The steps that run when all others have ended, however the task ends: processed, undone or cancelled. They follow one
//! another as the steps of the task do, see how the task ends, and are not undone themselves.

use serde_json::value::RawValue;

use super::Policies;
use crate::{template::payload::Payload, values::fields::Fields};

/// The field that has these steps.
pub(super) const FINALLY: &str = "/finally";

/// Takes the array of these steps, as it was written.
pub(super) fn read(fields: &mut Fields<'_>) -> Option<Payload> {
    let steps = fields.array("finally")?;
    if steps.is_empty() {
        fields.fault("finally", "is empty: give at least one step, or remove it");
        return None;
    }
    let steps: Vec<_> = steps.into_iter().map(RawValue::get).collect();
    // Each part was JSON before.
    Payload::parse(format!("[{}]", steps.join(",")))
}

/// Returns the steps as they were written.
pub(super) fn items(policies: &Policies) -> Vec<&RawValue> {
    let source = policies.finally.as_ref().map(Payload::as_json);
    let items = source.map(serde_json::from_str::<Vec<&RawValue>>);
    items.and_then(Result::ok).unwrap_or_default()
}
