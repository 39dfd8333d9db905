//! The timeline of a task: a row for each step that began, from the history. Grey is the queue, solid a call by its
//! result, hatched a wait, and a thin red line waits for a person. Time in which nothing runs is shortened to a notch.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::record::{Entry, Step, Task, millis, span};

/// A stretch without calls becomes a notch if it would take more than this part of the width, in per cent.
const LONGEST_GAP: f64 = 5.0;
/// The width of a notch, in per cent.
const NOTCH: f64 = 5.0;
/// The most rows; the page says if there are more.
const MOST_ROWS: usize = 60;
/// A wait for a retry is drawn to scale unless it takes this many times as long as all calls together.
const LONG_WAIT: i64 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Queue,
    /// A wait for a time: of a retry, or of a step that only waits.
    Wait,
    Call(Outcome),
    Person,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Processed,
    Failed,
    Running,
    /// The call was given up: its step was skipped or cancelled.
    Dropped,
}

impl What {
    pub fn class(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Wait => "wait",
            Self::Person => "person",
            Self::Call(Outcome::Processed) => "f-processed",
            Self::Call(Outcome::Failed) => "f-error",
            Self::Call(Outcome::Running) => "f-processing",
            Self::Call(Outcome::Dropped) => "f-idle",
        }
    }

    pub fn y(self) -> u8 {
        match self {
            Self::Queue => 6,
            Self::Person => 7,
            Self::Wait | Self::Call(_) => 2,
        }
    }

    pub fn height(self) -> u8 {
        match self {
            Self::Queue => 4,
            Self::Person => 2,
            Self::Wait | Self::Call(_) => 12,
        }
    }

    pub fn radius(self) -> u8 {
        u8::from(matches!(self, Self::Call(_) | Self::Person)) * 2
    }
}

/// A part of a row, in milliseconds and then in per cent of the width.
#[derive(Clone, Debug)]
pub struct TimelinePart {
    pub what: What,
    pub title: String,
    pub x: String,
    pub width: String,
    begin: i64,
    end: i64,
    /// The wait of a step that only waits: nothing runs in it.
    is_idle: bool,
}

pub struct Row {
    pub step: String,
    pub is_on_longest_way: bool,
    pub parts: Vec<TimelinePart>,
    pub took: String,
    pub label: String,
}

pub struct Tick {
    pub x: String,
    pub anchor: &'static str,
    pub is_extra: bool,
    pub text: String,
    /// The time, from which the script writes the text in the zone of the reader.
    pub at: String,
}

#[derive(Default)]
pub struct Timeline {
    pub rows: Vec<Row>,
    pub left_out: usize,
    pub notches: Vec<(String, String)>,
    pub ticks: Vec<Tick>,
    /// The time with calls, and the time without.
    pub busy: String,
    pub idle: Option<String>,
    pub longest_way: String,
}

