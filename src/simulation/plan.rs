//! The plan of a seed: how many instances and tasks there are, which kinds of faults, and when the hosts are harmed. About
//! half of the kinds are in the plan of a seed, because a fault that is always there hides others.

use std::{collections::BTreeSet, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::chaos::{Mix, ServiceFault};
use crate::host::{DatabaseFaults, Partition};

/// A kind of fault. A seed has some of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Hazard {
    /// A service does not do the work, and says so: 503 or 429.
    Overload,
    /// A service refuses the work permanently.
    Refusal,
    /// A connection is cut before or after the work.
    Cut,
    /// A response comes late, or never.
    Silence,
    /// A response is not what its head says.
    Garbling,
    /// The bytes of a response come one by one.
    SlowBytes,
    /// A request arrives again later.
    Double,
    /// A worker dies after it has fetched a step.
    DeadWorker,
    /// A promised reply is not sent.
    SilentPromise,
    /// The work that was promised is lost.
    ForgottenPromise,
    /// The work that was promised fails.
    FailedPromise,
    /// An instance is killed and starts again.
    Crash,
    /// An instance stands still, also for longer than its lease.
    Pause,
    /// The wall clock of a host is set.
    ClockStep,
    /// The clocks of hosts run at different speeds.
    Drift,
    /// Jobs of the database take a while.
    SlowDatabase,
    /// Jobs of the database fail.
    FailingDatabase,
    /// Jobs of the database are done, and their results are lost.
    LostResult,
    /// A host has no connection to the database, also for longer than its lease, while it reaches the services.
    Partition,
    /// Operators undo, cancel, pause, resume, retry and skip.
    Operators,
}

pub const KINDS: [Hazard; 20] = [
    Hazard::Overload,
    Hazard::Refusal,
    Hazard::Cut,
    Hazard::Silence,
    Hazard::Garbling,
    Hazard::SlowBytes,
    Hazard::Double,
    Hazard::DeadWorker,
    Hazard::SilentPromise,
    Hazard::ForgottenPromise,
    Hazard::FailedPromise,
    Hazard::Crash,
    Hazard::Pause,
    Hazard::ClockStep,
    Hazard::Drift,
    Hazard::SlowDatabase,
    Hazard::FailingDatabase,
    Hazard::LostResult,
    Hazard::Partition,
    Hazard::Operators,
];

impl Hazard {
    /// Returns the same fault as the services have it.
    fn of_services(self) -> Option<ServiceFault> {
        Some(match self {
            Hazard::Overload => ServiceFault::Overload,
            Hazard::Refusal => ServiceFault::Refusal,
            Hazard::Cut => ServiceFault::Cut,
            Hazard::Silence => ServiceFault::Silence,
            Hazard::Garbling => ServiceFault::Garbling,
            Hazard::SlowBytes => ServiceFault::SlowBytes,
            Hazard::Double => ServiceFault::Double,
            Hazard::DeadWorker => ServiceFault::DeadWorker,
            Hazard::SilentPromise => ServiceFault::SilentPromise,
            Hazard::ForgottenPromise => ServiceFault::ForgottenPromise,
            Hazard::FailedPromise => ServiceFault::FailedPromise,
            _ => return None,
        })
    }
}

/// Half of the seeds have only plain calls.
const MIXES: [Mix; 8] = [
    Mix::Calls,
    Mix::Calls,
    Mix::Calls,
    Mix::Plain,
    Mix::Http,
    Mix::Http,
    Mix::Kinds,
    Mix::Kinds,
];

/// Harm to one host at one time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Harm {
    /// The instance is killed, and starts again after this time.
    Crash(Duration),
    Pause(Duration),
    /// The database cannot be reached for this time.
    Partition(Duration, Partition),
    /// The wall clock of the host is so many milliseconds ahead from now on.
    SetClock(i64),
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub instances: usize,
    /// False: the only instance has the database for itself.
    pub is_shared: bool,
    /// The number of tasks that are submitted. Schedules and steps with children make others.
    pub tasks: u32,
    /// The longest time between two tasks of one submitter.
    pub longest_pause: Duration,
    pub mix: Mix,
    pub kinds: BTreeSet<Hazard>,
    /// Ordered by time.
    pub harms: Vec<(Duration, usize, Harm)>,
    /// The time with faults, in which all tasks are submitted.
    pub length: Duration,
    /// The time that a host runs before the next one does.
    pub turn: Duration,
    /// The parts in a thousand by which the clock of each host is faster.
    pub drifts: Vec<i32>,
    pub database: DatabaseFaults,
}

/// The parts of a plan that are left out, to find out which of them a finding needs.
#[derive(Clone, Default, Debug)]
pub struct Restriction {
    pub without: BTreeSet<Hazard>,
    /// The number of tasks in place of that of the seed. The first ones stay the same.
    pub tasks: Option<u32>,
}

/// The number of clients that submit tasks at once.
pub const SUBMITTERS: u32 = 4;

