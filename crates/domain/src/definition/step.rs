//! One step of a definition: everything that can be checked without the other steps.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::{
    AttemptRules, CancelRule, ChildRule, EarlySignal, Method, OnExhausted, OnUndo, Policies,
    Policy, Probe, ReplyRule, SetRule, StatusPolicy, StepDefinition, StepRule, StepWork, StopState,
    Target, WhileRule,
    attempt_rules::RulesOf,
    block::{BlockDraft, MOST_DEPTH},
    cancel_rule,
    condition::{Condition, ConditionPart, ConditionTest},
    from_input,
    group::{self, GroupDraft, GroupReads},
    known_agents::KnownAgents,
    milestone,
    place::{After, StepPlace},
    policies::{
        COMPLETE_WITHIN_RANGE, DEFAULT_COMPLETE_WITHIN, DEFAULT_MAX_FAILURES,
        on_exhausted_by_status, on_permanent, on_permanent_by_status,
    },
    probe,
    race::{self, Lane, RaceDraft, RaceRest},
    reply_rule::{self, reads_reply},
    request::{self, RequestDraft},
    step_name::{LONGEST_NAME, name_of_step, names_of_steps},
    undo::{self, UndoDraft},
    work,
};
use crate::{
    template::{Expression, Origin, Reads},
    values::{
        fields::{FieldFault, Fields},
        ids::{AgentName, StepIndex, StepName},
        time::Span,
        web_address::{LONGEST_URL, WebAddress},
    },
};

const WHILE_OF_CALLS: &str = "belongs to calls, waits and signals without `for_each`, `repeat` and `pivot`: remove it, or put it on such a step";

/// The fields of a step as they were read. A field with a fault is `None`, and its fault has been reported.
pub(super) struct ParsedStep {
    pub pointer: String,
    /// True for a step that runs when all others have ended.
    pub is_finally: bool,
    pub place: StepPlace,
    pub name: Option<StepName>,
    pub after: After,
    /// The rule of a join that needs fewer than all of the steps in `after`.
    pub race: Option<RaceDraft>,
    /// The names and steps that each expression reads, with the JSON pointer of the expression.
    pub reads: Vec<(String, Reads)>,
    /// The same for the request, whose expressions may also see the address for the reply.
    pub request_reads: Vec<(String, Reads)>,
    /// The same for the probe, whose expressions also see a response.
    pub probe_reads: Vec<(String, Reads)>,
    /// The same for the condition of the signal.
    pub signal_reads: Vec<(String, Reads)>,
    /// The same for the condition and the message of `failed`, which see the output.
    pub failed_reads: Vec<(String, Reads)>,
    /// The same for the list and the condition of a group.
    pub group_reads: Vec<(String, Reads)>,
    /// The same for the condition of `repeat`.
    pub until_reads: Vec<(String, Reads)>,
    /// The same for the output of a block.
    pub block_reads: Vec<(String, Reads)>,
    pub group: Option<GroupDraft>,
    /// True if the step itself sets `on_exhausted`, and `on_permanent`.
    has_own_policy: [bool; 2],
    pub target: Option<Target>,
    /// The work of a step that calls no service. The inner value is `None` if the work has a fault.
    uncalled_work: Option<Option<StepWork>>,
    when: Option<ConditionPart>,
    while_condition: Option<Expression>,
    /// The names that it reads, with its pointer.
    pub while_reads: Vec<(String, Reads)>,
    request: Option<RequestDraft>,
    complete_within: Span,
    max_failures: u32,
    on_exhausted: OnExhausted,
    on_permanent: Policy,
    on_undo: OnUndo,
    pub pivot: bool,
    probe: Option<Probe>,
    pub undo: Option<UndoDraft>,
    reply: ReplyRule,
    heartbeat_within: Option<Span>,
    cancel: Option<CancelRule>,
    attempts: Option<Arc<AttemptRules>>,
}

