//! The rules that every world keeps: what one command may change, and what must be true at every moment.

pub mod changes;
pub mod moments;
