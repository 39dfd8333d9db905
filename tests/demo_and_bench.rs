//! Tests of the two commands that a newcomer tries first, with the real binary. Each command checks its own result, and
//! reports it by its exit status.

#![allow(
    clippy::unwrap_used,
    reason = "a test that fails by a panic says where"
)]

use std::process::{Command, Output};

fn provost(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_provost"));
    command.args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8(both).unwrap()
}

#[test]
fn every_order_of_the_demo_ends_as_it_should() {
    let output = provost(&["demo", "--exit", "--listen", "127.0.0.1:0"]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    let first = text.lines().next().unwrap();
    assert!(first.ends_with("/console to watch it."), "{first}");
    for part in [
        "no service did its work twice",
        "order-1007 waits for you",
        "/steps/charge/retry",
        "the supervisor retried it",
        "refused with 503, so it was ejected for 2s",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    // A log line would damage the display.
    assert!(!text.contains("ERROR") && !text.contains("WARN"), "{text}");
}

#[test]
fn the_demo_does_not_serve_other_machines() {
    let output = provost(&["demo", "--exit", "--listen", "0.0.0.0:0"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
}

#[test]
fn the_bench_starts_a_server_and_sees_every_task_processed() {
    let counts = [
        "--tasks",
        "60",
        "--rounds",
        "2",
        "--in-flight",
        "8",
        "--at-rest",
        "5",
    ];
    let output = provost(&[&["bench"][..], &counts].concat());
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    for part in [
        "ratio to the ceiling",
        "submit to end, at rest",
        "server CPU for a task",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

#[test]
fn the_bench_makes_a_history_and_reads_every_first_page_of_it() {
    let counts = ["--history", "300", "--backlog", "5", "--tasks", "20"];
    let output = provost(&[&["bench", "--rounds", "1", "--at-rest", "5"][..], &counts].concat());
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    for part in ["tasks of a healthy agent", "first pages", "/v1/tasks?"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

#[test]
fn the_bench_runs_tasks_of_parallel_steps() {
    let output = provost(&["bench", "--fan-out", "--tasks", "40", "--rounds", "1"]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("500 steps, 20 tasks at once"), "{text}");
}

#[test]
fn the_bench_runs_tasks_whose_steps_are_fetched() {
    let output = provost(&["bench", "--workers", "5", "--tasks", "40", "--rounds", "1"]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("fetched by workers"), "{text}");
    assert!(text.contains("from the submission to the worker"), "{text}");
}

#[test]
fn a_bench_without_a_server_says_where_it_looked() {
    // Nothing listens on this port, because it is reserved.
    let output = provost(&["bench", "--url", "http://127.0.0.1:1"]);
    let text = text(&output);
    assert!(!output.status.success());
    assert!(text.contains("http://127.0.0.1:1/"), "{text}");
}
