//! A definition: the business logic of a task, apart from the scheduler that runs it.

mod ask_rule;
mod cancel_rule;
mod child_rule;
mod for_each;
mod graph;
mod group;
mod layout;
mod output;
mod parse;
mod policies;
mod poll_rule;
mod probe;
mod repeat;
mod reply_rule;
pub(crate) mod request;
mod step;
mod undo;
mod work;

#[cfg(test)]
mod tests;

use std::{ops::Deref, sync::Arc};

use crate::{
    fields::FieldFault,
    ids::{AgentName, StepIndex, StepName},
    payload::Payload,
    payload_schema::PayloadSchema,
    template::{Expression, JsonTemplate, Template},
    time::{Span, Timestamp},
};
pub use ask_rule::{AskField, AskFieldKind, AskRule, LinkReceivers, REPLY_TO};
pub use cancel_rule::CancelRule;
pub use child_rule::{ChildFields, ChildRule, OnChildError};
pub use for_each::ForEachRule;
pub use group::{GroupItems, GroupRule};
pub use layout::{LaidOut, StepLayout};
pub use output::OutputTemplate;
pub use parse::*;
pub use policies::*;
pub use poll_rule::{PollFinding, PollRule};
pub use probe::*;
pub use repeat::{RepeatOutput, RepeatRule};
pub(crate) use step::UNDO;
use work::LiteralUntil;
pub use work::{SignalRule, StepKind, StepWork, WaitRule};

/// A checked, compiled definition. It can only be made by [`parse_steps`], so every index in it is
/// in range, its graph has no cycle, and every template in it compiles.
#[derive(Debug)]
pub struct Definition {
    pub steps: Vec<StepDefinition>,
    /// The undo steps of the steps that can be undone: each is a step like any other. Their indices follow the last
    /// of `steps`.
    pub undos: Vec<StepDefinition>,
    /// The steps in an order in which each comes after those that it follows.
    pub order: Vec<StepIndex>,
    /// What was said for the task as a whole.
    pub policies: Policies,
    /// What the input of tasks must match.
    pub input_schema: Option<PayloadSchema>,
    /// What a task gives once it is processed.
    pub output: Option<OutputTemplate>,
    /// The JSON array that this was made from, as it was submitted.
    pub source: Payload,
    /// If it is that of tasks which have had another version before.
    pub laid_out: Option<LaidOut>,
}

impl Definition {
    pub fn step(&self, index: StepIndex) -> &StepDefinition {
        match index.at().checked_sub(self.steps.len()) {
            None => &self.steps[index.at()],
            Some(at) => &self.undos[at],
        }
    }

    /// The steps that are the task itself, without those that undo them.
    pub fn forward(&self) -> impl DoubleEndedIterator<Item = StepIndex> + use<> {
        // There are at most as many steps as an index can count.
        (0..self.steps.len() as u16).map(StepIndex)
    }

    /// Whether everything that was asked of `known` when it was compiled is still so.
    pub fn is_still_allowed(&self, known: &dyn KnownAgents) -> bool {
        self.steps.iter().all(|step| {
            let step = step.run();
            let can_be_called = match step.target() {
                Some(Target::Agent(agent)) => known.knows(agent),
                Some(Target::Url { url, .. } | Target::Operation { url, .. }) => {
                    known.allows_url(url).is_ok()
                }
                None => true,
            };
            can_be_called
                && (step.reply.mode() != ReplyMode::Callback || known.takes_later_replies().is_ok())
                && (step.work.ask().is_none() || known.reaches_people().is_ok())
        })
    }

    /// Whether it names a time itself: then [`Definition::time_faults`] has something to check.
    pub fn names_times(&self) -> bool {
        self.literal_untils().next().is_some()
    }

    /// The faults of the times that it names, seen from now. A definition that was accepted is not checked again: these times
    /// only come nearer.
    pub fn time_faults(&self, pointer: &str, now: Timestamp) -> Vec<FieldFault> {
        let faults = self.literal_untils().filter_map(|(at, until)| {
            let message = until.check(now).err()?;
            let pointer = format!("{pointer}/{at}/wait/until");
            Some(FieldFault::new(pointer, message))
        });
        faults.collect()
    }

    fn literal_untils(&self) -> impl Iterator<Item = (usize, LiteralUntil)> {
        let steps = self.steps.iter().enumerate();
        steps.filter_map(|(at, step)| match &step.run().work {
            StepWork::Wait(rule) => Some((at, rule.literal_until()?)),
            StepWork::Call { .. }
            | StepWork::Signal(_)
            | StepWork::Task(_)
            | StepWork::Group(_) => None,
        })
    }

