//! The counts of a step whose attempts, or those of whose probe, are bounded by a number.

use serde::{Deserialize, Serialize};

/// The counts that bound the attempts of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AttemptCounts {
    /// The attempts that do not count for `max_attempts`: those before an operator's last retry, those that ran the probe, and
    /// those under which nothing was sent.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub uncounted: u32,
    /// The attempts of the probe since the effect of the step became unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub probes: u32,
}

impl AttemptCounts {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}
