//! Workflows: the list, the page of one, the activation of a version, and the submission of a task.

pub mod activation;
pub mod page;
pub mod submission;
pub mod usage;
