//! A report of one process for the record that all instances share.

use crate::{agent::control::ControlChange, values::ids::AgentName};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BreakerReport {
    pub agent: AgentName,
    pub change: ControlChange,
    /// The epoch of the endpoint after the change: a report from before a later change has no effect. Zero if the change is
    /// one of the whole agent.
    pub(super) epoch: u64,
}

impl BreakerReport {
    pub(super) fn of_agent(agent: &AgentName, change: ControlChange) -> Self {
        Self {
            agent: agent.clone(),
            change,
            epoch: 0,
        }
    }
}
