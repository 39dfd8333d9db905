//! Checks what must be true of every case, by the services' ledgers and by the record of Provost.

use std::fmt::Write as _;

use serde_json::Value;

use super::{
    cases::Case,
    graph::{self, DROPPED, Probe},
    services::{Book, Entry, Kind, Line},
};

/// The result of one case.
pub struct Verdict {
    pub case: String,
    pub expected: String,
    pub found: String,
    pub faults: Vec<String>,
    pub book: Book,
}

/// The observations of a case besides the ledgers.
pub struct Run {
    /// The task at its end.
    pub task: Value,
    /// The steps in error that were retried, in order.
    pub stopped: Vec<String>,
    /// The faults of errors and alerts during the case.
    pub faults: Vec<String>,
}

pub fn judge(case: &Case, run: Run, book: Book) -> Verdict {
    let state = run.task["state"].as_str().unwrap_or_default();
    let mut faults = run.faults;
    if state != case.end {
        faults.push(format!("the task is {state}: {}", run.task["error"]));
    }
    match &case.stops {
        Some(step) if !run.stopped.contains(step) => {
            faults.push(format!("{step} never was in error"));
        }
        _ => {}
    }
    faults.extend(book.complaints.iter().cloned());
    faults.extend(ledgers(case.end, &book));
    faults.extend(records(case.end, &run.task, &book));
    faults.extend(needless(case, &book));
    faults.extend(order(&book));
    let stops = |step: &String| format!(" after {step} was in error");
    Verdict {
        case: case.name.clone(),
        expected: format!(
            "{}{}",
            case.end,
            case.stops.as_ref().map(stops).unwrap_or_default()
        ),
        found: format!(
            "{state}{}",
            run.stopped.first().map(stops).unwrap_or_default()
        ),
        faults,
        book,
    }
}

/// Checks that everything happened, or that nothing did.
fn ledgers(end: &str, book: &Book) -> Vec<String> {
    let wrong = graph::undoable().filter(|step| {
        let done = matches!(book.entry(step), Entry::Done(_) | Entry::UnderWay);
        done != (end == "processed")
    });
    wrong
        .map(|step| format!("the ledger says that {step} is {:?}", book.entry(step)))
        .collect()
}

/// Checks that the record of each step agrees with its ledger.
fn records(end: &str, task: &Value, book: &Book) -> Vec<String> {
    let mut wrong = Vec::new();
    for step in graph::undoable() {
        let records = task["steps"].as_array().into_iter().flatten();
        let state = records
            .filter(|record| record["name"] == step)
            .map(|record| record["state"].as_str().unwrap_or_default())
            .next()
            .unwrap_or_default();
        let right = match (end, book.entry(step)) {
            ("processed", _) => state == "processed",
            (_, Entry::Undone | Entry::Withdrawn) => state == "undone",
            (_, Entry::Absent) => ["error", "cancelled"].contains(&state),
            (_, Entry::Done(_) | Entry::UnderWay) => false,
        };
        if !right {
            wrong.push(format!(
                "{step} is recorded as {state}, the ledger says {:?}",
                book.entry(step)
            ));
        }
    }
    wrong
}

/// Checks that no undo ran for a step that never took effect, unless Provost could not know that.
fn needless(case: &Case, book: &Book) -> Vec<String> {
    let undos = book
        .log
        .iter()
        .filter(|line| line.kind == Kind::Undo && !line.answered);
    let needless = undos.filter(|line| {
        matches!(
            line.found,
            Entry::Absent | Entry::UnderWay | Entry::Withdrawn
        )
    });
    needless
        .filter(|line| {
            graph::find(line.step).probe != Probe::None
                || !(case.leaves_unknown(line.step) || was_dropped(book, line.step))
        })
        .map(|line| format!("{} was undone although it was {:?}", line.step, line.found))
        .collect()
}

/// Returns whether the step's call was dropped, because it was running when the task had to be undone.
fn was_dropped(book: &Book, step: &str) -> bool {
    let undo = |line: &Line| line.step == step && line.kind == Kind::Undo;
    let mut before = book.log.iter().take_while(|line| !undo(line));
    step == DROPPED && !before.any(|line| line.step == step && line.answered)
}

/// Checks that no undo came before what must precede it: the undos, and the calls, of the steps that follow.
fn order(book: &Book) -> Vec<String> {
    let mut wrong = Vec::new();
    for step in graph::undoable() {
        let first = book
            .log
            .iter()
            .position(|line| line.step == step && line.kind == Kind::Undo && !line.answered);
        let Some(first) = first else {
            continue;
        };
        let (before, after) = book.log.split_at(first);
        for later in graph::all().filter(|later| graph::follows(later, step)) {
            if let Some(line) = after
                .iter()
                .find(|line| line.step == later && !line.answered)
            {
                wrong.push(format!(
                    "{:?} of {later} came after {step} was undone",
                    line.kind
                ));
            }
            let of_later = |answered: bool| {
                let calls = before.iter().rev();
                calls
                    .filter(|line| line.step == later && line.kind == Kind::Undo)
                    .position(|line| line.answered == answered)
            };
            // The last line about its undo is the response.
            if of_later(false) == Some(0) {
                wrong.push(format!(
                    "{step} was undone before the undo of {later} was answered"
                ));
            }
            let undone = before
                .iter()
                .any(|line| line.step == later && line.kind == Kind::Undo);
            if matches!(book.entry(later), Entry::Undone) && !undone {
                wrong.push(format!("{step} was undone before {later}"));
            }
        }
    }
    wrong
}

/// Fails with a table of the failed cases.
pub fn report(verdicts: &[Verdict]) {
    let failed: Vec<_> = verdicts
        .iter()
        .filter(|verdict| !verdict.faults.is_empty())
        .collect();
    println!("{} cases, {} failed", verdicts.len(), failed.len());
    if failed.is_empty() {
        return;
    }
    let mut table = String::new();
    for verdict in failed.iter().take(40) {
        let _ = writeln!(
            table,
            "{:<60} | expected {:<40} | found {}",
            verdict.case, verdict.expected, verdict.found
        );
        for fault in &verdict.faults {
            let _ = writeln!(table, "    {fault}");
        }
    }
    let log = calls(&failed[0].book);
    panic!(
        "{} of {} cases failed:\n{table}\nthe calls of {}:\n{log}",
        failed.len(),
        verdicts.len(),
        failed[0].case
    );
}

/// Returns the calls of a case in their order.
pub fn calls(book: &Book) -> String {
    let mut log = String::new();
    for line in &book.log {
        let what = if line.answered { "answered" } else { "came" };
        let _ = writeln!(
            log,
            "    {:?} of {} {what} ({:?}), attempt {}",
            line.kind, line.step, line.found, line.attempt
        );
    }
    log
}
