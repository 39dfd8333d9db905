//! One step of a task, and the states that it passes through.

use crate::{
    task::{
        ask::OpenAsk,
        attempt_counts::AttemptCounts,
        child_record::Child,
        kept_response::KeptResponse,
        open_reply::{ReplyLog, Signal, StepHolder},
    },
    template::payload::Payload,
    values::{
        fault::{Effect, Fault},
        ids::{Attempt, InstanceId},
        time::{Span, Timestamp},
    },
};

/// The record of a step, apart from its definition.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    pub state: StepState,
    /// The number of the last claim; 0 before the first.
    pub attempt: Attempt,
    /// Attempts that expired since the step was submitted, or since an operator retried it.
    pub failure_count: u32,
    /// The number of extended periods that `on_exhausted: extend` has granted.
    pub extensions_used: u32,
    /// Attempts with a transient fault since the time to complete was last set.
    pub tries: u32,
    /// The part of its time to complete that is left after the wait before the next attempt. The wait for a free slot
    /// uses none of it. `None`: all of it.
    pub time_left: Option<Span>,
    /// True for a pending item of a list while as many other items as may run are running or run before it. This is not
    /// on record, because it follows from the states of the items: see [`Task::give_turns`](crate::task::aggregate::Task::give_turns).
    pub awaits_turn: bool,
    /// Unknown if the step may have taken effect without a result: an attempt expired, its instance was lost, or its
    /// call was dropped.
    pub effect: Effect,
    /// The current attempt does not do the work, but runs the probe. For an undo, it is the probe of the step that it
    /// undoes. Until the probe has a response, the effect is unknown.
    pub is_probing: bool,
    /// The output before an operator had the step run again: the step took effect, and is undone if the task is. It is
    /// present only until the step has ended again; it is replaced then, or becomes the output.
    pub previous_output: Option<Payload>,
    /// The request that was sent, as the undo of the step reads it, if the record would give another one now: the step
    /// waits to run again after the steps before it, or its task has moved to another version. It is present until the
    /// step is claimed again.
    pub sent_request: Option<Payload>,
    /// A request body that an operator has set instead of the rendered one.
    pub body: Option<Payload>,
    /// The time of the first claim.
    pub started_at: Option<Timestamp>,
    /// The last fault. It is kept while the step is attempted again.
    pub last_fault: Option<Fault>,
    /// The replies that came with tokens of its attempts.
    pub reply_log: ReplyLog,
    /// The signal that it awaits, once that has come.
    pub signal: Option<Box<Signal>>,
    /// The last question to people, and their decisions.
    pub ask: Option<Box<OpenAsk>>,
    /// The child of its last attempt, as far as the step was informed of it.
    pub child: Option<Box<Child>>,
    /// The parts of the response that gave the output, if the step keeps any.
    pub response: Option<Box<KeptResponse>>,
    /// The counts of a step whose attempts, or those of whose probe, are bounded.
    pub counts: AttemptCounts,
}

#[derive(Clone, PartialEq, Debug)]
pub enum StepState {
    /// Not ready: a step that it follows is not done.
    Waiting,
    /// Ready from `ready_at` on, and held by no instance.
    Pending {
        ready_at: Timestamp,
    },
    /// Held, under the step's current attempt.
    Processing {
        held_by: StepHolder,
        complete_by: Timestamp,
    },
    Processed {
        output: Payload,
        at: Timestamp,
    },
    /// The step needs an operator. The fault has the time and the reason.
    Error(Fault),
    /// The task continues without the step, which counts as done for the steps that follow.
    Skipped {
        output: Option<Payload>,
        at: Timestamp,
    },
    Cancelled {
        at: Timestamp,
    },
    /// The step had taken effect, or may have, and its undo is done.
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
            sent_request: None,
            body: None,
            started_at: None,
            last_fault: None,
            reply_log: ReplyLog::default(),
            signal: None,
            ask: None,
            child: None,
            response: None,
            counts: AttemptCounts::default(),
        }
    }

    /// Returns a step as its first claim leaves it, if nothing else has happened in it.
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

    /// Returns whether the steps that follow may begin.
    pub fn is_done(&self) -> bool {
        matches!(
            self.state,
            StepState::Processed { .. } | StepState::Skipped { .. }
        )
    }

    /// Returns whether the step is over in a task that is not undone and not cancelled: it is done, or a race has ended
    /// without it.
    pub fn has_ended_for_good(&self) -> bool {
        self.is_done()
            || matches!(
                self.state,
                StepState::Cancelled { .. } | StepState::Undone { .. }
            )
    }

    /// Sets the effect. No probe is running after that.
    pub fn set_effect(&mut self, effect: Effect) {
        self.effect = effect;
        self.is_probing = false;
    }

    /// Begins an attempt that runs the probe.
    pub(crate) fn begin_probe(&mut self) {
        self.effect = Effect::Unknown;
        self.is_probing = true;
    }

    /// Returns the word under which the effect is stored, `None` for a known effect.
    pub fn effect_word(&self) -> Option<&'static str> {
        match (self.effect, self.is_probing) {
            (Effect::Known, _) => None,
            (Effect::Unknown, false) => Some("unknown"),
            (Effect::Unknown, true) => Some("probing"),
        }
    }

    /// Reads what [`Self::effect_word`] has returned: the effect, and whether the attempt runs the probe.
    pub fn parse_effect(word: Option<&str>) -> Option<(Effect, bool)> {
        match word {
            None => Some((Effect::Known, false)),
            Some("unknown") => Some((Effect::Unknown, false)),
            Some("probing") => Some((Effect::Unknown, true)),
            Some(_) => None,
        }
    }

    /// Returns whether the step can change without a command of an operator: it runs, or will run when its turn comes.
    pub fn is_live(&self) -> bool {
        matches!(
            self.state,
            StepState::Pending { .. } | StepState::Processing { .. }
        )
    }

    /// Returns whether the step took effect, or may have.
    pub fn may_have_taken_effect(&self) -> bool {
        matches!(self.state, StepState::Processed { .. })
            || self.effect == Effect::Unknown
            || self.previous_output.is_some()
    }

    /// Returns the output. While the step runs again, and until it has ended, this is its previous output.
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

    /// Replaces the previous output once the step has ended. A step that is skipped this time keeps it, because it took
    /// effect before.
    pub(crate) fn close_previous_output(&mut self) {
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
