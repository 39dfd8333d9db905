//! The line of changes: what people, definitions and instances changed. `record.rs` has a change as the API returns it, with
//! its sentence; `page.rs` the page.

pub mod page;
mod record;
