//! The aggregate: a task with all its steps. Every command on a task can be decided with it alone.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    definition::{Definition, StepDefinition},
    task::{
        child_record::ParentStep,
        expansion::{Expansion, ItemGroup},
        history::Actor,
        open_reply::StepHolder,
        reply_to::ReplyTo,
        status::TaskStatus,
        step::{Step, StepState, StepStatus},
        step_list::StepList,
    },
    template::{Budget, ItemScope, Scope, payload::Payload},
    values::{
        fault::Fault,
        ids::{InstanceId, Priority, StepIndex, StepName, TaskId, WorkflowRef},
        time::{Span, Timestamp},
        trace::Trace,
    },
};

#[derive(Clone, PartialEq, Debug)]
pub struct Task {
    pub details: Arc<Details>,
    pub created_at: Timestamp,
    /// The number of changes that have been saved: the ETag, and the value that a save compares and sets.
    pub version: u64,
    pub state: TaskState,
    /// An operator holds the task: running calls finish, no step is claimed.
    pub paused: bool,
    /// The task has not begun, because the limit of running tasks with its key is reached: no step is claimed.
    pub waits: bool,
    /// The time at which the task begins. No step begins before it. `None` once the task has begun.
    pub start_at: Option<Timestamp>,
    /// `complete_within`, counted from the begin of the task or from the retry of an overdue task.
    pub complete_by: Option<Timestamp>,
    /// The steps of the definition, followed by the items of its groups.
    pub steps: StepList,
    /// The steps of the definition that have no rows, in order. They wait: nothing has happened in them since the task
    /// was submitted.
    pub untouched: Vec<StepIndex>,
    /// The step whose claim is saved in the task's own record, and which has no row: an instance makes its first
    /// attempt, and nothing else has happened in it.
    pub own_claim: Option<StepIndex>,
    /// The undos, in the order of the definition's steps and then of the items. Empty until the task is to be undone.
    pub undos: StepList,
    /// The items, once the list of a group is known.
    pub expansion: Option<Arc<Expansion>>,
    /// Present if the task is to be undone, with the reason. No other step is run any more.
    pub undo: Option<Undo>,
}

/// The reason why a task is undone.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Undo {
    pub at: Timestamp,
    pub by: Actor,
    /// The reason that the operator gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The fault that made a policy request the undo.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
    /// True if nothing is undone: the task is cancelled once the steps have ended that run when all others have.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancels: bool,
}

/// The submission. It never changes.
#[derive(Debug)]
pub struct Details {
    pub id: TaskId,
    /// The caller's own id (the pattern's order id).
    pub key: Option<Arc<str>>,
    pub workflow: Option<WorkflowRef>,
    pub definition: Arc<Definition>,
    pub input: Payload,
    pub labels: BTreeMap<String, String>,
    pub priority: Priority,
    pub complete_within: Option<Span>,
    /// The time at which the task is to begin, as it was submitted. [`Task::start_at`] shows whether it has begun.
    pub start_at: Option<Timestamp>,
    /// The trace that the submitter is part of; without one the task's id is the trace's.
    pub trace: Option<Trace>,
    /// The receiver of messages about the task.
    pub reply_to: Option<Box<ReplyTo>>,
    /// The step of another task that this task is a child of.
    pub parent: Option<Box<ParentStep>>,
    /// The prefix of the idempotency keys of its steps. `None`: the task's id.
    pub key_prefix: Option<Arc<str>>,
}

/// Two values are equal if they have the same task id: a submission never changes.
impl PartialEq for Details {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

#[derive(Clone, PartialEq, Debug)]
pub enum TaskState {
    /// No step has been claimed.
    Pending,
    Processing,
    Paused,
    Processed {
        at: Timestamp,
    },
    /// A step is in error and needs an operator. Branches that do not depend on it continue.
    Error(Fault),
    Undoing,
    Undone {
        at: Timestamp,
    },
    Cancelled {
        at: Timestamp,
    },
}

impl Task {
    pub fn id(&self) -> TaskId {
        self.details.id
    }

    /// The submitter's trace, or the task's own.
    pub fn trace_id(&self) -> u128 {
        let own = self.id().0.as_u128();
        self.details.trace.as_ref().map_or(own, |trace| trace.id)
    }

    pub fn status(&self) -> TaskStatus {
        match self.state {
            TaskState::Pending => TaskStatus::Pending,
            TaskState::Processing => TaskStatus::Processing,
            TaskState::Paused => TaskStatus::Paused,
            TaskState::Processed { .. } => TaskStatus::Processed,
            TaskState::Error(_) => TaskStatus::Error,
            TaskState::Undoing => TaskStatus::Undoing,
            TaskState::Undone { .. } => TaskStatus::Undone,
            TaskState::Cancelled { .. } => TaskStatus::Cancelled,
        }
    }