impl ParsedStep {
    pub fn read(
        value: &RawValue,
        place: StepPlace,
        known: &dyn KnownAgents,
        policies: &Policies,
        origin: Origin<'_>,
        faults: &mut Vec<FieldFault>,
    ) -> Self {
        let mut draft = Self::empty(place, policies);
        match Fields::of(value, &draft.pointer) {
            Ok(fields) => {
                if let Err(found) = draft.read_fields(fields, known, origin) {
                    faults.extend(found);
                }
            }
            Err(found) => faults.extend(found),
        }
        draft.check_attempt_rules(known, faults);
        draft
    }

    /// Makes the step that ends a block.
    pub fn end_of_block(
        block: BlockDraft,
        place: StepPlace,
        known: &dyn KnownAgents,
        faults: &mut Vec<FieldFault>,
    ) -> Self {
        let mut draft = Self {
            name: block.name,
            after: block.after,
            when: block.when,
            reads: block.reads,
            block_reads: block.output_reads,
            uncalled_work: Some(Some(StepWork::Set(SetRule::of_block(block.output)))),
            complete_within: Span::default(),
            max_failures: 0,
            ..Self::empty(place, &block.policies)
        };
        draft.has_own_policy = block.has_own_policy;
        draft.check_attempt_rules(known, faults);
        draft
    }

    fn check_attempt_rules(&self, known: &dyn KnownAgents, faults: &mut Vec<FieldFault>) {
        if self.has_attempt_rules()
            && let Err(why) = known.reads_attempt_rules()
        {
            faults.push(FieldFault::new(&self.pointer, why));
        }
    }

    fn empty(place: StepPlace, policies: &Policies) -> Self {
        Self {
            pointer: place.pointer.clone(),
            is_finally: place.is_finally,
            place,
            name: None,
            after: After::StepAbove,
            race: None,
            reads: Vec::new(),
            request_reads: Vec::new(),
            probe_reads: Vec::new(),
            signal_reads: Vec::new(),
            failed_reads: Vec::new(),
            group_reads: Vec::new(),
            until_reads: Vec::new(),
            block_reads: Vec::new(),
            group: None,
            has_own_policy: [false; 2],
            target: None,
            uncalled_work: None,
            when: None,
            while_condition: None,
            while_reads: Vec::new(),
            request: None,
            complete_within: DEFAULT_COMPLETE_WITHIN,
            max_failures: DEFAULT_MAX_FAILURES,
            on_exhausted: policies
                .on_exhausted
                .clone()
                .unwrap_or(Policy::Error.into()),
            on_permanent: policies.on_permanent.unwrap_or(Policy::Error),
            on_undo: OnUndo::Wait,
            pivot: false,
            probe: None,
            undo: None,
            reply: ReplyRule::Response,
            heartbeat_within: None,
            cancel: None,
            attempts: None,
        }
    }

