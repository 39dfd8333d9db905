//! `provost message`: messages to receivers, and those that could not be delivered.

use clap::{ArgGroup, Args, Subcommand};
use clap_complete::ArgValueCompleter;
use serde_json::{Map, Value, json};

use crate::{
    completion,
    confirm::{self, Answer},
    operations::{LIST_MESSAGES, REDELIVER_MESSAGE, REDELIVER_MESSAGES},
    outcome::{ClientError, Outcome},
    output::{Cell, Color, Table},
    plain::counted,
    session::{Session, WithShared},
    shapes::{BulkLettersResultJson, MessageJson},
    values,
};

#[derive(Subcommand, Clone, Debug)]
pub enum MessageCommand {
    /// List messages: those that wait, and those that were given up
    List(WithShared<ListMessagesOptions>),
    /// Send messages again that were given up
    Redeliver(WithShared<RedeliverOptions>),
}

#[derive(Args, Clone, Debug)]
pub struct ListMessagesOptions {
    /// Only messages in this state
    #[arg(long, value_name = "STATE", value_parser = values::MESSAGE_STATES)]
    state: Option<String>,

    /// Only messages to this receiver
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(completion::receivers))]
    receiver: Option<String>,

    /// Only messages about this task
    #[arg(long, value_name = "ID", value_parser = values::uuid, add = ArgValueCompleter::new(completion::task_ids))]
    task: Option<String>,

    /// Only messages with this text in their receiver, URL, type or error
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,

    /// Show at most this many
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    limit: u32,
}

#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["message", "receiver", "about", "all"]))]
pub struct RedeliverOptions {
    /// The id of the message
    #[arg(value_name = "MESSAGE", conflicts_with_all = ["receiver", "about", "all"], add = ArgValueCompleter::new(completion::messages))]
    message: Option<String>,

    /// All dead messages to this receiver
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(completion::receivers))]
    receiver: Option<String>,

    /// All dead messages about this task
    #[arg(long = "task", value_name = "ID", value_parser = values::uuid, add = ArgValueCompleter::new(completion::task_ids))]
    about: Option<String>,

    /// All dead messages
    #[arg(long)]
    all: bool,

    /// Change nothing, and count the messages
    #[arg(long, conflicts_with = "message")]
    dry_run: bool,

    /// Do not ask before more than one message is sent
    #[arg(short, long)]
    yes: bool,
}

impl MessageCommand {
    pub async fn run(&self) -> Result<Outcome, ClientError> {
        match self {
            Self::List(command) => list(&command.shared.session()?, &command.options).await,
            Self::Redeliver(command) => {
                redeliver(&command.shared.session()?, &command.options).await
            }
        }
    }
}

async fn list(session: &Session, options: &ListMessagesOptions) -> Result<Outcome, ClientError> {
    let mut query = Vec::new();
    for (name, value) in [
        ("state", &options.state),
        ("receiver", &options.receiver),
        ("text", &options.text),
        ("task", &options.task),
    ] {
        query.extend(value.clone().map(|value| (name, value)));
    }
    let listing = session
        .api
        .list(&LIST_MESSAGES, &[], &query, options.limit as usize)
        .await?;
    let out = &session.out;
    if !out.is_for_people() {
        let id = |item: &str| {
            serde_json::from_str::<MessageJson>(item)
                .map(|message| message.id)
                .unwrap_or_default()
        };
        out.list(&listing.page, &listing.items, id)?;
        return Ok(Outcome::Done);
    }
    let mut table = Table::new(&[
        "MESSAGE", "STATE", "TYPE", "RECEIVER", "TASK", "TRIES", "NEXT", "MADE", "WHY",
    ]);
    for message in listing.read::<MessageJson>()? {
        table.row([
            Cell::new(&message.id).in_color(Color::Dim),
            Cell::state(&message.state),
            Cell::new(&message.kind),
            Cell::new(&message.receiver),
            Cell::optional(message.task.as_deref()),
            Cell::number(message.tries),
            Cell::new(out.times.show_optional(message.next_try_at.as_deref())),
            Cell::new(out.times.show(&message.created_at)),
            Cell::optional(message.error.as_deref()),
        ]);
    }
    out.rows(&table, "no messages")?;
    Ok(Outcome::Done)
}

async fn redeliver(session: &Session, options: &RedeliverOptions) -> Result<Outcome, ClientError> {
    let out = &session.out;
    if let Some(id) = &options.message {
        let response = session
            .api
            .request(&REDELIVER_MESSAGE, &[id])
            .send()
            .await?;
        match out.is_for_people() {
            true => out.say(format_args!("message {id} is sent again"))?,
            false => out.object(&response.text, id)?,
        }
        return Ok(Outcome::Done);
    }
    let mut members = Map::new();
    members.extend(
        options
            .receiver
            .clone()
            .map(|receiver| ("receiver".to_owned(), json!(receiver))),
    );
    members.extend(
        options
            .about
            .clone()
            .map(|task| ("task".to_owned(), json!(task))),
    );
    if options.all {
        members.insert("all".to_owned(), json!(true));
    }
    let send = async |members: Map<String, Value>| {
        let request = session.api.request(&REDELIVER_MESSAGES, &[]);
        request.body(&Value::Object(members)).send().await
    };
    let mut dry = members.clone();
    dry.insert("dry_run".to_owned(), json!(true));
    let preview = send(dry).await?;
    let count = preview.read::<BulkLettersResultJson>()?.matched;
    if options.dry_run {
        match out.is_for_people() {
            true => out.say(format_args!(
                "{} would be sent again",
                counted(count, "dead message")
            ))?,
            false => out.object(&preview.text, "")?,
        }
        return Ok(Outcome::Done);
    }
    if count > 1 && !options.yes {
        match confirm::ask(
            out,
            &format!("Do you want to send {} again?", counted(count, "message")),
        ) {
            Answer::Yes => {}
            Answer::No => return Ok(Outcome::Refused),
            Answer::NoTerminal => {
                return Err(ClientError::usage(format!(
                    "{count} messages would be sent, and there is no terminal to ask: give --yes, or look with --dry-run"
                )));
            }
        }
    }
    let response = send(members).await?;
    let done = response.read::<BulkLettersResultJson>()?.done;
    match out.is_for_people() {
        true => out.say(format_args!(
            "the server sends {} again",
            counted(done, "message")
        ))?,
        false => out.object(&response.text, "")?,
    }
    Ok(Outcome::Done)
}
