//! The records of queues: lanes, rates, shares of slots, and limits of keys.

pub(super) mod lanes;
pub(super) mod rate;
pub(super) mod slot_shares;
pub(super) mod step_limits;
pub(super) mod task_limits;
