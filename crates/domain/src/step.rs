//! One step of a task, and the states it passes through.

use crate::{
    ask::OpenAsk,
    child::Child,
    fault::{Effect, Fault},
    ids::{Attempt, InstanceId},
    open_reply::{ReplyLog, Signal, StepHolder},
    payload::Payload,
    time::{Span, Timestamp},
};

/// What the state store keeps of a step besides its definition.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    pub state: StepState,
    /// The number of the last claim; 0 before the first.
    pub attempt: Attempt,
    /// Attempts that expired since the step was submitted, or since an operator retried it.
    pub failure_count: u32,
    /// How often `on_exhausted: extend` has granted another try.
    pub extensions_used: u32,
    /// Attempts with a transient fault since the time to complete was last set.
    pub tries: u32,
    /// While it waits to be tried again: what will be left of its time to complete when the wait is over.
    /// Waiting for a free slot uses none of it. `None`: all of it.
    pub time_left: Option<Span>,
    /// It is an item of a list that is pending, and as many others as may run, or are to run before it. This is not on record,
    /// because it follows from the states of the items: see [`Task::give_turns`](crate::Task::give_turns).
    pub awaits_turn: bool,
    /// Unknown where it may have taken effect all the same: an attempt expired, its instance was lost, or its call
    /// was dropped.
    pub effect: Effect,
    /// The current attempt does not do the work: it runs the probe. On an undo: of the step that it undoes. Until
    /// the probe has a response, the effect is unknown.
    pub is_probing: bool,
    /// What it gave before an operator had it run again: it took effect, and is undone if the task is.
    /// Only while it is not over; then it is replaced, or counts as its output.
    pub previous_output: Option<Payload>,
    /// A request body that an operator put instead of the rendered one.
    pub body: Option<Payload>,
    /// The first claim.
    pub started_at: Option<Timestamp>,
    /// The last thing that went wrong, kept while the step is tried again.
    pub last_fault: Option<Fault>,
    /// The replies that came with tokens of its attempts.
    pub reply_log: ReplyLog,
    /// The signal that it awaits, once that has come.
    pub signal: Option<Box<Signal>>,
    /// What people were asked last, and have decided.
    pub ask: Option<Box<OpenAsk>>,
    /// The task of its last attempt, as far as the step was informed.
    pub child: Option<Box<Child>>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum StepState {
    /// Not started: a step it follows is not done.
    Waiting,
    /// Ready from `ready_at` on, and unlocked.
    Pending {
        ready_at: Timestamp,
    },
    /// Held under the step's current attempt.
    Processing {
        held_by: StepHolder,
        complete_by: Timestamp,
    },
    Processed {
        output: Payload,
        at: Timestamp,
    },
    /// An operator is needed. The fault says when and why.
    Error(Fault),
    /// Gone on without it. Counts as done for the steps that follow.
    Skipped {
        output: Option<Payload>,
        at: Timestamp,
    },
    Cancelled {
        at: Timestamp,
    },
    /// It had taken effect, or may have, and what undoes it is done.
    Undone {
        output: Option<Payload>,
        at: Timestamp,
    },
}

/// The name of a step's state, as it is stored and shown.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Debug,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum StepStatus {
    Waiting,
    Pending,
    Processing,
    Processed,
    Error,
    Skipped,
    Cancelled,
    Undone,
}

impl StepStatus {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    pub fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Default for Step {
    fn default() -> Self {
        Self::new()
    }
}

impl Step {
    pub fn new() -> Self {
        Self {
            state: StepState::Waiting,
            attempt: Attempt::default(),
            failure_count: 0,
            extensions_used: 0,
            tries: 0,
            time_left: None,
            awaits_turn: false,
            effect: Effect::Known,
            is_probing: false,
            previous_output: None,
            body: None,
            started_at: None,
            last_fault: None,
            reply_log: ReplyLog::default(),
            signal: None,
            ask: None,
            child: None,
        }
    }

    /// As its first claim leaves it, if nothing else has happened in it.
    pub fn first_claimed(by: InstanceId, at: Timestamp, complete_by: Timestamp) -> Self {
        Self {
            state: StepState::Processing {
                held_by: StepHolder::Instance(by),
                complete_by,
            },
            attempt: Attempt(1),
            started_at: Some(at),
            ..Self::new()
        }
    }

