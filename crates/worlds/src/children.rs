//! Children: an instance compares a step with them and does what the domain says.

use std::sync::Arc;

use provost_domain::{
    task::{
        Child, ChildAction, ChildEnd, ChildRecord, ChildReport, Command, Draft, News, TaskStatus,
        child_actions,
    },
    template::Payload,
    values::{Attempt, TaskId},
};
use uuid::Uuid;

use crate::{breach::Breach, flight::StepOfTask, state::WorldState, world::SmallWorld};

impl WorldState {
    /// Compares a step with its children, as an instance that has seen its mark. Returns false if nothing changed.
    pub(crate) fn compare(&mut self, world: &SmallWorld, at: StepOfTask) -> Result<bool, Breach> {
        self.marks.set(at, false);
        let before = self.tasks.clone();
        let parent = self.tasks[usize::from(at.task)].clone();
        let children: Vec<_> = self
            .children_of(at.task, at.step)
            .filter_map(|child| {
                Some(ChildRecord {
                    id: child.id(),
                    attempt: child.details.parent.as_ref()?.attempt,
                    state: child.status(),
                    is_undo_requested: child.undo.is_some(),
                    version: child.version,
                })
            })
            .collect();
        for action in child_actions(&parent, at.step, &children, false) {
            let is_done = self.act(world, at, action)?;
            if !is_done {
                // The instance looks again later.
                self.marks.set(at, true);
            }
        }
        let is_same = self.tasks.len() == before.len()
            && self
                .tasks
                .iter()
                .zip(&before)
                .all(|(new, old)| Arc::ptr_eq(new, old));
        Ok(!(is_same && self.marks.has(at)))
    }

    fn act(
        &mut self,
        world: &SmallWorld,
        at: StepOfTask,
        action: ChildAction,
    ) -> Result<bool, Breach> {
        match action {
            ChildAction::Make(attempt) => self.make_child(world, at, attempt),
            ChildAction::Cancel(child) => {
                let cancel = Command::Cancel { reason: None };
                self.command_child(world, child, &cancel)
            }
            ChildAction::Undo {
                child, if_version, ..
            } => {
                let number = self.number_of(child);
                let is_same = number.is_some_and(|number| {
                    if_version.is_none_or(|version| self.task(number).version == version)
                });
                let undo = Command::Undo { reason: None };
                Ok(is_same && self.command_child(world, child, &undo)?)
            }
            ChildAction::Report {
                step,
                attempt,
                news,
            } => {
                let Some(report) = self.report(news) else {
                    return Ok(false);
                };
                self.supervise(world, at.task, &report.to(step, attempt))
            }
        }
    }

    fn command_child(
        &mut self,
        world: &SmallWorld,
        child: TaskId,
        command: &Command,
    ) -> Result<bool, Breach> {
        match self.number_of(child) {
            Some(number) => self.supervise(world, number, command),
            None => Ok(true),
        }
    }

    fn make_child(
        &mut self,
        world: &SmallWorld,
        at: StepOfTask,
        attempt: Attempt,
    ) -> Result<bool, Breach> {
        let Some(workflow) = &world.child else {
            return Ok(false);
        };
        let id =
            1000 * (u128::from(at.task) + 1) + 16 * u128::from(attempt.0) + u128::from(at.step.0);
        let id = TaskId(Uuid::from_u128(id));
        let parent = self.task(at.task);
        let details = match parent.child_details(at.step, workflow, id, None, self.now) {
            Ok(details) => Arc::new(details),
            Err(message) => {
                let refused = ChildReport::Refused(message).to(at.step, attempt);
                return self.supervise(world, at.task, &refused);
            }
        };
        let begin = Command::BeginChild {
            step: at.step,
            attempt,
            child: details.clone(),
        };
        let is_begun = self.supervise(world, at.task, &begin)?;
        if is_begun {
            self.submit(Draft::submit(details, self.now));
        }
        Ok(is_begun)
    }

    fn report(&self, news: News) -> Option<ChildReport> {
        let child = match news {
            News::State(child) => return Some(ChildReport::State(child)),
            News::Lost(_) => return Some(ChildReport::Refused("its task was deleted".to_owned())),
            News::Ended(None) => {
                let end = ChildEnd::Undone(None);
                return Some(ChildReport::Ended { child: None, end });
            }
            News::Ended(Some(child)) => child,
        };
        let state = self.task(self.number_of(child.id)?).status();
        let end = match state {
            TaskStatus::Processed => ChildEnd::Processed(Payload::null()),
            TaskStatus::Undone => ChildEnd::Undone(None),
            TaskStatus::Cancelled => ChildEnd::Cancelled,
            _ => return None,
        };
        let child = Some(Child { state, ..child });
        Some(ChildReport::Ended { child, end })
    }
}
