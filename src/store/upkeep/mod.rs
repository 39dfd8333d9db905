//! The state of the store itself: its clock, health and progress, and the leases of the instances that share it.

pub(super) mod clock;
pub(super) mod health;
pub(super) mod leases;
pub(super) mod peers;
pub(super) mod progress;
