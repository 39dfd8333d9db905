//! The one reader of cron expressions: five fields, in the local time of a time zone. They yield times on the wall
//! clock of that zone; the caller decides which moments these are where the clock changes.

use std::{collections::BTreeMap, sync::LazyLock};

use cronexpr::{Crontab, FallbackTimezoneOption, MakeTimestamp, ParseOptions};
use jiff::{
    civil::{Date, DateTime, Time},
    tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase},
};

use crate::values::time::{Span, Timestamp};

/// The rules of time zones that are built in, so that all instances of one version have the same.
static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// The largest change of a clock: Samoa has left out a day, and so has Kwajalein.
const LONGEST_SHIFT: Span = Span::from_secs(26 * 3600);
/// The most changes of the clock that a count considers: those of a century.
const MOST_CHANGES: usize = 200;

/// A cron expression in a time zone of IANA.
#[derive(Clone, Debug)]
pub struct Cron {
    text: String,
    crontab: Crontab,
    timezone: TimeZone,
    goes_by_elapsed_time: bool,
}

/// A change of the clock: the moment, and the time by which it moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClockChange {
    pub at: Timestamp,
    pub shift: Span,
}

/// The moments at which a wall clock shows a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WallTime {
    Once(Timestamp),
    /// The clock jumps over this time; the moment is later by the length of the jump.
    Skipped(Timestamp),
    /// The clock shows this time twice.
    Twice(Timestamp, Timestamp),
}

impl WallTime {
    /// Returns the first moment.
    pub fn first(self) -> Timestamp {
        match self {
            WallTime::Once(at) | WallTime::Skipped(at) | WallTime::Twice(at, _) => at,
        }
    }
}

impl Cron {
    pub const LONGEST: usize = 200;

    /// Parses an expression. The error lists the faults, each as the name of the field and a message.
    pub fn read(cron: &str, timezone: &str) -> Result<Self, Vec<(&'static str, String)>> {
        let crontab = parse(cron);
        let zone = ZONES.get(timezone);
        match (crontab, zone) {
            (Ok(crontab), Ok(timezone)) => Ok(Self {
                goes_by_elapsed_time: is_frequent(cron),
                text: cron.to_owned(),
                crontab,
                timezone,
            }),
            (crontab, zone) => {
                let mut faults = Vec::new();
                faults.extend(crontab.err().map(|message| ("cron", message)));
                if zone.is_err() {
                    let message =
                        "must be the name of a time zone, such as \"Europe/Berlin\" or \"UTC\"";
                    faults.push(("timezone", message.to_owned()));
                }
                Err(faults)
            }
        }
    }

    /// Returns whether the expression means an interval rather than times of the day, by the rule of cronie: its
    /// minutes begin with `*`, or it fires in every hour. If the clock shows an hour twice, it fires in both.
    pub fn goes_by_elapsed_time(&self) -> bool {
        self.goes_by_elapsed_time
    }

    /// Returns the wall-clock times from this moment on, and perhaps some shortly before it, in the order of the wall
    /// clock.
    pub fn wall_times(&self, from: Timestamp) -> impl Iterator<Item = WallTime> {
        let on_the_wall = jiff::Timestamp::from_millisecond(from.as_millis())
            .ok()
            .map(|from| self.timezone.to_datetime(from))
            .and_then(|from| from.to_zoned(TimeZone::UTC).ok());
        let times = on_the_wall.and_then(|from| {
            self.crontab
                .iter_after(MakeTimestamp(from.timestamp()))
                .ok()
        });
        let times = times.into_iter().flatten().map_while(Result::ok);
        times.filter_map(|time| self.moments(time.datetime()))
    }

    fn moments(&self, on_the_wall: DateTime) -> Option<WallTime> {
        let time = self.timezone.to_ambiguous_timestamp(on_the_wall);
        let moment = |at: Result<jiff::Timestamp, _>| {
            let at: jiff::Timestamp = at.ok()?;
            Some(Timestamp::from_millis(at.as_millisecond()))
        };
        Some(match time.offset() {
            AmbiguousOffset::Unambiguous { .. } => WallTime::Once(moment(time.compatible())?),
            AmbiguousOffset::Gap { .. } => WallTime::Skipped(moment(time.compatible())?),
            AmbiguousOffset::Fold { .. } => {
                WallTime::Twice(moment(time.earlier())?, moment(time.later())?)
            }
        })
    }

