//! The arguments of filters, tests and functions.

use super::{
    eval_error::{EvalResult, other},
    number::Number,
    value::Value,
};

/// The arguments of a call, one for each parameter; `None` if it is left out.
pub(super) type ArgumentValues<'g, 'v> = &'g [Option<Value<'v>>];

/// Returns the argument at this position; `None` if it is left out or null.
pub(super) fn given<'g, 'v>(given: ArgumentValues<'g, 'v>, at: usize) -> Option<&'g Value<'v>> {
    match given.get(at) {
        Some(Some(Value::Null)) | Some(None) | None => None,
        Some(Some(value)) => Some(value),
    }
}

/// Returns the truth of an argument; false if it is left out.
pub(super) fn flag(args: ArgumentValues<'_, '_>, at: usize) -> EvalResult<bool> {
    given(args, at).map_or(Ok(false), Value::truth)
}

/// Returns an argument that is a whole number.
pub(super) fn whole(args: ArgumentValues<'_, '_>, at: usize) -> EvalResult<Option<i128>> {
    match given(args, at) {
        None => Ok(None),
        Some(value) => match value
            .clone()
            .present()?
            .as_number()
            .and_then(Number::as_int)
        {
            Some(number) => Ok(Some(number)),
            None => other(format!("a whole number is needed, not {}", value.kind())),
        },
    }
}