/// Makes the timeline. `entries` is the beginning of the history; steps that it does not know are drawn from the times
/// of the task.
pub fn timeline(task: &Task, entries: &[Entry], is_whole: bool, now: Timestamp) -> Timeline {
    let now = task
        .ended_at
        .as_deref()
        .and_then(millis)
        .unwrap_or(now.as_millisecond());
    let mut parts: BTreeMap<&str, Vec<TimelinePart>> = BTreeMap::new();
    if is_whole {
        for step in &task.steps {
            let of_step = entries
                .iter()
                .filter(|entry| entry.step.as_deref() == Some(&step.name));
            parts.insert(&step.name, parts_of(step, of_step, now, task.has_ended()));
        }
    } else {
        for step in &task.steps {
            parts.insert(&step.name, rough_part(step, now).into_iter().collect());
        }
    }
    let all: Vec<TimelinePart> = parts.values().flatten().cloned().collect();
    let (Some(first), Some(last)) = (
        all.iter().map(|part| part.begin).min(),
        all.iter().map(|part| part.end).max(),
    ) else {
        return Timeline::default();
    };
    let scale = Scale::new(first, last, &all);
    let way = longest_way(task, now);
    let mut rows = Vec::new();
    for step in &task.steps {
        let Some(mut parts) = parts
            .remove(step.name.as_str())
            .filter(|parts| !parts.is_empty())
        else {
            continue;
        };
        for part in &mut parts {
            let (x, end) = (scale.per_cent(part.begin), scale.per_cent(part.end));
            part.x = format!("{x:.2}");
            part.width = format!("{:.2}", (end - x).max(0.25));
        }
        let took = match (
            step.started_at.as_deref().and_then(millis),
            step.ended_at.as_deref().and_then(millis),
        ) {
            (Some(begin), Some(end)) => span(end - begin),
            (Some(begin), None) => span(now - begin),
            _ => String::new(),
        };
        let label = label(&step.name, &parts);
        rows.push(Row {
            step: step.name.clone(),
            is_on_longest_way: way.contains(step.name.as_str()),
            label,
            parts: merged(parts),
            took,
        });
    }
    let left_out = rows.len().saturating_sub(MOST_ROWS);
    if left_out > 0 {
        // The rows on the longest way stay, and the first ones of the others.
        let mut kept = 0;
        let on_way = rows
            .iter()
            .filter(|row| row.is_on_longest_way)
            .count()
            .min(MOST_ROWS);
        rows.retain(|row| {
            if row.is_on_longest_way {
                return true;
            }
            kept += 1;
            kept <= MOST_ROWS - on_way
        });
        rows.truncate(MOST_ROWS);
    }
    let idle: i64 = scale.gaps.iter().map(|(begin, end)| end - begin).sum();
    let way_begin = task
        .steps
        .iter()
        .filter(|step| way.contains(step.name.as_str()));
    let way_begin = way_begin
        .filter_map(|step| step.started_at.as_deref().and_then(millis))
        .min()
        .unwrap_or(first);
    let way_end = all
        .iter()
        .filter(|part| matches!(part.what, What::Call(_)))
        .map(|part| part.end)
        .max()
        .unwrap_or(last);
    Timeline {
        left_out,
        notches: scale
            .gaps
            .iter()
            .map(|gap| {
                (
                    format!("{:.2}", scale.per_cent(gap.0)),
                    format!("{NOTCH:.2}"),
                )
            })
            .collect(),
        ticks: scale.ticks(),
        busy: span(last - first - idle),
        idle: (idle > 0).then(|| span(idle)),
        longest_way: span((way_end - way_begin).max(0)),
        rows,
    }
}

/// The titles that the label of a row repeats.
const MOST_TITLES: usize = 8;
/// A row with more parts than this has narrow neighbours drawn as one.
const MOST_PARTS: usize = 40;
/// A part is narrow below this width, in per cent.
const NARROW: f64 = 1.0;

/// Says what a row shows: its last parts, if they are many.
fn label(step: &str, parts: &[TimelinePart]) -> String {
    let left_out = parts.len().saturating_sub(MOST_TITLES);
    let titles: Vec<&str> = parts[left_out..]
        .iter()
        .map(|part| part.title.as_str())
        .collect();
    match left_out {
        0 => format!("{step}: {}", titles.join("; ")),
        _ => format!(
            "{step}: {left_out} earlier calls and waits; {}",
            titles.join("; ")
        ),
    }
}

