//! The auditor compares what the remote services and the receivers recorded themselves with the record that the API
//! shows when everything is at rest. It shares no rule and no type with the product, and reads nothing that the product
//! reports of itself except the record. It requires:
//!
//! - every accepted task is in the record, at rest, or in error with an open alert; no other task is;
//! - a step is called under one key, of an attempt that the record knows, not before the attempt was
//!   claimed and not after it ended;
//! - what the record calls done is done, what it calls undone is undone, once;
//! - no effect stands in a task that is undone, and nothing is undone that never took effect;
//! - nothing is done before what it follows, nor undone before what followed it;
//! - nothing is undone once a pivot is done;
//! - every message came, in the order of the record, each under one id;
//! - a reply that came later and was taken ended its attempt, once; one that was refused came after the end;
//! - a reply that was promised is awaited through every crash, and no heartbeat is ignored;
//! - a reply that the broker has confirmed is taken soon, or once all trouble is over; nothing is left in its queues;
//! - what a worker fetched was claimed for it and given to no other, and it keeps it through every crash;
//! - the items of a list all exist, run at most as many at once as is allowed, and end before their group does;
//!   iterations run and are undone one after the other, until their condition is true;
//! - a step with a task has one child for each attempt, which was saved together with the note of it, and ends as the
//!   child does;
//! - a child is undone before the steps that its own step followed, and cancelled with its parent;
//! - a task that has moved to another version continues with that version, and nothing is done twice for it;
//! - each fire time of a schedule has one run on record, with one task or a reason, and two tasks of it run at once
//!   only if that is allowed;
//! - the recorded decisions were sent by people through their links, once each, and enough of them; opening a link
//!   decides nothing;
//! - no step of a task is called before its `start_at`, unless an operator begins it, and nothing of it begins before
//!   it is admitted, if it waits for that;
//! - each change of a task's state is in its history under the name that messages have;
//! - no process ended by itself, and none panicked.
//!
//! It allows the following, for these reasons:
//!
//! - A call may arrive a moment after its attempt ended: it was checked and sent before, and the services run on the
//!   same busy machine. The moment is [`Stalls::allowance`], and it is measured.
//! - An instance that was suspended may have stopped between the check and the sending. Its call may arrive within that
//!   moment after it continued ([`Suspension`]).
//! - A request may wait in a queue until its complete-by, even if its attempt has ended: a queued request cannot be
//!   taken back.
//! - A step that an operator resolved or skipped is the operator's responsibility, and is not compared.

mod asks;
mod calls;
mod children;
mod effects;
mod evidence;
mod fetched;
mod items;
mod moves;
mod order;
mod promises;
mod queued;
mod replies;
mod rest;
mod schedules;
mod story;
mod tests;
mod tests_of_kinds;

use std::fmt;

pub use evidence::{
    Accepted, At, Call, Decision, Deed, Delivery, Effect, Evidence, Exit, Fetched, Found,
    Heartbeat, Kind, Ledger, Plan, Promised, QueuedReply, Record, Reply, Run, Scheduled, Stalls,
    Suspension, Trouble, subject,
};
pub use story::story;

/// A violation of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub rule: Rule,
    pub task: Option<String>,
    pub what: String,
}

