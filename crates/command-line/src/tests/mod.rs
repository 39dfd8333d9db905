//! Tests of the whole crate.

mod document;
