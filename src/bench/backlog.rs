//! `--backlog` and `--history`: measures a server with a queue of the given length, or with a history, and one without,
//! in turns.

use std::net::TcpListener;

use reqwest::Client;
use serde_json::{Value, json};

use super::{
    BenchError,
    backlog_report::{BacklogReport, MeasuredPair, Memory, Side},
    history,
    load::{self, Amount},
    pages,
    requests::{self, AGENT, Requests, WORKFLOW},
    server::BenchServers,
    stub,
};
use crate::{cli::BenchOptions, config::DatabaseUrl};

/// The agent whose service accepts a call and never responds.
const DEAD: &str = "bench-dead";
/// A workflow with one step of that agent.
const QUEUED: &str = "bench-queued";
/// The most steps that a task may have.
const MANY_STEPS: usize = 500;
/// The number of submissions for each task that is processed: they take about as long. The surplus is removed at
/// once.
const SUBMISSIONS: u32 = 4;

/// The two servers, and the socket of the dead service.
struct Sides {
    empty: BenchServers,
    full: BenchServers,
    /// The socket of the dead service: the kernel completes its connections, and no program accepts them.
    _dead: TcpListener,
}

pub(super) async fn measure(
    options: &BenchOptions,
    client: &Client,
) -> Result<BacklogReport, BenchError> {
    let mut sides = start(options, client).await?;
    println!(
        "{} steps in the queue of a dead agent, {} tasks in the history; {}, compared with one without; {} rounds",
        options.backlog.unwrap_or(0),
        options.history.unwrap_or(0),
        sides.full.introduction(),
        options.rounds
    );
    if cfg!(debug_assertions) {
        println!("this is a debug build, whose speed means nothing: use `cargo run --release`");
    }
    println!();
    let report = turns(options, &mut sides).await;
    for servers in [sides.empty, sides.full] {
        let agents = [AGENT, DEAD].map(|agent| format!("/v1/agents/{agent}"));
        if let Err(error) = servers.clear(&agents).await {
            eprintln!("provost: the cleanup is incomplete: {error}");
        }
    }
    report
}

async fn start(options: &BenchOptions, client: &Client) -> Result<Sides, BenchError> {
    let read = |url: &Option<String>| {
        let url = url.as_deref().map(str::parse::<DatabaseUrl>);
        url.transpose().map_err(|()| BenchError::NotPostgres)
    };
    let database = read(&options.database_url)?;
    let of_backlog = read(&options.backlog_database_url)?;
    if database.is_some() != of_backlog.is_some() {
        return Err(BenchError::OneDatabase);
    }
    let live = stub::start(options.stub_listen).await;
    let live = format!("http://{}", live.map_err(BenchError::Stub)?);
    let listener = TcpListener::bind((options.stub_listen.ip(), 0)).map_err(BenchError::Stub)?;
    let dead = listener.local_addr().map_err(BenchError::Stub)?;
    let sides = Sides {
        empty: BenchServers::start(1, database.as_ref(), client).await?,
        full: BenchServers::start(1, of_backlog.as_ref(), client).await?,
        _dead: listener,
    };
    for servers in [&sides.empty, &sides.full] {
        let agent = |url: &str, places: u32| json!({ "endpoints": [{ "url": url, "max_in_flight": places }] });
        let live = agent(&live, 1024);
        let dead = agent(&format!("http://{dead}"), 1);
        servers.put(&format!("/v1/agents/{AGENT}"), &live).await?;
        servers.put(&format!("/v1/agents/{DEAD}"), &dead).await?;
        let workflow = requests::workflow();
        servers
            .put(&format!("/v1/workflows/{WORKFLOW}"), &workflow)
            .await?;
        let queued = json!({ "steps": [{ "name": "only", "agent": DEAD }] });
        servers
            .put(&format!("/v1/workflows/{QUEUED}"), &queued)
            .await?;
    }
    Ok(sides)
}

