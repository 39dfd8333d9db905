//! What a rehearsal begins with, and what happened in it.

use std::{collections::BTreeMap, sync::Arc};

use provost_domain::{
    AskAnswer, Definition, Effect, Event, Method, Payload, Span, StepIndex, StepState, StepStatus,
    Task, Timestamp,
};

use crate::{
    call_name::CallName,
    mock::Mock,
    names::{in_task, named, status},
    workflow::WorkflowFile,
};

/// When a rehearsal begins, unless it says so.
pub const USUAL_START: Timestamp = Timestamp::from_millis(1_767_225_600_000);

/// Who responds to calls.
pub trait Services {
    /// `count`: how many calls of this name came before. `None`: nothing is known of it.
    fn respond(&mut self, name: CallName, count: usize) -> Option<Mock>;
}

/// What comes from outside.
#[derive(Clone, Debug)]
pub struct OutsideEvent {
    /// Where the file has it.
    pub pointer: String,
    /// From the start. `None`: a signal as soon as it is awaited.
    pub at: Option<Span>,
    /// The item of the step that is meant, if it has items.
    pub item: Option<u16>,
    pub what: OutsideCommand,
    /// It must be refused.
    pub refused: bool,
}

#[derive(Clone, Debug)]
pub enum OutsideCommand {
    Signal {
        step: StepIndex,
        body: Payload,
    },
    /// A person decides what a step asks.
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

/// What a rehearsal begins with.
#[derive(Clone, Debug)]
pub struct Beginning<'a> {
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
    /// Counted from 1, for each name.
    pub count: usize,
    /// After the start.
    pub at: Span,
    /// How many events of the history came before.
    pub after_events: usize,
    /// The agent, or the URL.
    pub to: String,
    pub method: &'static str,
    pub path: String,
    /// Lower-case names.
    pub headers: Vec<(String, String)>,
    pub body: Option<Payload>,
    /// What came back, in words.
    pub response: String,
}

/// What came from outside, and what became of it.
#[derive(Clone, PartialEq, Debug)]
pub enum OutsideResult {
    Accepted(Span),
    Refused(Span, String),
    /// The rehearsal had ended before.
    NotSent,
}

/// Why a rehearsal is over.
#[derive(Clone, PartialEq, Debug)]
pub enum RehearsalEnd {
    /// The task has ended, or needs an operator; nothing more happens by itself.
    Settled,
    /// It is paused, and is not resumed.
    Idle,
    /// This call has no response.
    NoResponse(CallName),
    /// Something that happens in production cannot be simulated.
    NotSimulated(String),
    /// It was ended because it is too long.
    TooLong(String),
}

/// What happened.
#[derive(Debug)]
pub struct Rehearsal {
    pub task: Task,
    /// By which files name its steps: all indices below are of this definition.
    pub names: Arc<Definition>,
    pub end: RehearsalEnd,
    /// After the start.
    pub ended_after: Span,
    pub events: Vec<(Span, Event)>,
    pub requests: Vec<SentRequest>,
    /// For each of [`Beginning::outside`].
    pub outside: Vec<OutsideResult>,
    /// How many commands it took.
    pub commands: usize,
}

/// An effect that is there at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StandingEffect {
    pub step: StepIndex,
    /// Unknown: the step may have taken effect, or not.
    pub effect: Effect,
}

impl Rehearsal {
    /// The effects of calls that are neither undone nor known not to be there. A GET has none.
    pub fn standing(&self) -> Vec<StandingEffect> {
        let task = &self.task;
        let standing = task.forward().filter(|index| {
            let step = task.step(*index);
            let definition = task.definition(*index);
            let changes = definition.method() != Some(Method::Get);
            let is_undone = matches!(step.state, StepState::Undone { .. });
            (definition.is_call() || definition.has_child())
                && changes
                && !is_undone
                && step.may_have_taken_effect()
        });
        let mut effects: Vec<StandingEffect> = Vec::new();
        for index in standing {
            let (step, effect) = (self.named(index), task.step(index).effect);
            match effects.iter_mut().find(|known| known.step == step) {
                // Of the items of one step: unknown if it is of one of them.
                Some(known) if effect == Effect::Unknown => known.effect = effect,
                Some(_) => {}
                None => effects.push(StandingEffect { step, effect }),
            }
        }
        effects.sort_by_key(|effect| effect.step);
        effects
    }

    /// The step that a step of the task goes by.
    pub fn named(&self, index: StepIndex) -> StepIndex {
        named(&self.names, &self.task, index)
    }

    /// The step of the task with this name. `None`: there is none, or it is what undoes many items.
    pub fn in_task(&self, step: StepIndex) -> Option<StepIndex> {
        in_task(&self.names, &self.task, step)
    }

    pub fn status(&self, step: StepIndex) -> StepStatus {
        status(&self.names, &self.task, step)
    }

    /// The steps and undos that began, in the order in which they did.
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
            // One that only its probe was asked about has done nothing.
            let works = !self.task.definition(index).is_call()
                || self.requests.iter().any(|request| calls(&request));
            if works && !path.contains(&step) {
                path.push(step);
            }
        }
        path
    }

    /// The steps that were undone, in the order in which they were.
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

    /// How often a step, or an undo, did its own work.
    pub fn attempts(&self, index: StepIndex) -> usize {
        let name = CallName::work(index);
        self.requests
            .iter()
            .filter(|request| request.name == name)
            .count()
    }
}
