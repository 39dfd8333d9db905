//! The properties of every task at every moment.

use proptest::prelude::*;

use super::{changes::all_followers, *};
use crate::{
    definition::RaceRest,
    task::{expansion::ItemGroup, step_list::StepCounts},
};

/// The properties of every task at every moment.
pub(super) fn check(task: &Task) -> Result<(), TestCaseError> {
    prop_assert!(task.untouched.is_sorted_by(|a, b| a < b));
    for index in &task.untouched {
        let is_own = index.at() < task.details.definition.steps.len();
        prop_assert!(is_own, "{index:?} is no step of the definition");
        prop_assert_eq!(task.step(*index), &Step::new(), "{:?} was touched", index);
    }
    if let Some(index) = task.own_claim {
        prop_assert!(
            task.is_bare_claim(index),
            "more happened in {index:?} than its claim"
        );
    }
    for index in task.forward() {
        if task.definition(index).item.is_some() {
            continue;
        }
        let step = task.step(index);
        let started = !matches!(step.state, StepState::Waiting | StepState::Cancelled { .. });
        let all_done = task.is_ready_to_begin(index);
        let race = task.definition(index).race.as_ref();
        let is_given_up =
            race.is_some_and(|race| task.cannot_be_won(race) || step.has_ended_for_good());
        if started && task.undo.is_none() {
            // A rerun of a join that was skipped opens its race again. What was undone, or need not be, stays so.
            let is_decided = task.is_revert(index) && step.is_done();
            // The steps before it were done, and were undone because they have lost the race as well.
            let mut before = task.definition(index).after.iter();
            let was_done = before.all(|step| {
                let is_undone = task.step(*step).status() == StepStatus::Undone;
                task.step(*step).is_done() || is_undone && task.is_lost(*step)
            });
            let has_lost = task.is_lost(index) && was_done;
            prop_assert!(
                all_done || is_given_up || is_decided || has_lost,
                "{index:?} left waiting too early"
            );
        }
        if step.state == StepState::Waiting {
            let is_later = task.start_at.is_some();
            prop_assert!(!all_done || is_later, "{index:?} waits for nothing");
        }
        if task.undo.is_some() && !task.is_finally(index) {
            let idle = !matches!(step.state, StepState::Waiting | StepState::Pending { .. });
            prop_assert!(idle, "{index:?} may begin although the task is undone");
        }
    }
    for group in task.groups() {
        items(task, group)?;
    }
    races(task)?;
    order_of_undo(task)?;
    for index in task.indexes() {
        let step = task.step(index);
        let over = step.is_done() || step.status() == StepStatus::Undone;
        prop_assert!(
            !over || step.previous_output.is_none(),
            "{index:?} has two outputs"
        );
        prop_assert!(
            !(task.is_ended() && step.is_live()),
            "{index:?} outlived its task"
        );
        if !task.may_begin() {
            let is_poll = matches!(step.state, StepState::Processing { .. });
            prop_assert!(is_poll || task.due_at(index).is_none());
        }
        if !task.definition(index).is_call() {
            prop_assert_eq!(step.effect, Effect::Known, "{:?} took effect", index);
            prop_assert_eq!(task.due_at(index), None);
            let is_idle = matches!(step.state, StepState::Pending { .. }) && task.may_begin();
            prop_assert!(!is_idle, "{index:?} does not begin to wait");
            let has_begun = step.status() == StepStatus::Processing;
            prop_assert_eq!(has_begun, task.waits_for_event(index));
        }
        let waits = matches!(step.state, StepState::Pending { .. });
        prop_assert!(waits || !step.awaits_turn);
        let tried = waits || matches!(step.state, StepState::Processing { .. });
        prop_assert!(tried || step.tries == 0, "{index:?} counts old tries");
        prop_assert_eq!(step.time_left.is_some(), waits && step.tries > 0);
    }
    let is_cancelled = task.undo.as_ref().is_some_and(|undo| undo.cancels);
    if let Some(pivot) = task.forward().find(|index| {
        let definition = task.definition(*index);
        definition.pivot
            && definition.group_rule().is_none()
            && task.step(*index).status() == StepStatus::Processed
    }) {
        prop_assert!(
            task.undo.is_none() || is_cancelled,
            "undone behind pivot {pivot:?}"
        );
    }
    let current = || task.indexes().filter(|index| task.is_current(*index));
    let errors = current().any(|index| task.step(index).status() == StepStatus::Error);
    let is_over = |index: StepIndex| match task.undo {
        Some(_) if !is_cancelled && !task.is_finally(index) => task.step(index).is_done(),
        _ => task.step(index).has_ended_for_good(),
    };
    let done = current().all(is_over);
    if task.has_not_begun() && !task.is_ended() {
        prop_assert!(task.undo.is_none() && task.status() != TaskStatus::Processing);
    }
    match task.status() {
        TaskStatus::Cancelled => {}
        status if task.undo.is_none() => {
            let undo_waits = task.faults_that_undo_on_resume().next().is_some();
            prop_assert!(task.paused || !undo_waits, "its undo does not begin");
            prop_assert_eq!(errors && !undo_waits, status == TaskStatus::Error);
            prop_assert_eq!(done, status == TaskStatus::Processed);
        }
        status => {
            prop_assert_eq!(errors, status == TaskStatus::Error);
            let under_way = task
                .steps
                .iter()
                .any(|step| matches!(step.state, StepState::Processing { .. }));
            prop_assert!(!is_cancelled || !done, "it is cancelled, and goes on");
            prop_assert_eq!(done && !under_way, status == TaskStatus::Undone);
        }
    }
    if task.status() == TaskStatus::Undone {
        for index in task.forward() {
            if task.definition(index).group_rule().is_some() {
                continue;
            }
            let undo = task.definition(index).undo;
            let left = task.step(index).may_have_taken_effect();
            // A step that an operator or a policy skipped stays as it is.
            let skipped = undo.is_none_or(|undo| task.step(undo).status() == StepStatus::Skipped);
            prop_assert!(!left || skipped, "{index:?} was not undone");
        }
    }
    Ok(())
}

