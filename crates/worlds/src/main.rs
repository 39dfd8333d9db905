//! Explores the worlds whose names are given, or all of them: `explore-worlds [states] [world]…`

use std::{env, process::ExitCode, time::Instant};

use provost_worlds::{explore, worlds};

const STATES: usize = 1_000_000;

fn main() -> ExitCode {
    let mut arguments: Vec<_> = env::args().skip(1).collect();
    let most = arguments.first().and_then(|first| first.parse().ok());
    if most.is_some() {
        arguments.remove(0);
    }
    let mut has_failed = false;
    for world in worlds() {
        if !arguments.is_empty() && !arguments.iter().any(|name| name == world.name) {
            continue;
        }
        let began = Instant::now();
        let report = explore(&world, most.unwrap_or(STATES));
        println!("{}", report.in_words(&world));
        println!("    {:.1} s", began.elapsed().as_secs_f64());
        has_failed |= report.counterexample.is_some();
    }
    match has_failed {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}
