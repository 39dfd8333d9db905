//! Adaptive concurrency: how many calls an endpoint gets at once, between a least and a most, by what its calls show. As a
//! congestion window of TCP it grows step by step while calls stay quick, and falls when they queue or are refused.

use std::time::Duration;

use provost_object::{Object, Span};
use serde::Serialize;
use utoipa::ToSchema;

/// The calls of a round: as many as the limit, within these bounds.
const ROUND: std::ops::RangeInclusive<u32> = 32..=128;
/// A round that takes this long ends with fewer calls, but with at least [`FEWEST`], of which one or two slow calls
/// decide nothing.
const LONG_ROUND: Duration = Duration::from_secs(10);
const FEWEST: usize = 4;
/// In milliseconds: a faster call counts as one that takes this long.
const FAST: f64 = 5.0;
/// The limit grows while calls take at most this many times as long as with few in flight,
const QUICK: f64 = 1.25;
/// falls a little when they take longer than this many times as long,
const SLOWER: f64 = 1.6;
/// and falls by half when they take longer than this many times as long.
const SLOWEST: f64 = 2.5;
/// The interval at which a quarter of the calls in flight shows how long calls take: a time that was measured with more
/// calls may include a queue, and the service itself may have become slower. All instances probe at the same time,
/// because each sees the calls of all.
const LOOKS: Duration = Duration::from_secs(30);
/// If calls take long, probes are rarer: one in this many times as long as a call takes.
const FEWEST_CALLS: f64 = 256.0;
/// A probe lasts this many times as long as a call takes.
const LOOK_LATENCIES: f64 = 3.0;
/// This many calls of a probe replace what was known.
const CERTAIN: f64 = 16.0;
const LONGEST_LOOKS: Duration = Duration::from_secs(30 << 11);

/// The adaptive limit of calls in flight to an endpoint: it grows while calls are quick, and falls when they queue or are
/// refused.
#[derive(Clone, PartialEq, Eq, Debug, Object)]
#[object(name = "Adaptive", default)]
pub struct AdaptiveSpec {
    /// The limit begins here, and never falls below it. At most the smallest `max_in_flight` of the agent and its endpoints.
    #[field(1..=100_000, default = 2, example = 2)]
    pub least: u32,
    /// Half of the calls must be quicker, 1 ms to 1 h. Default: it goes by how long calls take with few in flight.
    #[field(late, "1ms"..="1h")]
    pub slow_after: Option<Span>,
}

impl AdaptiveSpec {
    /// Returns what is wrong with `least` where endpoints take at least `most` calls.
    pub(crate) fn least_fault(&self, most: u32) -> Option<String> {
        (self.least > most).then(|| {
            format!(
                "is {}, and must be at most the smallest `max_in_flight` of the agent and its endpoints, which is {most}",
                self.least
            )
        })
    }
}

/// The limit of calls in flight that an adaptive agent has now, at all of its endpoints together.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct AdaptedLimit {
    /// The most calls that the instance which returned this response may have in flight now.
    #[schema(example = 6)]
    pub limit: u32,
    /// The limit that this instance may grow to.
    #[schema(example = 64)]
    pub most: u32,
    /// Why it fell last; null if it has not, or has come back since.
    #[schema(
        required,
        example = "fell from 9 to 6: 2 of 12 calls were refused or broke off; the last one: the service responded 503 Service Unavailable"
    )]
    pub message: Option<String>,
}

/// The evidence that one call gives of how much its endpoint can take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadSample<'a> {
    /// The call was done: the time that it took counts.
    Served,
    /// The service had no room, or the call came to no end. Why.
    Refused(&'a str),
    /// It says nothing: a fault of the call, or a failure at once, is neither room nor lack of it.
    Unclear,
}

/// The limit of the calls that an endpoint gets at once. Times are those of a clock that never goes back.
#[derive(Clone, Debug)]
pub struct AdaptiveLimit {
    spec: AdaptiveSpec,
    most: u32,
    limit: u32,
    /// The number by which the limit grows next.
    step: u32,
    /// The limit before the last fall. Below it the limit grows by one each round, and above it faster each round.
    fell_from: u32,
    /// The time of the last fall. A call that began earlier says nothing of the limit that holds since.
    fell_at: Duration,
    reason: Option<String>,
    /// The time, in ms, that calls take with few in flight.
    lowest: Option<f64>,
    /// The time, in ms, that calls took in the last round.
    latency: Option<f64>,
    /// True while a quarter of the limit holds for a round, to measure how long calls take.
    is_probing: bool,
    /// The time at which a probe was due last, by the clock of all instances.
    looked_at: Option<Duration>,
    round: CallRound,
}

