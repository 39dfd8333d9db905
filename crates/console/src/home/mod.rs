//! The home page: what needs a person now.

mod attention;
mod page;

pub use page::show;
