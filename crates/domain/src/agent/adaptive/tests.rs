//! The ways in which the adaptive limit could fail, and the tests that show that it does not:
//! - a careless caller gives `{}`, or a least that no endpoint takes: `every_fault_of_a_specification_is_found`;
//! - a hostile service refuses everything and then responds at once, or fails at once, or takes ten times as long:
//!   `one_that_refuses_everything…`, `what_fails_at_once…`, `one_that_has_become_slower…`;
//! - a second instance calls the same service: `several_instances_share_what_the_service_takes`;
//! - a restart knows nothing: it begins at the least, as every test here;
//! - a tired operator looks for the reason, and for one that is over: `the_reason_stays_until_the_limit_is_back`.

use std::{cmp::Reverse, collections::BinaryHeap};

use proptest::prelude::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::*;

const MILLISECOND: Duration = Duration::from_millis(1);

fn spec() -> AdaptiveSpec {
    AdaptiveSpec::default()
}

fn limit(least: u32, most: u32) -> AdaptiveLimit {
    AdaptiveLimit::new(&AdaptiveSpec { least, ..spec() }, most)
}

/// A service that works on `slots` calls at a time.
struct Service {
    slots: usize,
    /// The time that the service works on each call.
    takes: Duration,
    /// The part by which chance makes a call longer or shorter; with 1.0, the time has an exponential distribution.
    noise: f64,
    /// Refuses what it has no slot for, rather than let it wait.
    refuses: bool,
    /// The time at which each slot is free.
    free_at: Vec<Duration>,
}

impl Service {
    fn of(slots: usize, takes: Duration) -> Self {
        Self {
            slots,
            takes,
            noise: 0.0,
            refuses: false,
            free_at: Vec::new(),
        }
    }

    /// Returns when the call ends, and whether it is refused.
    fn call(&mut self, now: Duration, chance: f64) -> (Duration, bool) {
        self.free_at.retain(|free_at| *free_at > now);
        let takes = match self.noise {
            noise if noise < 1.0 => self.takes.mul_f64(1.0 + noise * (2.0 * chance - 1.0)),
            _ => self.takes.mul_f64(-(1.0 - chance).ln()),
        };
        let begins = match self.free_at.len() < self.slots {
            true => now,
            false if self.refuses => return (now + MILLISECOND, true),
            false => {
                self.free_at.sort();
                self.free_at.remove(self.free_at.len() - self.slots)
            }
        };
        self.free_at.push(begins + takes);
        (begins + takes, false)
    }
}

/// Instances that call one service as much as they may.
struct Simulation {
    service: Service,
    limits: Vec<AdaptiveLimit>,
    in_flight: Vec<u32>,
    /// When each call ends, whose it is, when it began, and whether it is refused.
    ends: BinaryHeap<Reverse<(Duration, usize, Duration, bool)>>,
    now: Duration,
    chance: StdRng,
}

/// The counts of a period, of all instances together.
struct Watched {
    served: u32,
    refused: u32,
    /// The limits, on average over time.
    limit: f64,
    highest: u32,
}

impl Simulation {
    fn new(service: Service, limits: impl IntoIterator<Item = AdaptiveLimit>) -> Self {
        let limits: Vec<_> = limits.into_iter().collect();
        Self {
            service,
            in_flight: vec![0; limits.len()],
            limits,
            ends: BinaryHeap::new(),
            now: Duration::ZERO,
            chance: StdRng::seed_from_u64(7),
        }
    }

    fn call(&mut self, of: usize) {
        self.in_flight[of] += 1;
        let is_full = self.in_flight[of] >= self.limits[of].limit();
        self.limits[of].began(self.in_flight[of], is_full);
        let (ends, is_refused) = self.service.call(self.now, self.chance.random());
        self.ends.push(Reverse((ends, of, self.now, is_refused)));
    }

