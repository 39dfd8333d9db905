//! The activity of an hour: tasks by their workflow, and steps by their agent with the time that they took.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

/// The name of the tasks whose steps came with their submission, where tasks are counted by workflow. No workflow can have
/// this name.
pub const INLINE_TASKS: &str = "(inline)";
/// The name of all agents that were made for the URLs of steps, where steps are counted by agent: a caller who may submit
/// tasks must not be able to add names without bound. No registered agent can have this name.
pub const URL_AGENTS: &str = "(url)";
/// The name of those beyond the number of names that are counted apart.
pub const OTHER_NAMES: &str = "(other)";

/// Returns the name under which the steps of an agent are counted. Names of registered agents contain no `:`, and origins of
/// URLs always do.
pub fn counted_name(agent: &str) -> &str {
    match agent.contains(':') {
        true => URL_AGENTS,
        false => agent,
    }
}

/// The buckets of durations between one power of two and the next, in milliseconds. A percentile is at most a fifth too
/// long.
const BUCKETS_OF_OCTAVE: f64 = 4.0;
/// The last bucket has all durations from about twelve days on.
const LAST_BUCKET: u8 = 120;

/// Counts durations in buckets whose bounds grow by a constant factor. Only buckets with a count are kept.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DurationHistogram(BTreeMap<u8, u64>);

impl DurationHistogram {
    pub fn add(&mut self, duration: Duration) {
        *self.0.entry(bucket(duration)).or_default() += 1;
    }

    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in &other.0 {
            let sum = self.0.entry(*bucket).or_default();
            *sum = sum.saturating_add(*count);
        }
    }

    /// Returns a duration, in milliseconds, that `share` of all durations do not exceed, to about a fifth. `None` if
    /// nothing was counted. `share` is between 0 and 1.
    pub fn percentile(&self, share: f64) -> Option<u64> {
        let count: u64 = self.0.values().sum();
        let wanted = (count as f64 * share).ceil().max(1.0);
        let mut seen = 0_u64;
        for (bucket, count) in &self.0 {
            seen += count;
            if seen as f64 >= wanted {
                return Some(upper_bound(*bucket));
            }
        }
        None
    }
}

/// Returns the first bucket whose upper bound is not below the duration.
fn bucket(duration: Duration) -> u8 {
    let millis = duration.as_secs_f64() * 1000.0;
    let bucket = (millis.max(1.0).log2() * BUCKETS_OF_OCTAVE).ceil();
    // The conversion of a number that is too great gives the greatest one.
    (bucket as u8).min(LAST_BUCKET)
}

fn upper_bound(bucket: u8) -> u64 {
    (f64::from(bucket) / BUCKETS_OF_OCTAVE).exp2().ceil() as u64
}

/// The tasks of one workflow in one hour.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkflowActivity {
    pub accepted: u64,
    pub processed: u64,
    /// The times that a task entered the state `error`. One task may enter it several times.
    pub failed: u64,
    pub undone: u64,
    pub cancelled: u64,
    /// The times from the submission of tasks to their processing.
    pub durations: DurationHistogram,
}

impl WorkflowActivity {
    /// Counts an event of a task's history. Returns false if the event is not counted.
    pub fn count(&mut self, event: &str) -> bool {
        let count = match event {
            "task.accepted" => &mut self.accepted,
            "task.processed" => &mut self.processed,
            "task.error" => &mut self.failed,
            "task.undone" => &mut self.undone,
            "task.cancelled" => &mut self.cancelled,
            _ => return false,
        };
        *count += 1;
        true
    }

    pub fn merge(&mut self, other: &Self) {
        for (count, added) in [
            (&mut self.accepted, other.accepted),
            (&mut self.processed, other.processed),
            (&mut self.failed, other.failed),
            (&mut self.undone, other.undone),
            (&mut self.cancelled, other.cancelled),
        ] {
            *count = count.saturating_add(added);
        }
        self.durations.merge(&other.durations);
    }
}

/// The steps at one agent in one hour.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentActivity {
    /// The steps that were processed.
    pub processed: u64,
    /// The attempts that failed and were repeated.
    pub retried: u64,
    /// The steps that failed and are not repeated: they need a person, or are undone.
    pub failed: u64,
    /// The times from the claim of a step to the reply with which it was processed.
    pub durations: DurationHistogram,
}

impl AgentActivity {
    pub fn add_processed(&mut self, duration: Option<Duration>) {
        self.processed += 1;
        if let Some(duration) = duration {
            self.durations.add(duration);
        }
    }

