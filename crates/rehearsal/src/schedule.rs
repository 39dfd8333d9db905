//! The schedule of a case, and the record of its runs.

use provost_domain::{
    schedule::{MISSED_AFTER, RunState, ScheduleRule, ScheduleRun, ScheduleSpec, Timing},
    values::{Fields, LONGEST_NAME, Span, Timestamp},
};

use crate::{
    reading::list,
    rehearsal::{OutsideResult, Rehearsal},
    world::LONGEST_REHEARSAL,
};

/// The largest number of spans without an instance, or with a pause.
const MOST_SPANS: usize = 100;
/// The name of a schedule for which the file gives none.
const USUAL_NAME: &str = "schedule";

/// The field `schedule` of a case.
#[derive(Debug)]
pub struct ScheduleCase {
    pub(crate) rule: ScheduleRule,
    /// The time for which the schedule is watched.
    pub(crate) lasts: Span,
    /// The spans in which no instance runs.
    pub(crate) down: Vec<(Span, Span)>,
    pub(crate) paused: Vec<(Span, Span)>,
}

/// A run, and the rehearsal of its task.
#[derive(Debug)]
pub struct RehearsedRun {
    pub run: ScheduleRun,
    pub task: Option<Rehearsal>,
}

/// The record of a case with a schedule.
#[derive(Debug)]
pub struct RehearsedSchedule {
    /// The runs, in the order in which they were decided.
    pub runs: Vec<RehearsedRun>,
    /// The reason why the schedule was not watched to its end.
    pub too_long: Option<String>,
}

impl ScheduleCase {
    /// Reads the field `schedule`: the specification, as in `PUT /v1/schedules/{name}`, and the time for which the
    /// schedule is watched.
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

/// Reads spans of time from the start of the case, each with `from` and `to`.
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

impl RehearsedRun {
    /// Returns the result of an outside event in this run.
    pub fn outside(&self, index: usize) -> Option<&OutsideResult> {
        self.task.as_ref()?.outside.get(index)
    }

    /// Describes the run in one line.
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
