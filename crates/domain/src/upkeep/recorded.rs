//! The retention of recorded attempts: by age, and by the room that all of them take. Attempts that succeeded go first.

use crate::values::time::Timestamp;

/// The bytes of the attempts that ended in one hour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordedHour {
    /// The end of the hour.
    pub end: Timestamp,
    /// True: of those that succeeded; false: of the others.
    pub succeeded: bool,
    pub bytes: u64,
}

/// The recorded attempts that are deleted next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordPurge {
    /// The attempts that ended before this time are deleted.
    pub before: Timestamp,
    /// True: only attempts that succeeded.
    pub succeeded: bool,
}

/// Returns what is deleted next. `hours` are in order of time; `keep_from` is the beginning of the time for which all is
/// kept; `most` is the most bytes that all recorded attempts may take.
pub fn next_purge(hours: &[RecordedHour], keep_from: Timestamp, most: u64) -> Option<RecordPurge> {
    if hours.iter().any(|hour| hour.end <= keep_from) {
        return Some(RecordPurge {
            before: keep_from,
            succeeded: false,
        });
    }
    let total: u64 = hours.iter().map(|hour| hour.bytes).sum();
    if total <= most {
        return None;
    }
    let oldest = hours.iter().find(|hour| hour.succeeded);
    let oldest = oldest.or(hours.first())?;
    Some(RecordPurge {
        before: oldest.end,
        succeeded: oldest.succeeded,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    fn hour(number: i64, succeeded: bool, bytes: u64) -> RecordedHour {
        RecordedHour {
            end: Timestamp::from_millis((number + 1) * HOUR),
            succeeded,
            bytes,
        }
    }

    #[test]
    fn the_oldest_successes_go_first_then_the_oldest_failures() {
        let hours = [hour(1, false, 60), hour(2, true, 30), hour(3, true, 20)];
        let next = |most| next_purge(&hours, Timestamp::from_millis(0), most);
        assert_eq!(next(110), None);
        let purge = next(109).unwrap();
        assert_eq!(purge.before, hours[1].end);
        assert!(purge.succeeded);
        let left = next_purge(&hours[..1], Timestamp::from_millis(0), 59).unwrap();
        assert_eq!(left.before, hours[0].end);
        assert!(!left.succeeded);
    }

    #[test]
    fn what_is_too_old_goes_whatever_room_there_is() {
        let hours = [hour(1, false, 1), hour(9, true, 1)];
        let keep_from = hours[0].end;
        let purge = next_purge(&hours, keep_from, u64::MAX).unwrap();
        assert_eq!(
            purge,
            RecordPurge {
                before: keep_from,
                succeeded: false
            }
        );
        assert_eq!(next_purge(&hours[1..], keep_from, u64::MAX), None);
    }
}