    fn run(&mut self, lasts: Duration) -> Watched {
        let end = self.now + lasts;
        let mut watched = Watched {
            served: 0,
            refused: 0,
            limit: 0.0,
            highest: 0,
        };
        while self.now < end {
            for of in 0..self.limits.len() {
                while self.in_flight[of] < self.limits[of].limit() {
                    self.call(of);
                }
            }
            let Reverse((ends, of, began, is_refused)) = self.ends.pop().unwrap();
            let all: u32 = self.limits.iter().map(AdaptiveLimit::limit).sum();
            watched.highest = watched.highest.max(all);
            watched.limit += f64::from(all) * (ends - self.now).as_secs_f64();
            self.now = ends;
            self.in_flight[of] -= 1;
            let sample = match is_refused {
                true => LoadSample::Refused("503"),
                false => LoadSample::Served,
            };
            match is_refused {
                true => watched.refused += 1,
                false => watched.served += 1,
            }
            self.limits[of].ended(began, ends, ends, sample);
        }
        watched.limit /= lasts.as_secs_f64();
        watched
    }
}

#[track_caller]
fn assert_within(value: f64, range: std::ops::RangeInclusive<f64>) {
    assert!(range.contains(&value), "{value} is not in {range:?}");
}

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn it_settles_near_what_a_service_takes_that_queues_further_calls() {
    for (slots, takes) in [(4, 100), (8, 100), (30, 20), (100, 300), (8, 3000)] {
        // Delays that are due to chance alone are hardest to tell from a queue.
        for (noise, least_served) in [(0.0, 0.95), (0.3, 0.85), (1.0, 0.4)] {
            let takes = Duration::from_millis(takes);
            let service = Service {
                noise,
                ..Service::of(slots, takes)
            };
            let mut simulation = Simulation::new(service, [limit(2, 1000)]);
            let lasts = (takes * 600).max(MINUTE * 2);
            simulation.run(lasts);
            let watched = simulation.run(lasts);
            let slots = slots as f64;
            let possible = slots * lasts.as_secs_f64() / takes.as_secs_f64();
            let served = f64::from(watched.served) / possible;
            assert_within(watched.limit / slots, least_served..=1.85);
            assert_within(served, least_served..=1.05);
        }
    }
}

#[test]
fn it_settles_at_what_a_service_takes_that_refuses_further_calls() {
    for slots in [4, 8, 30, 100] {
        let takes = Duration::from_millis(100);
        let service = Service {
            refuses: true,
            ..Service::of(slots, takes)
        };
        let mut simulation = Simulation::new(service, [limit(2, 1000)]);
        let watched = simulation.run(takes * 100);
        assert!(watched.refused < 3 * slots as u32 + 20, "it overshoots");
        let watched = simulation.run(takes * 600);
        let most = slots as f64;
        assert_within(watched.limit / most, 0.75..=1.1);
        let served = f64::from(watched.served) / (most * 600.0);
        assert_within(served, 0.75..=1.01);
        let refused = f64::from(watched.refused) / f64::from(watched.served);
        assert_within(refused, 0.0..=0.06);
        let reason = simulation.limits[0].reason().unwrap();
        assert!(
            reason.contains("were refused or broke off; the last one: 503"),
            "{reason}"
        );
    }
}

#[test]
fn it_follows_a_service_that_loses_slots_and_gets_them_back() {
    for refuses in [false, true] {
        let service = Service {
            refuses,
            ..Service::of(64, Duration::from_millis(100))
        };
        let mut simulation = Simulation::new(service, [limit(2, 256)]);
        simulation.run(MINUTE);
        simulation.service.slots = 4;
        simulation.run(MINUTE / 2);
        let watched = simulation.run(MINUTE);
        assert_within(watched.limit, 3.0..=7.0);
        simulation.service.slots = 64;
        simulation.run(MINUTE / 2);
        let watched = simulation.run(MINUTE);
        assert_within(watched.limit, 48.0..=110.0);
    }
}

