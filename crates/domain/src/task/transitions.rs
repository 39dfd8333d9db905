//! All state changes of steps and tasks. Decisions make no others: each change is looked up here in debug builds, and
//! `docs/state-machine.md` is drawn from these tables.

use crate::task::{status::TaskStatus, step::StepStatus};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transition<S> {
    pub from: S,
    /// The event in the task's history.
    pub event: &'static str,
    pub to: S,
    pub why: &'static str,
}

const fn step(
    from: StepStatus,
    event: &'static str,
    to: StepStatus,
    why: &'static str,
) -> Transition<StepStatus> {
    Transition {
        from,
        event,
        to,
        why,
    }
}

const fn task(from: TaskStatus, to: TaskStatus, why: &'static str) -> Transition<TaskStatus> {
    Transition {
        from,
        event: to.event(),
        to,
        why,
    }
}

const MOVED: &str = "the task moved to another version of its workflow, in which the step differs";
const RETURNED: &str = "the task moved to a version of its workflow that has the step again";
const REMOVED: &str =
    "the task moved to another version of its workflow, which does not have the step";
const AGAIN: &str =
    "an operator reran it, or a step before it, or retried a list with too few successes";
const PROBED: &str = "the task is being undone, and the probe found that the step took effect";
const DOUBTED: &str = "its undo is done; its outcome was unknown";

pub const STEP_TRANSITIONS: &[Transition<StepStatus>] = {
    use StepStatus::{Cancelled, Error, Pending, Processed, Processing, Skipped, Undone, Waiting};
    &[
        step(
            Waiting,
            "step.ready",
            Pending,
            "every step it follows is done, or as many as it needs; or, for an undo, every step that followed the one it undoes is undone",
        ),
        step(
            Waiting,
            "step.skipped",
            Skipped,
            "its condition is false; it needs more steps than can still succeed, and on_permanent is skip; or, for an undo, the step that it undoes never took effect, or is needed",
        ),
        step(
            Waiting,
            "step.error",
            Error,
            "its condition could not be evaluated, or too few of the steps that it needs can still succeed",
        ),
        step(
            Waiting,
            "step.cancelled",
            Cancelled,
            "the task was cancelled or is being undone, or it is not needed any more",
        ),
        step(
            Pending,
            "step.claimed",
            Processing,
            "the scheduler claimed it for a new attempt",
        ),
        step(
            Pending,
            "step.began",
            Processing,
            "it calls no service, and begins to wait for its time or its signal; or it has items, and their list is known, or its first iteration begins",
        ),
        step(
            Pending,
            "step.error",
            Error,
            "its request could not be made, or the task's complete-by passed",
        ),
        step(
            Pending,
            "step.skipped",
            Skipped,
            "an operator skipped it; its request could not be made and on_permanent is skip; its `while` is not true any more; or it ends a block without a success, in which steps failed and were skipped",
        ),
        step(
            Pending,
            "step.processed",
            Processed,
            "it only names values, or ends the task",
        ),
        step(
            Pending,
            "step.resolved",
            Processed,
            "an operator resolved it",
        ),
        step(
            Pending,
            "step.retried",
            Pending,
            "an operator retried it at once instead of later",
        ),
        step(
            Pending,
            "step.cancelled",
            Cancelled,
            "the task was cancelled or is being undone, or it is not needed any more",
        ),
        step(
            Processing,
            "step.deferred",
            Processing,
            "the service promised to reply later; no instance holds the attempt until then",
        ),
        step(
            Processing,
            "step.processed",
            Processed,
            "the agent reported success for the current attempt, or its probe found that it took effect; or its time or its signal has come, its items have ended, or its `until` is true",
        ),
        step(
            Processing,
            "step.resolved",
            Processed,
            "it waits for a time or a signal, and an operator resolved it",
        ),
        step(
            Processing,
            "step.error",
            Error,
            "the service refused permanently, the retries are used up, no signal came, an operator cancelled its call, or the task's complete-by passed",
        ),
        step(
            Processing,
            "step.skipped",
            Skipped,
            "the service refused permanently, or the retries are used up, and the policy is skip; for an undo, the probe found nothing to undo; it waits for a time or a signal, and an operator skipped it; no signal came, and on_timeout is skip; or its `while` is not true any more, and its call has ended",
        ),
        step(
            Processing,
            "step.probed",
            Pending,
            "the probe has responded, and the step's own call comes next",
        ),
        step(
            Processing,
            "step.retrying",
            Pending,
            "a transient fault: it is retried after a backoff, within its remaining time",
        ),
        step(
            Processing,
            "step.expired",
            Pending,
            "complete-by passed, or would pass before the next attempt: it is retried after a backoff; or the instance that held it was lost: it is retried at once",
        ),
        step(
            Processing,
            "step.extended",
            Pending,
            "the retries are used up and on_exhausted grants more time",
        ),
        step(
            Processing,
            "step.released",
            Pending,
            "the instance that held it stopped, restarted or never called, or no slot was freed for a step that was claimed ahead; no failure is counted",
        ),
        step(
            Processing,
            "step.cancelled",
            Cancelled,
            "the task was cancelled or is being undone, or it is not needed any more; the call was dropped, or ended without a response, and its outcome is unknown",
        ),
        step(Error, "step.retried", Pending, "an operator retried it"),
        step(
            Error,
            "step.retried",
            Waiting,
            "an operator retried it and its condition is evaluated again, or reran a step before it; or its items go on",
        ),
        step(Pending, "step.retried", Waiting, AGAIN),
        step(
            Processing,
            "step.retried",
            Waiting,
            "it waits for a time or a signal, and an operator reran it, or a step before it",
        ),
        step(Processed, "step.retried", Waiting, AGAIN),
        step(Skipped, "step.retried", Waiting, AGAIN),
        step(Pending, "step.reset", Waiting, MOVED),
        step(Error, "step.reset", Waiting, MOVED),
        step(Skipped, "step.reset", Waiting, RETURNED),
        step(Waiting, "step.removed", Skipped, REMOVED),
        step(Pending, "step.removed", Skipped, REMOVED),
        step(Error, "step.removed", Skipped, REMOVED),
        step(
            Error,
            "step.skipped",
            Skipped,
            "an operator skipped it, or its `while` is not true any more",
        ),
        step(Cancelled, "step.retried", Waiting, AGAIN),
        step(
            Error,
            "step.cancelled",
            Cancelled,
            "a race has ended without it",
        ),
        step(Error, "step.resolved", Processed, "an operator resolved it"),
        step(Error, "step.processed", Processed, PROBED),
        step(Skipped, "step.processed", Processed, PROBED),
        step(Cancelled, "step.processed", Processed, PROBED),
        step(Processed, "step.undone", Undone, "its undo is done"),
        step(Error, "step.undone", Undone, DOUBTED),
        step(Skipped, "step.undone", Undone, DOUBTED),
        step(Cancelled, "step.undone", Undone, DOUBTED),
    ]
};

