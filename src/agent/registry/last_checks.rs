//! The last check of each agent that was checked, as the record has it.

use std::{collections::HashMap, sync::Arc};

use arc_swap::ArcSwap;

use crate::domain::{
    agent::{AgentCheck, AgentSpec},
    values::{AgentName, ETag},
};

#[derive(Default)]
pub(super) struct LastChecks(ArcSwap<HashMap<AgentName, Arc<AgentCheck>>>);

impl LastChecks {
    pub fn replace(&self, checks: Vec<(AgentName, AgentCheck)>) {
        let checks = checks.into_iter();
        let checks = checks.map(|(name, check)| (name, Arc::new(check)));
        self.0.store(Arc::new(checks.collect()));
    }

    pub fn get(&self, name: &AgentName) -> Option<Arc<AgentCheck>> {
        self.0.load().get(name).map(Arc::clone)
    }
}

/// By which it is known whether an agent was changed after a check.
pub fn check_tag(spec: &AgentSpec) -> String {
    ETag::of_agent(spec).to_string()
}
