//! Runs the plan of a seed from its start until all is at rest, and returns what was found.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use rand::seq::SliceRandom;
use tokio::{runtime::Builder, time::sleep};

use super::{
    audit::{At, Evidence, Exit, Suspension, Trouble},
    judge,
    machine::{CANNOT_START, Machine},
    plan::{Harm, Hazard, Plan},
    script::{Played, play},
    world::SimulatedWorld,
};
use crate::{
    host::{EPOCH, Surroundings},
    store::sqlite,
};

/// The longest simulation.
const LONGEST: Duration = Duration::from_secs(1_800);

#[derive(Debug)]
pub struct SimulationResult {
    pub findings: Vec<String>,
    pub hash: u64,
    pub events: Vec<String>,
    pub tasks: usize,
    pub calls: usize,
    /// The time that was simulated.
    pub time: Duration,
}

/// Runs a plan on a database that is a copy of the template, in a thread of its own, whose maps have the order of the seed.
pub fn run(plan: Plan, template: Vec<u8>, keeps_events: bool) -> SimulationResult {
    let running = thread::Builder::new()
        .stack_size(16 << 20)
        .spawn(move || {
            provost_seeded::seed_this_thread(plan.seed);
            simulate(plan, &template, keeps_events)
        })
        .unwrap();
    running
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A database whose schema is up to date, in a file.
pub struct DatabaseTemplate {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl DatabaseTemplate {
    pub fn written() -> Self {
        let folder = folder();
        let path = folder.path().join("template.db");
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(sqlite::migrate(&path)).unwrap();
        Self {
            path,
            _folder: folder,
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns a folder in memory, if there is one.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

fn simulate(plan: Plan, template: &[u8], keeps_events: bool) -> SimulationResult {
    let folder = folder();
    let database: PathBuf = folder.path().join("provost.db");
    std::fs::write(&database, template).unwrap();
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let surroundings = Arc::new(Surroundings::default());
    let world =
        runtime.block_on(async { SimulatedWorld::begin(plan.clone(), surroundings, keeps_events) });
    let mut machines: Vec<_> = (0..plan.instances)
        .map(|number| Machine::new(&plan, number, &database, &world))
        .collect();
    let mut script = runtime.spawn(play(world.clone()));
    let mut random = world.random(4);
    let mut harms = plan.harms.iter().peekable();
    let mut found = Evidence::default();
    let mut now = Duration::ZERO;
    // The number of the world is that after the last machine.
    let mut order: Vec<_> = (0..=machines.len()).collect();
    while !script.is_finished() && now < LONGEST {
        while let Some((_, number, harm)) = harms.next_if(|(at, ..)| *at <= now) {
            world
                .events
                .note(now, format_args!("host-{number}: {harm:?}"));
            machines[*number].harm(*harm, now);
            note_harm(&mut found, now, *number, *harm);
        }
        if world.is_well() {
            machines.iter_mut().for_each(Machine::be_well);
        }
        order.shuffle(&mut random);
        let until = now + plan.turn;
        for number in &order {
            let Some(machine) = machines.get_mut(*number) else {
                runtime.block_on(async { sleep(plan.turn).await });
                continue;
            };
            if let Some(said) = machine.run_until(now, until) {
                world
                    .events
                    .note(now, format_args!("host-{number} ended: {said}"));
                // An instance whose database fails while it starts ends, and is started again.
                let breaks = plan.database.breaks() || plan.has(Hazard::Partition);
                if !(breaks && said.starts_with(CANNOT_START)) {
                    found.exits.push(Exit {
                        at: at(now),
                        instance: *number,
                        said,
                    });
                }
            }
        }
        now = until;
    }
    let (mut findings, tasks, calls) = match script.is_finished() {
        true => {
            let Played { evidence, findings } = runtime.block_on(&mut script).unwrap();
            let tasks = evidence.accepted.len();
            let calls = evidence.ledger.calls.len();
            let evidence = Evidence {
                exits: found.exits,
                suspensions: found.suspensions,
                troubles: found.troubles,
                // A host is at most one turn ahead of the services.
                skew: plan.turn,
                ..evidence
            };
            let found = judge::judge(&evidence, findings).into_iter();
            let said = found.map(|(finding, story)| format!("{finding}\n{story}"));
            (said.collect::<Vec<_>>(), tasks, calls)
        }
        false => (vec!["the simulation does not end".to_owned()], 0, 0),
    };
    findings.dedup();
    drop(machines);
    SimulationResult {
        findings,
        hash: world.events.hash(),
        events: world.events.lines(),
        tasks,
        calls,
        time: now,
    }
}

fn at(time: Duration) -> At {
    At(i64::try_from((EPOCH + time).as_micros()).unwrap())
}

fn note_harm(found: &mut Evidence, now: Duration, number: usize, harm: Harm) {
    let length = match harm {
        Harm::Crash(length) | Harm::Pause(length) | Harm::Partition(length, _) => length,
        Harm::SetClock(_) => return,
    };
    let (from, to) = (at(now), at(now + length));
    found.troubles.push(Trouble { from, to });
    if let Harm::Pause(_) = harm {
        found.suspensions.push(Suspension {
            instance: Some(format!("host-{number}")),
            from,
            to,
        });
    }
}
