//! Small worlds of Provost, explored exhaustively: two instances, a store with compare-and-set, a service that may do or
//! lose what it is asked for, a clock that goes from one due time to the next, and one or two tasks. The decisions are
//! those of `provost-domain` itself. No part of the product uses this crate.
//!
//! Begin with `catalogue`, the list of worlds. `moves` says what can happen in a state, `perform` what it changes, `rules`
//! what must be true, and `explore` searches.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "this crate is a test: a panic says where"
)]

mod action;
mod breach;
mod catalogue;
mod children;
mod explore;
mod fingerprint;
mod flight;
mod ledger;
mod moves;
mod perform;
mod report;
mod rules;
mod state;
mod store;
#[cfg(test)]
mod tests;
mod words;
mod world;

pub use breach::Breach;
pub use catalogue::worlds;
pub use explore::{Counterexample, WorldReport, explore};
pub use world::SmallWorld;
