//! Durations, summarised by the two most useful numbers.

use std::{fmt, time::Duration};

/// Durations of one kind.
#[derive(Clone, Default, Debug)]
pub struct Latencies {
    micros: Vec<u32>,
}

impl Latencies {
    pub fn with_capacity(count: usize) -> Self {
        Self {
            micros: Vec::with_capacity(count),
        }
    }

    pub fn record(&mut self, took: Duration) {
        // Anything longer than an hour counts as an hour.
        self.micros
            .push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
    }

    pub fn append(&mut self, mut other: Latencies) {
        self.micros.append(&mut other.micros);
    }

    pub fn count(&self) -> usize {
        self.micros.len()
    }

    /// Returns the shortest duration that `share` (0 to 1) of all durations do not exceed (nearest rank).
    pub fn percentile(&self, share: f64) -> Option<Duration> {
        let mut sorted = self.micros.clone();
        sorted.sort_unstable();
        let rank = (share * sorted.len() as f64).ceil() as usize;
        let micros = sorted.get(rank.saturating_sub(1))?;
        Some(Duration::from_micros(u64::from(*micros)))
    }
}

/// Milliseconds, with as many digits as are significant.
pub struct Millis(pub Option<Duration>);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(duration) = self.0 else {
            return f.pad("-");
        };
        let millis = duration.as_secs_f64() * 1000.0;
        f.pad(&match millis {
            0.0..10.0 => format!("{millis:.2} ms"),
            10.0..100.0 => format!("{millis:.1} ms"),
            _ => format!("{millis:.0} ms"),
        })
    }
}

/// Returns the median: the middle value, or the mean of the two in the middle.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        Some((sorted.get(middle.checked_sub(1)?)? + sorted.get(middle)?) / 2.0)
    } else {
        sorted.get(middle).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latencies(millis: impl IntoIterator<Item = u64>) -> Latencies {
        let mut latencies = Latencies::default();
        for millis in millis {
            latencies.record(Duration::from_millis(millis));
        }
        latencies
    }

    #[test]
    fn a_percentile_is_one_of_what_was_measured() {
        let hundred = latencies((1..=100).rev());
        let at = |share| hundred.percentile(share).unwrap().as_millis();
        assert_eq!([0.0, 0.01, 0.5, 0.99, 1.0].map(at), [1, 1, 50, 99, 100]);
        let one = latencies([7]);
        assert_eq!(one.percentile(0.99), Some(Duration::from_millis(7)));
        assert_eq!(latencies([]).percentile(0.5), None);
    }

    #[test]
    fn a_duration_has_three_digits_or_so() {
        let shown = |micros| Millis(Some(Duration::from_micros(micros))).to_string();
        assert_eq!(shown(1_234), "1.23 ms");
        assert_eq!(shown(12_345), "12.3 ms");
        assert_eq!(shown(1_234_567), "1235 ms");
        assert_eq!(format!("{:>5}", Millis(None)), "    -");
    }

    #[test]
    fn one_odd_round_does_not_move_the_median() {
        assert_eq!(median([0.4, 9.0, 0.5]), Some(0.5));
        assert_eq!(median([0.4, 0.6]), Some(0.5));
        assert_eq!(median([]), None);
    }
}
