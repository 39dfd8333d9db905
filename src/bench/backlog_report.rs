//! The measurements with a backlog, as a table.

use std::fmt::Write;

use super::{
    latency::{Latencies, Millis, median},
    load::LoadPhase,
    pages::{self, MeasuredPage},
    server::Usage,
};

/// The measurements of one server in one turn.
pub struct Side {
    pub submissions: LoadPhase,
    pub reads: Latencies,
    pub reads_of_many_steps: Latencies,
    pub lists: Latencies,
    /// The tasks of a healthy agent.
    pub others: LoadPhase,
}

/// Both servers, measured one right after the other.
pub struct MeasuredPair {
    pub empty: Side,
    pub full: Side,
}

#[derive(Default)]
pub struct Memory {
    pub before: Vec<Option<Usage>>,
    pub with_backlog: Vec<Option<Usage>>,
    pub after: Vec<Option<Usage>>,
    pub of_empty: Vec<Option<Usage>>,
}

pub struct BacklogReport {
    pub turns: Vec<MeasuredPair>,
    /// The pages of the full server, if it has a history; the slowest first.
    pub pages: Vec<MeasuredPage>,
    pub memory: Memory,
}

const NOTES: &str =
    "submit: POST of a task whose one step joins the queue of the dead agent, until the 202; four for each task of a healthy agent
read: GET of the newest task in that queue, one after another, with its position in the queue
ratio: with the backlog and the history, divided by without; the median of the rounds
";

/// A number of one server, and its format.
type Measured = (&'static str, fn(&Side) -> f64, fn(f64) -> String);

impl BacklogReport {
    pub fn text(&self) -> String {
        let mut text = row("", ["empty", "full", "ratio"].map(str::to_owned));
        let rate = |value: f64| format!("{value:.0}");
        let millis =
            |seconds: f64| Millis(Some(std::time::Duration::from_secs_f64(seconds))).to_string();
        let rows: [Measured; 8] = [
            (
                "submit, tasks/s",
                |side| side.submissions.per_second(),
                rate,
            ),
            (
                "submit, p50",
                |side| seconds(&side.submissions.latencies, 0.5),
                millis,
            ),
            (
                "submit, p99",
                |side| seconds(&side.submissions.latencies, 0.99),
                millis,
            ),
            ("read, p50", |side| seconds(&side.reads, 0.5), millis),
            ("read, p99", |side| seconds(&side.reads, 0.99), millis),
            (
                "read of 500 steps, p50",
                |side| seconds(&side.reads_of_many_steps, 0.5),
                millis,
            ),
            (
                "list of pending tasks, p50",
                |side| seconds(&side.lists, 0.5),
                millis,
            ),
            (
                "tasks of a healthy agent /s",
                |side| side.others.per_second(),
                rate,
            ),
        ];
        for (name, value, shown) in rows {
            let of = |side: fn(&MeasuredPair) -> &Side| {
                median(self.turns.iter().map(|turn| value(side(turn)))).unwrap_or_default()
            };
            let ratios = self.turns.iter();
            let ratios = ratios.map(|turn| value(&turn.full) / value(&turn.empty));
            let ratio = median(ratios).unwrap_or_default();
            text += &row(
                name,
                [
                    shown(of(|turn| &turn.empty)),
                    shown(of(|turn| &turn.full)),
                    format!("{ratio:.2}"),
                ],
            );
        }
        text.push('\n');
        for (name, usage) in [
            ("server memory, before the backlog", &self.memory.before),
            ("server memory, with the backlog", &self.memory.with_backlog),
            ("server memory, after the rounds", &self.memory.after),
            ("server memory, without a backlog", &self.memory.of_empty),
        ] {
            text += &row(name, [memory(usage)]);
        }
        if !self.pages.is_empty() {
            text.push('\n');
            text += &pages::text(&self.pages);
        }
        text.push('\n');
        text + NOTES
    }
}

fn seconds(latencies: &Latencies, share: f64) -> f64 {
    let duration = latencies.percentile(share).unwrap_or_default();
    duration.as_secs_f64()
}

fn memory(usage: &[Option<Usage>]) -> String {
    let bytes = usage.iter().map(|usage| Some((*usage)?.resident_bytes));
    let bytes: Option<f64> = bytes.sum();
    bytes.map_or("-".to_owned(), |bytes| {
        format!("{:.1} MiB", bytes / f64::from(1 << 20))
    })
}

fn row(name: &str, values: impl IntoIterator<Item = String>) -> String {
    let mut line = format!("{name:<34}");
    for value in values {
        // Writing to a String cannot fail.
        let _ = write!(line, " {value:>9}");
    }
    line.trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn side(seconds: u64, millis: u64) -> Side {
        let latencies = || {
            let mut latencies = Latencies::default();
            for _ in 0..100 {
                latencies.record(Duration::from_millis(millis));
            }
            latencies
        };
        let phase = || LoadPhase {
            elapsed: Duration::from_secs(seconds),
            latencies: latencies(),
        };
        Side {
            submissions: phase(),
            reads: latencies(),
            reads_of_many_steps: latencies(),
            lists: latencies(),
            others: phase(),
        }
    }

    #[test]
    fn the_ratio_is_that_of_the_rounds_and_one_odd_round_does_not_move_it() {
        let turn = |empty, full| MeasuredPair { empty, full };
        let report = BacklogReport {
            turns: vec![
                turn(side(1, 2), side(2, 4)),
                turn(side(2, 3), side(4, 6)),
                turn(side(1, 1), side(50, 90)),
            ],
            pages: Vec::new(),
            memory: Memory {
                with_backlog: vec![None],
                ..Memory::default()
            },
        };
        let text = report.text();
        let values = |name: &str| -> Vec<&str> {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().split_whitespace().collect()
        };
        assert_eq!(values("submit, tasks/s"), ["100", "25", "0.50"]);
        let read = values("read, p50");
        assert_eq!(read, ["2.00", "ms", "6.00", "ms", "2.00"]);
        assert_eq!(values("server memory, with the backlog"), ["-"]);
    }
}
