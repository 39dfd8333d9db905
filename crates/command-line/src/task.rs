//! `provost task`: one task in a few lines, its history, and its events as they happen.

use std::time::Duration;

use clap::Args;
use clap_complete::ArgValueCompleter;
use serde_json::Value;

use crate::{
    completion,
    find_task::{self, FoundTask, Purpose},
    operations::{FOLLOW_TASK, GET_HISTORY, LIST_ATTEMPTS},
    outcome::{ClientError, Outcome},
    output::{Cell, Color, Table, Times, span_of},
    plain::plain,
    session::Session,
    shapes::{AttemptJson, FaultJson, HistoryEntryJson, StepJson, TaskJson},
    stream::FollowedStream,
    wait,
};

/// The beginning of a response that is shown, in characters.
const LONGEST_BODY: usize = 200;
/// The most entries of a history that are shown.
const MOST_ENTRIES: usize = 100_000;

#[derive(Args, Clone, Debug)]
pub struct TaskOptions {
    /// The id or the key of the task
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(completion::tasks))]
    task: String,

    /// Show every change of the task
    #[arg(long, conflicts_with = "follow")]
    history: bool,

    /// Show what happens until the task has ended or needs a person, and exit with 0, 2 or 3 accordingly
    #[arg(long)]
    follow: bool,

    /// With --follow: exit with 4 if the task still runs after this time, such as 30s or 15m
    #[arg(long, value_name = "DURATION", requires = "follow", value_parser = span_of)]
    timeout: Option<Duration>,
}

pub async fn run(session: &Session, options: &TaskOptions) -> Result<Outcome, ClientError> {
    if options.history {
        return history(session, &options.task).await;
    }
    if options.follow {
        let id = find_task::find_id(&session.api, &options.task, Purpose::Show).await?;
        return follow(session, &id, options.timeout).await;
    }
    let found = find_task::find(&session.api, &options.task, Purpose::Show).await?;
    show(session, &found).await?;
    Ok(Outcome::Done)
}

/// Shows a task: for people its state in a sentence, and the rest below.
pub async fn show(session: &Session, found: &FoundTask) -> Result<(), ClientError> {
    let out = &session.out;
    let task = &found.task;
    if !out.is_for_people() {
        return out.object(&found.json, &task.id);
    }
    say_state(session, task)?;
    if let Some(step) = failing_step(task) {
        say_attempt(session, task, step).await?;
        let faults = step.error.iter().chain(&step.last_fault);
        if let Some(body) = faults.filter_map(|fault| fault.body.as_deref()).next() {
            let start: String = body.chars().take(LONGEST_BODY).collect();
            out.say(format_args!("  {}", out.paint(Color::Dim, &plain(&start))))?;
        }
    }
    let mut table = Table::new(&["STEP", "STATE", "AGENT", "ATTEMPT", "TOOK", "WHY"]);
    for step in &task.steps {
        table.row(step_row(&out.times, step));
    }
    out.table("", &table)?;
    for command in commands(task) {
        out.say(format_args!("  {command}"))?;
    }
    Ok(())
}

/// Says the state of a task in a sentence.
pub fn say_state(session: &Session, task: &TaskJson) -> Result<(), ClientError> {
    let out = &session.out;
    let name = match &task.key {
        Some(key) => format!("{} ({})", plain(key), task.id),
        None => task.id.clone(),
    };
    let workflow = match (&task.workflow, task.workflow_version) {
        (Some(workflow), Some(version)) => format!(" of {} v{version}", plain(workflow)),
        _ => String::new(),
    };
    let sentence = sentence(task, &out.times);
    out.say(format_args!(
        "{name}{workflow} is {}{sentence}",
        out.paint(Color::of_state(&task.state), &in_words(&task.state))
    ))
}

/// Returns a state as the complement of a sentence.
fn in_words(state: &str) -> String {
    match state {
        "error" => "in error".to_owned(),
        "undoing" => "being undone".to_owned(),
        state => plain(state),
    }
}

