//! The tests: some seeds each time, and as many as are wanted.
//!
//!     PROVOST_TEST_SEED=…            the first seed
//!     PROVOST_SIMULATION_SEEDS=…     the number of seeds
//!     PROVOST_SIMULATION_EVENTS=yes  prints the events of a seed that finds something
//!     PROVOST_SIMULATION_STOPS=yes   ends with the first seed that finds something
//!     PROVOST_SIMULATION_WITHOUT=…   leaves out these kinds of faults: Crash,Pause
//!     PROVOST_SIMULATION_ONLY=…      leaves out all other kinds
//!     PROVOST_SIMULATION_LOG=…       shows the log of the instances at this level

use super::{
    event_log::ShownHash,
    plan::{Hazard, KINDS, Plan},
    run::{SimulationResult, run},
};

fn of_environment(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().expect("a number"))
}

/// Returns the kinds of faults that the environment leaves out, or all but those that it names.
fn left_out() -> Vec<Hazard> {
    let named = |variable| {
        let names: Vec<_> = std::env::var(variable)
            .ok()?
            .split(',')
            .map(str::to_owned)
            .collect();
        Some(move |kind: &Hazard| names.contains(&format!("{kind:?}")))
    };
    let mut left_out = Vec::new();
    if let Some(is_named) = named("PROVOST_SIMULATION_WITHOUT") {
        left_out.extend(KINDS.into_iter().filter(is_named));
    }
    if let Some(is_named) = named("PROVOST_SIMULATION_ONLY") {
        left_out.extend(KINDS.into_iter().filter(|kind| !is_named(kind)));
    }
    left_out
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

fn simulated(seed: u64) -> SimulationResult {
    let plan = Plan::of(seed, &left_out());
    let outcome = run(plan.clone(), true);
    if !outcome.findings.is_empty() {
        println!("scripts/simulate 1 {seed}  # repeats this: {plan:#?}");
        if std::env::var_os("PROVOST_SIMULATION_EVENTS").is_some() {
            outcome.events.iter().for_each(|event| println!("{event}"));
        }
        for finding in &outcome.findings {
            println!("seed {seed} found {finding}");
        }
    }
    println!(
        "seed {seed}: {} instances, {} tasks, {} calls, {:?} simulated, {} findings, hash {}",
        plan.instances,
        outcome.tasks,
        outcome.calls,
        outcome.time,
        outcome.findings.len(),
        ShownHash(outcome.hash),
    );
    outcome
}

#[test]
#[ignore = "it is run by scripts/simulate"]
fn every_task_of_a_seed_is_at_rest_in_the_end_and_its_record_agrees_with_the_ledger() {
    log();
    let first = of_environment("PROVOST_TEST_SEED").unwrap_or(1);
    let count = of_environment("PROVOST_SIMULATION_SEEDS").unwrap_or(5);
    let stops = std::env::var_os("PROVOST_SIMULATION_STOPS").is_some();
    let mut broken = Vec::new();
    for seed in first..first + count {
        if !simulated(seed).findings.is_empty() {
            broken.push(seed);
        }
        if stops && !broken.is_empty() {
            break;
        }
    }
    assert!(broken.is_empty(), "these seeds found something: {broken:?}");
}

#[test]
#[ignore = "it fails: a message is sent at another time in the second run"]
fn a_seed_does_the_same_again() {
    let seed = of_environment("PROVOST_TEST_SEED").unwrap_or(1);
    let plan = Plan::of(seed, &left_out());
    let (one, other) = (run(plan.clone(), true), run(plan, true));
    let differs = one
        .events
        .iter()
        .zip(&other.events)
        .find(|(one, other)| one != other);
    assert_eq!(differs, None, "the first event that differs");
    assert_eq!(one.hash, other.hash);
}
