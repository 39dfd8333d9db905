//! The forecast of steps that are run for each item of a list, or repeated.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{Warning, WarningCode, reads_only_input, with_scope};
use crate::{
    definition::{Definition, ForEachRule, GroupItems, Policy, RepeatRule, for_each::MOST_ITEMS},
    template::{Budget, Reads, payload::Payload},
    values::{ids::StepIndex, time::Span},
    view::words::DurationSchema,
};

/// The items of a planned step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct PlannedItems {
    /// The number of items; null if the list depends on more than the input.
    #[schema(value_type = Option<u32>, required, example = 50)]
    pub items: Option<usize>,
    /// The most that run at once.
    #[schema(example = 10)]
    pub max_parallel: u16,
}

/// The iterations of a step that is repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct PlannedRepeat {
    #[schema(example = 20)]
    pub at_most: u16,
    /// The pause from the end of an iteration to the begin of the next.
    #[schema(value_type = DurationSchema)]
    pub every: Span,
}

/// The known data about the items of each step, by the step's index.
pub(super) struct Groups(Vec<Option<PlannedGroup>>);

struct PlannedGroup {
    kind: PlannedKind,
    reads: Vec<StepIndex>,
    inputs: BTreeSet<String>,
}

enum PlannedKind {
    ForEach {
        items: Option<usize>,
        fault: Option<String>,
        max_parallel: u16,
    },
    Repeat {
        planned: PlannedRepeat,
        undoes_task: bool,
        /// True if the condition reads nothing.
        is_constant: bool,
    },
}

impl Groups {
    pub fn of(definition: &Definition, input: Option<&Payload>, budget: &Budget) -> Self {
        let steps = definition.steps.iter();
        let groups = steps.map(|step| {
            let rule = step.group_rule()?;
            let (kind, reads) = match &rule.items {
                GroupItems::ForEach(rule) => for_each(rule, input, budget),
                GroupItems::Repeat(rule) => (repeat(rule), vec![rule.until.reads().clone()]),
            };
            let inputs = reads.into_iter();
            let inputs = inputs.flat_map(|reads| reads.unguarded.inputs);
            Some(PlannedGroup {
                kind,
                reads: step.reads.clone(),
                inputs: inputs.collect(),
            })
        });
        Self(groups.collect())
    }

    pub fn is_group(&self, index: StepIndex) -> bool {
        matches!(self.0.get(index.at()), Some(Some(_)))
    }

    fn all(&self) -> impl Iterator<Item = (usize, &PlannedGroup)> {
        let groups = self.0.iter().enumerate();
        groups.filter_map(|(index, group)| Some((index, group.as_ref()?)))
    }

    pub fn planned(&self, index: usize) -> Option<PlannedItems> {
        match self.0[index].as_ref()?.kind {
            PlannedKind::ForEach {
                items,
                max_parallel,
                ..
            } => Some(PlannedItems {
                items,
                max_parallel,
            }),
            PlannedKind::Repeat { .. } => None,
        }
    }

    pub fn repeated(&self, index: usize) -> Option<PlannedRepeat> {
        match self.0[index].as_ref()?.kind {
            PlannedKind::ForEach { .. } => None,
            PlannedKind::Repeat { planned, .. } => Some(planned),
        }
    }

    /// Returns whether the task is undone after too many iterations.
    pub fn undoes_task(&self, index: usize) -> bool {
        let kind = self.0[index].as_ref().map(|group| &group.kind);
        matches!(
            kind,
            Some(PlannedKind::Repeat {
                undoes_task: true,
                ..
            })
        )
    }

