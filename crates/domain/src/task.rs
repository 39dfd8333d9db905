//! The aggregate: a task with all its steps. Every command on a task can be decided with it alone.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    child::ParentStep,
    definition::{Definition, StepDefinition},
    expansion::{Expansion, ItemGroup},
    fault::Fault,
    history::Actor,
    ids::{InstanceId, Priority, StepIndex, StepName, TaskId, WorkflowName},
    open_reply::StepHolder,
    payload::Payload,
    reply_to::ReplyTo,
    step::{Step, StepState},
    step_list::StepList,
    template::{Budget, Scope, SeenItem},
    time::{Span, Timestamp},
    trace::Trace,
    turn::Turn,
};

/// The most labels of a task.
pub const MOST_LABELS: usize = 32;
/// The longest key, label name or label value.
pub const LONGEST_NAME: usize = 255;

#[derive(Clone, PartialEq, Debug)]
pub struct Task {
    pub details: Arc<Details>,
    pub created_at: Timestamp,
    /// How many changes have been saved: the ETag, and what a save compares and sets.
    pub version: u64,
    pub state: TaskState,
    /// An operator holds the task: running calls finish, nothing is claimed.
    pub paused: bool,
    /// It has not begun, because so many tasks of its key run: nothing is claimed.
    pub waits: bool,
    /// It begins then, and nothing of it does before. `None`: it has begun.
    pub start_at: Option<Timestamp>,
    /// `complete_within` counted from its begin, or from the retry of an overdue task.
    pub complete_by: Option<Timestamp>,
    /// Those of the definition, followed by the items of its groups.
    pub steps: StepList,
    /// Those of the definition that have no rows, in order. They wait: nothing has happened in them since the task was submitted.
    pub untouched: Vec<StepIndex>,
    /// The step whose claim stands in the task's own record, and that has no row: an instance makes its first attempt, and that
    /// is all that has happened in it.
    pub own_claim: Option<StepIndex>,
    /// What undoes the steps, in the order of the definition's, and then of the items. None before the task is to be undone.
    pub undos: StepList,
    /// The items, once the list of a group is known.
    pub expansion: Option<Arc<Expansion>>,
    /// That the task is to be undone, and why. From then on nothing else of it is run.
    pub undo: Option<Undo>,
}

/// Why a task is undone.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Undo {
    pub at: Timestamp,
    pub by: Actor,
    /// The reason that the operator gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What went wrong, where a policy asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
}

/// What was submitted. It never changes.
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
    /// When it is to begin, as it was submitted: [`Task::start_at`] says whether it has.
    pub start_at: Option<Timestamp>,
    /// The trace that the submitter is part of; without one the task's id is the trace's.
    pub trace: Option<Trace>,
    /// The receiver of messages about the task.
    pub reply_to: Option<Box<ReplyTo>>,
    /// The step of another task that this one is done for.
    pub parent: Option<Box<ParentStep>>,
    /// The begin of the keys of its steps. `None`: its id.
    pub key_prefix: Option<Arc<str>>,
}

/// A task is the same submission exactly when its id is.
impl PartialEq for Details {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct WorkflowRef {
    pub name: WorkflowName,
    pub version: u32,
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
    /// A step is in error and an operator is needed. Branches that do not depend on it go on.
    Error(Fault),
    Undoing,
    Undone {
        at: Timestamp,
    },
    Cancelled {
        at: Timestamp,
    },
}

/// The name of a task's state, as it is stored and shown.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Debug,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum TaskStatus {
    Pending,
    Processing,
    Paused,
    Processed,
    Error,
    Undoing,
    Undone,
    Cancelled,
}