pub const TASK_TRANSITIONS: &[Transition<TaskStatus>] = {
    use TaskStatus::{Cancelled, Error, Paused, Pending, Processed, Processing, Undoing, Undone};
    &[
        task(
            Pending,
            Processing,
            "its first step was claimed or is done, and it waits for nothing else to begin",
        ),
        task(Pending, Processed, "every step was skipped"),
        task(Pending, Error, "a step is in error"),
        task(Pending, Paused, "an operator paused it"),
        task(Pending, Cancelled, "it was cancelled"),
        task(
            Processing,
            Processed,
            "every step is processed or skipped, or is not needed any more",
        ),
        task(Processing, Error, "a step is in error"),
        task(
            Processing,
            Paused,
            "an operator paused it; running calls may finish",
        ),
        task(Processing, Cancelled, "it was cancelled"),
        task(
            Processing,
            Pending,
            "an operator reran it from a step, before any step had been claimed; or it waits to be admitted, and an earlier version of Provost recorded it as processing",
        ),
        task(
            Paused,
            Pending,
            "an operator resumed it before any step had been claimed",
        ),
        task(Paused, Processing, "an operator resumed it"),
        task(Paused, Processed, "its last running step finished"),
        task(Paused, Error, "a running step failed"),
        task(Paused, Cancelled, "it was cancelled"),
        task(
            Error,
            Pending,
            "its failed steps were retried before any step had been claimed",
        ),
        task(
            Error,
            Processing,
            "its failed steps were retried, skipped or resolved",
        ),
        task(
            Error,
            Processed,
            "its last failed step was skipped or resolved",
        ),
        task(
            Error,
            Paused,
            "its failed steps were retried, skipped or resolved while it was paused",
        ),
        task(Error, Cancelled, "it was cancelled"),
        task(
            Pending,
            Undoing,
            "its undo was requested, or a policy requires it; or it was cancelled, and has steps in `finally`",
        ),
        task(
            Processing,
            Undoing,
            "its undo was requested, or a policy requires it; or it was cancelled, and has steps in `finally`",
        ),
        task(
            Paused,
            Undoing,
            "its undo was requested; or it was cancelled, and has steps in `finally`; or an operator resumed it, and a policy had required its undo meanwhile",
        ),
        task(
            Error,
            Undoing,
            "its undo was requested; or a failed undo step was retried, skipped or resolved; or it was cancelled, and has steps in `finally`",
        ),
        task(
            Processed,
            Undoing,
            "an operator has what is done undone, as long as its `undoable_for` allows it",
        ),
        task(
            Undoing,
            Undone,
            "every effect is undone, or its undo was skipped, and the steps of `finally` have ended",
        ),
        task(
            Undoing,
            Error,
            "an undo step or one of `finally` is in error",
        ),
        task(
            Undoing,
            Paused,
            "an operator paused it; running calls may finish",
        ),
        task(
            Undoing,
            Cancelled,
            "it was cancelled, and the steps of `finally` have ended",
        ),
        task(Paused, Undone, "its last running undo finished"),
        task(
            Error,
            Undone,
            "its last failed undo was skipped or resolved",
        ),
    ]
};

