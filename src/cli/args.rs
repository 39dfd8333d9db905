//! The arguments of the command line, and their help texts.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, value_parser};
use clap_complete::ArgValueCompleter;
use provost_command_line::{
    AgentCommand, ClientCommand, MigrateTasks, ServerOptions, Shell, complete_agents,
};

use super::{agent_check::AgentCheckOptions, rehearse::TestOptions, validate::ValidateOptions};
use crate::{
    config::{self, ConfigError, FlagValue, Sources},
    domain::{
        task::TaskStatus,
        values::{SPAN_FORMS, Span, WorkflowName},
    },
};

/// Runs multi-step tasks across HTTP services, so that each task succeeds as a whole, is undone as a whole, or
/// waits for an operator with everything it has done on record.
///
/// Provost runs as one process over one SQLite file, or as several processes that share a PostgreSQL database. A
/// task is a graph of HTTP calls. Provost makes them in order, retries transient errors, detects calls that never
/// return, and continues after a crash where it stopped.
///
/// The same program is the client of a running service: `provost status` shows what needs you.
#[derive(Parser)]
#[command(
    name = "provost",
    version,
    after_help = "New here? This command shows everything at work, with three small services of its own:

  provost demo

Then start a service, and submit a task:

  provost serve
  python3 -m http.server 9000 --bind 127.0.0.1
  curl -s http://127.0.0.1:8080/v1/tasks -H 'content-type: application/json' -d '{
    \"steps\": [{ \"name\": \"hello\", \"url\": \"http://127.0.0.1:9000\",
                 \"request\": { \"method\": \"GET\", \"path\": \"/\" } }] }'

While it runs, http://127.0.0.1:8080/docs documents every field of the API."
)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Subcommand,
}

#[derive(clap::Subcommand)]
pub enum Subcommand {
    /// Start the service: API, scheduler and supervisor over one database
    #[command(
        after_help = "No flag is required. Provost reads settings from provost.toml, then from the environment, then from
flags; the later source wins. Every setting has a variable: PROVOST_LISTEN, PROVOST_SUPERVISOR__INTERVAL
(two underscores between table and name). provost.toml.example documents all settings.

Examples:
  provost serve
  provost serve --listen 127.0.0.1:9090 --database-url sqlite:///var/lib/provost/provost.db
  PROVOST_TOKENS=\"ci:submit:$(openssl rand -hex 32)\" provost serve --listen 0.0.0.0:8080 --log-json

SIGTERM or Ctrl-C stops it gracefully: running calls may finish, and other steps are released."
    )]
    Serve(ServeFlags),

    /// Watch twenty orders succeed, recover and fail, with built-in example services
    #[command(after_help = "Uses a temporary database and needs no network.

Examples:
  provost demo
  provost demo --exit && echo 'every order ended as it should'")]
    Demo(DemoOptions),

    /// Measure a server: tasks per second, latency, CPU and memory, compared with plain HTTP calls
    #[command(
        after_help = "Without --url, the benchmark starts a server: this program with default settings and a temporary
database. It also starts the remote service, which responds at once.

With --database-url the servers that it starts use that PostgreSQL. The PostgreSQL should have no other
load, which would be measured too. With --instances it starts several servers, and the report says how they
shared the work.

A server that you give with --url must be allowed to call the remote service; a server that listens on
loopback is. The benchmark registers an agent and a workflow named `bench` there; it removes the agent
afterwards, and leaves the workflow and the tasks.

With --backlog it measures two servers in turns: one with that many steps in the queue of an agent whose
service never responds, and one with an empty queue. The report shows submissions, reads, lists and the
tasks of another agent on both servers, their ratio, which should be near 1, and the memory.

With --history it does the same with a database that many ended tasks are in, some cancelled or in error and with
10,000 different labels; and it shows the slowest first pages of all lists, with each filter and each two of them.
It makes the tasks by copying rows, which takes a minute for each million of steps. Both options may be combined.

Examples:
  provost bench
  provost bench --backlog 200000 --tasks 6000
  provost bench --history 330000 --tasks 6000
  provost bench --fan-out
  provost bench --workers 50
  provost bench --tasks 100000 --in-flight 256
  provost bench --database-url postgres://provost@db.example/bench --instances 4
  PROVOST_BENCH_TOKEN=… provost bench --url http://127.0.0.1:8080"
    )]
    Bench(BenchOptions),

    /// Try a workflow without its services and without waiting: cases with mocked responses, and every fault in turn
    #[command(
        after_help = "A file of cases says for each case what the services respond, and what is expected: the steps that run, the
