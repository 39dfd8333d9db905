//! Makes a step of its row.

use super::columns::{Columns, json};
use crate::domain::{
    task::{OpenReply, SavedReplies, Step, StepHolder, StepState, StepStatus},
    values::{Effect, Span, Timestamp},
};
use crate::store::{StoreError, error::corrupt};

/// Reads a row with the columns of a step, except those by which the rows of a task are sorted.
pub(super) fn step(row: &impl Columns) -> Result<Step, StoreError> {
    let status = row.get("state")?;
    let SavedReplies {
        open,
        log,
        waits,
        signal,
        ask,
        child,
        sent_request,
        response,
        counts,
    } = json(row, "reply")?.unwrap_or_default();
    let at = || row.get("ended_at");
    let state = match status {
        StepStatus::Waiting => StepState::Waiting,
        StepStatus::Pending => StepState::Pending {
            ready_at: row.get("ready_at")?,
        },
        StepStatus::Processing => processing(row, open, waits)?,
        StepStatus::Processed => StepState::Processed {
            output: row.get("output")?,
            at: at()?,
        },
        StepStatus::Error => StepState::Error(row.get("error")?),
        StepStatus::Skipped => StepState::Skipped {
            output: row.get("output")?,
            at: at()?,
        },
        StepStatus::Cancelled => StepState::Cancelled { at: at()? },
        StepStatus::Undone => StepState::Undone {
            output: row.get("output")?,
            at: at()?,
        },
    };
    let previous_output = match status {
        StepStatus::Processed | StepStatus::Skipped | StepStatus::Undone => None,
        StepStatus::Waiting
        | StepStatus::Pending
        | StepStatus::Processing
        | StepStatus::Error
        | StepStatus::Cancelled => row.get("output")?,
    };
    let time_left = match &state {
        StepState::Pending { ready_at } => {
            let end: Option<Timestamp> = row.get("complete_by")?;
            end.map(|end| Span::from_millis(end.since(*ready_at).as_millis() as u64))
        }
        _ => None,
    };
    let (effect, is_probing) = effect(row)?;
    Ok(Step {
        state,
        previous_output,
        sent_request,
        tries: row.get("tries")?,
        time_left,
        awaits_turn: false,
        attempt: row.get("attempt")?,
        failure_count: row.get("failure_count")?,
        extensions_used: row.get("extended")?,
        effect,
        is_probing,
        body: row.get("body")?,
        started_at: row.get("started_at")?,
        last_fault: row.get("last_fault")?,
        reply_log: log,
        signal,
        ask,
        child,
        response,
        counts,
    })
}

fn processing(
    row: &impl Columns,
    open: Option<(Box<OpenReply>, Timestamp)>,
    waits: bool,
) -> Result<StepState, StoreError> {
    let (held_by, complete_by) = match (row.get("locked_by")?, open) {
        (Some(instance), Some((open, complete_by))) => {
            (StepHolder::Poll(instance, open), complete_by)
        }
        (Some(instance), None) => (StepHolder::Instance(instance), row.get("complete_by")?),
        (None, Some((open, complete_by))) => (StepHolder::Service(open), complete_by),
        (None, None) if waits => (StepHolder::Event, row.get("complete_by")?),
        (None, None) => return Err(corrupt("nobody holds a step that is processing")),
    };
    Ok(StepState::Processing {
        held_by,
        complete_by,
    })
}

/// Returns the known or unknown effect of the step, and whether its attempt calls the probe.
fn effect(row: &impl Columns) -> Result<(Effect, bool), StoreError> {
    let word = row.text("doubt")?;
    Step::parse_effect(word.as_deref()).ok_or_else(|| corrupt(format!("doubt {word:?}")))
}
