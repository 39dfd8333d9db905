//! Commands for many tasks: a dry run, a question, the job and its progress; and `provost bulk`, the jobs.

use std::time::Duration;

use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::{
    completion,
    confirm::{self, Answer},
    filter::Selection,
    operations::{
        GET_BULK_JOB, GET_FAILURE, LIST_BULK_JOB_TASKS, LIST_BULK_JOBS, Operation, RESUME_BULK_JOB,
        STOP_BULK_JOB,
    },
    outcome::{ClientError, Outcome},
    output::{Cell, Color, Table, note, span_of},
    plain::plain,
    session::{NoOptions, Session, WithShared},
    shapes::{BulkJobJson, BulkResultJson, BulkTaskJson},
};

/// The time between two looks at a job.
const INTERVAL: Duration = Duration::from_millis(200);
/// The most tasks of a job that are listed.
const TASKS: usize = 10_000;

/// The arguments of a command for many tasks.
#[derive(Args, Clone, Debug)]
pub struct BulkOptions {
    #[command(flatten)]
    pub selection: Selection,

    /// Change nothing, and show what would happen
    #[arg(long)]
    pub dry_run: bool,

    /// Do not ask before more than one task is changed
    #[arg(short, long, help_heading = "Many tasks")]
    yes: bool,

    /// At most so many tasks in a second, a minute or an hour: 20/s, 100/m
    #[arg(
        long,
        value_name = "RATE",
        conflicts_with = "task",
        help_heading = "Many tasks"
    )]
    rate: Option<String>,

    /// Stop the job after this many tasks, to look at them: `provost bulk resume` continues it
    #[arg(
        long,
        value_name = "COUNT",
        conflicts_with = "task",
        help_heading = "Many tasks"
    )]
    first: Option<u32>,

    /// Print the job, and do not wait for its end
    #[arg(long, conflicts_with = "task", help_heading = "Many tasks")]
    detach: bool,
}

/// The result of a dry run.
#[derive(Debug)]
pub struct Preview {
    pub result: BulkResultJson,
    json: String,
}

/// Asks the server what a command would do.
pub async fn preview(
    session: &Session,
    operation: &Operation,
    members: &Map<String, Value>,
) -> Result<Preview, ClientError> {
    let mut members = members.clone();
    members.insert("dry_run".to_owned(), json!(true));
    let response = session
        .api
        .request(operation, &[])
        .body(&Value::Object(members))
        .send()
        .await?;
    Ok(Preview {
        result: response.read()?,
        json: response.text,
    })
}

/// Shows a dry run as the data of the command.
pub fn show_preview(session: &Session, preview: &Preview) -> Result<(), ClientError> {
    let out = &session.out;
    match out.is_for_people() {
        true => preview_lines(&preview.result)
            .iter()
            .try_for_each(|line| out.say(line)),
        false => out.object(&preview.json, &preview.result.sentence),
    }
}

/// Returns a dry run in lines.
fn preview_lines(result: &BulkResultJson) -> Vec<String> {
    let mut lines = vec![plain(&result.sentence)];
    let at_least = if result.next_cursor.is_some() {
        " at least"
    } else {
        ""
    };
    lines.push(format!(
        "{}{at_least} would accept it, {} would refuse",
        result.accepted, result.refused
    ));
    for (reason, count) in &result.refusals {
        lines.push(format!("  {count}: {}", plain(reason)));
    }
    for example in &result.examples {
        let name = example.key.as_deref().unwrap_or(&example.task);
        lines.push(format!(
            "  {}: {} -> {}",
            plain(name),
            plain(&example.before.state),
            plain(&example.after.state)
        ));
        if let Some(body) = &example.after.request_body {
            lines.push(format!("    would send {}", plain(body)));
        }
    }
    lines
}

/// Has the server carry out a command for many tasks: shows what will happen, asks, and follows the job.
pub async fn run(
    session: &Session,
    operation: &Operation,
    options: &BulkOptions,
    mut members: Map<String, Value>,
    timeout: Option<Duration>,
) -> Result<Outcome, ClientError> {
    let preview = preview(session, operation, &members).await?;
    if options.dry_run {
        show_preview(session, &preview)?;
        return Ok(Outcome::Done);
    }
    let result = &preview.result;
    if result.matched == 0 {
        // A cause that nobody knows is more likely a typing error than fixed already.
        if let Some(cause) = members.get("cause").and_then(Value::as_str) {
            session.api.request(&GET_FAILURE, &[cause]).send().await?;
        }
        note("no task matches");
    }
    if result.matched > 1 && !options.yes {
        for line in preview_lines(result) {
            note(line);
        }
        match confirm::ask(&session.out, "Do it?") {
            Answer::Yes => {}
            Answer::No => {
                note("nothing was changed");
                return Ok(Outcome::Refused);
            }
            Answer::NoTerminal => {
                return Err(ClientError::usage(format!(
                    "{} tasks would be changed, and there is no terminal to ask: give --yes, or look with --dry-run",
                    result.matched
                )));
            }
        }
    }
    if let Some(rate) = &options.rate {
        members.insert("rate".to_owned(), json!(rate));
    }
    if let Some(first) = options.first {
        members.insert("first".to_owned(), json!(first));
    }
    let request = session
        .api
        .request(operation, &[])
        .header("idempotency-key", Uuid::now_v7().to_string());
    let response = request.body(&Value::Object(members)).send().await?;
    let job: BulkJobJson = response.read()?;
    if options.detach {
        session.out.object(&response.text, &job.id)?;
        return Ok(Outcome::Done);
    }
    follow(session, job, timeout).await
}

