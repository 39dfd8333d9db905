//! What a dry run knows of steps that are run for each item of a list.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::value::RawValue;

use super::{Warning, WarningCode, reads_only_input, with_scope};
use crate::{
    definition::{Definition, ForEachRule},
    expansion::MOST_ITEMS,
    ids::StepIndex,
    payload::Payload,
    template::Budget,
};

/// The items of a planned step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct PlannedItems {
    /// How many there are; null where the list depends on more than the input.
    pub items: Option<usize>,
    /// The most that run at once.
    pub max_parallel: u16,
}

/// By the index of a step, what is known of its list.
pub(super) struct Groups(Vec<Option<PlannedGroup>>);

struct PlannedGroup {
    items: Option<usize>,
    fault: Option<String>,
    max_parallel: u16,
    reads: Vec<StepIndex>,
    inputs: BTreeSet<String>,
}

impl Groups {
    pub fn of(definition: &Definition, input: Option<&Payload>, budget: &Budget) -> Self {
        let steps = definition.steps.iter();
        let groups = steps.map(|step| {
            let rule = step.for_each()?;
            let reads: Vec<_> = rule.reads().map(|(_, reads)| reads).collect();
            let known = input.filter(|_| reads.iter().all(reads_only_input));
            let count = known.map(|input| count(rule, input, budget));
            let inputs = reads.into_iter();
            let inputs = inputs.flat_map(|reads| reads.unguarded.inputs);
            Some(PlannedGroup {
                items: count
                    .as_ref()
                    .and_then(|count| count.as_ref().ok())
                    .copied(),
                fault: count.and_then(Result::err),
                max_parallel: rule.max_parallel,
                reads: step.reads.clone(),
                inputs: inputs.collect(),
            })
        });
        Self(groups.collect())
    }

    fn all(&self) -> impl Iterator<Item = (usize, &PlannedGroup)> {
        let groups = self.0.iter().enumerate();
        groups.filter_map(|(index, group)| Some((index, group.as_ref()?)))
    }

    pub fn planned(&self, index: usize) -> Option<PlannedItems> {
        let group = self.0[index].as_ref()?;
        Some(PlannedItems {
            items: group.items,
            max_parallel: group.max_parallel,
        })
    }

    /// How many items run one after the other in the worst case, as far as it is known.
    pub fn rounds(&self, index: usize) -> u32 {
        let Some(group) = &self.0[index] else {
            return 1;
        };
        let rounds = group.items.unwrap_or(1).div_ceil(group.max_parallel.into());
        u32::try_from(rounds).unwrap_or(u32::MAX)
    }

    /// The steps that the lists and the conditions of groups read.
    pub fn reads(&self) -> impl Iterator<Item = StepIndex> {
        self.all()
            .flat_map(|(_, group)| group.reads.iter().copied())
    }

    /// The members of the input that the lists need.
    pub fn inputs(&self) -> BTreeSet<String> {
        let inputs = self.all().flat_map(|(_, group)| group.inputs.iter());
        inputs.cloned().collect()
    }

    pub fn check(&self, definition: &Definition, warnings: &mut Vec<Warning>) {
        for (index, group) in self.all() {
            if let Some(message) = &group.fault {
                warnings.push(Warning {
                    code: WarningCode::CannotRender,
                    step: Some(definition.steps[index].name.clone()),
                    pointer: format!("/steps/{index}/for_each"),
                    message: message.clone(),
                });
            }
        }
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
