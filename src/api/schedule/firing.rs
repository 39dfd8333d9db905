//! Decides which runs of a schedule begin, and submits their tasks. A decision is saved before any task is submitted,
//! so that the instance that looks at the schedule next continues where this one was killed.

use std::{sync::LazyLock, time::Duration};

use metrics::{Histogram, Unit, counter, describe_counter, describe_histogram, histogram};
use tracing::{debug, info, warn};

use crate::{
    api::{App, task::submit_run},
    domain::{
        schedule::{RunState, RunSubmission, ScheduleDecision, ScheduleRun},
        task::{Actor, Command},
        values::{TaskId, Timestamp},
    },
    store::{Apply, CommandError, ScheduleRecord, ScheduleSave, StoreError},
};

/// The most attempts to save a change of a schedule that other instances change at the same time.
const MOST_ATTEMPTS: u32 = 5;

static LATENESS: LazyLock<Histogram> = LazyLock::new(|| {
    describe_counter!(
        "provost_schedule_runs_total",
        "Runs of schedules whose task was submitted or could not be submitted, by state and source"
    );
    describe_counter!(
        "provost_schedule_skipped_total",
        "Fire times of schedules that were left out, by reason"
    );
    describe_histogram!(
        "provost_schedule_lateness_seconds",
        Unit::Seconds,
        "Time from a fire time, with its jitter, to the submission of its task"
    );
    histogram!("provost_schedule_lateness_seconds")
});

/// Decides once for a schedule, and submits the tasks that are to begin. Several instances can safely do it at once.
pub async fn fire(app: &App, name: &str) -> Result<(), StoreError> {
    for _ in 0..MOST_ATTEMPTS {
        let Some(record) = app.store.housekeeping.schedule(name).await? else {
            return Ok(());
        };
        let Some((record, look)) = decide_and_save(app, record).await? else {
            continue;
        };
        note(name, &look);
        for (task, fire_time) in &look.cancel {
            cancel(app, name, *task, *fire_time).await?;
        }
        if !look.begin.is_empty() {
            submit_runs(app, record, look.begin).await?;
        }
        return Ok(());
    }
    debug!(
        schedule = name,
        "a schedule is changed by others; another look comes"
    );
    Ok(())
}

/// Decides and saves the decision. Returns `None` if another instance has changed the schedule in the meantime.
async fn decide_and_save(
    app: &App,
    mut record: ScheduleRecord,
) -> Result<Option<(ScheduleRecord, ScheduleDecision)>, StoreError> {
    let mut rule = record.rule()?;
    let between_looks = app.config.supervisor.interval.saturating_mul(2);
    rule.missed_after = rule.missed_after.max(between_looks);
    let reader = &app.store.housekeeping;
    let running = reader.unended(&record.state.running).await?;
    let now = reader.wall_now().await?;
    let was_failing = record.state.failing.is_some();
    let look = record
        .state
        .decide(&rule, now, |task| running.contains(&task));
    record.next_at = look.next_at;
    let save = ScheduleSave {
        record: record.clone(),
        runs: look.records.values().cloned().collect(),
        was_failing,
    };
    if !app.store.save_schedule(save).await? {
        return Ok(None);
    }
    record.version += 1;
    Ok(Some((record, look)))
}

fn note(name: &str, look: &ScheduleDecision) {
    LazyLock::force(&LATENESS);
    if look.is_stepped_back {
        warn!(
            schedule = name,
            "the clock of the store was set back; the schedule goes on from here, and no fire time has a second task"
        );
    }
    for (reason, count) in &look.skipped {
        info!(
            schedule = name,
            reason = reason.as_str(),
            count,
            "fire times are left out"
        );
        counter!("provost_schedule_skipped_total", "reason" => reason.as_str()).increment(*count);
    }
}

async fn cancel(
    app: &App,
    name: &str,
    task: TaskId,
    fire_time: Timestamp,
) -> Result<(), StoreError> {
    let reason = format!("replaced by the run of schedule {name} for {fire_time}");
    let apply = Apply::new(
        task,
        Command::Cancel {
            reason: Some(reason),
        },
        Actor::scheduler(app.instance.as_str()),
    );
    match app.store.apply(apply).await {
        Err(CommandError::Store(error)) if !error.is_of_one_task() => Err(error),
        // The task is being cancelled or undone already, or has ended. The run waits for its end.
        Err(error) => {
            debug!(schedule = name, %task, %error, "a task is not cancelled for the next run");
            Ok(())
        }
        Ok(_) => Ok(()),
    }
}

/// Submits the tasks of runs, and records the results.
async fn submit_runs(
    app: &App,
    mut record: ScheduleRecord,
    runs: Vec<ScheduleRun>,
) -> Result<(), StoreError> {
    let name = record.name.clone();
    let mut begun = Vec::with_capacity(runs.len());
    let mut has_failed = false;
    for run in &runs {
        match submit_run(app, &record, run).await {
            Ok(result) => begun.push((run.number, result)),
            Err(problem) => {
                let (fire_time, reason) = (run.fire_time, problem.detail());
                warn!(schedule = %name, %fire_time, reason, "a task cannot be submitted now; it is submitted again");
                has_failed = true;
                // The other runs would fail in the same way.
                break;
            }
        }
    }
    for _ in 0..MOST_ATTEMPTS {
        let rule = record.rule()?;
        let now = app.store.housekeeping.wall_now().await?;
        let was_failing = record.state.failing.is_some();
        let begun = begun.iter().cloned();
        let done = begun.filter_map(|(number, begun): (u64, RunSubmission)| {
            record.state.record_submission(number, begun, now)
        });
        let done: Vec<ScheduleRun> = done.collect();
        record.next_at = record.state.next_decision(&rule, now, has_failed);
        let save = ScheduleSave {
            record: record.clone(),
            runs: done.clone(),
            was_failing,
        };
        if app.store.save_schedule(save).await? {
            done.iter().for_each(|run| note_run(&name, run));
            return Ok(());
        }
        match app.store.housekeeping.schedule(&name).await? {
            Some(now) if now.state.id == record.state.id => record = now,
            // The schedule was deleted, or is another one of the same name.
            _ => return Ok(()),
        }
    }
    // The next look at the schedule finds the same runs, and their tasks by their keys.
    Ok(())
}

fn note_run(name: &str, run: &ScheduleRun) {
    let (state, source) = (run.state.as_str(), run.source.as_str());
    let fire_time = run.fire_time;
    let reason = run.reason.as_deref();
    if let Some(skipped) = run.skipped {
        let skipped = skipped.as_str();
        counter!("provost_schedule_skipped_total", "reason" => skipped).increment(1);
        info!(schedule = name, %fire_time, source, reason, "a run of a schedule is left out");
        return;
    }
    counter!("provost_schedule_runs_total", "state" => state, "source" => source).increment(1);
    match run.state {
        RunState::Started => {
            let task = run.task.map(|task| task.to_string());
            info!(schedule = name, %fire_time, source, task, "a schedule has submitted its task");
            let late = run
                .started_at
                .map_or(Duration::ZERO, |at| at.since(run.starts_at));
            LATENESS.record(late);
        }
        _ => {
            warn!(schedule = name, %fire_time, source, state, reason, "a run of a schedule has no task");
        }
    }
}
