//! The dry-run report: the effect of a definition before it is submitted. It contains the order, the worst-case
//! duration, and possible mistakes. It is a forecast only: nothing at run time depends on it.

mod agents;
mod groups;
mod reading;
mod statuses;
mod texts;
mod undo;

pub use self::{
    agents::PlannedAgent,
    groups::{PlannedItems, PlannedRepeat},
    undo::UndoStep,
};
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    agent::spec::AgentMode,
    definition::{
        Body, Definition, Extend, Method, ReplyRule, RequestTemplate, StepDefinition, StepKind,
        StepWork, WaitRule,
    },
    task::{render::render_request, step_backoff::backoff},
    template::{Budget, Reads, Scope, payload::Payload},
    values::{
        ids::{AgentName, StepIndex, StepName, WorkflowName},
        time::{Span, Timestamp},
    },
    view::words::DurationSchema,
};

/// The plan of a definition. This is a forecast: nothing was stored.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct DryRunReport {
    /// The steps in a possible order of execution.
    pub steps: Vec<PlannedStep>,
    /// The chain of steps that takes longest in the worst case.
    #[schema(value_type = Vec<String>, example = json!(["reserve", "charge", "ship"]))]
    pub critical_path: Vec<StepName>,
    /// The duration of the critical path if every attempt but the last runs out of time. The supervisor adds up to its
    /// interval to each failure. Steps whose `worst_case` is null count as nothing.
    #[schema(value_type = DurationSchema)]
    pub worst_case: Span,
    /// The limit of the whole task; null if it has none.
    #[schema(value_type = Option<DurationSchema>, required)]
    pub complete_within: Option<Span>,
    /// True if the worst case ends within `complete_within`, or if there is no such limit.
    #[schema(example = true)]
    pub fits: bool,
    /// The calls of an undo after all steps have run or, if there is a pivot, just before it runs: in a possible order.
    pub undo: Vec<UndoStep>,
    /// Possible mistakes in the definition.
    pub warnings: Vec<Warning>,
}

/// One step as it would run.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct PlannedStep {
    #[schema(value_type = String, example = "charge")]
    pub name: StepName,
    /// `call`, or the kind of a step that calls no service.
    #[schema(value_type = StepKind)]
    pub kind: &'static str,
    /// The workflow of the step's own task; null if the step has no task.
    #[schema(value_type = Option<String>, required, example = "ship")]
    pub workflow: Option<WorkflowName>,
    /// The agent, or the origin of the step's URL; null if the step calls no service.
    #[schema(value_type = Option<String>, required, example = "payments")]
    pub agent: Option<AgentName>,
    /// Null if the step calls no service.
    #[schema(value_type = Option<Method>, required)]
    pub method: Option<&'static str>,
    /// The steps that must be done before this one.
    #[schema(value_type = Vec<String>, example = json!(["reserve"]))]
    pub after: Vec<StepName>,
    /// Counted from 1: the steps of a stage can run in parallel once the earlier stages have ended.
    #[schema(value_type = u32, example = 2)]
    pub stage: usize,
    /// `always`; `conditionally`, if the condition depends on data of the task; or `never`, if the condition is false
    /// for the given input.
    pub runs: RunCondition,
    /// The largest number of attempts.
    #[schema(example = 4)]
    pub attempts: u32,
    /// Only if the step is run for each item of a list: `attempts` are those of one item.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_each: Option<PlannedItems>,
    /// Only if the step is repeated: `attempts` are those of one iteration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeat: Option<PlannedRepeat>,
    /// The longest duration of the step. For a wait it is the time that the step waits, or 0ms if that is not known in
    /// advance. Null if the step has a task and no `complete_within` for it: only that task's workflow may limit it.
    #[schema(value_type = Option<DurationSchema>, required)]
    pub worst_case: Option<Span>,
}

/// The condition under which a step runs.
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
#[schema(as = StepRuns)]
pub enum RunCondition {
    Always,
    /// It runs if its condition is true, which depends on data of the task.
    Conditionally,
    /// Its condition is false for the given input.
    Never,
}

