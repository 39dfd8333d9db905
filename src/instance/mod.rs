//! This process as one instance of several: it holds a lease on its id, and one instance at a time holds the lease of
//! the supervisor. Both are renewed together. [`LocalLease`], which the scheduler and the supervisor read, says for
//! how long this process may rely on them.

mod hold;
mod local_lease;
mod membership;
mod process;
#[cfg(test)]
mod tests;

pub use hold::Hold;
pub use local_lease::LocalLease;
pub use membership::{JoinError, Membership};
