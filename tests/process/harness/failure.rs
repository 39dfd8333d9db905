//! Keeps the whole log of a process and its tasks with their histories when its test fails. The files are in
//! `target/test-failures`, in a folder of the test; the last lines are printed too.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::PathBuf,
    time::Duration,
};

use serde_json::Value;

/// The number of printed lines of a log, and of the history of a task.
const PRINTED_LINES: usize = 40;
const PRINTED_TASKS: usize = 3;
const KEPT_TASKS: usize = 20;
/// The time to wait for a response. A process that hangs must not keep its test from ending.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// `address` is where the process serves its API, if it has started to.
pub fn keep(process: u32, log: &str, address: Option<&str>) {
    eprintln!("the last that provost said:\n{}", last_lines(log));
    let folder = folder();
    if fs::create_dir_all(&folder).is_err() {
        return;
    }
    let (log_file, tasks_file) = (
        folder.join(format!("{process}.log")),
        folder.join(format!("{process}.tasks.json")),
    );
    // An error here must not hide the reason why the test failed.
    if fs::write(&log_file, log).is_ok() {
        eprintln!("all that it said: {}", log_file.display());
    }
    let Some(tasks) = address.and_then(tasks) else {
        return;
    };
    for task in tasks.iter().take(PRINTED_TASKS) {
        eprintln!("the task {} is {}:", task["id"], task["state"]);
        let lines: Vec<_> = task["history"].as_array().into_iter().flatten().collect();
        for entry in &lines[lines.len().saturating_sub(PRINTED_LINES)..] {
            eprintln!(
                "  {} {} {} {}",
                entry["at"], entry["type"], entry["step"], entry["reason"]
            );
        }
    }
    let json = serde_json::to_string_pretty(&tasks).unwrap_or_default();
    if fs::write(&tasks_file, json).is_ok() {
        eprintln!("its tasks: {}", tasks_file.display());
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(PRINTED_LINES)..].join("\n")
}

/// Returns the folder of the test that runs on this thread.
fn folder() -> PathBuf {
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("unnamed").replace("::", "-");
    target.join("../test-failures").join(test)
}

/// Returns the tasks, those that are not processed first, each with its history; `None` if the process does not
/// respond.
fn tasks(address: &str) -> Option<Vec<Value>> {
    let page = get(address, &format!("/v1/tasks?limit={KEPT_TASKS}"))?;
    let mut tasks = page["items"].as_array()?.clone();
    tasks.sort_by_key(|task| task["state"] == "processed");
    for task in &mut tasks {
        let path = format!("/v1/tasks/{}/history?limit=500", task["id"].as_str()?);
        task["history"] = get(address, &path)?["items"].take();
    }
    Some(tasks)
}

/// The runtime of the test may have ended, so this call blocks the thread.
fn get(address: &str, path: &str) -> Option<Value> {
    let mut stream = TcpStream::connect_timeout(&address.parse().ok()?, ANSWERS_WITHIN).ok()?;
    stream.set_read_timeout(Some(ANSWERS_WITHIN)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}
