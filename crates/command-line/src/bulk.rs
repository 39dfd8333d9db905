//! Commands for many tasks: a dry run, a question, the job and its progress; and `provost bulk`, the jobs.

use std::{collections::BTreeMap, time::Duration};

use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::{
    away::Away,
    completion,
    confirm::{self, Answer},
    filter::Selection,
    operations::{
        GET_BULK_JOB, GET_FAILURE, LIST_BULK_JOB_TASKS, LIST_BULK_JOBS, LIST_TASKS, Operation,
        RESUME_BULK_JOB, STOP_BULK_JOB,
    },
    outcome::{ClientError, Outcome},
    output::{Cell, Color, Format, Table, note, span_of},
    plain::{counted, plain},
    session::{NoOptions, Session, WithShared},
    shapes::{BulkExampleJson, BulkJobJson, BulkResultJson, BulkTaskJson},
    values,
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
        value_parser = values::rate,
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

impl BulkOptions {
    /// Returns whether one of the arguments is there.
    pub fn is_given(&self) -> bool {
        let is_sent = self.rate.is_some() || self.first.is_some();
        self.selection.is_given() || self.dry_run || self.yes || self.detach || is_sent
    }
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
        false => out.object(&preview.json, ""),
    }
}

/// Returns a dry run in lines.
fn preview_lines(result: &BulkResultJson) -> Vec<String> {
    let mut lines = vec![plain(&result.sentence)];
    lines.extend(count_lines(result));
    lines.extend(refusal_lines(&result.refusals));
    for example in &result.examples {
        lines.extend(example_lines(example));
    }
    lines
}

/// Returns the dry run of a command for one task in lines.
pub fn preview_lines_of_one(result: &BulkResultJson) -> Vec<String> {
    let mut lines = Vec::new();
    match (result.accepted, result.refusals.keys().next()) {
        (0, Some(kind)) => lines.push(format!(
            "the task would refuse it: {}",
            plain(kind).replace('-', " ")
        )),
        (0, None) => lines.push("nothing would change".to_owned()),
        _ => lines.push("the task would accept it".to_owned()),
    }
    lines.extend(result.examples.iter().flat_map(example_lines));
    lines
}

fn count_lines(result: &BulkResultJson) -> Vec<String> {
    let at_least = match result.next_cursor {
        Some(_) => "at least ",
        None => "",
    };
    if result.matched == 0 && result.total.unwrap_or_default() == 0 && at_least.is_empty() {
        return vec!["no task matches".to_owned()];
    }
    let refuse = match result.refused {
        0 => "none would refuse it".to_owned(),
        refused => format!("{} would refuse it", counted(refused, "task")),
    };
    let accept = counted(result.accepted, "task");
    let mut lines = vec![format!("{at_least}{accept} would accept it, and {refuse}")];
    // A task that has the version already, for example, neither accepts nor refuses a move to it.
    let rest = result
        .total
        .unwrap_or_default()
        .saturating_sub(result.matched);
    if result.next_cursor.is_none() && rest > 0 {
        lines.push(format!(
            "nothing would change for the other {}",
            counted(rest, "task")
        ));
    }
    lines
}

/// Returns the reasons of those that refuse.
fn refusal_lines(refusals: &BTreeMap<String, u64>) -> Vec<String> {
    let lines = refusals.iter().map(|(kind, count)| {
        let refuse = if *count == 1 { "refuses" } else { "refuse" };
        let reason = plain(kind).replace('-', " ");
        format!("  {} {refuse} it: {reason}", counted(*count, "task"))
    });
    lines.collect()
}

/// Returns a task before and after the command, by what the command changes.
fn example_lines(example: &BulkExampleJson) -> Vec<String> {
    let name = plain(example.key.as_deref().unwrap_or(&example.task));
    let (before, after) = (&example.before, &example.after);
    let mut changes = Vec::new();
    if before.state != after.state {
        changes.push(format!("{} -> {}", before.state, after.state));
    }
    for step in &after.steps {
        let was = before.steps.iter().find(|was| was.name == step.name);
        let was = was.map_or("new", |was| &was.state);
        if was != step.state {
            changes.push(format!("step {}: {was} -> {}", step.name, step.state));
        }
    }
    let mut lines = match changes.is_empty() {
        true => vec![format!("  {name}, which stays {}", plain(&after.state))],
        false => vec![format!("  {name}: {}", plain(&changes.join(", ")))],
    };
    if let Some(body) = &after.request_body {
        lines.push(format!("    would send {}", plain(body)));
    }
    lines
}

/// Returns the end of a dry run: refused if every task refuses the command.
pub fn outcome_of_preview(result: &BulkResultJson) -> Outcome {
    match result.accepted == 0 && result.refused > 0 && result.next_cursor.is_none() {
        true => Outcome::Refused,
        false => Outcome::Done,
    }
}

