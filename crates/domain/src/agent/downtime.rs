//! Planned downtime that repeats: windows by cron in the time of a place, in which an agent is paused.

use provost_object::{Faults, Object, Span};

use crate::{
    schedule::cron::{Cron, WallTime},
    values::time::Timestamp,
};

pub(crate) const MOST_DOWNTIMES: usize = 16;
const LONGEST_REASON: usize = 1000;
/// Up to this number of windows that follow each other without a gap are shown as one.
const MOST_JOINED: usize = 32;
/// A change of the clock moves the start of a window by no more: no zone has left out a day since 2011.
const LONGEST_SHIFT: Span = Span::from_secs(3 * 3600);
/// The time from which the windows of a specification are tried for overlaps.
const TRIED_FROM: Timestamp = Timestamp::from_millis(1_767_225_600_000);
const MOST_TRIED: usize = 64;

/// A window that repeats, in which an agent is paused.
#[derive(Clone, PartialEq, Eq, Debug, Object)]
#[object(name = "Downtime", check = DowntimeSpec::check_windows)]
pub struct DowntimeSpec {
    /// When it begins: minute, hour, day of the month, month and day of the week, by the clock of `timezone`. Where that
    /// jumps over a time, it begins as much later; of a time that comes twice, the first counts.
    #[field(
        ..=Cron::LONGEST,
        required = "give five fields such as \"0 2 * * SUN\"",
        example = "0 2 * * SUN"
    )]
    pub cron: String,
    /// How long it takes, 1 m to 7 d, and less than it takes until the next one begins.
    #[field(rename = "for", late, "1m"..="7d", required = "give a duration such as \"2h\"")]
    pub length: Span,
    /// The name of a time zone of IANA.
    #[field(..=100, default = "UTC", example = "Europe/Berlin")]
    pub timezone: String,
    #[field(..=LONGEST_REASON, check = check_reason, example = "maintenance of the database")]
    pub reason: Option<String>,
}

fn check_reason(reason: &str, faults: &mut Faults) {
    if reason.len() > LONGEST_REASON {
        faults.add(format!("must have at most {LONGEST_REASON} bytes"));
    }
}

impl DowntimeSpec {
    fn check_windows(&self, faults: &mut Faults) {
        let pointer = format!("{}/", faults.pointer());
        let mut found = faults.found.iter();
        let is_well = !found.any(|fault| fault.pointer.starts_with(&pointer));
        match Cron::read(&self.cron, &self.timezone) {
            Err(unreadable) => {
                for (field, message) in unreadable {
                    faults.field(field, message);
                }
            }
            Ok(cron) if is_well => {
                let downtime = Downtime::new(self, cron);
                let starts: Vec<_> = downtime.starts(TRIED_FROM).take(MOST_TRIED).collect();
                if starts.is_empty() {
                    faults.field("cron", "never comes: no year has such a day");
                }
                let overlaps = |pair: &[Timestamp]| pair[0] + self.length >= pair[1];
                if starts.windows(2).any(overlaps) {
                    let message = "is as long as it takes until the next window begins: the agent would not be called any more";
                    faults.field("for", message);
                }
            }
            Ok(_) => {}
        }
    }
}

/// A time in which an agent is paused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DowntimeWindow {
    pub start: Timestamp,
    pub end: Timestamp,
    pub reason: Option<String>,
}

/// The downtimes of an agent, ready to be asked.
#[derive(Clone, Debug, Default)]
pub struct Downtimes(Vec<Downtime>);

#[derive(Clone, Debug)]
struct Downtime {
    spec: DowntimeSpec,
    cron: Cron,
}

