//! A task that is done for a step of another task, its parent: what the two tasks know of each other, and the actions
//! that make them agree.
//!
//! Neither task changes the other in its own transaction. A change of either task that concerns the other leaves a mark
//! of the step, in the same transaction; an instance that sees the mark compares the records and does what
//! [`child_actions`] returns. All of that can be repeated: a child is made in the same transaction as the note of it in
//! its parent, every report to the parent names the attempt, and a command is refused by a child that has obeyed it
//! already.

use std::sync::Arc;

use crate::{
    definition::{ChildRule, MOST_TASK_DEPTH, OnChildError, Policy},
    task::{
        aggregate::{Details, Task},
        child_record::{Child, ChildRecord, ChildReport, ParentStep},
        command::Command,
        key_prefix::KeyPrefixes,
        status::TaskStatus,
        step::{Step, StepState, StepStatus},
    },
    template::Budget,
    values::{
        ids::{Attempt, StepIndex, TaskId, WorkflowRef},
        time::{Span, Timestamp},
        trace::Trace,
    },
};

pub const MOST_DEPTH: u32 = MOST_TASK_DEPTH;
/// The most descendants of a submitted task, children of children included.
pub const MOST_DESCENDANTS: u64 = 10_000;

/// An action that makes a step and its children agree.
#[derive(Clone, PartialEq, Debug)]
pub enum ChildAction {
    /// A child is to be made for this attempt.
    Make(Attempt),
    /// A child must end.
    Cancel(TaskId),
    Undo {
        child: TaskId,
        /// The command is refused if the child no longer has this version.
        if_version: Option<u64>,
        /// The attempt of the step's undo, which fails if the child cannot be undone.
        blocks: Option<(StepIndex, Attempt)>,
    },
    /// The step is to be informed of its child.
    Report {
        step: StepIndex,
        attempt: Attempt,
        news: News,
    },
}

/// The content of a report, before the output of a processed child is read for it.
#[derive(Clone, PartialEq, Debug)]
pub enum News {
    State(Child),
    Ended(Option<Child>),
    /// Its record was deleted.
    Lost(TaskId),
}

/// Returns the actions for a step of the parent with these children. `undoes_paused` is as in
/// [`Draft::undoing_paused_tasks`](crate::task::decide::Draft::undoing_paused_tasks).
pub fn child_actions(
    parent: &Task,
    index: StepIndex,
    children: &[ChildRecord],
    undoes_paused: bool,
) -> Vec<ChildAction> {
    let live = || children.iter().filter(|child| !child.state.is_ended());
    let rule = match parent.has_step(index) {
        true => parent.definition(index).child_rule(),
        false => None,
    };
    if parent.is_cancelled() {
        return match rule.is_none_or(ChildRule::ends_with_parent) {
            true => live().map(|child| ChildAction::Cancel(child.id)).collect(),
            false => Vec::new(),
        };
    }
    if !parent.has_step(index) {
        return Vec::new();
    }
    if parent.definition(index).undoes.is_some() {
        // The children are those of the step that it undoes.
        return Vec::new();
    }
    let mut undos = parent.undos_of(index);
    if let Some(undo) = undos.find(|undo| parent.waits_for_child(*undo)) {
        return undo_actions(parent, undo, children);
    }
    if !parent.waits_for_child(index) {
        return Vec::new();
    }
    let step = parent.step(index);
    let attempt = step.attempt;
    let Some(child) = children.iter().find(|child| child.attempt == attempt) else {
        return vec![ChildAction::Make(attempt)];
    };
    if child.state.is_ended() {
        return vec![ChildAction::Report {
            step: index,
            attempt,
            news: News::Ended(Some(child.child())),
        }];
    }
    let is_in_error = child.state == TaskStatus::Error;
    let undoes_errors = || rule.is_some_and(|rule| rule.on_error == OnChildError::Undo);
    // The operator who has paused the parent decides first: after the resumption the step is compared with its children
    // again.
    let is_held = parent.paused && !undoes_paused;
    let is_left = parent.undo.is_some() || parent.is_lost(index);
    let mut actions = Vec::new();
    if !child.is_undo_requested && (is_left || is_in_error && !is_held && undoes_errors()) {
        actions.push(ChildAction::Undo {
            child: child.id,
            // An operator may have resolved the error in the meantime.
            if_version: (!is_left).then_some(child.version),
            blocks: None,
        });
    }
    actions.extend(news(index, step, child));
    actions
}

