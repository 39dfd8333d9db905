//! The tests: some seeds each time, and as many as are wanted. Each seed has a process of its own, so that it does the same
//! whatever ran before it: `tokio::select!` draws the branch that it polls first by a count of the runtimes of the process.
//!
//!     PROVOST_TEST_SEED=…              the first seed
//!     PROVOST_SIMULATION_SEEDS=…       the number of seeds
//!     PROVOST_SIMULATION_PROCESSES=…   the number of seeds that run at once
//!     PROVOST_SIMULATION_EVENTS=yes    prints the events of each seed
//!     PROVOST_SIMULATION_STOPS=yes     ends with the first seed that finds something
//!     PROVOST_SIMULATION_WITHOUT=…     leaves out these kinds of faults: Crash,Pause
//!     PROVOST_SIMULATION_ONLY=…        leaves out all other kinds
//!     PROVOST_SIMULATION_TASKS=…       the number of tasks that are submitted in each seed
//!     PROVOST_SIMULATION_LOG=…         shows the log of the instances at this level

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{Read, Seek},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    event_log::ShownHash,
    plan::{Hazard, KINDS, Plan, Restriction},
    run::{DatabaseTemplate, SimulationResult, run},
};
use crate::clock;

/// The test that a process of one seed runs.
const ONE_SEED: &str = "simulation::seeds::the_seed_of_this_process";
/// The longest time that a seed may take. Each takes some seconds, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The seeds that every run of the tests simulates.
const SEEDS: u64 = 30;
/// Every so many seeds one is run twice, to see that it does the same again.
const RUN_AGAIN: u64 = 100;

fn of_environment(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().expect("a number"))
}

/// Returns what the environment leaves out of the plans.
fn restriction() -> Restriction {
    let named = |variable| {
        let names: Vec<_> = std::env::var(variable)
            .ok()?
            .split(',')
            .map(str::to_owned)
            .collect();
        Some(move |kind: &Hazard| names.contains(&format!("{kind:?}")))
    };
    let mut without = BTreeSet::new();
    if let Some(is_named) = named("PROVOST_SIMULATION_WITHOUT") {
        without.extend(KINDS.into_iter().filter(is_named));
    }
    if let Some(is_named) = named("PROVOST_SIMULATION_ONLY") {
        without.extend(KINDS.into_iter().filter(|kind| !is_named(kind)));
    }
    let tasks = of_environment("PROVOST_SIMULATION_TASKS");
    Restriction {
        without,
        tasks: tasks.map(|tasks| u32::try_from(tasks).expect("some tasks")),
    }
}

/// Shows the log of the instances, if the environment says at which level.
fn log() {
    if let Ok(level) = std::env::var("PROVOST_SIMULATION_LOG") {
        let level: tracing::Level = level.parse().expect("a level");
        let _ = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_test_writer()
            .try_init();
    }
}

fn print(plan: &Plan, result: &SimulationResult) {
    let seed = plan.seed;
    if std::env::var_os("PROVOST_SIMULATION_EVENTS").is_some() {
        result.events.iter().for_each(|event| println!("{event}"));
    }
    if !result.findings.is_empty() {
        println!("scripts/simulate 1 {seed}  # repeats this: {plan:?}");
        println!("scripts/simulate --shrink {seed}  # finds out what it needs");
        for finding in &result.findings {
            println!("seed {seed} found {finding}");
        }
    }
    println!(
        "seed {seed}: {} instances, {} tasks, {} calls, {:?} simulated, {} findings, hash {}",
        plan.instances,
        result.tasks,
        result.calls,
        result.time,
        result.findings.len(),
        ShownHash(result.hash),
    );
}

/// Returns the variables of the environment for a restriction.
fn variables(restriction: &Restriction) -> Vec<(&'static str, String)> {
    let mut variables = Vec::new();
    if !restriction.without.is_empty() {
        let kinds = restriction.without.iter().map(|kind| format!("{kind:?}"));
        let kinds: Vec<_> = kinds.collect();
        variables.push(("PROVOST_SIMULATION_WITHOUT", kinds.join(",")));
    }
    if let Some(tasks) = restriction.tasks {
        variables.push(("PROVOST_SIMULATION_TASKS", tasks.to_string()));
    }
    variables
}

/// The output of the process of a seed, and whether it found nothing.
struct SeedOutput {
    lines: Vec<String>,
    is_clean: bool,
}

