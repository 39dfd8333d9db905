//! The commands on a task and on its steps: which of them apply, and the sentence that says what each would do.

use super::record::{Step, Task};
use crate::{params::encoded, parts::counted, shell::Shell};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Retry,
    Skip,
    Resolve,
    Signal,
    CancelStep,
    Undo,
    Pause,
    Resume,
    Cancel,
    Start,
    Clone,
    Migrate,
}

impl Command {
    pub const ALL: [Self; 12] = [
        Self::Retry,
        Self::Skip,
        Self::Resolve,
        Self::Signal,
        Self::CancelStep,
        Self::Undo,
        Self::Resume,
        Self::Start,
        Self::Pause,
        Self::Cancel,
        Self::Clone,
        Self::Migrate,
    ];

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|command| command.word() == name)
    }

    /// The word in addresses of the API.
    pub fn api_word(self) -> &'static str {
        match self {
            Self::CancelStep => "cancel",
            _ => self.word(),
        }
    }

    /// The word in addresses of the console.
    pub fn word(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Skip => "skip",
            Self::Resolve => "resolve",
            Self::Signal => "signal",
            Self::CancelStep => "cancel-step",
            Self::Undo => "undo",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Cancel => "cancel",
            Self::Start => "start",
            Self::Clone => "clone",
            Self::Migrate => "migrate",
        }
    }

    /// The words on a button.
    pub fn title(self) -> &'static str {
        match self {
            Self::Retry => "Retry",
            Self::Skip => "Skip",
            Self::Resolve => "Resolve",
            Self::Signal => "Signal",
            Self::Undo => "Undo",
            Self::Pause => "Pause",
            Self::Resume => "Resume",
            Self::Cancel | Self::CancelStep => "Cancel",
            Self::Start => "Start now",
            Self::Clone => "Clone with changes",
            Self::Migrate => "Move to another version",
        }
    }

    /// Returns whether the command is about one step.
    pub fn needs_step(self) -> bool {
        matches!(
            self,
            Self::Skip | Self::Resolve | Self::Signal | Self::CancelStep
        )
    }

    /// Returns whether its effect cannot be taken back: the person types the key of the task.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Undo | Self::Cancel)
    }

    /// Returns whether the API records a reason for the command.
    pub fn has_reason(self) -> bool {
        self != Self::Signal
    }

    /// Returns why the command does not apply now, and what to do. The API decides again when it is sent.
    pub fn obstacle(self, task: &Task, step: Option<&Step>) -> Option<String> {
        let state = task.state.as_str();
        let ended = task
            .has_ended()
            .then(|| format!("the task has ended: it is {state}"));
        let failed = |step: &Step| {
            step.state == "error" || (step.state == "pending" && step.last_fault.is_some())
        };
        match self {
            Self::Clone => None,
            Self::Retry if step.is_some_and(|step| !failed(step)) => Some(String::from(
                "only a step in error, or one that waits for a retry, can be retried",
            )),
            Self::Retry if step.is_none() && ended.is_none() && !task.steps.iter().any(failed) => {
                Some(String::from("no step is in error or waits for a retry"))
            }
            Self::Skip | Self::Resolve if ended.is_none() => match step {
                None => Some(String::from("no step is in error")),
                Some(step)
                    if matches!(
                        step.state.as_str(),
                        "processed" | "skipped" | "cancelled" | "undone"
                    ) =>
                {
                    Some(format!("{} is {} already", step.name, step.state))
                }
                Some(_) => None,
            },
            Self::Signal if ended.is_none() => match step {
                Some(step) if step.awaits_signal() => None,
                Some(step) => Some(format!("{} awaits no event", step.name)),
                None => Some(String::from("no step awaits an event")),
            },
            Self::CancelStep if ended.is_none() => match step {
                Some(step) if step.has_call_under_way() => None,
                Some(step) => Some(format!("{} has no call under way", step.name)),
                None => Some(String::from("no call is under way")),
            },
            Self::Resume if !task.is_paused() && ended.is_none() => {
                Some(String::from("the task is not paused"))
            }
            Self::Pause if task.is_paused() => Some(String::from("the task is paused already")),
            Self::Start if task.start_at.is_none() => Some(String::from("it has begun")),
            Self::Undo | Self::Migrate if state == "undoing" => {
                Some(String::from("the task is being undone"))
            }
            Self::Migrate if task.workflow.is_none() => {
                Some(String::from("its steps are of no workflow"))
            }
            _ => ended,
        }
    }

    /// Returns the sentence that says what the command would do.
    pub fn sentence(self, task: &Task, step: Option<&Step>, is_changed: bool) -> String {
        let name = task.name();
        let of = step.map_or_else(
            || name.to_owned(),
            |step| format!("{} of {name}", step.name),
        );
        match self {
            Self::Retry if is_changed => format!("Retry {of}, with a changed request"),
            Self::Retry if step.is_none() => format!("Retry the failed steps of {name}"),
            Self::Clone => format!("Clone {name} into a new task"),
            Self::Migrate => format!("Move {name} to another version of its workflow"),
            Self::Start => format!("Start {name} now"),
            _ => format!("{} {of}", self.title()),
        }
    }

    /// Returns what happens then.
    pub fn consequence(self, task: &Task, step: Option<&Step>) -> String {
        let followers = |step: &Step| {
            let names: Vec<&str> = task
                .steps
                .iter()
                .filter(|other| other.after.contains(&step.name) && other.undoes.is_none())
                .map(|other| other.name.as_str())
                .take(5)
                .collect();
            match names.as_slice() {
                [] => String::new(),
                [one] => format!(" {one} can go on then."),
                [most @ .., last] => format!(" {} and {last} can go on then.", most.join(", ")),
            }
        };
        let agent = step
            .and_then(|step| step.agent.as_deref())
            .unwrap_or("the service");
        match (self, step) {
            (Self::Retry, _) if task.is_paused() => String::from(
                "The task stays paused: what is retried begins once somebody resumes it.",
            ),
            (Self::Retry, Some(step)) if step.items.is_some() => {
                let failed = step
                    .items
                    .as_ref()
                    .map_or(0, |items| items.in_state("error"));
                let are = if failed == 1 { "is" } else { "are" };
                format!(
                    "{} in error {are} called again, each under its own Idempotency-Key.{}",
                    counted(failed, "item", "items"),
                    followers(step)
                )
            }
            (Self::Retry, Some(step)) if step.kind == "call" => format!(
                "{agent} is called again, under the same Idempotency-Key.{}",
                followers(step).replace("can go on then", "can go on if it succeeds")
            ),
            (Self::Retry, _) => String::from(
                "Every step in error is tried again, each call under the same Idempotency-Key as before.",
            ),
            (Self::Skip, Some(step)) => {
                format!(
                    "{} is not called again. Later steps see the output below, or null.{}",
                    agent,
                    followers(step)
                )
            }
            (Self::Resolve, Some(step)) => format!(
                "The step counts as processed with the output below: for work that was done outside of Provost.{}",
                followers(step)
            ),
            (Self::Signal, Some(step)) => format!(
                "The event that {} awaits counts as come, with the output below: the first signal counts, and another one is refused.{}",
                step.name,
                followers(step)
            ),
            (Self::CancelStep, Some(step)) if step.undoes.is_none() && task.state == "undoing" => {
                String::from(
                    "Its call is dropped, and whether it took effect is unknown. The undo does not wait for it any more.",
                )
            }
            (Self::CancelStep, step) => {
                let is_undo = step.is_some_and(|step| step.undoes.is_some());
                let undo = match is_undo {
                    true => "",
                    false => "; an undo of the task undoes it too",
                };
                format!(
                    "Its call is dropped, or its service is first asked to cancel the work, where the step says how. Whether it took effect is unknown. The step is in error then, for you to retry, skip or resolve{undo}."
                )
            }
            (Self::Pause, _) => String::from(
                "No step begins until somebody resumes the task. Calls in flight end, and are recorded.",
            ),
            (Self::Resume, _) if task.state == "error" => String::from(
                "Steps that are ready begin at once. Those in error still wait for a retry, or for another command.",
            ),
            (Self::Resume, _) => String::from("Steps that are ready begin at once."),
            (Self::Cancel, _) => String::from(
                "No further step begins, and what was done stays done: nothing is undone. Calls in flight are dropped.",
            ),
            (Self::Start, _) => {
                String::from("The task begins at once, and not at the time that was set.")
            }
            (Self::Clone, _) => String::from(
                "A new task with a new id begins at its first step. This one stays as it is.",
            ),
            (Self::Migrate, _) => String::from(
                "Steps that are done stay done. Those that have not begun follow the definition of the other version.",
            ),
            (Self::Undo | Self::Skip | Self::Resolve | Self::Signal, _) => String::new(),
        }
    }
}

/// Returns the address of the page of a command.
pub fn command_link(page: &Shell, id: &str, command: Command, step: Option<&str>) -> String {
    let step = step.map_or_else(String::new, |step| format!("?step={}", encoded(step)));
    format!("{}/{}{step}", page.task(id), command.word())
}
