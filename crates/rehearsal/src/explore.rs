//! Simulates a fault at every step and every undo in turn, and shows how each ends and which effects stand at the end.
//! The services are those of one case; only the calls of the faulty step behave differently.

use std::collections::BTreeMap;

use http::StatusCode;
use provost_domain::{
    definition::{Policy, StatusPolicy, StepWork},
    task::{Event, TaskStatus},
    values::{Effect, Span, StepIndex},
};

use crate::{
    call_name::{CallKind, CallName},
    cases::{CasesFile, TestCase},
    mock::{Behaviour, Mock},
    rehearsal::{
        OutsideCommand, OutsideEvent, Rehearsal, RehearsalEnd, RehearsalInput, Services,
        StandingEffect,
    },
    run::{CaseServices, UsedMocks},
    workflow::WorkflowFile,
    world::rehearse,
};

/// The largest number of faults that are simulated.
pub const MOST_FAULTS: usize = 2000;

/// The status with which a service refuses a call.
const REFUSAL: StatusCode = StatusCode::BAD_REQUEST;

/// A fault of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlannedFault {
    /// The service refuses the call with a permanent error.
    Refused,
    /// The service cannot take the call, each time, until the retries are used up.
    Unavailable,
    /// No response comes, each time, and the step took no effect.
    Silent,
    /// No response comes, each time, although the step took effect.
    SilentButDone,
    /// No signal comes.
    NoSignal,
}

impl PlannedFault {
    pub fn in_words(self) -> &'static str {
        match self {
            PlannedFault::Refused => "refused",
            PlannedFault::Unavailable => "always unavailable",
            PlannedFault::Silent => "never responds",
            PlannedFault::SilentButDone => "never responds, but took effect",
            PlannedFault::NoSignal => "no signal comes",
        }
    }

    fn behaviour(self) -> Behaviour {
        match self {
            PlannedFault::Refused => Mock::responds(REFUSAL, None).behaviour,
            PlannedFault::Unavailable => {
                Mock::responds(StatusCode::SERVICE_UNAVAILABLE, None).behaviour
            }
            PlannedFault::Silent | PlannedFault::SilentButDone | PlannedFault::NoSignal => {
                Behaviour::Never
            }
        }
    }
}

/// The cause of an undo in which a fault is simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum UndoCause {
    /// This later step is refused, and its policy is to undo the task.
    Refusal(StepIndex),
    /// An operator undoes the task after this time.
    Operator(Span),
}

/// One fault, and how the task ended with it.
#[derive(Debug)]
pub struct ExploredFault {
    /// The step or undo that has the fault; `None`: none has.
    pub fault: Option<(StepIndex, PlannedFault)>,
    /// The reason why the task was undone, if an undo has the fault.
    pub undone_for: Option<String>,
    pub state: TaskStatus,
    pub error: Option<String>,
    pub stands: Vec<StandingEffect>,
    pub ended_after: Span,
    /// The reason why the rehearsal was incomplete.
    pub incomplete: Option<String>,
}

impl ExploredFault {
    /// Returns whether effects stand although the task has ended and was not processed, so that no operator will look.
    pub fn leaves_effects_silently(&self) -> bool {
        let is_over = matches!(self.state, TaskStatus::Undone | TaskStatus::Cancelled);
        is_over && !self.stands.is_empty()
    }
}

#[derive(Debug)]
pub struct Exploration {
    /// The rehearsal without any fault.
    pub baseline: ExploredFault,
    pub faults: Vec<ExploredFault>,
    /// The number of faults that were not simulated.
    pub left_out: usize,
    /// The undos that no fault and no operator can start.
    pub never_undone: Vec<StepIndex>,
}

/// The services of the case, except for the calls that are overridden.
struct FaultyServices<'a> {
    normal: CaseServices<'a>,
    overrides: BTreeMap<CallName, Mock>,
}

impl Services for FaultyServices<'_> {
    fn respond(&mut self, name: CallName, count: usize) -> Option<Mock> {
        if let Some(mock) = self.overrides.get(&name) {
            return Some(mock.clone());
        }
        // A case need not mock a call that it reaches only with a fault: such a call succeeds without a body.
        let mock = self.normal.respond(name, count);
        Some(mock.unwrap_or_else(|| Mock::responds(StatusCode::OK, None)))
    }
}

