//! The effect of an action: the state after it.

use std::time::Duration;

use provost_domain::{
    task::{
        Actor, Call, CallOutcome, Claimant, Command, Expiry, Purpose, Release, ReplyDigest,
        RetryWait,
    },
    template::Payload,
    values::{Effect, Fault, Term, Timestamp},
};
use serde_json::json;

use crate::{
    action::{OperatorCommand, Trouble, WorldAction},
    breach::{Breach, keep},
    flight::{Aim, Flight, ServiceResponse, Stage, StepOfTask},
    ledger::{ServiceEntry, Treatment},
    rules::moments,
    state::{WorldState, instance_id},
    store::Decided,
    world::SmallWorld,
};

/// The wait of an instance before it makes a call again.
const BACKOFF: Duration = Duration::from_secs(1);

impl WorldState {
    /// Returns the state after an action, or `None` if it changes nothing.
    pub fn after(&self, world: &SmallWorld, action: WorldAction) -> Result<Option<Self>, Breach> {
        let mut next = self.clone();
        let is_changed = next.perform(world, action)?;
        if !is_changed {
            return Ok(None);
        }
        next.tidy();
        moments::check(world, &next)?;
        Ok(Some(next))
    }

    fn perform(&mut self, world: &SmallWorld, action: WorldAction) -> Result<bool, Breach> {
        match action {
            WorldAction::Tick => match self.next_time() {
                Some(time) => self.now = time,
                None => return Ok(false),
            },
            WorldAction::Claim { instance, at } => return self.claim(world, instance, at, true),
            WorldAction::ClaimUnseen { instance, at } => {
                self.left.spend(Trouble::UnseenClaim);
                return self.claim(world, instance, at, false);
            }
            WorldAction::Serve { flight, treatment } => self.serve(flight, treatment)?,
            WorldAction::LoseMessage { flight, is_seen } => self.lose_message(flight, is_seen),
            WorldAction::Deliver { flight } => {
                let flight = self.flights.remove(usize::from(flight));
                let outcome = outcome(&flight, self.now, &self.ledger);
                let reply = Command::Reply {
                    step: flight.at.step,
                    attempt: flight.attempt,
                    outcome,
                };
                self.apply(
                    world,
                    flight.instance,
                    flight.at.task,
                    &reply,
                    &scheduler(flight.instance),
                )?;
            }
            WorldAction::DropCall { flight } => {
                let index = usize::from(flight);
                self.flights[index].is_awaited = false;
                let flight = self.flights[index];
                if self.holds(flight.at, flight.attempt) {
                    self.release(world, flight.instance, flight.at, Release::Dropped)?;
                }
            }
            WorldAction::ReturnStep { flight } => {
                self.left.spend(Trouble::NoSlot);
                let flight = self.flights.remove(usize::from(flight));
                let release = Command::Release {
                    step: flight.at.step,
                    attempt: flight.attempt,
                    why: Release::NoSlot,
                };
                self.apply(
                    world,
                    flight.instance,
                    flight.at.task,
                    &release,
                    &scheduler(flight.instance),
                )?;
            }
            WorldAction::LaterReply { via, at, attempt } => {
                self.later_reply(world, via, at, attempt)?
            }
            WorldAction::Expire { at } => return self.expire(world, at, Expiry::CompleteBy),
            WorldAction::LoseInstance { at } => {
                let is_dead = |holder| !self.instances[usize::from(holder)].is_alive;
                if !self.holder(at).is_some_and(is_dead) {
                    self.left.spend(Trouble::WrongGuess);
                }
                return self.expire(world, at, Expiry::InstanceLost);
            }
            WorldAction::ReleaseUnseen { at } => {
                let Some(holder) = self.holder(at) else {
                    return Ok(false);
                };
                return self.release(world, holder, at, Release::NeverStarted);
            }
            WorldAction::Overdue { task } => {
                return self.supervise(world, task, &Command::Overdue);
            }
            WorldAction::Admit { task } => return self.supervise(world, task, &Command::Admit),
            WorldAction::Crash { instance } => self.crash(instance),
            WorldAction::Restart { instance } => self.restart(world, instance)?,
            WorldAction::Operate { via, task, command } => {
                return self.operate(world, via, task, command);
            }
            WorldAction::Signal { via, at, number } => {
                self.left.spend(Trouble::Signal);
                let signal = Command::Signal {
                    step: at.step,
                    payload: Payload::from_value(&json!(number)),
                    digest: ReplyDigest(number.to_string()),
                };
                let decided = self.apply(world, via, at.task, &signal, &operator())?;
                return Ok(decided.is_accepted());
            }
            WorldAction::Compare { at } => return self.compare(world, at),
        }
        Ok(true)
    }

