//! Requests become domain values here, once; nothing deeper checks strings again. Every refusal is a
//! [`Problem`](super::problem::Problem) that says what was found and what is allowed.

mod body;
mod caller;
mod conditions;
mod ids;
mod path;
mod query;

pub use body::{JsonBody, OptionalJsonBody};
pub use caller::Caller;
#[cfg(test)]
pub use conditions::judged;
pub use conditions::{
    CommandHeaders, ConditionHeaders, Conditions, RegistrationHeaders, TaskMatch, TraceHeaders,
    idempotency, must_be_judged,
};
pub use ids::ids;
pub use path::{
    NamePath, NameVersionPath, PlainName, StepParams, TaskParams, TaskPath, TaskStepPath,
    plain_name,
};
pub use query::{LONGEST_WAIT, PageQuery, Query, must_be_utf8};
