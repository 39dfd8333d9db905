//! `provost agent`: the services. `provost agent check` is beside the service, whose settings it can read.

use std::time::Duration;

use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use serde_json::{Map, Value, json};

use crate::{
    api::Api,
    completion,
    operations::{CHECK_AGENT, GET_AGENT, LIST_AGENTS, Operation, PAUSE_AGENT, RESUME_AGENT},
    outcome::{ClientError, Outcome},
    output::{Cell, Table},
    plain::plain,
    session::{NoOptions, ServerOptions, Session, WithShared},
    shapes::AgentJson,
    values,
};

/// The time that a check takes at most, besides that of any request.
const LONGEST_CHECK: Duration = Duration::from_secs(120);
/// The most agents that are listed.
const MOST: usize = 10_000;

#[derive(Subcommand, Clone, Debug)]
pub enum AgentCommand {
    /// List the agents, with what is wrong with them
    List(WithShared<NoOptions>),
    /// Show an agent: its endpoints, breakers and specification
    Show(WithShared<OneAgent>),
    /// Begin no call of an agent, on any instance; its steps wait and nothing fails
    Pause(WithShared<PauseAgentOptions>),
    /// Let calls of an agent begin again
    Resume(WithShared<OneAgent>),
}

#[derive(Args, Clone, Debug)]
pub struct OneAgent {
    /// The name of the agent
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(completion::agents))]
    agent: String,
}

#[derive(Args, Clone, Debug)]
pub struct PauseAgentOptions {
    #[command(flatten)]
    one: OneAgent,

    /// Resume by itself after this time, such as 30m
    #[arg(long = "for", value_name = "DURATION", conflicts_with = "until", value_parser = values::duration)]
    duration: Option<String>,

    /// Resume by itself at this time, such as 2026-03-01T00:00:00Z
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    until: Option<String>,