/// Follows a job to its end, and shows it.
async fn follow(
    session: &Session,
    job: BulkJobJson,
    timeout: Option<Duration>,
) -> Result<Outcome, ClientError> {
    let out = &session.out;
    let end = timeout.map(|timeout| Instant::now() + timeout);
    note(format_args!(
        "bulk job {}: it continues if you leave; provost bulk stop {} stops it",
        job.id, job.id
    ));
    let progress = progress(session, &job);
    let (job, text) = loop {
        let response = session
            .api
            .request(&GET_BULK_JOB, &[&job.id])
            .send()
            .await?;
        let job: BulkJobJson = response.read()?;
        progress.set_length(job.total.max(job.matched));
        progress.set_position(job.matched);
        progress.set_message(format!(
            "{} accepted, {} refused",
            job.accepted, job.refused
        ));
        let is_over = end.is_some_and(|end| Instant::now() >= end);
        if !is_running(&job) || is_over {
            break (job, response.text);
        }
        sleep(INTERVAL).await;
    };
    progress.finish_and_clear();
    match out.is_for_people() {
        true => say_job(session, &job)?,
        false => out.object(&text, &job.id)?,
    }
    Ok(outcome(&job))
}

fn is_running(job: &BulkJobJson) -> bool {
    matches!(job.state.as_str(), "running" | "stopping")
}

fn outcome(job: &BulkJobJson) -> Outcome {
    match job.state.as_str() {
        "failed" => Outcome::Failed,
        "ended" | "stopped" if job.refused > 0 => Outcome::Refused,
        "ended" | "stopped" => Outcome::Done,
        _ => Outcome::Running,
    }
}

