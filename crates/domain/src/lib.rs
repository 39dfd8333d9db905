//! The rules of the pattern, each in one module. Pure: nothing here does I/O, reads a clock, draws a random number or
//! awaits. Time and chance are arguments; the result says what should happen.
//!
//! An object has one declaration. What is read derives [`Object`](values::Object), which gives reader, bounds and JSON
//! Schema; what is only shown derives `serde::Serialize` and `utoipa::ToSchema`, so that its fields, their comments and
//! their types are those of the OpenAPI document.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests measure how long they take, and say which seed they drew"
    )
)]

pub mod agent;
pub mod definition;
pub mod message;
pub mod queue;
pub mod schedule;
pub mod task;
pub mod template;
pub mod upkeep;
pub mod values;
pub mod view;