    /// Returns whether an event of a step is one of those that [`count_failure`](Self::count_failure) counts.
    pub fn counts_failure(event: &str) -> bool {
        matches!(event, "step.retrying" | "step.expired" | "step.error")
    }

    pub fn count_failure(&mut self, event: &str) {
        match event {
            "step.retrying" | "step.expired" => self.retried += 1,
            "step.error" => self.failed += 1,
            _ => {}
        }
    }

    pub fn merge(&mut self, other: &Self) {
        for (count, added) in [
            (&mut self.processed, other.processed),
            (&mut self.retried, other.retried),
            (&mut self.failed, other.failed),
        ] {
            *count = count.saturating_add(added);
        }
        self.durations.merge(&other.durations);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn histogram(millis: &[u64]) -> DurationHistogram {
        let mut histogram = DurationHistogram::default();
        for millis in millis {
            histogram.add(Duration::from_millis(*millis));
        }
        histogram
    }

    #[test]
    fn agents_that_were_made_for_urls_are_counted_under_one_name() {
        assert_eq!(counted_name("payments"), "payments");
        assert_eq!(counted_name("http://a:1"), URL_AGENTS);
        assert_eq!(counted_name(URL_AGENTS), URL_AGENTS);
    }

    #[test]
    fn nothing_has_no_percentile() {
        assert_eq!(DurationHistogram::default().percentile(0.5), None);
    }

    #[test]
    fn percentiles_are_those_of_the_counted_durations() {
        let millis: Vec<u64> = (1..=1000).collect();
        let histogram = histogram(&millis);
        let (half, most) = (histogram.percentile(0.5), histogram.percentile(0.99));
        assert!((500..=600).contains(&half.unwrap()), "{half:?}");
        assert!((990..=1190).contains(&most.unwrap()), "{most:?}");
    }

    #[test]
    fn extreme_durations_are_in_the_first_and_last_bucket() {
        assert_eq!(bucket(Duration::ZERO), 0);
        assert_eq!(bucket(Duration::from_millis(1)), 0);
        assert_eq!(bucket(Duration::MAX), LAST_BUCKET);
    }

    #[test]
    fn each_event_is_counted_where_it_belongs() {
        let mut workflow = WorkflowActivity::default();
        for (event, counted) in [
            ("task.accepted", true),
            ("task.error", true),
            ("task.error", true),
            ("task.paused", false),
        ] {
            assert_eq!(workflow.count(event), counted, "{event}");
        }
        let mut twice = workflow.clone();
        twice.merge(&workflow);
        assert_eq!((twice.accepted, twice.failed, twice.processed), (2, 4, 0));
        let mut agent = AgentActivity::default();
        agent.add_processed(Some(Duration::from_millis(8)));
        agent.add_processed(None);
        for event in ["step.retrying", "step.error", "step.claimed"] {
            agent.count_failure(event);
        }
        assert!(AgentActivity::counts_failure("step.expired"));
        assert!(!AgentActivity::counts_failure("step.claimed"));
        assert_eq!((agent.processed, agent.retried, agent.failed), (2, 1, 1));
        assert_eq!(agent.durations.percentile(1.0), Some(8));
    }

    #[test]
    fn counts_that_a_later_release_writes_are_read() {
        let read: AgentActivity = serde_json::from_str(r#"{"processed":3,"new":{}}"#).unwrap();
        assert_eq!(read.processed, 3);
        let json = serde_json::to_string(&histogram(&[1, 8, 8])).unwrap();
        assert_eq!(json, r#"{"0":1,"12":2}"#);
        assert_eq!(
            serde_json::from_str::<DurationHistogram>(&json).unwrap(),
            histogram(&[8, 1, 8])
        );
    }

    proptest! {
        #[test]
        fn a_bound_is_at_most_a_fifth_above_its_duration(millis in 1_u64..1_000_000_000) {
            let bound = histogram(&[millis]).percentile(0.5).unwrap();
            prop_assert!(bound >= millis, "{bound}");
            prop_assert!(bound as f64 <= millis as f64 * 1.19 + 1.0, "{bound}");
        }

        #[test]
        fn merged_histograms_count_all(one in prop::collection::vec(0_u64..100_000, 0..20), two in prop::collection::vec(0_u64..100_000, 0..20)) {
            let mut merged = histogram(&one);
            merged.merge(&histogram(&two));
            prop_assert_eq!(merged, histogram(&[one, two].concat()));
        }
    }
}
