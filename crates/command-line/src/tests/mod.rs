//! Tests of the whole crate.

mod document;
mod requests;
mod stub;
