//! The line of changes: what people, definitions and instances changed. `record.rs` has a change as the API returns it, with
//! its sentence; `lines.rs` the lines of a list; `page.rs` the page; `before.rs` the changes shortly before a time, for the
//! page of a cause.

pub mod before;
pub mod lines;
pub mod page;
pub mod record;
