//! The indices of the steps in a task that was moved to another version of its workflow. An index that a step has had
//! in a task is never given to another step: calls in flight, tokens, alerts and rows name steps by their index. So the
//! steps that the task had keep their indices, new ones follow after the last, and the index of a step that the new
//! version does not have stays empty.

use std::{collections::HashMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    Accepted, CancelRule, Definition, Lane, Limits, OnUndo, OutputTemplate, Policy, RaceRule,
    ReplyRule, StepDefinition, StepRule, StepWork, WaitRule, parse_steps,
};
use crate::{
    template::{Origin, Template},
    values::{
        ids::{StepIndex, StepName},
        time::Span,
    },
};

/// The largest number of empty indices in a task.
const MOST_EMPTY: usize = 2000;

/// The names of steps by their index, as it is stored with a task.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StepLayout(Arc<[StepName]>);

impl StepLayout {
    /// Returns the layout of a task that moves from `before` to the version `after`. `None`: the task has the order of
    /// that version itself.
    pub fn for_move(before: &Definition, after: &Definition) -> Option<Self> {
        let mut names: Vec<StepName> = before.names().cloned().collect();
        let added = after.names().filter(|name| !before.has_position(name));
        names.extend(added.cloned());
        let is_own = after.names().eq(names.iter());
        (!is_own).then(|| Self(names.into()))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn as_json(&self) -> String {
        // Strings always serialise.
        serde_json::to_string(&self.0).unwrap_or_default()
    }

    pub fn parse(json: &str) -> Option<Self> {
        serde_json::from_str(json).ok()
    }
}

/// The layout that a definition has in a task.
#[derive(Clone, Debug)]
pub struct AppliedLayout {
    pub layout: StepLayout,
    /// The steps in the order of the version itself.
    listed: Vec<StepIndex>,
    is_removed: Vec<bool>,
}

impl Definition {
    /// Returns the names of the steps by their index, those of empty indices included.
    pub fn names(&self) -> impl Iterator<Item = &StepName> {
        self.steps.iter().map(|step| &step.name)
    }

    fn has_position(&self, name: &StepName) -> bool {
        self.names().any(|own| own == name)
    }

    /// Returns whether the index was that of a step in an earlier version of the task, and is empty now.
    pub fn is_removed(&self, index: StepIndex) -> bool {
        let laid_out = self.laid_out.as_ref();
        laid_out.is_some_and(|laid_out| laid_out.is_removed.get(index.at()) == Some(&true))
    }

    /// Returns the steps of the task without undos and empty indices, in the order of the definition.
    pub fn listed(&self) -> impl Iterator<Item = StepIndex> {
        let listed = self.laid_out.as_ref().map(|laid_out| &laid_out.listed);
        let own = self.forward().filter(move |_| listed.is_none());
        listed.into_iter().flatten().copied().chain(own)
    }

    /// Returns the index of the step with this name.
    pub fn find(&self, name: &str) -> Option<StepIndex> {
        self.listed()
            .find(|index| self.step(*index).name.as_str() == name)
    }

    /// Returns the same definition with its steps at the indices of the layout. `None` if the layout lacks one of them.
    pub fn with_layout(&self, layout: &StepLayout) -> Option<Self> {
        // The definition was accepted once.
        let limits = Limits::stored();
        let own = parse_steps(&self.source, "", &self.policies, &limits, &Accepted).ok()?;
        own.lay_out(layout)
    }

