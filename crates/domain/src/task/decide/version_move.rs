//! A task moves to another version of its workflow. All of its steps change in one decision, or none.

use std::sync::Arc;

use super::{CommandOutput, Draft};
use crate::{
    task::{
        aggregate::{Details, Task},
        alert::AlertChange,
        command::Refusal,
        history::{Event, VersionChange},
        step::{Step, StepState, StepStatus},
        version_move::{MovedStep, StepChange, VersionMove, check_move, is_unclaimed},
    },
    values::ids::{AgentName, StepIndex},
};

/// Checks that the task as a whole may move. A task that has ended refuses every command.
fn may_move(task: &Task, to: &VersionMove) -> Result<(), Refusal> {
    let Some(workflow) = &task.details.workflow else {
        return Err(Refusal::TaskState {
            status: task.status(),
            needed: "it has inline steps, and only a task of a workflow can move to another version: clone it instead",
        });
    };
    if task.undo.is_some() {
        return Err(Refusal::TaskState {
            status: task.status(),
            needed: "it is being undone by the version that it has",
        });
    }
    if task.expansion.is_some() {
        return Err(Refusal::TaskState {
            status: task.status(),
            needed: "the list of one of its steps with `for_each` is known, or one with `repeat` has begun, and their items belong to the version that it has",
        });
    }
    if task.has_begun_finally() {
        return Err(Refusal::TaskState {
            status: task.status(),
            needed: "the steps of its `finally` have begun, and a version that adds steps before them would come too late",
        });
    }
    // Each step of the task must keep its index: another move may have added steps since this one was prepared.
    let (had, steps) = (&task.details.definition, &to.definition);
    let is_kept =
        had.steps.len() <= steps.steps.len() && had.names().zip(steps.names()).all(|(a, b)| a == b);
    if workflow.name != to.workflow.name || !is_kept {
        return Err(Refusal::MovedMeanwhile);
    }
    let mut kept = had.steps.iter().zip(&steps.steps).zip(0..);
    let changes_place = |at| !had.is_removed(StepIndex(at)) && !steps.is_removed(StepIndex(at));
    if kept.any(|((a, b), at)| a.is_finally != b.is_finally && changes_place(at)) {
        return Err(Refusal::TaskState {
            status: task.status(),
            needed: "one of its steps would move from `steps` to `finally` or back: give it another name there",
        });
    }
    Ok(())
}

impl Draft {
    pub(super) fn migrate(
        &mut self,
        to: &VersionMove,
        reason: Option<String>,
    ) -> Result<CommandOutput, Refusal> {
        may_move(&self.task, to)?;
        if self.task.details.workflow.as_ref() == Some(&to.workflow) {
            return Ok(CommandOutput::Unchanged);
        }
        let report = check_move(&self.task, to);
        let unmapped = report.unmapped();
        if !unmapped.is_empty() {
            return Err(Refusal::Unmapped {
                version: to.workflow.version,
                steps: unmapped.into(),
            });
        }
        let is_read_then = |index: StepIndex| {
            let steps = &to.definition.steps;
            let undo = steps.get(index.at()).and_then(|step| step.undo);
            undo.is_some_and(|undo| to.definition.step(undo).reads_request)
        };
        self.keep_sent_requests(self.task.forward(), |task, index| {
            task.undo_reads_request(index) || is_read_then(index)
        })?;
        // The record says of steps without rows what the version before said of them.
        self.touch_all();
        let from = self.task.details.workflow.as_ref();
        let change = VersionChange {
            from: from.map_or(0, |from| from.version),
            to: to.workflow.version,
        };
        for step in &report.steps {
            match step.change {
                Some(StepChange::Removed) => self.remove_step(step.index, change),
                Some(StepChange::Reset) => self.reset_step(step.index, change),
                _ => {}
            }
        }
        let before = self.task.status().as_str();
        let had = self.task.steps.len();
        self.had_steps.get_or_insert(had);
        let (agents, changed) = (self.agents(), self.changed_work(&report.steps));
        let is_returned = |index: &StepIndex| self.task.is_removed(*index);
        let returned: Vec<_> = to.definition.listed().filter(is_returned).collect();
        self.task.details = Arc::new(moved(&self.task.details, to));
        let count = self.task.details.definition.steps.len();
        self.task.steps.grow_own(count);
        for index in returned {
            let reason = format!("version {} has it again", change.to);
            self.change(index, "step.reset", StepState::Waiting, Some(reason));
            let attempt = self.task.step(index).attempt;
            *self.task.step_mut(index) = Step {
                attempt,
                ..Step::new()
            };
        }
        for index in changed {
            // The fields that were made from the earlier request say nothing of the new one.
            let step = self.task.step_mut(index);
            step.body = None;
            step.child = None;
            step.tries = 0;
            step.time_left = None;
            self.touch(index);
        }
        for index in self.task.indexes() {
            let is_known = agents.get(index.at());
            let agent = self.task.definition(index).agent();
            // Pending steps may belong to another lane.
            let is_pending = self.task.step(index).status() == StepStatus::Pending;
            if is_pending || is_known.is_none_or(|known| known.as_ref() != agent) {
                self.touch(index);
            }
        }
        self.events.push(Event {
            reason,
            versions: Some(change),
            ..Event::task_note("task.migrated", before, self.by.clone())
        });
        // The policies of the version before no longer say what follows their faults: an operator does.
        for (index, fault) in self.take_waiting_undos() {
            self.raise(index, &fault);
        }
        if self.task.start_at.is_none() {
            for index in self.task.details.definition.forward() {
                self.open(index);
            }
            self.end_all_lost();
        }
        self.settle(None);
        Ok(CommandOutput::Done)
    }

