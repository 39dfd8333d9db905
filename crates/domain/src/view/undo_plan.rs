//! The plan of an undo, before it is requested: the calls in their order, the probes that decide about calls, and the
//! steps that are passed over. The module decides nothing itself: the undo is started on a copy of the task, by the
//! rules, and its calls are rendered as the claims would render them.

use std::{cell::Cell, collections::BTreeMap};

use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    definition::{Method, OnUndo, Target},
    task::{
        aggregate::Task,
        call::{Call, CallBody, Purpose},
        command::{Command, Release},
        decide::{Draft, Secrets, call},
        history::Actor,
        step::{StepState, StepStatus},
    },
    template::{Budget, payload::Payload},
    values::{
        fault::Effect,
        hidden::{hide_secrets, without_query},
        ids::{AgentName, StepIndex, StepName, TaskId},
        time::{Span, Timestamp},
    },
    view::words::DurationSchema,
};

/// The plan of an undo.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
#[schema(as = UndoPlanContent)]
pub struct UndoPlan {
    /// True if an undo would start if it were requested now.
    pub possible: bool,
    /// True if the undo has started: the plan contains what remains to be done.
    pub under_way: bool,
    /// The reason if it is not possible: the task has ended, is past its pivot, or is being undone already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Calls in flight, and what happens to them.
    pub running: Vec<RunningCall>,
    /// The calls of the undo, in a possible order.
    pub calls: Vec<PlannedUndo>,
    pub passed_over: Vec<PassedOver>,
    /// For steps with `for_each` or `repeat`: the numbers of items beyond the fifty of each kind that the plan names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub more_items: Vec<MoreItems>,
}

/// Items of a list, or iterations, that the plan does not name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct MoreItems {
    /// The step with `for_each` or `repeat`.
    #[schema(value_type = String, example = "import")]
    pub step: StepName,
    /// The number of further items that have a call in flight.
    #[schema(value_type = u32, example = 0)]
    pub running: usize,
    /// The number of further items that a call undoes.
    #[schema(value_type = u32, example = 950)]
    pub calls: usize,
    /// The number of further items that are passed over.
    #[schema(value_type = u32, example = 0)]
    pub passed_over: usize,
}

/// A call in flight, and what happens to it.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct RunningCall {
    #[schema(value_type = String, example = "ship")]
    pub step: StepName,
    pub complete_by: Timestamp,
    /// `wait`: the undo waits for it until its complete-by; `drop`: the call is dropped at once.
    pub on_undo: OnUndo,
}

/// One call of the undo.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct PlannedUndo {
    #[schema(value_type = String, example = "charge.undo")]
    pub step: StepName,
    #[schema(value_type = String, example = "charge")]
    pub undoes: StepName,
    /// The state of the step's undo; `waiting` before the undo has started.
    #[schema(value_type = StepStatus)]
    pub state: &'static str,
    /// Counted from 1: the calls of a stage can run in parallel once the earlier stages have ended.
    #[schema(value_type = u32, example = 1)]
    pub stage: usize,
    /// The undos and calls in flight that must end before this call: the undos of the steps that followed, and their
    /// calls.
    #[schema(value_type = Vec<String>, example = json!(["ship.undo"]))]
    pub after: Vec<StepName>,
    /// `processed`: the step is done; `unknown`: it may have taken effect; `running`: its call is in flight, and its
    /// result decides.
    pub because: UndoReason,
    #[schema(value_type = DurationSchema)]
    pub complete_within: Span,
    /// The request that is made first, to find out whether there is anything to undo.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<PlannedProbe>,
    #[serde(flatten)]
    pub call: PlannedCall,
}

/// The reason why there is something to undo.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Serialize,
    strum::IntoStaticStr,
    strum::VariantArray,
    ToSchema,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
#[schema(as = UndoBecause)]
pub enum UndoReason {
    /// The step is done.
    Processed,
    /// It may have taken effect; Provost does not know.
    Unknown,
    /// Its call is in flight, and its result decides.
    Running,
}

impl UndoReason {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// The request that finds out whether there is anything to undo.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct PlannedProbe {
    /// True if the probe is made only when the call in flight ends without a response.
    pub only_if_unknown: bool,
    #[serde(flatten)]
    pub call: RenderedCall,
}

/// A request, or the reason why it cannot be shown.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RenderedCall {
    /// The call, if it can be rendered.
    Request(Box<PlannedRequest>),
    /// The reason why the call cannot be rendered.
    CannotRender(CannotRender),
}

