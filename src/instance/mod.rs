//! This process as one instance among others: it holds a lease on its id, and one instance at a time
//! holds the lease that makes it the supervisor. Both are renewed together; how long
//! this process may rely on them is in [`LocalLease`], which the scheduler and the supervisor read.

mod hold;
mod local_lease;
mod membership;
mod process;
#[cfg(test)]
mod tests;

pub use hold::Hold;
pub use local_lease::LocalLease;
pub use membership::{JoinError, Membership};
