//! How much one batch loads. Commands on five hundred tasks with large inputs, none of them cached, would otherwise be
//! half a gigabyte at once. What does not fit is for the next batch, in its order.

use std::collections::{HashMap, HashSet};

use super::{batch::QueueHead, handle::Request};
use crate::domain::TaskId;

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
    fn takes(&mut self, task: TaskId) -> bool {
        let Some(size) = self.sizes.get(&task) else {
            return true;
        };
        if self.taken.contains(&task) {
            return true;
        }
        if !self.taken.is_empty() && self.bytes + size > MOST {
            return false;
        }
        self.bytes += size;
        self.taken.insert(task)
    }

    /// How many of the requests there is room for; the first always fits. Claims fit where one of them does. Otherwise
    /// they come first in the next batch: commands cannot keep them out.
    pub fn for_requests(&mut self, requests: &[Request], queues: &mut [QueueHead]) -> usize {
        let fits = |request: &Request| match request {
            Request::Apply { apply, .. } => self.takes(apply.task),
            Request::ClaimQueued { .. } => self.take_queues(queues),
            _ => true,
        };
        let fitting = requests.iter().map(fits).take_while(|fits| *fits);
        fitting.count()
    }

    /// Cuts queues short where their tasks do not fit. False if no task fits.
    fn take_queues(&mut self, queues: &mut [QueueHead]) -> bool {
        let (mut wanted, mut taken) = (0, 0);
        for queue in queues {
            wanted += queue.steps.len();
            let fitting = queue.steps.iter().take_while(|step| self.takes(step.task));
            let fitting = fitting.count();
            if fitting < queue.steps.len() {
                queue.steps.truncate(fitting);
                queue.is_cut = true;
            }
            taken += fitting;
        }
        taken > 0 || wanted == 0
    }

    /// Whether the task is among those that are loaded.
    pub fn has(&self, task: TaskId) -> bool {
        self.taken.contains(&task)
    }
}
