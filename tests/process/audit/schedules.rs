//! Checks that each fire time of a schedule has one run, with a task or a reason on record; that no task of it runs
//! while another does, unless that is allowed; and that a task that is submitted for later does not begin earlier.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{
    Evidence, Finding, Record, Rule,
    calls::said,
    evidence::{At, Scheduled},
};

pub fn check(evidence: &Evidence, findings: &mut Vec<Finding>) {
    let mut tasks: BTreeMap<&str, Vec<(&str, &Record)>> = BTreeMap::new();
    for (id, record) in &evidence.records {
        // A clone has the labels of the original task.
        let is_clone = record
            .history
            .first()
            .is_some_and(|first| first.reason.starts_with("cloned"));
        if let Some(name) = record.schedule.as_ref().filter(|_| !is_clone) {
            tasks.entry(name).or_default().push((id, record));
        }
    }
    for schedule in &evidence.schedules {
        times(schedule, findings);
        let none = Vec::new();
        let tasks = tasks.get(schedule.name.as_str()).unwrap_or(&none);
        runs(evidence, schedule, tasks, findings);
        if schedule.is_alone {
            alone(tasks, findings);
        }
    }
    start(evidence, findings);
}

/// Checks that each fire time is on record once.
fn times(schedule: &Scheduled, findings: &mut Vec<Finding>) {
    let name = &schedule.name;
    let every = i64::try_from(schedule.every.as_micros()).unwrap();
    let mut counts: BTreeMap<At, usize> = BTreeMap::new();
    for run in schedule.runs.iter().filter(|run| !run.is_triggered) {
        let mut at = run.first;
        while at <= run.last {
            *counts.entry(at).or_default() += 1;
            at = At(at.0 + every);
        }
    }
    for (at, count) in counts.iter().filter(|(_, count)| **count > 1) {
        findings.push(Rule::FiredTwice.of_all(format!("{name} has {count} runs of {at}")));
    }
    let from = match oldest_kept(schedule) {
        0 => schedule.from,
        _ => counts.keys().copied().next().unwrap_or_default(),
    };
    let mut at = At((from.0 / every + 1) * every);
    while at < schedule.to {
        if !counts.contains_key(&at) {
            findings.push(Rule::FireMissing.of_all(format!("{name} has no run of {at}")));
        }
        at = At(at.0 + every);
    }
}

/// Checks that each run that has begun has a task of its own, that each task has a run, and that each confirmed trigger
/// made one.
fn runs(
    evidence: &Evidence,
    schedule: &Scheduled,
    tasks: &[(&str, &Record)],
    findings: &mut Vec<Finding>,
) {
    let name = &schedule.name;
    let mut named: HashMap<&str, u64> = HashMap::new();
    for run in &schedule.runs {
        match &run.task {
            Some(task) if !evidence.records.contains_key(task) => {
                findings.push(Rule::TaskMissing.of(task, format!("it is of {name}: {run:?}")));
            }
            Some(task) => {
                if let Some(other) = named.insert(task, run.number) {
                    let what = format!("it is of run {other} of {name}, too: {run:?}");
                    findings.push(Rule::FiredTwice.of(task, what));
                }
            }
            None if run.state == "started" => {
                findings.push(Rule::FireMissing.of_all(format!("{name} has begun {run:?}")));
            }
            None => {}
        }
    }
    let triggered = schedule.runs.iter().filter(|run| run.is_triggered);
    let triggered: HashSet<_> = triggered.map(|run| run.number).collect();
    let mut keys = HashSet::new();
    for (id, record) in tasks {
        let run = named.get(id);
        let is_known = run.is_some() || oldest_kept(schedule) > 0;
        // A trigger may come at the very moment of another run, and has the key of that moment as well.
        let is_triggered = run.is_some_and(|run| triggered.contains(run));
        if !is_known || !is_triggered && !keys.insert(&record.key) {
            let what = format!("no other run of {name} has the task of {}", record.key);
            findings.push(Rule::FiredTwice.of(id, what));
        }
    }
    let mut confirmed = HashSet::new();
    let kept = schedule.triggered.iter();
    for number in kept.filter(|number| **number >= oldest_kept(schedule)) {
        if !triggered.contains(number) || !confirmed.insert(number) {
            let what =
                format!("{name} was triggered, which made run {number}; it has {triggered:?}");
            findings.push(Rule::FireMissing.of_all(what));
        }
    }
    if triggered.len() > schedule.triggered.len() + schedule.unclear {
        let what = format!("{name} was triggered {confirmed:?}, and has {triggered:?}");
        findings.push(Rule::FiredTwice.of_all(what));
    }
}

/// Returns the number of the oldest run on record if some are not kept any more, and 0 otherwise.
fn oldest_kept(schedule: &Scheduled) -> u64 {
    const KEPT: usize = 100;
    match schedule.runs.len() < KEPT {
        true => 0,
        false => schedule
            .runs
            .iter()
            .map(|run| run.number)
            .min()
            .unwrap_or(0),
    }
}

/// Returns the time from its acceptance until its end, if it has ended.
fn time_of(record: &Record) -> Option<(At, Option<At>)> {
    let from = record.history.first()?.at;
    let ends = |to: &str| ["processed", "undone", "cancelled"].contains(&to);
    let mut ended = record.history.iter();
    let ended = ended.find(|entry| entry.step.is_none() && ends(&entry.to));
    Some((from, ended.map(|entry| entry.at)))
}

fn alone(tasks: &[(&str, &Record)], findings: &mut Vec<Finding>) {
    let times = tasks.iter();
    let times = times.filter_map(|(id, record)| Some((time_of(record)?, id)));
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    for pair in times.windows(2) {
        let ((from, ended), id) = pair[0];
        let ((next, _), other) = pair[1];
        if ended.is_none_or(|ended| ended > next) {
            let what = format!("it began at {next}; {id}, of {from}, ended {ended:?}");
            findings.push(Rule::RunsOverlap.of(other, what));
        }
    }
}

/// Checks that no call and no step comes before the time for which a task is submitted, unless an operator begins it.
fn start(evidence: &Evidence, findings: &mut Vec<Finding>) {
    let mut begins: HashMap<&str, At> = HashMap::new();
    for task in &evidence.accepted {
        let Some(record) = evidence.records.get(&task.id) else {
            continue;
        };
        let Some(start) = task.plan.start_at else {
            continue;
        };
        let mut entries = record.history.iter();
        let early =
            entries.find(|entry| entry.kind == "task.started" && entry.by.starts_with("operator:"));
        let from = early.map_or(start, |entry| start.min(entry.at));
        begins.insert(&task.id, from);
        let early = record.history.iter().find(|entry| {
            let begins = ["step.ready", "step.claimed", "step.began", "task.started"];
            begins.contains(&entry.kind.as_str())
                && entry.at < from
                && entry
                    .step
                    .as_ref()
                    .is_none_or(|step| !step.ends_with(".undo"))
        });
        if let Some(early) = early {
            let what = format!("it is to begin at {start}: {early:?}");
            findings.push(Rule::StartedEarly.of(&task.id, what));
        }
    }
    for call in &evidence.ledger.calls {
        if let Some(from) = begins
            .get(call.task.as_str())
            .filter(|from| call.at < **from)
        {
            let what = format!("it is to begin at {from}: {}", said(call));
            findings.push(Rule::StartedEarly.of(&call.task, what));
        }
    }
}