    pub fn is_ended(&self) -> bool {
        self.status().is_ended()
    }

    /// Returns whether the task has ended or needs an operator: nothing changes without a command.
    pub fn is_settled(&self) -> bool {
        match self.state {
            TaskState::Error(_) => !self.steps.any_live() && !self.undos.any_live(),
            _ => self.is_ended(),
        }
    }

    /// Returns the claim of [`Task::own_claim`]: the step, the instance, the time of the claim, and its complete-by.
    pub fn own_claim(&self) -> Option<(StepIndex, &InstanceId, Timestamp, Timestamp)> {
        let index = self.own_claim?;
        let step = self.step(index);
        let StepState::Processing {
            held_by: StepHolder::Instance(by),
            complete_by,
        } = &step.state
        else {
            return None;
        };
        Some((index, by, step.started_at?, *complete_by))
    }

    /// Returns whether its workflow limits the steps of the task.
    pub fn has_step_limits(&self) -> bool {
        let limits = &self.details.definition.policies.step_limits;
        self.details.workflow.is_some() && !limits.is_empty()
    }

    /// Returns whether an instance makes the first attempt of this step of the definition, and nothing else of the step
    /// is to be recorded. A step that its workflow limits has a row, because rows are counted for the limit.
    pub fn is_bare_claim(&self, index: StepIndex) -> bool {
        let is_own = index.at() < self.details.definition.steps.len();
        if !is_own || self.has_step_limits() {
            return false;
        }
        let step = self.step(index);
        match (&step.state, step.started_at) {
            (
                StepState::Processing {
                    held_by: StepHolder::Instance(by),
                    complete_by,
                },
                Some(at),
            ) => *step == Step::first_claimed(by.clone(), at, *complete_by),
            _ => false,
        }
    }

    pub fn ended_at(&self) -> Option<Timestamp> {
        match self.state {
            TaskState::Processed { at }
            | TaskState::Undone { at }
            | TaskState::Cancelled { at } => Some(at),
            _ => None,
        }
    }

    pub fn error(&self) -> Option<&Fault> {
        match &self.state {
            TaskState::Error(fault) => Some(fault),
            _ => None,
        }
    }

    /// Returns whether the task has a step at this index. It has undos only once it is to be undone.
    pub fn has_step(&self, index: StepIndex) -> bool {
        index.at() < self.steps.len() + self.undos.len()
    }

    /// Panics if the task has no such step. An index that comes from a command, a queue or another instance is first
    /// checked with [`Task::has_step`].
    pub fn step(&self, index: StepIndex) -> &Step {
        match index.at().checked_sub(self.steps.len()) {
            None => &self.steps[index.at()],
            Some(at) => &self.undos[at],
        }
    }

    pub(crate) fn step_mut(&mut self, index: StepIndex) -> &mut Step {
        match index.at().checked_sub(self.steps.len()) {
            None => &mut self.steps[index.at()],
            Some(at) => &mut self.undos[at],
        }
    }

    pub fn definition(&self, index: StepIndex) -> &StepDefinition {
        match &self.expansion {
            None => self.details.definition.step(index),
            Some(expansion) => expansion.step(index),
        }
    }

    /// Returns the steps of the task itself, without their undos.
    pub fn forward(&self) -> impl DoubleEndedIterator<Item = StepIndex> + use<> {
        // There are at most as many steps as an index can count.
        (0..self.steps.len() as u16).map(StepIndex)
    }

    /// Returns the steps in an order in which each comes after the steps that it follows.
    pub fn order(&self) -> &[StepIndex] {
        match &self.expansion {
            None => &self.details.definition.order,
            Some(expansion) => expansion.order(),
        }
    }

    /// Returns the items of a step with `for_each` once its list is known, and of a step with `repeat` once it has
    /// begun.
    pub fn group(&self, step: StepIndex) -> Option<&ItemGroup> {
        self.expansion.as_ref()?.group(step)
    }

    /// Returns all groups whose items are known.
    pub fn groups(&self) -> &[ItemGroup] {
        self.expansion.as_ref().map_or(&[], |all| all.groups())
    }

    /// Returns the step of the definition: for an item, and for the undo of an item, the group.
    pub fn group_of(&self, index: StepIndex) -> StepIndex {
        let item = self.definition(index).item;
        item.map_or(index, |item| item.group)
    }

