//! The world of one rehearsal: one task, services with mocked responses, and a clock that goes from event to event. The
//! domain alone decides what happens to the task; this module decides only who sends which command when.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use provost_domain::{
    agent::RetrySpec,
    definition::{Definition, SchemaOwner, StepWork, Target},
    task::{
        Actor, AskAnswer, Call, CallBody, CallOutcome, Claimant, Command, CommandOutput, Details,
        Draft, Event, Expiry, Progress, Purpose, Release, ReplyAddresses, ReplyDigest, ReplyKey,
        StepState, Task, TaskStatus,
    },
    template::{Budget, Payload},
    values::{Attempt, InstanceId, Priority, Span, StepIndex, TaskId, Term, Timestamp},
};
use uuid::Uuid;

use crate::{
    agent::MockedAgent,
    call_name::{CallKind, CallName},
    children::ChildStep,
    mock::{Behaviour, LaterMock, Mock},
    names::{in_task, named_step},
    rehearsal::{
        OutsideCommand, OutsideEvent, OutsideResult, Rehearsal, RehearsalEnd, RehearsalInput,
        SentRequest, Services,
    },
};

/// The largest number of commands of one rehearsal.
pub const MOST_COMMANDS: usize = 100_000;
/// The longest virtual time of one rehearsal.
pub const LONGEST_REHEARSAL: Span = Span::from_secs(100 * 365 * 86_400);
/// The largest cost of the expressions of one rehearsal.
const MOST_SPENT: u64 = 256 * Budget::EVALUATION;
/// The largest total size of requests, responses and history in memory, in bytes.
const MOST_HELD: usize = 64 << 20;
/// Something that happens at a known time.
enum Scheduled {
    Command(Box<Command>),
    /// A heartbeat, which is repeated after `every` until the end.
    Heartbeat {
        step: StepIndex,
        attempt: Attempt,
        every: Span,
        until: Timestamp,
    },
    Outside(usize),
}

struct World<'a> {
    draft: Draft,
    names: Arc<Definition>,
    start: Timestamp,
    now: Timestamp,
    instance: InstanceId,
    services: &'a mut dyn Services,
    outside_events: &'a [OutsideEvent],
    retry: RetrySpec,
    /// The scheduled events by time. Events at one time are in the order in which they were scheduled.
    agenda: BTreeMap<(Timestamp, u64), Scheduled>,
    scheduled: u64,
    counts: BTreeMap<CallName, usize>,
    /// The children that were made, and those that must end.
    children: BTreeSet<(StepIndex, Attempt, bool)>,
    events: Vec<(Span, Event)>,
    requests: Vec<SentRequest>,
    outside: Vec<OutsideResult>,
    commands: usize,
    held: usize,
    end: Option<RehearsalEnd>,
}

/// Runs a task until nothing more happens by itself.
pub fn rehearse(beginning: &RehearsalInput<'_>, services: &mut dyn Services) -> Rehearsal {
    World::new(beginning, services).run()
}

/// The addresses for replies, which no service calls.
fn reply_addresses() -> Option<Arc<ReplyAddresses>> {
    let key = ReplyKey::new(b"rehearsal")?;
    Some(Arc::new(ReplyAddresses::new("http://provost.invalid", key)))
}

const NO_STEP: &str = "the task has no such step, or no such item yet";

impl<'a> World<'a> {
    fn new(beginning: &RehearsalInput<'a>, services: &'a mut dyn Services) -> Self {
        let workflow = beginning.workflow;
        let details = Details {
            // Expressions may show the id, so it is the same in every rehearsal.
            id: TaskId(Uuid::from_u128(0x0000_0000_0000_7000_8000_0000_0000_0001)),
            key: beginning.key.as_deref().map(Arc::from),
            workflow: None,
            definition: workflow.definition.clone(),
            input: beginning.input.clone(),
            labels: beginning.labels.clone(),
            priority: Priority::default(),
            complete_within: workflow.complete_within,
            start_at: None,
            trace: None,
            reply_to: None,
            parent: None,
            key_prefix: None,
        };
        let start = beginning.starts_at;
        let mut world = Self {
            draft: Draft::submit(Arc::new(details), start).replying_to(reply_addresses()),
            names: workflow.names.clone(),
            start,
            now: start,
            instance: InstanceId::new("test"),
            services,
            outside_events: beginning.outside,
            retry: RetrySpec::default(),
            agenda: BTreeMap::new(),
            scheduled: 0,
            counts: BTreeMap::new(),
            children: BTreeSet::new(),
            events: Vec::new(),
            requests: Vec::new(),
            outside: vec![OutsideResult::NotSent; beginning.outside.len()],
            commands: 0,
            held: 0,
            end: None,
        };
        for (index, event) in beginning.outside.iter().enumerate() {
            if let Some(at) = event.at {
                world.schedule(start + at, Scheduled::Outside(index));
            }
        }
        world.collect();
        world
    }

