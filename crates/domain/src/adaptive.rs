//! Adaptive concurrency: how many calls an endpoint gets at once, between a least and a most, by what its calls show. As a
//! congestion window of TCP it grows step by step while calls stay quick, and falls when they queue or are refused.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Span;

const MOST_LEAST: u32 = 100_000;
const SLOW: std::ops::RangeInclusive<Span> = Span::from_millis(1)..=Span::from_secs(3600);
/// The calls of a round: as many as the limit, within these.
const ROUND: std::ops::RangeInclusive<u32> = 32..=128;
/// A round that takes so long ends with fewer calls: at least so many, of which one or two that are slow decide nothing.
const LONG_ROUND: Duration = Duration::from_secs(10);
const FEWEST: usize = 4;
/// In milliseconds: what is faster is as good.
const FAST: f64 = 5.0;
/// The limit grows while calls take at most so many times as long as with few in flight,
const QUICK: f64 = 1.25;
/// falls a little when they take longer than so many times as long,
const SLOWER: f64 = 1.6;
/// and by half when they take longer than that.
const SLOWEST: f64 = 2.5;
/// So often it is seen how long calls take with a quarter of them in flight: what was learned with more may be a queue, and
/// the service itself may have become slower. All instances look at the same time, because each sees the calls of all.
const LOOKS: Duration = Duration::from_secs(30);
/// If calls take long, it is seen less often: once in so many times as long as they take.
const FEWEST_CALLS: f64 = 256.0;
/// A look lasts so many times as long as a call takes.
const LOOK_LATENCIES: f64 = 3.0;
/// So many calls of a look replace what was known.
const CERTAIN: f64 = 16.0;
const LONGEST_LOOKS: Duration = Duration::from_secs(30 << 11);

/// Between which limits the calls in flight to an endpoint adapt, and by what. The most is its `max_in_flight`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdaptiveSpec {
    /// The limit begins here, and never falls below.
    pub least: u32,
    /// Calls are slow if they take longer. `None`: by how long they take with few in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_after: Option<Span>,
}

impl Default for AdaptiveSpec {
    fn default() -> Self {
        Self {
            least: 2,
            slow_after: None,
        }
    }
}

impl AdaptiveSpec {
    pub const LEAST: std::ops::RangeInclusive<i64> = 1..=MOST_LEAST as i64;

    /// What is wrong with it, where endpoints take so many calls at least: each fault as the name of the field, and a
    /// message.
    pub(crate) fn faults(&self, most: Option<u32>) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        if !(1..=MOST_LEAST).contains(&self.least) {
            faults.push(("least", format!("must be 1 to {MOST_LEAST}")));
        } else if let Some(most) = most
            && self.least > most
        {
            let message = format!(
                "is {}, and must be at most the smallest `max_in_flight` of the agent and its endpoints, which is {most}",
                self.least
            );
            faults.push(("least", message));
        }
        if self.slow_after.is_some_and(|span| !SLOW.contains(&span)) {
            let message = format!("must be {} to {}", SLOW.start(), SLOW.end());
            faults.push(("slow_after", message));
        }
        faults
    }
}

/// The limit of all endpoints of an agent together, while it keeps calls from beginning.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct AdaptedLimit {
    /// The most calls that this instance may have in flight now.
    pub limit: u32,
    /// How far it may grow.
    pub most: u32,
    /// Why it fell last; `None` if it has not, or has come back since.
    pub message: Option<String>,
}

/// What a call shows of how much its endpoint can take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadSample<'a> {
    /// It was done: how long it took counts.
    Served,
    /// The service had no room, or the call came to no end. Why.
    Refused(&'a str),
    /// It says nothing: a fault of the call, or a failure at once, is neither room nor lack of it.
    Unclear,
}

/// How many calls an endpoint gets at once. Times are those of a clock that never goes back.
#[derive(Clone, Debug)]
pub struct AdaptiveLimit {
    spec: AdaptiveSpec,
    most: u32,
    limit: u32,
    /// By how much it grows next.
    step: u32,
    /// From where it fell last. Until it is there again it grows by one each round, and then faster each round.
    fell_from: u32,
    /// What began before that says nothing of the limit that holds since.
    fell_at: Duration,
    reason: Option<String>,
    /// How long calls take with few in flight, in milliseconds.
    lowest: Option<f64>,
    /// How long they took in the last round.
    latency: Option<f64>,
    /// A quarter of the limit holds for this round, to see how long calls take then.
    is_probing: bool,
    /// When that was due last, by the clock of all instances.
    looked_at: Option<Duration>,
    round: CallRound,
}

/// The calls that tell what to do next: those that began with the limit as it is.
#[derive(Clone, Debug, Default)]
struct CallRound {
    since: Duration,
    /// Milliseconds.
    took: Vec<f64>,
    calls: u32,
    refused: u32,
    /// The most that were in flight.
    peak: u32,
    /// Whether one more would have had to wait.
    was_full: bool,
}

/// How long the calls of a round took, compared with what is known.
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

    /// How many calls may be in flight now.
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

    /// How long calls took in the last round.
    pub fn latency(&self) -> Option<Span> {
        self.latency.map(shown)
    }

    /// How long they take with few in flight.
    pub fn lowest_latency(&self) -> Option<Span> {
        self.lowest.map(shown)
    }

    /// Why it fell, until it is again where it fell from.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// A call has begun: with it so many are in flight, and `is_full` says whether the next one has to wait.
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

    /// Whether it is to be seen now how long calls take with few in flight.
    fn is_due(&mut self, clock: Duration) -> bool {
        let (None, Some(lowest)) = (self.spec.slow_after, self.lowest) else {
            return false;
        };
        if self.round.peak == 0 {
            return false;
        }
        // Twice as long each, so that all instances look together even if they disagree.
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
        // Later the others do not look.
        since < every / 8 && !self.is_idle()
    }

    /// Whether far more calls could be in flight.
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