    /// Returns the name that the step has in all tasks of the definition: for an item the name of its group.
    pub fn common_name(&self, index: StepIndex) -> &StepName {
        let definition = self.definition(index);
        match definition.item {
            Some(item) => &self.definition(item.group).name,
            None => &definition.name,
        }
    }

    /// Returns the steps, followed by their undos once the task is to be undone.
    pub fn indexes(&self) -> impl Iterator<Item = StepIndex> + use<> {
        (0..(self.steps.len() + self.undos.len()) as u16).map(StepIndex)
    }

    /// Returns whether the step at this index is removed, because the version of the task has changed.
    pub fn is_removed(&self, index: StepIndex) -> bool {
        self.details.definition.is_removed(index)
    }

    /// Returns the steps in the order of the definition, followed by their undos once the task is to be undone:
    /// [`Task::indexes`] without the items and their undos.
    pub fn own_indexes(&self) -> impl Iterator<Item = StepIndex> {
        let definition = &self.details.definition;
        let undos = definition.undos.len().min(self.undos.len());
        let first_undo = self.steps.len() as u16;
        let undos = (first_undo..first_undo + undos as u16).map(StepIndex);
        // A task that is cancelled before its undo has begun shows none.
        let is_shown = |undo: &StepIndex| {
            let step = self.step(*undo);
            let is_left = step.attempt.0 == 0 && step.status() == StepStatus::Cancelled;
            !is_left || self.undo.as_ref().is_none_or(|undo| !undo.cancels)
        };
        definition.listed().chain(undos.filter(is_shown))
    }

    /// Returns whether the step is one of those that run now: the undos if the task is being undone, the other steps if
    /// not, and those of `finally` in both cases. Of a task that is being cancelled nothing else runs.
    pub fn is_current(&self, index: StepIndex) -> bool {
        let is_undo = index.at() >= self.steps.len();
        match &self.undo {
            None => !is_undo,
            Some(undo) => is_undo && !undo.cancels || self.is_finally(index),
        }
    }

