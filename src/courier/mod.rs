//! The courier: delivers what the outbox holds (P32 to P34). Messages were written there with the
//! changes that they tell of; the courier takes queues whose first message is due, posts that, and
//! settles what became of it. Failures and pauses are kept for each destination, and slots are bounded for
//! each destination, receiver and kind of destination: a slow or dead one delays nobody else.
//!
//! In here: who receives what and with which signature, the slots, the loop. Not in here: which messages
//! there are and how long a destination that fails is left alone ([`crate::domain`]), and SQL.

mod delivery;
mod flight;
mod meters;
mod receivers;
mod run;
mod slots;
mod urgent;

pub use receivers::Receivers;
pub use run::{Courier, CourierSettings};
pub use urgent::StoreAlerts;
