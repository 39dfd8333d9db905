//! The options of a call of the check.

use std::time::Duration;

use crate::domain::values::Timestamp;

/// The maximum number of retries of a call after transient faults.
pub(super) const RETRIES: u32 = 2;

/// The options of a call.
#[derive(Clone, Copy)]
pub(super) struct CallOptions {
    /// The purpose of the call, for people.
    pub purpose: &'static str,
    pub within: Duration,
    /// The complete-by that is sent, if it is not the end of `within`.
    pub complete_by: Option<Timestamp>,
    pub retries: u32,
    /// True if the call counts for the largest response and the slowest call.
    pub is_usual: bool,
}
