//! The clock of a store that has none of its own, because it is a file on this machine.
//!
//! The wall clock of a machine is set: manually, by time synchronisation after hours without it, by a hypervisor. A
//! deadline by that clock would come hours late or at once. So the store's clock counts the time that has elapsed since
//! the machine was started, which cannot be set, and follows the wall clock by going a little slower or faster until
//! both agree. A wait of ten minutes lasts nine to eleven minutes then, even if the wall clock is set.

use std::time::Duration;

use uuid::Uuid;

use crate::{
    message::alert::AlertNotice,
    task::alert_kind::AlertKind,
    values::{
        ids::ReceiverName,
        time::{Span, Timestamp},
    },
};

/// While the clocks differ, the store's clock goes slower or faster by one part in this many.
const FOLLOWS_BY: u32 = 10;

/// If the difference is greater than this, the store's clock is set to the wall clock at once. Otherwise a machine that
/// starts in 1970 and gets the date from the network would take centuries to follow.
const FOLLOWED_AT_ONCE: Duration = Duration::from_secs(24 * 60 * 60);

/// While the store's clock follows, it is recorded at least this often, and at once when it begins to follow.
const UNRECORDED: Duration = Duration::from_secs(10);

/// The alert is raised if the difference is at least this. Time synchronisation that works stays far below it.
const ALERTED_FROM: Span = Span::from_secs(5);

/// The alert is closed if the difference is less than this.
const ALERTED_UNTIL: Span = Span::from_millis(100);

/// Both clocks of the machine at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockReading {
    /// The time since the machine was started, with the time in which it was suspended.
    pub elapsed: Duration,
    /// The time since the Unix epoch, by the wall clock.
    pub wall: Duration,
}

/// The time that the store's clock showed at a reading. It is kept in the database, so that a process that is started
/// after the wall clock was set continues from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClockRecord {
    pub at: Timestamp,
    /// The id of the start of the machine from which `elapsed` counts. Empty if the machine has no such id.
    pub boot: String,
    pub elapsed: Duration,
}

/// The store's clock was set to the wall clock, because the difference was too great to be followed gradually.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockJump {
    pub from: Timestamp,
    pub to: Timestamp,
}

/// The store's clock, as the documentation of this module describes it.
#[derive(Clone, Debug)]
pub struct SteadyClock {
    /// The time that the clock showed at `last`, since the Unix epoch.
    at: Duration,
    last: ClockReading,
    jump: Option<ClockJump>,
}

impl SteadyClock {
    /// Continues from the record if it is more reliable than the wall clock. If the machine was not restarted, the
    /// record gives the exact time; if it was, the record shows that the time cannot be earlier than the recorded one.
    pub fn begin(reading: ClockReading, boot: &str, record: Option<&ClockRecord>) -> Self {
        let shown = record.map(|record| {
            let at = since_epoch(record.at);
            let is_same_boot = !boot.is_empty() && boot == record.boot;
            match reading.elapsed.checked_sub(record.elapsed) {
                Some(passed) if is_same_boot => {
                    let at = at.saturating_add(passed);
                    // The clock may have gone faster since the record. It must show no time a second time.
                    let latest = at.saturating_add(passed.min(UNRECORDED) / FOLLOWS_BY);
                    latest.min(reading.wall).max(at)
                }
                _ => at.max(reading.wall),
            }
        });
        let mut clock = Self {
            at: shown.unwrap_or(reading.wall),
            last: reading,
            jump: None,
        };
        clock.read(reading);
        clock
    }

    /// Returns the time at this reading. Readings must be passed in the order in which they were taken.
    pub fn read(&mut self, reading: ClockReading) -> Timestamp {
        let passed = reading.elapsed.saturating_sub(self.last.elapsed);
        self.last = reading;
        let at = self.at.saturating_add(passed);
        let apart = at.abs_diff(reading.wall);
        if apart > FOLLOWED_AT_ONCE {
            self.at = reading.wall;
            self.jump = Some(ClockJump {
                from: timestamp(at),
                to: timestamp(reading.wall),
            });
        } else {
            let step = apart.min(passed / FOLLOWS_BY);
            self.at = match at > reading.wall {
                true => at.saturating_sub(step),
                false => at.saturating_add(step),
            };
        }
        timestamp(self.at)
    }

