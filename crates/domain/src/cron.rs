//! The one reader of cron expressions: five fields, in the time of a place. What is read are the times on a clock on the
//! wall there; which moments these are where the clock changes is for the caller to decide.

use std::sync::LazyLock;

use cronexpr::{Crontab, FallbackTimezoneOption, MakeTimestamp, ParseOptions};
use jiff::{
    civil::DateTime,
    tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase},
};

use crate::time::{Span, Timestamp};

/// The rules of time zones that are built in, so that all instances of one version have the same.
static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// A change of the clock moves nothing by more.
pub(crate) const LONGEST_SHIFT: Span = Span::from_secs(3 * 3600);

/// A cron expression in a time zone of IANA.
#[derive(Clone, Debug)]
pub struct Cron {
    crontab: Crontab,
    timezone: TimeZone,
}

/// The moments that a time on the wall is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WallTime {
    Once(Timestamp),
    /// The clock jumps over it; the moment is as much later as the clock jumps.
    Skipped(Timestamp),
    /// The clock has it twice.
    Twice(Timestamp, Timestamp),
}

impl WallTime {
    /// The first moment.
    pub fn first(self) -> Timestamp {
        match self {
            WallTime::Once(at) | WallTime::Skipped(at) | WallTime::Twice(at, _) => at,
        }
    }
}

impl Cron {
    pub const LONGEST: usize = 200;

    /// Or what is wrong: each fault as the name of the field, and a message.
    pub fn read(cron: &str, timezone: &str) -> Result<Self, Vec<(&'static str, String)>> {
        let crontab = parse(cron);
        let zone = ZONES.get(timezone);
        match (crontab, zone) {
            (Ok(crontab), Ok(timezone)) => Ok(Self { crontab, timezone }),
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

    /// The times on the wall from this moment on, and perhaps some shortly before it, in the order of the wall.
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

    /// Whether the clock there changes so near this moment that times on the wall and moments may be in another order.
    pub fn changes_near(&self, at: Timestamp) -> bool {
        let margin = LONGEST_SHIFT.saturating_add(Span::from_secs(3600));
        let begin = at.as_millis().saturating_sub(margin.as_millis());
        let end = (at + margin).as_millis();
        let Ok(begin) = jiff::Timestamp::from_millisecond(begin) else {
            return true;
        };
        let next = self.timezone.following(begin).next();
        next.is_some_and(|next| next.timestamp().as_millisecond() <= end)
    }

    /// RFC 3339 with the offset of the place.
    pub fn local(&self, at: Timestamp) -> Option<String> {
        let at = jiff::Timestamp::from_millisecond(at.as_millis()).ok()?;
        let offset = self.timezone.to_offset(at);
        Some(at.display_with_offset(offset).to_string())
    }
}

fn parse(cron: &str) -> Result<Crontab, String> {
    let form = "must be five fields such as \"0 2 * * SUN\": minute, hour, day of the month, month, day of the week";
    if cron.len() > Cron::LONGEST || cron.split_whitespace().count() != 5 {
        return Err(form.to_owned());
    }
    let mut options = ParseOptions::default();
    // What is found are the times on a clock on the wall; where that hangs is decided here.
    options.fallback_timezone_option = FallbackTimezoneOption::UTC;
    cronexpr::parse_crontab_with(cron, options).map_err(|_| {
        let at_fault = fields_at_fault(cron, options);
        match at_fault.is_empty() {
            true => form.to_owned(),
            false => format!("{} cannot be read; it {form}", at_fault.join(", and ")),
        }
    })
}

/// Those of the five fields that are wrong wherever they stand: with all others left open.
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
