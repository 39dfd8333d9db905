//! The rules of every moment: what the record says and what the service did agree.

use provost_domain::{
    definition::{ChildRule, RaceRest},
    task::{Actor, Command, Draft, StepState, StepStatus, Task, TaskStatus},
    values::StepIndex,
};

use crate::{
    breach::{Breach, keep},
    flight::StepOfTask,
    state::WorldState,
    world::SmallWorld,
};

/// Checks a state.
pub fn check(world: &SmallWorld, state: &WorldState) -> Result<(), Breach> {
    for (number, task) in (0u8..).zip(&state.tasks) {
        for step in task.indexes() {
            let at = StepOfTask { task: number, step };
            alert(state, task, at)?;
            if task.definition(step).undoes.is_none() && task.definition(step).is_call() {
                effect(state, task, at)?;
            }
            children(state, task, at)?;
        }
        waits_for_something(task)?;
        runs_at_the_end(state, number, task)?;
        winners(state, number, task)?;
        way_out(state, task)?;
    }
    limit(world, state)
}

/// An alert is open exactly while its step is in error.
fn alert(state: &WorldState, task: &Task, at: StepOfTask) -> Result<(), Breach> {
    let is_in_error = task.step(at.step).status() == StepStatus::Error;
    let needs_person = is_in_error
        && task.is_current(at.step)
        && !task.has_items(at.step)
        && !matches!(&task.step(at.step).state, StepState::Error(fault) if fault.undo_on_resume)
        && task.status() != TaskStatus::Cancelled;
    let is_open = state.alerts.has(at);
    keep(
        is_open || !needs_person,
        "a step in error has an alert",
        || state.name(at),
    )?;
    keep(
        !is_open || is_in_error,
        "an alert is closed once its step is not in error",
        || state.name(at),
    )
}

/// The record of a step agrees with what the service did.
fn effect(state: &WorldState, task: &Task, at: StepOfTask) -> Result<(), Breach> {
    let standing = state.entry_of(at).filter(|entry| entry.stands()).count();
    let undone = state.entry_of(at).filter(|entry| entry.is_undone).count();
    keep(standing <= 1, "an effect happens at most once", || {
        format!("{} stands {standing} times", state.name(at))
    })?;
    if state.excused.has(at) {
        return Ok(());
    }
    let step = task.step(at.step);
    let undo_is_excused = undo_of(task, at.step)
        .is_some_and(|undo| state.excused.has(StepOfTask { step: undo, ..at }));
    match step.status() {
        StepStatus::Processed => {
            keep(
                standing == 1 || undone > 0,
                "what is processed was done",
                || state.name(at),
            )?;
        }
        StepStatus::Undone => {
            keep(standing == 0, "what is undone does not stand", || {
                state.name(at)
            })?;
        }
        _ => {}
    }
    // A request that is still on its way does nothing after its undo; the ledger refuses it.
    if step.effect.is_known()
        && !step.may_have_taken_effect()
        && step.status() != StepStatus::Processing
    {
        keep(
            standing == 0,
            "what may stand is not taken for undone",
            || {
                format!(
                    "{} is {} and stands",
                    state.name(at),
                    step.status().as_str()
                )
            },
        )?;
    }
    if task.status() == TaskStatus::Undone && undo_of(task, at.step).is_some() && !undo_is_excused {
        keep(standing == 0, "an undone task leaves no effect", || {
            state.name(at)
        })?;
    }
    if task.status() == TaskStatus::Processed {
        let is_reverted = task.forward().any(|step| {
            task.is_revert(step)
                && task.subject(step) == at.step
                && !state.excused.has(StepOfTask { step, ..at })
        });
        let has_lost = task.is_lost(at.step) && is_reverted;
        keep(
            !has_lost || standing == 0,
            "a loser of a race that undoes its rest does not stand",
            || state.name(at),
        )?;
    }
    Ok(())
}

/// The children of a step that is undone do not stand.
fn children(state: &WorldState, task: &Task, at: StepOfTask) -> Result<(), Breach> {
    let is_undone = match task.status() {
        TaskStatus::Undone => true,
        TaskStatus::Processed => task.loss(at.step) == Some(RaceRest::Undo),
        _ => false,
    };
    let rule = task.definition(at.step).child_rule();
    let mut undos = task.undos_of(at.step);
    let is_excused = undos.any(|step| state.excused.has(StepOfTask { step, ..at }));
    if !is_undone || is_excused || !rule.is_some_and(ChildRule::ends_with_parent) {
        return Ok(());
    }
    let attempt = task.step(at.step).attempt;
    let mut own = state.children_of(at.task, at.step).filter(|child| {
        let parent = child.details.parent.as_ref();
        parent.is_some_and(|parent| parent.attempt == attempt)
    });
    keep(
        own.all(|child| child.status() != TaskStatus::Processed),
        "the task of an undone step does not stand",
        || state.name(at),
    )
}

