//! `provost demo`: the main job on realistic input, for a new user. Provost and three remote services run in this
//! process, each on its own socket, and use HTTP; the demo itself uses only the public API.

mod api;
mod board;
mod ejection_watch;
mod orders;
mod remote;
mod screen;
mod story;
mod summary;
mod verdict;
mod width;

use std::{io, process::ExitCode, time::Duration};

use serde_json::{Value, json};
use thiserror::Error;
use tracing_subscriber::filter::{LevelFilter, Targets};

use self::{
    api::{Api, ApiError, TaskJson},
    board::BoardRow,
    ejection_watch::EjectionWatch,
    orders::{Order, OrderEnd, Remote},
    remote::{Door, RunningService},
    screen::Screen,
    summary::ObservedOrder,
};
use crate::{
    cli::{DemoOptions, MISUSE},
    clock::{self, MissedTickBehavior},
    config::{Config, DatabaseUrl, Listen},
    domain::values::Span,
    interrupt, plain_http,
    service::{Service, StartError},
    telemetry::{self, Metrics, TelemetryError},
};

/// The interval of reading the orders, and of submissions.
const READ_EVERY: Duration = Duration::from_millis(100);
/// The time for which the endpoint that is sick at first gets no calls.
const EJECTED_FOR: &str = "2s";
/// The time by which every order has ended or waits for an operator.
const LONGEST: Duration = Duration::from_secs(60);