/// Draws narrow neighbours as one part if there are many: a step may be tried a thousand times.
fn merged(parts: Vec<TimelinePart>) -> Vec<TimelinePart> {
    if parts.len() <= MOST_PARTS {
        return parts;
    }
    let place = |text: &str| text.parse::<f64>().unwrap_or(0.0);
    let mut rest: Vec<TimelinePart> = Vec::new();
    let (mut count, mut longest) = (1, 0);
    for part in parts {
        let end = place(&part.x) + place(&part.width);
        let length = part.end - part.begin;
        match rest.last_mut() {
            Some(last) if end - place(&last.x) <= NARROW => {
                count += 1;
                // The longest one decides how it looks: calls of milliseconds do not fill minutes of waiting.
                if length > longest {
                    longest = length;
                    last.what = part.what;
                }
                last.title = format!("{count} calls and waits; the last: {}", part.title);
                last.width = format!("{:.2}", end - place(&last.x));
            }
            _ => {
                (count, longest) = (1, length);
                rest.push(part);
            }
        }
    }
    rest
}

fn parts_of<'e>(
    step: &Step,
    entries: impl Iterator<Item = &'e Entry>,
    now: i64,
    has_ended: bool,
) -> Vec<TimelinePart> {
    let mut parts = Vec::new();
    let mut open: Option<(&Entry, i64)> = None;
    for entry in entries {
        let Some(at) = millis(&entry.at) else {
            continue;
        };
        if entry.from.as_deref() == Some(&entry.to) && open.is_some() {
            continue;
        }
        if let Some((begun, begin)) = open.replace((entry, at)) {
            push(&mut parts, step, begun, begin, at, Some(entry));
        }
    }
    if let Some((begun, begin)) = open
        && !has_ended
    {
        push(&mut parts, step, begun, begin, now.max(begin), None);
    }
    parts
}

/// Adds the parts of the time between two entries of a step; `next` is missing if it goes on.
fn push(
    parts: &mut Vec<TimelinePart>,
    step: &Step,
    begun: &Entry,
    begin: i64,
    end: i64,
    next: Option<&Entry>,
) {
    let part = |what, begin: i64, end: i64, title: String| TimelinePart {
        what,
        title,
        begin,
        end,
        x: String::new(),
        width: String::new(),
        is_idle: false,
    };
    match begun.to.as_str() {
        "pending" => {
            let ready = begun
                .ready_at
                .as_deref()
                .and_then(millis)
                .unwrap_or(begin)
                .clamp(begin, end);
            if ready > begin {
                let length = span(ready - begin);
                let why = if begun.kind == "step.retrying" {
                    "waits to retry"
                } else {
                    "waits for its time"
                };
                parts.push(part(What::Wait, begin, ready, format!("{why}, {length}")));
            }
            if end > ready {
                parts.push(part(
                    What::Queue,
                    ready,
                    end,
                    format!("in queue {}", span(end - ready)),
                ));
            }
        }
        "processing" if step.ask.is_some() => {
            parts.push(part(
                What::Person,
                begin,
                end,
                format!("waits for a person, {}", span(end - begin)),
            ));
        }
        "processing" if matches!(step.kind.as_str(), "wait" | "signal") => {
            let what = if step.kind == "wait" {
                "waits"
            } else {
                "waits for a signal"
            };
            let mut wait = part(
                What::Wait,
                begin,
                end,
                format!("{what}, {}", span(end - begin)),
            );
            wait.is_idle = true;
            parts.push(wait);
        }
        "processing" => {
            let (outcome, words) = match next {
                None => (Outcome::Running, String::from("under way")),
                Some(next) => outcome(next),
            };
            let attempt = begun
                .attempt
                .map_or_else(String::new, |attempt| format!("attempt {attempt}, "));
            parts.push(part(
                What::Call(outcome),
                begin,
                end,
                format!("{attempt}{}: {words}", span(end - begin)),
            ));
        }
        "error" => {
            parts.push(part(
                What::Person,
                begin,
                end,
                format!("in error, waits for an operator, {}", span(end - begin)),
            ));
        }
        _ => {}
    }
}