/// Returns whether the table has this change of a step.
pub fn allows_step(from: StepStatus, event: &str, to: StepStatus) -> bool {
    STEP_TRANSITIONS
        .iter()
        .any(|row| row.from == from && row.event == event && row.to == to)
}

/// Returns whether the table has this change of a task.
pub fn allows_task(from: TaskStatus, to: TaskStatus) -> bool {
    TASK_TRANSITIONS
        .iter()
        .any(|row| row.from == from && row.to == to)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{collections::BTreeSet, fmt::Write};

    use super::*;

    pub(crate) const DOCUMENT: &str = include_str!("../../../../docs/state-machine.md");

    pub(crate) fn drawn<S: Copy + Ord>(
        rows: &[Transition<S>],
        name: impl Fn(S) -> &'static str,
        first: &str,
        last: &[&str],
    ) -> String {
        let mut text = format!("```mermaid\nstateDiagram-v2\n    [*] --> {first}\n");
        let arrows: BTreeSet<_> = rows.iter().map(|row| (row.from, row.to)).collect();
        for (from, to) in arrows {
            let events: BTreeSet<_> = rows
                .iter()
                .filter(|row| (row.from, row.to) == (from, to))
                .map(|row| row.event)
                .collect();
            let events = events.into_iter().collect::<Vec<_>>().join(", ");
            writeln!(text, "    {} --> {}: {events}", name(from), name(to)).unwrap();
        }
        for end in last {
            writeln!(text, "    {end} --> [*]").unwrap();
        }
        text.push_str("```\n\n| from | event | to | when |\n| --- | --- | --- | --- |\n");
        for row in rows {
            let (from, to) = (name(row.from), name(row.to));
            writeln!(text, "| {from} | {} | {to} | {} |", row.event, row.why).unwrap();
        }
        text
    }

    /// On a difference, the expected text is in the message: copy it over.
    #[test]
    fn the_document_draws_exactly_these_tables() {
        let steps = drawn(
            STEP_TRANSITIONS,
            StepStatus::as_str,
            "waiting",
            &["processed", "skipped", "cancelled", "undone"],
        );
        assert!(
            DOCUMENT.contains(&steps),
            "docs/state-machine.md lacks:\n{steps}"
        );
        let tasks = drawn(
            TASK_TRANSITIONS,
            TaskStatus::as_str,
            "pending",
            &["processed", "undone", "cancelled"],
        );
        assert!(
            DOCUMENT.contains(&tasks),
            "docs/state-machine.md lacks:\n{tasks}"
        );
    }

    #[test]
    fn nothing_but_an_undo_leaves_an_ended_state() {
        for row in TASK_TRANSITIONS {
            let is_undo = row.from == TaskStatus::Processed && row.to == TaskStatus::Undoing;
            assert!(is_undo || !row.from.is_ended(), "{row:?}");
        }
        for row in STEP_TRANSITIONS {
            let over = [
                StepStatus::Processed,
                StepStatus::Skipped,
                StepStatus::Cancelled,
            ];
            // Only an undo, or an operator who has a step run again, changes a step that is over.
            let by_undo = row.to == StepStatus::Undone || row.why == PROBED;
            assert!(
                by_undo || [AGAIN, RETURNED].contains(&row.why) || !over.contains(&row.from),
                "{row:?}"
            );
            assert!(row.from != StepStatus::Undone, "{row:?}");
        }
    }
}
