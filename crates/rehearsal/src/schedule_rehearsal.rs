//! Runs a case with a schedule: it shows which fire times come in a span of virtual time, which of them are left out, and
//! how the task of each run ends. Fire times, overlap and missed fire times are decided by the domain alone.

use std::collections::BTreeMap;

use provost_domain::{
    definition::SchemaOwner,
    schedule::{RunSubmission, ScheduleRun, ScheduleState},
    values::{FieldFault, Span, TaskId, Timestamp},
};
use uuid::Uuid;

use crate::{
    cases::TestCase,
    rehearsal::{OutsideCommand, OutsideEvent, Rehearsal, RehearsalInput, Services},
    schedule::{RehearsedRun, RehearsedSchedule, ScheduleCase},
    workflow::WorkflowFile,
    world::{MOST_COMMANDS, rehearse},
};

/// The largest number of runs of one case, those that are left out included.
const MOST_RUNS: usize = 1000;
/// The largest number of looks at the schedule of one case.
const MOST_DECISIONS: usize = 20_000;
/// The operator who pauses the schedule.
const OPERATOR: &str = "test";

/// Runs a case with a schedule.
pub fn rehearse_schedule(
    case: &TestCase,
    schedule: &ScheduleCase,
    workflow: &WorkflowFile,
    services: &mut dyn Services,
) -> RehearsedSchedule {
    let mut rehearsal = ScheduleRehearsal {
        case,
        schedule,
        workflow,
        services,
        state: ScheduleState::new(Uuid::nil(), case.starts_at),
        runs: BTreeMap::new(),
        tasks: BTreeMap::new(),
        commands: 0,
        too_long: None,
    };
    rehearsal.run();
    RehearsedSchedule {
        runs: rehearsal.runs.into_values().collect(),
        too_long: rehearsal.too_long,
    }
}

/// The task of a run.
struct RunTask {
    number: u64,
    begun_at: Timestamp,
    /// The end of the task. `None`: it needs an operator, or is paused.
    ended_at: Option<Timestamp>,
    is_cancelled: bool,
}

struct ScheduleRehearsal<'a> {
    case: &'a TestCase,
    schedule: &'a ScheduleCase,
    workflow: &'a WorkflowFile,
    services: &'a mut dyn Services,
    state: ScheduleState,
    /// The runs by their numbers.
    runs: BTreeMap<u64, RehearsedRun>,
    tasks: BTreeMap<TaskId, RunTask>,
    commands: usize,
    too_long: Option<String>,
}

