//! How many of the calls of an agent in this process are retries: see [`RetryBudget`].

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::domain::{RetryBudget, RetryBudgetUse, RetrySpec, RetryWait};
pub(super) use crate::domain::{retry_after, retry_wait};

/// The retry budget of an agent in this process.
pub(super) struct AgentRetryBudget {
    start: Instant,
    budget: Mutex<RetryBudget>,
}

impl Default for AgentRetryBudget {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            budget: Mutex::default(),
        }
    }
}

impl AgentRetryBudget {
    pub fn add_call(&self) {
        self.budget.lock().add_call(self.millis());
    }

    /// When a call that has failed may be made again.
    pub fn reserve(&self, spec: &RetrySpec, backoff: Duration) -> RetryWait {
        let Some(percent) = spec.budget_percent else {
            return backoff.into();
        };
        let mut budget = self.budget.lock();
        budget.reserve(percent, backoff, self.millis(), rand::random())
    }

    pub fn in_use(&self) -> RetryBudgetUse {
        self.budget.lock().in_use(self.millis())
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
