//! The fingerprint of a state: equal for states from which the same can follow. Times are relative: those to come by
//! their distance, those that have passed by their order. Texts for people have no influence on decisions and are left
//! out.
//!
//! Records are taken apart field by field, without `..`: a new field does not compile until it is decided here whether it
//! tells states apart.

use std::hash::{DefaultHasher, Hasher};

use provost_domain::{
    task::{OpenReply, Step, StepHolder, StepState, Task, TaskState},
    values::{Effect, Fault, InstanceId, Timestamp},
};

use crate::{
    flight::{Flight, Stage, StepOfTask},
    state::{WorldState, instance_id},
};

/// Writes states, one after the other, into one buffer.
#[derive(Default)]
pub struct Fingerprinter {
    /// Two states are equal if one is the other with the names of the instances exchanged.
    is_symmetric: bool,
    /// The names are exchanged in what is written now.
    is_exchanged: bool,
    bytes: Vec<u8>,
    /// The times that have passed, in the order in which they were written.
    past: Vec<i64>,
    order: Vec<i64>,
    now: i64,
}

impl Fingerprinter {
    pub fn new(is_symmetric: bool) -> Self {
        Self {
            is_symmetric,
            ..Self::default()
        }
    }

    pub fn of(&mut self, state: &WorldState) -> u128 {
        self.is_exchanged = false;
        let print = self.print(state);
        if !self.is_symmetric {
            return print;
        }
        self.is_exchanged = true;
        print.min(self.print(state))
    }

