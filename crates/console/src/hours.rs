//! The panel of a chart with a bar for each hour, and with the same numbers as a table.

use askama::Template;
use jiff::{Timestamp, tz::TimeZone};

use crate::{
    overview::{AgentActivity, TaskActivity},
    parts::{Html, Time, counted, number},
    task::record::span,
};

/// The height of the chart, and the lines between which its bars are drawn, in pixels.
const HEIGHT: u32 = 98;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 80.0;
const HOUR: i64 = 3_600;
/// The hours between two that have their time below the chart.
const TICK: usize = 6;

/// A layer of bars. The later ones cover the earlier ones.
struct Layer {
    /// The class that gives the colour: empty, `x` or `lo`.
    class: &'static str,
    name: &'static str,
    values: Vec<Option<u64>>,
}

/// A bar: its left side in per cent, its upper side and its height.
struct BarAt {
    x: String,
    y: String,
    height: String,
}

/// A time below the chart. The script writes it in the zone of the reader.
struct ClockLabel {
    x: String,
    at: String,
    text: String,
}

#[derive(Template)]
#[template(path = "hours.html")]
pub struct Hours {
    heading: &'static str,
    /// The content of the chart, in words.
    title: String,
    /// The sentence instead of the chart, if there is nothing to show.
    nothing: Option<&'static str>,
    height: u32,
    most: String,
    width: String,
    layers: Vec<(&'static str, &'static str, Vec<BarAt>)>,
    ticks: Vec<ClockLabel>,
    columns: Vec<&'static str>,
    rows: Vec<(Html, Vec<String>)>,
}

/// The hours of a chart.
pub struct Since<'a> {
    /// The beginning of the first hour.
    pub from: &'a str,
    pub now: Timestamp,
}

impl Since<'_> {
    fn hour(&self, at: usize) -> Option<Timestamp> {
        let from = self.from.parse::<Timestamp>().ok()?;
        Timestamp::from_second(from.as_second() + HOUR * at as i64).ok()
    }

    /// Returns the time of day at which an hour begins, in words.
    fn clock(&self, at: usize) -> String {
        let hour = self.hour(at).map(|hour| hour.to_zoned(TimeZone::UTC));
        hour.map_or_else(String::new, |hour| hour.strftime("%H:%M UTC").to_string())
    }
}

/// Returns the largest of some numbers with its place.
fn peak(values: &[u64]) -> (usize, u64) {
    let values = values.iter().copied().enumerate();
    values.max_by_key(|(_, value)| *value).unwrap_or((0, 0))
}

fn sum(values: &[u64]) -> u64 {
    values.iter().copied().fold(0, u64::saturating_add)
}

fn known(values: &[u64]) -> Vec<Option<u64>> {
    values.iter().copied().map(Some).collect()
}

/// Returns a length of time in milliseconds in words, or a dash if there is none.
pub fn latency(millis: Option<u64>) -> String {
    millis.map_or_else(
        || String::from("–"),
        |millis| span(i64::try_from(millis).unwrap_or(i64::MAX)),
    )
}

/// The hours of tasks.
pub fn of_tasks(since: &Since<'_>, hours: &[TaskActivity]) -> Html {
    let all = |of: fn(&TaskActivity) -> u64| hours.iter().map(of).collect::<Vec<_>>();
    let (accepted, failed) = (all(|hour| hour.accepted), all(|hour| hour.failed));
    let words = counted(sum(&accepted), "task was accepted", "tasks were accepted");
    let rows = hours.iter().map(|hour| {
        let numbers = [
            hour.accepted,
            hour.processed,
            hour.failed,
            hour.undone,
            hour.cancelled,
        ];
        numbers.map(number).to_vec()
    });
    counts(
        since,
        Counts {
            heading: "Tasks, last 24 hours",
            words,
            nothing: "No task was accepted, and none failed.",
            columns: vec!["accepted", "processed", "failed", "undone", "cancelled"],
            rows: rows.collect(),
            all: ("accepted", accepted),
            failed: ("failed", failed),
        },
    )
}

/// The failures of tasks by hour.
pub fn of_failures(since: &Since<'_>, hours: &[TaskActivity]) -> Html {
    let failed: Vec<_> = hours.iter().map(|hour| hour.failed).collect();
    let (at, most) = peak(&failed);
    let heading = "Tasks that failed, last 24 hours";
    let title = format!(
        "{} in the last 24 hours, most of them ({}) in the hour from {}",
        counted(sum(&failed), "task failed", "tasks failed"),
        number(most),
        since.clock(at)
    );
    let layers = vec![Layer {
        class: "x",
        name: "failed",
        values: known(&failed),
    }];
    let words = |most: u64| format!("{} in an hour", number(most));
    let rows = failed.iter().map(|count| vec![number(*count)]);
    Hours::new(since, heading, title, layers, words).with(
        since,
        "No task failed.",
        vec!["failed"],
        rows.collect(),
    )
}

/// The hours of an agent.
pub fn of_calls(since: &Since<'_>, hours: &[AgentActivity]) -> Html {
    let all: Vec<_> = hours.iter().map(AgentActivity::calls).collect();
    let failed = hours.iter().map(AgentActivity::failures).collect();
    let words = counted(sum(&all), "call ended", "calls ended");
    let rows = hours.iter().map(|hour| {
        let numbers = [hour.processed, hour.retried, hour.failed];
        numbers.map(number).to_vec()
    });
    counts(
        since,
        Counts {
            heading: "Calls, last 24 hours",
            words,
            nothing: "No call ended.",
            columns: vec!["processed", "retried", "failed"],
            rows: rows.collect(),
            all: ("calls", all),
            failed: ("failed", failed),
        },
    )
}

