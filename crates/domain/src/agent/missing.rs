//! Agents that do not exist although steps are queued for them: these steps are not called, and no other part of the
//! service reports that.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use crate::{
    message::alert::AlertNotice,
    task::alert_kind::AlertKind,
    values::{
        ids::{AgentName, ReceiverName},
        time::Timestamp,
    },
};

/// An alert is raised once an agent was missing at this many looks in a row. An agent that is removed and registered
/// again, or that another instance has just registered, is missing at fewer looks.
const LOOKS: u32 = 5;
/// The most agents that have an alert.
const MOST_ALERTS: usize = 100;

/// The changes that follow from a look at the queues.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MissingAgentChanges {
    pub raise: Vec<AgentName>,
    pub close: Vec<ReceiverName>,
}

impl MissingAgentChanges {
    pub fn is_empty(&self) -> bool {
        self.raise.is_empty() && self.close.is_empty()
    }
}

/// The agents that were missing at the last looks.
#[derive(Clone, Debug, Default)]
pub struct MissingAgents(BTreeMap<AgentName, u32>);

impl MissingAgents {
    /// Decides about alerts. `missing` are the agents that have queued steps and do not exist; `alerts` are the open
    /// alerts.
    pub fn decide(
        &mut self,
        missing: BTreeSet<AgentName>,
        alerts: &BTreeSet<ReceiverName>,
    ) -> MissingAgentChanges {
        let looks = missing.into_iter().map(|agent| {
            let looks = self.0.get(&agent).copied().unwrap_or_default();
            (agent, looks.saturating_add(1))
        });
        self.0 = looks.collect();
        let subjects: BTreeSet<_> = self.0.keys().map(missing_agent_subject).collect();
        let close: Vec<_> = alerts.difference(&subjects).cloned().collect();
        let room = MOST_ALERTS.saturating_sub(alerts.len() - close.len());
        let lasting = self.0.iter().filter(|(_, looks)| **looks >= LOOKS);
        let new = lasting.map(|(agent, _)| agent);
        let new = new.filter(|agent| !alerts.contains(&missing_agent_subject(agent)));
        MissingAgentChanges {
            raise: new.take(room).cloned().collect(),
            close,
        }
    }
}

/// Returns the subject of an agent's alert: at most one alert with it is open. No configured receiver and no origin has
/// such a name.
pub fn missing_agent_subject(agent: &AgentName) -> ReceiverName {
    ReceiverName::new(format!("missing-agent:{agent}"))
}

pub fn missing_agent_alert(id: Uuid, agent: &AgentName, at: Timestamp) -> AlertNotice {
    let kind = AlertKind::AgentMissing.as_str();
    let message = format!(
        "steps are queued for agent {agent}, which does not exist: register it (PUT /v1/agents/{agent}), or cancel or undo their tasks"
    );
    AlertNotice {
        receiver: Some(missing_agent_subject(agent)),
        ..AlertNotice::raised(id, kind, &message, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agents(names: &[&str]) -> BTreeSet<AgentName> {
        names.iter().map(|name| AgentName::new(*name)).collect()
    }

    #[test]
    fn an_agent_that_stays_away_while_steps_wait_has_one_alert_until_it_is_back() {
        let mut missing = MissingAgents::default();
        let mut alerts = BTreeSet::new();
        for look in 1..=10 {
            let changes = missing.decide(agents(&["payments"]), &alerts);
            let raised = if look == 5 {
                agents(&["payments"])
            } else {
                agents(&[])
            };
            assert_eq!(
                changes.raise.iter().cloned().collect::<BTreeSet<_>>(),
                raised,
                "{look}"
            );
            assert_eq!(changes.close, []);
            alerts.extend(changes.raise.iter().map(missing_agent_subject));
        }
        let changes = missing.decide(agents(&[]), &alerts);
        assert_eq!(
            changes.close,
            [missing_agent_subject(&AgentName::new("payments"))]
        );
        assert_eq!(changes.raise, []);
    }

    #[test]
    fn an_agent_that_is_replaced_has_none_and_their_number_is_bounded() {
        let mut missing = MissingAgents::default();
        for look in 0..20 {
            let names: &[&str] = if look % 4 == 0 { &[] } else { &["payments"] };
            assert!(missing.decide(agents(names), &BTreeSet::new()).is_empty());
        }
        let many: BTreeSet<_> = (0..300)
            .map(|number| AgentName::new(format!("a{number}")))
            .collect();
        let mut changes = MissingAgentChanges::default();
        for _ in 0..5 {
            changes = missing.decide(many.clone(), &BTreeSet::new());
        }
        assert_eq!(changes.raise.len(), 100);
        let alerts = changes.raise.iter().map(missing_agent_subject).collect();
        assert!(missing.decide(many, &alerts).is_empty());
    }
}
