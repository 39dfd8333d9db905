//! The beginning of a rehearsal, and the record of what happened in it.

use std::{collections::BTreeMap, sync::Arc};

use provost_domain::{
    definition::{Definition, Method},
    task::{AskAnswer, Event, StepState, StepStatus, Task},
    template::Payload,
    values::{Effect, Span, StepIndex, Timestamp},
};

use crate::{
    call_name::CallName,
    mock::Mock,
    names::{in_task, named_step, status},
    workflow::WorkflowFile,
};

/// The time at which a rehearsal begins, unless the file sets it.
pub const USUAL_START: Timestamp = Timestamp::from_millis(1_767_225_600_000);

/// Provides the responses to calls.
pub trait Services {
    /// `count` is the number of calls with this name before this one. `None`: no response is known.
    fn respond(&mut self, name: CallName, count: usize) -> Option<Mock>;
}

/// An outside event: a signal, a decision of a person, or a command of an operator.
#[derive(Clone, Debug)]
pub struct OutsideEvent {
    /// The JSON pointer of the event in the file.
    pub pointer: String,
    /// The time from the start. `None`: a signal that is sent as soon as it is awaited.
    pub at: Option<Span>,
    /// The item of the step, if the step has items.
    pub item: Option<u16>,
    pub command: OutsideCommand,
    /// True if the event is expected to be refused.
    pub refused: bool,
}

#[derive(Clone, Debug)]
pub enum OutsideCommand {
    Signal {
        step: StepIndex,
        body: Payload,
    },
    /// A person decides about the ask of a step.
    Decide {
        step: StepIndex,
        by: String,
        answer: AskAnswer,
    },
    Undo,
    Cancel,
    Pause,
    Resume,
    Retry {
        step: Option<StepIndex>,
    },
    Skip {
        step: StepIndex,
        output: Option<Payload>,
    },
    Resolve {
        step: StepIndex,
        output: Payload,
    },
}

/// The beginning of a rehearsal.
#[derive(Clone, Debug)]
pub struct RehearsalInput<'a> {
    pub workflow: &'a WorkflowFile,
    pub input: Payload,
    pub key: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub starts_at: Timestamp,
    pub outside: &'a [OutsideEvent],
}

/// A request that was sent.
#[derive(Clone, Debug)]
pub struct SentRequest {
    pub name: CallName,
    /// The number of the request, counted from 1 for each name.
    pub count: usize,
    /// The time from the start.
    pub at: Span,
    /// The number of events of the history that came before.
    pub after_events: usize,
    /// The agent or the URL that was called.
    pub to: String,
    pub method: &'static str,
    pub path: String,
    /// The headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Option<Payload>,
    /// A description of the response.
    pub response: String,
}

/// The result of an outside event.
#[derive(Clone, PartialEq, Debug)]
pub enum OutsideResult {
    Accepted(Span),
    Refused(Span, String),
    /// The rehearsal had ended before the event.
    NotSent,
}

/// The reason why a rehearsal is over.
#[derive(Clone, PartialEq, Debug)]
pub enum RehearsalEnd {
    /// The task has ended or needs an operator, and nothing more happens by itself.
    Settled,
    /// The task is paused, and is not resumed.
    Idle,
    /// The file has no response for this call.
    NoResponse(CallName),
    /// This happens in production, and cannot be simulated.
    NotSimulated(String),
    /// The rehearsal was ended because it is too long.
    TooLong(String),
}

/// The record of what happened.
#[derive(Debug)]
pub struct Rehearsal {
    pub task: Task,
    /// The definition by which files name the steps. All indices below are of this definition.
    pub names: Arc<Definition>,
    pub end: RehearsalEnd,
    /// The time from the start.
    pub ended_after: Span,
    pub events: Vec<(Span, Event)>,
    pub requests: Vec<SentRequest>,
    /// The result of each event of [`RehearsalInput::outside`].
    pub outside: Vec<OutsideResult>,
    /// The number of commands that were applied.
    pub commands: usize,
}

/// An effect that stands at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StandingEffect {
    pub step: StepIndex,
    /// Unknown if the step may have taken effect, and may not.
    pub effect: Effect,
}

impl Rehearsal {
    /// Returns the effects of calls that are neither undone nor known not to be there. A GET has no effect.
    pub fn standing(&self) -> Vec<StandingEffect> {
        let task = &self.task;
        let standing = task.forward().filter(|index| {
            let step = task.step(*index);
            let definition = task.definition(*index);
            let changes = definition.method() != Some(Method::Get);
            let is_undone = matches!(step.state, StepState::Undone { .. });
            (definition.is_call() || definition.has_child())
                && definition.undoes.is_none()
                && !definition.is_finally
                && changes
                && !is_undone
                && step.may_have_taken_effect()
        });
        let mut effects: Vec<StandingEffect> = Vec::new();
        for index in standing {
            let (step, effect) = (self.named(index), task.step(index).effect);
            match effects.iter_mut().find(|known| known.step == step) {
                // The effect of a step with items is unknown if that of one item is.
                Some(known) if effect == Effect::Unknown => known.effect = effect,
                Some(_) => {}
                None => effects.push(StandingEffect { step, effect }),
            }
        }
        effects.sort_by_key(|effect| effect.step);
        effects
    }

    /// Returns the step of `names` that stands for a step of the task.
    pub fn named(&self, index: StepIndex) -> StepIndex {
        named_step(&self.names, &self.task, index)
    }

    /// Returns the step of the task for a step of `names`. `None`: the task has no such step, or it is the undo of
    /// several items.
    pub fn in_task(&self, step: StepIndex) -> Option<StepIndex> {
        in_task(&self.names, &self.task, step)
    }

    pub fn status(&self, step: StepIndex) -> StepStatus {
        status(&self.names, &self.task, step)
    }

    /// Returns the steps and undos that began, in the order in which they began.
    pub fn path(&self) -> Vec<StepIndex> {
        let mut path = Vec::new();
        let begun = |event: &Event| matches!(&*event.kind, "step.claimed" | "step.began");
        for (_, event) in self.events.iter().filter(|(_, event)| begun(event)) {
            let index = event
                .step
                .as_ref()
                .and_then(|name| self.task.find(name.as_str()));
            let Some(index) = index else { continue };
            let step = self.named(index);
            let calls = |request: &&SentRequest| request.name == CallName::work(step);
            // A step for which only a probe was sent has done nothing.
            let works = !self.task.definition(index).is_call()
                || self.requests.iter().any(|request| calls(&request));
            if works && !path.contains(&step) {
                path.push(step);
            }
        }
        path
    }

    /// Returns the steps that were undone, in the order in which they were undone.
    pub fn undone(&self) -> Vec<StepIndex> {
        let undone = self
            .events
            .iter()
            .filter(|(_, event)| event.kind == "step.undone");
        let names = undone.filter_map(|(_, event)| event.step.as_ref());
        let mut steps = Vec::new();
        for step in names.filter_map(|name| self.task.find(name.as_str())) {
            let step = self.named(step);
            if !steps.contains(&step) {
                steps.push(step);
            }
        }
        steps
    }

    /// Returns the number of calls for the work of a step or of an undo.
    pub fn attempts(&self, index: StepIndex) -> usize {
        let name = CallName::work(index);
        self.requests
            .iter()
            .filter(|request| request.name == name)
            .count()
    }
}