struct Explorer<'a> {
    workflow: &'a WorkflowFile,
    file: &'a CasesFile,
    case: &'a TestCase,
}

/// Simulates a fault at every step that the case reaches.
pub fn explore(workflow: &WorkflowFile, file: &CasesFile, case: &TestCase) -> Exploration {
    let explorer = Explorer {
        workflow,
        file,
        case,
    };
    let seen = explorer.rehearse(BTreeMap::new(), case.outside.clone());
    let path = seen.path();
    let forward: Vec<_> = path
        .iter()
        .copied()
        .filter(|step| workflow.names.step(*step).undoes.is_none())
        .collect();
    let mut never_undone = Vec::new();
    let mut planned = Vec::new();
    for step in &forward {
        planned.extend(
            explorer
                .forward_faults(*step)
                .map(|fault| (None, *step, fault)),
        );
    }
    for (at, step) in forward.iter().enumerate() {
        let Some(undo) = workflow.names.step(*step).undo else {
            continue;
        };
        match explorer.undo_cause(&forward[at + 1..], &seen) {
            Some(cause) => {
                let faults = [
                    PlannedFault::Refused,
                    PlannedFault::Unavailable,
                    PlannedFault::Silent,
                ];
                planned.extend(faults.map(|fault| (Some(cause), undo, fault)));
            }
            None => never_undone.push(*step),
        }
    }
    let left_out = planned.len().saturating_sub(MOST_FAULTS);
    planned.truncate(MOST_FAULTS);
    let faults = planned
        .into_iter()
        .map(|(cause, step, fault)| explorer.try_fault(cause, step, fault))
        .collect();
    Exploration {
        baseline: ended(&seen, None, None),
        faults,
        left_out,
        never_undone,
    }
}

