//! Views: what people and programs read about a task. Nothing here changes one.
//!
//! `task` is a task as responses show it, `messages` what receivers get, `blocked` why a step waits, `prediction` when
//! it ends, `dry_run` what a definition would do, `undo_plan` what an undo would do, `drawing` its diagram, `attempts`
//! the last attempt of a step, `activity` what was done in an hour, `difference` two tasks beside each other, `ledger` what happened to all of them, `words` the schemas of the words that all of
//! them have.

pub(crate) mod activity;
pub(crate) mod attempts;
pub(crate) mod blocked;
pub(crate) mod difference;
pub(crate) mod drawing;
pub(crate) mod dry_run;
pub(crate) mod ledger;
pub(crate) mod messages;
pub(crate) mod prediction;
#[cfg(test)]
mod schema_tests;
pub(crate) mod task;
pub(crate) mod undo_plan;
pub(crate) mod undo_summary;
pub(crate) mod words;

pub use activity::{
    AgentActivity, DurationHistogram, INLINE_TASKS, OTHER_NAMES, URL_AGENTS, WorkflowActivity,
    counted_name,
};
pub use attempts::current_attempt;
pub use blocked::Blocked;
pub use difference::{
    ComparedAttempt, ComparedSide, ComparedStep, ComparedTask, ComparedValue, DefinitionDifference,
    DifferenceList, MemberChange, PlannedClone, StepPart, TaskComparison, TaskDifference,
    ValueDifference, clone_difference,
};
pub use drawing::{DiagramFormat, draw};
pub use dry_run::{
    DryRunReport, PlannedAgent, PlannedStep, RunCondition, TaskFields, UndoStep, Warning,
    WarningCode, dry_run,
};
pub use ledger::{
    ChangeOrigin, ChangedTask, LedgerDifference, LedgerEntryIndex, LedgerFilter, LedgerPosition,
    LedgerRecord, LedgerRowNumber, LedgerSubject, MOST_TYPES, PositionFault, kept_from,
};
pub use messages::ReplyData;
pub use prediction::{
    AgentAvailability, AgentOutlook, AtRisk, CompleteSteps, Pace, Prediction, QueueOutline,
    QueueRange, at_risk_subject, predict,
};
pub use task::{Extent, LabelsView, ReplyToView, StepView, TaskHead, TaskView};
pub use undo_plan::{
    AvailableAfter, CannotRender, NotUndoneReason, PassedOver, PlannedProbe, PlannedRequest,
    PlannedUndo, RenderedCall, RunningCall, UndoPlan, UndoReason, undo_plan,
};
pub use undo_summary::{StepUndos, UndoSummary, UndoSummaryStep, UndoSummaryView};
pub use words::{DurationSchema, LabelsSchema, ReplyEvent, words_schema};
