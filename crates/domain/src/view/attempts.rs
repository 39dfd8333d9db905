//! The attempt of a step that is under way, or the last one, made from the record of the task.

use crate::{
    task::{
        AttemptExchange, AttemptPurpose, AttemptRecord, AttemptResult, RecordedRequest, Task,
        decide::{Secrets, call},
        step::{StepState, StepStatus},
    },
    template::Budget,
    values::{
        ids::{Attempt, StepIndex},
        time::Timestamp,
    },
};

/// Returns the last attempt of a step and its result: the one that is under way or has succeeded, if it is not recorded,
/// otherwise the last that is recorded.
pub(super) fn latest_attempt(
    task: &Task,
    index: StepIndex,
    now: Timestamp,
    recorded: Option<AttemptRecord>,
) -> Option<(AttemptRecord, Option<AttemptResult>)> {
    let current = current_attempt(task, index, now).filter(|(record, result)| {
        let is_of = |last: &AttemptRecord| last.attempt == record.attempt;
        result.is_none() || !recorded.as_ref().is_some_and(is_of)
    });
    let recorded = recorded.map(|record| {
        let result = record.result;
        (record, Some(result))
    });
    current.or(recorded)
}

/// Returns the attempt of a step that is under way, without a result; or its last attempt, if that has succeeded. Its
/// request is rendered from the record of the task. `None` if the last attempt failed, or if there is none.
pub fn current_attempt(
    task: &Task,
    index: StepIndex,
    now: Timestamp,
) -> Option<(AttemptRecord, Option<AttemptResult>)> {
    let definition = task.definition(index);
    let step = task.step(index);
    if !definition.is_call() || step.attempt == Attempt::default() {
        return None;
    }
    let result = match step.status() {
        StepStatus::Processing => None,
        StepStatus::Processed | StepStatus::Undone => Some(AttemptResult::Succeeded),
        _ => return None,
    };
    let budget = Budget::evaluation();
    let rendered = call(task, index, now, now, &budget, Secrets::Hidden).ok();
    let purpose = rendered.as_ref().map_or(AttemptPurpose::Work, |call| {
        AttemptPurpose::from(&call.purpose)
    });
    let (instance, ended_at) = match &step.state {
        StepState::Processing { held_by, .. } => (held_by.instance().cloned(), now),
        StepState::Processed { at, .. } | StepState::Undone { at, .. } => (None, *at),
        _ => (None, now),
    };
    let exchange = rendered.map(|call| {
        Box::new(AttemptExchange::rendered(
            RecordedRequest::of(&call),
            instance,
        ))
    });
    let record = AttemptRecord {
        step: index,
        attempt: step.attempt,
        purpose,
        result: result.unwrap_or(AttemptResult::Succeeded),
        ended_at,
        reason: None,
        error: None,
        next_at: None,
        exchange,
    };
    Some((record, result))
}