impl Downtimes {
    /// Leaves out the specifications that are at fault.
    pub fn new(specs: &[DowntimeSpec]) -> Self {
        let ready = specs.iter().filter_map(|spec| {
            let cron = Cron::read(&spec.cron, &spec.timezone).ok()?;
            Some(Downtime::new(spec, cron))
        });
        Self(ready.collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the window that holds now. Two windows of which one begins before the other has ended are one.
    pub fn holds_at(&self, now: Timestamp) -> Option<DowntimeWindow> {
        let current = self.0.iter().flat_map(|downtime| downtime.current(now));
        let mut window = current.max_by_key(|window| window.end)?;
        for _ in 0..MOST_JOINED {
            let at_end = self
                .0
                .iter()
                .flat_map(|downtime| downtime.current(window.end));
            let Some(next) = at_end.max_by_key(|next| next.end) else {
                break;
            };
            window.end = next.end;
        }
        Some(window)
    }

    /// The next windows that begin after this time, the earliest first.
    pub fn next(&self, now: Timestamp, most: usize) -> Vec<DowntimeWindow> {
        let mut all: Vec<_> = self
            .0
            .iter()
            .flat_map(|downtime| {
                let starts = downtime.starts(now).filter(move |start| *start > now);
                starts.take(most).map(|start| downtime.window(start))
            })
            .collect();
        all.sort_by_key(|window| (window.start, window.end));
        all.truncate(most);
        all
    }
}

impl Downtime {
    fn new(spec: &DowntimeSpec, cron: Cron) -> Self {
        Self {
            spec: spec.clone(),
            cron,
        }
    }

    fn window(&self, start: Timestamp) -> DowntimeWindow {
        DowntimeWindow {
            start,
            end: start + self.spec.length,
            reason: self.spec.reason.clone(),
        }
    }

    fn current(&self, now: Timestamp) -> Option<DowntimeWindow> {
        let length = self.spec.length;
        let from = Timestamp::from_millis(now.as_millis() - length.as_millis());
        let starts = self.starts(from).take_while(|start| *start <= now);
        let windows = starts.map(|start| self.window(start));
        windows.filter(|window| now < window.end).last()
    }

    /// From this time on, and perhaps some shortly before it, in order. A time that the clock jumps over comes as much
    /// later as it jumps; of one that comes twice the first counts.
    fn starts(&self, from: Timestamp) -> impl Iterator<Item = Timestamp> {
        let first = from.as_millis().saturating_sub(LONGEST_SHIFT.as_millis());
        let times = self.cron.wall_times(Timestamp::from_millis(first));
        let starts = times.map(WallTime::first);
        let mut latest = None;
        // One that was moved by a jump may come after the next.
        starts
            .map(move |start| {
                let start = latest.map_or(start, |latest: Timestamp| latest.max(start));
                latest = Some(start);
                start
            })
            .filter(move |start| *start >= from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(cron: &str, length: &str, timezone: &str) -> DowntimeSpec {
        DowntimeSpec {
            cron: cron.to_owned(),
            length: Span::parse(length).unwrap(),
            timezone: timezone.to_owned(),
            reason: None,
        }
    }

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    fn starts(spec: &DowntimeSpec, from: &str, most: usize) -> Vec<String> {
        let next = Downtimes::new(std::slice::from_ref(spec)).next(at(from), most);
        next.iter().map(|window| window.start.to_string()).collect()
    }

    #[test]
    fn a_window_holds_from_its_start_for_its_time() {
        let sundays = spec("0 2 * * SUN", "2h", "Europe/Berlin");
        assert_eq!(sundays.object_faults(""), []);
        let downtimes = Downtimes::new(&[sundays]);
        let holds = |time: &str| downtimes.holds_at(at(time)).is_some();
        // A Sunday in winter: two o'clock is one in UTC.
        assert!(!holds("2026-01-11T00:59:59.999Z"));
        assert!(holds("2026-01-11T01:00:00Z"));
        assert!(holds("2026-01-11T02:59:59.999Z"));
        assert!(!holds("2026-01-11T03:00:00Z"));
        assert!(!holds("2026-01-12T02:00:00Z"));
        let window = downtimes.holds_at(at("2026-01-11T02:00:00Z")).unwrap();
        assert_eq!(window.start, at("2026-01-11T01:00:00Z"));
        assert_eq!(window.end, at("2026-01-11T03:00:00Z"));
    }

    #[test]
    fn the_fields_of_a_cron_that_cannot_be_read_are_named() {
        let wrong = |cron: &str| spec(cron, "1h", "UTC").object_faults("")[0].message.clone();
        let message = wrong("61 2 * * SUNDAE");
        assert!(
            message.starts_with(
                "the minute \"61\", and the day of the week \"SUNDAE\" cannot be read; it must be five fields"
            ),
            "{message}"
        );
        assert!(wrong("0 24 * * *").starts_with("the hour \"24\" cannot"));
        assert!(wrong("0 2 * *").starts_with("must be five fields"));
    }

    #[test]
    fn the_clock_on_the_wall_decides_over_both_of_its_changes() {
        // Berlin goes from two to three on 2026-03-29, and from three to two on 2026-10-25.
        let daily = spec("30 2 * * *", "1h", "Europe/Berlin");
        let spring = [
            "2026-03-28T01:30:00.000Z",
            "2026-03-29T01:30:00.000Z",
            "2026-03-30T00:30:00.000Z",
        ];
        assert_eq!(starts(&daily, "2026-03-27T12:00:00Z", 3), spring);
        let autumn = [
            "2026-10-24T00:30:00.000Z",
            "2026-10-25T00:30:00.000Z",
            "2026-10-26T01:30:00.000Z",
        ];
        assert_eq!(starts(&daily, "2026-10-23T12:00:00Z", 3), autumn);
        // It takes its time, whatever the clock says meanwhile; and there is one window, not two.
        let downtimes = Downtimes::new(&[daily]);
        let holds = |time: &str| downtimes.holds_at(at(time)).is_some();
        assert!(holds("2026-10-25T01:29:59Z"));
        assert!(!holds("2026-10-25T01:30:00Z"));
        assert!(holds("2026-03-29T02:29:59Z"));
        assert!(!holds("2026-03-29T02:30:00Z"));
    }

    #[test]
    fn windows_that_meet_are_one() {
        let two = [
            spec("0 1 * * *", "1h", "UTC"),
            spec("30 1 * * *", "1h", "UTC"),
        ];
        let downtimes = Downtimes::new(&two);
        let window = downtimes.holds_at(at("2026-05-05T01:10:00Z")).unwrap();
        assert_eq!(window.end, at("2026-05-05T02:30:00Z"));
        let next = downtimes.next(at("2026-05-05T01:00:00Z"), 3);
        let starts: Vec<_> = next.iter().map(|window| window.start).collect();
        let all = [
            "2026-05-05T01:30:00Z",
            "2026-05-06T01:00:00Z",
            "2026-05-06T01:30:00Z",
        ];
        assert_eq!(starts, all.map(at));
    }

    #[test]
    fn a_month_has_its_last_day_and_a_leap_year_its_own() {
        let last = spec("0 0 L * *", "1h", "UTC");
        let days = ["2026-02-28T00:00:00.000Z", "2026-03-31T00:00:00.000Z"];
        assert_eq!(starts(&last, "2026-02-01T00:00:00Z", 2), days);
        let leap = spec("0 0 29 2 *", "1h", "UTC");
        assert_eq!(leap.object_faults(""), []);
        assert_eq!(
            starts(&leap, "2026-02-01T00:00:00Z", 1),
            ["2028-02-29T00:00:00.000Z"]
        );
    }

    #[test]
    fn every_fault_of_a_specification_is_found() {
        let fields = |cron: &str, length: &str, timezone: &str| {
            let faults = spec(cron, length, timezone).object_faults("").into_iter();
            faults
                .map(|fault| fault.pointer[1..].to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(fields("0 2 * * 7", "2h", "Asia/Kolkata"), [""; 0]);
        assert_eq!(
            fields("0 2 * *", "1s", "Berlin"),
            ["for", "cron", "timezone"]
        );
        for cron in [
            "",
            "* * * * * *",
            "0 2 * * SUN UTC",
            "60 2 * * *",
            "0 2 * * SONNTAG",
            "@daily",
        ] {
            assert_eq!(fields(cron, "2h", "UTC"), ["cron"], "{cron}");
        }
        assert_eq!(
            fields("0 0 30 2 *", "2h", "UTC"),
            ["cron"],
            "it never comes"
        );
        assert_eq!(fields("* * * * *", "1m", "UTC"), ["for"], "it never ends");
        assert_eq!(fields("0 * * * *", "2h", "UTC"), ["for"]);
        assert_eq!(fields("0 * * * *", "59m", "UTC"), [""; 0]);
        assert_eq!(fields("0 0 * * *", "7d", "UTC"), ["for"]);
        for timezone in ["", "../etc/passwd", "Europe/Nowhere", "+02:00"] {
            assert_eq!(
                fields("0 2 * * *", "2h", timezone),
                ["timezone"],
                "{timezone}"
            );
        }
    }

    #[test]
    fn a_time_beyond_all_calendars_has_no_window() {
        let downtimes = Downtimes::new(&[spec("0 2 * * *", "1h", "UTC")]);
        for millis in [i64::MAX / 2, i64::MIN / 2] {
            let now = Timestamp::from_millis(millis);
            assert!(downtimes.holds_at(now).is_none());
            assert!(downtimes.next(now, 3).is_empty());
        }
    }
}
