//! The bytes that a task keeps of what services, callers and operators gave it, and what finds no room among them. Every path
//! that adds bytes to a task asks here.
//!
//! Bodies of up to [`SMALL`] bytes always fit: their number is bounded, and they cost no look at the whole task.

use super::Draft;
use crate::{
    definition::{RepeatOutput, StepWork},
    task::{
        aggregate::Task,
        ask::{AskAnswer, OpenAsk},
        command::Refusal,
        kept_response::KeptResponse,
        open_reply::Progress,
        positions::Positions,
        step::{Step, StepState},
    },
    template::payload::Payload,
    values::{fault::Fault, ids::StepIndex},
};

/// The outputs of the items of a group take no more bytes than this together.
const MOST_OF_GROUP: usize = 8 << 20;
/// The most bytes that a task keeps, unless a setting says otherwise.
pub const MOST_OF_TASK: usize = 32 << 20;
/// A body of this length or less is not counted before it is kept.
const SMALL: usize = 1 << 10;

/// The reason why a body is not kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LacksRoom {
    OfGroup,
    OfTask,
}

impl LacksRoom {
    fn in_words(self, most: usize) -> String {
        match self {
            LacksRoom::OfGroup => {
                format!(
                    "the outputs of all items of a group have room for {MOST_OF_GROUP} bytes together"
                )
            }
            LacksRoom::OfTask => {
                format!("a task keeps at most {most} bytes (the setting limits.max_task_outputs)")
            }
        }
    }
}

impl Draft {
    /// Bounds the bytes that the task keeps.
    #[must_use]
    pub fn keeping(mut self, most: usize) -> Self {
        self.most_kept = most;
        self
    }

    /// Checks that an output of `length` bytes finds room, in place of the one that the step has.
    fn room_for(&self, index: StepIndex, length: usize) -> Result<(), LacksRoom> {
        let own = self.task.step(index).output();
        let own = own.map_or(0, |output| output.as_json().len());
        if let Some(room) = self.task.room_in_group(index, own)
            && length > room
        {
            return Err(LacksRoom::OfGroup);
        }
        // The output of an item is kept a second time, in the list of its group.
        let times = match self.task.definition(index).item {
            Some(item) if self.task.collects_outputs(item.group) => 2,
            _ => 1,
        };
        self.room_in_task(times * length, times * own)
    }

    /// Checks that the task has room for `length` bytes, in place of `freed` others.
    fn room_in_task(&self, length: usize, freed: usize) -> Result<(), LacksRoom> {
        if length <= SMALL || length <= freed {
            return Ok(());
        }
        match self.task.kept_bytes() + length - freed <= self.most_kept {
            true => Ok(()),
            false => Err(LacksRoom::OfTask),
        }
    }

    /// The fault of a step whose output finds no room.
    pub(super) fn overlong(&self, index: StepIndex, output: &Payload) -> Option<Fault> {
        let length = output.as_json().len();
        let why = self.room_for(index, length).err()?;
        let message = format!(
            "its output of {length} bytes is not kept: {}; have its service give less, or split the work over several tasks",
            why.in_words(self.most_kept)
        );
        Some(Fault::permanent(message, self.now))
    }

    /// The fault of a step whose response has headers that find no room.
    pub(super) fn overlong_headers(&self, response: &KeptResponse) -> Option<Fault> {
        let length = response.bytes();
        let why = self.room_in_task(length, 0).err()?;
        let message = format!(
            "the {length} bytes of its response's headers are not kept: {}; name fewer in `keep_headers`",
            why.in_words(self.most_kept)
        );
        Some(Fault::permanent(message, self.now))
    }

    /// Refuses an output or a signal that finds no room.
    pub(super) fn check_room(
        &self,
        index: StepIndex,
        output: Option<&Payload>,
    ) -> Result<(), Refusal> {
        let length = output.map_or(0, |output| output.as_json().len());
        self.room_for(index, length)
            .map_err(|why| self.refuse_length(index, length, why))
    }

    /// Refuses an output that is given to several steps, and finds no room in all of them.
    pub(super) fn check_room_of_all(
        &self,
        indexes: &[StepIndex],
        output: Option<&Payload>,
    ) -> Result<(), Refusal> {
        let length = output.map_or(0, |output| output.as_json().len());
        for (before, index) in indexes.iter().enumerate() {
            self.check_room(*index, output)?;
            let all = match length <= SMALL {
                true => 0,
                false => length * (before + 1),
            };
            self.room_in_task(all, 0)
                .map_err(|why| self.refuse_length(*index, all, why))?;
        }
        Ok(())
    }

    /// Refuses a request body of an operator that finds no room.
    pub(super) fn check_room_for_body(
        &self,
        index: StepIndex,
        body: &Payload,
    ) -> Result<(), Refusal> {
        let own = self.task.step(index).body.as_ref();
        let own = own.map_or(0, |body| body.as_json().len());
        let length = body.as_json().len();
        self.room_in_task(length, own)
            .map_err(|why| self.refuse_length(index, length, why))
    }