    /// Returns the time by which the order of wall-clock times may differ from that of the moments near this moment.
    pub(crate) fn shift_near(&self, at: Timestamp) -> Span {
        let begin = at.as_millis().saturating_sub(LONGEST_SHIFT.as_millis());
        let changes = self.changes(Timestamp::from_millis(begin), at + LONGEST_SHIFT);
        changes.fold(Span::default(), |sum, change| {
            sum.saturating_add(change.shift)
        })
    }

    /// Returns the changes of the clock after one moment up to another, in order.
    fn changes(&self, from: Timestamp, until: Timestamp) -> impl Iterator<Item = ClockChange> {
        let from = jiff::Timestamp::from_millisecond(from.as_millis()).ok();
        let following = from.map(|from| self.timezone.following(from));
        let changes = following.into_iter().flatten();
        let changes = changes.map(|change| {
            let at = change.timestamp();
            let before = at - jiff::SignedDuration::from_nanos(1);
            let offset = |at: jiff::Timestamp| i64::from(self.timezone.to_offset(at).seconds());
            let shift = (offset(at) - offset(before)).unsigned_abs();
            ClockChange {
                at: Timestamp::from_millis(at.as_millisecond()),
                shift: Span::from_secs(shift),
            }
        });
        changes.take_while(move |change| change.at <= until)
    }

    /// Counts the fire times after one moment up to another. Only those near changes of the clock are iterated, by
    /// `walk`; the others are counted by their days.
    pub(crate) fn count(
        &self,
        from: Timestamp,
        until: Timestamp,
        mut walk: impl FnMut(Timestamp, Timestamp) -> u64,
    ) -> u64 {
        let Some(times) = TimesOfDay::of(&self.text) else {
            return walk(from, until);
        };
        let millis = |at: Timestamp, more: Span| {
            Timestamp::from_millis(at.as_millis().saturating_sub(more.as_millis()))
        };
        let mut count = 0_u64;
        let mut counted = from;
        let begin = millis(from, LONGEST_SHIFT);
        let changes = self.changes(begin, until + LONGEST_SHIFT);
        for change in changes.take(MOST_CHANGES) {
            let margin = change.shift.saturating_add(Span::from_secs(60));
            let near = millis(change.at, margin).max(counted).min(until);
            let after = (change.at + margin).max(near).min(until);
            count += self.count_quiet(&times, counted, near);
            if near < after {
                count += walk(near, after);
            }
            counted = after;
        }
        count + self.count_quiet(&times, counted, until)
    }

    /// Counts the fire times between two moments without a change of the clock.
    fn count_quiet(&self, times: &TimesOfDay, from: Timestamp, until: Timestamp) -> u64 {
        let on_the_wall = |at: Timestamp| {
            let at = jiff::Timestamp::from_millisecond(at.as_millis()).ok()?;
            Some(self.timezone.to_datetime(at))
        };
        match (on_the_wall(from), on_the_wall(until)) {
            (Some(from), Some(until)) if from < until => times.count(from, until),
            _ => 0,
        }
    }

    /// Returns a time in RFC 3339 with the offset of the time zone.
    pub fn local(&self, at: Timestamp) -> Option<String> {
        let at = jiff::Timestamp::from_millisecond(at.as_millis()).ok()?;
        let offset = self.timezone.to_offset(at);
        Some(at.display_with_offset(offset).to_string())
    }
}

/// Returns the fields of an expression: the minutes, the hours, and the three fields of the days.
fn fields(cron: &str) -> Option<(&str, &str, String)> {
    let mut fields = cron.split_whitespace();
    let (minutes, hours) = (fields.next()?, fields.next()?);
    Some((minutes, hours, fields.collect::<Vec<_>>().join(" ")))
}

/// Returns the wall-clock times of an expression from this day on, without a time zone.
fn times_from(cron: &str, day: Date) -> Option<impl Iterator<Item = DateTime> + use<>> {
    let crontab = parse(cron).ok()?;
    let begin = day.to_zoned(TimeZone::UTC).ok()?.timestamp();
    // A time at the beginning of the day is included.
    let before = begin - jiff::SignedDuration::from_secs(1);
    let times = crontab.iter_after(MakeTimestamp(before)).ok()?;
    Some(times.map_while(Result::ok).map(|time| time.datetime()))
}

