//! How much one batch loads. Commands on five hundred tasks with large inputs, none of them cached, would otherwise be
//! half a gigabyte at once. What does not fit is for the next batch, in its order.

use std::collections::{HashMap, HashSet};

use super::request::Request;
use crate::domain::{ClaimPlan, TaskId};

/// The most bytes of one batch; but a task that is larger is loaded alone.
const MOST: usize = 32 * 1024 * 1024;

/// What is loaded for a batch.
pub(super) struct LoadBudget<'s> {
    /// Of the tasks that are not cached.
    sizes: &'s HashMap<TaskId, usize>,
    taken: HashSet<TaskId>,
    bytes: usize,
}

impl<'s> LoadBudget<'s> {
    pub fn new(sizes: &'s HashMap<TaskId, usize>) -> Self {
        Self {
            sizes,
            taken: HashSet::new(),
            bytes: 0,
        }
    }

    /// Whether the task can be loaded with those before it. What is cached costs nothing.
    pub fn takes(&mut self, task: TaskId) -> bool {
        let Some(size) = self.sizes.get(&task) else {
            return true;
        };
        if self.taken.contains(&task) {
            return true;
        }
        if !self.taken.is_empty() && self.bytes.saturating_add(*size) > MOST {
            return false;
        }
        self.bytes = self.bytes.saturating_add(*size);
        self.taken.insert(task)
    }

    /// How many of the requests there is room for; the first always fits. Claims fit where one of them does. Otherwise
    /// they come first in the next batch: commands cannot keep them out.
    pub fn for_requests(&mut self, requests: &[Request], claims: &mut ClaimPlan) -> usize {
        let fits = |request: &Request| match request {
            Request::Apply { apply, .. } => self.takes(apply.task),
            Request::ClaimQueued { .. } => claims.cut(|task| self.takes(task)),
            _ => true,
        };
        let fitting = requests.iter().map(fits).take_while(|fits| *fits);
        fitting.count()
    }

    /// Whether the task is among those that are loaded.
    pub fn has(&self, task: TaskId) -> bool {
        self.taken.contains(&task)
    }
}
