//! The items of a task's groups: each item is a step of its own. The items of a step with `for_each` are added together
//! once its list is known; those of a step with `repeat` one by one, when each begins. Items come after the steps of
//! the definition, in the order in which they were added. All of this follows from the definition and from the record
//! of each group.

use std::{ops::Range, sync::Arc};

use serde_json::value::RawValue;

use crate::{
    definition::{Definition, ItemRef, StepDefinition, for_each::items_of},
    task::positions::Positions,
    template::payload::Payload,
    values::ids::{StepIndex, StepName},
};

/// The definitions of a task's steps, with those of its items.
#[derive(Debug)]
pub struct Expansion {
    steps: Vec<StepDefinition>,
    undos: Vec<StepDefinition>,
    /// The order, as in the definition.
    order: Vec<StepIndex>,
    groups: Vec<ItemGroup>,
}

/// The other fields follow from the task's definition and its groups.
impl PartialEq for Expansion {
    fn eq(&self, other: &Self) -> bool {
        self.groups == other.groups
    }
}

/// A step with `for_each` whose list is known, or one with `repeat` that has begun.
#[derive(Clone, PartialEq, Debug)]
pub struct ItemGroup {
    /// The step of the definition.
    pub step: StepIndex,
    pub known: KnownItems,
    /// The indexes of its items among the steps of the task.
    pub items: Positions,
    /// The indexes of the items' undos among the undos of the task; empty if the items have no undo.
    pub undos: Positions,
}

/// The record of a group, apart from the indexes of its items.
#[derive(Clone, PartialEq, Debug)]
pub enum KnownItems {
    Values(Arc<[Payload]>),
    /// At most `at_most` iterations may begin in total.
    Iterations {
        at_most: u16,
    },
}

impl ItemGroup {
    pub fn new(step: StepIndex, known: KnownItems, items: Positions) -> Self {
        Self {
            step,
            known,
            items,
            undos: Positions::default(),
        }
    }

    /// Returns the value of an item of a list.
    pub fn value(&self, number: u16) -> Option<&Payload> {
        match &self.known {
            KnownItems::Values(values) => values.get(usize::from(number)),
            KnownItems::Iterations { .. } => None,
        }
    }

    /// Returns the highest number of iterations of a step with `repeat`.
    pub fn at_most(&self) -> Option<u16> {
        match self.known {
            KnownItems::Values(_) => None,
            KnownItems::Iterations { at_most } => Some(at_most),
        }
    }

    /// Returns the highest number of items that the group may have.
    pub fn most_items(&self) -> usize {
        self.items.len().max(self.at_most().map_or(0, usize::from))
    }

    /// Returns the record of the group, which is stored as a request body: a step that calls nothing has no other.
    /// `list` is the rendered list of a step with `for_each`.
    pub fn to_record(&self, list: Option<&RawValue>) -> Payload {
        let json = match (list, self.at_most()) {
            (Some(items), _) => serde_json::to_string(&SavedList {
                first: self.items.iter().next().unwrap_or_default(),
                items,
            }),
            (None, at_most) => serde_json::to_string(&SavedIterations {
                iterations: (self.items.ranges().iter())
                    .map(|range| (range.start, range.len()))
                    .collect(),
                at_most: at_most.unwrap_or_default(),
            }),
        };
        Payload::parse(json.unwrap_or_default()).unwrap_or_else(Payload::null)
    }

    /// Reads what [`Self::to_record`] has returned for a step of the definition, which is a group. `None` if it is damaged.
    pub fn from_record(
        step: StepIndex,
        definition: &StepDefinition,
        saved: &Payload,
    ) -> Option<Self> {
        let json = saved.as_json();
        if definition.repeat().is_some() {
            let saved: SavedIterations = serde_json::from_str(json).ok()?;
            let mut items = Positions::default();
            for (first, count) in saved.iterations {
                if !items.push(first..first.checked_add(count)?) {
                    return None;
                }
            }
            let at_most = saved.at_most;
            return Some(Self::new(step, KnownItems::Iterations { at_most }, items));
        }
        let saved: SavedList<'_> = serde_json::from_str(json).ok()?;
        let values = items_of(saved.items)?;
        let items = saved.first..saved.first.checked_add(values.len())?;
        Some(Self::new(step, KnownItems::Values(values), items.into()))
    }
}

/// The list of a group.
#[derive(serde::Serialize, serde::Deserialize)]
struct SavedList<'a> {
    /// The index of the first item.
    first: usize,
    #[serde(borrow)]
    items: &'a RawValue,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct SavedIterations {
    /// The index of the first item of each range, and the number of items in it.
    iterations: Vec<(usize, usize)>,
    at_most: u16,
}

