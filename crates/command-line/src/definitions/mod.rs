//! Definitions in files: workflows, agents and schedules are applied, compared, shown and exported.

mod apply;
mod changes;
mod current;
mod export;
mod source;

pub use apply::{ApplyOptions, apply, diff};
pub use export::{ExportOptions, GetOptions, export, get};
pub use source::{DefinitionKind, is_file};
