//! Values: ids, times, rates, faults, addresses, leases, traces. They know nothing of tasks, and every other room uses them.
//!
//! `time` and `ids` are the types that all rules share. `fields` reads a JSON object and collects every fault of it.

pub(crate) mod allowed_address;
pub(crate) mod backoff;
pub(crate) mod depth;
pub(crate) mod etag;
pub(crate) mod fault;
pub(crate) mod hex;
pub(crate) mod hidden;
pub(crate) mod ids;
pub(crate) mod instance;
pub(crate) mod labels;
pub(crate) mod lease;
pub(crate) mod media_type;
pub(crate) mod path;
pub(crate) mod plain_name;
pub(crate) mod queue_address;
pub(crate) mod rate;
pub(crate) mod service_words;
pub(crate) mod shortened;
pub(crate) mod special_address;
pub(crate) mod time;
pub(crate) mod trace;
pub(crate) mod web_address;

/// Reads a JSON object field by field.
pub(crate) mod fields {
    pub use provost_object::{FieldFault, Fields, entries, escape, text};
}

pub use allowed_address::{ALLOWED_ADDRESSES, AllowedAddress};
pub use backoff::{Backoff, idle, jittered};
pub use depth::{DEEPEST, too_deep};
pub use etag::{ETag, ETags, MOST_ETAGS, Precondition, PreconditionFailure};
pub use fault::{BODY_EXCERPT, Effect, Fault, FaultKind};
pub use hidden::{
    HIDDEN, is_secret_header, policies_without_secrets, without_links, without_query,
    without_secrets,
};
pub use ids::{
    AgentName, Attempt, Destination, InstanceId, Priority, ReceiverName, SecretName, StepIndex,
    StepName, StepRef, TaskId, WorkerName, WorkflowName, WorkflowRef,
};
pub use instance::{IdInUse, InstanceRecord, Leases, Renewal};
pub use labels::{LONGEST_NAME, MOST_LABELS};
pub use lease::{DeadHolders, Holder, Incarnation, Lease, Term, renew_after, trust};
pub use media_type::{is_json, is_yaml};
pub use path::path_fault;
pub use plain_name::{
    LONGEST_PLAIN_NAME, PLAIN_NAME, PLAIN_NAME_PATTERN, PLAIN_WORD, is_plain_name, is_plain_word,
    plain_name_fault,
};
pub use provost_object::{
    self as object, Bounds, DURATION, Definitions, FieldFault, FieldValue, Fields, Object,
    SPAN_FORMS, Span, entries, nearest, text,
};
pub use queue_address::{
    DIRECT_REPLY, LONGEST_QUEUE, MAIN_BROKER, QUEUE_SCHEME, QueueAddress, queue_fault,
};
pub use rate::{Rate, RateLimitSpec};
pub use shortened::shortened;
pub use special_address::special_address;
pub use time::{HOUR_MILLIS, Timestamp};
pub use trace::{CallTrace, Trace};
pub use web_address::{LONGEST_URL, WebAddress};
