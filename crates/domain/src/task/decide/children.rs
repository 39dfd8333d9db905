//! Steps that have tasks of their own: they begin as soon as they are ready, and are informed of their children.

use std::sync::Arc;

use serde_json::json;

use super::Draft;
use crate::{
    task::{
        aggregate::Details,
        child_record::{Child, ChildEnd, ChildReport},
        command::Refusal,
        status::TaskStatus,
        step::{StepState, StepStatus},
    },
    template::payload::Payload,
    values::{
        fault::Fault,
        ids::{Attempt, StepIndex},
        time::Span,
    },
};

impl Draft {
    /// Checks that a child may be made now for this attempt of a step.
    pub fn check_child(&self, index: StepIndex, attempt: Attempt) -> Result<(), Refusal> {
        self.check_fence(index, attempt)?;
        let is_forward = self.task.is_current(index) && self.task.undo.is_none();
        if is_forward && self.task.waits_for_child(index) && self.task.step(index).child.is_none() {
            return Ok(());
        }
        Err(self.refuse_step(index, "it has its task already, or needs none"))
    }

    /// A child is made in the same transaction.
    pub(super) fn begin_child(
        &mut self,
        index: StepIndex,
        attempt: Attempt,
        child: &Arc<Details>,
    ) -> Result<(), Refusal> {
        self.check_child(index, attempt)?;
        let reason = match &child.workflow {
            Some(workflow) => format!(
                "its task is {}, of workflow {} version {}",
                child.id, workflow.name, workflow.version
            ),
            None => format!("its task is {}", child.id),
        };
        self.task.step_mut(index).child = Some(Box::new(Child {
            id: child.id,
            state: TaskStatus::Pending,
        }));
        self.note_child(index, "step.child", reason);
        let rule = self.task.definition(index).child_rule();
        if rule.is_some_and(|rule| !rule.is_awaited) {
            let workflow = child.workflow.as_ref();
            let output = json!({
                "id": child.id.0,
                "workflow": workflow.map(|workflow| workflow.name.as_str()),
                "version": workflow.map(|workflow| workflow.version),
            });
            let reason = "nobody waits for its task".to_owned();
            self.succeed(index, Payload::from_value(&output), Some(reason));
        }
        Ok(())
    }

    pub(super) fn child_report(
        &mut self,
        index: StepIndex,
        attempt: Attempt,
        report: ChildReport,
    ) -> Result<(), Refusal> {
        self.check_fence(index, attempt)?;
        if !self.task.waits_for_child(index) {
            return Err(self.refuse_step(index, "it waits for no task"));
        }
        match report {
            ChildReport::State(child) => {
                let (id, state) = (child.id, child.state);
                self.task.step_mut(index).child = Some(Box::new(child));
                match state {
                    TaskStatus::Error => {
                        let reason = format!("its task {id} is in error and needs an operator");
                        self.note_child(index, "step.child_error", reason);
                    }
                    _ => {
                        let reason = format!("its task {id} goes on");
                        self.note_child(index, "step.child_resumed", reason);
                    }
                }
            }
            // Another instance has made it in the meantime.
            ChildReport::Refused(_)
                if self.task.step(index).child.is_some()
                    && self.task.definition(index).undoes.is_none() =>
            {
                return Err(self.refuse_step(index, "its task is made already"));
            }
            ChildReport::Refused(message) => {
                let fault = Fault::permanent(message, self.now);
                self.refused(index, fault);
            }
            ChildReport::Ended { child, end } => {
                let id = child.as_ref().map(|child| child.id.to_string());
                let id = id.unwrap_or_default();
                if let Some(child) = child {
                    self.task.step_mut(index).child = Some(Box::new(child));
                }
                self.child_ended(index, &id, end);
            }
        }
        Ok(())
    }

    fn child_ended(&mut self, index: StepIndex, id: &str, end: ChildEnd) {
        if let Some(undone) = self.task.definition(index).undoes {
            let child = self.task.step_mut(undone).child.as_mut();
            if let Some(child) = child.filter(|child| child.state != TaskStatus::Cancelled) {
                child.state = TaskStatus::Undone;
                self.touch(undone);
            }
            self.succeed(index, Payload::null(), None);
            return;
        }
        let message = match end {
            ChildEnd::Processed(output) => {
                self.succeed(index, output, None);
                return;
            }
            ChildEnd::Undone(Some(why)) => format!("its task {id} was undone: {why}"),
            ChildEnd::Undone(None) => format!("its task {id} was undone"),
            ChildEnd::Cancelled => {
                format!("its task {id} was cancelled, and what it had done remains")
            }
        };
        if self.leave_behind(index, &message) {
            return;
        }
        let fault = Fault::permanent(message, self.now);
        self.refused(index, fault);
    }

    /// Children have time limits of their own, so the step has none that it could miss.
    pub(super) fn renew_wait_for_child(&mut self, index: StepIndex) {
        if let StepState::Processing { complete_by, .. } = &mut self.task.step_mut(index).state {
            *complete_by = self.now + Span::LONGEST;
        }
        self.touch(index);
    }

    /// The task is undone: a child that was not made never is, and the other is to be undone first.
    pub(super) fn leave_child(&mut self, index: StepIndex) {
        match self.task.step(index).child {
            None => self.abandon(index, "the task is undone"),
            Some(_) => self.touch(index),
        }
    }

    /// Has the steps compared with their children whose `on_error` the pause of the task has held. A child in error that no step
    /// knows of yet has its step looked at once it is reported.
    pub(super) fn look_at_failed_children(&mut self) {
        for index in self.task.forward() {
            let child = self.task.step(index).child.as_ref();
            let has_failed = child.is_some_and(|child| child.state == TaskStatus::Error);
            if has_failed && self.task.waits_for_child(index) {
                self.touch(index);
            }
        }
    }

    /// Has the steps compared with their children that are done already and whose children may run: nobody waits for these.
    pub(super) fn cancel_unawaited_children(&mut self) {
        for index in self.task.indexes() {
            let child = self.task.step(index).child.as_ref();
            let may_run = child.is_some_and(|child| !child.state.is_ended());
            if may_run && self.task.step(index).status() == StepStatus::Processed {
                self.touch(index);
            }
        }
    }

    fn note_child(&mut self, index: StepIndex, kind: &'static str, reason: String) {
        let attempt = self.task.step(index).attempt;
        self.note_attempt(index, kind, attempt, reason);
        self.touch(index);
    }
}
