//! A case with a schedule: which fire times come in a span of virtual time, which of them are left out, and what becomes
//! of the task of each run. Fire times, overlap and what was missed are decided by the domain alone.

use std::collections::BTreeMap;

use provost_domain::{
    Begun, FieldFault, Fields, LONGEST_NAME, MISSED_AFTER, RunState, ScheduleRule, ScheduleRun,
    ScheduleSpec, ScheduleState, SchemaOwner, Span, TaskId, Timestamp, Timing,
};
use uuid::Uuid;

use crate::{
    cases::{TestCase, list},
    rehearsal::{Beginning, OutsideCommand, OutsideEvent, OutsideResult, Rehearsal, Services},
    workflow::WorkflowFile,
    world::{LONGEST_REHEARSAL, MOST_COMMANDS, rehearse},
};

/// The most runs of one case, those that are left out included.
const MOST_RUNS: usize = 1000;
/// The most looks at the schedule of one case.
const MOST_LOOKS: usize = 20_000;
/// The most spans without an instance, or with a pause.
const MOST_SPANS: usize = 100;
/// The name of a schedule that is given none.
const USUAL_NAME: &str = "schedule";
/// Who pauses it.
const OPERATOR: &str = "test";

/// What the file says of the schedule of a case.
#[derive(Debug)]
pub struct ScheduleCase {
    rule: ScheduleRule,
    /// How long it is watched.
    lasts: Span,
    /// When no instance runs.
    down: Vec<(Span, Span)>,
    paused: Vec<(Span, Span)>,
}

/// A run, and what happened to its task.
#[derive(Debug)]
pub struct SeenRun {
    pub run: ScheduleRun,
    pub task: Option<Rehearsal>,
}

/// What happened in a case with a schedule.
#[derive(Debug)]
pub struct SeenSchedule {
    /// In the order in which they were decided.
    pub runs: Vec<SeenRun>,
    /// Why it was not watched to its end.
    pub too_long: Option<String>,
}

impl ScheduleCase {
    /// Reads the field `schedule`: when it fires, as in `PUT /v1/schedules/{name}`, and for how long it is watched.
    pub fn read(case: &mut Fields<'_>, starts_at: Timestamp) -> Option<Self> {
        let mut fields = case.object("schedule")?;
        let spec = ScheduleSpec::read(&mut fields, starts_at);
        let name = fields.string("name", LONGEST_NAME);
        if fields.peek("for").is_none() {
            fields.missing("for", "say how long it is watched, such as \"3d\"");
        }
        let lasts = fields.span("for", Span::from_millis(1)..=LONGEST_REHEARSAL);
        let down = spans(&mut fields, "down");
        let paused = spans(&mut fields, "paused");
        if let Err(faults) = fields.finish() {
            case.extend(faults);
            return None;
        }
        let timing = Timing::of(&spec).ok()?;
        Some(Self {
            rule: ScheduleRule {
                name: name.unwrap_or_else(|| USUAL_NAME.to_owned()),
                spec,
                timing,
                missed_after: MISSED_AFTER,
            },
            lasts: lasts?,
            down,
            paused,
        })
    }
}

/// Spans of time from the start of the case on, each `from` and `to`.
fn spans(fields: &mut Fields<'_>, name: &str) -> Vec<(Span, Span)> {
    let found = list(fields, name, |span, _| {
        let mut at = |name: &str| {
            if span.peek(name).is_none() {
                span.missing(name, "say how long after the start, such as \"26h\"");
            }
            span.span(name, Span::default()..=Span::LONGEST)
        };
        let (from, to) = (at("from"), at("to"));
        let (from, to) = (from?, to?);
        if from >= to {
            span.fault("to", "must be later than `from`");
        }
        Some((from, to))
    });
    if found.len() > MOST_SPANS {
        fields.fault(name, format!("has more than {MOST_SPANS} spans"));
    }
    found
}

/// Runs a case with a schedule.
pub fn rehearse_schedule(
    case: &TestCase,
    schedule: &ScheduleCase,
    workflow: &WorkflowFile,
    services: &mut dyn Services,
) -> SeenSchedule {
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
    SeenSchedule {
        runs: rehearsal.runs.into_values().collect(),
        too_long: rehearsal.too_long,
    }
}

/// The task of a run.
struct RunTask {
    number: u64,
    begun_at: Timestamp,
    /// `None`: it needs an operator, or is paused.
    ended_at: Option<Timestamp>,
    is_cancelled: bool,
}