impl RunCondition {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// A possible mistake in a definition.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct Warning {
    pub code: WarningCode,
    /// Absent if the warning is about several steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "charge")]
    pub step: Option<StepName>,
    /// A JSON pointer (RFC 6901) into the body, as in a fault.
    #[schema(example = "/steps/1")]
    pub pointer: String,
    #[schema(
        example = "steps can be called more than once; make sure that their services deduplicate by Idempotency-Key: charge"
    )]
    pub message: String,
}

/// The subject of a warning.
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
pub enum WarningCode {
    /// Some steps are only safe to repeat if their service deduplicates.
    ReliesOnIdempotencyKey,
    /// A GET is useless if no step reads its output.
    OutputUnread,
    /// One attempt may take longer than the whole task.
    OutlivesTask,
    /// An expression that reads nothing always has the same value.
    Constant,
    /// The given input lacks a value that the step needs.
    CannotRender,
    /// The agent's first backoff may be longer than the attempt.
    NoTimeToRetry,
    /// A service that replies later may be dead for a long time before that is detected.
    NoHeartbeat,
    /// The wait for a heartbeat or between polls is as long as the whole attempt.
    OutlivesAttempt,
    /// The step has a field that its agent cannot fulfil or ignores, because it has queues or the mode `pull`.
    AgentCannot,
    /// The service of the agent failed a check of a property that the step relies on.
    AgentFailedCheck,
    /// The task may be undone, but some of its effects remain.
    NotUndoable,
    /// A policy undoes the task although none of its steps can be undone.
    NothingToUndo,
    /// The undo reads an output that does not exist if the step's effect is unknown.
    UndoNeedsOutput,
    /// No step after a pivot is undone.
    UndoNeverRuns,
    /// If the undo fails, no operator is alerted, and the effect of the step remains.
    UndoMayBeSkipped,
    /// The step needs the output of a step that `when` may skip.
    ReadsSkipped,
    /// The expressions need an input that a submission may omit.
    InputNeeded,
    /// Text that looks like an expression of another language is sent literally.
    LooksLikeExpression,
    /// A condition is a text, which counts as true whatever it says.
    TextCondition,
    /// A body is a text that looks like JSON.
    TextBody,
    /// A policy for a status never applies, because the call is, or is not, made again after it.
    StatusNeverApplies,
    /// The workflow of the step's child is not registered.
    UnknownWorkflow,
    /// The lists and the repetitions of all steps may have more items in total than a task can have.
    TooManyItems,
}

impl WarningCode {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

impl DryRunReport {
    /// Warns of steps whose children need a workflow that does not exist.
    pub fn warn_of_workflows(&mut self, definition: &Definition, unknown: &[WorkflowName]) {
        for index in definition.forward() {
            let step = definition.step(index);
            let rule = step.rule_to_run().child_rule();
            let Some(workflow) = rule.and_then(|rule| rule.source.workflow()) else {
                continue;
            };
            if unknown.contains(workflow) && self.warnings.len() < MOST_WARNINGS {
                self.warnings.push(Warning {
                    code: WarningCode::UnknownWorkflow,
                    step: Some(step.name.clone()),
                    pointer: step.pointer_of("task/workflow"),
                    message: format!(
                        "workflow `{workflow}` is not registered: register it with PUT /v1/workflows/{workflow} before the step begins, or the step fails",
                    ),
                });
            }
        }
    }
}

/// The budget for all expressions that can be evaluated in advance: one evaluation per step.
const WHOLE_VERDICT: u64 = 4 * Budget::EVALUATION;

/// The most warnings of a report: a definition may have tens of thousands of expressions.
const MOST_WARNINGS: usize = 1000;

/// A service that replies later should send heartbeats if its step may take at least this time.
const LONG_SILENCE: Span = Span::from_secs(86_400);

/// The known data of the task, in addition to its definition.
#[derive(Clone, Copy, Default)]
pub struct TaskFields<'s> {
    pub complete_within: Option<Span>,
    pub input: Option<&'s Payload>,
    pub key: Option<&'s str>,
    pub labels: Option<&'s BTreeMap<String, String>>,
    /// The time at which the task would be submitted, for waits until a time.
    pub now: Option<Timestamp>,
}

