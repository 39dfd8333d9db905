//! The actions that are possible in a state.

use provost_domain::{definition::StepWork, task::TaskStatus, values::StepIndex};

use crate::{
    action::{OperatorCommand, Trouble, WorldAction},
    flight::{Aim, Flight, Stage, StepOfTask},
    ledger::Treatment,
    state::{INSTANCES, WorldState},
    world::SmallWorld,
};

/// The commands of an operator that are possible in every world.
const COMMANDS: [OperatorCommand; 7] = [
    OperatorCommand::Pause,
    OperatorCommand::Retry,
    OperatorCommand::SkipFailed,
    OperatorCommand::Undo,
    OperatorCommand::Cancel,
    OperatorCommand::Rerun(StepIndex(0)),
    OperatorCommand::Rerun(StepIndex(1)),
];

impl WorldState {
    /// Adds all actions that are possible now. An action may turn out to change nothing.
    pub fn moves(&self, world: &SmallWorld, all: &mut Vec<WorldAction>) {
        for (number, flight) in (0u8..).zip(&self.flights) {
            self.moves_of_flight(world, number, flight, all);
        }
        self.moves_of_service(world, all);
        let has_living = self.alive().next().is_some();
        if has_living {
            for at in self.steps() {
                self.moves_of_step(at, all);
            }
            for task in 0..self.tasks.len() as u8 {
                self.moves_of_task(world, task, all);
            }
            all.extend(self.marks.iter().map(|at| WorldAction::Compare { at }));
        }
        for instance in 0..INSTANCES {
            if !self.instances[usize::from(instance)].is_alive {
                all.push(WorldAction::Restart { instance });
            } else if self.left.has(Trouble::Crash) {
                all.push(WorldAction::Crash { instance });
            }
        }
        if self.next_time().is_some() {
            all.push(WorldAction::Tick);
        }
    }

    fn moves_of_flight(
        &self,
        world: &SmallWorld,
        number: u8,
        flight: &Flight,
        all: &mut Vec<WorldAction>,
    ) {
        let can_lose = flight.is_awaited && self.left.has(Trouble::LostMessage);
        if can_lose && flight.stage != Stage::Lost {
            for is_seen in [true, false] {
                all.push(WorldAction::LoseMessage {
                    flight: number,
                    is_seen,
                });
            }
        }
        match flight.stage {
            Stage::Sent => {
                let mut serve = |treatment| {
                    all.push(WorldAction::Serve {
                        flight: number,
                        treatment,
                    })
                };
                serve(Treatment::Does);
                let entry = &self.ledger[usize::from(flight.entry)];
                if flight.is_awaited
                    && flight.aim == Aim::Work
                    && world.has_promises
                    && !entry.is_done
                {
                    serve(Treatment::Promises);
                }
                if flight.is_awaited && self.left.has(Trouble::Refusal) {
                    serve(Treatment::Refuses);
                }
                if flight.is_awaited && self.left.has(Trouble::Unavailable) {
                    serve(Treatment::IsUnavailable);
                }
                if flight.is_awaited && self.left.has(Trouble::NoSlot) {
                    all.push(WorldAction::ReturnStep { flight: number });
                }
            }
            Stage::Responded(_) => all.push(WorldAction::Deliver { flight: number }),
            Stage::Lost => {}
        }
        let task = self.task(flight.at.task);
        let is_over = !self.holds(flight.at, flight.attempt);
        if flight.is_awaited && (is_over || task.is_to_be_dropped(flight.at.step)) {
            all.push(WorldAction::DropCall { flight: number });
        }
    }