    /// Refuses to keep requests that find no room.
    pub(super) fn check_room_for_requests(
        &self,
        requests: &[(StepIndex, Payload)],
    ) -> Result<(), Refusal> {
        let lengths = requests.iter().map(|(_, request)| request.as_json().len());
        let length = lengths.sum();
        let Some((first, _)) = requests.first() else {
            return Ok(());
        };
        self.room_in_task(length, 0)
            .map_err(|why| self.refuse_length(*first, length, why))
    }

    /// Refuses a decision that finds no room. It is kept with the ask, and again in the output.
    pub(super) fn check_room_for_answer(
        &self,
        index: StepIndex,
        answer: &AskAnswer,
    ) -> Result<(), Refusal> {
        let length = 2 * answer.bytes();
        self.room_in_task(length, 0)
            .map_err(|why| self.refuse_length(index, length, why))
    }

    /// Checks that a list of a group finds room. The error says why it does not.
    pub(super) fn check_room_for_list(&self, length: usize) -> Result<(), String> {
        self.room_in_task(length, 0).map_err(|why| {
            let why = why.in_words(self.most_kept);
            format!("`for_each` gives a list of {length} bytes: {why}; split the list over several tasks")
        })
    }

    /// A heartbeat without its details where these find no room: the sign of life counts all the same.
    pub(super) fn within_room(&self, progress: &Progress) -> Progress {
        let details = progress.details.as_ref();
        let length = details.map_or(0, |details| details.as_json().len());
        let mut progress = progress.clone();
        if self.room_in_task(length, 0).is_err() {
            progress.details = None;
        }
        progress
    }

    fn refuse_length(&self, index: StepIndex, length: usize, why: LacksRoom) -> Refusal {
        Refusal::NoRoom {
            step: self.task.definition(index).name.clone(),
            length,
            why: why.in_words(self.most_kept),
        }
    }
}

impl Task {
    /// The bytes of outputs, signals, request bodies of operators, lists, decisions and progress of all steps. The outputs
    /// of items are counted again as long as the list of their group has yet to be made of them.
    pub fn kept_bytes(&self) -> usize {
        let groups = self.groups().iter();
        let unmade = groups
            .filter(|group| !self.step(group.step).is_done() && self.collects_outputs(group.step));
        let unmade = unmade.map(|group| self.steps.counts_of(&group.items).output_bytes);
        self.steps.kept_bytes() + self.undos.kept_bytes() + unmade.sum::<usize>()
    }

    /// Returns whether the output of a group is the list of those of its items.
    fn collects_outputs(&self, group: StepIndex) -> bool {
        match self.definition(group).group_rule() {
            None => false,
            Some(rule) => rule
                .repeat()
                .is_none_or(|repeat| repeat.output == RepeatOutput::All),
        }
    }

    /// Returns how many more bytes an item may give, and `None` for a step that is no item.
    fn room_in_group(&self, index: StepIndex, own: usize) -> Option<usize> {
        let definition = self.definition(index);
        let (Some(item), None) = (definition.item, definition.undoes) else {
            return None;
        };
        let items = &self.group(item.group)?.items;
        let counts = self.steps.counts_of(items);
        let kept = match definition.work {
            StepWork::Signal(_) => self.kept_signals(items, index),
            _ => 0,
        };
        let taken = counts.output_bytes.saturating_sub(own) + kept;
        Some(MOST_OF_GROUP.saturating_sub(taken))
    }

    /// The bytes of the signals that have come early for other items: they become outputs.
    fn kept_signals(&self, items: &Positions, own: StepIndex) -> usize {
        let others = items.iter().filter(|at| *at != own.at());
        let kept = others.filter_map(|at| self.steps[at].signal.as_ref()?.payload.as_ref());
        kept.map(|payload| payload.as_json().len()).sum()
    }
}

impl Step {
    /// See [`Task::kept_bytes`].
    pub(crate) fn kept_bytes(&self) -> usize {
        let own = match &self.state {
            StepState::Processed { output, .. } => Some(output),
            StepState::Skipped { output, .. } | StepState::Undone { output, .. } => output.as_ref(),
            _ => None,
        };
        let signal = self.signal.as_ref();
        let signal = signal.and_then(|signal| signal.payload.as_ref());
        let details = match &self.state {
            StepState::Processing { held_by, .. } => held_by.open_reply(),
            _ => None,
        };
        let details = details.and_then(|open| open.progress.details.as_ref());
        let payloads = [
            own,
            self.previous_output.as_ref(),
            self.sent_request.as_ref(),
            self.body.as_ref(),
            signal,
            details,
        ];
        let payloads = payloads.into_iter().flatten();
        let ask = self.ask.as_deref().map_or(0, OpenAsk::decided_bytes);
        let response = self.response.as_deref().map_or(0, KeptResponse::bytes);
        payloads
            .map(|payload| payload.as_json().len())
            .sum::<usize>()
            + ask
            + response
    }
}
