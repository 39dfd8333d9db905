//! Tests of fire times around changes of the clock in all zones, and of the number of fire times.

use jiff::tz::TimeZoneDatabase;
use proptest::prelude::*;

use super::{
    tests::{World, at, rule},
    timing::FireCount,
    *,
};
use crate::task::properties::cases;

const HOUR: i64 = 3_600_000;

fn timing(cron: &str, timezone: &str, dst: &str) -> Timing {
    let json = format!(r#"{{"cron":"{cron}","timezone":"{timezone}","dst":"{dst}"}}"#);
    rule(&json, "2000-01-01T00:00:00Z").timing
}

fn times(timing: &Timing, from: i64, until: i64) -> Vec<i64> {
    let times = timing.after(Timestamp::from_millis(from));
    let times = times
        .filter(|fire| !fire.is_left_out)
        .map(|fire| fire.at.as_millis());
    times.take_while(|at| *at <= until).collect()
}

/// Returns the changes of the clock of a zone between two times, each with its shift in milliseconds.
fn changes(timezone: &str, from: &str, until: &str) -> Vec<(i64, i64)> {
    let zone = TimeZoneDatabase::bundled().get(timezone).unwrap();
    let (from, until) = (at(from).as_millis(), at(until).as_millis());
    let begin = jiff::Timestamp::from_millisecond(from).unwrap();
    let changes = zone.following(begin).map(|change| {
        let at = change.timestamp();
        let before = at - jiff::SignedDuration::from_secs(1);
        let offset = |at| i64::from(zone.to_offset(at).seconds());
        (at.as_millisecond(), (offset(at) - offset(before)) * 1000)
    });
    let changes = changes.take_while(|(at, _)| *at < until);
    changes.filter(|(_, shift)| *shift != 0).collect()
}

fn offset(timezone: &str, at: i64) -> i32 {
    let zone = TimeZoneDatabase::bundled().get(timezone).unwrap();
    zone.to_offset(jiff::Timestamp::from_millisecond(at).unwrap())
        .seconds()
}

fn intervals_and_times_of_day_hold_over(timezone: &str, change: i64, shift: i64) {
    let longest = shift.abs().max(2 * HOUR);
    let (from, until) = (change - longest - 2 * HOUR, change + longest + 2 * HOUR);
    let all = ["once", "skip", "both"];
    // The values of `dst` make a difference for times of the day only, and these patterns are intervals. One zone is
    // checked with all values.
    let some = if timezone == "Australia/Lord_Howe" {
        &all[..]
    } else {
        &all[..1]
    };
    for dst in some {
        let quarters = times(&timing("*/15 * * * *", timezone, dst), from, until);
        let expected = usize::try_from((until - from) / (HOUR / 4)).unwrap();
        assert_eq!(quarters.len(), expected, "{timezone} {change} {dst}");
        assert!(
            quarters
                .windows(2)
                .all(|pair| pair[1] - pair[0] == HOUR / 4),
            "{timezone} {change} {dst}"
        );
        // Where the clock changes by half an hour, an hour of local time may be shorter or longer.
        let hours = times(&timing("0 * * * *", timezone, dst), from, until);
        let longest_gap = HOUR + shift.abs() % HOUR;
        assert!(
            hours
                .windows(2)
                .all(|pair| pair[1] - pair[0] <= longest_gap),
            "{timezone} {change} {dst} {hours:?}"
        );
    }
    // Each day has one fire time, and a day that does not exist has none.
    for cron in ["30 2 * * *", "0 0 * * *", "30 1 * * *", "45 23 * * *"] {
        let days = times(
            &timing(cron, timezone, "once"),
            change - 72 * HOUR,
            change + 72 * HOUR,
        );
        let left_out = usize::from(shift.abs() >= 24 * HOUR);
        assert!(
            (5 - left_out..=7).contains(&days.len()),
            "{timezone} {change} {cron} {days:?}"
        );
        let most = (24 + left_out as i64 * 24 + 3) * HOUR;
        assert!(
            days.windows(2)
                .all(|pair| (18 * HOUR..=most).contains(&(pair[1] - pair[0]))),
            "{timezone} {change} {cron} {days:?}"
        );
    }
}

#[test]
fn in_every_zone_intervals_go_by_elapsed_time_and_times_of_day_by_the_wall() {
    let database = TimeZoneDatabase::bundled();
    // Zones whose clocks change by the same shift at the same time of the day have equivalent fire times, so one of
    // them is enough.
    let mut seen = std::collections::BTreeSet::new();
    for name in database.available() {
        let name = name.as_str();
        for (change, shift) in changes(name, "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z") {
            let time_of_day = (change / 1000 + i64::from(offset(name, change))) % 86_400;
            if seen.insert((time_of_day, shift)) {
                intervals_and_times_of_day_hold_over(name, change, shift);
            }
        }
    }
    assert!(seen.len() > 10, "{}", seen.len());
}

#[test]
fn zones_that_move_by_half_an_hour_by_two_or_by_a_day_are_no_exception() {
    for (zone, from, until, least) in [
        (
            "Australia/Lord_Howe",
            "2026-01-01T00:00:00Z",
            "2027-01-01T00:00:00Z",
            2,
        ),
        (
            "Pacific/Apia",
            "2011-12-01T00:00:00Z",
            "2012-02-01T00:00:00Z",
            1,
        ),
        (
            "Antarctica/Troll",
            "2026-01-01T00:00:00Z",
            "2027-01-01T00:00:00Z",
            2,
        ),
        (
            "Antarctica/Casey",
            "2009-01-01T00:00:00Z",
            "2011-01-01T00:00:00Z",
            2,
        ),
        (
            "America/Caracas",
            "2016-01-01T00:00:00Z",
            "2017-01-01T00:00:00Z",
            1,
        ),
        (
            "Asia/Pyongyang",
            "2015-01-01T00:00:00Z",
            "2016-01-01T00:00:00Z",
            1,
        ),
    ] {
        let changes = changes(zone, from, until);
        assert!(changes.len() >= least, "{zone}: {}", changes.len());
        for (change, shift) in changes {
            intervals_and_times_of_day_hold_over(zone, change, shift);
        }
    }
}

#[test]
fn an_expression_goes_by_elapsed_time_if_it_means_an_interval() {
    for (cron, expected) in [
        ("*/15 * * * *", true),
        ("* * * * *", true),
        ("0 * * * *", true),
        ("7,37 0-23 * * MON", true),
        ("*/10 2 * * *", true),
        ("30 2 * * *", false),
        ("0,30 2 * * *", false),
        ("0 1-23 * * *", false),
        ("0 */2 * * *", false),
    ] {
        let cron = crate::schedule::cron::Cron::read(cron, "UTC").unwrap();
        assert_eq!(cron.goes_by_elapsed_time(), expected, "{cron:?}");
    }
}

const CRONS: [&str; 9] = [
    "*/15 * * * *",
    "0 * * * *",
    "30 2 * * *",
    "7,37 1-3 * * *",
    "* * * * *",
    "0 0 L * *",
    "15 2 29 2 *",
    "*/7 0-5 * * SUN",
    "59 23 1,15 * *",
];
const ZONES: [&str; 7] = [
    "UTC",
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Antarctica/Troll",
    "America/St_Johns",
    "Africa/Casablanca",
];

/// Counts the fire times one by one.
fn walked(timing: &Timing, from: Timestamp, until: Timestamp) -> FireCount {
    let times = timing.after(from).take_while(|fire| fire.at <= until);
    let (left_out, fires): (Vec<_>, Vec<_>) = times.partition(|fire| fire.is_left_out);
    let first_and_last = left_out.first().zip(left_out.last());
    FireCount {
        fires: fires.len() as u64,
        left_out: left_out.len() as u64,
        left_out_times: first_and_last.map(|(first, last)| (first.at, last.at)),
    }
}

proptest! {
    #![proptest_config(cases(32))]

    /// The years contain the day that Samoa left out, and both changes of the clock in the other zones.
    #[test]
    fn a_count_is_that_of_walking(
        cron in 0..CRONS.len(),
        zone in 0..ZONES.len(),
        dst in 0..3_usize,
        from in 1_300_000_000_000..1_350_000_000_000_i64,
        days in 0..40_i64,
        rest in 0..86_400_000_i64,
        every in 1..10_000_i64,
    ) {
        let until = from + days * 24 * HOUR + rest;
        let timing = timing(CRONS[cron], ZONES[zone], ["once", "skip", "both"][dst]);
        let every = Timing::Every(Span::from_secs(every.unsigned_abs()));
        for timing in [timing, every] {
            let (from, until) = (Timestamp::from_millis(from), Timestamp::from_millis(until));
            prop_assert_eq!(timing.count(from, until), walked(&timing, from, until));
        }
    }
}

#[test]
fn a_count_over_a_change_of_the_clock_is_that_of_walking() {
    for zone in ["Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia"] {
        for (change, shift) in changes(zone, "2011-03-01T00:00:00Z", "2012-01-10T00:00:00Z") {
            for cron in ["*/15 * * * *", "7,37 1-3 * * *"] {
                for dst in ["once", "skip"] {
                    let timing = timing(cron, zone, dst);
                    let half = shift / 2;
                    for (from, until) in [
                        (-30 * HOUR, 30 * HOUR),
                        (-half, half.abs() + 1),
                        (0, 1),
                        (-1, 0),
                        (-26 * HOUR, half),
                    ] {
                        let from = Timestamp::from_millis(change + from);
                        let until = Timestamp::from_millis(change + until);
                        assert_eq!(
                            timing.count(from, until),
                            walked(&timing, from, until),
                            "{zone} {cron} {dst} {from} {until}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_time_that_the_clock_jumps_over_is_not_counted_as_missed() {
    for (catch_up, missed, caught_up) in [("none", 364, 0), ("all", 264, 100)] {
        let json = format!(
            r#"{{"cron":"30 2 * * *","timezone":"Europe/Berlin","dst":"skip","catch_up":"{catch_up}","overlap":"allow"}}"#
        );
        let mut world = World::new(&json, "2026-01-01T12:00:00Z");
        world.now = at("2027-01-01T12:00:00Z");
        let look = world.look();
        let skipped = |reason| look.skipped.get(&reason).copied();
        assert_eq!(skipped(SkipReason::Missed), Some(missed), "{catch_up}");
        assert_eq!(skipped(SkipReason::Dst), Some(1), "{catch_up}");
        assert_eq!(world.state.open.len(), caught_up);
        let left_out = look.records.values();
        let mut left_out = left_out.filter(|run| run.skipped == Some(SkipReason::Dst));
        let of_spring = left_out.next().unwrap();
        assert_eq!(of_spring.fire_time, at("2026-03-29T01:30:00Z"));
    }
}

#[test]
fn a_time_that_the_clock_jumps_over_takes_no_place_among_those_that_are_caught_up() {
    let mut world = World::new(
        r#"{"cron":"30 2 * * *","timezone":"Europe/Berlin","dst":"skip","catch_up":"all","overlap":"allow"}"#,
        "2025-06-01T12:00:00Z",
    );
    world.now = at("2026-04-10T12:00:00Z");
    let look = world.look();
    assert_eq!(world.state.open.len(), 100);
    assert_eq!(look.skipped.get(&SkipReason::Dst), Some(&1));
}

#[test]
fn a_count_does_not_walk() {
    let (from, until) = (at("2026-01-01T00:00:00Z"), at("9026-01-01T00:00:00Z"));
    let minutes = (until.as_millis() - from.as_millis()) / 60_000;
    let all = timing("* * * * *", "UTC", "once").count(from, until).fires;
    assert_eq!(all, minutes.unsigned_abs());
    assert_eq!(
        Timing::Every(Span::from_secs(1)).count(from, until).fires,
        all * 60
    );
    // There are 7000 / 4 - 70 + 17 leap years in 7,000 years.
    let leap_days = timing("30 1 29 2 *", "Europe/Berlin", "once")
        .count(from, until)
        .fires;
    assert_eq!(leap_days, 7000 / 4 - 70 + 17);
}

#[test]
fn every_fire_time_that_was_missed_is_counted_and_the_last_hundred_are_caught_up() {
    for (catch_up, missed, left_out) in [
        ("none", 150, 150),
        ("last", 150, 150),
        ("all", 150, 50),
        ("all", 34_000_000, 33_999_900),
    ] {
        let json = format!(r#"{{"every":"1s","catch_up":"{catch_up}","overlap":"allow"}}"#);
        let mut world = World::new(&json, "2026-01-01T00:00:00Z");
        // The fire times of the last minute are late, but not missed.
        world.now = Timestamp::from_millis(world.now.as_millis() + missed * 1000 + 60_999);
        let look = world.look();
        assert_eq!(
            look.skipped.get(&SkipReason::Missed),
            Some(&left_out),
            "{catch_up}"
        );
        let caught_up = world
            .state
            .open
            .iter()
            .filter(|run| run.source == RunSource::CaughtUp);
        assert_eq!(
            caught_up.count() as u64,
            missed.unsigned_abs() - left_out,
            "{catch_up}"
        );
        let records: u64 = look
            .records
            .values()
            .filter(|run| run.skipped.is_some())
            .map(|run| run.count)
            .sum();
        assert_eq!(records, left_out);
        assert_eq!(
            look.records
                .values()
                .filter(|run| run.skipped.is_some())
                .count(),
            1
        );
    }
}

#[test]
fn what_came_during_a_pause_and_what_was_missed_are_counted_apart() {
    let mut world = World::new(
        r#"{"every":"1m","catch_up":"all","overlap":"allow"}"#,
        "2026-01-01T00:00:30Z",
    );
    world.state.pause("ann", None, false, world.now);
    world.now = at("2026-01-01T10:00:30Z");
    world.state.resume("ann", world.now);
    world.now = at("2026-01-01T15:00:30Z");
    let look = world.look();
    assert_eq!(look.skipped.get(&SkipReason::Paused), Some(&600));
    // 300 fire times came after it: the last one is late, and 100 are caught up.
    assert_eq!(look.skipped.get(&SkipReason::Missed), Some(&199));
}

/// The clock is a minute ahead for the duration of one look, and is then corrected.
#[test]
fn a_clock_that_was_ahead_for_a_moment_silences_nothing_and_replaces_nothing() {
    let mut world = World::new(
        r#"{"every":"1h","overlap":"replace"}"#,
        "2026-01-01T00:30:00Z",
    );
    world.is_instant = false;
    world.now = at("2026-01-01T01:00:00Z");
    world.round();
    assert_eq!(world.begun.len(), 1);
    let tasks = world.tasks.clone();
    world.now = at("2026-01-01T00:59:00Z");
    let look = world.look();
    assert!(look.is_stepped_back);
    assert_eq!(look.next_at, Some(at("2026-01-01T01:00:00Z")));
    world.next_at = look.next_at;
    world.run_until("2026-01-01T01:30:00Z");
    assert_eq!(world.tasks, tasks, "the task of this fire time runs on");
    assert_eq!(world.skipped(), [(SkipReason::Repeated, 1)]);
    world.run_until("2026-01-01T02:30:00Z");
    assert_eq!(world.fired(), ["2026-01-01T01:00", "2026-01-01T02:00"]);
    // The clocks of instances that are synchronised differ by less than this.
    world.now = at("2026-01-01T01:59:58Z");
    assert!(!world.look().is_stepped_back);
}