requests that are sent, outputs, undo, the end. Time is virtual: a wait of three days takes no time. The rules are
those of the service. docs/testing-workflows.md describes the files.

With --explore no expectation is checked: a fault is tried at every step of the first case (or of --case), forward
and back, and the report says how each ends and which effects stand then.

Exits with 0 if all cases passed, 1 if one failed, 2 if a file cannot be used.

Examples:
  provost test order.json order.cases.yaml
  provost test order.json order.cases.yaml --junit results.xml
  provost test order.json order.cases.yaml --update
  provost test order.json order.cases.yaml --explore"
    )]
    Test(TestOptions),

    /// Check files of workflows for faults, without a service
    #[command(
        after_help = "Prints each fault and each warning as file:line:column: message. Whether agents, receivers and URLs may be used
only a running service knows: PUT /v1/workflows/{name} and POST /v1/workflows/{name}/validate check that too.

Exits with 0 if all files are valid, 1 if one has a fault or, with --strict, a warning, 2 if one cannot be read.

Examples:
  provost validate workflows/*.json
  provost validate --strict workflows/*.json"
    )]
    Validate(ValidateOptions),

    /// Print the OpenAPI 3.1 document of the API
    #[command(after_help = "\
Example:
  provost openapi > openapi.json")]
    Openapi,

    /// Validate the settings that `serve` would use, and print each with its source
    #[command(
        after_help = "Secrets are hidden. If `serve` would not start, the command prints the reason and exits with 2.
\nExamples:
  provost check-config
  provost check-config --config /etc/provost/provost.toml"
    )]
    CheckConfig(ServeFlags),

    /// Migrate the schema of the database to the current version; or, with --to, tasks to another version of their workflow
    #[command(
        after_help = "Without a task, the command is about the database. `serve` does the same at its start, unless postgres.migrate is
false. Run it as a database user that may change the schema. It is safe to run several at once. It does not wait for
an unreachable database.

Examples:
  provost migrate
  provost migrate --database-url postgres://owner@db.example/provost
  provost migrate order-1001 --to latest --dry-run
  provost migrate --filter workflow=order --to 14 --from-version 13"
    )]
    Migrate(Box<MigrateFlags>),
    /// Copy the SQLite database to a new file while the service runs
    #[command(
        after_help = "For SQLite. The copy is a consistent snapshot, complete and on disk when the command exits with 0. The command
finds the database by the same settings as `serve`; run it as a user that may read and write there. To
restore, stop the service and replace the database with the copy: see docs/deploy.md.

Examples:
  provost backup --to /backup/provost-$(date +%F).db
  provost backup --to copy.db --database-url sqlite:///var/lib/provost/provost.db"
    )]
    Backup(BackupFlags),

    /// Delete tasks that ended long ago, whether the service runs or not
    #[command(
        after_help = "The service deletes ended tasks automatically ([retention] in provost.toml); this command does it now, or for a
stopped service. It deletes ended tasks with their history, never tasks that may still continue. Without
--older-than the settings apply. A workflow with its own retention setting keeps its tasks for that long, unless
--workflow names it. While a service uses the database, the command deletes slowly, so that requests are hardly
delayed.

An SQLite file does not shrink at once: a running service returns free space to the disk over time, and
--shrink rewrites the file, for which the service must be stopped.

Examples:
  provost purge --older-than 30d --dry-run
  provost purge --older-than 7d --state processed
  provost purge --older-than 0s --workflow import-test
  provost purge --shrink"
    )]
    Purge(PurgeFlags),

    /// The agents of a running service: list, show, pause, resume, check
    #[command(
        subcommand,
        after_help = "\
Examples:
  provost agent list
  provost agent show payments
  provost agent pause payments --for 30m --reason 'the bank is down until ten'
  provost agent resume payments"
    )]
    Agent(AgentSubcommand),

    #[command(flatten)]
    Client(Box<ClientCommand>),

    /// Print the script with which a shell completes commands, ids, keys and names
    #[command(after_help = "\
Examples:
  source <(provost completions bash)
  provost completions fish > ~/.config/fish/completions/provost.fish")]
    Completions {
        /// The shell
        #[arg(value_name = "SHELL", value_enum)]
        shell: Shell,
    },

    /// Write the man pages to a folder
    #[command(after_help = "\
Example:
  provost man --to /usr/local/share/man/man1")]
    Man {
        /// The folder, which is made if it does not exist
        #[arg(long, value_name = "FOLDER")]
        to: PathBuf,
    },

    /// Print the version
    Version,

    /// Examine settings, database, clock, port, disk, schema, slow statements and certificates: what is wrong, what to do
    #[command(
        after_help = "Run it where the server runs, as its user and with its settings. It changes nothing, whether a server runs or not.
Exits with 0 if it finds no fault (a warning is none), 1 if it does.

Examples:
  provost doctor
  provost doctor --config /etc/provost/provost.toml --json"
    )]
    Doctor(DoctorFlags),

    /// Check whether the server on this machine is ready; exits with 0 if it is, 1 if not
    #[command(
        after_help = "Finds the server by the same settings as `serve`. Intended for containers, which have no curl.

Example, in a Dockerfile:
  HEALTHCHECK CMD [\"provost\", \"healthcheck\"]"
    )]
    Healthcheck(AddressFlags),
}

#[derive(clap::Subcommand)]
pub enum AgentSubcommand {
    /// Call the service of an agent as steps would, and report if it does what they rely on
    #[command(
        after_help = "The running service makes the calls: about thirty, for up to two minutes. THEY MAKE REAL WORK at the service of
the agent, about a dozen times under keys of their own, which is undone if the file has an undo.

The file is a step as a workflow has it, with what else the check needs:
  { \"request\": { \"path\": \"/charges\", \"body\": { \"amount\": \"{{ input.amount }}\" } },
    \"undo\": { \"request\": { \"method\": \"DELETE\", \"path\": \"/charges\" } },
    \"probe\": { \"request\": { \"path\": \"/charges\" }, \"outcome\": \"response.body.state\" },
    \"complete_within\": \"10s\", \"input\": { \"amount\": 5 }, \"within\": \"1m\" }

The server is that of --server, --context, the environment or the current context, as for every command; if none of them
names one, it is where the settings say that it listens.

Exits with 0 if everything passed, 1 if something failed, 2 if something could not be checked.

Examples:
  provost agent check payments --request charge.json
  PROVOST_API_TOKEN=… provost agent check payments --request charge.json --server https://provost.example --json"
    )]
    Check(AgentCheckFlags),

    #[command(flatten)]
    Client(Box<AgentCommand>),
}

#[derive(Args)]
pub struct AgentCheckFlags {
    /// The name of the agent
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(complete_agents))]
    agent: String,

    /// The step to check it with, as JSON; - reads it from standard input
    #[arg(long, value_name = "FILE")]
    request: PathBuf,

    #[command(flatten)]
    server: ServerOptions,

    /// A token of the role admin, in place of that of PROVOST_TOKEN or of the context
    #[arg(
        long,
        value_name = "TOKEN",
        env = "PROVOST_API_TOKEN",
        hide_env_values = true
    )]
    token: Option<String>,

    /// Print the response of the service
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    file: FileFlag,
}

impl AgentCheckFlags {
    /// Returns the options. The settings are read only if nothing else says where the service is; a fault of the contexts is
    /// reported once they are used.
    pub fn options(self, env: Vec<(String, String)>) -> Result<AgentCheckOptions, ConfigError> {
        let settings = match self.server.names_one() {
            Ok(false) => {
                let sources = Sources {
                    file: self.file.config,
                    env,
                    flags: Vec::new(),
                };
                Some(Box::new(config::load(&sources)?))
            }
            Ok(true) | Err(_) => None,
        };
        Ok(AgentCheckOptions {
            agent: self.agent,
            request: self.request,
            server: self.server,
            settings,
            token: self.token,
            json: self.json,
        })
    }
}

#[derive(Args, Debug)]
struct FileFlag {
    /// Read settings from this file, which must exist [default: provost.toml, if it exists]
    #[arg(
        long,
        value_name = "PATH",
        env = "PROVOST_CONFIG",
        hide_env_values = true
    )]
    config: Option<PathBuf>,
}

/// The flags for commands that need the address of the service.
#[derive(Args, Debug)]
pub struct AddressFlags {
    #[command(flatten)]
    file: FileFlag,

    /// Listen on this address and port [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
}

#[derive(Args, Debug)]
pub struct DatabaseFlags {
    #[command(flatten)]
    file: FileFlag,

    /// The database [default: from the settings]
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
}

impl DatabaseFlags {
    pub fn sources(self, env: Vec<(String, String)>) -> Sources {
        let mut sources = Sources {
            file: self.file.config,
            env,
            flags: Vec::new(),
        };
        set(
            &mut sources,
            "--database-url",
            "database_url",
            self.database_url,
        );
        sources
    }
}

#[derive(Args, Debug)]
pub struct MigrateFlags {
    #[command(flatten)]
    pub database: DatabaseFlags,

    #[command(flatten)]
    pub tasks: MigrateTasks,
}

#[derive(Args, Debug)]
pub struct DoctorFlags {
    #[command(flatten)]
    place: AddressFlags,

    /// The database [default: from the settings]
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,

    /// Print JSON: items with severity, subject, seen and remedy
    #[arg(long)]
    json: bool,
}

impl DoctorFlags {
    /// Returns the sources of the settings, and whether to print JSON.
    pub fn sources(self, env: Vec<(String, String)>) -> (Sources, bool) {
        let mut sources = self.place.sources(env);
        set(
            &mut sources,
            "--database-url",
            "database_url",
            self.database_url,
        );
        (sources, self.json)
    }
}

#[derive(Args, Debug)]
pub struct BackupFlags {
    /// Write to this file, which must not exist yet
    #[arg(long, value_name = "FILE")]
    to: PathBuf,

    #[command(flatten)]
    database: DatabaseFlags,
}

impl BackupFlags {
    /// Returns the sources of the settings, and the file to write.
    pub fn sources(self, env: Vec<(String, String)>) -> (Sources, PathBuf) {
        (self.database.sources(env), self.to)
    }
}

#[derive(Args, Debug)]
pub struct PurgeFlags {
    /// Delete tasks that ended longer ago than this, such as 30d, 12h or 0s [default: from the settings]
    #[arg(long, value_name = "DURATION", value_parser = span)]
    older_than: Option<Span>,

    /// Only tasks that ended in this state; may be repeated
    #[arg(long, value_name = "STATE", value_parser = end_state)]
    state: Vec<TaskStatus>,

    /// Only tasks of this workflow; may be repeated
    #[arg(long, value_name = "NAME")]
    workflow: Vec<String>,

    /// Delete nothing, and print what would be deleted
    #[arg(long)]
    dry_run: bool,

    /// Afterwards return free space of an SQLite file to the disk; the service must be stopped
    #[arg(long, conflicts_with = "dry_run")]
    shrink: bool,

    #[command(flatten)]
    database: DatabaseFlags,
}

impl PurgeFlags {
    /// Returns the sources of the settings, and the tasks to delete.
    pub fn sources(self, env: Vec<(String, String)>) -> (Sources, PurgeOptions) {
        let options = PurgeOptions {
            older_than: self.older_than,
            states: self.state,
            workflows: self.workflow.into_iter().map(WorkflowName::new).collect(),
            dry_run: self.dry_run,
            shrink: self.shrink,
        };
        (self.database.sources(env), options)
    }
}

/// The ended tasks to delete.
#[derive(Clone, Debug)]
pub struct PurgeOptions {
    pub older_than: Option<Span>,
    /// The states of the tasks; empty: all.
    pub states: Vec<TaskStatus>,
    /// The workflows of the tasks; empty: all.
    pub workflows: Vec<WorkflowName>,
    pub dry_run: bool,
    pub shrink: bool,
}

fn span(text: &str) -> Result<Span, String> {
    Span::parse(text).ok_or_else(|| format!("not {SPAN_FORMS}"))
}

fn end_state(text: &str) -> Result<TaskStatus, String> {
    let mut ended = TaskStatus::ENDED.into_iter();
    ended.find(|state| state.as_str() == text).ok_or_else(|| {
        "not an end state: processed, undone or cancelled; tasks in other states are never deleted".to_owned()
    })
}

#[derive(Args, Debug)]
pub struct ServeFlags {
    #[command(flatten)]
    place: AddressFlags,

    /// Use this database [default: sqlite://provost.db]
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,

    /// The name of this instance in `locked_by` and logs [default: a new one at each start]
    #[arg(long, value_name = "NAME")]
    instance_id: Option<String>,

    /// Start without calling or delivering anything, until POST /v1/hold/release: for a restored backup
    #[arg(long)]
    hold: bool,

    /// Log level, or levels of modules as in warn,provost::scheduler=debug [default: info]
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,

    /// Log one JSON object per event
    #[arg(long)]
    log_json: bool,

    /// Let running calls continue for this long after SIGTERM [default: 20s]
    #[arg(long, value_name = "DURATION")]
    shutdown_grace: Option<String>,

    /// Listen where other machines can connect without a token
    #[arg(long)]
    insecure: bool,
}

impl AddressFlags {
    /// Returns the sources of the settings. The arguments are only parsed here; the configuration validates them and
    /// decides which source takes precedence.
    pub fn sources(self, env: Vec<(String, String)>) -> Sources {
        let mut sources = Sources {
            file: self.file.config,
            env,
            flags: Vec::new(),
        };
        set(&mut sources, "--listen", "listen", self.listen);
        sources
    }
}

impl ServeFlags {
    pub fn sources(self, env: Vec<(String, String)>) -> Sources {
        let mut sources = self.place.sources(env);
        let switch = |on: bool| on.then(|| "true".to_owned());
        set(
            &mut sources,
            "--database-url",
            "database_url",
            self.database_url,
        );
        set(
            &mut sources,
            "--instance-id",
            "instance_id",
            self.instance_id,
        );
        set(&mut sources, "--hold", "hold", switch(self.hold));
        set(&mut sources, "--log", "log", self.log);
        set(
            &mut sources,
            "--log-json",
            "log_json",
            switch(self.log_json),
        );
        set(
            &mut sources,
            "--shutdown-grace",
            "shutdown_grace",
            self.shutdown_grace,
        );
        set(
            &mut sources,
            "--insecure",
            "insecure",
            switch(self.insecure),
        );
        sources
    }
}

fn set(sources: &mut Sources, flag: &'static str, setting: &'static str, value: Option<String>) {
    sources.flags.extend(value.map(|value| FlagValue {
        flag,
        setting,
        value,
    }));
}

#[derive(Args, Debug)]
pub struct DemoOptions {
    /// Exit after the summary, with 0 only if every order ended as it should
    #[arg(long)]
    pub exit: bool,

    /// Serve the API here; port 0 chooses a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
}

#[derive(Args)]
pub struct BenchOptions {
    /// The server to measure [default: a server that the benchmark starts]
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,

    /// The PostgreSQL database of the servers that the benchmark starts, over TLS if its sslmode says so [default:
    /// a temporary SQLite file]
    #[arg(long, value_name = "URL", conflicts_with = "url")]
    pub database_url: Option<String>,

    /// Servers to start on one PostgreSQL; the load is spread evenly over them
    #[arg(long, value_name = "COUNT", default_value_t = 1, conflicts_with = "url", value_parser = value_parser!(u8).range(1..=16))]
    pub instances: u8,

    /// The address of the remote service; port 0 chooses a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub stub_listen: SocketAddr,

    /// Tasks to submit at full load in all rounds together; each task has three steps
    #[arg(long, value_name = "COUNT", default_value_t = 20_000, value_parser = value_parser!(u32).range(1..=10_000_000))]
    pub tasks: u32,

    /// The most tasks that run at once
    #[arg(long, value_name = "COUNT", default_value_t = 128, value_parser = value_parser!(u32).range(1..=10_000))]
    pub in_flight: u32,

    /// Rounds; each one measures first plain HTTP calls and then the server
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = value_parser!(u32).range(1..=100))]
    pub rounds: u32,

    /// Tasks to submit one after another, for the latency without load
    #[arg(long, value_name = "COUNT", default_value_t = 200, value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub at_rest: u32,

    /// Measure a server with this many steps in the queue of a dead agent, and one with an empty queue
    #[arg(long, value_name = "STEPS", conflicts_with_all = ["url", "instances"], value_parser = value_parser!(u32).range(1..=10_000_000))]
    pub backlog: Option<u32>,

    /// Measure tasks of up to 500 parallel steps with a join, 20 at once, and pipelines
    #[arg(long, conflicts_with_all = ["backlog", "history"])]
    pub fan_out: bool,

    /// Measure tasks whose steps this many workers fetch, and the same tasks with their steps called
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["backlog", "history", "fan_out"], value_parser = value_parser!(u32).range(1..=5_000))]
    pub workers: Option<u32>,

    /// Measure a server with this many ended tasks in its database, of three steps each, and one with an empty
    /// database; and the first page of every list with every filter and every two of them
    #[arg(long, value_name = "TASKS", conflicts_with_all = ["url", "instances"], value_parser = value_parser!(u32).range(1..=100_000_000))]
    pub history: Option<u32>,

    /// With --database-url: the database of the server with the backlog or the history
    #[arg(long, value_name = "URL", requires = "database_url")]
    pub backlog_database_url: Option<String>,

    /// A token of the server, if it requires one
    #[arg(
        long,
        value_name = "TOKEN",
        env = "PROVOST_BENCH_TOKEN",
        hide_env_values = true
    )]
    pub token: Option<String>,
}