fn undo_actions(parent: &Task, undo: StepIndex, children: &[ChildRecord]) -> Vec<ChildAction> {
    let step = parent.step(undo);
    let attempt = step.attempt;
    let is_left =
        |child: &&ChildRecord| child.state == TaskStatus::Processed || !child.state.is_ended();
    let left: Vec<_> = children.iter().filter(is_left).collect();
    let index = parent.subject(undo);
    if let Some(child) = &parent.step(index).child
        && child.state != TaskStatus::Cancelled
        && !children.iter().any(|record| record.id == child.id)
    {
        return vec![ChildAction::Report {
            step: undo,
            attempt,
            news: News::Lost(child.id),
        }];
    }
    if left.is_empty() {
        let newest = children.iter().max_by_key(|child| child.attempt);
        return vec![ChildAction::Report {
            step: undo,
            attempt,
            news: News::Ended(newest.map(ChildRecord::child)),
        }];
    }
    let is_asked =
        |child: &&&ChildRecord| child.state == TaskStatus::Processed || !child.is_undo_requested;
    let undone = left.iter().filter(is_asked).map(|child| ChildAction::Undo {
        child: child.id,
        if_version: None,
        blocks: Some((undo, attempt)),
    });
    let mut actions: Vec<_> = undone.collect();
    if let Some(child) = left
        .iter()
        .max_by_key(|child| child.state == TaskStatus::Error)
    {
        actions.extend(news(undo, step, child));
    }
    actions
}

/// Returns a report if the child has come to need an operator, or does not need one any more.
fn news(index: StepIndex, step: &Step, child: &ChildRecord) -> Option<ChildAction> {
    let known = step.child.as_ref();
    let was_in_error = known.is_some_and(|known| known.state == TaskStatus::Error);
    let is_in_error = child.state == TaskStatus::Error;
    let is_same = known.is_some_and(|known| known.id == child.id);
    (was_in_error != is_in_error || is_in_error && !is_same).then(|| ChildAction::Report {
        step: index,
        attempt: step.attempt,
        news: News::State(child.child()),
    })
}

impl Task {
    /// Returns whether the step has begun and waits for its child: to be made and to end, or to be undone.
    pub fn waits_for_child(&self, index: StepIndex) -> bool {
        self.is_event(index) && self.definition(index).has_child()
    }

    /// Returns the steps, among the changed ones, that are to be compared with their children.
    pub fn steps_to_compare(&self, changed: &[StepIndex]) -> Vec<StepIndex> {
        let mut steps = Vec::new();
        for index in changed.iter().copied() {
            let definition = self.definition(index);
            let step = self.step(index);
            let is_live = (step.child.as_ref()).is_some_and(|child| !child.state.is_ended());
            let has_begun = definition.has_child() && step.attempt > Attempt::default();
            let is_watched = match step.status() {
                StepStatus::Processing | StepStatus::Cancelled => has_begun,
                _ => false,
            };
            let index = self.subject(index);
            if (is_live || is_watched) && !steps.contains(&index) {
                steps.push(index);
            }
        }
        steps
    }

    /// Returns whether the step ends when the time of the task is over. A child has a time limit of its own, which is
    /// no later: the child decides how the step ends, unless the task is to be undone.
    pub(crate) fn ends_at_limit(&self, index: StepIndex) -> bool {
        if index.at() >= self.steps.len() || !self.step(index).is_live() {
            return false;
        }
        let waits = match self.group(index) {
            Some(group) if self.definition(index).rule_to_run().has_child() => {
                // There are at most as many steps as an index can count.
                let mut items = group.items.iter().map(|at| StepIndex(at as u16));
                items.any(|item| self.waits_for_child(item))
            }
            _ => self.waits_for_child(index),
        };
        !waits
            || self.details.definition.policies.on_deadline == Some(Policy::Undo)
                && self.passed_pivot().is_none()
    }

