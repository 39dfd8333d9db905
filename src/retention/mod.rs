//! Retention deletes tasks that ended long ago, with all their data, at a pace that other work hardly notices.
//! [`crate::domain::upkeep::Retention`] decides how long data is kept, and [`crate::domain::upkeep::PurgePace`] how fast it is
//! deleted.

mod store;
mod sweep;
#[cfg(test)]
mod tests;

pub use store::{DirectStore, DryRun, EndedKind, PurgeStore};
pub use sweep::{Pacing, Sweep, SweepTotals, describe};
