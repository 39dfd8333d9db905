//! Bounds how much one batch loads. Otherwise commands on five hundred uncached tasks with large inputs would load half
//! a gigabyte at once. What does not fit is left for the next batch, in its order.

use std::collections::{HashMap, HashSet};

use super::request::Request;
use crate::domain::{queue::ClaimPlan, values::TaskId};

/// The most bytes that one batch loads. A task that is larger is loaded alone.
const MOST: usize = 32 * 1024 * 1024;

/// The tasks that are loaded for a batch.
pub(super) struct LoadBudget<'s> {
    /// The sizes of the tasks that are not cached, in bytes.
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

    /// Returns whether the task can be loaded with those before it. A cached task costs nothing.
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

    /// Returns for how many of the requests there is room; the first always fits. Claims fit if one of them does.
    /// Otherwise they come first in the next batch, so that commands cannot keep them out for ever.
    pub fn for_requests(&mut self, requests: &[Request], claims: &mut ClaimPlan) -> usize {
        let fits = |request: &Request| match request {
            Request::Apply { apply, .. } => self.takes(apply.task),
            Request::ClaimQueued { .. } => claims.cut(|task| self.takes(task)),
            _ => true,
        };
        let fitting = requests.iter().map(fits).take_while(|fits| *fits);
        fitting.count()
    }

    /// Returns whether the task is among those that are loaded.
    pub fn has(&self, task: TaskId) -> bool {
        self.taken.contains(&task)
    }
}
