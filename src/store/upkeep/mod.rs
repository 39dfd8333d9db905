//! The state of the store itself: its clock, health and progress, the leases of the instances that share it, and the
//! sessions of the console.

pub(super) mod clock;
pub(super) mod console_sessions;
pub(super) mod health;
pub(super) mod leases;
pub(super) mod peers;
pub(super) mod progress;