    fn read_fields(
        &mut self,
        mut fields: Fields<'_>,
        known: &dyn KnownAgents,
        origin: Origin<'_>,
    ) -> Result<(), Vec<FieldFault>> {
        self.name = name_of_step(&mut fields, &self.place.prefix);
        if fields.is_object("after") {
            if let Some((race, of)) = race::read(&mut fields, names_of_steps) {
                self.race = Some(race);
                self.after = After::Named(of);
            }
        } else if let Some(after) = names_of_steps(&mut fields, "after") {
            self.after = After::Named(after);
        }
        for field in ["steps", "switch"] {
            if fields
                .value(field)
                .is_some_and(|value| value.get() != "null")
            {
                fields.fault(field, format!("is a block in {MOST_DEPTH} others, and they lie at most {MOST_DEPTH} deep: register a workflow of its steps, and give it to a `task`"));
            }
        }
        if fields
            .value("output")
            .is_some_and(|value| value.get() != "null")
        {
            fields.fault(
                "output",
                "belongs to a block with `steps` or `switch`: remove it, or name values with a `set`",
            );
        }
        self.when = self.condition(&mut fields, origin);
        self.while_condition = milestone::read(&mut fields, origin, &mut self.while_reads);
        let has_task = fields.peek("task").is_some();
        let group_reads = GroupReads {
            list: &mut self.group_reads,
            until: &mut self.until_reads,
        };
        self.group = group::read(&mut fields, origin, group_reads);
        if self.group.is_some() {
            self.group_reads.append(&mut self.reads);
        }
        let on_item_error = self.group.as_ref().and_then(GroupDraft::on_item_error);
        let work = work::read_uncalled_work(
            &mut fields,
            origin,
            &mut self.reads,
            &mut self.signal_reads,
            known,
            on_item_error.unwrap_or(Policy::Error),
            self.place.nesting,
        );
        if let Some(work) = work {
            if self.group.is_some() && matches!(work, Some(StepWork::Stop(_))) {
                fields.fault(
                    "stop",
                    "ends the task, so it cannot be run several times: remove `for_each` or `repeat`",
                );
            }
            let waits = matches!(work, Some(StepWork::Wait(_) | StepWork::Signal(_)) | None);
            if self.while_condition.is_some() && (!waits || self.group.is_some()) {
                fields.fault("while", WHILE_OF_CALLS);
            }
            self.has_own_policy[1] = fields.peek("on_permanent").is_some();
            if let Some(policy) = on_permanent(&mut fields, Policy::ALL) {
                self.on_permanent = policy;
            }
            (self.complete_within, self.max_failures) = (Span::default(), 0);
            if has_task {
                self.pivot = fields.boolean("pivot").unwrap_or_default();
            }
            self.uncalled_work = Some(work);
            return fields.finish();
        }
        self.target = target(&mut fields, known);
        self.request = request::read(&mut fields, Method::Post, origin, &mut self.request_reads);
        if let (Some(Target::Url { url, .. }), Some(request)) = (&self.target, &self.request)
            && url.contains('?')
            && !request.path.outline("x").is_empty()
        {
            fields.fault(
                "url",
                "has a query, so `request.path` cannot be appended: remove one of them",
            );
        }
        let (within, within_from) = from_input::span(
            &mut fields,
            "complete_within",
            COMPLETE_WITHIN_RANGE,
            origin,
        );
        if let Some(span) = within {
            self.complete_within = span;
        }
        if let Some(failures) = fields.integer("max_failures", 0..=1000) {
            // The value is within 0 to 1000.
            self.max_failures = failures as u32;
        }
        self.has_own_policy =
            ["on_exhausted", "on_permanent"].map(|name| fields.peek(name).is_some());
        let (exhausted, exhausted_by_status) = on_exhausted_by_status(&mut fields, Policy::ALL);
        if let Some(policy) = exhausted {
            self.on_exhausted = policy;
        }
        let (permanent, permanent_by_status) = on_permanent_by_status(&mut fields, Policy::ALL);
        if let Some(policy) = permanent {
            self.on_permanent = policy;
        }
        self.attempts = AttemptRules::read(
            &mut fields,
            RulesOf::Step,
            origin,
            [permanent_by_status, exhausted_by_status],
            within_from,
            &mut self.failed_reads,
        );
        if let Some(on_undo) = fields.choice("on_undo", OnUndo::ALL) {
            self.on_undo = on_undo;
        }
        self.pivot = fields.boolean("pivot").unwrap_or_default();
        self.probe = probe::read(&mut fields, origin, &mut self.probe_reads);
        let later = || known.takes_later_replies();
        self.undo = undo::read(&mut fields, origin, later);
        (self.reply, self.heartbeat_within) =
            reply_rule::read(&mut fields, origin, &mut self.probe_reads, later);
        if self.keeps_response() && !matches!(self.reply, ReplyRule::Response) {
            fields.fault(
                "keep_headers",
                "the reply of this step comes later, and not with the headers of the response: remove it or `reply`",
            );
        }
        self.cancel = cancel_rule::read(&mut fields, &self.reply, origin, &mut self.reads);
        if self.cancel.is_some() && self.on_undo == OnUndo::Wait {
            fields.fault(
                "cancel",
                "is sent when an undo drops the promised reply: set on_undo to \"drop\", or remove it",
            );
        }
        if self.while_condition.is_some() && (self.pivot || self.group.is_some()) {
            fields.fault("while", WHILE_OF_CALLS);
        }
        if self.pivot && self.undo.is_some() {
            fields.fault(
                "undo",
                "never runs, because nothing is undone once the pivot is done: remove `undo` or `pivot`",
            );
        }
        fields.finish()
    }

