//! Commands for many tasks at once. `action` is the effect on each task, `job` the job that carries a command out, and
//! `sentence` says in words which tasks it is about.

mod action;
mod job;
#[cfg(test)]
mod job_tests;
mod patch;
mod sentence;

pub use action::BulkAction;
pub use job::{
    BULK_BATCH, BulkBatch, BulkChange, BulkEntry, BulkJob, BulkLease, BulkOrder, BulkOutcome,
    BulkRefusal, BulkState, KEPT_FOR, StopCause, TaskRefusal,
};
pub use patch::{BodyPatch, PatchFault, PatchedBody};
pub use sentence::{TaskCount, sentence};
