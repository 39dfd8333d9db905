//! `provost bench`: measures the throughput and the cost of a server over HTTP, compared with plain HTTP calls on the
//! same machine. It does not depend on the server's internals, except that it uses the store to multiply a history.

mod backlog;
mod backlog_report;
mod connection;
mod fan_out;
mod fetched;
mod frame;
mod history;
mod latency;
mod load;
mod pages;
mod report;
mod requests;
mod server;
mod stub;

use std::{io, process::ExitCode, time::Duration};

use reqwest::{Client, StatusCode, Url};
use serde_json::json;
use thiserror::Error;

use self::{
    connection::ExchangeError,
    load::Amount,
    report::{Report, Round},
    requests::{AGENT, Requests, WORKFLOW},
    server::BenchServers,
};
use crate::{cli::BenchOptions, config::DatabaseUrl, interrupt, plain_http, store::StoreError};

#[derive(Debug, Error)]
pub enum BenchError {
    #[error("--url: {0:?} is not the URL of a server, such as \"http://127.0.0.1:8080\"")]
    Url(String),
    #[error(
        "--instances: several servers need a shared database: give one with --database-url postgres://…"
    )]
    NotShared,
    // The text is not repeated: it may contain a password.
    #[error(
        "--database-url: not the URL of a PostgreSQL database, such as \"postgres://user@host/name\"; omit it to measure SQLite, in a temporary file"
    )]
    NotPostgres,
    #[error(
        "--backlog and --history on PostgreSQL need two databases of their own: give one with --database-url and another with --backlog-database-url"
    )]
    OneDatabase,
    #[error("--stub-listen: the remote service cannot listen there: {0}")]
    Stub(io::Error),
    #[error(
        "cannot create a folder for the database: {0}; set TMPDIR to a folder that is writable"
    )]
    Folder(io::Error),
    #[error("cannot start or stop the server: {0}")]
    Process(io::Error),
    #[error("the server did not become ready; its log:\n{0}")]
    NotReady(String),
    #[error("the server refused {request} with {status}: {text}")]
    Refused {
        request: String,
        status: StatusCode,
        text: String,
    },
    #[error("{} did not respond: {}", .0.url().map_or("a server", Url::as_str), plain_http::cause(.0))]
    Http(#[from] reqwest::Error),
    #[error("{0}")]
    Exchange(#[from] ExchangeError),
    #[error("the history could not be made: {0}")]
    History(#[from] StoreError),
    #[error("a task was not processed within 30s: {0}")]
    NotProcessed(String),
    #[error("the server gave out work that cannot be read: {0}")]
    Work(String),
    #[error("a worker ended early: {0}")]
    Worker(#[from] tokio::task::JoinError),
    #[error("a phase took longer than {0:?}: use fewer tasks")]
    TooSlow(Duration),
}

/// Runs the benchmark and prints the report. Fails if any task did not end processed.
pub async fn run(options: BenchOptions) -> ExitCode {
    let measured = tokio::select! {
        measured = measure_as_asked(options) => measured,
        () = interrupt::wait() => {
            eprintln!("provost: interrupted, nothing was measured");
            return ExitCode::FAILURE;
        }
    };
    match measured {
        Ok(report) => {
            print!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("provost: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Makes the measurements that the options ask for, and returns the text of the report.
async fn measure_as_asked(options: BenchOptions) -> Result<String, BenchError> {
    let client = plain_http::client()?;
    match options.backlog.is_some() || options.history.is_some() {
        true => Ok(backlog::measure(&options, &client).await?.text()),
        false => measure(options, client).await,
    }
}

async fn measure(options: BenchOptions, client: Client) -> Result<String, BenchError> {
    let stub = stub::start(options.stub_listen).await;
    let stub = format!("http://{}", stub.map_err(BenchError::Stub)?);
    let servers = match &options.url {
        Some(url) => BenchServers::at(url, options.token.clone(), client.clone())?,
        None => {
            let database = options
                .database_url
                .as_deref()
                .map(str::parse::<DatabaseUrl>);
            let database = database.transpose().map_err(|()| BenchError::NotPostgres)?;
            BenchServers::start(options.instances, database.as_ref(), &client).await?
        }
    };
    introduce(&options, &servers);
    let agent = format!("/v1/agents/{AGENT}");
    let spec = json!({ "endpoints": [{ "url": stub, "max_in_flight": 1024 }] });
    servers.put(&agent, &spec).await?;
    let workflow = format!("/v1/workflows/{WORKFLOW}");
    servers.put(&workflow, &requests::workflow()).await?;
    let stub = Url::parse(&stub).map_err(|_| BenchError::Url(stub))?;
    let mut agents = vec![agent];
    let report = match options.workers {
        Some(workers) => {
            agents.push(format!("/v1/agents/{}", fetched::FETCHED));
            fetched::measure(&options, workers, &servers).await
        }
        None if options.fan_out => fan_out::measure(&options, &servers).await,
        None => phases(&options, &servers, &client, &stub)
            .await
            .map(|report| report.text()),
    };
    let cleared = servers.clear(&agents).await;
    // The measurements are valid, also if the cleanup fails.
    if let Err(error) = cleared {
        eprintln!("provost: the cleanup is incomplete: {error}");
    }
    report
}

fn introduce(options: &BenchOptions, servers: &BenchServers) {
    println!(
        "{} tasks of three steps in {} rounds, {} in flight",
        options.tasks, options.rounds, options.in_flight
    );
    println!("{}", servers.introduction());
    if cfg!(debug_assertions) {
        println!("this is a debug build, whose speed means nothing: use `cargo run --release`");
    }
    println!();
}

/// Makes all measurements, in turns short enough that both of a pair see the same conditions.
async fn phases(
    options: &BenchOptions,
    servers: &BenchServers,
    client: &Client,
    stub: &Url,
) -> Result<Report, BenchError> {
    let requests: Vec<Requests> = servers.requests();
    let loaded = |tasks: u32| Amount {
        tasks: tasks.max(1),
        in_flight: options.in_flight,
    };
    let at_rest = Amount {
        tasks: options.at_rest,
        in_flight: 1,
    };
    let before = servers.usage().await?;
    // This warms up connections, caches and the database's first pages, which are not to be measured.
    let warm_up = loaded(options.tasks / 20);
    load::raw(client, stub, warm_up).await?;
    let mut tasks = load::end_to_end(&requests, warm_up)
        .await?
        .latencies
        .count();

    let submit_at_rest = load::submissions(&requests, at_rest).await?.latencies;
    let whole_at_rest = load::end_to_end(&requests, at_rest).await?.latencies;
    tasks += submit_at_rest.count() + whole_at_rest.count();

    let share = loaded(options.tasks.div_ceil(options.rounds));
    let mut rounds = Vec::new();
    for _ in 0..options.rounds {
        let raw = load::raw(client, stub, share).await?;
        let used = servers.usage().await?;
        let done = load::end_to_end(&requests, share).await?;
        let using = servers.usage().await?;
        tasks += done.latencies.count();
        rounds.push(Round {
            raw,
            tasks: done,
            cpu_seconds: server::cpu_seconds(&used, &using),
        });
    }
    let submit_loaded = load::submissions(&requests, loaded(options.tasks / 10)).await?;
    tasks += submit_loaded.latencies.count();
    Ok(Report {
        rounds,
        submit_loaded: submit_loaded.latencies,
        submit_at_rest,
        whole_at_rest,
        before,
        after: servers.usage().await?,
        tasks,
    })
}
