//! A definition: the business logic of a task, apart from the scheduler that runs it.

pub(crate) mod payload_schema;

mod ask_rule;
pub(crate) mod ask_text;
mod attempt_rules;
mod block;
mod block_output;
mod cancel_rule;
mod child_rule;
mod condition;
mod finally;
pub(crate) mod for_each;
mod from_input;
mod graph;
mod group;
mod inline;
mod json_template;
pub(crate) mod key_limit;
mod known_agents;
mod lanes;
mod layout;
mod milestone;
mod names;
mod output;
mod parse;
mod place;
mod policies;
mod poll_rule;
mod probe;
mod race;
mod repeat;
mod reply_rule;
pub(crate) mod request;
mod set;
mod status_policies;
mod step;
mod step_name;
mod undo;
mod work;
pub(crate) mod workflow_limits;

#[cfg(test)]
mod tests;

pub use ask_text::{AskText, MOST_ASKED};
pub use payload_schema::{LONGEST_SCHEMA, PayloadSchema, SchemaOwner};

use std::{ops::Deref, sync::Arc};

use crate::{
    template::{JsonTemplate, Template, payload::Payload},
    values::{
        fields::FieldFault,
        ids::{AgentName, StepIndex, StepName},
        time::{Span, Timestamp},
    },
};
pub use ask_rule::{AskField, AskFieldKind, AskRule, LinkReceivers, REPLY_TO};
pub use attempt_rules::{AttemptRules, RetriedFault, RetryRule, RetryWaits, output_of_error};
pub use cancel_rule::CancelRule;
pub use child_rule::{ChildFields, ChildRule, ChildSource, OnChildError, OnParentUndo};
pub use condition::Condition;
pub use for_each::{Enough, ForEachRule, MOST_ITEMS};
pub use from_input::FromInput;
pub use group::{GroupItems, GroupRule};
pub(crate) use inline::MOST_TASK_DEPTH;
pub use key_limit::KeyLimit;
pub use known_agents::{Accepted, KnownAgents};
pub use layout::{AppliedLayout, StepLayout};
pub use milestone::WhileRule;
pub(crate) use names::{around, whole_name};
pub use output::OutputTemplate;
pub use parse::*;
pub use policies::*;
pub use poll_rule::{PollFinding, PollRule};
pub use probe::*;
pub use race::{Lane, RaceRest, RaceRule};
pub use repeat::{RepeatOutput, RepeatRule};
pub use set::{SetRule, StopRule, StopState};
pub use status_policies::{StatusPattern, StatusPolicies, StatusPolicy};
pub(crate) use step::UNDO;
use work::LiteralUntil;
pub use work::{EarlySignal, SignalRule, StepKind, StepWork, WaitRule};
pub use workflow_limits::{MOST_RUNNING, OnConflict, StepLimit, TaskLimit};

/// A checked, compiled definition. It can only be made by [`parse_steps`], so every index in it is
/// in range, its graph has no cycle, and every template in it compiles.
#[derive(Debug)]
pub struct Definition {
    pub steps: Vec<StepDefinition>,
    /// The undo steps of the steps that can be undone: each is a step like any other. Their indices follow the last
    /// of `steps`.
    pub undos: Vec<StepDefinition>,
    /// The steps that end the task as processed.
    pub stops: Vec<StepIndex>,
    /// The steps that run when all others have ended.
    pub finally: Vec<StepIndex>,
    /// The steps that run only as long as a condition is true.
    pub whiles: Vec<StepIndex>,
    /// The steps in an order in which each comes after the steps that it follows.
    pub order: Vec<StepIndex>,
    /// The policies that apply to the task as a whole.
    pub policies: Policies,
    /// The schema that the inputs of tasks must match.
    pub input_schema: Option<PayloadSchema>,
    /// The template of the output that a task has once it is processed.
    pub output: Option<OutputTemplate>,
    /// The JSON array that this was made from, as it was submitted.
    pub source: Payload,
    /// Present if a task that uses this definition has used another version before.
    pub laid_out: Option<AppliedLayout>,
}

impl Definition {
    pub fn step(&self, index: StepIndex) -> &StepDefinition {
        match index.at().checked_sub(self.steps.len()) {
            None => &self.steps[index.at()],
            Some(at) => &self.undos[at],
        }
    }