/// A race that is over leaves nothing that runs for nothing, and nothing done that it says is undone.
fn races(task: &Task) -> Result<(), TestCaseError> {
    if task.undo.is_some() || task.status() == TaskStatus::Cancelled {
        return Ok(());
    }
    for index in task.forward() {
        let Some(rest) = task.loss(index) else {
            continue;
        };
        let (step, definition) = (task.step(index), task.definition(index));
        let waits_for_end = rest == RaceRest::Undo || definition.has_child() || definition.pivot;
        let is_running =
            step.status() == StepStatus::Processing && (waits_for_end || task.is_withdrawn(index));
        prop_assert!(
            is_running
                || matches!(
                    step.status(),
                    StepStatus::Processed
                        | StepStatus::Skipped
                        | StepStatus::Cancelled
                        | StepStatus::Undone
                ),
            "{index:?} has lost, and is {:?}",
            step.status()
        );
        let revert = definition
            .followers
            .iter()
            .find(|step| task.is_revert(**step));
        let is_left = rest == RaceRest::Undo && step.may_have_taken_effect();
        if let (TaskStatus::Processed, Some(revert)) = (task.status(), revert) {
            // An operator may have skipped what undoes it.
            let is_skipped = task.step(*revert).status() == StepStatus::Skipped;
            prop_assert!(!is_left || is_skipped, "{index:?} has lost, and stands");
        }
    }
    for index in task.own_indexes() {
        if let Some(race) = &task.definition(index).race {
            prop_assert!(task.winners(index).len() <= usize::from(race.any));
            for winner in task.winners(index) {
                let mut reverts = task.definition(winner).followers.iter();
                let revert = reverts.find(|step| task.is_revert(**step));
                let is_undone = revert.is_some_and(|revert| task.step(*revert).is_live());
                // It may have lost another race, to which the join of this one is a competitor.
                let has_lost = task.loss(winner) == Some(RaceRest::Undo);
                prop_assert!(!is_undone || has_lost, "{winner:?} has won, and is undone");
            }
        }
    }
    Ok(())
}

