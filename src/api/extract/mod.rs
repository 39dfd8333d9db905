//! Extractors turn requests into domain values, once; no deeper layer validates strings again. Every refusal is a
//! [`Problem`](super::problem::Problem) that says what was found and what is allowed.

mod body;
mod caller;
mod conditions;
mod definition_body;
mod form;
mod ids;
mod path;
mod preconditions;
mod query;

pub use body::{JsonBody, OptionalJsonBody, check_encoding, parse, too_large};
pub use caller::Caller;
pub use conditions::{
    CommandHeaders, ConditionHeaders, Conditions, TaskMatch, TraceHeaders, idempotency, prefer_wait,
};
pub use definition_body::DefinitionBody;
pub use form::FormBody;
pub use ids::ids;
pub use path::{
    AttemptParams, AttemptPath, BulkParams, BulkPath, NamePath, NameVersionPath, PlainName,
    SignalParams, SignalPath, StepParams, TaskPairParams, TaskPairPath, TaskParams, TaskPath,
    TaskStepPath, plain_name,
};
#[cfg(test)]
pub use preconditions::evaluated_preconditions;
pub use preconditions::{IfTagged, RegistrationHeaders, refuse_unevaluated};
pub use query::{LONGEST_WAIT, PageQuery, Query, labels, must_be_utf8};
