//! The plan of a seed: how many instances and tasks there are, which kinds of faults, and when the hosts are harmed. About
//! half of the kinds are in the plan of a seed, because a fault that is always there hides others.

use std::{collections::BTreeSet, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::chaos::{Mix, ServiceFault};
use crate::host::DatabaseFaults;

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
    /// Operators undo, cancel, pause, resume, retry and skip.
    Operators,
}

pub const KINDS: [Hazard; 19] = [
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
    /// The wall clock of the host is so many milliseconds ahead from now on.
    SetClock(i64),
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub instances: usize,
    /// False: the only instance has the database for itself.
    pub is_shared: bool,
    pub tasks: u32,
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

impl Plan {
    /// Returns the plan of a seed, without some kinds of faults.
    pub fn of(seed: u64, without: &[Hazard]) -> Self {
        let random = &mut StdRng::seed_from_u64(seed);
        let mut kinds: BTreeSet<_> = KINDS
            .into_iter()
            .filter(|_| random.random_ratio(1, 2))
            .collect();
        let instances = *one_of(random, &[1, 2, 2, 3]);
        let is_shared = instances > 1 || random.random_ratio(1, 2);
        if !is_shared {
            // The times on record are those of the host, which the auditor compares with those of the services.
            kinds.retain(|kind| !matches!(kind, Hazard::ClockStep | Hazard::Drift));
            // The file of a single instance has no connection that can be lost during a commit.
            kinds.remove(&Hazard::LostResult);
        }
        kinds.retain(|kind| !without.contains(kind));
        let length = Duration::from_secs(random.random_range(15..40));
        let has = |kind| kinds.contains(&kind);
        let mut harms = Vec::new();
        let any_time = |random: &mut StdRng| {
            let most = u64::try_from(length.as_millis()).unwrap();
            Duration::from_millis(random.random_range(1000..most))
        };
        for host in 0..instances {
            if has(Hazard::Crash) {
                for _ in 0..random.random_range(1..4) {
                    let down = Duration::from_millis(random.random_range(0..9000));
                    harms.push((any_time(random), host, Harm::Crash(down)));
                }
            }
            if has(Hazard::Pause) {
                for _ in 0..random.random_range(1..3) {
                    let length = Duration::from_millis(random.random_range(200..14_000));
                    harms.push((any_time(random), host, Harm::Pause(length)));
                }
            }
            if has(Hazard::ClockStep) {
                let ahead = random.random_range(-600_000..600_000);
                harms.push((any_time(random), host, Harm::SetClock(ahead)));
            }
        }
        harms.sort_by_key(|(at, host, _)| (*at, *host));
        let drift = |random: &mut StdRng| match has(Hazard::Drift) {
            true => random.random_range(-5..=5),
            false => 0,
        };
        let drifts = (0..instances).map(|_| drift(random)).collect();
        let database = DatabaseFaults {
            fails: 3 * u32::from(has(Hazard::FailingDatabase)),
            loses_result: 3 * u32::from(has(Hazard::LostResult)),
            longest_delay: match has(Hazard::SlowDatabase) {
                true => Duration::from_millis(random.random_range(1..30)),
                false => Duration::ZERO,
            },
        };
        Self {
            seed,
            instances,
            is_shared,
            tasks: random.random_range(20..60),
            // Steps of other kinds hide what happens to plain calls.
            mix: *one_of(random, &MIXES),
            harms,
            length,
            turn: Duration::from_millis(*one_of(random, &[2, 5, 10])),
            drifts,
            database,
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

pub fn one_of<'a, T>(random: &mut StdRng, all: &'a [T]) -> &'a T {
    &all[random.random_range(0..all.len())]
}
