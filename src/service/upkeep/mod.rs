//! Periodic loops about the store and its instances: supervision, leases, deletion, the clock, and the size of the file.

pub(crate) mod clock;
pub(crate) mod maintenance;
pub(crate) mod peers;
pub(crate) mod vacuum;