    /// Returns by how many milliseconds the clock was ahead of the wall clock at the last reading; negative if it was
    /// later.
    pub fn ahead_of_wall(&self) -> i64 {
        timestamp(self.at).as_millis() - timestamp(self.last.wall).as_millis()
    }

    /// Returns the last jump, once.
    pub fn take_jump(&mut self) -> Option<ClockJump> {
        self.jump.take()
    }

    /// Returns the record of the last reading.
    pub fn record(&self, boot: &str) -> ClockRecord {
        ClockRecord {
            at: timestamp(self.at),
            boot: boot.to_owned(),
            elapsed: self.last.elapsed,
        }
    }
}

/// Times before 1970 count as 1970.
fn since_epoch(at: Timestamp) -> Duration {
    Duration::from_millis(u64::try_from(at.as_millis()).unwrap_or(0))
}

fn timestamp(since_epoch: Duration) -> Timestamp {
    Timestamp::from_millis(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}

/// Returns whether the alert about a wall clock that was set must be open. `was`: the alert is open now. `ahead`: the
/// store's clock is this many milliseconds ahead of the wall clock.
pub fn is_clock_alerted(was: bool, ahead: i64) -> bool {
    let bound = match was {
        true => ALERTED_UNTIL,
        false => ALERTED_FROM,
    };
    ahead.unsigned_abs() >= bound.as_millis().unsigned_abs()
}

/// Returns whether the wall clock was set between two looks, at which the store's clock was `before` and `ahead`
/// milliseconds ahead of it.
pub fn is_clock_set_again(before: i64, ahead: i64) -> bool {
    before.abs_diff(ahead) >= ALERTED_FROM.as_millis().unsigned_abs()
}

/// Returns whether the text of an alert, raised `raised_ago` before now, is about an earlier setting of the clock than
/// the one by which the store's clock is `ahead` milliseconds ahead now. An earlier process raised the alert, and what
/// happened after that process ended is not known.
pub fn is_of_earlier_setting(text: &str, raised_ago: Span, ahead: i64) -> bool {
    let Some(said) = said_ahead(text) else {
        return true;
    };
    // By the wall clock, the difference decreases by at most one ninth of the time that passes.
    let most_followed = raised_ago.as_millis().unsigned_abs() / u64::from(FOLLOWS_BY - 1);
    let margin = ALERTED_FROM.as_millis().unsigned_abs();
    let (said_apart, apart) = (said.unsigned_abs(), ahead.unsigned_abs());
    said.signum() != ahead.signum()
        || apart > said_apart.saturating_add(margin)
        || apart.saturating_add(most_followed).saturating_add(margin) < said_apart
}

/// Returns the difference that the text of [`clocks_differ`] states, in ms, a whole number of seconds.
fn said_ahead(text: &str) -> Option<i64> {
    let (_, said) = text.split_once("the store's clock is ")?;
    let (apart, place) = said.split_once(' ')?;
    let apart = Span::parse(apart)?.as_millis();
    match place {
        place if place.starts_with("ahead of it") => Some(apart),
        place if place.starts_with("behind it") => Some(-apart),
        _ => None,
    }
}

/// Returns the subject of the alert: at most one alert with it is open. No configured receiver and no origin has such a
/// name.
pub fn clock_alert_subject() -> ReceiverName {
    ReceiverName::new("store:clock".to_owned())
}

pub fn clock_alert(id: Uuid, reason: &str, at: Timestamp) -> AlertNotice {
    AlertNotice {
        receiver: Some(clock_alert_subject()),
        ..AlertNotice::raised(id, AlertKind::ClockSet.as_str(), reason, at)
    }
}

/// Returns the text of the alert and the log entry while the clocks differ by `ahead` milliseconds.
pub fn clocks_differ(ahead: i64) -> String {
    let whole_seconds = Span::from_secs(ahead.unsigned_abs() / 1000);
    let (place, set, pace) = match ahead > 0 {
        true => ("ahead of", "back", "slower"),
        false => ("behind", "forward", "faster"),
    };
    let lasts = whole_seconds.saturating_mul(FOLLOWS_BY);
    format!(
        "the clock of this machine was set {set}: the store's clock is {whole_seconds} {place} it, and goes a tenth {pace} \
         until they agree, in about {lasts}. Waits, retries and deadlines last as long as they were to. Look at the time \
         synchronisation of the machine (timedatectl)"
    )
}

impl ClockJump {
    /// Returns the text of the alert and the log entry about the jump.
    pub fn in_words(&self) -> String {
        let (from, to) = (self.from, self.to);
        let effect = match to > from {
            true => "what was due in between is due now",
            false => "what is due later is due as much later",
        };
        format!(
            "the clock of this machine was set by more than {}: the store's clock followed at once, from {from} to {to}, and \
             {effect}. Look at the time synchronisation of the machine (timedatectl)",
            Span::from(FOLLOWED_AT_ONCE)
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const DAY: Duration = Duration::from_secs(86_400);
    const START: Duration = Duration::from_secs(1_800_000_000);

    fn reading(elapsed: Duration, wall: Duration) -> ClockReading {
        ClockReading { elapsed, wall }
    }

    fn begun() -> SteadyClock {
        SteadyClock::begin(reading(HOUR, START), "boot", None)
    }

    fn ms(duration: Duration) -> i64 {
        timestamp(duration).as_millis()
    }

    #[test]
    fn it_shows_the_wall_clock_while_nobody_sets_that() {
        let mut clock = begun();
        for seconds in [0, 1, 60, 86_400, 864_000] {
            let passed = Duration::from_secs(seconds);
            let shown = clock.read(reading(HOUR + passed, START + passed));
            assert_eq!(shown, timestamp(START + passed));
            assert_eq!(clock.ahead_of_wall(), 0);
        }
    }

    #[test]
    fn it_goes_a_tenth_slower_until_a_wall_clock_that_was_set_back_is_there() {
        let mut clock = begun();
        let minute = Duration::from_secs(60);
        let set_back = |passed: Duration| reading(HOUR + passed, START + passed - 2 * HOUR);
        clock.read(set_back(Duration::ZERO));
        assert_eq!(clock.ahead_of_wall(), 7_200_000);
        let shown = clock.read(set_back(10 * minute));
        assert_eq!(shown, timestamp(START + 9 * minute));
        assert_eq!(
            clock.read(set_back(20 * HOUR)),
            timestamp(START + 18 * HOUR)
        );
        assert_eq!(clock.ahead_of_wall(), 0);
        assert_eq!(clock.take_jump(), None);
    }

    #[test]
    fn it_goes_a_tenth_faster_until_it_is_at_a_wall_clock_that_was_set_forward() {
        let mut clock = begun();
        let minute = Duration::from_secs(60);
        let set = |passed: Duration| reading(HOUR + passed, START + passed + 2 * HOUR);
        assert_eq!(clock.read(set(10 * minute)), timestamp(START + 11 * minute));
        assert_eq!(clock.ahead_of_wall(), -7_140_000);
        assert_eq!(clock.read(set(21 * HOUR)), timestamp(START + 23 * HOUR));
        assert_eq!(clock.ahead_of_wall(), 0);
    }

    #[test]
    fn what_is_further_away_than_a_day_is_followed_at_once_and_told_once() {
        for wall in [START - 2 * DAY, START + 4000 * DAY, Duration::ZERO] {
            let mut clock = begun();
            assert_eq!(clock.read(reading(HOUR, wall)), timestamp(wall));
            let (from, to) = (timestamp(START), timestamp(wall));
            assert_eq!(clock.take_jump(), Some(ClockJump { from, to }));
            assert_eq!(clock.take_jump(), None);
            assert_eq!(clock.ahead_of_wall(), 0);
        }
    }

    #[test]
    fn a_process_that_is_started_after_the_clock_was_set_goes_on_from_the_record() {
        let record = begun().record("boot");
        for (wall, shown) in [
            (START - HOUR, Duration::from_secs(60)),
            (START + 3 * HOUR, Duration::from_secs(61)),
        ] {
            let now = reading(HOUR + Duration::from_secs(60), wall);
            let mut clock = SteadyClock::begin(now, "boot", Some(&record));
            assert_eq!(clock.read(now), timestamp(START + shown));
        }
    }

    #[test]
    fn a_process_that_is_started_while_the_clock_follows_shows_no_time_a_second_time() {
        for wall in [
            START + 3 * HOUR,
            START - HOUR,
            START + Duration::from_secs(1),
        ] {
            let mut before = begun();
            before.read(reading(HOUR, wall));
            let record = before.record("boot");
            for seconds in 1..=10 {
                let passed = Duration::from_secs(seconds);
                let now = reading(HOUR + passed, wall + passed);
                let shown = before.read(now);
                let mut after = SteadyClock::begin(now, "boot", Some(&record));
                assert!(after.read(now) >= shown, "{wall:?} {seconds}");
            }
        }
    }

    #[test]
    fn after_another_start_of_the_machine_the_record_is_the_earliest_time_that_it_can_be() {
        let record = begun().record("boot");
        for (boot, elapsed) in [
            ("other", 2 * HOUR),
            ("", 2 * HOUR),
            ("boot", Duration::ZERO),
        ] {
            for (wall, shown) in [(START - HOUR, START), (START + 3 * HOUR, START + 3 * HOUR)] {
                let now = reading(elapsed, wall);
                let mut clock = SteadyClock::begin(now, boot, Some(&record));
                assert_eq!(clock.read(now), timestamp(shown), "{boot}");
            }
        }
        let mut no_name = record.clone();
        no_name.boot = String::new();
        let now = reading(2 * HOUR, START - HOUR);
        let mut clock = SteadyClock::begin(now, "", Some(&no_name));
        assert_eq!(clock.read(now), timestamp(START));
    }

    #[test]
    fn a_record_that_is_more_than_a_day_away_is_given_up() {
        let record = ClockRecord {
            at: timestamp(START + 30 * DAY),
            ..begun().record("boot")
        };
        let mut clock = SteadyClock::begin(reading(HOUR, START), "other", Some(&record));
        assert_eq!(clock.read(reading(HOUR, START)), timestamp(START));
        assert!(clock.take_jump().is_some());
    }

    #[test]
    fn the_alert_opens_at_five_seconds_and_closes_below_a_tenth() {
        for sign in [1, -1] {
            assert!(!is_clock_alerted(false, 4_999 * sign));
            assert!(is_clock_alerted(false, 5_000 * sign));
            assert!(is_clock_alerted(true, 100 * sign));
            assert!(!is_clock_alerted(true, 99 * sign));
        }
    }

    #[test]
    fn the_alert_says_which_way_the_clock_was_set_and_how_long_it_takes() {
        let back = clocks_differ(7_200_000);
        assert!(
            back.contains("set back: the store's clock is 2h ahead of it"),
            "{back}"
        );
        assert!(
            back.contains("a tenth slower until they agree, in about 20h"),
            "{back}"
        );
        let forward = clocks_differ(-90_500);
        assert!(
            forward.contains("set forward: the store's clock is 1m30s behind it"),
            "{forward}"
        );
    }

    #[test]
    fn an_alert_of_an_earlier_setting_is_told_from_one_of_a_clock_that_is_followed() {
        let (hour, day) = (Span::from_secs(3600), Span::from_secs(86_400));
        let two_hours = 7_200_000;
        for sign in [1, -1] {
            let text = clocks_differ(two_hours * sign);
            for (ago, ahead, is_earlier) in [
                (Span::default(), two_hours, false),
                (hour, two_hours - 360_000, false),
                // The difference has not decreased, because no process ran.
                (hour, two_hours, false),
                (day, 500, false),
                (hour, -two_hours, true),
                (hour, -500, true),
                (hour, two_hours + 60_000, true),
                (hour, two_hours - 600_000, true),
            ] {
                let found = is_of_earlier_setting(&text, ago, ahead * sign);
                assert_eq!(found, is_earlier, "{text} {ago} {ahead} {sign}");
            }
        }
        let jump = ClockJump {
            from: timestamp(START),
            to: timestamp(START + 30 * DAY),
        };
        assert!(is_of_earlier_setting(&jump.in_words(), hour, two_hours));
    }

    proptest! {
        /// This holds for every change of the wall clock within a day of the store's clock.
        #[test]
        fn what_is_to_last_lasts_nine_to_eleven_tenths(
            steps in prop::collection::vec((0..600_000_u64, -43_200_000..43_200_000_i64), 1..50),
        ) {
            let mut clock = begun();
            let mut elapsed = HOUR;
            let mut shown = clock.read(reading(elapsed, START));
            for (passed, set_by) in steps {
                let passed = Duration::from_millis(passed);
                elapsed += passed;
                let wall = START + elapsed - HOUR;
                let wall = Duration::from_millis((ms(wall) + set_by).unsigned_abs());
                let next = clock.read(reading(elapsed, wall));
                let (went, most) = (next.as_millis() - shown.as_millis(), ms(passed));
                prop_assert!(went >= most - most / 10 - 2, "{went} of {most}");
                prop_assert!(went <= most + most / 10 + 2, "{went} of {most}");
                shown = next;
            }
        }
    }
}
