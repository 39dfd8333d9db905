//! The plan of an undo, before it is requested: the calls in their order, which of them depend on a probe, and
//! which steps are skipped. It decides nothing itself: the undo is started on a copy of the task, by the rules, and
//! its calls are rendered as the claims would render them.

use std::{cell::Cell, collections::BTreeMap};

use serde::Serialize;

use crate::{
    call::{Call, CallBody, Purpose},
    command::{Command, Release},
    decide::{Draft, Secrets, call},
    definition::{OnUndo, Target},
    fault::Effect,
    hidden::{hide_secrets, without_query},
    history::Actor,
    ids::{AgentName, StepIndex, StepName, TaskId},
    payload::Payload,
    step::{StepState, StepStatus},
    task::Task,
    template::Budget,
    time::{Span, Timestamp},
};

/// The plan of an undo.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct UndoPlan {
    /// Whether an undo would start if it were requested now.
    pub possible: bool,
    /// The undo has started: the plan contains what remains to be done.
    pub under_way: bool,
    /// Why it is not possible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Calls in flight, and what happens to them.
    pub running: Vec<RunningCall>,
    /// The calls of the undo, in a possible order.
    pub calls: Vec<PlannedUndo>,
    pub passed_over: Vec<PassedOver>,
    /// Of steps that are run for each item of a list, or repeated: what the plan says of too many items to name each of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub more_items: Vec<MoreItems>,
}

/// Items of a list, or iterations, that the plan does not name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct MoreItems {
    /// The step with `for_each` or `repeat`.
    pub step: StepName,
    /// How many more of its items have a call in flight.
    pub running: usize,
    /// How many more of them are undone by a call.
    pub calls: usize,
    /// How many more of them are passed over.
    pub passed_over: usize,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RunningCall {
    pub step: StepName,
    pub complete_by: Timestamp,
    /// Whether the undo waits for the call or drops it.
    pub on_undo: OnUndo,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PlannedUndo {
    pub step: StepName,
    pub undoes: StepName,
    pub state: &'static str,
    /// Counted from 1: the calls of a stage can run in parallel once the earlier stages have ended.
    pub stage: usize,
    /// What must end before this call: the undos of the steps that followed, and their calls in flight.
    pub after: Vec<StepName>,
    pub because: UndoReason,
    pub complete_within: Span,
    /// The probe that runs first, if it decides whether there is anything to undo.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<PlannedProbe>,
    #[serde(flatten)]
    pub call: PlannedCall,
}

/// Why there is something to undo.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Serialize, strum::IntoStaticStr, strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
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

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PlannedProbe {
    /// Only made if the call in flight ends without a response.
    pub only_if_unknown: bool,
    #[serde(flatten)]
    pub call: PlannedCall,
}

/// A request, or the reason why it cannot be shown.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PlannedCall {
    Request(Box<PlannedRequest>),
    CannotRender(CannotRender),
    /// No request: the task of the step is undone.
    Task(PlannedTask),
}

/// A task that is undone with its parent.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PlannedTask {
    /// The last one of the step.
    pub id: Option<uuid::Uuid>,
    /// Why it can no longer be undone: the undo of the step would be in error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cannot_be_undone: Option<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CannotRender {
    /// What must be known first.
    pub until: AvailableAfter,
    pub message: String,
}

/// What must happen before a call can be shown.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Serialize, strum::IntoStaticStr, strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum AvailableAfter {
    /// The step's call has ended: the undo reads its output.
    CallEnded,
    /// The probe has responded: it returns the output.
    ProbeAnswered,
    /// Nothing makes it possible: the undo would fail, and need an operator.
    Never,
}

impl AvailableAfter {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PlannedRequest {
    pub agent: AgentName,
    /// If the step has a URL instead of an agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    pub method: &'static str,
    pub path: String,
    /// The headers in the definition; values that may be secret are masked.
    pub headers: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<Payload>,
    /// The length of a body that is too long to show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// The Idempotency-Key of the step that is undone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undoes_key: Option<String>,
    /// The Idempotency-Key of the step that is probed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probes_key: Option<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PassedOver {
    pub step: StepName,
    pub why: NotUndoneReason,
    pub message: String,
}

/// Why the undo makes no call for a step.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Serialize, strum::IntoStaticStr, strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum NotUndoneReason {
    NeverBegan,
    /// It was attempted and did not take effect: its service refused it permanently, or its probe said so.
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

/// So many items of a group are named, and the others are counted.
const MOST_NAMED: usize = 50;

/// The longest total of all calls that a plan shows, in bytes.
const LONGEST_PLAN: usize = 8 << 20;

impl UndoPlan {
    /// The tasks that would be undone with this one, of which [`Self::look_at_child`] is to be called with the records.
    pub fn children(&self) -> impl Iterator<Item = TaskId> {
        let calls = self.calls.iter();
        calls.filter_map(|planned| match &planned.call {
            PlannedCall::Task(task) => task.id.map(TaskId),
            PlannedCall::Request(_) | PlannedCall::CannotRender(_) => None,
        })
    }