    fn condition(&mut self, fields: &mut Fields<'_>, origin: Origin<'_>) -> Option<ConditionPart> {
        let source = fields.string("when", usize::MAX)?;
        match Expression::parse(&source, origin) {
            Ok(expression) => {
                self.reads
                    .push((fields.pointer("when"), expression.reads().clone()));
                Some(ConditionPart {
                    test: ConditionTest::Is(Arc::new(expression), true),
                    block: self.place.prefix.clone(),
                })
            }
            Err(message) => {
                fields.fault("when", message);
                None
            }
        }
    }

    /// Returns whether the step has something that instances do not read which know no rules for attempts.
    fn has_attempt_rules(&self) -> bool {
        let of_undo = self.undo.as_ref().and_then(|undo| undo.attempts.as_ref());
        let of_probe = self
            .probe
            .as_ref()
            .and_then(|probe| probe.attempts.as_ref());
        let of_signal = match &self.uncalled_work {
            Some(Some(StepWork::Signal(rule))) => {
                rule.within_from.is_some() || rule.early != EarlySignal::Keep
            }
            _ => false,
        };
        let of_undo_request = self.undo.as_ref().map(|undo| undo.request_reads.as_slice());
        self.attempts.is_some()
            || self.race.is_some()
            || reads_reply(&self.request_reads)
            || reads_reply(of_undo_request.unwrap_or_default())
            || self.is_finally
            || self.while_condition.is_some()
            || !self.place.prefix.is_empty()
            || matches!(
                self.uncalled_work,
                Some(Some(StepWork::Set(_) | StepWork::Stop(_)))
            )
            || matches!(
                &self.uncalled_work,
                Some(Some(StepWork::Task(rule))) if !rule.is_awaited || rule.source.definition().is_some()
            )
            || of_undo.is_some()
            || of_probe.is_some()
            || of_signal
            || self.group.as_ref().is_some_and(GroupDraft::reads_input)
    }

