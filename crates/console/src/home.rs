//! The home page: what needs a person now. The causes of failures come first, then everything else that is in trouble,
//! then load and the state of agents and instances.

use askama::Template;
use axum::response::Response;
use jiff::Timestamp;
use serde::Deserialize;

use crate::{
    agents::view::{Agent, AgentPage},
    causes::failure::{Failure, FailurePage},
    parts::{Html, counted, duration_in_words, number},
    schedules::view::{ScheduleHead, SchedulePage},
    service::Refusal,
    shell::{Section, Shell},
    tasks::list::TaskPage,
    visit::Visit,
};

/// The number of items that are counted exactly.
const COUNTED: usize = 100;

/// A list of which only the number of items, and a part of each, matters here.
#[derive(Deserialize)]
pub struct Counted<T> {
    pub items: Vec<T>,
    pub next_cursor: Option<String>,
}

impl<T> Counted<T> {
    fn count(&self) -> String {
        let count = number(self.items.len() as u64);
        match self.next_cursor {
            Some(_) => format!("{count} or more"),
            None => count,
        }
    }
}

#[derive(Deserialize)]
pub struct OpenAsk {
    pub until: Option<String>,
}

#[derive(Deserialize)]
pub struct DeadLetter {
    pub receiver: String,
    pub error: Option<String>,
}

#[derive(Deserialize)]
pub struct Alert {
    pub kind: String,
    pub message: String,
}

#[derive(Deserialize)]
pub struct Instance {
    pub id: String,
    pub started_at: String,
    pub version: String,
    pub alive: bool,
    pub supervising: bool,
    pub in_flight: u64,
}

/// The kinds of alerts that no other line of the page is about.
const OTHER_ALERTS: [&str; 7] = [
    "task.fault",
    "task.unreadable",
    "messages.waiting",
    "broker.unreachable",
    "secret.unusable",
    "agent.missing",
    "clock.set",
];

/// The responses that the page is made of. Each may be refused without the others.
pub struct HomeParts {
    pub causes: Result<FailurePage, Refusal>,
    pub newest: Result<TaskPage, Refusal>,
    pub at_risk: Result<TaskPage, Refusal>,
    pub asks: Result<Counted<OpenAsk>, Refusal>,
    pub letters: Result<Counted<DeadLetter>, Refusal>,
    pub alerts: Result<Counted<Alert>, Refusal>,
    pub agents: Result<AgentPage, Refusal>,
    pub schedules: Result<SchedulePage, Refusal>,
    pub instances: Result<Counted<Instance>, Refusal>,
}

/// A line about something that needs attention.
pub struct Notice {
    pub badge: Html,
    pub sentence: String,
    pub link: String,
    pub link_name: &'static str,
}

#[derive(Template)]
#[template(path = "home.html")]
pub struct HomePage {
    pub page: Shell,
    pub title: String,
    pub lead: String,
    pub causes: Result<FailurePage, Refusal>,
    pub lines: Vec<Notice>,
    /// The parts that could not be read.
    pub refusals: Vec<Refusal>,
    pub agents: Vec<Agent>,
    pub instances: Vec<Instance>,
}

/// The page of a service that has no tasks yet.
#[derive(Template)]
#[template(path = "first_run.html")]
pub struct FirstRunPage {
    pub page: Shell,
    /// The address of the API, for the commands to copy.
    pub api: String,
    pub agents: usize,
    pub instances: Vec<Instance>,
}

impl HomePage {
    pub fn new(page: Shell, parts: HomeParts) -> Self {
        let mut refusals = Vec::new();
        let lines = lines(&page, &parts, &mut refusals);
        let (title, lead) = match &parts.causes {
            Ok(causes) => (title(causes), lead(causes, &page)),
            Err(_) => (
                String::from("It is not known what needs a person"),
                String::new(),
            ),
        };
        let mut agents = parts.agents.map(|agents| agents.items).unwrap_or_default();
        agents.sort_by_key(|agent| (agent.trouble(page.now).is_none(), agent.name.clone()));
        Self {
            title,
            lead,
            causes: parts.causes,
            lines,
            refusals,
            agents,
            instances: parts.instances.map(|all| all.items).unwrap_or_default(),
            page,
        }
    }
}

fn title(causes: &FailurePage) -> String {
    let tasks: u64 = causes.items.iter().map(|cause| cause.tasks).sum();
    let is_more = causes.more_causes
        || causes.next_cursor.is_some()
        || causes.items.iter().any(|cause| cause.more);
    let least = match is_more {
        true => "At least ",
        false => "",
    };
    match causes.items.len() as u64 {
        0 => String::from("No task needs a person"),
        1 if tasks == 1 && !is_more => String::from("1 task needs a person, for 1 cause"),
        many => format!(
            "{least}{} need a person, for {}",
            counted(tasks, "task", "tasks"),
            counted(many, "cause", "causes")
        ),
    }
}

fn lead(causes: &FailurePage, page: &Shell) -> String {
    let growing: Vec<&Failure> = causes.items.iter().filter(|cause| cause.growing).collect();
    let since = |at: &str| match at.parse::<Timestamp>() {
        Ok(at) => duration_in_words(page.now.as_second() - at.as_second()),
        Err(_) => String::from("some time"),
    };
    match growing.as_slice() {
        [] if causes.items.is_empty() => String::from("What runs, runs by itself."),
        [] => String::from("None of the causes grows."),
        [one] => format!(
            "One cause grows. Its first task failed {} ago.",
            since(&one.first_at)
        ),
        [first, ..] => format!(
            "{} causes grow. The largest began {} ago.",
            growing.len(),
            since(&first.first_at)
        ),
    }
}