/// Nothing is undone while the undo of something that followed it is outstanding, whatever instance held that undo and lost it.
fn order_of_undo(task: &Task) -> Result<(), TestCaseError> {
    if task.undo.is_none() {
        return Ok(());
    }
    for index in task.forward() {
        let Some(undo) = task.definition(index).undo else {
            continue;
        };
        let status = task.step(undo).status();
        // Nothing is sent for one that was passed over.
        let is_left_out = matches!(status, StepStatus::Skipped | StepStatus::Cancelled);
        if is_left_out || status == StepStatus::Waiting {
            continue;
        }
        let own = task.group_of(index);
        let followers = all_followers(task, own);
        let is_after = |other: StepIndex| {
            let is_later_iteration =
                task.is_repeated(own) && task.group_of(other) == own && other > index;
            is_later_iteration || followers.contains(&task.group_of(other))
        };
        for after in task.forward().filter(|other| is_after(*other)) {
            let name = |index| task.definition(index).name.clone();
            let (first, then) = (name(after), name(index));
            let is_running = matches!(task.step(after).state, StepState::Processing { .. });
            prop_assert!(!is_running, "{then} is undone while {first} runs");
            let undo = task.definition(after).undo;
            let is_over = undo.is_none_or(|undo| task.step(undo).is_done());
            prop_assert!(is_over, "{then} is undone before {first}");
        }
    }
    Ok(())
}

/// The properties of the items of a group.
fn items(task: &Task, group: &ItemGroup) -> Result<(), TestCaseError> {
    let record = task.step(group.step);
    let definition = task.details.definition.step(group.step);
    let saved = record.body.as_ref();
    let saved = saved.and_then(|saved| ItemGroup::from_record(group.step, definition, saved));
    let expected = ItemGroup::new(group.step, group.known.clone(), group.items.clone());
    prop_assert_eq!(saved, Some(expected));
    let counts = StepCounts::of(group.items.iter().map(|at| &task.steps[at]));
    prop_assert_eq!(counts, task.steps.counts_of(&group.items));
    for (number, at) in group.items.iter().enumerate() {
        let index = StepIndex(at as u16);
        let name = task.definition(index).name.as_str();
        prop_assert_eq!(name, format!("{}[{number}]", definition.name));
        prop_assert_eq!(task.find(name), Some(index));
        let undo = task.definition(index).undo;
        let subject = undo.map(|undo| task.definition(undo).undoes);
        prop_assert!(subject.is_none_or(|subject| subject == Some(index)));
    }
    let (live, waiting) = (counts.live(), counts.count(StepStatus::Waiting));
    if task.undo.is_some() || task.is_ended() {
        prop_assert_eq!(waiting, 0, "an item may begin although its task is over");
        return Ok(());
    }
    let rule = task.definition(group.step).group_rule().unwrap();
    let most = u32::from(rule.max_parallel());
    if let Some(at_most) = group.at_most() {
        prop_assert!(live <= most, "{} iterations run at once", live);
        return iterations(task, group, &counts, at_most);
    }
    let own = || group.items.iter().map(|at| &task.steps[at]);
    let awaits = own().filter(|step| step.awaits_turn).count() as u32;
    let mut read = task.clone();
    for at in group.items.iter() {
        read.steps[at].awaits_turn = false;
    }
    read.give_turns();
    prop_assert_eq!(&read, task, "the turns are not those of the record");
    prop_assert!(live - awaits <= most, "{} items run at once", live);
    prop_assert!(awaits == 0 || live - awaits == most, "a turn is free");
    let failed = counts.count(StepStatus::Error);
    let needs = task.enough(group.step).unwrap();
    match &record.state {
        StepState::Processing { .. } => {
            prop_assert!(live > 0, "a group waits for nothing");
            prop_assert!(!task.has_enough(group.step), "enough is not enough");
            prop_assert!(waiting == 0 || live >= most, "too few items run");
        }
        StepState::Processed { output, .. } => {
            let cancelled = counts.count(StepStatus::Cancelled);
            let running = counts.count(StepStatus::Processing);
            prop_assert_eq!(counts.done() + cancelled + running, counts.total());
            prop_assert!(running == 0 || needs.is_some());
            only_ends(task, group)?;
            prop_assert!(cancelled == 0 || needs.is_some());
            // An operator may have resolved a group with too few successes.
            let outputs = serde_json::from_str::<Vec<Value>>(output.as_json()).ok();
            let is_list = outputs.is_some_and(|outputs| outputs.len() == group.items.len());
            prop_assert!(is_list || needs.is_some());
        }
        StepState::Error(fault) => {
            let late = fault.kind == FaultKind::Deadline;
            prop_assert!(late || (live + waiting == 0 && (failed > 0 || needs.is_some())));
        }
        StepState::Skipped { .. } => prop_assert_eq!(counts.done(), counts.total()),
        StepState::Waiting | StepState::Pending { .. } => {
            prop_assert_eq!(waiting, counts.total(), "items run without their group");
        }
        // It has lost a race, or the task is stopped.
        StepState::Cancelled { .. } => {
            let pending = counts.count(StepStatus::Pending);
            prop_assert_eq!(pending + waiting + failed, 0);
            only_ends(task, group)?;
        }
        state => prop_assert!(false, "{state:?}"),
    }
    Ok(())
}

