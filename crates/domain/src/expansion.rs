//! The items of a task's groups: once the list of a step with `for_each` is known, each of its items is a step of its own.
//! They come after the steps of the definition, in the order in which the lists became known. All of it follows from the
//! definition and the lists, and the lists are on record.

use std::{ops::Range, sync::Arc};

use serde_json::value::RawValue;

use crate::{
    definition::{Definition, ItemRef, StepDefinition},
    ids::{StepIndex, StepName},
    payload::Payload,
};

/// The most items of one task.
pub const MOST_ITEMS: usize = 10_000;

/// The definitions of a task's steps, with those of its items.
#[derive(Debug)]
pub struct Expansion {
    steps: Vec<StepDefinition>,
    undos: Vec<StepDefinition>,
    /// See `order` of the definition.
    order: Vec<StepIndex>,
    groups: Vec<ItemGroup>,
}

/// It follows from the task's definition and the lists of its groups.
impl PartialEq for Expansion {
    fn eq(&self, other: &Self) -> bool {
        let lists = |all: &Self| -> Vec<_> {
            let groups = all.groups.iter();
            groups
                .map(|group| (group.step, group.values.clone()))
                .collect()
        };
        lists(self) == lists(other)
    }
}

/// A step with `for_each` whose list is known.
#[derive(Clone, Debug)]
pub struct ItemGroup {
    /// The step of the definition.
    pub step: StepIndex,
    pub values: Arc<[Payload]>,
    /// The positions of its items among the steps of the task.
    pub items: Range<usize>,
    /// The positions of what undoes them among the undos of the task; empty where nothing does.
    pub undos: Range<usize>,
}

/// The list of a group as it is on record, in place of a request body: a step that calls nothing has none.
#[derive(serde::Serialize, serde::Deserialize)]
struct SavedList<'a> {
    /// The position of the first item.
    first: usize,
    #[serde(borrow)]
    items: &'a RawValue,
}

/// How a list is saved.
pub fn saved_list(first: usize, list: &RawValue) -> Payload {
    let saved = SavedList { first, items: list };
    let json = serde_json::to_string(&saved).unwrap_or_default();
    Payload::parse(json).unwrap_or_else(Payload::null)
}

/// What `saved_list` saved: the position of the first item, and the values.
pub fn read_list(saved: &Payload) -> Option<(usize, Arc<[Payload]>)> {
    let SavedList { first, items } = serde_json::from_str(saved.as_json()).ok()?;
    Some((first, values(items)?))
}

/// The items of a JSON array. `None`: it is none.
pub fn values(list: &RawValue) -> Option<Arc<[Payload]>> {
    let items: Vec<&RawValue> = serde_json::from_str(list.get()).ok()?;
    let items = items.into_iter();
    Some(items.map(|item| Payload::new(item.to_owned())).collect())
}

impl Expansion {
    /// Of the lists of groups, in the order in which they became known. `None` where the definition has no such groups, or
    /// they have more items than positions.
    pub fn of(
        definition: &Definition,
        lists: impl IntoIterator<Item = (StepIndex, Arc<[Payload]>)>,
    ) -> Option<Self> {
        let mut groups = Vec::new();
        let (mut steps, mut undos) = (definition.steps.len(), definition.undos.len());
        for (step, values) in lists {
            let rule = definition.steps.get(step.at())?.for_each()?;
            let undone = match rule.undo {
                Some(_) => values.len(),
                None => 0,
            };
            groups.push(ItemGroup {
                step,
                items: steps..steps + values.len(),
                undos: undos..undos + undone,
                values,
            });
            (steps, undos) = (steps + groups.last()?.items.len(), undos + undone);
        }
        if steps + undos > usize::from(u16::MAX) {
            return None;
        }
        // Checked above.
        let index = |at: usize| StepIndex(at as u16);
        let mut all = Self {
            steps: Vec::with_capacity(steps),
            undos: definition.undos.clone(),
            order: Vec::with_capacity(steps),
            groups,
        };
        let moved = steps - definition.steps.len();
        all.steps.extend(definition.steps.iter().map(|step| {
            let mut step = step.clone();
            step.undo = step.undo.map(|undo| index(undo.at() + moved));
            step
        }));
        for group in &all.groups {
            let of = &definition.steps[group.step.at()];
            let rule = of.for_each()?;
            let after: Arc<[StepIndex]> = [group.step].into();
            for number in 0..group.values.len() {
                let item = Some(ItemRef {
                    group: group.step,
                    number: number as u16,
                });
                let name = StepName::new(format!("{}[{number}]", of.name));
                let at = index(group.items.start + number);
                let undo = rule.undo.as_ref().map(|undo| {
                    let name = StepName::new(format!("{name}{}", crate::definition::UNDO));
                    all.undos
                        .push(StepDefinition::of_undo(name, at, item, undo.clone()));
                    index(steps + group.undos.start + number)
                });
                all.steps.push(StepDefinition::of_item(
                    name,
                    after.clone(),
                    of.followers.clone(),
                    undo,
                    item,
                    rule.item.clone(),
                ));
            }
        }
        // An undo looks for the items among what follows the group.
        for group in &all.groups {
            let step = &mut all.steps[group.step.at()];
            let items = group.items.clone().map(index);
            step.followers = items.chain(step.followers.iter().copied()).collect();
        }
        for step in &definition.order {
            all.order.push(*step);
            let group = all.groups.iter().find(|group| group.step == *step);
            let items = group.map_or(0..0, |group| group.items.clone());
            all.order.extend(items.map(index));
        }
        Some(all)
    }

    pub fn step(&self, index: StepIndex) -> &StepDefinition {
        match index.at().checked_sub(self.steps.len()) {
            None => &self.steps[index.at()],
            Some(at) => &self.undos[at],
        }
    }

    pub fn order(&self) -> &[StepIndex] {
        &self.order
    }

    pub fn groups(&self) -> &[ItemGroup] {
        &self.groups
    }

    pub fn group(&self, step: StepIndex) -> Option<&ItemGroup> {
        self.groups.iter().find(|group| group.step == step)
    }

    /// How many steps there are, without what undoes them.
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    pub fn undos(&self) -> usize {
        self.undos.len()
    }

    /// The item, or what undoes it, of a name such as `import[17]`.
    pub fn find(&self, name: &str) -> Option<StepIndex> {
        let (group, rest) = name.split_once('[')?;
        let (number, undo) = rest.split_once(']')?;
        let number: usize = number.parse().ok()?;
        let group = self.groups.iter().find(|found| {
            let step = &self.steps[found.step.at()];
            step.name.as_str() == group
        })?;
        let step = StepIndex(group.items.clone().nth(number)? as u16);
        let found = match undo {
            "" => Some(step),
            _ => self.step(step).undo,
        };
        // A number can be written in other ways.
        found.filter(|found| self.step(*found).name.as_str() == name)
    }

    /// In bytes: the definitions of the items, and their values.
    pub fn memory(&self) -> usize {
        let values = self.groups.iter().flat_map(|group| &*group.values);
        let values = values.map(|value| size_of::<Payload>() + value.as_json().len());
        const NAME: usize = 48;
        let definitions = self.steps.len() + self.undos.len();
        values.sum::<usize>() + definitions * (size_of::<StepDefinition>() + NAME)
    }
}