/// The steps of `finally` begin when all others have ended, and have run when the task has.
fn runs_at_the_end(state: &WorldState, number: u8, task: &Task) -> Result<(), Breach> {
    let is_open = |step: StepIndex| {
        let status = task.step(step).status();
        matches!(status, StepStatus::Pending | StepStatus::Processing)
    };
    let is_early = task
        .indexes()
        .any(|step| !task.is_finally(step) && is_open(step));
    for step in task.forward().filter(|step| task.is_finally(*step)) {
        let status = task.step(step).status();
        let name = || state.name(StepOfTask { task: number, step });
        let has_run = matches!(status, StepStatus::Processed | StepStatus::Skipped);
        keep(
            !task.is_ended() || has_run,
            "what runs whatever the end has run in the end",
            name,
        )?;
        keep(
            !is_open(step) || !is_early,
            "what runs whatever the end runs after all else",
            name,
        )?;
    }
    Ok(())
}

fn undo_of(task: &Task, step: StepIndex) -> Option<StepIndex> {
    task.definition(step)
        .undo
        .filter(|undo| task.has_step(*undo))
}

/// No step waits although all that it follows is done, and no step begins before.
fn waits_for_something(task: &Task) -> Result<(), Breach> {
    for index in task.forward() {
        let definition = task.definition(index);
        if definition.item.is_some() || task.undo.is_some() || task.is_ended() {
            continue;
        }
        let step = task.step(index);
        let is_ready = task.is_ready_to_begin(index);
        let name = &definition.name;
        match &step.state {
            StepState::Waiting => keep(
                !is_ready || task.start_at.is_some(),
                "no step waits for nothing",
                || format!("`{name}`"),
            )?,
            StepState::Pending { .. } | StepState::Processing { .. } => {
                keep(
                    is_ready,
                    "no step begins before those that it follows",
                    || format!("`{name}`"),
                )?;
            }
            _ => {}
        }
    }
    let is_live = |step: &StepIndex| task.step(*step).is_live();
    let live = task.indexes().find(is_live).filter(|_| task.is_ended());
    keep(live.is_none(), "no step outlives its task", || {
        format!("{live:?}")
    })
}

/// A join that runs or is done has its winners, and nobody has them undone.
fn winners(state: &WorldState, number: u8, task: &Task) -> Result<(), Breach> {
    if task.undo.is_some() || task.status() == TaskStatus::Cancelled {
        return Ok(());
    }
    for join in task.own_indexes() {
        let Some(race) = &task.definition(join).race else {
            continue;
        };
        let has_begun = matches!(
            task.step(join).status(),
            StepStatus::Pending | StepStatus::Processing | StepStatus::Processed
        );
        if !has_begun
            || state.excused.has(StepOfTask {
                task: number,
                step: join,
            })
        {
            continue;
        }
        let winners = task.winners(join);
        let name = &task.definition(join).name;
        keep(
            winners.len() >= usize::from(race.any),
            "a join has its winners",
            || format!("`{name}` is {}", task.step(join).status().as_str()),
        )?;
        for winner in winners {
            let mut reverts = task.definition(winner).followers.iter();
            let revert =
                reverts.find(|step| task.is_revert(**step) && task.subject(**step) == winner);
            let is_undone = revert.is_some_and(|revert| task.step(*revert).is_live());
            keep(!is_undone, "the winner of a race is not undone", || {
                format!("`{}`", task.definition(winner).name)
            })?;
        }
    }
    Ok(())
}

/// A task in error can be retried: an operator is never without a way out.
fn way_out(state: &WorldState, task: &Task) -> Result<(), Breach> {
    if task.status() != TaskStatus::Error || !task.is_settled() {
        return Ok(());
    }
    let retry = Command::Retry {
        step: None,
        body: None,
        reason: None,
    };
    let mut copy = Draft::on(task.clone());
    let retried = copy.apply(retry, &Actor::operator("test"), state.now);
    keep(retried.is_ok(), "a task in error can be retried", || {
        format!("{retried:?}")
    })
}

/// No more tasks run at once than the limit allows.
fn limit(world: &SmallWorld, state: &WorldState) -> Result<(), Breach> {
    let own = &state.tasks[..world.tasks.len()];
    let running = own
        .iter()
        .filter(|task| !task.waits && !task.is_ended() && task.undo.is_none());
    let running = running.count();
    keep(
        running <= world.max_running,
        "no more tasks run than may",
        || format!("{running} run"),
    )
}

/// Checks that the undo of a step is not served while what followed it stands.
pub fn order_of_undo(state: &WorldState, at: StepOfTask) -> Result<(), Breach> {
    let task = state.task(at.task);
    if task.undo.is_none() {
        return Ok(());
    }
    let mut path = vec![at.step];
    let mut seen = Vec::new();
    while let Some(step) = path.pop() {
        for follower in task.definition(step).followers.iter().copied() {
            if seen.contains(&follower) || task.definition(follower).undoes.is_some() {
                continue;
            }
            seen.push(follower);
            path.push(follower);
            let follower_at = StepOfTask {
                step: follower,
                ..at
            };
            let Some(undo) = undo_of(task, follower) else {
                continue;
            };
            let is_excused = state.excused.has(follower_at)
                || state.excused.has(StepOfTask { step: undo, ..at });
            let stands = state.entry_of(follower_at).any(|entry| entry.stands());
            keep(
                !stands || is_excused,
                "each step is undone after those that followed it",
                || {
                    format!(
                        "{} is undone, and {} stands",
                        state.name(at),
                        state.name(follower_at)
                    )
                },
            )?;
        }
    }
    Ok(())
}
