//! The rules of the pattern, each in one place. Pure: nothing here does I/O, reads a clock, draws a
//! random number or awaits. Time and chance come in as arguments; what should happen comes out.

mod agent_spec;
mod call;
mod definition;
mod fault;
mod ids;
mod payload;
pub mod template;
mod time;

pub use agent_spec::*;
pub use call::*;
pub use definition::*;
pub use fault::*;
pub use ids::*;
pub use payload::*;
pub use time::*;
