//! Causes: failures that need a person, grouped. A cause has a page of its own, from which its tasks are fixed.

pub mod failure;
pub mod page;