    /// Its position stays, and is empty from now on.
    fn remove_step(&mut self, index: StepIndex, change: VersionChange) {
        self.ready.retain(|ready| *ready != index);
        match self.task.step(index).status() {
            StepStatus::Skipped => return,
            StepStatus::Error => self.alerts.push(AlertChange::Close { step: index }),
            _ => {}
        }
        let skipped = StepState::Skipped {
            output: None,
            at: self.now,
        };
        let reason = format!("version {} does not have it", change.to);
        self.change(index, "step.removed", skipped, Some(reason));
    }

    /// Back to where the step waits for those before it. It had no effect.
    fn reset_step(&mut self, index: StepIndex, change: VersionChange) {
        self.ready.retain(|ready| *ready != index);
        if self.task.step(index).status() == StepStatus::Error {
            self.alerts.push(AlertChange::Close { step: index });
        }
        let step = self.task.step_mut(index);
        step.failure_count = 0;
        step.extensions_used = 0;
        let reason = format!("it differs in version {}", change.to);
        self.change(index, "step.reset", StepState::Waiting, Some(reason));
    }

    fn agents(&self) -> Vec<Option<AgentName>> {
        let steps = self.task.indexes();
        let agents = steps.map(|index| self.task.definition(index).agent().cloned());
        agents.collect()
    }

    /// The steps whose work differs and that have been claimed, without effect.
    fn changed_work(&self, steps: &[MovedStep]) -> Vec<StepIndex> {
        const WORK: [&str; 8] = [
            "agent", "url", "request", "wait", "signal", "task", "for_each", "repeat",
        ];
        let differs = |step: &&MovedStep| {
            step.state.is_some()
                && step
                    .differs
                    .iter()
                    .any(|field| WORK.contains(&field.as_str()))
                && !is_unclaimed(self.task.step(step.index))
        };
        steps
            .iter()
            .filter(differs)
            .map(|step| step.index)
            .collect()
    }
}

fn moved(details: &Details, to: &VersionMove) -> Details {
    Details {
        id: details.id,
        key: details.key.clone(),
        workflow: Some(to.workflow.clone()),
        definition: to.definition.clone(),
        input: details.input.clone(),
        labels: details.labels.clone(),
        priority: details.priority,
        complete_within: details.complete_within,
        trace: details.trace.clone(),
        start_at: details.start_at,
        parent: details.parent.clone(),
        key_prefix: details.key_prefix.clone(),
        reply_to: details.reply_to.clone(),
    }
}
