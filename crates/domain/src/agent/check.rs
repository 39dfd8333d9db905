//! The check of an agent: it finds out from a service's responses if the service does what steps rely on. This file
//! has the points of the check and its results; `step_requests.rs` has the requests that it sends, `judge.rs` the
//! rules for its results, `output_comparison.rs` those for outputs.

mod judge;
mod output_comparison;
mod step_requests;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::{
    definition::{Finding, Probe},
    task::decide::response,
    template::{Expression, Scope, payload::Payload},
    values::{ids::TaskId, time::Timestamp},
};
pub use judge::judge;
pub use step_requests::{CheckSubject, StepRequests};

/// The points of a check, in the order of the table.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Debug,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum CheckPoint {
    /// The request succeeds, with an output.
    Work,
    /// The same key is sent again, after the response.
    Again,
    /// The same key is sent twice at the same moment.
    TwiceAtOnce,
    /// The same key is sent again, after a call whose connection broke before the response.
    AfterDroppedAnswer,
    /// The same key is sent again, after the complete-by of the first call.
    AfterCompleteBy,
    /// A request that arrives after its complete-by.
    LateRequest,
    /// An undo removes the effect of work that was done.
    Undo,
    UndoTwice,
    /// An undo is sent for work that was never done.
    UndoBeforeWork,
    /// The work arrives after its undo.
    WorkAfterUndo,
    ProbeBeforeWork,
    ProbeDuringWork,
    ProbeAfterWork,
    /// The probe finds the output that the response had.
    ProbeOutput,
    ProbeAfterUndo,
    /// The service refuses permanently a request that can never succeed.
    ErrorClasses,
    RetryAfter,
    Size,
    Latency,
}

impl CheckPoint {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    /// Returns what a step may rely on if the point passes, and the effect on steps if it fails.
    fn consequences(self) -> [&'static str; 2] {
        match self {
            Self::Work => [
                "the request of the steps can succeed",
                "no step with such a request can succeed, and nothing else could be checked",
            ],
            Self::Again => [
                "an attempt that is repeated, because its response was lost, does the work once",
                "a step whose response was lost does its work twice, and goes on with the output of the second",
            ],
            Self::TwiceAtOnce => [
                "an attempt that begins while the one before still runs does the work once",
                "a step that is retried while its first attempt still runs at the service does its work twice, or ends in error",
            ],
            Self::AfterDroppedAnswer => [
                "an attempt whose connection broke can be repeated",
                "a step whose connection broke, as in a crash of Provost, does its work twice",
            ],
            Self::AfterCompleteBy => [
                "an attempt that had no response by its complete-by can be repeated",
                "a step that is retried after its complete-by does its work twice",
            ],
            Self::LateRequest => [
                "a request that was on its way for too long does nothing",
                "a request that was on its way for too long does its work after Provost has given it up: also for a step that is in error, was skipped, or whose task was cancelled",
            ],
            Self::Undo => [
                "a task with such a step can be undone",
                "a task with such a step cannot be undone: its undo ends in error, and an operator must act; or its effect remains",
            ],
            Self::UndoTwice => [
                "an undo whose response was lost can be repeated",
                "an undo whose response was lost ends in error when it is repeated, although it was carried out",
            ],
            Self::UndoBeforeWork => [
                "a step of unknown outcome can be undone although it was not carried out",
                "the undo of a step of unknown outcome that was not carried out ends in error, and an operator must act",
            ],
            Self::WorkAfterUndo => [
                "a request that its undo overtook does nothing",
                "a request that its undo overtook does its work although the task is undone, and the effect remains",
            ],
            Self::ProbeBeforeWork => [
                "a step that was not carried out is repeated, or its undo skipped",
                "a step that was not carried out counts as done, or waits until it is in error",
            ],
            Self::ProbeDuringWork => [
                "a step whose work still runs is neither repeated nor taken for not done",
                "while the work of a dropped attempt still runs, the probe has its undo skipped: the effect remains although the task is undone",
            ],
            Self::ProbeAfterWork => [
                "a step that was carried out is not repeated, and is undone with its task",
                "a step that was carried out is repeated, or not undone with its task",
            ],
            Self::ProbeOutput => [
                "a step that a probe found done has the output of its response",
                "a step that a probe found done has another output than its response had: steps and undos that read it get something else",
            ],
            Self::ProbeAfterUndo => [
                "what was undone counts as not done",
                "what was undone still counts as done",
            ],
            Self::ErrorClasses => [
                "a request that can never succeed ends its step at once",
                "a request that can never succeed is retried until the step has no failures left, or does something nobody asked for",
            ],
            Self::RetryAfter => [
                "the service is left alone for as long as it asks",
                "what the service asks for is not done: its next call comes by Provost's own backoff, or too late for the step",
            ],
            Self::Size => [
                "the responses are short enough to be outputs",
                "a step with such a response ends in error although its work was done",
            ],
            Self::Latency => [
                "a transient fault leaves time for another attempt",
                "a slow response or one fault uses up the time of the step: it fails, and is repeated while its work may still run",
            ],
        }
    }
}