    fn run(mut self) -> Rehearsal {
        while self.end.is_none() {
            if self.apply_next_due() {
                continue;
            }
            if self.end.is_some() {
                break;
            }
            if self.is_over() {
                self.end = Some(RehearsalEnd::Settled);
                break;
            }
            match self.next_time() {
                Some(next) if next.since(self.start) > LONGEST_REHEARSAL.duration() => {
                    let message = "it has not ended after 100 years of virtual time";
                    self.end = Some(RehearsalEnd::TooLong(message.to_owned()));
                }
                Some(next) => self.now = next,
                None => self.end = Some(RehearsalEnd::Idle),
            }
        }
        let ended_after = self.elapsed();
        Rehearsal {
            task: self.draft.task,
            names: self.names,
            end: self.end.unwrap_or(RehearsalEnd::Settled),
            ended_after,
            events: self.events,
            requests: self.requests,
            outside: self.outside,
            commands: self.commands,
        }
    }

    fn elapsed(&self) -> Span {
        self.now.since(self.start).into()
    }

    fn schedule(&mut self, at: Timestamp, what: Scheduled) {
        self.scheduled += 1;
        self.agenda.insert((at, self.scheduled), what);
    }

    /// Returns true if nothing that the author planned can change the task any more. A signal changes nothing at that
    /// time.
    fn is_over(&self) -> bool {
        let task = &self.draft.task;
        match task.status() {
            // Only an undo changes a processed task.
            TaskStatus::Processed => {
                !self.is_planned(|command| matches!(command, OutsideCommand::Undo))
            }
            TaskStatus::Undone | TaskStatus::Cancelled => true,
            TaskStatus::Error => {
                task.is_settled()
                    && !self.is_planned(|command| !matches!(command, OutsideCommand::Signal { .. }))
            }
            TaskStatus::Pending
            | TaskStatus::Processing
            | TaskStatus::Paused
            | TaskStatus::Undoing => false,
        }
    }

    /// Returns whether such a command is still scheduled.
    fn is_planned(&self, test: impl Fn(&OutsideCommand) -> bool) -> bool {
        self.agenda.values().any(|what| match what {
            Scheduled::Outside(index) => test(&self.outside_events[*index].command),
            Scheduled::Command(_) | Scheduled::Heartbeat { .. } => false,
        })
    }

    /// Does the first thing that is due. Returns false if nothing is due.
    fn apply_next_due(&mut self) -> bool {
        if self.is_over() {
            return false;
        }
        if let Some(entry) = self.agenda.first_entry()
            && entry.key().0 <= self.now
        {
            let what = entry.remove();
            self.apply_scheduled(what);
            return true;
        }
        let now = self.now;
        if self.draft.task.overdue_at().is_some_and(|at| at <= now) {
            self.apply(Command::Overdue, &supervisor());
            return true;
        }
        let task = &self.draft.task;
        let expired = task
            .indexes()
            .find(|index| ends_at(task, *index).is_some_and(|end| end <= now));
        if let Some(step) = expired {
            let attempt = task.step(step).attempt;
            let cause = Expiry::CompleteBy;
            let expire = Command::Expire {
                step,
                attempt,
                cause,
            };
            self.apply(expire, &supervisor());
            return true;
        }
        if let Some(child) = self.awaited_child() {
            self.make_child(&child);
            return true;
        }
        if let Some(index) = self.awaited_signal() {
            self.apply_outside_event(index);
            return true;
        }
        let task = &self.draft.task;
        let due = task
            .indexes()
            .find(|index| task.due_at(*index).is_some_and(|due| due <= now));
        match due {
            Some(step) => {
                self.claim(step);
                true
            }
            None => false,
        }
    }

