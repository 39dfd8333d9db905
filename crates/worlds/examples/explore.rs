//! Explores the worlds whose names are given, or all of them: `explore [states] [world]…`

#![allow(clippy::disallowed_methods, reason = "it reports how long it took")]

use std::{env, process::ExitCode, time::Instant};

use provost_worlds::{explore, worlds};

/// The number of states of the last round of a world.
const STATES: usize = 1_000_000;

fn main() -> ExitCode {
    let mut names: Vec<_> = env::args().skip(1).collect();
    let most = names.first().and_then(|first| first.parse().ok());
    if most.is_some() {
        names.remove(0);
    }
    let known = worlds();
    if let Some(unknown) = names
        .iter()
        .find(|name| known.iter().all(|world| world.name != **name))
    {
        let known: Vec<_> = known.iter().map(|world| world.name).collect();
        eprintln!(
            "there is no world {unknown:?}: there are {}",
            known.join(", ")
        );
        return ExitCode::FAILURE;
    }
    let mut broken = 0;
    for world in known {
        if !names.is_empty() && !names.iter().any(|name| name == world.name) {
            continue;
        }
        println!("{}: {}", world.name, world.about);
        let began = Instant::now();
        let reports = explore(&world, most.unwrap_or(STATES));
        for report in &reports {
            println!("  {report}");
            broken += usize::from(report.counterexample.is_some());
        }
        println!("  {:.0} s{}", began.elapsed().as_secs_f64(), memory());
    }
    match broken {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Returns the most memory that this process has used until now, where the system says so.
fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kilobytes.map_or_else(String::new, |kilobytes| {
        format!(", at most {} MB until now", kilobytes / 1000)
    })
}
