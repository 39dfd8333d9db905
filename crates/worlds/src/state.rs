//! The state of a world at one moment: records, instances, messages in flight, the service and the clock.

use std::{fmt::Write, sync::Arc};

use provost_domain::{
    task::{Refusal, StepHolder, StepState, Task, TaskStatus},
    values::{Attempt, InstanceId, StepIndex, Timestamp},
};

use crate::{
    action::Troubles,
    flight::{Flight, StepOfTask},
    ledger::ServiceEntry,
};

/// The number of instances.
pub const INSTANCES: u8 = 2;

/// No world lasts until this time.
const NEVER: Timestamp = Timestamp::from_millis(1_000_000_000_000);

/// The most steps of a task, undos and items included, so that sets of steps fit into 64 bits.
const MOST_STEPS: usize = 16;

#[derive(Clone)]
pub struct WorldState {
    pub now: Timestamp,
    /// The records in the store: first the submitted tasks, then their children.
    pub tasks: Vec<Arc<Task>>,
    pub instances: [Instance; INSTANCES as usize],
    /// In order, so that it does not matter which of two calls was made first.
    pub flights: Vec<Flight>,
    /// The later replies that the service has promised and may send, each with the index of its ledger entry.
    pub promises: Vec<(StepOfTask, Attempt, u8)>,
    pub ledger: Vec<ServiceEntry>,
    pub left: Troubles,
    /// The steps that an operator has skipped or resolved: their record no longer follows from what the service did.
    pub excused: StepSet,
    /// The steps that have an open alert.
    pub alerts: StepSet,
    /// The steps that are to be compared with their children.
    pub marks: StepSet,
}

#[derive(Clone)]
pub struct Instance {
    pub is_alive: bool,
    /// Its copies of records, of which some may be stale.
    pub copies: Vec<Option<Arc<Task>>>,
}

/// A set of steps of the first tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StepSet(pub u64);

impl StepSet {
    fn bit(at: StepOfTask) -> u64 {
        debug_assert!(at.step.at() < MOST_STEPS && at.task < 4);
        1 << (usize::from(at.task) * MOST_STEPS + at.step.at())
    }

    pub fn has(self, at: StepOfTask) -> bool {
        self.0 & Self::bit(at) != 0
    }

    pub fn set(&mut self, at: StepOfTask, is_in: bool) {
        match is_in {
            true => self.0 |= Self::bit(at),
            false => self.0 &= !Self::bit(at),
        }
    }

    pub fn iter(self) -> impl Iterator<Item = StepOfTask> {
        (0..64u8)
            .filter(move |bit| self.0 >> bit & 1 == 1)
            .map(|bit| StepOfTask {
                task: bit / MOST_STEPS as u8,
                step: StepIndex(u16::from(bit % MOST_STEPS as u8)),
            })
    }
}

impl WorldState {
    pub fn new(left: Troubles, now: Timestamp) -> Self {
        let instance = Instance {
            is_alive: true,
            copies: Vec::new(),
        };
        Self {
            now,
            instances: [instance.clone(), instance],
            tasks: Vec::new(),
            flights: Vec::new(),
            promises: Vec::new(),
            ledger: Vec::new(),
            left,
            excused: StepSet::default(),
            alerts: StepSet::default(),
            marks: StepSet::default(),
        }
    }

    pub fn task(&self, number: u8) -> &Task {
        &self.tasks[usize::from(number)]
    }

