//! The store: records that are saved by compare-and-set on their versions, and instances that decide on copies of them.

use std::sync::Arc;

use provost_domain::{
    task::{
        Actor, AlertChange, Call, Command, CommandOutput, Draft, Event, Refusal, StepStatus, Task,
    },
    values::StepIndex,
};

use crate::{
    breach::Breach, flight::StepOfTask, rules::changes, state::WorldState, world::SmallWorld,
};

/// The result of a command.
pub enum Decided {
    Refused(Refusal),
    /// Nothing was saved.
    Unchanged,
    Late,
    Done(Option<Box<Call>>),
}

impl Decided {
    pub fn is_accepted(&self) -> bool {
        matches!(self, Decided::Done(_) | Decided::Late)
    }
}

impl WorldState {
    /// Has an instance decide on a command and save the result.
    pub fn apply(
        &mut self,
        world: &SmallWorld,
        instance: u8,
        task: u8,
        command: &Command,
        by: &Actor,
    ) -> Result<Decided, Breach> {
        let number = usize::from(task);
        let record = self.tasks[number].clone();
        let copy = self.instances[usize::from(instance)].copies[number].clone();
        if let Some(copy) = copy.filter(|copy| world.has_caches && copy.version != record.version) {
            // An accepted command is saved by compare-and-set, which fails here, and anything else is compared with the
            // version of the record: so the decision is made again, and all that counts is that this one does not panic.
            let _ = Draft::on((*copy).clone()).apply(command.clone(), by, self.now);
        }
        let mut draft = Draft::on((*record).clone());
        let decided = draft.apply(command.clone(), by, self.now);
        changes::check(self, task, command, &record, &draft, &decided)?;
        let decided = match decided {
            Err(refusal) => Decided::Refused(refusal),
            Ok(CommandOutput::Unchanged) => Decided::Unchanged,
            Ok(CommandOutput::Late(_)) => Decided::Late,
            Ok(CommandOutput::Call(call)) => Decided::Done(Some(call)),
            Ok(CommandOutput::Done) => Decided::Done(None),
        };
        let saved = match decided.is_accepted() {
            true => self.save(task, &record, command, draft),
            false => record,
        };
        if world.has_caches {
            self.instances[usize::from(instance)].copies[number] = Some(saved);
        }
        Ok(decided)
    }

    /// Saves a new task.
    pub fn submit(&mut self, mut draft: Draft) {
        draft.keep_claim();
        let number = self.tasks.len() as u8;
        self.follow_alerts(number, &draft);
        self.tasks.push(Arc::new(draft.task.clone()));
        for instance in &mut self.instances {
            instance.copies.push(None);
        }
        self.mark(number, &draft);
    }

    fn save(
        &mut self,
        number: u8,
        before: &Task,
        command: &Command,
        mut draft: Draft,
    ) -> Arc<Task> {
        let is_rerun = matches!(command, Command::RetryFrom { .. });
        draft.keep_claim();
        draft.task.version += 1;
        self.follow_alerts(number, &draft);
        self.mark(number, &draft);
        for index in draft.task.indexes() {
            let at = StepOfTask {
                task: number,
                step: index,
            };
            let was = before.has_step(index).then(|| before.step(index).status());
            let is = draft.task.step(index).status();
            let entries = self.ledger.iter_mut().filter(|entry| entry.at == at);
            if is == StepStatus::Processed && was != Some(is) {
                entries.for_each(|entry| entry.is_recorded = true);
            } else if is_rerun
                && matches!(is, StepStatus::Waiting | StepStatus::Pending)
                && was != Some(is)
            {
                entries.for_each(|entry| entry.is_recorded = false);
            }
        }
        let saved = Arc::new(draft.task);
        self.tasks[usize::from(number)] = saved.clone();
        saved
    }

    fn follow_alerts(&mut self, number: u8, draft: &Draft) {
        for alert in &draft.alerts {
            let (step, is_open) = match alert {
                AlertChange::Raise { step, .. } => (*step, true),
                AlertChange::Close { step } => (*step, false),
            };
            self.alerts.set(StepOfTask { task: number, step }, is_open);
        }
    }

    /// Marks the steps that must be compared with their children, as the store does with each change.
    fn mark(&mut self, number: u8, draft: &Draft) {
        let task = &draft.task;
        for step in task.steps_to_compare(&draft.changed) {
            self.marks.set(StepOfTask { task: number, step }, true);
        }
        if let Some(parent) = &task.details.parent
            && draft.events.iter().any(Event::concerns_parent)
            && let Some(number) = self.number_of(parent.task)
        {
            let step: StepIndex = parent.index;
            self.marks.set(StepOfTask { task: number, step }, true);
        }
    }

    pub fn number_of(&self, id: provost_domain::values::TaskId) -> Option<u8> {
        let found = self.tasks.iter().position(|task| task.id() == id)?;
        u8::try_from(found).ok()
    }
}
