//! Tests of schedules with a simulated clock. Nothing here reads the real one.

use std::collections::BTreeSet;

use super::*;
use crate::values::fields::Fields;

pub(super) fn at(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

fn read(json: &str, now: &str) -> Result<ScheduleSpec, Vec<String>> {
    let value: Box<serde_json::value::RawValue> = serde_json::from_str(json).unwrap();
    let mut fields = Fields::of(&value, "").unwrap();
    let spec = ScheduleSpec::read(&mut fields, at(now));
    let faults = fields.finish().err().unwrap_or_default();
    match faults.is_empty() {
        true => Ok(spec),
        false => Err(faults.into_iter().map(|fault| fault.to_string()).collect()),
    }
}

pub(super) fn rule(json: &str, now: &str) -> ScheduleRule {
    let spec = read(json, now).unwrap();
    ScheduleRule {
        name: "nightly".to_owned(),
        timing: Timing::of(&spec).unwrap(),
        missed_after: MISSED_AFTER,
        spec,
    }
}

/// An instance that looks at the schedule when a look is due, unless it is down.
pub(super) struct World {
    pub(super) rule: ScheduleRule,
    pub(super) state: ScheduleState,
    pub(super) now: Timestamp,
    pub(super) next_at: Option<Timestamp>,
    /// The tasks that have not ended.
    pub(super) tasks: BTreeSet<TaskId>,
    /// The key of each task that was submitted.
    keys: Vec<String>,
    /// The fire times of the runs that began, with the time of the simulated clock.
    pub(super) begun: Vec<(Timestamp, Timestamp, RunSource)>,
    records: BTreeMap<u64, ScheduleRun>,
    /// True if a task ends at once.
    pub(super) is_instant: bool,
}

use std::collections::BTreeMap;

impl World {
    pub(super) fn new(json: &str, now: &str) -> Self {
        let rule = rule(json, now);
        let now = at(now);
        Self {
            state: ScheduleState::new(Uuid::nil(), now),
            next_at: Some(now),
            rule,
            now,
            tasks: BTreeSet::new(),
            keys: Vec::new(),
            begun: Vec::new(),
            records: BTreeMap::new(),
            is_instant: true,
        }
    }

    pub(super) fn look(&mut self) -> ScheduleDecision {
        // A process knows only what was saved.
        let saved = serde_json::to_string(&self.state).unwrap();
        self.state = serde_json::from_str(&saved).unwrap();
        let tasks = self.tasks.clone();
        let look = self
            .state
            .decide(&self.rule, self.now, |task| tasks.contains(&task));
        self.records.extend(look.records.clone());
        for (task, _) in &look.cancel {
            self.tasks.remove(task);
        }
        look
    }

    /// Looks once and submits what begins.
    pub(super) fn round(&mut self) {
        let look = self.look();
        for run in look.begin {
            let key = self.state.idempotency_key("nightly", &run);
            let begun = if self.keys.contains(&key) {
                RunSubmission::Repeated
            } else {
                self.keys.push(key);
                self.begun.push((run.fire_time, self.now, run.source));
                let task = TaskId(Uuid::from_u128(self.keys.len() as u128));
                if !self.is_instant {
                    self.tasks.insert(task);
                }
                RunSubmission::Task(task)
            };
            let run = self
                .state
                .record_submission(run.number, begun, self.now)
                .unwrap();
            self.records.insert(run.number, run);
        }
        self.next_at = self.state.next_decision(&self.rule, self.now, false);
    }

    /// Advances the clock, and makes every look that is due.
    pub(super) fn run_until(&mut self, until: &str) {
        let until = at(until);
        while let Some(next) = self.next_at.filter(|next| *next <= until) {
            self.now = self.now.max(next);
            self.round();
        }
        self.now = until;
    }

    /// Advances the clock without a look.
    fn down_until(&mut self, until: &str) {
        self.now = at(until);
    }

    pub(super) fn fired(&self) -> Vec<String> {
        self.begun
            .iter()
            .map(|(fire, ..)| fire.to_string()[..16].to_owned())
            .collect()
    }

    pub(super) fn skipped(&self) -> Vec<(SkipReason, u64)> {
        let skipped = self.records.values();
        skipped
            .filter_map(|run| Some((run.skipped?, run.count)))
            .collect()
    }
}

#[test]
fn a_schedule_fires_at_each_of_its_times_once() {
    let mut world = World::new(
        r#"{"cron":"0 2 * * *","timezone":"Europe/Berlin"}"#,
        "2026-01-10T12:00:00Z",
    );
    world.run_until("2026-01-13T12:00:00Z");
    let fired = ["2026-01-11T01:00", "2026-01-12T01:00", "2026-01-13T01:00"];
    assert_eq!(world.fired(), fired);
    assert!(world.begun.iter().all(|(fire, now, _)| fire == now));
    assert_eq!(world.skipped(), []);
}

#[test]
fn in_spring_a_time_that_does_not_exist_is_moved_or_left_out() {
    // In Berlin the clock goes from two to three on 2026-03-29.
    for (dst, fired, left_out) in [
        (
            "once",
            vec!["2026-03-28T01:30", "2026-03-29T01:30", "2026-03-30T00:30"],
            0,
        ),
        (
            "both",
            vec!["2026-03-28T01:30", "2026-03-29T01:30", "2026-03-30T00:30"],
            0,
        ),
        ("skip", vec!["2026-03-28T01:30", "2026-03-30T00:30"], 1),
    ] {
        let json = format!(r#"{{"cron":"30 2 * * *","timezone":"Europe/Berlin","dst":"{dst}"}}"#);
        let mut world = World::new(&json, "2026-03-27T12:00:00Z");
        world.run_until("2026-03-30T12:00:00Z");
        assert_eq!(world.fired(), fired, "{dst}");
        assert_eq!(world.skipped().len(), left_out, "{dst}");
        assert!(
            world
                .skipped()
                .iter()
                .all(|(reason, _)| *reason == SkipReason::Dst)
        );
    }
}

#[test]
fn in_autumn_a_time_that_comes_twice_fires_once_or_twice() {
    // In Berlin the clock goes from three to two on 2026-10-25.
    for (dst, fired) in [
        (
            "once",
            vec!["2026-10-24T00:30", "2026-10-25T00:30", "2026-10-26T01:30"],
        ),
        (
            "skip",
            vec!["2026-10-24T00:30", "2026-10-25T00:30", "2026-10-26T01:30"],
        ),
        (
            "both",
            vec![
                "2026-10-24T00:30",
                "2026-10-25T00:30",
                "2026-10-25T01:30",
                "2026-10-26T01:30",
            ],
        ),
    ] {
        let json = format!(r#"{{"cron":"30 2 * * *","timezone":"Europe/Berlin","dst":"{dst}"}}"#);
        let mut world = World::new(&json, "2026-10-23T12:00:00Z");
        world.run_until("2026-10-26T12:00:00Z");
        assert_eq!(world.fired(), fired, "{dst}");
        assert_eq!(world.skipped(), []);
    }
}

/// The pattern fires every quarter of an hour. Moved times coincide with existing ones, and the times that come twice
/// stay in the order of time.
#[test]
fn frequent_times_stay_in_order_over_both_changes_of_the_clock() {
    let times = |dst: &str, from: &str, until: &str| {
        let json = format!(r#"{{"cron":"*/15 * * * *","timezone":"Europe/Berlin","dst":"{dst}"}}"#);
        let rule = rule(&json, "2026-01-01T00:00:00Z");
        let until = at(until);
        let times = rule.timing.after(at(from));
        let times = times
            .take_while(|fire| fire.at <= until)
            .filter(|fire| !fire.is_left_out);
        times.map(|fire| fire.at).collect::<Vec<_>>()
    };
    for dst in ["once", "skip", "both"] {
        // The span has four hours of real time, although the clock jumps over one hour.
        let spring = times(dst, "2026-03-28T23:00:00Z", "2026-03-29T03:00:00Z");
        assert_eq!(spring.len(), 16, "{dst}");
        // The pattern means an interval, so the hour that comes twice fires twice.
        let autumn = times(dst, "2026-10-24T22:00:00Z", "2026-10-25T04:00:00Z");
        assert_eq!(autumn.len(), 24, "{dst}");
        for list in [spring, autumn] {
            assert!(list.windows(2).all(|pair| pair[0] < pair[1]), "{dst}");
        }
    }
}

/// The fire times are the same for every time from which they are requested.
#[test]
fn fire_times_do_not_depend_on_when_they_are_asked_for() {
    for dst in ["once", "skip", "both"] {
        for timezone in [
            "Europe/Berlin",
            "Australia/Lord_Howe",
            "America/St_Johns",
            "UTC",
        ] {
            let json =
                format!(r#"{{"cron":"7,37 1-3 * * *","timezone":"{timezone}","dst":"{dst}"}}"#);
            let rule = rule(&json, "2026-01-01T00:00:00Z");
            for begin in [
                "2026-03-06T00:00:00Z",
                "2026-04-03T00:00:00Z",
                "2026-10-02T00:00:00Z",
                "2026-10-23T00:00:00Z",
            ] {
                let all: Vec<_> = rule.timing.after(at(begin)).take(40).collect();
                for (index, fire) in all.iter().enumerate().take(30) {
                    let next = rule.timing.after(fire.at).next();
                    assert_eq!(
                        next,
                        all.get(index + 1).copied(),
                        "{timezone} {dst} after {}",
                        fire.at
                    );
                    let before = Timestamp::from_millis(fire.at.as_millis() - 1);
                    assert_eq!(rule.timing.after(before).next(), Some(*fire));
                }
                let (last, is_more) = rule.timing.last(all[3].at, all[20].at, 100);
                assert_eq!(last, all[4..=20]);
                assert!(!is_more);
                let (last, is_more) = rule.timing.last(all[3].at, all[20].at, 5);
                assert_eq!(last, all[16..=20]);
                assert!(is_more);
            }
        }
    }
}

#[test]
fn a_leap_day_comes_every_four_years() {
    let mut world = World::new(r#"{"cron":"0 0 29 2 *"}"#, "2026-01-01T00:00:00Z");
    world.run_until("2033-01-01T00:00:00Z");
    assert_eq!(world.fired(), ["2028-02-29T00:00", "2032-02-29T00:00"]);
}

#[test]
fn every_is_a_multiple_of_the_duration_and_needs_no_place() {
    let mut world = World::new(r#"{"every":"10m"}"#, "2026-01-01T00:03:00Z");
    world.run_until("2026-01-01T00:35:00Z");
    assert_eq!(
        world.fired(),
        ["2026-01-01T00:10", "2026-01-01T00:20", "2026-01-01T00:30"]
    );
}

#[test]
fn what_was_missed_is_caught_up_as_the_schedule_says() {
    for (catch_up, fired, skipped) in [
        (
            "none",
            vec!["2026-01-01T08:00"],
            vec![(SkipReason::Missed, 4)],
        ),
        (
            "last",
            vec!["2026-01-01T05:00", "2026-01-01T08:00"],
            vec![(SkipReason::Missed, 3)],
        ),
        (
            "all",
            vec![
                "2026-01-01T02:00",
                "2026-01-01T03:00",
                "2026-01-01T04:00",
                "2026-01-01T05:00",
                "2026-01-01T08:00",
            ],
            vec![],
        ),
    ] {
        let json =
            format!(r#"{{"cron":"0 2,3,4,5,8 * * *","catch_up":"{catch_up}","overlap":"allow"}}"#);
        let mut world = World::new(&json, "2026-01-01T01:00:00Z");
        world.down_until("2026-01-01T07:30:00Z");
        world.run_until("2026-01-01T08:30:00Z");
        assert_eq!(world.fired(), fired, "{catch_up}");
        assert_eq!(world.skipped(), skipped, "{catch_up}");
        let caught_up = world
            .begun
            .iter()
            .filter(|(.., source)| *source == RunSource::CaughtUp);
        assert_eq!(caught_up.count(), fired.len() - 1);
    }
}

#[test]
fn the_last_missed_one_is_not_caught_up_where_another_is_due() {
    let mut world = World::new(
        r#"{"cron":"0 * * * *","catch_up":"last"}"#,
        "2026-01-01T01:30:00Z",
    );
    world.down_until("2026-01-01T04:00:05Z");
    world.run_until("2026-01-01T04:01:00Z");
    assert_eq!(world.fired(), ["2026-01-01T04:00"]);
    assert_eq!(world.begun[0].2, RunSource::Scheduled);
    assert_eq!(world.skipped(), [(SkipReason::Missed, 2)]);
}

#[test]
fn a_failover_misses_nothing() {
    let json = r#"{"every":"10s","catch_up":"none","overlap":"allow"}"#;
    let mut world = World::new(json, "2026-01-01T00:00:01Z");
    world.down_until("2026-01-01T00:00:32Z");
    world.run_until("2026-01-01T00:00:45Z");
    assert_eq!(world.begun.len(), 4);
    assert_eq!(world.skipped(), []);
}

#[test]
fn catching_up_is_bounded_however_long_nothing_ran() {
    for catch_up in ["none", "last", "all"] {
        for when in [
            r#""every":"1s""#,
            r#""cron":"* * * * *""#,
            r#""cron":"* * * 1 *""#,
        ] {
            let json = format!(r#"{{{when},"catch_up":"{catch_up}","overlap":"allow"}}"#);
            let mut world = World::new(&json, "2026-01-01T00:00:00Z");
            world.down_until("2029-06-01T00:10:00Z");
            world.round();
            let most = match catch_up {
                // The fire times of the last minute are on time.
                "none" => 61,
                "last" => 61,
                _ => MOST_CAUGHT_UP + 61,
            };
            assert!(world.begun.len() <= most, "{json}: {}", world.begun.len());
            let sources = world.begun.iter().map(|(.., source)| *source);
            let caught_up = sources
                .filter(|source| *source == RunSource::CaughtUp)
                .count();
            if catch_up == "all" {
                assert_eq!(caught_up, MOST_CAUGHT_UP, "{json}");
            }
            assert!(world.records.len() <= MOST_CAUGHT_UP + 62);
            // Each fire time is in the record: either it fired, or it was left out.
            let skipped: u64 = world.skipped().iter().map(|(_, count)| count).sum();
            let all = world
                .rule
                .timing
                .count(at("2026-01-01T00:00:00Z"), world.now);
            assert_eq!(
                skipped + world.begun.len() as u64,
                all.fires + all.left_out,
                "{json}"
            );
            let begins = world.begun.len();
            world.round();
            assert_eq!(world.begun.len(), begins, "each once");
            assert!(world.next_at.unwrap() > world.now);
        }
    }
}

#[test]
fn a_clock_that_is_set_back_fires_nothing_twice_and_misses_nothing() {
    let mut world = World::new(r#"{"cron":"*/10 * * * *"}"#, "2026-01-01T00:05:00Z");
    world.run_until("2026-01-01T00:35:00Z");
    assert_eq!(world.begun.len(), 3);
    // The clock goes back by half an hour. The fire times that have fired do not fire again.
    world.now = at("2026-01-01T00:05:00Z");
    world.round();
    world.run_until("2026-01-01T00:55:00Z");
    let fired = [
        "2026-01-01T00:10",
        "2026-01-01T00:20",
        "2026-01-01T00:30",
        "2026-01-01T00:40",
        "2026-01-01T00:50",
    ];
    assert_eq!(world.fired(), fired);
}

#[test]
fn a_clock_that_was_a_year_ahead_silences_no_schedule() {
    let json = r#"{"cron":"0 * * * *","catch_up":"last"}"#;
    let mut world = World::new(json, "2026-01-01T00:30:00Z");
    world.run_until("2026-01-01T01:30:00Z");
    world.now = at("2027-01-01T00:30:00Z");
    world.round();
    assert_eq!(world.fired(), ["2026-01-01T01:00", "2027-01-01T00:00"]);
    world.now = at("2026-01-01T01:40:00Z");
    let look = world.look();
    assert!(look.is_stepped_back && look.begin.is_empty());
    world.next_at = look.next_at;
    world.run_until("2026-01-01T03:30:00Z");
    assert_eq!(world.fired()[2..], ["2026-01-01T02:00", "2026-01-01T03:00"]);
    // The fire time that has fired too early, a year ago, has its task already.
    world.now = at("2026-12-31T23:30:00Z");
    world.state.handled_at = world.now;
    world.next_at = Some(world.now);
    world.run_until("2027-01-01T00:30:00Z");
    assert_eq!(world.begun.len(), 4);
    assert_eq!(world.skipped().last(), Some(&(SkipReason::Repeated, 1)));
}

#[test]
fn a_clock_that_is_set_forward_makes_one_run_of_what_it_jumps_over() {
    let mut world = World::new(r#"{"cron":"0 * * * *"}"#, "2026-01-01T00:30:00Z");
    world.now = at("2026-01-01T05:30:00Z");
    world.run_until("2026-01-01T06:30:00Z");
    assert_eq!(world.fired(), ["2026-01-01T05:00", "2026-01-01T06:00"]);
    assert_eq!(world.skipped(), [(SkipReason::Missed, 4)]);
}

#[test]
fn jitter_is_the_same_for_everyone_and_keeps_the_order() {
    let rule = rule(
        r#"{"cron":"0 * * * *","jitter":"1h"}"#,
        "2026-01-01T00:00:00Z",
    );
    let other = ScheduleRule {
        name: "other".to_owned(),
        ..rule.clone()
    };
    let times: Vec<_> = rule
        .timing
        .after(at("2026-01-01T00:00:00Z"))
        .take(200)
        .collect();
    let of = |rule: &ScheduleRule| {
        times
            .iter()
            .map(|fire| rule.starts_at(fire.at).as_millis() - fire.at.as_millis())
            .collect::<Vec<_>>()
    };
    let waits = of(&rule);
    assert_eq!(waits, of(&rule.clone()));
    assert_ne!(waits, of(&other));
    assert!(waits.iter().all(|wait| (0..3_600_000).contains(wait)));
    assert!(waits.iter().max().unwrap() - waits.iter().min().unwrap() > 1_800_000);
    let json = r#"{"cron":"0 * * * *","jitter":"1h","overlap":"allow","catch_up":"none"}"#;
    let mut world = World::new(json, "2026-01-01T00:00:00Z");
    world.run_until("2026-01-09T08:00:00Z");
    let fires: Vec<_> = world.begun.iter().map(|(fire, ..)| *fire).collect();
    assert!(
        fires.windows(2).all(|pair| pair[0] < pair[1]),
        "each once, in order"
    );
    assert!(fires.len() >= 199, "{} of 200", fires.len());
    assert_eq!(world.skipped(), [], "an instance runs all the time");
    for (fire, now, _) in &world.begun {
        assert!(world.rule.starts_at(*fire) <= *now);
    }
    // A fire time is shown until its run begins.
    let now = at("2026-01-01T01:00:30Z");
    let next = world.rule.next(at("2026-01-01T00:00:00Z"), now, 10);
    assert_eq!(next.len(), 10);
    assert!(next[0] < now, "{next:?}");
    assert!(next.iter().all(|fire| world.rule.starts_at(*fire) > now));
}

#[test]
fn a_run_that_overlaps_is_left_out_queued_or_takes_the_place_of_the_other() {
    let at_hours = |overlap: &str| {
        let json = format!(r#"{{"cron":"0 * * * *","overlap":"{overlap}"}}"#);
        let mut world = World::new(&json, "2026-01-01T00:30:00Z");
        world.is_instant = false;
        world.run_until("2026-01-01T04:30:00Z");
        world
    };
    let mut skip = at_hours("skip");
    assert_eq!(skip.fired(), ["2026-01-01T01:00"]);
    assert_eq!(skip.skipped(), [(SkipReason::Overlap, 3)]);
    let left_out = skip.records.values().last().unwrap();
    assert_eq!(left_out.fire_time, at("2026-01-01T02:00:00Z"));
    assert_eq!(left_out.last_fire_time, Some(at("2026-01-01T04:00:00Z")));
    assert!(left_out.reason.as_ref().unwrap().contains("has not ended"));
    skip.tasks.clear();
    skip.run_until("2026-01-01T05:30:00Z");
    assert_eq!(skip.fired(), ["2026-01-01T01:00", "2026-01-01T05:00"]);

    let mut queue = at_hours("queue");
    assert_eq!(queue.fired(), ["2026-01-01T01:00"]);
    assert_eq!(queue.state.open.len(), 3);
    queue.tasks.clear();
    queue.run_until("2026-01-01T04:31:00Z");
    assert_eq!(queue.fired(), ["2026-01-01T01:00", "2026-01-01T02:00"]);

    let replace = at_hours("replace");
    assert_eq!(replace.begun.len(), 4);
    assert_eq!(replace.tasks.len(), 1);

    let allow = at_hours("allow");
    assert_eq!(allow.begun.len(), 4);
    assert_eq!(allow.tasks.len(), 4);
}

#[test]
fn a_queue_does_not_grow_for_ever() {
    let mut world = World::new(
        r#"{"every":"1m","overlap":"queue"}"#,
        "2026-01-01T00:00:30Z",
    );
    world.is_instant = false;
    world.run_until("2026-01-01T06:00:00Z");
    assert_eq!(world.state.open.len(), MOST_QUEUED);
    assert_eq!(world.skipped(), [(SkipReason::QueueFull, 360 - 201)]);
}

#[test]
fn an_instance_that_is_killed_before_or_after_the_submission_repeats_and_loses_nothing() {
    let mut world = World::new(r#"{"cron":"0 * * * *"}"#, "2026-01-01T00:30:00Z");
    world.now = at("2026-01-01T01:00:00Z");
    // The instance is killed after it has saved its decision.
    let first = world.look();
    assert_eq!(first.begin.len(), 1);
    assert_eq!(first.next_at, Some(world.now), "another looks at once");
    world.now = at("2026-01-01T03:00:30Z");
    let second = world.look();
    assert_eq!(
        second.begin[0], first.begin[0],
        "the same run, under the same key"
    );
    let left_out = [(SkipReason::Missed, 1), (SkipReason::Overlap, 1)];
    assert_eq!(world.skipped(), left_out);
    let (number, task) = (first.begin[0].number, TaskId(Uuid::max()));
    // Two instances have submitted it, and both report the result.
    assert!(
        world
            .state
            .record_submission(number, RunSubmission::Task(task), world.now)
            .is_some()
    );
    assert!(
        world
            .state
            .record_submission(number, RunSubmission::Task(task), world.now)
            .is_none()
    );
    assert_eq!(world.state.running, [task]);
}

#[test]
fn nothing_fires_while_it_is_paused_and_nothing_of_that_time_later() {
    let mut world = World::new(
        r#"{"cron":"0 * * * *","catch_up":"all","overlap":"allow"}"#,
        "2026-01-01T00:30:00Z",
    );
    world
        .state
        .pause("ann", Some("flood".to_owned()), false, world.now);
    world.round();
    assert_eq!(world.next_at, None);
    world.down_until("2026-01-01T03:30:00Z");
    world.state.resume("bob", world.now);
    world.next_at = Some(world.now);
    world.run_until("2026-01-01T04:30:00Z");
    assert_eq!(world.fired(), ["2026-01-01T04:00"]);
    assert_eq!(world.skipped(), [(SkipReason::Paused, 3)]);
    let by: Vec<_> = world
        .state
        .changes
        .iter()
        .map(|change| (change.action, &*change.by))
        .collect();
    assert_eq!(
        by,
        [
            (ScheduleAction::Resumed, "bob"),
            (ScheduleAction::Paused, "ann")
        ]
    );
}

fn asked(overlap: Overlap) -> TriggerRequest {
    TriggerRequest {
        by: "ann".to_owned(),
        overlap,
        request: None,
        reason: None,
    }
}

#[test]
fn a_run_that_is_triggered_meets_others_as_any() {
    let mut world = World::new(r#"{"cron":"0 * * * *"}"#, "2026-01-01T00:30:00Z");
    world.is_instant = false;
    world.state.pause("ann", None, false, world.now);
    let run = world
        .state
        .trigger(&asked(Overlap::Skip), world.now)
        .unwrap();
    assert_eq!(
        (run.source, run.by.as_deref()),
        (RunSource::Triggered, Some("ann"))
    );
    world.round();
    assert_eq!(world.begun.len(), 1, "also while it is paused");
    let refused = world.state.trigger(&asked(Overlap::Skip), world.now);
    assert!(matches!(refused, Err(RunRefusal::Overlap(_))));
    world
        .state
        .trigger(&asked(Overlap::Allow), world.now)
        .unwrap();
    world.round();
    assert_eq!(world.begun.len(), 2);
    world
        .state
        .trigger(&asked(Overlap::Replace), world.now)
        .unwrap();
    world.round();
    world.round();
    assert_eq!(world.begun.len(), 3);
    assert_eq!(world.tasks.len(), 1);
}

#[test]
fn a_run_whose_task_may_be_submitted_is_neither_replaced_nor_overtaken_nor_discarded() {
    let mut world = World::new(
        r#"{"cron":"0 * * * *","overlap":"replace"}"#,
        "2026-01-01T00:30:00Z",
    );
    world.is_instant = false;
    world.now = at("2026-01-01T01:00:00Z");
    // The begin of the run is saved, and the result of its submission is not.
    let first = world.look().begin;
    assert_eq!(first.len(), 1);
    world.now = at("2026-01-01T02:00:00Z");
    let second = world.look();
    assert_eq!(second.begin, first, "it is submitted again, under its key");
    assert_eq!(world.skipped(), []);
    world.state.pause("bob", None, true, world.now);
    assert_eq!(world.look().begin, first);
    let task = TaskId(Uuid::from_u128(7));
    let begun =
        world
            .state
            .record_submission(first[0].number, RunSubmission::Task(task), world.now);
    assert_eq!(begun.unwrap().state, RunState::Started);
    assert_eq!(world.state.running, [task]);
}

#[test]
fn a_backfill_runs_one_after_the_other_and_no_fire_time_twice() {
    let mut world = World::new(r#"{"cron":"0 * * * *"}"#, "2026-01-01T04:30:00Z");
    world.run_until("2026-01-01T05:30:00Z");
    let times = world
        .rule
        .between(at("2026-01-01T02:00:00Z"), at("2026-01-01T05:00:00Z"), 100);
    let times = times.unwrap();
    assert_eq!(times.len(), 4, "both ends are in it");
    world
        .state
        .backfill(&times, &asked(Overlap::Queue), world.now)
        .unwrap();
    for _ in 0..5 {
        world.round();
    }
    let fired = [
        "2026-01-01T05:00",
        "2026-01-01T02:00",
        "2026-01-01T03:00",
        "2026-01-01T04:00",
    ];
    assert_eq!(world.fired(), fired);
    assert_eq!(world.skipped(), [(SkipReason::Repeated, 1)]);
    assert_eq!(
        world
            .rule
            .between(at("2026-01-01T00:00:00Z"), at("2026-01-09T00:00:00Z"), 100),
        None
    );
    // The waiting runs are discarded by a pause.
    world
        .state
        .backfill(&times[..2], &asked(Overlap::Queue), world.now)
        .unwrap();
    let discarded = world.state.pause("bob", None, true, world.now);
    assert_eq!(discarded.len(), 2);
    assert!(discarded[0].reason.as_ref().unwrap().contains("bob"));
    assert!(world.state.open.is_empty());
}

#[test]
fn after_its_end_it_fires_no_more_and_a_later_end_catches_nothing_up() {
    let json = r#"{"cron":"0 * * * *","until":"2026-01-01T02:00:00Z"}"#;
    let mut world = World::new(json, "2026-01-01T00:30:00Z");
    world.run_until("2026-01-01T09:00:00Z");
    assert_eq!(world.fired(), ["2026-01-01T01:00", "2026-01-01T02:00"]);
    assert_eq!(world.next_at, None);
    let before = world.rule.spec.clone();
    world.rule.spec.until = None;
    let after = world.rule.spec.clone();
    world.now = at("2026-01-01T09:30:00Z");
    world
        .state
        .put(Some(&before), &after, None, "ann", world.now);
    world.next_at = Some(world.now);
    world.run_until("2026-01-01T10:30:00Z");
    assert_eq!(world.fired()[2..], ["2026-01-01T10:00"]);
}

#[test]
fn other_times_catch_up_nothing_and_the_same_times_lose_nothing() {
    let mut world = World::new(r#"{"cron":"0 * * * *"}"#, "2026-01-01T00:30:00Z");
    let before = world.rule.spec.clone();
    world.now = at("2026-01-01T01:00:01Z");
    let after = ScheduleSpec {
        description: Some("new".to_owned()),
        ..before.clone()
    };
    world
        .state
        .put(Some(&before), &after, None, "ann", world.now);
    world.round();
    assert_eq!(world.begun.len(), 1);
    let other = rule(r#"{"cron":"*/2 * * * *"}"#, "2026-01-01T00:00:00Z");
    world.now = at("2026-01-01T01:30:30Z");
    world
        .state
        .put(Some(&after), &other.spec, None, "ann", world.now);
    world.rule = other;
    world.next_at = Some(world.now);
    world.run_until("2026-01-01T01:32:30Z");
    assert_eq!(world.fired()[1..], ["2026-01-01T01:32"]);
}

#[test]
fn a_run_that_fails_says_why_and_the_next_that_succeeds_ends_that() {
    let mut world = World::new(r#"{"cron":"0 * * * *"}"#, "2026-01-01T00:30:00Z");
    world.now = at("2026-01-01T01:00:00Z");
    let run = world.look().begin.remove(0);
    let failed = RunSubmission::Rejected("workflow \"x\" does not exist".to_owned());
    let run = world
        .state
        .record_submission(run.number, failed, world.now)
        .unwrap();
    assert_eq!(run.state, RunState::Failed);
    assert!(world.state.failing.is_some() && world.state.open.is_empty());
    world.next_at = world.state.next_decision(&world.rule, world.now, false);
    assert_eq!(world.next_at, Some(at("2026-01-01T02:00:00Z")));
    world.run_until("2026-01-01T02:00:00Z");
    assert_eq!(world.state.failing, None);
    // A task that cannot be submitted now is submitted soon, and delays nothing else.
    world.now = at("2026-01-01T03:00:00Z");
    world.look();
    let again = world.state.next_decision(&world.rule, world.now, true);
    assert_eq!(again, Some(at("2026-01-01T03:00:02Z")));
}

#[test]
fn every_fault_of_a_schedule_is_found_and_named() {
    let now = "2026-01-01T00:00:00Z";
    let faults = |json: &str| read(json, now).unwrap_err().join("; ");
    for (json, needles) in [
        ("{}", &["/cron: is missing"][..]),
        (
            r#"{"cron":"0 2 * * *","every":"1m"}"#,
            &["/every: give either"],
        ),
        (
            r#"{"every":"1m","timezone":"UTC","dst":"skip"}"#,
            &["/timezone: is only for", "/dst: is only for"],
        ),
        (r#"{"every":"10ms"}"#, &["/every: must be a duration"]),
        (
            r#"{"every":"1m","jitter":"2m"}"#,
            &["/jitter: must be at most"],
        ),
        (
            r#"{"cron":"0,5 2 * * *","jitter":"6m"}"#,
            &["/jitter: must be at most the shortest time between two fire times, which is 5m"],
        ),
        (r#"{"cron":"0 2 * *"}"#, &["/cron: must be five fields"]),
        (r#"{"cron":"0 2 30 2 *"}"#, &["/cron: never comes"]),
        (
            r#"{"cron":"0 2 * * *","timezone":"Berlin"}"#,
            &["/timezone: must be the name"],
        ),
        (
            r#"{"cron":"0 2 * * *","overlap":"drop"}"#,
            &["/overlap: must be \"skip\" or \"queue\""],
        ),
        (
            r#"{"cron":"0 2 * * *","catch_up":"some","dst":1}"#,
            &["/catch_up: must be", "/dst: must be"],
        ),
        (
            r#"{"cron":"0 2 * * *","until":"tomorrow"}"#,
            &["/until: must be a time"],
        ),
        (
            r#"{"cron":"0 2 * * *","until":"2025-01-01T00:00:00Z"}"#,
            &["/until: must be later"],
        ),
        (
            r#"{"cron":"0 2 * * *","until":"2026-01-01T01:00:00Z"}"#,
            &["/until: is before the first fire time"],
        ),
        (
            r#"{"cron":"0 2 * * *","jitter":"25h"}"#,
            &["/jitter: must be a duration"],
        ),
        (r#"{"cron":7}"#, &["/cron: must be a string"]),
        (
            r#"{"cron":"0 2 * * *","time_zone":"UTC"}"#,
            &["unknown field `time_zone`; did you mean `timezone`?"],
        ),
    ] {
        let found = faults(json);
        for needle in needles {
            assert!(found.contains(needle), "{json}: {found}");
        }
    }
    let whole = r#"{"cron":"0 2 * * *","timezone":"Europe/Berlin","overlap":"queue","catch_up":"all","dst":"both","jitter":"5m","until":"2027-01-01T00:00:00Z","description":"nightly"}"#;
    let spec = read(whole, now).unwrap();
    let saved = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<ScheduleSpec>(&saved).unwrap(), spec);
}

#[test]
fn a_queue_that_was_held_up_is_worked_off_as_fast_as_its_tasks_end() {
    let json = r#"{"every":"1m","overlap":"queue"}"#;
    let mut world = World::new(json, "2026-01-01T00:00:30Z");
    world.is_instant = false;
    world.run_until("2026-01-01T01:00:00Z");
    let before = world.begun.len();
    world.is_instant = true;
    world.tasks.clear();
    world.run_until("2026-01-01T01:05:00Z");
    let begun = world.begun.len() - before;
    assert!(begun > 55, "{begun} of those that waited for an hour");
}
