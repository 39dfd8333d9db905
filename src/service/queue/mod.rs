//! Periodic loops about queues: shares of slots and of rates.

pub(crate) mod rate;
pub(crate) mod slot_shares;
