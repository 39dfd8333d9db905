//! Workflows: the list, the page of one, and the activation of a version.

pub mod activation;
pub mod page;
pub mod usage;