#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum CheckStatus {
    Passed,
    Failed,
    /// The check should have seen the service's behaviour, but did not.
    Inconclusive,
    /// The point does not apply to the step, for example because it has no undo.
    NotApplicable,
}

impl CheckStatus {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// The result for one point.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckFinding {
    pub name: CheckPoint,
    pub status: CheckStatus,
    /// The behaviour of the service.
    pub seen: String,
    /// The numbers of the exchanges that show the behaviour.
    pub exchanges: Vec<u32>,
}

impl CheckFinding {
    /// Returns the consequence for the steps that use the agent.
    pub fn means(&self) -> String {
        let [holds, fails] = self.name.consequences();
        match self.status {
            CheckStatus::Passed => holds.to_owned(),
            CheckStatus::Failed => fails.to_owned(),
            CheckStatus::Inconclusive => format!("not known; if it does not hold, {fails}"),
            CheckStatus::NotApplicable => "steps like this one do not rely on it".to_owned(),
        }
    }
}

/// The result as a whole.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum CheckVerdict {
    Passed,
    Failed,
    /// No point failed, but at least one is inconclusive.
    Incomplete,
}

impl CheckVerdict {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    pub fn of(findings: &[CheckFinding]) -> Self {
        let has = |status| findings.iter().any(|finding| finding.status == status);
        if has(CheckStatus::Failed) {
            Self::Failed
        } else if has(CheckStatus::Inconclusive) {
            Self::Incomplete
        } else {
            Self::Passed
        }
    }
}

/// The part of a check's result that is stored with its agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AgentCheck {
    pub checked_at: Timestamp,
    pub status: CheckVerdict,
    /// The method and path that were checked.
    pub request: String,
    /// The tag of the agent's specification at the time of the check.
    pub spec: String,
    pub findings: Vec<KeptFinding>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeptFinding {
    pub name: CheckPoint,
    pub status: CheckStatus,
    pub seen: String,
}

impl AgentCheck {
    pub fn failed(&self) -> impl Iterator<Item = CheckPoint> {
        let failed = |kept: &&KeptFinding| kept.status == CheckStatus::Failed;
        self.findings.iter().filter(failed).map(|kept| kept.name)
    }
}

/// A call of the check with its result. Calls before it that had transient faults are included.
#[derive(Clone, PartialEq, Debug)]
pub struct CheckedCall {
    /// The task in the key of the call: every key has one of its own.
    pub task: TaskId,
    /// The numbers of its exchanges.
    pub exchanges: Vec<u32>,
    pub answer: CheckAnswer,
    /// The number of times that the service did the work, if the check reads it from the response of this probe.
    pub count: Option<EffectCount>,
    /// The duration of the last exchange, in ms.
    pub millis: u64,
}

#[derive(Clone, PartialEq, Debug)]
pub enum CheckAnswer {
    /// A success with this output.
    Output(Payload),
    /// A probe found the work done, with this output.
    Done(Payload),
    NotDone,
    InProgress,
    /// The result of a probe cannot be used, for this reason.
    BadOutcome(String),
    /// A permanent error.
    Refused(u16),
    /// A status that is retried.
    Transient(u16),
    /// A promise to reply later.
    Promised,
    /// A success with a response that is longer than an output may be.
    TooLarge,
    /// A success that cannot be an output, for this reason.
    Unusable(String),
    /// No complete response was received, for this reason.
    Broken(String),
    /// No response was received by the complete-by.
    Silent,
    /// The request could not be made, for this reason.
    Unmakeable(String),
}

/// The number of times that a service did the work for one key, or the reason why it cannot be read.
pub type EffectCount = Result<u64, String>;

/// Reads the number of times that the service did the work from the response of a probe. `scope` has all other values
/// that the expression can read.
fn effect_count<'s>(
    count: &Expression,
    status: u16,
    body: &Payload,
    scope: Scope<'s>,
) -> EffectCount {
    let response = response(status, body);
    let mut scope: Scope<'_> = scope;
    scope.response = response.as_ref();
    let value = count.payload(&scope).map_err(|error| error.to_string())?;
    let number = value.as_json().parse();
    number.map_err(|_| "it gives no whole number".to_owned())
}