    /// With each group as if it were a step for one of its items: for what is said before any list is known. Its task
    /// would have no output. `None`: it has no groups.
    pub fn with_one_item_each(&self) -> Option<Self> {
        if self.steps.iter().all(|step| step.group_rule().is_none()) {
            return None;
        }
        let mut steps = self.steps.clone();
        let mut undos = Vec::with_capacity(self.undos.len());
        for (at, step) in steps.iter_mut().enumerate() {
            // There are at most as many steps as an index can count.
            let index = |at: usize| StepIndex(at as u16);
            let (rule, undo) = match self.steps[at].group_rule() {
                Some(group) => (group.item.clone(), group.undo.clone()),
                None => {
                    let undo = step.undo.map(|undo| self.step(undo).rule.clone());
                    (step.rule.clone(), undo)
                }
            };
            step.rule = rule;
            step.undo = undo.map(|rule| {
                let name = StepName::new(format!("{}{UNDO}", step.name));
                undos.push(StepDefinition::of_undo(name, index(at), None, rule));
                index(self.steps.len() + undos.len() - 1)
            });
        }
        Some(Self {
            steps,
            undos,
            order: self.order.clone(),
            policies: self.policies.clone(),
            input_schema: None,
            output: None,
            source: self.source.clone(),
            laid_out: self.laid_out.clone(),
        })
    }

    /// The steps that undo others.
    pub fn undos(&self) -> impl DoubleEndedIterator<Item = StepIndex> + use<> {
        let first = self.steps.len() as u16;
        (first..first + self.undos.len() as u16).map(StepIndex)
    }
}

/// A step: its name and its place among the others, and its rule.
#[derive(Clone, Debug)]
pub struct StepDefinition {
    pub name: StepName,
    /// The steps that must be done before this one starts.
    pub after: Arc<[StepIndex]>,
    /// The steps that name this one in `after`: the same edges, read forward.
    pub followers: Arc<[StepIndex]>,
    /// False when it is this step's turn: the step is skipped.
    pub when: Option<Arc<Expression>>,
    /// The step that undoes this one.
    pub undo: Option<StepIndex>,
    /// The step that this one undoes.
    pub undoes: Option<StepIndex>,
    /// The group and the item that it is for. Of a step of a task only: a definition has the group.
    pub item: Option<ItemRef>,
    rule: Arc<StepRule>,
}

/// One item of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ItemRef {
    /// The step with `for_each` or `repeat`.
    pub group: StepIndex,
    /// Its place in the list, or among the iterations, from 0.
    pub number: u16,
}

/// What is said of a step, apart from its name and its place. The items of a group share it.
#[derive(Debug)]
pub struct StepRule {
    /// What it does.
    pub work: StepWork,
    /// The steps whose output the request or the condition reads: all of them come before this one.
    pub reads: Vec<StepIndex>,
    pub complete_within: Span,
    pub max_failures: u32,
    pub on_exhausted: OnExhausted,
    pub on_permanent: Policy,
    /// What happens to a running call when the task is to be undone.
    pub on_undo: OnUndo,
    /// The point of no return: once it is done the task is only driven forward.
    pub pivot: bool,
    /// Asked whether an attempt of unknown outcome took effect.
    pub probe: Option<Probe>,
    /// When the service replies.
    pub reply: ReplyRule,
    /// What is asked of the service if an undo drops its promised reply.
    pub cancel: Option<CancelRule>,
    /// Silence of a service that replies later is a failure after so long.
    pub heartbeat_within: Option<Span>,
    /// Whether an expression looks at the recorded request of the step that this one undoes.
    pub reads_request: bool,
}

impl Deref for StepDefinition {
    type Target = StepRule;

    fn deref(&self) -> &StepRule {
        &self.rule
    }
}

impl StepDefinition {
    /// An item of a group.
    pub(crate) fn of_item(
        name: StepName,
        after: Arc<[StepIndex]>,
        followers: Arc<[StepIndex]>,
        undo: Option<StepIndex>,
        item: Option<ItemRef>,
        rule: Arc<StepRule>,
    ) -> Self {
        Self {
            name,
            after,
            followers,
            when: None,
            undo,
            undoes: None,
            item,
            rule,
        }
    }

    /// What undoes an item.
    pub(crate) fn of_undo(
        name: StepName,
        undoes: StepIndex,
        item: Option<ItemRef>,
        rule: Arc<StepRule>,
    ) -> Self {
        Self {
            name,
            after: Arc::default(),
            followers: Arc::default(),
            when: None,
            undo: None,
            undoes: Some(undoes),
            item,
            rule,
        }
    }