    fn lay_out(self, layout: &StepLayout) -> Option<Self> {
        let (before, count) = (self.steps.len(), layout.len());
        // Indices of steps and undos have 16 bits.
        let all = count + self.undos.len();
        if count > before + MOST_EMPTY || all > usize::from(u16::MAX) {
            return None;
        }
        // The count fits into 16 bits, as checked above.
        let positions = layout.0.iter().zip(0..count as u16);
        let positions: HashMap<&StepName, u16> = positions.collect();
        let listed = self
            .names()
            .map(|name| positions.get(name).copied().map(StepIndex));
        let listed: Vec<StepIndex> = listed.collect::<Option<_>>()?;
        let moved = |index: StepIndex| match index.at().checked_sub(before) {
            None => listed[index.at()],
            Some(undo) => StepIndex((count + undo) as u16),
        };
        let mut steps: Vec<Option<StepDefinition>> = (0..count).map(|_| None).collect();
        for (step, index) in self.steps.into_iter().zip(&listed) {
            steps[index.at()] = Some(step.with_moved_indexes(moved)?);
        }
        let is_removed = steps.iter().map(Option::is_none).collect();
        let names = layout.0.iter();
        let steps = steps.into_iter().zip(names);
        let steps = steps.map(|(step, name)| step.or_else(|| StepDefinition::empty(name)));
        Some(Self {
            steps: steps.collect::<Option<_>>()?,
            undos: self
                .undos
                .into_iter()
                .map(|undo| undo.with_moved_indexes(moved))
                .collect::<Option<_>>()?,
            stops: self.stops.into_iter().map(moved).collect(),
            finally: self.finally.into_iter().map(moved).collect(),
            whiles: self.whiles.into_iter().map(moved).collect(),
            order: self.order.into_iter().map(moved).collect(),
            output: self.output.map(|output| OutputTemplate {
                reads: output.reads.into_iter().map(moved).collect(),
                ..output
            }),
            laid_out: Some(AppliedLayout {
                layout: layout.clone(),
                listed,
                is_removed,
            }),
            policies: self.policies,
            input_schema: self.input_schema,
            source: self.source,
        })
    }
}

impl StepDefinition {
    /// Returns `None` if another definition shares the rule of the step.
    fn with_moved_indexes(mut self, moved: impl Fn(StepIndex) -> StepIndex) -> Option<Self> {
        let all = |indexes: &[StepIndex]| indexes.iter().copied().map(&moved).collect();
        StepRule::move_reads(&mut self.rule, &moved)?;
        if let Some(rule) = &mut self.while_rule {
            let rule = Arc::get_mut(rule)?;
            rule.reads.iter_mut().for_each(|read| *read = moved(*read));
        }
        Some(Self {
            after: all(&self.after),
            followers: all(&self.followers),
            in_block: {
                let mut steps: Vec<_> = self.in_block.iter().copied().map(&moved).collect();
                steps.sort_unstable();
                steps.into()
            },
            undo: self.undo.map(&moved),
            undoes: self.undoes.map(&moved),
            race: self.race.as_ref().map(|race| {
                Arc::new(RaceRule {
                    any: race.any,
                    of: all(&race.of),
                    rest: race.rest,
                })
            }),
            lanes: { self.lanes.iter() }
                .map(|lane| Lane {
                    join: moved(lane.join),
                    competitor: moved(lane.competitor),
                })
                .collect(),
            ..self
        })
    }

    /// Returns the step for an empty index: it calls nothing, follows nothing and has no effect.
    fn empty(name: &StepName) -> Option<Self> {
        let at_once = Template::parse("0s", Origin::Stored).ok()?;
        Some(Self {
            name: name.clone(),
            after: Arc::default(),
            followers: Arc::default(),
            race: None,
            lanes: Arc::default(),
            in_block: Arc::default(),
            when: None,
            while_rule: None,
            pointer: Arc::default(),
            undo: None,
            undoes: None,
            item: None,
            is_finally: false,
            rule: Arc::new(StepRule {
                work: StepWork::Wait(WaitRule::For(at_once)),
                reads: Vec::new(),
                complete_within: Span::default(),
                max_failures: 0,
                on_exhausted: Policy::Error.into(),
                on_permanent: Policy::Error,
                on_undo: OnUndo::Wait,
                pivot: false,
                probe: None,
                reply: ReplyRule::Response,
                cancel: None::<CancelRule>,
                heartbeat_within: None,
                reads_request: false,
                reads_reply: false,
                attempts: None,
                block: Arc::default(),
            }),
        })
    }
}

impl StepRule {
    fn move_reads(rule: &mut Arc<Self>, moved: &impl Fn(StepIndex) -> StepIndex) -> Option<()> {
        let rule = Arc::get_mut(rule)?;
        for read in &mut rule.reads {
            *read = moved(*read);
        }
        if let StepWork::Group(group) = &mut rule.work {
            Self::move_reads(&mut group.item, moved)?;
            if let Some(undo) = &mut group.undo {
                Self::move_reads(undo, moved)?;
            }
        }
        Some(())
    }
}