fn is_frequent(cron: &str) -> bool {
    let Some((minutes, hours, _)) = fields(cron) else {
        return false;
    };
    let day = jiff::civil::date(2000, 1, 1);
    let each_hour = || {
        let times = times_from(&format!("0 {hours} * * *"), day);
        let times = times.into_iter().flatten();
        times.take_while(|time| time.date() == day).count() == 24
    };
    minutes.starts_with('*') || each_hour()
}

/// The times at which a cron fires on each of its days.
struct TimesOfDay {
    /// The times, in order.
    times: Vec<Time>,
    /// An expression that fires at midnight on each of its days.
    days: String,
}

impl TimesOfDay {
    fn of(cron: &str) -> Option<Self> {
        let (minutes, hours, days) = fields(cron)?;
        let day = jiff::civil::date(2000, 1, 1);
        let times = times_from(&format!("{minutes} {hours} * * *"), day)?;
        let times = times.take_while(|time| time.date() == day);
        Some(Self {
            times: times.map(DateTime::time).collect(),
            days: format!("0 0 {days}"),
        })
    }

    /// Counts the times after one wall-clock time up to another.
    fn count(&self, from: DateTime, until: DateTime) -> u64 {
        let up_to = |time: Time| self.times.partition_point(|of_day| *of_day <= time) as u64;
        let of_day = self.times.len() as u64;
        let is_one = |day: Date| self.days(day, day) == 1;
        let mut count = self.days(from.date(), until.date()) * of_day;
        if is_one(from.date()) {
            count -= up_to(from.time());
        }
        if is_one(until.date()) {
            count -= of_day - up_to(until.time());
        }
        count
    }

    /// Counts its days from one day to another, both included. Years of the same kind have the same number.
    fn days(&self, from: Date, until: Date) -> u64 {
        let walk = |from: Date, until: Date| {
            let days = times_from(&self.days, from).into_iter().flatten();
            let days = days.take_while(|time| time.date() <= until);
            days.count() as u64
        };
        if until.year() <= from.year() {
            return walk(from, until);
        }
        let mut count = walk(from, from.last_of_year()) + walk(until.first_of_year(), until);
        let mut kinds = BTreeMap::new();
        for year in from.year() + 1..until.year() {
            let first = jiff::civil::date(year, 1, 1);
            let kind = (
                first.in_leap_year(),
                first.weekday().to_monday_zero_offset(),
            );
            let of_year = kinds
                .entry(kind)
                .or_insert_with(|| walk(first, first.last_of_year()));
            count += *of_year;
        }
        count
    }
}

fn parse(cron: &str) -> Result<Crontab, String> {
    let form = "must be five fields such as \"0 2 * * SUN\": minute, hour, day of the month, month, day of the week";
    if cron.len() > Cron::LONGEST || cron.split_whitespace().count() != 5 {
        return Err(form.to_owned());
    }
    let mut options = ParseOptions::default();
    // The parser yields wall-clock times; the time zone is applied in this module.
    options.fallback_timezone_option = FallbackTimezoneOption::UTC;
    cronexpr::parse_crontab_with(cron, options).map_err(|_| {
        let at_fault = fields_at_fault(cron, options);
        match at_fault.is_empty() {
            true => form.to_owned(),
            false => format!("{} cannot be read; it {form}", at_fault.join(", and ")),
        }
    })
}

/// Returns the fields, of the five, that are wrong by themselves: each is parsed with `*` in all other fields.
fn fields_at_fault(cron: &str, options: ParseOptions) -> Vec<String> {
    const NAMES: [&str; 5] = [
        "minute",
        "hour",
        "day of the month",
        "month",
        "day of the week",
    ];
    let fields = cron.split_whitespace().zip(NAMES).enumerate();
    let wrong = fields.filter_map(|(at, (given, name))| {
        let mut alone = ["*"; 5];
        alone[at] = given;
        let alone = cronexpr::parse_crontab_with(&alone.join(" "), options);
        alone.is_err().then(|| format!("the {name} {given:?}"))
    });
    wrong.collect()
}