impl Explorer<'_> {
    fn rehearse(
        &self,
        overrides: BTreeMap<CallName, Mock>,
        outside: Vec<OutsideEvent>,
    ) -> Rehearsal {
        let case = self.case;
        let beginning = RehearsalInput {
            workflow: self.workflow,
            input: case.input.clone(),
            key: case.key.clone(),
            labels: case.labels.clone(),
            starts_at: case.starts_at,
            outside: &outside,
        };
        let mut used = UsedMocks::new();
        let normal = CaseServices::new(case, &self.file.services, &mut used);
        let mut services = FaultyServices { normal, overrides };
        rehearse(&beginning, &mut services)
    }

    fn forward_faults(&self, step: StepIndex) -> impl Iterator<Item = PlannedFault> + use<> {
        let definition = self.workflow.names.step(step);
        let faults: &[PlannedFault] = match &definition.work {
            // Without a probe Provost cannot find out whether the step took effect.
            StepWork::Call { .. } if definition.probe.is_none() => &[
                PlannedFault::Refused,
                PlannedFault::Unavailable,
                PlannedFault::Silent,
            ],
            StepWork::Call { .. } => &[
                PlannedFault::Refused,
                PlannedFault::Unavailable,
                PlannedFault::Silent,
                PlannedFault::SilentButDone,
            ],
            StepWork::Wait(_) | StepWork::Group(_) | StepWork::Set(_) | StepWork::Stop(_) => &[],
            StepWork::Signal(_) => &[PlannedFault::NoSignal],
            StepWork::Task(_) => &[PlannedFault::Refused],
        };
        faults.iter().copied()
    }

    /// Returns the last cause of an undo after a step, so that as much as possible was done before.
    fn undo_cause(&self, later: &[StepIndex], seen: &Rehearsal) -> Option<UndoCause> {
        let definition = &self.workflow.names;
        let refusal = later.iter().rev().find(|step| {
            let step = definition.step(**step);
            let policy = step.policy_for_permanent(Some(REFUSAL.as_u16()));
            (step.is_call() || step.has_child()) && policy == StatusPolicy::Policy(Policy::Undo)
        });
        if let Some(step) = refusal {
            return Some(UndoCause::Refusal(*step));
        }
        // The operator cannot undo the task once a pivot is called.
        let pivot = later.iter().find(|step| definition.step(**step).pivot);
        match pivot {
            None if seen.task.status() == TaskStatus::Processed => {
                // One millisecond later, everything that happens at the end has happened.
                let at = seen.ended_after.saturating_add(Span::from_millis(1));
                Some(UndoCause::Operator(at))
            }
            _ => {
                let before = later.iter().take_while(|step| Some(*step) != pivot);
                let name = &definition.step(*before.last()?).name;
                let begins = |event: &Event| matches!(&*event.kind, "step.claimed" | "step.began");
                let mut events = seen.events.iter();
                let begun =
                    events.find(|(_, event)| begins(event) && event.step.as_ref() == Some(name));
                begun.map(|(at, _)| UndoCause::Operator(*at))
            }
        }
    }

    fn try_fault(
        &self,
        cause: Option<UndoCause>,
        step: StepIndex,
        fault: PlannedFault,
    ) -> ExploredFault {
        let definition = &self.workflow.names;
        let mut overrides = BTreeMap::new();
        let mut outside = self.case.outside.clone();
        let work = CallName::work(step);
        if fault == PlannedFault::NoSignal {
            outside.retain(|event| {
                !matches!(&event.command,
                    OutsideCommand::Signal { step: signalled, .. }
                    | OutsideCommand::Decide { step: signalled, .. } if *signalled == step)
            });
        } else {
            overrides.insert(work, Mock::of(fault.behaviour()));
        }
        if definition.step(step).probe.is_some() {
            let probe = CallName {
                kind: CallKind::Probe,
                step,
            };
            let found = match fault {
                PlannedFault::SilentButDone => self.mocked(probe).or_else(|| self.mocked(work)),
                PlannedFault::Refused
                | PlannedFault::Unavailable
                | PlannedFault::Silent
                | PlannedFault::NoSignal => Some(Mock::responds(StatusCode::NOT_FOUND, None)),
            };
            overrides.insert(
                probe,
                found.unwrap_or_else(|| Mock::responds(StatusCode::OK, None)),
            );
        }
        let undone_for = cause.map(|cause| match cause {
            UndoCause::Refusal(later) => {
                overrides.insert(
                    CallName::work(later),
                    Mock::of(PlannedFault::Refused.behaviour()),
                );
                format!("{} refused", definition.step(later).name)
            }
            UndoCause::Operator(at) => {
                outside.push(OutsideEvent {
                    pointer: String::new(),
                    at: Some(at),
                    item: None,
                    command: OutsideCommand::Undo,
                    refused: false,
                });
                format!("undone by an operator after {at}")
            }
        });
        let seen = self.rehearse(overrides, outside);
        ended(&seen, Some((step, fault)), undone_for)
    }

    /// Returns the first success that the case has for a call.
    fn mocked(&self, name: CallName) -> Option<Mock> {
        let mocks = self.case.services.get(&name);
        let mocks = mocks.or_else(|| self.file.services.get(&name))?;
        let succeeds = |mock: &&Mock| match &mock.behaviour {
            Behaviour::Responds(response) => response.status.is_success(),
            Behaviour::Never | Behaviour::Dropped | Behaviour::Unreachable => false,
        };
        mocks.iter().find(succeeds).cloned()
    }
}

fn ended(
    seen: &Rehearsal,
    fault: Option<(StepIndex, PlannedFault)>,
    undone_for: Option<String>,
) -> ExploredFault {
    let task = &seen.task;
    let error = task.error().or_else(|| task.undo.as_ref()?.error.as_ref());
    ExploredFault {
        fault,
        undone_for,
        state: task.status(),
        error: error.map(|fault| match &fault.step {
            Some(step) => format!("{step}: {}", fault.message),
            None => fault.message.clone(),
        }),
        stands: seen.standing(),
        ended_after: seen.ended_after,
        incomplete: match &seen.end {
            RehearsalEnd::Settled | RehearsalEnd::Idle => None,
            RehearsalEnd::NoResponse(name) => {
                Some(format!("`{}` has no response", name.in_words(&seen.names)))
            }
            RehearsalEnd::NotSimulated(message) | RehearsalEnd::TooLong(message) => {
                Some(message.clone())
            }
        },
    }
}

/// Returns words that say whether an effect is certain.
pub fn effect_in_words(effect: Effect) -> &'static str {
    match effect {
        Effect::Known => "took effect",
        Effect::Unknown => "may have taken effect",
    }
}