/// The calls that decide the next change of the limit: those that began with the current limit.
#[derive(Clone, Debug, Default)]
struct CallRound {
    since: Duration,
    /// Milliseconds.
    took: Vec<f64>,
    calls: u32,
    refused: u32,
    /// The most calls that were in flight.
    peak: u32,
    /// True if one more call would have had to wait.
    was_full: bool,
}

/// The time that the calls of a round took, compared with what is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RoundPace {
    Quick,
    /// They queue a little: no more of them, and no fewer.
    Held,
    Slower,
    Slow,
}

impl AdaptiveLimit {
    /// `most` is what the endpoint takes.
    pub fn new(spec: &AdaptiveSpec, most: u32) -> Self {
        Self {
            spec: spec.clone(),
            most,
            limit: spec.least.min(most),
            step: 1,
            fell_from: 0,
            fell_at: Duration::ZERO,
            reason: None,
            lowest: None,
            latency: None,
            is_probing: false,
            looked_at: None,
            round: CallRound::default(),
        }
    }

    /// It keeps what it has seen.
    pub fn configure(&mut self, spec: &AdaptiveSpec, most: u32) {
        self.spec.clone_from(spec);
        self.most = most;
        self.limit = self.limit.max(spec.least).min(most);
    }

    /// Returns the number of calls that may be in flight now.
    pub fn limit(&self) -> u32 {
        match self.is_probing {
            true => (self.limit / 4).max(self.least()),
            false => self.limit,
        }
    }

    pub fn least(&self) -> u32 {
        self.spec.least.min(self.most)
    }

    pub fn most(&self) -> u32 {
        self.most
    }

    /// Returns the time that calls took in the last round.
    pub fn latency(&self) -> Option<Span> {
        self.latency.map(shown)
    }

    /// Returns the time that calls take with few in flight.
    pub fn lowest_latency(&self) -> Option<Span> {
        self.lowest.map(shown)
    }

    /// Returns why the limit fell, until it is back at the value from which it fell.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Records that a call has begun. `in_flight` counts it; `is_full` says whether the next call has to wait.
    pub fn began(&mut self, in_flight: u32, is_full: bool) {
        self.round.peak = self.round.peak.max(in_flight);
        self.round.was_full |= is_full;
    }

    /// A call that began then has ended. `clock` is the time that all instances share, about. Returns whether the limit is
    /// another one.
    pub fn ended(
        &mut self,
        began: Duration,
        now: Duration,
        clock: Duration,
        sample: LoadSample<'_>,
    ) -> bool {
        let before = self.limit();
        if self.is_due(clock) {
            self.is_probing = true;
            self.begin_round(now);
        }
        match sample {
            LoadSample::Refused(why) if began >= self.fell_at => self.refused(now, why),
            LoadSample::Served if began >= self.round.since => {
                let took = now.saturating_sub(began).as_secs_f64() * 1000.0;
                if self.round.took.len() < *ROUND.end() as usize {
                    self.round.took.push(took);
                }
                self.round.calls += 1;
                if self.round_is_over(now) {
                    self.end_round(now);
                }
            }
            LoadSample::Refused(_) | LoadSample::Served | LoadSample::Unclear => {}
        }
        self.limit() != before
    }

    fn begin_round(&mut self, now: Duration) {
        self.round = CallRound {
            since: now,
            ..CallRound::default()
        };
    }

    /// Returns whether a probe is due, which measures how long calls take with few in flight.
    fn is_due(&mut self, clock: Duration) -> bool {
        let (None, Some(lowest)) = (self.spec.slow_after, self.lowest) else {
            return false;
        };
        if self.round.peak == 0 {
            return false;
        }
        // The interval only doubles, so that all instances probe together even if they know different times.
        let mut every = LOOKS;
        while every.as_secs_f64() * 1000.0 < lowest * FEWEST_CALLS && every < LONGEST_LOOKS {
            every *= 2;
        }
        let since = Duration::from_millis((clock.as_millis() % every.as_millis()) as u64);
        let due = clock.saturating_sub(since);
        match self.looked_at.replace(due) {
            Some(known) if known < due => {}
            // It has just been learned, or the clock went back.
            _ => return false,
        }
        // Later in the interval the other instances do not probe.
        since < every / 8 && !self.is_idle()
    }

    /// Returns whether far more calls could be in flight.
    fn is_idle(&self) -> bool {
        self.round.peak.saturating_mul(2) <= self.limit()
    }

    fn round_size(&self) -> u32 {
        self.limit().clamp(*ROUND.start(), *ROUND.end())
    }

    /// One in ten is too many, and at least two: a service loses a call now and then without being full.
    fn refused(&mut self, now: Duration, why: &str) {
        self.round.calls += 1;
        self.round.refused += 1;
        let bearable = self.limit().min(*ROUND.end()) / 10;
        if self.round.refused <= bearable.max(1) {
            return;
        }
        let CallRound { calls, refused, .. } = self.round;
        let reason =
            format!("{refused} of {calls} calls were refused or broke off; the last one: {why}");
        self.fall(self.limit * 3 / 4, now, &reason);
    }

