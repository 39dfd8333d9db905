//! Workflows: their versions, their steps, and which version is active.

pub mod pages;