/// Makes the report. `agent_of` returns the known data of an agent, if it is registered.
pub fn dry_run(
    definition: &Definition,
    fields: &TaskFields<'_>,
    agent_of: &dyn Fn(&AgentName) -> Option<PlannedAgent>,
) -> DryRunReport {
    let TaskFields {
        complete_within,
        input,
        now,
        ..
    } = *fields;
    // All evaluations for one report share this budget.
    let budget = Budget::of_several(WHOLE_VERDICT);
    let groups = groups::Groups::of(definition, input, &budget);
    let flat = definition.with_one_item_each();
    let definition = flat.as_ref().unwrap_or(definition);
    let stages = stages(definition);
    let mut order: Vec<usize> = (0..definition.steps.len()).collect();
    order.sort_by_key(|index| stages[*index]);
    let plan = |index: usize| {
        let step = &definition.steps[index];
        let runs = runs(step, input, &budget);
        PlannedStep {
            name: step.name.clone(),
            kind: step.work.kind().as_str(),
            workflow: { step.child_rule() }.and_then(|rule| rule.source.workflow().cloned()),
            agent: step.agent().cloned(),
            method: step.method().map(Method::as_str),
            after: follows(definition, index)
                .into_iter()
                .map(|at| name(definition, at))
                .collect(),
            stage: stages[index],
            runs,
            attempts: attempts(step),
            for_each: groups.planned(index),
            repeat: groups.repeated(index),
            worst_case: match runs {
                RunCondition::Never => Some(Span::default()),
                RunCondition::Always | RunCondition::Conditionally => {
                    let one = worst_case(step, input, now, &budget);
                    one.map(|one| groups.worst_case(index, one))
                }
            },
        }
    };
    let steps: Vec<_> = order.iter().map(|index| plan(*index)).collect();
    let (critical_path, worst_case) = critical_path(definition, &order, &steps);
    let mut warnings = Vec::new();
    relies_on_idempotency_key(definition, agent_of, &mut warnings);
    let read: BTreeSet<StepIndex> = (definition.steps.iter())
        .flat_map(|step| step.reads.iter().copied())
        .chain(groups.reads())
        .collect();
    for (index, planned) in order.iter().zip(&steps) {
        let step = &definition.steps[*index];
        let mut warn = |code, message| {
            warnings.push(Warning {
                code,
                step: Some(step.name.clone()),
                pointer: step.pointer_of(""),
                message,
            });
        };
        // A GET that is polled or repeated waits for a condition, which is useful even if no step reads the output.
        let is_polled = matches!(step.reply, ReplyRule::Poll(_));
        if step.method() == Some(Method::Get)
            && !is_polled
            && planned.repeat.is_none()
            && !read.contains(&StepIndex(*index as u16))
        {
            let message =
                "no step reads the output of this GET: remove the step, or read its output";
            warn(WarningCode::OutputUnread, message.to_owned());
        }
        if let Some(limit) = complete_within
            && step.complete_within > limit
        {
            let message = format!(
                "one attempt may take {}, but the whole task ends in error after {limit}: shorten the step's complete_within or lengthen the task's",
                step.complete_within
            );
            warn(WarningCode::OutlivesTask, message);
        }
        let agent = step.agent().and_then(agent_of);
        if let (Some(name), Some(PlannedAgent { retry, mode, .. })) = (step.agent(), &agent)
            && *mode == AgentMode::Call
            && retry.initial >= step.complete_within
        {
            let message = format!(
                "agent `{name}` waits up to {} before it retries, but an attempt ends after {}: the agent may never retry",
                retry.initial, step.complete_within
            );
            warn(WarningCode::NoTimeToRetry, message);
        }
        let is_fetched = agent.is_some_and(|agent| agent.mode == AgentMode::Pull);
        if (is_fetched || matches!(step.reply, ReplyRule::Callback))
            && step.heartbeat_within.is_none()
            && step.complete_within >= LONG_SILENCE
        {
            let who = if is_fetched {
                "a worker fetches it"
            } else {
                "its service replies later"
            };
            let message = format!(
                "{who}: if it dies, that is noticed only after {}; set heartbeat_within and have it send heartbeats",
                step.complete_within
            );
            warn(WarningCode::NoHeartbeat, message);
        }
        let within = step.complete_within;
        if let Some(silence) = step.heartbeat_within
            && silence >= within
        {
            let message = format!(
                "heartbeat_within is {silence}, but an attempt ends after {within} anyway: shorten it, or remove it"
            );
            warn(WarningCode::OutlivesAttempt, message);
        }
        if let ReplyRule::Poll(rule) = &step.reply
            && rule.every >= within
        {
            let message = format!(
                "it is polled every {}, but an attempt ends after {within}: it is polled once, shortly before that; shorten `every` or lengthen complete_within",
                rule.every
            );
            warn(WarningCode::OutlivesAttempt, message);
        }
        for pointer in constants(step) {
            let message = format!(
                "`{pointer}` has an expression that reads nothing, so it never changes: write its value instead"
            );
            warn(WarningCode::Constant, message);
        }
        if planned.runs != RunCondition::Never
            && let Some(message) = cannot_render(step, input, now, &budget)
        {
            warn(WarningCode::CannotRender, message);
        }
    }
    groups.check(definition, &mut warnings);
    agents::check(definition, agent_of, &mut warnings);
    texts::check(definition, input, &budget, &mut warnings);
    statuses::check(definition, agent_of, &mut warnings);
    reading::check(definition, fields, &groups, &budget, &mut warnings);
    let undo = undo::check(definition, |at| groups.undoes_task(at), &mut warnings);
    // The steps that undo the losers of races are written as their `undo`, which is checked there.
    let reverts = definition.steps.iter().filter(|step| step.undoes.is_some());
    warnings.retain(|warning| {
        let step = warning.step.as_ref();
        step.is_none_or(|step| reverts.clone().all(|revert| revert.name != *step))
    });
    warnings.truncate(MOST_WARNINGS);
    DryRunReport {
        undo,
        steps,
        critical_path,
        worst_case,
        complete_within,
        fits: complete_within.is_none_or(|limit| worst_case <= limit),
        warnings,
    }
}

