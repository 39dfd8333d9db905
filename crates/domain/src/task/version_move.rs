//! Decides if a task can move to another version of its workflow: every step that has begun must mean the same in that
//! version. The report names each step that cannot be mapped, with the reason.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    definition::Definition,
    task::{
        aggregate::Task,
        step::{Step, StepState, StepStatus},
    },
    values::{
        fault::Effect,
        ids::{Attempt, StepIndex, StepName, WorkflowRef},
    },
};

/// A version that a task moves to.
#[derive(Clone, Debug)]
pub struct VersionMove {
    pub workflow: WorkflowRef,
    /// Its definition is laid out over the steps that the task has: see
    /// [`StepLayout::for_move`](crate::definition::StepLayout::for_move).
    pub definition: Arc<Definition>,
}

/// The change of a step. `same`: both versions define it equally. `changed`: it continues as it is, and the changes of
/// its definition apply from now on. `reset`: it waits for the steps before it. `added` or `removed`: only one of the
/// versions has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepChange {
    /// Its definition is the same in both versions.
    Same,
    /// The step continues as it is; the fields that differ apply from now on.
    Changed,
    /// The step has not begun, or failed without effect, and waits again for the steps before it.
    Reset,
    /// Only the new version has the step.
    Added,
    /// The new version does not have the step, which has not begun or had no effect.
    Removed,
}

/// A step that prevents the task from moving to another version.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct UnmappedStep {
    #[schema(value_type = String, example = "charge")]
    pub step: StepName,
    #[schema(value_type = StepStatus)]
    pub state: &'static str,
    /// The reason why the step cannot continue in the new version.
    #[schema(example = "its `request` differs, and the step is processed")]
    pub reason: String,
}

/// A step of either version.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct MovedStep {
    #[schema(value_type = String, example = "charge")]
    pub name: StepName,
    /// The state now; null if the step is added.
    #[schema(value_type = Option<StepStatus>, required)]
    pub state: Option<&'static str>,
    /// The change of the step; null if it cannot move.
    #[schema(required)]
    pub change: Option<StepChange>,
    /// The fields of its definition that differ.
    #[schema(example = json!(["request"]))]
    pub differs: Vec<String>,
    #[serde(skip)]
    pub index: StepIndex,
    #[serde(skip)]
    pub reason: Option<String>,
}

/// The changes that a move makes to the steps.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MoveReport {
    /// The steps in the order of the new version, and after them the steps that it does not have.
    pub steps: Vec<MovedStep>,
}

impl MoveReport {
    pub fn unmapped(&self) -> Vec<UnmappedStep> {
        let refused = self.steps.iter().filter_map(|step| {
            Some(UnmappedStep {
                step: step.name.clone(),
                state: step.state.unwrap_or_default(),
                reason: step.reason.clone()?,
            })
        });
        refused.collect()
    }
}

/// Fields that may differ once the step is done: they apply around a call that was made, or to its undo.
const AROUND_A_CALL: [&str; 15] = [
    "after",
    "undo",
    "on_undo",
    "complete_within",
    "max_failures",
    "on_exhausted",
    "on_permanent",
    "probe",
    "reply",
    "heartbeat_within",
    "cancel",
    "keep_headers",
    "max_attempts",
    "retry",
    "failed",
];
/// The fields of [`AROUND_A_CALL`] that may also differ while the step runs.
const BESIDE_A_CALL: [&str; 9] = [
    "after",
    "undo",
    "on_undo",
    "complete_within",
    "max_failures",
    "on_exhausted",
    "on_permanent",
    "max_attempts",
    "retry",
];

/// Returns the changes that a move would make to each step. `to` is laid out over the steps of the task.
pub fn check_move(task: &Task, to: &VersionMove) -> MoveReport {
    let before = StepFields::of(&task.details.definition);
    let after = StepFields::of(&to.definition);
    let comparison = VersionComparison {
        task,
        to,
        before: &before,
        after: &after,
    };
    let definition = &to.definition;
    let added = |index: &StepIndex| index.at() >= task.steps.len() || task.is_removed(*index);
    let mut steps: Vec<_> = definition
        .listed()
        .map(|index| match added(&index) {
            true => MovedStep {
                name: definition.step(index).name.clone(),
                state: None,
                change: Some(StepChange::Added),
                differs: Vec::new(),
                index,
                reason: None,
            },
            false => comparison.kept(index),
        })
        .collect();
    let gone = task.details.definition.listed();
    let gone = gone.filter(|index| definition.is_removed(*index));
    steps.extend(gone.map(|index| comparison.removed(index)));
    MoveReport { steps }
}

