//! At which index each step of a task stands whose workflow version was changed. An index that a step has had in a task is
//! never another step's: calls in flight, tokens, alerts and rows name steps by their index. So the steps that a task had keep
//! theirs, new ones follow after the last, and one that the new version does not have stays as an empty position.

use std::{collections::HashMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    Accepted, CancelRule, Definition, Limits, OnUndo, OutputTemplate, Policy, ReplyRule,
    StepDefinition, StepRule, StepWork, WaitRule, parse_steps,
};
use crate::{
    ids::{StepIndex, StepName},
    template::{Origin, Template},
    time::Span,
};

/// The most empty positions of a task.
const MOST_EMPTY: usize = 2000;

/// The names of steps by their index, as it is stored with a task.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StepLayout(Arc<[StepName]>);

impl StepLayout {
    /// What a task with the steps of `before` has in the version `after`. `None`: the order of that version itself.
    pub fn over(before: &Definition, after: &Definition) -> Option<Self> {
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

/// How a definition is laid out for a task.
#[derive(Clone, Debug)]
pub struct LaidOut {
    pub layout: StepLayout,
    /// In the order of the version itself.
    listed: Vec<StepIndex>,
    is_removed: Vec<bool>,
}

impl Definition {
    /// The names of the steps by their index, those of empty positions among them.
    pub fn names(&self) -> impl Iterator<Item = &StepName> {
        self.steps.iter().map(|step| &step.name)
    }

    fn has_position(&self, name: &StepName) -> bool {
        self.names().any(|own| own == name)
    }

    /// Whether a step stood there in an earlier version of the task, and none does now.
    pub fn is_removed(&self, index: StepIndex) -> bool {
        let laid_out = self.laid_out.as_ref();
        laid_out.is_some_and(|laid_out| laid_out.is_removed.get(index.at()) == Some(&true))
    }

    /// The steps that are the task itself, in the order of the definition.
    pub fn listed(&self) -> impl Iterator<Item = StepIndex> {
        let listed = self.laid_out.as_ref().map(|laid_out| &laid_out.listed);
        let own = self.forward().filter(move |_| listed.is_none());
        listed.into_iter().flatten().copied().chain(own)
    }

    /// The step of this name.
    pub fn find(&self, name: &str) -> Option<StepIndex> {
        self.listed()
            .find(|index| self.step(*index).name.as_str() == name)
    }

    /// The same definition with its steps where the layout has them. `None` if the layout lacks one of them.
    pub fn laid_out(&self, layout: &StepLayout) -> Option<Self> {
        // It was accepted once.
        let limits = Limits::stored();
        let own = parse_steps(&self.source, "", &self.policies, &limits, &Accepted).ok()?;
        own.lay_out(layout)
    }

    fn lay_out(self, layout: &StepLayout) -> Option<Self> {
        let (before, count) = (self.steps.len(), layout.len());
        // Steps and undos are counted in 16 bits.
        let all = count + self.undos.len();
        if count > before + MOST_EMPTY || all > usize::from(u16::MAX) {
            return None;
        }
        // Fewer than an index can count.
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
            steps[index.at()] = Some(step.moved(moved)?);
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
                .map(|undo| undo.moved(moved))
                .collect::<Option<_>>()?,
            order: self.order.into_iter().map(moved).collect(),
            output: self.output.map(|output| OutputTemplate {
                reads: output.reads.into_iter().map(moved).collect(),
                ..output
            }),
            laid_out: Some(LaidOut {
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
    /// `None`: another definition shares its rule.
    fn moved(mut self, moved: impl Fn(StepIndex) -> StepIndex) -> Option<Self> {
        let all = |indexes: &[StepIndex]| indexes.iter().copied().map(&moved).collect();
        StepRule::move_reads(&mut self.rule, &moved)?;
        Some(Self {
            after: all(&self.after),
            followers: all(&self.followers),
            undo: self.undo.map(&moved),
            undoes: self.undoes.map(&moved),
            ..self
        })
    }

    /// What stands at an empty position: it calls nothing, follows nothing and has no effect.
    fn empty(name: &StepName) -> Option<Self> {
        let at_once = Template::parse("0s", Origin::Stored).ok()?;
        Some(Self {
            name: name.clone(),
            after: Arc::default(),
            followers: Arc::default(),
            when: None,
            undo: None,
            undoes: None,
            item: None,
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
