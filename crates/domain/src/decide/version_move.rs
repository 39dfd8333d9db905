//! A task moves to another version of its workflow. All of its steps change in one decision, or none.

use std::sync::Arc;

use super::{CommandOutput, Draft};
use crate::{
    alert::AlertChange,
    command::Refusal,
    fault::Effect,
    history::{Actor, Event, VersionChange},
    ids::{AgentName, StepIndex},
    step::{Step, StepState, StepStatus},
    task::Details,
    time::Timestamp,
    version_move::{MovedStep, StepChange, VersionMove, check_move, is_unclaimed, may_move},
};

impl Draft {
    pub(super) fn migrate(
        &mut self,
        to: &VersionMove,
        reason: Option<String>,
        by: &Actor,
        now: Timestamp,
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
        // The record says of steps without rows what the version before said of them.
        self.touch_all();
        let from = self.task.details.workflow.as_ref();
        let change = VersionChange {
            from: from.map_or(0, |from| from.version),
            to: to.workflow.version,
        };
        for step in &report.steps {
            match step.change {
                Some(StepChange::Removed) => self.remove_step(step.index, change, by, now),
                Some(StepChange::Reset) => self.reset_step(step.index, change, by),
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
            self.change(index, "step.reset", StepState::Waiting, by, Some(reason));
            let attempt = self.task.step(index).attempt;
            *self.task.step_mut(index) = Step {
                attempt,
                ..Step::new()
            };
        }
        for index in changed {
            // What was made of the request before says nothing of the new one.
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
            kind: "task.migrated".into(),
            step: None,
            attempt: None,
            from: Some(before.into()),
            to: before.into(),
            by: by.clone(),
            reason,
            ready_at: None,
            failure_count: None,
            effect: Effect::Known,
            error: None,
            versions: Some(change),
        });
        // The policies of the version before no longer say what follows their faults: an operator does.
        for (index, fault) in self.take_waiting_undos() {
            self.raise(index, &fault);
        }
        if self.task.start_at.is_none() {
            for index in self.task.details.definition.forward() {
                self.open(index, by, now);
            }
        }
        self.settle(by, None, now);
        Ok(CommandOutput::Done)
    }

    /// Its position stays, and is empty from now on.
    fn remove_step(&mut self, index: StepIndex, change: VersionChange, by: &Actor, now: Timestamp) {
        self.ready.retain(|ready| *ready != index);
        match self.task.step(index).status() {
            StepStatus::Skipped => return,
            StepStatus::Error => self.alerts.push(AlertChange::Close { step: index }),
            _ => {}
        }
        let skipped = StepState::Skipped {
            output: None,
            at: now,
        };
        let reason = format!("version {} does not have it", change.to);
        self.change(index, "step.removed", skipped, by, Some(reason));
    }

    /// Back to where the step waits for those before it. It had no effect.
    fn reset_step(&mut self, index: StepIndex, change: VersionChange, by: &Actor) {
        self.ready.retain(|ready| *ready != index);
        if self.task.step(index).status() == StepStatus::Error {
            self.alerts.push(AlertChange::Close { step: index });
        }
        let step = self.task.step_mut(index);
        step.failure_count = 0;
        step.extensions_used = 0;
        let reason = format!("it differs in version {}", change.to);
        self.change(index, "step.reset", StepState::Waiting, by, Some(reason));
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