    /// Returns the next time at which something happens.
    fn next_time(&self) -> Option<Timestamp> {
        let task = &self.draft.task;
        let planned = self.agenda.keys().next().map(|(at, _)| *at);
        let of_steps = task.indexes().filter_map(|index| {
            let times = [ends_at(task, index), task.due_at(index)];
            times.into_iter().flatten().min()
        });
        let times = planned.into_iter().chain(task.overdue_at()).chain(of_steps);
        times.min()
    }

    /// Returns a step whose child must be made, or must end.
    fn awaited_child(&self) -> Option<ChildStep> {
        ChildStep::find(&self.draft.task, |step, attempt, is_left| {
            self.children.contains(&(step, attempt, is_left))
        })
    }

    fn make_child(&mut self, child: &ChildStep) {
        let (step, attempt) = (child.step, child.attempt);
        self.children.insert((step, attempt, child.is_left));
        let at_once = match (&child.input, child.is_left) {
            (_, true) => Some(child.undone()),
            (Err(message), false) => Some(child.refused(message.clone())),
            (Ok(_), false) => None,
        };
        if let Some(command) = at_once {
            self.schedule(self.now, Scheduled::Command(Box::new(command)));
            return;
        }
        let name = CallName::work(named_step(&self.names, &self.draft.task, step));
        let count = self.counts.entry(name).or_default();
        let before = *count;
        *count += 1;
        let mock = self.services.respond(name, before);
        // Without a mock, the undo of a child succeeds, and so does the start of one for which nobody waits.
        let mock = mock.or_else(|| {
            let success = Mock::responds(http::StatusCode::OK, None);
            (child.is_undo || !child.is_awaited).then_some(success)
        });
        let request = SentRequest {
            name,
            count: before + 1,
            at: self.elapsed(),
            after_events: self.events.len(),
            to: child.workflow.clone(),
            method: child.method(),
            path: String::new(),
            headers: Vec::new(),
            body: child.input.clone().ok(),
            response: mock
                .as_ref()
                .map_or_else(|| "nothing".to_owned(), Mock::in_words),
        };
        self.hold(
            200 + request
                .body
                .as_ref()
                .map_or(0, |body| 2 * body.as_json().len()),
        );
        self.requests.push(request);
        let Some(mock) = mock else {
            self.end = Some(RehearsalEnd::NoResponse(name));
            return;
        };
        match child.end(&mock) {
            Ok(Some((delay, command))) => {
                self.schedule(self.now + delay, Scheduled::Command(Box::new(command)));
            }
            Ok(None) => {}
            Err(message) => self.end = Some(RehearsalEnd::NotSimulated(message)),
        }
    }

    /// Returns a signal without a time whose step awaits it now.
    fn awaited_signal(&self) -> Option<usize> {
        let mut events = self.outside_events.iter().zip(&self.outside).enumerate();
        let found = events.find(|(_, (event, result))| match &event.command {
            OutsideCommand::Signal { step, .. } | OutsideCommand::Decide { step, .. } => {
                let waits = |step| self.draft.task.waits_for_event(step);
                event.at.is_none()
                    && **result == OutsideResult::NotSent
                    && self.target(*step, event.item).is_some_and(waits)
            }
            _ => false,
        });
        found.map(|(index, _)| index)
    }

    fn apply_scheduled(&mut self, what: Scheduled) {
        match what {
            Scheduled::Command(command) => {
                let by = match &*command {
                    Command::LaterReply { .. } => Actor::service(),
                    _ => self.scheduler(),
                };
                self.apply(*command, &by);
            }
            Scheduled::Heartbeat {
                step,
                attempt,
                every,
                until,
            } => {
                let progress = Progress::default();
                let heartbeat = Command::Heartbeat {
                    step,
                    attempt,
                    progress,
                };
                self.apply(heartbeat, &Actor::service());
                let next = self.now + every;
                if next < until {
                    let again = Scheduled::Heartbeat {
                        step,
                        attempt,
                        every,
                        until,
                    };
                    self.schedule(next, again);
                }
            }
            Scheduled::Outside(index) => self.apply_outside_event(index),
        }
    }