/// The call of an undo, or the undo of a child.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlannedCall {
    /// The call, if it can be rendered.
    Request(Box<PlannedRequest>),
    /// The reason why the call cannot be rendered.
    CannotRender(CannotRender),
    /// No call is made: the task of the step is undone.
    Task(PlannedTask),
}

impl From<RenderedCall> for PlannedCall {
    fn from(call: RenderedCall) -> Self {
        match call {
            RenderedCall::Request(request) => Self::Request(request),
            RenderedCall::CannotRender(reason) => Self::CannotRender(reason),
        }
    }
}

/// A task that is undone with its parent.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct PlannedTask {
    /// The last task of the step; null if none was made.
    #[schema(required)]
    pub id: Option<uuid::Uuid>,
    /// The reason if the task can no longer be undone: the undo of the step would be in error. It is not part of the
    /// ETag, and only given for the first 100 tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(
        example = "step ship is a pivot and is processed: the task can only be completed, not undone"
    )]
    pub cannot_be_undone: Option<String>,
}

/// The reason why a call cannot be shown.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct CannotRender {
    /// `call_ended`: the undo uses the output of a call in flight; `probe_answered`: the probe will return it; `never`:
    /// the undo would fail and need an operator.
    pub until: AvailableAfter,
    #[schema(example = "`output.id` cannot be rendered: there is no `output` here")]
    pub message: String,
}

/// The event after which a call can be shown.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Serialize,
    strum::IntoStaticStr,
    strum::VariantArray,
    ToSchema,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
#[schema(as = RenderableAfter)]
pub enum AvailableAfter {
    /// The step's call has ended: the undo reads its output.
    CallEnded,
    /// The probe has responded: it returns the output.
    ProbeAnswered,
    /// No event makes it possible: the undo would fail and need an operator.
    Never,
}

impl AvailableAfter {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// A call as it would be made.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct PlannedRequest {
    /// The agent, or the origin of the step's URL.
    #[schema(value_type = String, example = "payments")]
    pub agent: AgentName,
    /// The step's URL, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "http://127.0.0.1:9000")]
    pub url: Option<String>,
    #[schema(value_type = Method)]
    pub method: &'static str,
    /// The path, appended to the agent's endpoint or the URL.
    #[schema(example = "/charges/ch_1")]
    pub path: String,
    /// The headers in the definition. `***` replaces a value whose name suggests a secret.
    #[schema(example = json!({}))]
    pub headers: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Payload)]
    pub body: Option<Payload>,
    /// The length of a body that is too long to show (more than 64 KiB).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>)]
    pub body_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "019c7a5e-0000-7000-8000-000000000000:charge.undo")]
    pub idempotency_key: Option<String>,
    /// Sent as Provost-Undoes: the Idempotency-Key of the step that is undone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "019c7a5e-0000-7000-8000-000000000000:charge")]
    pub undoes_key: Option<String>,
    /// Sent as Provost-Probes: the Idempotency-Key of the step that is probed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probes_key: Option<String>,
}

/// A step that the undo makes no call for.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct PassedOver {
    #[schema(value_type = String, example = "notify")]
    pub step: StepName,
    /// `never_began`; `took_no_effect` (the service refused it permanently, or the probe found so); `skipped`;
    /// `no_undo` (its effect remains); `undo_skipped` (its effect remains); or `undone` already.
    pub why: NotUndoneReason,
    #[schema(example = "it has no `undo`: its effect remains")]
    pub message: String,
}

/// The reason why the undo makes no call for a step.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Serialize,
    strum::IntoStaticStr,
    strum::VariantArray,
    ToSchema,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
#[schema(as = PassedOverBecause)]
pub enum NotUndoneReason {
    NeverBegan,
    /// It was attempted and did not take effect: its service refused it permanently, or its probe found no effect.
    TookNoEffect,
    Skipped,
    /// It took effect, or may have, and has no undo: its effect remains.
    NoUndo,
    /// Its undo was skipped: its effect remains.
    UndoSkipped,
    /// It is undone already.
    Undone,
}

