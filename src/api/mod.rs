//! The HTTP API. Thin: a request is parsed into domain values, a command or a read follows, and the
//! answer is rendered. In here: routes, extractors, problems, access, the documentation. Not in here:
//! rules of the pattern and SQL.

pub mod extract;
pub mod problem;
pub mod state;