fn progress(session: &Session, job: &BulkJobJson) -> ProgressBar {
    let target = match session.out.shows_progress() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(Some(job.total), target);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// Says what became of a job.
fn say_job(session: &Session, job: &BulkJobJson) -> Result<(), ClientError> {
    let out = &session.out;
    out.say(plain(&job.sentence))?;
    let at_least = if job.total_is_at_least {
        "at least "
    } else {
        ""
    };
    out.say(format_args!(
        "{}: {} of {at_least}{} tasks, {} accepted, {} refused",
        out.state(&job.state),
        job.matched,
        job.total,
        job.accepted,
        job.refused
    ))?;
    for (reason, count) in &job.refusals {
        out.say(format_args!("  {count}: {}", plain(reason)))?;
    }
    if let Some(failure) = &job.failure {
        out.say(format_args!("  {}", plain(failure)))?;
    }
    if let Some(again) = job.failed_again.filter(|again| *again > 0) {
        out.say(format_args!(
            "  {again} failed again: provost bulk show {} --result failed_again",
            job.id
        ))?;
    }
    if job.state == "stopped" {
        out.say(format_args!("  provost bulk resume {}", job.id))?;
    }
    Ok(())
}

#[derive(Subcommand, Clone, Debug)]
pub enum BulkCommand {
    /// List the jobs, the latest first
    List(WithShared<NoOptions>),
    /// Show a job, and the tasks that refused the command
    Show(WithShared<ShowBulkOptions>),
    /// Stop a job: the batch that was begun is completed
    Stop(WithShared<OneJob>),
    /// Continue a job that was stopped
    Resume(WithShared<ResumeBulkOptions>),
}

#[derive(Args, Clone, Debug)]
pub struct OneJob {
    /// The id of the job
    #[arg(value_name = "JOB", add = ArgValueCompleter::new(completion::bulk_jobs))]
    job: String,
}

#[derive(Args, Clone, Debug)]
pub struct ShowBulkOptions {
    #[command(flatten)]
    job: OneJob,

    /// The tasks to list: accepted, refused or failed_again
    #[arg(long, value_name = "RESULT", default_value = "refused")]
    result: String,

    /// Follow the job until it ends
    #[arg(long)]
    follow: bool,

    /// With --follow: exit with 4 if the job still runs after this time
    #[arg(long, value_name = "DURATION", requires = "follow", value_parser = span_of)]
    timeout: Option<Duration>,
}

#[derive(Args, Clone, Debug)]
pub struct ResumeBulkOptions {
    #[command(flatten)]
    job: OneJob,

    /// From now on at most so many tasks in a second, a minute or an hour: 20/s, 100/m
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,

    /// Stop again after this many tasks
    #[arg(long, value_name = "COUNT")]
    first: Option<u32>,
}

impl BulkCommand {
    pub async fn run(&self) -> Result<Outcome, ClientError> {
        match self {
            Self::List(command) => list(&command.shared.session()?).await,
            Self::Show(command) => show(&command.shared.session()?, &command.options).await,
            Self::Stop(command) => {
                let members = json!({});
                change(
                    &command.shared.session()?,
                    &STOP_BULK_JOB,
                    &command.options.job,
                    &members,
                )
                .await
            }
            Self::Resume(command) => {
                let options = &command.options;
                let mut members = Map::new();
                members.extend(
                    options
                        .rate
                        .clone()
                        .map(|rate| ("rate".to_owned(), json!(rate))),
                );
                members.extend(
                    options
                        .first
                        .map(|first| ("first".to_owned(), json!(first))),
                );
                let members = Value::Object(members);
                change(
                    &command.shared.session()?,
                    &RESUME_BULK_JOB,
                    &options.job.job,
                    &members,
                )
                .await
            }
        }
    }
}

async fn list(session: &Session) -> Result<Outcome, ClientError> {
    let listing = session.api.list(&LIST_BULK_JOBS, &[], &[], 100).await?;
    let out = &session.out;
    if !out.is_for_people() {
        let id = |item: &str| {
            serde_json::from_str::<BulkJobJson>(item)
                .map(|job| job.id)
                .unwrap_or_default()
        };
        out.list(&listing.page, &listing.items, id)?;
        return Ok(Outcome::Done);
    }
    let jobs: Vec<BulkJobJson> = listing.read()?;
    let mut table = Table::new(&[
        "JOB", "STATE", "TASKS", "ACCEPTED", "REFUSED", "BEGAN", "BY", "WHAT",
    ]);
    for job in &jobs {
        table.row([
            Cell::new(&job.id).in_color(Color::Dim),
            Cell::state(&job.state),
            Cell::at_least(job.total, job.total_is_at_least),
            Cell::number(job.accepted),
            Cell::number(job.refused),
            Cell::new(out.times.show(&job.created_at)),
            Cell::new(&job.by),
            Cell::new(&job.sentence),
        ]);
    }
    out.rows(&table, "no bulk jobs")?;
    Ok(Outcome::Done)
}

async fn show(session: &Session, options: &ShowBulkOptions) -> Result<Outcome, ClientError> {
    let id = &options.job.job;
    let response = session.api.request(&GET_BULK_JOB, &[id]).send().await?;
    let job: BulkJobJson = response.read()?;
    if options.follow {
        return follow(session, job, options.timeout).await;
    }
    let out = &session.out;
    if !out.is_for_people() {
        out.object(&response.text, &job.id)?;
        return Ok(Outcome::Done);
    }
    say_job(session, &job)?;
    let query = [("result", options.result.clone())];
    let listing = session
        .api
        .list(&LIST_BULK_JOB_TASKS, &[id], &query, TASKS)
        .await?;
    let mut table = Table::new(&["TASK", "KEY", "STATE", "AT", "STEP", "WHY"]);
    for task in listing.read::<BulkTaskJson>()? {
        let why = task.reason.as_deref().or(task.problem.as_deref());
        table.row([
            Cell::new(&task.task).in_color(Color::Dim),
            Cell::optional(task.key.as_deref()),
            Cell::state(task.state.as_deref().unwrap_or_default()),
            Cell::new(out.times.show(&task.at)),
            Cell::optional(task.failed_step.as_deref()),
            Cell::optional(why),
        ]);
    }
    out.table("", &table)?;
    Ok(Outcome::Done)
}

async fn change(
    session: &Session,
    operation: &Operation,
    id: &str,
    members: &Value,
) -> Result<Outcome, ClientError> {
    let response = session
        .api
        .request(operation, &[id])
        .body(members)
        .send()
        .await?;
    let job: BulkJobJson = response.read()?;
    match session.out.is_for_people() {
        true => say_job(session, &job)?,
        false => session.out.object(&response.text, &job.id)?,
    }
    Ok(Outcome::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_tasks_refused_is_not_done() {
        let job = |state: &str, refused| BulkJobJson {
            state: state.to_owned(),
            refused,
            ..BulkJobJson::default()
        };
        assert_eq!(outcome(&job("ended", 0)), Outcome::Done);
        assert_eq!(outcome(&job("ended", 1)), Outcome::Refused);
        assert_eq!(outcome(&job("failed", 0)), Outcome::Failed);
        assert_eq!(outcome(&job("running", 0)), Outcome::Running);
    }
}
