//! The list of agents, and the page of one.

use askama::Template;
use axum::{extract::Path, response::Response};

use super::view::{Agent, AgentPage};
use crate::{
    params::{Params, encoded},
    respond::next_page,
    service::Refusal,
    shell::{Section, Shell},
    visit::Visit,
};

#[derive(Template)]
#[template(path = "agents.html")]
pub struct AgentsPage {
    pub page: Shell,
    pub title: String,
    pub agents: Vec<Agent>,
    pub next: Option<String>,
}

#[derive(Template)]
#[template(path = "agent.html")]
pub struct OneAgentPage {
    pub page: Shell,
    pub agent: Agent,
}

impl AgentsPage {
    pub fn new(page: Shell, list: AgentPage) -> Self {
        let mut agents = list.items;
        agents.sort_by_key(|agent| (agent.trouble(page.now).is_none(), agent.name.clone()));
        let troubled = agents
            .iter()
            .filter(|agent| agent.trouble(page.now).is_some())
            .count();
        let title = match (agents.len(), troubled) {
            (0, _) => String::from("No agent is registered"),
            (_, 0) => String::from("All agents get their calls"),
            (all, 1) => format!("1 of {all} agents does not get all of its calls"),
            (all, some) => format!("{some} of {all} agents do not get all of their calls"),
        };
        Self {
            title,
            next: next_page(&Params::default(), list.next_cursor.as_deref()),
            agents,
            page,
        }
    }
}

impl OneAgentPage {
    pub fn command(&self, command: &str) -> String {
        self.page
            .to(&format!("/agents/{}/{command}", encoded(&self.agent.name)))
    }

    pub fn failed_here(&self) -> String {
        let query = Params::from_iter([("state", "error"), ("agent", self.agent.name.as_str())]);
        self.page.to(&format!("/tasks{}", query.query()))
    }
}

pub async fn list(visit: Visit) -> Response {
    let page = build_list(&visit).await;
    visit.show(page)
}

async fn build_list(visit: &Visit) -> Result<AgentsPage, Refusal> {
    let mut query = Params::from_iter([("limit", "100")]);
    if let Some(cursor) = visit.query.get("after") {
        query = query.with("cursor", cursor);
    }
    let agents = visit.get(&format!("/v1/agents{}", query.query())).await?;
    Ok(AgentsPage::new(
        visit.shell(Section::Agents, "Agents"),
        agents,
    ))
}

pub async fn show(Path(name): Path<String>, visit: Visit) -> Response {
    let agent = visit
        .get::<Agent>(&format!("/v1/agents/{}", encoded(&name)))
        .await;
    visit.show(agent.map(|agent| OneAgentPage {
        page: visit.shell(Section::Agents, format!("Agent {}", agent.name)),
        agent,
    }))
}