impl Plan {
    /// Returns the plan of a seed. A restriction leaves all else as it is.
    pub fn of(seed: u64, restriction: &Restriction) -> Self {
        let random = &mut StdRng::seed_from_u64(seed);
        let mut kinds: BTreeSet<_> = KINDS
            .into_iter()
            .filter(|_| random.random_ratio(1, 2))
            .collect();
        let instances = *one_of(random, &[1, 2, 2, 3]);
        let is_shared = instances > 1 || random.random_ratio(1, 2);
        let length = Duration::from_secs(random.random_range(15..40));
        let tasks = random.random_range(20..60);
        // Steps of other kinds hide what happens to plain calls.
        let mix = *one_of(random, &MIXES);
        let turn = Duration::from_millis(*one_of(random, &[2, 5, 10]));
        if !is_shared {
            // The times on record are those of the host, which the auditor compares with those of the services.
            kinds.retain(|kind| !matches!(kind, Hazard::ClockStep | Hazard::Drift));
            // The file of a single instance has no connection that can be lost, also during a commit.
            kinds.retain(|kind| !matches!(kind, Hazard::LostResult | Hazard::Partition));
        }
        kinds.retain(|kind| !restriction.without.contains(kind));
        // Schedules and steps with children make about as many tasks again.
        let submitted = match mix.has_kinds() {
            true => tasks / 2,
            false => tasks,
        };
        let most = submitted.max(restriction.tasks.unwrap_or(0));
        let mut harms: Vec<_> = kinds
            .iter()
            .flat_map(|kind| harms(seed, *kind, instances, length))
            .collect();
        harms.sort_by_key(|(at, host, _)| (*at, *host));
        Self {
            seed,
            instances,
            is_shared,
            tasks: restriction.tasks.unwrap_or(submitted),
            longest_pause: 2 * length / most.div_ceil(SUBMITTERS),
            mix,
            harms,
            length,
            turn,
            drifts: drifts(seed, &kinds, instances),
            database: database_faults(seed, &kinds),
            kinds,
        }
    }

    /// Returns the kinds of faults that the services have.
    pub fn service_faults(&self) -> BTreeSet<ServiceFault> {
        let kinds = self.kinds.iter();
        kinds.filter_map(|kind| kind.of_services()).collect()
    }

    pub fn has(&self, kind: Hazard) -> bool {
        self.kinds.contains(&kind)
    }
}

/// Returns the chance of one kind of fault, which does not depend on the other kinds.
fn random_of(seed: u64, kind: Hazard) -> StdRng {
    StdRng::seed_from_u64(seed.rotate_left(40) ^ kind as u64)
}

/// Returns the harm that a kind of fault does to the hosts.
fn harms(
    seed: u64,
    kind: Hazard,
    instances: usize,
    length: Duration,
) -> Vec<(Duration, usize, Harm)> {
    let random = &mut random_of(seed, kind);
    let mut harms = Vec::new();
    let millis =
        |random: &mut StdRng, least, most| Duration::from_millis(random.random_range(least..most));
    for host in 0..instances {
        let times = match kind {
            Hazard::Crash => random.random_range(1..4),
            Hazard::Pause | Hazard::Partition => random.random_range(1..3),
            Hazard::ClockStep => 1,
            _ => 0,
        };
        for _ in 0..times {
            let end = u64::try_from(length.as_millis()).unwrap();
            let at = millis(random, 1000, end);
            let harm = match kind {
                Hazard::Crash => Harm::Crash(millis(random, 0, 9000)),
                Hazard::Pause => Harm::Pause(millis(random, 200, 14_000)),
                Hazard::Partition => {
                    let way = one_of(random, &[Partition::Refuses, Partition::Hangs]);
                    Harm::Partition(millis(random, 200, 14_000), *way)
                }
                _ => Harm::SetClock(random.random_range(-600_000..600_000)),
            };
            harms.push((at, host, harm));
        }
    }
    harms
}

fn drifts(seed: u64, kinds: &BTreeSet<Hazard>, instances: usize) -> Vec<i32> {
    let random = &mut random_of(seed, Hazard::Drift);
    let drift = |_| match kinds.contains(&Hazard::Drift) {
        true => random.random_range(-5..=5),
        false => 0,
    };
    (0..instances).map(drift).collect()
}

fn database_faults(seed: u64, kinds: &BTreeSet<Hazard>) -> DatabaseFaults {
    let random = &mut random_of(seed, Hazard::SlowDatabase);
    let has = |kind| kinds.contains(&kind);
    DatabaseFaults {
        fails: 3 * u32::from(has(Hazard::FailingDatabase)),
        loses_result: 3 * u32::from(has(Hazard::LostResult)),
        longest_delay: match has(Hazard::SlowDatabase) {
            true => Duration::from_millis(random.random_range(1..30)),
            false => Duration::ZERO,
        },
        partition: None,
    }
}

pub fn one_of<'a, T>(random: &mut StdRng, all: &'a [T]) -> &'a T {
    &all[random.random_range(0..all.len())]
}