impl Expansion {
    /// Returns `None` if the definition has no such groups, their items do not follow each other without gaps, or the
    /// steps are more than an index can count.
    pub fn of(definition: &Definition, mut groups: Vec<ItemGroup>) -> Option<Self> {
        let own = definition.steps.len();
        let mut parts: Vec<(Range<usize>, usize)> = Vec::new();
        for (at, group) in groups.iter().enumerate() {
            definition.steps.get(group.step.at())?.group_rule()?;
            let ranges = group.items.ranges().iter();
            parts.extend(ranges.map(|range| (range.clone(), at)));
        }
        parts.sort_unstable_by_key(|(range, _)| range.start);
        let mut steps = own;
        for (range, _) in &parts {
            if range.start != steps {
                return None;
            }
            steps = range.end;
        }
        if steps + definition.undos.len() > usize::from(u16::MAX) {
            return None;
        }
        let moved = steps - own;
        // The number of steps is checked above, that of the undos of items below.
        let index = |at: usize| StepIndex(at as u16);
        let mut all: Vec<StepDefinition> = Vec::with_capacity(steps);
        let mut undos = definition.undos.clone();
        all.extend(definition.steps.iter().map(|step| {
            let mut step = step.clone();
            step.undo = step.undo.map(|undo| index(undo.at() + moved));
            step
        }));
        let mut counts = vec![0; groups.len()];
        for (range, of) in parts {
            let group = &mut groups[of];
            let step = &definition.steps[group.step.at()];
            let rule = step.group_rule()?;
            let is_repeated = rule.repeat().is_some();
            if rule.undo.is_some() {
                let end = undos.len() + range.len();
                if steps + end > usize::from(u16::MAX) {
                    return None;
                }
                group.undos.push(undos.len()..end);
            }
            let of_group: Arc<[StepIndex]> = [group.step].into();
            for at in range {
                let number: usize = counts[of];
                counts[of] += 1;
                let item = Some(ItemRef {
                    group: group.step,
                    number: number as u16,
                });
                let name = StepName::new(format!("{}[{number}]", step.name));
                let undo = rule.undo.as_ref().map(|undo| {
                    let name = StepName::new(format!("{name}{}", crate::definition::UNDO));
                    let undo = StepDefinition::of_undo(name, index(at), item, undo.clone());
                    undos.push(undo);
                    index(steps + undos.len() - 1)
                });
                // An iteration comes after the one before it, and so it is undone first.
                let before = number.checked_sub(1).filter(|_| is_repeated);
                let before = before.and_then(|before| group.items.get(before)).map(index);
                let next = group.items.get(number + 1).filter(|_| is_repeated);
                all.push(StepDefinition::of_item(
                    name,
                    before.map_or_else(|| of_group.clone(), |before| [before].into()),
                    match next {
                        Some(next) => [index(next)].into(),
                        None => step.followers.clone(),
                    },
                    undo,
                    item,
                    rule.item.clone(),
                ));
            }
        }
        // An undo looks for the items among the followers of the group.
        for group in &groups {
            let step = &mut all[group.step.at()];
            let items = group.items.iter().map(index);
            step.followers = items.chain(step.followers.iter().copied()).collect();
        }
        let mut order = Vec::with_capacity(steps);
        for step in &definition.order {
            order.push(*step);
            let group = groups.iter().find(|group| group.step == *step);
            let items = group.into_iter().flat_map(|group| group.items.iter());
            order.extend(items.map(index));
        }
        Some(Self {
            steps: all,
            undos,
            order,
            groups,
        })
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

    /// Returns the number of steps, without the undos.
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    pub fn undos(&self) -> usize {
        self.undos.len()
    }

    /// Returns the groups as they are recorded, to be expanded again.
    pub fn recorded(&self) -> Vec<ItemGroup> {
        let groups = self.groups.iter().cloned();
        let recorded = groups.map(|group| ItemGroup::new(group.step, group.known, group.items));
        recorded.collect()
    }

    /// Returns the item, or the undo of an item, with a name such as `import[17]`.
    pub fn find(&self, name: &str) -> Option<StepIndex> {
        let (group, rest) = name.split_once('[')?;
        let (number, undo) = rest.split_once(']')?;
        let number: usize = number.parse().ok()?;
        let group = self.groups.iter().find(|found| {
            let step = &self.steps[found.step.at()];
            step.name.as_str() == group
        })?;
        let step = StepIndex(group.items.get(number)? as u16);
        let found = match undo {
            "" => Some(step),
            _ => self.step(step).undo,
        };
        // A number can be written in other ways, such as with leading zeros.
        found.filter(|found| self.step(*found).name.as_str() == name)
    }

    /// Returns the memory of the definitions of the items and of their values, in bytes.
    pub fn memory(&self) -> usize {
        let lists = self.groups.iter().filter_map(|group| match &group.known {
            KnownItems::Values(values) => Some(&**values),
            KnownItems::Iterations { .. } => None,
        });
        let values = lists.flatten();
        let values = values.map(|value| size_of::<Payload>() + value.as_json().len());
        const NAME: usize = 48;
        let definitions = self.steps.len() + self.undos.len();
        values.sum::<usize>() + definitions * (size_of::<StepDefinition>() + NAME)
    }
}
