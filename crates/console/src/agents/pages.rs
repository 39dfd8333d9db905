//! The list of agents, and the page of one.

use std::{cmp::Reverse, collections::BTreeMap};

use askama::Template;
use axum::{extract::Path, response::Response};

use super::view::{Agent, AgentPage, Endpoint};
use crate::{
    hours::{self, Since},
    overview::{Capped, Overview},
    params::{Params, encoded},
    parts::Html,
    respond::next_page,
    service::{Refusal, Role},
    shell::{Section, Shell},
    tasks::list::{TaskPage, TaskRow},
    visit::Visit,
};

#[derive(Template)]
#[template(path = "agents.html")]
pub struct AgentsPage {
    pub page: Shell,
    pub title: String,
    pub agents: Vec<Agent>,
    pub overview: Result<Overview, Refusal>,
    pub next: Option<String>,
}

#[derive(Template)]
#[template(path = "agent.html")]
pub struct OneAgentPage {
    pub page: Shell,
    pub agent: Agent,
    pub activity: Result<Activity, Refusal>,
    pub users: Result<Users, Refusal>,
}

/// The latest tasks that have a step at the agent, and the workflows among them.
pub struct Users {
    pub tasks: Vec<TaskRow>,
    /// Each workflow with the number of its tasks, those with the most first.
    pub workflows: Vec<(String, u64)>,
    /// The number of tasks among which these were counted.
    pub count: u64,
}

impl Users {
    /// The number of tasks that the page shows.
    const SHOWN: usize = 10;

    fn of(page: TaskPage) -> Self {
        let mut counts = BTreeMap::<_, u64>::new();
        for task in &page.items {
            // A task with steps of its own has no workflow.
            if let Some(workflow) = &task.workflow {
                *counts.entry(workflow.clone()).or_default() += 1;
            }
        }
        let mut workflows: Vec<_> = counts.into_iter().collect();
        workflows.sort_by_key(|(_, count)| Reverse(*count));
        let count = page.items.len() as u64;
        let mut tasks = page.items;
        tasks.truncate(Self::SHOWN);
        Self {
            tasks,
            workflows,
            count,
        }
    }
}

/// The activity of the agent in the last 24 hours.
pub struct Activity {
    /// `None`: the overview does not have this agent.
    pub known: Option<Known>,
}

pub struct Known {
    pub queued: String,
    pub calls: Html,
    pub latency: Html,
}

impl Activity {
    fn of(page: &Shell, overview: &Overview, name: &str) -> Self {
        let since = Since {
            from: &overview.from,
            now: page.now,
        };
        let known = overview.agent(name).map(|agent| {
            let latencies = agent.by_hour.iter().map(|hour| (hour.p50, hour.p99));
            let latencies: Vec<_> = latencies.collect();
            Known {
                queued: agent.queued.words(),
                calls: hours::of_calls(&since, &agent.by_hour),
                latency: hours::of_latency(
                    &since,
                    "From claim to reply, last 24 hours",
                    &latencies,
                ),
            }
        });
        Self { known }
    }
}

impl AgentsPage {
    pub fn new(page: Shell, list: AgentPage, overview: Result<Overview, Refusal>) -> Self {
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
            overview,
            page,
        }
    }

    /// Returns the number of steps that wait for an agent.
    pub fn queued(&self, agent: &str) -> String {
        match &self.overview {
            Ok(overview) => {
                let queued = overview.agent(agent).map(|agent| agent.queued);
                queued.unwrap_or(Capped::NONE).words()
            }
            Err(_) => String::from("not counted"),
        }
    }
}

impl OneAgentPage {
    pub fn command(&self, command: &str) -> String {
        self.page.agent_command(&self.agent.name, command)
    }

    /// Returns the address of the check, for those who may.
    pub fn check(&self) -> Option<String> {
        (self.page.person.role == Role::Admin).then(|| self.command("check"))
    }

    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.agent.all_endpoints()
    }

    pub fn all_tasks(&self) -> String {
        let query = Params::from_iter([("agent", self.agent.name.as_str())]);
        self.page.to(&format!("/tasks{}", query.query()))
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
    let target = format!("/v1/agents{}", query.query());
    let (agents, overview) = tokio::join!(visit.get(&target), visit.get("/v1/overview"));
    let shell = visit.shell(Section::Agents, "Agents");
    Ok(AgentsPage::new(shell, agents?, overview))
}

pub async fn show(Path(name): Path<String>, visit: Visit) -> Response {
    let page = build_one(&visit, &name).await;
    visit.show(page)
}

async fn build_one(visit: &Visit, name: &str) -> Result<OneAgentPage, Refusal> {
    let target = format!("/v1/agents/{}", encoded(name));
    let used = Params::from_iter([("agent", name), ("limit", "50")]);
    let used = format!("/v1/tasks{}", used.query());
    let (agent, overview, tasks) = tokio::join!(
        visit.get::<Agent>(&target),
        visit.get::<Overview>("/v1/overview"),
        visit.get::<TaskPage>(&used)
    );
    let agent = agent?;
    let page = visit.shell(Section::Agents, format!("Agent {}", agent.name));
    Ok(OneAgentPage {
        activity: overview.map(|overview| Activity::of(&page, &overview, &agent.name)),
        users: tasks.map(Users::of),
        page,
        agent,
    })
}