#[test]
fn it_never_leaves_its_bounds_even_if_the_service_takes_more_or_less() {
    let service = Service::of(100, Duration::from_millis(10));
    let mut simulation = Simulation::new(service, [limit(5, 20)]);
    let watched = simulation.run(MINUTE);
    assert_eq!(watched.highest, 20);
    assert!(watched.limit > 19.0, "{}", watched.limit);
    assert_eq!(simulation.limits[0].reason(), None);
    simulation.service.slots = 1;
    simulation.service.refuses = true;
    simulation.run(MINUTE);
    let watched = simulation.run(MINUTE);
    assert_eq!(watched.highest, 5);
    assert_eq!(simulation.limits[0].limit(), 5);
}

#[test]
fn one_that_has_become_slower_for_all_calls_gets_as_many_as_before() {
    for times in [2, 10] {
        let service = Service::of(20, Duration::from_millis(50));
        let mut simulation = Simulation::new(service, [limit(2, 200)]);
        simulation.run(MINUTE);
        simulation.service.takes *= times;
        simulation.run(MINUTE * 2);
        let watched = simulation.run(MINUTE);
        assert_within(watched.limit, 18.0..=36.0);
    }
    // So little slower that it only keeps the limit from growing.
    let service = Service::of(100, Duration::from_millis(100));
    let mut simulation = Simulation::new(service, [limit(8, 12)]);
    simulation.run(MINUTE / 6);
    simulation.limits[0].configure(&AdaptiveSpec { least: 2, ..spec() }, 200);
    simulation.service.takes = Duration::from_millis(140);
    let watched = simulation.run(MINUTE * 3);
    assert!(watched.highest > 90, "{}", watched.highest);
}

/// Each sees the calls of all, and learns how long calls take while the others make theirs. Which of them has more does
/// not matter: they take steps from one queue.
#[test]
fn several_instances_share_what_the_service_takes() {
    for (refuses, noise) in [(false, 0.0), (false, 0.3), (true, 0.0)] {
        let service = Service {
            refuses,
            noise,
            ..Service::of(40, Duration::from_millis(50))
        };
        let mut simulation = Simulation::new(service, [limit(2, 200), limit(2, 200)]);
        simulation.run(MINUTE);
        let watched = simulation.run(MINUTE * 5);
        assert_within(watched.limit, 30.0..=80.0);
        // One that comes later has never seen how long calls take with few in flight.
        simulation.limits.push(limit(2, 200));
        simulation.in_flight.push(0);
        simulation.run(MINUTE);
        let watched = simulation.run(MINUTE * 5);
        assert_within(watched.limit, 30.0..=100.0);
        let served = f64::from(watched.served) / (300.0 * 40.0 * 20.0);
        assert_within(served, 0.75..=1.01);
    }
}

/// Calls one after the other, each with this result.
fn calls(
    limit: &mut AdaptiveLimit,
    now: &mut Duration,
    count: u32,
    took: Duration,
    sample: LoadSample<'_>,
) {
    for _ in 0..count {
        let in_flight = limit.limit();
        limit.began(in_flight, true);
        limit.ended(*now, *now + took, *now, sample);
        *now += took;
    }
}

/// Returns a limit that has grown to `most` with calls of 100 ms.
fn grown_to(most: u32) -> (AdaptiveLimit, Duration) {
    let (mut limit, mut now) = (limit(2, most), Duration::ZERO);
    while limit.limit() < most {
        calls(
            &mut limit,
            &mut now,
            1,
            Duration::from_millis(100),
            LoadSample::Served,
        );
    }
    (limit, now)
}