struct ScheduleRehearsal<'a> {
    case: &'a TestCase,
    schedule: &'a ScheduleCase,
    workflow: &'a WorkflowFile,
    services: &'a mut dyn Services,
    state: ScheduleState,
    /// By number.
    runs: BTreeMap<u64, SeenRun>,
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
            // A task that takes no time makes room for the next run at once.
            while self.look(now) {
                looks += 1;
                if self.too_long.is_some() {
                    return;
                }
            }
            looks += 1;
            if looks > MOST_LOOKS || self.runs.len() > MOST_RUNS {
                let message = format!(
                    "the schedule has more than {MOST_RUNS} runs: make `for` shorter, or `every` longer"
                );
                self.too_long = Some(message);
                return;
            }
        }
    }

    /// The next time at which something changes for the schedule.
    fn next_time(&self, now: Timestamp) -> Option<Timestamp> {
        let start = self.case.starts_at;
        let spans = self.schedule.down.iter().chain(&self.schedule.paused);
        let edges = spans.flat_map(|(from, to)| [start + *from, start + *to]);
        let ends = self.tasks.values().filter_map(|task| task.ended_at);
        let later = edges.chain(ends).filter(|at| *at > now);
        // While no instance runs it is due all the time.
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

    /// Looks at the schedule, as the supervising instance does. True: runs have begun or were cancelled, so that others may
    /// begin.
    fn look(&mut self, now: Timestamp) -> bool {
        let tasks = &self.tasks;
        let runs = |task| {
            let task = tasks.get(&task);
            task.is_some_and(|task| task.ended_at.is_none_or(|at| at > now))
        };
        let look = self.state.look(&self.schedule.rule, now, runs);
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
                self.runs.insert(number, SeenRun { run, task: None });
            }
        }
    }

    fn begin(&mut self, run: ScheduleRun, now: Timestamp) {
        let number = run.number;
        let begun = match self.refusal() {
            Some(reason) => Begun::Failed(reason),
            None => {
                let id = TaskId(Uuid::from_u128(
                    0x0000_0000_0000_7000_8000_0000_0000_0000 + u128::from(number),
                ));
                let seen = self.rehearse(&run, now, None);
                self.note_task(id, number, now, seen, false);
                Begun::Task(id)
            }
        };
        if let Some(run) = self.state.begun(number, begun, now) {
            self.record(number, run);
        }
    }

    /// Why the task of a run would not be accepted.
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

    /// A run is to take the turn of this task. False: that was so before.
    fn cancel(&mut self, id: TaskId, now: Timestamp) -> bool {
        let Some(task) = self.tasks.get(&id).filter(|task| !task.is_cancelled) else {
            return false;
        };
        let (number, begun_at) = (task.number, task.begun_at);
        let Some(run) = self.runs.get(&number).map(|run| run.run.clone()) else {
            return false;
        };
        // The same again, until now.
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
            what: OutsideCommand::Cancel,
            refused: false,
        }));
        let beginning = Beginning {
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

impl SeenRun {
    /// What became of something that comes from outside, in this run.
    pub fn outside(&self, index: usize) -> Option<&OutsideResult> {
        self.task.as_ref()?.outside.get(index)
    }

    /// In one line.
    pub fn in_words(&self) -> String {
        let run = &self.run;
        let fire_time = run.fire_time;
        let until = run.last_fire_time.filter(|_| run.count > 1);
        let until = until.map_or_else(String::new, |last| {
            format!(" and {} more until {last}", run.count - 1)
        });
        let reason = run.reason.as_deref().unwrap_or("not known why");
        let what = match (run.state, &self.task) {
            (RunState::Queued, _) => "it has not begun".to_owned(),
            (RunState::Started, Some(task)) => {
                let state = task.task.status().as_str();
                let begun = run.started_at.unwrap_or(run.starts_at);
                let later = Span::from(begun.since(fire_time));
                let later = match later > Span::default() {
                    true => format!(", begun {later} later"),
                    false => String::new(),
                };
                format!("{state} after {}{later}", task.ended_after)
            }
            (RunState::Skipped, _) => {
                let skipped = run.skipped.unwrap_or_default().as_str();
                format!("skipped ({skipped}): {reason}")
            }
            (RunState::Failed, _) => format!("not submitted: {reason}"),
            (RunState::Started, None) => "submitted".to_owned(),
        };
        format!("{fire_time}{until} {}: {what}", run.source.as_str())
    }
}