/// Returns the words after the state: since when, and why.
fn sentence(task: &TaskJson, times: &Times) -> String {
    let reason = |error: &FaultJson| match &error.step {
        Some(step) => format!(
            ": step {} failed, {}: {}",
            plain(step),
            times.show(&error.at),
            plain(&error.message)
        ),
        None => format!(", {}: {}", times.show(&error.at), plain(&error.message)),
    };
    match (&task.error, &task.ended_at) {
        (Some(error), _) if task.paused == Some(true) => format!(", and paused{}", reason(error)),
        (Some(error), _) => reason(error),
        (None, Some(ended)) => {
            let took = times.between(&task.created_at, ended);
            format!(
                ", {}, after {}",
                times.show(ended),
                took.unwrap_or_default()
            )
        }
        (None, None) => {
            let risk = match &task.at_risk {
                Some(risk) => format!(", and will be late because of {}", plain(&risk.agent)),
                None => String::new(),
            };
            let running = task.steps.iter().find(|step| step.state == "processing");
            let step = running.or_else(|| task.steps.iter().find(|step| step.state == "pending"));
            match step {
                Some(step) => format!(
                    ": step {} is {}{risk}",
                    plain(&step.name),
                    plain(&step.state)
                ),
                None => format!(", since {}{risk}", times.show(&task.created_at)),
            }
        }
    }
}

/// Returns the step that needs a person.
pub fn failing_step(task: &TaskJson) -> Option<&StepJson> {
    let named = task.error.as_ref().and_then(|error| error.step.as_deref());
    let by_name = task
        .steps
        .iter()
        .find(|step| Some(step.name.as_str()) == named);
    by_name.or_else(|| task.steps.iter().find(|step| step.state == "error"))
}

/// Says what the failing step sent last, and what came back.
async fn say_attempt(
    session: &Session,
    task: &TaskJson,
    step: &StepJson,
) -> Result<(), ClientError> {
    let out = &session.out;
    let attempts = session
        .api
        .list(&LIST_ATTEMPTS, &[&task.id, &step.name], &[], 1)
        .await;
    let attempts: Vec<AttemptJson> = match attempts {
        Ok(listing) => listing.read()?,
        // A token of the role submit does not see requests, and an earlier server has no attempts.
        Err(error) if error.problem(403).is_some() || error.problem(404).is_some() => return Ok(()),
        Err(error) => return Err(error),
    };
    if let Some(line) = attempts.first().and_then(request_line) {
        out.say(format_args!("  {line}"))?;
    }
    Ok(())
}

/// Returns the line of a request with its response: `POST https://payments.example/charges -> 422 in 42 ms`.
fn request_line(attempt: &AttemptJson) -> Option<String> {
    let request = attempt.request.as_ref()?;
    let mut line = format!("{} {}", plain(&request.method), plain(&request.url));
    match (&attempt.response, &attempt.reason) {
        (Some(response), _) => line.push_str(&format!(" -> {}", response.status)),
        (None, Some(reason)) => line.push_str(&format!(" -> {}", plain(reason))),
        (None, None) => {}
    }
    let utc = Times::new(true, jiff::Timestamp::UNIX_EPOCH);
    if let (Some(begin), Some(end)) = (&attempt.claimed_at, &attempt.ended_at)
        && let Some(took) = utc.between(begin, end)
    {
        line.push_str(&format!(" in {took}"));
    }
    Some(line)
}

fn step_row(times: &Times, step: &StepJson) -> [Cell; 6] {
    let took = match (&step.started_at, &step.ended_at) {
        (Some(begin), Some(end)) => times.between(begin, end),
        _ => None,
    };
    let attempt = match step.attempt {
        0 => String::new(),
        attempt if step.failure_count > 0 => {
            format!(
                "{attempt} ({} of {} failures)",
                step.failure_count, step.max_failures
            )
        }
        attempt => attempt.to_string(),
    };
    [
        Cell::new(&step.name),
        Cell::state(&step.state),
        Cell::optional(step.agent.as_deref()),
        Cell::new(attempt),
        Cell::optional(took.as_deref()),
        Cell::new(why(step)),
    ]
}

/// Returns why a step is where it is.
fn why(step: &StepJson) -> String {
    if let Some(error) = &step.error {
        return error.message.clone();
    }
    if let Some(ask) = &step.ask {
        return format!("asks: {}", ask.title);
    }
    if let Some(blocked) = &step.blocked_by {
        return blocked_in_words(blocked);
    }
    match &step.last_fault {
        Some(fault) if step.state == "pending" => format!("last failure: {}", fault.message),
        _ => String::new(),
    }
}