/// The content of a chart of counts.
struct Counts {
    heading: &'static str,
    /// The sum of all hours, as the first words of a sentence.
    words: String,
    nothing: &'static str,
    columns: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    all: (&'static str, Vec<u64>),
    failed: (&'static str, Vec<u64>),
}

fn counts(since: &Since<'_>, counts: Counts) -> Html {
    let (at, most) = peak(&counts.all.1);
    let mut title = format!(
        "{} in the last 24 hours, at most {} in an hour, from {}",
        counts.words,
        number(most),
        since.clock(at)
    );
    title += &match peak(&counts.failed.1) {
        (_, 0) => String::from("; none failed"),
        (at, most) => format!(
            "; {} failed, most of them ({}) in the hour from {}",
            number(sum(&counts.failed.1)),
            number(most),
            since.clock(at)
        ),
    };
    let layer = |class, (name, values): (&'static str, Vec<u64>)| Layer {
        class,
        name,
        values: known(&values),
    };
    let layers = vec![layer("", counts.all), layer("x", counts.failed)];
    let most = |most: u64| format!("{} in an hour", number(most));
    Hours::new(since, counts.heading, title, layers, most).with(
        since,
        counts.nothing,
        counts.columns,
        counts.rows,
    )
}

/// The latency in each hour: the p50 and the p99.
pub fn of_latency(
    since: &Since<'_>,
    heading: &'static str,
    hours: &[(Option<u64>, Option<u64>)],
) -> Html {
    let slowest = hours.iter().enumerate().max_by_key(|(_, hour)| hour.1);
    let fastest = hours.iter().filter_map(|hour| hour.0).min();
    let longest = hours.iter().filter_map(|hour| hour.0).max();
    let title = match slowest {
        Some((at, (_, Some(most)))) => format!(
            "{heading}: half took no longer than {} to {}, by hour; the longest p99 was {}, in the hour from {}",
            latency(fastest),
            latency(longest),
            latency(Some(*most)),
            since.clock(at)
        ),
        _ => String::from(heading),
    };
    let layer = |class, name, values| Layer {
        class,
        name,
        values,
    };
    let layers = vec![
        layer("lo", "p99", hours.iter().map(|hour| hour.1).collect()),
        layer("", "p50", hours.iter().map(|hour| hour.0).collect()),
    ];
    let rows = hours
        .iter()
        .map(|hour| vec![latency(hour.0), latency(hour.1)]);
    Hours::new(since, heading, title, layers, |most| latency(Some(most))).with(
        since,
        "Nothing was processed.",
        vec!["p50", "p99"],
        rows.collect(),
    )
}

impl Hours {
    fn new(
        since: &Since<'_>,
        heading: &'static str,
        title: String,
        layers: Vec<Layer>,
        words: impl Fn(u64) -> String,
    ) -> Self {
        let hours = layers.first().map_or(0, |layer| layer.values.len());
        let most = layers.iter().flat_map(|layer| &layer.values);
        let most = most.copied().flatten().max().unwrap_or(0);
        let place = 100.0 / hours.max(1) as f64;
        let bars = |values: Vec<Option<u64>>| {
            let values = values.into_iter().enumerate();
            let bars = values.filter_map(|(at, value)| {
                let value = value.filter(|value| *value > 0)?;
                let height = ((BOTTOM - TOP) * value as f64 / most as f64).max(1.0);
                Some(BarAt {
                    x: format!("{:.2}", place * at as f64),
                    y: format!("{:.1}", BOTTOM - height),
                    height: format!("{height:.1}"),
                })
            });
            bars.collect()
        };
        let ticks = (0..hours).step_by(TICK).map(|at| {
            let hour = since.hour(at);
            let clock = hour.map(|hour| hour.strftime("%H:%M").to_string());
            ClockLabel {
                x: format!("{:.2}", place * at as f64),
                at: hour.map(|hour| hour.to_string()).unwrap_or_default(),
                text: clock.unwrap_or_default(),
            }
        });
        Self {
            heading,
            title,
            nothing: None,
            height: HEIGHT,
            most: words(most),
            width: format!("{:.2}", place * 0.82),
            ticks: ticks.collect(),
            layers: layers
                .into_iter()
                .map(|layer| (layer.class, layer.name, bars(layer.values)))
                .collect(),
            columns: Vec::new(),
            rows: Vec::new(),
        }
    }

    fn with(
        self,
        since: &Since<'_>,
        nothing: &'static str,
        columns: Vec<&'static str>,
        rows: Vec<Vec<String>>,
    ) -> Html {
        let time = |at: usize| {
            let hour = since.hour(at).map(|hour| hour.to_string());
            Time::new(&hour.unwrap_or_default(), since.now)
        };
        let rows = rows.into_iter().enumerate();
        let rows = rows.map(|(at, cells)| (time(at), cells));
        let is_empty = self.layers.iter().all(|(.., bars)| bars.is_empty());
        Html::of(&Self {
            nothing: is_empty.then_some(nothing),
            columns,
            rows: rows.rev().collect(),
            ..self
        })
    }
}
