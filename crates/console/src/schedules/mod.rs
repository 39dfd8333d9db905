//! Schedules: tasks that are submitted at certain times.

pub mod pages;
pub mod view;