/// Returns `blocked_by` in words. Its members differ with the reason, and later servers may have others.
fn blocked_in_words(blocked: &Value) -> String {
    let text = |name: &str| blocked[name].as_str().map(str::to_owned);
    let reason = text("reason").unwrap_or_default().replace('_', " ");
    let mut words = vec![format!("waits: {reason}")];
    words.extend(text("agent"));
    words.extend(text("message"));
    words.extend(text("until").map(|until| format!("until {until}")));
    let steps = blocked["steps"].as_array().into_iter().flatten();
    let steps: Vec<_> = steps.filter_map(Value::as_str).collect();
    if !steps.is_empty() {
        words.push(steps.join(", "));
    }
    words.join(" ")
}

/// Returns the commands that apply to the task, at most three.
pub fn commands(task: &TaskJson) -> Vec<String> {
    let name = match &task.key {
        // A key with other characters would need quotes.
        Some(key)
            if key
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.:".contains(c)) =>
        {
            key
        }
        _ => &task.id,
    };
    let step = failing_step(task).map(|step| plain(&step.name));
    let all: Vec<String> = match (task.state.as_str(), step) {
        ("error", _) if task.paused == Some(true) => vec![
            format!("provost resume {name}"),
            format!("provost retry {name}"),
            format!("provost undo {name} --dry-run"),
        ],
        ("error", Some(step)) => vec![
            format!("provost retry {name}"),
            format!("provost skip {name} {step}"),
            format!("provost undo {name} --dry-run"),
        ],
        ("error", None) => vec![
            format!("provost retry {name}"),
            format!("provost undo {name} --dry-run"),
            format!("provost cancel {name}"),
        ],
        ("undoing", step) => match step {
            Some(step) => vec![
                format!("provost retry {name}"),
                format!("provost skip {name} {step}"),
            ],
            None => vec![format!("provost task {name} --follow")],
        },
        ("paused", _) => vec![
            format!("provost resume {name}"),
            format!("provost undo {name} --dry-run"),
            format!("provost cancel {name}"),
        ],
        ("pending" | "processing", _) => vec![
            format!("provost task {name} --follow"),
            format!("provost pause {name}"),
            format!("provost cancel {name}"),
        ],
        _ => vec![
            format!("provost task {name} --history"),
            format!("provost clone {name} --dry-run"),
        ],
    };
    all
}

async fn history(session: &Session, name: &str) -> Result<Outcome, ClientError> {
    let id = find_task::find_id(&session.api, name, Purpose::Show).await?;
    let listing = session
        .api
        .list(&GET_HISTORY, &[&id], &[], MOST_ENTRIES)
        .await?;
    let out = &session.out;
    if !out.is_for_people() {
        let seq = |item: &str| {
            let entry: Result<HistoryEntryJson, _> = serde_json::from_str(item);
            entry.map(|entry| entry.seq).unwrap_or_default()
        };
        out.list(&listing.page, &listing.items, seq)?;
        return Ok(Outcome::Done);
    }
    let entries: Vec<HistoryEntryJson> = listing.read()?;
    let mut table = Table::new(&["AT", "WHAT", "STEP", "TRY", "STATE", "BY", "WHY"]);
    for entry in &entries {
        let attempt = entry.attempt.map(|attempt| attempt.to_string());
        table.row([
            Cell::new(out.times.show(&entry.at)),
            Cell::new(&entry.kind),
            Cell::optional(entry.step.as_deref()),
            Cell::optional(attempt.as_deref()),
            Cell::state(&entry.to),
            Cell::new(&entry.by),
            Cell::new(why_of(entry)),
        ]);
    }
    out.table("", &table)?;
    Ok(Outcome::Done)
}

fn why_of(entry: &HistoryEntryJson) -> String {
    let error = entry.error.as_ref().map(|error| error.message.clone());
    entry.reason.clone().or(error).unwrap_or_default()
}

/// Returns an entry as one line.
pub fn entry_line(session: &Session, entry: &HistoryEntryJson) -> String {
    let out = &session.out;
    let at = out.paint(Color::Dim, &clock(&entry.at));
    let step = entry
        .step
        .as_deref()
        .map(|step| format!(" {}", plain(step)));
    let attempt = entry.attempt.map(|attempt| format!(" attempt {attempt}"));
    let why = why_of(entry);
    let why = if why.is_empty() {
        why
    } else {
        format!(": {}", plain(&why))
    };
    format!(
        "{at} {}{}{} -> {}{why}",
        plain(&entry.kind),
        step.unwrap_or_default(),
        attempt.unwrap_or_default(),
        out.state(&entry.to)
    )
}