/// Has the server carry out a command for many tasks: shows what will happen, asks, and follows the job.
pub async fn run(
    session: &Session,
    operation: &Operation,
    options: &BulkOptions,
    mut members: Map<String, Value>,
    wait: bool,
    timeout: Option<Duration>,
) -> Result<Outcome, ClientError> {
    let preview = preview(session, operation, &members).await?;
    let result = &preview.result;
    let matches_none = result.matched == 0 && result.next_cursor.is_none();
    // A cause that nobody knows is more likely a typing error than fixed already.
    if matches_none && let Some(cause) = members.get("cause").and_then(Value::as_str) {
        session.api.request(&GET_FAILURE, &[cause]).send().await?;
    }
    if options.dry_run {
        show_preview(session, &preview)?;
        return Ok(outcome_of_preview(result));
    }
    if matches_none {
        note("no task matches, and nothing was changed");
        // A program gets an object that says so, and no job: there is none.
        if !matches!(session.out.format, Format::Table | Format::Name) {
            session.out.object(&preview.json, "")?;
        }
        return Ok(Outcome::Done);
    }
    if result.matched > 1 && !options.yes {
        for line in preview_lines(result) {
            note(line);
        }
        let question = match options.first {
            None => "Do you want to do this?".to_owned(),
            Some(first) => format!("Do you want to do this for the first {first} of them?"),
        };
        match confirm::ask(&session.out, &question) {
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
    // The command is for what was shown, and not for what came meanwhile.
    if let Some(as_of) = &result.as_of {
        members.insert("as_of".to_owned(), json!(as_of));
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
    if options.detach && wait {
        note("with --detach nothing waits for the tasks: --wait has no effect");
    }
    if options.detach {
        match session.out.is_for_people() {
            true => session.out.say(format_args!(
                "the bulk job {0} {1}: provost bulk show {0} --follow follows it, and provost bulk stop {0} stops it",
                plain(&job.id),
                job_in_words(&job.state)
            ))?,
            false => session.out.object(&response.text, &job.id)?,
        }
        return Ok(Outcome::Done);
    }
    let end = timeout.map(|timeout| Instant::now() + timeout);
    let id = job.id.clone();
    match follow_to_end(session, job, timeout, !wait).await? {
        outcome @ (Outcome::Done | Outcome::Refused) if wait => {
            // That some tasks have refused the command is told where none of the others failed.
            let at_rest = until_at_rest(session, &id, end).await?;
            Ok(match at_rest {
                Outcome::Done => outcome,
                other => other,
            })
        }
        outcome => Ok(outcome),
    }
}

/// Waits until the tasks of a job have ended or need a person. The outcome is a failure if one is in error.
async fn until_at_rest(
    session: &Session,
    job: &str,
    end: Option<Instant>,
) -> Result<Outcome, ClientError> {
    let mut away = Away::default();
    // A task goes through these states in this order.
    let mut states = ["pending", "processing", "undoing"].into_iter();
    let mut state = states.next();
    while let Some(awaited) = state {
        match has_task(session, job, awaited).await {
            Ok(true) if end.is_some_and(|end| Instant::now() >= end) => {
                return Ok(Outcome::Running);
            }
            Ok(true) => sleep(INTERVAL).await,
            Ok(false) => {
                away.ends();
                state = states.next();
            }
            Err(error) if end.is_some_and(|end| Instant::now() >= end) => return Err(error),
            Err(error) => away.wait_after(error).await?,
        }
    }
    match has_task(session, job, "error").await? {
        true => {
            let response = session.api.request(&GET_BULK_JOB, &[job]).send().await?;
            let read: BulkJobJson = response.read()?;
            let again = read.failed_again.filter(|again| *again > 0);
            let again = again.map_or_else(|| "tasks".to_owned(), |again| counted(again, "task"));
            note(format_args!(
                "{again} failed again: provost tasks --bulk {} --state error lists them",
                plain(job)
            ));
            Ok(Outcome::Failed)
        }
        false => Ok(Outcome::Done),
    }
}

async fn has_task(session: &Session, job: &str, state: &str) -> Result<bool, ClientError> {
    let request = session.api.request(&LIST_TASKS, &[]);
    let request = { request.query("bulk", job) }.query("state", state);
    let page: Value = request.query("limit", "1").send().await?.read()?;
    Ok(page["items"]
        .as_array()
        .is_some_and(|items| !items.is_empty())
        || !page["next_cursor"].is_null())
}

/// Follows a job to its end, and shows it.
pub async fn follow(
    session: &Session,
    job: BulkJobJson,
    timeout: Option<Duration>,
) -> Result<Outcome, ClientError> {
    follow_to_end(session, job, timeout, true).await
}

/// `is_last`: nobody waits for the tasks of the job afterwards, so that what has failed again by its end is shown.
async fn follow_to_end(
    session: &Session,
    job: BulkJobJson,
    timeout: Option<Duration>,
    is_last: bool,
) -> Result<Outcome, ClientError> {
    let out = &session.out;
    let end = timeout.map(|timeout| Instant::now() + timeout);
    if is_running(&job) {
        note(format_args!(
            "the bulk job {0} {1}, and continues if you leave: provost bulk stop {0} stops it",
            plain(&job.id),
            job_in_words(&job.state)
        ));
    }
    let progress = progress(session, &job);
    let mut away = Away::default();
    let (job, text) = loop {
        let response = match session.api.request(&GET_BULK_JOB, &[&job.id]).send().await {
            Ok(response) => response,
            Err(error) if end.is_some_and(|end| Instant::now() >= end) => return Err(error),
            Err(error) => {
                away.wait_after(error).await?;
                continue;
            }
        };
        away.ends();
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
        true => say_job(session, &job, is_last)?,
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

/// Returns the state of a job as the predicate of a sentence.
fn job_in_words(state: &str) -> String {
    match state {
        "running" => "is running".to_owned(),
        "stopping" => "is stopping".to_owned(),
        "stopped" => "has stopped".to_owned(),
        "ended" => "has ended".to_owned(),
        "failed" => "has failed".to_owned(),
        other => format!("is {}", plain(other)),
    }
}

/// Says what became of a job.
fn say_job(session: &Session, job: &BulkJobJson, tells_failures: bool) -> Result<(), ClientError> {
    let out = &session.out;
    out.say(plain(&job.sentence))?;
    let at_least = if job.total_is_at_least {
        "at least "
    } else {
        ""
    };
    let refused = match job.refused {
        0 => "none refused it".to_owned(),
        refused => format!("{refused} refused it"),
    };
    out.say(format_args!(
        "the job {}: it has processed {} of {at_least}{}; {} accepted the command, and {refused}",
        out.paint(Color::of_state(&job.state), &job_in_words(&job.state)),
        job.matched,
        counted(job.total, "task"),
        job.accepted,
    ))?;
    for line in refusal_lines(&job.refusals) {
        out.say(line)?;
    }
    if let Some(failure) = &job.failure {
        out.say(format_args!("  {}", plain(failure)))?;
    }
    if let Some(again) = job
        .failed_again
        .filter(|again| *again > 0 && tells_failures)
    {
        out.say(format_args!(
            "  {} failed again: provost bulk show {} --result failed_again",
            counted(again, "task"),
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

    /// The tasks to list [default: refused]; with -o they are the data, in place of the job
    #[arg(long, value_name = "RESULT", conflicts_with = "follow", value_parser = values::BULK_RESULTS)]
    result: Option<String>,

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
    #[arg(long, value_name = "RATE", value_parser = values::rate)]
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
    if !out.is_for_people() && options.result.is_none() {
        out.object(&response.text, &job.id)?;
        return Ok(Outcome::Done);
    }
    if out.is_for_people() {
        say_job(session, &job, true)?;
    }
    let result = options.result.as_deref().unwrap_or("refused");
    let query = [("result", result.to_owned())];
    let listing = session
        .api
        .list(&LIST_BULK_JOB_TASKS, &[id], &query, TASKS)
        .await?;
    if !out.is_for_people() {
        let task = |item: &str| {
            serde_json::from_str::<BulkTaskJson>(item)
                .map(|task| task.task)
                .unwrap_or_default()
        };
        out.list(&listing.page, &listing.items, task)?;
        return Ok(Outcome::Done);
    }
    let mut table = Table::new(&["TASK", "KEY", "STATE", "AT", "STEP", "WHY"]);
    let tasks = listing.read::<BulkTaskJson>()?;
    table.leave_out_first(match tasks.iter().all(|task| task.key.is_some()) {
        true => &["AT", "TASK", "STATE"],
        false => &["AT", "KEY", "STATE"],
    });
    for task in tasks {
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
        true => say_job(session, &job, true)?,
        false => session.out.object(&response.text, &job.id)?,
    }
    Ok(Outcome::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(json: &str) -> BulkResultJson {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_dry_run_explains_every_task_in_sentences() {
        let move_of_twelve = result(
            r#"{ "sentence": "migrate 12 tasks", "matched": 8, "accepted": 7, "refused": 1, "total": 12,
            "refusals": { "cannot-migrate": 1 }, "examples": [
              { "task": "0197", "key": "order-1", "before": { "state": "error", "steps": [] },
                "after": { "state": "error", "steps": [] } },
              { "task": "0198", "before": { "state": "error", "steps": [{ "name": "charge", "state": "error" }] },
                "after": { "state": "processing", "steps": [{ "name": "charge", "state": "pending" }] } }] }"#,
        );
        assert_eq!(
            preview_lines(&move_of_twelve),
            [
                "migrate 12 tasks",
                "7 tasks would accept it, and 1 task would refuse it",
                "nothing would change for the other 4 tasks",
                "  1 task refuses it: cannot migrate",
                "  order-1, which stays error",
                "  0198: error -> processing, step charge: error -> pending",
            ]
        );
    }

    #[test]
    fn a_dry_run_that_every_task_refuses_is_refused() {
        let end = |json| outcome_of_preview(&result(json));
        let all = r#"{ "matched": 12, "refused": 12 }"#;
        assert_eq!(end(all), Outcome::Refused);
        assert_eq!(end(r#"{ "accepted": 1, "refused": 11 }"#), Outcome::Done);
        assert_eq!(
            end(r#"{ "refused": 1, "next_cursor": "c" }"#),
            Outcome::Done
        );
        assert_eq!(end(r#"{ "matched": 0 }"#), Outcome::Done);
    }

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