impl CheckAnswer {
    /// Returns the meaning of a probe's response by the probe's rule. `scope` has all other values that its expressions
    /// can read.
    fn of_probe<'s>(probe: &Probe, status: u16, body: &Payload, scope: Scope<'s>) -> Self {
        let response = response(status, body);
        let mut scope: Scope<'_> = scope;
        scope.response = response.as_ref();
        match probe.judge(status, body, &scope) {
            Ok(Finding::Done(output)) => Self::Done(output),
            Ok(Finding::NotDone) => Self::NotDone,
            Ok(Finding::InProgress) => Self::InProgress,
            Err(why) => Self::BadOutcome(why),
        }
    }
}

/// The facts about the step that are known without calling the service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckedStep {
    pub has_undo: bool,
    pub undo_is_delete: bool,
    pub has_probe: bool,
    pub sends_body: bool,
    /// True if the caller named a request that the service must refuse.
    pub names_invalid: bool,
    pub complete_within_millis: u64,
    /// The longest output, in bytes.
    pub max_output: u64,
}

/// The wait that a service requested with Retry-After.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AskedWait {
    pub exchange: u32,
    pub status: u16,
    /// In milliseconds, or the text if it is not a time.
    pub wait: Result<u64, String>,
}

/// All observations of a check. `None`: the check did not make this call.
#[derive(Clone, PartialEq, Debug)]
pub struct CheckObservations {
    pub step: CheckedStep,
    /// The reason why the check ended before it was complete.
    pub cut_short: Option<String>,
    pub probe_before: Option<CheckedCall>,
    pub work: Option<CheckedCall>,
    /// One request under two keys.
    pub two_keys: Option<[CheckedCall; 2]>,
    pub probe_after: Option<CheckedCall>,
    pub again: Option<CheckedCall>,
    /// The probe after `again`, if the check reads a count from its response; so are the next two fields like it.
    pub count_after_again: Option<CheckedCall>,
    pub undo: Option<CheckedCall>,
    pub probe_after_undo: Option<CheckedCall>,
    pub undo_again: Option<CheckedCall>,
    pub at_once: Option<[CheckedCall; 2]>,
    pub count_after_both: Option<CheckedCall>,
    /// The probe during the work, and true if the work ended only after the probe's response.
    pub probe_during: Option<(CheckedCall, bool)>,
    pub dropped: Option<DroppedAnswer>,
    /// A call, and a second one with the same key after the complete-by of the first.
    pub complete_by: Option<[CheckedCall; 2]>,
    pub count_after_complete_by: Option<CheckedCall>,
    pub late: Option<LateArrival>,
    pub undo_before: Option<CheckedCall>,
    /// The work after `undo_before`, and the result of a probe after it.
    pub work_after_undo: Option<(CheckedCall, Option<CheckedCall>)>,
    pub invalid: Option<CheckedCall>,
    pub waits: Vec<AskedWait>,
    /// The length of the largest response, in bytes, with its exchange.
    pub largest: Option<(u64, u32)>,
    /// The slowest response, in milliseconds, with its exchange.
    pub slowest: Option<(u64, u32)>,
}

/// A call whose connection was closed before the response.
#[derive(Clone, PartialEq, Debug)]
pub struct DroppedAnswer {
    pub exchange: u32,
    /// The probe once the work had ended.
    pub probe: Option<CheckedCall>,
    pub repeat: CheckedCall,
    /// The probe after the repeat.
    pub probe_after: Option<CheckedCall>,
}

/// A request that arrived after its complete-by.
#[derive(Clone, PartialEq, Debug)]
pub struct LateArrival {
    pub call: CheckedCall,
    pub probe: Option<CheckedCall>,
    /// A call with the same key that arrives before its complete-by.
    pub in_time: Option<CheckedCall>,
}

impl CheckObservations {
    pub fn new(step: CheckedStep) -> Self {
        Self {
            step,
            cut_short: None,
            probe_before: None,
            work: None,
            two_keys: None,
            probe_after: None,
            again: None,
            count_after_again: None,
            undo: None,
            probe_after_undo: None,
            undo_again: None,
            at_once: None,
            count_after_both: None,
            probe_during: None,
            dropped: None,
            complete_by: None,
            count_after_complete_by: None,
            late: None,
            undo_before: None,
            work_after_undo: None,
            invalid: None,
            waits: Vec::new(),
            largest: None,
            slowest: None,
        }
    }
}