/// Returns the time of a line that is printed when it happens.
pub fn clock(time: &str) -> String {
    Times::new(true, jiff::Timestamp::UNIX_EPOCH).show(time)
}

/// Prints the entries of the history as they happen, until the task has ended or needs a person.
pub async fn follow(
    session: &Session,
    id: &str,
    timeout: Option<Duration>,
) -> Result<Outcome, ClientError> {
    let out = &session.out;
    let parts = [id];
    let mut events = FollowedStream::new(&session.api, &FOLLOW_TASK, &parts, &[]);
    let follow = async {
        loop {
            if let Some(event) = events.next().await? {
                let entry: HistoryEntryJson = serde_json::from_str(&event.data).unwrap_or_default();
                match out.is_for_people() {
                    true => out.say(entry_line(session, &entry))?,
                    false => out.say(&event.data)?,
                }
                // The stream of a task that needs a person stays open: a person may act on it.
                let is_of_task = entry.step.is_none();
                let is_end = matches!(
                    entry.to.as_str(),
                    "error" | "processed" | "undone" | "cancelled"
                );
                if !(is_of_task && is_end) {
                    continue;
                }
            }
            let (_, outcome) = wait::until_rest(&session.api, id, Some(Duration::ZERO)).await?;
            if outcome != Outcome::Running {
                return Ok::<_, ClientError>(outcome);
            }
        }
    };
    let outcome = match timeout {
        None => follow.await?,
        Some(timeout) => match tokio::time::timeout(timeout, follow).await {
            Ok(outcome) => outcome?,
            Err(_) => Outcome::Running,
        },
    };
    if out.is_for_people() {
        say_state(session, &find_task::read(&session.api, id).await?.task)?;
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times() -> Times {
        Times::new(false, "2026-03-01T12:00:00Z".parse().unwrap())
    }

    fn failed() -> TaskJson {
        let json = r#"{ "id": "0197", "key": "order-1", "state": "error", "created_at": "2026-03-01T11:00:00Z",
            "error": { "kind": "permanent", "message": "402 card_declined", "at": "2026-03-01T11:57:00Z", "step": "charge" },
            "steps": [{ "name": "reserve", "state": "processed" }, { "name": "charge", "state": "error" }] }"#;
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn the_state_of_a_failed_task_names_step_time_and_reason() {
        assert_eq!(
            sentence(&failed(), &times()),
            ": step charge failed, 3 min ago: 402 card_declined"
        );
        assert_eq!(
            commands(&failed()),
            [
                "provost retry order-1",
                "provost skip order-1 charge",
                "provost undo order-1 --dry-run"
            ]
        );
    }

    #[test]
    fn a_failed_task_that_is_paused_says_so_and_is_resumed_first() {
        let task = TaskJson {
            paused: Some(true),
            ..failed()
        };
        assert_eq!(
            sentence(&task, &times()),
            ", and paused: step charge failed, 3 min ago: 402 card_declined"
        );
        assert_eq!(commands(&task)[0], "provost resume order-1");
    }

    #[test]
    fn a_key_that_a_shell_would_read_otherwise_is_not_in_a_command() {
        let task = TaskJson {
            key: Some("a b; rm".to_owned()),
            ..failed()
        };
        assert_eq!(commands(&task)[0], "provost retry 0197");
    }

    #[test]
    fn every_state_has_at_most_three_commands() {
        for state in [
            "pending",
            "processing",
            "paused",
            "processed",
            "error",
            "undoing",
            "undone",
            "cancelled",
            "new",
        ] {
            let task = TaskJson {
                state: state.to_owned(),
                ..failed()
            };
            assert!((1..=3).contains(&commands(&task).len()), "{state}");
        }
    }

    #[test]
    fn a_request_is_one_line_with_its_response() {
        let json = r#"{ "attempt": 1, "claimed_at": "2026-03-01T11:00:00.000Z", "ended_at": "2026-03-01T11:00:00.042Z",
            "request": { "method": "POST", "url": "https://p.example/charges" }, "response": { "status": 422 } }"#;
        let attempt: AttemptJson = serde_json::from_str(json).unwrap();
        assert_eq!(
            request_line(&attempt).unwrap(),
            "POST https://p.example/charges -> 422 in 42 ms"
        );
    }
}
