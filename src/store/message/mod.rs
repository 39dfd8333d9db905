//! The records of messages.

pub(super) mod outbox;
