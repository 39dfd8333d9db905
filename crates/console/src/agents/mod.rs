//! Agents: the services that steps call, with what keeps calls from them.

pub mod check;
pub mod commands;
pub mod pages;
pub mod view;
