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
    plain::{plain, shell_word},
    session::Session,
    shapes::{AttemptJson, FaultJson, HistoryEntryJson, StepJson, TaskJson},
    stream::FollowedStream,
    wait,
};

/// The beginning of a response that is shown, in characters.
const LONGEST_BODY: usize = 200;
/// The most entries of a history that are shown.
const MOST_ENTRIES: usize = 100_000;
/// The most commands that are shown for a task.
const MOST_COMMANDS: usize = 3;

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
        let found = find_task::find_id(&session.api, &options.task, Purpose::Show);
        let id = wait::before_wait(&session.api, options.timeout, found).await?;
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
    let name = find_task::name_in_commands(&session.api, task).await?;
    for command in commands(task, &name) {
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
            let took = Times::between(&task.created_at, ended);
            format!(
                ", {}, after {}",
                times.show(ended),
                took.unwrap_or_default()
            )
        }
        (None, None) if is_waiting_for_its_start(task) => {
            let start = task.start_at.as_deref().unwrap_or_default();
            format!(": it starts {}", times.show(start))
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

/// Returns whether the task is one that starts later.
fn is_waiting_for_its_start(task: &TaskJson) -> bool {
    let is_blocked = |step: &StepJson| {
        let blocked = step.blocked_by.as_ref();
        blocked.is_some_and(|blocked| blocked["reason"] == "start")
    };
    task.start_at.is_some() && task.steps.iter().any(is_blocked)
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
    if let (Some(begin), Some(end)) = (&attempt.claimed_at, &attempt.ended_at)
        && let Some(took) = Times::between(begin, end)
    {
        line.push_str(&format!(" in {took}"));
    }
    Some(line)
}

fn step_row(times: &Times, step: &StepJson) -> [Cell; 6] {
    let took = match (&step.started_at, &step.ended_at) {
        (Some(begin), Some(end)) => Times::between(begin, end),
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
        Cell::new(why(times, step)),
    ]
}

/// Returns why a step is where it is.
fn why(times: &Times, step: &StepJson) -> String {
    if let Some(error) = &step.error {
        return error.message.clone();
    }
    if let Some(ask) = &step.ask {
        return format!("asks: {}", ask.title);
    }
    if let Some(blocked) = &step.blocked_by {
        return blocked_in_words(times, blocked);
    }
    if let Some(what) = step.lost.as_deref().and_then(lost_in_words) {
        return what.to_owned();
    }
    match &step.last_fault {
        Some(fault) if step.state == "pending" => format!("last failure: {}", fault.message),
        _ => String::new(),
    }
}

/// Returns what becomes of a step that runs and is not needed any more. Later servers may know other ends.
fn lost_in_words(rest: &str) -> Option<&'static str> {
    match rest {
        "undo" => Some("it has lost: its end is awaited, and what it did is undone"),
        "cancel" => Some("it has lost: it is being cancelled"),
        _ => None,
    }
}