/// Runs a seed in a process of its own.
fn process(
    seed: u64,
    restriction: &Restriction,
    template: &Path,
    prints_events: bool,
) -> SeedOutput {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--include-ignored", "--exact", ONE_SEED, "--nocapture"])
        .env("PROVOST_TEST_SEED", seed.to_string())
        .env("PROVOST_SIMULATION_TEMPLATE", template)
        .envs(variables(restriction))
        .stdin(Stdio::null());
    if prints_events {
        command.env("PROVOST_SIMULATION_EVENTS", "yes");
    }
    // Files, because a pipe that nobody reads would stop the process.
    let (mut stdout, mut stderr) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    command.stdout(stdout.try_clone().unwrap());
    command.stderr(stderr.try_clone().unwrap());
    let mut child = command.spawn().unwrap();
    let ended = wait(&mut child);
    let text = |file: &mut File| {
        let mut text = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut text).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    };
    let is_clean = ended.is_some_and(|status| status.success());
    let mut lines: Vec<_> = text(&mut stdout)
        .lines()
        .filter(|line| !is_of_harness(line))
        .map(str::to_owned)
        .collect();
    match ended {
        None => lines.push(format!(
            "seed {seed} found NoEnd: something goes on while no time passes"
        )),
        Some(status) if !is_clean && !lines.iter().any(|line| line.contains(" found ")) => {
            lines.push(format!("seed {seed} found {status}: {}", text(&mut stderr)));
        }
        Some(_) => {}
    }
    SeedOutput { lines, is_clean }
}