fn outcome(next: &Entry) -> (Outcome, String) {
    match (next.to.as_str(), &next.error) {
        ("processed" | "undone", _) => (Outcome::Processed, next.to.clone()),
        (_, Some(fault)) => (Outcome::Failed, fault.short().to_owned()),
        ("error" | "pending", None) => (
            Outcome::Failed,
            next.reason
                .clone()
                .unwrap_or_else(|| String::from("failed")),
        ),
        _ => (Outcome::Dropped, next.to.clone()),
    }
}

/// A step of which only the beginning and the end are known.
fn rough_part(step: &Step, now: i64) -> Option<TimelinePart> {
    let begin = millis(step.started_at.as_deref()?)?;
    let end = step
        .ended_at
        .as_deref()
        .and_then(millis)
        .unwrap_or(now)
        .max(begin);
    let outcome = match step.state.as_str() {
        "processed" | "undone" => Outcome::Processed,
        "error" => Outcome::Failed,
        "processing" | "pending" => Outcome::Running,
        _ => Outcome::Dropped,
    };
    let title = format!(
        "from its first attempt to its end, {}: {}",
        span(end - begin),
        step.state
    );
    let (x, width) = (String::new(), String::new());
    Some(TimelinePart {
        what: What::Call(outcome),
        title,
        begin,
        end,
        x,
        width,
        is_idle: false,
    })
}

/// Returns the steps that the end of the task waited for, one before the other.
fn longest_way(task: &Task, now: i64) -> BTreeSet<&str> {
    let end = |step: &Step| {
        step.started_at.as_ref()?;
        Some(step.ended_at.as_deref().and_then(millis).unwrap_or(now))
    };
    let latest = |steps: &mut dyn Iterator<Item = &'_ Step>| -> Option<String> {
        let ended = steps
            .filter(|step| step.undoes.is_none())
            .filter_map(|step| Some((end(step)?, step)));
        ended
            .max_by_key(|(end, _)| *end)
            .map(|(_, step)| step.name.clone())
    };
    let mut way = BTreeSet::new();
    let mut next = latest(&mut task.steps.iter());
    while let Some(step) = next.and_then(|name| task.step(&name))
        && way.insert(step.name.as_str())
    {
        next = latest(&mut step.after.iter().filter_map(|name| task.step(name)));
    }
    way
}

/// The places of times: to scale, but for the gaps.
struct Scale {
    begin: i64,
    end: i64,
    gaps: Vec<(i64, i64)>,
}