impl ScheduleRehearsal<'_> {
    fn run(&mut self) {
        let end = self.case.starts_at + self.schedule.lasts;
        let mut now = self.case.starts_at;
        let mut looks = 0;
        while let Some(next) = self.next_time(now).filter(|next| *next <= end) {
            now = next;
            self.pause_or_resume(now);
            if self.is_down(now) {
                continue;
            }
            // A task that ends at once lets the next run begin at once.
            while self.decide(now) {
                looks += 1;
                if self.too_long.is_some() {
                    return;
                }
            }
            looks += 1;
            if looks > MOST_DECISIONS || self.runs.len() > MOST_RUNS {
                let message = format!(
                    "the schedule has more than {MOST_RUNS} runs: make `for` shorter, or `every` longer"
                );
                self.too_long = Some(message);
                return;
            }
        }
    }

    /// Returns the next time at which something changes for the schedule.
    fn next_time(&self, now: Timestamp) -> Option<Timestamp> {
        let start = self.case.starts_at;
        let spans = self.schedule.down.iter().chain(&self.schedule.paused);
        let edges = spans.flat_map(|(from, to)| [start + *from, start + *to]);
        let ends = self.tasks.values().filter_map(|task| task.ended_at);
        let later = edges.chain(ends).filter(|at| *at > now);
        // A fire time that comes while no instance runs stays due until one runs, so it is no time of its own.
        let fires = self.state.next_start(&self.schedule.rule);
        let fires = fires.filter(|_| self.state.pause.is_none());
        let fires = fires.filter(|at| !self.is_down((*at).max(now)));
        later.chain(fires.map(|at| at.max(now))).min()
    }

    fn is_in(&self, spans: &[(Span, Span)], at: Timestamp) -> bool {
        let start = self.case.starts_at;
        let is_in = |(from, to): &(Span, Span)| start + *from <= at && at < start + *to;
        spans.iter().any(is_in)
    }

    fn is_down(&self, at: Timestamp) -> bool {
        self.is_in(&self.schedule.down, at)
    }

    fn pause_or_resume(&mut self, now: Timestamp) {
        match (self.is_in(&self.schedule.paused, now), &self.state.pause) {
            (true, None) => {
                self.state.pause(OPERATOR, None, false, now);
            }
            (false, Some(_)) => self.state.resume(OPERATOR, now),
            _ => {}
        }
    }

    /// Looks at the schedule, as the supervising instance does. Returns true if runs have begun or were cancelled, so
    /// that others may begin.
    fn decide(&mut self, now: Timestamp) -> bool {
        let tasks = &self.tasks;
        let runs = |task| {
            let task = tasks.get(&task);
            task.is_some_and(|task| task.ended_at.is_none_or(|at| at > now))
        };
        let look = self.state.decide(&self.schedule.rule, now, runs);
        for (number, run) in look.records {
            self.record(number, run);
        }
        let mut is_changed = !look.begin.is_empty();
        for (task, _) in look.cancel {
            is_changed |= self.cancel(task, now);
        }
        for run in look.begin {
            self.begin(run, now);
        }
        is_changed
    }

    fn record(&mut self, number: u64, run: ScheduleRun) {
        match self.runs.get_mut(&number) {
            Some(known) => known.run = run,
            None => {
                self.runs.insert(number, RehearsedRun { run, task: None });
            }
        }
    }

    fn begin(&mut self, run: ScheduleRun, now: Timestamp) {
        let number = run.number;
        let begun = match self.refusal() {
            Some(reason) => RunSubmission::Rejected(reason),
            None => {
                let id = TaskId(Uuid::from_u128(
                    0x0000_0000_0000_7000_8000_0000_0000_0000 + u128::from(number),
                ));
                let seen = self.rehearse(&run, now, None);
                self.note_task(id, number, now, seen, false);
                RunSubmission::Task(id)
            }
        };
        if let Some(run) = self.state.record_submission(number, begun, now) {
            self.record(number, run);
        }
    }

    /// Returns the reason why the task of a run would not be accepted.
    fn refusal(&self) -> Option<String> {
        let schema = self.workflow.definition.input_schema.as_ref()?;
        let checked = schema.check(&self.case.input, "/input", SchemaOwner::Workflow);
        let faults = checked.err()?;
        let faults: Vec<_> = faults.iter().map(FieldFault::to_string).collect();
        Some(faults.join("; "))
    }

    fn note_task(
        &mut self,
        id: TaskId,
        number: u64,
        begun_at: Timestamp,
        seen: Rehearsal,
        is_cancelled: bool,
    ) {
        let ended_at = (seen.task.is_ended()).then(|| begun_at + seen.ended_after);
        let task = RunTask {
            number,
            begun_at,
            ended_at,
            is_cancelled,
        };
        self.tasks.insert(id, task);
        if let Some(run) = self.runs.get_mut(&number) {
            run.task = Some(seen);
        }
    }

    /// Cancels a task that a new run replaces. Returns false if it was cancelled before.
    fn cancel(&mut self, id: TaskId, now: Timestamp) -> bool {
        let Some(task) = self.tasks.get(&id).filter(|task| !task.is_cancelled) else {
            return false;
        };
        let (number, begun_at) = (task.number, task.begun_at);
        let Some(run) = self.runs.get(&number).map(|run| run.run.clone()) else {
            return false;
        };
        // The rehearsal is repeated, and the task is cancelled now.
        let seen = self.rehearse(&run, begun_at, Some(now));
        self.note_task(id, number, begun_at, seen, true);
        true
    }

    fn rehearse(
        &mut self,
        run: &ScheduleRun,
        begun_at: Timestamp,
        cancelled_at: Option<Timestamp>,
    ) -> Rehearsal {
        let name = &self.schedule.rule.name;
        let mut labels = self.case.labels.clone();
        labels.extend(run.task_labels(name));
        let mut outside = self.case.outside.clone();
        outside.extend(cancelled_at.map(|at| OutsideEvent {
            pointer: self.case.pointer.clone(),
            at: Some(at.since(begun_at).into()),
            item: None,
            command: OutsideCommand::Cancel,
            refused: false,
        }));
        let beginning = RehearsalInput {
            workflow: self.workflow,
            input: self.case.input.clone(),
            key: Some(run.task_key(name)),
            labels,
            starts_at: begun_at,
            outside: &outside,
        };
        let mut seen = rehearse(&beginning, self.services);
        seen.outside.truncate(self.case.outside.len());
        self.commands += seen.commands;
        if self.commands > MOST_COMMANDS {
            let message = format!(
                "the tasks of its runs take more than {MOST_COMMANDS} commands: make `for` shorter"
            );
            self.too_long = Some(message);
        }
        seen
    }
}