#[test]
fn one_that_refuses_everything_and_then_responds_at_once_gets_the_least_and_then_more() {
    let (mut limit, mut now) = grown_to(64);
    calls(
        &mut limit,
        &mut now,
        60,
        MILLISECOND,
        LoadSample::Refused("429"),
    );
    assert_eq!(limit.limit(), 2, "it falls fast");
    let reason = limit.reason().unwrap();
    assert_eq!(
        reason,
        "2 of 2 calls were refused or broke off; the last one: 429"
    );
    calls(
        &mut limit,
        &mut now,
        1000,
        MILLISECOND,
        LoadSample::Refused("429"),
    );
    assert_eq!(limit.limit(), 2);
    calls(&mut limit, &mut now, 300, MILLISECOND, LoadSample::Served);
    assert_eq!(limit.limit(), 64, "it grows fast");
    // It was only pretending.
    calls(
        &mut limit,
        &mut now,
        1000,
        Duration::from_millis(100),
        LoadSample::Served,
    );
    calls(
        &mut limit,
        &mut now,
        1000,
        Duration::from_millis(100),
        LoadSample::Served,
    );
    assert_eq!(limit.limit(), 64, "that is how long calls take");
}

#[test]
fn what_fails_at_once_or_is_wrong_is_neither_room_nor_lack_of_it() {
    let (mut known, mut now) = grown_to(16);
    let lowest = known.lowest_latency();
    calls(&mut known, &mut now, 500, MILLISECOND, LoadSample::Unclear);
    assert_eq!((known.limit(), known.lowest_latency()), (16, lowest));
    let mut new = limit(2, 16);
    calls(&mut new, &mut now, 500, MILLISECOND, LoadSample::Unclear);
    assert_eq!((new.limit(), new.latency()), (2, None));
}

#[test]
fn a_few_slow_or_lost_calls_decide_nothing() {
    let (mut limit, mut now) = grown_to(16);
    for _ in 0..20 {
        calls(&mut limit, &mut now, 1, MINUTE, LoadSample::Served);
        calls(
            &mut limit,
            &mut now,
            7,
            Duration::from_millis(100),
            LoadSample::Served,
        );
        calls(
            &mut limit,
            &mut now,
            1,
            MILLISECOND,
            LoadSample::Refused("broken"),
        );
        calls(
            &mut limit,
            &mut now,
            8,
            Duration::from_millis(100),
            LoadSample::Served,
        );
    }
    assert_eq!(limit.limit(), 16);
    assert_eq!(limit.reason(), None);
}

#[test]
fn few_calls_let_it_neither_grow_nor_fall_for_their_latency() {
    let mut few = limit(4, 64);
    let mut now = Duration::ZERO;
    for took in [10, 10, 300, 10].map(Duration::from_millis) {
        for _ in 0..40 {
            few.began(2, false);
            few.ended(now, now + took, now, LoadSample::Served);
            now += took;
        }
        assert_eq!(few.limit(), 4);
    }
    let (mut limit, mut now) = grown_to(64);
    for _ in 0..200 {
        limit.began(2, false);
        limit.ended(now, now + MINUTE, now, LoadSample::Served);
        now += MINUTE;
    }
    assert_eq!(limit.limit(), 64);
    // Refusals count however few there are.
    let (mut limit, mut now) = grown_to(64);
    for _ in 0..14 {
        limit.began(1, false);
        limit.ended(now, now + MILLISECOND, now, LoadSample::Refused("503"));
        now += MILLISECOND;
    }
    assert_eq!(limit.limit(), 36);
}

/// Else all calls that were in flight when it fell would let it fall again.
#[test]
fn calls_that_began_before_it_fell_say_nothing_more() {
    let (mut limit, now) = grown_to(64);
    let later = now + MILLISECOND;
    for _ in 0..64 {
        limit.ended(now, later, now, LoadSample::Refused("503"));
    }
    assert_eq!(limit.limit(), 48);
    assert!(
        limit
            .reason()
            .unwrap()
            .starts_with("fell from 64 to 48: 7 of 7 calls")
    );
}

