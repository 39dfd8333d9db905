//! `provost submit` and `provost signal`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, builder::ValueHint, value_parser};
use clap_complete::ArgValueCompleter;
use provost_domain::values::Priority;
use serde_json::{Value, json, value::RawValue};
use uuid::Uuid;

use crate::{
    completion,
    files::{Document, json_argument, name_value},
    find_task::{self, FoundTask, Purpose},
    operations::{SIGNAL_STEP, SUBMIT_TASK},
    outcome::{ClientError, Outcome},
    output::{Cell, Table, note, span_of},
    plain::{plain, shell_word},
    session::Session,
    shapes::{DryRunReportJson, TaskJson},
    task, values, wait,
};

#[derive(Args, Clone, Debug)]
pub struct SubmitOptions {
    /// The workflow, which is registered
    #[arg(value_name = "WORKFLOW", required_unless_present = "file", add = ArgValueCompleter::new(completion::workflows))]
    workflow: Option<String>,

    /// A file of the whole submission, as JSON or YAML; the other arguments take the place of what it says
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: Option<PathBuf>,

    /// The input, as JSON or @file; - reads it from standard input
    #[arg(short, long, value_name = "JSON")]
    input: Option<String>,

    /// Your own id for the task
    #[arg(short, long, value_name = "KEY")]
    key: Option<String>,

    /// A key of this submission: repeated with the same key, it submits nothing and shows the first task [default: a
    /// new one each time]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,

    /// A label; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = name_value)]
    label: Vec<(String, String)>,

    /// The version of the workflow [default: the active one]
    #[arg(long, value_name = "VERSION", add = ArgValueCompleter::new(completion::versions))]
    workflow_version: Option<u32>,

    /// From -100 to 100, which comes first [default: 0]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = value_parser!(i64).range(Priority::MIN..=Priority::MAX))]
    priority: Option<i64>,

    /// The time that the task may take, such as 1h
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    complete_within: Option<String>,

    /// Start at this time, such as 2026-03-01T00:00:00Z
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    start_at: Option<String>,

    /// Submit nothing, and show the steps that would run
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,

    /// Wait until the task has ended or needs a person, and exit with 0, 2 or 3 accordingly. The id is printed first
    #[arg(short, long)]
    wait: bool,

    /// With --wait: exit with 4 if the task still runs after this time, such as 30s or 15m
    #[arg(long, value_name = "DURATION", requires = "wait", value_parser = span_of)]
    timeout: Option<Duration>,
}

/// The submission, and the file that it comes from.
struct Submission {
    body: String,
    file: Option<Document>,
}

fn submission(options: &SubmitOptions) -> Result<Submission, ClientError> {
    let file = options
        .file
        .as_ref()
        .map(|path| Document::read(path))
        .transpose()?;
    let mut labels = serde_json::Map::new();
    for (name, value) in &options.label {
        if labels.insert(name.clone(), json!(value)).is_some() {
            return Err(ClientError::usage(format!(
                "the label {} is given twice",
                plain(name)
            )));
        }
    }
    let mut members: Vec<(&str, String)> = Vec::new();
    let mut set =
        |name, value: Option<Value>| members.extend(value.map(|value| (name, value.to_string())));
    set("workflow", options.workflow.clone().map(Value::from));
    set(
        "workflow_version",
        options.workflow_version.map(Value::from),
    );
    set("key", options.key.clone().map(Value::from));
    set(
        "labels",
        (!labels.is_empty()).then_some(Value::Object(labels)),
    );
    set("priority", options.priority.map(Value::from));
    set(
        "complete_within",
        options.complete_within.clone().map(Value::from),
    );
    set("start_at", options.start_at.clone().map(Value::from));
    if let Some(input) = &options.input {
        members.push(("input", json_argument("--input", input)?.get().to_owned()));
    }
    let body = match &file {
        Some(document) if members.is_empty() => document.json().to_owned(),
        Some(document) => {
            let parsed = serde_json::from_str::<RawMembers>(document.json());
            let parsed = parsed
                .map_err(|_| ClientError::Faults(vec![document.note("", "is not an object")]))?;
            let kept = parsed
                .into_iter()
                .filter(|(name, _)| members.iter().all(|(given, _)| given != name));
            let kept: Vec<_> = kept
                .map(|(name, value)| (name, value.get().to_owned()))
                .collect();
            object(
                kept.iter()
                    .map(|(name, value)| (name.as_str(), value))
                    .chain(members.iter().map(|(n, v)| (*n, v))),
            )
        }
        None => object(members.iter().map(|(name, value)| (*name, value))),
    };
    Ok(Submission { body, file })
}