    /// Returns all steps of all tasks, with their undos.
    pub fn steps(&self) -> impl Iterator<Item = StepOfTask> + '_ {
        (0u8..).zip(&self.tasks).flat_map(|(number, task)| {
            task.indexes()
                .map(move |step| StepOfTask { task: number, step })
        })
    }

    pub fn alive(&self) -> impl Iterator<Item = u8> + '_ {
        (0..INSTANCES).filter(|instance| self.instances[usize::from(*instance)].is_alive)
    }

    /// Returns the instance that holds the attempt of a step, if one does.
    pub fn holder(&self, at: StepOfTask) -> Option<u8> {
        match &self.task(at.task).step(at.step).state {
            StepState::Processing {
                held_by: StepHolder::Instance(instance),
                ..
            } => (0..INSTANCES).find(|number| instance_id(*number) == *instance),
            _ => None,
        }
    }

    /// Returns whether the step is processing under this attempt.
    pub fn holds(&self, at: StepOfTask, attempt: Attempt) -> bool {
        holds(self.task(at.task), at.step, attempt)
    }

    /// Returns the end of the attempt of a step, or the time until which its event is awaited.
    pub fn ends_at(&self, at: StepOfTask) -> Option<Timestamp> {
        let task = self.task(at.task);
        match &task.step(at.step).state {
            StepState::Processing { .. } if task.waits_for_child(at.step) => None,
            StepState::Processing {
                held_by,
                complete_by,
            } => {
                let end = held_by.ends_at(*complete_by);
                // A group has no time of its own, and its record has the last time of all.
                (end < NEVER).then_some(end)
            }
            _ => None,
        }
    }

    /// Returns the next time at which something is due.
    pub fn next_time(&self) -> Option<Timestamp> {
        let of_steps = self
            .steps()
            .flat_map(|at| [self.ends_at(at), self.task(at.task).due_at(at.step)]);
        let of_tasks = self.tasks.iter().map(|task| task.overdue_at());
        let times = of_steps.chain(of_tasks).flatten();
        times.filter(|time| *time > self.now).min()
    }

    pub fn entry_of(&self, at: StepOfTask) -> impl Iterator<Item = &ServiceEntry> {
        self.ledger.iter().filter(move |entry| entry.at == at)
    }

    /// Forgets what can have no effect any more: requests that the service would refuse because their time is over, and
    /// waits of instances that have given up.
    pub fn tidy(&mut self) {
        let now = self.now;
        self.flights.retain(|flight| match flight.stage {
            crate::flight::Stage::Responded(_) => flight.is_awaited,
            crate::flight::Stage::Sent => flight.complete_by > now,
            crate::flight::Stage::Lost => flight.complete_by > now && flight.is_awaited,
        });
        self.flights.sort_unstable();
    }

    /// Returns whether every task has ended or needs an operator, so that nothing changes without one.
    pub fn is_at_rest(&self) -> bool {
        (0u8..).zip(&self.tasks).all(|(number, task)| {
            task.is_settled() && !task.paused
                || task.is_ended()
                || self.waits_for_operator_of_child(number)
                || task.waits && self.is_kept_waiting(number)
        })
    }

    /// Returns whether all that is live of the task is steps whose children need an operator. Children of a task that is
    /// undone must have been asked to be undone as well.
    fn waits_for_operator_of_child(&self, number: u8) -> bool {
        let task = self.task(number);
        let needs_operator = |child: &Arc<Task>| {
            let is_asked = task.undo.is_none() || child.undo.is_some();
            child.status() == TaskStatus::Error && child.is_settled() && is_asked
        };
        let mut live = task.indexes().filter(|step| task.step(*step).is_live());
        !task.paused
            && live.all(|step| {
                let mut children = self.children_of(number, task.subject(step));
                task.waits_for_child(step) && children.any(needs_operator)
            })
    }

    fn is_kept_waiting(&self, number: u8) -> bool {
        let mut before = self.tasks[..usize::from(number)].iter();
        before.any(|task| task.status() == TaskStatus::Error && task.is_settled())
    }

    /// Returns the children that were made for a step.
    pub fn children_of(&self, parent: u8, step: StepIndex) -> impl Iterator<Item = &Arc<Task>> {
        let id = self.task(parent).id();
        self.tasks.iter().filter(move |task| {
            let own = task.details.parent.as_ref();
            own.is_some_and(|own| own.task == id && own.index == step)
        })
    }

    /// Describes the records and the ledger in one line.
    pub fn in_words(&self) -> String {
        let mut text = String::new();
        for (number, task) in self.tasks.iter().enumerate() {
            let separator = if number > 0 { "; " } else { "" };
            let _ = write!(
                text,
                "{separator}task {} {}",
                number + 1,
                task.status().as_str()
            );
            if task.paused {
                text.push_str(" (paused)");
            }
            for step in task.indexes() {
                let record = task.step(step);
                let name = &task.definition(step).name;
                let _ = write!(text, ", {name} {}", record.status().as_str());
                if !record.effect.is_known() {
                    text.push_str(" (outcome unknown)");
                }
            }
        }
        let standing = self.ledger.iter().filter(|entry| entry.stands());
        let names: Vec<_> = standing.map(|entry| self.name(entry.at)).collect();
        let _ = write!(text, "; done at the service: [{}]", names.join(", "));
        text
    }

    pub fn name(&self, at: StepOfTask) -> String {
        let name = match self.task(at.task).has_step(at.step) {
            true => self.task(at.task).definition(at.step).name.to_string(),
            false => format!("step {}", at.step.at()),
        };
        match self.tasks.len() {
            1 => format!("`{name}`"),
            _ => format!("`{name}` of task {}", at.task + 1),
        }
    }
}

/// Returns whether a step of the task is processing under this attempt.
pub fn holds(task: &Task, step: StepIndex, attempt: Attempt) -> bool {
    let step = task.has_step(step).then(|| task.step(step));
    step.is_some_and(|step| {
        step.attempt == attempt && matches!(step.state, StepState::Processing { .. })
    })
}

pub fn instance_id(number: u8) -> InstanceId {
    InstanceId::new(match number {
        0 => "A",
        _ => "B",
    })
}

/// Returns whether a refusal says that an attempt is over.
pub fn is_late(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Late { .. } | Refusal::Deferred { .. })
}