struct VersionComparison<'t> {
    task: &'t Task,
    to: &'t VersionMove,
    before: &'t StepFields,
    after: &'t StepFields,
}

impl VersionComparison<'_> {
    fn kept(&self, index: StepIndex) -> MovedStep {
        let (step, name) = (self.task.step(index), &self.to.definition.step(index).name);
        let differs = self.differs(index, name);
        let judged = match differs.iter().any(|field| field == "after") {
            true => self.judge_race(index),
            false => Ok(()),
        };
        let judged = judged.and_then(|()| self.judge(index, step, &differs));
        MovedStep {
            name: name.clone(),
            state: Some(step.status().as_str()),
            differs,
            index,
            change: judged.as_ref().ok().copied(),
            reason: judged.err(),
        }
    }

    fn removed(&self, index: StepIndex) -> MovedStep {
        let step = self.task.step(index);
        let is_free = has_no_effect(step) && step.signal.is_none();
        let may_go = is_free
            && match &step.state {
                StepState::Skipped { output, .. } => output.is_none(),
                StepState::Waiting | StepState::Pending { .. } | StepState::Error(_) => true,
                _ => false,
            };
        let why = match step.signal.is_some() && step.status() == StepStatus::Waiting {
            true => "its signal has come",
            false => self.state_of(step),
        };
        let reason = format!("{} has no such step, and {why}", self.version());
        MovedStep {
            name: self.task.definition(index).name.clone(),
            state: Some(step.status().as_str()),
            differs: Vec::new(),
            index,
            change: may_go.then_some(StepChange::Removed),
            reason: (!may_go).then_some(reason),
        }
    }

    /// Returns the fields that differ, with `after` if the step does not follow the same steps in both versions.
    fn differs(&self, index: StepIndex, name: &StepName) -> Vec<String> {
        let mut differs = self.before.differs(self.after, name);
        let follows = |definition: &Definition| -> BTreeSet<StepName> {
            let after = definition.step(index).after.iter();
            after
                .map(|step| definition.step(*step).name.clone())
                .collect()
        };
        let rule = |definition: &Definition| {
            let race = definition.step(index).race.as_ref();
            race.map(|race| (race.any, race.rest))
        };
        let before = &self.task.details.definition;
        if follows(before) != follows(&self.to.definition)
            || rule(before) != rule(&self.to.definition)
        {
            differs.insert(0, "after".to_owned());
        }
        differs
    }

    /// Refuses another order of steps where a race has ended some of those that were to come before.
    fn judge_race(&self, index: StepIndex) -> Result<(), String> {
        let before = self.task.definition(index).after.iter();
        let mut lost = before.filter(|step| {
            let status = self.task.step(**step).status();
            matches!(status, StepStatus::Cancelled | StepStatus::Undone)
        });
        match lost.next() {
            Some(lost) => Err(format!(
                "its `after` differs, and {} has lost the race before it",
                self.task.definition(*lost).name
            )),
            None => Ok(()),
        }
    }

    fn judge(
        &self,
        index: StepIndex,
        step: &Step,
        differs: &[String],
    ) -> Result<StepChange, String> {
        let beyond = |allowed: &[&str]| {
            let field = differs
                .iter()
                .find(|field| !allowed.contains(&field.as_str()));
            field.map(|field| format!("its `{field}` differs, and {}", self.state_of(step)))
        };
        let unchanged = match differs.is_empty() {
            true => StepChange::Same,
            false => StepChange::Changed,
        };
        let open = self.not_done_before(index);
        let in_order = |change| match open {
            None => Ok(change),
            Some(before) => Err(format!(
                "in {} it follows {before}, which is not done, and {}",
                self.version(),
                self.state_of(step)
            )),
        };
        match &step.state {
            StepState::Processing { .. } => match beyond(&BESIDE_A_CALL) {
                Some(reason) => Err(reason),
                None => in_order(unchanged),
            },
            StepState::Skipped { .. } if has_no_effect(step) => {
                // A skipped step has not been done: only the decision to skip it must be the same.
                match differs.iter().any(|field| field == "when") {
                    true => Err(format!("its `when` differs, and {}", self.state_of(step))),
                    false => in_order(unchanged),
                }
            }
            StepState::Processed { .. }
            | StepState::Skipped { .. }
            | StepState::Cancelled { .. }
            | StepState::Undone { .. } => match beyond(&AROUND_A_CALL) {
                Some(reason) => Err(reason),
                None => in_order(unchanged),
            },
            StepState::Waiting | StepState::Pending { .. } | StepState::Error(_) => {
                if !has_no_effect(step) {
                    if let Some(reason) = beyond(&AROUND_A_CALL) {
                        return Err(reason);
                    }
                    return match step.status() {
                        StepStatus::Waiting => Ok(unchanged),
                        _ => in_order(unchanged),
                    };
                }
                if step.signal.is_some() && differs.iter().any(|field| field == "signal") {
                    return Err("its signal has come, and its `signal` differs".to_owned());
                }
                Ok(match step.status() {
                    StepStatus::Waiting => unchanged,
                    _ if open.is_some() => StepChange::Reset,
                    // A step in error is called again only after a command of an operator.
                    StepStatus::Error => unchanged,
                    _ if beyond(&BESIDE_A_CALL).is_some() => StepChange::Reset,
                    _ => unchanged,
                })
            }
        }
    }

    /// Returns a step that this one follows in the new version and that is not done.
    fn not_done_before(&self, index: StepIndex) -> Option<&StepName> {
        let after = &self.to.definition.step(index).after;
        let is_done = |before: StepIndex| {
            before.at() < self.task.steps.len()
                && !self.task.is_removed(before)
                && self.task.step(before).is_done()
        };
        let open = after.iter().find(|before| !is_done(**before))?;
        if let Some(race) = &self.to.definition.step(index).race {
            let is_processed = |before: &&StepIndex| {
                is_done(**before) && self.task.step(**before).status() == StepStatus::Processed
            };
            let processed = race.of.iter().filter(is_processed).count();
            if processed >= usize::from(race.any) {
                return None;
            }
        }
        Some(&self.to.definition.step(*open).name)
    }

    fn version(&self) -> String {
        format!("version {}", self.to.workflow.version)
    }

    fn state_of(&self, step: &Step) -> &'static str {
        match step.state {
            StepState::Processing { .. } => "the step is running",
            StepState::Processed { .. } => "the step is processed",
            StepState::Skipped { .. } => "the step was skipped",
            _ if step.previous_output.is_some() => "the step took effect before it was rerun",
            _ if step.effect == Effect::Unknown => "the step may have taken effect",
            _ => "the step has begun",
        }
    }
}

