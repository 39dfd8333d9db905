//! Turns the decided tasks of a batch into rows to save, and after the commit informs this process and the callers.

use std::sync::Arc;

use tokio::sync::Notify;

use super::{
    BatchDraft, LoadedTask, PendingReply,
    lanes::{ended_steps, lanes_of},
};
use crate::{
    chance,
    domain::{
        message::Sender,
        task::{AttemptRecord, Draft, Event},
        values::{StepRef, TaskId},
    },
    planted,
    store::{
        Batch, CommandError, LocalScheduler, StoreError, Watchers,
        batch::TaskChange,
        metrics::WriterMetrics,
        writer::{
            Failed,
            faults::{Culprit, Panicked, guarded},
            known_queues::KnownQueues,
            request::{Request, Submitted},
        },
    },
};

impl BatchDraft {
    /// Turns the drafts that changed into the changes to save.
    pub(in crate::store::writer) fn collect(
        &mut self,
        sender: &Arc<Sender>,
        local: &dyn LocalScheduler,
    ) -> Result<(), Failed> {
        self.batch.sender = sender.clone();
        self.batch.record = self.terms.record;
        for (id, loaded) in std::mem::take(&mut self.tasks) {
            guarded(|| self.collect_one(loaded, sender, local)).map_err(|message| {
                let culprit = Some(Culprit::Task(id));
                Failed::Panicked(Panicked { culprit, message })
            })?;
        }
        // The changes are in the order of task ids, so that instances that share a database lock rows in one order.
        self.batch
            .changes
            .sort_unstable_by_key(|change| change.task.id());
        self.batch.marks.sort_unstable();
        self.batch.marks.dedup();
        Ok(())
    }

    fn collect_one(&mut self, loaded: LoadedTask, sender: &Sender, local: &dyn LocalScheduler) {
        let LoadedTask {
            base,
            row,
            mut draft,
            ..
        } = loaded;
        if draft.events.is_empty() && draft.changed.is_empty() {
            return;
        }
        planted::strike(draft.task.details.key.as_deref(), "collect");
        draft.task.version += 1;
        if draft.task.details.reply_to.is_some() {
            let replies =
                sender.replies(&draft.task, &draft.events, self.now, self.links, chance::id);
            self.batch.messages.extend(replies);
        }
        if !draft.asks.is_empty() {
            let asks = sender.asks(&draft.task, &draft.asks, self.now, self.links, chance::id);
            self.batch.messages.extend(asks);
        }
        self.mark(&draft);
        let lanes = lanes_of(&draft.task, &draft.changed, local);
        if self.spares_rows && lanes.is_empty() {
            draft.keep_claim();
        }
        let task = draft.task.id();
        let (own, others): (Vec<_>, Vec<_>) = draft
            .dropped
            .into_iter()
            .partition(|dropped| dropped.held_by == *local.instance());
        let own = own.into_iter().map(|dropped| {
            let step = dropped.step;
            (StepRef { task, step }, dropped.attempt, dropped.confirm)
        });
        self.dropped.extend(own);
        let alerts = draft.alerts.into_iter();
        draft.first_touched.sort_unstable();
        let mut attempts = draft.attempts;
        if self.terms.record.saves_successes_later {
            let succeeded = |record: &mut AttemptRecord| record.has_succeeded();
            let samples = attempts.extract_if(.., succeeded);
            self.samples.extend(samples.map(|record| (task, record)));
        }
        let is_row_kept = row.is_some_and(|row| row.is_kept(&draft.task));
        self.batch.changes.push(TaskChange {
            task: Arc::new(draft.task),
            base,
            is_row_kept,
            known_rows: draft.known_steps,
            steps: draft.changed,
            first_touched: draft.first_touched,
            had_steps: draft.had_steps,
            lanes,
            events: draft.events,
            alerts: alerts.map(|alert| (chance::id(), alert)).collect(),
            asks: draft.asks,
            attempts,
            drops_elsewhere: !others.is_empty(),
            at: self.now,
        });
    }

