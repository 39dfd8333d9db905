//! The gauges of what needs a person, by cause. Clients that may submit choose causes, so that only so many have gauges of their
//! own; the others are counted together.

use std::collections::{BTreeMap, BTreeSet};

use metrics::{describe_gauge, gauge};

use crate::{
    domain::{
        task::CauseFingerprint,
        view::{INLINE_TASKS, OTHER_NAMES, counted_name},
    },
    store::Failure,
};

/// The most causes that this process ever reports one by one.
const MOST_CAUSES: usize = 100;

/// The causes that earlier scrapes returned, with their labels. A cause that no task has any more must be reported as zero.
#[derive(Default)]
pub struct ShownFailures {
    labels: BTreeMap<CauseFingerprint, [(&'static str, String); 4]>,
    is_described: bool,
}

impl ShownFailures {
    pub fn show(&mut self, failures: &[Failure]) {
        if !self.is_described {
            describe_gauge!(
                "provost_failed_tasks",
                "Tasks with a step that needs a person, by cause, up to 1,001 for each: GET /v1/failures/{cause} shows it"
            );
            self.is_described = true;
        }
        let mut others = 0;
        let mut present = BTreeSet::new();
        for failure in failures {
            let is_known = self.labels.contains_key(&failure.fingerprint);
            if !is_known && self.labels.len() == MOST_CAUSES {
                others += failure.tasks;
                continue;
            }
            let labels = self.labels.entry(failure.fingerprint);
            let labels = labels.or_insert_with(|| labels_of(failure));
            gauge!("provost_failed_tasks", &*labels).set(failure.tasks as f64);
            present.insert(failure.fingerprint);
        }
        for (cause, labels) in &self.labels {
            if !present.contains(cause) {
                gauge!("provost_failed_tasks", labels).set(0.0);
            }
        }
        if self.labels.len() == MOST_CAUSES {
            gauge!("provost_failed_tasks", "cause" => OTHER_NAMES).set(others as f64);
        }
    }
}

fn labels_of(failure: &Failure) -> [(&'static str, String); 4] {
    let cause = &failure.cause;
    let workflow = cause
        .workflow
        .as_ref()
        .map_or(INLINE_TASKS, |name| name.as_str());
    let agent = cause
        .agent
        .as_ref()
        .map_or("", |agent| counted_name(agent.as_str()));
    [
        ("cause", failure.fingerprint.to_string()),
        ("workflow", workflow.to_owned()),
        ("step", cause.step.clone()),
        ("agent", agent.to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;
    use crate::domain::{
        task::FailureCause,
        values::{Timestamp, WorkflowName},
    };

    fn failure(number: u64, tasks: u64) -> Failure {
        Failure {
            fingerprint: CauseFingerprint(number),
            cause: FailureCause {
                alert: "step.failed".to_owned(),
                workflow: Some(WorkflowName::new("order")),
                step: "charge".to_owned(),
                agent: None,
                kind: None,
                status: None,
                words: None,
                is_repeated: false,
            },
            tasks,
            steps: tasks,
            failures: tasks,
            first_at: Timestamp::from_millis(0),
            last_at: Timestamp::from_millis(0),
            quarters: Vec::new(),
            from: Timestamp::from_millis(0),
            example: None,
            first: None,
        }
    }

    #[test]
    fn a_cause_that_is_gone_is_zero_and_causes_beyond_the_bound_are_counted_together() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let line = |text: &str, cause: &str| {
            let start = format!("provost_failed_tasks{{cause=\"{cause}\"");
            let line = text.lines().find(|line| line.starts_with(&start));
            line.map(|line| line.rsplit(' ').next().unwrap().to_owned())
        };
        let first = "0000000000000000";
        metrics::with_local_recorder(&recorder, || {
            let mut shown = ShownFailures::default();
            shown.show(&[failure(0, 7)]);
            let text = recorder.handle().render();
            assert_eq!(line(&text, first).as_deref(), Some("7"));
            assert_eq!(line(&text, OTHER_NAMES), None);

            let many: Vec<_> = (1..=MOST_CAUSES as u64 + 4)
                .map(|number| failure(number, 2))
                .collect();
            shown.show(&many);
            let text = recorder.handle().render();
            assert_eq!(line(&text, first).as_deref(), Some("0"));
            assert_eq!(line(&text, OTHER_NAMES).as_deref(), Some("10"));
            let lines = text
                .lines()
                .filter(|line| line.starts_with("provost_failed_tasks{"));
            assert_eq!(lines.count(), MOST_CAUSES + 1);
        });
    }
}
