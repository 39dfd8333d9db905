//! The sentences of a path.

use crate::{
    action::{OperatorCommand, WorldAction},
    flight::{Flight, ServiceResponse, Stage},
    ledger::Treatment,
    state::{WorldState, instance_id},
};

impl WorldAction {
    /// Returns a sentence about the action. `before` is the state in which it is taken.
    pub fn in_words(self, before: &WorldState) -> String {
        let call = |number: u8| name_of_call(&before.flights[usize::from(number)], before);
        match self {
            WorldAction::Tick => {
                let time = before.next_time().map(|time| time.since(before.now));
                let time = time.unwrap_or_default().as_secs_f64();
                format!(
                    "The clock goes forward by {time} s, to the next time at which something is due."
                )
            }
            WorldAction::Claim { instance, at } => {
                format!(
                    "Instance {} claims {}.",
                    instance_id(instance),
                    before.name(at)
                )
            }
            WorldAction::ClaimUnseen { instance, at } => format!(
                "Instance {} claims {}, and does not learn that the claim is saved.",
                instance_id(instance),
                before.name(at)
            ),
            WorldAction::Serve { flight, treatment } => {
                let verb = match treatment {
                    Treatment::Does => "carries out",
                    Treatment::Refuses => "refuses with 422",
                    Treatment::IsUnavailable => "responds with 503 to",
                    Treatment::Promises => "promises a later reply to",
                };
                format!("The service {verb} the {}.", call(flight))
            }
            WorldAction::LoseMessage { flight, is_seen } => {
                let number = usize::from(flight);
                let what = match before.flights[number].stage {
                    Stage::Sent => "request",
                    _ => "response",
                };
                let seen = match is_seen {
                    true => "its connection breaks",
                    false => "nobody notices",
                };
                format!("The {what} of the {} is lost: {seen}.", call(flight))
            }
            WorldAction::Deliver { flight } => {
                let number = usize::from(flight);
                let response = match before.flights[number].stage {
                    Stage::Responded(response) => in_words(response),
                    _ => "nothing",
                };
                format!(
                    "The {} gets {response}, and its instance saves that.",
                    call(flight)
                )
            }
            WorldAction::DropCall { flight } => {
                format!(
                    "The instance drops the {}, which the record does not want any more.",
                    call(flight)
                )
            }
            WorldAction::ReturnStep { flight } => {
                format!(
                    "The instance has no slot for the {}, and gives the step back.",
                    call(flight)
                )
            }
            WorldAction::LaterReply { at, attempt, .. } => {
                format!(
                    "The service sends the promised reply to attempt {attempt} of {}.",
                    before.name(at)
                )
            }
            WorldAction::Expire { at } => format!("The supervisor expires {}.", before.name(at)),
            WorldAction::LoseInstance { at } => {
                format!(
                    "The supervisor takes the instance that holds {} for dead.",
                    before.name(at)
                )
            }
            WorldAction::ReleaseUnseen { at } => {
                format!(
                    "The instance that holds {} gives it back, because it knows of no call.",
                    before.name(at)
                )
            }
            WorldAction::Overdue { task } => {
                format!(
                    "The supervisor looks at task {}, whose time is over.",
                    task + 1
                )
            }
            WorldAction::Admit { task } => format!("Task {} is admitted.", task + 1),
            WorldAction::Crash { instance } => {
                format!("Instance {} crashes.", instance_id(instance))
            }
            WorldAction::Restart { instance } => {
                format!(
                    "Instance {} starts again, and gives back what it held.",
                    instance_id(instance)
                )
            }
            WorldAction::Operate { task, command, .. } => {
                let command = match command {
                    OperatorCommand::Pause => "pauses".to_owned(),
                    OperatorCommand::Resume => "resumes".to_owned(),
                    OperatorCommand::Retry => "retries".to_owned(),
                    OperatorCommand::SkipFailed => "skips what failed in".to_owned(),
                    OperatorCommand::Undo => "undoes".to_owned(),
                    OperatorCommand::Cancel => "cancels".to_owned(),
                    OperatorCommand::Rerun(step) => format!("reruns from step {}", step.0),
                };
                format!("An operator {command} task {}.", task + 1)
            }
            WorldAction::Signal { at, number, .. } => {
                format!("Signal {number} comes for {}.", before.name(at))
            }
            WorldAction::Compare { at } => {
                format!(
                    "An instance compares {} with its children.",
                    before.name(at)
                )
            }
        }
    }
}

fn name_of_call(flight: &Flight, state: &WorldState) -> String {
    let dead = match flight.is_awaited {
        true => "",
        false => ", which nobody awaits any more",
    };
    format!(
        "{} of {} (attempt {}, by instance {}{dead})",
        flight.aim.in_words(),
        state.name(flight.at),
        flight.attempt,
        instance_id(flight.instance)
    )
}

fn in_words(response: ServiceResponse) -> &'static str {
    match response {
        ServiceResponse::Success => "a success",
        ServiceResponse::NotFound => "404",
        ServiceResponse::Refused => "422",
        ServiceResponse::Unavailable => "503",
        ServiceResponse::Broken => "a broken connection",
        ServiceResponse::Promised => "the promise of a later reply",
    }
}