    /// Applies an outside event.
    fn apply_outside_event(&mut self, index: usize) {
        let reason = None;
        if let OutsideCommand::Decide {
            step, by, answer, ..
        } = &self.outside_events[index].command
        {
            let asks = self.target(*step, self.outside_events[index].item);
            let asks = asks.ok_or_else(|| NO_STEP.to_owned());
            let decided = asks.and_then(|step| self.decision(step, by, answer.clone()));
            let refused = match decided {
                Ok(command) => self.apply(command, &Actor::person(by)),
                Err(why) => Some(why),
            };
            self.outside[index] = match refused {
                None => OutsideResult::Accepted(self.elapsed()),
                Some(why) => OutsideResult::Refused(self.elapsed(), why),
            };
            return;
        }
        if let Some(why) = self.schema_fault(&self.outside_events[index].command) {
            self.outside[index] = OutsideResult::Refused(self.elapsed(), why);
            return;
        }
        let mut command = match self.outside_events[index].command.clone() {
            OutsideCommand::Signal { step, body } => Command::Signal {
                step,
                digest: ReplyDigest(body.as_json().to_owned()),
                payload: body,
            },
            // The command was made above, from the present ask of the step.
            OutsideCommand::Decide { .. } => return,
            OutsideCommand::Undo => Command::Undo { reason },
            OutsideCommand::Cancel => Command::Cancel { reason },
            OutsideCommand::Pause => Command::Pause { reason },
            OutsideCommand::Resume => Command::Resume { reason },
            OutsideCommand::Retry { step } => Command::Retry {
                step,
                body: None,
                reason,
            },
            OutsideCommand::Skip { step, output } => Command::Skip {
                step,
                output,
                reason,
            },
            OutsideCommand::Resolve { step, output } => Command::Resolve {
                step,
                output,
                reason,
            },
        };
        if let Command::Signal { step, .. }
        | Command::Retry {
            step: Some(step), ..
        }
        | Command::Skip { step, .. }
        | Command::Resolve { step, .. } = &mut command
        {
            let Some(target) = self.target(*step, self.outside_events[index].item) else {
                let refused = OutsideResult::Refused(self.elapsed(), NO_STEP.to_owned());
                self.outside[index] = refused;
                return;
            };
            *step = target;
        }
        let refused = self.apply(command, &Actor::operator("test"));
        self.outside[index] = match refused {
            None => OutsideResult::Accepted(self.elapsed()),
            Some(why) => OutsideResult::Refused(self.elapsed(), why),
        };
    }

    /// Returns the decision of a person with their link, if the step asks that person.
    fn decision(&self, step: StepIndex, by: &str, answer: AskAnswer) -> Result<Command, String> {
        let task = &self.draft.task;
        let name = &task.definition(step).name;
        let Some(ask) = &task.step(step).ask else {
            return Err(format!("step `{name}` has not asked yet"));
        };
        let Some(person) = (0..).zip(&ask.text.of).find(|(_, person)| *person == by) else {
            let of = ask.text.of.join(", ");
            return Err(format!("step `{name}` asks {of}, and not {by:?}"));
        };
        Ok(Command::Decide {
            step,
            attempt: ask.attempt,
            person: person.0,
            answer,
        })
    }

    /// Returns the step of the task, or its item.
    fn target(&self, step: StepIndex, item: Option<u16>) -> Option<StepIndex> {
        match item {
            None => in_task(&self.names, &self.draft.task, step),
            Some(number) => {
                let name = &self.names.step(step).name;
                self.draft.task.find(&format!("{name}[{number}]"))
            }
        }
    }

    /// Returns the faults of a signal's body, which is checked before the task gets it.
    fn schema_fault(&self, command: &OutsideCommand) -> Option<String> {
        let OutsideCommand::Signal { step, body } = command else {
            return None;
        };
        let StepWork::Signal(rule) = &self.names.step(*step).work else {
            return None;
        };
        let checked = rule.schema.as_ref()?.check(body, "", SchemaOwner::Workflow);
        let faults = checked.err()?;
        let words: Vec<_> = faults.iter().map(ToString::to_string).collect();
        Some(words.join("; "))
    }

