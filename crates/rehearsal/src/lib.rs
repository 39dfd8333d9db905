//! Tries a workflow without its services: with the rules of `provost-domain`, mocked responses, and a clock that is
//! advanced instead of waited for. The crate is pure: it does no I/O, reads no clock and draws no random number.

mod account;
mod agent;
mod call_name;
mod cases;
mod children;
mod expectation;
mod explore;
mod location;
mod matching;
mod mock;
mod names;
mod pointer;
mod reading;
mod rehearsal;
mod run;
mod schedule;
mod schedule_rehearsal;
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
pub use location::{SourceFault, SourceLocation};
pub use rehearsal::{
    OutsideCommand, OutsideEvent, OutsideResult, Rehearsal, RehearsalEnd, RehearsalInput,
    SentRequest, Services, StandingEffect,
};
pub use run::{CaseResult, UsedMocks, run_case, unused_mocks};
pub use source::{SourceFormat, SourceText};
pub use workflow::WorkflowFile;
pub use world::{LONGEST_REHEARSAL, MOST_COMMANDS, rehearse};