impl Scale {
    fn new(begin: i64, end: i64, parts: &[TimelinePart]) -> Self {
        let calls = parts
            .iter()
            .filter(|part| matches!(part.what, What::Call(_)));
        let calls: i64 = calls.map(|part| part.end - part.begin).sum();
        let runs = |part: &&TimelinePart| match part.what {
            What::Call(_) | What::Queue => true,
            What::Wait => {
                !part.is_idle && part.end - part.begin <= calls.max(1).saturating_mul(LONG_WAIT)
            }
            What::Person => false,
        };
        let mut busy: Vec<(i64, i64)> = parts
            .iter()
            .filter(runs)
            .map(|part| (part.begin, part.end))
            .collect();
        busy.sort_unstable();
        let mut idle = Vec::new();
        let mut reached = begin;
        for (from, to) in busy {
            if from > reached {
                idle.push((reached, from));
            }
            reached = reached.max(to);
        }
        if end > reached {
            idle.push((reached, end));
        }
        // A gap that was short beside an hour may be long beside the seconds that remain: the longest goes first.
        idle.sort_unstable_by_key(|(from, to)| from - to);
        let mut rest = end - begin;
        let mut gaps = Vec::new();
        for (from, to) in idle {
            #[expect(
                clippy::cast_precision_loss,
                reason = "lengths of time have fewer digits than a double"
            )]
            let part = 100.0 * (to - from) as f64 / rest.max(1) as f64;
            if part <= LONGEST_GAP || to - from == rest || gaps.len() == 10 {
                break;
            }
            rest -= to - from;
            gaps.push((from, to));
        }
        gaps.sort_unstable();
        Self { begin, end, gaps }
    }

    /// Returns the place of a time, in per cent of the width.
    #[expect(
        clippy::cast_precision_loss,
        reason = "lengths of time have fewer digits than a double"
    )]
    fn per_cent(&self, at: i64) -> f64 {
        let at = at.clamp(self.begin, self.end);
        let notches = NOTCH * self.gaps.len() as f64;
        let shortened: i64 = self.gaps.iter().map(|(from, to)| to - from).sum();
        let unit = (100.0 - notches) / (self.end - self.begin - shortened).max(1) as f64;
        let mut place = (at - self.begin) as f64 * unit;
        for &(from, to) in &self.gaps {
            let inside = (at - from).clamp(0, to - from) as f64;
            place += inside * (NOTCH / (to - from) as f64 - unit);
        }
        place.clamp(0.0, 100.0)
    }

    fn ticks(&self) -> Vec<Tick> {
        let shortened: i64 = self.gaps.iter().map(|(from, to)| to - from).sum();
        let (whole, to_scale) = (self.end - self.begin, self.end - self.begin - shortened);
        let format = match (whole, to_scale) {
            (86_400_000.., _) => "%-d %b %H:%M",
            (_, 600_000..) => "%H:%M",
            _ => "%H:%M:%S",
        };
        let text = |at: i64| {
            let time =
                Timestamp::from_millisecond(at).map(|time| time.to_zoned(jiff::tz::TimeZone::UTC));
            time.map_or_else(|_| String::new(), |time| time.strftime(format).to_string())
        };
        let mut ticks = vec![Tick {
            x: String::from("0"),
            anchor: "start",
            is_extra: false,
            text: text(self.begin),
            at: whole_time(self.begin),
        }];
        for place in [33.0, 66.0] {
            let (mut low, mut high) = (self.begin, self.end);
            while high - low > 1 {
                let middle = i64::midpoint(low, high);
                if self.per_cent(middle) < place {
                    low = middle
                } else {
                    high = middle
                }
            }
            if self
                .gaps
                .iter()
                .all(|(from, to)| high <= *from || high >= *to)
            {
                ticks.push(Tick {
                    x: format!("{place:.0}"),
                    anchor: "middle",
                    is_extra: true,
                    text: text(high),
                    at: whole_time(high),
                });
            }
        }
        ticks.push(Tick {
            x: String::from("100"),
            anchor: "end",
            is_extra: false,
            text: text(self.end),
            at: whole_time(self.end),
        });
        ticks.dedup_by(|a, b| a.text == b.text);
        ticks
    }
}