#[test]
fn a_time_that_is_given_decides_instead_of_what_is_usual() {
    let slow_after = Some(Span::from_millis(500));
    let spec = AdaptiveSpec {
        least: 2,
        slow_after,
    };
    let service = Service::of(8, Duration::from_millis(100));
    let mut simulation = Simulation::new(service, [AdaptiveLimit::new(&spec, 1000)]);
    simulation.run(MINUTE);
    let watched = simulation.run(MINUTE);
    assert_within(watched.limit, 24.0..=44.0);
    let reason = simulation.limits[0].reason().unwrap();
    assert!(reason.ends_with("more than 500ms"), "{reason}");
    // Calls of very different kinds, one kind after the other.
    let (mut limit, mut now) = (AdaptiveLimit::new(&spec, 16), Duration::ZERO);
    for took in [5, 400, 5, 400].map(Duration::from_millis) {
        calls(&mut limit, &mut now, 200, took, LoadSample::Served);
        assert_eq!(limit.limit(), 16);
    }
}

#[test]
fn the_reason_stays_until_the_limit_is_back() {
    let (mut limit, mut now) = grown_to(16);
    assert_eq!(limit.reason(), None);
    calls(
        &mut limit,
        &mut now,
        64,
        Duration::from_millis(300),
        LoadSample::Served,
    );
    let reason = limit.reason().unwrap().to_owned();
    assert!(reason.starts_with("fell from "), "{reason}");
    assert!(reason.contains(": calls took 300ms, and 1"), "{reason}");
    while limit.limit() < 16 {
        calls(
            &mut limit,
            &mut now,
            16,
            Duration::from_millis(100),
            LoadSample::Served,
        );
    }
    assert_eq!(limit.reason(), None);
}

#[test]
fn other_bounds_hold_at_once() {
    let (mut limit, _) = grown_to(64);
    limit.configure(&AdaptiveSpec { least: 3, ..spec() }, 10);
    assert_eq!((limit.limit(), limit.least(), limit.most()), (10, 3, 10));
    limit.configure(
        &AdaptiveSpec {
            least: 12,
            ..spec()
        },
        40,
    );
    assert_eq!(limit.limit(), 12);
}

#[test]
fn every_fault_of_a_specification_is_found() {
    assert_eq!(spec().object_faults(""), []);
    assert_eq!(spec().least_fault(2), None);
    assert!(spec().least_fault(1).is_some());
    let bad = AdaptiveSpec {
        least: 0,
        slow_after: Some(Span::from_secs(3601)),
    };
    let faults = bad.object_faults("").into_iter();
    let pointers: Vec<_> = faults.map(|fault| fault.pointer).collect();
    assert_eq!(pointers, ["/least", "/slow_after"]);
}

proptest! {
    /// The limit stays within its bounds for any samples, in any order in which calls end.
    #[test]
    fn it_stays_between_the_least_and_the_most(
        (least, most) in (1u32..20).prop_flat_map(|least| (Just(least), least..200)),
        calls in prop::collection::vec((0u8..3, 0u64..20_000, 0u64..20_000, 0u32..300, any::<bool>()), 0..800),
    ) {
        let mut limit = limit(least, most);
        let mut now = Duration::ZERO;
        for (kind, ago, passed, in_flight, is_full) in calls {
            now += Duration::from_millis(passed);
            limit.began(in_flight, is_full);
            let sample = [LoadSample::Served, LoadSample::Refused("no"), LoadSample::Unclear][usize::from(kind)];
            let (before, full) = (limit.limit(), limit.limit);
            let has_changed = limit.ended(now.saturating_sub(Duration::from_millis(ago)), now, now, sample);
            prop_assert!((least..=most).contains(&limit.limit()));
            prop_assert_eq!(has_changed, before != limit.limit());
            if limit.limit > full {
                prop_assert_eq!(sample, LoadSample::Served);
            }
            if let Some(reason) = limit.reason() {
                prop_assert!(!reason.is_empty());
            }
        }
    }
}
