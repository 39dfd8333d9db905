//! The arguments that every command takes, and what a command works with: the server and the output.

use std::path::PathBuf;

use clap::{Args, builder::ValueHint};
use clap_complete::ArgValueCompleter;

use crate::{
    api::Api,
    completion,
    context::{Choice, Contexts, Target, variable},
    outcome::ClientError,
    output::{ColorChoice, Format, Output},
};

/// The arguments that name a server.
#[derive(Args, Clone, Debug)]
pub struct ServerOptions {
    /// The server, such as https://provost.example or unix:/run/provost.sock [default: PROVOST_URL, else the current
    /// context, else http://127.0.0.1:8080]
    #[arg(long, value_name = "URL", help_heading = "Server")]
    pub server: Option<String>,

    /// The context to use, which `provost login` made [default: PROVOST_CONTEXT, else the current one]
    #[arg(long, value_name = "NAME", help_heading = "Server", conflicts_with = "server", add = ArgValueCompleter::new(completion::contexts))]
    pub context: Option<String>,

    /// A file with the token [default: PROVOST_TOKEN, else that of the context]
    #[arg(long, value_name = "FILE", help_heading = "Server", value_hint = ValueHint::FilePath)]
    pub token_file: Option<PathBuf>,

    /// Certificates in PEM that sign that of the server, beside those that the machine trusts
    #[arg(long, value_name = "FILE", help_heading = "Server", value_hint = ValueHint::FilePath)]
    pub ca: Option<PathBuf>,
}

/// The arguments of every command that asks a server.
#[derive(Args, Clone, Debug)]
pub struct SharedOptions {
    #[command(flatten)]
    pub server: ServerOptions,

    /// The form of the data on standard output
    #[arg(short, long, value_enum, default_value_t, help_heading = "Output")]
    pub output: Format,

    /// Colours in the output for people
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        default_value_t,
        help_heading = "Output"
    )]
    pub color: ColorChoice,

    /// Show times in UTC, and not how long ago they are
    #[arg(long, help_heading = "Output")]
    pub utc: bool,
}

/// The arguments of a command, with those that every command takes.
#[derive(Args, Clone, Debug)]
pub struct WithShared<T: Args> {
    #[command(flatten)]
    pub options: T,

    #[command(flatten)]
    pub shared: SharedOptions,
}

/// A command without arguments of its own.
#[derive(Args, Clone, Debug)]
pub struct NoOptions {}

/// A server and an output.
#[derive(Debug)]
pub struct Session {
    pub api: Api,
    pub out: Output,
}

impl ServerOptions {
    /// Returns whether the arguments, the environment or the contexts name a server.
    pub fn names_one(&self) -> Result<bool, ClientError> {
        let is_in_environment = ["PROVOST_URL", "PROVOST_CONTEXT"]
            .iter()
            .any(|name| variable(name).is_some());
        Ok(self.names_one_itself()
            || is_in_environment
            || Contexts::of_this_person()?.current.is_some())
    }

    /// Returns whether the arguments themselves name a server.
    pub fn names_one_itself(&self) -> bool {
        self.server.is_some() || self.context.is_some()
    }

    pub fn target(&self) -> Result<Target, ClientError> {
        let choice = Choice {
            server: self.server.clone(),
            context: self.context.clone(),
            token_file: self.token_file.clone(),
            ca: self.ca.clone(),
        };
        choice.resolve()
    }
}

impl SharedOptions {
    /// Returns whether one of the arguments is there.
    pub fn is_given(&self) -> bool {
        let is_server_given = self.server.names_one_itself()
            || self.server.token_file.is_some()
            || self.server.ca.is_some();
        let is_plain = self.output == Format::default() && self.color == ColorChoice::default();
        is_server_given || !is_plain || self.utc
    }

    pub fn target(&self) -> Result<Target, ClientError> {
        self.server.target()
    }

    pub fn output(&self) -> Output {
        Output::new(self.output, self.color, self.utc)
    }

    pub fn session(&self) -> Result<Session, ClientError> {
        Ok(Session {
            api: Api::new(&self.target()?)?,
            out: self.output(),
        })
    }
}