/// Returns `blocked_by` in words. Its members differ with the reason, and later servers may have others.
fn blocked_in_words(times: &Times, blocked: &Value) -> String {
    let text = |name: &str| blocked[name].as_str().map(str::to_owned);
    let agent = text("agent").unwrap_or_default();
    let until = text("until").map(|until| times.show(&until));
    let reason = text("reason").unwrap_or_default();
    let mut words = match reason.as_str() {
        "steps" => {
            let steps = blocked["steps"].as_array().into_iter().flatten();
            let steps: Vec<_> = steps.filter_map(Value::as_str).collect();
            let more = match blocked["more"].as_u64() {
                Some(more @ 1..) => format!(" and {more} more"),
                _ => String::new(),
            };
            let noun = if steps.len() == 1 { "step" } else { "steps" };
            format!("it waits for the {noun} {}{more}", steps.join(", "))
        }
        "start" => "the task has not started".to_owned(),
        "time" => "it will be retried".to_owned(),
        "wait" => "it waits for its time".to_owned(),
        "signal" => "it waits for its signal".to_owned(),
        "child" => match text("task") {
            Some(task) => format!("it waits for the task {task}"),
            None => "it waits for its task".to_owned(),
        },
        "items" => "it waits for its items".to_owned(),
        "repeat" => "it waits for its next iteration".to_owned(),
        "max_parallel" => "it waits for other items".to_owned(),
        "capacity" => format!("it waits for a free slot of the agent {agent}"),
        "worker" => format!("it waits for a worker of the agent {agent}"),
        "open_replies" => format!("it waits for replies to the agent {agent}"),
        "rate_limit" => format!("it waits for the rate limit of the agent {agent}"),
        "key_limit" => "it waits for other steps with its key".to_owned(),
        "throttled" => format!("the agent {agent} is throttled"),
        "agent_paused" => format!("the agent {agent} is paused"),
        "breaker" => format!("a breaker of the agent {agent} is open"),
        "unhealthy" => format!("the agent {agent} is unhealthy"),
        "secret" => format!("a secret of the agent {agent} is missing"),
        "held" => "the instance is held".to_owned(),
        "agent" => format!("the agent {agent} is not registered"),
        "drop" => "it waits for the end of a call".to_owned(),
        "task_limit" => "the task waits for other tasks with its key".to_owned(),
        "paused" => "the task is paused".to_owned(),
        "operator" => "it waits for an operator".to_owned(),
        other => format!("it waits: {}", other.replace('_', " ")),
    };
    if let Some(message) = text("message") {
        words.push_str(&format!(" ({message})"));
    }
    if let Some(until) = until {
        words.push_str(&match reason.as_str() {
            "time" => format!(" {until}"),
            "start" => format!("; it starts {until}"),
            "repeat" => format!(", which begins {until}"),
            "wait" => format!(", which comes {until}"),
            "signal" => format!(", and gives up {until}"),
            _ => format!("; this ends {until}"),
        });
    }
    words
}

/// Returns the commands that apply to the task, at most three. `name` is the name of the task in them.
fn commands(task: &TaskJson, name: &str) -> Vec<String> {
    let step = failing_step(task).map(|step| shell_word(&step.name));
    match (task.state.as_str(), step) {
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
        ("pending" | "processing", _) => {
            let start = format!("provost start {name}");
            let mut commands = Vec::from_iter(is_waiting_for_its_start(task).then_some(start));
            commands.extend(task.steps.iter().find_map(|step| awaited(step, name)));
            commands.push(format!("provost task {name} --follow"));
            commands.extend(task.steps.iter().find_map(|step| running(step, name)));
            commands.extend([
                format!("provost pause {name}"),
                format!("provost cancel {name}"),
            ]);
            commands.truncate(MOST_COMMANDS);
            commands
        }
        ("processed", _) => vec![
            format!("provost task {name} --history"),
            format!("provost clone {name} --dry-run"),
            format!("provost undo {name} --dry-run"),
        ],
        _ => vec![
            format!("provost task {name} --history"),
            format!("provost clone {name} --dry-run"),
        ],
    }
}

/// Returns the command that ends the running call of a step, which may hang.
fn running(step: &StepJson, name: &str) -> Option<String> {
    let is_call = step.kind == "call" && step.state == "processing";
    let can_end = is_call && step.items.is_none();
    can_end.then(|| format!("provost cancel {name} {}", shell_word(&step.name)))
}

