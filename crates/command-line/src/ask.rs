//! `provost ask`: questions to people.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;

use crate::{
    api::Api,
    completion,
    context::Target,
    files::name_value,
    find_task::{self, Purpose},
    operations::{DECIDE_ASK, LIST_ASKS},
    outcome::{ClientError, Outcome},
    output::{Cell, Color, Table, note},
    plain::plain,
    session::{Session, WithShared},
    shapes::AskJson,
};

/// The most questions that are looked at.
const MOST: usize = 10_000;

#[derive(Subcommand, Clone, Debug)]
pub enum AskCommand {
    /// List the open questions, with the people who are asked
    List(WithShared<ListAsksOptions>),
    /// Answer a question with the link that a person got, or as an administrator for a person
    Answer(WithShared<AnswerOptions>),
}

#[derive(Args, Clone, Debug)]
pub struct ListAsksOptions {
    /// Only questions to this person
    #[arg(long, value_name = "PERSON", add = ArgValueCompleter::new(completion::people))]
    of: Option<String>,

    /// Only questions of this workflow
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(completion::workflows))]
    workflow: Option<String>,

    /// Only questions with this text in their title, key, step or people
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,

    /// Show at most this many
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    limit: u32,
}

#[derive(Args, Clone, Debug)]
pub struct AnswerOptions {
    /// The link that the person got, or the id or key of the task that asks
    #[arg(value_name = "LINK|TASK", add = ArgValueCompleter::new(completion::asking_tasks))]
    ask: String,

    /// The choice
    #[arg(value_name = "CHOICE")]
    choice: String,

    /// A comment
    #[arg(long, value_name = "TEXT", default_value = "")]
    comment: String,

    /// A value that is asked besides; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = name_value)]
    field: Vec<(String, String)>,

    /// With a task: the person to answer for, which needs a token of the role admin
    #[arg(long, value_name = "PERSON", add = ArgValueCompleter::new(completion::people))]
    person: Option<String>,

    /// With a task: the step that asks, if several do
    #[arg(long, value_name = "STEP", add = ArgValueCompleter::new(completion::asking_steps))]
    step: Option<String>,
}

impl AskCommand {
    pub async fn run(&self) -> Result<Outcome, ClientError> {
        match self {
            Self::List(command) => list(&command.shared.session()?, &command.options).await,
            Self::Answer(command) => {
                let WithShared { options, shared } = command;
                let session = match (server_of(&options.ask), shared.session()) {
                    (Some(url), Ok(session)) if session.api.server() == url => session,
                    // The link says which server asks. It needs no token, and that of another server is none of its business.
                    (Some(url), _) if !shared.server.names_one_itself() => Session {
                        api: Api::new(&Target {
                            url,
                            token: None,
                            ca: shared.server.ca.clone(),
                        })?,
                        out: shared.output(),
                    },
                    (_, session) => session?,
                };
                answer(&session, options).await
            }
        }
    }
}

async fn list(session: &Session, options: &ListAsksOptions) -> Result<Outcome, ClientError> {
    let mut query = Vec::new();
    query.extend(options.of.clone().map(|of| ("of", of)));
    query.extend(options.text.clone().map(|text| ("text", text)));
    query.extend(
        options
            .workflow
            .clone()
            .map(|workflow| ("workflow", workflow)),
    );
    let listing = session
        .api
        .list(&LIST_ASKS, &[], &query, options.limit as usize)
        .await?;
    let out = &session.out;
    if !out.is_for_people() {
        let task = |item: &str| {
            serde_json::from_str::<AskJson>(item)
                .map(|ask| ask.task)
                .unwrap_or_default()
        };
        out.list(&listing.page, &listing.items, task)?;
        return Ok(Outcome::Done);
    }
    let mut table = Table::new(&["TASK", "KEY", "STEP", "UNTIL", "OPEN FOR", "QUESTION"]);
    let asks = listing.read::<AskJson>()?;
    if asks.iter().all(|ask| ask.key.is_some()) {
        table.leave_out_first(&["TASK"]);
    }
    for ask in asks {
        let open = ask.people.iter().filter(|person| person.choice.is_none());
        let open: Vec<_> = open.map(|person| person.person.as_str()).collect();
        table.row([
            Cell::new(&ask.task).in_color(Color::Dim),
            Cell::optional(ask.key.as_deref()),
            Cell::new(&ask.step),
            Cell::new(out.times.show_optional(ask.until.as_deref())),
            Cell::new(open.join(", ")),
            Cell::optional(ask.title.as_deref()),
        ]);
    }
    out.rows(&table, "no open questions")?;
    Ok(Outcome::Done)
}