/// The rule that was violated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Rule {
    /// An accepted task is not in the record.
    TaskMissing,
    /// A task is in the record that no submission asked for, or one submission made two.
    TaskUnasked,
    /// A task is neither at rest nor in error.
    TaskNotAtRest,
    /// A task is in error, and has no open alert.
    ErrorWithoutAlert,
    /// An alert is open for a step that is not in error, or two are open for one step.
    AlertWithoutError,
    /// An open alert counts a number of steps that differs from its own, or it has no steps left.
    AlertMiscounted,
    /// Versions or states of a history do not follow on from each other, or it ends in another state.
    HistoryBroken,
    /// A task's state has changed, and the history has the change under another name: no message is sent for it.
    ChangeUntold,
    /// A step began while its task waited for admission.
    BegunUnadmitted,
    /// A step was claimed after its task was cancelled or undone.
    ClaimedTooLate,
    /// A step was called under several keys, or two under one.
    KeyUnstable,
    /// A call belongs to an attempt that the record does not have, or came before its claim was saved.
    CallUnclaimed,
    /// A call came after its attempt had ended.
    CallLate,
    /// A key took effect twice.
    EffectTwice,
    /// A step is recorded as done, but its service did not do it.
    DoneNowhere,
    /// A step is recorded as undone, but its service did not undo it.
    UndoneNowhere,
    /// An effect stands in a task that is undone.
    EffectStands,
    /// A step was undone that was never called, or whose probe would have said that it was not done.
    UndoneNeedlessly,
    /// A task was undone although its pivot was done.
    UndonePastPivot,
    /// A step was called before what it follows was done.
    ForwardOrder,
    /// A step was undone while the effect of a step that followed it still stood.
    BackwardOrder,
    /// A message was never taken by its receiver.
    MessageMissing,
    /// A message came that the record does not explain, or the same message under another id or with another body.
    MessageUnexplained,
    /// A message came before one that precedes it.
    MessageOrder,
    /// A reply was taken, and its attempt ended in another way or not at all.
    ReplyLost,
    /// A reply was refused although its attempt was not over, or although it was taken before.
    ReplyRefused,
    /// A reply that was sent again got another response.
    ReplyRepeated,
    /// An attempt ended twice.
    AttemptEndedTwice,
    /// An attempt whose reply was promised, or that a worker had fetched, was released to another attempt.
    PromiseBroken,
    /// An attempt was fetched twice.
    FetchedTwice,
    /// A worker fetched an attempt that was claimed in another way.
    FetchedByAnother,
    /// A heartbeat was accepted, and the attempt ended for silence before the next one was due.
    HeartbeatIgnored,
    /// A list has other items than the submission, or its group is done and one of them is not.
    ItemsDisagree,
    /// More items of a list run at once than is allowed.
    ItemsTooMany,
    /// A task has a parent that did not ask for it, asked for another, or asked for only one.
    ChildUnasked,
    /// A parent names a child that is not in the record.
    ChildMissing,
    /// A step has ended and its child has not, or it is done and its child is not.
    ChildDisagrees,
    /// A parent was undone or cancelled, and its child was not, or continued.
    ChildStands,
    /// A task that has moved to another version has other steps, or makes other calls, than that version.
    MoveBroken,
    /// A fire time of a schedule, or a trigger, has no run.
    FireMissing,
    /// A fire time of a schedule, or a trigger, has two runs, or a run has two tasks.
    FiredTwice,
    /// A task of a schedule began while another was not over.
    RunsOverlap,
    /// A task began before the time that it was submitted for.
    StartedEarly,
    /// A recorded decision was sent by no person who was asked, or a step is done without enough decisions.
    DecidedByNobody,
    /// A person decided twice, or after the step was decided.
    DecidedTwice,
    /// A decision that was confirmed is not in the record, or did not end its step.
    DecisionLost,
    /// A message is left in a queue of the broker, or became a dead letter.
    MessageLeft,
    /// An instance ended by itself.
    ProcessEnded,
    /// An instance panicked.
    ProcessPanicked,
    /// The API returned a response that it should never return.
    AnswerUnexpected,
}

/// Returns all violations, task by task.
pub fn audit(evidence: &Evidence) -> Vec<Finding> {
    let mut findings = Vec::new();
    rest::check(evidence, &mut findings);
    calls::check(evidence, &mut findings);
    effects::check(evidence, &mut findings);
    order::check(evidence, &mut findings);
    replies::check(evidence, &mut findings);
    promises::check(evidence, &mut findings);
    fetched::check(evidence, &mut findings);
    items::check(evidence, &mut findings);
    children::check(evidence, &mut findings);
    moves::check(evidence, &mut findings);
    schedules::check(evidence, &mut findings);
    asks::check(evidence, &mut findings);
    queued::check(evidence, &mut findings);
    findings.sort_by_key(|finding| finding.rule);
    findings
}

/// Makes the finding for a check of the alerts while they are open.
pub fn error_without_alert(task: &str) -> Finding {
    Rule::ErrorWithoutAlert.of(task, "nobody is told")
}

pub fn alert_miscounted(what: &str) -> Finding {
    Rule::AlertMiscounted.of_all(what)
}

/// Makes the finding for a check of the queues when all is at rest.
pub fn message_left(queue: &str) -> Finding {
    Rule::MessageLeft.of_all(queue)
}

impl Rule {
    fn of(self, task: &str, what: impl Into<String>) -> Finding {
        Finding {
            rule: self,
            task: Some(task.to_owned()),
            what: what.into(),
        }
    }

    fn of_all(self, what: impl Into<String>) -> Finding {
        Finding {
            rule: self,
            task: None,
            what: what.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.rule)?;
        if let Some(task) = &self.task {
            write!(f, " in {task}")?;
        }
        write!(f, ": {}", self.what)
    }
}
