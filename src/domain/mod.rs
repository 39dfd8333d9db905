//! The rules of the pattern, each in one place. Pure: nothing here does I/O, reads a clock, draws a
//! random number or awaits. Time and chance come in as arguments; what should happen comes out.

mod agent_spec;
mod alert;
mod blocked;
mod call;
mod command;
mod decide;
mod definition;
mod fault;
mod fields;
mod history;
mod ids;
mod instance;
mod lease;
mod payload;
mod policy;
pub mod render;
mod step;
mod task;
pub mod template;
mod time;
mod transitions;
mod undo_plan;
mod verdict;

pub use agent_spec::*;
pub use alert::*;
pub use blocked::*;
pub use call::*;
pub use command::*;
pub use decide::*;
pub use definition::*;
pub use fault::*;
pub use fields::*;
pub use history::*;
pub use ids::*;
pub use instance::*;
pub use lease::*;
pub use payload::*;
pub use policy::*;
pub use step::*;
pub use task::*;
pub use time::*;
pub use transitions::*;
pub use undo_plan::*;
pub use verdict::*;
