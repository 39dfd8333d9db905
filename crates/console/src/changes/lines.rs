//! The lines of a list of changes: each with its day, its look and its differences.

use jiff::{Timestamp, civil::Date, tz::TimeZone};

use crate::{
    changes::record::{ChangedValue, LedgerChange, Look},
    shell::Shell,
};

/// The differences that a line shows at once. The others are opened.
const SHOWN: usize = 3;
/// The longest values that are shown in the line itself, in bytes.
const SHORT: usize = 60;

/// A line of a list.
pub struct ChangeLine {
    /// The day, before the first change of it.
    pub day: Option<String>,
    pub change: LedgerChange,
    pub look: Look,
    pub link: Option<String>,
    /// The differences in the line itself, and those that are opened.
    pub short: Vec<ChangedValue>,
    pub long: Vec<ChangedValue>,
}

impl ChangeLine {
    /// Returns whether the document is new, so that its only difference is all of it.
    pub fn is_whole(&self) -> bool {
        let first = self.long.first();
        first.is_some_and(|first| first.pointer.is_empty() && first.before.is_none())
    }
}

/// Returns the lines of changes, which begin with the newest.
pub fn lines(page: &Shell, changes: Vec<LedgerChange>) -> Vec<ChangeLine> {
    let date = |at: Timestamp| at.to_zoned(TimeZone::UTC).date();
    let mut last: Option<Date> = Some(date(page.now));
    let lines = changes.into_iter().map(|change| {
        let day = change.at.parse().ok().map(date);
        let is_new = day.is_some() && day != last;
        last = day.or(last);
        let name = day.map(|day| day.strftime("%-d %B %Y, UTC").to_string());
        let is_short = |one: &ChangedValue| {
            let length = |value: &Option<String>| value.as_ref().map_or(0, String::len);
            !one.pointer.is_empty() && length(&one.before) + length(&one.after) <= SHORT
        };
        let are_few = change.differences.len() <= SHOWN && !change.more_differences;
        let (short, long) = match are_few && change.differences.iter().all(is_short) {
            true => (change.differences.clone(), Vec::new()),
            false => (Vec::new(), change.differences.clone()),
        };
        ChangeLine {
            day: name.filter(|_| is_new),
            look: change.look(),
            link: change.link(page),
            short,
            long,
            change,
        }
    });
    lines.collect()
}