/// Returns the command that a step awaits: the answer to its question, or its signal.
fn awaited(step: &StepJson, name: &str) -> Option<String> {
    if matches!(
        step.state.as_str(),
        "processed" | "skipped" | "error" | "cancelled"
    ) {
        return None;
    }
    let step_name = shell_word(&step.name);
    if let Some(ask) = &step.ask {
        let mut people = ask.people.iter();
        let person = people.find(|person| person.choice.is_none())?;
        // The first choice has this name unless the definition says otherwise.
        return Some(format!(
            "provost ask answer {name} approve --person {} --step {step_name}",
            shell_word(&person.person)
        ));
    }
    let blocked = step.blocked_by.as_ref()?;
    let awaits = blocked["reason"] == "signal";
    awaits.then(|| format!("provost signal {name} {step_name} '{{}}'"))
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

/// Returns an entry as one line, with its time in words.
pub fn entry_line(session: &Session, at: &str, entry: &HistoryEntryJson) -> String {
    let out = &session.out;
    let at = out.paint(Color::Dim, at);
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

/// Returns the time of a line that is printed when it happens. The line stays in the terminal, where `just now` would be wrong
/// a minute later.
pub fn clock(time: &str) -> String {
    Times::new(true).show(time)
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
            let mut last = None;
            if let Some(event) = events.next().await? {
                let entry: HistoryEntryJson = serde_json::from_str(&event.data).unwrap_or_default();
                match out.is_for_people() {
                    true => out.say(entry_line(session, &clock(&entry.at), &entry))?,
                    false => out.streamed(&event.data, &entry.seq)?,
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
                last = Some(entry);
            }
            let looked = wait::look(&session.api, id).await?;
            let is_last = last
                .as_ref()
                .is_none_or(|entry| is_newest(entry, &looked.0.task));
            if looked.1 != Outcome::Running && is_last {
                return Ok::<_, ClientError>(looked);
            }
        }
    };
    let (found, outcome) = match timeout {
        None => follow.await?,
        Some(timeout) => match tokio::time::timeout(timeout, follow).await {
            Ok(looked) => looked?,
            Err(_) => (find_task::read(&session.api, id).await?, Outcome::Running),
        },
    };
    if out.is_for_people() {
        say_state(session, &found.task)?;
    }
    Ok(outcome)
}

/// Returns whether the entry tells of the state that the task is in, and not of an earlier end: an operator may have retried the
/// task, or had it undone, since then.
fn is_newest(entry: &HistoryEntryJson, task: &TaskJson) -> bool {
    let failed_at = task.error.as_ref().map(|error| error.at.as_str());
    let is_earlier = entry.to == "error" && failed_at.is_some_and(|at| entry.at.as_str() < at);
    entry.to == task.state && !is_earlier
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_an_earlier_end_is_not_the_newest() {
        let entry = |to: &str, at: &str| HistoryEntryJson {
            to: to.to_owned(),
            at: at.to_owned(),
            ..HistoryEntryJson::default()
        };
        let task = failed();
        assert!(is_newest(&entry("error", "2026-03-01T11:57:00Z"), &task));
        assert!(!is_newest(&entry("error", "2026-03-01T11:56:59Z"), &task));
        assert!(!is_newest(
            &entry("processed", "2026-03-01T11:57:00Z"),
            &task
        ));
    }

    fn times() -> Times {
        Times::at(false, "2026-03-01T12:00:00Z".parse().unwrap())
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
            commands(&failed(), "order-1"),
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
        assert_eq!(commands(&task, "order-1")[0], "provost resume order-1");
    }

    #[test]
    fn a_step_that_awaits_a_person_or_a_signal_has_the_command_first() {
        let waiting = |step: &str| {
            let json = format!(r#"{{ "id": "0197", "state": "processing", "steps": [{step}] }}"#);
            commands(&serde_json::from_str(&json).unwrap(), "order-1")
        };
        let signal = r#"{ "name": "paid", "state": "processing", "blocked_by": { "reason": "signal", "until": null } }"#;
        let shown = waiting(signal);
        assert_eq!(shown.len(), 3);
        assert_eq!(shown[0], "provost signal order-1 paid '{}'");
        let ask = r#"{ "name": "approval", "state": "processing", "ask": { "title": "Refund?",
            "people": [{ "person": "ada", "choice": "approve" }, { "person": "bob", "choice": null }] } }"#;
        assert_eq!(
            waiting(ask)[0],
            "provost ask answer order-1 approve --person bob --step approval"
        );
        let call = r#"{ "name": "charge", "kind": "call", "state": "processing" }"#;
        assert_eq!(
            waiting(call),
            [
                "provost task order-1 --follow",
                "provost cancel order-1 charge",
                "provost pause order-1"
            ]
        );
        let ended = r#"{ "name": "approval", "state": "processed", "ask": { "title": "Refund?", "people": [] } }"#;
        assert_eq!(waiting(ended)[0], "provost task order-1 --follow");
    }

    #[test]
    fn what_a_step_waits_for_is_a_sentence() {
        let said = |json: &str| blocked_in_words(&times(), &serde_json::from_str(json).unwrap());
        assert_eq!(
            said(r#"{ "reason": "steps", "steps": ["charge"] }"#),
            "it waits for the step charge"
        );
        assert_eq!(
            said(r#"{ "reason": "steps", "steps": ["a", "b"], "more": 3 }"#),
            "it waits for the steps a, b and 3 more"
        );
        assert_eq!(
            said(r#"{ "reason": "time", "until": "2026-03-01T12:00:30Z" }"#),
            "it will be retried in 30 s"
        );
        assert_eq!(said(r#"{ "reason": "new_one" }"#), "it waits: new one");
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
            let count = commands(&task, "order-1").len();
            assert!((1..=MOST_COMMANDS).contains(&count), "{state}");
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