    /// Says of a child that it cannot be undone, if that is so.
    pub fn look_at_child(&mut self, child: &Task, now: Timestamp) {
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

/// The plan's ETag is the version of the task that it was made from: everything in the plan follows from that
/// record, but for what the records of its children say.
pub fn undo_plan(task: &Task, now: Timestamp) -> UndoPlan {
    let mut plan = UndoPlan {
        possible: false,
        under_way: task.undo.is_some() && !task.is_ended(),
        reason: None,
        running: Vec::new(),
        calls: Vec::new(),
        passed_over: Vec::new(),
        more_items: Vec::new(),
    };
    let mut draft = Draft::on(task.clone());
    // Who asks makes no difference to what follows.
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
            // Its holder confirms it: what follows then is what is planned.
            let _ = draft.apply(Command::Release { step, attempt, why }, &by, now);
        }
    }
    let begun = Planner {
        before: task,
        task: &draft.task,
        settled: settled(&draft.task),
        doubted: doubted(&draft.task),
        now,
        budget: Budget::of_several(WHOLE_PLAN),
        room: Cell::new(LONGEST_PLAN),
    };
    begun.fill(&mut plan);
    plan
}

/// The task with every unknown outcome resolved: the calls of an undo whose probe found something to undo.
fn settled(task: &Task) -> Task {
    let mut settled = task.clone();
    for index in settled.indexes() {
        settled.step_mut(index).set_effect(Effect::Known);
    }
    settled
}

/// The task with every step's outcome unknown: the probes that run first.
fn doubted(task: &Task) -> Task {
    let mut doubted = task.clone();
    for index in doubted.forward() {
        doubted.step_mut(index).set_effect(Effect::Unknown);
    }
    doubted
}

struct Planner<'t> {
    /// As it is now.
    before: &'t Task,
    /// After its undo has started.
    task: &'t Task,
    settled: Task,
    doubted: Task,
    now: Timestamp,
    /// All calls of the plan are rendered from it.
    budget: Budget,
    /// What remains of [`LONGEST_PLAN`].
    room: Cell<usize>,
}

impl Planner<'_> {
    fn fill(&self, plan: &mut UndoPlan) {
        // How many stages must be over before what undoes a step, by its position.
        let mut stages = vec![0; self.task.steps.len()];
        let mut named = NamedItems::default();
        for index in self.task.order().iter().rev().copied() {
            if self.task.definition(index).group_rule().is_some() {
                // Its items say all of it.
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
                    if named.takes(self.task, index, |more| &mut more.calls) {
                        plan.calls.push(self.planned(undo, index, stage + 1));
                    }
                }
                None => {
                    if named.takes(self.task, index, |more| &mut more.passed_over) {
                        plan.passed_over.push(self.passed_over(index));
                    }
                }
            }
        }
        plan.calls.sort_by_key(|planned| planned.stage);
        for running in self.task.forward() {
            if let Some(call) = self.running(running)
                && named.takes(self.task, running, |more| &mut more.running)
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
            call: self.rendered(&self.settled, undo, until),
        }
    }

    fn rendered(&self, task: &Task, index: StepIndex, until: AvailableAfter) -> PlannedCall {
        if task.definition(index).has_child() {
            let child = task.step(task.subject(index)).child.as_ref();
            let id = child.map(|child| child.id.0);
            return PlannedCall::Task(PlannedTask {
                id,
                cannot_be_undone: None,
            });
        }
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
                        return PlannedCall::Request(Box::new(request));
                    }
                    None => format!("it is not shown: a plan has room for {LONGEST_PLAN} bytes"),
                }
            }
            Err(error) => error.to_string(),
        };
        PlannedCall::CannotRender(CannotRender { until, message })
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

/// How many items of each group are named, for each kind of entry.
#[derive(Default)]
struct NamedItems(BTreeMap<StepIndex, MoreCounts>);

#[derive(Default)]
struct MoreCounts {
    running: usize,
    calls: usize,
    passed_over: usize,
}

impl NamedItems {
    /// Whether there is room for another entry of this kind. A step that is no item always has room.
    fn takes(
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
    /// Of what is rendered.
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
            // A probe carries none.
            idempotency_key: probes_key.is_none().then_some(call.idempotency_key),
            undoes_key,
            probes_key,
        }
    }
}