    fn round_is_over(&self, now: Duration) -> bool {
        let count = self.round.took.len();
        let lasted = now.saturating_sub(self.round.since);
        if self.is_probing {
            // All instances have few in flight at the same time.
            let longest = milliseconds(self.lowest.unwrap_or_default() * LOOK_LATENCIES);
            return count >= 2 * FEWEST && lasted >= longest;
        }
        count >= self.round_size() as usize || (lasted >= LONG_ROUND && count >= FEWEST)
    }

    fn end_round(&mut self, now: Duration) {
        // The lower one of two in the middle: that a few are slow decides nothing.
        let middle = (self.round.took.len().saturating_sub(1)) / 2;
        let (_, median, _) = self
            .round
            .took
            .select_nth_unstable_by(middle, f64::total_cmp);
        let median = *median;
        let count = self.round.took.len() as f64;
        let (is_idle, was_full) = (self.is_idle(), self.round.was_full);
        self.begin_round(now);
        self.latency = Some(median);
        let pace = self.pace(median);
        self.learn(median, count, is_idle);
        if pace != RoundPace::Quick {
            self.step = 1;
        }
        if std::mem::take(&mut self.is_probing) {
            return;
        }
        match pace {
            RoundPace::Quick if was_full => self.grow(),
            RoundPace::Quick | RoundPace::Held => {}
            // It is not because of the calls from here.
            RoundPace::Slower | RoundPace::Slow if is_idle => {}
            RoundPace::Slow => self.fall_for_latency(self.limit / 2, now, median),
            RoundPace::Slower => {
                let less = (self.limit / 16).max(1);
                self.fall_for_latency(self.limit.saturating_sub(less), now, median);
            }
        }
    }

    fn pace(&self, median: f64) -> RoundPace {
        if let Some(limit) = self.spec.slow_after {
            return match median > limit.duration().as_secs_f64() * 1000.0 {
                true => RoundPace::Slow,
                false => RoundPace::Quick,
            };
        }
        let times = median.max(FAST) / self.lowest.unwrap_or(median).max(FAST);
        match times {
            _ if times > SLOWEST => RoundPace::Slow,
            _ if times > SLOWER => RoundPace::Slower,
            _ if times > QUICK => RoundPace::Held,
            _ => RoundPace::Quick,
        }
    }

    /// Corrects what is known of how long calls take with few in flight.
    fn learn(&mut self, median: f64, calls: f64, is_idle: bool) {
        let Some(lowest) = &mut self.lowest else {
            self.lowest = Some(median);
            return;
        };
        let share = match (median < *lowest, is_idle) {
            _ if self.is_probing => (calls / CERTAIN).min(1.0),
            (_, true) => 0.5,
            (true, false) => 0.1,
            // Elsewhere calls that queue would seem usual after a while.
            (false, false) if self.limit <= self.spec.least => 0.05,
            (false, false) => 0.0,
        };
        *lowest += (median - *lowest) * share;
    }

    fn grow(&mut self) {
        self.limit = self.limit.saturating_add(self.step).min(self.most);
        if self.limit > self.fell_from {
            self.step = self.step.saturating_mul(2).min(self.limit);
        }
        if self.limit >= self.fell_from || self.limit == self.most {
            self.reason = None;
        }
    }

    fn fall_for_latency(&mut self, to: u32, now: Duration, median: f64) {
        if self.limit <= self.least() {
            return;
        }
        let took = shown(median);
        let reason = match self.spec.slow_after {
            Some(limit) => format!("calls took {took}, more than {limit}"),
            None => format!(
                "calls took {took}, and {} with few in flight",
                shown(self.lowest.unwrap_or(median))
            ),
        };
        self.fall(to, now, &reason);
    }

    fn fall(&mut self, to: u32, now: Duration, reason: &str) {
        let to = to.max(self.least()).min(self.limit);
        self.reason = Some(match to < self.limit {
            true => format!("fell from {} to {to}: {reason}", self.limit),
            false => reason.to_owned(),
        });
        self.fell_from = self.limit;
        self.limit = to;
        self.step = 1;
        self.fell_at = now;
        self.is_probing = false;
        self.begin_round(now);
    }
}

fn milliseconds(millis: f64) -> Duration {
    Duration::from_secs_f64(millis.max(0.0) / 1000.0)
}

/// Rounded: a message is read by people.
fn shown(millis: f64) -> Span {
    Span::from_millis(millis.round().max(1.0) as u64)
}

#[cfg(test)]
mod tests;
