//! The items of a task's groups: each of them is a step of its own. Those of a step with `for_each` come to be together, once
//! its list is known; those of a step with `repeat` one after the other, when each begins. They come after the steps of the
//! definition, in the order in which they came to be. All of it follows from the definition and from what is on record of each group.

use std::{ops::Range, sync::Arc};

use serde_json::value::RawValue;

use crate::{
    definition::{Definition, ItemRef, StepDefinition},
    ids::{StepIndex, StepName},
    payload::Payload,
    positions::Positions,
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

/// It follows from the task's definition and the record of its groups.
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
    /// The positions of its items among the steps of the task.
    pub items: Positions,
    /// The positions of what undoes them among the undos of the task; empty where nothing does.
    pub undos: Positions,
}

/// What is on record of a group, apart from where its items are.
#[derive(Clone, PartialEq, Debug)]
pub enum KnownItems {
    Values(Arc<[Payload]>),
    /// So many iterations may begin, with those that have.
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

    /// Of an item of a list.
    pub fn value(&self, number: u16) -> Option<&Payload> {
        match &self.known {
            KnownItems::Values(values) => values.get(usize::from(number)),
            KnownItems::Iterations { .. } => None,
        }
    }

    /// How many iterations may begin, of a step with `repeat`.
    pub fn at_most(&self) -> Option<u16> {
        match self.known {
            KnownItems::Values(_) => None,
            KnownItems::Iterations { at_most } => Some(at_most),
        }
    }

    /// How many items it may come to have.
    pub fn most_items(&self) -> usize {
        self.items.len().max(self.at_most().map_or(0, usize::from))
    }

    /// What is on record, in place of a request body: a step that calls nothing has none. `list`: of a step with `for_each`,
    /// as it was rendered.
    pub fn saved(&self, list: Option<&RawValue>) -> Payload {
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

    /// What [`Self::saved`] has saved of a step of the definition, which is a group. `None`: it is damaged.
    pub fn read(step: StepIndex, definition: &StepDefinition, saved: &Payload) -> Option<Self> {
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
        let values = values(saved.items)?;
        let items = saved.first..saved.first.checked_add(values.len())?;
        Some(Self::new(step, KnownItems::Values(values), items.into()))
    }
}

/// The list of a group.
#[derive(serde::Serialize, serde::Deserialize)]
struct SavedList<'a> {
    /// The position of the first item.
    first: usize,
    #[serde(borrow)]
    items: &'a RawValue,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct SavedIterations {
    /// The position of the first, and how many follow on each other.
    iterations: Vec<(usize, usize)>,
    at_most: u16,
}

/// The items of a JSON array. `None`: it is none.
pub fn values(list: &RawValue) -> Option<Arc<[Payload]>> {
    let items: Vec<&RawValue> = serde_json::from_str(list.get()).ok()?;
    let items = items.into_iter();
    Some(items.map(|item| Payload::new(item.to_owned())).collect())
}

impl Expansion {
    /// `None` where the definition has no such groups, their items do not come one after the other, or they are more than
    /// positions.
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
        // Checked above, and below for what undoes items.
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
                // An iteration comes after the one before, and so it is undone before that.
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
        // An undo looks for the items among what follows the group.
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

    /// How many steps there are, without what undoes them.
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    pub fn undos(&self) -> usize {
        self.undos.len()
    }

    /// Its groups as they are on record, to be expanded again.
    pub fn recorded(&self) -> Vec<ItemGroup> {
        let groups = self.groups.iter().cloned();
        let recorded = groups.map(|group| ItemGroup::new(group.step, group.known, group.items));
        recorded.collect()
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
        let step = StepIndex(group.items.get(number)? as u16);
        let found = match undo {
            "" => Some(step),
            _ => self.step(step).undo,
        };
        // A number can be written in other ways.
        found.filter(|found| self.step(*found).name.as_str() == name)
    }

    /// In bytes: the definitions of the items, and their values.
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
