//! This process as one instance among others: it holds a lease on its id, and one instance at a time
//! holds the lease that makes it the supervisor. Both are renewed together; what the process may
//! believe of them stands in [`Standing`], which the scheduler and the supervisor ask.

mod hold;
mod membership;
mod process;
mod standing;
#[cfg(test)]
mod tests;

pub use hold::Hold;
pub use membership::{JoinError, Membership};
pub use standing::Standing;