/// The items that run are not needed any more: a pivot is waited for, and another call is being dropped.
fn only_ends(task: &Task, group: &ItemGroup) -> Result<(), TestCaseError> {
    for at in group.items.iter() {
        let item = StepIndex(at as u16);
        let is_running = task.step(item).status() == StepStatus::Processing;
        let ends = task.definition(item).pivot || task.is_withdrawn(item);
        prop_assert!(!is_running || ends, "{item:?} runs for nothing");
    }
    Ok(())
}

/// The properties of iterations while their task is open.
fn iterations(
    task: &Task,
    group: &ItemGroup,
    counts: &StepCounts,
    at_most: u16,
) -> Result<(), TestCaseError> {
    let record = task.step(group.step);
    let is_due_later = task.next_begin(group.step).is_some();
    let statuses: Vec<_> = group
        .items
        .iter()
        .map(|at| task.steps[at].status())
        .collect();
    let open = statuses
        .iter()
        .position(|status| !matches!(status, StepStatus::Processed | StepStatus::Skipped));
    let after = open.map_or(&[][..], |open| &statuses[open + 1..]);
    let never = match record.status() {
        StepStatus::Cancelled => StepStatus::Cancelled,
        _ => StepStatus::Waiting,
    };
    prop_assert!(
        after.iter().all(|status| *status == never),
        "iterations run side by side: {statuses:?}"
    );
    match &record.state {
        StepState::Processing { .. } => {
            prop_assert_eq!(counts.live(), u32::from(!is_due_later));
            prop_assert!(counts.done() + counts.live() <= at_most.into());
        }
        StepState::Processed { .. } | StepState::Skipped { .. } => {
            prop_assert_eq!(counts.done(), counts.total());
        }
        StepState::Error(_) => {}
        StepState::Waiting | StepState::Pending { .. } => {
            let waiting = counts.count(StepStatus::Waiting);
            prop_assert_eq!(
                waiting,
                counts.total(),
                "iterations run without their group"
            );
        }
        StepState::Cancelled { .. } => {
            let begins = [StepStatus::Pending, StepStatus::Waiting];
            prop_assert!(begins.iter().all(|status| counts.count(*status) == 0));
            only_ends(task, group)?;
        }
        state => prop_assert!(false, "{state:?}"),
    }
    Ok(())
}
