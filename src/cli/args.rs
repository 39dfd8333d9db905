//! The words of the command line and their help.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, value_parser};

use crate::{
    config::{FlagValue, Sources},
    domain::{SPAN_FORMS, Span, TaskStatus, WorkflowName},
};

/// Runs multi-step tasks across HTTP services, so that each succeeds as a whole or waits, with all
/// it has done so far on record, for someone who can fix it.
///
/// One process and one SQLite file; or many, which share a PostgreSQL database. A task is a list of HTTP calls; Provost makes them in order,
/// retries what fails for a moment, notices what never answers, and carries on after a crash from
/// the point it had reached.
#[derive(Parser)]
#[command(
    name = "provost",
    version,
    disable_help_subcommand = true,
    after_help = "\
New here? This shows everything at work, with three small services that it brings along:

  provost demo

Then start your own, and give it something to do:

  provost serve
  python3 -m http.server 9000 --bind 127.0.0.1
  curl -s http://127.0.0.1:8080/v1/tasks -H 'content-type: application/json' -d '{
    \"steps\": [{ \"name\": \"hello\", \"url\": \"http://127.0.0.1:9000\",
                 \"request\": { \"method\": \"GET\", \"path\": \"/\" } }] }'

The API with every field explained is at http://127.0.0.1:8080/docs while it runs."
)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Subcommand,
}

#[derive(clap::Subcommand)]
pub enum Subcommand {
    /// Start the service: API, scheduler and supervisor over one database
    #[command(after_help = "\
Everything works without a flag. Settings come from provost.toml, then from the environment, then
from flags; the later wins. Every setting has a variable: PROVOST_LISTEN, PROVOST_SUPERVISOR__INTERVAL
(two underscores between table and name). provost.toml.example explains them all.

Examples:
  provost serve
  provost serve --listen 127.0.0.1:9090 --database-url sqlite:///var/lib/provost/provost.db
  PROVOST_TOKENS=\"ci:submit:$(openssl rand -hex 32)\" provost serve --listen 0.0.0.0:8080 --log-json

SIGTERM or Ctrl-C stops it in order: running calls may finish, everything else is handed back.")]
    Serve(ServeFlags),

    /// Watch twenty orders succeed, recover, and fail, with services that this command brings along
    #[command(after_help = "\
Uses a database of its own that is gone afterwards, and needs no network.

Examples:
  provost demo
  provost demo --exit && echo 'every order ended as it should'")]
    Demo(DemoOptions),

    /// Measure a server: tasks per second, latency, CPU and memory, beside the raw ceiling
    #[command(after_help = "\
Without --url it starts a server of its own: this program, default settings, a database that is gone
afterwards. The remote service is brought along too, and answers at once.

With --database-url the servers that are started use that PostgreSQL, which should be one of its own: what
else it does is measured too. With --instances there are several, and the report says how they shared the
work.

A server that is given with --url must be allowed to call the remote service: a server that listens on
loopback is. A server or a database that is given gets an agent and a workflow named `bench`; the agent
is removed afterwards, the workflow and the tasks stay.

With --backlog two servers are measured in turns: one with so many steps in the queue of an agent whose
service never answers, and one whose queue is empty. It shows submissions, reads, lists and the tasks of
another agent on both, and the ratio of the two, which should be near 1; and the memory.

Examples:
  provost bench
  provost bench --backlog 200000 --tasks 6000
  provost bench --tasks 100000 --in-flight 256
  provost bench --database-url postgres://provost@db.example/bench --instances 4
  PROVOST_BENCH_TOKEN=… provost bench --url http://127.0.0.1:8080")]
    Bench(BenchOptions),

    /// Print the OpenAPI 3.1 document of the API
    #[command(after_help = "\
Example:
  provost openapi > openapi.json")]
    Openapi,

    /// Check the settings that `serve` would start with, and print each with where it comes from
    #[command(after_help = "\
Secrets are not shown. Ends with 2 and says why when `serve` would not start.

Examples:
  provost check-config
  provost check-config --config /etc/provost/provost.toml")]
    CheckConfig(ServeFlags),

    /// Bring the schema of the database up to date, and say what that meant
    #[command(after_help = "\
`serve` does this by itself at its start, unless postgres.migrate is false. Run it as a user that may change
the schema. Several at once do no harm. It does not wait for a database that cannot be reached.

Examples:
  provost migrate
  provost migrate --database-url postgres://owner@db.example/provost")]
    Migrate(DatabaseFlags),
    /// Copy the database to a new file, while the service goes on
    #[command(after_help = "\
For SQLite. The copy is one moment of the record, complete, and on the disk when this ends with 0. It finds
the database by the same settings as `serve`, and must be run by a user who may read and write there. To
restore, stop the service and put the copy in the place of the database: docs/deploy.md goes through it.

Examples:
  provost backup --to /backup/provost-$(date +%F).db
  provost backup --to copy.db --database-url sqlite:///var/lib/provost/provost.db")]
    Backup(BackupFlags),

    /// Delete tasks that ended long ago, whether the service runs or not
    #[command(after_help = "\
The service does this by itself ([retention] in provost.toml); this does it now, or for a service that is
stopped. Deleted are tasks that ended, with their history; what may still go on is never deleted. Without
--older-than the settings decide. A workflow with a rule of its own in the settings is kept for that long all the
same, unless --workflow names it. While a service uses the database, it goes slowly, so that others hardly notice.

An SQLite file does not get smaller by itself at once: a running service gives free space back over time, and
--shrink writes the file anew, for which the service must be stopped.

Examples:
  provost purge --older-than 30d --dry-run
  provost purge --older-than 7d --state processed
  provost purge --older-than 0s --workflow import-test
  provost purge --shrink")]
    Purge(PurgeFlags),

