//! The actions of which the paths through a world are made.

use provost_domain::values::{Attempt, StepIndex};

use crate::{flight::StepOfTask, ledger::Treatment};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorldAction {
    /// The clock goes to the next time at which something is due.
    Tick,
    Claim {
        instance: u8,
        at: StepOfTask,
    },
    /// The claim is saved, and its instance does not learn of that.
    ClaimUnseen {
        instance: u8,
        at: StepOfTask,
    },
    /// The service treats a request that has arrived.
    Serve {
        flight: u8,
        treatment: Treatment,
    },
    /// A request or a response is lost. `is_seen`: the instance sees that the connection breaks.
    LoseMessage {
        flight: u8,
        is_seen: bool,
    },
    /// A response arrives at its instance, which sends the reply to the store.
    Deliver {
        flight: u8,
    },
    /// An instance ends a call, because the record says that it is not wanted any more.
    DropCall {
        flight: u8,
    },
    /// An instance gives a step back whose call it had no slot for.
    ReturnStep {
        flight: u8,
    },
    /// A service sends the reply that it has promised, or repeats it.
    LaterReply {
        via: u8,
        at: StepOfTask,
        attempt: Attempt,
    },
    /// The supervisor recovers a step whose time is over.
    Expire {
        at: StepOfTask,
    },
    /// The supervisor takes the instance of a step for dead.
    LoseInstance {
        at: StepOfTask,
    },
    /// An instance gives back a step that it holds in the record and does not call.
    ReleaseUnseen {
        at: StepOfTask,
    },
    Overdue {
        task: u8,
    },
    Admit {
        task: u8,
    },
    Crash {
        instance: u8,
    },
    /// An instance starts again and gives back what it held.
    Restart {
        instance: u8,
    },
    Operate {
        via: u8,
        task: u8,
        command: OperatorCommand,
    },
    Signal {
        via: u8,
        at: StepOfTask,
        number: u8,
    },
    /// An instance compares a step with its children.
    Compare {
        at: StepOfTask,
    },
}

/// The commands that an operator may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperatorCommand {
    Pause,
    Resume,
    Retry,
    SkipFailed,
    Undo,
    Cancel,
    /// A rerun from this step.
    Rerun(StepIndex),
}

/// A thing that may go wrong, or be asked for, only so many times in a world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    Crash,
    /// The lease of an instance ends although the instance lives.
    WrongGuess,
    LostMessage,
    Unavailable,
    Refusal,
    UnseenClaim,
    NoSlot,
    /// A command of an operator other than a resumption.
    Command,
    Signal,
    /// A promised reply that is sent once more.
    Repetition,
}

/// The number of kinds of trouble.
pub const TROUBLES: usize = 10;

/// The number of times that each kind of trouble may still happen, and all kinds together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Troubles {
    of_kind: [u8; TROUBLES],
    in_total: u8,
}

impl Troubles {
    pub fn none() -> Self {
        Self {
            of_kind: [0; TROUBLES],
            in_total: 0,
        }
    }

    /// Returns the same troubles, of which at most so many happen in total.
    #[must_use]
    pub fn at_most(mut self, in_total: u8) -> Self {
        self.in_total = in_total;
        self
    }

    /// Returns the number of troubles if each kind happens as often as it may.
    pub fn most(self) -> u8 {
        self.of_kind.iter().sum()
    }

    #[must_use]
    pub fn with(mut self, trouble: Trouble, times: u8) -> Self {
        self.of_kind[trouble as usize] = times;
        self
    }

    pub fn has(self, trouble: Trouble) -> bool {
        self.in_total > 0 && self.of_kind[trouble as usize] > 0
    }

    pub fn spend(&mut self, trouble: Trouble) {
        let left = &mut self.of_kind[trouble as usize];
        *left = left.saturating_sub(1);
        self.in_total = self.in_total.saturating_sub(1);
    }

    /// Returns all counts. What is left of a kind does not matter beyond what is left in total.
    pub fn counts(self) -> impl Iterator<Item = u8> {
        let most = self.in_total;
        self.of_kind
            .into_iter()
            .map(move |left| left.min(most))
            .chain([most])
    }
}
