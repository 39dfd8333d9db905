//! The metrics of the writer: batches, commits, and events of tasks and steps.

use std::sync::Arc;

use metrics::{
    Counter, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    histogram,
};

use super::{
    ActivityMeter, CommandError, StepCounter, batch::TaskChange, definition::meters::WorkflowMeters,
};
use crate::domain::task::{Event, Refusal, StepState};

/// The handles are looked up once, so that the hot path only adds.
pub(super) struct WriterMetrics {
    pub batch_size: Histogram,
    pub commit_seconds: Histogram,
    events: Vec<(&'static str, Counter)>,
    step_seconds: Histogram,
    workflows: WorkflowMeters,
    claim_lag: Histogram,
    late_replies: Counter,
    step_counter: Arc<StepCounter>,
    activity: Arc<ActivityMeter>,
}

/// The events of steps with a counter of their own: each is `provost_events_total{type="…"}`.
const COUNTED: [&str; 16] = [
    "step.claimed",
    "step.processed",
    "step.retrying",
    "step.deferred",
    "step.late_reply",
    "step.dropping",
    "step.expired",
    "step.extended",
    "step.error",
    "step.skipped",
    "step.released",
    "step.retried",
    "step.resolved",
    "step.cancelled",
    "step.probed",
    "step.undone",
];

fn describe() {
    describe_counter!(
        "provost_events_total",
        "Changes of tasks and steps, by their type in the history; those of tasks by their workflow too"
    );
    describe_counter!(
        "provost_late_replies_total",
        "Replies that arrived after their attempt was over; they change nothing"
    );
    describe_histogram!("provost_store_batch_size", "Commands per commit");
    describe_gauge!(
        "provost_cache_bytes",
        Unit::Bytes,
        "Memory used by the cached tasks"
    );
    for (name, what) in [
        (
            "provost_store_commit_seconds",
            "Time to decide, save and commit a batch",
        ),
        (
            "provost_step_seconds",
            "Time from a step's claim to its reply",
        ),
        (
            "provost_task_seconds",
            "Time from a task's submission to its end, by its workflow",
        ),
        (
            "provost_claim_lag_seconds",
            "Time from when a step became due to its claim",
        ),
    ] {
        describe_histogram!(name, Unit::Seconds, what);
    }
}

impl WriterMetrics {
    pub fn new(step_counter: Arc<StepCounter>, activity: Arc<ActivityMeter>) -> Self {
        describe();
        let events = COUNTED
            .iter()
            .map(|kind| (*kind, counter!("provost_events_total", "type" => *kind)))
            .collect();
        Self {
            batch_size: histogram!("provost_store_batch_size"),
            commit_seconds: histogram!("provost_store_commit_seconds"),
            events,
            step_seconds: histogram!("provost_step_seconds"),
            workflows: WorkflowMeters::new(),
            claim_lag: histogram!("provost_claim_lag_seconds"),
            late_replies: counter!("provost_late_replies_total"),
            step_counter,
            activity,
        }
    }

    pub fn observe(&self, change: &TaskChange) {
        let mut meters = None;
        for event in &change.events {
            if event.kind.starts_with("task.") {
                let meters = meters.get_or_insert_with(|| self.workflows.of(&change.task));
                meters.count(&event.kind);
            } else {
                self.count(event);
            }
        }
        // A change that only adds a note ends no step or task.
        let is_note = |event: &Event| matches!(&*event.kind, "step.late_reply" | "step.progress");
        if change.events.iter().all(is_note) {
            return;
        }
        self.activity.observe(change);
        let at = change.at;
        // A step that an operator has resolved says nothing about its agent.
        if !change
            .events
            .iter()
            .any(|event| event.kind == "step.resolved")
        {
            self.step_counter.count(&change.task, &change.steps);
        }
        for index in &change.steps {
            let step = change.task.step(*index);
            if let (StepState::Processed { at, .. }, Some(started)) = (&step.state, step.started_at)
            {
                self.step_seconds.record(at.since(started));
            }
        }
        if let Some(ended) = change.task.ended_at() {
            let meters = meters.get_or_insert_with(|| self.workflows.of(&change.task));
            meters.ended(ended.since(change.task.created_at));
        }
        for event in &change.events {
            if event.kind == "step.claimed" {
                let ready = event.ready_at.unwrap_or(at);
                self.claim_lag.record(at.since(ready));
            }
        }
    }

    fn count(&self, event: &Event) {
        if let Some((_, counter)) = self.events.iter().find(|(kind, _)| *kind == event.kind) {
            counter.increment(1);
        }
    }

    pub fn refused(&self, error: &CommandError) {
        if let CommandError::Refused {
            refusal: Refusal::Late { .. } | Refusal::UsedAddress { .. },
            ..
        } = error
        {
            self.late_replies.increment(1);
        }
    }
}
