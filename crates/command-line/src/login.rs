//! `provost login` and `provost context`: the servers of a person.

use std::{
    io,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand, builder::ValueHint};
use clap_complete::ArgValueCompleter;
use serde_json::json;

use crate::{
    api::Api,
    completion, confirm,
    context::{Context, Contexts, Target, variable, write_secret},
    operations::LIST_TASKS,
    outcome::{ClientError, Outcome},
    output::{Cell, Color, ColorChoice, Format, Output, Table, note},
};

#[derive(Args, Clone, Debug)]
pub struct LoginOptions {
    /// The name of the context
    #[arg(value_name = "NAME", default_value = "default")]
    name: String,

    /// The server, such as https://provost.example or unix:/run/provost.sock
    #[arg(long, value_name = "URL")]
    url: String,

    /// A file with the token
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["token_command", "token_env", "no_token"])]
    token_file: Option<PathBuf>,

    /// A command of the shell that prints the token, such as 'pass show provost'
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["token_env", "no_token"])]
    token_command: Option<String>,

    /// The variable of the environment that has the token
    #[arg(long, value_name = "VARIABLE", conflicts_with = "no_token")]
    token_env: Option<String>,

    /// The server needs no token
    #[arg(long)]
    no_token: bool,

    /// Certificates in PEM that sign that of the server, beside those that the machine trusts
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    ca: Option<PathBuf>,

    /// Do not ask the server whether it accepts the token
    #[arg(long)]
    offline: bool,
}

fn path() -> Result<PathBuf, ClientError> {
    Contexts::path(&variable).ok_or_else(|| {
        ClientError::usage(
            "HOME is not set: name the file of contexts with the variable PROVOST_CONTEXTS",
        )
    })
}

fn absolute(path: &Option<PathBuf>) -> Result<Option<PathBuf>, ClientError> {
    let made = path
        .as_ref()
        .map(|path| std::path::absolute(path).map_err(|error| ClientError::file(path, error)));
    made.transpose()
}

/// Returns the file for a token that was typed, beside that of the contexts.
fn own_token_file(contexts: &Path, name: &str) -> PathBuf {
    contexts.with_file_name("tokens").join(name)
}

/// Returns the URL of a server with the whole path of its socket, so that it leads there from any folder.
fn with_whole_path(url: &str) -> Result<String, ClientError> {
    let Some(socket) = url.strip_prefix("unix:") else {
        return Ok(url.to_owned());
    };
    let whole = absolute(&Some(PathBuf::from(socket)))?;
    Ok(format!("unix:{}", whole.unwrap_or_default().display()))
}

/// Makes a context, and makes it the current one.
pub async fn run(options: &LoginOptions) -> Result<Outcome, ClientError> {
    let path = path()?;
    let mut contexts = Contexts::read(&path)?;
    let mut context = Context {
        url: with_whole_path(&options.url)?,
        token_file: absolute(&options.token_file)?,
        token_command: options.token_command.clone(),
        token_env: options.token_env.clone(),
        ca: absolute(&options.ca)?,
    };
    let names_token = options.token_file.is_some()
        || options.token_command.is_some()
        || options.token_env.is_some();
    let mut token = context.token(&variable)?;
    if !names_token && !options.no_token {
        let out = Output::new(Format::Table, ColorChoice::Auto, false);
        let typed = confirm::secret(&out, "token (empty for none)");
        let typed = typed.map_err(|_| {
            ClientError::usage("there is no terminal to ask for the token: give --token-file, --token-command, --token-env or --no-token")
        })?;
        token = Some(typed).filter(|token| !token.is_empty());
    }
    let api = Api::new(&Target {
        url: context.url.clone(),
        token: token.clone(),
        ca: context.ca.clone(),
    })?;
    if !options.offline {
        api.request(&LIST_TASKS, &[])
            .query("limit", "1")
            .send()
            .await?;
    }
    if let Some(token) = token.filter(|_| !names_token) {
        let file = own_token_file(&path, &options.name);
        write_secret(&file, &token)?;
        context.token_file = Some(file);
    }
    contexts.contexts.insert(options.name.clone(), context);
    contexts.current = Some(options.name.clone());
    contexts.write(&path)?;
    note(format_args!(
        "the context {} is in {} and is the current one",
        options.name,
        path.display()
    ));
    Ok(Outcome::Done)
}

#[derive(Subcommand, Clone, Debug)]
pub enum ContextCommand {
    /// List the contexts; the current one has a star
    List {
        /// The form of the data on standard output
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Make a context the current one
    Use(OneContext),
    /// Remove a context
    Remove(OneContext),
}

#[derive(Args, Clone, Debug)]
pub struct OneContext {
    /// The name of the context
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(completion::contexts))]
    name: String,
}

impl ContextCommand {
    pub fn run(&self) -> Result<Outcome, ClientError> {
        let path = path()?;
        let mut contexts = Contexts::read(&path)?;
        match self {
            Self::List { output } => return list(&contexts, *output),
            Self::Use(one) => {
                contexts.find(&one.name)?;
                contexts.current = Some(one.name.clone());
                contexts.write(&path)?;
                note(format_args!("the context {} is the current one", one.name));
            }
            Self::Remove(one) => {
                let token_file = contexts.find(&one.name)?.token_file.clone();
                contexts.contexts.remove(&one.name);
                let was_current = contexts.current.as_ref() == Some(&one.name);
                contexts.current = contexts.current.take().filter(|_| !was_current);
                contexts.write(&path)?;
                // A file that a person named stays.
                let own = own_token_file(&path, &one.name);
                if token_file.as_ref() == Some(&own)
                    && let Err(error) = std::fs::remove_file(&own)
                    && error.kind() != io::ErrorKind::NotFound
                {
                    return Err(ClientError::file(&own, error));
                }
                let then = match (was_current, contexts.contexts.is_empty()) {
                    (false, _) => "",
                    (true, true) => ", and there is no other",
                    (true, false) => {
                        ", and no context is current: provost context use NAME makes one current"
                    }
                };
                note(format_args!("the context {} was removed{then}", one.name));
            }
        }
        Ok(Outcome::Done)
    }
}

fn list(contexts: &Contexts, format: Format) -> Result<Outcome, ClientError> {
    let out = Output::new(format, ColorChoice::Auto, false);
    if format == Format::Name {
        for name in contexts.contexts.keys() {
            out.say(name)?;
        }
        return Ok(Outcome::Done);
    }
    if format != Format::Table {
        let json = json!({ "current": contexts.current, "contexts": contexts.contexts });
        out.object(&json.to_string(), "")?;
        return Ok(Outcome::Done);
    }
    let mut table = Table::new(&["", "CONTEXT", "SERVER", "TOKEN"]);
    for (name, context) in &contexts.contexts {
        let is_current = contexts.current.as_deref() == Some(name);
        let token = match (
            &context.token_file,
            &context.token_command,
            &context.token_env,
        ) {
            (Some(file), _, _) => format!("file {}", file.display()),
            (_, Some(command), _) => format!("command {command}"),
            (_, _, Some(variable)) => format!("variable {variable}"),
            _ => String::new(),
        };
        table.row([
            Cell::new(if is_current { "*" } else { "" }),
            Cell::new(name).in_color(if is_current {
                Color::Bold
            } else {
                Color::Plain
            }),
            Cell::new(&context.url),
            Cell::new(token),
        ]);
    }
    out.rows(&table, "no contexts: provost login makes one")?;
    Ok(Outcome::Done)
}