    /// Returns the steps of the task itself, without their undos.
    pub fn forward(&self) -> impl DoubleEndedIterator<Item = StepIndex> + use<> {
        // There are at most as many steps as an index can count.
        (0..self.steps.len() as u16).map(StepIndex)
    }

    /// Returns whether `known` still allows all agents, URLs and forms of reply that it allowed when this was compiled.
    pub fn is_still_allowed(&self, known: &dyn KnownAgents) -> bool {
        self.steps.iter().all(|step| {
            let step = step.rule_to_run();
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
                && (step.definition_inside()).is_none_or(|inside| inside.is_still_allowed(known))
        })
    }

    /// Returns whether a step names a time itself. Only then [`Definition::time_faults`] has something to check.
    pub fn names_times(&self) -> bool {
        let mut inside = self
            .steps
            .iter()
            .filter_map(|step| step.rule_to_run().definition_inside());
        self.literal_untils().next().is_some() || inside.any(|inside| inside.names_times())
    }

    /// Returns the faults of the times that steps name, as of `now`. A definition that was accepted is not checked
    /// again: these times only come nearer.
    pub fn time_faults(&self, now: Timestamp) -> Vec<FieldFault> {
        let own = self.literal_untils().filter_map(|(step, until)| {
            let message = until.check(now).err()?;
            Some(FieldFault::new(step.pointer_of("wait/until"), message))
        });
        let inside = self.steps.iter().flat_map(|step| {
            let inside = step.rule_to_run().definition_inside();
            let faults = inside.map(|inside| inside.time_faults(now));
            let around = step.pointer_of("task");
            faults.unwrap_or_default().into_iter().map(move |fault| {
                FieldFault::new(format!("{around}{}", fault.pointer), fault.message)
            })
        });
        own.chain(inside).collect()
    }

    fn literal_untils(&self) -> impl Iterator<Item = (&StepDefinition, LiteralUntil)> {
        let steps = self.steps.iter();
        steps.filter_map(|step| match &step.rule_to_run().work {
            StepWork::Wait(rule) => Some((step, rule.literal_until()?)),
            StepWork::Call { .. }
            | StepWork::Signal(_)
            | StepWork::Task(_)
            | StepWork::Set(_)
            | StepWork::Stop(_)
            | StepWork::Group(_) => None,
        })
    }

    /// Returns a copy in which each group is replaced by a step for one of its items. Reports that are made before any
    /// list is known use it. A task of this copy would have no output. Returns `None` if the definition has no groups.
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
            stops: self.stops.clone(),
            finally: self.finally.clone(),
            whiles: self.whiles.clone(),
            order: self.order.clone(),
            policies: self.policies.clone(),
            input_schema: None,
            output: None,
            source: self.source.clone(),
            laid_out: self.laid_out.clone(),
        })
    }

    /// Returns whether a task that is processed may have an output.
    pub fn has_output(&self) -> bool {
        let gives_one = |stop: &StepIndex| match &self.step(*stop).work {
            StepWork::Stop(rule) => rule.has_output(),
            _ => false,
        };
        self.output.is_some() || self.stops.iter().any(gives_one)
    }

    /// Returns the steps that must end before a step begins: those that it names, and for the first of those that run when
    /// all others have ended the last of the others.
    pub fn follows(&self, index: StepIndex) -> Vec<StepIndex> {
        let step = self.step(index);
        if !step.is_finally || !step.after.is_empty() {
            return step.after.to_vec();
        }
        let others = self.listed().filter(|other| {
            let other = self.step(*other);
            !other.is_finally && other.followers.is_empty()
        });
        others.collect()
    }

    /// Returns the undos of the steps.
    pub fn undos(&self) -> impl DoubleEndedIterator<Item = StepIndex> + use<> {
        let first = self.steps.len() as u16;
        (first..first + self.undos.len() as u16).map(StepIndex)
    }
}

