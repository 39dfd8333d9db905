//! `provost schedule`.

use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::{
    completion,
    operations::{GET_SCHEDULE, LIST_SCHEDULES, PAUSE_SCHEDULE, RESUME_SCHEDULE, TRIGGER_SCHEDULE},
    outcome::{ClientError, Outcome},
    output::{Cell, Table},
    plain::plain,
    session::{NoOptions, Session, WithShared},
    shapes::{ScheduleHeadJson, ScheduleJson, ScheduleRunJson},
    values,
};

/// The most schedules that are listed.
const MOST: usize = 10_000;

#[derive(Subcommand, Clone, Debug)]
pub enum ScheduleCommand {
    /// List the schedules
    List(WithShared<NoOptions>),
    /// Show a schedule and its latest runs
    Show(WithShared<OneSchedule>),
    /// Submit the task of a schedule now
    Trigger(WithShared<TriggerOptions>),
    /// Let a schedule submit nothing
    Pause(WithShared<PauseScheduleOptions>),
    /// Let a schedule submit again
    Resume(WithShared<OneSchedule>),
}

#[derive(Args, Clone, Debug)]
pub struct OneSchedule {
    /// The name of the schedule
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(completion::schedules))]
    schedule: String,
}

#[derive(Args, Clone, Debug)]
pub struct TriggerOptions {
    #[command(flatten)]
    one: OneSchedule,

    /// The rule for a run that has not ended [default: that of the schedule]
    #[arg(long, value_name = "RULE", value_parser = values::OVERLAPS)]
    overlap: Option<String>,

    /// The reason, which is on record with your name
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Args, Clone, Debug)]
pub struct PauseScheduleOptions {
    #[command(flatten)]
    one: OneSchedule,

    /// Discard the runs that are queued
    #[arg(long)]
    discard_queued: bool,

    /// The reason, which is on record with your name
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl ScheduleCommand {
    pub async fn run(&self) -> Result<Outcome, ClientError> {
        match self {
            Self::List(command) => list(&command.shared.session()?).await,
            Self::Show(command) => {
                let session = command.shared.session()?;
                let name = &command.options.schedule;
                let response = session.api.request(&GET_SCHEDULE, &[name]).send().await?;
                show(&session, &response.text, &response.read()?)
            }
            Self::Trigger(command) => trigger(&command.shared.session()?, &command.options).await,
            Self::Pause(command) => {
                let session = command.shared.session()?;
                let options = &command.options;
                let mut members = Map::new();
                members.extend(
                    options
                        .reason
                        .clone()
                        .map(|reason| ("reason".to_owned(), json!(reason))),
                );
                if options.discard_queued {
                    members.insert("discard_queued".to_owned(), json!(true));
                }
                let request = session
                    .api
                    .request(&PAUSE_SCHEDULE, &[&options.one.schedule]);
                let response = request.body(&Value::Object(members)).send().await?;
                show(&session, &response.text, &response.read()?)
            }
            Self::Resume(command) => {
                let session = command.shared.session()?;
                let name = &command.options.schedule;
                let response = session
                    .api
                    .request(&RESUME_SCHEDULE, &[name])
                    .send()
                    .await?;
                show(&session, &response.text, &response.read()?)
            }
        }
    }
}

/// Returns when a schedule fires, in words.
fn timing(cron: Option<&str>, every: Option<&str>, timezone: Option<&str>) -> String {
    match (cron, every) {
        (Some(cron), _) => format!("{cron} {}", timezone.unwrap_or("UTC")),
        (None, Some(every)) => format!("every {every}"),
        (None, None) => String::new(),
    }
}

async fn list(session: &Session) -> Result<Outcome, ClientError> {
    let listing = session.api.list(&LIST_SCHEDULES, &[], &[], MOST).await?;
    let out = &session.out;
    if !out.is_for_people() {
        let name = |item: &str| {
            serde_json::from_str::<ScheduleHeadJson>(item)
                .map(|schedule| schedule.name)
                .unwrap_or_default()
        };
        out.list(&listing.page, &listing.items, name)?;
        return Ok(Outcome::Done);
    }
    let mut table = Table::new(&["SCHEDULE", "STATE", "NEXT", "WHEN", "QUEUED", "FAILS"]);
    for schedule in listing.read::<ScheduleHeadJson>()? {
        table.row([
            Cell::new(&schedule.name),
            Cell::state(&schedule.state),
            Cell::new(out.times.show_optional(schedule.next_fire_time.as_deref())),
            Cell::new(timing(
                schedule.cron.as_deref(),
                schedule.every.as_deref(),
                schedule.timezone.as_deref(),
            )),
            Cell::number(schedule.queued),
            Cell::optional(schedule.failing.as_deref()),
        ]);
    }
    out.rows(&table, "no schedules")?;
    Ok(Outcome::Done)
}

async fn trigger(session: &Session, options: &TriggerOptions) -> Result<Outcome, ClientError> {
    let mut members = Map::new();
    members.extend(
        options
            .overlap
            .clone()
            .map(|overlap| ("overlap".to_owned(), json!(overlap))),
    );
    members.extend(
        options
            .reason
            .clone()
            .map(|reason| ("reason".to_owned(), json!(reason))),
    );
    let request = session
        .api
        .request(&TRIGGER_SCHEDULE, &[&options.one.schedule]);
    let request = request.header("idempotency-key", Uuid::now_v7().to_string());
    let response = request.body(&Value::Object(members)).send().await?;
    let run: ScheduleRunJson = response.read()?;
    let task = run.task.clone().unwrap_or_default();
    match session.out.is_for_people() {
        true => session.out.say(run_line(&run))?,
        false => session.out.object(&response.text, &task)?,
    }
    Ok(Outcome::Done)
}

fn run_line(run: &ScheduleRunJson) -> String {
    let task = run.task.as_deref().map(|task| format!(", task {task}"));
    let reason = run
        .reason
        .as_deref()
        .map(|reason| format!(": {}", plain(reason)));
    format!(
        "run {} is {}{}{}",
        run.number,
        plain(&run.state),
        task.unwrap_or_default(),
        reason.unwrap_or_default()
    )
}

fn show(session: &Session, json: &str, schedule: &ScheduleJson) -> Result<Outcome, ClientError> {
    let out = &session.out;
    if !out.is_for_people() {
        out.object(json, &schedule.name)?;
        return Ok(Outcome::Done);
    }
    let next = schedule
        .next_fire_time
        .as_deref()
        .map(|next| format!(", next {}", out.times.show(next)));
    out.say(format_args!(
        "schedule {} of {} is {}: {}{}",
        plain(&schedule.name),
        plain(&schedule.workflow),
        out.state(&schedule.state),
        plain(&timing(
            schedule.cron.as_deref(),
            schedule.every.as_deref(),
            schedule.timezone.as_deref()
        )),
        next.unwrap_or_default()
    ))?;
    if let Some(failing) = &schedule.failing {
        out.say(plain(failing))?;
    }
    let mut table = Table::new(&["RUN", "STATE", "FIRE TIME", "SOURCE", "TASK", "WHY"]);
    for run in &schedule.runs {
        table.row([
            Cell::number(run.number),
            Cell::state(&run.state),
            Cell::new(out.times.show(&run.fire_time)),
            Cell::new(&run.source),
            Cell::optional(run.task.as_deref()),
            Cell::optional(run.reason.as_deref()),
        ]);
    }
    out.table("", &table)?;
    Ok(Outcome::Done)
}