    /// Marks the steps that must be compared with their children.
    fn mark(&mut self, draft: &Draft) {
        let task = &draft.task;
        let marks = &mut self.batch.marks;
        if let Some(parent) = &task.details.parent
            && (draft.events.iter()).any(Event::concerns_parent)
        {
            marks.push((parent.task, parent.index));
        }
        let steps = task.steps_to_compare(&draft.changed);
        marks.extend(steps.into_iter().map(|step| (task.id(), step)));
    }

    /// Informs this process of what has just been committed.
    pub(in crate::store::writer) fn publish(
        &mut self,
        batch: &Batch,
        heads: &KnownQueues,
        is_shared: bool,
        local: &dyn LocalScheduler,
        watchers: &Watchers,
        outbox: &Notify,
    ) {
        for task in self.salvaged.drain(..) {
            self.faults.forget(task);
        }
        for (step, attempt, confirm) in self.dropped.drain(..) {
            local.dropped(step, attempt, confirm);
        }
        for agent in self.closed.drain(..) {
            local.reply_closed(&agent);
        }
        // This comes before the pending steps: a queue may have become empty and have grown again in one batch.
        let claimed = std::mem::take(&mut self.claimed);
        self.lanes.publish(heads, local);
        for agent in heads.saved(claimed, &batch.changes, is_shared, self.now) {
            local.queue_drained(&agent);
        }
        for change in &batch.changes {
            change.log_errors();
            if ended_steps(change).next().is_some() {
                for agent in heads.freed_keys(&change.task.details.step_keys()) {
                    local.lane_freed(&agent);
                }
            }
            for step in &change.steps {
                let Some(agent) = change.task.definition(*step).agent() else {
                    continue;
                };
                if let Some(due_at) = change.task.due_at(*step) {
                    local.pending(agent, due_at, self.now);
                } else if !change.lanes.is_empty() {
                    local.lane_freed(agent);
                }
            }
        }
        if !self.dispatches.is_empty() {
            local.dispatch(std::mem::take(&mut self.dispatches));
        }
        if batch.tells_somebody() {
            outbox.notify_one();
        }
        watchers.tell(batch.changes.iter().map(|change| &change.task));
    }

    pub(in crate::store::writer) fn send_replies(
        self,
        batch: &Batch,
        requests: Vec<Request>,
        metrics: &WriterMetrics,
    ) {
        let changes = &batch.changes;
        let task = |id: TaskId| {
            let found = changes.binary_search_by_key(&id, |change| change.task.id());
            found.map(|at| changes[at].task.clone())
        };
        for (request, reply) in requests.into_iter().zip(self.replies) {
            // A caller that is gone needs no response.
            match (request, reply) {
                (Request::Submit { answer, .. } | Request::Apply { answer, .. }, reply) => {
                    let _ = answer.send(match reply {
                        PendingReply::Task(id) => task(id)
                            .map(Submitted::New)
                            .map_err(|_| CommandError::NoTask),
                        PendingReply::Replayed(id) => Ok(Submitted::Replayed(id)),
                        PendingReply::Refused(error) => {
                            metrics.refused(&error);
                            Err(error)
                        }
                        PendingReply::Claimed(_) | PendingReply::Written(_) => {
                            Err(CommandError::NoTask)
                        }
                    });
                }
                (Request::ClaimQueued { answer, .. }, PendingReply::Claimed(claimed)) => {
                    let _ = answer.send(Ok(claimed));
                }
                (Request::Write(write), PendingReply::Written(written)) => {
                    write.reply(Ok(written));
                }
                // There is one reply for each request, in the order of the requests.
                (request, _) => request.refuse(&StoreError::Stopping),
            }
        }
    }
}

impl Batch {
    pub(in crate::store::writer) fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.keys.is_empty()
    }

    /// Returns whether the batch may have written messages.
    fn tells_somebody(&self) -> bool {
        let tells_of_alerts = !self.sender.webhooks.is_empty();
        !self.messages.is_empty()
            || tells_of_alerts && self.changes.iter().any(|change| !change.alerts.is_empty())
    }
}