type RawMembers = std::collections::BTreeMap<String, Box<RawValue>>;

/// Returns an object of members whose values are JSON, which stays as it was written.
fn object<'a>(members: impl Iterator<Item = (&'a str, &'a String)>) -> String {
    let members: Vec<_> = members
        .map(|(name, value)| format!("{}:{value}", Value::from(name)))
        .collect();
    format!("{{{}}}", members.join(","))
}

pub async fn run(session: &Session, options: &SubmitOptions) -> Result<Outcome, ClientError> {
    let Submission { body, file } = submission(options)?;
    let locate = |error| match &file {
        Some(document) => document.locate(error),
        None => error,
    };
    let request = session.api.request(&SUBMIT_TASK, &[]).document(body);
    if options.dry_run {
        let response = request
            .query("dry_run", "true")
            .send()
            .await
            .map_err(locate)?;
        show_dry_run(session, &response.text, &response.read()?)?;
        return Ok(Outcome::Done);
    }
    let key = options
        .idempotency_key
        .clone()
        .unwrap_or_else(|| Uuid::now_v7().to_string());
    let within = options.timeout.unwrap_or(Duration::MAX);
    let again = || {
        format!(
            "the task may have been submitted all the same: give the same command again with --idempotency-key {}, which submits it only once",
            shell_word(&key)
        )
    };
    let response = request
        .header("idempotency-key", key.clone())
        .within(within.saturating_add(wait::MARGIN))
        .send()
        .await
        .map_err(|error| locate(error).may_be_done(again))?;
    let submitted: TaskJson = response.read()?;
    let out = &session.out;
    if !options.wait {
        match out.is_for_people() {
            true => out.say(&submitted.id)?,
            false => out.object(&response.text, &submitted.id)?,
        }
        return Ok(Outcome::Done);
    }
    // The id is known before the wait, so that nothing is lost if it is interrupted. JSON has it in the task.
    match out.is_for_people() {
        true => out.say(&submitted.id)?,
        false => note(&submitted.id),
    }
    let (FoundTask { task, json }, outcome) =
        wait::until_rest(&session.api, &submitted.id, options.timeout).await?;
    match out.is_for_people() {
        true => task::say_state(session, &task)?,
        false => out.object(&json, &task.id)?,
    }
    Ok(outcome)
}

fn show_dry_run(
    session: &Session,
    json: &str,
    report: &DryRunReportJson,
) -> Result<(), ClientError> {
    let out = &session.out;
    if !out.is_for_people() {
        return out.object(json, "");
    }
    let mut table = Table::new(&["STAGE", "STEP", "KIND", "AGENT", "RUNS", "AT MOST"]);
    for step in &report.steps {
        table.row([
            Cell::number(step.stage),
            Cell::new(&step.name),
            Cell::new(&step.kind),
            Cell::optional(step.agent.as_deref()),
            Cell::new(&step.runs),
            Cell::optional(step.worst_case.as_deref()),
        ]);
    }
    out.table("", &table)?;
    let fits = if report.fits {
        ""
    } else {
        ", which is longer than the task may take"
    };
    out.say(format_args!("at most {}{fits}", plain(&report.worst_case)))?;
    for warning in &report.warnings {
        out.say(format_args!(
            "warning: {}: {}",
            plain(&warning.pointer),
            plain(&warning.message)
        ))?;
    }
    Ok(())
}

#[derive(Args, Clone, Debug)]
pub struct SignalOptions {
    /// The id or the key of the task
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(completion::tasks))]
    task: String,

    /// The step that waits for the signal
    #[arg(value_name = "STEP", add = ArgValueCompleter::new(completion::steps))]
    step: String,

    /// The content of the signal, as JSON or @file; it becomes the output of the step
    #[arg(value_name = "JSON", default_value = "null")]
    content: String,
}

pub async fn signal(session: &Session, options: &SignalOptions) -> Result<Outcome, ClientError> {
    let content = json_argument("the content", &options.content)?;
    let id = find_task::find_id(&session.api, &options.task, Purpose::Command).await?;
    let request = session.api.request(&SIGNAL_STEP, &[&id, &options.step]);
    let response = request.document(content.get().to_owned()).send().await?;
    let task: TaskJson = response.read()?;
    match session.out.is_for_people() {
        true => task::say_state(session, &task)?,
        false => session.out.object(&response.text, &task.id)?,
    }
    Ok(Outcome::Done)
}