impl NotUndoneReason {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// The longest body that is shown, in bytes: a plan of many steps must not grow without bound.
const LONGEST_BODY: usize = 64 * 1024;

/// The budget for rendering all calls of a plan: one evaluation for each undo and each probe.
const WHOLE_PLAN: u64 = 4 * Budget::EVALUATION;

/// The most items of a group that are named. The others are counted.
const MOST_NAMED: usize = 50;

/// The longest total of all calls that a plan shows, in bytes.
const LONGEST_PLAN: usize = 8 << 20;

impl UndoPlan {
    /// Returns the tasks that would be undone with this one. The caller calls [`Self::check_child`] with the record
    /// of each.
    pub fn children(&self) -> impl Iterator<Item = TaskId> {
        let calls = self.calls.iter();
        calls.filter_map(|planned| match &planned.call {
            PlannedCall::Task(task) => task.id.map(TaskId),
            PlannedCall::Request(_) | PlannedCall::CannotRender(_) => None,
        })
    }

    /// Records that a child cannot be undone, if that is so.
    pub fn check_child(&mut self, child: &Task, now: Timestamp) {
        let mut draft = Draft::on(child.clone());
        let undo = Command::Undo { reason: None };
        let undone = draft.apply(undo, &Actor::submitter(), now);
        let Err(refusal) = undone.map_err(|refusal| refusal.prevents_undo().then_some(refusal))
        else {
            return;
        };
        for planned in &mut self.calls {
            if let PlannedCall::Task(task) = &mut planned.call
                && task.id == Some(child.id().0)
            {
                task.cannot_be_undone = refusal.as_ref().map(ToString::to_string);
            }
        }
    }
}

/// Returns the plan of the task's undo. Its ETag is the version of the task that it was made from: everything in the
/// plan follows from that record, except what the records of its children add.
pub fn undo_plan(task: &Task, now: Timestamp) -> UndoPlan {
    let mut plan = UndoPlan {
        possible: false,
        under_way: task.undo.is_some() && !task.is_cancelled() && !task.is_ended(),
        reason: None,
        running: Vec::new(),
        calls: Vec::new(),
        passed_over: Vec::new(),
        more_items: Vec::new(),
    };
    let mut draft = Draft::on(task.clone());
    // The requester makes no difference to the plan.
    let by = Actor::submitter();
    match draft.apply(Command::Undo { reason: None }, &by, now) {
        Ok(_) => plan.possible = true,
        Err(refusal) => {
            plan.reason = Some(refusal.to_string());
            if !plan.under_way {
                return plan;
            }
        }
    }
    for index in draft.task.indexes() {
        if draft.task.is_to_be_dropped(index) {
            let attempt = draft.task.step(index).attempt;
            let why = Release::Dropped;
            let step = index;
            // The instance that holds the step confirms the drop. The plan shows what follows after that.
            let _ = draft.apply(Command::Release { step, attempt, why }, &by, now);
        }
    }
    let begun = Planner {
        before: task,
        task: &draft.task,
        settled: with_known_effects(&draft.task),
        doubted: with_unknown_effects(&draft.task),
        now,
        budget: Budget::of_several(WHOLE_PLAN),
        room: Cell::new(LONGEST_PLAN),
    };
    begun.fill(&mut plan);
    plan
}

/// Returns the task with every unknown effect set to known: it renders the undos whose probe found something to undo.
fn with_known_effects(task: &Task) -> Task {
    let mut settled = task.clone();
    for index in settled.indexes() {
        settled.step_mut(index).set_effect(Effect::Known);
    }
    settled
}

/// Returns the task with the effect of every step unknown: it renders the probes that run first.
fn with_unknown_effects(task: &Task) -> Task {
    let mut doubted = task.clone();
    for index in doubted.forward() {
        doubted.step_mut(index).set_effect(Effect::Unknown);
    }
    doubted
}

struct Planner<'t> {
    /// The task as it is now.
    before: &'t Task,
    /// The task after its undo has started.
    task: &'t Task,
    settled: Task,
    doubted: Task,
    now: Timestamp,
    /// The budget from which all calls of the plan are rendered.
    budget: Budget,
    /// The bytes that remain of [`LONGEST_PLAN`].
    room: Cell<usize>,
}