    fn claim(
        &mut self,
        world: &SmallWorld,
        instance: u8,
        at: StepOfTask,
        is_seen: bool,
    ) -> Result<bool, Breach> {
        let claim = Command::Claim {
            step: at.step,
            by: Claimant::Instance(instance_id(instance)),
        };
        match self.apply(world, instance, at.task, &claim, &scheduler(instance))? {
            Decided::Done(Some(call)) => {
                self.begin_flight(instance, at, &call, is_seen)?;
                Ok(true)
            }
            decided => Ok(decided.is_accepted()),
        }
    }

    fn begin_flight(
        &mut self,
        instance: u8,
        at: StepOfTask,
        call: &Call,
        is_seen: bool,
    ) -> Result<(), Breach> {
        let (aim, key) = match &call.purpose {
            Purpose::Work | Purpose::Poll => (Aim::Work, call.idempotency_key.as_str()),
            Purpose::Undo(key) | Purpose::Cancel(key) => (Aim::Undo, key.as_str()),
            Purpose::Probe(key) => (Aim::Probe, key.as_str()),
        };
        let subject = self.task(at.task).subject(at.step);
        let subject = StepOfTask {
            step: subject,
            ..at
        };
        let known = self.ledger.iter().position(|entry| &*entry.key == key);
        let entry = known.unwrap_or_else(|| {
            self.ledger.push(ServiceEntry::new(key.into(), subject));
            self.ledger.len() - 1
        });
        let is_recorded = self.ledger[entry].is_recorded;
        keep(
            aim != Aim::Work || !is_recorded,
            "what is recorded as done is not called again",
            || self.name(at),
        )?;
        let stands = self.ledger[entry].stands();
        let record = self.task(at.task).step(at.step);
        let has_probe = self.task(at.task).definition(at.step).probe.is_some();
        let is_rerun = record.previous_output.is_some();
        keep(
            aim != Aim::Work || !has_probe || !stands || is_rerun,
            "what was done is not called again where a probe can tell",
            || self.name(at),
        )?;
        let same = |flight: &Flight| (flight.at, flight.attempt) == (at, call.attempt);
        keep(
            !self.flights.iter().any(same),
            "no two calls have one fence",
            || format!("attempt {} of {}", call.attempt, self.name(at)),
        )?;
        if is_seen {
            self.flights.push(Flight {
                at,
                attempt: call.attempt,
                instance,
                aim,
                entry: entry as u8,
                complete_by: call.complete_by,
                is_awaited: true,
                stage: Stage::Sent,
            });
        }
        Ok(())
    }