    /// Returns the group of an item's name, such as `import[17]`, if the item may still come to exist: the list of the
    /// group is not known, or the iteration of this number has not begun.
    pub fn group_of_unknown(&self, name: &str) -> Option<StepIndex> {
        let (group, rest) = name.split_once('[')?;
        let number: usize = rest.strip_suffix(']')?.parse().ok()?;
        let step = self.find(group)?;
        let rule = self.definition(step).group_rule()?;
        let is_unknown = match (self.group(step), rule.repeat()) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(group), Some(_)) => {
                !self.is_ended()
                    && self.undo.is_none()
                    && !self.step(step).is_done()
                    && (group.items.len()..group.most_items()).contains(&number)
            }
        };
        is_unknown.then_some(step)
    }

    pub fn find(&self, name: &str) -> Option<StepIndex> {
        if name.contains('[') {
            let found = self.expansion.as_ref()?.find(name)?;
            return self.has_step(found).then_some(found);
        }
        let is_named = |index: &StepIndex| self.definition(*index).name.as_str() == name;
        let is_there = |index: &StepIndex| !self.is_removed(*index);
        match &self.expansion {
            None => self.indexes().filter(is_there).find(is_named),
            Some(_) => self.own_indexes().find(is_named),
        }
    }

    /// Returns whether the task waits for its `start_at`, or until it is admitted. Such a task is `pending`, also where
    /// some of its steps are done already: their conditions are false, or an operator has skipped or resolved them. It
    /// can be paused, and be in error.
    pub fn has_not_begun(&self) -> bool {
        self.waits || self.start_at.is_some()
    }

    /// Returns whether its steps may begin: be claimed, wait, have items or a child. Everything that begins a step asks
    /// this.
    pub fn may_begin(&self) -> bool {
        !self.paused && !self.has_not_begun() && !self.is_ended()
    }

    /// Returns the time from which the step may be claimed, or its promised reply be polled. No step of a task that is
    /// paused, has not begun or has ended may be claimed.
    pub fn due_at(&self, index: StepIndex) -> Option<Timestamp> {
        match &self.step(index).state {
            StepState::Pending { ready_at }
                if self.may_begin()
                    && !self.step(index).awaits_turn
                    && self.definition(index).is_call() =>
            {
                Some(*ready_at)
            }
            // A poll belongs to a call that was made, and a pause lets calls finish.
            StepState::Processing {
                held_by: StepHolder::Service(open),
                ..
            } => open.poll.as_ref().map(|poll| poll.next_at),
            _ => None,
        }
    }

    /// Returns the task's complete-by while it applies. It does not apply to an undo, which has no time limit, nor once all
    /// has ended but the steps that run then.
    pub fn limit(&self) -> Option<Timestamp> {
        self.complete_by
            .filter(|_| self.undo.is_none() && !self.runs_finally())
    }

    /// Returns whether an operator's pause holds back what the task does at a time of its own: its begin, or what its
    /// policy does once its limit has passed.
    pub(crate) fn waits_for_resume(&self) -> bool {
        let has_time = self.start_at.is_some() || self.limit().is_some();
        self.paused && !self.is_ended() && has_time
    }

    /// Returns when the supervisor must look at the task as a whole: its begin until it has begun, and after that its
    /// limit while any step is live. Returns `None` if the task must be resumed first: a paused task costs nothing
    /// while it waits.
    pub fn overdue_at(&self) -> Option<Timestamp> {
        if self.waits_for_resume() {
            return None;
        }
        if self.start_at.is_some() {
            return self.start_at.filter(|_| !self.is_ended());
        }
        let is_awaited = || self.indexes().any(|index| self.ends_at_limit(index));
        self.limit()
            .filter(|_| self.steps.any_live() && is_awaited())
    }

    /// Returns the step that this one is about: for an undo the step that it undoes, for any other step itself.
    pub fn subject(&self, index: StepIndex) -> StepIndex {
        self.definition(index).undoes.unwrap_or(index)
    }

    /// Returns the steps that took effect, or may have, and have no undo. An undo of the task passes over them.
    pub fn passed_over(&self) -> impl Iterator<Item = StepIndex> {
        self.forward().filter(|index| {
            let definition = self.definition(*index);
            definition.undo.is_none()
                && definition.undoes.is_none()
                && !definition.is_finally
                && (definition.is_call() || definition.has_child())
                && self.step(*index).may_have_taken_effect()
        })
    }

    /// Returns the step that prevents an undo: a pivot that is done, is being called, or may have taken effect.
    pub fn passed_pivot(&self) -> Option<StepIndex> {
        self.passed_pivot_after(None)
    }

    /// Returns [`Task::passed_pivot`] as it is once the call of the step `ended` has ended without a result.
    pub fn passed_pivot_after(&self, ended: Option<StepIndex>) -> Option<StepIndex> {
        self.forward().find(|index| {
            let step = self.step(*index);
            let definition = self.definition(*index);
            let is_called =
                Some(*index) != ended && matches!(step.state, StepState::Processing { .. });
            // A group has no effect of its own.
            (definition.pivot && definition.group_rule().is_none())
                && (step.may_have_taken_effect() || is_called)
        })
    }

    /// Returns the values that the templates of a step can read, and the budget for their evaluation.
    pub fn scope<'t>(&'t self, index: StepIndex, budget: &'t Budget) -> Scope<'t> {
        Scope {
            task_id: self.id(),
            key: self.details.key.as_deref(),
            state: match self.is_finally(index) {
                true => self.end().as_str(),
                false => self.status().as_str(),
            },
            labels: &self.details.labels,
            input: Some(&self.details.input),
            block: &self.definition(index).block,
            steps: self
                .definition(index)
                .reads
                .iter()
                .map(|read| (&self.definition(*read).name, self.step(*read).output()))
                .collect(),
            record: Some(self),
            output: self
                .definition(index)
                .undoes
                .and_then(|undone| self.step(undone).output()),
            request: None,
            response: None,
            signal: None,
            reply_url: None,
            item: self.seen_item(index),
            budget,
        }
    }

    /// Returns the values of an item that its own templates, and those of its undo, can read.
    fn seen_item(&self, index: StepIndex) -> Option<ItemScope<'_>> {
        let item = self.definition(index).item?;
        let group = self.group(item.group)?;
        Some(match group.value(item.number) {
            Some(value) => ItemScope::Value(value, item.number),
            None => self.seen_iteration(group, item.number),
        })
    }

    pub(crate) fn seen_iteration<'t>(&'t self, group: &ItemGroup, number: u16) -> ItemScope<'t> {
        let mut before = (0..usize::from(number)).rev();
        let previous = before.find_map(|number| self.steps[group.items.get(number)?].output());
        ItemScope::Iteration { previous, number }
    }

    /// Returns the value of an item of a list.
    pub(crate) fn item_value(&self, index: StepIndex) -> Option<&Payload> {
        let item = self.definition(index).item?;
        self.group(item.group)?.value(item.number)
    }
}