fn name(definition: &Definition, index: StepIndex) -> StepName {
    definition.steps[index.at()].name.clone()
}

/// The earliest stage of each step: one after the latest of its dependencies.
fn stages(definition: &Definition) -> Vec<usize> {
    let steps = &definition.steps;
    let mut stages = vec![1; steps.len()];
    let mut open: Vec<usize> = steps.iter().map(|step| step.after.len()).collect();
    let mut ready: Vec<usize> = (0..steps.len()).filter(|index| open[*index] == 0).collect();
    while let Some(index) = ready.pop() {
        for follower in &*steps[index].followers {
            let follower = follower.at();
            stages[follower] = stages[follower].max(stages[index] + 1);
            open[follower] -= 1;
            if open[follower] == 0 {
                ready.push(follower);
            }
        }
    }
    let others = stages
        .iter()
        .zip(steps)
        .filter(|(_, step)| !step.is_finally);
    let last = others.map(|(stage, _)| *stage).max().unwrap_or_default();
    for (stage, step) in stages.iter_mut().zip(steps) {
        if step.is_finally {
            *stage += last;
        }
    }
    stages
}

/// Returns the steps that must end before the one at this position begins.
fn follows(definition: &Definition, at: usize) -> Vec<StepIndex> {
    // There are at most as many steps as an index can count.
    definition.follows(StepIndex(at as u16))
}

fn attempts(step: &StepDefinition) -> u32 {
    let extensions = step
        .on_exhausted
        .extend
        .as_ref()
        .map_or(0, |extend| extend.times);
    let timed_out = step.max_failures + 1 + extensions;
    let rules = step.attempts.as_ref();
    let most = rules.and_then(|rules| rules.max_attempts);
    most.map_or(timed_out, |most| most.min(timed_out))
}