/// Returns a time in milliseconds as RFC 3339.
fn whole_time(at: i64) -> String {
    Timestamp::from_millisecond(at).map_or_else(|_| String::new(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::record::History;

    fn of(task: &str, history: &str, now: &str) -> Timeline {
        let task: Task = serde_json::from_str(task).unwrap();
        let history: History = serde_json::from_str(history).unwrap();
        timeline(&task, &history.items, true, now.parse().unwrap())
    }

    fn failed() -> Timeline {
        of(
            include_str!("fixtures/task-error.json"),
            include_str!("fixtures/history-error.json"),
            "2026-11-28T21:56:25Z",
        )
    }

    fn row<'t>(timeline: &'t Timeline, step: &str) -> &'t Row {
        timeline.rows.iter().find(|row| row.step == step).unwrap()
    }

    #[test]
    fn a_step_has_its_calls_by_result_and_the_waits_between_them() {
        let timeline = failed();
        let parts = &row(&timeline, "fraud-check").parts;
        let whats: Vec<_> = parts
            .iter()
            .map(|part| part.what)
            .filter(|what| *what != What::Queue)
            .collect();
        let failed = What::Call(Outcome::Failed);
        assert_eq!(
            whats,
            [
                failed,
                What::Wait,
                failed,
                What::Wait,
                What::Call(Outcome::Processed)
            ]
        );
        assert_eq!(parts[0].title, "attempt 1, 435 ms: 503 Service Unavailable");
        assert_eq!(parts.last().unwrap().title, "attempt 3, 36 ms: processed");
    }

    #[test]
    fn a_step_in_error_waits_for_a_person_until_now_and_that_is_a_notch() {
        let timeline = failed();
        let last = row(&timeline, "charge").parts.last().unwrap();
        assert_eq!(last.what, What::Person);
        assert_eq!(timeline.notches, [("95.00".to_owned(), "5.00".to_owned())]);
        assert_eq!(
            (timeline.busy.as_str(), timeline.idle.as_deref()),
            ("2.1 s", Some("30 min"))
        );
    }

    #[test]
    fn the_longest_way_is_the_one_that_the_end_waited_for() {
        let timeline = failed();
        let way: Vec<_> = timeline
            .rows
            .iter()
            .filter(|row| row.is_on_longest_way)
            .map(|row| row.step.as_str())
            .collect();
        assert_eq!(way, ["validate", "fraud-check", "charge"]);
    }

    #[test]
    fn parts_follow_each_other_within_the_width() {
        for (task, history) in [
            (
                include_str!("fixtures/task-error.json"),
                include_str!("fixtures/history-error.json"),
            ),
            (
                include_str!("fixtures/task-waiting.json"),
                include_str!("fixtures/history-waiting.json"),
            ),
        ] {
            let timeline = of(task, history, "2026-11-28T22:00:00Z");
            for row in &timeline.rows {
                let mut reached = 0.0;
                for part in &row.parts {
                    let (x, width): (f64, f64) =
                        (part.x.parse().unwrap(), part.width.parse().unwrap());
                    assert!(
                        x + 0.02 >= reached && x + width <= 100.3,
                        "{}: {part:?}",
                        row.step
                    );
                    reached = x;
                }
            }
        }
    }

    #[test]
    fn a_step_that_waits_is_drawn_to_the_end_of_what_is_known() {
        let timeline = of(
            include_str!("fixtures/task-waiting.json"),
            include_str!("fixtures/history-waiting.json"),
            "2026-11-28T22:00:00Z",
        );
        let ship = row(&timeline, "ship");
        assert!(
            (10..=100).contains(&ship.parts.len()),
            "{} parts",
            ship.parts.len()
        );
        assert!(
            timeline.rows.iter().all(|row| row.step != "notify"),
            "a step that has not begun has no row"
        );
    }

    #[test]
    fn a_step_that_was_tried_a_thousand_times_has_few_parts() {
        let part = |at: i32| TimelinePart {
            what: if at % 2 == 0 {
                What::Call(Outcome::Failed)
            } else {
                What::Wait
            },
            title: format!("part {at}"),
            x: format!("{:.2}", f64::from(at) / 20.0),
            width: String::from("0.05"),
            begin: 0,
            end: i64::from(at % 2) + 1,
            is_idle: false,
        };
        let parts: Vec<TimelinePart> = (0..2_000).map(part).collect();
        assert!(label("ship", &parts).starts_with("ship: 1992 earlier calls and waits; part 1992"));
        let few = merged(parts);
        assert!((90..=110).contains(&few.len()), "{}", few.len());
        assert!(few.iter().all(|part| part.what == What::Wait));
    }

    #[test]
    fn without_all_of_the_history_steps_are_drawn_from_their_times() {
        let task: Task = serde_json::from_str(include_str!("fixtures/task-error.json")).unwrap();
        let timeline = timeline(&task, &[], false, "2026-11-28T21:56:25Z".parse().unwrap());
        assert_eq!(row(&timeline, "fraud-check").parts.len(), 1);
        assert_eq!(
            row(&timeline, "charge").parts[0].what,
            What::Call(Outcome::Failed)
        );
    }
}
