//! Steps that this instance has marked, because they must be compared with their children. This set is a hint: the
//! record has all marks.

use std::collections::HashSet;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::domain::values::{StepIndex, TaskId};

/// The most steps that are kept in memory.
const MOST: usize = 10_000;

#[derive(Default)]
pub struct MarkedSteps {
    steps: Mutex<HashSet<(TaskId, StepIndex)>>,
    is_due: Mutex<bool>,
    woken: Notify,
}

impl MarkedSteps {
    pub(super) fn add(&self, marked: &[(TaskId, StepIndex)]) {
        if marked.is_empty() {
            return;
        }
        let mut steps = self.steps.lock();
        for step in marked {
            if steps.len() < MOST {
                steps.insert(*step);
            }
        }
        drop(steps);
        self.woken.notify_one();
    }

    /// Notes that marks are due in the record, whichever instance has saved them.
    pub fn expect_due(&self) {
        *self.is_due.lock() = true;
        self.woken.notify_one();
    }

    /// Returns up to `most` steps, and whether the record must be read.
    pub fn take(&self, most: usize) -> (Vec<(TaskId, StepIndex)>, bool) {
        let mut steps = self.steps.lock();
        let taken: Vec<_> = steps.iter().take(most).copied().collect();
        for step in &taken {
            steps.remove(step);
        }
        if !steps.is_empty() {
            self.woken.notify_one();
        }
        (taken, std::mem::take(&mut *self.is_due.lock()))
    }

    pub async fn woken(&self) {
        self.woken.notified().await;
    }
}