/// A step: its name, its edges to the other steps, and its rule.
#[derive(Clone, Debug)]
pub struct StepDefinition {
    pub name: StepName,
    /// The steps that must be done before this one starts.
    pub after: Arc<[StepIndex]>,
    /// The steps that name this one in `after`: the same edges, read forward.
    pub followers: Arc<[StepIndex]>,
    /// The rule of a join that needs fewer than all of the steps in `after`.
    pub race: Option<Arc<RaceRule>>,
    /// The lanes of races that the step belongs to: it is not needed any more once one of these is lost.
    pub lanes: Arc<[Lane]>,
    /// The steps in the block that this step ends, those of the blocks in it included, without the ends of blocks. In order
    /// of their indices; empty for other steps.
    pub in_block: Arc<[StepIndex]>,
    /// The step is skipped if this condition is false when all steps in `after` are done.
    pub when: Option<Arc<Condition>>,
    /// The step is skipped as soon as this condition is false, also while it runs.
    pub while_rule: Option<Arc<WhileRule>>,
    /// The JSON pointer of the step in the list that has it.
    pub pointer: Arc<str>,
    /// The undo of this step.
    pub undo: Option<StepIndex>,
    /// The step that this step undoes, if it is an undo.
    pub undoes: Option<StepIndex>,
    /// The group and the item that the step is for. Only steps of a task have it: a definition has the group instead.
    pub item: Option<ItemRef>,
    /// True for a step that runs when all others have ended, however the task ends.
    pub is_finally: bool,
    rule: Arc<StepRule>,
}

/// One item of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ItemRef {
    /// The step with `for_each` or `repeat`.
    pub group: StepIndex,
    /// The index of the item in the list, or of the iteration, from 0.
    pub number: u16,
}

/// The rule of a step: all of its definition but its name and its edges. The items of a group share one rule.
#[derive(Debug)]
pub struct StepRule {
    /// The work that the step does.
    pub work: StepWork,
    /// The steps whose output the request or the condition reads: all of them come before this one.
    pub reads: Vec<StepIndex>,
    pub complete_within: Span,
    pub max_failures: u32,
    pub on_exhausted: OnExhausted,
    pub on_permanent: Policy,
    /// Decides about a running call when the task is to be undone.
    pub on_undo: OnUndo,
    /// True for a point of no return: once the step is done, the task can only be completed.
    pub pivot: bool,
    /// Finds out whether an attempt of unknown effect took effect.
    pub probe: Option<Probe>,
    /// Says when and how the service replies.
    pub reply: ReplyRule,
    /// The request that is sent to the service if an undo drops its promised reply.
    pub cancel: Option<CancelRule>,
    /// A service that replies later fails the attempt if it sends no heartbeat for this time.
    pub heartbeat_within: Option<Span>,
    /// True if an expression reads the recorded request of the step that this step undoes.
    pub reads_request: bool,
    /// True if an expression of the request reads the address for the reply.
    pub reads_reply: bool,
    /// The rules for its attempts, if it has any of those that most steps do without.
    pub attempts: Option<Arc<AttemptRules>>,
    /// The block in which its expressions look up the names of steps: the names of the blocks that it is in, each with a
    /// dot behind it.
    pub block: Arc<str>,
}

impl Deref for StepDefinition {
    type Target = StepRule;

    fn deref(&self) -> &StepRule {
        &self.rule
    }
}

impl StepDefinition {
    /// Makes the step for an item of a group.
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
            race: None,
            lanes: Arc::default(),
            in_block: Arc::default(),
            when: None,
            while_rule: None,
            pointer: Arc::default(),
            undo,
            undoes: None,
            item,
            is_finally: false,
            rule,
        }
    }

    /// Makes the undo of a step or of an item.
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
            race: None,
            lanes: Arc::default(),
            in_block: Arc::default(),
            when: None,
            while_rule: None,
            pointer: Arc::default(),
            undo: None,
            undoes: Some(undoes),
            item,
            is_finally: false,
            rule,
        }
    }

    /// Returns the JSON pointer of a field of the step in the body of a submission; without a field that of the step.
    pub fn pointer_of(&self, field: &str) -> String {
        let list = match self.is_finally {
            true => "/finally",
            false => "/steps",
        };
        let slash = if field.is_empty() { "" } else { "/" };
        format!("{list}{}{slash}{field}", self.pointer)
    }

    /// Returns whether an undo of the task drops this step's call instead of waiting for its end.
    pub fn is_dropped_by_undo(&self) -> bool {
        self.undoes.is_none() && !self.is_finally && self.on_undo == OnUndo::Drop
    }

    /// Returns the rule of a group, `None` if the step is not a group.
    pub fn group_rule(&self) -> Option<&GroupRule> {
        match &self.work {
            StepWork::Group(rule) => Some(rule),
            StepWork::Call { .. }
            | StepWork::Wait(_)
            | StepWork::Signal(_)
            | StepWork::Set(_)
            | StepWork::Stop(_)
            | StepWork::Task(_) => None,
        }
    }

    /// Returns whether the task ends as processed once the step is done.
    pub fn stops_as_processed(&self) -> bool {
        matches!(&self.work, StepWork::Stop(rule) if rule.state == StopState::Processed)
    }

    /// Returns the rule of a group of iterations, `None` for every other step.
    pub fn repeat(&self) -> Option<&RepeatRule> {
        self.group_rule()?.repeat()
    }

    /// Returns the rule that is run: for a group that of its items, for any other step its own.
    pub fn rule_to_run(&self) -> &StepRule {
        self.group_rule().map_or(&self.rule, |group| &group.item)
    }
}

