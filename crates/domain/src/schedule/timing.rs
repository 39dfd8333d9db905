//! The fire times of a schedule: by cron in the local time of a zone, or at every multiple of a duration.

use std::collections::{BTreeMap, VecDeque};

use sha2::{Digest, Sha256};

use crate::{
    schedule::{
        cron::{Cron, WallTime},
        policies::Dst,
    },
    values::time::{Span, Timestamp},
};

/// A fire time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FireTime {
    pub at: Timestamp,
    /// True if the clock jumps over the fire time, and the schedule leaves such times out. `at` is then the time that
    /// it would have after the jump.
    pub is_left_out: bool,
}

/// The number of fire times of a schedule in a span.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FireCount {
    pub fires: u64,
    /// The number of fire times that are left out because the clock jumps over them.
    pub left_out: u64,
    /// The first and the last fire time that are left out.
    pub left_out_times: Option<(Timestamp, Timestamp)>,
}

/// The rule for the fire times of a schedule.
#[derive(Clone, Debug)]
pub enum Timing {
    Cron(Cron, Dst),
    /// The schedule fires at every multiple of the duration since 1970, in UTC. So all instances agree, and a schedule
    /// that is put again keeps its fire times.
    Every(Span),
}

impl Timing {
    /// Returns the fire times after this time, in order, each once.
    pub fn after(&self, from: Timestamp) -> Box<dyn Iterator<Item = FireTime> + '_> {
        match self {
            Timing::Cron(cron, dst) => Box::new(CronTimes::start(cron, *dst, from)),
            Timing::Every(every) => {
                let every = every.as_millis();
                let first = from.as_millis().div_euclid(every).checked_add(1);
                let mut next = first.and_then(|count| count.checked_mul(every));
                Box::new(std::iter::from_fn(move || {
                    let at = next?;
                    next = at.checked_add(every);
                    Some(FireTime {
                        at: Timestamp::from_millis(at),
                        is_left_out: false,
                    })
                }))
            }
        }
    }

    /// Returns the last fire times after `from` up to `until`, of which `most` fire, and whether more before them fire.
    /// The cost does not grow with the number of fire times.
    pub fn last(&self, from: Timestamp, until: Timestamp, most: usize) -> (Vec<FireTime>, bool) {
        let first_window = match self {
            Timing::Cron(..) => Span::from_secs(60),
            Timing::Every(every) => *every,
        };
        let count = u32::try_from(most).unwrap_or(u32::MAX).saturating_add(1);
        let mut window = first_window.saturating_mul(count).as_millis().max(1);
        loop {
            let begin = until.as_millis().saturating_sub(window);
            let begin = Timestamp::from_millis(begin).max(from);
            let mut found = LastFireTimes::default();
            for fire in self.after(begin).take_while(|fire| fire.at <= until) {
                found.push(fire, most + 1);
            }
            let is_more = found.fires > most;
            if begin == from || is_more {
                found.shorten(most);
                return (found.times.into(), is_more);
            }
            window = window.saturating_mul(8);
        }
    }

    /// Counts the fire times after `from` up to `until`. The cost grows at most with the number of days, not with the
    /// number of fire times.
    pub fn count(&self, from: Timestamp, until: Timestamp) -> FireCount {
        let mut count = FireCount::default();
        if until <= from {
            return count;
        }
        count.fires = match self {
            Timing::Cron(cron, _) => cron.count(from, until, |from, until| {
                let mut fires = 0;
                for fire in self.after(from).take_while(|fire| fire.at <= until) {
                    if !fire.is_left_out {
                        fires += 1;
                        continue;
                    }
                    count.left_out += 1;
                    let first = count.left_out_times.map_or(fire.at, |(first, _)| first);
                    count.left_out_times = Some((first, fire.at));
                }
                fires
            }),
            Timing::Every(every) => {
                let up_to = |at: Timestamp| at.as_millis().div_euclid(every.as_millis());
                up_to(until).abs_diff(up_to(from))
            }
        };
        count
    }

    /// Returns the time in RFC 3339 with the offset of the zone; `None` for `every`.
    pub fn local(&self, at: Timestamp) -> Option<String> {
        match self {
            Timing::Cron(cron, _) => cron.local(at),
            Timing::Every(_) => None,
        }
    }
}