    /// Returns why the step cannot be one that a race may end, if it cannot.
    pub fn is_no_competitor(&self, rest: RaceRest) -> Option<&'static str> {
        if self.pivot {
            return Some(
                "is a pivot, which cannot be cancelled: put it after the join, or set `rest` to \"let\"",
            );
        }
        if rest == RaceRest::Undo && self.group.is_some() {
            return Some(
                "has `for_each` or `repeat`, which a race cannot undo: put the list into a `task` with `steps`, or set `rest` to \"cancel\" or \"let\"",
            );
        }
        None
    }

    /// Returns whether there is something that undoes the step.
    pub fn is_undone(&self) -> bool {
        match &self.uncalled_work {
            Some(Some(StepWork::Task(rule))) => !self.pivot && rule.ends_with_parent(),
            _ => self.undo.is_some(),
        }
    }

    /// Returns the rule of what undoes the step, which has these reads and is in this block. `None`: nothing does, or the
    /// step has faults.
    pub fn undo_rule(self, reads: Vec<StepIndex>, block: Arc<str>) -> Option<StepRule> {
        if let Some(Some(StepWork::Task(rule))) = &self.uncalled_work {
            return Some(undo_of_child(rule));
        }
        Some(self.undo?.finish(self.target.as_ref()?, reads, block))
    }

    /// Returns whether the request, and that of the undo, may read the address for the reply.
    pub fn sees_reply(&self) -> [bool; 2] {
        let undo = self.undo.as_ref().map(|undo| &undo.reply);
        [Some(&self.reply), undo].map(|rule| matches!(rule, Some(ReplyRule::Callback)))
    }

    /// Reports what a step of `finally` cannot have.
    pub fn check_finally(&mut self, faults: &mut Vec<FieldFault>) {
        for (field, why) in self.unfit_for_finally() {
            faults.push(FieldFault::new(format!("{}/{field}", self.pointer), why));
        }
        let why = "the steps of `finally` run when everything that is undone is undone";
        self.undo_nothing(why, faults);
    }

    /// Returns the fields that such a step cannot have, each with the reason.
    fn unfit_for_finally(&self) -> Vec<(&'static str, &'static str)> {
        const NOT_UNDONE: &str =
            "never runs, because the steps of `finally` are not undone: remove it";
        let is_task = matches!(self.uncalled_work, Some(Some(StepWork::Task(_))));
        let is_stop = matches!(self.uncalled_work, Some(Some(StepWork::Stop(_))));
        let (for_each, repeat) = match &self.group {
            Some(GroupDraft::ForEach(_)) => (true, false),
            Some(GroupDraft::Repeat(_)) => (false, true),
            None => (false, false),
        };
        const ONCE: &str = "a step of `finally` runs once: call a service that does all of it";
        const NO_TASK: &str =
            "a step of `finally` has no task of its own: call a service, which may submit one";
        let unfit = [
            ("undo", self.undo.is_some(), NOT_UNDONE),
            ("on_undo", self.on_undo == OnUndo::Drop, NOT_UNDONE),
            (
                "pivot",
                self.pivot,
                "the steps of `finally` keep nothing from being undone: remove it",
            ),
            (
                "after",
                self.race.is_some(),
                "the steps of `finally` have no races: name all the steps that it follows",
            ),
            ("for_each", for_each, ONCE),
            ("repeat", repeat, ONCE),
            (
                "while",
                self.while_condition.is_some(),
                "nothing changes any more when the steps of `finally` run: use `when` instead",
            ),
            ("task", is_task, NO_TASK),
            ("stop", is_stop, "the task is ending already: remove it"),
        ];
        let unfit = unfit.into_iter().filter(|(_, is_there, _)| *is_there);
        unfit.map(|(field, _, why)| (field, why)).collect()
    }

    /// Returns whether the step keeps the status and headers of its response.
    pub fn keeps_response(&self) -> bool {
        let rules = self.attempts.as_ref();
        rules.is_some_and(|rules| rules.keep_headers.is_some())
    }

    /// The name of the step in messages about faults.
    pub fn label(&self) -> &str {
        self.name.as_ref().map_or("?", StepName::as_str)
    }

    /// Returns the step and its undo. `undo_index` is the index that the undo gets among all steps.
    pub fn finish(
        self,
        index: StepIndex,
        undo_index: StepIndex,
        edges: Edges,
    ) -> Option<(StepDefinition, Option<StepDefinition>)> {
        let name = self.name?;
        let mut conditions = self.place.conditions;
        conditions.extend(self.when);
        let block = self.place.block;
        let work = match self.uncalled_work {
            Some(uncalled) => uncalled?,
            None => StepWork::Call {
                target: self.target?,
                request: self.request?.finish(),
            },
        };
        let undo = self
            .undo
            .zip(work.target())
            .map(|(undo, target)| Arc::new(undo.finish(target, edges.undo_reads, block.clone())));
        let undo = match &work {
            StepWork::Task(rule) if !self.pivot && rule.ends_with_parent() => {
                Some(Arc::new(undo_of_child(rule)))
            }
            _ => undo,
        };
        let on_item_error = self.group.as_ref().and_then(GroupDraft::on_item_error);
        let exhausted = self.on_exhausted.then;
        let mut on_exhausted = self.on_exhausted;
        if let Some(policy) = on_item_error {
            on_exhausted.then = policy;
        }
        let mut rule = Arc::new(StepRule {
            work,
            reads: edges.reads,
            complete_within: self.complete_within,
            max_failures: self.max_failures,
            on_exhausted,
            on_permanent: on_item_error.unwrap_or(self.on_permanent),
            on_undo: self.on_undo,
            pivot: self.pivot,
            probe: self.probe,
            reply: self.reply,
            heartbeat_within: self.heartbeat_within,
            cancel: self.cancel,
            reads_request: false,
            reads_reply: reads_reply(&self.request_reads),
            attempts: self.attempts,
            block: block.clone(),
        });
        let mut own_undo = None;
        match self.group {
            Some(group) => {
                let group = group.finish(rule, undo, exhausted)?;
                rule = Arc::new(StepRule {
                    work: StepWork::Group(Box::new(group)),
                    reads: edges.group_reads,
                    complete_within: Span::default(),
                    max_failures: 0,
                    on_exhausted: Policy::Error.into(),
                    on_permanent: self.on_permanent,
                    on_undo: OnUndo::Wait,
                    pivot: self.pivot,
                    probe: None,
                    reply: ReplyRule::Response,
                    heartbeat_within: None,
                    cancel: None,
                    reads_request: false,
                    reads_reply: false,
                    attempts: None,
                    block,
                });
            }
            None => own_undo = undo,
        }
        let undo = own_undo.map(|rule| {
            StepDefinition::of_undo(StepName::new(format!("{name}{UNDO}")), index, None, rule)
        });
        let after: Arc<[StepIndex]> = edges.after.into();
        let step = StepDefinition {
            name,
            race: self.race.map(|race| Arc::new(race.finish(after.clone()))),
            lanes: edges.lanes,
            in_block: edges.in_block.into(),
            after,
            followers: edges.followers.into(),
            when: Condition::of(conditions).map(Arc::new),
            while_rule: self.while_condition.map(|condition| {
                Arc::new(WhileRule {
                    condition,
                    reads: edges.while_reads,
                })
            }),
            pointer: self.place.in_list,
            undo: undo.is_some().then_some(undo_index),
            undoes: None,
            item: None,
            is_finally: self.is_finally,
            rule,
        };
        Some((step, undo))
    }

    /// Applies the rule that nothing after a pivot is undone.
    pub fn follow_pivot(&mut self, pivot: &str, faults: &mut Vec<FieldFault>) {
        let why = format!(
            "the step comes after the pivot `{pivot}`, and nothing after a pivot is undone"
        );
        self.undo_nothing(&why, faults);
    }

    /// Applies the rule that the failure of the step has nothing undone. If the policy of the whole task is `undo`, this
    /// step gets `error` instead; if the step itself says `undo`, that is reported as a fault. `why` is the reason in words.
    pub fn undo_nothing(&mut self, why: &str, faults: &mut Vec<FieldFault>) {
        let exhausted = self.on_exhausted.then == Policy::Undo;
        let permanent = self.on_permanent == Policy::Undo;
        let [own_exhausted, own_permanent] = self.has_own_policy;
        for (field, mistaken) in [
            ("on_exhausted", exhausted && own_exhausted),
            ("on_permanent", permanent && own_permanent),
        ] {
            if mistaken {
                faults.push(FieldFault::new(
                    format!("{}/{field}", self.pointer),
                    format!("{why}: use \"error\" or \"skip\""),
                ));
            }
        }
        if let Some(Some(StepWork::Stop(rule))) = &self.uncalled_work
            && rule.state == StopState::Undone
        {
            faults.push(FieldFault::new(
                format!("{}/stop/state", self.pointer),
                format!("{why}: use \"error\" or \"processed\""),
            ));
        }
        if let Some(Some(StepWork::Signal(rule))) = &self.uncalled_work
            && rule.on_timeout == Policy::Undo
        {
            faults.push(FieldFault::new(
                format!("{}/signal/on_timeout", self.pointer),
                format!("{why}: use \"error\" or \"skip\""),
            ));
        }
        if let Some(group) = &self.group
            && let (field, Some(Policy::Undo)) = group.own_policy()
        {
            faults.push(FieldFault::new(
                format!("{}/{field}", self.pointer),
                format!("{why}: use \"error\" or \"skip\""),
            ));
        }
        if let Some(rules) = &self.attempts {
            let by_status = [
                ("on_exhausted", &rules.on_exhausted),
                ("on_permanent", &rules.on_permanent),
            ];
            let undo = StatusPolicy::Policy(Policy::Undo);
            for (field, policies) in by_status {
                if policies.as_ref().is_some_and(|policies| policies.has(undo)) {
                    faults.push(FieldFault::new(
                        format!("{}/{field}", self.pointer),
                        format!("{why}: use \"error\" or \"skip\""),
                    ));
                }
            }
        }
        if exhausted {
            self.on_exhausted.then = Policy::Error;
        }
        if permanent {
            self.on_permanent = Policy::Error;
        }
    }
}

