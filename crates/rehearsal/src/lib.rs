//! A workflow tried without its services: the rules of `provost-domain`, mocked responses, and a clock that is set
//! forward instead of waited for. Pure: nothing here does I/O, reads a clock or draws a random number.

mod account;
mod agent;
mod call_name;
mod cases;
mod children;
mod expectation;
mod explore;
mod matching;
mod mock;
mod names;
mod pointer;
mod rehearsal;
mod run;
mod schedule;
mod source;
mod workflow;
mod world;
mod yaml;

#[cfg(test)]
mod schedule_tests;
#[cfg(test)]
mod tests;

pub use call_name::{CallKind, CallName, step_name};
pub use cases::{CasesFile, MOST_CASES, MockTable, TestCase};
pub use expectation::{CaseNote, Expectation, step_names};
pub use explore::{
    Exploration, ExploredFault, MOST_FAULTS, PlannedFault, effect_in_words, explore,
};
pub use rehearsal::{
    Beginning, OutsideCommand, OutsideEvent, OutsideResult, Rehearsal, RehearsalEnd, SentRequest,
    Services, StandingEffect,
};
pub use run::{CaseResult, UsedMocks, run_case, unused};
pub use source::{SourceFault, SourceFormat, SourceLocation, SourceText};
pub use workflow::WorkflowFile;
pub use world::{LONGEST_REHEARSAL, MOST_COMMANDS, rehearse};
