//! The last check of an agent, as its view shows it.

use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use crate::{
    api::openapi::words::{CheckPointSchema, CheckStatusSchema, CheckVerdictSchema},
    domain::{AgentName, CheckVerdict, Timestamp},
};

/// The last check of an agent.
#[derive(Serialize, ToSchema)]
#[schema(as = LastCheck)]
pub struct LastCheckView {
    #[schema(value_type = String, format = DateTime)]
    checked_at: Timestamp,
    #[schema(value_type = CheckVerdictSchema)]
    status: CheckVerdict,
    /// The method and path that were checked.
    #[schema(example = "POST /charges")]
    request: String,
    /// True if the agent was changed since: then it says nothing of the agent as it is now.
    is_outdated: bool,
    #[schema(max_items = 32)]
    findings: Vec<KeptFindingView>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = LastFinding)]
pub struct KeptFindingView {
    #[schema(value_type = CheckPointSchema)]
    name: &'static str,
    #[schema(value_type = CheckStatusSchema)]
    status: &'static str,
    #[schema(example = "both had the same output")]
    seen: String,
}

impl LastCheckView {
    /// `None` if the agent was never checked.
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