impl Planner<'_> {
    fn fill(&self, plan: &mut UndoPlan) {
        // The number of stages that must be over before the undo of a step, by the step's index.
        let mut stages = vec![0; self.task.steps.len()];
        let mut named = NamedItems::default();
        for index in self.task.order().iter().rev().copied() {
            if self.task.definition(index).group_rule().is_some() {
                // The entries of its items describe the group completely.
                let items = self.task.group(index).map(|group| group.items.clone());
                let items = items.unwrap_or_default();
                let last = items.iter().filter_map(|at| stages.get(at)).max();
                let followers = self.task.definition(index).followers.iter();
                let before = followers.map(|follower| stages[follower.at()]).max();
                stages[index.at()] = last.copied().max(before).unwrap_or_default();
                continue;
            }
            let followers = &self.task.definition(index).followers;
            let before = followers.iter().map(|follower| stages[follower.at()]).max();
            let stage = before.unwrap_or_default();
            stages[index.at()] = stage;
            let undo = self.task.definition(index).undo;
            match undo.filter(|undo| self.will_run(*undo, index)) {
                Some(undo) => {
                    stages[index.at()] += 1;
                    if named.count_item(self.task, index, |more| &mut more.calls) {
                        plan.calls.push(self.planned(undo, index, stage + 1));
                    }
                }
                // It undoes another step, and has no effect of its own.
                None if self.task.is_revert(index) || self.task.is_finally(index) => {}
                None => {
                    if named.count_item(self.task, index, |more| &mut more.passed_over) {
                        plan.passed_over.push(self.passed_over(index));
                    }
                }
            }
        }
        plan.calls.sort_by_key(|planned| planned.stage);
        for running in self.task.forward() {
            if let Some(call) = self.running(running)
                && named.count_item(self.task, running, |more| &mut more.running)
            {
                plan.running.push(call);
            }
        }
        plan.more_items = named.more(self.task);
    }

    fn name(&self, index: StepIndex) -> StepName {
        self.task.definition(index).name.clone()
    }

    fn running(&self, index: StepIndex) -> Option<RunningCall> {
        match self.before.step(index).state {
            StepState::Processing { complete_by, .. } if self.task.definition(index).is_call() => {
                Some(RunningCall {
                    step: self.name(index),
                    complete_by,
                    on_undo: self.task.definition(index).on_undo,
                })
            }
            _ => None,
        }
    }

    fn has_effect(&self, index: StepIndex) -> bool {
        let definition = self.task.definition(index);
        definition.is_call() || definition.has_child()
    }

    fn is_running(&self, index: StepIndex) -> bool {
        self.task.step(index).status() == StepStatus::Processing
    }

    fn will_run(&self, undo: StepIndex, undone: StepIndex) -> bool {
        let step = self.task.step(undone);
        !self.task.step(undo).is_done() && (self.is_running(undone) || step.may_have_taken_effect())
    }

    fn planned(&self, undo: StepIndex, undone: StepIndex, stage: usize) -> PlannedUndo {
        let because = if self.is_running(undone) {
            UndoReason::Running
        } else if self.task.step(undone).effect == Effect::Known {
            UndoReason::Processed
        } else {
            UndoReason::Unknown
        };
        let mut after = self.task.undone_before(undone).named;
        after.truncate(MOST_NAMED);
        let has_probe = self.task.definition(undone).probe.is_some();
        let until = match (because, has_probe) {
            (UndoReason::Running, _) => AvailableAfter::CallEnded,
            (UndoReason::Unknown, true) => AvailableAfter::ProbeAnswered,
            _ => AvailableAfter::Never,
        };
        PlannedUndo {
            step: self.name(undo),
            undoes: self.name(undone),
            state: self.task.step(undo).status().as_str(),
            stage,
            after: after.into_iter().map(|index| self.name(index)).collect(),
            because,
            complete_within: self.task.definition(undo).complete_within,
            probe: (has_probe && because != UndoReason::Processed).then(|| PlannedProbe {
                only_if_unknown: because == UndoReason::Running,
                call: self.rendered(&self.doubted, undo, AvailableAfter::Never),
            }),
            call: self.planned_call(undo, until),
        }
    }

    fn planned_call(&self, undo: StepIndex, until: AvailableAfter) -> PlannedCall {
        let task = &self.settled;
        if !task.definition(undo).has_child() {
            return self.rendered(task, undo, until).into();
        }
        let child = task.step(task.subject(undo)).child.as_ref();
        PlannedCall::Task(PlannedTask {
            id: child.map(|child| child.id.0),
            cannot_be_undone: None,
        })
    }

    /// A step with a child has no probe, so that only calls are rendered.
    fn rendered(&self, task: &Task, index: StepIndex, until: AvailableAfter) -> RenderedCall {
        self.budget.next();
        let message = match call(
            task,
            index,
            self.now,
            self.now,
            &self.budget,
            Secrets::Hidden,
        ) {
            Ok(call) => {
                let request = PlannedRequest::of(call);
                match self.room.get().checked_sub(request.length()) {
                    Some(room) => {
                        self.room.set(room);
                        return RenderedCall::Request(Box::new(request));
                    }
                    None => format!("it is not shown: a plan has room for {LONGEST_PLAN} bytes"),
                }
            }
            Err(error) => error.to_string(),
        };
        RenderedCall::CannotRender(CannotRender { until, message })
    }

    fn passed_over(&self, index: StepIndex) -> PassedOver {
        let (before, step) = (self.before.step(index), self.task.step(index));
        let may_have = self.is_running(index) || step.may_have_taken_effect();
        let undo = self.task.definition(index).undo;
        let (why, message) = if !self.has_effect(index) {
            let message = "it calls no service: there is nothing to undo";
            (NotUndoneReason::TookNoEffect, message)
        } else if step.status() == StepStatus::Undone {
            (NotUndoneReason::Undone, "it is undone already")
        } else if may_have && undo.is_some() {
            let message = "its undo was skipped: its effect remains";
            (NotUndoneReason::UndoSkipped, message)
        } else if may_have && self.task.definition(index).has_child() {
            let message = "its task is not undone with this one: `pivot` or `on_undo` says so";
            (NotUndoneReason::NoUndo, message)
        } else if may_have {
            let message = "it has no `undo`: its effect remains";
            (NotUndoneReason::NoUndo, message)
        } else if before.status() == StepStatus::Skipped {
            (NotUndoneReason::Skipped, "it was skipped")
        } else if before.attempt.0 == 0 {
            (NotUndoneReason::NeverBegan, "it never began")
        } else {
            (NotUndoneReason::TookNoEffect, "it did not take effect")
        };
        PassedOver {
            step: self.name(index),
            why,
            message: message.to_owned(),
        }
    }
}

