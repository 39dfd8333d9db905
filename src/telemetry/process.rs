//! Metrics of this process from the operating system, under the names that Prometheus' own client libraries use.
//! Read from `/proc` at each scrape; omitted if there is none.

use std::{
    fmt::{Display, Write},
    fs,
};

/// Linux reports CPU time in hundredths of a second, on every architecture that Rust's standard library supports.
const TICKS_PER_SECOND: f64 = 100.0;

/// Appends the metrics in the text format.
pub fn render(text: &mut String) {
    if let Some(bytes) = resident_bytes() {
        metric(
            text,
            "process_resident_memory_bytes",
            "gauge",
            "Resident memory size in bytes.",
            bytes,
        );
    }
    if let Some(times) = Times::read() {
        metric(
            text,
            "process_cpu_seconds_total",
            "counter",
            "Total user and system CPU time in seconds.",
            times.cpu_seconds,
        );
        metric(
            text,
            "process_start_time_seconds",
            "gauge",
            "Start time of the process since the Unix epoch in seconds.",
            times.started_at,
        );
    }
    if let Some(count) = open_files() {
        metric(
            text,
            "process_open_fds",
            "gauge",
            "Number of open file descriptors.",
            count,
        );
    }
}

fn metric(text: &mut String, name: &str, kind: &str, help: &str, value: impl Display) {
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n\n"
    );
}

fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

struct Times {
    cpu_seconds: f64,
    started_at: f64,
}

impl Times {
    fn read() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        let boot = fs::read_to_string("/proc/stat").ok()?;
        Self::parse(&stat, &boot)
    }

    /// Fields 14, 15 and 22 of proc_pid_stat(5). They are counted from the end of the program's name, field 2,
    /// because a name may contain spaces and parentheses.
    fn parse(stat: &str, boot: &str) -> Option<Self> {
        let (_, fields) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let ticks = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let boot = boot.lines().find_map(|line| line.strip_prefix("btime "))?;
        Some(Self {
            cpu_seconds: (ticks(14)? + ticks(15)?) / TICKS_PER_SECOND,
            started_at: boot.trim().parse::<f64>().ok()? + ticks(22)? / TICKS_PER_SECOND,
        })
    }
}

/// Counts the open files, without the descriptor that the counting itself needs.
fn open_files() -> Option<usize> {
    fs::read_dir("/proc/self/fd").ok()?.count().checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_behind_a_name_with_spaces_and_parentheses() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194304 100 0 0 0 150 50 0 0 20 0 3 0 1234 1 1";
        let times = Times::parse(stat, "cpu 1 2\nbtime 1700000000\n").unwrap();
        assert_eq!(times.cpu_seconds, 2.0);
        assert_eq!(times.started_at, 1_700_000_012.34);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_memory_files_and_a_past() {
        let mut text = String::new();
        render(&mut text);
        let value = |name: &str| -> f64 {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(&format!("{name} ")));
            line.unwrap_or_else(|| panic!("{name} is missing"))
                .parse()
                .unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_cpu_seconds_total") >= 0.0);
        assert!(value("process_start_time_seconds") > 1_600_000_000.0);
    }
}