    fn serve(&mut self, flight: u8, treatment: Treatment) -> Result<(), Breach> {
        match treatment {
            Treatment::Refuses => self.left.spend(Trouble::Refusal),
            Treatment::IsUnavailable => self.left.spend(Trouble::Unavailable),
            Treatment::Does | Treatment::Promises => {}
        }
        let index = usize::from(flight);
        let flight = self.flights[index];
        let entry = usize::from(flight.entry);
        let mut others = (0..)
            .zip(&self.flights)
            .filter(|(other, _)| *other != index);
        let may_follow = others.any(|(_, other)| {
            (other.entry, other.aim, other.stage) == (flight.entry, Aim::Work, Stage::Sent)
        });
        let stood = self.ledger[entry].stands();
        let response = self.ledger[entry].serve(flight.aim, flight.attempt, treatment, may_follow);
        if response == ServiceResponse::Promised {
            self.promises
                .push((flight.at, flight.attempt, flight.entry));
            self.promises.sort_unstable();
        }
        let undone_for_race = self.task(flight.at.task).is_revert(flight.at.step);
        if flight.aim == Aim::Undo && stood && !undone_for_race {
            moments::order_of_undo(self, self.ledger[entry].at)?;
        }
        self.flights[index].stage = Stage::Responded(response);
        Ok(())
    }

    /// A request whose connection breaks may still arrive.
    fn lose_message(&mut self, flight: u8, is_seen: bool) {
        self.left.spend(Trouble::LostMessage);
        let flight = &mut self.flights[usize::from(flight)];
        let before = *flight;
        flight.stage = match is_seen {
            true => Stage::Responded(ServiceResponse::Broken),
            false => Stage::Lost,
        };
        if is_seen && before.stage == Stage::Sent {
            self.flights.push(Flight {
                is_awaited: false,
                ..before
            });
        }
    }

    fn later_reply(
        &mut self,
        world: &SmallWorld,
        via: u8,
        at: StepOfTask,
        attempt: provost_domain::values::Attempt,
    ) -> Result<(), Breach> {
        let found = self
            .promises
            .iter()
            .position(|(step, number, _)| (*step, *number) == (at, attempt));
        let Some(found) = found else {
            return Ok(());
        };
        let entry = usize::from(self.promises[found].2);
        match self.left.has(Trouble::Repetition) {
            true => self.left.spend(Trouble::Repetition),
            false => drop(self.promises.remove(found)),
        }
        let response = self.ledger[entry].serve(Aim::Work, attempt, Treatment::Does, false);
        let outcome = match response {
            ServiceResponse::Success => success(&self.ledger[entry]),
            _ => CallOutcome::reported_error("its work is undone", true),
        };
        let reply = Command::LaterReply {
            step: at.step,
            attempt,
            outcome,
            digest: ReplyDigest(format!("{response:?}")),
        };
        self.apply(world, via, at.task, &reply, &Actor::service())?;
        Ok(())
    }

    fn expire(
        &mut self,
        world: &SmallWorld,
        at: StepOfTask,
        cause: Expiry,
    ) -> Result<bool, Breach> {
        let expire = Command::Expire {
            step: at.step,
            attempt: self.task(at.task).step(at.step).attempt,
            cause,
        };
        self.supervise(world, at.task, &expire)
    }

    pub(crate) fn supervise(
        &mut self,
        world: &SmallWorld,
        task: u8,
        command: &Command,
    ) -> Result<bool, Breach> {
        let Some(instance) = self.alive().next() else {
            return Ok(false);
        };
        let by = match command {
            Command::Expire { .. } | Command::Overdue => {
                Actor::supervisor(instance_id(instance).as_str(), Term(1))
            }
            _ => scheduler(instance),
        };
        Ok(self
            .apply(world, instance, task, command, &by)?
            .is_accepted())
    }

    fn release(
        &mut self,
        world: &SmallWorld,
        instance: u8,
        at: StepOfTask,
        why: Release,
    ) -> Result<bool, Breach> {
        let release = Command::Release {
            step: at.step,
            attempt: self.task(at.task).step(at.step).attempt,
            why,
        };
        Ok(self
            .apply(world, instance, at.task, &release, &scheduler(instance))?
            .is_accepted())
    }

    fn crash(&mut self, number: u8) {
        self.left.spend(Trouble::Crash);
        let instance = &mut self.instances[usize::from(number)];
        instance.is_alive = false;
        instance.copies.fill(None);
        let own = self
            .flights
            .iter_mut()
            .filter(|flight| flight.instance == number);
        own.for_each(|flight| flight.is_awaited = false);
    }