/// The number of items of each group that the plan has, for each kind of entry.
#[derive(Default)]
struct NamedItems(BTreeMap<StepIndex, MoreCounts>);

#[derive(Default)]
struct MoreCounts {
    running: usize,
    calls: usize,
    passed_over: usize,
}

impl NamedItems {
    /// Counts an item, and returns whether the plan has room to name it. A step that is not an item always has room.
    fn count_item(
        &mut self,
        task: &Task,
        index: StepIndex,
        of: impl FnOnce(&mut MoreCounts) -> &mut usize,
    ) -> bool {
        let Some(item) = task.definition(index).item else {
            return true;
        };
        let count = of(self.0.entry(item.group).or_default());
        *count += 1;
        *count <= MOST_NAMED
    }

    fn more(self, task: &Task) -> Vec<MoreItems> {
        let more = |count: usize| count.saturating_sub(MOST_NAMED);
        let groups = self.0.into_iter().map(|(group, counts)| MoreItems {
            step: task.definition(group).name.clone(),
            running: more(counts.running),
            calls: more(counts.calls),
            passed_over: more(counts.passed_over),
        });
        let groups = groups.filter(|more| more.running + more.calls + more.passed_over > 0);
        groups.collect()
    }
}

impl PlannedRequest {
    /// Returns the length of all rendered parts, in bytes.
    fn length(&self) -> usize {
        let headers = self.headers.iter();
        let headers = headers.map(|(name, value)| name.len() + value.len());
        let body = self.body.as_ref().map_or(0, |body| body.as_json().len());
        self.path.len() + body + headers.sum::<usize>()
    }

    fn of(call: Call) -> Self {
        let length = call.body.as_ref().map(|body| body.len());
        let shown = length.is_some_and(|length| length <= LONGEST_BODY);
        let mut headers = call.headers;
        hide_secrets(&mut headers);
        let (undoes_key, probes_key) = match call.purpose {
            Purpose::Work | Purpose::Poll | Purpose::Cancel(_) => (None, None),
            Purpose::Undo(key) => (Some(key), None),
            Purpose::Probe(key) => (None, Some(key)),
        };
        let (agent, url) = match call.target {
            Target::Agent(agent) => (agent, None),
            Target::Url { url, origin }
            | Target::Operation {
                url, agent: origin, ..
            } => (origin, Some(without_query(&url).into_owned())),
        };
        Self {
            agent,
            url,
            method: call.method.as_str(),
            path: call.path,
            headers: headers.into_iter().collect(),
            body: call.body.filter(|_| shown).and_then(|body| match body {
                CallBody::Rendered(json) => Payload::parse(json),
                CallBody::Whole(payload) => Some(payload),
            }),
            body_bytes: length.filter(|_| !shown),
            // A probe has no idempotency key of its own.
            idempotency_key: probes_key.is_none().then_some(call.idempotency_key),
            undoes_key,
            probes_key,
        }
    }
}