/// Waits for the end of a process. `None`: it has not come, and the process is killed.
fn wait(child: &mut Child) -> Option<ExitStatus> {
    let began = clock::instant();
    while began.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        thread::sleep(LOOK_EVERY);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// Returns whether a line is one that the test harness prints around each test, or about one that takes long.
fn is_of_harness(line: &str) -> bool {
    let is_of_test =
        line.ends_with("... ok") || line.ends_with("has been running for over 60 seconds");
    line.is_empty()
        || line.starts_with("running 1 test")
        || line.starts_with("test result: ")
        || line.starts_with("test simulation::") && is_of_test
}

#[test]
fn what_the_harness_says_of_a_slow_machine_is_no_event() {
    let test = "test simulation::seeds::the_seed_of_this_process";
    assert!(is_of_harness(&format!(
        "{test} has been running for over 60 seconds"
    )));
    assert!(is_of_harness(&format!("{test} ... ok")));
    assert!(!is_of_harness("1.5s: the instance node-1 was killed"));
}

/// Returns the first line that differs in two runs of a seed.
fn differs(seed: u64, template: &Path) -> Option<String> {
    let again = || process(seed, &restriction(), template, true);
    let (one, other) = (again(), again());
    let mut pairs = one.lines.iter().zip(&other.lines);
    let differing = pairs.find(|(one, other)| one != other);
    let said =
        differing.map(|(one, other)| format!("seed {seed} is not the same again:\n{one}\n{other}"));
    let lengths = (one.lines.len(), other.lines.len());
    said.or_else(|| (lengths.0 != lengths.1).then(|| format!("seed {seed} has {lengths:?} lines")))
}

/// Runs seeds in processes, several at once, and prints what each says in the order of the seeds. Returns those that
/// found something.
fn simulate(first: u64, count: u64) -> Vec<u64> {
    let stops = std::env::var_os("PROVOST_SIMULATION_STOPS").is_some();
    let template = DatabaseTemplate::written();
    let next = AtomicU64::new(first);
    let broken = Mutex::new(Vec::new());
    // The seed that is printed next, and the output of later ones.
    let printed = Mutex::new((first, BTreeMap::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count || stops && !broken.lock().is_empty() {
                return;
            }
            let mut output = process(seed, &restriction(), template.path(), false);
            if seed.is_multiple_of(RUN_AGAIN)
                && let Some(said) = differs(seed, template.path())
            {
                output.is_clean = false;
                output.lines.push(said);
            }
            if !output.is_clean {
                broken.lock().push(seed);
            }
            let (turn, waiting) = &mut *printed.lock();
            waiting.insert(seed, output.lines);
            while let Some(lines) = waiting.remove(turn) {
                lines.iter().for_each(|line| println!("{line}"));
                *turn += 1;
            }
        }
    };
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let processes = of_environment("PROVOST_SIMULATION_PROCESSES").unwrap_or(cores);
    thread::scope(|scope| {
        (0..processes).for_each(|_| {
            scope.spawn(work);
        });
    });
    let mut broken = broken.into_inner();
    broken.sort_unstable();
    broken
}

/// Returns the rules that are violated, or the other reasons of a seed that failed: the first word after `found`.
fn found(seed: u64, output: &SeedOutput) -> Vec<String> {
    let begin = format!("seed {seed} found ");
    let found = output.lines.iter().filter_map(|line| {
        let found = line.strip_prefix(&begin)?;
        let name = found.split([' ', ':']).next()?;
        Some(name.to_owned())
    });
    let mut names: Vec<_> = found.collect();
    names.dedup();
    names
}

/// Leaves out one kind of fault after the other, and then tasks, as long as the seed finds the same as at first. Returns
/// what can be left out, and the output of that run with its events. `None`: the seed finds nothing.
fn shrink(seed: u64, template: &Path) -> Option<(Restriction, SeedOutput)> {
    let mut least = restriction();
    let run = |restriction: &Restriction| process(seed, restriction, template, true);
    let mut output = run(&least);
    let wanted = found(seed, &output);
    let first = wanted.first()?;
    println!("seed {seed} found {wanted:?}");
    let mut attempt = |smaller: Restriction, least: &mut Restriction| {
        let ran = run(&smaller);
        let still = found(seed, &ran).contains(first);
        println!(
            "{} with {:?}",
            if still { "found" } else { "not found" },
            variables(&smaller)
        );
        if still {
            (*least, output) = (smaller, ran);
        }
        still
    };
    for kind in Plan::of(seed, &least).kinds {
        let mut smaller = least.clone();
        smaller.without.insert(kind);
        attempt(smaller, &mut least);
    }
    // First half of the tasks, then single ones.
    let mut step = Plan::of(seed, &least).tasks / 2;
    while step > 0 {
        let tasks = Plan::of(seed, &least).tasks;
        let smaller = Restriction {
            tasks: tasks.checked_sub(step),
            ..least.clone()
        };
        let fits = smaller.tasks.is_some_and(|tasks| tasks > 0);
        if !(fits && attempt(smaller, &mut least)) {
            step /= 2;
        }
    }
    Some((least, output))
}

#[test]
fn every_task_of_a_seed_is_at_rest_in_the_end_and_its_record_agrees_with_the_ledger() {
    let first = of_environment("PROVOST_TEST_SEED").unwrap_or(1);
    let count = of_environment("PROVOST_SIMULATION_SEEDS").unwrap_or(SEEDS);
    let broken = simulate(first, count);
    assert!(broken.is_empty(), "these seeds found something: {broken:?}");
}

#[test]
fn a_seed_does_the_same_again() {
    let seed = of_environment("PROVOST_TEST_SEED").unwrap_or(1);
    let template = DatabaseTemplate::written();
    assert_eq!(differs(seed, template.path()), None);
}

#[test]
#[ignore = "scripts/simulate runs it with a seed that finds something"]
fn a_seed_is_shrunk() {
    let seed = of_environment("PROVOST_TEST_SEED").unwrap_or(1);
    let template = DatabaseTemplate::written();
    let Some((restriction, output)) = shrink(seed, template.path()) else {
        println!("seed {seed} finds nothing");
        return;
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/simulation");
    std::fs::create_dir_all(&folder).unwrap();
    let log = folder.join(format!("seed-{seed}.log"));
    std::fs::write(&log, output.lines.join("\n") + "\n").unwrap();
    let variables = variables(&restriction).into_iter();
    let variables: String = variables
        .map(|(name, value)| format!("{name}={value} "))
        .collect();
    println!("its events are in {}", log.display());
    println!(
        "{variables}scripts/simulate 1 {seed}  # finds {:?}",
        found(seed, &output)
    );
}

#[test]
#[ignore = "the other tests run it in a process of its own for each seed"]
fn the_seed_of_this_process() {
    log();
    let seed = of_environment("PROVOST_TEST_SEED").unwrap_or(1);
    let plan = Plan::of(seed, &restriction());
    let template = match std::env::var_os("PROVOST_SIMULATION_TEMPLATE") {
        Some(path) => std::fs::read(path).unwrap(),
        None => std::fs::read(DatabaseTemplate::written().path()).unwrap(),
    };
    let result = run(plan.clone(), template, true);
    print(&plan, &result);
    assert!(result.findings.is_empty(), "seed {seed} found something");
}