/// Returns the worst-case duration: every attempt takes all its time, and the supervisor's waits and the extended
/// periods are added.
fn worst_case(
    step: &StepDefinition,
    input: Option<&Payload>,
    now: Option<Timestamp>,
    budget: &Budget,
) -> Option<Span> {
    match &step.work {
        StepWork::Wait(rule) => return Some(longest_wait(rule, input, now, budget)),
        StepWork::Signal(rule) => return Some(rule.within),
        StepWork::Task(rule) => return rule.complete_within,
        StepWork::Set(_) | StepWork::Stop(_) => return Some(Span::default()),
        StepWork::Call { .. } | StepWork::Group(_) => {}
    }
    let trying = step.complete_within.saturating_mul(attempts(step));
    let resting = (1..=step.max_failures)
        .map(backoff)
        .fold(Span::default(), Span::saturating_add);
    let extended = match &step.on_exhausted.extend {
        None => Span::default(),
        Some(Extend { wait, times }) => wait.saturating_mul(*times),
    };
    Some(trying.saturating_add(resting).saturating_add(extended))
}

/// Returns the duration of a wait as far as it is known in advance. A wait until a time is as long as if it began now.
fn longest_wait(
    rule: &WaitRule,
    input: Option<&Payload>,
    now: Option<Timestamp>,
    budget: &Budget,
) -> Span {
    let Some(now) = now.filter(|_| reads_only_input(&rule.field().1.reads())) else {
        return Span::default();
    };
    let input = input.cloned().unwrap_or_else(Payload::null);
    let end = with_scope(&input, budget, |scope| rule.end(scope, now));
    end.map_or(Span::default(), |end| end.since(now).into())
}

fn critical_path(
    definition: &Definition,
    order: &[usize],
    planned: &[PlannedStep],
) -> (Vec<StepName>, Span) {
    // For each step, its latest end, and the step that it waits for longest.
    let mut ends: Vec<(Span, Option<usize>)> = vec![Default::default(); definition.steps.len()];
    for (index, planned) in order.iter().zip(planned) {
        let after = follows(definition, *index).into_iter();
        let held_up = after.map(|at| at.at()).max_by_key(|at| ends[*at].0);
        let start = held_up.map_or(Span::default(), |at| ends[at].0);
        ends[*index] = (
            start.saturating_add(planned.worst_case.unwrap_or_default()),
            held_up,
        );
    }
    let last = (0..ends.len()).max_by_key(|index| ends[*index].0);
    let mut path: Vec<_> = std::iter::successors(last, |index| ends[*index].1)
        .map(|index| definition.steps[index].name.clone())
        .collect();
    path.reverse();
    (path, last.map_or(Span::default(), |index| ends[index].0))
}

/// Evaluates only conditions that read nothing but the input: all other values are not known before the task runs.
fn runs(step: &StepDefinition, input: Option<&Payload>, budget: &Budget) -> RunCondition {
    if step.undoes.is_some() {
        // It runs where the step that it undoes has lost a race.
        return RunCondition::Conditionally;
    }
    match (&step.when, input) {
        (None, _) => RunCondition::Always,
        (Some(condition), Some(input)) if reads_only_input(condition.reads()) => {
            match with_scope(input, budget, |scope| condition.truth(scope)) {
                Ok(true) => RunCondition::Always,
                Ok(false) => RunCondition::Never,
                Err(_) => RunCondition::Conditionally,
            }
        }
        (Some(_), _) => RunCondition::Conditionally,
    }
}

fn cannot_render(
    step: &StepDefinition,
    input: Option<&Payload>,
    now: Option<Timestamp>,
    budget: &Budget,
) -> Option<String> {
    let input = input?;
    with_scope(input, budget, |scope| {
        if let Some(condition) = &step.when
            && reads_only_input(condition.reads())
            && let Err(error) = condition.truth(scope)
        {
            return Some(error.to_string());
        }
        if !expressions_of(step)
            .iter()
            .all(|(_, reads)| reads_only_input(reads))
        {
            return None;
        }
        match &step.work {
            StepWork::Call { request, .. } => {
                let error = render_request(request, scope, None).err()?;
                Some(error.to_string())
            }
            StepWork::Wait(rule) => rule.end(scope, now?).err(),
            StepWork::Signal(_) | StepWork::Group(_) => None,
            StepWork::Set(rule) => rule.values(scope).err(),
            StepWork::Stop(rule) => rule.message(scope).and(rule.output(scope)).err(),
            StepWork::Task(rule) => {
                let error = rule.render(scope).err()?;
                Some(error.to_string())
            }
        }
    })
}

