//! The courier: delivers what the outbox holds (P32 to P34). Messages were written there with the
//! changes that they tell of; the courier takes queues whose first message is due, posts that, and
//! settles what became of it. One queue after the other has its turn with each receiver, and no
//! receiver has more than its share: a slow or dead one holds up nobody else.
//!
//! In here: who receives what and with which signature, the pace for each receiver, the loop. Not in
//! here: which messages there are ([`crate::domain`]), and SQL.

mod delivery;
mod meters;
mod pace;
mod receivers;
mod run;
mod urgent;

pub use receivers::Receivers;
pub use run::{Courier, CourierSettings};
pub use urgent::StoreAlerts;