/// The path of all links to questions.
const LINKS: &str = "/v1/asks/";

/// Returns the address of the server of a link, if it has one.
fn server_of(link: &str) -> Option<String> {
    let (server, _) = link.split_once(LINKS)?;
    let is_address = server.starts_with("http://") || server.starts_with("https://");
    is_address.then(|| server.to_owned())
}

async fn answer(session: &Session, options: &AnswerOptions) -> Result<Outcome, ClientError> {
    let token = match options.ask.split_once(LINKS) {
        Some((_, token)) => token
            .split(['?', '#'])
            .next()
            .unwrap_or_default()
            .to_owned(),
        None => token_of(session, options).await?,
    };
    let mut fields = vec![("choice".to_owned(), options.choice.clone())];
    if !options.comment.is_empty() {
        fields.push(("comment".to_owned(), options.comment.clone()));
    }
    let more = options.field.iter();
    fields.extend(more.map(|(name, value)| (format!("field.{name}"), value.clone())));
    session
        .api
        .request(&DECIDE_ASK, &[&token])
        .form(&fields)
        .send_form()
        .await?;
    if !session.out.is_for_people() {
        let decision: BTreeMap<_, _> = fields.into_iter().collect();
        let json = serde_json::to_string(&decision)
            .map_err(|error| ClientError::usage(error.to_string()))?;
        session.out.object(&json, &options.choice)?;
        return Ok(Outcome::Done);
    }
    note(format_args!(
        "the answer is on record: {}",
        plain(&options.choice)
    ));
    Ok(Outcome::Done)
}

/// Returns the token of the link of a person, which only the role admin sees.
async fn token_of(session: &Session, options: &AnswerOptions) -> Result<String, ClientError> {
    let Some(person) = &options.person else {
        return Err(ClientError::usage(
            "give the link that the person got, or a task with --person",
        ));
    };
    let id = find_task::find_id(&session.api, &options.ask, Purpose::Command).await?;
    let query = [("of", person.clone())];
    let asks: Vec<AskJson> = session
        .api
        .list(&LIST_ASKS, &[], &query, MOST)
        .await?
        .read()?;
    let wanted = |ask: &&AskJson| {
        ask.task == id && options.step.as_ref().is_none_or(|step| *step == ask.step)
    };
    let found: Vec<_> = asks.iter().filter(wanted).collect();
    let ask = match found.as_slice() {
        [ask] => ask,
        [] => {
            return Err(ClientError::NotFound(format!(
                "no open question of the task {} is for {person}",
                options.ask
            )));
        }
        _ => {
            return Err(ClientError::usage(
                "several steps of the task ask: name one with --step",
            ));
        }
    };
    let asked = ask.people.iter().find(|asked| asked.person == *person);
    let link = asked.and_then(|asked| asked.link.as_deref());
    let token = link.and_then(|link| Some(link.split_once(LINKS)?.1.to_owned()));
    token.ok_or_else(|| {
        ClientError::usage(
            "the server does not show the link of the person: that needs a token of the role admin",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_names_its_server() {
        let server = |link| server_of(link);
        assert_eq!(
            server("https://p.example/shop/v1/asks/abc?x=1").as_deref(),
            Some("https://p.example/shop")
        );
        assert_eq!(server("/v1/asks/abc"), None);
        assert_eq!(server("order-1"), None);
    }
}
