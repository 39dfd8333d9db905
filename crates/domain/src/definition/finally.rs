//! The steps that run when all others have ended, however the task ends: processed, undone or cancelled. They follow one
//! another as the steps of the task do, see how the task ends, and are not undone themselves.

use serde_json::value::RawValue;

use super::Policies;
use crate::values::fields::FieldFault;

/// The field that has these steps.
pub(super) const FINALLY: &str = "/finally";

/// Returns the steps as they were written.
pub(super) fn items<'p>(policies: &'p Policies, faults: &mut Vec<FieldFault>) -> Vec<&'p RawValue> {
    let Some(source) = &policies.finally else {
        return Vec::new();
    };
    let items = serde_json::from_str::<Vec<&RawValue>>(source.as_json());
    let message = match items {
        Ok(items) if !items.is_empty() => return items,
        Ok(_) => "is empty: give at least one step, or remove it",
        Err(_) => "must be an array of steps",
    };
    faults.push(FieldFault::new(FINALLY, message));
    Vec::new()
}