    fn scheduler(&self) -> Actor {
        Actor::scheduler(self.instance.as_str())
    }

    /// Applies a command. Returns the message of a refusal.
    fn apply(&mut self, command: Command, by: &Actor) -> Option<String> {
        self.commands += 1;
        let result = self.draft.apply(command, by, self.now);
        self.collect();
        if self.end.is_none() && self.commands >= MOST_COMMANDS {
            let message = format!(
                "after {MOST_COMMANDS} commands, {} of virtual time, it has not ended: does a step retry or poll for ever?",
                self.elapsed()
            );
            self.end = Some(RehearsalEnd::TooLong(message));
        }
        if self.draft.spent() > MOST_SPENT {
            let message = "its expressions cost too much: make them or their data smaller";
            self.end = Some(RehearsalEnd::TooLong(message.to_owned()));
        }
        match result {
            Ok(CommandOutput::Call(call)) => {
                self.call(*call);
                None
            }
            Ok(CommandOutput::Done | CommandOutput::Unchanged | CommandOutput::Late(_)) => None,
            Err(refusal) => Some(refusal.to_string()),
        }
    }

    /// Takes the results of a command out of the draft.
    fn collect(&mut self) {
        let passed = self.elapsed();
        for event in std::mem::take(&mut self.draft.events) {
            let error = event.error.as_ref();
            let text = error.map_or(0, |fault| {
                fault.message.len() + fault.body.as_ref().map_or(0, String::len)
            });
            self.hold(200 + text + event.reason.as_ref().map_or(0, String::len));
            self.events.push((passed, event));
        }
        self.draft.changed.clear();
        self.draft.first_touched.clear();
        self.draft.alerts.clear();
        self.draft.ready.clear();
        for dropped in std::mem::take(&mut self.draft.dropped) {
            // The call ends, so its reply does not come.
            self.agenda.retain(|_, what| {
                !matches!(what, Scheduled::Command(command) if matches!(&**command,
                    Command::Reply { step, attempt, .. } if (*step, *attempt) == (dropped.step, dropped.attempt)))
            });
            if dropped.confirm {
                let release = Command::Release {
                    step: dropped.step,
                    attempt: dropped.attempt,
                    why: Release::Dropped,
                };
                self.schedule(self.now, Scheduled::Command(Box::new(release)));
            }
        }
    }

    fn hold(&mut self, bytes: usize) {
        self.held += bytes;
        if self.held > MOST_HELD && self.end.is_none() {
            let message = "its requests and its history are longer than 64 MiB: use fewer items, or smaller bodies";
            self.end = Some(RehearsalEnd::TooLong(message.to_owned()));
        }
    }

    fn claim(&mut self, step: StepIndex) {
        let by = Claimant::Instance(self.instance.clone());
        let scheduler = self.scheduler();
        if let Some(refused) = self.apply(Command::Claim { step, by }, &scheduler) {
            // The step was due and is refused now. Without an end this would repeat endlessly.
            let name = &self.draft.task.definition(step).name;
            self.end = Some(RehearsalEnd::NotSimulated(format!(
                "step {name} was due, but not claimed: {refused}"
            )));
        }
    }

    /// Makes a call. The behaviour of its service is known at once, and takes effect at its time.
    fn call(&mut self, call: Call) {
        let step = match call.purpose {
            Purpose::Probe(_) => self.draft.task.subject(call.step.step),
            Purpose::Work | Purpose::Undo(_) | Purpose::Poll | Purpose::Cancel(_) => call.step.step,
        };
        let name = CallName {
            kind: CallKind::of(&call.purpose),
            step: named_step(&self.names, &self.draft.task, step),
        };
        let count = self.counts.entry(name).or_default();
        let before = *count;
        *count += 1;
        let mock = self.services.respond(name, before);
        // The input is in memory only once, however many calls send it.
        let (body, held) = match &call.body {
            None => (None, 0),
            Some(CallBody::Whole(payload)) => (Some(payload.clone()), 0),
            Some(CallBody::Rendered(json)) => (Payload::parse(json.clone()), 2 * json.len()),
        };
        let request = SentRequest {
            name,
            count: before + 1,
            at: self.elapsed(),
            after_events: self.events.len(),
            to: match &call.target {
                Target::Agent(agent) => agent.to_string(),
                Target::Url { url, .. } | Target::Operation { url, .. } => url.to_string(),
            },
            method: call.method.as_str(),
            path: call.path.clone(),
            headers: call.headers.clone(),
            body,
            response: mock
                .as_ref()
                .map_or_else(|| "nothing".to_owned(), Mock::in_words),
        };
        self.hold(request.path.len() + held + 200);
        self.requests.push(request);
        let Some(mock) = mock else {
            self.end = Some(RehearsalEnd::NoResponse(name));
            return;
        };
        if let Err(message) = self.plan(&call, &mock) {
            self.end = Some(RehearsalEnd::NotSimulated(message));
        }
    }