    /// Returns the instances that may get a request of an operator or a service.
    fn entrances(&self, world: &SmallWorld) -> impl Iterator<Item = u8> + '_ {
        let most = if world.has_caches { INSTANCES } else { 1 };
        self.alive().take(usize::from(most))
    }

    fn moves_of_service(&self, world: &SmallWorld, all: &mut Vec<WorldAction>) {
        for (at, attempt, _) in &self.promises {
            for via in self.entrances(world) {
                all.push(WorldAction::LaterReply {
                    via,
                    at: *at,
                    attempt: *attempt,
                });
            }
        }
        if !self.left.has(Trouble::Signal) {
            return;
        }
        for at in self.steps() {
            let definition = self.task(at.task).definition(at.step);
            if !matches!(definition.work, StepWork::Signal(_)) {
                continue;
            }
            for via in self.entrances(world) {
                for number in 0..2 {
                    all.push(WorldAction::Signal { via, at, number });
                }
            }
        }
    }

    fn moves_of_step(&self, at: StepOfTask, all: &mut Vec<WorldAction>) {
        let task = self.task(at.task);
        if task.due_at(at.step).is_some_and(|due| due <= self.now) {
            for instance in self.alive() {
                all.push(WorldAction::Claim { instance, at });
                if self.left.has(Trouble::UnseenClaim) {
                    all.push(WorldAction::ClaimUnseen { instance, at });
                }
            }
        }
        if self.ends_at(at).is_some_and(|end| end <= self.now) {
            all.push(WorldAction::Expire { at });
        }
        let Some(holder) = self.holder(at) else {
            return;
        };
        let is_alive = self.instances[usize::from(holder)].is_alive;
        if !is_alive || self.left.has(Trouble::WrongGuess) {
            all.push(WorldAction::LoseInstance { at });
        }
        let attempt = task.step(at.step).attempt;
        let mut own = self.flights.iter();
        let is_called =
            own.any(|flight| flight.is_awaited && (flight.at, flight.attempt) == (at, attempt));
        if is_alive && !is_called && self.ends_at(at).is_some_and(|end| end > self.now) {
            all.push(WorldAction::ReleaseUnseen { at });
        }
    }

    fn moves_of_task(&self, world: &SmallWorld, number: u8, all: &mut Vec<WorldAction>) {
        let task = self.task(number);
        if task.overdue_at().is_some_and(|due| due <= self.now) {
            all.push(WorldAction::Overdue { task: number });
        }
        let counted = self
            .tasks
            .iter()
            .filter(|task| !task.waits && !task.is_ended());
        if task.waits && counted.count() < world.max_running {
            all.push(WorldAction::Admit { task: number });
        }
        if matches!(task.status(), TaskStatus::Undone | TaskStatus::Cancelled) {
            return;
        }
        for via in self.entrances(world) {
            let mut operate = |command| {
                all.push(WorldAction::Operate {
                    via,
                    task: number,
                    command,
                });
            };
            if task.paused && !task.is_ended() {
                operate(OperatorCommand::Resume);
            }
            if !self.left.has(Trouble::Command) {
                continue;
            }
            COMMANDS.into_iter().for_each(&mut operate);
        }
    }

    /// Returns the action that a world without trouble takes next, if it has any.
    pub fn fair_move(&self, world: &SmallWorld) -> Option<WorldAction> {
        let mut all = Vec::new();
        self.moves(world, &mut all);
        let urgency = |action: &WorldAction| match action {
            WorldAction::Restart { .. } => Some(0),
            WorldAction::Operate {
                command: OperatorCommand::Resume,
                ..
            } => Some(1),
            WorldAction::Deliver { .. } => Some(2),
            WorldAction::Serve {
                treatment: Treatment::Does,
                ..
            } => Some(3),
            WorldAction::DropCall { .. } => Some(4),
            WorldAction::LaterReply { .. } => Some(5),
            WorldAction::Compare { .. } => Some(6),
            WorldAction::Admit { .. } => Some(7),
            WorldAction::Overdue { .. } => Some(8),
            WorldAction::Claim { .. } => Some(9),
            WorldAction::Expire { .. } => Some(10),
            WorldAction::ReleaseUnseen { .. } => Some(11),
            WorldAction::Tick => Some(12),
            _ => None,
        };
        let fair = all
            .into_iter()
            .filter_map(|action| Some((urgency(&action)?, action)));
        fair.min_by_key(|(urgency, _)| *urgency)
            .map(|(_, action)| action)
    }
}