/// Returns whether the step certainly has no lasting effect.
fn has_no_effect(step: &Step) -> bool {
    step.effect == Effect::Known
        && step.previous_output.is_none()
        && !matches!(
            step.state,
            StepState::Processing { .. } | StepState::Processed { .. }
        )
}

/// Returns whether the step was never claimed.
pub(crate) fn is_unclaimed(step: &Step) -> bool {
    step.attempt == Attempt::default()
}

/// The fields of each step of a definition, by the name of the step.
struct StepFields(BTreeMap<String, BTreeMap<String, Value>>);

impl StepFields {
    /// A null means the same as a field that is left out. So do the defaults of `pivot` and `on_undo`.
    fn of(definition: &Definition) -> Self {
        let conditions = definition.listed().map(|index| definition.step(index));
        let conditions = conditions.filter_map(|step| {
            let condition = step.when.as_ref().filter(|_| !step.block.is_empty())?;
            Some((step.name.as_str(), condition.source()))
        });
        let conditions: BTreeMap<_, _> = conditions.collect();
        let steps = definition.sources().into_iter();
        let named = steps.filter_map(|step| {
            let mut fields: BTreeMap<String, Value> =
                serde_json::from_str(step.source.get()).ok()?;
            let name = step.name;
            fields.remove("name");
            // The steps in a block are compared themselves, with the condition of the block in theirs.
            fields.retain(|field, _| !step.is_block || field != "steps" && field != "switch");
            if let Some(condition) = conditions.get(&*name) {
                fields.insert("when".to_owned(), Value::from(*condition));
            }
            // The field is left out, because the steps that it leads to are compared instead.
            fields.remove("after");
            fields.retain(|field, value| match field.as_str() {
                "pivot" => *value == Value::Bool(true),
                "on_undo" => value != "wait",
                _ => !value.is_null(),
            });
            Some((name, fields))
        });
        Self(named.collect())
    }

    fn differs(&self, other: &Self, name: &StepName) -> Vec<String> {
        let none = BTreeMap::new();
        let own = self.0.get(name.as_str()).unwrap_or(&none);
        let others = other.0.get(name.as_str()).unwrap_or(&none);
        let fields: BTreeSet<&String> = own.keys().chain(others.keys()).collect();
        let differ = fields
            .into_iter()
            .filter(|field| own.get(*field) != others.get(*field));
        differ.cloned().collect()
    }
}
