//! The periodic loop that bounds the bytes of waiting messages.

pub(crate) mod waiting_limit;
