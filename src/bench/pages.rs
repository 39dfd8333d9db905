//! The first page of every list with every filter, and with every two of them.

use std::fmt::Write;

use serde_json::Value;

use super::{
    BenchError,
    connection::BenchConnection,
    history::{COMMON, History},
    latency::{Latencies, Millis},
    requests::{AGENT, Requests, WORKFLOW},
};
use crate::{clock, store::MANY_VALUES};

/// The number of reads of each page.
const READS: usize = 5;
/// The number of the slowest pages that the report shows.
const SHOWN: usize = 12;

/// A page, and the durations of its reads.
pub struct MeasuredPage {
    path: String,
    latencies: Latencies,
}

/// Returns filters, each with the name of its kind: two of one kind are not combined, except for labels.
fn of_tasks(history: &History) -> Vec<(&'static str, String)> {
    let (middle, many) = (history.middle, MANY_VALUES.0);
    let (common, value) = COMMON;
    let mut filters = Vec::new();
    for state in ["processed", "error", "cancelled", "pending"] {
        filters.push(("state", format!("state={state}")));
    }
    for workflow in [WORKFLOW, "unknown"] {
        filters.push(("workflow", format!("workflow={workflow}")));
    }
    for agent in [AGENT, "unknown"] {
        filters.push(("agent", format!("agent={agent}")));
    }
    for label in [
        format!("{common}:{value}"),
        format!("{common}:us"),
        format!("{many}:t-77"),
        format!("{common}:unknown"),
    ] {
        filters.push(("label", format!("label={label}")));
    }
    filters.push(("key", format!("key=key-{}", history.tasks / 3)));
    filters.push(("created_after", format!("created_after={middle}")));
    filters.push(("created_before", format!("created_before={middle}")));
    filters
}

fn paths(history: &History, task: &str) -> Vec<String> {
    let mut paths = Vec::new();
    let mut with = |list: &str, filters: &[(&str, String)]| {
        paths.push(format!("/v1/{list}"));
        for (at, (kind, filter)) in filters.iter().enumerate() {
            paths.push(format!("/v1/{list}?{filter}"));
            for (other_kind, other) in &filters[at + 1..] {
                if kind != other_kind || *kind == "label" {
                    paths.push(format!("/v1/{list}?{filter}&{other}"));
                }
            }
        }
    };
    with("tasks", &of_tasks(history));
    let state = |state: &str| ("state", format!("state={state}"));
    let of_task = ("task", format!("task={task}"));
    let alerts = ["open", "acknowledged", "closed"].map(state);
    with(
        "alerts",
        &[&alerts[..], std::slice::from_ref(&of_task)].concat(),
    );
    let messages = ["pending", "dead"].map(state);
    let receiver = ("receiver", "receiver=unknown".to_owned());
    with("messages", &[&messages[..], &[receiver, of_task]].concat());
    for list in ["agents", "workflows", "instances"] {
        with(list, &[]);
    }
    paths.push(format!("/v1/tasks/{task}/history"));
    paths
}

pub async fn measure(
    requests: &Requests,
    history: &History,
) -> Result<Vec<MeasuredPage>, BenchError> {
    let mut connection = BenchConnection::open(&requests.authority).await?;
    let newest = connection
        .exchange(&requests.get("/v1/tasks?state=error&limit=1"))
        .await?;
    let newest: Value = serde_json::from_slice(newest).unwrap_or_default();
    let task = newest["items"][0]["id"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let mut measured = Vec::new();
    for path in paths(history, &task) {
        let request = requests.get(&path);
        let mut latencies = Latencies::with_capacity(READS);
        for _ in 0..READS {
            let started = clock::instant();
            connection.exchange(&request).await?;
            latencies.record(started.elapsed());
        }
        measured.push(MeasuredPage { path, latencies });
    }
    measured.sort_by_key(|page| std::cmp::Reverse(page.latencies.percentile(0.5)));
    Ok(measured)
}

pub fn text(pages: &[MeasuredPage]) -> String {
    let mut text = format!(
        "first pages: {} lists with filters, {READS} reads each; the slowest:\n",
        pages.len()
    );
    for page in pages.iter().take(SHOWN) {
        let [middle, longest] = [0.5, 1.0].map(|share| Millis(page.latencies.percentile(share)));
        // Writing to a string does not fail.
        let _ = writeln!(text, "{middle:>9} {longest:>9}  {}", page.path);
    }
    text + "the median and the longest read of each\n"
}