    /// Returns the submission of a step's child. The error is the definition's or the data's fault, in words for an
    /// operator.
    pub fn child_details(
        &self,
        index: StepIndex,
        workflow: &ChildWorkflow,
        id: TaskId,
        prefixes: Option<&KeyPrefixes>,
        now: Timestamp,
    ) -> Result<Details, String> {
        let rule = self.definition(index).child_rule();
        let rule: &ChildRule = rule.ok_or("the step has no task")?;
        let step = self.step(index);
        let own = self.details.parent.as_ref();
        let depth = own.map_or(0, |parent| parent.depth) + 1;
        if depth > MOST_DEPTH {
            return Err(format!(
                "its task would be {depth} levels below the one that was submitted, and at most {MOST_DEPTH} are allowed: a workflow may contain itself, or others that contain it"
            ));
        }
        // A child that goes on without its parent has all the time of its own.
        let limit = self.limit().filter(|_| rule.ends_with_parent());
        let left = limit.map(|limit| limit.since(now));
        if left.is_some_and(|left| left.is_zero()) {
            return Err("the complete-by of the task has passed".to_owned());
        }
        let budget = Budget::evaluation();
        let fields = rule.render(&self.scope(index, &budget));
        let fields = fields.map_err(|error| format!("its task could not be made: {error}"))?;
        let own_within = rule.complete_within.or(workflow.complete_within);
        let left = left.map(Span::from);
        let trace = self.details.trace.as_ref();
        Ok(Details {
            id,
            key: fields.key.map(Arc::from),
            workflow: workflow.workflow.clone(),
            definition: workflow.definition.clone(),
            input: match &step.body {
                Some(input) => input.clone(),
                None => fields.input,
            },
            labels: fields.labels.into_iter().collect(),
            priority: self.details.priority,
            complete_within: match (own_within, left) {
                (Some(own), Some(left)) => Some(own.min(left)),
                (own, left) => own.or(left),
            },
            start_at: None,
            trace: Some(Trace {
                id: self.trace_id(),
                flags: trace.map_or(SAMPLED, |trace| trace.flags),
                state: trace.and_then(|trace| trace.state.clone()),
            }),
            reply_to: None,
            parent: Some(Box::new(ParentStep {
                task: self.id(),
                step: self.definition(index).name.clone(),
                index,
                attempt: step.attempt,
                root: self.root(),
                depth,
            })),
            key_prefix: prefixes.map(|prefixes| prefixes.of_child(self, index)),
        })
    }

    /// Returns the submitted task of which this one is a descendant, or the task itself.
    pub fn root(&self) -> TaskId {
        let parent = self.details.parent.as_ref();
        parent.map_or(self.id(), |parent| parent.root)
    }

    pub(crate) fn is_event(&self, index: StepIndex) -> bool {
        match &self.step(index).state {
            StepState::Processing { held_by, .. } => {
                *held_by == crate::task::open_reply::StepHolder::Event
            }
            _ => false,
        }
    }
}

/// The flags of a task without a trace.
const SAMPLED: u8 = 1;

/// The workflow of a child as it was loaded, or its steps.
#[derive(Clone, Debug)]
pub struct ChildWorkflow {
    /// `None`: the steps stand in the step of the parent.
    pub workflow: Option<WorkflowRef>,
    pub definition: Arc<crate::definition::Definition>,
    pub complete_within: Option<Span>,
}

impl ChildReport {
    /// Makes the command for the parent.
    pub fn to(self, step: StepIndex, attempt: Attempt) -> Command {
        Command::ChildReport {
            step,
            attempt,
            report: self,
        }
    }
}
