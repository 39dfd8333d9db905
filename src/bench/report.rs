//! The measurements, as a table.

use std::fmt::Write;

use super::{
    latency::{Latencies, Millis, median},
    load::LoadPhase,
    server::Usage,
};

/// Plain HTTP calls and the server, measured one right after the other.
pub struct Round {
    pub raw: LoadPhase,
    pub tasks: LoadPhase,
    /// CPU seconds that the server used for the tasks.
    pub cpu_seconds: Option<f64>,
}

pub struct Report {
    pub rounds: Vec<Round>,
    pub submit_loaded: Latencies,
    pub submit_at_rest: Latencies,
    pub whole_at_rest: Latencies,
    /// The usage of each server.
    pub before: Vec<Option<Usage>>,
    pub after: Vec<Option<Usage>>,
    /// The number of tasks between `before` and `after`.
    pub tasks: usize,
}

const NOTES: &str =
    "raw ceiling: the same three requests for each task by a plain client, with as many at once
submit to end: POST with Prefer: wait, until the response says processed
submit alone: POST, until the 202; each task is waited for before the next, which is not measured
at rest: one task after another, with no other load
";

impl Report {
    pub fn text(&self) -> String {
        let mut text = self.throughput();
        text.push('\n');
        text += &self.latencies();
        text.push('\n');
        text += &self.costs();
        text.push('\n');
        text += NOTES;
        text
    }

    fn throughput(&self) -> String {
        let heads = (1..=self.rounds.len()).map(|number| format!("round {number}"));
        let mut text = row("", heads.chain(["median".to_owned()]));
        let mut values = |name: &str, value: fn(&Round) -> f64, shown: fn(f64) -> String| {
            let all = self.rounds.iter().map(value);
            let middle = median(all.clone()).unwrap_or_default();
            text += &row(name, all.chain([middle]).map(shown));
        };
        let whole = |value: f64| format!("{value:.0}");
        values(
            "raw ceiling, tasks/s",
            |round| round.raw.per_second(),
            whole,
        );
        values("provost, tasks/s", |round| round.tasks.per_second(), whole);
        let ratio = |round: &Round| round.tasks.per_second() / round.raw.per_second();
        values("ratio to the ceiling", ratio, |value| format!("{value:.2}"));
        text
    }

    fn latencies(&self) -> String {
        let mut loaded = Latencies::default();
        for round in &self.rounds {
            loaded.append(round.tasks.latencies.clone());
        }
        let mut text = row("", ["p50".to_owned(), "p99".to_owned()]);
        for (name, latencies) in [
            ("submit to end, at full load", &loaded),
            ("submit to end, at rest", &self.whole_at_rest),
            ("submit alone, at full load", &self.submit_loaded),
            ("submit alone, at rest", &self.submit_at_rest),
        ] {
            let shares = [0.5, 0.99];
            let shown = shares.map(|share| Millis(latencies.percentile(share)).to_string());
            text += &row(name, shown);
        }
        text
    }

    fn costs(&self) -> String {
        let mut text = String::new();
        let tasks: usize = self
            .rounds
            .iter()
            .map(|round| round.tasks.latencies.count())
            .sum();
        let cpu: Option<f64> = self.rounds.iter().map(|round| round.cpu_seconds).sum();
        let cpu = cpu.map_or("-".to_owned(), |cpu| {
            format!("{:.3} ms", 1000.0 * cpu / tasks as f64)
        });
        text += &row("server CPU for a task", [cpu]);
        for (name, usage) in [
            ("server memory, before", &self.before),
            ("server memory, after", &self.after),
        ] {
            let bytes = usage.iter().map(|usage| Some((*usage)?.resident_bytes));
            let mib = bytes
                .sum::<Option<f64>>()
                .map(|bytes| bytes / f64::from(1 << 20));
            text += &row(
                name,
                [mib.map_or("-".to_owned(), |mib| format!("{mib:.1} MiB"))],
            );
        }
        if self.after.len() > 1 {
            text += &row("calls made, by server", self.shares());
        }
        text += &row(
            "tasks in all, every one processed",
            [self.tasks.to_string()],
        );
        text
    }

    /// Returns the share of each server in the calls, in percent.
    fn shares(&self) -> Vec<String> {
        let pairs = self.before.iter().zip(&self.after);
        let made = pairs.map(|(before, after)| Some((*after)?.calls - (*before)?.calls));
        let made: Vec<Option<f64>> = made.collect();
        let all: f64 = made.iter().copied().flatten().sum();
        made.iter()
            .map(|made| {
                made.map_or("-".to_owned(), |made| {
                    format!("{:.0} %", 100.0 * made / all)
                })
            })
            .collect()
    }
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

    fn phase(tasks: usize, seconds: u64) -> LoadPhase {
        let mut latencies = Latencies::default();
        for _ in 0..tasks {
            latencies.record(Duration::from_millis(2));
        }
        LoadPhase {
            elapsed: Duration::from_secs(seconds),
            latencies,
        }
    }

    fn report() -> Report {
        let round = |seconds| Round {
            raw: phase(100, 1),
            tasks: phase(100, seconds),
            cpu_seconds: Some(0.01),
        };
        Report {
            rounds: vec![round(2), round(4), round(5)],
            submit_loaded: Latencies::default(),
            submit_at_rest: Latencies::default(),
            whole_at_rest: phase(1, 1).latencies,
            before: vec![None],
            after: vec![usage(0.0)],
            tasks: 301,
        }
    }

    fn usage(calls: f64) -> Option<Usage> {
        Some(Usage {
            cpu_seconds: 1.0,
            resident_bytes: 33_554_432.0,
            calls,
        })
    }

    fn values<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {text}"))
            .split_whitespace()
            .collect()
    }

    #[test]
    fn every_round_is_shown_and_the_median_counts() {
        let text = report().text();
        assert_eq!(
            values(&text, "raw ceiling, tasks/s"),
            ["100", "100", "100", "100"]
        );
        assert_eq!(values(&text, "provost, tasks/s"), ["50", "25", "20", "25"]);
        assert_eq!(
            values(&text, "ratio to the ceiling"),
            ["0.50", "0.25", "0.20", "0.25"]
        );
    }

    #[test]
    fn costs_are_for_a_task_and_what_is_not_known_is_a_dash() {
        let text = report().text();
        assert_eq!(values(&text, "server CPU for a task"), ["0.100", "ms"]);
        assert_eq!(values(&text, "server memory, before"), ["-"]);
        assert_eq!(values(&text, "server memory, after"), ["32.0", "MiB"]);
        assert_eq!(
            values(&text, "submit to end, at rest"),
            ["2.00", "ms", "2.00", "ms"]
        );
        assert_eq!(values(&text, "submit alone, at rest"), ["-", "-"]);
        assert!(!text.contains("by server"), "{text}");
    }

    #[test]
    fn of_several_servers_it_says_who_made_the_calls_and_what_they_use_together() {
        let report = Report {
            before: vec![usage(30.0), usage(0.0)],
            after: vec![usage(60.0), usage(90.0)],
            ..report()
        };
        let text = report.text();
        assert_eq!(
            values(&text, "calls made, by server"),
            ["25", "%", "75", "%"]
        );
        assert_eq!(values(&text, "server memory, after"), ["64.0", "MiB"]);
    }
}