    /// Whether an undo of the task drops this step's call, instead of waiting for it.
    pub fn is_dropped_by_undo(&self) -> bool {
        self.undoes.is_none() && self.on_undo == OnUndo::Drop
    }

    /// Of a group.
    pub fn group_rule(&self) -> Option<&GroupRule> {
        match &self.work {
            StepWork::Group(rule) => Some(rule),
            StepWork::Call { .. } | StepWork::Wait(_) | StepWork::Signal(_) | StepWork::Task(_) => {
                None
            }
        }
    }

    /// Of a group of iterations.
    pub fn repeat(&self) -> Option<&RepeatRule> {
        self.group_rule()?.repeat()
    }

    /// What is run of it: of a group the rule of its items, else its own.
    pub fn run(&self) -> &StepRule {
        self.group_rule().map_or(&self.rule, |group| &group.item)
    }
}

impl StepRule {
    /// Whether a service is called.
    pub fn is_call(&self) -> bool {
        matches!(self.work, StepWork::Call { .. })
    }

    /// What the task is made from that the step has, or that it undoes.
    pub fn child_rule(&self) -> Option<&ChildRule> {
        match &self.work {
            StepWork::Task(rule) => Some(rule),
            StepWork::Call { .. }
            | StepWork::Wait(_)
            | StepWork::Signal(_)
            | StepWork::Group(_) => None,
        }
    }

    pub fn has_child(&self) -> bool {
        self.child_rule().is_some()
    }

    /// What is called.
    pub fn target(&self) -> Option<&Target> {
        self.work.target()
    }

    /// Of the call.
    pub fn request(&self) -> Option<&RequestTemplate> {
        match &self.work {
            StepWork::Call { request, .. } => Some(request),
            StepWork::Wait(_) | StepWork::Signal(_) | StepWork::Task(_) | StepWork::Group(_) => {
                None
            }
        }
    }

    /// Of the request.
    pub fn method(&self) -> Option<Method> {
        self.request().map(|request| request.method)
    }

    /// Whose capacity and queue this step uses, if it is a call.
    pub fn agent(&self) -> Option<&AgentName> {
        self.target().map(Target::agent)
    }
}

impl Target {
    /// The agent, or the origin of the address in its place.
    pub fn agent(&self) -> &AgentName {
        match self {
            Target::Agent(name) | Target::Operation { agent: name, .. } => name,
            Target::Url { origin, .. } => origin,
        }
    }
}

/// What a 202 means.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum ReplyMode {
    /// A response like any other, unless it has `Provost-Async: true`: then the service replies later.
    #[default]
    Response,
    /// The service replies later.
    Callback,
    /// The service is polled for its reply.
    Poll,
}

/// How a service replies, with all that the step says of it.
#[derive(Debug, Default)]
pub enum ReplyRule {
    #[default]
    Response,
    Callback,
    Poll(Box<PollRule>),
}

impl ReplyRule {
    pub fn mode(&self) -> ReplyMode {
        match self {
            ReplyRule::Response => ReplyMode::Response,
            ReplyRule::Callback => ReplyMode::Callback,
            ReplyRule::Poll(_) => ReplyMode::Poll,
        }
    }
}

impl ReplyMode {
    /// Those that a step can name by a word.
    pub const WORDS: &[Self] = &[Self::Response, Self::Callback];

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

#[derive(Clone, PartialEq, Debug)]
pub enum Target {
    Agent(AgentName),
    Url {
        url: Arc<str>,
        origin: AgentName,
    },
    /// What the service of a registered agent has begun, at the address that it named. Of calls only.
    Operation {
        url: Arc<str>,
        origin: AgentName,
        agent: AgentName,
    },
}

#[derive(Debug)]
pub struct RequestTemplate {
    pub method: Method,
    /// Appended to the agent's endpoint, or to the step's `url`. Starts with `/`, or is empty.
    pub path: Template,
    /// Lower-case names.
    pub headers: Vec<(String, Template)>,
    pub body: Body,
}

#[derive(Debug)]
pub enum Body {
    None,
    /// The default of POST, PUT and PATCH.
    Input,
    Json(JsonTemplate),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "UPPERCASE", const_into_str)]
pub enum Method {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

impl Method {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    pub fn sends_body(self) -> bool {
        matches!(self, Method::Post | Method::Put | Method::Patch)
    }
}