async fn turns(options: &BenchOptions, sides: &mut Sides) -> Result<BacklogReport, BenchError> {
    let made = match options.history {
        Some(tasks) => Some(history::make(&mut sides.full, tasks.into(), QUEUED).await?),
        None => None,
    };
    let of = |servers: &BenchServers| servers.requests();
    let (empty, full) = (of(&sides.empty), of(&sides.full));
    let mut memory = Memory {
        before: sides.full.usage().await?,
        ..Memory::default()
    };
    let loaded = |tasks: u32| Amount {
        tasks: tasks.max(1),
        in_flight: options.in_flight,
    };
    // This step occupies the only slot of the dead agent, so that the others wait.
    for requests in [&empty, &full] {
        submit_and_forget(requests, 1).await?;
    }
    submit_and_forget(&full, options.backlog.unwrap_or(0)).await?;
    memory.with_backlog = sides.full.usage().await?;
    let share = loaded(options.tasks.div_ceil(options.rounds));
    let warm_up = loaded(options.tasks / 20);
    for requests in [&empty, &full] {
        load::end_to_end(requests, warm_up).await?;
        turn(requests, warm_up, options.at_rest.min(20)).await?;
    }
    let mut turns = Vec::new();
    for _ in 0..options.rounds {
        let empty = turn(&empty, share, options.at_rest).await?;
        let full = turn(&full, share, options.at_rest).await?;
        turns.push(MeasuredPair { empty, full });
    }
    let pages = match &made {
        Some(history) => pages::measure(&full[0], history).await?,
        None => Vec::new(),
    };
    memory.after = sides.full.usage().await?;
    memory.of_empty = sides.empty.usage().await?;
    Ok(BacklogReport {
        turns,
        pages,
        memory,
    })
}

async fn submit_and_forget(requests: &[Requests], tasks: u32) -> Result<(), BenchError> {
    let body = queued();
    let amount = Amount {
        tasks,
        in_flight: 64,
    };
    load::queued(requests, &body, amount).await.map(drop)
}

fn queued() -> String {
    json!({ "workflow": QUEUED }).to_string()
}

/// Makes all measurements of one server. The tasks that it submits are removed afterwards, so the queue keeps its
/// length.
async fn turn(requests: &[Requests], share: Amount, at_rest: u32) -> Result<Side, BenchError> {
    let alone = |tasks: u32| Amount {
        tasks: tasks.max(1),
        in_flight: 1,
    };
    let first = &requests[0];
    let of_queue = Amount {
        tasks: share.tasks.saturating_mul(SUBMISSIONS),
        ..share
    };
    let (submissions, mut ids) = load::queued(requests, &queued(), of_queue).await?;
    let surplus = ids.split_off(ids.len().min(share.tasks as usize));
    load::cancel(first, surplus).await?;
    let newest = ids.iter().max().cloned().unwrap_or_default();
    let read = first.get(&format!("/v1/tasks/{newest}"));
    let reads = load::reads(first, &read, alone(at_rest)).await?;
    let (_, of_many) = load::queued(requests, &many_steps().to_string(), alone(1)).await?;
    let many = of_many.first().cloned().unwrap_or_default();
    let read = first.get(&format!("/v1/tasks/{many}"));
    let reads_of_many_steps = load::reads(first, &read, alone(at_rest / 4)).await?;
    let list = first.get("/v1/tasks?state=pending&limit=50");
    let lists = load::reads(first, &list, alone(at_rest)).await?;
    let others = load::end_to_end(requests, share).await?;
    ids.extend(of_many);
    load::cancel(first, ids).await?;
    Ok(Side {
        submissions,
        reads: reads.latencies,
        reads_of_many_steps: reads_of_many_steps.latencies,
        lists: lists.latencies,
        others,
    })
}

fn many_steps() -> Value {
    let steps = (0..MANY_STEPS)
        .map(|number| json!({ "name": format!("step-{number}"), "agent": DEAD, "after": [] }));
    json!({ "steps": steps.collect::<Vec<_>>() })
}
