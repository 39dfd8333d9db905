//! The state of the service as `GET /v1/overview` has it.

use jiff::Timestamp;
use serde::Deserialize;

use crate::{
    agents::view::{Breaker, Endpoint, Health, Pause, Throttle, Trouble},
    causes::failure::Failure,
    instances::Instance,
    parts::{counted, number},
};

#[derive(Deserialize)]
pub struct Overview {
    pub as_of: String,
    pub held: bool,
    pub failures: Failures,
    pub tasks: Vec<InState>,
    pub at_risk: Capped,
    pub asks: Capped,
    pub messages: Messages,
    /// The beginning of the first hour of each `by_hour`.
    pub from: String,
    pub by_hour: Vec<TaskActivity>,
    pub workflows: Vec<WorkflowDay>,
    pub agents: Vec<OverviewAgent>,
    pub instances: Vec<Instance>,
}

#[derive(Deserialize)]
pub struct Failures {
    pub causes: u64,
    pub more_causes: bool,
    pub growing: u64,
    pub first: Vec<Failure>,
}

/// A number that was counted up to a limit.
#[derive(Clone, Copy, Deserialize)]
pub struct Capped {
    pub count: u64,
    pub more: bool,
}

#[derive(Deserialize)]
pub struct InState {
    pub state: String,
    #[serde(flatten)]
    pub count: Capped,
}

#[derive(Deserialize)]
pub struct Messages {
    pub pending: Capped,
    pub dead: Capped,
}

#[derive(Deserialize)]
pub struct TaskActivity {
    pub accepted: u64,
    pub processed: u64,
    pub failed: u64,
    pub undone: u64,
    pub cancelled: u64,
    pub p50: Option<u64>,
    pub p99: Option<u64>,
}

#[derive(Deserialize)]
pub struct WorkflowDay {
    pub name: String,
    #[serde(flatten)]
    pub day: TaskActivity,
}

#[derive(Deserialize)]
pub struct AgentActivity {
    pub processed: u64,
    pub retried: u64,
    pub failed: u64,
    pub p50: Option<u64>,
    pub p99: Option<u64>,
}

/// An agent with its queue and its activity. The lists have only what is not as it should be.
#[derive(Deserialize)]
pub struct OverviewAgent {
    pub name: String,
    pub trouble: bool,
    pub pause: Option<Pause>,
    pub throttle: Option<Throttle>,
    pub breakers: Vec<Breaker>,
    pub endpoints: Vec<Endpoint>,
    pub queued: Capped,
    pub day: AgentActivity,
    pub by_hour: Vec<AgentActivity>,
}

impl Capped {
    pub const NONE: Self = Self {
        count: 0,
        more: false,
    };

    pub fn is_none(self) -> bool {
        self.count == 0
    }

    /// Returns `12`, or `more than 1,000`.
    pub fn words(self) -> String {
        match self.more {
            true => format!("more than {}", number(self.count.saturating_sub(1))),
            false => number(self.count),
        }
    }

    pub fn with_noun(self, one: &str, many: &str) -> String {
        match self.more {
            true => format!("{} {many}", self.words()),
            false => counted(self.count, one, many),
        }
    }
}

impl AgentActivity {
    /// Returns the number of attempts that have ended.
    pub fn calls(&self) -> u64 {
        self.processed.saturating_add(self.failures())
    }

    /// Returns the number of attempts that failed, repeated or not.
    pub fn failures(&self) -> u64 {
        self.retried.saturating_add(self.failed)
    }
}

impl Overview {
    pub fn in_state(&self, state: &str) -> Capped {
        let found = self.tasks.iter().find(|tasks| tasks.state == state);
        found.map_or(Capped::NONE, |tasks| tasks.count)
    }

    /// Returns whether nothing shows that there has ever been a task. Only a list can say that there is none, because
    /// tasks that are processed are not counted.
    pub fn shows_no_task(&self) -> bool {
        let is_idle = |hour: &TaskActivity| hour.accepted == 0 && hour.processed == 0;
        self.tasks.iter().all(|tasks| tasks.count.is_none()) && self.by_hour.iter().all(is_idle)
    }

    pub fn agent(&self, name: &str) -> Option<&OverviewAgent> {
        self.agents.iter().find(|agent| agent.name == name)
    }

    /// Returns the sum of a number over the last 24 hours.
    pub fn day(&self, of: impl Fn(&TaskActivity) -> u64) -> u64 {
        self.by_hour.iter().map(of).fold(0, u64::saturating_add)
    }
}

impl OverviewAgent {
    pub fn trouble(&self, now: Timestamp) -> Option<Trouble> {
        let health = Health {
            pause: self.pause.as_ref(),
            throttle: self.throttle.as_ref(),
            breakers: &self.breakers,
            endpoints: &self.endpoints,
            all: None,
        };
        let known = health.trouble(now);
        known.or_else(|| {
            self.trouble
                .then(|| Trouble::new("paused", "warn", "in trouble", "it may get fewer calls"))
        })
    }
}
