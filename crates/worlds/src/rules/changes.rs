//! The rules of one command: what it may change, and what the history says of it.

use std::collections::BTreeMap;

use provost_domain::{
    task::{Command, CommandOutput, Draft, Expiry, Refusal, StepState, Task, TaskStatus},
    values::{Attempt, StepIndex},
};

use crate::{
    breach::{Breach, keep},
    flight::StepOfTask,
    state::{WorldState, holds, is_late},
};

/// Checks a decision, before it is saved.
pub fn check(
    state: &WorldState,
    number: u8,
    command: &Command,
    before: &Task,
    draft: &Draft,
    decided: &Result<CommandOutput, Refusal>,
) -> Result<(), Breach> {
    fence(command, before, draft, decided)?;
    match decided {
        Err(_) | Ok(CommandOutput::Unchanged) => {
            let is_same = *before == draft.task && draft.events.is_empty();
            keep(is_same, "a refused command changes nothing", || {
                format!("{} was refused, and the task is another", command.name())
            })
        }
        Ok(CommandOutput::Late(_)) => Ok(()),
        Ok(CommandOutput::Done | CommandOutput::Call(_)) => {
            attempts(command, before, &draft.task)?;
            pause(command, before, draft)?;
            history(before, draft)?;
            drops(state, number, command, before, draft)
        }
    }
}

/// Returns the attempt that a command names.
fn named_attempt(command: &Command) -> Option<(StepIndex, Attempt)> {
    match command {
        Command::Reply { step, attempt, .. }
        | Command::LaterReply { step, attempt, .. }
        | Command::Release { step, attempt, .. }
        | Command::Expire { step, attempt, .. }
        | Command::BeginChild { step, attempt, .. }
        | Command::ChildReport { step, attempt, .. } => Some((*step, *attempt)),
        _ => None,
    }
}

/// An attempt that does not hold its step changes nothing, and is answered as late.
fn fence(
    command: &Command,
    before: &Task,
    draft: &Draft,
    decided: &Result<CommandOutput, Refusal>,
) -> Result<(), Breach> {
    let Some((step, attempt)) = named_attempt(command) else {
        return Ok(());
    };
    if holds(before, step, attempt) {
        return Ok(());
    }
    let is_answered = match decided {
        Err(refusal) => is_late(refusal),
        Ok(output) => matches!(output, CommandOutput::Late(_) | CommandOutput::Unchanged),
    };
    let name = &before.definition(step).name;
    keep(
        is_answered,
        "a reply with an old fence is answered as late",
        || {
            format!(
                "{} for attempt {attempt} of `{name}` got {decided:?}",
                command.name()
            )
        },
    )?;
    let is_same = before.status() == draft.task.status()
        && before.indexes().eq(draft.task.indexes())
        && before.indexes().all(|index| {
            let (old, new) = (before.step(index), draft.task.step(index));
            old.state == new.state && old.attempt == new.attempt && old.effect == new.effect
        });
    keep(is_same, "a reply with an old fence changes nothing", || {
        format!("{} for attempt {attempt} of `{name}`", command.name())
    })
}

/// Attempts count claims, one by one, so that no two claims have one fence.
fn attempts(command: &Command, before: &Task, after: &Task) -> Result<(), Breach> {
    for index in before.indexes().filter(|index| after.has_step(*index)) {
        let (old, new) = (before.step(index), after.step(index));
        let is_claimed = matches!(command, Command::Claim { step, .. } if *step == index);
        let is_call = before.definition(index).is_call();
        let name = &before.definition(index).name;
        if is_call {
            let expected = old.attempt.0 + u32::from(is_claimed);
            keep(new.attempt.0 == expected, "attempts count claims", || {
                format!(
                    "`{name}` went from attempt {} to {} by {}",
                    old.attempt,
                    new.attempt,
                    command.name()
                )
            })?;
        }
        if is_claimed {
            keep(
                matches!(old.state, StepState::Pending { .. }),
                "only a pending step is claimed",
                || format!("`{name}` was {}", old.status().as_str()),
            )?;
        }
    }
    Ok(())
}