    fn print(&mut self, state: &WorldState) -> u128 {
        self.bytes.clear();
        self.past.clear();
        self.now = state.now.as_millis();
        self.state(state);
        self.order.clone_from(&self.past);
        self.order.sort_unstable();
        self.order.dedup();
        for time in &self.past {
            let rank = self.order.partition_point(|other| other < time);
            self.bytes.push(rank as u8);
        }
        let half = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            hasher.write_u8(salt);
            hasher.write(&self.bytes);
            hasher.finish()
        };
        u128::from(half(1)) << 64 | u128::from(half(2))
    }

    fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    fn flag(&mut self, flag: bool) {
        self.bytes.push(flag.into());
    }

    fn number(&mut self, number: u64) {
        // Nearly all are small.
        match u8::try_from(number) {
            Ok(small) if small < u8::MAX => self.bytes.push(small),
            _ => {
                self.bytes.push(u8::MAX);
                self.bytes.extend(number.to_le_bytes());
            }
        }
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes.extend(text.as_bytes());
    }

    fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    fn time(&mut self, time: Timestamp) {
        let left = time.as_millis().saturating_sub(self.now);
        match left {
            1.. => {
                self.byte(2);
                self.number(left.unsigned_abs());
            }
            0 => self.byte(1),
            _ => {
                self.byte(0);
                self.past.push(time.as_millis());
            }
        }
    }

    fn state(&mut self, state: &WorldState) {
        let WorldState {
            now: _,
            tasks,
            instances,
            flights,
            promises,
            ledger,
            left,
            excused,
            alerts,
            marks,
        } = state;
        self.number(tasks.len() as u64);
        for task in tasks {
            self.task(task);
        }
        for number in 0..instances.len() {
            let instance = &instances[number ^ usize::from(self.is_exchanged)];
            self.flag(instance.is_alive);
            for (copy, record) in instance.copies.iter().zip(tasks) {
                match copy {
                    None => self.byte(0),
                    Some(copy) if copy.version == record.version => self.byte(1),
                    Some(copy) => {
                        self.byte(2);
                        self.task(copy);
                    }
                }
            }
        }
        self.number(flights.len() as u64);
        for flight in flights {
            self.flight(flight);
        }
        self.number(promises.len() as u64);
        for (at, attempt, entry) in promises {
            self.at(*at);
            self.number(attempt.0.into());
            self.byte(*entry);
        }
        self.number(ledger.len() as u64);
        for entry in ledger {
            self.at(entry.at);
            self.flag(entry.is_done);
            self.flag(entry.is_undone);
            self.number(entry.refused.0.into());
            self.flag(entry.is_recorded);
        }
        self.bytes.extend(left.counts());
        for set in [excused, alerts, marks] {
            self.bytes.extend(set.0.to_le_bytes());
        }
    }

    fn at(&mut self, at: StepOfTask) {
        self.byte(at.task);
        self.number(at.step.0.into());
    }

    fn flight(&mut self, flight: &Flight) {
        let Flight {
            at,
            attempt,
            instance,
            aim,
            entry,
            complete_by,
            is_awaited,
            stage,
        } = flight;
        self.at(*at);
        self.number(attempt.0.into());
        self.byte(*instance ^ u8::from(self.is_exchanged));
        self.byte(*aim as u8);
        self.byte(*entry);
        self.time(*complete_by);
        self.flag(*is_awaited);
        match stage {
            Stage::Sent => self.byte(0),
            Stage::Lost => self.byte(1),
            Stage::Responded(response) => self.byte(2 + *response as u8),
        }
    }

    fn task(&mut self, task: &Task) {
        let Task {
            details: _,
            created_at: _,
            version: _,
            state,
            paused,
            waits,
            start_at,
            complete_by,
            steps,
            untouched,
            own_claim,
            undos,
            expansion,
            undo,
        } = task;
        // The fault of a task in error follows from its steps.
        self.byte(task.status() as u8);
        if let TaskState::Processed { at } = state
            && task.details.definition.policies.undoable_for.is_some()
        {
            self.time(*at);
        }
        self.flag(*paused);
        self.flag(*waits);
        self.optional(*start_at, Self::time);
        self.optional(*complete_by, Self::time);
        for list in [steps, undos] {
            self.number(list.len() as u64);
            for step in list.iter() {
                self.step(task, step);
            }
        }
        self.number(untouched.len() as u64);
        for index in untouched {
            self.number(index.0.into());
        }
        self.optional(*own_claim, |to, index| to.number(index.0.into()));
        self.flag(expansion.is_some());
        self.optional(undo.as_ref(), |to, undo| to.flag(undo.error.is_some()));
    }

    fn step(&mut self, task: &Task, step: &Step) {
        let Step {
            state,
            attempt,
            failure_count,
            extensions_used,
            tries,
            time_left,
            awaits_turn,
            effect,
            is_probing,
            previous_output,
            sent_request,
            body,
            // It is shown, and nothing is decided by it.
            started_at: _,
            // Its text is shown, and read by no expression of these worlds.
            last_fault: _,
            reply_log,
            signal,
            ask,
            child,
            response,
            counts,
        } = step;
        self.step_state(task, state);
        for number in [attempt.0, *failure_count, *extensions_used, *tries] {
            self.number(number.into());
        }
        self.optional(*time_left, |to, left| to.number(left.as_millis() as u64));
        self.flag(*awaits_turn);
        self.flag(*effect == Effect::Unknown);
        self.flag(*is_probing);
        for kept in [previous_output, sent_request, body] {
            self.optional(kept.as_ref(), |to, kept| to.text(kept.as_json()));
        }
        self.number(reply_log.accepted.len() as u64);
        for accepted in &reply_log.accepted {
            self.number(accepted.attempt.0.into());
            self.text(&accepted.digest.0);
        }
        self.optional(reply_log.late, |to, late| to.number(late.0.into()));
        self.optional(signal.as_ref(), |to, signal| {
            to.text(&signal.digest.0);
            to.flag(signal.payload.is_some());
        });
        self.flag(ask.is_some());
        self.optional(child.as_ref(), |to, child| {
            to.text(&child.id.to_string());
            to.byte(child.state as u8);
        });
        self.flag(response.is_some());
        self.number(counts.uncounted.into());
        self.number(counts.probes.into());
    }

    fn step_state(&mut self, task: &Task, state: &StepState) {
        match state {
            StepState::Waiting => self.byte(0),
            StepState::Pending { ready_at } => {
                self.byte(1);
                self.time(*ready_at);
            }
            StepState::Processing {
                held_by,
                complete_by,
            } => {
                self.byte(2);
                self.holder(held_by);
                self.time(*complete_by);
            }
            StepState::Processed { output, at } => {
                self.byte(3);
                self.text(output.as_json());
                self.end(task, *at);
            }
            StepState::Error(fault) => {
                self.byte(4);
                self.fault(fault);
            }
            StepState::Skipped { output, at } => {
                self.byte(5);
                self.end(task, *at);
                self.optional(output.as_ref(), |to, output| to.text(output.as_json()));
            }
            StepState::Cancelled { at } => {
                self.byte(6);
                self.end(task, *at);
            }
            StepState::Undone { output, at } => {
                self.byte(7);
                self.end(task, *at);
                self.optional(output.as_ref(), |to, output| to.text(output.as_json()));
            }
        }
    }

    /// Writes the time at which a step has ended. The winners of a race are those that succeeded first; nothing else is
    /// decided by these times.
    fn end(&mut self, task: &Task, at: Timestamp) {
        let steps = &task.details.definition.steps;
        if steps.iter().any(|step| step.race.is_some()) {
            self.time(at);
        }
    }

    fn holder(&mut self, holder: &StepHolder) {
        match holder {
            StepHolder::Instance(instance) => {
                self.byte(0);
                self.instance(instance);
            }
            StepHolder::Service(open) => {
                self.byte(1);
                self.open_reply(open);
            }
            StepHolder::Poll(instance, open) => {
                self.byte(2);
                self.instance(instance);
                self.open_reply(open);
            }
            StepHolder::Event => self.byte(3),
        }
    }

    fn instance(&mut self, instance: &InstanceId) {
        let is_first = *instance == instance_id(0);
        self.flag(is_first == self.is_exchanged);
    }

    fn open_reply(&mut self, open: &OpenReply) {
        let OpenReply {
            since: _,
            worker,
            silent_at,
            heartbeat_at,
            recorded_at,
            // It is shown, and nothing is decided by it.
            progress: _,
            poll,
        } = open;
        self.optional(worker.as_ref(), |to, worker| to.text(worker.as_str()));
        for time in [silent_at, heartbeat_at, recorded_at] {
            self.optional(*time, Self::time);
        }
        self.optional(poll.as_ref(), |to, poll| {
            to.time(poll.next_at);
            to.flag(poll.cancels);
        });
    }

    fn fault(&mut self, fault: &Fault) {
        let Fault {
            kind,
            message: _,
            status,
            body: _,
            at,
            effect,
            step: _,
            undo_on_resume,
            cancelled,
            unwanted,
        } = fault;
        self.byte(*kind as u8);
        self.optional(*status, |to, status| to.number(status.into()));
        self.time(*at);
        self.flag(*effect == Effect::Unknown);
        self.flag(*undo_on_resume);
        self.flag(*cancelled);
        self.flag(*unwanted);
    }
}