    /// The reason, which is on record with your name
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl AgentCommand {
    pub async fn run(&self) -> Result<Outcome, ClientError> {
        match self {
            Self::List(command) => list(&command.shared.session()?).await,
            Self::Show(command) => {
                let session = command.shared.session()?;
                let name = &command.options.agent;
                let response = session.api.request(&GET_AGENT, &[name]).send().await?;
                show(&session, &response.text, &response.read()?)
            }
            Self::Pause(command) => {
                let options = &command.options;
                let mut members = Map::new();
                let texts = [
                    ("for", &options.duration),
                    ("until", &options.until),
                    ("reason", &options.reason),
                ];
                for (name, value) in texts {
                    members.extend(value.clone().map(|value| (name.to_owned(), json!(value))));
                }
                let session = command.shared.session()?;
                change(
                    &session,
                    &PAUSE_AGENT,
                    &options.one.agent,
                    Some(Value::Object(members)),
                )
                .await
            }
            Self::Resume(command) => {
                change(
                    &command.shared.session()?,
                    &RESUME_AGENT,
                    &command.options.agent,
                    None,
                )
                .await
            }
        }
    }
}

async fn change(
    session: &Session,
    operation: &Operation,
    name: &str,
    members: Option<Value>,
) -> Result<Outcome, ClientError> {
    let request = session.api.request(operation, &[name]);
    let request = match &members {
        Some(members) => request.body(members),
        None => request,
    };
    let response = request.send().await?;
    let agent: AgentJson = response.read()?;
    match session.out.is_for_people() {
        true => session.out.say(sentence(session, &agent))?,
        false => session.out.object(&response.text, &agent.name)?,
    }
    Ok(Outcome::Done)
}

async fn list(session: &Session) -> Result<Outcome, ClientError> {
    let listing = session.api.list(&LIST_AGENTS, &[], &[], MOST).await?;
    let out = &session.out;
    if !out.is_for_people() {
        let name = |item: &str| {
            serde_json::from_str::<AgentJson>(item)
                .map(|agent| agent.name)
                .unwrap_or_default()
        };
        out.list(&listing.page, &listing.items, name)?;
        return Ok(Outcome::Done);
    }
    let mut table = Table::new(&["AGENT", "STATE", "IN FLIGHT", "OF", "FROM", "WHY"]);
    for agent in listing.read::<AgentJson>()? {
        let (state, why) = state_of(session, &agent);
        table.row([
            Cell::new(&agent.name),
            Cell::state(state),
            Cell::number(agent.in_flight),
            Cell::number(agent.capacity),
            Cell::new(&agent.source),
            Cell::new(why),
        ]);
    }
    out.rows(&table, "no agents")?;
    Ok(Outcome::Done)
}

/// Returns the state of an agent, and why it is in it.
fn state_of(session: &Session, agent: &AgentJson) -> (&'static str, String) {
    let times = &session.out.times;
    if let Some(pause) = &agent.pause {
        let until = pause
            .until
            .as_deref()
            .map(|until| format!(", ends {}", times.show(until)));
        let reason = pause.reason.as_deref().map(|reason| format!(": {reason}"));
        let why = format!(
            "by {}{}{}",
            pause.by,
            until.unwrap_or_default(),
            reason.unwrap_or_default()
        );
        return ("paused", why);
    }
    if let Some(throttle) = &agent.throttle {
        return (
            "throttled",
            format!("{}, ends {}", throttle.reason, times.show(&throttle.until)),
        );
    }
    let mut breakers = agent.breakers.iter().flatten();
    if let Some(breaker) = breakers.find(|breaker| breaker.state != "closed") {
        let reason = breaker.reason.as_deref().unwrap_or_default();
        return ("open", format!("{}: {reason}", breaker.endpoint));
    }
    if let Some(incomplete) = &agent.incomplete {
        return ("unreadable", incomplete.clone());
    }
    ("active", String::new())
}

fn sentence(session: &Session, agent: &AgentJson) -> String {
    let (state, why) = state_of(session, agent);
    let why = if why.is_empty() {
        why
    } else {
        format!(" {}", plain(&why))
    };
    format!(
        "agent {} is {}{why}; {} of {} calls in flight",
        plain(&agent.name),
        session.out.state(state),
        agent.in_flight,
        agent.capacity
    )
}

fn show(session: &Session, json: &str, agent: &AgentJson) -> Result<Outcome, ClientError> {
    let out = &session.out;
    if !out.is_for_people() {
        out.object(json, &agent.name)?;
        return Ok(Outcome::Done);
    }
    out.say(sentence(session, agent))?;
    let mut table = Table::new(&["ENDPOINT", "STATE", "IN FLIGHT", "WHY"]);
    for endpoint in agent.endpoints.iter().flatten() {
        table.row([
            Cell::new(&endpoint.url),
            Cell::state(&endpoint.state),
            Cell::number(endpoint.in_flight),
            Cell::optional(endpoint.reason.as_deref()),
        ]);
    }
    out.table("", &table)?;
    let mut table = Table::new(&["BREAKER OF", "STATE", "UNTIL", "WHY"]);
    for breaker in agent.breakers.iter().flatten() {
        table.row([
            Cell::new(&breaker.endpoint),
            Cell::state(&breaker.state),
            Cell::new(out.times.show_optional(breaker.until.as_deref())),
            Cell::optional(breaker.reason.as_deref()),
        ]);
    }
    out.table("", &table)?;
    let spec = serde_json::to_string_pretty(&agent.spec).unwrap_or_default();
    out.say(spec)?;
    Ok(Outcome::Done)
}

/// Has the server check an agent, for `provost agent check`, and returns the response. The token takes the place of that of
/// the arguments and the contexts; the address is that of a server that none of them names.
pub async fn check(
    agent: &str,
    request: String,
    server: &ServerOptions,
    address: Option<String>,
    token: Option<String>,
) -> Result<String, ClientError> {
    let server = ServerOptions {
        server: address.or_else(|| server.server.clone()),
        ..server.clone()
    };
    let mut target = server.target()?;
    target.token = token.or(target.token);
    let api = Api::new(&target)?;
    let request = api.request(&CHECK_AGENT, &[agent]).document(request);
    Ok(request.waiting(LONGEST_CHECK).send().await?.text)
}
