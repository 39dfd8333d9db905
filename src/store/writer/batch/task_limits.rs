//! Limits on how many tasks of a workflow run at once: decides whether a new task begins, waits or is refused.

use std::collections::HashMap;

use crate::{
    domain::{definition::OnConflict, queue::TaskKey, task::Details},
    store::{
        Batch, CommandError, StoreError, Transaction,
        queue::task_limits::{KeyTasks, LimitedTask},
        writer::{request::Request, waiting_tasks::WaitingTasks},
    },
};

/// The counted tasks of the keys of new tasks, by the record and with those that this batch adds.
#[derive(Default)]
pub(in crate::store::writer) struct TaskLimits {
    counted: HashMap<String, KeyTasks>,
    added: Vec<LimitedTask>,
    /// Keys that another instance is counting now, or of which other tasks are to be cancelled.
    look_at: Vec<String>,
}

pub(super) enum Admission {
    Begins,
    Waits,
}

impl TaskLimits {
    /// Counts the tasks of the keys that the new tasks have.
    pub async fn count(
        &mut self,
        requests: &[Request],
        tx: &mut Transaction<'_>,
    ) -> Result<(), StoreError> {
        for request in requests {
            let Some(details) = request.new_task() else {
                continue;
            };
            if details.definition.policies.limits.is_empty() {
                continue;
            }
            for key in details.task_keys() {
                if self.counted.contains_key(&key.name) {
                    continue;
                }
                if tx.lock_task_key(&key.name).await? {
                    let counted = tx.tasks_of_key(&key.name).await?;
                    self.counted.insert(key.name, counted);
                } else if key.on_conflict == OnConflict::Reject {
                    let reason = "another instance counts the tasks of a key just now";
                    return Err(StoreError::Retryable(reason.to_owned()));
                }
            }
        }
        Ok(())
    }

    /// Decides whether a new task begins, waits or is refused.
    pub(super) fn admit(&mut self, details: &Details) -> Result<Admission, CommandError> {
        if details.definition.policies.limits.is_empty() {
            return Ok(Admission::Begins);
        }
        let keys = details.task_keys();
        let has_room = |key: &TaskKey| {
            let counted = self.counted.get(&key.name);
            counted.is_some_and(|tasks| {
                // If this key refuses tasks without room, the tasks of it that wait do so because of another key.
                let is_next = !tasks.has_waiting || key.on_conflict == OnConflict::Reject;
                is_next && tasks.running < u64::from(key.max_running)
            })
        };
        let is_refused = |key: &&TaskKey| key.on_conflict == OnConflict::Reject && !has_room(key);
        if let Some(full) = keys.iter().find(is_refused) {
            return Err(CommandError::TaskLimit {
                by: full.by.clone(),
                key: full.key.clone(),
                max_running: full.max_running,
            });
        }
        let waits = !keys.iter().all(has_room);
        for key in keys {
            match self.counted.get_mut(&key.name) {
                Some(tasks) if waits => tasks.has_waiting = true,
                Some(tasks) => tasks.running += 1,
                None => self.look_at.push(key.name.clone()),
            }
            let counted = self.counted.get(&key.name);
            let has_place = counted.is_some_and(|tasks| tasks.running < u64::from(key.max_running));
            if waits && (key.on_conflict == OnConflict::Replace || has_place) {
                self.look_at.push(key.name.clone());
            }
            self.added.push(LimitedTask {
                key,
                task: details.id,
                waits,
            });
        }
        Ok(match waits {
            true => Admission::Waits,
            false => Admission::Begins,
        })
    }

    /// Counts a task that was submitted for a later start and begins now.
    pub(super) fn started(&mut self, details: &Details) {
        for key in details.task_keys() {
            self.look_at.push(key.name.clone());
            self.added.push(LimitedTask {
                key,
                task: details.id,
                waits: true,
            });
        }
    }

    pub async fn save(&self, tx: &mut Transaction<'_>) -> Result<(), StoreError> {
        for limited in &self.added {
            tx.add_limited_task(limited).await?;
        }
        Ok(())
    }

    /// Reports the keys and tasks that have changed after the commit.
    pub fn publish(&mut self, batch: &Batch, waiting: &WaitingTasks) {
        for change in &batch.changes {
            let details = &change.task.details;
            let (has_ended, waits) = (change.task.is_ended(), change.task.waits);
            if !details.definition.policies.limits.is_empty()
                && (has_ended || waits && change.base.is_some())
            {
                if has_ended {
                    waiting.ended(change.task.id());
                }
                // A waiting task may have been resumed or retried.
                for key in details.task_keys() {
                    waiting.look_at(key.name);
                }
            }
        }
        for key in self.look_at.drain(..) {
            waiting.look_at(key);
        }
    }
}
