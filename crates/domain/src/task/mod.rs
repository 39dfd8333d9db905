//! Tasks: the aggregate of a task and its steps, and the decisions about it.
//!
//! Begin with `aggregate` (a task with its steps) and `command` (what can be asked of it). `decide` has the rules: a
//! `Draft` takes one command and returns the changed task, its events and its alerts. `transitions` is the table of
//! states that all decisions keep. `step_list`, `expansion` and `positions` hold many steps and items cheaply.

pub(crate) mod aggregate;
pub(crate) mod alert;
pub(crate) mod alert_cause;
pub(crate) mod alert_kind;
pub(crate) mod ask;
pub(crate) mod attempt_counts;
pub(crate) mod attempt_record;
mod block;
pub(crate) mod bulk;
pub(crate) mod call;
pub(crate) mod child;
pub(crate) mod child_record;
pub(crate) mod command;
pub(crate) mod decide;
pub(crate) mod expansion;
mod facts;
mod failure_cause;
pub(crate) mod failure_trend;
mod finally;
pub(crate) mod history;
pub(crate) mod kept_response;
pub(crate) mod key_prefix;
pub(crate) mod limits;
pub(crate) mod memory;
pub(crate) mod missing_result;
pub(crate) mod open_reply;
pub(crate) mod output;
pub(crate) mod positions;
#[cfg(test)]
pub(crate) mod properties;
mod race;
pub(crate) mod redact;
pub mod render;
pub(crate) mod reply_to;
pub(crate) mod reply_token;
pub(crate) mod retry_budget;
pub(crate) mod status;
pub(crate) mod step;
pub(crate) mod step_backoff;
pub(crate) mod step_list;
pub(crate) mod transitions;
pub(crate) mod turn;
pub(crate) mod version_move;

pub use aggregate::{Details, Task, TaskState, Undo};
pub use alert::AlertChange;
pub use alert_cause::{
    AlertCause, BEFORE_WORDS, FirstFailure, MOST_WORDED, announcement, recount_after,
};
pub use alert_kind::AlertKind;
pub use ask::{AnswerFault, AskAnswer, AskChange, Decision, LONGEST_COMMENT, OpenAsk};
pub use attempt_record::{
    AttemptExchange, AttemptPurpose, AttemptRecord, AttemptResult, BodyRecord, ExchangeTimes,
    ReceivedResponse, RecordSuccesses, RecordedRequest,
};
pub use bulk::{
    BULK_BATCH, BodyPatch, BulkAction, BulkBatch, BulkChange, BulkEntry, BulkJob, BulkLease,
    BulkOrder, BulkOutcome, BulkRefusal, BulkState, KEPT_FOR, PatchFault, PatchedBody, StopCause,
    TaskCount, TaskRefusal, sentence as bulk_sentence,
};
pub use call::{Call, CallBody, CallOutcome, DroppedBy, Purpose};
pub use child::{ChildAction, ChildWorkflow, MOST_DEPTH, MOST_DESCENDANTS, News, child_actions};
pub use child_record::{Child, ChildEnd, ChildRecord, ChildReport, ParentStep};
pub use command::{Claimant, Command, Expiry, Refusal, Release};
pub use decide::{CommandOutput, Draft, Dropped, MOST_OF_TASK};
pub use expansion::{Expansion, ItemGroup, KnownItems};
pub use failure_cause::{CauseFingerprint, FailureCause, Remedy};
pub use failure_trend::FailureTrend;
pub use history::{Actor, Event, VersionChange};
pub use kept_response::KeptResponse;
pub use key_prefix::KeyPrefixes;
pub use memory::memory_of;
pub use open_reply::{
    AcceptedReply, OpenReply, PollState, Progress, ReplyDigest, ReplyLog, SavedReplies, Signal,
    StepHolder,
};
pub use output::task_output;
pub use positions::Positions;
pub use redact::{Redactor, SHORTEST_SECRET};
pub use reply_to::{KnownReceivers, QueueNamedBy, REPLIES, ReplyQueue, ReplyTo};
pub use reply_token::{ReplyAddresses, ReplyKey};
pub use retry_budget::{RetryBudget, RetryBudgetUse, RetryWait};
pub use status::TaskStatus;
pub use step::{Step, StepState, StepStatus};
pub use step_list::{StepCounts, StepList};
pub use turn::{AGEING, Turn};
pub use version_move::{MoveReport, MovedStep, StepChange, UnmappedStep, VersionMove, check_move};