/// Returns what needs attention besides the causes, the most urgent first.
fn lines(page: &Shell, parts: &HomeParts, refusals: &mut Vec<Refusal>) -> Vec<Notice> {
    let mut lines = Vec::new();
    let mut ok = |refusal: &Refusal| refusals.push(refusal.clone());
    match &parts.agents {
        Ok(agents) => lines.extend(
            agents
                .items
                .iter()
                .filter_map(|agent| of_agent(page, agent)),
        ),
        Err(refusal) => ok(refusal),
    }
    match &parts.alerts {
        Ok(alerts) => {
            let others = alerts
                .items
                .iter()
                .filter(|alert| OTHER_ALERTS.contains(&alert.kind.as_str()));
            lines.extend(others.map(|alert| Notice {
                badge: page.badge("error", "warn", alert.kind.replace(['.', '_'], " ")),
                sentence: alert.message.clone(),
                link: page.to("/instances"),
                link_name: "instances",
            }));
        }
        Err(refusal) => ok(refusal),
    }
    match &parts.at_risk {
        Ok(tasks) if tasks.items.is_empty() => {}
        Ok(tasks) => {
            let count = tasks.items.len() as u64;
            let least = match tasks.next_cursor {
                Some(_) => "at least ",
                None => "",
            };
            lines.push(Notice {
                badge: page.badge("paused", "clock", "at risk"),
                sentence: format!(
                    "{least}{} will be late, as far as is known",
                    counted(count, "task", "tasks")
                ),
                link: page.to("/tasks?at_risk=true"),
                link_name: "tasks",
            });
        }
        Err(refusal) => ok(refusal),
    }
    match &parts.asks {
        Ok(asks) if asks.items.is_empty() => {}
        Ok(asks) => {
            let soonest = asks
                .items
                .iter()
                .filter_map(|ask| ask.until.as_deref()?.parse().ok())
                .min();
            let closes = soonest.map(|at: Timestamp| {
                let left = duration_in_words(at.as_second() - page.now.as_second());
                format!("; the next one closes in {left}")
            });
            lines.push(Notice {
                badge: page.badge("pending", "ask", format!("{} asks", asks.count())),
                sentence: format!("wait for people{}", closes.unwrap_or_default()),
                link: page.to("/asks"),
                link_name: "asks",
            });
        }
        Err(refusal) => ok(refusal),
    }
    match &parts.letters {
        Ok(letters) => {
            if let Some(letter) = letters.items.first() {
                let why = letter.error.as_deref().unwrap_or("no reason was recorded");
                lines.push(Notice {
                    badge: page.badge("error", "mail", format!("{} dead letters", letters.count())),
                    sentence: format!("the newest to {}: {why}", letter.receiver),
                    link: page.to("/messages?state=dead"),
                    link_name: "messages",
                });
            }
        }
        Err(refusal) => ok(refusal),
    }
    match &parts.schedules {
        Ok(schedules) => lines.extend(
            schedules
                .items
                .iter()
                .filter_map(|item| of_schedule(page, item)),
        ),
        Err(refusal) => ok(refusal),
    }
    lines
}

fn of_agent(page: &Shell, agent: &Agent) -> Option<Notice> {
    let trouble = agent.trouble(page.now)?;
    Some(Notice {
        badge: page.badge(trouble.class, trouble.shape, trouble.word),
        sentence: format!("{}: {}", agent.name, trouble.sentence),
        link: page.agent(&agent.name),
        link_name: "agent",
    })
}

fn of_schedule(page: &Shell, schedule: &ScheduleHead) -> Option<Notice> {
    let why = schedule.failing.as_deref()?;
    Some(Notice {
        badge: page.badge("error", "clock", "schedule failing"),
        sentence: format!("{}: {why}", schedule.name),
        link: page.schedule(&schedule.name),
        link_name: "schedule",
    })
}

pub async fn show(visit: Visit) -> Response {
    let at_most = |path: &str, limit: usize| {
        let sign = match path.contains('?') {
            true => '&',
            false => '?',
        };
        format!("{path}{sign}limit={limit}")
    };
    let targets = [
        at_most("/v1/failures", 20),
        at_most("/v1/tasks", 1),
        at_most("/v1/tasks?at_risk=true", COUNTED),
        at_most("/v1/asks?open=true", COUNTED),
        at_most("/v1/messages?state=dead", COUNTED),
        at_most("/v1/alerts?state=open", COUNTED),
        at_most("/v1/agents", COUNTED),
        at_most("/v1/schedules", COUNTED),
    ];
    let (causes, newest, at_risk, asks, letters, alerts, agents, schedules, instances) = tokio::join!(
        visit.get(&targets[0]),
        visit.get::<TaskPage>(&targets[1]),
        visit.get(&targets[2]),
        visit.get(&targets[3]),
        visit.get(&targets[4]),
        visit.get(&targets[5]),
        visit.get::<AgentPage>(&targets[6]),
        visit.get(&targets[7]),
        visit.get::<Counted<Instance>>("/v1/instances"),
    );
    let shell = visit.shell(Section::Home, "Home");
    let parts = HomeParts {
        causes,
        newest,
        at_risk,
        asks,
        letters,
        alerts,
        agents,
        schedules,
        instances,
    };
    let has_no_task =
        matches!(&parts.newest, Ok(tasks) if tasks.items.is_empty() && tasks.next_cursor.is_none());
    if has_no_task {
        let host = shell.installation.origin.clone();
        let api = host.unwrap_or_else(|| String::from("http://127.0.0.1:8080"));
        return visit.show(Ok(FirstRunPage {
            api: format!("{api}{}", shell.installation.base),
            agents: parts.agents.map_or(0, |agents| agents.items.len()),
            instances: parts.instances.map(|all| all.items).unwrap_or_default(),
            page: shell,
        }));
    }
    visit.show(Ok(HomePage::new(shell, parts)))
}
