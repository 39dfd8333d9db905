//! Retention: deletes tasks that ended long ago, with all that belongs to them, at a pace that others hardly notice.
//! How long what is kept is a rule of [`crate::domain::Retention`]; how fast is deleted, of
//! [`crate::domain::PurgePace`].

mod store;
mod sweep;
#[cfg(test)]
mod tests;

pub use store::{DirectStore, DryRun, EndedKind, PurgeStore};
pub use sweep::{Pacing, Sweep, Swept, describe};