/// Returns the undo of a step with a child. A task that is done can be undone, so the step needs no `undo` field for
/// it.
fn undo_of_child(rule: &Arc<ChildRule>) -> StepRule {
    StepRule {
        work: StepWork::Task(rule.clone()),
        reads: Vec::new(),
        reads_request: false,
        reads_reply: false,
        attempts: None,
        block: Arc::default(),
        complete_within: Span::default(),
        max_failures: 0,
        on_exhausted: Policy::Error.into(),
        on_permanent: Policy::Error,
        on_undo: OnUndo::Wait,
        pivot: false,
        probe: None,
        reply: ReplyRule::Response,
        heartbeat_within: None,
        cancel: None,
    }
}

/// The relations of a step to other steps, by index.
pub(super) struct Edges {
    pub after: Vec<StepIndex>,
    pub followers: Vec<StepIndex>,
    /// The lanes of races that the step belongs to.
    pub lanes: Arc<[Lane]>,
    /// The steps in the block that the step ends.
    pub in_block: Vec<StepIndex>,
    /// The steps that its expressions read.
    pub reads: Vec<StepIndex>,
    pub undo_reads: Vec<StepIndex>,
    /// The steps that its `while` reads.
    pub while_reads: Vec<StepIndex>,
    /// The steps that the list and the condition of a group read.
    pub group_reads: Vec<StepIndex>,
}