    /// Ask the server on this machine whether it is ready; ends with 0 if it is, 1 if not
    #[command(after_help = "\
Finds the server by the same settings as `serve`. Meant for containers, which have no curl.

Example, in a Dockerfile:
  HEALTHCHECK CMD [\"provost\", \"healthcheck\"]")]
    Healthcheck(PlaceFlags),
}

#[derive(Args, Debug)]
struct FileFlag {
    /// Read settings from this file, which must exist [default: provost.toml, where it exists]
    #[arg(
        long,
        value_name = "PATH",
        env = "PROVOST_CONFIG",
        hide_env_values = true
    )]
    config: Option<PathBuf>,
}

/// Where the settings are, and the address among them.
#[derive(Args, Debug)]
pub struct PlaceFlags {
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

    /// The database [default: the one of the settings]
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
pub struct BackupFlags {
    /// Write this file, which must not be there yet
    #[arg(long, value_name = "FILE")]
    to: PathBuf,

    #[command(flatten)]
    database: DatabaseFlags,
}

impl BackupFlags {
    /// Where the settings come from, and the file to write.
    pub fn sources(self, env: Vec<(String, String)>) -> (Sources, PathBuf) {
        (self.database.sources(env), self.to)
    }
}

#[derive(Args, Debug)]
pub struct PurgeFlags {
    /// Delete what ended longer ago than this, such as 30d, 12h or 0s [default: as the settings say]
    #[arg(long, value_name = "DURATION", value_parser = span)]
    older_than: Option<Span>,

    /// Only tasks that ended so; may be given several times
    #[arg(long, value_name = "STATE", value_parser = end_state)]
    state: Vec<TaskStatus>,

    /// Only tasks of this workflow; may be given several times
    #[arg(long, value_name = "NAME")]
    workflow: Vec<String>,

    /// Delete nothing, and say what would be deleted
    #[arg(long)]
    dry_run: bool,

    /// Afterwards, give the space that is free in an SQLite file back; the service must be stopped
    #[arg(long, conflicts_with = "dry_run")]
    shrink: bool,

    #[command(flatten)]
    database: DatabaseFlags,
}

impl PurgeFlags {
    /// Where the settings come from, and what is asked for.
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

/// Which ended tasks to delete.
#[derive(Clone, Debug)]
pub struct PurgeOptions {
    pub older_than: Option<Span>,
    /// Empty: all.
    pub states: Vec<TaskStatus>,
    /// Empty: all.
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
    place: PlaceFlags,

    /// Keep tasks in this database [default: sqlite://provost.db]
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,

    /// The name of this instance in `locked_by` and logs [default: a new one at each start]
    #[arg(long, value_name = "NAME")]
    instance_id: Option<String>,

    /// Start without calling or delivering anything, until POST /v1/hold/release: for a restored copy
    #[arg(long)]
    hold: bool,

    /// Log this much: a level, or levels for modules as in warn,provost::scheduler=debug [default: info]
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,

    /// Log one JSON object for each event, for machines to read
    #[arg(long)]
    log_json: bool,

    /// Let running calls go on for this long after SIGTERM [default: 20s]
    #[arg(long, value_name = "DURATION")]
    shutdown_grace: Option<String>,

    /// Listen where other machines can reach it without asking anyone for a token
    #[arg(long)]
    insecure: bool,
}

impl PlaceFlags {
    /// What is checked, and what wins, is up to the configuration: here nothing is.
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
    /// End after the summary, with 0 only if every order ended as it should
    #[arg(long)]
    pub exit: bool,

    /// Serve the API here; port 0 takes any that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
}

#[derive(Args)]
pub struct BenchOptions {
    /// The server to measure [default: one that is started for the bench]
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,

    /// The database of the servers that are started: PostgreSQL, over TLS where its sslmode says so [default: an SQLite file that is gone afterwards]
    #[arg(long, value_name = "URL", conflicts_with = "url")]
    pub database_url: Option<String>,

    /// Servers to start on one PostgreSQL; the load goes to all alike
    #[arg(long, value_name = "COUNT", default_value_t = 1, conflicts_with = "url", value_parser = value_parser!(u8).range(1..=16))]
    pub instances: u8,

    /// The remote service answers here; port 0 takes any that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub stub_listen: SocketAddr,

    /// Tasks to submit at full load in all rounds together, each of three steps
    #[arg(long, value_name = "COUNT", default_value_t = 20_000, value_parser = value_parser!(u32).range(1..=10_000_000))]
    pub tasks: u32,

    /// Tasks that are under way at once
    #[arg(long, value_name = "COUNT", default_value_t = 128, value_parser = value_parser!(u32).range(1..=10_000))]
    pub in_flight: u32,

    /// Turns in which the raw ceiling and the server are measured, one after the other
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = value_parser!(u32).range(1..=100))]
    pub rounds: u32,

    /// Tasks to submit one after another, for the latency at rest
    #[arg(long, value_name = "COUNT", default_value_t = 200, value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub at_rest: u32,

    /// Measure a server with so many steps in the queue of an agent that is dead, beside one with none
    #[arg(long, value_name = "STEPS", conflicts_with_all = ["url", "instances"], value_parser = value_parser!(u32).range(1..=10_000_000))]
    pub backlog: Option<u32>,

    /// With --database-url: the database of the server with the backlog
    #[arg(long, value_name = "URL", requires = "backlog")]
    pub backlog_database_url: Option<String>,

    /// A token of the server, if it asks for one
    #[arg(
        long,
        value_name = "TOKEN",
        env = "PROVOST_BENCH_TOKEN",
        hide_env_values = true
    )]
    pub token: Option<String>,
}
