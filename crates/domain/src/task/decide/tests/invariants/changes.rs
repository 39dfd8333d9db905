//! The properties of a task before and after a command, and of its history.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::task::bulk::BulkAction;

/// Nothing but an operator has a paused task begin, or be undone.
pub(super) fn held(before: &Task, after: &Task, command: &Command) -> Result<(), TestCaseError> {
    let is_asked = matches!(
        command,
        Command::Resume { .. }
            | Command::Start { .. }
            | Command::Undo { .. }
            | Command::Cancel { .. }
    );
    if before.paused && !is_asked {
        prop_assert!(after.paused, "{command:?} ended its pause");
        // A signal by an operator, and what skips its steps, may end it before it begins.
        let started = before.start_at.is_some() && after.start_at.is_none();
        prop_assert!(!started, "{command:?} started it");
        let is_undone = after.undo.is_some() && before.undo.is_none();
        prop_assert!(!is_undone, "{command:?} began its undo");
    }
    Ok(())
}

/// A task with the reply logs of another: all else must be equal.
pub(super) fn without_reply_logs(task: &Task, with: &Task) -> Task {
    let mut task = task.clone();
    task.untouched.clone_from(&with.untouched);
    task.own_claim = with.own_claim;
    for index in task.indexes() {
        task.step_mut(index).reply_log = with.step(index).reply_log.clone();
    }
    task
}

/// A bulk command can search all states in which a task accepts it.
pub(super) fn bulk_states(bench: &Bench) -> Result<(), TestCaseError> {
    let reason = None;
    let retry = Command::Retry {
        step: None,
        body: None,
        reason: None,
    };
    let skip = Command::SkipFailed {
        step: None,
        output: None,
        reason: None,
    };
    for (action, command) in [
        (BulkAction::Retry, retry),
        (BulkAction::Skip, skip),
        (BulkAction::Cancel, Command::Cancel { reason: None }),
        (BulkAction::Undo, Command::Undo { reason }),
    ] {
        let state = bench.draft.task.status();
        let mut copy = Draft::on(bench.draft.task.clone());
        let is_accepted = copy.apply(command, &bench.by, bench.now).is_ok();
        let is_searched = action.named_states().contains(&state);
        // Bulk commands do not look for failed steps in paused tasks.
        let mut waiting = bench.draft.task.faults_that_undo_on_resume();
        let undo_waits = waiting.next().is_some();
        prop_assert!(
            is_searched || !is_accepted || undo_waits,
            "{action:?} of a task that is {state:?}"
        );
    }
    Ok(())
}

/// The properties of every claim that does work, from the view of its service.
pub(super) fn calls(before: &Task, after: &Task, command: &Command) -> Result<(), TestCaseError> {
    let Command::Claim { step, .. } = command else {
        return Ok(());
    };
    let claimed = after.step(*step);
    if let Some(undone) = before.definition(*step).undoes {
        prop_assert!(
            !matches!(before.step(undone).state, StepState::Processing { .. }),
            "{undone:?} is undone, or asked about, while a try can follow"
        );
    }
    if !matches!(claimed.state, StepState::Processing { .. }) || claimed.is_probing {
        return Ok(());
    }
    let definition = before.definition(*step);
    let Some(undone) = definition.undoes else {
        let asked = definition.probe.is_none() || before.step(*step).effect == Effect::Known;
        prop_assert!(asked, "{step:?} was repeated without asking its probe");
        return Ok(());
    };
    prop_assert!(
        before.step(undone).may_have_taken_effect(),
        "{undone:?} was undone although it never took effect"
    );
    if before.is_revert(*step) {
        for follower in all_followers(before, undone) {
            let own = before.definition(follower);
            let revert = own.followers.iter().find(|step| before.is_revert(**step));
            let over = revert.is_none_or(|revert| revert == step || before.step(*revert).is_done());
            let shares = own
                .lanes
                .iter()
                .any(|lane| before.definition(undone).lanes.contains(lane));
            prop_assert!(over || !shares, "{undone:?} is undone before {follower:?}");
        }
        return Ok(());
    }
    for follower in all_followers(before, undone) {
        let undo = before.definition(follower).undo;
        let over = undo.is_none_or(|undo| before.step(undo).is_done());
        prop_assert!(over, "{undone:?} is undone before {follower:?}");
    }
    Ok(())
}

pub(super) fn all_followers(task: &Task, step: StepIndex) -> Vec<StepIndex> {
    let mut all = task.definition(step).followers.to_vec();
    let mut at = 0;
    while let Some(index) = all.get(at).copied() {
        for follower in &*task.definition(index).followers {
            if !all.contains(follower) {
                all.push(*follower);
            }
        }
        at += 1;
    }
    all
}

