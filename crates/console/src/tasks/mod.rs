//! Pages about many tasks.

pub mod list;