/// The last fire times of a schedule, in order.
#[derive(Default)]
struct LastFireTimes {
    times: VecDeque<FireTime>,
    /// The number of fire times that are not left out.
    fires: usize,
}

impl LastFireTimes {
    /// Adds a fire time, and keeps at most `most` that are not left out.
    fn push(&mut self, fire: FireTime, most: usize) {
        self.fires += usize::from(!fire.is_left_out);
        self.times.push_back(fire);
        self.shorten(most);
    }

    fn shorten(&mut self, most: usize) {
        while self.fires > most {
            let first = self.times.pop_front();
            self.fires -= usize::from(first.is_some_and(|fire| !fire.is_left_out));
        }
    }
}

/// Returns the time from a fire time to the begin of its run. It is the same at every call.
pub fn jitter(schedule: &str, at: Timestamp, jitter: Option<Span>) -> Span {
    let Some(most) = jitter.map(Span::as_millis).filter(|most| *most > 0) else {
        return Span::default();
    };
    let mut hash = Sha256::new();
    hash.update(schedule.as_bytes());
    hash.update(at.as_millis().to_be_bytes());
    let mut number = [0; 8];
    number.copy_from_slice(&hash.finalize()[..8]);
    Span::from_millis(u64::from_be_bytes(number) % most.unsigned_abs())
}

/// Iterates over the fire times of a cron. Local times are read in the order of local time. Around a change of the
/// clock, their timestamps have another order, and some are equal.
struct CronTimes<'c, I> {
    cron: &'c Cron,
    dst: Dst,
    after: Timestamp,
    times: I,
    /// The fire times that were read and are not returned yet, each with whether it is left out.
    pending: BTreeMap<Timestamp, bool>,
    /// The timestamp of the last local time that was read.
    latest: Option<Timestamp>,
    is_done: bool,
}

impl CronTimes<'_, ()> {
    fn start(cron: &Cron, dst: Dst, after: Timestamp) -> impl Iterator<Item = FireTime> {
        let shift = cron.shift_near(after).as_millis();
        let from = Timestamp::from_millis(after.as_millis().saturating_sub(shift));
        CronTimes {
            cron,
            dst,
            after,
            times: cron.wall_times(from),
            pending: BTreeMap::new(),
            latest: None,
            is_done: false,
        }
    }
}

impl<I: Iterator<Item = WallTime>> CronTimes<'_, I> {
    fn read(&mut self) {
        let Some(time) = self.times.next() else {
            self.is_done = true;
            return;
        };
        self.latest = Some(time.first());
        match time {
            WallTime::Once(at) => self.add(at, false),
            WallTime::Skipped(at) => self.add(at, self.dst == Dst::Skip),
            WallTime::Twice(first, second) => {
                self.add(first, false);
                if self.dst == Dst::Both || self.cron.goes_by_elapsed_time() {
                    self.add(second, false);
                }
            }
        }
    }

    /// If the same fire time is added twice, and is left out only once, it fires.
    fn add(&mut self, at: Timestamp, is_left_out: bool) {
        let known = self.pending.entry(at).or_insert(is_left_out);
        *known &= is_left_out;
    }

    /// Returns whether no time that has not been read yet comes before `at`.
    fn is_final(&self, at: Timestamp) -> bool {
        let Some(latest) = self.latest.filter(|_| !self.is_done) else {
            return true;
        };
        latest >= at && latest >= at + self.cron.shift_near(at)
    }
}

impl<I: Iterator<Item = WallTime>> Iterator for CronTimes<'_, I> {
    type Item = FireTime;

    fn next(&mut self) -> Option<FireTime> {
        loop {
            match self.pending.first_key_value() {
                Some((&at, &is_left_out)) if self.is_final(at) => {
                    self.pending.remove(&at);
                    if at > self.after {
                        return Some(FireTime { at, is_left_out });
                    }
                }
                None if self.is_done => return None,
                _ => self.read(),
            }
        }
    }
}