    fn plan(&mut self, call: &Call, mock: &Mock) -> Result<(), String> {
        let at = self.now + mock.delay;
        let retry = self.retry.clone();
        let agent = MockedAgent {
            call,
            retry: &retry,
            now: at,
        };
        let outcome = match &mock.behaviour {
            Behaviour::Responds(response) => Some(agent.responded(response)?),
            Behaviour::Dropped => Some(agent.dropped()),
            Behaviour::Unreachable => Some(agent.unreachable()),
            Behaviour::Never => None,
        };
        let is_poll = matches!(call.purpose, Purpose::Poll | Purpose::Cancel(_));
        // A response at complete-by is late.
        let outcome = outcome.filter(|_| at < call.complete_by);
        let (at, outcome) = match outcome {
            Some(outcome) => (at, outcome),
            // The time limit of one poll may be shorter than the time that the attempt has left.
            None if is_poll => {
                let now = call.complete_by;
                let agent = MockedAgent { now, ..agent };
                (now, agent.poll_timed_out())
            }
            // The supervisor recovers the step.
            None => return Ok(()),
        };
        let later = match &mock.behaviour {
            Behaviour::Responds(response) => response.later.as_ref(),
            Behaviour::Never | Behaviour::Dropped | Behaviour::Unreachable => None,
        };
        let is_promise = matches!(outcome, CallOutcome::Deferred);
        let reply = Command::Reply {
            step: call.step.step,
            attempt: call.attempt,
            outcome,
        };
        self.schedule(at, Scheduled::Command(Box::new(reply)));
        if let Some(later) = later {
            if !is_promise {
                return Err(format!(
                    "the response has `later`, but it promises no later reply: respond with the status 202, to a step with `reply: callback` or with the header `Provost-Async: true` (the step is {})",
                    call.step_name
                ));
            }
            // The reply is scheduled after the promise, so that it comes second if both come at the same time.
            self.reply_later(call, later, at);
        }
        Ok(())
    }

    fn reply_later(&mut self, call: &Call, later: &LaterMock, promised_at: Timestamp) {
        let (step, attempt) = (call.step.step, call.attempt);
        let at = promised_at + later.after;
        let outcome = match &later.reply {
            Ok(output) => CallOutcome::Success(output.clone()),
            Err((message, permanent)) => CallOutcome::reported_error(message, *permanent),
        };
        let digest = match &later.reply {
            Ok(output) => output.as_json().to_owned(),
            Err((message, _)) => message.clone(),
        };
        let reply = Command::LaterReply {
            step,
            attempt,
            outcome,
            digest: ReplyDigest(digest),
        };
        if let Some(every) = later.heartbeat_every {
            let heartbeat = Scheduled::Heartbeat {
                step,
                attempt,
                every,
                until: at,
            };
            self.schedule(promised_at + every, heartbeat);
        }
        self.schedule(at, Scheduled::Command(Box::new(reply)));
    }
}

fn supervisor() -> Actor {
    Actor::supervisor("test", Term(1))
}

/// When the supervisor ends the attempt of a step, or what it waits for has come.
fn ends_at(task: &Task, index: StepIndex) -> Option<Timestamp> {
    match &task.step(index).state {
        // The mock decides when the child ends.
        StepState::Processing { .. } if task.waits_for_child(index) => None,
        StepState::Processing {
            held_by,
            complete_by,
        } => Some(held_by.ends_at(*complete_by)),
        _ => None,
    }
}