#[derive(Debug, Error)]
enum DemoError {
    #[error(
        "cannot create a folder for the database: {0}; set TMPDIR to a folder that is writable"
    )]
    Folder(io::Error),
    #[error("cannot start a remote service: {0}")]
    Remote(io::Error),
    #[error("{0}")]
    Start(#[from] StartError),
    #[error("{0}")]
    Telemetry(#[from] TelemetryError),
    #[error("cannot create the HTTP client: {0}")]
    Client(#[from] reqwest::Error),
    #[error("{0}")]
    Api(#[from] ApiError),
}

/// Runs until Ctrl-C, or with `--exit` until the summary, and succeeds only if every order ended as it should.
pub async fn run(options: DemoOptions) -> ExitCode {
    if !options.listen.ip().is_loopback() {
        eprintln!(
            "provost: --listen: other machines can reach {}, and the demo requires no token; choose a loopback address, such as 127.0.0.1:8080",
            options.listen
        );
        return ExitCode::from(MISUSE);
    }
    match demo(&options).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("provost: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn demo(options: &DemoOptions) -> Result<bool, DemoError> {
    // Less severe log lines are part of the demo, and would disturb the display.
    let _log = telemetry::start_logging(&Targets::new().with_default(LevelFilter::ERROR), false)?;
    let folder = tempfile::Builder::new().prefix("provost-demo-").tempdir();
    let folder = folder.map_err(DemoError::Folder)?;
    let config = Config {
        listen: Listen::Tcp(options.listen),
        database_url: DatabaseUrl::sqlite(folder.path().join("provost.db")),
        // No call is worth a longer wait.
        shutdown_grace: Span::from_secs(1),
        ..Config::default()
    };
    let orders = orders::all();
    let mut remotes = Vec::new();
    for remote in Remote::ALL {
        let running = remote::start(remote, &orders).await;
        remotes.push(running.map_err(DemoError::Remote)?);
    }
    let service = Service::start(config, Metrics::install()?).await?;
    let api = Api::new(plain_http::client()?, format!("http://{}", service.address));
    let shown = tokio::select! {
        shown = show(&api, &orders, &remotes, options.exit) => shown,
        // An interrupted demo has no result.
        () = interrupt::wait() => Ok(!options.exit),
    };
    service.stop().await;
    drop(folder);
    shown
}

async fn show(
    api: &Api,
    orders: &[Order],
    remotes: &[RunningService],
    exit: bool,
) -> Result<bool, DemoError> {
    let columns = width::columns();
    println!("Open {}/console to watch it.\n", api.base());
    let intro = format!(
        "Provost is at {} with a temporary database. It calls three services:",
        api.base()
    );
    println!("{}", width::wrapped(&intro, 0, 0, columns));
    for running in remotes {
        let (agent, path) = (running.remote.agent(), running.remote.path());
        println!("  {agent:<9}  http://{}{path}", running.address);
        if let Some(sick) = running.sick_door() {
            println!("  {:<9}  http://{}{path}, sick at first", "", sick.address);
        }
        api.put(&format!("/v1/agents/{agent}"), &agent_spec(running))
            .await?;
    }
    api.put("/v1/workflows/order", &orders::workflow()).await?;
    let plan =
        "Twenty orders, each with three steps: reserve, charge, ship. Shipping replies later.";
    println!("{}\n", width::wrapped(plan, 0, 0, columns));

    let mut screen = Screen::new();
    let mut ejections = EjectionWatch::default();
    let rows = follow(api, orders, remotes, &mut screen, &mut ejections).await?;
    let mut seen = Vec::new();
    for (order, row) in orders.iter().zip(rows) {
        let task = match row.task {
            Some(task) => {
                let history = api.history(&task.id).await?;
                Some((task, history))
            }
            None => None,
        };
        let order = order.clone();
        seen.push(ObservedOrder { order, task });
    }
    let columns = width::columns();
    println!("\n{}", summary::orders(&seen, screen.paint, columns));
    println!("{}", summary::services(remotes, &ejections, columns));
    let well = judge(&seen, remotes, &ejections, &screen);
    let declined = seen
        .iter()
        .find(|seen| seen.order.ending() == OrderEnd::Declined);
    let payments = remotes
        .iter()
        .find(|running| running.remote == Remote::Payments);
    if let (
        Some(ObservedOrder {
            order,
            task: Some((task, _)),
        }),
        Some(payments),
    ) = (declined, payments)
    {
        println!(
            "{}",
            summary::operator(api.base(), payments, order, task, columns)
        );
        if exit {
            println!("--exit has stopped everything: omit it to try these commands.");
        } else {
            println!(
                "Provost keeps running until Ctrl-C; {}/docs documents the API",
                api.base()
            );
            watch(api, order, task, remotes).await?;
        }
    }
    if !exit {
        std::future::pending::<()>().await;
    }
    Ok(well)
}

/// Returns an agent with one endpoint for each address. With two, one that fails several times in a row gets no calls
/// for a while.
fn agent_spec(running: &RunningService) -> Value {
    let urls = running.doors.iter();
    let urls = urls.map(|door| json!({ "url": format!("http://{}", door.address) }));
    let mut spec = json!({ "endpoints": urls.collect::<Vec<_>>() });
    if running.doors.len() > 1 {
        let after = Door::LEAST_REFUSED;
        spec["ejection"] = json!({ "after": after, "for": EJECTED_FOR, "max": EJECTED_FOR });
    }
    spec
}

/// Submits one order after another and displays all of them until each has ended or waits for an operator.
async fn follow(
    api: &Api,
    orders: &[Order],
    remotes: &[RunningService],
    screen: &mut Screen,
    ejections: &mut EjectionWatch,
) -> Result<Vec<BoardRow>, DemoError> {
    let mut rows: Vec<BoardRow> = orders
        .iter()
        .map(|order| BoardRow {
            key: order.key(),
            task: None,
        })
        .collect();
    let mut ticks = clock::interval(READ_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let started = clock::instant();
    while started.elapsed() < LONGEST {
        ticks.tick().await;
        let mut under_way = 0;
        for task in rows.iter_mut().filter_map(|row| row.task.as_mut()) {
            if !task.is_at_rest() {
                *task = api.task(&task.id).await?;
            }
            under_way += usize::from(!task.is_at_rest());
        }
        let next = orders
            .iter()
            .zip(&mut rows)
            .find(|(_, row)| row.task.is_none());
        let all_submitted = next.is_none();
        if let Some((order, row)) = next {
            row.task = Some(api.submit(&order.submission()).await?);
        }
        look_at_endpoints(api, remotes, ejections).await?;
        screen.show(&rows);
        if all_submitted && under_way == 0 {
            break;
        }
    }
    Ok(rows)
}

/// Observes whether the sick endpoint is ejected, and whether it is called while it is.
async fn look_at_endpoints(
    api: &Api,
    remotes: &[RunningService],
    ejections: &mut EjectionWatch,
) -> Result<(), DemoError> {
    for running in remotes {
        let Some(sick) = running.sick_door() else {
            continue;
        };
        let counts = sick.door.counts();
        let agent = api.agent(running.remote.agent()).await?;
        let url = format!("http://{}", sick.address);
        if let Some(endpoint) = agent.endpoints.iter().find(|known| known.url == url) {
            ejections.record(endpoint, counts);
        }
    }
    Ok(())
}

/// Reports whether every order ended as it should, and the sick endpoint got no calls while it was ejected.
fn judge(
    seen: &[ObservedOrder],
    remotes: &[RunningService],
    ejections: &EjectionWatch,
    screen: &Screen,
) -> bool {
    let mut well = true;
    for ObservedOrder { order, task } in seen {
        let key = order.key();
        let task = task.as_ref().map(|(task, _)| task);
        let effects = |remote: Remote| {
            let at = remotes.iter().filter(|running| running.remote == remote);
            at.map(|running| running.ledger().effects_for(&key)).sum()
        };
        for fault in verdict::faults(order, task, effects) {
            well = false;
            println!("{}", screen.paint.bad(&format!("  {key} {fault}")));
        }
    }
    for sick in remotes.iter().filter_map(RunningService::sick_door) {
        for fault in ejections.faults(sick.door.counts(), Door::LEAST_REFUSED) {
            well = false;
            let line = format!("  the endpoint http://{} {fault}", sick.address);
            println!("{}", screen.paint.bad(&line));
        }
    }
    if well {
        println!("Every order ended as it should, and no service did its work twice.\n");
    } else {
        println!("\nThat is not the expected result: please report it.\n");
    }
    well
}

/// Waits until the operator has completed the order, and reports it.
async fn watch(
    api: &Api,
    order: &Order,
    task: &TaskJson,
    remotes: &[RunningService],
) -> Result<(), DemoError> {
    let key = order.key();
    let mut state = task.state.clone();
    while !matches!(state.as_str(), "processed" | "cancelled") {
        clock::sleep(READ_EVERY).await;
        let task = api.task(&task.id).await?;
        if task.state != state {
            state = task.state;
            println!("{key} is {state} now");
        }
    }
    for running in remotes {
        let (agent, what) = (running.remote.agent(), running.remote.effects());
        let done = running.ledger().effects_for(&key);
        println!("  {agent:<9}  {what} for {key}: {done}");
    }
    Ok(())
}
