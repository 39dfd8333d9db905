//! The share of retries in the calls of an agent in this process: see [`RetryBudget`].

use std::time::Duration;

use parking_lot::Mutex;

pub(super) use crate::domain::agent::{call_wait, retry_after};
use crate::{
    chance,
    clock::{self, Instant},
    domain::{
        agent::RetrySpec,
        task::{RetryBudget, RetryBudgetUse, RetryWait},
    },
};

/// The retry budget of an agent in this process.
pub(super) struct AgentRetryBudget {
    start: Instant,
    budget: Mutex<RetryBudget>,
}

impl Default for AgentRetryBudget {
    fn default() -> Self {
        Self {
            start: clock::instant(),
            budget: Mutex::default(),
        }
    }
}

impl AgentRetryBudget {
    pub fn add_call(&self) {
        self.budget.lock().add_call(self.millis());
    }

    /// Returns when a call that has failed may be made again.
    pub fn reserve(&self, spec: &RetrySpec, backoff: Duration) -> RetryWait {
        let Some(percent) = spec.budget_percent else {
            return backoff.into();
        };
        let mut budget = self.budget.lock();
        budget.reserve(percent, backoff, self.millis(), chance::random())
    }

    pub fn in_use(&self) -> RetryBudgetUse {
        self.budget.lock().in_use(self.millis())
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
