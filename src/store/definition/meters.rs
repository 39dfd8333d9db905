//! Metrics of tasks by their workflow. A series is scraped as long as this process lives, so only [`MOST_LABELLED`]
//! workflows have labels, and each series begins when it is first counted.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use metrics::{Counter, Histogram, counter, histogram};
use parking_lot::Mutex;

use crate::domain::{
    task::Task,
    values::WorkflowName,
    view::{INLINE_TASKS, OTHER_NAMES},
};

/// The most workflows with a label of their own: those whose tasks changed first.
const MOST_LABELLED: usize = 100;

/// The events of tasks that have a counter.
const COUNTED: [&str; 10] = [
    "task.accepted",
    "task.processed",
    "task.error",
    "task.fault",
    "task.cancelled",
    "task.undoing",
    "task.undone",
    "task.paused",
    "task.resumed",
    "task.admitted",
];

pub struct WorkflowMeters {
    labelled: Mutex<HashMap<WorkflowName, Arc<WorkflowHandles>>>,
    inline: Arc<WorkflowHandles>,
    others: Arc<WorkflowHandles>,
}

pub struct WorkflowHandles {
    workflow: String,
    events: [OnceLock<Counter>; COUNTED.len()],
    seconds: OnceLock<Histogram>,
}

impl WorkflowMeters {
    pub fn new() -> Self {
        Self {
            labelled: Mutex::default(),
            inline: WorkflowHandles::of(INLINE_TASKS),
            others: WorkflowHandles::of(OTHER_NAMES),
        }
    }

    pub fn of(&self, task: &Task) -> Arc<WorkflowHandles> {
        let workflow = task.details.workflow.as_ref();
        workflow.map_or_else(
            || self.inline.clone(),
            |workflow| self.named(&workflow.name),
        )
    }

    fn named(&self, workflow: &WorkflowName) -> Arc<WorkflowHandles> {
        let mut labelled = self.labelled.lock();
        if let Some(meters) = labelled.get(workflow) {
            return meters.clone();
        }
        if labelled.len() >= MOST_LABELLED {
            return self.others.clone();
        }
        let meters = WorkflowHandles::of(workflow.as_str());
        labelled.insert(workflow.clone(), meters.clone());
        meters
    }
}

impl WorkflowHandles {
    fn of(workflow: &str) -> Arc<Self> {
        Arc::new(Self {
            workflow: workflow.to_owned(),
            events: Default::default(),
            seconds: OnceLock::new(),
        })
    }

    /// Counts an event of the task.
    pub fn count(&self, kind: &str) {
        let Some(at) = COUNTED.iter().position(|counted| *counted == kind) else {
            return;
        };
        let counter = self.events[at].get_or_init(|| {
            let workflow = self.workflow.clone();
            counter!("provost_events_total", "type" => COUNTED[at], "workflow" => workflow)
        });
        counter.increment(1);
    }

    /// Records the time from the submission of the task to its end.
    pub fn ended(&self, after: Duration) {
        let seconds = self.seconds.get_or_init(
            || histogram!("provost_task_seconds", "workflow" => self.workflow.clone()),
        );
        seconds.record(after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workflows_beyond_the_first_share_a_label() {
        let meters = WorkflowMeters::new();
        let label = |name: &str| meters.named(&WorkflowName::new(name)).workflow.clone();
        for number in 0..MOST_LABELLED {
            let name = format!("w{number}");
            assert_eq!(label(&name), name);
        }
        assert_eq!(label("one-more"), OTHER_NAMES);
        assert_eq!(label("w7"), "w7");
        assert_eq!(meters.labelled.lock().len(), MOST_LABELLED);
    }
}
