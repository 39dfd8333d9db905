//! The limits on the calls of an agent that may begin: its capacity, slots, rate and quota.
//!
//! `capacity` is the bulkhead, which gives out a slot for each call, and asks the other two limits first: `rate`, and
//! `slots`, the share of this process in the slots of all instances. `gate` is what all bulkheads of an instance have
//! in common. `quota` reads what a service says of its own limit.

pub(super) mod capacity;
pub(super) mod gate;
pub(super) mod quota;
pub(super) mod rate;
pub(super) mod slots;