/// The suffix of an undo's name, after the step's name. No step can have such a name.
pub(crate) const UNDO: &str = ".undo";

fn target(fields: &mut Fields<'_>, known: &dyn KnownAgents) -> Option<Target> {
    let (has_agent, has_url) = (fields.has("agent"), fields.has("url"));
    if has_agent && has_url {
        fields.fault("url", "give either `agent` or `url`, not both");
    } else if !has_agent && !has_url {
        fields.missing(
            "agent",
            "name a registered agent, or give a `url`, a `wait`, a `signal`, a `task`, a `set` or a `stop`, or a block with `steps` or `switch`",
        );
    }
    if fields.is_object("agent") {
        fields.value("agent");
        fields.fault(
            "agent",
            "must be the name of an agent, or { \"one_of\": [\"eu\", \"us\"], \"by\": \"{{ input.region }}\" }",
        );
        return None;
    }
    let agent = fields.string("agent", usize::MAX);
    let url = fields.string("url", LONGEST_URL);
    let agent = agent.and_then(|name| match agent_named(&name, known) {
        Ok(agent) => Some(agent),
        Err(message) => {
            fields.fault("agent", message);
            None
        }
    });
    let url = url.and_then(|url| match url_target(&url, known) {
        Ok(target) => Some(target),
        Err(message) => {
            fields.fault("url", message);
            None
        }
    });
    agent.or(url)
}

fn agent_named(name: &str, known: &dyn KnownAgents) -> Result<Target, String> {
    // A step that names a URL has the origin of the URL as its agent. If the field `agent` could name an origin, the
    // step would bypass the policy for URLs.
    if name.is_empty() || name.len() > LONGEST_NAME || name.contains([':', '/', '{']) {
        return Err(format!(
            "{name:?} is not a valid agent name; to call a URL, set `url`"
        ));
    }
    let agent = AgentName::new(name);
    if known.knows(&agent) {
        Ok(Target::Agent(agent))
    } else {
        let meant = match known.nearest(&agent) {
            Some(meant) => format!("; did you mean `{meant}`? Or"),
            None => ":".to_owned(),
        };
        Err(format!(
            "no agent `{name}` is registered{meant} register it with PUT /v1/agents/{name} or in the configuration file"
        ))
    }
}

fn url_target(url: &str, known: &dyn KnownAgents) -> Result<Target, String> {
    if url.contains(['{', '}']) {
        return Err("cannot contain expressions: put them into `request.path`".to_owned());
    }
    let address = WebAddress::parse(url)?;
    known.allows_url(url)?;
    Ok(Target::Url {
        url: address.url,
        origin: AgentName::new(address.origin),
    })
}