/// The properties of a task before and after a command.
pub(super) fn compare(before: &Task, after: &Task, command: &Command) -> Result<(), TestCaseError> {
    let again = matches!(command, Command::RetryFrom { .. });
    let moves = matches!(command, Command::Migrate { .. });
    if moves {
        moved(before, after)?;
    }
    for index in before.indexes() {
        if after.undo.is_some() && before.undo.is_none() && !before.is_current(index) {
            continue;
        }
        let (old, new) = (before.step(index), after.step(index));
        if again && before.definition(index).is_call() {
            prop_assert_eq!(
                old.may_have_taken_effect(),
                new.may_have_taken_effect(),
                "what {:?} did was forgotten",
                index
            );
        }
        let claimed = matches!(command, Command::Claim { step, .. } if *step == index);
        let is_call = before.definition(index).is_call();
        // A wait is not claimed: it begins.
        let begun =
            (!is_call || moves && !after.definition(index).is_call()) && new.attempt != old.attempt;
        let expected = old.attempt.0 + u32::from(claimed || begun);
        prop_assert_eq!(new.attempt.0, expected, "attempts count claims, one by one");
        let is_held = |task: &Task| task.paused || task.has_not_begun();
        prop_assert!(
            new.attempt == old.attempt || !is_held(before) || !is_held(after),
            "{index:?} began while its task was held"
        );
        let most = before.definition(index).max_failures;
        let left_behind =
            !before.is_current(index) || before.is_lost(index) || before.is_withdrawn(index);
        let expired = match command {
            Command::Expire { step, cause, .. } if *step == index && !left_behind && is_call => {
                *cause == Expiry::CompleteBy || old.failure_count < most
            }
            Command::Reply {
                step,
                outcome: CallOutcome::Crashed(_),
                ..
            } => *step == index && !left_behind,
            Command::Reply {
                step,
                outcome: CallOutcome::Transient { .. },
                ..
            } => *step == index && !left_behind && new.tries == 0,
            _ => false,
        };
        let retried =
            (again || moves || matches!(command, Command::Retry { .. })) && new.failure_count == 0;
        if !retried {
            let expected = old.failure_count + u32::from(expired);
            prop_assert_eq!(
                new.failure_count,
                expected,
                "failures are counted one by one"
            );
        }
        let returned = before.is_removed(index) && !after.is_removed(index);
        // An operator has items tried again of which too few have succeeded.
        let is_tried_again = matches!(command, Command::Retry { .. })
            && old.status() == StepStatus::Skipped
            && before.enough(before.group_of(index)).unwrap().is_some();
        let is_reverted = new.status() == StepStatus::Undone && after.is_lost(index);
        let may_change = again || returned || is_tried_again || is_reverted;
        if old.is_done() && after.undo.is_none() && !may_change {
            prop_assert_eq!(old, new, "a step that is done never changes");
        }
    }
    Ok(())
}

/// The properties of a task before and after it moves to another version.
fn moved(before: &Task, after: &Task) -> Result<(), TestCaseError> {
    prop_assert!(
        before
            .details
            .definition
            .names()
            .zip(after.details.definition.names())
            .all(|(a, b)| a == b)
    );
    for index in before.details.definition.forward() {
        let (old, new) = (before.step(index), after.step(index));
        if old.may_have_taken_effect() || old.status() == StepStatus::Processing {
            prop_assert!(!after.is_removed(index), "{index:?} is gone, and had begun");
            // A step of the new version may have the task undone or stopped at once, or win a race, or the running step is not wanted
            // any more: then its call is dropped, and may have had effect.
            let is_ended = after.undo.is_some() || is_given_up(after, index);
            let is_dropped = is_ended && old.status() == StepStatus::Processing;
            let effects = (old.may_have_taken_effect(), new.may_have_taken_effect());
            prop_assert!(
                effects.0 == effects.1 || is_dropped && effects.1,
                "{effects:?}"
            );
        }
        let runs =
            matches!(old.state, StepState::Processing { .. }) && before.definition(index).is_call();
        if runs && after.undo.is_none() && !is_given_up(after, index) {
            prop_assert_eq!(old, new, "what runs goes on");
        }
    }
    Ok(())
}

/// Returns whether the running call of a step is dropped, because nothing needs it.
fn is_given_up(task: &Task, index: StepIndex) -> bool {
    let status = task.step(index).status();
    task.is_withdrawn(index) || matches!(status, StepStatus::Cancelled | StepStatus::Skipped)
}

/// The history alone tells every state a step and the task went through.
pub(super) fn replay(draft: &Draft) -> Result<(), TestCaseError> {
    let mut states: HashMap<&str, &str> = HashMap::new();
    let mut task = None;
    for event in &draft.events {
        match &event.step {
            Some(step) => {
                let known = states.get(step.as_str()).copied().unwrap_or("waiting");
                let unbegun = known == "waiting"
                    && step.as_str().contains('[')
                    && matches!(event.from.as_deref(), Some("cancelled" | "skipped"));
                prop_assert!(unbegun || Some(known) == event.from.as_deref(), "{event:?}");
                states.insert(step.as_str(), &event.to);
            }
            None => {
                prop_assert_eq!(task, event.from.as_deref(), "{:?}", event);
                task = Some(&event.to);
            }
        }
    }
    for index in draft.task.indexes() {
        let name = draft.task.definition(index).name.as_str();
        let told = states.get(name).copied().unwrap_or("waiting");
        let status = draft.task.step(index).status();
        // The history says of all items together that they never began.
        let is_item = draft.task.definition(index).item.is_some();
        let unbegun = is_item && told == "waiting" && draft.task.step(index).attempt.0 == 0;
        let ended = matches!(status, StepStatus::Cancelled | StepStatus::Skipped);
        prop_assert!(
            told == status.as_str() || unbegun && ended,
            "{name} is {status:?}, not {told}"
        );
    }
    prop_assert_eq!(task, Some(draft.task.status().as_str()));
    Ok(())
}