fn reads_only_input(reads: &Reads) -> bool {
    reads.names.iter().all(|name| name == "input")
}

/// Counts as one evaluation: everything that `look` evaluates shares its budget, as in a claim.
fn with_scope<T>(input: &Payload, budget: &Budget, look: impl FnOnce(&Scope<'_>) -> T) -> T {
    budget.next();
    look(&Scope {
        input: Some(input),
        ..Scope::empty(budget)
    })
}

/// Returns the values that the templates of a step read, each with the path of its field, in dots.
fn expressions_of(step: &StepDefinition) -> Vec<(String, Reads)> {
    match &step.work {
        StepWork::Call { request, .. } => expressions(request),
        StepWork::Wait(rule) => {
            let (field, template) = rule.field();
            let reads = (!template.is_literal()).then(|| template.reads());
            let reads = reads.map(|reads| (format!("wait.{field}"), reads));
            reads.into_iter().collect()
        }
        StepWork::Signal(_) | StepWork::Group(_) => Vec::new(),
        StepWork::Set(rule) => rule.expressions(),
        StepWork::Stop(rule) => rule.expressions(),
        StepWork::Task(rule) => rule.expressions(),
    }
}

/// Returns the values that the templates of a request read, each with the path of its field, in dots.
fn expressions(request: &RequestTemplate) -> Vec<(String, Reads)> {
    let mut all = Vec::new();
    let texts = std::iter::once(("path".to_owned(), &request.path)).chain(
        request
            .headers
            .iter()
            .map(|(name, template)| (format!("headers.{name}"), template)),
    );
    for (pointer, template) in texts {
        if !template.is_literal() {
            all.push((format!("request.{pointer}"), template.reads()));
        }
    }
    if let Body::Json(body) = &request.body {
        all.extend(
            body.reads().map(|(pointer, reads)| {
                (format!("request.body{}", pointer.replace('/', ".")), reads)
            }),
        );
    }
    all
}

fn constants(step: &StepDefinition) -> Vec<String> {
    let condition = step
        .when
        .iter()
        .map(|condition| ("when".to_owned(), condition.reads().clone()));
    condition
        .chain(expressions_of(step))
        .filter(|(_, reads)| reads.names.is_empty())
        .map(|(pointer, _)| pointer)
        .collect()
}

/// Adds one warning for all these steps: most steps are of this kind, and each is safe if its service deduplicates. Nothing
/// is said of a step that is called at most once, and of a service of which it is known.
fn relies_on_idempotency_key(
    definition: &Definition,
    agent_of: &dyn Fn(&AgentName) -> Option<PlannedAgent>,
    warnings: &mut Vec<Warning>,
) {
    let is_safe = |step: &StepDefinition| {
        let rules = step.attempts.as_ref();
        rules.is_some_and(|rules| rules.max_attempts == Some(1))
            || (step.agent().and_then(agent_of)).is_some_and(|agent| agent.is_idempotent())
    };
    let names: Vec<_> = definition
        .steps
        .iter()
        .filter(|step| matches!(step.method(), Some(Method::Post | Method::Patch)))
        .filter(|step| !is_safe(step) && step.undoes.is_none())
        .map(|step| step.name.as_str())
        .collect();
    if !names.is_empty() {
        warnings.push(Warning {
            code: WarningCode::ReliesOnIdempotencyKey,
            step: None,
            pointer: "/steps".to_owned(),
            message: format!(
                "steps can be called more than once; make sure that their services deduplicate by Idempotency-Key: {}",
                names.join(", ")
            ),
        });
    }
}

#[cfg(test)]
mod tests;
