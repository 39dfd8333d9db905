//! The schedule of the faults: their targets, times and durations follow from the seed.

use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng};

/// A fault that begins at `at`, counted from the begin of the test, and lasts for `lasts`.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault<What> {
    pub at: Duration,
    pub what: What,
    pub lasts: Duration,
}

/// A fault of the process of an instance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ToProcess {
    /// SIGKILL, and a start when the time is over.
    Kill,
    /// SIGSTOP, and SIGCONT when the time is over.
    Suspend,
}

/// A fault of the network between an instance and the database.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ToNetwork {
    Cut,
    Hang,
    /// A hang after which the old connections stay dead.
    HangAndForget,
    /// From the next claim on, the responses of the database do not arrive: the claim is committed, and the instance
    /// learns of it late.
    HangAnswers,
}

/// The time between faults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    Quick,
    /// The faults are so far apart that much can happen between them.
    Calm,
    /// The only fault is that one instance after another gets the responses of the database after its lease has
    /// expired: other instances see its commits long before it knows of them itself.
    LateAnswers,
    /// One instance after another is killed while it can still read queues but does not reach the database, so its
    /// unacknowledged messages are lost. Connections to the broker are forgotten during that time.
    Losses,
}

#[derive(Debug, PartialEq)]
pub struct Schedule {
    /// The faults of the processes: one list for each instance.
    pub processes: Vec<Vec<Fault<ToProcess>>>,
    pub networks: Vec<Vec<Fault<ToNetwork>>>,
    /// The times at which the database is restarted.
    pub restarts: Vec<Duration>,
    /// The faults of the network between each instance and the message broker: one list for each instance.
    pub broker_networks: Vec<Vec<Fault<ToNetwork>>>,
    /// The times at which the message broker is killed.
    pub broker_kills: Vec<Fault<()>>,
}

impl Schedule {
    pub fn of(seed: u64, instances: usize, length: Duration, pace: Pace) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let calm = match pace {
            Pace::Quick => 1,
            Pace::Calm => 5,
            Pace::LateAnswers => return late_answers(&mut random, instances, length),
            Pace::Losses => return losses(&mut random, instances, length),
        };
        let processes = (0..instances).map(|_| processes(&mut random, length, calm));
        let processes = processes.collect();
        let networks = (0..instances).map(|_| networks_of(&mut random, length, calm));
        let networks = networks.collect();
        let mut restarts = Vec::new();
        let mut at = millis(&mut random, 2_000, 8_000) * calm;
        while at < length {
            restarts.push(at);
            at += millis(&mut random, 5_000, 12_000) * calm;
        }
        let broker_networks = (0..instances).map(|_| networks_of(&mut random, length, calm));
        let broker_networks = broker_networks.collect();
        let mut broker_kills = Vec::new();
        let mut at = millis(&mut random, 600, 2_400) * calm;
        while at < length {
            let lasts = millis(&mut random, 0, 2_000);
            broker_kills.push(Fault {
                at,
                what: (),
                lasts,
            });
            at += lasts + millis(&mut random, 4_000, 8_000) * calm;
        }
        Self {
            processes,
            networks,
            restarts,
            broker_networks,
            broker_kills,
        }
    }

    fn nothing(instances: usize) -> Self {
        Self {
            processes: vec![Vec::new(); instances],
            networks: vec![Vec::new(); instances],
            restarts: Vec::new(),
            broker_networks: vec![Vec::new(); instances],
            broker_kills: Vec::new(),
        }
    }
}

fn processes(random: &mut StdRng, length: Duration, calm: u32) -> Vec<Fault<ToProcess>> {
    let mut faults = Vec::new();
    let mut at = millis(random, 500, 5_000) * calm;
    while at < length {
        let (what, lasts) = match random.random_range(0..20) {
            0..8 => (ToProcess::Kill, millis(random, 0, 1_500)),
            // The times are a hiccup, up to the lease, and longer than the lease and a short complete-by.
            8..12 => (ToProcess::Suspend, millis(random, 10, 500)),
            12..16 => (ToProcess::Suspend, millis(random, 500, 3_500)),
            _ => (ToProcess::Suspend, millis(random, 3_500, 9_000)),
        };
        faults.push(Fault { at, what, lasts });
        at += lasts + millis(random, 500, 6_000) * calm;
    }
    faults
}

fn networks_of(random: &mut StdRng, length: Duration, calm: u32) -> Vec<Fault<ToNetwork>> {
    let mut faults = Vec::new();
    let mut at = millis(random, 500, 8_000) * calm;
    while at < length {
        let (what, lasts) = match random.random_range(0..5) {
            0..2 => (ToNetwork::Cut, millis(random, 0, 2_500)),
            2 => (ToNetwork::Hang, millis(random, 50, 7_000)),
            3 => (ToNetwork::HangAnswers, millis(random, 50, 9_000)),
            _ => (ToNetwork::HangAndForget, millis(random, 50, 7_000)),
        };
        faults.push(Fault { at, what, lasts });
        at += lasts + millis(random, 1_000, 9_000) * calm;
    }
    faults
}

fn late_answers(random: &mut StdRng, instances: usize, length: Duration) -> Schedule {
    let mut schedule = Schedule::nothing(instances);
    let mut at = millis(random, 1_000, 3_000);
    for turn in (0..instances).cycle() {
        if at >= length {
            break;
        }
        // The time is short enough for the instance not to give up.
        let lasts = millis(random, 6_000, 8_500);
        let what = ToNetwork::HangAnswers;
        schedule.networks[turn].push(Fault { at, what, lasts });
        at += lasts + millis(random, 500, 2_000);
    }
    schedule
}

fn losses(random: &mut StdRng, instances: usize, length: Duration) -> Schedule {
    let mut schedule = Schedule::nothing(instances);
    schedule.broker_kills.push(Fault {
        at: length / 2,
        what: (),
        lasts: Duration::ZERO,
    });
    let mut at = millis(random, 1_000, 3_000);
    for turn in (0..instances).cycle() {
        if at >= length {
            break;
        }
        let lasts = millis(random, 1_500, 2_500);
        let what = ToNetwork::Hang;
        schedule.networks[turn].push(Fault { at, what, lasts });
        schedule.processes[turn].push(Fault {
            at: at + millis(random, 800, 1_400),
            what: ToProcess::Kill,
            lasts: millis(random, 0, 500),
        });
        schedule.broker_networks[(turn + 1) % instances].push(Fault {
            at: at + millis(random, 0, 500),
            what: ToNetwork::HangAndForget,
            lasts: millis(random, 500, 2_000),
        });
        at += lasts + millis(random, 1_500, 3_000);
    }
    schedule
}

fn millis(random: &mut StdRng, least: u64, most: u64) -> Duration {
    Duration::from_millis(random.random_range(least..most))
}

#[test]
fn a_seed_replays_its_schedule_and_another_has_another() {
    let length = Duration::from_secs(30);
    let of = |seed| Schedule::of(seed, 4, length, Pace::Quick);
    assert_eq!(of(7), of(7));
    assert_ne!(of(7), of(8));
}
