//! Estimates of the memory that tasks take, in bytes. An estimate is rather too high than too low.

use crate::{
    task::{
        aggregate::{Details, Task},
        ask::{AskAnswer, Decision, OpenAsk},
        kept_response::KeptResponse,
        open_reply::{OpenReply, Progress},
        step::{Step, StepState},
    },
    template::payload::Payload,
    values::fault::Fault,
};

/// A task without its steps and without the submission.
const TASK: usize = 1024;
/// A step without its payloads.
const STEP: usize = 384;
/// The memory of a compiled definition, as a multiple of its text.
const COMPILED: usize = 4;

/// Returns the memory that a task will take once it is loaded, by the lengths of its stored parts.
pub fn memory_of(input: usize, definition: usize, steps: usize, payloads: usize) -> usize {
    let of_steps = STEP.saturating_mul(steps);
    (TASK + input + COMPILED * definition + payloads).saturating_add(of_steps)
}

impl Task {
    /// Returns the memory of the task, with inputs, outputs and faults. A registered workflow is shared by its tasks,
    /// and not counted.
    pub fn memory(&self) -> usize {
        let details = &*self.details;
        let labels = details.labels.iter();
        let labels: usize = labels.map(|(name, value)| name.len() + value.len()).sum();
        let definition = match &details.workflow {
            Some(_) => 0,
            None => COMPILED * (details.definition.source.as_json().len() + policies(details)),
        };
        let steps = self.steps.memory() + self.undos.memory();
        let items = self.expansion.as_ref().map_or(0, |items| items.memory());
        TASK + labels + definition + details.input.memory() + steps + items
    }
}

fn policies(details: &Details) -> usize {
    let policies = details.definition.policies.as_json();
    policies.map_or(0, str::len)
}

impl Step {
    pub(crate) fn memory(&self) -> usize {
        let fault = self.last_fault.as_ref().map_or(0, Fault::memory);
        let signal = self.signal.as_ref();
        let signal = signal.and_then(|signal| signal.payload.as_ref());
        let payloads = [
            self.output(),
            self.body.as_ref(),
            self.sent_request.as_ref(),
            signal,
        ];
        let payloads = payloads.into_iter().flatten().map(Payload::memory);
        let open = match &self.state {
            StepState::Processing { held_by, .. } => held_by.open_reply(),
            _ => None,
        };
        let response = self.response.as_ref();
        let response = response.map_or(0, |kept| size_of::<KeptResponse>() + kept.bytes());
        let ask = self.ask.as_ref().map_or(0, |ask| ask.memory());
        STEP + ask + response + fault + payloads.sum::<usize>() + open.map_or(0, OpenReply::memory)
    }
}

impl OpenAsk {
    fn memory(&self) -> usize {
        let people: usize = self.text.of.iter().map(String::len).sum();
        size_of::<Self>()
            + self.text.title.len()
            + self.text.text.as_ref().map_or(0, String::len)
            + people
            + self.decided_bytes()
    }

    /// Returns the bytes of people's decisions.
    pub(crate) fn decided_bytes(&self) -> usize {
        let decided = self.decisions.iter();
        let decided = decided.map(|decision| size_of::<Decision>() + decision.answer.bytes());
        decided.sum()
    }
}

impl AskAnswer {
    pub(crate) fn bytes(&self) -> usize {
        let comment = self.comment.as_ref().map_or(0, String::len);
        let fields = self.fields.iter();
        let fields = fields.map(|(name, value)| name.len() + value.to_string().len());
        comment + fields.sum::<usize>()
    }
}

impl OpenReply {
    fn memory(&self) -> usize {
        let Progress {
            message, details, ..
        } = &self.progress;
        let address = self.poll.as_ref().and_then(|poll| poll.address.as_ref());
        size_of::<Self>()
            + address.map_or(0, |address| address.len())
            + message.as_ref().map_or(0, String::len)
            + details.as_ref().map_or(0, Payload::memory)
    }
}

impl Fault {
    fn memory(&self) -> usize {
        self.message.len() + self.body.as_ref().map_or(0, String::len)
    }
}

impl Payload {
    pub(crate) fn memory(&self) -> usize {
        self.document().memory()
    }
}