impl StepRule {
    /// Returns the policy for a permanent error with this status.
    pub fn policy_for_permanent(&self, status: Option<u16>) -> StatusPolicy {
        let rules = self.attempts.as_ref();
        let by_status = rules.and_then(|rules| rules.on_permanent.as_ref()?.of(status));
        by_status.unwrap_or(StatusPolicy::Policy(self.on_permanent))
    }

    /// Returns the policy for a step that is not tried again, after a last fault with this status.
    pub fn policy_for_exhausted(&self, status: Option<u16>) -> StatusPolicy {
        let rules = self.attempts.as_ref();
        let by_status = rules.and_then(|rules| rules.on_exhausted.as_ref()?.of(status));
        by_status.unwrap_or(StatusPolicy::Policy(self.on_exhausted.then))
    }

    /// Returns whether the step calls a service.
    pub fn is_call(&self) -> bool {
        matches!(self.work, StepWork::Call { .. })
    }

    /// Returns the rule by which the step's child is made, or that of the step that this step undoes.
    pub fn child_rule(&self) -> Option<&ChildRule> {
        match &self.work {
            StepWork::Task(rule) => Some(rule),
            StepWork::Call { .. }
            | StepWork::Wait(_)
            | StepWork::Signal(_)
            | StepWork::Set(_)
            | StepWork::Stop(_)
            | StepWork::Group(_) => None,
        }
    }

    /// Returns the definition of a child whose steps stand in the step.
    fn definition_inside(&self) -> Option<&Definition> {
        self.child_rule()?.source.definition().map(Arc::as_ref)
    }

    pub fn has_child(&self) -> bool {
        self.child_rule().is_some()
    }

    /// Returns the agent or the address that the step calls.
    pub fn target(&self) -> Option<&Target> {
        self.work.target()
    }

    /// Returns the template of the call's request.
    pub fn request(&self) -> Option<&RequestTemplate> {
        match &self.work {
            StepWork::Call { request, .. } => Some(request),
            StepWork::Wait(_)
            | StepWork::Signal(_)
            | StepWork::Task(_)
            | StepWork::Set(_)
            | StepWork::Stop(_)
            | StepWork::Group(_) => None,
        }
    }

    /// Returns the method of the call's request.
    pub fn method(&self) -> Option<Method> {
        self.request().map(|request| request.method)
    }

    /// Returns the agent whose capacity and queue the step uses, if the step is a call.
    pub fn agent(&self) -> Option<&AgentName> {
        self.target().map(Target::agent)
    }
}

impl Target {
    /// Returns the agent's name. A step that calls an address has the origin of the address instead of an agent.
    pub fn agent(&self) -> &AgentName {
        match self {
            Target::Agent(name) | Target::Operation { agent: name, .. } => name,
            Target::Url { origin, .. } => origin,
        }
    }
}

/// The meaning of a 202 response.
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

/// The way in which a service replies, with all settings of the step for it.
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
    /// The modes that a step can name by a word.
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
    /// An operation that the service of a registered agent has begun, at the address that the service has named. Only
    /// calls have this target, no step of a definition.
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
    /// The names are in lower case.
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
