//! The last check of an agent, as its view shows it.

use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    api::App,
    domain::{
        agent::{CheckPoint, CheckStatus, CheckVerdict},
        values::{AgentName, Timestamp},
    },
};

/// The last check of an agent.
#[derive(Serialize, ToSchema)]
#[schema(as = LastCheck)]
pub struct LastCheckView {
    checked_at: Timestamp,
    status: CheckVerdict,
    /// The method and path that were checked.
    #[schema(example = "POST /charges")]
    request: String,
    /// True if the agent was changed since: the findings may no longer apply to it.
    is_outdated: bool,
    #[schema(max_items = 32)]
    findings: Vec<KeptFindingView>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = LastFinding)]
pub struct KeptFindingView {
    #[schema(value_type = CheckPoint)]
    name: &'static str,
    #[schema(value_type = CheckStatus)]
    status: &'static str,
    #[schema(example = "both had the same output")]
    seen: String,
}

impl LastCheckView {
    /// Returns `None` if the agent was never checked.
    pub fn of(app: &App, agent: &AgentName) -> Option<Self> {
        let (check, is_current) = app.agents.last_check(agent)?;
        let findings = check.findings.iter().map(|finding| KeptFindingView {
            name: finding.name.as_str(),
            status: finding.status.as_str(),
            seen: finding.seen.clone(),
        });
        Some(Self {
            checked_at: check.checked_at,
            status: check.status,
            request: check.request.clone(),
            is_outdated: !is_current,
            findings: findings.collect(),
        })
    }
}