impl TaskStatus {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Those of tasks that have ended.
    pub const ENDED: [TaskStatus; 3] = [
        TaskStatus::Processed,
        TaskStatus::Undone,
        TaskStatus::Cancelled,
    ];

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    /// The event that tells of a task's arrival in this state.
    pub const fn event(self) -> &'static str {
        match self {
            TaskStatus::Pending => "task.pending",
            TaskStatus::Processing => "task.processing",
            TaskStatus::Paused => "task.paused",
            TaskStatus::Processed => "task.processed",
            TaskStatus::Error => "task.error",
            TaskStatus::Undoing => "task.undoing",
            TaskStatus::Undone => "task.undone",
            TaskStatus::Cancelled => "task.cancelled",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    /// An ended task never changes again, but for one that is processed and then undone.
    pub fn is_ended(self) -> bool {
        matches!(
            self,
            TaskStatus::Processed | TaskStatus::Undone | TaskStatus::Cancelled
        )
    }
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

    /// Ended, or in need of an operator: nothing more comes by waiting.
    pub fn is_settled(&self) -> bool {
        match self.state {
            TaskState::Error(_) => !self.steps.any_live() && !self.undos.any_live(),
            _ => self.is_ended(),
        }
    }

    /// What [`Task::own_claim`] has in the record: the step, who claimed it, when, and until when it is to complete.
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

    /// Whether an instance makes the first attempt of this step of the definition, and nothing else is to be recorded of it. Steps
    /// that their workflow limits are counted by their rows.
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

    /// In the queues of agents.
    pub fn turn(&self) -> Turn {
        self.details.turn(self.created_at)
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

    /// Whether the task has a step at this position. It has what undoes its steps only once it is to be undone.
    pub fn has(&self, index: StepIndex) -> bool {
        index.at() < self.steps.len() + self.undos.len()
    }

    /// Panics where the task has no such step. An index that came from elsewhere, such as a command, a
    /// queue or another instance, is first checked by [`Task::has`].
    pub fn step(&self, index: StepIndex) -> &Step {
        match index.at().checked_sub(self.steps.len()) {
            None => &self.steps[index.at()],
            Some(at) => &self.undos[at],
        }
    }

    pub(super) fn step_mut(&mut self, index: StepIndex) -> &mut Step {
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

    /// The steps that are the task itself, without those that undo them.
    pub fn forward(&self) -> impl DoubleEndedIterator<Item = StepIndex> + use<> {
        // There are at most as many steps as an index can count.
        (0..self.steps.len() as u16).map(StepIndex)
    }

    /// The steps in an order in which each comes after those that it follows.
    pub fn order(&self) -> &[StepIndex] {
        match &self.expansion {
            None => &self.details.definition.order,
            Some(expansion) => expansion.order(),
        }
    }

    /// The items of a step with `for_each`, once its list is known; and of one with `repeat`, once it has begun.
    pub fn group(&self, step: StepIndex) -> Option<&ItemGroup> {
        self.expansion.as_ref()?.group(step)
    }

    /// All groups whose items are known.
    pub fn groups(&self) -> &[ItemGroup] {
        self.expansion.as_ref().map_or(&[], |all| all.groups())
    }

    /// The step of the definition: of an item, and of what undoes it, the group.
    pub fn group_of(&self, index: StepIndex) -> StepIndex {
        let item = self.definition(index).item;
        item.map_or(index, |item| item.group)
    }

    /// The name that steps of other tasks with the same definition have as well: of an item that of its group.
    pub fn common_name(&self, index: StepIndex) -> &StepName {
        let definition = self.definition(index);
        match definition.item {
            Some(item) => &self.definition(item.group).name,
            None => &definition.name,
        }
    }

    /// The steps, followed by their undos once the task is to be undone.
    pub fn indexes(&self) -> impl Iterator<Item = StepIndex> + use<> {
        (0..(self.steps.len() + self.undos.len()) as u16).map(StepIndex)
    }

    /// Whether the task has lost the step that stood there: its version has changed.
    pub fn is_removed(&self, index: StepIndex) -> bool {
        self.details.definition.is_removed(index)
    }

    /// The steps in the order of the definition, followed by their undos once the task is to be undone: [`Task::indexes`]
    /// without those of items.
    pub fn own_indexes(&self) -> impl Iterator<Item = StepIndex> {
        let definition = &self.details.definition;
        let undos = definition.undos.len().min(self.undos.len());
        let first_undo = self.steps.len() as u16;
        let undos = first_undo..first_undo + undos as u16;
        definition.listed().chain(undos.map(StepIndex))
    }

    /// Whether the step belongs to what is run now: the steps themselves, or what undoes them.
    pub fn is_current(&self, index: StepIndex) -> bool {
        self.undo.is_some() == (index.at() >= self.steps.len())
    }

    /// The group of an item's name, such as `import[17]`, if the item may still come to be: its list is not known, or so many
    /// iterations have not begun.
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
            return self.has(found).then_some(found);
        }
        let is_named = |index: &StepIndex| self.definition(*index).name.as_str() == name;
        let is_there = |index: &StepIndex| !self.is_removed(*index);
        match &self.expansion {
            None => self.indexes().filter(is_there).find(is_named),
            Some(_) => self.own_indexes().find(is_named),
        }
    }

    /// Returns whether the task waits for its `start_at`, or until it is admitted. Such a task is `pending`, also where some of
    /// its steps are done already: their conditions are false, or an operator has skipped or resolved them. It can be paused,
    /// and be in error.
    pub fn has_not_begun(&self) -> bool {
        self.waits || self.start_at.is_some()
    }

    /// Returns whether its steps may begin: be claimed, wait, have items or a child. Everything that begins a step asks this.
    pub fn may_begin(&self) -> bool {
        !self.paused && !self.has_not_begun() && !self.is_ended()
    }

    /// From when a step may be claimed, or a promised reply be polled. No step of a task that is paused, waits or has ended may be
    /// claimed.
    pub fn due_at(&self, index: StepIndex) -> Option<Timestamp> {
        match &self.step(index).state {
            StepState::Pending { ready_at }
                if self.may_begin()
                    && !self.step(index).awaits_turn
                    && self.definition(index).is_call() =>
            {
                Some(*ready_at)
            }
            // A poll goes on for a call that was made: a pause lets calls finish.
            StepState::Processing {
                held_by: StepHolder::Service(open),
                ..
            } => open.poll.as_ref().map(|poll| poll.next_at),
            _ => None,
        }
    }

    /// The task's own complete-by, as long as it counts: an undo takes the time that it takes.
    pub fn limit(&self) -> Option<Timestamp> {
        self.complete_by.filter(|_| self.undo.is_none())
    }

    /// Returns whether an operator's pause holds back what the task does at a time of its own: its begin, or what its policy does
    /// once its limit has passed.
    pub(super) fn waits_for_resume(&self) -> bool {
        let has_time = self.start_at.is_some() || self.limit().is_some();
        self.paused && !self.is_ended() && has_time
    }

    /// When the supervisor must look at the task as a whole: its begin, until it has begun; then its limit, while
    /// anything is live. Never where it must be resumed first: a paused task costs nothing while it waits.
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

    /// The step that this one is about: for an undo the step that it undoes, else itself.
    pub fn subject(&self, index: StepIndex) -> StepIndex {
        self.definition(index).undoes.unwrap_or(index)
    }

    /// The steps that took effect, or may have, and that nothing undoes: an undo passes them over.
    pub fn passed_over(&self) -> impl Iterator<Item = StepIndex> {
        self.forward().filter(|index| {
            let definition = self.definition(*index);
            definition.undo.is_none()
                && (definition.is_call() || definition.has_child())
                && self.step(*index).may_have_taken_effect()
        })
    }

    /// The step that prevents an undo: a pivot that is done, is being called, or may have taken effect.
    pub fn passed_pivot(&self) -> Option<StepIndex> {
        self.passed_pivot_after(None)
    }

    /// [`Task::passed_pivot`] once the call of this step has ended without a result.
    pub fn passed_pivot_after(&self, ended: Option<StepIndex>) -> Option<StepIndex> {
        self.forward().find(|index| {
            let step = self.step(*index);
            let definition = self.definition(*index);
            let is_called =
                Some(*index) != ended && matches!(step.state, StepState::Processing { .. });
            // A group does nothing itself.
            (definition.pivot && definition.group_rule().is_none())
                && (step.may_have_taken_effect() || is_called)
        })
    }

    /// What the templates of a step see, and what their evaluation may cost.
    pub fn scope<'t>(&'t self, index: StepIndex, budget: &'t Budget) -> Scope<'t> {
        Scope {
            task_id: self.id(),
            key: self.details.key.as_deref(),
            labels: &self.details.labels,
            input: Some(&self.details.input),
            steps: self
                .definition(index)
                .reads
                .iter()
                .map(|read| (&self.definition(*read).name, self.step(*read).output()))
                .collect(),
            output: self
                .definition(index)
                .undoes
                .and_then(|undone| self.step(undone).output()),
            request: None,
            response: None,
            signal: None,
            item: self.seen_item(index),
            budget,
        }
    }

    /// What an item, and what undoes it, see of themselves.
    fn seen_item(&self, index: StepIndex) -> Option<SeenItem<'_>> {
        let item = self.definition(index).item?;
        let group = self.group(item.group)?;
        Some(match group.value(item.number) {
            Some(value) => SeenItem::Value(value, item.number),
            None => self.seen_iteration(group, item.number),
        })
    }

    pub(super) fn seen_iteration<'t>(&'t self, group: &ItemGroup, number: u16) -> SeenItem<'t> {
        let mut before = (0..usize::from(number)).rev();
        let previous = before.find_map(|number| self.steps[group.items.get(number)?].output());
        SeenItem::Iteration { previous, number }
    }

    /// Of an item of a list: its value.
    pub(super) fn item_value(&self, index: StepIndex) -> Option<&Payload> {
        let item = self.definition(index).item?;
        self.group(item.group)?.value(item.number)
    }
}