    pub fn status(&self) -> StepStatus {
        match self.state {
            StepState::Waiting => StepStatus::Waiting,
            StepState::Pending { .. } => StepStatus::Pending,
            StepState::Processing { .. } => StepStatus::Processing,
            StepState::Processed { .. } => StepStatus::Processed,
            StepState::Error(_) => StepStatus::Error,
            StepState::Skipped { .. } => StepStatus::Skipped,
            StepState::Cancelled { .. } => StepStatus::Cancelled,
            StepState::Undone { .. } => StepStatus::Undone,
        }
    }

    /// Whether the steps that follow may go on.
    pub fn is_done(&self) -> bool {
        matches!(
            self.state,
            StepState::Processed { .. } | StepState::Skipped { .. }
        )
    }

    /// From now on this is known about its effect, and no probe is running.
    pub fn set_effect(&mut self, effect: Effect) {
        self.effect = effect;
        self.is_probing = false;
    }

    /// The attempt that begins asks the probe.
    pub(crate) fn begin_probe(&mut self) {
        self.effect = Effect::Unknown;
        self.is_probing = true;
    }

    /// What is stored of its effect: nothing where it is known.
    pub fn effect_word(&self) -> Option<&'static str> {
        match (self.effect, self.is_probing) {
            (Effect::Known, _) => None,
            (Effect::Unknown, false) => Some("unknown"),
            (Effect::Unknown, true) => Some("probing"),
        }
    }

    /// Reads what [`Self::effect_word`] has stored: the effect, and whether the attempt asks the probe.
    pub fn parse_effect(word: Option<&str>) -> Option<(Effect, bool)> {
        match word {
            None => Some((Effect::Known, false)),
            Some("unknown") => Some((Effect::Unknown, false)),
            Some("probing") => Some((Effect::Unknown, true)),
            Some(_) => None,
        }
    }

    /// Whether time can still move this step: it runs, or will when its turn comes.
    pub fn is_live(&self) -> bool {
        matches!(
            self.state,
            StepState::Pending { .. } | StepState::Processing { .. }
        )
    }

    /// Whether it took effect, or may have.
    pub fn may_have_taken_effect(&self) -> bool {
        matches!(self.state, StepState::Processed { .. })
            || self.effect == Effect::Unknown
            || self.previous_output.is_some()
    }

    /// While it runs again, and until it is over, what it gave before.
    pub fn output(&self) -> Option<&Payload> {
        match &self.state {
            StepState::Processed { output, .. } => Some(output),
            StepState::Skipped { output, .. } | StepState::Undone { output, .. } => output.as_ref(),
            StepState::Waiting
            | StepState::Pending { .. }
            | StepState::Processing { .. }
            | StepState::Error(_)
            | StepState::Cancelled { .. } => self.previous_output.as_ref(),
        }
    }

    /// Once the step is over, what it gave before it ran again is replaced. Where it is left out this time,
    /// that stands: it took effect, whatever is said of it now.
    pub(super) fn close_previous_output(&mut self) {
        match &mut self.state {
            StepState::Processed { .. } | StepState::Undone { .. } => self.previous_output = None,
            StepState::Skipped { output, .. } => {
                if let Some(previous) = self.previous_output.take() {
                    output.get_or_insert(previous);
                    self.set_effect(Effect::Unknown);
                }
            }
            StepState::Waiting
            | StepState::Pending { .. }
            | StepState::Processing { .. }
            | StepState::Error(_)
            | StepState::Cancelled { .. } => {}
        }
    }

    pub fn ended_at(&self) -> Option<Timestamp> {
        match &self.state {
            StepState::Processed { at, .. }
            | StepState::Skipped { at, .. }
            | StepState::Cancelled { at }
            | StepState::Undone { at, .. } => Some(*at),
            StepState::Error(fault) => Some(fault.at),
            StepState::Waiting | StepState::Pending { .. } | StepState::Processing { .. } => None,
        }
    }
}