/// Nothing begins while an operator has paused the task or it waits to be admitted, and nobody else ends the pause.
fn pause(command: &Command, before: &Task, draft: &Draft) -> Result<(), Breach> {
    let after = &draft.task;
    let is_held = |task: &Task| task.paused || task.has_not_begun();
    if is_held(before) && is_held(after) {
        for index in before.indexes().filter(|index| after.has_step(*index)) {
            keep(
                before.step(index).attempt == after.step(index).attempt,
                "nothing begins in a task that is held",
                || {
                    format!(
                        "`{}` began by {}",
                        before.definition(index).name,
                        command.name()
                    )
                },
            )?;
        }
    }
    let is_asked = matches!(
        command,
        Command::Resume { .. } | Command::Undo { .. } | Command::Cancel { .. }
    );
    let is_kept = !before.paused
        || is_asked
        || after.paused && (after.undo.is_none() || before.undo.is_some());
    keep(
        is_kept,
        "only an operator ends a pause or undoes a paused task",
        || command.name().to_owned(),
    )
}

/// The history of one command leads from the states before it to those after it.
fn history(before: &Task, draft: &Draft) -> Result<(), Breach> {
    const RULE: &str = "every change of a state is in the history";
    let after = &draft.task;
    let mut steps: BTreeMap<&str, &str> = BTreeMap::new();
    let mut task = before.status().as_str();
    for event in &draft.events {
        let from = event.from.as_deref().unwrap_or_default();
        match &event.step {
            None => {
                keep(task == from, RULE, || {
                    format!(
                        "{} says that the task was {from}, and it was {task}",
                        event.kind
                    )
                })?;
                let is_named = task == event.to
                    || TaskStatus::parse(&event.to).is_some_and(|to| to.event() == event.kind);
                keep(is_named, RULE, || {
                    format!("{} changes the task to {}", event.kind, event.to)
                })?;
                task = &event.to;
            }
            Some(step) => {
                let name = step.as_str();
                let known = before
                    .find(name)
                    .map(|index| before.step(index).status().as_str());
                let known = *steps.get(name).or(known.as_ref()).unwrap_or(&"waiting");
                // The history says of items that never began that they have ended, all together.
                let is_item = name.contains('[');
                keep(known == from || is_item, RULE, || {
                    format!(
                        "{} says that `{name}` was {from}, and it was {known}",
                        event.kind
                    )
                })?;
                steps.insert(name, &event.to);
            }
        }
    }
    keep(task == after.status().as_str(), RULE, || {
        format!(
            "it ends with {task}, and the task is {}",
            after.status().as_str()
        )
    })?;
    for index in after.indexes() {
        let name = after.definition(index).name.as_str();
        let was = before
            .has_step(index)
            .then(|| before.step(index).status().as_str());
        let told = *steps.get(name).or(was.as_ref()).unwrap_or(&"waiting");
        let is = after.step(index).status().as_str();
        let is_unbegun_item = name.contains('[') && after.step(index).attempt.0 == 0;
        keep(told == is || is_unbegun_item, RULE, || {
            format!("`{name}` is {is}, and its history ends with {told}")
        })?;
    }
    Ok(())
}

/// A call in flight whose attempt ends without its reply is dropped.
fn drops(
    state: &WorldState,
    number: u8,
    command: &Command,
    before: &Task,
    draft: &Draft,
) -> Result<(), Breach> {
    let own = match command {
        // The instance itself reports the end of the call.
        Command::Expire {
            cause: Expiry::GivenUp,
            step,
            attempt,
        }
        | Command::Reply { step, attempt, .. }
        // The response to the call can only be the promise of the reply that has come.
        | Command::LaterReply { step, attempt, .. }
        | Command::Release { step, attempt, .. } => Some((*step, *attempt)),
        _ => None,
    };
    for index in before.indexes() {
        let at = StepOfTask {
            task: number,
            step: index,
        };
        let attempt = before.step(index).attempt;
        let is_in_flight = state.holder(at).is_some();
        let goes_on = draft.task.has_step(index) && holds(&draft.task, index, attempt);
        if !is_in_flight || goes_on || own == Some((index, attempt)) {
            continue;
        }
        let mut dropped = draft.dropped.iter();
        keep(
            dropped.any(|dropped| dropped.step == index && dropped.attempt == attempt),
            "a call whose attempt ends without a reply is dropped",
            || {
                format!(
                    "attempt {attempt} of {} ended by {}",
                    state.name(at),
                    command.name()
                )
            },
        )?;
    }
    Ok(())
}