    /// Returns the worst-case duration of all items, as far as their number is known. `one` is that of one item.
    pub fn worst_case(&self, index: usize, one: Span) -> Span {
        match self.0[index].as_ref().map(|group| &group.kind) {
            None => one,
            Some(PlannedKind::ForEach {
                items,
                max_parallel,
                ..
            }) => {
                let rounds = items.unwrap_or(1).div_ceil((*max_parallel).into());
                one.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX))
            }
            Some(PlannedKind::Repeat { planned, .. }) => {
                let times = u32::from(planned.at_most);
                let waits = planned.every.saturating_mul(times.saturating_sub(1));
                one.saturating_mul(times).saturating_add(waits)
            }
        }
    }

    /// Returns the steps that the lists and the conditions of groups read.
    pub fn reads(&self) -> impl Iterator<Item = StepIndex> {
        self.all()
            .flat_map(|(_, group)| group.reads.iter().copied())
    }

    /// Returns the members of the input that the lists need.
    pub fn inputs(&self) -> BTreeSet<String> {
        let inputs = self.all().flat_map(|(_, group)| group.inputs.iter());
        inputs.cloned().collect()
    }

    pub fn check(&self, definition: &Definition, warnings: &mut Vec<Warning>) {
        for (index, group) in self.all() {
            let (code, field, message) = match &group.kind {
                PlannedKind::ForEach {
                    fault: Some(fault), ..
                } => (WarningCode::CannotRender, "for_each", fault.clone()),
                PlannedKind::Repeat {
                    is_constant: true, ..
                } => (
                    WarningCode::Constant,
                    "repeat/until",
                    "`until` reads nothing, so it is true after the first iteration or never: have it look at `output` or `index`"
                        .to_owned(),
                ),
                PlannedKind::ForEach { .. } | PlannedKind::Repeat { .. } => continue,
            };
            warnings.push(Warning {
                code,
                step: Some(definition.steps[index].name.clone()),
                pointer: definition.steps[index].pointer_of(field),
                message,
            });
        }
        warnings.extend(self.too_many_items(definition));
    }

    /// Returns a warning at the first step for whose items there may be no room if all steps before it run.
    fn too_many_items(&self, definition: &Definition) -> Option<Warning> {
        let mut sum = 0;
        let (index, field, sum) = self.all().find_map(|(index, group)| {
            let (field, most) = match group.kind {
                PlannedKind::ForEach { items, .. } => ("for_each", items.unwrap_or(0)),
                PlannedKind::Repeat { planned, .. } => ("repeat/at_most", planned.at_most.into()),
            };
            sum += most;
            (sum > MOST_ITEMS).then_some((index, field, sum))
        })?;
        Some(Warning {
            code: WarningCode::TooManyItems,
            step: Some(definition.steps[index].name.clone()),
            pointer: definition.steps[index].pointer_of(field),
            message: format!(
                "with those of the steps before it, this step may come to {sum} items and iterations, and a task has at most {MOST_ITEMS}: without room for all of them it ends in error. Lower `at_most`, or give some of the steps tasks of their own"
            ),
        })
    }
}

fn for_each(
    rule: &ForEachRule,
    input: Option<&Payload>,
    budget: &Budget,
) -> (PlannedKind, Vec<Reads>) {
    let reads: Vec<_> = rule.reads().map(|(_, reads)| reads).collect();
    let known = input.filter(|_| reads.iter().all(reads_only_input));
    let count = known.map(|input| count(rule, input, budget)).transpose();
    let kind = PlannedKind::ForEach {
        items: count.as_ref().ok().copied().flatten(),
        fault: count.err(),
        max_parallel: rule.max_parallel,
    };
    (kind, reads)
}

fn repeat(rule: &RepeatRule) -> PlannedKind {
    PlannedKind::Repeat {
        planned: PlannedRepeat {
            at_most: rule.at_most,
            every: rule.every,
        },
        undoes_task: rule.on_exhausted == Policy::Undo,
        is_constant: rule.until.reads().names.is_empty(),
    }
}

fn count(rule: &ForEachRule, input: &Payload, budget: &Budget) -> Result<usize, String> {
    let json = with_scope(input, budget, |scope| rule.list(scope))?;
    let items: Vec<&RawValue> = serde_json::from_str(&json)
        .map_err(|_| "`for_each` must give an array, and does not for this input".to_owned())?;
    match items.len() {
        count if count > MOST_ITEMS => Err(format!(
            "`for_each` gives {count} items for this input: a task has at most {MOST_ITEMS}"
        )),
        count => Ok(count),
    }
}