    fn restart(&mut self, world: &SmallWorld, number: u8) -> Result<(), Breach> {
        self.instances[usize::from(number)].is_alive = true;
        let held: Vec<_> = self
            .steps()
            .filter(|at| self.holder(*at) == Some(number))
            .collect();
        for at in held {
            self.release(world, number, at, Release::Restart)?;
        }
        Ok(())
    }

    fn operate(
        &mut self,
        world: &SmallWorld,
        via: u8,
        number: u8,
        command: OperatorCommand,
    ) -> Result<bool, Breach> {
        let reason = None;
        let sent = match command {
            OperatorCommand::Pause => Command::Pause { reason },
            OperatorCommand::Resume => Command::Resume { reason },
            OperatorCommand::Retry => Command::Retry {
                step: None,
                body: None,
                reason,
            },
            OperatorCommand::SkipFailed => Command::SkipFailed {
                step: None,
                output: None,
                reason,
            },
            OperatorCommand::Undo => Command::Undo { reason },
            OperatorCommand::Cancel => Command::Cancel { reason },
            OperatorCommand::Rerun(step) => Command::RetryFrom { step, reason },
        };
        let before = self.tasks[usize::from(number)].clone();
        if command != OperatorCommand::Resume {
            self.left.spend(Trouble::Command);
        }
        let decided = self.apply(world, via, number, &sent, &operator())?;
        if command == OperatorCommand::SkipFailed && decided.is_accepted() {
            let failed = before.indexes().filter(|step| {
                before.step(*step).status() == provost_domain::task::StepStatus::Error
            });
            for step in failed {
                self.excused.set(StepOfTask { task: number, step }, true);
            }
        }
        Ok(decided.is_accepted())
    }
}

fn operator() -> Actor {
    Actor::operator("test")
}

fn scheduler(instance: u8) -> Actor {
    Actor::scheduler(instance_id(instance).as_str())
}

fn success(entry: &ServiceEntry) -> CallOutcome {
    CallOutcome::Success(output(entry))
}

fn output(entry: &ServiceEntry) -> Payload {
    Payload::from_value(&json!({ "step": entry.at.step.0 }))
}

/// Returns the outcome of a call as its instance reports it.
fn outcome(flight: &Flight, now: Timestamp, ledger: &[ServiceEntry]) -> CallOutcome {
    let entry = &ledger[usize::from(flight.entry)];
    let Stage::Responded(response) = flight.stage else {
        return CallOutcome::Crashed(Fault::transient("no response", now));
    };
    let wait = RetryWait::from(BACKOFF);
    match (response, flight.aim) {
        (ServiceResponse::Success, Aim::Probe) => CallOutcome::Probed {
            status: 200,
            body: output(entry),
        },
        (ServiceResponse::NotFound, Aim::Probe) => CallOutcome::Probed {
            status: 404,
            body: Payload::null(),
        },
        (ServiceResponse::Success, Aim::Work) => success(entry),
        (ServiceResponse::Success, Aim::Undo) => CallOutcome::Success(Payload::null()),
        (ServiceResponse::NotFound, _) => CallOutcome::Failed(Fault {
            status: Some(404),
            ..Fault::permanent("404", now)
        }),
        (ServiceResponse::Refused, _) => CallOutcome::Failed(Fault {
            status: Some(422),
            ..Fault::permanent("422", now)
        }),
        (ServiceResponse::Unavailable, _) => CallOutcome::Transient {
            fault: Fault {
                status: Some(503),
                ..Fault::transient("503", now)
            },
            wait,
        },
        (ServiceResponse::Broken, _) => CallOutcome::Transient {
            fault: Fault {
                effect: Effect::Unknown,
                ..Fault::transient("the call broke off", now)
            },
            wait,
        },
        (ServiceResponse::Promised, _) => CallOutcome::Deferred,
    }
}
